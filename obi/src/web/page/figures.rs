//! Rate, errors and durations of services and routes: sums over the series of one snapshot.
//!
//! In: a [`Snapshot`]. Out: numbers to be shown. Refuses to count: what is added up here is what `/metrics` exports.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use super::lately::Lately;
use super::parameter::Order;
use crate::red::{Histogram, QUEUE_WAIT_BOUNDS, Snapshot, Spread, seconds};
use crate::span::{Service, SpanKind};

/// What some series come to.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Figures {
    /// Requests, calls.
    pub(super) requests: u64,
    /// Of them, those that failed.
    pub(super) errors: u64,
    /// How long they took.
    pub(super) spread: Spread,
    /// A slow one: trace and span of the slowest bucket that has an example.
    pub(super) slow: Option<Example>,
    /// A failed one.
    pub(super) failed: Option<Example>,
}

/// A span that shows what a number is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Example {
    pub(super) trace_id: [u8; 16],
    pub(super) span_id: [u8; 8],
    /// Nanoseconds.
    pub(super) duration: u64,
    /// Its end, nanoseconds since the Unix epoch.
    pub(super) time: u64,
}

impl Figures {
    pub(super) fn add(&mut self, histogram: &Histogram, is_error: bool) {
        let requests = histogram.buckets.count();
        self.requests += requests;
        self.errors += if is_error { requests } else { 0 };
        self.spread.add(&histogram.native);
        let examples = histogram.exemplars().iter().map(|(_, exemplar)| Example {
            trace_id: exemplar.trace_id,
            span_id: exemplar.span_id,
            duration: exemplar.value,
            time: exemplar.time.get(),
        });
        for example in examples {
            if self.slow.is_none_or(|slow| slow.duration < example.duration) {
                self.slow = Some(example);
            }
            if is_error && self.failed.is_none_or(|failed| failed.time < example.time) {
                self.failed = Some(example);
            }
        }
    }

    pub(super) fn error_ratio(&self) -> f64 {
        if self.requests == 0 { 0.0 } else { self.errors as f64 / self.requests as f64 }
    }
}

/// A service on one side.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) service: Arc<Service>,
    pub(super) kind: SpanKind,
    pub(super) figures: Figures,
    /// Requests under way.
    pub(super) active: u64,
    /// Of servers: what 95 % of requests waited at most before they were read, seconds.
    pub(super) queue_wait: Option<f64>,
    /// Of servers: CPU time of a request, seconds.
    pub(super) cpu: Option<f64>,
    /// Lately; absent where the figures are those of all series.
    pub(super) lately: Option<Lately>,
}

/// By service and side, in order of services.
pub(super) fn rows(red: &Snapshot) -> Vec<Row> {
    let mut rows = BTreeMap::<(u32, bool), Row>::new();
    let mut add = |service: &Arc<Service>, kind: SpanKind, histogram: &Histogram, is_error: bool| {
        let row = rows.entry((service.id, kind == SpanKind::Client)).or_insert_with(|| Row {
            service: Arc::clone(service),
            kind,
            figures: Figures::default(),
            active: 0,
            queue_wait: None,
            cpu: None,
            lately: None,
        });
        row.figures.add(histogram, is_error);
    };
    each(red, &mut add);
    for row in rows.values_mut() {
        let id = row.service.id;
        let active = red.active.iter().filter(|it| (it.labels.service.id, it.labels.kind) == (id, row.kind));
        row.active = active.map(|it| it.n).sum();
        if row.kind == SpanKind::Server {
            let totals = red.services.iter().find(|totals| totals.service.id == id);
            row.queue_wait = totals.and_then(|totals| totals.queue_wait.quantile(&QUEUE_WAIT_BOUNDS, 0.95));
            row.cpu = cpu(red, id, None);
        }
    }
    rows.into_values().collect()
}

/// Calls `visit` with the durations of every series, whatever its protocol. Each request is in one of them.
pub(super) fn each(red: &Snapshot, visit: &mut impl FnMut(&Arc<Service>, SpanKind, &Histogram, bool)) {
    for series in &red.requests {
        let labels = &series.labels;
        visit(&labels.service, labels.kind, &series.counts.duration, !labels.error_type.is_empty());
    }
    for series in &red.calls {
        visit(
            &series.labels.service,
            series.labels.kind,
            &series.counts,
            !series.labels.error_type.is_empty(),
        );
    }
    for series in &red.databases {
        visit(&series.labels.service, SpanKind::Client, &series.counts, !series.labels.error_type.is_empty());
    }
}

/// CPU time of a request of a service, or of one of its routes, seconds. Only of requests over HTTP/1 is it known;
/// where others are among them, there is no number.
pub(super) fn cpu(red: &Snapshot, service: u32, route: Option<&str>) -> Option<f64> {
    let is_meant = |id: u32, name: &str| id == service && route.is_none_or(|route| name == route);
    let of = red.cpu.iter().filter(|time| is_meant(time.service.id, &time.route));
    let sampled: u64 = of.map(|time| time.nanoseconds).sum();
    let of = red.spent.iter().filter(|time| is_meant(time.service.id, &time.route));
    let nanoseconds = sampled + of.map(|time| time.cpu.value).sum::<u64>();
    let served = red.requests.iter().filter(|series| {
        series.labels.kind == SpanKind::Server && is_meant(series.labels.service.id, &series.labels.route)
    });
    let mut requests = 0;
    for series in served {
        if !series.labels.version.starts_with('1') {
            return None;
        }
        requests += series.counts.duration.buckets.count();
    }
    (nanoseconds > 0 && requests > 0).then(|| seconds(nanoseconds) / requests as f64)
}

/// What is asked of a service or of others, and how it goes.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Operation {
    /// HTTP method, system of calls or of databases.
    pub(super) verb: &'static str,
    /// Route, method of a call, summary of a statement; of clients over HTTP the server's address.
    pub(super) place: String,
    /// It can be asked for as a route.
    pub(super) is_route: bool,
    pub(super) figures: Figures,
    pub(super) cpu: Option<f64>,
}

/// What a service is asked, or asks others; most requests first.
pub(super) fn operations(red: &Snapshot, service: u32, kind: SpanKind) -> Vec<Operation> {
    let mut operations = BTreeMap::<(&'static str, String, bool), Figures>::new();
    for series in &red.requests {
        let labels = &series.labels;
        if (labels.service.id, labels.kind) == (service, kind) {
            let (place, is_route) = match kind {
                SpanKind::Server => (labels.route.to_string(), true),
                SpanKind::Client if labels.server_port == 0 => (labels.server_address.to_string(), false),
                SpanKind::Client | SpanKind::Internal => {
                    (format!("{}:{}", labels.server_address, labels.server_port), false)
                }
            };
            let figures = operations.entry((labels.method, place, is_route)).or_default();
            figures.add(&series.counts.duration, !labels.error_type.is_empty());
        }
    }
    for series in &red.calls {
        let labels = &series.labels;
        if (labels.service.id, labels.kind) == (service, kind) {
            let figures = operations.entry((labels.system, labels.method.to_string(), false)).or_default();
            figures.add(&series.counts, !labels.error_type.is_empty());
        }
    }
    let databases = red.databases.iter().filter(|_| kind == SpanKind::Client);
    for series in databases.filter(|series| series.labels.service.id == service) {
        let labels = &series.labels;
        let figures = operations.entry((labels.system, labels.summary.to_string(), false)).or_default();
        figures.add(&series.counts, !labels.error_type.is_empty());
    }
    let mut list: Vec<_> = operations
        .into_iter()
        .map(|((verb, place, is_route), figures)| {
            let cpu = if is_route { cpu(red, service, Some(&place)) } else { None };
            Operation { verb, place, is_route, figures, cpu }
        })
        .collect();
    list.sort_by_key(|operation| Reverse(operation.figures.requests));
    list
}

/// Puts operations in an order; the usual one is that of [`operations`].
pub(super) fn sort(list: &mut [Operation], by: Order) {
    let descending = |value: f64| Reverse((value * 1e9) as u64);
    match by {
        Order::Worst | Order::Requests => {}
        Order::Name => list.sort_by(|a, b| (&a.place, a.verb).cmp(&(&b.place, b.verb))),
        Order::Errors => list.sort_by_key(|it| descending(it.figures.error_ratio())),
        Order::Median | Order::Slow | Order::Slowest => {
            let duration = |it: &Operation| by.ratio().and_then(|ratio| it.figures.spread.quantile(ratio));
            list.sort_by_cached_key(|it| descending(duration(it).unwrap_or(0.0)));
        }
        Order::Cpu => list.sort_by_key(|it| descending(it.cpu.unwrap_or(0.0))),
        // Known of whole services only.
        Order::Queue => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::span_with;
    use crate::red::{Limits, Registry};

    #[test]
    fn every_request_is_in_one_row_and_one_operation() {
        let mut registry = Registry::new(Limits::default());
        for (kind, status) in [(SpanKind::Server, 200), (SpanKind::Server, 500), (SpanKind::Client, 404)] {
            registry.record(&span_with(kind, |span| {
                span.http().status = Some(status);
                span.error_type = if status == 200 { "" } else { "500" };
                (span.trace_id, span.span_id) = ([status.to_le_bytes()[0]; 16], [1; 8]);
            }));
        }
        let red = registry.snapshot();
        let reported: Vec<_> =
            rows(&red).iter().map(|row| (row.kind, row.figures.requests, row.figures.errors)).collect();
        assert_eq!(reported, [(SpanKind::Server, 2, 1), (SpanKind::Client, 1, 1)]);
        let id = rows(&red)[0].service.id;
        for (kind, expected) in [(SpanKind::Server, 2), (SpanKind::Client, 1)] {
            let list = operations(&red, id, kind);
            assert_eq!(list.iter().map(|operation| operation.figures.requests).sum::<u64>(), expected);
        }
        let failed = rows(&red)[0].figures.failed.unwrap();
        assert_eq!(failed.trace_id, [500_u16.to_le_bytes()[0]; 16]);
    }
}
