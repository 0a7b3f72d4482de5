//! Fixed-bucket histograms over nanoseconds, with one exemplar per bucket.
//!
//! In: durations in nanoseconds. Out: exact counts per bucket and an exact sum.
//! Refuses to know labels, names and text formats.

use std::num::NonZeroU64;

/// Buckets of every histogram here: 14 upper bounds and `+Inf`.
pub const BUCKETS: usize = 15;

/// Upper bounds (inclusive), nanoseconds.
pub type Bounds = [u64; BUCKETS - 1];

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// The bounds that the semantic conventions advise for `http.{server,client}.request.duration`.
pub const DURATION_BOUNDS: Bounds = [
    5 * MILLISECOND,
    10 * MILLISECOND,
    25 * MILLISECOND,
    50 * MILLISECOND,
    75 * MILLISECOND,
    100 * MILLISECOND,
    250 * MILLISECOND,
    500 * MILLISECOND,
    750 * MILLISECOND,
    1_000 * MILLISECOND,
    2_500 * MILLISECOND,
    5_000 * MILLISECOND,
    7_500 * MILLISECOND,
    10_000 * MILLISECOND,
];

/// Bounds for time spent in a receive queue: healthy is far below the first duration bound.
pub const QUEUE_WAIT_BOUNDS: Bounds = [
    100 * MICROSECOND,
    250 * MICROSECOND,
    500 * MICROSECOND,
    MILLISECOND,
    2_500 * MICROSECOND,
    5 * MILLISECOND,
    10 * MILLISECOND,
    25 * MILLISECOND,
    50 * MILLISECOND,
    100 * MILLISECOND,
    250 * MILLISECOND,
    500 * MILLISECOND,
    1_000 * MILLISECOND,
    2_500 * MILLISECOND,
];

/// Nanoseconds as seconds, correctly rounded, so that a value on a bound equals the bound's text.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 ns (104 days) the nearest double is meant")]
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Counts per bucket (not cumulative) and the sum of what was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buckets {
    counts: [u64; BUCKETS],
    sum: u128,
}

impl Buckets {
    /// Counts one value and tells its bucket.
    #[inline]
    pub fn observe(&mut self, bounds: &Bounds, nanoseconds: u64) -> usize {
        // No branch: fourteen comparisons cost less than one misprediction.
        let bucket = bounds.iter().map(|bound| usize::from(nanoseconds > *bound)).sum::<usize>();
        self.counts[bucket] += 1;
        self.sum += u128::from(nanoseconds);
        bucket
    }

    /// Observations per bucket, not cumulative; the last is `+Inf`.
    #[must_use]
    pub fn counts(&self) -> &[u64; BUCKETS] {
        &self.counts
    }

    /// All observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all observations, nanoseconds.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }

    /// Sum of all observations, seconds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "the sum itself stays exact; text carries the nearest double"
    )]
    pub fn sum_seconds(&self) -> f64 {
        self.sum as f64 / 1e9
    }
}

/// A span that shows what a bucket is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exemplar {
    /// Trace of the span.
    pub trace_id: [u8; 16],
    /// The span.
    pub span_id: [u8; 8],
    /// Its duration, nanoseconds.
    pub value: u64,
    /// Its end, nanoseconds since the Unix epoch.
    pub time: NonZeroU64,
}

/// [`Buckets`] with the newest exemplar of each.
///
/// Errors never compete with successes for a bucket: `error.type` is part of the series key, so they live in
/// series of their own. Slow spans have buckets of their own. What is left to prefer is the newest.
#[derive(Debug, Clone, Copy, Default)]
pub struct Histogram {
    /// Counts and sum.
    pub buckets: Buckets,
    exemplars: [Option<Exemplar>; BUCKETS],
}

impl Histogram {
    /// Counts the exemplar's value. Within a bucket exemplar times only grow: Prometheus drops any other.
    #[inline]
    pub fn record(&mut self, bounds: &Bounds, exemplar: Exemplar) {
        let bucket = self.buckets.observe(bounds, exemplar.value);
        let held = &mut self.exemplars[bucket];
        if held.is_none_or(|held| held.time <= exemplar.time) {
            *held = Some(exemplar);
        }
    }

    /// The newest span of each bucket.
    #[must_use]
    pub fn exemplars(&self) -> &[Option<Exemplar>; BUCKETS] {
        &self.exemplars
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exemplar(value: u64, time: u64) -> Exemplar {
        Exemplar {
            trace_id: [1; 16],
            span_id: [2; 8],
            value,
            time: NonZeroU64::new(time).expect("test times"),
        }
    }

    #[test]
    fn bounds_are_inclusive() {
        fn check(nanoseconds: u64, expected: usize) {
            let mut buckets = Buckets::default();
            assert_eq!(buckets.observe(&DURATION_BOUNDS, nanoseconds), expected, "{nanoseconds} ns");
            assert_eq!((buckets.count(), buckets.sum()), (1, u128::from(nanoseconds)));
        }
        check(0, 0);
        check(5_000_000, 0);
        check(5_000_001, 1);
        check(10_000_000_000, 13);
        check(10_000_000_001, 14);
        check(u64::MAX, 14);
    }

    #[test]
    fn sum_outlives_64_bits() {
        let mut buckets = Buckets::default();
        buckets.observe(&DURATION_BOUNDS, u64::MAX);
        buckets.observe(&DURATION_BOUNDS, u64::MAX);
        assert_eq!(buckets.sum(), 2 * u128::from(u64::MAX));
    }

    #[test]
    fn bounds_are_the_conventions_seconds() {
        let advised = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
        assert_eq!(DURATION_BOUNDS.map(seconds), advised);
        assert!(QUEUE_WAIT_BOUNDS.is_sorted());
    }

    #[test]
    fn newest_exemplar_of_each_bucket_is_kept() {
        let mut histogram = Histogram::default();
        for (value, time) in [(1, 5), (2, 7), (3, 6), (6_000_000, 1)] {
            histogram.record(&DURATION_BOUNDS, exemplar(value, time));
        }
        assert_eq!(histogram.exemplars()[0], Some(exemplar(2, 7)));
        assert_eq!(histogram.exemplars()[1], Some(exemplar(6_000_000, 1)));
        assert_eq!(histogram.exemplars()[2], None);
    }
}
