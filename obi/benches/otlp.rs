//! Spans to a local OTLP/gRPC receiver: what the exporter costs, on one core.
//!
//! In: spans of a small API. Out: spans per second of CPU of the exporter (sampling, encoding, gathering, gRPC,
//! sending); the receiver runs on another thread, whose CPU is not counted. Beside it, what encoding alone costs, and
//! what it would cost with the generated types. Run with `cargo bench -p obi --bench otlp`.

#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a benchmark prints, and fails by panicking")]

use std::hint::black_box;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use obi::config::export::{Compression, Export, OtlpDestination, Protocol, Signal};
use obi::export::otlp::{Plan, SpanExport};
use obi::span::{AttributeValue, ClientEnd, Detail, Http, ServerEnd, Service, Span, SpanKind, Status};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1 as otlp;
use prost::Message as _;
use rustix::time::{ClockId, clock_gettime};
use tonic::codec::CompressionEncoding;

/// Spans that are made once and sent over and over.
const DISTINCT: usize = 1_024;
const ENCODED: usize = 2_000_000;
const SENT: usize = 1_000_000;
const ROUNDS: usize = 5;

fn main() {
    let mut spans = spans();
    let bytes = generated(&spans).encoded_len() / DISTINCT;
    println!("OTLP, {bytes} bytes per span, CPU of the exporter, median of {ROUNDS}");
    row("encode with the generated types", || per_second(ENCODED / 4, || encode_generated(&spans)));
    row("sample, encode, gather", || {
        let mut span_export = Plan::new(&export(SocketAddr::from(([127, 0, 0, 1], 1)), Compression::None), 1)
            .unwrap()
            .span_export;
        per_second(ENCODED, || offer(&mut span_export, &mut spans))
    });
    for (name, compression) in [("gRPC, whole way", Compression::None), ("gRPC with gzip", Compression::Gzip)]
    {
        let receiver = receiver();
        row(name, || send(&mut spans, &receiver, compression));
    }
}

fn row(name: &str, mut measure: impl FnMut() -> f64) {
    let mut found: Vec<f64> = (0..ROUNDS).map(|_| measure()).collect();
    found.sort_by(f64::total_cmp);
    println!("{name:<36} {:>10.0} spans/s", found[ROUNDS / 2]);
}

/// CPU time of this thread.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(u64::try_from(time.tv_sec).unwrap(), u32::try_from(time.tv_nsec).unwrap())
}

/// Calls `round`, which handles [`DISTINCT`] spans, until there were `n`.
fn per_second(n: usize, mut round: impl FnMut()) -> f64 {
    let rounds = n / DISTINCT;
    let before = cpu();
    (0..rounds).for_each(|_| round());
    (rounds * DISTINCT) as f64 / (cpu() - before).as_secs_f64()
}

fn offer(span_export: &mut SpanExport, spans: &mut [Span]) {
    for span in spans {
        let span = black_box(span);
        let kept = span_export.sample(span).expect("nothing is sampled away");
        span_export.push(span, kept);
    }
}

/// Encodes, sends and awaits the answers on this thread alone.
fn send(spans: &mut [Span], receiver: &Receiver, compression: Compression) -> f64 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut span_export, exporter) =
            Plan::new(&export(receiver.address, compression), 1).unwrap().start();
        let seen = receiver.n_spans.load(Ordering::Relaxed);
        let (before, begun) = (cpu(), Instant::now());
        let rounds = SENT / DISTINCT;
        for _ in 0..rounds {
            offer(&mut span_export, spans);
            // The queue is not to overflow: what is lost costs nothing.
            while span_export.lanes()[0].queued_items > 60_000 {
                tokio::time::sleep(Duration::from_micros(200)).await;
            }
            tokio::task::yield_now().await;
        }
        span_export.flush();
        drop(span_export);
        exporter.finish(Duration::from_secs(60)).await;
        let (used, took) = (cpu() - before, begun.elapsed());
        let n = receiver.n_spans.load(Ordering::Relaxed) - seen;
        assert_eq!(n, (rounds * DISTINCT) as u64, "every span arrives");
        eprintln!("  {:.0} spans/s on the clock", n as f64 / took.as_secs_f64());
        n as f64 / used.as_secs_f64()
    })
}

fn export(address: SocketAddr, compression: Compression) -> Export {
    let destination = OtlpDestination {
        endpoint: Some(format!("http://{address}")),
        protocol: Protocol::Grpc,
        signals: vec![Signal::Traces],
        compression,
        batch_delay: Duration::from_millis(10),
        // Items are what `send` waits for.
        queue_bytes: 256 << 20,
        ..OtlpDestination::default()
    };
    Export { otlp: vec![destination], ..Export::default() }
}

/// A small API: ten routes, one answer in fifty an error.
fn spans() -> Vec<Span> {
    let service =
        Arc::new(Service { name: "orders".to_owned(), namespace: "shop".to_owned(), ..Service::default() });
    let routes: Vec<Arc<str>> = (0..10).map(|n| format!("/api/v1/things{n}/{{id}}/items").into()).collect();
    let span = |number: usize| {
        let random = (number as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let failed = number.is_multiple_of(50);
        let mut span = Span::blank();
        span.trace_id = (u128::from(random) << 64 | u128::from(!random)).to_be_bytes();
        span.span_id = random.to_be_bytes();
        span.trace_flags = 3;
        span.kind = if number.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client };
        span.start = 1_800_000_000_000_000_000 + number as u64 * 1_000;
        span.end = span.start + 3_000_000 + random % 1_000_000;
        span.queue_wait = 20_000;
        span.service = Arc::clone(&service);
        span.error_type = if failed { "503" } else { "" };
        span.server = ServerEnd { address: "orders.internal".to_owned(), port: 8080 };
        span.client = ClientEnd { address: Some("10.1.2.3".parse().unwrap()), port: 40_000 };
        span.response_bytes = Some(2_048);
        span.detail = Detail::Http(Http {
            method: "GET",
            path: format!("/api/v1/things{}/{number}/items", number % 10),
            query: "limit=REDACTED".to_owned(),
            scheme: "http",
            route: Arc::clone(&routes[number % 10]),
            version: "1.1",
            status: Some(if failed { 503 } else { 200 }),
            user_agent: "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36".to_owned(),
            ..Http::default()
        });
        span
    };
    (0..DISTINCT).map(span).collect()
}

fn encode_generated(spans: &[Span]) {
    black_box(generated(black_box(spans)).encode_to_vec());
}

fn generated(spans: &[Span]) -> ExportTraceServiceRequest {
    let spans = spans.iter().map(generated_span).collect();
    let scope = otlp::ScopeSpans { spans, ..otlp::ScopeSpans::default() };
    let resource = otlp::ResourceSpans { scope_spans: vec![scope], ..otlp::ResourceSpans::default() };
    ExportTraceServiceRequest { resource_spans: vec![resource] }
}

fn generated_span(span: &Span) -> otlp::Span {
    let mut attributes = Vec::new();
    span.attributes(|key, value| {
        let value = match value {
            AttributeValue::Int(number) => Value::IntValue(number),
            other => Value::StringValue(other.to_string()),
        };
        let value = Some(AnyValue { value: Some(value) });
        attributes.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    });
    otlp::Span {
        trace_id: span.trace_id.to_vec(),
        span_id: span.span_id.to_vec(),
        flags: 0x101,
        name: span.name().to_string(),
        kind: 2,
        start_time_unix_nano: span.start,
        end_time_unix_nano: span.end,
        attributes,
        status: (span.status() == Status::Error).then(otlp::Status::default),
        ..otlp::Span::default()
    }
}

struct Receiver {
    address: SocketAddr,
    n_spans: Arc<AtomicU64>,
}

struct Count(Arc<AtomicU64>);

#[tonic::async_trait]
impl TraceService for Count {
    async fn export(
        &self,
        request: tonic::Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, tonic::Status> {
        let scopes = request.get_ref().resource_spans.iter().flat_map(|resource| &resource.scope_spans);
        let n: usize = scopes.map(|scope| scope.spans.len()).sum();
        self.0.fetch_add(n as u64, Ordering::Relaxed);
        Ok(ExportTraceServiceResponse::default().into())
    }
}

/// A real gRPC server on a thread of its own, until the benchmark ends.
fn receiver() -> Receiver {
    let n_spans = Arc::new(AtomicU64::new(0));
    let service =
        TraceServiceServer::new(Count(Arc::clone(&n_spans))).accept_compressed(CompressionEncoding::Gzip);
    let (sender, address) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
            sender.send(listener.local_addr().unwrap()).unwrap();
            let router = tonic::service::Routes::new(service).into_axum_router();
            axum::serve(listener, router).await.unwrap();
        });
    });
    Receiver { address: address.recv().unwrap(), n_spans }
}
