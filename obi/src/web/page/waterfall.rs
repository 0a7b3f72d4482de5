//! The spans of a trace along its time.
//!
//! In: spans as a tree, each behind its parent. Out: for each a place in time, which part of it was waiting for others,
//! and whether the trace took as long as it did because of it. Refuses to know pages.

use std::collections::HashMap;

use crate::span::{Span, SpanKind};
use crate::span_store::Placed;

/// A stretch of the trace's time, in thousandths.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Stretch {
    pub(super) from: f64,
    pub(super) width: f64,
}

/// A span's bar.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Bar {
    /// From its start to its end.
    pub(super) whole: Stretch,
    /// Before its program read it.
    pub(super) queue: Option<Stretch>,
    /// While it waited: spans below it went on, or it is a call.
    pub(super) below: Vec<Stretch>,
    /// Had it been shorter, the trace would have been.
    pub(super) is_critical: bool,
}

/// First moment, and how long it took, nanoseconds.
pub(super) fn extent(spans: &[Placed]) -> (u64, u64) {
    let each = || spans.iter().map(|placed| &placed.stored.span);
    let start = each().map(|span| span.start).min().unwrap_or(0);
    let end = each().map(|span| span.end.max(span.start)).max().unwrap_or(start);
    (start, end.saturating_sub(start))
}

/// The bars of all spans, in their order.
pub(super) fn bars(spans: &[Placed]) -> Vec<Bar> {
    let (start, total) = extent(spans);
    let stretch = |from: u64, to: u64| {
        let place = |at: u64| at.saturating_sub(start) as f64 * 1_000.0 / total.max(1) as f64;
        Stretch { from: place(from), width: place(to.max(from)) - place(from) }
    };
    let children = children(spans);
    let is_critical = critical(spans, &children);
    let bar = |(nth, placed): (usize, &Placed)| {
        let span = &placed.stored.span;
        let read = span.start.saturating_add(span.queue_wait).min(span.end);
        let merged =
            merge(children[nth].iter().map(|child| within(&spans[*child].stored.span, span)).collect());
        Bar {
            whole: stretch(span.start, span.end),
            queue: (read > span.start).then(|| stretch(span.start, read)),
            // A call is all waiting, also where its other end was not seen.
            below: match span.kind {
                SpanKind::Client => vec![stretch(span.start, span.end.max(span.start))],
                _ => merged.into_iter().map(|(from, to)| stretch(from, to)).collect(),
            },
            is_critical: is_critical[nth],
        }
    };
    spans.iter().enumerate().map(bar).collect()
}

/// Part of one span that lies in another.
fn within(span: &Span, other: &Span) -> (u64, u64) {
    (span.start.clamp(other.start, other.end.max(other.start)), span.end.min(other.end))
}

/// Stretches that do not overlap, in order.
fn merge(mut stretches: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    stretches.retain(|(from, to)| from < to);
    stretches.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in stretches {
        match merged.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => merged.push((from, to)),
        }
    }
    merged
}

/// By place: places of what is below. The tree has said where each belongs by its order and depth.
fn children(spans: &[Placed]) -> Vec<Vec<usize>> {
    let mut children = vec![Vec::new(); spans.len()];
    let mut above: Vec<usize> = Vec::new();
    for (nth, placed) in spans.iter().enumerate() {
        above.truncate(placed.depth);
        if let Some(parent) = above.last() {
            children[*parent].push(nth);
        }
        above.push(nth);
    }
    children
}

/// Backwards from the end of the span that ended last: what ended last before a moment was waited for.
fn critical(spans: &[Placed], children: &[Vec<usize>]) -> Vec<bool> {
    let mut is_critical = vec![false; spans.len()];
    let end = |nth: usize| spans[nth].stored.span.end;
    let roots = (0..spans.len()).filter(|nth| spans[*nth].depth == 0);
    let mut open: Vec<usize> = roots.max_by_key(|nth| end(*nth)).into_iter().collect();
    while let Some(nth) = open.pop() {
        is_critical[nth] = true;
        let mut until = end(nth);
        let mut below = children[nth].clone();
        below.sort_by_key(|child| std::cmp::Reverse(end(*child)));
        for child in below {
            // The end of an answer is seen by its sender a little before its receiver, or a little behind.
            if end(child) <= until.saturating_add(SLACK) {
                open.push(child);
                until = until.min(spans[child].stored.span.start);
            }
        }
    }
    is_critical
}

/// Nanoseconds between two looks at one moment.
const SLACK: u64 = 1_000_000;

/// A number for each service that takes part, in the order of appearance.
pub(super) fn colours(spans: &[Placed]) -> HashMap<u32, usize> {
    let mut colours = HashMap::new();
    // What SDKs have reported has services of its own, of the same name perhaps.
    let mut names: HashMap<(&str, &str), usize> = HashMap::new();
    for placed in spans {
        let service = &placed.stored.span.service;
        colours.entry(service.id).or_insert_with(|| {
            let next = names.len();
            *names.entry((&service.namespace, &service.name)).or_insert(next)
        });
    }
    colours
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span_with;
    use crate::span_store::Stored;

    fn placed(depth: usize, start: u64, end: u64, queue_wait: u64) -> Placed {
        let span = span_with(SpanKind::Server, |span| {
            (span.start, span.end, span.queue_wait) = (start, end, queue_wait);
        });
        Placed { stored: Stored { sequence: 1, span: Box::new(span) }, depth, is_cut: false }
    }

    #[test]
    fn bars_have_their_places() {
        let ms = 1_000_000;
        let spans = [
            placed(0, 0, 100 * ms, 10 * ms),
            placed(1, 20 * ms, 40 * ms, 0),
            placed(2, 25 * ms, 35 * ms, 0),
            placed(1, 30 * ms, 90 * ms, 0),
            placed(1, 22 * ms, 28 * ms, 0),
        ];
        let bars = bars(&spans);
        let stretch = |from: f64, width: f64| Stretch { from, width };
        assert_eq!(bars[0].whole, stretch(0.0, 1000.0));
        assert_eq!(bars[0].queue, Some(stretch(0.0, 100.0)));
        assert_eq!(bars[0].below, [stretch(200.0, 700.0)]);
        assert_eq!(bars[1].below, [stretch(250.0, 100.0)]);
        let critical: Vec<_> = bars.iter().map(|bar| bar.is_critical).collect();
        // The fourth ended last; of what ended before it began, the fifth did so last.
        assert_eq!(critical, [true, false, false, true, true]);
        assert_eq!(extent(&spans), (0, 100 * ms));
        let mut call = placed(0, 0, 100, 0);
        call.stored.span.kind = SpanKind::Client;
        assert_eq!(super::bars(&[call])[0].below, [stretch(0.0, 1000.0)]);
    }

    #[test]
    fn nothing_and_a_moment_are_drawn() {
        assert_eq!(bars(&[]), []);
        let bar = &bars(&[placed(0, 5, 5, 9)])[0];
        assert_eq!((bar.whole, bar.queue), (Stretch { from: 0.0, width: 0.0 }, None));
        // An end before its start, as a clock that steps can make it.
        assert_eq!(bars(&[placed(0, 9, 5, 0), placed(1, 3, 20, 0)]).len(), 2);
    }

    proptest::proptest! {
        #[test]
        fn no_bar_is_outside(spans in proptest::collection::vec((0_usize..5, 0_u64..1000, 0_u64..1000, 0_u64..1000), 0..60)) {
            let spans: Vec<_> = spans.into_iter().map(|(depth, a, b, wait)| placed(depth, a, b, wait)).collect();
            for bar in bars(&spans) {
                for it in bar.below.iter().chain(&bar.queue).chain([&bar.whole]) {
                    assert!(it.from >= 0.0 && it.width >= 0.0 && it.from + it.width <= 1000.0 + 1e-6, "{bar:?}");
                }
            }
        }
    }
}
