//! Where the time of requests went, by service and route.
//!
//! In: server spans of which it is known. Out: running totals of the parts. Refuses to know how time is booked.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::cpu::{RouteKey, place};
use crate::counter::Counter;
use crate::protocol::WAIT_REASON_NAMES;
use crate::span::{Service, Span, SpanKind};

/// Where the time of requests of one service and route went, ns.
#[derive(Debug, Clone)]
pub struct SpentTime {
    /// Service.
    pub service: Arc<Service>,
    /// Route; `_OTHER` for those that found no room.
    pub route: Arc<str>,
    /// On a CPU.
    pub cpu: Counter,
    /// Waiting for one.
    pub runqueue: Counter,
    /// Waiting for something else, in the order of [`WAIT_REASON_NAMES`].
    pub blocked: [Counter; WAIT_REASON_NAMES.len()],
    /// Calls of requests were open, where nothing else is known of these.
    pub downstream: Counter,
    /// Not known.
    pub elsewhere: Counter,
    /// Requests of which it is known.
    pub n_known: u64,
    /// The end of the first span, nanoseconds since the Unix epoch.
    pub created: u64,
    /// When it was last added to, by the registry's clock.
    touched: u64,
}

/// All pairs of late.
#[derive(Debug, Default)]
pub(super) struct SpentTimes(HashMap<RouteKey, SpentTime, RandomState>);

impl SpentTimes {
    /// Adds the parts of a server span at `now`; `other` stands for services beyond the bound.
    pub(super) fn add(&mut self, span: &Span, other: &Arc<Service>, (now, born): (u64, u64)) {
        let Some(spent) = span.spent.as_deref().filter(|_| span.kind == SpanKind::Server) else { return };
        let route = span.detail.operation().place;
        let (service, route) = place(&self.0, (&span.service, route), other);
        let key = RouteKey { service: service.id, route: Arc::clone(&route) };
        let sums = self.0.entry(key).or_insert_with(|| SpentTime {
            service,
            route,
            cpu: Counter::default(),
            runqueue: Counter::default(),
            blocked: [Counter::default(); WAIT_REASON_NAMES.len()],
            downstream: Counter::default(),
            elsewhere: Counter::default(),
            n_known: 0,
            created: span.end,
            touched: now,
        });
        sums.touched = now;
        sums.elsewhere.add(spent.elsewhere, born);
        sums.downstream.add(spent.downstream, born);
        let Some(times) = &spent.times else { return };
        sums.n_known += 1;
        sums.cpu.add(times.cpu, born);
        sums.runqueue.add(times.runqueue, born);
        for (sum, part) in sums.blocked.iter_mut().zip(times.blocked) {
            sum.add(part, born);
        }
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
    pub(super) fn to_vec(&self) -> Vec<SpentTime> {
        let mut list: Vec<_> = self.0.values().cloned().collect();
        list.sort_by(|a, b| (a.service.id, &a.route).cmp(&(b.service.id, &b.route)));
        list
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Times;
    use crate::red::tests::{service, span_with};
    use crate::span::Spent;

    #[test]
    fn parts_are_added_up_by_route_and_what_is_idle_is_dropped() {
        let mut blocked = [0; WAIT_REASON_NAMES.len()];
        blocked[1] = 7;
        let times = Times { cpu: 100, runqueue: 20, blocked, switches: 1 };
        let with = |kind, spent| span_with(kind, |span| span.spent = spent);
        let known = Some(Box::new(Spent { times: Some(times), downstream: 0, elsewhere: 3 }));
        let unknown = Some(Box::new(Spent { times: None, downstream: 9, elsewhere: 50 }));
        let mut sums = SpentTimes::default();
        let other = service(9);
        sums.add(&with(SpanKind::Server, known.clone()), &other, (1, 4));
        sums.add(&with(SpanKind::Server, known.clone()), &other, (2, 5));
        sums.add(&with(SpanKind::Server, unknown), &other, (3, 5));
        sums.add(&with(SpanKind::Server, None), &other, (3, 5));
        sums.add(&with(SpanKind::Client, known), &other, (3, 5));
        let list = sums.to_vec();
        let [one] = &list[..] else { panic!("{list:?}") };
        assert_eq!((one.cpu.value, one.cpu.born, one.runqueue.value), (200, 4, 40));
        assert_eq!((one.blocked[1].value, one.blocked[0].value), (14, 0));
        assert_eq!((one.downstream.value, one.elsewhere.value, one.n_known), (9, 56, 2));
        sums.expire(4);
        assert!(sums.to_vec().is_empty());
    }
}
