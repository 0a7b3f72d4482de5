//! When the agent was observing.
//!
//! In: heart beats. Out: how much of a window was observed. Refuses to take silence for health: time without
//! observation is a gap.

use std::time::Duration;

use crate::time::Time;

/// A longer time between two heart beats is a gap.
pub const LONGEST_BEAT: Duration = Duration::from_secs(30);
/// Intervals that are kept. Beyond, the shortest is forgotten: coverage is understated, never overstated.
const INTERVALS: usize = 1024;

/// Observed time, as intervals that do not touch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Sorted; each from its start to before its end.
    intervals: Vec<(Time, Time)>,
    beat: Option<Time>,
}

impl Coverage {
    /// What an earlier process observed, in any order.
    pub fn restore(&mut self, intervals: impl IntoIterator<Item = (Time, Time)>) {
        for (start, end) in intervals {
            self.observe(start, end);
        }
    }

    /// Observed intervals, oldest first.
    pub fn intervals(&self) -> &[(Time, Time)] {
        &self.intervals
    }

    /// The agent observes at `now`, and has since the last beat if that was not long ago. A clock that went back
    /// begins anew from there.
    pub fn beat(&mut self, now: Time) {
        let since = self.beat.filter(|beat| *beat <= now && now.since(*beat) <= LONGEST_BEAT);
        self.observe(since.unwrap_or(now), now);
        self.beat = Some(now);
    }

    /// Time from `start` to before `end` was observed.
    pub fn observe(&mut self, start: Time, end: Time) {
        if start >= end {
            return;
        }
        // Nearly always the newest interval grows.
        if let Some(last) = self.intervals.last_mut()
            && last.0 <= start
            && start <= last.1
        {
            last.1 = last.1.max(end);
            return;
        }
        let from = self.intervals.partition_point(|(_, other_end)| *other_end < start);
        let to = self.intervals.partition_point(|(other_start, _)| *other_start <= end);
        let merged =
            self.intervals[from..to].iter().fold((start, end), |(start, end), (other_start, other_end)| {
                (start.min(*other_start), end.max(*other_end))
            });
        self.intervals.splice(from..to, [merged]);
        if self.intervals.len() > INTERVALS {
            let lengths = self.intervals.iter().enumerate().map(|(at, (start, end))| (end.since(*start), at));
            if let Some((_, shortest)) = lengths.min() {
                self.intervals.remove(shortest);
            }
        }
    }

    /// Observed time between `start` and `end`.
    pub fn observed(&self, start: Time, end: Time) -> Duration {
        let from = self.intervals.partition_point(|(_, other_end)| *other_end <= start);
        let overlap =
            |(other_start, other_end): &(Time, Time)| (*other_end).min(end).since((*other_start).max(start));
        self.intervals[from..].iter().take_while(|(other_start, _)| *other_start < end).map(overlap).sum()
    }

    /// The share of the time between `start` and `end` that was observed; 1 when there is no time between them.
    pub fn ratio(&self, start: Time, end: Time) -> f64 {
        let length = end.since(start).as_secs_f64();
        if length > 0.0 { self.observed(start, end).as_secs_f64() / length } else { 1.0 }
    }

    /// Forgets what was before.
    pub fn forget(&mut self, before: Time) {
        self.intervals.retain(|(_, end)| *end > before);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: i64) -> Time {
        Time::from_seconds(seconds)
    }

    #[test]
    fn intervals_are_joined() {
        let check = |observed: &[(i64, i64)], expected: &[(i64, i64)]| {
            let mut coverage = Coverage::default();
            coverage.restore(observed.iter().map(|(start, end)| (at(*start), at(*end))));
            let intervals: Vec<_> =
                coverage.intervals().iter().map(|(start, end)| (start.seconds(), end.seconds())).collect();
            assert_eq!(intervals, expected, "{observed:?}");
        };
        check(&[], &[]);
        check(&[(0, 10), (10, 20)], &[(0, 20)]);
        check(&[(0, 10), (11, 20)], &[(0, 10), (11, 20)]);
        check(&[(11, 20), (0, 10)], &[(0, 10), (11, 20)]);
        check(&[(0, 10), (20, 30), (5, 25)], &[(0, 30)]);
        check(&[(0, 10), (20, 30), (40, 50), (10, 20)], &[(0, 30), (40, 50)]);
        check(&[(0, 50), (10, 20)], &[(0, 50)]);
        check(&[(5, 5), (9, 3)], &[]);
    }

    #[test]
    fn silence_is_a_gap() {
        let mut coverage = Coverage::default();
        for second in [100, 101, 130, 161, 162, 150, 151] {
            coverage.beat(at(second));
        }
        let intervals: Vec<_> =
            coverage.intervals().iter().map(|(start, end)| (start.seconds(), end.seconds())).collect();
        assert_eq!(intervals, [(100, 130), (150, 151), (161, 162)]);
        assert_eq!(coverage.observed(at(120), at(162)), Duration::from_secs(12));
        assert!((coverage.ratio(at(100), at(130)) - 1.0).abs() < 1e-12);
    }

    #[test]
    fn intervals_are_bounded_and_never_overstate() {
        let mut coverage = Coverage::default();
        for n in 0..5_000 {
            coverage.observe(at(n * 10), at(n * 10 + 1 + n % 5));
        }
        assert!(coverage.intervals().len() <= INTERVALS);
        assert!(coverage.observed(at(0), at(50_000)) <= Duration::from_secs(15_000));
    }
}
