//! Tests of the span store.

use super::*;
use crate::red::tests::{span, span_with};
use crate::span::{Answer, SpanKind};

const SERVER: SpanKind = SpanKind::Server;

fn filled(limits: Limits, spans: usize) -> Store {
    let mut store = Store::new(limits);
    for _ in 0..spans {
        store.push(span(SERVER));
    }
    store
}

fn sequences(page: &Page) -> Vec<u64> {
    page.spans.iter().map(|stored| stored.sequence).collect()
}

#[test]
fn pages() {
    fn check(order: Order, limit: usize, expected: &[u64], next: u64, evicted: u64) {
        let store = filled(Limits { spans: 4, ..Limits::default() }, 10);
        let page = store.page(&Query { filter: Filter::default(), order, limit });
        assert_eq!(sequences(&page), expected, "{order:?} limit {limit}");
        assert_eq!((page.next, page.evicted, page.stored), (next, evicted, 4), "{order:?} limit {limit}");
    }
    check(Order::Newest, 2, &[10, 9], 10, 6);
    check(Order::Newest, 100, &[10, 9, 8, 7], 10, 6);
    check(Order::After(0), 2, &[7, 8], 8, 6);
    check(Order::After(5), 100, &[7, 8, 9, 10], 10, 1);
    check(Order::After(8), 2, &[9, 10], 10, 0);
    check(Order::After(10), 100, &[], 10, 0);
    check(Order::After(1_000), 100, &[], 10, 0);
    check(Order::After(u64::MAX - 1), 100, &[], 10, 0);
}

#[test]
fn the_slowest_come_first() {
    let mut store = Store::new(Limits { spans: 6, ..Limits::default() });
    // The first is kept beyond its time in the ring.
    for took in [90, 7, 7, 40, 3, 50, 40, 1] {
        store.push(span_with(SERVER, |span| {
            span.end = span.start + took;
            span.http().status = Some(if took == 50 { 500 } else { 200 });
        }));
        store.keep(1);
    }
    let check = |limit, filter: Filter, expected: &[u64]| {
        let page = store.page(&Query { filter, order: Order::Slowest, limit });
        assert_eq!(sequences(&page), expected, "limit {limit}");
    };
    let all = Filter::default;
    check(100, all(), &[1, 6, 7, 4, 3, 5, 8]);
    check(7, all(), &[1, 6, 7, 4, 3, 5, 8]);
    check(3, all(), &[1, 6, 7]);
    check(1, all(), &[1]);
    check(0, all(), &[]);
    check(2, Filter { status: Some(StatusFilter::Code(200)), ..all() }, &[1, 7]);
    check(2, Filter { status: Some(StatusFilter::Code(404)), ..all() }, &[]);
}

/// Calls have texts that requests have not; the boxes of one are filled again for the other.
#[test]
fn what_was_made_for_longer_texts_is_given_back() {
    let limits = Limits { spans: 10, ..Limits::default() };
    let fill = |span: &mut Span, text: &str| {
        span.server.address.clear();
        span.server.address.push_str(text);
        span.http().user_agent.clear();
        span.http().user_agent.push_str(text);
        span.http().path.clear();
        span.http().path.push_str("/path");
    };
    let mut plain = Store::new(limits);
    (0..10).for_each(|_| drop(plain.push(span_with(SERVER, |span| fill(span, "")))));
    let mut store = Store::new(limits);
    let mut spare = Box::new(span(SERVER));
    for round in 0..200 {
        fill(&mut spare, if round < 100 { "a text of some length" } else { "" });
        spare = store.push(spare).unwrap_or_else(|| Box::new(span(SERVER)));
    }
    assert_eq!(store.bytes, plain.bytes);
}

#[test]
fn an_empty_store_gives_an_empty_page() {
    for order in [Order::Newest, Order::Slowest, Order::After(0), Order::After(9)] {
        let page = Store::new(Limits::default()).page(&Query { filter: Filter::default(), order, limit: 1 });
        assert_eq!((page.spans.len(), page.next, page.evicted, page.stored), (0, 0, 0, 0));
    }
}

#[test]
fn a_poller_sees_every_match_once() {
    let mut store = Store::new(Limits::default());
    let (mut after, mut seen) = (0, Vec::new());
    for round in 0..20_u16 {
        for status in 0..round {
            store.push(span_with(SERVER, |span| span.http().status = Some(200 + status % 2)));
        }
        let filter = Filter { status: Some(StatusFilter::Code(201)), ..Filter::default() };
        let page = store.page(&Query { filter, order: Order::After(after), limit: 5 });
        after = page.next;
        seen.extend(sequences(&page));
    }
    let query = Query { filter: Filter::default(), order: Order::After(0), limit: usize::MAX };
    let is_match =
        |stored: &Stored| stored.span.detail.answer() == Answer::Http(201) && stored.sequence <= after;
    let expected: Vec<_> = store
        .page(&query)
        .spans
        .iter()
        .filter(|stored| is_match(stored))
        .map(|stored| stored.sequence)
        .collect();
    assert_eq!(seen, expected);
    assert!(seen.len() > 50);
}

#[test]
fn bytes_are_bounded_by_capacity() {
    let limits = Limits { spans: 1_000, bytes: 64 << 10, ..Limits::default() };
    let mut store = Store::new(limits);
    for length in (0..4_000).chain((0..4_000).rev()) {
        store.push(span_with(SERVER, |span| span.http().path = "/".repeat(length)));
        assert_eq!(store.bytes, store.spans.iter().map(|stored| size(&stored.span)).sum::<usize>());
        assert!(store.bytes <= limits.bytes && store.spares.len() <= MAX_SPARES);
    }
    store.push(span_with(SERVER, |span| span.http().path = "/".repeat(100_000)));
    assert_eq!(store.spans.len(), 1, "one span beyond the bound is kept alone");
    store.push(span(SERVER));
    assert_eq!(store.spans.len(), 1);
}

#[test]
fn a_full_store_gives_a_buffer_back_for_each_it_takes() {
    let mut store = filled(Limits { spans: 4, ..Limits::default() }, 4);
    for _ in 0..100 {
        let given = span_with(SERVER, |span| span.http().path = "/given".to_owned());
        assert!(store.push(given).is_some());
    }
    let huge = span_with(SERVER, |span| span.http().user_agent = "x".repeat(3_000));
    assert!(store.push(huge).is_some());
    for _ in 0..3 {
        assert!(store.push(span(SERVER)).is_some());
    }
    assert!(store.push(span(SERVER)).is_none(), "the huge buffer must not come back");
}

#[test]
fn what_is_kept_outlives_the_ring() {
    let mut store = filled(Limits { spans: 3, ..Limits::default() }, 3);
    store.keep(2);
    store.keep(2);
    store.keep(99);
    let newest = |store: &Store| {
        sequences(&store.page(&Query { filter: Filter::default(), order: Order::Newest, limit: 10 }))
    };
    for _ in 0..5 {
        store.push(span(SERVER));
    }
    assert_eq!(newest(&store), [8, 7, 6, 2]);
    store.release(2);
    assert_eq!(newest(&store), [8, 7, 6, 2]);
    store.release(2);
    store.release(2);
    assert_eq!(newest(&store), [8, 7, 6]);
    // Gone already: there is nothing to keep.
    store.keep(1);
    assert!(!store.kept.is_held(1));
    // Released while the ring still has it: it stays there.
    store.keep(7);
    store.release(7);
    assert_eq!(newest(&store), [8, 7, 6]);
}

#[test]
fn filters() {
    fn check(filter: Filter, expected: &[u64]) {
        let mut store = Store::new(Limits::default());
        store.push(span(SERVER));
        store.push(span_with(SpanKind::Client, |span| {
            span.http().status = Some(503);
            span.error_type = "503";
        }));
        let mut slow = span_with(SERVER, |span| {
            span.http().method = "POST";
            span.http().path = "/cart/1".to_owned();
            span.http().route = "/cart/{id}".into();
            span.http().status = None;
        });
        slow.end += 1_000_000_000;
        slow.trace_id = [9; 16];
        slow.service = crate::red::tests::service(2);
        store.push(slow);
        let label = format!("{filter:?}");
        let page = store.page(&Query { filter, order: Order::After(0), limit: 10 });
        assert_eq!(sequences(&page), expected, "{label}");
    }
    let none = Filter::default;
    let text = |text: &str| Some(text.to_owned());
    check(none(), &[1, 2, 3]);
    check(Filter { service: text("service-2"), ..none() }, &[3]);
    check(Filter { service: text("service"), ..none() }, &[]);
    check(Filter { kind: Some(SpanKind::Client), ..none() }, &[2]);
    check(Filter { method: text("POST"), ..none() }, &[3]);
    check(Filter { route: text("/item/{id}"), ..none() }, &[1, 2]);
    check(Filter { path: text("/item"), ..none() }, &[1, 2]);
    check(Filter { path: text("/cart/1"), ..none() }, &[3]);
    check(Filter { status: Some(StatusFilter::Code(200)), ..none() }, &[1]);
    check(Filter { status: Some(StatusFilter::Class(5)), ..none() }, &[2]);
    check(Filter { error: Some(true), ..none() }, &[2]);
    check(Filter { error: Some(false), ..none() }, &[1, 3]);
    check(Filter { trace_id: Some([9; 16]), ..none() }, &[3]);
    check(Filter { min_duration: Some(12_000_000), ..none() }, &[1, 2, 3]);
    check(Filter { min_duration: Some(12_000_001), ..none() }, &[3]);
    check(Filter { path: text("/item"), error: Some(false), ..none() }, &[1]);
}

/// Spans of a trace that are found, and all that is held beyond the ring.
fn of_trace(store: &Store, n: u8) -> Vec<u64> {
    let filter = Filter { trace_id: Some([n; 16]), ..Filter::default() };
    sequences(&store.page(&Query { filter, order: Order::Newest, limit: 100 }))
}

fn push(store: &mut Store, trace: u8) {
    store.push(span_with(SERVER, |span| span.trace_id = [trace; 16]));
}

#[test]
fn a_kept_trace_stays_whole_until_its_last_holder_lets_it_go() {
    let mut store = Store::new(Limits { spans: 4, ..Limits::default() });
    for trace in [7, 1, 7] {
        push(&mut store, trace);
    }
    assert_eq!(store.kept_traces(), None);
    store.keep_trace([7; 16]);
    store.keep_trace([7; 16]);
    assert_eq!(store.kept_traces(), Some(vec![[7; 16]]));
    assert_eq!(store.kept_traces(), None, "nothing is new");
    // One of its spans ends later.
    push(&mut store, 7);
    (0..20).for_each(|_| push(&mut store, 2));
    assert_eq!(of_trace(&store, 7), [4, 3, 1]);
    assert_eq!((of_trace(&store, 1).len(), of_trace(&store, 2).len()), (0, 4));
    let (found, _) = store.traces(&TraceQuery { limit: 9, ..TraceQuery::default() });
    assert_eq!(found.iter().map(|trace| trace.spans).collect::<Vec<_>>(), [4, 3]);
    assert!(store.kept_usage().bytes > 0);
    store.release_trace(&[7; 16]);
    assert_eq!(of_trace(&store, 7), [4, 3, 1]);
    store.release_trace(&[7; 16]);
    assert_eq!(of_trace(&store, 7), [0; 0]);
    assert_eq!((store.kept_traces(), store.kept_usage()), (Some(Vec::new()), kept::Usage::default()));
    store.release_trace(&[7; 16]);
}

#[test]
fn traces_that_find_no_room_are_counted_and_single_spans_always_find_some() {
    let one = size(&span(SERVER));
    let mut store = Store::new(Limits { spans: 1, kept_bytes: 3 * one, ..Limits::default() });
    store.keep_trace([7; 16]);
    (0..5).for_each(|_| push(&mut store, 7));
    store.keep(5);
    push(&mut store, 1);
    assert_eq!(of_trace(&store, 7), [5, 3, 2, 1]);
    let usage = store.kept_usage();
    assert_eq!((usage.traces, usage.refused), (1, 1));
    store.release_trace(&[7; 16]);
    assert_eq!(of_trace(&store, 7), [5]);
    store.release(5);
    assert_eq!((of_trace(&store, 7).len(), store.kept_usage().bytes), (0, 0));
    // A trace of very many spans is held in part.
    let mut store = Store::new(Limits::default());
    store.keep_trace([7; 16]);
    (0..=kept::SPANS_OF_TRACE).for_each(|_| push(&mut store, 7));
    assert_eq!(store.kept_usage().refused, 1);
}
