//! CPU time of requests by service and route, from the samples that were linked to their spans.
//!
//! In: periods sampled in a span. Out: running totals, and how far they may be off. Refuses to know exporters.
//!
//! Each CPU is looked at once a period, at moments that have nothing to do with what it runs, and each look stands for
//! a period of CPU time. So `n` looks say `n` periods, with a standard error of at most `sqrt(n)` periods: counts of
//! independent looks are binomial, and those within one long request are closer to the truth than that. A look that
//! stands for several periods, because others were lost, counts with its square.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::rank::{RouteKey, RouteRef};
use crate::span::Service;
use crate::stats::Counter;

/// Looks of one service and route.
#[derive(Debug, Clone)]
pub struct CpuTime {
    /// Service.
    pub service: Arc<Service>,
    /// Route; `_OTHER` for those that found no room.
    pub route: Arc<str>,
    /// Samples.
    pub samples: Counter,
    /// Periods that they stand for.
    pub periods: u64,
    /// Sum of the squares of those.
    pub squares: u64,
    /// When the first was taken, nanoseconds since the Unix epoch.
    pub created: u64,
    /// When the last was, `CLOCK_MONOTONIC`.
    touched: u64,
}

impl CpuTime {
    /// Standard error of the CPU time, in periods: at most this.
    #[must_use]
    pub fn error(&self) -> f64 {
        error(self.squares)
    }
}

/// Standard error, in periods, of samples the squares of whose weights have this sum.
#[must_use]
pub fn error(squares: u64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "an estimate")]
    (squares as f64).sqrt()
}

/// The route of what found no room.
const OTHER: &str = "_OTHER";

/// Totals by service and route.
#[derive(Debug)]
pub struct CpuTimes {
    limit: usize,
    idle: u64,
    table: HashMap<RouteKey, CpuTime, RandomState>,
}

/// Samples linked to one span at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Looks {
    /// Weights of the samples.
    pub weights: u64,
    /// Squares of these.
    pub squares: u64,
    /// How many.
    pub samples: u64,
}

impl Looks {
    pub(super) fn add(&mut self, weight: u32) {
        let weight = u64::from(weight);
        self.weights += weight;
        self.squares += weight * weight;
        self.samples += 1;
    }
}

impl CpuTimes {
    /// `limit`: entries at most, besides one per service for what finds no room; `idle`: how long one without a sample
    /// stays, ns.
    #[must_use]
    pub fn new(limit: usize, idle: u64) -> Self {
        Self { limit, idle, table: HashMap::default() }
    }

    /// Counts samples of a request; `now` in both clocks, `generation` of [`Counter::born`].
    pub fn add(&mut self, service: &Arc<Service>, route: &Arc<str>, looks: Looks, at: Moment) {
        let wanted = RouteRef { service: service.id, route };
        let is_full = self.table.len() >= self.limit && !self.table.contains_key(&wanted);
        let other: Arc<str>;
        let route = if is_full {
            other = OTHER.into();
            &other
        } else {
            route
        };
        let wanted = RouteRef { service: service.id, route };
        if !self.table.contains_key(&wanted) {
            let key = RouteKey { service: service.id, route: Arc::clone(route) };
            let (service, route) = (Arc::clone(service), Arc::clone(route));
            let (samples, periods, squares) = (Counter::default(), 0, 0);
            let entry =
                CpuTime { service, route, samples, periods, squares, created: at.unix, touched: at.monotonic };
            self.table.insert(key, entry);
        }
        if let Some(entry) = self.table.get_mut(&wanted) {
            entry.samples.add(looks.samples, at.generation);
            entry.periods += looks.weights;
            entry.squares += looks.squares;
            entry.touched = at.monotonic;
        }
    }

    /// Drops what had no sample for long.
    pub fn sweep(&mut self, now: u64) {
        self.table.retain(|_, entry| now.saturating_sub(entry.touched) < self.idle);
    }

    /// Everything, in the order of service and route.
    #[must_use]
    pub fn list(&self) -> Vec<CpuTime> {
        let mut list: Vec<_> = self.table.values().cloned().collect();
        list.sort_by(|a, b| {
            let key = |time: &CpuTime| (time.service.namespace.clone(), time.service.name.clone());
            key(a).cmp(&key(b)).then_with(|| a.route.cmp(&b.route))
        });
        list
    }
}

/// Now, in all clocks that count.
#[derive(Debug, Clone, Copy)]
pub struct Moment {
    /// `CLOCK_MONOTONIC`, ns.
    pub monotonic: u64,
    /// Nanoseconds since the Unix epoch.
    pub unix: u64,
    /// Number of the last snapshot of the agent's statistics.
    pub generation: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn routes_beyond_the_limit_share_one_and_nothing_is_lost() {
        let mut times = CpuTimes::new(3, 1_000);
        let services =
            [1, 2].map(|id| Arc::new(Service { name: format!("s{id}"), id, ..Service::default() }));
        let at = |monotonic| Moment { monotonic, unix: 7, generation: 1 };
        for service in &services {
            for route in ["/a", "/b", "/c", "/d"] {
                times.add(service, &route.into(), Looks { weights: 3, squares: 5, samples: 2 }, at(1));
            }
        }
        let list = times.list();
        let names: Vec<_> = list.iter().map(|time| (time.service.name.as_str(), &*time.route, time.periods)).collect();
        assert_eq!(names, [("s1", "/a", 3), ("s1", "/b", 3), ("s1", "/c", 3), ("s1", "_OTHER", 3), ("s2", "_OTHER", 12)]);
        assert!((list[4].error() - 20_f64.sqrt()).abs() < 1e-9);
        times.add(&services[0], &"/a".into(), Looks { weights: 1, squares: 1, samples: 1 }, at(500));
        times.sweep(1_200);
        assert_eq!(times.list().len(), 1);
    }
}
