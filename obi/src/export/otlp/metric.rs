//! A snapshot of all series as OTLP metrics: cumulative histograms with exemplars, and sums.
//!
//! In: [`Snapshot`], when it was taken, which histograms are wanted. Out: [`Payload`]s that are whole
//! `ExportMetricsServiceRequest`s, by service. Names and units are the semantic conventions'. A pure encoder: refuses to
//! know who gets them and what was sent before.

mod point;

use std::collections::BTreeMap;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{Metric, ResourceMetrics, ScopeMetrics};
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;

use self::point::{Time, attribute, text};
use super::queue::Payload;
use super::resource::{self, SCHEMA_URL, SCOPE_NAME, SCOPE_VERSION};
use crate::config::export::Histograms;
use crate::red::{
    ActiveLabels, CallLabels, Labels, QUEUE_WAIT_BOUNDS, SIZE_BOUNDS, Snapshot, SpanLabels, StatusLabel,
};
use crate::span::{AttributeValue, Service, SpanKind, Status};

/// Points in a payload, about 2 KiB each with all exemplars.
const POINTS: usize = 512;

/// A metric's name, unit and description.
#[derive(Debug)]
struct Family {
    name: &'static str,
    unit: &'static str,
    description: &'static str,
}

const fn family(name: &'static str, unit: &'static str, description: &'static str) -> Family {
    Family { name, unit, description }
}

static SERVER_DURATION: Family =
    family("http.server.request.duration", "s", "Duration of HTTP server requests.");
static CLIENT_DURATION: Family =
    family("http.client.request.duration", "s", "Duration of HTTP client requests.");
static SERVER_REQUEST: Family =
    family("http.server.request.body.size", "By", "Size of HTTP server request bodies.");
static CLIENT_REQUEST: Family =
    family("http.client.request.body.size", "By", "Size of HTTP client request bodies.");
static SERVER_RESPONSE: Family =
    family("http.server.response.body.size", "By", "Size of HTTP server response bodies.");
static CLIENT_RESPONSE: Family =
    family("http.client.response.body.size", "By", "Size of HTTP client response bodies.");
static SERVER_ACTIVE: Family =
    family("http.server.active_requests", "{request}", "Number of active HTTP server requests.");
static CLIENT_ACTIVE: Family =
    family("http.client.active_requests", "{request}", "Number of active HTTP requests.");
static SERVER_CALL: Family = family(
    "rpc.server.call.duration",
    "s",
    "Measures the duration of an incoming Remote Procedure Call (RPC).",
);
static CLIENT_CALL: Family = family(
    "rpc.client.call.duration",
    "s",
    "Measures the duration of an outgoing Remote Procedure Call (RPC).",
);
// Those of OpenTelemetry's span metrics connector.
static SPAN_CALLS: Family = family("traces.span.metrics.calls", "", "Spans.");
static SPAN_DURATION: Family = family("traces.span.metrics.duration", "s", "Duration of spans.");
// Our own.
static QUEUE_WAIT: Family = family(
    "obi.server.queue_wait",
    "s",
    "Time between the arrival of a request and the first read of it by its server.",
);

static SERVER_CPU: Family =
    family("obi.server.request.cpu", "s", "CPU time of server requests, estimated from samples.");
static SERVER_CPU_SAMPLES: Family = family(
    "obi.server.request.cpu_samples",
    "{sample}",
    "Samples that obi.server.request.cpu rests on: its standard error is at most its value divided by their root.",
);

/// One point of one metric; the data holds it alone.
struct Point {
    family: &'static Family,
    data: Data,
}

/// All points of one service.
struct Points {
    service: Arc<Service>,
    points: Vec<Point>,
}

/// Points by namespace and name of their service.
struct Gathered(BTreeMap<(String, String), Points>);

/// Everything in the snapshot, which was taken at `now`; `start` is when counting began at all (both ns since the Unix
/// epoch).
pub(super) fn encode(snapshot: &Snapshot, start: u64, now: u64, histograms: Histograms) -> Vec<Payload> {
    let mut gathered = Gathered(BTreeMap::new());
    let time = |created: u64| Time::new(created, now);
    requests(&mut gathered, snapshot, now, histograms);
    for series in &snapshot.calls {
        let family = match series.labels.kind {
            SpanKind::Server => &SERVER_CALL,
            SpanKind::Client => &CLIENT_CALL,
        };
        let attributes = call_attributes(&series.labels);
        let data = point::durations(&series.counts, attributes, time(series.created), histograms);
        gathered.add(&series.labels.service, family, data);
    }
    for series in &snapshot.spans {
        let attributes = span_attributes(&series.labels);
        let (service, counts, time) = (&series.labels.service, &series.counts, time(series.created));
        gathered.add(service, &SPAN_CALLS, point::calls(counts.buckets.count(), attributes.clone(), time));
        if series.labels.timed {
            gathered.add(service, &SPAN_DURATION, point::durations(counts, attributes, time, histograms));
        }
    }
    for active in &snapshot.active {
        let family = match active.labels.kind {
            SpanKind::Server => &SERVER_ACTIVE,
            SpanKind::Client => &CLIENT_ACTIVE,
        };
        let data = point::gauge(active.n, active_attributes(&active.labels), time(start));
        gathered.add(&active.labels.service, family, data);
    }
    for totals in snapshot.services.iter().filter(|totals| totals.server_spans.value > 0) {
        let bounds = QUEUE_WAIT_BOUNDS.map(crate::red::seconds);
        let waits = point::buckets(&totals.queue_wait, &bounds, totals.queue_wait.sum_seconds());
        gathered.add(&totals.service, &QUEUE_WAIT, waits.of(Vec::new(), time(totals.created)));
    }
    for cpu in &snapshot.cpu {
        let attributes = texts([("http.route", &cpu.route)]);
        let (service, time) = (&cpu.service, time(cpu.created));
        gathered.add(service, &SERVER_CPU, point::time_spent(cpu.nanoseconds, attributes.clone(), time));
        gathered.add(service, &SERVER_CPU_SAMPLES, point::calls(cpu.samples, attributes, time));
    }
    gathered.0.into_values().flat_map(payloads).collect()
}

fn requests(gathered: &mut Gathered, snapshot: &Snapshot, now: u64, histograms: Histograms) {
    for series in &snapshot.requests {
        let (labels, counts) = (&series.labels, &series.counts);
        let [duration, request, response] = match labels.kind {
            SpanKind::Server => [&SERVER_DURATION, &SERVER_REQUEST, &SERVER_RESPONSE],
            SpanKind::Client => [&CLIENT_DURATION, &CLIENT_REQUEST, &CLIENT_RESPONSE],
        };
        let attributes = request_attributes(labels);
        for (family, bodies) in [(request, &counts.request_body), (response, &counts.response_body)] {
            let Some(bodies) = bodies else { continue };
            let bounds = SIZE_BOUNDS.map(point::rounded);
            let sizes = point::buckets(&bodies.sizes, &bounds, point::rounded_sum(bodies.sizes.sum()));
            let time = Time::new(bodies.created, now);
            gathered.add(&labels.service, family, sizes.of(attributes.clone(), time));
        }
        let time = Time::new(series.created, now);
        let data = point::durations(&counts.duration, attributes, time, histograms);
        gathered.add(&labels.service, duration, data);
    }
}

impl Gathered {
    fn add(&mut self, service: &Arc<Service>, family: &'static Family, data: Data) {
        let new = || Points { service: Arc::clone(service), points: Vec::new() };
        let key = (service.namespace.clone(), service.name.clone());
        self.0.entry(key).or_insert_with(new).points.push(Point { family, data });
    }
}

/// As many requests as it takes.
fn payloads(points: Points) -> Vec<Payload> {
    let Points { service, mut points } = points;
    points.sort_by_key(|point| point.family.name);
    let mut payloads = Vec::new();
    let mut rest = points.into_iter().peekable();
    while rest.peek().is_some() {
        let mut metrics: Vec<Metric> = Vec::new();
        let mut n_items = 0;
        for Point { family, data } in rest.by_ref().take(POINTS) {
            n_items += 1;
            let last = metrics.last_mut().filter(|metric| metric.name == family.name);
            let left = match last.and_then(|metric| metric.data.as_mut()) {
                Some(held) => point::join(held, data),
                None => Some(data),
            };
            metrics.extend(left.map(|data| metric(family, data)));
        }
        payloads.push(Payload::new(request(&service, metrics).encode_to_vec(), n_items));
    }
    payloads
}

fn metric(family: &Family, data: Data) -> Metric {
    Metric {
        name: family.name.to_owned(),
        description: family.description.to_owned(),
        unit: family.unit.to_owned(),
        data: Some(data),
        ..Metric::default()
    }
}

fn request(service: &Service, metrics: Vec<Metric>) -> ExportMetricsServiceRequest {
    let mut attributes = Vec::new();
    resource::attributes(service, |key, value| {
        attributes.push(match value {
            AttributeValue::Int(value) => attribute(key, Value::IntValue(value)),
            AttributeValue::Bool(value) => attribute(key, Value::BoolValue(value)),
            other => text(key, &other.to_string()),
        });
    });
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

/// Those of a request series; what does not apply is absent.
fn request_attributes(labels: &Labels) -> Vec<KeyValue> {
    let mut attributes = texts([
        ("http.request.method", labels.method),
        ("http.route", &labels.route),
        ("server.address", &labels.server_address),
        ("error.type", labels.error_type),
        ("url.scheme", labels.scheme),
        ("network.protocol.version", labels.version),
    ]);
    port(&mut attributes, labels.server_port);
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
    overflow(&mut attributes, labels.overflow);
    attributes
}

fn call_attributes(labels: &CallLabels) -> Vec<KeyValue> {
    let mut attributes = texts([
        ("rpc.system.name", labels.system),
        ("rpc.method", &labels.method),
        ("rpc.response.status_code", labels.status),
        ("error.type", labels.error_type),
    ]);
    overflow(&mut attributes, labels.overflow);
    attributes
}

fn span_attributes(labels: &SpanLabels) -> Vec<KeyValue> {
    let kind = match labels.kind {
        SpanKind::Server => "SPAN_KIND_SERVER",
        SpanKind::Client => "SPAN_KIND_CLIENT",
    };
    let status = match labels.status {
        Status::Unset => "STATUS_CODE_UNSET",
        Status::Error => "STATUS_CODE_ERROR",
    };
    let mut attributes = texts([("span.name", &labels.name), ("span.kind", kind), ("status.code", status)]);
    overflow(&mut attributes, labels.overflow);
    attributes
}

fn active_attributes(labels: &ActiveLabels) -> Vec<KeyValue> {
    let mut attributes = texts([
        ("http.request.method", labels.method),
        ("url.scheme", labels.scheme),
        ("server.address", &labels.server_address),
    ]);
    port(&mut attributes, labels.server_port);
    attributes
}

fn texts<const N: usize>(pairs: [(&str, &str); N]) -> Vec<KeyValue> {
    let present = pairs.into_iter().filter(|(_, value)| !value.is_empty());
    present.map(|(key, value)| text(key, value)).collect()
}

fn port(attributes: &mut Vec<KeyValue>, port: u16) {
    if port != 0 {
        attributes.push(attribute("server.port", Value::IntValue(port.into())));
    }
}

fn overflow(attributes: &mut Vec<KeyValue>, overflow: bool) {
    if overflow {
        attributes.push(attribute("otel.metric.overflow", Value::BoolValue(true)));
    }
}
