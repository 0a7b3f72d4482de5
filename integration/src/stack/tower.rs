//! Samples of a program whose functions stand in towers that never mix: how many are right.
//!
//! In: samples, and a [`Judge`] that knows the program. Out: a [`Verdict`]. Refuses to know the language.

use super::sampled::Sampled;

/// Knows a program.
pub trait Judge {
    /// Whether a sample shows what can be, completely.
    fn is_right(&self, sample: &Sampled) -> bool;
    /// Whether every line is one of its function.
    fn has_lines(&self, sample: &Sampled) -> bool;
    /// Whether the functions stand where native code runs them.
    fn is_in_place(&self, sample: &Sampled) -> bool;
}

/// How many samples show what.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Verdict {
    /// With functions of the language.
    pub judged: usize,
    /// Every function and its file right, from the outermost to the innermost.
    pub right: usize,
    /// Of these, those with a line that is none of its function's.
    pub lines: usize,
    /// Something is missing, and a mark says so.
    pub marked: usize,
    /// Functions that cannot have called each other, with the first of them.
    pub impossible: usize,
    /// Of those that are not right: what the first few show.
    pub wrong: Vec<String>,
    /// No function of the language at all.
    pub without: usize,
    /// Right ones whose functions do not stand before the native frame that runs them.
    pub apart: usize,
}

/// What samples show.
#[must_use]
pub fn judge(program: &dyn Judge, samples: &[Sampled]) -> Verdict {
    let mut verdict = Verdict::default();
    for sample in samples.iter().filter(|sample| !sample.frames.is_empty()) {
        let is_marked = sample.frames.iter().any(|frame| frame.name.starts_with('['));
        if sample.guests.is_empty() {
            verdict.without += 1;
            continue;
        }
        verdict.judged += 1;
        if program.is_right(sample) {
            verdict.right += 1;
            verdict.lines += usize::from(!program.has_lines(sample));
            verdict.apart += usize::from(!program.is_in_place(sample));
            continue;
        }
        if is_marked {
            verdict.marked += 1;
        } else {
            verdict.impossible += 1;
        }
        if verdict.wrong.len() < 3 {
            verdict.wrong.push(format!("{:?} {:?}", sample.guests, sample.frames));
        }
    }
    verdict
}
