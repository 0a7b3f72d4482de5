//! Requests as SDKs send them, and as no one should.

use opentelemetry_proto::tonic::common::v1::any_value::Value as Generated;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Status};
use proptest::prelude::*;

use super::*;

const BUDGET: usize = 8 << 20;

fn text(key: &str, value: &str) -> KeyValue {
    let value = AnyValue { value: Some(Generated::StringValue(value.to_owned())) };
    KeyValue { key: key.to_owned(), value: Some(value), ..KeyValue::default() }
}

fn sent(change: impl FnOnce(&mut Sent)) -> Sent {
    let mut span = Sent {
        trace_id: vec![7; 16],
        span_id: vec![1; 8],
        parent_span_id: vec![2; 8],
        name: "work".to_owned(),
        kind: SentKind::Internal as i32,
        start_time_unix_nano: 10,
        end_time_unix_nano: 20,
        attributes: vec![text("url.path", "/a")],
        ..Sent::default()
    };
    change(&mut span);
    span
}

fn request(scope: &str, host: &str, spans: Vec<Sent>) -> ExportTraceServiceRequest {
    let attributes = vec![text("service.name", "orders"), text("host.name", host)];
    let resource = SentResource { attributes, ..SentResource::default() };
    let scope = InstrumentationScope { name: scope.to_owned(), ..InstrumentationScope::default() };
    let scope_spans = vec![ScopeSpans { scope: Some(scope), spans, schema_url: "s".to_owned() }];
    let resource_spans =
        vec![ResourceSpans { resource: Some(resource), scope_spans, schema_url: "r".to_owned() }];
    ExportTraceServiceRequest { resource_spans }
}

fn decoded(bytes: &[u8], format: Format, budget: &Budget) -> Result<Decoded, Refused> {
    let bytes = Bytes::copy_from_slice(bytes);
    Body { bytes, format, budget, host: "here", finds_requests: true }.spans()
}

#[test]
fn names_are_shared_and_stay_their_own() {
    let budget = Budget::new(BUDGET);
    let spans = (0..100_u8).map(|nth| {
        sent(|span| {
            span.span_id = vec![nth + 1; 8];
            span.name = format!("GET /{}", if nth.is_multiple_of(2) { 0 } else { nth });
        })
    });
    let bytes = request("workload", "here", spans.collect()).encode_to_vec();
    let decoded = decoded(&bytes, Format::Protobuf, &budget).unwrap();
    let names: Vec<Arc<str>> = decoded
        .batch
        .spans
        .iter()
        .map(|received| match &received.span.detail {
            Detail::Sdk(sdk) => Arc::clone(&sdk.name),
            other => panic!("{other:?}"),
        })
        .collect();
    for (nth, name) in names.iter().enumerate() {
        assert_eq!(**name, *format!("GET /{}", if nth.is_multiple_of(2) { 0 } else { nth }));
    }
    assert!(Arc::ptr_eq(&names[0], &names[2]), "one text for both");
}

#[test]
fn protobuf_and_json_say_the_same() {
    let budget = Budget::new(BUDGET);
    let status = Status { code: StatusCode::Error as i32, message: "no stock".to_owned() };
    let request = request("workload", "here", vec![sent(|span| span.status = Some(status))]);
    let json = serde_json::to_vec(&request).unwrap();
    for (bytes, format) in [(request.encode_to_vec(), Format::Protobuf), (json, Format::Json)] {
        let Decoded { batch, rejected } = decoded(&bytes, format, &budget).unwrap();
        let [received] = &*batch.spans else { panic!("{batch:?}") };
        let span = &received.span;
        assert_eq!((span.name().to_string().as_str(), span.kind), ("work", SpanKind::Internal));
        assert_eq!((span.start, span.end, span.parent_span_id), (10, 20, Some([2; 8])));
        assert_eq!((span.status(), span.status_message()), (crate::span::Status::Error, "no stock"));
        assert_eq!(span.service.name, "orders");
        assert_eq!((received.role, rejected), (Role::Internal, [0; 4]));
        let sent = &request.resource_spans[0];
        assert_eq!(Sent::decode(received.message.clone()).unwrap(), sent.scope_spans[0].spans[0]);
        let origin = &received.origin;
        assert_eq!(SentResource::decode(&*origin.resource).ok().as_ref(), sent.resource.as_ref());
        assert_eq!((&*origin.resource_schema, &*origin.scope_schema), ("r", "s"));
        let held = budget.used();
        assert!(held > 0 && held < 4_000, "{held}");
        drop(batch);
        assert_eq!(budget.used(), 0);
    }
}

/// As browsers and Node send it: numbers as texts, enums as numbers, unknown fields.
#[test]
fn json_of_the_specification_is_read() {
    let json = r#"{"resourceSpans":[{"resource":{"attributes":[{"key":"service.name","value":{"stringValue":"web"}}]},
        "scopeSpans":[{"scope":{"name":"fetch"},"spans":[{"traceId":"5B8EFFF798038103D269B633813FC60C",
        "spanId":"EEE19B7EC3C1B174","parentSpanId":"","name":"GET","kind":3,"startTimeUnixNano":"1544712660000000000",
        "endTimeUnixNano":"1544712661000000000","future":{"a":[1]},
        "attributes":[{"key":"n","value":{"intValue":"7"}},{"key":"d","value":{"doubleValue":0.5}}]}]}]}]}"#;
    let Decoded { batch, .. } = decoded(json.as_bytes(), Format::Json, &Budget::new(BUDGET)).unwrap();
    let received = &batch.spans[0];
    assert_eq!((received.role, received.span.parent_span_id), (Role::Client, None));
    assert_eq!(received.span.trace_id[..2], [0x5b, 0x8e]);
    let mut reported = Vec::new();
    received.span.attributes(|name, value| reported.push(format!("{name}={value}")));
    assert_eq!(reported, ["n=7", "d=0.5"]);
}

#[test]
fn ends_of_requests_are_found_where_they_may_count() {
    let check = |kind: SentKind, attribute: &str, finds_requests: bool, expected: Option<(&str, f64)>| {
        let span = sent(|span| {
            span.kind = kind as i32;
            span.attributes.push(text(attribute, "GET"));
            span.trace_state = "ot=th:8".to_owned();
        });
        let bytes = request("workload", "here", vec![span]).encode_to_vec();
        let budget = Budget::new(BUDGET);
        let body =
            Body { bytes: bytes.into(), format: Format::Protobuf, budget: &budget, host: "", finds_requests };
        let received = body.spans().unwrap().batch.spans.remove(0);
        let found = received.request.as_ref().map(|found| (&*found.method, found.weight));
        assert_eq!(found, expected, "{kind:?} with {attribute}, looked for: {finds_requests}");
    };
    check(SentKind::Server, "http.request.method", true, Some(("GET", 2.0)));
    check(SentKind::Client, "http.method", true, Some(("GET", 2.0)));
    check(SentKind::Client, "http.method", false, None);
    check(SentKind::Client, "other", true, None);
    for kind in [SentKind::Internal, SentKind::Producer, SentKind::Consumer, SentKind::Unspecified] {
        check(kind, "http.request.method", true, None);
    }
}

#[test]
fn only_spans_that_make_no_sense_are_rejected() {
    let check = |request: ExportTraceServiceRequest, n_taken: usize, expected: [u64; 4]| {
        let bytes = request.encode_to_vec();
        let Decoded { batch, rejected } = decoded(&bytes, Format::Protobuf, &Budget::new(64 << 20)).unwrap();
        assert_eq!((batch.spans.len(), rejected), (n_taken, expected));
    };
    let good = || sent(|_| {});
    let spans = vec![
        good(),
        sent(|span| span.trace_id = vec![0; 16]),
        sent(|span| span.span_id = vec![1; 7]),
        sent(|span| span.parent_span_id = vec![1; 9]),
        sent(|span| span.start_time_unix_nano = 0),
        sent(|span| span.end_time_unix_nano = 9),
        sent(|span| span.attributes = vec![text("big", &"x".repeat(SPAN_BYTES))]),
        good(),
    ];
    check(request("workload", "here", spans), 2, [3, 2, 1, 0]);
    // Ours, in a circle; those of another machine's agent are welcome.
    check(request("obi", "here", vec![good(), good()]), 0, [0, 0, 0, 2]);
    check(request("obi", "there", vec![good()]), 1, [0; 4]);
    let huge = request("workload", &"h".repeat(SPAN_BYTES), vec![good(), good()]);
    check(huge, 0, [0, 0, 2, 0]);
    check(ExportTraceServiceRequest::default(), 0, [0; 4]);
}

#[test]
fn what_is_shown_is_bounded() {
    let attributes = (0..1_000).map(|n| text(&format!("k{n}"), &"v".repeat(2_000))).take(100).collect();
    let long = sent(|span| (span.attributes, span.name) = (attributes, "n".repeat(10_000)));
    let bytes = request("workload", "here", vec![long]).encode_to_vec();
    let Decoded { batch, .. } = decoded(&bytes, Format::Protobuf, &Budget::new(BUDGET)).unwrap();
    let Detail::Sdk(sdk) = &batch.spans[0].span.detail else { panic!("{batch:?}") };
    assert_eq!((sdk.attributes.len(), sdk.name.len()), (SHOWN_ATTRIBUTES, SHOWN_BYTES));
    assert!(sdk.held_bytes() < 40_000, "{}", sdk.held_bytes());
    assert!(batch.spans[0].message.len() > 200_000, "everything is passed on");
}

/// Two bytes of protobuf, or three of JSON, are a span of hundreds once decoded: they are refused before.
#[test]
fn bombs_are_not_decoded() {
    let budget = Budget::new(BUDGET);
    let empty_spans = [0x12, 0].repeat(1 << 20);
    let field = |content: &[u8], number: u8| {
        let mut out = vec![number << 3 | 2];
        prost::encoding::encode_varint(content.len() as u64, &mut out);
        out.extend_from_slice(content);
        out
    };
    let bomb = field(&field(&empty_spans, 2), 1);
    assert_eq!(decoded(&bomb, Format::Protobuf, &budget).unwrap_err(), Refused::TooLarge);
    let json =
        format!(r#"{{"resourceSpans":[{{"scopeSpans":[{{"spans":[{}{{}}]}}]}}]}}"#, "{},".repeat(1 << 20));
    assert_eq!(decoded(json.as_bytes(), Format::Json, &budget).unwrap_err(), Refused::TooLarge);
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    assert_eq!(decoded(deep.as_bytes(), Format::Json, &budget).unwrap_err(), Refused::Malformed);
    assert_eq!(decoded(b"\x0a\xff", Format::Protobuf, &budget).unwrap_err(), Refused::Malformed);
    assert_eq!(budget.used(), 0);
    // Not now, but when others are gone.
    let mut others = budget.share();
    assert!(budget.extend(&mut others, BUDGET - 100));
    let bytes = request("workload", "here", vec![sent(|_| {})]).encode_to_vec();
    assert_eq!(decoded(&bytes, Format::Protobuf, &budget).unwrap_err(), Refused::Busy);
}

proptest! {
    #[test]
    fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300), flips in 0usize..4) {
        let budget = Budget::new(BUDGET);
        let mut valid = request("workload", "here", vec![sent(|_| {})]).encode_to_vec();
        for (nth, byte) in bytes.iter().take(flips).enumerate() {
            let at = (usize::from(*byte) * 7 + nth) % valid.len();
            valid[at] ^= byte;
        }
        for bytes in [&bytes, &valid] {
            for format in [Format::Protobuf, Format::Json] {
                let _ = decoded(bytes, format, &budget);
                for kind in [Kind::Metrics, Kind::Logs] {
                    let bytes = Bytes::copy_from_slice(bytes);
                    let body = Body { bytes, format, budget: &budget, host: "here", finds_requests: true };
                    let _ = body.passed(kind);
                }
            }
        }
        prop_assert_eq!(budget.used(), 0);
    }
}
