//! Tests of the registry, and the span builder that tests of the stages to the right use too.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

/// 2023-11-14T22:13:20Z, ns.
pub(crate) const START: u64 = 1_700_000_000_000_000_000;

/// A service with this number as id.
pub(crate) fn service(id: u32) -> Arc<Service> {
    Arc::new(Service {
        name: format!("service-{id}"),
        namespace: "test".to_owned(),
        id,
        attributes: vec![("process.executable.name", "server".to_owned())],
    })
}

/// `GET /item/{id}` answered with 200 after 12 ms, of which 2 ms were queue wait.
pub(crate) fn span(kind: SpanKind) -> Span {
    Span {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        parent_span_id: None,
        trace_flags: 1,
        sampled: true,
        trace_state: String::new(),
        exchange: u64::MAX,
        kind,
        start: START,
        end: START + 12_000_000,
        queue_wait: 2_000_000,
        pid: 77,
        service: service(1),
        detail: Detail::Http(Http {
            method: "GET",
            path: "/item/7".to_owned(),
            scheme: "http",
            route: Arc::from("/item/{id}"),
            version: "1.1",
            status: Some(200),
            server_address: "shop.example".to_owned(),
            server_port: 8080,
            ..Http::default()
        }),
    }
}

/// A span with changed HTTP detail.
pub(crate) fn span_with(kind: SpanKind, change: impl FnOnce(&mut Http)) -> Span {
    let mut span = span(kind);
    let Detail::Http(http) = &mut span.detail;
    change(http);
    span
}

#[test]
fn a_series_is_what_the_labels_tell_apart() {
    fn check(kind: SpanKind, change: impl Fn(&mut Http), series: usize) {
        let mut registry = Registry::new(Limits::default());
        registry.record(&span(kind));
        registry.record(&span_with(kind, &change));
        registry.record(&span_with(kind, &change));
        let snapshot = registry.snapshot();
        assert_eq!(
            snapshot.series.len(),
            series,
            "{:?}",
            snapshot.series.last().map(|series| &series.labels)
        );
        assert_eq!(snapshot.series.iter().map(|series| series.histogram.buckets.count()).sum::<u64>(), 3);
    }
    use SpanKind::{Client, Server};
    for kind in [Server, Client] {
        check(kind, |_| (), 1);
        check(kind, |http| http.path = "/item/8".to_owned(), 1);
        check(kind, |http| http.user_agent = "curl".to_owned(), 1);
        check(kind, |http| http.method = "POST", 2);
        check(kind, |http| http.status = Some(404), 2);
        check(kind, |http| http.status = None, 2);
        check(kind, |http| http.error_type = "timeout", 2);
        check(kind, |http| http.scheme = "https", 2);
        check(kind, |http| http.version = "1.0", 2);
    }
    check(Server, |http| http.route = Arc::from("/"), 2);
    check(Client, |http| http.route = Arc::from("/"), 1);
    check(Server, |http| http.server_address = "other".to_owned(), 1);
    check(Client, |http| http.server_address = "other".to_owned(), 2);
    check(Server, |http| http.server_port = 1, 1);
    check(Client, |http| http.server_port = 1, 2);
}

#[test]
fn births_are_numbered_by_snapshots() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&span(SpanKind::Server));
    assert_eq!(registry.snapshot().number, 1);
    registry.record(&span(SpanKind::Server));
    registry.record(&span_with(SpanKind::Server, |http| http.status = Some(500)));
    registry.record(&span(SpanKind::Client));
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.number, 2);
    assert_eq!(snapshot.series.iter().map(|series| series.born).collect::<Vec<_>>(), [0, 1, 1]);
    let totals = &snapshot.services[0];
    assert_eq!(totals.server_spans, Counter { value: 3, born: 0 });
    assert_eq!(totals.client_spans, Counter { value: 1, born: 1 });
    assert_eq!((totals.queue_wait.count(), totals.queue_wait.sum()), (3, 6_000_000));
}

#[test]
fn text_too_long_for_a_label_overflows() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&span_with(SpanKind::Client, |http| http.server_address = "a".repeat(256)));
    registry.record(&span_with(SpanKind::Server, |http| http.route = Arc::from("/a".repeat(128))));
    let snapshot = registry.snapshot();
    let labels: Vec<_> = snapshot.series.iter().map(|series| &*series.labels).collect();
    assert!(labels.iter().all(|labels| labels.overflow && labels.status == StatusLabel::Class(2)));
    assert_eq!((&*labels[0].server_address, labels[0].server_port, &*labels[0].route), (OTHER, 0, ""));
    assert_eq!((&*labels[1].server_address, &*labels[1].route, labels[1].method), ("", OTHER, OTHER));
}

#[test]
fn a_clock_that_steps_back_gives_no_negative_duration() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&Span { end: START - 1, ..span(SpanKind::Server) });
    registry.record(&Span { start: 0, end: 0, ..span(SpanKind::Server) });
    assert_eq!(registry.snapshot().series[0].histogram.buckets.sum(), 0);
}

/// What overflow must keep.
type Kept = (String, SpanKind, StatusLabel, bool);

fn kept(service: &Service, kind: SpanKind, status: StatusLabel, error_type: &str) -> Kept {
    (service.name.clone(), kind, status.class(), !error_type.is_empty())
}

/// Count and sum of durations, ns.
fn totals_of(snapshot: &Snapshot) -> HashMap<Kept, (u64, u128)> {
    let mut totals = HashMap::<_, (u64, u128)>::new();
    for Series { labels, histogram, .. } in &snapshot.series {
        let entry = totals.entry(kept(&labels.service, labels.kind, labels.status, labels.error_type));
        let entry = entry.or_default();
        entry.0 += histogram.buckets.count();
        entry.1 += histogram.buckets.sum();
    }
    totals
}

fn any_span(services: u32) -> impl Strategy<Value = Span> {
    let who = (0..services, prop::bool::ANY, 0..60_u32, 0..1_000_u16);
    let how = (
        prop::option::of(100..=999_u16),
        prop::sample::select(vec!["", "reset", "500"]),
        0..20_000_000_000_u64,
    );
    (who, how).prop_map(|((id, server, route, port), (status, error_type, duration))| {
        let kind = if server { SpanKind::Server } else { SpanKind::Client };
        let mut span = span_with(kind, |http| {
            http.route = Arc::from(format!("/{route}"));
            http.server_port = port;
            http.status = status;
            http.error_type = error_type;
        });
        span.service = service(id);
        span.end = span.start + duration;
        span
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn overflow_keeps_sums_by_service_kind_class_and_error(
        spans in prop::collection::vec(any_span(3), 0..800),
    ) {
        // Room for all overflow series of three services: 3 × 2 kinds × 11 classes × 2.
        let limit = 5 * (LAST_RESORT_SERIES + 3 * 2 * CLASSES * 2);
        let mut registry = Registry::new(Limits { series: limit, ..Limits::default() });
        let mut expected = HashMap::<_, (u64, u128)>::new();
        for span in &spans {
            registry.record(span);
            let Detail::Http(http) = &span.detail;
            let status = http.status.map_or(StatusLabel::Absent, StatusLabel::Code);
            let entry = expected.entry(kept(&span.service, span.kind, status, http.error_type)).or_default();
            entry.0 += 1;
            entry.1 += u128::from(span.end - span.start);
        }
        let snapshot = registry.snapshot();
        prop_assert!(snapshot.series.len() <= limit);
        prop_assert_eq!(totals_of(&snapshot), expected);
        for Series { histogram, .. } in &snapshot.series {
            let (counts, exemplars) = (histogram.buckets.counts(), histogram.exemplars());
            prop_assert!(counts.iter().zip(exemplars).all(|(count, exemplar)| (*count > 0) == exemplar.is_some()));
        }
    }

    #[test]
    fn the_limit_is_hard_and_nothing_is_uncounted(
        spans in prop::collection::vec(any_span(400), 0..1_500),
    ) {
        let limits = Limits { series: 0, services: 100 };
        let mut registry = Registry::new(limits);
        for span in &spans {
            registry.record(span);
        }
        let snapshot = registry.snapshot();
        prop_assert!(snapshot.series.len() <= MIN_SERIES);
        let counted: u64 = snapshot.series.iter().map(|series| series.histogram.buckets.count()).sum();
        prop_assert_eq!(counted, spans.len() as u64);
        prop_assert!(snapshot.services.len() <= limits.services + 1);
        let totals: u64 =
            snapshot.services.iter().map(|totals| totals.server_spans.value + totals.client_spans.value).sum();
        prop_assert_eq!(totals, spans.len() as u64);
        let waits: u64 = snapshot.services.iter().map(|totals| totals.queue_wait.count()).sum();
        prop_assert_eq!(waits, spans.iter().filter(|span| span.kind == SpanKind::Server).count() as u64);
    }
}
