//! What waits are called where people and other programs read them.
//!
//! In: reasons by the kernel's numbers, who has ended a wait. Out: frames that stand at the root of stacks
//! (`[waiting: lock]`) or between two of them (`[released by /report]`), and what they say read back. Refuses to know
//! formats.

use std::sync::Arc;

use obi_ebpf::{WAIT_CONDITION, WAIT_GIL, WAIT_LOCK};

use super::{Fidelity, Frame, Line, Runtime, Symbol};
use crate::protocol::WAIT_REASON_NAMES;

const WAITING: [&str; 2] = ["[waiting: ", "]"];
/// At the root of a stack that runs, where others wait.
const RUNNING: &str = "[running]";
const RELEASED: &str = "[released by ";
const OBJECT: &str = "[at 0x";

/// Whether it is another thread that ends a wait of this reason.
#[must_use]
pub fn is_for_thread(reason: u32) -> bool {
    matches!(reason, WAIT_LOCK | WAIT_GIL | WAIT_CONDITION)
}

/// The root of a stack that waits for this reason.
#[must_use]
pub fn waiting(reason: u32) -> Frame {
    let name = WAIT_REASON_NAMES.get(reason as usize).unwrap_or(&WAIT_REASON_NAMES[0]);
    let words = name.replace('_', " ");
    marker(format!("{}{words}{}", WAITING[0], WAITING[1]))
}

/// The root of a stack that runs.
#[must_use]
pub fn running() -> Frame {
    marker(RUNNING.to_owned())
}

/// What threads share at this address of their process.
#[must_use]
pub fn object(address: u64) -> Frame {
    marker(format!("{OBJECT}{address:x}]"))
}

/// Between a stack that has waited and that of who has ended the wait: whose request that was, if any is known.
#[must_use]
pub fn released(route: Option<&str>, thread: &str) -> Frame {
    let by = match (route, thread) {
        (Some(route), _) if !route.is_empty() => route,
        (Some(_), _) => "a request",
        (None, "") => "a thread outside of requests",
        (None, thread) => thread,
    };
    marker(format!("{RELEASED}{by}]"))
}

fn marker(name: String) -> Frame {
    let line = Line { function: name.into(), ..Line::default() };
    let symbol = Symbol { lines: vec![line], fidelity: Fidelity::Marker, runtime: Runtime::Native };
    Frame { address: 0, is_return: false, mapping: None, symbol: Arc::new(symbol) }
}

/// What a marker says of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Said<'a> {
    /// The reason, in words.
    Waiting(&'a str),
    /// It does not wait.
    Running,
    /// Who has ended it, or at what it has waited.
    Other,
}

/// What a frame says of a wait; `None` for all others.
#[must_use]
pub fn said(frame: &Frame) -> Option<Said<'_>> {
    if frame.symbol.fidelity != Fidelity::Marker {
        return None;
    }
    said_by(&frame.symbol.lines.first()?.function)
}

/// The same of a marker's name.
#[must_use]
pub fn said_by(name: &str) -> Option<Said<'_>> {
    if let Some(reason) = name.strip_prefix(WAITING[0]) {
        return reason.strip_suffix(WAITING[1]).map(Said::Waiting);
    }
    match name {
        RUNNING => Some(Said::Running),
        name if name.starts_with(RELEASED) || name.starts_with(OBJECT) => Some(Said::Other),
        _ => None,
    }
}

/// Frames of the thread itself, leaf first: without those of who has ended its wait, and without what is only said.
pub fn own_frames(frames: &[Frame]) -> impl Iterator<Item = &Frame> {
    frames[own_begin(frames)..].iter().filter(|frame| said(frame).is_none())
}

/// How many frames, leaf first, are of who has ended the thread's wait.
#[must_use]
pub fn own_begin(frames: &[Frame]) -> usize {
    let is_released = |frame: &Frame| {
        let name = frame.symbol.lines.first().map_or("", |line| &line.function);
        frame.symbol.fidelity == Fidelity::Marker && name.starts_with(RELEASED)
    };
    frames.iter().position(is_released).map_or(0, |position| position + 1)
}

/// Functions of the kernel that switch threads, and those in which a program looks at it: what leads from the one that
/// waits into the other. Frames up to the first of them say nothing of a wait.
const SWITCHING: &str = "__schedule";

/// Where a stack that waits begins, leaf first: behind the function that switches threads. 0 where that is not named.
#[must_use]
pub fn first_telling(frames: &[Frame]) -> usize {
    let of_kernel = frames.iter().take_while(|frame| frame.symbol.runtime == Runtime::Kernel);
    let is_switch = |frame: &Frame| frame.symbol.lines.iter().any(|line| *line.function == *SWITCHING);
    of_kernel.into_iter().position(is_switch).map_or(0, |position| position + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_is_read_back() {
        let check = |frame: Frame, expected: Said<'_>| assert_eq!(said(&frame), Some(expected), "{frame:?}");
        check(waiting(obi_ebpf::WAIT_LOCK), Said::Waiting("lock"));
        check(waiting(obi_ebpf::WAIT_PAGE_FAULT), Said::Waiting("page fault"));
        check(waiting(u32::MAX), Said::Waiting("other"));
        check(running(), Said::Running);
        check(object(0x7f00), Said::Other);
        check(released(Some("/report"), "worker"), Said::Other);
        assert_eq!(said(&marker("[truncated: no table]".to_owned())), None);
        let of_program = Symbol { fidelity: Fidelity::Function, ..Symbol::clone(&running().symbol) };
        assert_eq!(said(&Frame { symbol: Arc::new(of_program), ..running() }), None);
    }

    #[test]
    fn who_has_ended_a_wait_has_a_name() {
        let check = |route: Option<&str>, thread: &str, expected: &str| {
            assert_eq!(*released(route, thread).symbol.lines[0].function, *expected);
        };
        check(Some("/report"), "worker", "[released by /report]");
        check(Some(""), "worker", "[released by a request]");
        check(None, "worker", "[released by worker]");
        check(None, "", "[released by a thread outside of requests]");
    }

    #[test]
    fn frames_of_the_switch_are_left_out() {
        let named = |name: &str, runtime| {
            let lines = vec![Line { function: name.into(), ..Line::default() }];
            let symbol = Symbol { lines, fidelity: Fidelity::Function, runtime };
            Frame { address: 1, is_return: true, mapping: None, symbol: Arc::new(symbol) }
        };
        let check = |names: &[&str], expected: usize| {
            let mut frames: Vec<Frame> = names.iter().map(|name| named(name, Runtime::Kernel)).collect();
            frames.push(named("__schedule", Runtime::Native));
            assert_eq!(first_telling(&frames), expected, "{names:?}");
        };
        check(&["bpf_prog_1", "__traceiter_sched_exit_tp", "__schedule", "schedule", "do_futex"], 3);
        check(&["schedule", "do_futex"], 0);
        check(&[], 0);
    }
}
