//! Pairs by what is on the wire, in whatever order they come, or if they never do.

use prost::bytes::Bytes;

use super::*;
use crate::receive::budget::Budget;

const SECOND: u64 = 1_000_000_000;

/// A captured span: ids by their first byte, the parent that its head names, the service.
fn captured(kind: SpanKind, id: u8, wire: Option<u8>, service: &str) -> Span {
    Span {
        trace_id: [7; 16],
        span_id: [id; 8],
        wire_parent: wire.map(|wire| [wire; 8]),
        service: Arc::new(Service { name: service.to_owned(), ..Service::default() }),
        pid: 1,
        kind,
        start: u64::from(id) * SECOND,
        ..Span::blank()
    }
}

fn received(role: Role, id: u8, parent: u8, service: &str, start: u64) -> Received {
    let kind = match role {
        Role::Server => SpanKind::Server,
        Role::Client => SpanKind::Client,
        Role::Internal | Role::Message => SpanKind::Internal,
    };
    let mut span = captured(kind, id, None, service);
    span.parent_span_id = Some([parent; 8]);
    span.start = start;
    let _share = Arc::new(Budget::new(0).share());
    Received {
        span: Box::new(span),
        role,
        request: None,
        message: Bytes::new(),
        origin: Arc::default(),
        _share,
    }
}

fn put(joins: &mut Joins<u8>, span: &Span, held: bool, now: u64) {
    let known = Captured {
        sequence: u64::from(span.span_id[0]),
        span_id: span.span_id,
        start: span.start,
        pid: span.pid,
        service: Arc::clone(&span.service),
        exchange_id: None,
        queue_wait: None,
    };
    joins.captured(Key::of_captured(span).unwrap(), known, held.then_some(span.span_id[0]), now);
}

/// What was found, in short.
fn reported(found: Vec<Found<u8>>) -> Vec<String> {
    let mut reported: Vec<String> = found
        .into_iter()
        .map(|found| match found {
            Found::Pair(pair, is_out) => {
                format!("{}={} {is_out}", pair.0.span_id[0], pair.1.span.span_id[0])
            }
            Found::Alone(received) => format!("alone {}", received.span.span_id[0]),
            Found::Out(held) => format!("out {held}"),
        })
        .collect();
    reported.sort();
    reported
}

#[test]
fn both_ends_are_known_by_the_wire() {
    let mut joins = Joins::default();
    put(&mut joins, &captured(SpanKind::Server, 1, Some(9), "a"), true, 0);
    put(&mut joins, &captured(SpanKind::Client, 2, Some(12), "a"), true, 0);
    // Work within a process is no exchange.
    assert!(joins.received(received(Role::Internal, 13, 11, "a", 0), 0).is_some());
    assert!(joins.received(received(Role::Message, 14, 11, "a", 0), 0).is_some());
    for span in [(Role::Server, 11, 9), (Role::Client, 12, 13), (Role::Client, 15, 13)] {
        assert!(joins.received(received(span.0, span.1, span.2, "a", SECOND), 0).is_none());
    }
    assert_eq!(reported(joins.tick(FIRST_LOOK - 1)), [""; 0]);
    assert_eq!(reported(joins.tick(FIRST_LOOK)), ["1=11 false", "2=12 false"]);
    assert_eq!((joins.present_id([1; 8]), joins.present_id([3; 8])), ([11; 8], [3; 8]));
    assert_eq!(joins.counts(), (1, 0));
    let looks: Vec<_> =
        (2..=u64::from(LOOKS)).flat_map(|nth| reported(joins.tick(nth * FIRST_LOOK))).collect();
    assert_eq!(looks, ["alone 15"]);
    assert_eq!(reported(joins.tick(HELD + SECOND)), [""; 0], "the SDK's spans have gone out instead");
}

#[test]
fn an_exchange_may_come_after_its_span() {
    let mut joins = Joins::default();
    joins.received(received(Role::Server, 11, 9, "a", SECOND), 0);
    assert_eq!(reported(joins.tick(FIRST_LOOK)), [""; 0]);
    put(&mut joins, &captured(SpanKind::Server, 1, Some(9), "a"), true, FIRST_LOOK);
    assert_eq!(reported(joins.tick(2 * FIRST_LOOK)), ["1=11 false"]);
}

#[test]
fn of_a_proxy_and_its_service_the_right_one_is_taken() {
    for (service, start, expected) in
        [("b", SECOND, "2=11 false"), ("c", SECOND, "1=11 false"), ("c", 2 * SECOND, "2=11 false")]
    {
        let mut joins = Joins::default();
        put(&mut joins, &captured(SpanKind::Server, 1, Some(9), "a"), true, 0);
        put(&mut joins, &captured(SpanKind::Server, 2, Some(9), "b"), true, 0);
        joins.received(received(Role::Server, 11, 9, service, start), 0);
        assert_eq!(reported(joins.tick(FIRST_LOOK)), [expected], "{service} {start}");
    }
}

#[test]
fn what_no_sdk_tells_of_goes_out_after_a_while_and_is_known_longer() {
    let mut joins = Joins::default();
    put(&mut joins, &captured(SpanKind::Server, 1, Some(9), "a"), true, 0);
    put(&mut joins, &captured(SpanKind::Server, 2, Some(8), "a"), true, 0);
    joins.hold(3, SECOND);
    assert_eq!((reported(joins.tick(HELD - 1)), joins.counts()), (vec![], (0, 3)));
    assert_eq!(reported(joins.tick(HELD)), ["out 1", "out 2"]);
    joins.received(received(Role::Server, 11, 9, "a", SECOND), HELD);
    assert_eq!(reported(joins.tick(HELD + SECOND)), ["1=11 true", "out 3"]);
    assert_eq!(reported(joins.tick(KNOWN)), [""; 0]);
    joins.received(received(Role::Server, 12, 8, "a", SECOND), KNOWN);
    let late: Vec<_> = (1..=10).flat_map(|nth| reported(joins.tick(KNOWN + nth * FIRST_LOOK))).collect();
    assert_eq!(late, ["alone 12"]);
    assert_eq!((joins.counts(), joins.captured.len()), ((0, 0), 0));
}

#[test]
fn only_processes_that_may_have_an_sdk_are_waited_for() {
    let mut joins: Joins<u8> = Joins::default();
    assert!(joins.holds(1, 0) && joins.holds(1, YOUNG - 1) && !joins.holds(1, YOUNG));
    put(&mut joins, &captured(SpanKind::Server, 1, Some(9), "a"), false, YOUNG);
    joins.received(received(Role::Server, 11, 9, "a", SECOND), YOUNG);
    assert_eq!(reported(joins.tick(YOUNG + FIRST_LOOK)), ["1=11 true"]);
    assert!(joins.holds(1, YOUNG + SILENT) && !joins.holds(1, YOUNG + FIRST_LOOK + SILENT));
    for pid in 0..2 * PROCESSES {
        joins.holds(u32::try_from(pid).unwrap(), 0);
    }
    assert_eq!(joins.processes.len(), PROCESSES);
}

#[test]
fn everything_is_bounded_and_comes_out_at_the_end() {
    let mut joins: Joins<u8> = Joins::default();
    for n in 0..CAPTURED + 10 {
        let mut span = captured(SpanKind::Server, 1, Some(9), "a");
        span.trace_id[..8].copy_from_slice(&(n as u64).to_le_bytes());
        put(&mut joins, &span, true, 0);
    }
    assert!(!joins.holds(1, 0), "enough are held");
    assert_eq!(joins.tick(0).len(), 10, "the oldest give way");
    joins.received(received(Role::Client, 15, 13, "a", 0), 0);
    joins.hold(3, 0);
    assert_eq!(joins.finish().len(), CAPTURED + 2);
    assert_eq!(joins.counts(), (0, 0));
}
