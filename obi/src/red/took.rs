//! How long the requests of a service take, for quantiles that are shown.
//!
//! In: durations, each as it was. Out: quantiles, at most 1 % off. Refuses to decide about objectives: those are
//! counted request by request.
//!
//! Two significant digits: three would take eight times the memory, of every service.

use hdrhistogram::{CreationError, Histogram};

/// Significant digits: 1 %.
const DIGITS: u8 = 2;
/// Longer ones count as this, ns: an hour. With [`DIGITS`] it bounds the memory of one, to 18 KiB.
const LONGEST: u64 = 3_600_000_000_000;

/// Durations of one service.
#[derive(Debug, Clone)]
pub struct Took(Histogram<u32>);

impl Default for Took {
    fn default() -> Self {
        Self(empty().expect("0 to 5 digits are allowed"))
    }
}

impl Took {
    /// Counts one duration.
    pub fn observe(&mut self, nanoseconds: u64) {
        self.0.record(nanoseconds.min(LONGEST)).expect("it grows to what it is given");
    }

    /// Adds what another has counted.
    pub fn add(&mut self, other: &Self) {
        self.0.add(&other.0).expect("it grows to what it is given");
    }

    /// What at least a share of `ratio` stayed at or below, ns; `None` when there is nothing.
    #[must_use]
    pub fn quantile(&self, ratio: f64) -> Option<u64> {
        // 0.07 of 100 is 7.000000000000001 to a processor, and the eighth is another duration.
        let ratio = ratio * (1.0 - 4.0 * f64::EPSILON);
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(ratio).min(LONGEST))
    }
}

fn empty() -> Result<Histogram<u32>, CreationError> {
    Histogram::new(DIGITS)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let check = |durations: &[(u64, usize)], expected: Option<u64>| {
            let mut took = Took::default();
            for (duration, n) in durations {
                (0..*n).for_each(|_| took.observe(*duration));
            }
            assert_eq!(took.quantile(0.99), expected, "{durations:?}");
        };
        check(&[], None);
        check(&[(0, 1)], Some(0));
        check(&[(7, 1)], Some(7));
        check(&[(20, 1), (10, 99)], Some(10));
        check(&[(20, 2), (10, 98)], Some(20));
        let mut took = Took::default();
        (1..=100).for_each(|duration| took.observe(duration));
        assert_eq!(took.quantile(0.07), Some(7));
        check(&[(u64::MAX, 1)], Some(LONGEST));
    }

    #[test]
    fn memory_is_bounded() {
        let mut took = Took::default();
        [0, 1, u64::MAX, 1_000_000].into_iter().for_each(|duration| took.observe(duration));
        assert!(took.0.distinct_values() * size_of::<u32>() <= 18 << 10, "{}", took.0.distinct_values());
    }

    proptest! {
        #[test]
        fn a_quantile_is_at_most_a_hundredth_off(
            mut durations in proptest::collection::vec(0..LONGEST, 1..500),
            split in 0_usize..500,
            percent in 1_u32..=100,
        ) {
            let mut parts = [Took::default(), Took::default()];
            for (nth, duration) in durations.iter().enumerate() {
                parts[usize::from(nth < split)].observe(*duration);
            }
            let [mut took, other] = parts;
            took.add(&other);
            durations.sort_unstable();
            let rank = (durations.len() * percent as usize).div_ceil(100);
            let exact = durations[rank - 1];
            let found = took.quantile(f64::from(percent) / 100.0).expect("there are some");
            prop_assert!(exact <= found && found <= exact + exact / 100, "{found} for {exact}");
        }
    }
}
