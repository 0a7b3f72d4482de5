//! The families of spans: durations of requests and calls, body sizes, span metrics, requests under way, queue wait,
//! resources.
//!
//! In: [`crate::red::Snapshot`], a position in it. Out: samples to an [`Encoder`], a piece at a time, so that no
//! exposition has to be in memory as a whole. Refuses to know formats.

use std::borrow::Cow;

use super::family::{Distribution, Encoder, Family, Kind, LabelSink, Point};
use crate::export::{Metrics, Unseen};
use crate::red::{
    ActiveLabels, Bodies, Buckets, CallLabels, CpuTime, Histogram, Labels, Sizes, SpanLabels, StatusLabel,
};
use crate::span::{Service, SpanKind, Status};

const fn family(name: &'static str, unit: &'static str, kind: Kind, help: &'static str) -> Family {
    Family { name, unit, help, kind }
}

/// All families, in the order they are written.
static FAMILIES: [Family; 16] = [
    family(
        "http_server_request_duration_seconds",
        "seconds",
        Kind::Histogram,
        "Duration of HTTP server requests, from the arrival of the request to the last byte of the response",
    ),
    family(
        "http_client_request_duration_seconds",
        "seconds",
        Kind::Histogram,
        "Duration of HTTP client requests, from sending the request to the last byte of the response",
    ),
    family(
        "http_server_request_body_size_bytes",
        "bytes",
        Kind::Histogram,
        "Size of request bodies that HTTP servers received, from the first that was not empty",
    ),
    family(
        "http_client_request_body_size_bytes",
        "bytes",
        Kind::Histogram,
        "Size of request bodies that HTTP clients sent, from the first that was not empty",
    ),
    family(
        "http_server_response_body_size_bytes",
        "bytes",
        Kind::Histogram,
        "Size of response bodies that HTTP servers sent, from the first that was not empty",
    ),
    family(
        "http_client_response_body_size_bytes",
        "bytes",
        Kind::Histogram,
        "Size of response bodies that HTTP clients received, from the first that was not empty",
    ),
    family(
        "rpc_server_call_duration_seconds",
        "seconds",
        Kind::Histogram,
        "Duration of incoming remote procedure calls, from the arrival of the request to the end of the stream",
    ),
    family(
        "rpc_client_call_duration_seconds",
        "seconds",
        Kind::Histogram,
        "Duration of outgoing remote procedure calls, from sending the request to the end of the stream",
    ),
    family("traces_span_metrics_calls", "", Kind::Counter, "Spans"),
    family("traces_span_metrics_duration_seconds", "seconds", Kind::Histogram, "Duration of spans"),
    family(
        "http_server_active_requests",
        "",
        Kind::Gauge,
        "HTTP server requests under way whose head has been read",
    ),
    family(
        "http_client_active_requests",
        "",
        Kind::Gauge,
        "HTTP client requests under way whose head has been sent",
    ),
    family(
        "obi_server_queue_wait_seconds",
        "seconds",
        Kind::Histogram,
        "Time between the arrival of a request and the first read of it by its server",
    ),
    family(
        "obi_server_request_cpu_seconds",
        "seconds",
        Kind::Counter,
        "CPU time of server requests, estimated from samples; the standard error is at most the value divided by the \
         root of obi_server_request_cpu_samples_total",
    ),
    family(
        "obi_server_request_cpu_samples",
        "",
        Kind::Counter,
        "Samples that obi_server_request_cpu_seconds_total rests on",
    ),
    family("target", "", Kind::Info, "Resource of a service"),
];

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
        while let Some(family) = FAMILIES.get(self.family) {
            if self.done == 0 {
                out.begin(family);
            }
            while write_item(metrics, unseen, (self.family, self.done), out) {
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
    (family, item): (usize, usize),
    out: &mut dyn Encoder,
) -> bool {
    let red = &metrics.red;
    let kind = if family % 2 == 0 { SpanKind::Server } else { SpanKind::Client };
    match family {
        0..=5 => {
            let Some(series) = red.requests.get(item) else { return false };
            if series.labels.kind == kind {
                let requests = &series.counts;
                let point = match family {
                    0 | 1 => Some(durations(&requests.duration, series.created, unseen.in_red(series.born))),
                    2 | 3 => requests.request_body.as_deref().map(|bodies| sizes(bodies, unseen)),
                    _ => requests.response_body.as_deref().map(|bodies| sizes(bodies, unseen)),
                };
                if let Some(point) = point {
                    out.sample(&|sink| request_labels(&series.labels, sink), point);
                }
            }
        }
        6 | 7 => {
            let Some(series) = red.calls.get(item) else { return false };
            if series.labels.kind == kind {
                let point = durations(&series.counts, series.created, unseen.in_red(series.born));
                out.sample(&|sink| call_labels(&series.labels, sink), point);
            }
        }
        8 | 9 => {
            let Some(series) = red.spans.get(item) else { return false };
            let (created, new) = (series.created, unseen.in_red(series.born));
            let point = match family {
                8 => Some(Point::Counter {
                    value: if new { 0 } else { series.counts.buckets.count() },
                    created,
                }),
                _ if series.labels.timed => Some(durations(&series.counts, created, new)),
                _ => None,
            };
            if let Some(point) = point {
                out.sample(&|sink| span_labels(&series.labels, sink), point);
            }
        }
        10 | 11 => {
            let Some(gauge) = red.active.get(item) else { return false };
            if gauge.labels.kind == kind {
                out.sample(&|sink| active_labels(&gauge.labels, sink), Point::Gauge(gauge.n));
            }
        }
        12 => {
            let Some(totals) = red.services.get(item) else { return false };
            if totals.server_spans.value > 0 {
                let empty = Buckets::default();
                let new = unseen.in_red(totals.server_spans.born);
                let waits = if new { &empty } else { &totals.queue_wait };
                let point = Point::Histogram(Distribution::of_waits(waits, totals.created));
                out.sample(&|sink| service_labels(&totals.service, sink), point);
            }
        }
        13 | 14 => {
            let Some(time) = red.cpu.get(item) else { return false };
            let (created, new) = (time.created, unseen.in_red(time.born));
            let shown = |value| if new { 0 } else { value };
            let point = match family {
                13 => Point::Nanoseconds { value: shown(time.nanoseconds), created },
                _ => Point::Counter { value: shown(time.samples), created },
            };
            out.sample(&|sink| cpu_labels(time, sink), point);
        }
        _ => {
            let Some(totals) = red.services.get(item) else { return false };
            if !totals.idle {
                out.sample(&|sink| target_labels(&totals.service, sink), Point::Info);
            }
        }
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

fn request_labels(labels: &Labels, sink: &mut LabelSink<'_>) {
    service_labels(&labels.service, sink);
    sink("http_request_method", labels.method);
    match labels.kind {
        SpanKind::Server => sink("http_route", &labels.route),
        SpanKind::Client => server_labels(&labels.server_address, labels.server_port, sink),
    }
    let status = match labels.status {
        StatusLabel::Absent => Cow::Borrowed(""),
        StatusLabel::Code(code) => Cow::Owned(code.to_string()),
        StatusLabel::Class(digit) => Cow::Owned(format!("{digit}xx")),
    };
    sink("http_response_status_code", &status);
    sink("error_type", labels.error_type);
    sink("url_scheme", labels.scheme);
    sink("network_protocol_version", labels.version);
    overflow_label(labels.overflow, sink);
}

fn cpu_labels(time: &CpuTime, sink: &mut LabelSink<'_>) {
    service_labels(&time.service, sink);
    sink("http_route", &time.route);
}

fn call_labels(labels: &CallLabels, sink: &mut LabelSink<'_>) {
    service_labels(&labels.service, sink);
    sink("rpc_system_name", labels.system);
    sink("rpc_method", &labels.method);
    sink("rpc_response_status_code", labels.status);
    sink("error_type", labels.error_type);
    overflow_label(labels.overflow, sink);
}

fn server_labels(address: &str, port: u16, sink: &mut LabelSink<'_>) {
    sink("server_address", address);
    let port = Some(port).filter(|port| *port != 0);
    sink("server_port", &port.map_or(String::new(), |port| port.to_string()));
}

fn active_labels(labels: &ActiveLabels, sink: &mut LabelSink<'_>) {
    service_labels(&labels.service, sink);
    sink("http_request_method", labels.method);
    if labels.kind == SpanKind::Client {
        server_labels(&labels.server_address, labels.server_port, sink);
    }
    sink("url_scheme", labels.scheme);
}

fn span_labels(labels: &SpanLabels, sink: &mut LabelSink<'_>) {
    service_labels(&labels.service, sink);
    sink("span_name", &labels.name);
    let kind = match labels.kind {
        SpanKind::Server => "SPAN_KIND_SERVER",
        SpanKind::Client => "SPAN_KIND_CLIENT",
    };
    sink("span_kind", kind);
    let status = match labels.status {
        Status::Unset => "STATUS_CODE_UNSET",
        Status::Error => "STATUS_CODE_ERROR",
    };
    sink("status_code", status);
    overflow_label(labels.overflow, sink);
}

fn overflow_label(overflow: bool, sink: &mut LabelSink<'_>) {
    if overflow {
        sink("otel_metric_overflow", "true");
    }
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
