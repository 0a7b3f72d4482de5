//! How long the page takes to answer, with 100 services, 10,000 series and two hours of history.
//!
//! In: a registry and a store as full as they get by default, and a thread that owns them, as in the agent. Out: time
//! per answer of each screen, from the request to the last byte of its HTML; 100 ms are promised. Run with
//! `cargo bench -p obi --bench page`.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};

use axum::body::{Body, HttpBody as _};
use axum::http::Request;
use divan::Bencher;
use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, ServerEnd, Service, Span, SpanKind};
use obi::span_store::{Limits as StoreLimits, Store};
use obi::stats::Stats;
use obi::web::handle::{Command, Handle, Sources};
use obi::web::{State, router};
use tokio::sync::mpsc;
use tower_service::Service as _;

/// Services, each as a server and as a client.
const SERVICES: u32 = 100;
/// Each in a series of requests and one of spans: together 10,000.
const ROUTES: u32 = 33;
const SERIES_LIMIT: usize = 16_000;
/// Two hours of history.
const TICKS: u64 = 720;
const TICK: u64 = 10_000_000_000;
const BEGUN: u64 = 1_700_000_000_000_000_000;
const SPANS_PER_TICK: usize = 500;

fn main() {
    divan::main();
}

fn spans() -> Vec<Span> {
    let services: Vec<_> = (0..SERVICES)
        .map(|id| Arc::new(Service { name: format!("service-{id}"), id, ..Service::default() }))
        .collect();
    let span = |n: u32| Span {
        trace_id: (u128::from(n / 4) + 1).to_be_bytes(),
        span_id: (u64::from(n) + 1).to_be_bytes(),
        kind: if n.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client },
        pid: 1 + n % SERVICES,
        service: Arc::clone(&services[(n / 2 % SERVICES) as usize]),
        server: ServerEnd { address: format!("service-{}", n % SERVICES), port: 8080 },
        detail: Detail::Http(Http {
            method: "GET",
            path: format!("/api/v1/{}/item/17", n % ROUTES),
            scheme: "http",
            route: Arc::from(format!("/api/v1/{}/item/{{id}}", n / 2 / SERVICES)),
            version: "1.1",
            status: Some(200),
            ..Http::default()
        }),
        ..Span::blank()
    };
    (0..2 * SERVICES * ROUTES).map(span).collect()
}

/// An agent that has seen two hours.
fn fill(registry: &mut Registry, store: &mut Store) {
    let spans = spans();
    let mut next = spans.iter().cycle();
    let mut dice = fastrand::Rng::with_seed(7);
    for tick in 0..TICKS {
        let now = BEGUN + tick * TICK;
        // All of them in the first one.
        for _ in 0..if tick == 0 { spans.len() } else { SPANS_PER_TICK } {
            let mut span = next.next().expect("it goes round").clone();
            span.start = now + dice.u64(..TICK / 2);
            span.end = span.start + dice.u64(100_000..50_000_000);
            registry.record(&span);
            store.push(span);
        }
        registry.advance(now + TICK);
    }
}

/// The page over a thread that owns everything; one for all screens.
fn page() -> axum::Router {
    static PAGE: OnceLock<axum::Router> = OnceLock::new();
    PAGE.get_or_init(start).clone()
}

fn start() -> axum::Router {
    let (sender, mut receiver) = mpsc::channel::<Command>(4);
    std::thread::spawn(move || {
        let mut registry = Registry::new(Limits { series: SERIES_LIMIT, ..Limits::default() });
        let (mut stats, mut store) = (Stats::default(), Store::new(StoreLimits::default()));
        fill(&mut registry, &mut store);
        assert!((9_500..10_500).contains(&registry.snapshot().series()), "{}", registry.snapshot().series());
        while let Some(command) = receiver.blocking_recv() {
            command.answer(&mut Sources { registry: &mut registry, stats: &mut stats, store: &store });
        }
    });
    router(State::new(Handle::new(sender, Arc::new(|| ())), Arc::new(AtomicBool::new(true))))
}

async fn ask(page: &mut axum::Router, path: &str) -> usize {
    let request = Request::get(path).header("accept", "text/html").body(Body::empty());
    let request = request.expect("the path is valid");
    let answer = page.call(request).await.expect("a router cannot fail");
    assert!(answer.status().is_success(), "{path}: {}", answer.status());
    let mut body = answer.into_body();
    let mut bytes = 0;
    while let Some(frame) =
        std::future::poll_fn(|context| std::pin::Pin::new(&mut body).poll_frame(context)).await
    {
        bytes += frame.expect("it is made in memory").data_ref().map_or(0, |data| data.len());
    }
    bytes
}

#[divan::bench(
    sample_count = 30,
    args = [
        "/", "/?range=all", "/services/-/service-17",  "/spans",
        "/spans?min_duration_ms=40", "/spans?from=1700007100&min_duration_ms=40", "/traces/00000000000000000000000000000001",
        "/traces/00000000000000000000000000000001/0000000000000001", "/slos", "/api/v1/traces", "/map", "/agent", "/metrics", "/api/v1/status", "/healthz",
    ]
)]
fn screen(bencher: Bencher<'_, '_>, path: &str) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime can be made");
    let mut page = page();
    runtime.block_on(async {
        // It answers once everything is in; that may take longer than an answer may.
        while page
            .call(Request::get("/api/v1/status").body(Body::empty()).expect("it is valid"))
            .await
            .is_ok_and(|answer| !answer.status().is_success())
        {}
    });
    bencher.bench_local(|| runtime.block_on(ask(&mut page, path)));
}
