//! Spans and snapshots through the encoders, read back with the generated types.

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
use super::sample::Kept;
use super::*;
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
    let mut server = span_with(SpanKind::Server, |http| {
        http.status = Some(503);
        http.error_type = "503";
        http.client_address = Some("10.0.0.9".parse().unwrap());
        http.client_port = 51_234;
        http.request_body_bytes = 300;
        http.response_body_bytes = 70_000;
        http.user_agent = "curl/8".to_owned();
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
    check(span_with(SpanKind::Server, |http| http.version = "2"), true, None);
    check(websocket(SpanKind::Server), true, None);
}

/// A reload keeps spans linked.
#[test]
fn a_new_configuration_keeps_spans_linked() {
    let export = Export {
        otlp: vec![OtlpDestination { endpoint: Some("http://c:1".to_owned()), ..OtlpDestination::default() }],
        ..Export::default()
    };
    let tap = || {
        let _runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Plan::new(&export, 1).unwrap().tap
    };
    let mut running = tap();
    running.link_profiles(true);
    running.replace(tap());
    let mut span = span(SpanKind::Server);
    let kept = running.sample(&mut span).expect("nothing is sampled away");
    running.push(&span, kept);
    let payload = running.chunk.as_mut().and_then(Chunk::close).unwrap();
    let text = b"pyroscope.profile.id";
    assert!(payload.bytes.windows(text.len()).any(|part| part == text));
}

#[test]
fn a_call_has_all_its_fields() {
    let call = call_with(SpanKind::Client, |rpc| {
        (rpc.status, rpc.http.error_type) = (Code::of_name("UNAVAILABLE"), "UNAVAILABLE");
        (rpc.message, rpc.streaming, rpc.response_messages) = ("try later".to_owned(), true, Some(300));
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

/// Points by service and metric, checked for what all have in common.
fn metrics(payloads: &[Payload]) -> BTreeMap<(String, String), Vec<Data>> {
    let mut found = BTreeMap::<_, Vec<_>>::new();
    for payload in payloads {
        let request = ExportMetricsServiceRequest::decode(payload.bytes.clone()).unwrap();
        let mut n_items = 0;
        for resource in request.resource_metrics {
            let service = plain(&resource.resource.unwrap().attributes)["service.name"].clone();
            assert_eq!([&resource.schema_url, &resource.scope_metrics[0].schema_url], [SCHEMA_URL; 2]);
            assert_eq!(resource.scope_metrics[0].scope.as_ref().unwrap().name, "obi");
            for metric in resource.scope_metrics.into_iter().flat_map(|scope| scope.metrics) {
                let data = metric.data.unwrap();
                let (n, temporality) = match &data {
                    Data::Histogram(data) => (data.data_points.len(), data.aggregation_temporality),
                    Data::ExponentialHistogram(data) => {
                        (data.data_points.len(), data.aggregation_temporality)
                    }
                    Data::Sum(data) => (data.data_points.len(), data.aggregation_temporality),
                    other => panic!("{other:?}"),
                };
                // Cumulative.
                assert_eq!(temporality, 2);
                n_items += n as u64;
                found
                    .entry((service.clone(), format!("{} {}", metric.name, metric.unit)))
                    .or_default()
                    .push(data);
            }
        }
        assert_eq!(n_items, payload.n_items);
    }
    found
}

fn histograms(payloads: &[Payload]) -> BTreeMap<String, Vec<HistogramDataPoint>> {
    let of = |data: Data| match data {
        Data::Histogram(histogram) => histogram.data_points,
        _ => Vec::new(),
    };
    let found = metrics(payloads).into_iter();
    found.map(|((_, name), data)| (name, data.into_iter().flat_map(of).collect())).collect()
}

fn encoded(registry: &mut Registry, now: u64) -> Vec<Payload> {
    metric::encode(&registry.snapshot(), START, now, Histograms::Explicit)
}

fn registry() -> Registry {
    Registry::new(red::Limits::default())
}

#[test]
fn a_snapshot_becomes_histograms_with_exemplars() {
    let mut registry = registry();
    registry.record(&span(SpanKind::Server));
    registry.record(&span(SpanKind::Client));
    registry.record(&span_with(SpanKind::Server, |http| {
        http.status = None;
        http.error_type = "reset";
    }));
    let mut unsampled = span_with(SpanKind::Client, |http| http.status = Some(404));
    unsampled.sampled = false;
    registry.record(&unsampled);
    let found = histograms(&encoded(&mut registry, START + 90_000_000));
    let [server, failed] = &found["http.server.request.duration s"][..] else { panic!("{found:?}") };
    let [client, unsampled] = &found["http.client.request.duration s"][..] else { panic!("{found:?}") };
    assert_eq!(
        plain(&client.attributes),
        expected([
            ("http.request.method", "GET"),
            ("server.address", "shop.example"),
            ("server.port", "8080i"),
            ("http.response.status_code", "200i"),
            ("url.scheme", "http"),
            ("network.protocol.version", "1.1"),
        ])
    );
    let attributes = plain(&failed.attributes);
    assert_eq!(attributes["error.type"], "reset");
    assert!(!attributes.contains_key("http.response.status_code"));
    assert_eq!(plain(&server.attributes)["http.route"], "/item/{id}");
    assert!(unsampled.exemplars.is_empty() && unsampled.count == 1);
    for point in [client, server, failed] {
        assert_eq!((point.count, point.sum, point.explicit_bounds.len()), (1, Some(0.012), 14));
        assert_eq!(point.bucket_counts[2], 1);
        // Counted from the end of the first span.
        let times = (point.start_time_unix_nano, point.time_unix_nano);
        assert_eq!(times, (START + 12_000_000, START + 90_000_000));
        let [exemplar] = &point.exemplars[..] else { panic!("{point:?}") };
        assert_eq!((&exemplar.trace_id[..], &exemplar.span_id[..]), (&[0xab; 16][..], &[0xcd; 8][..]));
        assert_eq!(exemplar.time_unix_nano, START + 12_000_000);
        assert_eq!(exemplar.value, Some(exemplar::Value::AsDouble(0.012)));
    }
    let [wait] = &found["obi.server.queue_wait s"][..] else { panic!("{found:?}") };
    assert_eq!((wait.count, wait.sum, wait.attributes.len()), (2, Some(0.004), 0));
}

#[test]
fn everything_of_the_snapshot_goes_out() {
    let mut registry = registry();
    registry.record(&span_with(SpanKind::Server, |http| {
        http.request_body_bytes = 100;
        http.response_body_bytes = 9_000;
    }));
    registry.record(&span_with(SpanKind::Client, |http| http.request_body_bytes = 7));
    registry.record(&call_ended(SpanKind::Server, Code::DEADLINE_EXCEEDED));
    registry.record(&call_ended(SpanKind::Client, Code::OK));
    registry.record(&websocket(SpanKind::Server));
    let active = crate::red::ActiveLabels {
        service: service(1),
        kind: SpanKind::Server,
        method: "GET",
        scheme: "http",
        server_address: String::new(),
        server_port: 0,
    };
    registry.set_active([active.clone(), active]);
    let payloads = encoded(&mut registry, START + 90_000_000);
    let found = metrics(&payloads);
    let names: Vec<_> = found.keys().map(|(_, name)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "http.client.request.body.size By",
            "http.client.request.duration s",
            "http.server.active_requests {request}",
            "http.server.request.body.size By",
            "http.server.request.duration s",
            "http.server.response.body.size By",
            "obi.server.queue_wait s",
            "rpc.client.call.duration s",
            "rpc.server.call.duration s",
            "traces.span.metrics.calls ",
            "traces.span.metrics.duration s",
        ]
    );
    let sums = |name: &str| match &found[&("service-1".to_owned(), name.to_owned())][..] {
        [Data::Sum(sum)] => (sum.is_monotonic, sum.data_points.clone()),
        other => panic!("{other:?}"),
    };
    let (monotonic, active) = sums("http.server.active_requests {request}");
    assert_eq!((monotonic, active[0].value), (false, Some(number_data_point::Value::AsInt(2))));
    assert_eq!(
        plain(&active[0].attributes),
        expected([("http.request.method", "GET"), ("url.scheme", "http")])
    );
    let (monotonic, calls) = sums("traces.span.metrics.calls ");
    assert_eq!((monotonic, calls.len()), (true, 5));
    assert_eq!(
        plain(&calls[0].attributes),
        expected([
            ("span.name", "GET /item/{id}"),
            ("span.kind", "SPAN_KIND_SERVER"),
            ("status.code", "STATUS_CODE_UNSET"),
        ])
    );
    let names = |points: &[HistogramDataPoint]| {
        points.iter().map(|point| plain(&point.attributes)["span.name"].clone()).collect::<Vec<_>>()
    };
    let timed = names(&histograms(&payloads)["traces.span.metrics.duration s"]);
    assert!(calls.iter().any(|point| plain(&point.attributes)["span.name"].starts_with("WEBSOCKET")));
    assert_eq!(timed.iter().filter(|name| name.starts_with("WEBSOCKET")).count(), 0, "{timed:?}");
    let durations = &histograms(&payloads)["rpc.server.call.duration s"][0];
    assert_eq!((durations.count, durations.exemplars.len()), (1, 1));
    assert_eq!(
        plain(&durations.attributes),
        expected([
            ("rpc.system.name", "grpc"),
            ("rpc.method", "shop.Cart/Add"),
            ("rpc.response.status_code", "DEADLINE_EXCEEDED"),
            ("error.type", "DEADLINE_EXCEEDED"),
        ])
    );
    let sizes = &histograms(&payloads)["http.server.response.body.size By"][0];
    assert_eq!((sizes.count, sizes.sum, sizes.explicit_bounds.len()), (1, Some(9_000.0), 8));
}

#[test]
fn exponential_histograms_hold_the_same() {
    let mut registry = registry();
    let durations = [0, 1, 1_000_000_000, 1_000_000_001, 3_900_000_000];
    for duration in durations {
        let mut span = span(SpanKind::Server);
        span.start = span.end - duration;
        registry.record(&span);
    }
    let payloads = metric::encode(&registry.snapshot(), START, START * 2, Histograms::Exponential);
    let found = metrics(&payloads);
    let key = ("service-1".to_owned(), "http.server.request.duration s".to_owned());
    let [Data::ExponentialHistogram(histogram)] = &found[&key][..] else { panic!("{found:?}") };
    let [point] = &histogram.data_points[..] else { panic!("{histogram:?}") };
    assert_eq!((point.count, point.zero_count, point.sum), (5, 1, Some(5.900_000_002)));
    assert!(!point.exemplars.is_empty());
    let positive = point.positive.as_ref().unwrap();
    assert_eq!(positive.bucket_counts.iter().sum::<u64>(), 4);
    // OpenTelemetry's bucket i holds what is in (base^i, base^(i+1)], base = 2^(2^-scale).
    let base = (-f64::from(point.scale)).exp2().exp2();
    for duration in durations.into_iter().filter(|duration| *duration > 0) {
        let index = red::seconds(duration).log(base).ceil() as i32 - 1;
        let place = usize::try_from(index - positive.offset).unwrap();
        assert!(positive.bucket_counts[place] > 0, "{duration} ns in {point:?}");
    }
}

#[test]
fn a_clock_set_back_makes_no_point_end_before_it_starts() {
    let mut registry = registry();
    registry.record(&span(SpanKind::Client));
    let found = histograms(&encoded(&mut registry, START));
    let point = &found["http.client.request.duration s"][0];
    assert_eq!((point.start_time_unix_nano, point.time_unix_nano), (START + 12_000_000, START + 12_000_000));
}

#[test]
fn many_series_become_many_payloads_below_the_limit() {
    let mut registry = Registry::new(red::Limits { series: 20_000, ..red::Limits::default() });
    for number in 0..3_000_u32 {
        let route: Arc<str> = format!("/{number}/{}", "x".repeat(200)).into();
        registry.record(&span_with(SpanKind::Server, |http| http.route = route));
    }
    let payloads = encoded(&mut registry, START * 2);
    assert!(payloads.iter().all(|payload| payload.bytes.len() < queue::PAYLOAD_BYTES));
    assert_eq!(histograms(&payloads)["http.server.request.duration s"].len(), 3_000);
}

#[test]
fn an_overflow_series_says_so() {
    let mut registry = Registry::new(red::Limits { series: 1_000, ..red::Limits::default() });
    for number in 0..2_000 {
        registry.record(&span_with(SpanKind::Server, |http| http.route = format!("/{number}").into()));
    }
    let found = histograms(&encoded(&mut registry, START * 2));
    let points = &found["http.server.request.duration s"];
    let overflow: Vec<_> =
        points.iter().map(|point| plain(&point.attributes)).filter(|point| point.len() == 4).collect();
    assert_eq!(
        overflow,
        [expected([
            ("http.request.method", "_OTHER"),
            ("http.route", "_OTHER"),
            ("http.response.status_code", "2xx"),
            ("otel.metric.overflow", "trueb"),
        ])]
    );
    assert_eq!(points.iter().map(|point| point.count).sum::<u64>(), 2_000);
}

#[test]
fn without_destinations_everything_counts_as_sampled() {
    let (mut tap, exporter) = {
        let _runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        Plan::new(&Export::default(), 1).unwrap().start()
    };
    let mut span = span(SpanKind::Server);
    assert!(tap.sample(&mut span).is_none() && span.sampled);
    assert!(!exporter.wants_metrics() && tap.lanes().is_empty());
}

#[test]
fn a_certificate_that_is_none_stops_the_start() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let check = |url: &str, ca_file: &std::path::Path, part: Option<&str>| {
        let destination = OtlpDestination {
            endpoint: Some(url.to_owned()),
            ca_file: Some(ca_file.to_owned()),
            ..OtlpDestination::default()
        };
        let export = Export { otlp: vec![destination], ..Export::default() };
        match (Plan::new(&export, 1), part) {
            (Ok(_), None) => {}
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{url}: {found:?}"),
        }
    };
    check("https://c:1", "/nowhere.pem".as_ref(), Some("destination `c:1`: failed to read `/nowhere.pem`"));
    check("https://c:1", file.path(), Some("no certificate in it"));
    check("http://c:1", file.path(), None);
}

/// Nobody listens: every item is queued, then counted as lost, and nothing takes longer than it may.
#[tokio::test]
async fn what_cannot_be_sent_before_the_end_is_counted() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let destination =
        OtlpDestination { endpoint: Some(url), batch_delay: Duration::ZERO, ..OtlpDestination::default() };
    let export = Export { otlp: vec![destination], ..Export::default() };
    let (mut tap, exporter) = Plan::new(&export, 1).unwrap().start();
    for _ in 0..1_000 {
        let mut span = span(SpanKind::Server);
        let kept = tap.sample(&mut span).expect("no sampling");
        tap.push(&span, kept);
    }
    tap.flush();
    let accounts = tap.accounts.clone();
    drop(tap);
    exporter.finish(Duration::from_millis(50)).await;
    let traces = accounts[0].state();
    assert_eq!((traces.signal, traces.sent), ("traces", 0));
    assert_eq!((traces.lost[Lost::Shutdown as usize], traces.queued_items), (("shutdown", 1_000), 0));
}

/// A new configuration for a destination that is down: the old queue's end takes nothing from the new one, one account
/// has both, and a destination that is gone keeps its own.
#[tokio::test]
async fn counts_outlive_a_new_configuration() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    drop(listener);
    let destination = |name: &str| OtlpDestination {
        name: name.to_owned(),
        endpoint: Some(url.clone()),
        signals: vec![Signal::Traces],
        batch_delay: Duration::ZERO,
        ..OtlpDestination::default()
    };
    let with = |names: &[&str]| {
        let mut export =
            Export { otlp: names.iter().map(|name| destination(name)).collect(), ..Export::default() };
        export.sampling.ratio = 0.0;
        export
    };
    let errors = |tap: &mut Tap, n: usize| {
        for _ in 0..n {
            let mut span = span_with(SpanKind::Server, |http| http.error_type = "503");
            let kept = tap.sample(&mut span).expect("errors are kept");
            tap.push(&span, kept);
        }
    };
    let plan = Plan::new(&with(&["stays", "goes"]), 1).unwrap();
    let accounts = plan.accounts().clone();
    let (mut tap, first) = plan.start();
    errors(&mut tap, 10);
    let mut fast = span(SpanKind::Server);
    fast.end = fast.start;
    assert!(tap.sample(&mut fast).is_none());
    assert_eq!((tap.unsampled(), first.retry_for()), (Some(1), Duration::from_secs(300)));

    let plan = Plan::after(accounts, &with(&["new", "stays"])).unwrap();
    let accounts = plan.accounts().clone();
    let (next, second) = plan.start();
    tap.replace(next);
    errors(&mut tap, 5);
    tap.flush();
    let queued = |tap: &Tap| -> Vec<(String, u64, u64)> {
        let lost = |lane: &stats::Lane| lane.lost[Lost::Shutdown as usize].1;
        tap.lanes().iter().map(|lane| (lane.destination.to_string(), lane.queued_items, lost(lane))).collect()
    };
    let rows = |rows: [(&str, u64, u64); 3]| rows.map(|(name, queued, lost)| (name.to_owned(), queued, lost));
    assert_eq!(queued(&tap), rows([("stays", 15, 0), ("goes", 10, 0), ("new", 5, 0)]));
    first.finish(Duration::ZERO).await;
    assert_eq!(queued(&tap), rows([("stays", 5, 10), ("goes", 0, 10), ("new", 5, 0)]));

    // Without any destination left, everything is still told.
    let (last, _) = Plan::after(accounts, &with(&[])).unwrap().start();
    tap.replace(last);
    second.finish(Duration::ZERO).await;
    assert_eq!(queued(&tap), rows([("stays", 0, 15), ("goes", 0, 10), ("new", 0, 5)]));
    assert_eq!(tap.unsampled(), Some(1));
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
        let http = span.detail.http_mut();
        (http.path, http.query, http.user_agent, http.request_body_bytes) = (path, query, agent, bytes);
        let mut chunk = Chunk::new(1);
        let payload = chunk.push(&span, kept).expect("full with one");
        let request = ExportTraceServiceRequest::decode(payload.bytes).unwrap();
        let read = &request.resource_spans[0].scope_spans[0].spans[0];
        prop_assert_eq!((read.start_time_unix_nano, read.end_time_unix_nano), (start, end.max(start)));
        let attributes = plain(&read.attributes);
        let http = span.detail.http();
        prop_assert_eq!(attributes.get("user_agent.original").map_or("", String::as_str), &http.user_agent);
        prop_assert_eq!(attributes.get("url.path").map_or("", String::as_str), &http.path);
        prop_assert!(NonZeroU64::new(u64::from(read.flags)).is_some());
        prop_assert!(read.trace_state.is_ascii());
    }
}
