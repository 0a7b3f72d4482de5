//! Several histograms taken together, for quantiles that are shown.
//!
//! In: [`Native`] buckets of any resolution. Out: quantiles, and the share of what stayed below a value. Refuses to
//! decide about objectives.
//!
//! Buckets of different resolutions are brought to the coarser one, which is exact. A quantile is the middle of its
//! bucket, by factors: it is off by half a bucket at most, 4.5 % at schema 3 and 19 % at schema 1. Prometheus
//! interpolates, as if values were spread evenly over the bucket; where all took the same, that is off by a whole one.

use std::collections::BTreeMap;

use super::native::{Native, START_SCHEMA, coarser_index};
use super::{Bounds, Buckets, seconds};

/// Counts of exponential buckets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spread {
    schema: i8,
    zeros: u64,
    counts: BTreeMap<i32, u64>,
}

impl Default for Spread {
    fn default() -> Self {
        Self { schema: START_SCHEMA, zeros: 0, counts: BTreeMap::new() }
    }
}

impl Spread {
    /// Adds what a histogram counted.
    pub fn add(&mut self, native: &Native) {
        let schema = self.schema.min(native.schema());
        self.coarsen(schema);
        let steps = native.schema() - schema;
        for (index, count) in (native.first_index()..).zip(native.counts()).filter(|(_, count)| **count > 0) {
            *self.counts.entry(coarser_index(index, steps)).or_default() += count;
        }
        self.zeros += native.zero_count();
    }

    /// Counts by bucket of this schema.
    pub(super) fn of(schema: i8, zeros: u64, counts: impl Iterator<Item = (i32, u64)>) -> Self {
        Self { schema, zeros, counts: counts.collect() }
    }

    /// All values.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.zeros + self.counts.values().sum::<u64>()
    }

    /// What a share of `ratio` stayed below, seconds; `None` when there is nothing.
    #[must_use]
    pub fn quantile(&self, ratio: f64) -> Option<f64> {
        // A hair less: 0.57 × 100 is more than 57 in floating point.
        let rank = ratio * self.count() as f64 * (1.0 - 1e-12);
        let mut before = self.zeros as f64;
        if self.zeros > 0 && rank <= before {
            return Some(0.0);
        }
        for (index, count) in &self.counts {
            before += *count as f64;
            if rank <= before {
                return Some(self.bound(f64::from(*index) - 0.5));
            }
        }
        self.counts.last_key_value().map(|(index, _)| self.bound(f64::from(*index) - 0.5))
    }

    /// Which share of all values stayed below so many seconds; `None` when there is nothing.
    #[must_use]
    pub fn share_below(&self, seconds: f64) -> Option<f64> {
        let total = self.count();
        if total == 0 {
            return None;
        }
        let place = seconds.max(f64::MIN_POSITIVE).log2() * f64::from(self.schema).exp2();
        let below: f64 = self
            .counts
            .iter()
            .map(|(index, count)| (place - f64::from(*index) + 1.0).clamp(0.0, 1.0) * *count as f64)
            .sum();
        Some((self.zeros as f64 + below) / total as f64)
    }

    /// Upper bound of a bucket, or a place within one, seconds.
    fn bound(&self, index: f64) -> f64 {
        (index * (-f64::from(self.schema)).exp2()).exp2()
    }

    fn coarsen(&mut self, schema: i8) {
        let steps = self.schema - schema;
        if steps > 0 {
            let mut merged = BTreeMap::new();
            for (index, count) in &self.counts {
                *merged.entry(coarser_index(*index, steps)).or_default() += count;
            }
            (self.counts, self.schema) = (merged, schema);
        }
    }
}

impl Buckets {
    /// What a share of `ratio` stayed below, seconds, interpolated within its bucket; the last one answers with its
    /// lower bound. `None` when there is nothing.
    #[must_use]
    pub fn quantile(&self, bounds: &Bounds, ratio: f64) -> Option<f64> {
        let rank = ratio * self.count() as f64;
        let (mut before, mut low) = (0.0, 0.0);
        for (nth, count) in self.counts().iter().enumerate() {
            let count = *count as f64;
            let high = bounds.get(nth).map(|bound| seconds(*bound));
            if count > 0.0 && rank <= before + count {
                return Some(high.map_or(low, |high| low + (high - low) * (rank - before) / count));
            }
            before += count;
            low = high.unwrap_or(low);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::red::QUEUE_WAIT_BOUNDS;

    fn of(values: &[u64]) -> Spread {
        let mut spread = Spread::default();
        for values in values.chunks(7) {
            let mut native = Native::default();
            values.iter().for_each(|value| native.observe(*value));
            spread.add(&native);
        }
        spread
    }

    #[test]
    fn nothing_has_no_quantile() {
        assert_eq!((of(&[]).quantile(0.5), of(&[]).share_below(1.0)), (None, None));
        assert_eq!(of(&[0, 0]).quantile(0.99), Some(0.0));
        assert_eq!(<Buckets>::default().quantile(&QUEUE_WAIT_BOUNDS, 0.95), None);
    }

    #[test]
    fn buckets_interpolate() {
        let mut buckets = <Buckets>::default();
        let low = QUEUE_WAIT_BOUNDS[0];
        for _ in 0..100 {
            buckets.observe(&QUEUE_WAIT_BOUNDS, low);
        }
        let found = buckets.quantile(&QUEUE_WAIT_BOUNDS, 0.95).unwrap();
        assert!((found - seconds(low) * 0.95).abs() < 1e-12, "{found}");
        for _ in 0..100 {
            buckets.observe(&QUEUE_WAIT_BOUNDS, u64::MAX);
        }
        assert_eq!(buckets.quantile(&QUEUE_WAIT_BOUNDS, 0.95), Some(seconds(QUEUE_WAIT_BOUNDS[13])));
    }

    proptest! {
        #[test]
        fn quantiles_are_near_the_truth(mut values in prop::collection::vec(1_000_000..20_000_000_000_u64, 1..200), percent in 1_u32..=100) {
            let spread = of(&values);
            values.sort_unstable();
            let exact = seconds(values[(values.len() * percent as usize).div_ceil(100) - 1]);
            let found = spread.quantile(f64::from(percent) / 100.0).unwrap();
            // Half a bucket: neighbouring bounds are 9 % apart.
            prop_assert!((found / exact).log2().abs() <= 1.0 / 16.0 + 1e-9, "{found} for {exact}");
            prop_assert_eq!(spread.count(), values.len() as u64);
            let above = spread.share_below(seconds(values[values.len() - 1]) * 1.1).unwrap();
            prop_assert!((above - 1.0).abs() < 1e-9, "{above}");
            prop_assert_eq!(spread.share_below(seconds(values[0]) / 1.1), Some(0.0));
        }

        #[test]
        fn resolutions_mix(values in prop::collection::vec(any::<u64>(), 1..100)) {
            let spread = of(&values);
            prop_assert_eq!(spread.count(), values.len() as u64);
            let quantiles: Vec<_> = (0..=10).map(|tenth| spread.quantile(f64::from(tenth) / 10.0).unwrap()).collect();
            prop_assert!(quantiles.is_sorted(), "{quantiles:?}");
        }
    }
}
