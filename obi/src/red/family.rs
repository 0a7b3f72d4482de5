//! The metrics that spans are counted in: each named, described and assigned to its spans once.
//!
//! In: nothing. Out: [`FAMILIES`], from which the exporters and the reference of metrics are made. Refuses to know
//! formats.

use super::label::{
    CONNECTION_TYPE, CPU_SOURCE, DB_COLLECTION, DB_NAMESPACE, DB_OPERATION, DB_STATUS, DB_SUMMARY, DB_SYSTEM,
    EDGE_CLIENT, EDGE_CLIENT_NAMESPACE, EDGE_SERVER, EDGE_SERVER_NAMESPACE, ERROR_TYPE, Label, METHOD,
    OVERFLOW, ROUTE, RPC_METHOD, RPC_STATUS, RPC_SYSTEM, SCHEME, SERVER_ADDRESS, SERVER_PORT, SPAN_KIND,
    SPAN_NAME, SPAN_STATUS, STATUS, VERSION, WAIT_REASON, prometheus_name,
};
use crate::span::SpanKind;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Instrument {
    /// How often a value lay where.
    Histogram,
    /// A sum that only grows.
    Counter,
    /// A number that comes and goes.
    Gauge,
}

/// What of a snapshot a family shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// How long requests took.
    RequestDuration,
    /// Bytes of request bodies.
    RequestBody,
    /// Bytes of response bodies.
    ResponseBody,
    /// How long calls took.
    CallDuration,
    /// How long calls of databases took.
    DatabaseDuration,
    /// How many spans there were.
    SpanCount,
    /// How long spans took.
    SpanDuration,
    /// Requests under way.
    ActiveRequests,
    /// How long requests waited for their server.
    QueueWait,
    /// CPU time of requests.
    CpuTime,
    /// Samples that it rests on.
    CpuSamples,
    /// Time that requests waited for a CPU.
    Runqueue,
    /// Time that they waited for something else.
    Blocked,
    /// Time of which nothing is known.
    Elsewhere,
    /// Calls between two nodes.
    EdgeTotal,
    /// Those of them that failed.
    EdgeFailed,
    /// How long they took by their servers.
    EdgeServed,
    /// How long they took by their clients.
    EdgeCalled,
}

/// One metric.
#[derive(Debug)]
pub struct Family {
    /// By the semantic conventions: `http.server.request.duration`.
    pub name: &'static str,
    /// The same with its unit in Prometheus: `http_server_request_duration_seconds`. Without `_total` and the like.
    pub prometheus: &'static str,
    /// By UCUM: `s`, `By`, `{request}`; empty when it has none.
    pub unit: &'static str,
    /// What it is, one sentence without a full stop.
    pub help: &'static str,
    /// What is measured.
    pub instrument: Instrument,
    /// What it shows.
    pub source: Source,
    /// Spans of this kind only; `None` where both are in it, or the source has one.
    pub kind: Option<SpanKind>,
    /// What distinguishes series, beside service and namespace; edges have no others.
    pub labels: &'static [&'static Label],
}

impl Family {
    /// The unit as Prometheus has it; empty when it has none.
    #[must_use]
    pub fn prometheus_unit(&self) -> &'static str {
        match self.unit {
            "s" => "seconds",
            "By" => "bytes",
            _ => "",
        }
    }
}

static REQUEST_OF_SERVER: &[&Label] = &[&METHOD, &ROUTE, &STATUS, &ERROR_TYPE, &SCHEME, &VERSION, &OVERFLOW];
static REQUEST_OF_CLIENT: &[&Label] =
    &[&METHOD, &SERVER_ADDRESS, &SERVER_PORT, &STATUS, &ERROR_TYPE, &SCHEME, &VERSION, &OVERFLOW];
static CALL: &[&Label] = &[&RPC_SYSTEM, &RPC_METHOD, &RPC_STATUS, &ERROR_TYPE, &OVERFLOW];
static DATABASE: &[&Label] = &[
    &DB_SYSTEM,
    &DB_OPERATION,
    &DB_SUMMARY,
    &DB_COLLECTION,
    &DB_NAMESPACE,
    &DB_STATUS,
    &ERROR_TYPE,
    &SERVER_ADDRESS,
    &SERVER_PORT,
    &OVERFLOW,
];
static SPAN: &[&Label] = &[&SPAN_NAME, &SPAN_KIND, &SPAN_STATUS, &OVERFLOW];
static EDGE: &[&Label] =
    &[&EDGE_CLIENT, &EDGE_CLIENT_NAMESPACE, &EDGE_SERVER, &EDGE_SERVER_NAMESPACE, &CONNECTION_TYPE];
static ACTIVE_OF_SERVER: &[&Label] = &[&METHOD, &SCHEME];
static ACTIVE_OF_CLIENT: &[&Label] = &[&METHOD, &SERVER_ADDRESS, &SERVER_PORT, &SCHEME];

const SERVER: Option<SpanKind> = Some(SpanKind::Server);
const CLIENT: Option<SpanKind> = Some(SpanKind::Client);

/// What a unit adds to a name in Prometheus.
macro_rules! suffix {
    ("s") => {
        "_seconds"
    };
    ("By") => {
        "_bytes"
    };
    ($other:tt) => {
        ""
    };
}

macro_rules! families {
    ($($name:literal, $unit:tt, $instrument:ident, $source:ident, $kind:expr, $labels:expr, $help:expr;)*) => {
        /// All of them, in the order in which they are written.
        pub static FAMILIES: &[Family] = &[$(Family {
            name: $name,
            prometheus: prometheus_name!(concat!($name, suffix!($unit))),
            unit: $unit,
            help: $help,
            instrument: Instrument::$instrument,
            source: Source::$source,
            kind: $kind,
            labels: $labels,
        },)*];
    };
}

families! {
    "http.server.request.duration", "s", Histogram, RequestDuration, SERVER, REQUEST_OF_SERVER,
        "Duration of HTTP server requests, from the arrival of the request to the last byte of the response";
    "http.client.request.duration", "s", Histogram, RequestDuration, CLIENT, REQUEST_OF_CLIENT,
        "Duration of HTTP client requests, from sending the request to the last byte of the response";
    "http.server.request.body.size", "By", Histogram, RequestBody, SERVER, REQUEST_OF_SERVER,
        "Size of request bodies that HTTP servers received, from the first that was not empty";
    "http.client.request.body.size", "By", Histogram, RequestBody, CLIENT, REQUEST_OF_CLIENT,
        "Size of request bodies that HTTP clients sent, from the first that was not empty";
    "http.server.response.body.size", "By", Histogram, ResponseBody, SERVER, REQUEST_OF_SERVER,
        "Size of response bodies that HTTP servers sent, from the first that was not empty";
    "http.client.response.body.size", "By", Histogram, ResponseBody, CLIENT, REQUEST_OF_CLIENT,
        "Size of response bodies that HTTP clients received, from the first that was not empty";
    "rpc.server.call.duration", "s", Histogram, CallDuration, SERVER, CALL,
        "Duration of incoming remote procedure calls, from the arrival of the request to the end of the stream";
    "rpc.client.call.duration", "s", Histogram, CallDuration, CLIENT, CALL,
        "Duration of outgoing remote procedure calls, from sending the request to the end of the stream";
    "db.client.operation.duration", "s", Histogram, DatabaseDuration, CLIENT, DATABASE,
        "Duration of calls of databases, from sending the statement or command to the end of its answer";
    "traces.span.metrics.calls", "", Counter, SpanCount, None, SPAN, "Spans";
    "traces.span.metrics.duration", "s", Histogram, SpanDuration, None, SPAN, "Duration of spans";
    "http.server.active_requests", "{request}", Gauge, ActiveRequests, SERVER, ACTIVE_OF_SERVER,
        "HTTP server requests under way whose head has been read";
    "http.client.active_requests", "{request}", Gauge, ActiveRequests, CLIENT, ACTIVE_OF_CLIENT,
        "HTTP client requests under way whose head has been sent";
    "obi.server.queue_wait", "s", Histogram, QueueWait, SERVER, &[],
        "Time between the arrival of a request and the first read of it by its server";
    "obi.server.request.cpu", "s", Counter, CpuTime, SERVER, &[&ROUTE, &CPU_SOURCE],
        "CPU time of server requests: booked, to the nanosecond, where one thread has served the request, else sampled; \
         the standard error of what is sampled is at most the value divided by the root of the number of samples";
    "obi.server.request.cpu_samples", "{sample}", Counter, CpuSamples, SERVER, &[&ROUTE],
        "Samples that the sampled CPU time of server requests rests on";
    "obi.server.request.runqueue", "s", Counter, Runqueue, SERVER, &[&ROUTE],
        "Time that the threads of server requests waited for a CPU";
    "obi.server.request.blocked", "s", Counter, Blocked, SERVER, &[&ROUTE, &WAIT_REASON],
        "Time that server requests waited for something else than a CPU, by reason";
    "obi.server.request.elsewhere", "s", Counter, Elsewhere, SERVER, &[&ROUTE],
        "Time of server requests of which is not known where it went: no one thread has served them";
    "traces.service.graph.request", "", Counter, EdgeTotal, None, EDGE,
        "Calls of one node to another, each once";
    "traces.service.graph.request.failed", "", Counter, EdgeFailed, None, EDGE,
        "Of these calls, those that either end calls failed";
    "traces.service.graph.request.server", "s", Histogram, EdgeServed, None, EDGE,
        "Duration of these calls by their servers";
    "traces.service.graph.request.client", "s", Histogram, EdgeCalled, None, EDGE,
        "Duration of these calls by their clients";
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::red::tests::{call_with, span_with};
    use crate::red::{Limits, Registry};
    use crate::span::{Database, Detail};

    #[test]
    fn names_follow_from_each_other() {
        let check = |name: &str, prometheus: &str, unit: &str| {
            let family = FAMILIES.iter().find(|family| family.name == name).expect(name);
            assert_eq!((family.prometheus, family.prometheus_unit()), (prometheus, unit), "{name}");
        };
        check("http.server.request.duration", "http_server_request_duration_seconds", "seconds");
        check("http.client.request.body.size", "http_client_request_body_size_bytes", "bytes");
        check("traces.span.metrics.calls", "traces_span_metrics_calls", "");
        check("http.server.active_requests", "http_server_active_requests", "");
    }

    #[test]
    fn each_name_stands_once() {
        let mut names: Vec<_> = FAMILIES.iter().map(|family| family.prometheus).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), FAMILIES.len());
    }

    /// The labels that a family promises are those that its series have.
    #[test]
    fn labels_are_what_series_have() {
        let mut registry = Registry::new(Limits::default());
        for kind in [SpanKind::Server, SpanKind::Client] {
            registry.record(&span_with(kind, |_| ()));
            registry.served(&span_with(kind, |_| ()), None);
            registry.record(&call_with(kind, |_| ()));
            let detail = Detail::Database(Database { system: "redis", ..Database::default() });
            registry.record(&span_with(kind, |span| span.detail = detail.clone()));
        }
        let snapshot = registry.snapshot();
        for family in FAMILIES {
            let mut found: Vec<&'static Label> = Vec::new();
            let mut take = |label: &'static Label, _: super::super::LabelValue<'_>| found.push(label);
            match family.source {
                Source::RequestDuration | Source::RequestBody | Source::ResponseBody => {
                    let mut series = snapshot.requests.iter();
                    series
                        .find(|series| Some(series.labels.kind) == family.kind)
                        .unwrap()
                        .labels
                        .each(&mut take);
                }
                Source::CallDuration => snapshot.calls[0].labels.each(&mut take),
                Source::DatabaseDuration => snapshot.databases[0].labels.each(&mut take),
                Source::SpanCount | Source::SpanDuration => snapshot.spans[0].labels.each(&mut take),
                Source::EdgeTotal | Source::EdgeFailed | Source::EdgeServed | Source::EdgeCalled => {
                    snapshot.edges[0].each(&mut take);
                }
                Source::ActiveRequests
                | Source::QueueWait
                | Source::CpuTime
                | Source::CpuSamples
                | Source::Runqueue
                | Source::Blocked
                | Source::Elsewhere => continue,
            }
            let promised: Vec<_> =
                family.labels.iter().filter(|label| ***label != OVERFLOW).copied().collect();
            assert_eq!(found, promised, "{}", family.name);
        }
    }
}
