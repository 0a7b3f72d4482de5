//! What shows people where an objective burns: the route with most bad events, and traces of some of them.
//!
//! In: bad spans as they are stored. Out: for each objective its worst route and up to three traces, all of which the
//! store still has: whole, with all spans that this machine saw of them, until [`AFTER`] the alert has ended. Bounded
//! per objective; a flood of bad events costs a comparison each. Refuses to know burn rates.

use std::collections::VecDeque;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::span_store::Store;

/// Traces that an alert names.
pub const TRACES: usize = 3;
/// Spans kept per objective: those of the alert, and as many newer ones, so that what has just been handed out does not
/// vanish before it has been sent.
const KEPT: usize = 2 * TRACES;
/// At most one span is kept in this time, once there are enough; nanoseconds.
const PACE: u64 = 1_000_000_000;
/// Routes counted per objective; beyond them the least one gives way to the new one and leaves it its count, so that a
/// frequent one is never missed.
const ROUTES: usize = 32;
/// The counts of routes are halved this often, so that they show the last minutes; nanoseconds.
const HALF_LIFE: u64 = 300_000_000_000;

/// Traces stay whole for so long after their alert has ended, or after they were noted if none fires; nanoseconds. Then
/// their bad spans are left.
pub const AFTER: u64 = 900_000_000_000;

/// A bad span.
#[derive(Debug, Clone)]
pub struct Bad<'a> {
    /// Its place in the store.
    pub sequence: u64,
    /// Trace.
    pub trace_id: [u8; 16],
    /// When it ended, Unix nanoseconds.
    pub at: u64,
    /// HTTP method, `grpc` or `WEBSOCKET`.
    pub method: &'static str,
    /// Route or method called; empty where there is none.
    pub route: &'a Arc<str>,
}

/// What an alert says beside its numbers.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Exhibit {
    /// Method and route with most bad events of late; empty when there were none.
    pub worst_route: String,
    /// Traces of bad events, newest first, 32 hexadecimal digits each.
    pub trace_ids: Vec<String>,
}

/// The evidence of one objective.
#[derive(Debug, Default)]
pub struct Evidence {
    /// Newest last.
    kept: VecDeque<Kept>,
    routes: Vec<RouteCount>,
    halved_at: u64,
    /// Until when traces stay whole, Unix nanoseconds; 0: none is.
    whole_until: u64,
    is_frozen: bool,
    is_changed: bool,
}

#[derive(Debug)]
struct Kept {
    sequence: u64,
    trace_id: [u8; 16],
    at: u64,
    /// Its whole trace is kept.
    is_whole: bool,
}

#[derive(Debug)]
struct RouteCount {
    method: &'static str,
    route: Arc<str>,
    n: u64,
}

impl Evidence {
    /// Takes note of a bad span that the store has.
    pub fn note(&mut self, bad: &Bad<'_>, store: &mut Store) {
        self.count_route(bad);
        self.is_changed = true;
        let is_full = self.kept.len() >= KEPT;
        if is_full
            && (self.is_frozen || self.kept.back().is_some_and(|last| bad.at < last.at.saturating_add(PACE)))
        {
            return;
        }
        if is_full && let Some(oldest) = self.kept.pop_front() {
            store.release(oldest.sequence);
            if oldest.is_whole {
                store.release_trace(&oldest.trace_id);
            }
        }
        store.keep(bad.sequence);
        store.keep_trace(bad.trace_id);
        let Bad { sequence, trace_id, at, .. } = *bad;
        self.whole_until = self.whole_until.max(at.saturating_add(AFTER));
        self.kept.push_back(Kept { sequence, trace_id, at, is_whole: true });
    }

    /// To be called now and then: some time after the alert has ended, traces are no longer kept whole.
    pub fn tick(&mut self, is_firing: bool, now: u64, store: &mut Store) {
        self.is_frozen = is_firing;
        if self.whole_until == 0 {
            return;
        }
        if is_firing {
            self.whole_until = now.saturating_add(AFTER);
        } else if now >= self.whole_until {
            self.whole_until = 0;
            for kept in self.kept.iter_mut().filter(|kept| kept.is_whole) {
                kept.is_whole = false;
                store.release_trace(&kept.trace_id);
            }
        }
    }

    /// While an alert fires, the spans it names stay.
    pub fn freeze(&mut self, is_frozen: bool) {
        self.is_frozen = is_frozen;
    }

    /// What is to be said now, if it is not what was said last.
    pub fn take_changed(&mut self) -> Option<Exhibit> {
        std::mem::take(&mut self.is_changed).then(|| self.exhibit())
    }

    fn exhibit(&self) -> Exhibit {
        let worst = self.routes.iter().max_by_key(|route| route.n);
        // A span of the same trace would lead to the same place.
        let mut traces: Vec<[u8; 16]> = Vec::with_capacity(TRACES);
        for kept in self.kept.iter().rev() {
            if traces.len() < TRACES && !traces.contains(&kept.trace_id) {
                traces.push(kept.trace_id);
            }
        }
        Exhibit {
            worst_route: worst.map_or_else(String::new, |RouteCount { method, route, .. }| {
                format!("{method} {route}").trim_end().to_owned()
            }),
            trace_ids: traces.into_iter().map(|id| format!("{:032x}", u128::from_be_bytes(id))).collect(),
        }
    }

    fn count_route(&mut self, bad: &Bad<'_>) {
        if bad.at.saturating_sub(self.halved_at) >= HALF_LIFE {
            self.halved_at = bad.at;
            self.routes.retain_mut(|route| {
                route.n /= 2;
                route.n > 0
            });
        }
        let is_same = |known: &&mut RouteCount| *known.route == **bad.route && known.method == bad.method;
        if let Some(known) = self.routes.iter_mut().find(is_same) {
            known.n += 1;
            return;
        }
        let mut new = RouteCount { method: bad.method, route: Arc::clone(bad.route), n: 1 };
        if self.routes.len() < ROUTES {
            self.routes.push(new);
        } else if let Some(least) = self.routes.iter_mut().min_by_key(|route| route.n) {
            new.n += least.n;
            *least = new;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span;
    use crate::span::SpanKind;
    use crate::span_store::{Filter, Limits, Order, Query};

    const SECOND: u64 = 1_000_000_000;

    /// A bad span of trace `n` at `second`.
    fn note(evidence: &mut Evidence, store: &mut Store, n: u8, route: &str, at: u64) {
        let mut stored = span(SpanKind::Server);
        stored.trace_id = [n; 16];
        store.push(stored);
        let bad = Bad { sequence: store.last(), trace_id: [n; 16], at, method: "GET", route: &route.into() };
        evidence.note(&bad, store);
    }

    fn traces(evidence: &Evidence) -> Vec<u8> {
        let first_byte = |id: &String| u8::from_str_radix(&id[..2], 16).unwrap();
        evidence.exhibit().trace_ids.iter().map(first_byte).collect()
    }

    fn stored(store: &Store) -> usize {
        store.page(&Query { filter: Filter::default(), order: Order::Newest, limit: 1_000 }).spans.len()
    }

    #[test]
    fn the_newest_traces_are_shown_and_all_are_stored() {
        let mut store = Store::new(Limits { spans: 1, ..Limits::default() });
        let mut evidence = Evidence::default();
        assert_eq!(evidence.take_changed(), None);
        for n in 0..20 {
            note(&mut evidence, &mut store, n, "/a", u64::from(n) * SECOND);
            let shown = traces(&evidence);
            assert_eq!((shown.len(), shown[0]), (usize::from(n + 1).min(TRACES), n));
            for id in shown {
                let filter = Filter { trace_id: Some([id; 16]), ..Filter::default() };
                assert_eq!(store.page(&Query { filter, order: Order::Newest, limit: 9 }).spans.len(), 1);
            }
        }
        assert_eq!(stored(&store), KEPT);
        assert!(evidence.take_changed().is_some() && evidence.take_changed().is_none());
    }

    #[test]
    fn a_flood_changes_little_and_an_alert_holds_what_it_names() {
        let mut store = Store::new(Limits { spans: 1, ..Limits::default() });
        let mut evidence = Evidence::default();
        for n in 0..200 {
            note(&mut evidence, &mut store, n, "/a", SECOND + u64::from(n));
        }
        assert_eq!(traces(&evidence), [5, 4, 3]);
        note(&mut evidence, &mut store, 201, "/a", 3 * SECOND);
        assert_eq!(traces(&evidence), [201, 5, 4]);
        evidence.freeze(true);
        note(&mut evidence, &mut store, 202, "/a", 9 * SECOND);
        assert_eq!(traces(&evidence), [201, 5, 4]);
        evidence.freeze(false);
        note(&mut evidence, &mut store, 203, "/a", 10 * SECOND);
        assert_eq!(traces(&evidence), [203, 201, 5]);
    }

    #[test]
    fn traces_stay_whole_until_some_time_after_the_alert() {
        let mut store = Store::new(Limits { spans: 1, ..Limits::default() });
        let mut evidence = Evidence::default();
        let mut other = span(SpanKind::Client);
        other.trace_id = [7; 16];
        store.push(other.clone());
        note(&mut evidence, &mut store, 7, "/a", SECOND);
        // Its root ends later, and much else comes.
        store.push(other);
        (0..9).for_each(|_| drop(store.push(span(SpanKind::Server))));
        let held = |store: &Store| {
            let filter = Filter { trace_id: Some([7; 16]), ..Filter::default() };
            store.page(&Query { filter, order: Order::Newest, limit: 9 }).spans.len()
        };
        // The first had left the ring of one span before it was known that its trace fails.
        assert_eq!(held(&store), 2);
        let end = 10 * AFTER;
        evidence.tick(true, end, &mut store);
        evidence.tick(false, end + AFTER - 1, &mut store);
        assert_eq!(held(&store), 2);
        evidence.tick(false, end + AFTER, &mut store);
        assert_eq!((held(&store), traces(&evidence)), (1, vec![7]), "the bad span itself stays");
        // A trace that is noted later is kept again, and let go when newer ones push it out.
        for n in 10..30 {
            note(&mut evidence, &mut store, n, "/a", end + 2 * AFTER + u64::from(n) * SECOND);
        }
        assert_eq!(store.kept_usage().traces, KEPT);
        evidence.tick(false, u64::MAX, &mut store);
        assert_eq!(store.kept_usage().traces, 0);
    }

    #[test]
    fn one_trace_is_shown_once() {
        let (mut store, mut evidence) = (Store::new(Limits::default()), Evidence::default());
        for second in 0..4 {
            note(&mut evidence, &mut store, 7, "/a", second * SECOND);
        }
        assert_eq!(traces(&evidence), [7]);
    }

    #[test]
    fn the_worst_route_is_that_of_the_last_minutes() {
        let (mut store, mut evidence) = (Store::new(Limits::default()), Evidence::default());
        let mut many = |route: &str, n: u64, at: u64| {
            (0..n).for_each(|_| note(&mut evidence, &mut store, 1, route, at));
            evidence.exhibit().worst_route
        };
        assert_eq!(many("/a", 100, HALF_LIFE), "GET /a");
        assert_eq!(many("/b", 60, HALF_LIFE + 1), "GET /a");
        assert_eq!(many("/b", 60, 2 * HALF_LIFE), "GET /b");
        for n in 0..1_000 {
            assert_eq!(many(&format!("/rare/{n}"), 1, 2 * HALF_LIFE + 1), "GET /b");
        }
        assert_eq!(many("", 2_000, 9 * HALF_LIFE), "GET");
        assert!(evidence.routes.len() <= ROUTES);
    }
}
