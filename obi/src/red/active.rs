//! Requests under way, by service, side and method.
//!
//! In: what is under way now. Out: a gauge per combination, which stays at zero after its last request until it is
//! idle for long. Refuses to know how requests are found.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::series::{MAX_LABEL_BYTES, OTHER};
use crate::span::{Service, SpanKind};

/// Combinations that are distinguished; further ones are counted under `_OTHER`.
const MAX_GAUGES: usize = 2_000;

/// What one gauge counts.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct ActiveLabels {
    /// Who serves or calls.
    pub service: Arc<Service>,
    /// Server or client.
    pub kind: SpanKind,
    /// `http.request.method`.
    pub method: &'static str,
    /// `url.scheme`.
    pub scheme: &'static str,
    /// `server.address`, clients only.
    pub server_address: String,
    /// `server.port`, clients only, 0 when unknown.
    pub server_port: u16,
}

/// Requests under way of one combination.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActiveRequests {
    /// Which.
    pub labels: ActiveLabels,
    /// How many now.
    pub n: u64,
}

/// How many now, and when there was one last, by the registry's clock.
#[derive(Debug, Default)]
struct Gauge {
    n: u64,
    touched: u64,
}

/// All combinations of late.
#[derive(Debug, Default)]
pub(super) struct Active(HashMap<ActiveLabels, Gauge, RandomState>);

impl Active {
    /// Begins a new count: nothing is under way until [`Self::add`] says so.
    pub(super) fn clear(&mut self) {
        self.0.values_mut().for_each(|gauge| gauge.n = 0);
    }

    /// One request is under way at `now`; `other` stands for services beyond the bound.
    pub(super) fn add(&mut self, labels: ActiveLabels, other: &Arc<Service>, now: u64) {
        let full = self.0.len() >= MAX_GAUGES && !self.0.contains_key(&labels);
        let fits = labels.server_address.len() <= MAX_LABEL_BYTES;
        let labels = if full || !fits { folded(labels, other) } else { labels };
        let gauge = self.0.entry(labels).or_default();
        gauge.n += 1;
        gauge.touched = now;
    }

    /// Forgets combinations that had nothing under way since `before`.
    pub(super) fn expire(&mut self, before: u64) {
        self.0.retain(|_, gauge| gauge.n > 0 || gauge.touched >= before);
    }

    /// All of them, in order of service.
    pub(super) fn to_vec(&self) -> Vec<ActiveRequests> {
        let mut gauges: Vec<_> = self
            .0
            .iter()
            .map(|(labels, gauge)| ActiveRequests { labels: labels.clone(), n: gauge.n })
            .collect();
        gauges.sort_unstable_by(|ActiveRequests { labels: a, .. }, ActiveRequests { labels: b, .. }| {
            let order =
                |labels: &ActiveLabels| (labels.service.id, labels.kind == SpanKind::Client, labels.method);
            (order(a), &a.server_address, a.server_port).cmp(&(order(b), &b.server_address, b.server_port))
        });
        gauges
    }
}

fn folded(labels: ActiveLabels, other: &Arc<Service>) -> ActiveLabels {
    let address = match labels.kind {
        SpanKind::Server => "",
        SpanKind::Client | SpanKind::Internal => OTHER,
    };
    ActiveLabels {
        service: Arc::clone(other),
        method: OTHER,
        server_address: address.to_owned(),
        server_port: 0,
        ..labels
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::service;
    use super::*;

    fn labels(id: u32, method: &'static str) -> ActiveLabels {
        let (kind, scheme) = (SpanKind::Server, "http");
        ActiveLabels {
            service: service(id),
            kind,
            method,
            scheme,
            server_address: String::new(),
            server_port: 0,
        }
    }

    #[test]
    fn a_gauge_stays_at_zero_until_it_is_idle() {
        let (mut active, other) = (Active::default(), service(u32::MAX));
        let mut check = |requests: &[&'static str], now: u64, expected: &[(&str, u64)]| {
            active.clear();
            requests.iter().for_each(|method| active.add(labels(1, method), &other, now));
            active.expire(now.saturating_sub(10));
            let gauges = active.to_vec();
            let gauges: Vec<_> = gauges.iter().map(|gauge| (gauge.labels.method, gauge.n)).collect();
            assert_eq!(gauges, expected, "{now}");
        };
        check(&["GET", "GET", "POST"], 1, &[("GET", 2), ("POST", 1)]);
        check(&["GET"], 5, &[("GET", 1), ("POST", 0)]);
        check(&[], 11, &[("GET", 0), ("POST", 0)]);
        check(&[], 12, &[("GET", 0)]);
        check(&[], 16, &[]);
    }

    #[test]
    fn combinations_are_bounded_and_none_is_uncounted() {
        let (mut active, other) = (Active::default(), service(u32::MAX));
        (0..5_000).for_each(|id| active.add(labels(id, "GET"), &other, 1));
        let gauges = active.to_vec();
        assert_eq!((gauges.len(), gauges.iter().map(|gauge| gauge.n).sum::<u64>()), (MAX_GAUGES + 1, 5_000));
    }
}
