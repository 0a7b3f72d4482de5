//! Calls of an event loop whose callbacks say what they work for, and promises that go on behind them.

use super::*;

/// The thread that runs the loop.
const LOOP: u32 = 20;

/// A call that the runtime says to be for `candidate`; `behind`: by a promise, behind a callback that began then.
fn said(number: u64, started: u64, candidate: u64, behind: Option<u64>) -> Begun<'static> {
    let begun = call(number, LOOP, started, candidate);
    let behind = behind.map(|at| started - at);
    Begun { cause: Cause { by_runtime: true, waits_many: true, behind, ..begun.cause }, ..begun }
}

/// The loop is known to run: two calls of a request that has ended before time 10, the second of them by a promise.
fn followed() -> Causes {
    let mut causes = causes();
    let request = served(50, LOOP, 1);
    let calls = [said(51, 2, 50, None), said(52, 4, 51, Some(3))];
    let steps = [
        Begin(request),
        Begin(calls[0]),
        End(end(calls[0], 3)),
        Begin(calls[1]),
        End(end(calls[1], 5)),
        End(end(request, 6)),
    ];
    let places = places(&mut causes, &steps);
    assert_eq!(places[&51].parent_span_id, Some(places[&50].span_id));
    causes
}

#[test]
fn a_call_behind_an_answer_is_of_what_the_answered_one_was_for() {
    let request = served(1, LOOP, 10);
    let first = said(2, 11, 1, None);
    let check_second = |second: Begun<'static>, at, expected| {
        let steps = [
            Begin(request),
            Begin(first),
            End(end(first, 12)),
            Begin(second),
            End(end(second, 21)),
            End(end(request, at)),
        ];
        check(&mut followed(), &steps, second.number, expected);
    };
    // By a number; by a promise that went on alone; when the request had been answered.
    check_second(said(3, 13, 2, None), 22, Origin::Found(Evidence::Certain));
    check_second(said(3, 13, 2, Some(12)), 22, Origin::Found(Evidence::Strong));
    check_second(said(3, 19, 2, Some(18)), 15, Origin::Unknown(Reason::Late));
    // What is not known of the first is not known of the second.
    check_second(said(3, 13, 9, None), 22, Origin::Unknown(Reason::Lost));
    check_second(said(3, 13, 0, None), 22, Origin::Unknown(Reason::NoContext));
}

/// A promise may be that of another request, unless each of those waits for a call of its own.
#[test]
fn a_promise_is_believed_while_all_other_requests_wait() {
    let (request, other) = (served(1, LOOP, 10), served(2, LOOP, 11));
    let check_promise = |others_call: Option<(u64, u64)>, expected| {
        let mut causes = followed();
        let first = said(3, 12, 1, None);
        let second = said(4, 21, 3, Some(20));
        let mut steps = vec![Begin(request), Begin(other), Begin(first)];
        let others = others_call.map(|(from, to)| (said(5, from, 2, None), to));
        steps.extend(others.map(|(begun, _)| Begin(begun)));
        steps.extend(others.filter(|(_, to)| *to < 20).map(|(begun, to)| End(end(begun, to))));
        steps.extend([End(end(first, 20)), Begin(second)]);
        steps.extend(others.filter(|(_, to)| *to >= 20).map(|(begun, to)| End(end(begun, to))));
        steps.extend([End(end(second, 30)), End(end(request, 31)), End(end(other, 32))]);
        check(&mut causes, &steps, 4, expected);
    };
    check_promise(Some((13, 25)), Origin::Found(Evidence::Strong));
    check_promise(Some((13, 19)), Origin::Unknown(Reason::Ambiguous));
    check_promise(None, Origin::Unknown(Reason::Ambiguous));
}

/// What follows a call that was not believed is not believed either.
#[test]
fn doubt_is_handed_on() {
    let (request, other) = (served(1, LOOP, 10), served(2, LOOP, 11));
    let [first, second, third] = [said(3, 12, 1, None), said(4, 21, 3, Some(20)), said(5, 26, 4, None)];
    let steps = [
        Begin(request),
        Begin(other),
        Begin(first),
        End(end(first, 20)),
        Begin(second),
        End(end(second, 25)),
        Begin(third),
        End(end(third, 30)),
        End(end(request, 31)),
        End(end(other, 32)),
    ];
    check(&mut followed(), &steps, 5, Origin::Unknown(Reason::Ambiguous));
}

/// A thread is followed from the first call on that says something: of what went on before, nothing is concluded.
#[test]
fn the_first_promise_is_not_believed() {
    let request = served(1, LOOP, 10);
    let calls = [said(2, 12, 1, Some(11)), said(3, 14, 1, Some(13))];
    let steps = [
        Begin(request),
        Begin(calls[0]),
        End(end(calls[0], 13)),
        Begin(calls[1]),
        End(end(calls[1], 15)),
        End(end(request, 16)),
    ];
    check(&mut causes(), &steps, 2, Origin::Unknown(Reason::Ambiguous));
    check(&mut causes(), &steps, 3, Origin::Found(Evidence::Strong));
}

#[test]
fn only_numbers_are_certain() {
    let request = served(1, LOOP, 10);
    let certain = || Causes::new(Ids::from_seed(1), Parents::Certain, true);
    for (behind, expected) in [(None, Origin::Found(Evidence::Certain)), (Some(11), Origin::Root)] {
        let calls = said(2, 12, 1, behind);
        let steps = [Begin(request), Begin(calls), End(end(calls, 13)), End(end(request, 16))];
        check(&mut certain(), &steps, 2, expected);
    }
}
