//! Cost of recording one span, over 16 and over 2,000 label sets, and in overflow; of a snapshot; of an exposition in
//! every format.

use std::sync::Arc;

use divan::Bencher;
use divan::counter::{BytesCount, ItemsCount};
use obi::export::Metrics;
use obi::export::prometheus::{Exposition, Format};
use obi::red::{Limits, Registry};
use obi::span::{Detail, Http, ServerEnd, Service, Span, SpanKind};
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
        kind: if n.is_multiple_of(2) { SpanKind::Server } else { SpanKind::Client },
        start: 1_700_000_000_000_000_000,
        end: 1_700_000_000_000_000_000 + u64::from(n) * 3_000_000,
        queue_wait: 10_000,
        pid: 1,
        service: Arc::clone(&services[n as usize % services.len()]),
        server: ServerEnd { address: format!("host-{n}.example"), port: 8080 },
        detail: Detail::Http(Http {
            method: "GET",
            path: "/api/v1/item/17".to_owned(),
            scheme: "http",
            route: Arc::from(format!("/api/v1/{n}/item/{{id}}")),
            version: "1.1",
            status: Some(200),
            ..Http::default()
        }),
        ..Span::blank()
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

/// What a scrape costs, exemplars included: with label sets enough for 10,000 series, and for 170,000, which are 10,000
/// histograms.
#[divan::bench(args = [Format::OpenMetrics, Format::Text, Format::Protobuf], consts = [10_000, 170_000])]
fn exposition<const SERIES: u32>(bencher: Bencher<'_, '_>, format: Format) {
    // A label set is a histogram of requests (15 buckets, sum, count), one of spans, and a counter of spans.
    const SERIES_OF_A_LABEL_SET: u32 = 17 + 18;
    let mut spans = spans(SERIES.div_ceil(SERIES_OF_A_LABEL_SET));
    let mut registry = registry(100_000, &spans);
    // An exemplar in each of several buckets, as traffic leaves them.
    for slower in [2, 5, 20] {
        for span in &mut spans {
            span.end = span.start + (span.end - span.start) * slower + 4_000_000;
            registry.record(span);
        }
    }
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let whole = || Exposition::new(Arc::clone(&metrics), format, None);
    let bytes: usize = whole().map(|piece| piece.len()).sum();
    bencher
        .counter(BytesCount::new(bytes))
        .bench_local(|| whole().for_each(|piece| drop(divan::black_box(piece))));
}
