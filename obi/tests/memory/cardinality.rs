//! A million distinct URLs at fifty services: series and memory stay bounded, and every service's error ratio is exact.
//!
//! It measures the resident memory of its process, alone. Exchanges go through the real assembler into the registry,
//! without a kernel; a second run takes every URL for a route, as if nothing had made templates of them.

use std::collections::HashMap;
use std::fs;
use std::net::SocketAddr;
use std::sync::Arc;

use obi::export::Metrics;
use obi::export::prometheus::{Exposition, Format};
use obi::protocol::{Endpoints, Exchange, Http, Message, Request, Response, Semantics, Side};
use obi::red::{Limits, Registry};
use obi::span::{Assembler, Detail, Service, Span, assemble::DEFAULT_ROUTES, method::KnownMethods};
use obi::stats::Stats;

const URLS: u64 = 1_000_000;
/// Of them, when every URL is a route of its own: the budget is spent after a hundredth of these.
const RAW_URLS: u64 = 250_000;
const SERVICES: u32 = 50;
const GROWTH: u64 = 20 << 20;

/// Distinct URLs in the shapes that applications make them: identifiers, words, both, at any depth.
fn url(n: u64) -> String {
    let scrambled = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    // Every service has all of them.
    match n / u64::from(SERVICES) % 4 {
        0 => format!("/api/v1/orders/{n}"),
        1 => format!("/files/{scrambled:016x}/{n}"),
        2 => format!("/wiki/Page_about_{}_{n}", ["trains", "ships", "birds"][(n % 3) as usize]),
        _ => format!("/{}/{}/{n}", letters(scrambled), letters(scrambled >> 32)),
    }
}

fn letters(mut number: u64) -> String {
    let mut word = String::new();
    for _ in 0..5 {
        word.push(char::from(b'a' + (number % 26) as u8));
        number /= 26;
    }
    word
}

fn resident_bytes() -> u64 {
    let statm = fs::read_to_string("/proc/self/statm").expect("procfs");
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).expect("resident pages");
    pages * rustix::param::page_size() as u64
}

/// One in so many requests of a service fails.
fn fails(service: u32, n: u64) -> bool {
    (n / u64::from(SERVICES)).is_multiple_of(u64::from(service) + 2)
}

fn exchange(url: &str, failed: bool, n: u64) -> Exchange<'_> {
    let address = SocketAddr::from(([127, 0, 0, 1], 8080));
    let started = 1_000_000_000 + n * 1_000;
    Exchange {
        number: n << 24,
        side: Side::Server,
        tgid: 7,
        tid: 7,
        cause: obi::protocol::Cause::default(),
        answerer: None,
        endpoints: Endpoints::Ip { local: address, remote: SocketAddr::from(([127, 0, 0, 1], 40_000)) },
        arrival: started,
        started,
        ended: started + (n % 997) * 100_000,
        times: None,
        request_bytes: Some(0),
        response_bytes: Some(n % 5_000),
        failure: None,
        encrypted: false,
        message: Message::Http(Http {
            request: Request { method: "GET", path: url, host: "shop", ..Request::default() },
            response: Some(Response { status: Some(if failed { 500 } else { 200 }) }),
            semantics: Semantics::Http,
        }),
    }
}

fn run(before: u64, urls: u64, raw_routes: bool) {
    let services: Vec<_> = (0..SERVICES)
        .map(|id| Arc::new(Service { name: format!("service-{id}"), id, ..Service::default() }))
        .collect();
    let mut assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
    let limits = Limits::default();
    let mut registry = Registry::new(limits);
    let mut span = Span::blank();
    let mut expected = HashMap::<u32, (u64, u64)>::new();
    for n in 0..urls {
        let service = (n % u64::from(SERVICES)) as u32;
        let (url, failed) = (url(n), fails(service, n));
        assembler.assemble(
            &exchange(&url, failed, n),
            &services[service as usize],
            1_700_000_000_000_000_000,
            &mut span,
        );
        if raw_routes {
            let Detail::Http(http) = &mut span.detail else { unreachable!("all are requests") };
            http.route = Arc::from(url);
        }
        registry.record(&span);
        let counts = expected.entry(service).or_default();
        counts.0 += 1;
        counts.1 += u64::from(failed);
    }
    let snapshot = registry.snapshot();
    let after = resident_bytes();
    let (series, growth) = (snapshot.series(), after.saturating_sub(before));
    println!(
        "{urls} URLs, raw routes: {raw_routes}; series {series} of {}; resident memory + {} KiB",
        limits.series,
        growth >> 10
    );
    assert!(series <= limits.series, "{series} series");
    assert!(growth <= GROWTH, "{growth} bytes more");

    let mut requests = HashMap::<u32, (u64, u64)>::new();
    for series in &snapshot.requests {
        let counts = requests.entry(series.labels.service.id).or_default();
        let n = series.counts.duration.buckets.count();
        counts.0 += n;
        counts.1 += if series.labels.error_type.is_empty() { 0 } else { n };
    }
    assert_eq!(requests, expected, "requests and errors by service");
    let mut spans = HashMap::<u32, (u64, u64)>::new();
    for series in &snapshot.spans {
        let counts = spans.entry(series.labels.service.id).or_default();
        let n = series.counts.buckets.count();
        counts.0 += n;
        counts.1 += if series.labels.status == obi::span::Status::Error { n } else { 0 };
    }
    assert_eq!(spans, expected, "spans and errors by service");
    let held: Vec<_> = snapshot.usage.shares.iter().map(|share| share.series).collect();
    let (fewest, most) = (held.iter().min().expect("services"), held.iter().max().expect("services"));
    println!("series per service: {fewest} to {most}");
    assert!(*fewest * 10 >= *most * 8, "equal demand, equal parts: {fewest} to {most}");

    drop(snapshot);
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let bytes: usize = Exposition::new(metrics, Format::OpenMetrics, None).map(|piece| piece.len()).sum();
    let growth = resident_bytes().saturating_sub(before);
    println!("a scrape of {} KiB; resident memory + {} KiB", bytes >> 10, growth >> 10);
    assert!(growth <= GROWTH, "{growth} bytes more while scraped");
}

#[test]
fn a_million_urls_are_bounded() {
    let before = resident_bytes();
    run(before, URLS, false);
    run(before, RAW_URLS, true);
}
