//! A snapshot of all series as OTLP metrics: cumulative histograms with exemplars.
//!
//! In: [`Snapshot`] and when it was taken. Out: [`Payload`]s that are whole `ExportMetricsServiceRequest`s, by service.
//! Names and units are the semantic conventions'. Refuses to know who gets them.
//!
//! A series' count starts with its birth. When exactly that was, nobody wrote down; it was after the export that did
//! not have it, so the time of that one is its start: a receiver then sees the first count as an increase from zero.

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::exemplar;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, Histogram, HistogramDataPoint, Metric, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use super::queue::Payload;
use super::resource::{self, SCHEMA_URL, SCOPE_NAME, SCOPE_VERSION};
use crate::red::{
    self, Bounds, Buckets, DURATION_BOUNDS, Labels, QUEUE_WAIT_BOUNDS, Series, ServiceTotals, Snapshot,
    StatusLabel, seconds,
};
use crate::span::{Service, SpanKind};

/// Points in a payload, about 2 KiB each with all exemplars.
const POINTS: usize = 512;

/// Names, units and descriptions, as the registry has them; the last one is our own.
const SERVER_DURATION: Family = Family {
    name: "http.server.request.duration",
    description: "Duration of HTTP server requests.",
    bounds: &DURATION_BOUNDS,
};
const CLIENT_DURATION: Family = Family {
    name: "http.client.request.duration",
    description: "Duration of HTTP client requests.",
    bounds: &DURATION_BOUNDS,
};
const QUEUE_WAIT: Family = Family {
    name: "obi.server.queue_wait",
    description: "Time between the arrival of a request and the first read of it by its server.",
    bounds: &QUEUE_WAIT_BOUNDS,
};

/// One metric; all are in seconds.
#[derive(Debug, Clone, Copy)]
struct Family {
    name: &'static str,
    description: &'static str,
    bounds: &'static Bounds,
}

/// Encodes snapshots; remembers since when each series counts.
#[derive(Debug)]
pub(super) struct Encoder {
    /// Time of the last snapshot, at first of the agent's start, ns since the Unix epoch.
    last: u64,
    /// By address of the labels, which are kept so that the address stays theirs.
    series: hashbrown::HashMap<usize, (Arc<Labels>, u64)>,
    services: hashbrown::HashMap<u32, u64>,
}

impl Encoder {
    /// `start` is when counting began, ns since the Unix epoch.
    pub(super) fn new(start: u64) -> Self {
        Self { last: start, series: hashbrown::HashMap::new(), services: hashbrown::HashMap::new() }
    }

    /// Everything in the snapshot, which was taken at `now`, ns since the Unix epoch.
    pub(super) fn encode(&mut self, snapshot: &Snapshot, now: u64) -> Vec<Payload> {
        let points = self.points(snapshot, now.max(self.last));
        self.remember(snapshot, now);
        points.into_values().flat_map(payloads).collect()
    }

    fn points(&self, snapshot: &Snapshot, now: u64) -> BTreeMap<(String, String), Points> {
        let mut services = BTreeMap::new();
        let mut of = |service: &Arc<Service>, family: Family, point: HistogramDataPoint| {
            let key = (service.namespace.clone(), service.name.clone());
            let points: &mut Points = services
                .entry(key)
                .or_insert_with(|| Points { service: Arc::clone(service), points: Vec::new() });
            points.points.push((family, point));
        };
        for series in &snapshot.series {
            let start = self.series.get(&address(series)).map_or(self.last, |(_, start)| *start);
            let family = match series.labels.kind {
                SpanKind::Server => SERVER_DURATION,
                SpanKind::Client => CLIENT_DURATION,
            };
            let point = HistogramDataPoint {
                attributes: attributes(&series.labels),
                exemplars: series.histogram.exemplars().iter().flatten().map(exemplar).collect(),
                ..point(&series.histogram.buckets, family.bounds, [start, now])
            };
            of(&series.labels.service, family, point);
        }
        for totals in snapshot.services.iter().filter(|totals| totals.server_spans.value > 0) {
            let start = self.services.get(&totals.service.id).copied().unwrap_or(self.last);
            of(&totals.service, QUEUE_WAIT, point(&totals.queue_wait, QUEUE_WAIT.bounds, [start, now]));
        }
        services
    }

    fn remember(&mut self, snapshot: &Snapshot, now: u64) {
        let known = |series: &Series| {
            let start = self.series.get(&address(series)).map_or(self.last, |(_, start)| *start);
            (address(series), (Arc::clone(&series.labels), start))
        };
        self.series = snapshot.series.iter().map(known).collect();
        let known = |totals: &ServiceTotals| {
            let id = totals.service.id;
            (id, self.services.get(&id).copied().unwrap_or(self.last))
        };
        let served = snapshot.services.iter().filter(|totals| totals.server_spans.value > 0);
        self.services = served.map(known).collect();
        self.last = now.max(self.last);
    }
}

/// A series' identity from one snapshot to the next.
fn address(series: &Series) -> usize {
    Arc::as_ptr(&series.labels).addr()
}

/// All points of one service.
struct Points {
    service: Arc<Service>,
    points: Vec<(Family, HistogramDataPoint)>,
}

/// As many requests as it takes.
fn payloads(points: Points) -> Vec<Payload> {
    let Points { service, mut points } = points;
    points.sort_by_key(|(family, _)| family.name);
    let mut payloads = Vec::new();
    let mut rest = points.into_iter().peekable();
    while rest.peek().is_some() {
        let mut metrics: Vec<Metric> = Vec::new();
        let mut n_items = 0;
        for (family, point) in rest.by_ref().take(POINTS) {
            n_items += 1;
            match metrics.last_mut() {
                Some(Metric { name, data: Some(Data::Histogram(histogram)), .. }) if name == family.name => {
                    histogram.data_points.push(point);
                }
                _ => metrics.push(metric(family, point)),
            }
        }
        payloads.push(Payload { bytes: request(&service, metrics).encode_to_vec().into(), n_items });
    }
    payloads
}

fn metric(family: Family, point: HistogramDataPoint) -> Metric {
    let temporality = AggregationTemporality::Cumulative.into();
    Metric {
        name: family.name.to_owned(),
        description: family.description.to_owned(),
        unit: "s".to_owned(),
        data: Some(Data::Histogram(Histogram {
            data_points: vec![point],
            aggregation_temporality: temporality,
        })),
        ..Metric::default()
    }
}

fn request(service: &Service, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let mut attributes = Vec::new();
    resource::attributes(service, |key, value| attributes.push(text(key, value)));
    let scope = InstrumentationScope {
        name: SCOPE_NAME.to_owned(),
        version: SCOPE_VERSION.to_owned(),
        ..InstrumentationScope::default()
    };
    ExportMetricsServiceRequest {
        resource_metrics: vec![ResourceMetrics {
            resource: Some(Resource { attributes, ..Resource::default() }),
            scope_metrics: vec![ScopeMetrics {
                scope: Some(scope),
                metrics,
                schema_url: SCHEMA_URL.to_owned(),
            }],
            schema_url: SCHEMA_URL.to_owned(),
        }],
    }
}

fn point(buckets: &Buckets, bounds: &Bounds, [start, now]: [u64; 2]) -> HistogramDataPoint {
    HistogramDataPoint {
        start_time_unix_nano: start,
        time_unix_nano: now,
        count: buckets.count(),
        sum: Some(buckets.sum_seconds()),
        bucket_counts: buckets.counts().to_vec(),
        explicit_bounds: bounds.iter().copied().map(seconds).collect(),
        ..HistogramDataPoint::default()
    }
}

fn exemplar(exemplar: &red::Exemplar) -> Exemplar {
    Exemplar {
        time_unix_nano: exemplar.time.get(),
        span_id: exemplar.span_id.to_vec(),
        trace_id: exemplar.trace_id.to_vec(),
        value: Some(exemplar::Value::AsDouble(seconds(exemplar.value))),
        ..Exemplar::default()
    }
}

/// The attributes of a series; what does not apply is absent.
fn attributes(labels: &Labels) -> Vec<KeyValue> {
    let texts = [
        ("http.request.method", labels.method),
        ("http.route", &*labels.route),
        ("server.address", &*labels.server_address),
        ("error.type", labels.error_type),
        ("url.scheme", labels.scheme),
        ("network.protocol.version", labels.version),
    ];
    let mut attributes: Vec<KeyValue> = texts
        .into_iter()
        .filter(|(_, value)| !value.is_empty())
        .map(|(key, value)| text(key, value))
        .collect();
    if labels.server_port != 0 {
        attributes.push(attribute("server.port", Value::IntValue(labels.server_port.into())));
    }
    match labels.status {
        StatusLabel::Absent => {}
        StatusLabel::Code(code) => {
            attributes.push(attribute("http.response.status_code", Value::IntValue(code.into())));
        }
        // A class is no number; `/metrics` says `5xx` too.
        StatusLabel::Class(digit) => {
            attributes.push(text("http.response.status_code", &format!("{digit}xx")));
        }
    }
    if labels.overflow {
        attributes.push(attribute("otel.metric.overflow", Value::BoolValue(true)));
    }
    attributes
}

fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
