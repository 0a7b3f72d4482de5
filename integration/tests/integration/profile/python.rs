//! Functions of Python programs whose stacks are known, in one stack with native frames: every name, file and line.

use std::path::Path;

use integration::agent::{Agent, Config};
use integration::seed::note;
use integration::stack::python::{Towers, interpreters};
use integration::stack::tower::Verdict;
use serde_json::Value;

use super::towers::{JUDGED, recorded, said};

/// More looks than usual, so that seconds are enough.
const HERTZ: u32 = 397;

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
    let pid = towers.program.pid();
    let recorded = recorded(agent, &towers.service, pid, &towers);
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
