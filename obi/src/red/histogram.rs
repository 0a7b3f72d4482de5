//! Histograms: fixed buckets, exponential ones beside them for durations, and one exemplar per fixed bucket.
//!
//! In: whole numbers (nanoseconds, bytes). Out: exact counts per bucket and an exact sum.
//! Refuses to know labels, names and formats.

use std::num::NonZeroU64;

use super::native::Native;
use crate::span::Span;

/// Buckets of a histogram of times: 14 upper bounds and `+Inf`.
pub const BUCKETS: usize = 15;

/// Upper bounds (inclusive) of times, nanoseconds.
pub type Bounds = [u64; BUCKETS - 1];

/// Buckets of a histogram of sizes: 8 upper bounds and `+Inf`.
pub const SIZE_BUCKETS: usize = 9;

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

/// The bounds that the semantic conventions advise for `db.client.operation.duration` (1, 5, 10, 50, 100 and 500 ms, 1,
/// 5 and 10 s), and five between and below them: most calls take less than a millisecond.
pub const DATABASE_BOUNDS: Bounds = [
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
    500 * MILLISECOND,
    1_000 * MILLISECOND,
    5_000 * MILLISECOND,
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

/// Upper bounds (inclusive) of body sizes, bytes: each eight times the one before, around what pages, answers of
/// APIs and downloads have. The conventions advise none.
pub const SIZE_BOUNDS: [u64; SIZE_BUCKETS - 1] =
    [0, 128, 1_024, 8_192, 65_536, 524_288, 4_194_304, 33_554_432];

/// Nanoseconds as seconds, correctly rounded, so that a value on a bound equals the bound's text.
#[must_use]
#[expect(clippy::cast_precision_loss, reason = "beyond 2^53 ns (104 days) the nearest double is meant")]
pub fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

/// Counts per bucket (not cumulative) and the sum of what was observed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buckets<const N: usize = BUCKETS> {
    counts: [u64; N],
    sum: u128,
}

impl<const N: usize> Default for Buckets<N> {
    fn default() -> Self {
        Self { counts: [0; N], sum: 0 }
    }
}

impl<const N: usize> Buckets<N> {
    /// Counts one value and returns its bucket. `bounds` are one fewer than the buckets.
    #[inline]
    pub fn observe(&mut self, bounds: &[u64], value: u64) -> usize {
        debug_assert_eq!(bounds.len() + 1, N);
        // No branch: fourteen comparisons cost less than one misprediction.
        let bucket = bounds.iter().map(|bound| usize::from(value > *bound)).sum::<usize>();
        self.counts[bucket] += 1;
        self.sum += u128::from(value);
        bucket
    }

    /// Observations per bucket, not cumulative; the last is `+Inf`.
    #[must_use]
    pub fn counts(&self) -> &[u64; N] {
        &self.counts
    }

    /// All observations.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Sum of all observations, in the unit of the bounds.
    #[must_use]
    pub fn sum(&self) -> u128 {
        self.sum
    }
}

impl Buckets {
    /// Sum of all observations, seconds.
    #[must_use]
    #[expect(
        clippy::cast_precision_loss,
        reason = "the sum itself stays exact; protocols carry the nearest double"
    )]
    pub fn sum_seconds(&self) -> f64 {
        self.sum as f64 / 1e9
    }
}

/// Body sizes.
pub type Sizes = Buckets<SIZE_BUCKETS>;

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

impl Exemplar {
    /// The exemplar that a span makes.
    pub(super) fn of(span: &Span) -> Self {
        Self {
            trace_id: span.trace_id,
            span_id: span.span_id,
            value: span.end.saturating_sub(span.start),
            time: NonZeroU64::new(span.end).unwrap_or(NonZeroU64::MIN),
        }
    }
}

/// Durations: [`Buckets`] with the newest exemplar of each, and [`Native`] buckets.
///
/// Errors never compete with successes for a bucket: they live in series of their own, since `error.type` and the
/// span's status are part of the series keys. Slow spans have buckets of their own. What is left to prefer is the
/// newest.
#[derive(Debug, Clone, Default)]
pub struct Histogram {
    /// Counts and sum, with [`DURATION_BOUNDS`] or those of its family.
    pub buckets: Buckets,
    /// The same observations in exponential buckets.
    pub native: Native,
    /// At most one for each bucket, in order of buckets.
    exemplars: Vec<(u8, Exemplar)>,
}

impl Histogram {
    /// Counts one duration. Within a bucket exemplar times only grow: Prometheus drops any other.
    #[inline]
    pub fn record(&mut self, nanoseconds: u64, exemplar: Option<Exemplar>) {
        self.record_within(&DURATION_BOUNDS, nanoseconds, exemplar);
    }

    /// The same with other bounds, which must always be the same ones.
    #[inline]
    pub fn record_within(&mut self, bounds: &Bounds, nanoseconds: u64, exemplar: Option<Exemplar>) {
        let bucket = self.buckets.observe(bounds, nanoseconds);
        self.native.observe(nanoseconds);
        if let Some(exemplar) = exemplar {
            self.keep(u8::try_from(bucket).unwrap_or(u8::MAX), exemplar);
        }
    }

    /// The newest span of each bucket that has one, and the bucket, in order of buckets: the slowest is the last.
    #[must_use]
    pub fn exemplars(&self) -> &[(u8, Exemplar)] {
        &self.exemplars
    }

    fn keep(&mut self, bucket: u8, exemplar: Exemplar) {
        let place = self.exemplars.partition_point(|(held, _)| *held < bucket);
        match self.exemplars.get_mut(place) {
            Some((held, old)) if *held == bucket => {
                if old.time <= exemplar.time {
                    *old = exemplar;
                }
            }
            _ => {
                self.exemplars.reserve_exact(1);
                self.exemplars.insert(place, (bucket, exemplar));
            }
        }
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
            let mut buckets = <Buckets>::default();
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
        let mut buckets = <Buckets>::default();
        buckets.observe(&DURATION_BOUNDS, u64::MAX);
        buckets.observe(&DURATION_BOUNDS, u64::MAX);
        assert_eq!(buckets.sum(), 2 * u128::from(u64::MAX));
    }

    #[test]
    fn bounds_are_the_conventions_seconds() {
        let advised = [0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0];
        assert_eq!(DURATION_BOUNDS.map(seconds), advised);
        let advised = [0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0];
        assert!(advised.iter().all(|bound| DATABASE_BOUNDS.map(seconds).contains(bound)));
        assert!(DATABASE_BOUNDS.is_sorted() && QUEUE_WAIT_BOUNDS.is_sorted() && SIZE_BOUNDS.is_sorted());
    }

    #[test]
    fn newest_exemplar_of_each_bucket_is_kept() {
        let mut histogram = Histogram::default();
        for (value, time) in [(6_000_000, 1), (1, 5), (2, 7), (3, 6)] {
            histogram.record(value, Some(exemplar(value, time)));
        }
        histogram.record(4, None);
        assert_eq!(histogram.exemplars(), [(0, exemplar(2, 7)), (1, exemplar(6_000_000, 1))]);
        assert_eq!((histogram.buckets.count(), histogram.native.counts().iter().sum::<u64>()), (5, 5));
    }
}
