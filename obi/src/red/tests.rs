//! Tests of the registry, and the span builder that tests of the stages to the right use too.

use super::*;
use crate::counter::Counter;
use crate::protocol::Side;
use crate::span::grpc::Code;
use crate::span::{Http, Resource, Rpc, ServerEnd, WebSocket};

/// 2023-11-14T22:13:20Z, ns.
pub(crate) const START: u64 = 1_700_000_000_000_000_000;

/// A service with this number as id.
pub(crate) fn service(id: u32) -> Arc<Service> {
    Arc::new(Service {
        name: format!("service-{id}"),
        namespace: "test".to_owned(),
        id,
        attributes: {
            let mut attributes = Resource::default();
            attributes.text("process.executable.name", "server");
            attributes
        },
    })
}

/// `GET /item/{id}` answered with 200 after 12 ms, of which 2 ms were queue wait.
pub(crate) fn span(kind: SpanKind) -> Span {
    Span {
        trace_id: [0xab; 16],
        span_id: [0xcd; 8],
        trace_flags: 1,
        exchange: u64::MAX,
        kind,
        start: START,
        end: START + 12_000_000,
        queue_wait: 2_000_000,
        pid: 77,
        service: service(1),
        server: ServerEnd { address: "shop.example".to_owned(), port: 8080 },
        detail: Detail::Http(Http {
            method: "GET",
            path: "/item/7".to_owned(),
            scheme: "http",
            route: Arc::from("/item/{id}"),
            version: "1.1",
            status: Some(200),
            ..Http::default()
        }),
        ..Span::blank()
    }
}

/// A changed span.
pub(crate) fn span_with(kind: SpanKind, change: impl FnOnce(&mut Span)) -> Span {
    let mut span = span(kind);
    change(&mut span);
    span
}

/// A call of `shop.Cart/Add` answered with `OK`, otherwise as [`span`].
pub(crate) fn call_with(kind: SpanKind, change: impl FnOnce(&mut Span)) -> Span {
    let mut span = span(kind);
    let http = Http {
        method: "POST",
        path: "/shop.Cart/Add".to_owned(),
        route: Arc::from(""),
        version: "2",
        ..span.http().clone()
    };
    let (method, status) = (Arc::from("shop.Cart/Add"), Some(Code::OK));
    span.detail = Detail::Rpc(Rpc { http, method, status, request_messages: Some(1), ..Rpc::default() });
    change(&mut span);
    span
}

impl Span {
    /// The request that carries it.
    pub(crate) fn http(&mut self) -> &mut Http {
        self.detail.carrier_mut().expect("spans of tests are carried by HTTP")
    }

    /// The call that it is.
    pub(crate) fn rpc(&mut self) -> &mut Rpc {
        match &mut self.detail {
            Detail::Rpc(rpc) => rpc,
            other => panic!("{other:?} is no call"),
        }
    }
}

/// A call that ended with this status, by the rule of its side.
pub(crate) fn call_ended(kind: SpanKind, code: Code) -> Span {
    let side = match kind {
        SpanKind::Server => Side::Server,
        SpanKind::Client | SpanKind::Internal => Side::Client,
    };
    call_with(kind, |span| {
        span.rpc().status = Some(code);
        span.error_type = if code.is_error(side) { code.name() } else { "" };
    })
}

/// A WebSocket at `/item/{id}` that lasted for an hour.
pub(crate) fn websocket(kind: SpanKind) -> Span {
    let mut span = span(kind);
    span.end = span.start + 3_600_000_000_000;
    let http = Http { status: Some(101), ..span.http().clone() };
    span.detail = Detail::WebSocket(WebSocket { http, client_messages: 3, ..WebSocket::default() });
    span
}

/// Observations in all request series and in all span series.
pub(super) fn counts(snapshot: &Snapshot) -> [u64; 2] {
    let requests = snapshot.requests.iter().map(|series| series.counts.duration.buckets.count()).sum();
    [requests, snapshot.spans.iter().map(|series| series.counts.buckets.count()).sum()]
}

/// A span that was sent counts under its own name; what only the kernel side sees is not counted as zero.
#[test]
fn foreign_spans_count_as_what_they_report() {
    let mut registry = Registry::new(Limits::default());
    for kind in [SpanKind::Server, SpanKind::Client, SpanKind::Internal] {
        let sdk = crate::span::Sdk { name: "own".into(), ..crate::span::Sdk::default() };
        let sent = span_with(kind, |span| span.detail = Detail::Sdk(Box::new(sdk)));
        registry.record(&sent);
        let request = (kind != SpanKind::Internal).then(|| span(kind));
        registry.record_foreign(&sent, request.as_ref());
    }
    let snapshot = registry.snapshot();
    assert_eq!(counts(&snapshot), [2, 3]);
    assert!(snapshot.spans.iter().all(|series| &*series.labels.name == "own"));
    let [totals] = &*snapshot.services else { panic!("{:?}", snapshot.services) };
    assert_eq!((totals.server_spans.value, totals.client_spans.value), (1, 1));
    assert_eq!(totals.queue_wait.count(), 0, "how long it waited is not known");
    assert_eq!(totals.parents.map(|count| count.value), [0; 3]);
}

#[test]
fn a_series_is_what_the_labels_tell_apart() {
    fn check(kind: SpanKind, change: impl Fn(&mut Span), series: usize) {
        let mut registry = Registry::new(Limits::default());
        registry.record(&span(kind));
        registry.record(&span_with(kind, &change));
        registry.record(&span_with(kind, &change));
        let snapshot = registry.snapshot();
        let last = snapshot.requests.last().map(|series| &series.labels);
        assert_eq!(snapshot.requests.len(), series, "{last:?}");
        assert_eq!(counts(&snapshot), [3, 3]);
    }
    use SpanKind::{Client, Server};
    for kind in [Server, Client] {
        check(kind, |_| (), 1);
        check(kind, |span| span.http().path = "/item/8".to_owned(), 1);
        check(kind, |span| span.http().user_agent = "curl".to_owned(), 1);
        check(kind, |span| span.http().method = "POST", 2);
        check(kind, |span| span.http().status = Some(404), 2);
        check(kind, |span| span.http().status = None, 2);
        check(kind, |span| span.error_type = "timeout", 2);
        check(kind, |span| span.http().scheme = "https", 2);
        check(kind, |span| span.http().version = "1.0", 2);
    }
    check(Server, |span| span.http().route = Arc::from("/"), 2);
    check(Client, |span| span.http().route = Arc::from("/"), 1);
    check(Server, |span| span.server.address = "other".to_owned(), 1);
    check(Client, |span| span.server.address = "other".to_owned(), 2);
    check(Server, |span| span.server.port = 1, 1);
    check(Client, |span| span.server.port = 1, 2);
}

#[test]
fn calls_have_a_metric_of_their_own() {
    fn check(kind: SpanKind, change: impl Fn(&mut Span), series: usize) {
        let mut registry = Registry::new(Limits::default());
        registry.record(&call_with(kind, |_| ()));
        registry.record(&call_with(kind, &change));
        registry.record(&call_with(kind, &change));
        let snapshot = registry.snapshot();
        let calls = snapshot.calls.iter().map(|series| series.counts.buckets.count()).sum::<u64>();
        assert_eq!((snapshot.calls.len(), snapshot.requests.len(), calls), (series, 0, 3));
        assert_eq!(snapshot.spans.iter().map(|series| series.counts.buckets.count()).sum::<u64>(), 3);
        assert_eq!(snapshot.services[0].server_spans.value + snapshot.services[0].client_spans.value, 3);
    }
    for kind in [SpanKind::Server, SpanKind::Client] {
        check(kind, |_| (), 1);
        check(kind, |span| span.rpc().streaming = true, 1);
        check(kind, |span| span.server.address = "other".to_owned(), 1);
        check(kind, |span| span.rpc().request_messages = Some(9), 1);
        check(kind, |span| span.rpc().method = Arc::from("shop.Cart/Get"), 2);
        check(kind, |span| span.rpc().status = Some(Code::CANCELLED), 2);
        check(kind, |span| span.rpc().status = None, 2);
        check(kind, |span| (span.rpc().status, span.error_type) = (None, "connection_reset"), 2);
    }
}

#[test]
fn a_websocket_is_counted_without_a_duration() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&span_with(SpanKind::Server, |span| span.http().status = Some(101)));
    registry.record(&websocket(SpanKind::Server));
    let snapshot = registry.snapshot();
    assert_eq!((snapshot.requests.len(), snapshot.calls.len()), (1, 0), "the upgrade");
    let spans: Vec<_> = snapshot
        .spans
        .iter()
        .map(|series| (&*series.labels.name, series.labels.timed, series.counts.buckets.count()))
        .collect();
    assert_eq!(spans, [("GET /item/{id}", true, 1), ("WEBSOCKET /item/{id}", false, 1)]);
    assert_eq!(snapshot.services[0].server_spans.value, 2);
}

#[test]
fn births_are_numbered_by_snapshots() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&span(SpanKind::Server));
    assert_eq!(registry.snapshot().number, 1);
    registry.record(&span(SpanKind::Server));
    registry.record(&span_with(SpanKind::Server, |span| span.http().status = Some(500)));
    registry.record(&span(SpanKind::Client));
    let snapshot = registry.snapshot();
    assert_eq!(snapshot.number, 2);
    assert_eq!(snapshot.requests.iter().map(|series| series.born).collect::<Vec<_>>(), [0, 1, 1]);
    let totals = &snapshot.services[0];
    assert_eq!(totals.server_spans, Counter { value: 3, born: 0 });
    assert_eq!(totals.client_spans, Counter { value: 1, born: 1 });
    assert_eq!((totals.queue_wait.count(), totals.queue_wait.sum()), (3, 6_000_000));
}

#[test]
fn text_too_long_for_a_label_overflows() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&span_with(SpanKind::Client, |span| span.server.address = "a".repeat(256)));
    registry.record(&span_with(SpanKind::Server, |span| span.http().route = Arc::from("/a".repeat(128))));
    let snapshot = registry.snapshot();
    let labels: Vec<_> = snapshot.requests.iter().map(|series| &*series.labels).collect();
    assert!(labels.iter().all(|labels| labels.overflow && labels.status == StatusLabel::Class(2)));
    assert_eq!((&*labels[0].server_address, labels[0].server_port, &*labels[0].route), (OTHER, 0, ""));
    assert_eq!((&*labels[1].server_address, &*labels[1].route, labels[1].method), ("", OTHER, OTHER));
}

#[test]
fn a_clock_that_steps_back_gives_no_negative_duration() {
    let mut registry = Registry::new(Limits::default());
    registry.record(&Span { end: START - 1, ..span(SpanKind::Server) });
    registry.record(&Span { start: 0, end: 0, ..span(SpanKind::Server) });
    assert_eq!(registry.snapshot().requests[0].counts.duration.buckets.sum(), 0);
}

/// A span that ended so many seconds after [`START`].
fn span_at(second: u64, change: impl FnOnce(&mut Span)) -> Span {
    let time = START + second * 1_000_000_000;
    Span { start: time - 1_000_000, end: time, ..span_with(SpanKind::Server, change) }
}

#[test]
fn idle_series_expire_and_come_back_as_newborns() {
    let limits = Limits { idle: Duration::from_secs(100), ..Limits::default() };
    let mut registry = Registry::new(limits);
    // Nothing counted before the clock was known is old.
    registry.record(&span_at(0, |span| span.http().status = Some(200)));
    let mut check = |second: u64, statuses: &[u16], expected: &[(u16, u64, u64, u64)]| {
        registry.advance(1_000_000_000_000_000 + second * 1_000_000_000);
        for status in statuses {
            registry.record(&span_at(second, |span| span.http().status = Some(*status)));
        }
        let snapshot = registry.snapshot();
        let found: Vec<_> = snapshot
            .requests
            .iter()
            .map(|series| {
                let StatusLabel::Code(status) = series.labels.status else { panic!("a code") };
                let count = series.counts.duration.buckets.count();
                (status, count, series.born, (series.created - START) / 1_000_000_000)
            })
            .collect();
        assert_eq!(found, expected, "(status, count, born, created) at {second}");
        assert_eq!(snapshot.usage.shares.iter().map(|share| share.series).sum::<usize>(), snapshot.series());
    };
    check(0, &[200, 404], &[(200, 2, 0, 0), (404, 1, 0, 0)]);
    check(60, &[200], &[(200, 3, 0, 0), (404, 1, 0, 0)]);
    check(111, &[], &[(200, 3, 0, 0)]);
    // Born after the third snapshot: a scraper of that time sees a zero first, so that `rate()` sees a reset.
    check(150, &[404, 404, 404, 404], &[(200, 3, 0, 0), (404, 4, 3, 150)]);
    check(400, &[], &[]);
}

#[test]
fn totals_of_a_service_outlive_its_series() {
    let mut registry = Registry::new(Limits::default());
    let mut check = |hours: u64, n: usize, expected: (usize, bool, u64)| {
        registry.advance(1 + hours * 3_600_000_000_000);
        (0..n).for_each(|_| registry.record(&span(SpanKind::Server)));
        let snapshot = registry.snapshot();
        let totals = &snapshot.services[0];
        assert_eq!((snapshot.series(), totals.idle, totals.server_spans.value), expected, "after {hours} h");
    };
    check(0, 2, (2, false, 2));
    check(1, 0, (2, false, 2));
    check(3, 0, (0, true, 2));
    check(4, 1, (2, false, 3));
}

#[test]
fn a_noisy_service_starves_no_quiet_one() {
    let mut registry = Registry::new(Limits { series: 1_000, ..Limits::default() });
    let mut record = |id: u32, n: u32| {
        for route in 0..n {
            let mut span =
                span_with(SpanKind::Server, |span| span.http().route = Arc::from(format!("/{route}")));
            span.service = service(id);
            registry.record(&span);
        }
    };
    record(1, 5_000);
    record(2, 1);
    let usage = registry.snapshot().usage;
    let of = |id: u32| usage.shares.iter().find(|share| share.service.id == id).expect("a share");
    assert_eq!((of(2).series, of(2).folded.value), (2, 0), "its request series and its span series");
    assert_eq!(of(1).series + of(1).overflow_series, 3 + 480 + 2, "promised, four fifths of 600, overflow");
    // Each metric folds a span apart; the series show the pairs that fit.
    assert_eq!(of(1).folded.value, 10_000 - (of(1).series as u64));
    assert!(of(1).examples.len() == 5 && of(1).examples[0].contains("GET /2"), "{:?}", of(1).examples);
}

#[test]
fn series_of_the_greedy_expire_sooner_while_room_is_scarce() {
    let mut registry = Registry::new(Limits { series: 1_000, ..Limits::default() });
    for route in 0..1_000 {
        registry.record(&span_at(0, |span| span.http().route = Arc::from(format!("/{route}"))));
    }
    let mut quiet = span_at(0, |_| ());
    quiet.service = service(2);
    registry.record(&quiet);
    registry.advance(1);
    let before = registry.snapshot().series();
    registry.advance(TIGHT_IDLE.as_nanos() as u64 + 2);
    let snapshot = registry.snapshot();
    assert!(snapshot.series() < before);
    let holds = |id: u32| snapshot.requests.iter().filter(|series| series.labels.service.id == id).count();
    assert_eq!(holds(2), 1);
    assert!(holds(1) > 1, "no more than it takes to make room");
}

#[test]
fn bodies_are_counted_from_the_first_one_on() {
    let mut registry = Registry::new(Limits::default());
    for (request, response, status) in [
        (Some(0), Some(0), Some(200)),
        (Some(0), Some(700), Some(200)),
        (Some(5), Some(0), Some(200)),
        (None, None, Some(200)),
    ] {
        registry.record(&span_with(SpanKind::Server, |span| {
            (span.request_bytes, span.response_bytes, span.http().status) = (request, response, status);
        }));
    }
    registry.record(&span_with(SpanKind::Server, |span| {
        (span.response_bytes, span.http().status) = (Some(9), None);
    }));
    let snapshot = registry.snapshot();
    let sizes = |bodies: &Option<Box<Bodies>>| bodies.as_ref().map(|b| (b.sizes.count(), b.sizes.sum()));
    let counts: Vec<_> = snapshot
        .requests
        .iter()
        .map(|series| (sizes(&series.counts.request_body), sizes(&series.counts.response_body)))
        .collect();
    assert_eq!(counts, [(Some((1, 5)), Some((2, 700))), (None, None)], "without an answer there is no body");
}

#[test]
fn what_is_not_sampled_is_counted_and_is_no_exemplar() {
    let mut registry = Registry::new(Limits::default());
    let sampled = span(SpanKind::Server);
    registry.record(&sampled);
    registry.record(&Span { sampled: false, trace_id: [9; 16], end: sampled.end + 1, ..sampled.clone() });
    let snapshot = registry.snapshot();
    for histogram in [&snapshot.requests[0].counts.duration, &snapshot.spans[0].counts] {
        assert_eq!(histogram.buckets.count(), 2);
        assert_eq!(histogram.exemplars().len(), 1);
        assert_eq!(histogram.exemplars()[0].1.trace_id, sampled.trace_id);
    }
}
