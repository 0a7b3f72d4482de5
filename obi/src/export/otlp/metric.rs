//! A snapshot of all series as OTLP metrics: cumulative histograms with exemplars, and sums.
//!
//! In: [`Snapshot`], when it was taken, which histograms are wanted. Out: [`Payload`]s that are whole
//! `ExportMetricsServiceRequest`s, by service. Names and units are the semantic conventions'. A pure encoder: refuses
//! to know who gets them and what was sent before.

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
use crate::red::label::{CPU_SOURCE, SAMPLED, Visit};
use crate::red::{
    DATABASE_BOUNDS, DURATION_BOUNDS, FAMILIES, Family, LabelValue, QUEUE_WAIT_BOUNDS, SIZE_BOUNDS, Snapshot,
    Source, StatusLabel,
};
use crate::span::{AttributeValue, Service, SpanKind};

/// Points in a payload, about 2 KiB each with all exemplars.
const POINTS: usize = 512;

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
    let when = When { start, now, histograms };
    for family in FAMILIES {
        gather(snapshot, family, when, &mut gathered);
    }
    gathered.0.into_values().flat_map(payloads).collect()
}

/// The times of an export, and which histograms it has.
#[derive(Debug, Clone, Copy)]
struct When {
    start: u64,
    now: u64,
    histograms: Histograms,
}

fn gather(snapshot: &Snapshot, family: &'static Family, when: When, gathered: &mut Gathered) {
    let When { start, now, histograms } = when;
    let time = |created: u64| Time::new(created, now);
    let is_meant = |kind: SpanKind| family.kind.is_none_or(|only| only == kind);
    match family.source {
        Source::RequestDuration => {
            for series in snapshot.requests.iter().filter(|series| is_meant(series.labels.kind)) {
                let (labels, counts) = (&series.labels, &series.counts);
                let own = attributes(&|visit| labels.each(visit));
                let data = point::durations(
                    (&counts.duration, &DURATION_BOUNDS),
                    own,
                    time(series.created),
                    histograms,
                );
                gathered.add(&labels.service, family, data);
            }
        }
        Source::RequestBody | Source::ResponseBody => {
            for series in snapshot.requests.iter().filter(|series| is_meant(series.labels.kind)) {
                let (labels, counts) = (&series.labels, &series.counts);
                let bodies = match family.source {
                    Source::RequestBody => &counts.request_body,
                    _ => &counts.response_body,
                };
                let Some(bodies) = bodies else { continue };
                let bounds = SIZE_BOUNDS.map(point::rounded);
                let sizes = point::buckets(&bodies.sizes, &bounds, point::rounded_sum(bodies.sizes.sum()));
                let own = attributes(&|visit| labels.each(visit));
                gathered.add(&labels.service, family, sizes.of(own, time(bodies.created)));
            }
        }
        Source::CallDuration => {
            for series in snapshot.calls.iter().filter(|series| is_meant(series.labels.kind)) {
                let own = attributes(&|visit| series.labels.each(visit));
                let counts = (&*series.counts, &DURATION_BOUNDS);
                let data = point::durations(counts, own, time(series.created), histograms);
                gathered.add(&series.labels.service, family, data);
            }
        }
        Source::DatabaseDuration => {
            for series in &snapshot.databases {
                let own = attributes(&|visit| series.labels.each(visit));
                let counts = (&*series.counts, &DATABASE_BOUNDS);
                let data = point::durations(counts, own, time(series.created), histograms);
                gathered.add(&series.labels.service, family, data);
            }
        }
        Source::SpanCount | Source::SpanDuration => {
            let is_count = family.source == Source::SpanCount;
            for series in snapshot.spans.iter().filter(|series| is_count || series.labels.timed) {
                let (counts, time) = (&series.counts, time(series.created));
                let own = attributes(&|visit| series.labels.each(visit));
                let data = match family.source {
                    Source::SpanCount => point::calls(counts.buckets.count(), own, time),
                    _ => point::durations((counts, &DURATION_BOUNDS), own, time, histograms),
                };
                gathered.add(&series.labels.service, family, data);
            }
        }
        Source::ActiveRequests => {
            for active in snapshot.active.iter().filter(|active| is_meant(active.labels.kind)) {
                let own = attributes(&|visit| active.labels.each(visit));
                gathered.add(&active.labels.service, family, point::gauge(active.n, own, time(start)));
            }
        }
        Source::QueueWait => {
            for totals in snapshot.services.iter().filter(|totals| totals.server_spans.value > 0) {
                let bounds = QUEUE_WAIT_BOUNDS.map(crate::red::seconds);
                let waits = point::buckets(&totals.queue_wait, &bounds, totals.queue_wait.sum_seconds());
                gathered.add(&totals.service, family, waits.of(Vec::new(), time(totals.created)));
            }
        }
        Source::CpuTime | Source::CpuSamples => {
            for cpu in &snapshot.cpu {
                let (mut own, time) = (attributes(&|visit| cpu.each(visit)), time(cpu.created));
                let data = match family.source {
                    Source::CpuTime => {
                        own.push(text(CPU_SOURCE.attribute, SAMPLED));
                        point::time_spent(cpu.nanoseconds, own, time)
                    }
                    _ => point::calls(cpu.samples, own, time),
                };
                gathered.add(&cpu.service, family, data);
            }
            gather_spent(snapshot, family, when, gathered);
        }
        Source::Runqueue | Source::Blocked | Source::Elsewhere => {
            gather_spent(snapshot, family, when, gathered);
        }
        Source::EdgeTotal | Source::EdgeFailed | Source::EdgeServed | Source::EdgeCalled => {
            for edge in &snapshot.edges {
                let (own, time) = (attributes(&|visit| edge.each(visit)), time(edge.created));
                let durations =
                    |histogram, own| point::durations((histogram, &DURATION_BOUNDS), own, time, histograms);
                let data = match family.source {
                    Source::EdgeTotal => point::calls(edge.total, own, time),
                    Source::EdgeFailed => point::calls(edge.failed, own, time),
                    Source::EdgeServed => durations(&edge.served, own),
                    _ => durations(&edge.called, own),
                };
                gathered.add(&edge.service, family, data);
            }
        }
    }
}

fn gather_spent(snapshot: &Snapshot, family: &'static Family, when: When, gathered: &mut Gathered) {
    for spent in &snapshot.spent {
        for (own, part) in spent.parts(family.source) {
            let own = attributes(&|visit| spent.each(own, visit));
            let data = point::time_spent(part.value, own, Time::new(spent.created, when.now));
            gathered.add(&spent.service, family, data);
        }
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
        description: format!("{}.", family.help),
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

/// What `each` visits; what has no value is absent.
fn attributes(each: &dyn Fn(&mut Visit<'_>)) -> Vec<KeyValue> {
    let mut attributes = Vec::new();
    each(&mut |label, value| {
        let key = label.attribute;
        attributes.extend(match value {
            LabelValue::Text("") | LabelValue::Port(0) | LabelValue::Status(StatusLabel::Absent) => None,
            LabelValue::Text(value) => Some(text(key, value)),
            LabelValue::Port(port) => Some(attribute(key, Value::IntValue(port.into()))),
            LabelValue::Status(StatusLabel::Code(code)) => Some(attribute(key, Value::IntValue(code.into()))),
            // A class is no number; `/metrics` says `5xx` too.
            LabelValue::Status(StatusLabel::Class(digit)) => Some(text(key, &format!("{digit}xx"))),
            LabelValue::True => Some(attribute(key, Value::BoolValue(true))),
        });
    });
    attributes
}
