//! The families of spans: durations of requests and calls, body sizes, span metrics, requests under way, queue wait,
//! resources.
//!
//! In: [`crate::red::Snapshot`], a position in it. Out: samples to an [`Encoder`], a piece at a time, so that no
//! exposition has to be in memory as a whole. Refuses to know formats.

use std::borrow::Cow;

use super::family::{DATABASE_DURATIONS, Distribution, Encoder, Family, Kind, LabelSink, Point};
use crate::export::{Metrics, Unseen};
use crate::red::label::{CPU_SOURCE, SAMPLED, Visit};
use crate::red::{
    self, Bodies, Buckets, FAMILIES, Histogram, Instrument, LabelValue, Sizes, Source, StatusLabel,
};
use crate::span::{Service, SpanKind};

/// What only Prometheus knows.
const TARGET: Family = Family { name: "target", unit: "", help: "Resource of a service", kind: Kind::Info };

/// As it is written here.
fn family(of: &red::Family) -> Family {
    let kind = match of.instrument {
        Instrument::Histogram => Kind::Histogram,
        Instrument::Counter => Kind::Counter,
        Instrument::Gauge => Kind::Gauge,
    };
    Family { name: of.prometheus, unit: of.prometheus_unit(), help: of.help, kind }
}

/// A position among all samples.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Walk {
    family: usize,
    /// Items of the family that are done.
    done: usize,
}

impl Walk {
    /// Writes samples until the encoder has `enough` bytes. `false` when there are no more.
    pub(super) fn write(
        &mut self,
        metrics: &Metrics,
        unseen: Unseen,
        out: &mut dyn Encoder,
        enough: usize,
    ) -> bool {
        // Behind all families comes the one of resources.
        while self.family <= FAMILIES.len() {
            let of = FAMILIES.get(self.family);
            if self.done == 0 {
                out.begin(of.map_or(TARGET, family));
            }
            while match of {
                Some(family) => write_item(metrics, unseen, (family, self.done), out),
                None => write_target(metrics, self.done, out),
            } {
                self.done += 1;
                if out.ready() >= enough {
                    return true;
                }
            }
            out.end();
            *self = Self { family: self.family + 1, done: 0 };
        }
        false
    }
}

/// Writes the samples of one item of a family, if it has any there. `false` behind the last item.
fn write_item(
    metrics: &Metrics,
    unseen: Unseen,
    (family, item): (&red::Family, usize),
    out: &mut dyn Encoder,
) -> bool {
    let red = &metrics.red;
    let is_meant = |kind: SpanKind| family.kind.is_none_or(|only| only == kind);
    match family.source {
        Source::RequestDuration | Source::RequestBody | Source::ResponseBody => {
            let Some(series) = red.requests.get(item) else { return false };
            let (labels, requests) = (&series.labels, &series.counts);
            let point = match family.source {
                Source::RequestBody => requests.request_body.as_deref().map(|bodies| sizes(bodies, unseen)),
                Source::ResponseBody => requests.response_body.as_deref().map(|bodies| sizes(bodies, unseen)),
                _ => Some(durations(&requests.duration, series.created, unseen.in_red(series.born))),
            };
            if let Some(point) = point.filter(|_| is_meant(labels.kind)) {
                out.sample(&|sink| write_labels(&labels.service, sink, &|visit| labels.each(visit)), point);
            }
        }
        Source::CallDuration => {
            let Some(series) = red.calls.get(item) else { return false };
            let labels = &series.labels;
            if is_meant(labels.kind) {
                let point = durations(&series.counts, series.created, unseen.in_red(series.born));
                out.sample(&|sink| write_labels(&labels.service, sink, &|visit| labels.each(visit)), point);
            }
        }
        Source::DatabaseDuration => {
            let Some(series) = red.databases.get(item) else { return false };
            let labels = &series.labels;
            let point = match durations(&series.counts, series.created, unseen.in_red(series.born)) {
                Point::Histogram(durations) => {
                    Point::Histogram(Distribution { scale: &DATABASE_DURATIONS, ..durations })
                }
                other => other,
            };
            out.sample(&|sink| write_labels(&labels.service, sink, &|visit| labels.each(visit)), point);
        }
        Source::SpanCount | Source::SpanDuration => {
            let Some(series) = red.spans.get(item) else { return false };
            let (labels, created, new) = (&series.labels, series.created, unseen.in_red(series.born));
            let point = match family.source {
                Source::SpanCount => {
                    let value = if new { 0 } else { series.counts.buckets.count() };
                    Some(Point::Counter { value, created })
                }
                _ => labels.timed.then(|| durations(&series.counts, created, new)),
            };
            if let Some(point) = point {
                out.sample(&|sink| write_labels(&labels.service, sink, &|visit| labels.each(visit)), point);
            }
        }
        Source::ActiveRequests => {
            let Some(gauge) = red.active.get(item) else { return false };
            let labels = &gauge.labels;
            if is_meant(labels.kind) {
                let point = Point::Gauge(gauge.n);
                out.sample(&|sink| write_labels(&labels.service, sink, &|visit| labels.each(visit)), point);
            }
        }
        Source::QueueWait => {
            let Some(totals) = red.services.get(item) else { return false };
            if totals.server_spans.value > 0 {
                let empty = Buckets::default();
                let new = unseen.in_red(totals.server_spans.born);
                let waits = if new { &empty } else { &totals.queue_wait };
                let point = Point::Histogram(Distribution::of_waits(waits, totals.created));
                out.sample(&|sink| service_labels(&totals.service, sink), point);
            }
        }
        Source::CpuTime if item >= red.cpu.len() => {
            return write_spent(metrics, unseen, (family.source, item - red.cpu.len()), out);
        }
        Source::Runqueue | Source::Blocked | Source::Elsewhere => {
            return write_spent(metrics, unseen, (family.source, item), out);
        }
        Source::CpuTime | Source::CpuSamples => {
            let Some(time) = red.cpu.get(item) else { return false };
            let (created, new) = (time.created, unseen.in_red(time.born));
            let shown = |value| if new { 0 } else { value };
            let point = match family.source {
                Source::CpuTime => Point::Nanoseconds { value: shown(time.nanoseconds), created },
                _ => Point::Counter { value: shown(time.samples), created },
            };
            let labels = |visit: &mut Visit<'_>| {
                time.each(visit);
                if family.source == Source::CpuTime {
                    visit(&CPU_SOURCE, LabelValue::Text(SAMPLED));
                }
            };
            out.sample(&|sink| write_labels(&time.service, sink, &labels), point);
        }
        Source::EdgeTotal | Source::EdgeFailed | Source::EdgeServed | Source::EdgeCalled => {
            let Some(edge) = red.edges.get(item) else { return false };
            let (created, new) = (edge.created, unseen.in_red(edge.born));
            let count = |value| Point::Counter { value: if new { 0 } else { value }, created };
            let point = match family.source {
                Source::EdgeTotal => count(edge.total),
                Source::EdgeFailed => count(edge.failed),
                Source::EdgeServed => durations(&edge.served, created, new),
                _ => durations(&edge.called, created, new),
            };
            out.sample(&|sink| write_own(sink, &|visit| edge.each(visit)), point);
        }
    }
    true
}

/// Where the time of one route went, as far as the family shows it.
fn write_spent(
    metrics: &Metrics,
    unseen: Unseen,
    (source, item): (Source, usize),
    out: &mut dyn Encoder,
) -> bool {
    let Some(spent) = metrics.red.spent.get(item) else { return false };
    for (own, part) in spent.parts(source) {
        let value = if unseen.in_red(part.born) { 0 } else { part.value };
        let point = Point::Nanoseconds { value, created: spent.created };
        out.sample(&|sink| write_labels(&spent.service, sink, &|visit| spent.each(own, visit)), point);
    }
    true
}

/// The same of the resource of one service.
fn write_target(metrics: &Metrics, item: usize, out: &mut dyn Encoder) -> bool {
    let Some(totals) = metrics.red.services.get(item) else { return false };
    if !totals.idle {
        out.sample(&|sink| target_labels(&totals.service, sink), Point::Info);
    }
    true
}

fn durations(histogram: &Histogram, created: u64, new: bool) -> Point<'_> {
    static EMPTY: std::sync::LazyLock<Histogram> = std::sync::LazyLock::new(Histogram::default);
    Point::Histogram(Distribution::of(if new { &EMPTY } else { histogram }, created))
}

fn sizes(bodies: &Bodies, unseen: Unseen) -> Point<'_> {
    static EMPTY: std::sync::LazyLock<Sizes> = std::sync::LazyLock::new(Sizes::default);
    let sizes = if unseen.in_red(bodies.born) { &EMPTY } else { &bodies.sizes };
    Point::Histogram(Distribution::of_sizes(sizes, bodies.created))
}

fn service_labels(service: &Service, sink: &mut LabelSink<'_>) {
    sink("service_namespace", &service.namespace);
    sink("service_name", &service.name);
}

/// The service's labels, and those that `each` visits.
fn write_labels(service: &Service, sink: &mut LabelSink<'_>, each: &dyn Fn(&mut Visit<'_>)) {
    service_labels(service, sink);
    write_own(sink, each);
}

/// The labels that `each` visits; what has no value is an empty text.
fn write_own(sink: &mut LabelSink<'_>, each: &dyn Fn(&mut Visit<'_>)) {
    each(&mut |label, value| {
        let text = match value {
            LabelValue::Text(text) => Cow::Borrowed(text),
            LabelValue::Port(0) | LabelValue::Status(StatusLabel::Absent) => Cow::Borrowed(""),
            LabelValue::Port(port) => Cow::Owned(port.to_string()),
            LabelValue::Status(StatusLabel::Code(code)) => Cow::Owned(code.to_string()),
            LabelValue::Status(StatusLabel::Class(digit)) => Cow::Owned(format!("{digit}xx")),
            LabelValue::True => Cow::Borrowed("true"),
        };
        sink(label.prometheus, &text);
    });
}

/// OpenTelemetry's rules for Prometheus: `job` is namespace and name, `instance` the instance's id, and every other
/// attribute of the resource is a label. Name and namespace stand beside them under the names that all other metrics
/// here have, to join by. A name that becomes a label twice keeps its first value.
fn target_labels(service: &Service, sink: &mut LabelSink<'_>) {
    const INSTANCE: &str = "service.instance.id";
    let (namespace, name) = (&service.namespace, &service.name);
    let job = if namespace.is_empty() { name.clone() } else { format!("{namespace}/{name}") };
    sink("job", &job);
    sink("instance", service.attributes.get(INSTANCE).unwrap_or(""));
    service_labels(service, sink);
    let mut seen =
        vec!["job".to_owned(), "instance".into(), "service_namespace".into(), "service_name".into()];
    for (key, value) in service.attributes.iter().filter(|(key, _)| *key != INSTANCE) {
        let label = label_name(key);
        if !seen.contains(&label) {
            sink(&label, &value.to_string());
            seen.push(label);
        }
    }
}

/// An attribute's name as a label's: what may not be in it becomes `_`.
fn label_name(attribute: &str) -> String {
    let valid = |character: char| if character.is_ascii_alphanumeric() { character } else { '_' };
    let name: String = attribute.chars().map(valid).collect();
    if name.starts_with(|first: char| first.is_ascii_digit()) { format!("key_{name}") } else { name }
}
