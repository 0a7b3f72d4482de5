//! Functions of Node programs whose stacks are known, in one stack with native frames: every name, file and line.

use std::path::Path;

use integration::agent::{Agent, Config};
use integration::seed::note;
use integration::stack::node::{Towers, node};
use integration::stack::sampled::Sampled;
use integration::stack::tower::Verdict;
use serde_json::Value;

use super::towers::{recorded, said};

/// More looks than usual, so that seconds are enough.
const HERTZ: u32 = 397;
/// Samples with functions of the program.
const LEAST: usize = 100;
/// What V8's own code is called, and code that was made at run time or is on no list.
const GENERATED: [&str; 3] = ["Builtins_", "[anonymous]", "[unknown]"];
/// Marks of what is missing of JavaScript.
const MARK: &str = "[truncated: node ";

fn check(agent: &Agent, node: &Path, inlines: bool) {
    let towers = Towers::start(node, inlines).unwrap();
    let pid = towers.program.pid();
    let recorded = recorded(agent, &towers.service, pid, &towers);
    let verdict = towers.judge(&recorded);
    let Verdict { judged, right, marked, impossible, without, apart, .. } = verdict;
    let lost: Vec<_> = recorded.iter().filter(|sample| is_lost(sample)).collect();
    let doubted = recorded.iter().filter(|sample| !sample.guests.is_empty() && has_mark(sample)).count();
    let inside = judged + lost.len();
    let interpreter = said(agent, pid);
    note(&format!(
        "Node {} {}: {right} of {inside} inside JavaScript right, {} with none of its functions, {doubted} with \
         a mark, {marked} not right and marked, {impossible} impossible, {apart} apart; {} outside; {interpreter}",
        towers.version,
        if inlines { "as users start it" } else { "without inlining" },
        lost.len(),
        without - lost.len()
    ));
    assert_eq!(impossible, 0, "{:#?}", verdict.wrong);
    // A compiler that begins again and again takes the time of other threads.
    assert!(judged >= LEAST, "{verdict:?}");
    assert!(right * 100 >= inside * 99, "{verdict:?} {:#?}", lost.iter().take(3).collect::<Vec<_>>());
    assert!(doubted * 100 <= inside, "{doubted} of {inside}");
    assert!(apart * 100 <= right, "{verdict:?}");
    assert_eq!(
        (&interpreter["runtime"], &interpreter["off"]),
        (&"v8js".into(), &Value::Null),
        "{interpreter}"
    );
}

/// V8's code runs, and no function of JavaScript's is shown. What is outside of it, the event loop and threads that
/// compile or collect, has none.
fn is_lost(sample: &Sampled) -> bool {
    let is_generated = |name: &str| GENERATED.iter().any(|begin| name.starts_with(begin));
    sample.guests.is_empty()
        && (has_mark(sample) || sample.frames.iter().any(|frame| is_generated(&frame.name)))
}

fn has_mark(sample: &Sampled) -> bool {
    sample.frames.iter().any(|frame| frame.name.starts_with(MARK))
}

fn agent() -> Agent {
    let config = Config::default().set("profile", "enabled", true).set("profile", "frequency", HERTZ);
    Agent::start(config).unwrap()
}

#[test]
fn node_functions_as_users_start_it() {
    check(&agent(), &node(None).unwrap(), true);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// As users start it, and with a frame for each function. `OBI_TEST_LANGUAGES` may be the path of another Node.
    #[test]
    fn node_functions_are_where_they_run() {
        let agent = agent();
        let wanted = std::env::var("OBI_TEST_LANGUAGES").ok();
        let node = node(wanted.as_deref()).unwrap();
        for inlines in [false, true] {
            check(&agent, &node, inlines);
        }
    }
}
