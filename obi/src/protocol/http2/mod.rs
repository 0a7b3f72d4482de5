//! HTTP/2: records of frames to exchanges, one per stream.
//!
//! In: records of frames and of closed connections, in ring order. Out: each stream once, to a [`Sink`]: an exchange,
//! or lost with a reason. The kernel side counts no stream; what is missing shows in the sequence of the records of a
//! direction and in the numbers of the streams, and is counted here. Refuses to know spans.
//!
//! - [`hpack`]: header blocks to fields.
//! - `direction`, `connection`, `connections`: what is kept of a connection.
//! - `stream`, `streams`: what is kept of a stream.
//! - `outcome`: how a stream failed. `ending`: how connections end, and what is not waited for any more.

mod connection;
mod connections;
mod direction;
mod ending;
mod frame;
pub mod hpack;
mod outcome;
mod stream;
mod streams;

pub(super) use stream::Upgraded;

use super::exchange::Evicted;
use super::loss::{self, Loss};
use super::{Cause, Failure, Limits, Sink, UnderWay};
use connection::Connection;
use connections::Connections;
use direction::{Block, Spare};
use hpack::{Head, Name};
use obi_ebpf::{FRAME_APART, ORDINAL_BITS, frame_event};
use outcome::Reset;
use stream::End;
use streams::Streams;

/// All connections that speak HTTP/2, and their streams.
#[derive(Debug)]
pub(super) struct Http2 {
    connections: Connections,
    streams: Streams,
    /// The header block that is being read.
    head: Head,
    spare: Spare,
    evicted: Evicted,
}

impl Http2 {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            // Connections live longer than exchanges, but one without a stream is small.
            connections: Connections::new(limits.open, limits.held_bytes),
            streams: Streams::new(limits),
            head: Head::default(),
            spare: Spare::default(),
            evicted: Evicted::default(),
        }
    }

    /// Takes one record.
    pub(super) fn accept(&mut self, frame: &frame_event, payload: &[u8], sink: &mut impl Sink) {
        let number = frame.header.exchange >> ORDINAL_BITS;
        if frame.header.flags & FRAME_APART != 0 {
            if let Some(at) = self.connections.find(number) {
                self.content(at, frame);
            }
            return;
        }
        // One that finds no room is counted at its end, by the number of its streams.
        let Some(at) = self.connections.find_or_insert(number, || Connection::of(number, frame)) else {
            return;
        };
        let is_sent = frame.sent != 0;
        let is_in_order = self.connections.change(at, |connection| {
            connection.note(frame);
            connection.direction(is_sent).follow(frame)
        });
        if !is_in_order {
            return;
        }
        match frame.type_ {
            frame::HEADERS | frame::CONTINUATION | frame::PUSH_PROMISE => {
                self.header_block(at, frame, payload, sink);
            }
            frame::DATA if frame.flags & frame::END_STREAM != 0 => self.data_end(at, frame, sink),
            frame::RST_STREAM | frame::GOAWAY => self.control(at, frame, payload, sink),
            // What a direction may use of its table, it says itself (`hpack`), so SETTINGS add nothing.
            _ => {}
        }
        self.streams.tell_forgotten(sink);
    }

    /// A request was answered by an upgrade: its answer will come on stream 1.
    pub(super) fn adopt(&mut self, request: Upgraded, sink: &mut impl Sink) {
        let number = request.number >> ORDINAL_BITS;
        let lost = Loss {
            stage: loss::STAGE_PROTOCOL,
            reason: loss::PENDING_FULL,
            side: Some(request.side),
            tgid: request.tgid,
        };
        let opened = || Connection::new(number, request.endpoints);
        let Some(at) = self.connections.find_or_insert(number, opened) else { return sink.lost(lost) };
        let connection = &mut self.connections[at];
        connection.side = Some(request.side);
        (connection.tgid, connection.encrypted) = (request.tgid, request.encrypted);
        connection.last_stream = connection.last_stream.max(1);
        let slot = self.streams.find(at, 1).or_else(|| self.streams.insert(at, connection, 1));
        let Some(slot) = slot else { return sink.lost(lost) };
        self.streams.change(slot, |stream| {
            stream.touched = request.ended;
            stream.adopt(request);
        });
        self.tell_begun(slot, sink);
        self.finish_if_over(slot, sink);
        self.streams.tell_forgotten(sink);
    }

    /// Calls `visit` with each request whose response has not ended.
    pub(super) fn for_each_under_way(&self, mut visit: impl FnMut(&UnderWay<'_>)) {
        for slot in self.streams.slots() {
            let stream = &self.streams[slot];
            if let Some(under_way) = stream.under_way(&self.connections[stream.connection]) {
                visit(&under_way);
            }
        }
    }

    /// Streams open now.
    pub(super) fn open(&self) -> usize {
        self.streams.open()
    }

    /// Those of the connection of that exchange.
    pub(super) fn open_streams(&self, number: u64) -> Vec<u32> {
        let first = self.connections.find(number >> ORDINAL_BITS).and_then(|at| self.connections[at].first);
        std::iter::successors(first, |slot| self.streams[*slot].next)
            .map(|slot| self.streams[slot].id)
            .collect()
    }

    /// Whether the connection of that exchange speaks HTTP/2.
    pub(super) fn knows(&self, number: u64) -> bool {
        self.connections.find(number >> ORDINAL_BITS).is_some()
    }

    /// Streams evicted so far.
    pub(super) fn evicted(&self) -> Evicted {
        self.evicted
    }

    /// Memory held for header tables, unfinished blocks and texts, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.connections.held_bytes() + self.streams.held_bytes()
    }
}

impl Http2 {
    fn header_block(&mut self, at: u32, frame: &frame_event, payload: &[u8], sink: &mut impl Sink) {
        let (head, spare, is_sent) = (&mut self.head, &mut self.spare, frame.sent != 0);
        let read = self.connections.change(at, |connection| {
            let direction = connection.direction(is_sent);
            let (block, bytes) = direction.take(frame, payload, spare)?;
            // What stands before the place where a block is broken is right.
            if direction.decoder.decode(&bytes, head).is_ok() && block.is_cut {
                direction.decoder.forget();
            }
            spare.put(bytes);
            let is_request = connection.is_request_head(is_sent, head)?;
            // Servers' own streams (push) have even numbers; clients have refused them for years.
            (block.stream % 2 == 1 && !block.is_promise).then_some((block, is_request))
        });
        match read {
            Some((block, true)) => self.request(at, &block, frame, sink),
            Some((block, false)) => self.response(at, &block, frame, sink),
            None => {}
        }
    }

    /// A header block of the client: a request head, or its trailers.
    fn request(&mut self, at: u32, block: &Block, frame: &frame_event, sink: &mut impl Sink) {
        let connection = &mut self.connections[at];
        let found = self.streams.find(at, block.stream);
        let is_new = block.stream > connection.last_stream;
        if is_new {
            let missing = connection.account(block.stream, false);
            if missing > 0 {
                sink.lost_many(stream_loss(loss::RECORDS_MISSING, connection), missing);
            }
        }
        let slot = match found {
            Some(slot) => slot,
            // Trailers of what is over.
            None if !is_new => return,
            None => match self.streams.insert(at, connection, block.stream) {
                Some(slot) => slot,
                None => return sink.lost(stream_loss(loss::PENDING_FULL, connection)),
            },
        };
        let (request_gaps, response_gaps) = connection.gaps();
        let head = &self.head;
        let cause = Cause::of_frame(frame, connection.side);
        self.streams.change(slot, |stream| {
            if is_new {
                stream.ask(block, head, cause);
                if found.is_none() {
                    stream.response.gaps = response_gaps;
                }
            }
            stream.touched = frame.header.time;
            stream.request.note(frame, block.is_end, is_request_head(head), request_gaps);
        });
        let is_refused = connection.refused_above.is_some_and(|last| block.stream > last);
        if is_new {
            self.tell_begun(slot, sink);
        }
        if is_refused {
            return self.refuse(slot, frame.header.time, sink);
        }
        self.finish_if_over(slot, sink);
    }

    /// The head of a request is there.
    fn tell_begun(&mut self, slot: u32, sink: &mut impl Sink) {
        let stream = &mut self.streams[slot];
        if let Some(begun) = stream.begun(&self.connections[stream.connection]) {
            sink.begun(&begun);
            stream.is_reported = true;
        }
    }

    /// A header block of the server: an interim head, the final one, or trailers.
    fn response(&mut self, at: u32, block: &Block, frame: &frame_event, sink: &mut impl Sink) {
        let Some(slot) = self.answered(at, block.stream) else { return };
        let (_, gaps) = self.connections[at].gaps();
        let head = &self.head;
        let is_tunnel = self.streams.change(slot, |stream| {
            stream.touched = frame.header.time;
            stream.answer(head, block.is_end);
            stream.response.note(frame, block.is_end, head.has(Name::Status), gaps);
            stream.is_tunnel() && stream.is_asked && !stream.is_settled && !block.is_end
        });
        if is_tunnel {
            self.hand_over(slot, End { ended: frame.header.time, failure: None, is_cancelled: false }, sink);
            self.streams[slot].is_settled = true;
        }
        self.finish_if_over(slot, sink);
    }

    /// The stream of a response; opened when its request has not been seen yet, since another thread's record of it may
    /// come later. `None` for what is over, or was refused.
    fn answered(&mut self, at: u32, id: u32) -> Option<u32> {
        let connection = &mut self.connections[at];
        let found = self.streams.find(at, id);
        if found.is_some() || id <= connection.last_stream {
            return found;
        }
        let (_, gaps) = connection.gaps();
        let slot = self.streams.insert(at, connection, id)?;
        self.streams[slot].response.gaps = gaps;
        Some(slot)
    }

    fn data_end(&mut self, at: u32, frame: &frame_event, sink: &mut impl Sink) {
        let Some(is_request) = self.connections[at].is_request(frame.sent != 0) else { return };
        let found = match is_request {
            true => self.streams.find(at, frame.stream),
            false if frame.stream % 2 == 1 => self.answered(at, frame.stream),
            false => None,
        };
        let Some(slot) = found else { return };
        let (request_gaps, response_gaps) = self.connections[at].gaps();
        let stream = &mut self.streams[slot];
        stream.touched = frame.header.time;
        match is_request {
            true => stream.request.note(frame, true, false, request_gaps),
            false => stream.response.note(frame, true, false, response_gaps),
        }
        self.finish_if_over(slot, sink);
    }

    /// A stream is about to end without the frame that would say what it has carried.
    fn content(&mut self, at: u32, frame: &frame_event) {
        let Some(is_request) = self.connections[at].is_request(frame.sent != 0) else { return };
        let Some(slot) = self.streams.find(at, frame.stream) else { return };
        let stream = &mut self.streams[slot];
        let half = if is_request { &mut stream.request } else { &mut stream.response };
        half.count(frame);
    }

    fn control(&mut self, at: u32, frame: &frame_event, piece: &[u8], sink: &mut impl Sink) {
        let whole = self.connections[at].direction(frame.sent != 0).gather(frame, piece);
        let Some(word) = whole.map(|payload| frame::word(payload, 0)) else { return };
        match (frame.type_, word) {
            (frame::RST_STREAM, code) => self.reset(at, frame, code, sink),
            (_, Some(last)) => self.go_away(at, frame, last & (u32::MAX >> 1), sink),
            (_, None) => {}
        }
    }

    /// `code`: `None` when it could not be read.
    fn reset(&mut self, at: u32, frame: &frame_event, code: Option<u32>, sink: &mut impl Sink) {
        let Some(by_requester) = self.connections[at].is_request(frame.sent != 0) else { return };
        let Some(slot) = self.streams.find(at, frame.stream) else { return };
        let stream = &mut self.streams[slot];
        stream.touched = frame.header.time;
        stream.reset.get_or_insert(Reset { by_requester, code, time: frame.header.time });
        self.finish_if_over(slot, sink);
    }

    /// The server will not process streams above the one it names.
    fn go_away(&mut self, at: u32, frame: &frame_event, last: u32, sink: &mut impl Sink) {
        let connection = &mut self.connections[at];
        if connection.is_request(frame.sent != 0) != Some(false) {
            return;
        }
        connection.refused_above = Some(connection.refused_above.map_or(last, |before| before.min(last)));
        let mut next = connection.first;
        while let Some(slot) = next {
            let stream = &self.streams[slot];
            next = stream.next;
            if stream.id > last && stream.is_asked {
                self.refuse(slot, frame.header.time, sink);
            }
        }
    }

    fn refuse(&mut self, slot: u32, time: u64, sink: &mut impl Sink) {
        self.finish(slot, End { ended: time, failure: Some(Failure::Refused), is_cancelled: false }, sink);
    }

    /// Hands a stream over when nothing more of it will come.
    fn finish_if_over(&mut self, slot: u32, sink: &mut impl Sink) {
        let stream = &self.streams[slot];
        let connection = &self.connections[stream.connection];
        let Some(side) = connection.side.filter(|_| stream.is_asked) else { return };
        let (request_gaps, _) = connection.gaps();
        let is_asked_whole = stream.request.ended.is_some() || stream.request.gaps != request_gaps;
        let end = match (stream.response_ended(), stream.reset) {
            (Some(ended), Some(_)) => End { ended, failure: None, is_cancelled: false },
            (Some(ended), None) if is_asked_whole => End { ended, failure: None, is_cancelled: false },
            (None, Some(reset)) => End {
                ended: reset.time,
                failure: Some(reset.failure(side, stream.answer.is_some())),
                is_cancelled: reset.is_cancelled(),
            },
            _ => return,
        };
        self.finish(slot, end, sink);
    }

    fn finish(&mut self, slot: u32, end: End, sink: &mut impl Sink) {
        self.hand_over(slot, end, sink);
        self.release(slot);
    }

    fn hand_over(&mut self, slot: u32, end: End, sink: &mut impl Sink) {
        let stream = &mut self.streams[slot];
        if stream.is_settled {
            return;
        }
        let connection = &self.connections[stream.connection];
        match stream.exchange(connection, end) {
            Some(exchange) => {
                sink.exchange(&exchange);
                stream.is_reported = false;
            }
            None => sink.lost(stream_loss(loss::RECORDS_MISSING, connection)),
        }
    }

    fn release(&mut self, slot: u32) {
        let connection = &mut self.connections[self.streams[slot].connection];
        self.streams.release(slot, connection);
    }
}

fn is_request_head(head: &Head) -> bool {
    [Name::Method, Name::Path, Name::Authority].into_iter().any(|name| head.has(name))
}

fn stream_loss(reason: &'static str, connection: &Connection) -> Loss {
    Loss { stage: loss::STAGE_PROTOCOL, reason, side: connection.side, tgid: connection.tgid }
}

#[cfg(test)]
mod tests;
