//! The table of open exchanges.
//!
//! In: records of the kernel, in ring order. Out: each exchange once, to a [`Sink`]: finished, or lost with a
//! reason. On multi-threaded clients the response's records may come before the request's; the table waits
//! for both. Exchanges that the kernel side has counted as lost never end here: [`Exchanges::sweep`] and
//! [`Exchanges::forget`] remove them uncounted. Refuses to know spans.

use super::database::Databases;
use super::entry::{Entry, RequestHead, ResponseStep, Upgrade};
use super::http2::Http2;
use super::loss::{self, Loss};
use super::table::{Limits, RequestStep, Table};
use super::websocket::WebSockets;
use super::{Begun, Exchange, Failure, Side, Times, UnderWay};
use crate::capture::event::Event;
use obi_ebpf::{
    CLOSE_ABANDONED, CLOSE_DATABASE, CLOSE_HTTP2, CLOSE_LOCAL, CLOSE_REMOTE, CLOSE_RESET, CLOSE_TIMEOUT,
    FLAG_FIRST_PIECE, FLAG_MESSAGE_END, MESSAGE_REQUEST, MESSAGE_RESPONSE, ORDINAL_BITS, PROTOCOL_POSTGRES,
    close_event, end_event, head_event, times_event,
};
use std::time::Duration;

/// Where the outcomes go.
pub trait Sink {
    /// A request's head has come. Before its [`Self::exchange`] or [`Self::forgotten`]; not of every exchange.
    fn begun(&mut self, begun: &Begun<'_>) {
        let _ = begun;
    }
    /// A request that had begun will not be heard of again: it is lost, and counted.
    fn forgotten(&mut self, number: u64) {
        let _ = number;
    }
    /// An exchange is over.
    fn exchange(&mut self, exchange: &Exchange<'_>);
    /// An exchange happened that will never be handed over. Once per exchange.
    fn lost(&mut self, loss: Loss);
    /// The same for `n` exchanges.
    fn lost_many(&mut self, loss: Loss, n: u32) {
        for _ in 0..n {
            self.lost(loss);
        }
    }
}

/// Exchanges that ended uncounted, because the kernel side has counted them. All are running totals.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Evicted {
    /// The request was seen and its end was not, for longer than the age given to `sweep`.
    pub unfinished: u64,
    /// A response whose request was not seen: lost in the ring, or refused as `pending_full`.
    pub orphaned: u64,
    /// A piece of the request head was missing.
    pub gap: u64,
}

/// Number of records that belong to no exchange.
const NO_EXCHANGE: u64 = 0;

/// Records that precede or follow the rest of their exchange by more than this are alone.
pub(super) const SETTLE: Duration = Duration::from_secs(1);

/// All open exchanges. Owned by one task; allocates only while it grows.
#[derive(Debug)]
pub struct Exchanges {
    table: Table,
    http2: Http2,
    websockets: WebSockets,
    databases: Databases,
    evicted: Evicted,
}

impl Exchanges {
    /// An empty table.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            table: Table::new(limits),
            http2: Http2::new(limits),
            websockets: WebSockets::new(limits),
            databases: Databases::new(limits),
            evicted: Evicted::default(),
        }
    }

    /// Spans of database calls follow these settings from now on.
    pub fn set_databases(&mut self, settings: crate::config::Databases) {
        self.databases.set(settings);
    }

    /// Takes one record; process records are none of its business.
    pub fn accept(&mut self, event: &Event<'_>, sink: &mut impl Sink) {
        let number = match event {
            Event::Head(head, _) => head.header.exchange,
            Event::End(end) => end.header.exchange,
            Event::Times(times) => times.header.exchange,
            Event::Close(close) => close.header.exchange,
            Event::Frame(frame, _) => frame.header.exchange,
            Event::WebSocket(end) => end.header.exchange,
            Event::Process(..) => NO_EXCHANGE,
        };
        if number == NO_EXCHANGE {
            return;
        }
        match event {
            Event::Head(head, payload) => match u32::from(head.message) {
                MESSAGE_REQUEST => self.request_piece(head, payload, sink),
                MESSAGE_RESPONSE => self.response_piece(head, payload, sink),
                _ => {}
            },
            Event::End(end) => self.end(end, sink),
            Event::Times(times) => self.times(times, sink),
            Event::Close(close) => self.close(close, sink),
            Event::Frame(frame, payload) if u32::from(frame.protocol) >= PROTOCOL_POSTGRES => {
                self.databases.accept(frame, payload, sink);
            }
            Event::Frame(frame, payload) => self.http2.accept(frame, payload, sink),
            Event::WebSocket(end) => self.websockets.end(end, sink),
            Event::Process(..) => {}
        }
        self.table.tell_forgotten(sink);
    }

    /// Streams of HTTP/2 that are open on the connection of exchange `number`.
    #[must_use]
    pub fn open_streams(&self, number: u64) -> Vec<u32> {
        self.http2.open_streams(number)
    }

    /// Evicts what had no record for `max_age` at `now` (`CLOCK_MONOTONIC`, ns): its end was lost in the
    /// kernel, which has counted it. Call it about once a second: what is whole but for the record of its
    /// request body's end is handed over here, and responses without a request are dropped after a second.
    pub fn sweep(&mut self, now: u64, max_age: Duration, sink: &mut impl Sink) {
        self.http2.sweep(now, max_age, sink);
        self.websockets.sweep(now, max_age, sink);
        for slot in 0..self.table.slots() {
            let entry = self.table.entry(slot);
            let age = Duration::from_nanos(now.saturating_sub(entry.touched));
            if entry.number == NO_EXCHANGE || age < SETTLE.min(max_age) {
                continue;
            }
            let stale = age >= max_age;
            match (entry.given_up, entry.request_head, entry.response_ended) {
                (false, RequestHead::Whole, Some(ended)) => self.finish(slot, ended, None, sink),
                (false, RequestHead::Unseen, _) => {
                    self.evicted.orphaned += 1;
                    self.table.release(slot);
                }
                (given_up, ..) if stale => {
                    self.evicted.unfinished += u64::from(!given_up);
                    self.table.release(slot);
                }
                _ => {}
            }
        }
        self.table.tell_forgotten(sink);
    }

    /// Drops an exchange that the kernel side has reported as lost; the number of a connection stands for all its
    /// streams of HTTP/2, unless its first exchange, before an upgrade, is open. `false` when it is not open.
    pub fn forget(&mut self, number: u64, sink: &mut impl Sink) -> bool {
        if self.databases.forget(number, sink) {
            return true;
        }
        if let Some(slot) = self.table.find(number) {
            self.table.release(slot);
            self.table.tell_forgotten(sink);
            return true;
        }
        let is_connection = number.is_multiple_of(1 << ORDINAL_BITS);
        let was_http2 = is_connection && self.http2.forget(number, sink);
        was_http2 | self.websockets.forget(number)
    }

    /// Calls `visit` with each exchange whose request head has passed and whose response has not ended.
    pub fn for_each_under_way(&mut self, mut visit: impl FnMut(&UnderWay<'_>)) {
        for slot in 0..self.table.slots() {
            if let Some(under_way) = self.table.entry(slot).under_way() {
                visit(&under_way);
            }
        }
        self.http2.for_each_under_way(visit);
    }

    /// Exchanges open now: of HTTP/1, streams of HTTP/2, WebSockets, calls of databases.
    #[must_use]
    pub fn open(&self) -> usize {
        self.table.open() + self.http2.open() + self.websockets.open() + self.databases.open()
    }

    /// Exchanges evicted so far.
    #[must_use]
    pub fn evicted(&self) -> Evicted {
        let http2 = self.http2.evicted();
        Evicted { orphaned: self.evicted.orphaned + http2.orphaned, ..self.evicted }
    }

    /// Memory held for texts, unfinished heads and header tables, bytes.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.table.held_bytes()
            + self.http2.held_bytes()
            + self.websockets.held_bytes()
            + self.databases.held_bytes()
    }
}

impl Exchanges {
    fn request_piece(&mut self, head: &head_event, payload: &[u8], sink: &mut impl Sink) {
        let flags = head.header.flags;
        let first = flags & FLAG_FIRST_PIECE != 0;
        let found = self.table.find(head.header.exchange);
        // A later piece without its first: that one was refused or lost, and counted.
        let slot = match found {
            Some(slot) => slot,
            None if !first => return,
            None => match self.table.insert(head.header.exchange) {
                Some(slot) => slot,
                None => return sink.lost(protocol_loss(loss::PENDING_FULL, head)),
            },
        };
        if first {
            self.begin_request(slot, head, sink);
        }
        let entry = self.table.entry(slot);
        entry.touched = head.header.time;
        if entry.given_up || entry.request_head != RequestHead::Partial {
            return;
        }
        match self.table.take_request_piece(slot, head, payload) {
            RequestStep::Taken => return,
            RequestStep::Whole => {}
            RequestStep::Gap => {
                self.evicted.gap += 1;
                return self.table.give_up(slot);
            }
            RequestStep::Unparsable => {
                sink.lost(protocol_loss(loss::UNPARSABLE, head));
                return self.table.give_up(slot);
            }
        }
        self.tell_begun(slot, sink);
        if flags & FLAG_MESSAGE_END != 0 {
            self.table.entry(slot).end_request(head.body_bytes);
        }
        self.finish_if_whole(slot, sink);
    }

    /// The head of a request is there.
    fn tell_begun(&mut self, slot: usize, sink: &mut impl Sink) {
        // What was lost before has the number still.
        self.table.tell_forgotten(sink);
        let entry = self.table.entry(slot);
        if let Some(begun) = entry.begun() {
            sink.begun(&begun);
            entry.is_reported = true;
        }
    }

    fn response_piece(&mut self, head: &head_event, payload: &[u8], sink: &mut impl Sink) {
        let first = head.header.flags & FLAG_FIRST_PIECE != 0;
        let slot = match self.table.find(head.header.exchange) {
            Some(slot) => slot,
            None if first => match self.table.insert(head.header.exchange) {
                Some(slot) => slot,
                // The request's record is on its way and will be refused and counted, or already was.
                None => return,
            },
            None => return,
        };
        let entry = self.table.entry(slot);
        entry.touched = head.header.time;
        if entry.request_head == RequestHead::Unseen {
            entry.identify(head);
        } else {
            entry.place(head);
        }
        if first {
            entry.begin_response(head);
        }
        let step = entry.response_piece(head, payload);
        if step == ResponseStep::Unparsable && !entry.given_up {
            sink.lost(protocol_loss(loss::UNPARSABLE, head));
            self.table.give_up(slot);
        }
        self.finish_if_whole(slot, sink);
    }

    fn end(&mut self, end: &end_event, sink: &mut impl Sink) {
        // Ends follow their heads: without an entry this exchange was refused or lost, and counted.
        let Some(slot) = self.table.find(end.header.exchange) else { return };
        let entry = self.table.entry(slot);
        entry.touched = end.header.time;
        match u32::from(end.message) {
            MESSAGE_REQUEST => entry.end_request(end.body_bytes),
            MESSAGE_RESPONSE if entry.response.is_some() || entry.given_up => {
                entry.end_response(end.header.time, end.header.flags, end.body_bytes);
            }
            _ => {}
        }
        self.finish_if_whole(slot, sink);
    }

    /// Comes behind the answer's head, or before its end.
    fn times(&mut self, times: &times_event, sink: &mut impl Sink) {
        let Some(slot) = self.table.find(times.header.exchange) else { return };
        let entry = self.table.entry(slot);
        entry.touched = times.header.time;
        entry.take_times(Times::of_event(times));
        self.finish_if_whole(slot, sink);
    }

    fn close(&mut self, close: &close_event, sink: &mut impl Sink) {
        const ORDINALS: u64 = 1 << ORDINAL_BITS;
        if close.header.flags & CLOSE_DATABASE != 0 {
            return self.databases.close(close, sink);
        }
        let is_http2 = close.header.flags & CLOSE_HTTP2 != 0;
        if is_http2 || self.http2.knows(close.header.exchange) {
            self.http2.close(close, sink);
        }
        if is_http2 {
            return;
        }
        let (connection, ordinal) = (close.header.exchange / ORDINALS, close.header.exchange % ORDINALS);
        let pending = u64::from(close.pending).min(ORDINALS);
        if pending <= self.table.open() as u64 {
            for nth in 0..pending {
                let number = connection * ORDINALS + (ordinal + nth) % ORDINALS;
                if let Some(slot) = self.table.find(number) {
                    self.close_one(slot, nth, close, sink);
                }
            }
            return;
        }
        // More numbers than exchanges: walk those that exist, so that a wild count costs no time.
        for slot in 0..self.table.slots() {
            let number = self.table.entry(slot).number;
            let nth = (number % ORDINALS + ORDINALS - ordinal) % ORDINALS;
            if number != NO_EXCHANGE && number / ORDINALS == connection && nth < pending {
                self.close_one(slot, nth, close, sink);
            }
        }
    }

    /// Ends the `nth` of the exchanges that a connection's end leaves behind.
    fn close_one(&mut self, slot: usize, nth: u64, close: &close_event, sink: &mut impl Sink) {
        let entry = self.table.entry(slot);
        if entry.given_up {
            return self.table.release(slot);
        }
        let reason = u32::from(close.reason);
        if reason >= CLOSE_ABANDONED {
            let side = entry.side.or(Side::from_wire(close.side));
            let reason = loss::kernel_reason(u32::from(close.loss));
            sink.lost(Loss { stage: loss::STAGE_KERNEL, reason, side, tgid: entry.tgid });
            return self.table.release(slot);
        }
        if entry.request_head != RequestHead::Whole {
            // Half a request head and then the end: there is no request.
            return self.table.release(slot);
        }
        if nth + 1 == u64::from(close.pending) && !entry.request_ended {
            entry.request_body_bytes = Some(close.request_body_bytes);
        }
        if let Some(ended) = entry.response_ended {
            return self.finish(slot, ended, None, sink);
        }
        let mut ended = close.header.time;
        if nth == 0 {
            entry.response_body_bytes = close.response_body_bytes;
            if close.last_byte != 0 {
                ended = close.last_byte;
            }
        }
        let (started, is_delimiting) = (entry.response.is_some(), entry.close_delimited);
        let failure = close_failure(reason, entry.side, started, is_delimiting);
        self.finish(slot, ended, failure, sink);
    }

    fn begin_request(&mut self, slot: usize, head: &head_event, sink: &mut impl Sink) {
        let entry = self.table.entry(slot);
        if entry.request_head != RequestHead::Unseen {
            if !entry.given_up {
                sink.lost(entry_loss(loss::SUPERSEDED, entry));
            }
            self.table.restart(slot);
        }
        self.table.entry(slot).begin_request(head);
    }

    fn finish_if_whole(&mut self, slot: usize, sink: &mut impl Sink) {
        let entry = self.table.entry(slot);
        // Answered before the request head was complete (408, 431): an exchange all the same. Its
        // request can only have ended by FLAG_REQUEST_INCOMPLETE.
        let cut = entry.request_head == RequestHead::Partial && entry.request_ended && !entry.given_up;
        if cut && entry.response_ended.is_some() {
            if self.table.cut_request_head(slot) {
                self.tell_begun(slot, sink);
            } else {
                sink.lost(entry_loss(loss::UNPARSABLE, self.table.entry(slot)));
                self.table.give_up(slot);
            }
        }
        let entry = self.table.entry(slot);
        if let Some(ended) = entry.response_ended.filter(|_| entry.is_whole() || entry.given_up) {
            self.finish(slot, ended, None, sink);
        }
    }

    fn finish(&mut self, slot: usize, ended: u64, failure: Option<Failure>, sink: &mut impl Sink) {
        let entry = self.table.entry(slot);
        if !entry.given_up {
            let upgrade = entry.upgrade.filter(|_| failure.is_none());
            match entry.exchange(ended, failure) {
                // Its answer is still to come.
                Some(_) if upgrade == Some(Upgrade::Http2) => {}
                Some(exchange) => {
                    sink.exchange(&exchange);
                    self.table.entry(slot).is_reported = false;
                }
                None => sink.lost(entry_loss(loss::UNPARSABLE, entry)),
            }
            if let Some(upgrade) = upgrade {
                self.go_on(slot, ended, upgrade, sink);
            }
        }
        self.table.release(slot);
    }

    /// The connection speaks something else from here on.
    fn go_on(&mut self, slot: usize, ended: u64, upgrade: Upgrade, sink: &mut impl Sink) {
        let text = self.table.take_text(slot);
        let Some(upgraded) = self.table.entry(slot).upgraded(ended, text) else { return };
        match upgrade {
            Upgrade::Http2 => self.http2.adopt(upgraded, sink),
            Upgrade::WebSocket => self.websockets.begin(upgraded, sink),
        }
    }
}

/// How an exchange failed whose connection ended for `reason`; `None` when that end completed the response.
pub(super) fn close_failure(
    reason: u32,
    side: Option<Side>,
    started: bool,
    is_delimiting: bool,
) -> Option<Failure> {
    let by_responder = match side {
        Some(Side::Server) => reason == CLOSE_LOCAL,
        _ => reason == CLOSE_REMOTE,
    };
    match reason {
        CLOSE_LOCAL | CLOSE_REMOTE if is_delimiting && started => None,
        CLOSE_LOCAL | CLOSE_REMOTE if started && by_responder => Some(Failure::Truncated),
        CLOSE_LOCAL => Some(Failure::Aborted),
        CLOSE_RESET => Some(Failure::Reset),
        CLOSE_TIMEOUT => Some(Failure::Timeout),
        _ => Some(Failure::Closed),
    }
}

fn protocol_loss(reason: &'static str, head: &head_event) -> Loss {
    let side = Side::from_wire(head.side);
    Loss { stage: loss::STAGE_PROTOCOL, reason, side, tgid: head.header.tgid }
}

fn entry_loss(reason: &'static str, entry: &Entry) -> Loss {
    Loss { stage: loss::STAGE_PROTOCOL, reason, side: entry.side, tgid: entry.tgid }
}

#[cfg(test)]
#[path = "exchange_tests.rs"]
mod tests;
