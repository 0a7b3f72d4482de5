//! How long the requests of a route take, so that the slow ones can be distinguished from the rest.
//!
//! In: every finished server span, sampled or not: by the samples alone, long requests would seem to be the usual ones.
//! Out: percentiles by service and route over a time. Refuses to know samples.
//!
//! Durations are counted in buckets of 3 % in slots of ten seconds, so that memory does not grow with traffic.

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::join::Ended;
use crate::red::{RouteKey, RouteRef};

const SLOT: u64 = 10_000_000_000;
/// Slots that are held: as far back as slow requests can be distinguished from others.
const SLOTS: usize = 90;
/// Routes of a slot; more are not ranked, so that none of their spans counts as slow.
const ROUTES: usize = 4096;
/// Each power of two has so many buckets.
const STEPS: u32 = 32;

/// Counts by bucket, few of which are in use.
type Buckets = Vec<(u16, u32)>;

/// Durations of the last minutes.
#[derive(Debug, Default)]
pub(super) struct Ranks {
    /// (number of the slot, counts), the oldest first.
    slots: VecDeque<(u64, HashMap<RouteKey, Buckets, RandomState>)>,
    bytes: usize,
}

impl Ranks {
    pub(super) fn add(&mut self, span: &Ended) {
        let number = span.end / SLOT;
        // Spans end in no order across CPUs: one of a slot before goes there, if it is still held.
        let at = match self.slots.iter().rposition(|(held, _)| *held <= number) {
            Some(at) if self.slots[at].0 == number => at,
            at => {
                let at = at.map_or(0, |at| at + 1);
                self.slots.insert(at, (number, HashMap::default()));
                at
            }
        };
        let counts = &mut self.slots[at].1;
        let wanted = RouteRef { service: span.service.id, route: &span.route };
        let bucket = bucket(span.end.saturating_sub(span.start));
        let before = counts.get(&wanted).map_or(0, Vec::capacity);
        if let Some(buckets) = counts.get_mut(&wanted) {
            count(buckets, bucket);
            self.bytes += (buckets.capacity() - before) * size_of::<(u16, u32)>();
        } else if counts.len() < ROUTES {
            let key = RouteKey { service: span.service.id, route: Arc::clone(&span.route) };
            counts.insert(key, vec![(bucket, 1)]);
            self.bytes += ENTRY;
        }
        while self.slots.len() > SLOTS {
            if let Some((_, gone)) = self.slots.pop_front() {
                self.bytes -= gone.values().map(bytes_of).sum::<usize>();
            }
        }
    }

    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Of each route the shortest duration of those beyond the `share` of its requests that took the least, ns; of
    /// spans that ended in `start..end`, to within a slot.
    pub(super) fn thresholds(&self, start: u64, end: u64, share: f64) -> HashMap<RouteKey, u64, RandomState> {
        let mut sums = HashMap::<RouteKey, Buckets, RandomState>::default();
        for (number, counts) in &self.slots {
            if number * SLOT < end && (number + 1) * SLOT > start {
                for (key, buckets) in counts {
                    sums.entry(key.clone()).or_default().extend_from_slice(buckets);
                }
            }
        }
        sums.into_iter().map(|(key, buckets)| (key, percentile(buckets, share))).collect()
    }
}

const ENTRY: usize = 2 * size_of::<(RouteKey, Buckets)>() + size_of::<(u16, u32)>();

fn bytes_of(buckets: &Buckets) -> usize {
    ENTRY + (buckets.capacity() - 1) * size_of::<(u16, u32)>()
}

fn count(buckets: &mut Buckets, bucket: u16) {
    match buckets.binary_search_by_key(&bucket, |(held, _)| *held) {
        Ok(at) => buckets[at].1 = buckets[at].1.saturating_add(1),
        Err(at) => buckets.insert(at, (bucket, 1)),
    }
}

/// The lower bound of the bucket that holds the first duration beyond that share.
fn percentile(mut buckets: Buckets, share: f64) -> u64 {
    buckets.sort_unstable();
    let total: u64 = buckets.iter().map(|(_, n)| u64::from(*n)).sum();
    #[expect(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a rank among requests; the share is from 0 to 1"
    )]
    let rank = (total as f64 * share) as u64 + 1;
    let mut below = 0;
    for (bucket, n) in &buckets {
        below += u64::from(*n);
        if below >= rank {
            return lower_bound(*bucket);
        }
    }
    u64::MAX
}

fn bucket(duration: u64) -> u16 {
    let duration = duration.max(u64::from(STEPS));
    let exponent = duration.ilog2();
    let step = duration >> (exponent - STEPS.ilog2());
    let step = u16::try_from(step - u64::from(STEPS)).expect("below the number of steps");
    u16::try_from((exponent - STEPS.ilog2()) * STEPS).expect("at most 59 * 32") + step
}

fn lower_bound(bucket: u16) -> u64 {
    let (exponent, step) = (u32::from(bucket) / STEPS, u32::from(bucket) % STEPS);
    u64::from(STEPS + step) << exponent
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::span::Service;

    fn ended(route: &str, start: u64, end: u64) -> Ended {
        Ended {
            exchange: 1,
            start,
            end,
            trace_id: [1; 16],
            span_id: [1; 8],
            route: route.into(),
            service: Arc::new(Service::default()),
            is_server: true,
            is_booked: false,
            is_shared: false,
            continues: None,
        }
    }

    #[test]
    fn a_percentile_is_of_its_route_and_its_time() {
        let mut ranks = Ranks::default();
        for millisecond in 1..=100 {
            ranks.add(&ended("/a", 0, millisecond * 1_000_000));
            ranks.add(&ended("/b", 3 * SLOT, 3 * SLOT + 1_000));
        }
        let check = |route: &str, start, end, expected: Option<u64>| {
            let thresholds = ranks.thresholds(start, end, 0.95);
            let found = thresholds.get(&RouteRef { service: 0, route }).copied();
            let near = |found: u64, expected: u64| found <= expected && found > expected * 96 / 100;
            let fits =
                found.zip(expected).map_or(found == expected, |(found, expected)| near(found, expected));
            assert!(fits, "{route}: {found:?}, expected {expected:?}");
        };
        check("/a", 0, SLOT, Some(96_000_000));
        check("/b", 0, SLOT, None);
        check("/b", 0, 4 * SLOT, Some(1_000));
        check("/a", SLOT, 4 * SLOT, None);
    }

    #[test]
    fn memory_does_not_grow_with_time_or_routes() {
        let mut ranks = Ranks::default();
        for slot in 0..2 * SLOTS as u64 {
            for route in 0..10 {
                ranks.add(&ended(&route.to_string(), 0, slot * SLOT));
            }
        }
        let bytes = ranks.bytes();
        assert_eq!(ranks.slots.len(), SLOTS);
        assert!(bytes <= SLOTS * 10 * (ENTRY + 64), "{bytes}");
        for slot in 0..SLOTS as u64 {
            ranks.add(&ended("x", 0, (1000 + slot) * SLOT));
        }
        assert_eq!(ranks.bytes(), SLOTS * ENTRY);
        for route in 0..2 * ROUTES {
            ranks.add(&ended(&route.to_string(), 0, 2000 * SLOT));
        }
        assert_eq!(ranks.slots.back().unwrap().1.len(), ROUTES);
    }

    proptest! {
        #[test]
        fn a_bucket_is_narrow_and_holds_its_duration(duration in 32_u64..u64::MAX) {
            let lower = lower_bound(bucket(duration));
            prop_assert!(lower <= duration && duration - lower <= lower / 32);
        }
    }
}
