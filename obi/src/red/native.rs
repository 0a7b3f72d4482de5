//! Exponential ("native") histograms over nanoseconds: a bounded relative error without chosen bounds.
//!
//! In: durations in nanoseconds. Out: counts per exponential bucket of seconds, as Prometheus's native histograms and
//! OpenTelemetry's exponential histograms have them. Refuses to know both formats' encodings.
//!
//! Bucket `i` of schema `s` holds seconds in (2^((i-1)·2^-s), 2^(i·2^-s)]. Every histogram starts with schema
//! [`START_SCHEMA`] (neighbouring bounds 9 % apart) and halves its resolution whenever its buckets, from the lowest to
//! the highest in use, would be more than [`MAX_BUCKETS`]: then two neighbours become one, which is exact. A quantile
//! read from it is within [`Native::relative_error`] of the truth.

use super::seconds;

/// Resolution to begin with: 8 buckets for each doubling.
pub const START_SCHEMA: i8 = 3;

/// Buckets of one histogram, from its lowest to its highest.
pub const MAX_BUCKETS: usize = 160;

/// Only values of at most this many seconds are in the zero bucket: 2^-128, Prometheus's default. For whole
/// nanoseconds that is zero itself.
pub const ZERO_THRESHOLD: f64 = 2.938_735_877_055_719e-39;

/// Upper bounds inside one doubling at [`START_SCHEMA`]: 2^(k/8), k from 0.
const STEPS: [f64; 8] = [
    1.0,
    1.090_507_732_665_257_7,
    1.189_207_115_002_721,
    1.296_839_554_651_009_6,
    std::f64::consts::SQRT_2,
    1.542_210_825_407_940_7,
    1.681_792_830_507_429,
    1.834_008_086_409_342_5,
];

/// Counts per exponential bucket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Native {
    schema: i8,
    /// Index of `counts[0]`.
    first: i16,
    zero_count: u64,
    counts: Vec<u64>,
}

impl Default for Native {
    fn default() -> Self {
        Self { schema: START_SCHEMA, first: 0, zero_count: 0, counts: Vec::new() }
    }
}

impl Native {
    /// Counts one value.
    #[inline]
    pub fn observe(&mut self, nanoseconds: u64) {
        if nanoseconds == 0 {
            self.zero_count += 1;
            return;
        }
        let index = coarser(index_at_start(nanoseconds), START_SCHEMA - self.schema);
        let place = usize::try_from(i32::from(index) - i32::from(self.first)).ok();
        match place.and_then(|place| self.counts.get_mut(place)) {
            Some(count) => *count += 1,
            None => self.observe_outside(nanoseconds),
        }
    }

    /// The schema now: between 0 and [`START_SCHEMA`] for any `u64`. OpenTelemetry calls it scale.
    #[must_use]
    pub fn schema(&self) -> i8 {
        self.schema
    }

    /// Values of zero.
    #[must_use]
    pub fn zero_count(&self) -> u64 {
        self.zero_count
    }

    /// Prometheus's index of the first of [`Self::counts`]. OpenTelemetry's offset is one less: there an index names
    /// the lower bound.
    #[must_use]
    pub fn first_index(&self) -> i32 {
        self.first.into()
    }

    /// Counts of neighbouring buckets, at most [`MAX_BUCKETS`]; the first and the last are not zero.
    #[must_use]
    pub fn counts(&self) -> &[u64] {
        &self.counts
    }

    /// Largest relative distance between a value and the middle (geometric) of its bucket.
    #[must_use]
    pub fn relative_error(&self) -> f64 {
        (-f64::from(self.schema) - 1.0).exp2().exp2() - 1.0
    }

    #[cold]
    fn observe_outside(&mut self, nanoseconds: u64) {
        loop {
            let index = coarser(index_at_start(nanoseconds), START_SCHEMA - self.schema);
            if self.reach(index) {
                let place = usize::try_from(index - self.first).expect("reached");
                self.counts[place] += 1;
                return;
            }
            self.halve();
        }
    }

    /// Makes room for bucket `index`. `false` when the buckets would be too many.
    fn reach(&mut self, index: i16) -> bool {
        if self.counts.is_empty() {
            self.first = index;
        }
        let last = self.first + i16::try_from(self.counts.len()).unwrap_or(i16::MAX) - 1;
        let (first, last) = (self.first.min(index), last.max(index));
        let wanted = usize::try_from(last - first).unwrap_or(usize::MAX).saturating_add(1);
        if wanted > MAX_BUCKETS {
            return false;
        }
        let below = usize::try_from(self.first - first).unwrap_or(0);
        self.counts.reserve_exact(wanted - self.counts.len());
        self.counts.resize(wanted, 0);
        self.counts.rotate_right(below);
        self.first = first;
        true
    }

    /// One schema down: two neighbours become one.
    fn halve(&mut self) {
        let mut merged = Vec::new();
        let first = coarser(self.first, 1);
        for (place, count) in self.counts.iter().enumerate() {
            let index = self.first + i16::try_from(place).unwrap_or(i16::MAX);
            let place = usize::try_from(coarser(index, 1) - first).unwrap_or(0);
            if merged.len() <= place {
                merged.resize(place + 1, 0);
            }
            merged[place] += count;
        }
        (self.first, self.counts, self.schema) = (first, merged, self.schema - 1);
    }
}

/// The index, `steps` schemas below, of the bucket that holds bucket `index`.
#[inline]
fn coarser(index: i16, steps: i8) -> i16 {
    ((index - 1) >> steps) + 1
}

/// The same of an index that is wider.
pub(super) fn coarser_index(index: i32, steps: i8) -> i32 {
    ((index - 1) >> steps) + 1
}

/// The bucket of a value above zero at [`START_SCHEMA`].
#[inline]
fn index_at_start(nanoseconds: u64) -> i16 {
    const MANTISSA_BITS: u32 = 52;
    const BIAS: i16 = 1_023;
    let bits = seconds(nanoseconds).to_bits();
    // Eleven bits: seconds are not negative.
    let exponent = (bits >> MANTISSA_BITS) as i16 - BIAS;
    let mantissa = f64::from_bits(bits & ((1 << MANTISSA_BITS) - 1) | 1.0_f64.to_bits());
    // No branch: a bound below the value is a bucket passed.
    let passed: i16 = STEPS.iter().map(|bound| i16::from(mantissa > *bound)).sum();
    exponent * 8 + passed
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn bound(schema: i8, index: i32) -> f64 {
        (f64::from(index) * (-f64::from(schema)).exp2()).exp2()
    }

    fn of(values: &[u64]) -> Native {
        let mut native = Native::default();
        values.iter().for_each(|value| native.observe(*value));
        native
    }

    #[test]
    fn indices_are_prometheus_own() {
        fn check(nanoseconds: u64, index: i32) {
            let native = of(&[nanoseconds]);
            assert_eq!((native.first_index(), native.counts()), (index, &[1][..]), "{nanoseconds} ns");
        }
        // Bounds belong to the bucket below them.
        check(1_000_000_000, 0);
        check(1_000_000_001, 1);
        check(1_090_507_732, 1);
        check(1_090_507_733, 2);
        check(2_000_000_000, 8);
        check(2_000_000_001, 9);
        check(500_000_000, -8);
        check(250_000_000, -16);
        check(999_999_999, 0);
        check(1, -239);
    }

    #[test]
    fn resolution_is_halved_when_buckets_are_too_many() {
        fn check(values: &[u64], schema: i8) {
            assert_eq!(of(values).schema(), schema, "{values:?}");
        }
        check(&[1_000_000, 999_000_000_000], 3);
        check(&[1_000_000, 1_100_000_000_000], 2);
        check(&[1, u64::MAX], 1);
        check(&[], 3);
        check(&[0], 3);
        assert_eq!(of(&[0, 0, 5]).zero_count(), 2);
    }

    proptest! {
        #[test]
        fn every_value_is_in_its_bucket_at_any_resolution(values in prop::collection::vec(any_value(), 1..300)) {
            let native = of(&values);
            let (schema, first) = (native.schema(), native.first_index());
            prop_assert!(native.counts().len() <= MAX_BUCKETS && (1..=START_SCHEMA).contains(&schema));
            let sum: u64 = native.counts().iter().sum();
            prop_assert_eq!(sum + native.zero_count(), values.len() as u64);
            prop_assert!(native.counts().last() != Some(&0) && native.counts().first() != Some(&0));
            for (place, count) in native.counts().iter().enumerate() {
                let index = first + i32::try_from(place).unwrap();
                // Bounds that are no exact doubles: a value may sit on either side of the last bit.
                let (low, high) = (bound(schema, index - 1), bound(schema, index));
                let inside = values.iter().filter(|value| **value > 0).map(|value| seconds(*value));
                let (sure, maybe) = inside.fold((0, 0), |(sure, maybe), value| {
                    let near = |bound: f64| (value / bound - 1.0).abs() < 1e-12;
                    let in_it = value > low && value <= high;
                    (sure + u64::from(in_it && !near(low) && !near(high)),
                     maybe + u64::from(in_it || near(low) || near(high)))
                });
                prop_assert!((sure..=maybe).contains(count), "{low}..{high}: {sure} <= {count} <= {maybe}");
            }
        }
    }

    fn any_value() -> impl Strategy<Value = u64> {
        prop_oneof![Just(0), 1..2_000_u64, 1_000_000..30_000_000_000_u64, any::<u64>()]
    }
}
