//! Spans to rate, error and duration series, aggregated once for every exporter.
//!
//! In: [`Span`]. Out: [`Snapshot`]. Refuses to know text formats, scrapers and clocks.
//!
//! # Bounds
//!
//! [`Limits::series`] bounds all series together, hard. Four fifths are ordinary ones. A span whose series
//! finds no room is counted in an *overflow* series that keeps service, kind, status class (`5xx`) and whether
//! it is an error; method and route (or server address) read `_OTHER`, the rest is empty, and
//! `otel_metric_overflow="true"` marks it as OpenTelemetry's SDKs do. So sums and error ratios by service and by
//! status class stay exact: `http_response_status_code=~"5.."` matches a class as well as a code.
//! Should the remaining fifth fill up too (hundreds of services in overflow), the span is counted under the
//! last-resort service `_OTHER`, for which room is reserved. Nothing is ever left uncounted.
//!
//! # Zero points
//!
//! `rate()` in Prometheus cannot see the first value of a series that is born above zero, so a first error would
//! be lost. Each series therefore carries its birth as a snapshot number: born after snapshot `n` was taken and
//! before `n + 1`. Whoever remembers the number of the snapshot it last gave to a scraper knows which series
//! that scraper has never seen, and first shows those as zero. Numbers instead of times leave no race between
//! the end of a span and the moment it was counted.
#![forbid(unsafe_code)]

mod histogram;
mod series;

use std::hash::BuildHasher;
use std::num::NonZeroU64;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

pub use histogram::{
    BUCKETS, Bounds, Buckets, DURATION_BOUNDS, Exemplar, Histogram, QUEUE_WAIT_BOUNDS, seconds,
};
pub use series::{Labels, OTHER, StatusLabel};

use crate::span::{Detail, Http, Service, Span, SpanKind};
use crate::stats::Counter;
use series::{CLASSES, Key};

/// Room that is always left for the last-resort service: kinds × classes × (error or not).
const LAST_RESORT_SERIES: usize = 2 * CLASSES * 2;

/// The smallest [`Limits::series`]; anything below is raised to it.
pub const MIN_SERIES: usize = 5 * LAST_RESORT_SERIES;

/// How much a [`Registry`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Histogram series of both kinds together, overflow included; at least [`MIN_SERIES`].
    pub series: usize,
    /// Services with totals of their own; those with a higher `Service::id` share the total of `_OTHER`.
    pub services: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { series: 10_000, services: 1_000 }
    }
}

/// One histogram with its labels.
#[derive(Debug, Clone)]
pub struct Series {
    /// What it counts.
    pub labels: Arc<Labels>,
    /// Number of the last snapshot taken before it was born.
    pub born: u64,
    /// What was counted, in nanoseconds, with [`DURATION_BOUNDS`].
    pub histogram: Histogram,
}

/// What is counted per service, whatever happens to its series.
#[derive(Debug, Clone)]
pub struct ServiceTotals {
    /// The service.
    pub service: Arc<Service>,
    /// Server spans.
    pub server_spans: Counter,
    /// Client spans.
    pub client_spans: Counter,
    /// Queue wait of its server spans, with [`QUEUE_WAIT_BOUNDS`]. Born with `server_spans`.
    pub queue_wait: Buckets,
}

impl ServiceTotals {
    fn new(service: Arc<Service>) -> Self {
        let none = Counter::default();
        Self { service, server_spans: none, client_spans: none, queue_wait: Buckets::default() }
    }
}

/// All series at one moment.
#[derive(Debug, Clone, Default)]
pub struct Snapshot {
    /// Counts the snapshots of a registry, from 1.
    pub number: u64,
    /// Every series, in order of birth.
    pub series: Vec<Series>,
    /// Every service that had a span.
    pub services: Vec<ServiceTotals>,
}

/// Aggregates spans. One owner, no locks, no allocation for a series that exists.
#[derive(Debug)]
pub struct Registry {
    limits: Limits,
    hasher: RandomState,
    /// Indices into `series`.
    table: HashTable<usize>,
    series: Vec<Series>,
    overflow_series: usize,
    /// Indexed by `Service::id`.
    services: Vec<Option<ServiceTotals>>,
    other: ServiceTotals,
    snapshots: u64,
}

impl Registry {
    /// An empty registry.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        let limits = Limits { series: limits.series.max(MIN_SERIES), ..limits };
        let other = Service { name: OTHER.to_owned(), id: u32::MAX, ..Service::default() };
        Self {
            limits,
            hasher: RandomState::default(),
            table: HashTable::new(),
            series: Vec::new(),
            overflow_series: 0,
            services: Vec::new(),
            other: ServiceTotals::new(Arc::new(other)),
            snapshots: 0,
        }
    }

    /// Counts one span.
    pub fn record(&mut self, span: &Span) {
        let Detail::Http(http) = &span.detail;
        let index = self.find_or_admit(span, http);
        let exemplar = Exemplar {
            trace_id: span.trace_id,
            span_id: span.span_id,
            value: span.end.saturating_sub(span.start),
            time: NonZeroU64::new(span.end).unwrap_or(NonZeroU64::MIN),
        };
        self.series[index].histogram.record(&DURATION_BOUNDS, exemplar);

        let born = self.snapshots;
        let totals = self.totals(&span.service);
        match span.kind {
            SpanKind::Server => {
                totals.server_spans.add(1, born);
                totals.queue_wait.observe(&QUEUE_WAIT_BOUNDS, span.queue_wait);
            }
            SpanKind::Client => totals.client_spans.add(1, born),
        }
    }

    /// Copies everything counted so far and begins a new generation of births.
    pub fn snapshot(&mut self) -> Snapshot {
        self.snapshots += 1;
        let other = Some(&self.other).filter(|other| other.server_spans.value + other.client_spans.value > 0);
        Snapshot {
            number: self.snapshots,
            series: self.series.clone(),
            services: self.services.iter().flatten().chain(other).cloned().collect(),
        }
    }

    fn find_or_admit(&mut self, span: &Span, http: &Http) -> usize {
        let key = Key::of(span, http);
        let hash = self.hasher.hash_one(key);
        if let Some(index) = self.find(hash, key) {
            return index;
        }
        if !key.is_too_long() && self.series.len() - self.overflow_series < self.limits.series / 5 * 4 {
            return self.insert(hash, key.to_labels(&span.service, &http.route));
        }
        self.find_or_admit_overflow(key.overflow(), &span.service)
    }

    fn find_or_admit_overflow(&mut self, key: Key<'static>, service: &Arc<Service>) -> usize {
        let hash = self.hasher.hash_one(key);
        if let Some(index) = self.find(hash, key) {
            return index;
        }
        let last_resort = Arc::clone(&self.other.service);
        if service.id != last_resort.id && self.overflow_series >= self.limits.series / 5 - LAST_RESORT_SERIES
        {
            return self.find_or_admit_overflow(key.of_service(&last_resort), &last_resort);
        }
        self.overflow_series += 1;
        self.insert(hash, key.to_overflow_labels(service))
    }

    #[inline]
    fn find(&self, hash: u64, key: Key<'_>) -> Option<usize> {
        self.table.find(hash, |index| Key::from(&*self.series[*index].labels) == key).copied()
    }

    fn insert(&mut self, hash: u64, labels: Labels) -> usize {
        let index = self.series.len();
        let born = self.snapshots;
        self.series.push(Series { labels: Arc::new(labels), born, histogram: Histogram::default() });
        let (series, hasher) = (&self.series, &self.hasher);
        self.table.insert_unique(hash, index, |index| hasher.hash_one(Key::from(&*series[*index].labels)));
        index
    }

    fn totals(&mut self, service: &Arc<Service>) -> &mut ServiceTotals {
        let id = usize::try_from(service.id).unwrap_or(usize::MAX);
        if id >= self.limits.services {
            return &mut self.other;
        }
        if self.services.len() <= id {
            self.services.resize_with(id + 1, || None);
        }
        self.services[id].get_or_insert_with(|| ServiceTotals::new(Arc::clone(service)))
    }
}

#[cfg(test)]
pub(crate) mod tests;
