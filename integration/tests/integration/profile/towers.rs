//! Samples of towers: waited for until they are right, then taken.

use std::time::{Duration, Instant};

use integration::agent::Agent;
use integration::fetch;
use integration::patience::patience;
use integration::stack::sampled::{self, Sampled};
use integration::stack::tower::{Judge, judge};
use serde_json::Value;

use super::truth::unix_ns;

/// Until files have been looked at by an agent that is not optimised.
const WARM: Duration = Duration::from_secs(120);
const LOOK: Duration = Duration::from_millis(300);
/// What is asked for meanwhile, ns: naming more takes long where nothing is optimised.
const RECENT: u64 = 2_500_000_000;
/// Functions have their names a moment after they were first sampled.
const NAMED: u64 = 1_000_000_000;
/// Right ones in a row after which an interpreter is taken to be understood.
const RIGHT: usize = 30;
/// Samples that are judged.
pub(super) const JUDGED: usize = 600;

/// Samples of a program that the agent understands by now.
///
/// # Panics
/// When it never does.
pub(super) fn recorded(agent: &Agent, service: &str, pid: u32, program: &dyn Judge) -> Vec<Sampled> {
    let begun = || unix_ns() - RECENT;
    let is_warm = |samples: &[Sampled]| {
        samples.len() >= RIGHT
            && samples.iter().rev().take(RIGHT).filter(|sample| is_understood(program, sample)).count() * 10
                >= RIGHT * 9
    };
    let warm = samples(agent, service, begun, is_warm);
    assert!(is_warm(&warm), "{service}: {:?}\n{}", judge(program, &warm), said(agent, pid));
    let begun = unix_ns();
    samples(agent, service, || begun, |samples| samples.len() >= JUDGED)
}

/// A sample without any function of the program's says nothing of how well the agent understands it, and while there
/// are no tables functions may stand apart.
fn is_understood(program: &dyn Judge, sample: &Sampled) -> bool {
    !sample.guests.is_empty() && program.is_right(sample) && program.is_in_place(sample)
}

/// What the agent says of a process's interpreter.
pub(super) fn said(agent: &Agent, pid: u32) -> Value {
    let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
    let interpreters = status["profile"]["interpreters"].as_array().cloned().unwrap_or_default();
    interpreters.into_iter().find(|interpreter| interpreter["pid"] == pid).unwrap_or_default()
}

fn samples(
    agent: &Agent,
    service: &str,
    begun: impl Fn() -> u64,
    is_enough: impl Fn(&[Sampled]) -> bool,
) -> Vec<Sampled> {
    let deadline = Instant::now() + patience(WARM);
    loop {
        let samples = sampled::fetch(agent.address(), service, &(begun()..unix_ns() - NAMED));
        if samples.as_ref().is_ok_and(|samples| is_enough(samples)) || Instant::now() > deadline {
            return samples.unwrap();
        }
        std::thread::sleep(LOOK);
    }
}
