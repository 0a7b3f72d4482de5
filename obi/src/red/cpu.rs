//! CPU time of requests by service and route.
//!
//! In: what was sampled while requests were served. Out: running totals, and how far they may be off. Refuses to know
//! how CPUs are sampled.
//!
//! Each CPU is looked at once a period, at moments that have nothing to do with what it runs, and each look stands for
//! a period of CPU time. So `n` looks say `n` periods, with a standard error of at most `sqrt(n)` periods: counts of
//! independent looks are binomial, and those within one long request are closer to the truth than that.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{Equivalent, HashMap};

use super::series::{MAX_LABEL_BYTES, OTHER};
use crate::span::Service;

/// Pairs of service and route that are distinguished; further routes share one of their service's, and when there are
/// twice as many, services share one.
const MAX_SERIES: usize = 2_000;

/// Service by its number, and route.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// [`Service::id`].
    pub service: u32,
    /// Route.
    pub route: Arc<str>,
}

/// [`RouteKey`], borrowed.
#[derive(Debug, Clone, Copy, Hash)]
pub struct RouteRef<'a> {
    /// [`Service::id`].
    pub service: u32,
    /// Route.
    pub route: &'a str,
}

impl Equivalent<RouteKey> for RouteRef<'_> {
    fn equivalent(&self, key: &RouteKey) -> bool {
        self.service == key.service && *self.route == *key.route
    }
}

/// Samples of CPUs that were taken in one server span, or in several of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CpuSamples {
    /// Whose.
    pub service: Arc<Service>,
    /// Route.
    pub route: Arc<str>,
    /// How many.
    pub samples: u64,
    /// CPU time that they stand for, ns.
    pub nanoseconds: u64,
    /// When the last of these spans ended, nanoseconds since the Unix epoch.
    pub ended: u64,
}

/// CPU time of requests of one service and route.
#[derive(Debug, Clone)]
pub struct CpuTime {
    /// Service.
    pub service: Arc<Service>,
    /// Route; `_OTHER` for those that found no room.
    pub route: Arc<str>,
    /// Samples taken in its requests.
    pub samples: u64,
    /// CPU time that they stand for, ns.
    pub nanoseconds: u64,
    /// Number of the last snapshot taken before it was born.
    pub born: u64,
    /// When it began, nanoseconds since the Unix epoch.
    pub created: u64,
    /// When it was last added to, by the registry's clock.
    touched: u64,
}

/// Where a service's route is counted: by itself, with others of its service, or with other services.
pub(super) fn place<V>(
    held: &HashMap<RouteKey, V, RandomState>,
    (service, route): (&Arc<Service>, &Arc<str>),
    other: &Arc<Service>,
) -> (Arc<Service>, Arc<str>) {
    let is_held = |id: u32, route: &str| held.contains_key(&RouteRef { service: id, route });
    if is_held(service.id, route) || (route.len() <= MAX_LABEL_BYTES && held.len() < MAX_SERIES) {
        return (Arc::clone(service), Arc::clone(route));
    }
    let fits = is_held(service.id, OTHER) || held.len() < 2 * MAX_SERIES;
    (Arc::clone(if fits { service } else { other }), OTHER.into())
}

/// All pairs of late.
#[derive(Debug, Default)]
pub(super) struct CpuTimes(HashMap<RouteKey, CpuTime, RandomState>);

impl CpuTimes {
    /// Adds at `now`; `other` stands for services beyond the bound.
    pub(super) fn add(&mut self, taken: &CpuSamples, other: &Arc<Service>, (now, born): (u64, u64)) {
        let (service, route) = place(&self.0, (&taken.service, &taken.route), other);
        let key = RouteKey { service: service.id, route: Arc::clone(&route) };
        let time = self.0.entry(key).or_insert_with(|| CpuTime {
            service,
            route,
            samples: 0,
            nanoseconds: 0,
            born,
            created: taken.ended,
            touched: now,
        });
        time.samples += taken.samples;
        time.nanoseconds += taken.nanoseconds;
        time.touched = now;
    }

    /// Drops what was not added to since `before`.
    pub(super) fn expire(&mut self, before: u64) {
        self.0.retain(|_, time| time.touched >= before);
    }

    /// Says that everything was counted just now.
    pub(super) fn touch_all(&mut self, now: u64) {
        self.0.values_mut().for_each(|time| time.touched = now);
    }

    /// All of them, by service and route.
    pub(super) fn to_vec(&self) -> Vec<CpuTime> {
        let mut list: Vec<_> = self.0.values().cloned().collect();
        list.sort_by(|a, b| (a.service.id, &a.route).cmp(&(b.service.id, &b.route)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn samples(service: u32, route: &str) -> CpuSamples {
        let service = Arc::new(Service { name: format!("s{service}"), id: service, ..Service::default() });
        CpuSamples { service, route: route.into(), samples: 2, nanoseconds: 30, ended: 7 }
    }

    #[test]
    fn routes_beyond_the_limit_share_one_and_nothing_is_lost() {
        let other = Arc::new(Service { name: OTHER.to_owned(), id: u32::MAX, ..Service::default() });
        let mut times = CpuTimes::default();
        for route in 0..MAX_SERIES {
            times.add(&samples(1, &route.to_string()), &other, (1, 0));
        }
        for service in 1..3 * MAX_SERIES as u32 {
            times.add(&samples(service, "/late"), &other, (1, 0));
        }
        times.add(&samples(1, "17"), &other, (1, 0));
        let list = times.to_vec();
        assert_eq!(list.len(), 2 * MAX_SERIES + 1);
        assert_eq!(list.iter().map(|time| time.samples).sum::<u64>(), 2 * (4 * MAX_SERIES as u64));
        let check = |service: u32, route: &str, samples: u64| {
            let held = list.iter().find(|time| (time.service.id, &*time.route) == (service, route));
            assert_eq!(held.map(|time| (time.samples, time.nanoseconds)), Some((samples, samples * 15)));
        };
        check(1, "17", 4);
        check(1, OTHER, 2);
        check(2, OTHER, 2);
        check(u32::MAX, OTHER, 2 * (2 * MAX_SERIES as u64 - 1));
    }

    #[test]
    fn what_is_idle_is_dropped_and_begins_anew() {
        let mut times = CpuTimes::default();
        let other = Arc::new(Service::default());
        times.add(&samples(1, "/a"), &other, (10, 3));
        times.add(&samples(1, "/b"), &other, (20, 3));
        times.expire(15);
        times.add(&samples(1, "/a"), &other, (30, 5));
        let list = times.to_vec();
        let found: Vec<_> = list.iter().map(|time| (&*time.route, time.samples, time.born)).collect();
        assert_eq!(found, [("/a", 2, 5), ("/b", 2, 3)]);
    }
}
