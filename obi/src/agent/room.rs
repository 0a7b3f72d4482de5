//! Spans that wait for their places in traces: their parents, or the traces of these, are not known yet.
//!
//! In: spans with what is known of their exchanges. Out: those that have waited long enough, or are too many. Refuses
//! to know what a span waits for.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::cause::{Causes, Ended, Part, TracePosition, Waits};
use crate::protocol::{Answerer, Begun, Cause, Exchange, Message, Semantics, Side};
use crate::span::Span;

/// Spans that wait at most: some 3 MB.
const ROOM: usize = 4_096;

/// A span without a place, and what its place follows from.
#[derive(Debug)]
pub(super) struct Held {
    pub(super) span: Box<Span>,
    /// From `CLOCK_MONOTONIC` to the span's times.
    pub(super) wall_offset: u64,
    pub(super) end: OwnedEnd,
    /// By the same clock: when it began to wait.
    since: u64,
    waits: Waits,
}

/// [`Ended`] without its texts, which are read when a request begins.
#[derive(Debug, Clone, Copy)]
pub(super) struct OwnedEnd {
    number: u64,
    side: Side,
    tgid: u32,
    tid: u32,
    started: u64,
    cause: Cause,
    at: u64,
    answerer: Option<Answerer>,
    route: u64,
    part: Part,
}

/// The status of a request that becomes something else.
const SWITCHING_PROTOCOLS: u16 = 101;

/// The end of an exchange as [`Causes`] takes it. `route` is a number for its service and route.
pub(super) fn ended<'a>(exchange: &Exchange<'a>, route: u64) -> Ended<'a> {
    let (traceparent, part) = match &exchange.message {
        Message::Http(http) => {
            let status = http.response.and_then(|response| response.status);
            let part = match http.semantics {
                Semantics::WebSocket(_) => Part::Socket,
                Semantics::Http if status == Some(SWITCHING_PROTOCOLS) => Part::Upgrade,
                _ => Part::Whole,
            };
            (http.request.traceparent, part)
        }
        Message::Database(_) => ("", Part::Whole),
    };
    let Exchange { number, side, tgid, tid, started, cause, .. } = *exchange;
    let begun = Begun { number, side, tgid, tid, started, traceparent, cause };
    Ended { begun, at: exchange.ended, answerer: exchange.answerer, route, part }
}

impl OwnedEnd {
    pub(super) fn of(ended: &Ended<'_>) -> Self {
        let Begun { number, side, tgid, tid, started, cause, .. } = ended.begun;
        let Ended { at, answerer, route, part, .. } = *ended;
        Self { number, side, tgid, tid, started, cause, at, answerer, route, part }
    }

    pub(super) fn borrowed(&self) -> Ended<'static> {
        let Self { number, side, tgid, tid, started, cause, at, answerer, route, part } = *self;
        Ended {
            begun: Begun { number, side, tgid, tid, started, traceparent: "", cause },
            at,
            answerer,
            route,
            part,
        }
    }
}

/// The spans, in the order of their ends.
#[derive(Debug, Default)]
pub(super) struct Room {
    held: VecDeque<Held>,
    /// How many calls wait, by the request that each may be for.
    calls: HashMap<u64, usize, RandomState>,
}

impl Held {
    /// The request that it is a call for, as far as is known.
    fn request(&self) -> Option<u64> {
        let candidate = self.end.cause.candidate;
        (self.end.side == Side::Client && candidate != 0).then_some(candidate)
    }
}

impl Room {
    /// Takes a span in. Returns the one that has waited longest when there is no room for both.
    pub(super) fn hold(
        &mut self,
        span: Box<Span>,
        wall_offset: u64,
        ended: &Ended<'_>,
        (waits, now): (Waits, u64),
    ) -> Option<Held> {
        let first = if self.held.len() >= ROOM { self.held.pop_front() } else { None };
        first.iter().for_each(|first| self.leaves(first));
        let end = OwnedEnd::of(ended);
        let held = Held { span, wall_offset, end, since: now, waits };
        if let Some(request) = held.request() {
            *self.calls.entry(request).or_default() += 1;
        }
        self.held.push_back(held);
        first
    }

    /// A span waits no more.
    fn leaves(&mut self, held: &Held) {
        let Some(request) = held.request() else { return };
        if let Some(n) = self.calls.get_mut(&request) {
            *n -= 1;
            if *n == 0 {
                self.calls.remove(&request);
            }
        }
    }

    /// Takes out those whose places are known by now.
    pub(super) fn settle(&mut self, causes: &mut Causes, now: u64) -> Vec<(Held, TracePosition)> {
        let mut settled = Vec::new();
        for _ in 0..self.held.len() {
            let Some(mut held) = self.held.pop_front() else { break };
            match causes.place(&held.end.borrowed(), now) {
                Ok(place) => {
                    self.leaves(&held);
                    settled.push((held, place));
                }
                Err(waits) => {
                    held.waits = waits;
                    self.held.push_back(held);
                }
            }
        }
        settled
    }

    /// The same of calls that were waiting for the end of this request.
    pub(super) fn settle_calls_of(
        &mut self,
        request: u64,
        causes: &mut Causes,
        now: u64,
    ) -> Vec<(Held, TracePosition)> {
        let Some(mut left) = self.calls.get(&request).copied() else { return Vec::new() };
        let (mut settled, mut index) = (Vec::new(), self.held.len());
        // They have come shortly before.
        while left > 0 && index > 0 {
            index -= 1;
            let is_its = self.held.get(index).is_some_and(|held| held.request() == Some(request));
            if !is_its {
                continue;
            }
            left -= 1;
            if let Some(held) = self.held.get(index)
                && let Ok(place) = causes.place(&held.end.borrowed(), now)
                && let Some(held) = self.held.remove(index)
            {
                self.leaves(&held);
                settled.push((held, place));
            }
        }
        settled.reverse();
        settled
    }

    /// All of them.
    pub(super) fn clear(&mut self) -> VecDeque<Held> {
        self.calls.clear();
        std::mem::take(&mut self.held)
    }

    /// No span waits that came before `time` and only needs a little longer.
    pub(super) fn is_quiet_since(&self, time: u64) -> bool {
        self.held.iter().all(|held| held.since > time || held.waits == Waits::Answer)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.held.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cause::context::Ids;
    use crate::config::Parents;
    use crate::red::tests::span;
    use crate::span::SpanKind;

    const TGID: u32 = 10;
    const NOW: u64 = 20_000;

    /// Each request has a thread of its own; numbers that follow each other would be of one connection.
    fn request(number: u64) -> Ended<'static> {
        end(number, Side::Server, number)
    }

    fn call(number: u64, request: u64) -> Ended<'static> {
        end(number, Side::Client, request)
    }

    fn end(number: u64, side: Side, request: u64) -> Ended<'static> {
        let candidate = if side == Side::Client { request } else { 0 };
        let cause = Cause { candidate, ..Cause::default() };
        let tid = TGID + request as u32;
        let begun = Begun { number, side, tgid: TGID, tid, started: number, traceparent: "", cause };
        let answerer = Some(Answerer { tid, waits_many: false });
        Ended { begun, at: NOW, answerer, route: 1, part: Part::Whole }
    }

    /// Calls of requests that are not answered yet, as (number, request); and the room that they wait in.
    fn waiting(calls: &[(u64, u64)]) -> (Room, Causes) {
        let (mut room, mut causes) = (Room::default(), Causes::new(Ids::from_seed(1), Parents::On, true));
        calls.iter().for_each(|(_, request)| causes.begun(&self::request(*request).begun));
        for (number, request) in calls {
            let call = call(*number, *request);
            causes.ended(&call);
            let waits = causes.place(&call, NOW).expect_err("who answers is not known");
            let first = room.hold(Box::new(span(SpanKind::Client)), 0, &call, (waits, NOW));
            assert!(first.is_none());
        }
        (room, causes)
    }

    fn numbers(settled: &[(Held, TracePosition)]) -> Vec<u64> {
        settled.iter().map(|(held, _)| held.end.number).collect()
    }

    #[test]
    fn calls_leave_with_the_end_of_their_request() {
        let (mut room, mut causes) = waiting(&[(100, 10), (102, 20), (104, 10)]);
        assert!(room.settle_calls_of(10, &mut causes, NOW).is_empty(), "it is not answered");
        causes.ended(&request(10));
        assert_eq!(numbers(&room.settle_calls_of(10, &mut causes, NOW)), [100, 104]);
        assert!(room.settle_calls_of(10, &mut causes, NOW).is_empty() && !room.is_empty());
        causes.ended(&request(20));
        assert_eq!(numbers(&room.settle(&mut causes, NOW)), [102]);
        assert!(room.is_empty() && room.calls.is_empty());
    }

    #[test]
    fn what_is_counted_is_what_waits() {
        let calls: Vec<(u64, u64)> = (0..ROOM as u64).map(|at| (10_000 + at, 10 + at % 7 * 10)).collect();
        let (mut room, mut causes) = waiting(&calls);
        let next = call(9_000, 10);
        let first = room.hold(Box::new(span(SpanKind::Client)), 0, &next, (Waits::Answer, NOW));
        assert_eq!(first.map(|first| first.end.number), Some(10_000), "the oldest makes room");
        let waiting = |room: &Room| room.held.iter().filter(|held| held.request().is_some()).count();
        assert_eq!((room.calls.values().sum::<usize>(), waiting(&room)), (ROOM, ROOM));
        causes.ended(&request(30));
        let settled = room.settle_calls_of(30, &mut causes, NOW).len();
        assert!(settled > 0 && room.calls.get(&30).is_none());
        assert_eq!((room.calls.values().sum::<usize>(), waiting(&room)), (ROOM - settled, ROOM - settled));
        assert_eq!(room.clear().len(), ROOM - settled);
        assert!(room.calls.is_empty());
    }
}
