//! The listeners, asked over real sockets by good senders and by bad ones.

use std::io::Write as _;
use std::net::SocketAddr;
use std::time::Duration;

use flate2::write::GzEncoder;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_client::MetricsServiceClient;
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_client::TraceServiceClient;
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    Gauge, Metric, NumberDataPoint, ResourceMetrics, ScopeMetrics,
};
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span};
use prost::Message as _;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, ServerName};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tonic::Code;
use tonic::codec::CompressionEncoding;
use tonic_types::StatusExt as _;

use super::*;
use crate::config::{Config, OtlpReceiver};

const TOKEN: &str = "0123456789abcdef";

/// Listeners, and what comes out of them.
struct World {
    grpc: SocketAddr,
    http: SocketAddr,
    inlets: Inlets,
    listeners: Listeners,
}

/// `more` is YAML beside the addresses.
fn config(more: &str) -> OtlpReceiver {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = format!("receive: {{otlp: {{grpc: '127.0.0.1:0', http: '127.0.0.1:0'{more}}}}}");
    std::fs::write(file.path(), text).unwrap();
    let config: Config = crate::config::load(Some(file.path())).unwrap();
    config.receive.otlp
}

async fn world(more: &str) -> World {
    let (plan, inlets) = Plan::new(&config(more), "here".to_owned()).await.unwrap().unwrap();
    let [grpc, http] = plan.addresses().unwrap().try_into().unwrap();
    let listeners = plan.start(Arc::new(|kind| kind != Kind::Logs), Arc::new(|| {}));
    World { grpc, http, inlets, listeners }
}

fn spans(n: usize) -> ExportTraceServiceRequest {
    let span = |nth: usize| Span {
        trace_id: vec![7; 16],
        span_id: (nth as u64 + 1).to_be_bytes().to_vec(),
        name: "work".to_owned(),
        start_time_unix_nano: 1,
        end_time_unix_nano: 2,
        ..Span::default()
    };
    let scope = ScopeSpans { spans: (0..n).map(span).collect(), ..ScopeSpans::default() };
    let resource = ResourceSpans { scope_spans: vec![scope], ..ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource] }
}

fn points(n: usize) -> ExportMetricsServiceRequest {
    let gauge = Gauge { data_points: vec![NumberDataPoint::default(); n] };
    let metric = Metric { name: "m".to_owned(), data: Some(Data::Gauge(gauge)), ..Metric::default() };
    let scope = ScopeMetrics { metrics: vec![metric], ..ScopeMetrics::default() };
    let resource = ResourceMetrics { scope_metrics: vec![scope], ..ResourceMetrics::default() };
    ExportMetricsServiceRequest { resource_metrics: vec![resource] }
}

fn packed(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::best());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// A request as it stands, its answer's head and body. A server may answer and close before it has read everything.
async fn ask(address: SocketAddr, head: &str, body: &[u8]) -> (u16, String, Vec<u8>) {
    let mut stream = TcpStream::connect(address).await.unwrap();
    let head = format!("{head}\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    let _ = stream.write_all(body).await;
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    let end = answer.windows(4).position(|window| window == b"\r\n\r\n").expect("an answer with a head");
    let head = String::from_utf8(answer[..end].to_vec()).unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, head, answer[end + 4..].to_vec())
}

const PROTOBUF: &str = "POST /v1/traces HTTP/1.1\r\ncontent-type: application/x-protobuf";

#[tokio::test]
async fn http_answers_as_the_specification_says() {
    let mut world = world("").await;
    let good = spans(3).encode_to_vec();
    let json = serde_json::to_vec(&spans(2)).unwrap();
    let metrics = points(5).encode_to_vec();
    let bomb = packed(&vec![0; 100 << 20]);
    let gzip = format!("{PROTOBUF}\r\ncontent-encoding: gzip");
    let as_json = "POST /v1/traces HTTP/1.1\r\ncontent-type: application/json; charset=utf-8";
    let cases: [(&str, &[u8], u16); 14] = [
        (PROTOBUF, &good, 200),
        (&gzip, &packed(&good), 200),
        (as_json, &json, 200),
        ("POST /v1/metrics HTTP/1.1\r\ncontent-type: application/x-protobuf", &metrics, 200),
        ("POST /v1/logs HTTP/1.1\r\ncontent-type: application/x-protobuf", b"", 404),
        ("POST /v1/profiles HTTP/1.1\r\ncontent-type: application/x-protobuf", b"", 404),
        ("GET /v1/traces HTTP/1.1\r\ncontent-type: application/x-protobuf", b"", 405),
        ("POST /v1/traces HTTP/1.1\r\ncontent-type: text/plain", &good, 415),
        (&gzip.replace("gzip", "br"), &good, 415),
        (PROTOBUF, b"\xff\xff", 400),
        (as_json, b"{", 400),
        (&gzip, &good, 400),
        (PROTOBUF, &vec![0; 5 << 20], 413),
        (&gzip, &bomb, 413),
    ];
    for (head, body, expected) in cases {
        let (status, answered, _) = ask(world.http, head, body).await;
        assert_eq!(status, expected, "{head}: {answered}");
        let is_json = head.contains("json");
        let format = if is_json { "content-type: application/json" } else { "application/x-protobuf" };
        assert!(answered.contains(format), "{answered}");
    }
    let mut taken = 0;
    while let Ok(batch) = world.inlets.batches.try_recv() {
        taken += batch.spans.len();
    }
    assert_eq!(taken, 3 + 3 + 2);
    let passed = world.inlets.passed.try_recv().unwrap();
    assert_eq!((passed.kind, passed.n_items, &*passed.bytes), (Kind::Metrics, 5, &*metrics));
    drop(passed);
    let view = world.inlets.counts.view(0, 0);
    assert_eq!(view.requests, [("traces", 3), ("metrics", 1), ("logs", 0)]);
    let refused = [("too_large", 2), ("malformed", 3), ("unsupported", 5)];
    assert!(refused.iter().all(|it| view.refused.contains(it)), "{view:?}");
    assert_eq!(view.bytes, 0, "all memory is given back");
    world.listeners.finish().await;
    assert!(TcpStream::connect(world.http).await.is_err());
}

#[tokio::test]
async fn a_part_is_rejected_with_its_reasons() {
    let world = world("").await;
    let mut request = spans(4);
    let bad = &mut request.resource_spans[0].scope_spans[0].spans;
    bad[1].trace_id.clear();
    bad[2].end_time_unix_nano = 0;
    let (status, _, body) = ask(world.http, PROTOBUF, &request.encode_to_vec()).await;
    let partial = ExportTraceServiceResponse::decode(&*body).unwrap().partial_success.unwrap();
    assert_eq!((status, partial.rejected_spans), (200, 2));
    assert_eq!(partial.error_message, "ids: 1, times: 1");
    let json = serde_json::to_vec(&request).unwrap();
    let head = "POST /v1/traces HTTP/1.1\r\ncontent-type: application/json";
    let (_, _, body) = ask(world.http, head, &json).await;
    let body = String::from_utf8(body).unwrap();
    assert!(body.contains(r#""rejectedSpans":"2""#) || body.contains(r#""rejectedSpans":2"#), "{body}");
}

#[tokio::test]
async fn grpc_is_spoken() {
    let mut world = world("").await;
    let url = format!("http://{}", world.grpc);
    let mut client = TraceServiceClient::connect(url.clone()).await.unwrap();
    let answer = client.export(spans(3)).await.unwrap().into_inner();
    assert_eq!(answer, ExportTraceServiceResponse::default());
    let mut packing = client.send_compressed(CompressionEncoding::Gzip);
    packing.export(spans(4)).await.unwrap();
    let mut client = MetricsServiceClient::connect(url.clone()).await.unwrap();
    let answer = client.export(points(2)).await.unwrap().into_inner();
    assert_eq!(answer, ExportMetricsServiceResponse::default());
    let n_spans = [world.inlets.batches.recv().await, world.inlets.batches.recv().await];
    assert_eq!(n_spans.map(|batch| batch.unwrap().spans.len()), [3, 4]);
    // Larger than it may be, decoded: not to be sent again.
    let huge = ExportTraceServiceRequest { resource_spans: vec![ResourceSpans::default(); 1 << 18] };
    let error = packing.export(huge).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    assert!(error.get_details_retry_info().is_none());
}

#[tokio::test]
async fn senders_are_asked_to_come_again_when_the_pipeline_is_behind() {
    let mut world = world("").await;
    let body = spans(1).encode_to_vec();
    let mut n_taken = 0;
    let refused = loop {
        match ask(world.http, PROTOBUF, &body).await {
            (200, ..) => n_taken += 1,
            refused => break refused,
        }
        assert!(n_taken < 1_000, "nothing is bounded");
    };
    assert_eq!((refused.0, refused.1.contains("retry-after: 1")), (429, true), "{refused:?}");
    let mut client = TraceServiceClient::connect(format!("http://{}", world.grpc)).await.unwrap();
    let error = client.export(spans(1)).await.unwrap_err();
    assert_eq!(error.code(), Code::ResourceExhausted);
    let info = error.get_details_retry_info().unwrap();
    assert_eq!(info.retry_delay, Some(Duration::from_secs(1)));
    // Nothing is lost of what was taken, and there is room again.
    for _ in 0..n_taken {
        world.inlets.batches.recv().await.unwrap();
    }
    assert_eq!(ask(world.http, PROTOBUF, &body).await.0, 200);
}

#[tokio::test]
async fn the_token_is_asked_for() {
    let world = world(&format!(", token: {TOKEN}")).await;
    let body = spans(1).encode_to_vec();
    for (said, expected) in [
        ("", 401),
        ("\r\nauthorization: Bearer 0123456789abcdeg", 401),
        ("\r\nauthorization: Bearer 0123456789abcdef0", 401),
        ("\r\nauthorization: Basic 0123456789abcdef", 401),
        ("\r\nauthorization: Bearer 0123456789abcdef", 200),
        ("\r\nAuthorization: bearer 0123456789abcdef", 200),
    ] {
        assert_eq!(ask(world.http, &format!("{PROTOBUF}{said}"), &body).await.0, expected, "{said}");
    }
    let mut client = TraceServiceClient::connect(format!("http://{}", world.grpc)).await.unwrap();
    assert_eq!(client.export(spans(1)).await.unwrap_err().code(), Code::Unauthenticated);
    let mut request = tonic::Request::new(spans(1));
    request.metadata_mut().insert("authorization", format!("Bearer {TOKEN}").parse().unwrap());
    client.export(request).await.unwrap();
}

#[tokio::test]
async fn tls_is_spoken() {
    let files = integration::otlp::certificate::Certificates::new().unwrap();
    let [cert, key, ca] = ["server.pem", "server.key", "ca.pem"].map(|name| files.path(name));
    let more = format!(", cert_file: {}, key_file: {}", cert.display(), key.display());
    let world = world(&more).await;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut roots = rustls::RootCertStore::empty();
    roots.add(CertificateDer::from_pem_file(ca).unwrap()).unwrap();
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let stream = TcpStream::connect(world.http).await.unwrap();
    let name = ServerName::try_from("127.0.0.1").unwrap();
    let mut stream = tokio_rustls::TlsConnector::from(Arc::new(client)).connect(name, stream).await.unwrap();
    let body = spans(1).encode_to_vec();
    let head =
        format!("{PROTOBUF}\r\nhost: a\r\nconnection: close\r\ncontent-length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).await.unwrap();
    stream.write_all(&body).await.unwrap();
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer).await;
    assert!(answer.starts_with(b"HTTP/1.1 200"), "{answer:?}");
    // Who does not speak it gets no answer that could be taken for one.
    let mut plain = TcpStream::connect(world.http).await.unwrap();
    plain.write_all(head.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert!(!answer.starts_with(b"HTTP"), "{answer:?}");
}

#[tokio::test]
async fn a_bad_certificate_or_a_taken_address_stops_the_start() {
    let more = ", cert_file: /nowhere/a.pem, key_file: /nowhere/a.key";
    let error = Plan::new(&config(more), String::new()).await.unwrap_err().to_string();
    assert!(error.starts_with("receive.otlp.cert_file: failed to use `/nowhere/a.pem`"), "{error}");
    let world = world("").await;
    let taken = OtlpReceiver { http: Some(world.http), ..OtlpReceiver::default() };
    let error = Plan::new(&taken, String::new()).await.unwrap_err().to_string();
    assert!(error.starts_with("receive.otlp.http: failed to listen on `127.0.0.1:"), "{error}");
    assert!(Plan::new(&OtlpReceiver::default(), String::new()).await.unwrap().is_none());
}

/// Slow ones take no one's place for long, and too many are sent away.
#[tokio::test]
async fn idle_and_slow_connections_are_ended() {
    let world = world("").await;
    let mut silent = Vec::new();
    for _ in 0..600 {
        silent.push(TcpStream::connect(world.http).await.unwrap());
    }
    let mut slow = TcpStream::connect(world.grpc).await.unwrap();
    slow.write_all(b"PRI * HT").await.unwrap();
    let refused =
        || world.inlets.counts.view(0, 0).refused.iter().find(|it| it.0 == "connections").unwrap().1;
    let begun = std::time::Instant::now();
    while refused() < 600 - 512 {
        assert!(begun.elapsed() < Duration::from_secs(20), "{} refused", refused());
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(refused(), 600 - 512);
    // After their time, all have gone, and others are served.
    for mut stream in silent.into_iter().chain([slow]) {
        let mut answer = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(30), stream.read_to_end(&mut answer)).await;
        assert!(read.is_ok(), "it is still open");
    }
    assert_eq!(ask(world.http, PROTOBUF, &spans(1).encode_to_vec()).await.0, 200);
}

/// A body that comes a byte at a time.
#[tokio::test]
async fn a_body_that_does_not_come_is_not_waited_for() {
    let world = world("").await;
    let mut stream = TcpStream::connect(world.http).await.unwrap();
    let head = format!("{PROTOBUF}\r\nhost: a\r\ncontent-length: 1000\r\n\r\n");
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 12];
    let dripping = async {
        let (mut reader, mut writer) = stream.split();
        let drip = async {
            loop {
                let _ = writer.write_all(b"x").await;
                tokio::time::sleep(Duration::from_millis(200)).await;
            }
        };
        tokio::select! {
            read = reader.read_exact(&mut answer) => read.map(|_| ()),
            () = drip => Ok(()),
        }
    };
    tokio::time::timeout(Duration::from_secs(30), dripping).await.unwrap().unwrap();
    assert_eq!(&answer, b"HTTP/1.1 408");
}
