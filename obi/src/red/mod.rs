//! Spans to rate, error and duration series, aggregated once for every exporter.
//!
//! In: [`Span`]. Out: [`Snapshot`]. Refuses to know formats, scrapers and clocks: all times come with spans.
//!
//! # Bounds
//!
//! [`Limits::series`] bounds all series together, hard: request durations with their body sizes are one series,
//! durations of calls and span metrics are others. Four fifths are ordinary ones, shared fairly between services (see
//! [`budget`]). A span whose series finds no room is counted in an *overflow* series that keeps service, kind, status
//! class (`5xx`) and whether it is an error; method and route (or server address, or span name) read `_OTHER`, the
//! rest is empty, and `otel_metric_overflow="true"` marks it as OpenTelemetry's SDKs do. A call keeps its status
//! itself, of which there are few. So sums and error ratios by service and by status class stay exact:
//! `http_response_status_code=~"5.."` matches a class as well as a code. Should the remaining fifth fill up too
//! (hundreds of services in overflow), the span is counted under the last-resort service `_OTHER`, for which room is
//! reserved. Nothing is ever left uncounted.
//!
//! # One request, one metric
//!
//! A remote procedure call is counted under `rpc.*.call.duration` and not under `http.*.request.duration` again, as the
//! conventions have it for instrumentation of a framework above HTTP: sums over both families count every request once.
//! A WebSocket is counted as a span, without a duration; the request that was upgraded is one like any other.
//!
//! # Expiry
//!
//! A series without a span for [`Limits::idle`] is dropped, by a clock that never steps ([`Registry::advance`]); while
//! the budget is tight, series of services that hold more than an equal part are dropped after [`TIGHT_IDLE`]. Its
//! spans had been counted and scraped long before, so no rate misses them. If it comes back it begins at zero with a
//! new start time, and as a newborn (below) it is first shown as zero: a value that fell is a counter reset to
//! Prometheus, which `rate()` and `increase()` handle exactly. Totals per service stay, since what was seen and what
//! was lost must add up.
//!
//! # Zero points
//!
//! `rate()` in Prometheus cannot see the first value of a series that is born above zero, so a first error would
//! be lost. Each series therefore carries its birth as a snapshot number: born after snapshot `n` was taken and
//! before `n + 1`. With the number of the snapshot that a scraper was last given, an exporter knows which series
//! that scraper has never seen, and first shows those as zero. Numbers instead of times leave no race between
//! the end of a span and the moment it was counted.
#![forbid(unsafe_code)]

mod active;
pub mod budget;
mod call_series;
mod cpu;
mod database_series;
pub mod family;
pub mod graph;
mod histogram;
pub mod history;
pub mod label;
mod native;
mod request;
mod series;
mod span_series;
mod spent;
mod spread;
mod table;
mod took;
mod totals;

use std::sync::Arc;
use std::time::Duration;

pub use active::{ActiveLabels, ActiveRequests};
pub use budget::{Share, Usage};
pub use call_series::CallLabels;
pub use cpu::{CpuSamples, CpuTime, RouteKey, RouteRef};
pub use database_series::DatabaseLabels;
pub use family::{FAMILIES, Family, Instrument, Source};
pub use graph::Edge;
use graph::{Graph, When};
pub use histogram::{
    BUCKETS, Bounds, Buckets, DATABASE_BOUNDS, DURATION_BOUNDS, Exemplar, Histogram, QUEUE_WAIT_BOUNDS,
    SIZE_BOUNDS, SIZE_BUCKETS, Sizes, seconds,
};
use history::History;
pub use history::Past;
pub use label::{Label, LabelValue};
pub use native::{MAX_BUCKETS, Native, START_SCHEMA, ZERO_THRESHOLD};
pub use request::{Bodies, Requests};
pub use series::{Labels, OTHER, StatusLabel};
pub use span_series::SpanLabels;
pub use spent::SpentTime;
pub use spread::Spread;
pub use table::Series;
pub use took::Took;
pub use totals::{EVIDENCE, ServiceTotals};

use crate::span::{Detail, Service, Span, SpanKind};
use active::Active;
use budget::Budget;
use cpu::CpuTimes;
use series::{Dimensions, LAST_RESORT_SERIES};
use spent::SpentTimes;
use table::Table;

/// The smallest [`Limits::series`]; anything below is raised to it.
pub const MIN_SERIES: usize = 5 * LAST_RESORT_SERIES;

/// Idle series expire after this while there is little room left. Longer than Prometheus looks back for a value.
pub const TIGHT_IDLE: Duration = Duration::from_secs(600);

/// How much a [`Registry`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Series of all kinds together, overflow included; at least [`MIN_SERIES`].
    pub series: usize,
    /// Services with totals and a share of their own; those with a higher `Service::id` share those of `_OTHER`.
    pub services: usize,
    /// A series without a span for this long expires.
    pub idle: Duration,
    /// Bytes of the last two hours by service ([`history`]); 0 for none.
    pub history: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { series: 10_000, services: 1_000, idle: Duration::from_secs(3_600), history: 16 << 20 }
    }
}

/// All series at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Counts the snapshots of a registry, from 1.
    pub number: u64,
    /// Requests by the labels of `http.{server,client}.request.duration`.
    pub requests: Vec<Series<Labels, Requests>>,
    /// Durations of remote procedure calls by the labels of `rpc.{server,client}.call.duration`.
    pub calls: Vec<Series<CallLabels, Histogram>>,
    /// Durations of calls of databases by the labels of `db.client.operation.duration`, with [`DATABASE_BOUNDS`].
    pub databases: Vec<Series<DatabaseLabels, Histogram>>,
    /// Spans by the labels of `traces.span.metrics`: their number and durations.
    pub spans: Vec<Series<SpanLabels, Histogram>>,
    /// Every service that had a span.
    pub services: Vec<ServiceTotals>,
    /// Requests under way.
    pub active: Vec<ActiveRequests>,
    /// CPU time of server requests, as far as CPUs are sampled and it is not booked.
    pub cpu: Vec<CpuTime>,
    /// Where the time of server requests went, as far as it is booked.
    pub spent: Vec<SpentTime>,
    /// Edges of the service graph.
    pub edges: Vec<Arc<Edge>>,
    /// Server spans in no edge: a header names their caller, which is elsewhere.
    pub unpaired: u64,
    /// Who spends the budget, and what found no room.
    pub usage: Usage,
}

impl Snapshot {
    /// Series of all kinds: what [`Limits::series`] bounds.
    #[must_use]
    pub fn series(&self) -> usize {
        self.requests.len() + self.calls.len() + self.databases.len() + self.spans.len()
    }

    /// The same series with nothing counted in them: it takes little memory, and no span has to copy what it counts in.
    #[must_use]
    pub fn outline(&self) -> Self {
        let histogram = Arc::new(Histogram::default());
        let mut outlined = Requests::outlines();
        let requests = self.requests.iter().map(|series| series.with(outlined(&series.counts)));
        Self {
            requests: requests.collect(),
            calls: self.calls.iter().map(|series| series.with(Arc::clone(&histogram))).collect(),
            databases: self.databases.iter().map(|series| series.with(Arc::clone(&histogram))).collect(),
            spans: self.spans.iter().map(|series| series.with(Arc::clone(&histogram))).collect(),
            ..self.clone()
        }
    }
}

/// Aggregates spans. One owner, no locks, no allocation for a series that exists.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    budget: Budget,
    requests: Table<Labels, Requests>,
    calls: Table<CallLabels, Histogram>,
    databases: Table<DatabaseLabels, Histogram>,
    spans: Table<SpanLabels, Histogram>,
    active: Active,
    cpu: CpuTimes,
    spent: SpentTimes,
    graph: Graph,
    history: History,
    /// Indexed by `Service::id`.
    services: Vec<Option<ServiceTotals>>,
    other: ServiceTotals,
    snapshots: u64,
    /// The time of [`Registry::advance`].
    now: u64,
    /// Nothing is looked at before this time.
    next_expiry: u64,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { series: limits.series.max(MIN_SERIES), ..limits };
        let budget = Budget::new(limits.series, limits.services);
        let other = ServiceTotals::new(Arc::clone(budget.last_resort()), 0);
        Self {
            limits,
            budget,
            requests: Table::new(),
            calls: Table::new(),
            databases: Table::new(),
            spans: Table::new(),
            active: Active::default(),
            cpu: CpuTimes::default(),
            spent: SpentTimes::default(),
            graph: Graph::default(),
            history: History::new(limits.history),
            services: Vec::new(),
            other,
            snapshots: 0,
            now: 0,
            next_expiry: 0,
        }
    }

    /// Counts one span. What an SDK has reported is not counted here: what was captured is.
    pub fn record(&mut self, span: &Span) {
        if matches!(span.detail, Detail::Sdk(_)) {
            return;
        }
        self.record_request(span);
        self.record_span(span);
        let born = self.snapshots;
        self.spent.add(span, self.budget.last_resort(), (self.now, born));

        let totals = self.totals(span);
        if span.is_truncated {
            totals.truncated_heads[usize::from(span.kind == SpanKind::Client)].add(1, born);
        }
        if let Some(nth) = span.origin.evidence().and_then(|name| EVIDENCE.iter().position(|it| *it == name))
        {
            totals.parents[nth].add(1, born);
        }
        // A WebSocket waited as its upgrade, which has been counted.
        if span.kind == SpanKind::Server && !matches!(span.detail, Detail::WebSocket(_)) {
            totals.queue_wait.observe(&QUEUE_WAIT_BOUNDS, span.queue_wait);
        }
        totals.count(span, born);
    }

    /// Counts a span that was sent to us, by its own name and status, and the request that it reports, if it is one's
    /// end. How long that waited, and what else only the kernel side sees, is not known.
    pub fn record_foreign(&mut self, sent: &Span, request: Option<&Span>) {
        if let Some(request) = request {
            self.record_request(request);
        }
        self.record_span(sent);
        let born = self.snapshots;
        let span = request.unwrap_or(sent);
        self.totals(span).count(span, born);
    }

    fn record_request(&mut self, span: &Span) {
        let (born, duration) = (self.snapshots, span.end.saturating_sub(span.start));
        let exemplar = span.sampled.then(|| Exemplar::of(span));
        match &span.detail {
            Detail::Http(http) => {
                let place = place_of(&mut self.requests, &mut self.budget, span, born);
                let requests = self.requests.touch(place, self.now);
                requests.duration.record(duration, exemplar);
                requests.observe_bodies(span, http, born);
            }
            Detail::Rpc(_) => {
                let place = place_of(&mut self.calls, &mut self.budget, span, born);
                self.calls.touch(place, self.now).record(duration, exemplar);
            }
            // The conventions have a metric of clients only.
            Detail::Database(_) if span.kind == SpanKind::Client => {
                let place = place_of(&mut self.databases, &mut self.budget, span, born);
                self.databases.touch(place, self.now).record_within(&DATABASE_BOUNDS, duration, exemplar);
            }
            Detail::WebSocket(_) | Detail::Database(_) | Detail::Sdk(_) => {}
        }
    }

    fn record_span(&mut self, span: &Span) {
        let (born, duration) = (self.snapshots, span.end.saturating_sub(span.start));
        let exemplar = span.sampled.then(|| Exemplar::of(span));
        let place = place_of(&mut self.spans, &mut self.budget, span, born);
        self.spans.touch(place, self.now).record(duration, exemplar);
    }

    /// Counts a server span as the end of an edge: of the call of that number and service, if it is known.
    pub fn served(&mut self, span: &Span, caller: Option<(u64, &Arc<Service>)>) {
        let when = When { now: self.now, born: self.snapshots };
        self.graph.served(span, caller, when);
    }

    /// The same of a client span: of an edge to the service that answers it on this machine, if one does.
    pub fn called(&mut self, span: &Span, server: Option<&Arc<Service>>) {
        let when = When { now: self.now, born: self.snapshots };
        self.graph.called(span, server, when);
    }

    /// Says which requests are under way, one by one. To be called before a snapshot is taken.
    pub fn set_active(&mut self, requests: impl IntoIterator<Item = ActiveLabels>) {
        self.active.clear();
        for labels in requests {
            self.active.add(labels, self.budget.last_resort(), self.now);
        }
    }

    /// Counts what was sampled in server requests.
    pub fn add_cpu(&mut self, samples: &CpuSamples) {
        self.cpu.add(samples, self.budget.last_resort(), (self.now, self.snapshots));
    }

    /// Says that it is `now`, nanoseconds of a clock that never steps, and drops what has been idle for too long. To be
    /// called about once a second; cheap when there is nothing to do.
    pub fn advance(&mut self, now: u64) {
        if self.now == 0 {
            // What was counted before the first call was counted just now.
            self.begin(now);
        }
        self.now = now;
        self.graph.advance(When { now, born: self.snapshots });
        if self.history.is_due(now) {
            self.history.look(self.sums(), now);
        }
        if now < self.next_expiry {
            return;
        }
        if self.history.is_on() {
            self.history.look(self.sums(), now);
        }
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let (idle, tight) = (nanoseconds(self.limits.idle), nanoseconds(self.limits.idle.min(TIGHT_IDLE)));
        self.next_expiry = now.saturating_add(tight / 10);
        let (before, tight_before) = (now.saturating_sub(idle), now.saturating_sub(tight));
        expire_series(&mut self.requests, &mut self.budget, (before, tight_before));
        expire_series(&mut self.calls, &mut self.budget, (before, tight_before));
        expire_series(&mut self.databases, &mut self.budget, (before, tight_before));
        expire_series(&mut self.spans, &mut self.budget, (before, tight_before));
        self.active.expire(before);
        self.cpu.expire(before);
        self.spent.expire(before);
        self.graph.expire(before);
        for totals in self.services.iter_mut().flatten() {
            totals.idle = totals.touched < before;
            totals.took.take_if(|_| totals.idle);
        }
        if self.history.is_on() {
            self.history.rebase(self.sums());
        }
    }

    fn begin(&mut self, now: u64) {
        self.requests.touch_all(now);
        self.calls.touch_all(now);
        self.databases.touch_all(now);
        self.spans.touch_all(now);
        self.cpu.touch_all(now);
        self.spent.touch_all(now);
        self.graph.touch_all(now);
        self.services.iter_mut().flatten().for_each(|totals| totals.touched = now);
    }

    /// Copies everything counted so far and begins a new generation of births.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let other = Some(&self.other).filter(|other| other.server_spans.value + other.client_spans.value > 0);
        Snapshot {
            number: self.snapshots,
            requests: self.requests.series().to_vec(),
            calls: self.calls.series().to_vec(),
            databases: self.databases.series().to_vec(),
            spans: self.spans.series().to_vec(),
            services: self.services.iter().flatten().chain(other).cloned().collect(),
            active: self.active.to_vec(),
            cpu: self.cpu.to_vec(),
            spent: self.spent.to_vec(),
            edges: self.graph.to_vec(),
            unpaired: self.graph.unpaired(),
            usage: self.budget.usage(),
        }
    }

    fn totals(&mut self, span: &Span) -> &mut ServiceTotals {
        let id = usize::try_from(span.service.id).unwrap_or(usize::MAX);
        let totals = if id >= self.limits.services {
            &mut self.other
        } else {
            if self.services.len() <= id {
                self.services.resize_with(id + 1, || None);
            }
            let totals = self.services[id]
                .get_or_insert_with(|| ServiceTotals::new(Arc::clone(&span.service), span.end));
            if !Arc::ptr_eq(&totals.service, &span.service) {
                totals.service = Arc::clone(&span.service);
            }
            totals
        };
        (totals.touched, totals.idle) = (self.now, false);
        totals
    }
}

/// The series that counts a span: its own, a new one if the budget allows, or one of overflow.
fn place_of<L: Dimensions + 'static, C: Clone + Default>(
    table: &mut Table<L, C>,
    budget: &mut Budget,
    span: &Span,
    born: u64,
) -> usize {
    let (hash, found) = table.find(L::key_of(span));
    if let Some(place) = found {
        return place;
    }
    if L::fits(span) && budget.take(&span.service) {
        return table.insert(hash, L::labels_of(span), born, span.end);
    }
    budget.share(&span.service).fold(born, || L::describe(span));
    let (hash, found) = table.find(L::overflow_key_of(span, &span.service));
    if let Some(place) = found {
        return place;
    }
    if budget.take_overflow(&span.service) {
        return table.insert(hash, L::overflow_labels_of(span, &span.service), born, span.end);
    }
    let last_resort = Arc::clone(budget.last_resort());
    let (hash, found) = table.find(L::overflow_key_of(span, &last_resort));
    found.unwrap_or_else(|| {
        budget.take_overflow(&last_resort);
        table.insert(hash, L::overflow_labels_of(span, &last_resort), born, span.end)
    })
}

/// Drops series untouched since the first time, or since the second where room is wanted by others.
fn expire_series<L: Dimensions, C: Clone + Default>(
    table: &mut Table<L, C>,
    budget: &mut Budget,
    (before, tight_before): (u64, u64),
) {
    table.retain(|series| {
        let (service, overflow) = (series.labels.service(), series.labels.is_overflow());
        let keep = series.touched >= before
            && (series.touched >= tight_before || overflow || !budget.is_tight_for(service));
        if !keep {
            budget.give_back(service, overflow);
        }
        keep
    });
}

#[cfg(test)]
mod overflow_tests;
#[cfg(test)]
mod span_metrics_tests;
#[cfg(test)]
pub(crate) mod tests;
