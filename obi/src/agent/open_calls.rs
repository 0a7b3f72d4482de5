//! When calls of a request were open, by the spans of these calls.
//!
//! In: calls as they end, with the spans that they are children of. Out: how long at least one of them was open within
//! a time. Of a request in an event loop or in goroutines this is mostly all that is known of where its time went.
//! Bounded: of the parents that were named last, so many intervals each. Refuses to know how parents are found.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Parents that are remembered; most are asked for and forgotten within a request.
const PARENTS: usize = 8_192;
/// Intervals of one parent that do not touch; more calls are left out.
const INTERVALS: usize = 64;

/// From, and until: nanoseconds of one clock.
type Interval = (u64, u64);

/// Calls by the span id of their parent.
#[derive(Debug, Default)]
pub(super) struct OpenCalls {
    /// Sorted, none of which touch.
    calls: HashMap<[u8; 8], Vec<Interval>, RandomState>,
    order: VecDeque<[u8; 8]>,
}

impl OpenCalls {
    /// A call of this parent was open from one moment to another.
    pub(super) fn add(&mut self, parent: [u8; 8], call: Interval) {
        let order = &mut self.order;
        let open = self.calls.entry(parent).or_insert_with(|| {
            order.push_back(parent);
            Vec::new()
        });
        merge(open, call);
        if self.order.len() > PARENTS
            && let Some(oldest) = self.order.pop_front()
        {
            self.calls.remove(&oldest);
        }
    }

    /// How long calls of a span were open within a time; they are forgotten.
    pub(super) fn take(&mut self, span: &[u8; 8], (from, until): Interval) -> u64 {
        if self.calls.is_empty() {
            return 0;
        }
        let open = self.calls.remove(span).unwrap_or_default();
        let within = |(start, end): &Interval| (*end).min(until).saturating_sub((*start).max(from));
        open.iter().map(within).sum()
    }
}

/// Adds an interval to sorted ones that do not touch.
fn merge(open: &mut Vec<Interval>, (start, end): Interval) {
    if start >= end {
        return;
    }
    let first = open.partition_point(|(_, until)| *until < start);
    let behind = first + open[first..].partition_point(|(from, _)| *from <= end);
    if first == behind && open.len() >= INTERVALS {
        return;
    }
    let touched = &open[first..behind];
    let start = touched.first().map_or(start, |(from, _)| start.min(*from));
    let end = touched.last().map_or(end, |(_, until)| end.max(*until));
    open.splice(first..behind, [(start, end)]);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PARENT: [u8; 8] = [1; 8];

    #[test]
    fn time_with_several_calls_counts_once() {
        let check = |calls: &[Interval], within: Interval, expected: u64| {
            let mut open = OpenCalls::default();
            calls.iter().for_each(|call| open.add(PARENT, *call));
            open.add([2; 8], (0, 1_000));
            assert_eq!(open.take(&PARENT, within), expected, "{calls:?} in {within:?}");
            assert_eq!(open.take(&PARENT, within), 0, "they are forgotten");
        };
        check(&[], (0, 100), 0);
        check(&[(10, 30)], (0, 100), 20);
        check(&[(10, 30), (20, 40), (60, 70)], (0, 100), 40);
        check(&[(60, 70), (20, 40), (10, 30), (0, 5)], (0, 100), 45);
        check(&[(10, 90), (20, 40)], (0, 100), 80);
        // From before, beyond, outside, of no length.
        check(&[(0, 20), (90, 200)], (10, 100), 20);
        check(&[(0, 20)], (30, 100), 0);
        check(&[(50, 50)], (0, 100), 0);
    }

    #[test]
    fn what_is_never_asked_for_is_forgotten() {
        let mut open = OpenCalls::default();
        let id = |number: u64| number.to_le_bytes();
        (0..3 * PARENTS as u64).for_each(|number| open.add(id(number), (1, 2)));
        assert!(open.calls.len() <= PARENTS && open.order.len() <= PARENTS);
        assert_eq!((open.take(&id(0), (0, 9)), open.take(&id(3 * PARENTS as u64 - 1), (0, 9))), (0, 1));
        (0..10_000).for_each(|at| open.add(PARENT, (at * 10, at * 10 + 5)));
        assert_eq!(open.take(&PARENT, (0, u64::MAX)), 5 * INTERVALS as u64);
    }

    proptest! {
        #[test]
        fn it_is_the_union(
            calls in proptest::collection::vec((0_u64..200, 0_u64..40), 0..40),
            from in 0_u64..200,
            length in 0_u64..200,
        ) {
            let mut open = OpenCalls::default();
            calls.iter().for_each(|(start, took)| open.add(PARENT, (*start, start + took)));
            let within = |at: &u64| calls.iter().any(|(start, took)| (*start..start + took).contains(at));
            let expected = (from..from + length).filter(within).count();
            prop_assert_eq!(open.take(&PARENT, (from, from + length)), expected as u64);
        }
    }
}
