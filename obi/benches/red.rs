//! Cost of recording one span, over 16 and over 2,000 series, and in overflow; of a snapshot; of an exposition.

use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use obi::export::Metrics;
use obi::export::prometheus::{Format, encode};
use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, Service, Span, SpanKind};
use obi::stats::Stats;

fn main() {
    divan::main();
}

fn spans(series: u32) -> Vec<Span> {
    let services: Vec<_> = (0..16)
        .map(|id| Arc::new(Service { name: format!("service-{id}"), id, ..Service::default() }))
        .collect();
    let span = |n: u32| Span {
        trace_id: [1; 16],
        span_id: [2; 8],
        parent_span_id: None,
        trace_flags: 0,
        sampled: true,
        trace_state: String::new(),
        exchange: 1,
        kind: if n.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client },
        start: 1_700_000_000_000_000_000,
        end: 1_700_000_000_000_000_000 + u64::from(n) * 3_000_000,
        queue_wait: 10_000,
        pid: 1,
        service: Arc::clone(&services[n as usize % services.len()]),
        detail: Detail::Http(Http {
            method: "GET",
            path: "/api/v1/item/17".to_owned(),
            scheme: "http",
            route: Arc::from(format!("/api/v1/{n}/item/{{id}}")),
            version: "1.1",
            status: Some(200),
            server_address: format!("host-{n}.example"),
            server_port: 8080,
            ..Http::default()
        }),
    };
    let mut spans: Vec<_> = (0..series).map(span).collect();
    fastrand::Rng::with_seed(7).shuffle(&mut spans);
    spans
}

fn registry(limit: usize, spans: &[Span]) -> Registry {
    let mut registry = Registry::new(Limits { series: limit, ..Limits::default() });
    spans.iter().for_each(|span| registry.record(span));
    registry
}

#[divan::bench(args = [(16, 10_000), (2_000, 10_000), (2_000, 500)])]
fn record(bencher: Bencher<'_, '_>, (series, limit): (u32, usize)) {
    let spans = spans(series);
    let mut registry = registry(limit, &spans);
    bencher.counter(ItemsCount::new(spans.len())).bench_local(|| {
        for span in &spans {
            registry.record(divan::black_box(span));
        }
    });
}

#[divan::bench(args = [100, 8_000])]
fn snapshot(bencher: Bencher<'_, '_>, series: u32) {
    let mut registry = registry(10_000, &spans(series));
    bencher.bench_local(|| registry.snapshot());
}

#[divan::bench(args = [100, 8_000])]
fn exposition(bencher: Bencher<'_, '_>, series: u32) {
    let mut registry = registry(10_000, &spans(series));
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    bencher.bench_local(|| encode(&metrics, Format::OpenMetrics, None));
}
