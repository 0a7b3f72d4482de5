//! Functions of Python programs whose stacks are known, in one stack with native frames: every name, file and line.

use std::path::Path;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::seed::note;
use integration::stack::python::{Towers, Verdict, interpreters};
use integration::stack::sampled::{self, Sampled};
use serde_json::Value;

use super::truth::unix_ns;

/// More looks than usual, so that seconds are enough.
const HERTZ: u32 = 397;
/// Until files have been looked at by an agent that is not optimised.
const WARM: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(300);
/// What is asked for meanwhile, ns: naming more takes long where nothing is optimised.
const RECENT: u64 = 1_500_000_000;
/// Right ones in a row after which an interpreter is taken to be understood.
const RIGHT: usize = 30;
/// Samples that are judged.
const JUDGED: usize = 600;

/// Each interpreter, with one thread and with two. `make test-languages` has all versions of this machine.
#[test]
fn python_functions_are_where_they_run() {
    let agent =
        Agent::start(Config::default().set("profile", "enabled", true).set("profile", "frequency", HERTZ))
            .unwrap();
    let wanted = std::env::var("OBI_TEST_LANGUAGES").ok();
    let interpreters = interpreters(wanted.as_deref());
    assert!(!interpreters.is_empty(), "no Python from 3.8 on is installed");
    for interpreter in interpreters {
        for has_thread in [false, true] {
            check(&agent, &interpreter, has_thread);
        }
    }
}

fn check(agent: &Agent, interpreter: &Path, has_thread: bool) {
    let towers = Towers::start(interpreter, has_thread).unwrap();
    let begun = || unix_ns() - RECENT;
    let is_warm = |samples: &[Sampled]| {
        samples.len() >= RIGHT
            && samples.iter().rev().take(RIGHT).filter(|sample| towers.is_right(sample)).count() * 10
                >= RIGHT * 9
    };
    let warm = samples(agent, &towers, begun, is_warm);
    let pid = towers.program.pid();
    assert!(is_warm(&warm), "{}: {:?}\n{}", towers.version, towers.judge(&warm), said(agent, pid));
    let begun = unix_ns();
    let recorded = samples(agent, &towers, || begun, |samples| samples.len() >= JUDGED);
    let verdict = towers.judge(&recorded);
    let Verdict { judged, right, lines, marked, impossible, without, apart, .. } = verdict;
    note(&format!(
        "Python {} {}: {right} of {judged} right, {marked} marked, {impossible} impossible, {without} without, \
         {apart} apart, {lines} with a wrong line",
        towers.version,
        interpreter.display()
    ));
    assert_eq!(impossible, 0, "{:#?}", verdict.wrong);
    assert!(judged >= JUDGED * 95 / 100, "{verdict:?}");
    assert!(right * 100 >= judged * 99, "{verdict:?}");
    assert!(apart * 100 <= right && lines * 100 <= right, "{verdict:?}");
    let interpreters = said(agent, pid);
    let version = interpreters["version"].as_str().unwrap_or_default();
    assert!(version.starts_with(&format!("{}.", towers.version)), "{interpreters}");
    assert_eq!((&interpreters["runtime"], &interpreters["off"]), (&"cpython".into(), &Value::Null));
}

/// What the agent says of a process's interpreter.
fn said(agent: &Agent, pid: u32) -> Value {
    let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
    let interpreters = status["profile"]["interpreters"].as_array().cloned().unwrap_or_default();
    interpreters.into_iter().find(|interpreter| interpreter["pid"] == pid).unwrap_or_default()
}

fn samples(
    agent: &Agent,
    towers: &Towers,
    begun: impl Fn() -> u64,
    is_enough: impl Fn(&[Sampled]) -> bool,
) -> Vec<Sampled> {
    let deadline = Instant::now() + patience(WARM);
    loop {
        let samples = sampled::fetch(agent.address(), &towers.service, &(begun()..unix_ns()));
        if samples.as_ref().is_ok_and(|samples| is_enough(samples)) || Instant::now() > deadline {
            return samples.unwrap();
        }
        std::thread::sleep(LOOK);
    }
}
