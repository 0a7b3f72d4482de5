//! What happens, in the order of the ring, and the places that follow from it.

mod callbacks;
mod shared;

use super::*;
use crate::protocol::{Cause, Wire};
use proptest::prelude::*;
use std::collections::HashMap;

const HEADER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const OTHER_HEADER: &str = "00-1af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn wire(connection: u32) -> Option<Wire> {
    Some(Wire { asked: connection, answered: !connection, position: 0 })
}

/// A request that thread `tid` reads at `started`. Processes have ten threads each: 10 is one of process 10, 21 of 20.
fn served(number: u64, tid: u32, started: u64) -> Begun<'static> {
    let tgid = tid / 10 * 10;
    Begun { number, side: Side::Server, tgid, tid, started, traceparent: "", cause: Cause::default() }
}

/// A call that thread `tid` makes at `started` while it serves `candidate`.
fn call(number: u64, tid: u32, started: u64, candidate: u64) -> Begun<'static> {
    let cause = Cause { candidate, ..Cause::default() };
    Begun { side: Side::Client, cause, ..served(number, tid, started) }
}

fn between(begun: Begun<'static>, connection: u32) -> Begun<'static> {
    Begun { cause: Cause { wire: wire(connection), ..begun.cause }, ..begun }
}

/// Ends at `at`, answered by the thread that has read it.
fn end(begun: Begun<'static>, at: u64) -> Ended<'static> {
    let answerer = Some(Answerer { tid: begun.tid, waits_many: false });
    Ended { begun, at, answerer, route: 1, part: Part::Whole }
}

fn causes() -> Causes {
    Causes::new(Ids::from_seed(1), Parents::On, true)
}

/// What happens, in the order of the ring.
#[derive(Clone, Copy)]
enum Step {
    Begin(Begun<'static>),
    End(Ended<'static>),
}
use Step::{Begin, End};

/// Takes all steps, and then asks for the places of what has ended, so long after that no span waits for anything.
fn places(causes: &mut Causes, steps: &[Step]) -> HashMap<u64, TracePosition> {
    let mut ended = Vec::new();
    for step in steps {
        match step {
            Begin(begun) => causes.begun(begun),
            End(end) => {
                causes.ended(end);
                ended.push(*end);
            }
        }
    }
    let now = PEER_WAIT_NS + ended.iter().map(|end| end.at).max().unwrap_or(0);
    ended.iter().map(|end| (end.begun.number, causes.place_now_at(end, now))).collect()
}

impl Causes {
    fn place_now_at(&mut self, ended: &Ended<'_>, now: u64) -> TracePosition {
        self.place(ended, now).unwrap_or_else(|_| self.place_now(ended))
    }
}

/// How the last of the calls came to its parent; whether that is request 1.
fn check(causes: &mut Causes, steps: &[Step], number: u64, expected: Origin) {
    let places = places(causes, steps);
    let place = places[&number];
    assert_eq!(place.origin, expected);
    let request = places.get(&1).map(|request| (request.trace_id, request.span_id));
    let is_child = Some((place.trace_id, place.parent_span_id.unwrap_or_default())) == request;
    assert_eq!(is_child, matches!(expected, Origin::Found(_)), "{place:?}");
}

#[test]
fn a_chain_is_one_trace() {
    let asks = between(call(100, 10, 1, 0), 5);
    let shop = between(served(1, 20, 2), 5);
    let asks_on = between(call(101, 20, 3, 1), 6);
    let stock = between(served(200, 30, 4), 6);
    let steps = [
        Begin(asks),
        Begin(shop),
        Begin(asks_on),
        Begin(stock),
        End(end(stock, 5)),
        End(end(asks_on, 6)),
        End(end(shop, 7)),
        End(end(asks, 8)),
    ];
    let places = places(&mut causes(), &steps);
    let parent = |number: u64| (places[&number].parent_span_id, places[&number].origin);
    assert_eq!(parent(100), (None, Origin::Root));
    assert_eq!(parent(1), (Some(places[&100].span_id), Origin::Found(Evidence::Certain)));
    assert_eq!(parent(101), (Some(places[&1].span_id), Origin::Found(Evidence::Strong)));
    assert_eq!(parent(200), (Some(places[&101].span_id), Origin::Found(Evidence::Certain)));
    for place in places.values() {
        assert_eq!((place.trace_id, place.flags), (places[&100].trace_id, FLAG_SAMPLED | FLAG_RANDOM));
    }
}

#[test]
fn a_thread_is_believed_only_while_nothing_speaks_against_it() {
    let request = served(1, 20, 2);
    let calls = call(2, 20, 3, 1);
    let strong = Origin::Found(Evidence::Strong);
    let unknown = Origin::Unknown;
    let alone = |request, calls| [Begin(request), Begin(calls), End(end(calls, 4)), End(end(request, 5))];
    check(&mut causes(), &alone(request, calls), 2, strong);
    // Another thread of the process makes the call.
    check(&mut causes(), &alone(request, call(2, 21, 3, 0)), 2, unknown(Reason::OtherThread));
    check(&mut causes(), &alone(request, call(2, 21, 3, 1)), 2, unknown(Reason::OtherThread));
    // Another process does, which serves nothing.
    check(&mut causes(), &alone(request, call(2, 30, 3, 0)), 2, Origin::Root);
    // The request that it has read is not known.
    check(&mut causes(), &alone(request, call(2, 20, 3, 7)), 2, unknown(Reason::Lost));
    // Loops, by the thread that calls, that reads, that answers.
    let waits = |begun: Begun<'static>| Begun { cause: Cause { waits_many: true, ..begun.cause }, ..begun };
    check(&mut causes(), &alone(request, waits(calls)), 2, unknown(Reason::RuntimeUnproven));
    check(&mut causes(), &alone(waits(request), calls), 2, unknown(Reason::RuntimeUnproven));
    let by = |tid, waits_many| Ended { answerer: Some(Answerer { tid, waits_many }), ..end(request, 5) };
    let answered = |end| [Begin(request), Begin(calls), End(super::tests::end(calls, 4)), End(end)];
    check(&mut causes(), &answered(by(20, true)), 2, unknown(Reason::RuntimeUnproven));
    check(&mut causes(), &answered(by(21, false)), 2, unknown(Reason::OtherThread));
    check(
        &mut causes(),
        &answered(Ended { answerer: None, ..end(request, 5) }),
        2,
        unknown(Reason::OtherThread),
    );
    // After the answer.
    let late =
        [Begin(request), End(end(request, 5)), Begin(call(2, 20, 6, 1)), End(end(call(2, 20, 6, 1), 7))];
    check(&mut causes(), &late, 2, unknown(Reason::Late));
    // A second request, before the first was answered: of the same thread, and of the same connection.
    for second in [served(9, 20, 3), Begun { number: 2, ..served(2, 21, 3) }] {
        let calls = call(50, 20, 4, 1);
        let steps = [
            Begin(request),
            Begin(second),
            Begin(calls),
            End(end(calls, 5)),
            End(end(second, 6)),
            End(end(request, 7)),
        ];
        check(&mut causes(), &steps, 50, unknown(Reason::Ambiguous));
    }
    // The kernel side does not report which threads wait.
    let mut blind = Causes::new(Ids::from_seed(1), Parents::On, false);
    check(&mut blind, &alone(request, calls), 2, unknown(Reason::RuntimeUnproven));
    let mut certain = Causes::new(Ids::from_seed(1), Parents::Certain, true);
    check(&mut certain, &alone(request, calls), 2, Origin::Root);
}

#[test]
fn a_route_that_went_from_hand_to_hand_is_not_believed() {
    let mut causes = causes();
    let before = served(70, 20, 1);
    causes.begun(&before);
    causes.ended(&Ended { answerer: Some(Answerer { tid: 21, waits_many: false }), ..end(before, 2) });
    let (request, calls) = (served(1, 20, 3), call(2, 20, 4, 1));
    let steps = [Begin(request), Begin(calls), End(end(calls, 5)), End(end(request, 6))];
    check(&mut causes, &steps, 2, Origin::Unknown(Reason::OtherThread));
    let elsewhere = Ended { route: 2, ..end(served(3, 20, 7), 10) };
    let (begun, calls) = (elsewhere.begun, call(4, 20, 8, 3));
    let places = places(&mut causes, &[Begin(begun), Begin(calls), End(end(calls, 9)), End(elsewhere)]);
    assert_eq!(places[&4].origin, Origin::Found(Evidence::Strong));
}

#[test]
fn what_is_not_known_yet_is_waited_for() {
    let mut causes = causes();
    let request = between(served(1, 20, 10), 5);
    causes.begun(&request);
    causes.ended(&end(request, 20));
    assert_eq!(causes.place(&end(request, 20), 30), Err(Waits::Peer));
    // The other end's record comes late.
    let asks = between(call(9, 10, 25, 0), 5);
    causes.begun(&asks);
    let place = causes.place(&end(request, 20), 40).unwrap();
    assert_eq!(place.origin, Origin::Found(Evidence::Certain));

    // A call waits for the answer to the request that it may belong to, and so does what it has caused.
    let (request, calls) = (between(served(2, 21, 50), 7), between(call(3, 21, 60, 2), 8));
    let stock = between(served(4, 30, 61), 8);
    [request, calls, stock].iter().for_each(|begun| causes.begun(begun));
    causes.ended(&end(stock, 65));
    causes.ended(&end(calls, 70));
    assert_eq!(causes.place(&end(calls, 70), 80), Err(Waits::Answer));
    assert_eq!(causes.place(&end(stock, 65), 80), Err(Waits::Answer));
    causes.ended(&end(request, 90));
    let now = 50 + PEER_WAIT_NS;
    let [request, calls, stock] =
        [end(request, 90), end(calls, 70), end(stock, 65)].map(|end| causes.place(&end, now).unwrap());
    assert_eq!(calls.parent_span_id, Some(request.span_id));
    assert_eq!((stock.trace_id, stock.parent_span_id), (request.trace_id, Some(calls.span_id)));
    // But not for ever.
    let (request, calls) = (served(5, 21, 100), call(6, 21, 101, 5));
    [request, calls].iter().for_each(|begun| causes.begun(begun));
    causes.ended(&end(calls, 102));
    let place = causes.place(&end(calls, 102), 101 + ANSWER_WAIT_NS).unwrap();
    assert_eq!(place.origin, Origin::Unknown(Reason::PendingRoom));
}

#[test]
fn connections_from_elsewhere_are_waited_for_once() {
    let mut causes = causes();
    let first = between(served(1, 20, 10), 5);
    causes.begun(&first);
    causes.ended(&end(first, 20));
    assert_eq!(causes.place(&end(first, 20), 30), Err(Waits::Peer));
    assert_eq!(causes.place(&end(first, 20), 10 + PEER_WAIT_NS).unwrap().origin, Origin::Root);
    let now = 20 + PEER_WAIT_NS;
    let second = between(served(2, 20, now), 5);
    causes.begun(&second);
    causes.ended(&end(second, now + 1));
    assert_eq!(causes.place(&end(second, now + 1), now + 2).unwrap().origin, Origin::Root);
}

#[test]
fn a_trace_that_was_passed_on_names_its_request() {
    let with = |begun: Begun<'static>, traceparent| Begun { traceparent, ..begun };
    let request = with(served(1, 20, 2), HEADER);
    let calls = with(call(2, 21, 3, 0), HEADER);
    let certain = Origin::Found(Evidence::Certain);
    check(
        &mut causes(),
        &[Begin(request), Begin(calls), End(end(calls, 4)), End(end(request, 5))],
        2,
        certain,
    );
    // Also after the answer: it cannot be otherwise.
    check(
        &mut causes(),
        &[Begin(request), End(end(request, 3)), Begin(calls), End(end(calls, 4))],
        2,
        certain,
    );
    let places_of = |steps: &[Step]| places(&mut causes(), steps);
    // Another trace, or two requests of the same one: the parent is what the header says.
    let elsewhere = with(calls, OTHER_HEADER);
    let twice = with(served(7, 21, 2), HEADER);
    for steps in [
        vec![Begin(request), Begin(elsewhere), End(end(elsewhere, 4)), End(end(request, 5))],
        vec![Begin(request), Begin(twice), Begin(calls), End(end(calls, 4)), End(end(request, 5))],
    ] {
        let place = places_of(&steps)[&2];
        assert_eq!(place.origin, Origin::Header);
        assert_eq!(place.parent_span_id, Some(0xb7ad_6b71_6920_3331_u64.to_be_bytes()));
    }
    // What is passed on as it came names a span further up than the other end of the connection.
    let [asks, shop] = [between(calls, 5), between(with(served(900, 30, 4), HEADER), 5)];
    let steps = [
        Begin(request),
        Begin(asks),
        Begin(shop),
        End(end(shop, 5)),
        End(end(asks, 6)),
        End(end(request, 7)),
    ];
    let relayed = places_of(&steps);
    assert_eq!((relayed[&900].parent_span_id, relayed[&900].origin), (Some(relayed[&2].span_id), certain));
    // What the application has written itself is its word, even where the other end is seen.
    let written = places_of(&steps[1..5]);
    assert_eq!(written[&900].parent_span_id, Some(0xb7ad_6b71_6920_3331_u64.to_be_bytes()));
    assert_eq!((written[&900].origin, written[&2].origin), (Origin::Header, Origin::Header));
}

#[test]
fn a_request_that_was_answered_gets_a_bounded_number_of_calls() {
    let mut causes = causes();
    let request = Begun { traceparent: HEADER, ..served(1, 20, 2) };
    causes.begun(&request);
    causes.ended(&end(request, 3));
    let found = (0..1_000_u64).filter(|nth| {
        let calls = Begun { traceparent: HEADER, ..call(100 + nth, 21, 10 + nth, 0) };
        causes.begun(&calls);
        causes.ended(&end(calls, 20 + nth));
        let place = causes.place(&end(calls, 20 + nth), 30 + nth).unwrap();
        // Asking again gives the same, and takes no room.
        assert_eq!(causes.place(&end(calls, 20 + nth), 30 + nth), Ok(place));
        place.origin == Origin::Found(Evidence::Certain)
    });
    assert_eq!(found.count(), 256);
}

#[test]
fn a_websocket_is_a_child_of_its_upgrade() {
    for traceparent in ["", HEADER] {
        for asks_first in [true, false] {
            let mut causes = causes();
            let begun = Begun { traceparent, ..served(1, 20, 10) };
            let upgrade = Ended { part: Part::Upgrade, ..end(begun, 20) };
            let socket = Begun { started: 20, ..begun };
            let socket = Ended { part: Part::Socket, answerer: None, ..end(socket, 9_000) };
            causes.begun(&begun);
            causes.ended(&upgrade);
            let first = asks_first.then(|| causes.place(&upgrade, 21).unwrap());
            if asks_first {
                // Hours later.
                causes.sweep(u64::MAX);
            }
            causes.ended(&socket);
            let below = causes.place(&socket, 9_001).unwrap();
            let above = first.unwrap_or_else(|| causes.place(&upgrade, 9_002).unwrap());
            assert_eq!((below.trace_id, below.parent_span_id), (above.trace_id, Some(above.span_id)));
            assert_ne!(below.span_id, above.span_id);
            assert_eq!((below.flags, above.parent_span_id.is_some()), (above.flags, !traceparent.is_empty()));
        }
    }
}

#[test]
fn what_is_lost_is_nobodys_cause() {
    let mut causes = causes();
    let (request, calls) = (served(1, 20, 2), call(2, 20, 3, 1));
    causes.begun(&request);
    causes.begun(&calls);
    causes.forget(1);
    causes.ended(&end(calls, 4));
    assert_eq!(causes.place(&end(calls, 4), 5).unwrap().origin, Origin::Unknown(Reason::Lost));
    // A process that serves nothing any more.
    let later = call(3, 21, 9, 0);
    causes.begun(&later);
    causes.ended(&end(later, 10));
    assert_eq!(causes.place(&end(later, 10), 11).unwrap().origin, Origin::Root);
}

#[test]
fn nothing_is_looked_for_when_that_is_not_wanted() {
    let mut causes = Causes::new(Ids::from_seed(1), Parents::Off, true);
    let (asks, shop) = (between(call(1, 10, 1, 0), 5), between(served(2, 20, 2), 5));
    let places = places(&mut causes, &[Begin(asks), Begin(shop), End(end(shop, 3)), End(end(asks, 4))]);
    assert!(places.values().all(|place| place.origin == Origin::Root));
    assert_ne!(places[&1].trace_id, places[&2].trace_id);
}

/// A goroutine's number says what a call is made for; which threads run, and what they wait for, says nothing then.
#[test]
fn a_runtime_names_the_request() {
    let unknown = Origin::Unknown;
    let named = |begun: Begun<'static>| {
        let cause = Cause { by_runtime: true, waits_many: true, ..begun.cause };
        Begun { cause, ..begun }
    };
    let request = Begun { cause: Cause { waits_many: true, ..Cause::default() }, ..served(1, 20, 2) };
    let other = served(3, 22, 2);
    let steps = |calls: Begun<'static>, at| {
        [
            Begin(request),
            Begin(other),
            Begin(calls),
            End(end(calls, 8)),
            End(end(request, at)),
            End(end(other, 9)),
        ]
    };
    let calls = |thread, started, candidate| named(call(2, thread, started, candidate));
    check(&mut causes(), &steps(calls(20, 3, 1), 5), 2, Origin::Found(Evidence::Certain));
    // By another thread, and one that serves something else.
    check(&mut causes(), &steps(calls(22, 3, 1), 5), 2, Origin::Found(Evidence::Certain));
    // When the request had been answered; for no request; for one that was lost; for one of another process.
    check(&mut causes(), &steps(calls(20, 6, 1), 5), 2, unknown(Reason::Late));
    check(&mut causes(), &steps(calls(20, 3, 0), 5), 2, unknown(Reason::NoContext));
    check(&mut causes(), &steps(calls(20, 3, 7), 5), 2, unknown(Reason::Lost));
    check(&mut causes(), &steps(calls(30, 3, 1), 5), 2, unknown(Reason::NoContext));
    // Its process serves nothing.
    check(&mut causes(), &steps(calls(30, 3, 0), 5), 2, Origin::Root);
    // A goroutine that was started for it, on a route where none has gone on.
    let started = |begun: Begun<'static>| {
        let cause = Cause { is_started: true, ..begun.cause };
        Begun { cause, ..begun }
    };
    let mut causes = causes();
    check(&mut causes, &steps(started(calls(22, 3, 1)), 5), 2, Origin::Found(Evidence::Strong));
    check(&mut causes, &steps(started(calls(22, 6, 1)), 5), 2, unknown(Reason::Late));
    check(&mut causes, &steps(started(calls(22, 3, 1)), 5), 2, unknown(Reason::NoContext));
    check(&mut causes, &steps(calls(20, 3, 1), 5), 2, Origin::Found(Evidence::Certain));
}

fn any_begun() -> impl Strategy<Value = Begun<'static>> {
    let behind = proptest::option::of(0_u64..20);
    let cause = (0_u64..12, any::<[bool; 3]>(), proptest::option::of(0_u32..6), behind).prop_map(
        |(candidate, [waits_many, by_runtime, is_started], connection, behind)| Cause {
            candidate,
            waits_many,
            by_runtime,
            is_started: by_runtime && is_started,
            behind: behind.filter(|_| by_runtime),
            wire: connection.and_then(wire),
        },
    );
    let header = prop_oneof![4 => Just(""), 1 => Just(HEADER), 1 => Just(OTHER_HEADER)];
    (0_u64..12, any::<bool>(), 0_u32..6, 0_u64..100, header, cause).prop_map(
        |(number, is_server, thread, started, traceparent, cause)| {
            let side = if is_server { Side::Server } else { Side::Client };
            Begun { side, traceparent, cause, ..served(number, 10 + thread / 2 * 10 + thread % 2, started) }
        },
    )
}

proptest! {
    /// Whatever comes in whatever order: every span gets a place, the same whenever it is asked for, in its parent's
    /// trace.
    #[test]
    fn places_hold(steps in prop::collection::vec((any_begun(), 0_u8..4, 0_u64..100), 1..60)) {
        let mut causes = causes();
        let mut ended: HashMap<u64, Ended<'static>> = HashMap::new();
        for (nth, (begun, action, at)) in steps.into_iter().enumerate() {
            match action {
                0 => {
                    causes.begun(&begun);
                    ended.remove(&begun.number);
                }
                1 => {
                    causes.forget(begun.number);
                    ended.remove(&begun.number);
                }
                _ => {
                    let by = Answerer { tid: begun.tid + u32::from(at % 5 == 0), waits_many: at % 7 == 0 };
                    let answerer = (at % 3 > 0).then_some(by);
                    let end = Ended { answerer, route: at % 2, ..end(begun, at) };
                    causes.ended(&end);
                    ended.insert(begun.number, end);
                    let _ = causes.place(&end, nth as u64 * PEER_WAIT_NS / 10);
                }
            }
        }
        let places: HashMap<u64, TracePosition> =
            ended.iter().map(|(number, end)| (*number, causes.place_now(end))).collect();
        for (number, place) in &places {
            prop_assert_eq!(causes.place_now(&ended[number]), *place);
            prop_assert_eq!(place.parent_span_id.is_some(), !matches!(place.origin, Origin::Root | Origin::Unknown(_)));
            prop_assert!(place.parent_span_id != Some(place.span_id));
        }
    }

    /// Whatever is said of calls: who gets a parent by that gets the request that is named, of its own process, and
    /// began before it was answered.
    #[test]
    fn a_runtime_names_its_own_requests(
        requests in prop::collection::vec((20_u32..50, 0_u64..50, 50_u64..100), 1..8),
        calls in prop::collection::vec((20_u32..50, 0_u64..120, 0_u64..10, any::<bool>()), 1..20),
    ) {
        let requests: Vec<_> = (1..).zip(&requests)
            .map(|(number, (tid, from, to))| (served(number, *tid, *from), *to)).collect();
        let calls: Vec<_> = (100..).zip(&calls).map(|(number, (tid, at, candidate, is_started))| {
            let begun = call(number, *tid, *at, *candidate);
            Begun { cause: Cause { by_runtime: true, is_started: *is_started, ..begun.cause }, ..begun }
        }).collect();
        let begins = requests.iter().map(|(begun, _)| begun).chain(&calls).map(|begun| Begin(*begun));
        let ends = requests.iter().map(|(begun, to)| End(end(*begun, *to)));
        let steps: Vec<Step> = begins.chain(ends).chain(calls.iter().map(|it| End(end(*it, 200)))).collect();
        let places = places(&mut causes(), &steps);
        for call in &calls {
            let place = places[&call.number];
            let Origin::Found(evidence) = place.origin else { continue };
            let named = requests.iter().find(|(begun, _)| begun.number == call.cause.candidate);
            let (request, to) = named.unwrap();
            prop_assert_eq!(place.parent_span_id, Some(places[&request.number].span_id));
            prop_assert_eq!(evidence == Evidence::Strong, call.cause.is_started);
            prop_assert!(request.tgid == call.tgid && call.started <= *to);
        }
    }
}

#[test]
fn what_is_remembered_is_bounded() {
    let mut causes = causes();
    for number in 0..200_000_u64 {
        let begun = between(served(number, 20, number), u32::try_from(number).unwrap());
        causes.begun(&begun);
        if number % 2 == 0 {
            causes.ended(&end(begun, number));
            let _ = causes.place_now(&end(begun, number));
        }
    }
    assert!(causes.table.len() <= 131_072 + 16_384, "{}", causes.table.len());
    (0..200_000).for_each(|number| causes.forget(number));
    assert_eq!(causes.table.len(), 0);
}

/// Where the time went is asked by the rule of parents.
#[test]
fn only_a_thread_that_serves_one_request_from_end_to_end_is_taken_for_it() {
    let check = |steps: &[Step], asked: Ended<'static>, expected: bool| {
        let mut causes = causes();
        places(&mut causes, steps);
        assert_eq!(causes.is_served_by_reader(&asked), expected, "{asked:?}");
    };
    let (request, other) = (served(1, 11, 5), served(99, 11, 6));
    let whole = end(request, 9);
    check(&[Begin(request), End(whole)], whole, true);
    // Not heard of before its end.
    check(&[End(whole)], whole, true);
    // Another thread answers.
    let handed = Ended { answerer: Some(Answerer { tid: 12, waits_many: false }), ..whole };
    check(&[Begin(request), End(handed)], handed, false);
    // An event loop.
    let turns = Ended { answerer: Some(Answerer { tid: 11, waits_many: true }), ..whole };
    check(&[Begin(request), End(turns)], turns, false);
    // Its thread has read another meanwhile.
    check(&[Begin(request), Begin(other), End(whole)], whole, false);
    // A call is served elsewhere.
    let asked = end(call(2, 11, 6, 1), 8);
    check(&[Begin(request), Begin(asked.begun), End(asked)], asked, false);
}
