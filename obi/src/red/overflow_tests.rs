//! What overflow keeps, whatever spans come: property tests of the registry's bounds.

use std::collections::HashMap;

use proptest::prelude::*;

use super::tests::{call_ended, call_with, counts, service, span_with, websocket};
use super::*;
use crate::span::grpc::Code;

/// What overflow must keep.
type Kept = (String, SpanKind, StatusLabel, bool);

fn kept(service: &Service, kind: SpanKind, status: StatusLabel, error_type: &str) -> Kept {
    (service.name.clone(), kind, status.class(), !error_type.is_empty())
}

/// Count and sum of durations, ns.
fn totals_of(snapshot: &Snapshot) -> HashMap<Kept, (u64, u128)> {
    let mut totals = HashMap::<_, (u64, u128)>::new();
    for Series { labels, counts, .. } in &snapshot.requests {
        let entry = totals.entry(kept(&labels.service, labels.kind, labels.status, labels.error_type));
        let entry = entry.or_default();
        entry.0 += counts.duration.buckets.count();
        entry.1 += counts.duration.buckets.sum();
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
        let mut span = span_with(kind, |span| {
            span.http().route = Arc::from(format!("/{route}"));
            span.server.port = port;
            span.http().status = status;
            span.error_type = error_type;
        });
        span.service = service(id);
        span.end = span.start + duration;
        span
    })
}

fn any_call(services: u32) -> impl Strategy<Value = Span> {
    let status = prop::option::weighted(0.9, (0..17_u32).prop_map(Code::of_number));
    (0..services, prop::bool::ANY, 0..60_u32, status, prop::bool::ANY).prop_map(
        |(id, server, method, status, broken)| {
            let kind = if server { SpanKind::Server } else { SpanKind::Client };
            let mut span = match status {
                Some(code) => call_ended(kind, code),
                None => call_with(kind, |span| {
                    span.rpc().status = None;
                    span.error_type = if broken { "connection_reset" } else { "" };
                }),
            };
            span.rpc().method = Arc::from(format!("a.B/C{method}"));
            span.service = service(id);
            span
        },
    )
}

/// Spans of all protocols.
fn any_protocol(services: u32) -> impl Strategy<Value = Span> {
    let socket = (0..services, prop::bool::ANY).prop_map(|(id, failed)| {
        let mut span = websocket(SpanKind::Client);
        span.service = service(id);
        span.error_type = if failed { "1011" } else { "" };
        span
    });
    prop_oneof![4 => any_span(services), 4 => any_call(services), 1 => socket]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn overflow_keeps_sums_by_service_kind_class_and_error(
        spans in prop::collection::vec(any_span(3), 0..800),
    ) {
        // Room for all overflow series of three services.
        let limit = 5 * (LAST_RESORT_SERIES + 3 * LAST_RESORT_SERIES);
        let mut registry = Registry::new(Limits { series: limit, ..Limits::default() });
        let mut expected = HashMap::<_, (u64, u128)>::new();
        for span in &spans {
            registry.record(span);
            let status = span.detail.carrier().and_then(|http| http.status).map_or(StatusLabel::Absent, StatusLabel::Code);
            let entry = expected.entry(kept(&span.service, span.kind, status, span.error_type)).or_default();
            entry.0 += 1;
            entry.1 += u128::from(span.end - span.start);
        }
        let snapshot = registry.snapshot();
        prop_assert!(snapshot.series() <= limit);
        prop_assert_eq!(totals_of(&snapshot), expected);
        let requests = snapshot.requests.iter().map(|series| &series.counts.duration);
        for histogram in requests.chain(snapshot.spans.iter().map(|series| &*series.counts)) {
            let buckets = histogram.buckets.counts().iter().enumerate().filter(|(_, count)| **count > 0);
            let buckets: Vec<_> = buckets.map(|(bucket, _)| u8::try_from(bucket).expect("few")).collect();
            let exemplars: Vec<_> = histogram.exemplars().iter().map(|(bucket, _)| *bucket).collect();
            prop_assert_eq!(buckets, exemplars);
        }
    }

    #[test]
    fn overflow_keeps_statuses_of_calls(
        calls in prop::collection::vec(any_call(3), 0..800),
    ) {
        let limit = 5 * (LAST_RESORT_SERIES + 3 * LAST_RESORT_SERIES);
        let mut registry = Registry::new(Limits { series: limit, ..Limits::default() });
        let mut expected = HashMap::<_, u64>::new();
        let kept = |name: &str, kind, status: &'static str, error_type: &str| {
            (name.to_owned(), kind, status, !error_type.is_empty())
        };
        for span in &calls {
            registry.record(span);
            let Detail::Rpc(rpc) = &span.detail else { unreachable!("all are calls") };
            let status = rpc.status.map_or("", Code::name);
            *expected.entry(kept(&span.service.name, span.kind, status, span.error_type)).or_default() += 1;
        }
        let snapshot = registry.snapshot();
        prop_assert!(snapshot.series() <= limit);
        let mut found = HashMap::<_, u64>::new();
        for Series { labels, counts, .. } in &snapshot.calls {
            let key = kept(&labels.service.name, labels.kind, labels.status, labels.error_type);
            *found.entry(key).or_default() += counts.buckets.count();
        }
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn the_limit_is_hard_and_nothing_is_uncounted(
        spans in prop::collection::vec(any_protocol(400), 0..1_500),
    ) {
        let limits = Limits { series: 0, services: 100, ..Limits::default() };
        let mut registry = Registry::new(limits);
        for span in &spans {
            registry.record(span);
        }
        let snapshot = registry.snapshot();
        prop_assert!(snapshot.series() <= MIN_SERIES);
        let [requests, counted] = counts(&snapshot);
        let calls: u64 = snapshot.calls.iter().map(|series| series.counts.buckets.count()).sum();
        let sockets = spans.iter().filter(|span| matches!(span.detail, Detail::WebSocket(_))).count();
        prop_assert_eq!((requests + calls + sockets as u64, counted), (spans.len() as u64, spans.len() as u64));
        prop_assert!(snapshot.services.len() <= limits.services + 1);
        let totals: u64 =
            snapshot.services.iter().map(|totals| totals.server_spans.value + totals.client_spans.value).sum();
        prop_assert_eq!(totals, spans.len() as u64);
        let waits: u64 = snapshot.services.iter().map(|totals| totals.queue_wait.count()).sum();
        prop_assert_eq!(waits, spans.iter().filter(|span| span.kind == SpanKind::Server).count() as u64);
    }
}
