//! Spans through the encoder, read back with the generated types; what the tests below it share.

mod destination;
mod hanging;
mod remote_write;
mod snapshot;
mod spooling;

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{HistogramDataPoint, exemplar, number_data_point};
use opentelemetry_proto::tonic::trace::v1::ResourceSpans;
use proptest::prelude::*;
use prost::Message as _;

use super::meter::Lost;
use super::plan::transport;
use super::sample::Kept;
use super::*;
use crate::config::export::{Export, OtlpDestination, Signal};
use crate::red::tests::{START, call_ended, call_with, service, span, span_with, websocket};
use crate::red::{self, Registry};
use crate::span::SCHEMA_URL;
use crate::span::SpanKind;
use crate::span::grpc::Code;

/// Attributes as `key=value`, numbers marked.
fn plain(attributes: &[KeyValue]) -> BTreeMap<String, String> {
    let text = |value: &Option<AnyValue>| match value.as_ref().and_then(|value| value.value.as_ref()) {
        Some(Value::StringValue(text)) => text.clone(),
        Some(Value::IntValue(number)) => format!("{number}i"),
        Some(Value::BoolValue(yes)) => format!("{yes}b"),
        other => panic!("{other:?}"),
    };
    attributes.iter().map(|attribute| (attribute.key.clone(), text(&attribute.value))).collect()
}

fn expected<const N: usize>(pairs: [(&str, &str); N]) -> BTreeMap<String, String> {
    pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).into()
}

fn decoded(spans: &[Span]) -> Vec<ResourceSpans> {
    let mut chunk = Chunk::new(u64::MAX);
    for span in spans {
        assert!(chunk.push(span, Kept::AsReceived).is_none());
    }
    let payload = chunk.close().expect("there are spans");
    assert_eq!(payload.n_items, spans.len() as u64);
    assert!(chunk.close().is_none());
    ExportTraceServiceRequest::decode(payload.bytes).unwrap().resource_spans
}

#[test]
fn a_span_has_all_its_fields() {
    let mut server = span_with(SpanKind::Server, |span| {
        span.http().status = Some(503);
        span.error_type = "503";
        span.client.address = Some("10.0.0.9".parse().unwrap());
        span.client.port = 51_234;
        span.request_bytes = Some(300);
        span.response_bytes = Some(70_000);
        span.http().user_agent = "curl/8".to_owned();
    });
    server.parent_span_id = Some([7; 8]);
    server.trace_state = "a=1".to_owned();
    server.trace_flags = 3;
    let resources = decoded(&[server]);
    let [resource] = &resources[..] else { panic!("{resources:?}") };
    assert_eq!(
        plain(&resource.resource.as_ref().unwrap().attributes),
        expected([
            ("service.name", "service-1"),
            ("service.namespace", "test"),
            ("process.executable.name", "server"),
        ])
    );
    let [scope] = &resource.scope_spans[..] else { panic!("{resource:?}") };
    let named = scope.scope.as_ref().unwrap();
    assert_eq!((named.name.as_str(), named.version.as_str()), ("obi", env!("CARGO_PKG_VERSION")));
    assert_eq!([&scope.schema_url, &resource.schema_url], [SCHEMA_URL; 2]);
    let [span] = &scope.spans[..] else { panic!("{scope:?}") };
    assert_eq!((&span.trace_id[..], &span.span_id[..]), (&[0xab; 16][..], &[0xcd; 8][..]));
    assert_eq!((&span.parent_span_id[..], span.trace_state.as_str()), (&[7; 8][..], "a=1"));
    assert_eq!((span.name.as_str(), span.kind, span.flags), ("GET /item/{id}", 2, 0x303));
    assert_eq!((span.start_time_unix_nano, span.end_time_unix_nano), (START, START + 12_000_000));
    assert_eq!(span.status.as_ref().map(|status| (status.code, status.message.as_str())), Some((2, "")));
    assert_eq!(
        plain(&span.attributes),
        expected([
            ("http.request.method", "GET"),
            ("url.scheme", "http"),
            ("url.path", "/item/7"),
            ("http.route", "/item/{id}"),
            ("server.address", "shop.example"),
            ("user_agent.original", "curl/8"),
            ("network.protocol.version", "1.1"),
            ("error.type", "503"),
            ("client.address", "10.0.0.9"),
            ("server.port", "8080i"),
            ("client.port", "51234i"),
            ("http.response.status_code", "503i"),
            ("http.request.body.size", "300i"),
            ("http.response.body.size", "70000i"),
            ("obi.queue_wait_ns", "2000000i"),
        ])
    );
}

/// By its id, where samples can belong to it and only while there are profiles.
#[test]
fn spans_lead_to_their_profiles() {
    let check = |mut span: Span, are_linked: bool, expected: Option<&str>| {
        span.span_id = [0, 0xcd, 1, 2, 3, 4, 5, 6];
        let mut chunk = Chunk::new(1);
        chunk.link_profiles(are_linked);
        let payload = chunk.push(&span, Kept::AsReceived).expect("full with one");
        let request = ExportTraceServiceRequest::decode(payload.bytes).unwrap();
        let attributes = plain(&request.resource_spans[0].scope_spans[0].spans[0].attributes);
        assert_eq!(attributes.get("pyroscope.profile.id").map(String::as_str), expected, "{span:?}");
    };
    check(span(SpanKind::Server), true, Some("00cd010203040506"));
    check(span(SpanKind::Server), false, None);
    check(span(SpanKind::Client), true, None);
    check(span_with(SpanKind::Server, |span| span.http().version = "2"), true, None);
    check(websocket(SpanKind::Server), true, None);
}

/// A reload keeps spans linked.
#[test]
fn a_new_configuration_keeps_spans_linked() {
    let export = Export {
        otlp: vec![OtlpDestination { endpoint: Some("http://c:1".to_owned()), ..OtlpDestination::default() }],
        ..Export::default()
    };
    let span_export = || {
        let _runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Plan::new(&export, 1).unwrap().span_export
    };
    let mut running = span_export();
    running.link_profiles(true);
    running.replace(span_export());
    let mut span = span(SpanKind::Server);
    let kept = running.sample(&mut span).expect("nothing is sampled away");
    running.push(&span, kept);
    let payload = running.chunk.as_mut().and_then(Chunk::close).unwrap();
    let text = b"pyroscope.profile.id";
    assert!(payload.bytes.windows(text.len()).any(|part| part == text));
}

#[test]
fn a_call_has_all_its_fields() {
    let call = call_with(SpanKind::Client, |span| {
        (span.rpc().status, span.error_type) = (Code::of_name("UNAVAILABLE"), "UNAVAILABLE");
        (span.rpc().message, span.rpc().streaming, span.rpc().response_messages) =
            ("try later".to_owned(), true, Some(300));
    });
    let resources = decoded(&[call, websocket(SpanKind::Server)]);
    let [call, socket] = [0, 1].map(|nth| &resources[nth].scope_spans[0].spans[0]);
    assert_eq!((call.name.as_str(), call.kind), ("shop.Cart/Add", 3));
    let status = call.status.as_ref().map(|status| (status.code, status.message.as_str()));
    assert_eq!(status, Some((2, "try later")));
    assert_eq!(
        plain(&call.attributes),
        expected([
            ("rpc.system.name", "grpc"),
            ("rpc.method", "shop.Cart/Add"),
            ("rpc.response.status_code", "UNAVAILABLE"),
            ("error.type", "UNAVAILABLE"),
            ("server.address", "shop.example"),
            ("server.port", "8080i"),
            ("url.scheme", "http"),
            ("network.protocol.version", "2"),
            ("obi.rpc.request.messages", "1i"),
            ("obi.rpc.response.messages", "300i"),
            ("obi.rpc.streaming", "trueb"),
        ])
    );
    assert_eq!((socket.name.as_str(), &socket.status), ("WEBSOCKET /item/{id}", &None));
    assert_eq!(plain(&socket.attributes)["obi.websocket.client.messages"], "3i");
}

#[test]
fn a_root_client_span_without_error() {
    let mut client = span(SpanKind::Client);
    // A clock set back in between.
    client.end = client.start - 5;
    let resources = decoded(&[client]);
    let span = &resources[0].scope_spans[0].spans[0];
    assert_eq!((span.kind, span.flags, &span.status), (3, 0x101, &None));
    assert!(span.parent_span_id.is_empty() && span.trace_state.is_empty());
    assert_eq!(span.end_time_unix_nano, span.start_time_unix_nano);
    let attributes = plain(&span.attributes);
    assert_eq!(attributes["url.full"], "http://shop.example:8080/item/7");
    assert_eq!(attributes["url.template"], "/item/{id}");
}

#[test]
fn spans_are_gathered_by_service_and_payloads_add_up() {
    let shared = [service(1), service(2)];
    let spans: Vec<Span> = (0..10_u64)
        .map(|number| {
            let mut span = span(SpanKind::Server);
            span.span_id = number.to_be_bytes();
            span.service = Arc::clone(&shared[usize::from(number % 3 == 0)]);
            span
        })
        .collect();
    let mut chunk = Chunk::new(4);
    let mut payloads: Vec<Payload> =
        spans.iter().filter_map(|span| chunk.push(span, Kept::Threshold(0))).collect();
    payloads.extend(chunk.close());
    assert_eq!(payloads.iter().map(|payload| payload.n_items).collect::<Vec<_>>(), [4, 4, 2]);
    let whole: Vec<u8> = payloads.iter().flat_map(|payload| payload.bytes.to_vec()).collect();
    let request = ExportTraceServiceRequest::decode(&whole[..]).unwrap();
    let mut seen = Vec::new();
    for resource in &request.resource_spans {
        let name = plain(&resource.resource.as_ref().unwrap().attributes)["service.name"].clone();
        for span in &resource.scope_spans[0].spans {
            let number = u64::from_be_bytes(span.span_id[..].try_into().unwrap());
            assert_eq!(name, if number % 3 == 0 { "service-2" } else { "service-1" });
            assert_eq!(span.trace_state, "ot=th:0");
            seen.push(number);
        }
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..10).collect::<Vec<_>>());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is in a span, the generated types read it back.
    #[test]
    fn any_span_is_read_back(
        path in "\\PC{0,60}", query in ".{0,20}", agent in ".{0,60}", state in "[ -~]{0,40}",
        start: u64, end: u64, bytes: u64, flags: u8, kept in prop_oneof![
            Just(Kept::AsReceived), (0_u64..1 << 56).prop_map(Kept::Threshold)
        ],
    ) {
        let mut span = span(SpanKind::Client);
        (span.start, span.end, span.trace_flags) = (start, end, flags);
        span.trace_state = state;
        (span.http().path, span.http().query, span.http().user_agent) = (path, query, agent);
        span.request_bytes = Some(bytes);
        let mut chunk = Chunk::new(1);
        let payload = chunk.push(&span, kept).expect("full with one");
        let request = ExportTraceServiceRequest::decode(payload.bytes).unwrap();
        let read = &request.resource_spans[0].scope_spans[0].spans[0];
        prop_assert_eq!((read.start_time_unix_nano, read.end_time_unix_nano), (start, end.max(start)));
        let attributes = plain(&read.attributes);
        prop_assert_eq!(attributes.get("user_agent.original").map_or("", String::as_str), &span.http().user_agent);
        prop_assert_eq!(attributes.get("url.path").map_or("", String::as_str), &span.http().path);
        prop_assert!(NonZeroU64::new(u64::from(read.flags)).is_some());
        prop_assert!(read.trace_state.is_ascii());
    }
}
