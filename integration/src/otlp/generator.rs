//! Spans of services that there are not: what SDKs of them would send, and what is to be counted of it.
//!
//! In: a seed, a number of traces. Out: spans by service, and the plan that they were made by. Refuses to send.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;

/// Services that take part.
pub const SERVICES: usize = 12;
/// Routes of each.
pub const ROUTES: usize = 5;
/// Spans of a trace: a request from outside, work within it, a call of another service, and that call's other end.
pub const SPANS_PER_TRACE: usize = 4;
/// Their namespace.
pub const NAMESPACE: &str = "made";

/// A call of one service to another, and what is to be counted of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Kind {
    /// Number of the service that calls.
    pub client: usize,
    /// Number of the service that is called.
    pub server: usize,
    /// Number of the route.
    pub route: usize,
    /// HTTP status of the answer.
    pub status: i64,
}

/// How many calls there are of each kind.
pub type Plan = BTreeMap<Kind, usize>;

/// A span, and the number of its service.
pub type Sent = (usize, Span);

/// The name of a service by its number.
#[must_use]
pub fn name(service: usize) -> String {
    format!("{NAMESPACE}-{service}")
}

/// Calls of all kinds that fit.
pub fn total(plan: &Plan, is: impl Fn(&Kind) -> bool) -> usize {
    plan.iter().filter(|(kind, _)| is(kind)).map(|(_, n)| n).sum()
}

/// The spans of so many traces, which are added to the plan. They ended within the last half minute, and come in any
/// order.
///
/// # Panics
/// When the clock is before 1970.
pub fn generate(rng: &mut fastrand::Rng, traces: usize, plan: &mut Plan) -> Vec<Sent> {
    let mut spans = Vec::with_capacity(traces * SPANS_PER_TRACE);
    for _ in 0..traces {
        let status = [200, 200, 204, 404, 500, 503][rng.usize(..6)];
        let (client, server) = (rng.usize(..SERVICES), rng.usize(..SERVICES));
        let kind = Kind { client, server, route: rng.usize(..ROUTES), status };
        *plan.entry(kind).or_default() += 1;
        spans.extend(trace(rng, kind));
    }
    rng.shuffle(&mut spans);
    spans
}

fn trace(rng: &mut fastrand::Rng, kind: Kind) -> [Sent; SPANS_PER_TRACE] {
    let trace_id = id(rng, 16);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock behind 1970");
    let end = u64::try_from(now.as_nanos()).unwrap_or(u64::MAX) - rng.u64(..30_000_000_000);
    let took = rng.u64(1_000_000..9_000_000);
    let mut span = |kind: SpanKind, parent: &[u8], attributes: Vec<KeyValue>| Span {
        trace_id: trace_id.clone(),
        span_id: id(rng, 8),
        parent_span_id: parent.to_vec(),
        name: format!("{kind:?}"),
        kind: kind.into(),
        start_time_unix_nano: end - took,
        end_time_unix_nano: end,
        attributes,
        ..Span::default()
    };
    let http = |status: i64| {
        vec![
            text("http.request.method", "GET"),
            number("http.response.status_code", status),
            text("url.scheme", "http"),
            text("network.protocol.version", "1.1"),
            text("user_agent.original", "generator/1.0"),
        ]
    };
    let root = span(SpanKind::Server, &[], [http(200), vec![text("http.route", "/")]].concat());
    let work = span(SpanKind::Internal, &root.span_id, vec![]);
    let place = vec![text("server.address", "inside"), number("server.port", 80)];
    let call = span(SpanKind::Client, &work.span_id, [http(kind.status), place].concat());
    let route = text("http.route", &format!("/{}", kind.route));
    let served = span(SpanKind::Server, &call.span_id, [http(kind.status), vec![route]].concat());
    [(kind.client, root), (kind.client, work), (kind.client, call), (kind.server, served)]
}

/// A request with these spans, as protobuf.
#[must_use]
pub fn request(spans: &[Sent]) -> Vec<u8> {
    let mut by_service: BTreeMap<usize, Vec<Span>> = BTreeMap::new();
    for (service, span) in spans {
        by_service.entry(*service).or_default().push(span.clone());
    }
    let group = |(service, spans): (usize, Vec<Span>)| ResourceSpans {
        resource: Some(Resource {
            attributes: vec![
                text("service.name", &name(service)),
                text("service.namespace", NAMESPACE),
                text("telemetry.sdk.language", "rust"),
            ],
            ..Resource::default()
        }),
        scope_spans: vec![ScopeSpans { spans, ..ScopeSpans::default() }],
        ..ResourceSpans::default()
    };
    ExportTraceServiceRequest { resource_spans: by_service.into_iter().map(group).collect() }.encode_to_vec()
}

fn text(key: &str, value: &str) -> KeyValue {
    let value = Some(AnyValue { value: Some(Any::StringValue(value.to_owned())) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

fn number(key: &str, value: i64) -> KeyValue {
    let value = Some(AnyValue { value: Some(Any::IntValue(value)) });
    KeyValue { key: key.to_owned(), value, ..KeyValue::default() }
}

fn id(rng: &mut fastrand::Rng, length: usize) -> Vec<u8> {
    (0..length).map(|_| rng.u8(1..)).collect()
}
