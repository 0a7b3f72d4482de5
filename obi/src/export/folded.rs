//! A selection as folded stacks: one line for each stack, root first, with its sum, as scripts for flame
//! graphs read them.
//!
//! In: a [`Selection`]. Out: text, sorted; values are in the unit of their kind. Refuses to know where it goes.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use crate::profile::unnamed::shown;
use crate::profile::{Frame, Selection};

/// Lines of text: `service;function;function 123`.
#[must_use]
pub fn encode(selection: &Selection) -> String {
    let mut sums = BTreeMap::<String, u64>::new();
    for sample in selection.shown() {
        let mut line = word(&sample.origin.service.name);
        for frame in sample.stack.frames.iter().rev() {
            names(frame, &sample.origin.executable, |name| {
                line.push(';');
                line.push_str(&word(name));
            });
        }
        let sum = sums.entry(line).or_default();
        *sum = sum.saturating_add(sample.value);
    }
    sums.into_iter().fold(String::new(), |mut text, (line, sum)| {
        writeln!(text, "{line} {sum}").expect("writing to a string cannot fail");
        text
    })
}

/// The function of a frame, then those inlined into it.
fn names(frame: &Frame, executable: &str, mut visit: impl FnMut(&str)) {
    match shown(frame, executable) {
        Some(name) => visit(&name),
        None => frame.symbol.lines.iter().rev().for_each(|line| visit(&line.function)),
    }
}

/// A name without what separates names, stacks and values.
fn word(name: &str) -> String {
    if name.is_empty() {
        return "(unknown)".to_owned();
    }
    name.replace(|letter: char| letter == ';' || letter.is_control(), "_")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::profile::{Fidelity, Line, Origin, Sample, SampleKind, SampleType, Stack, Symbol, waits};
    use crate::span::Service;

    #[test]
    fn stacks_stand_on_lines_root_first() {
        let frame = |names: &[&str]| {
            let line = |name: &&str| Line { function: (*name).into(), ..Line::default() };
            let lines = names.iter().map(line).collect();
            let symbol = Symbol { lines, fidelity: Fidelity::Function, ..Symbol::default() };
            Frame { address: 1, is_return: true, mapping: None, symbol: Arc::new(symbol) }
        };
        let service = Arc::new(Service { name: "shop".to_owned(), ..Service::default() });
        let sample = |frames: Vec<Frame>, value| Sample {
            kind: SampleKind::OffCpu,
            value,
            time: 1,
            origin: Arc::new(Origin { service: Arc::clone(&service), ..Origin::default() }),
            stack: Arc::new(Stack { frames }),
            tid: 1,
            thread: "t".into(),
            cpu: 0,
            link: None,
        };
        let waiting = || vec![frame(&["futex"]), frame(&["lock", "main"]), waits::waiting(1)];
        let samples = vec![sample(waiting(), 5), sample(vec![frame(&["a;\nb"])], 2), sample(waiting(), 6)];
        let types = vec![SampleType { kind: SampleKind::OffCpu, period: 0 }];
        let selection = Selection { start: 0, end: 2, types, samples, lost: 0 };
        assert_eq!(encode(&selection), "shop;[waiting: lock];main;lock;futex 11\nshop;a__b 2\n");
    }
}
