//! How connections end, and streams of which nothing more is heard.
//!
//! In: records of closed connections, the time. Out: the streams that were left, each as an exchange or as lost.
//! Refuses to know header blocks.

use super::stream::{End, Stream};
use super::{Connection, Http2, stream_loss};
use crate::protocol::exchange::{SETTLE, close_failure};
use crate::protocol::loss::{self, Loss};
use crate::protocol::{Side, Sink};
use obi_ebpf::{CLOSE_ABANDONED, CLOSE_HTTP2, CLOSE_LOCAL, CLOSE_REMOTE, ORDINAL_BITS, close_event};
use std::time::Duration;

/// A stream over whose time records were missing is waited for so long: its end may have been among them.
const UNCERTAIN_AGE: Duration = Duration::from_secs(300);
/// Streams may be quiet for longer than exchanges (watches, configuration streams): so many times the age of those.
const STREAM_AGES: u32 = 7;

impl Http2 {
    /// A connection has ended: so have its streams.
    pub(in crate::protocol) fn close(&mut self, close: &close_event, sink: &mut impl Sink) {
        let number = close.header.exchange >> ORDINAL_BITS;
        let Some(at) = self.connections.find(number) else { return count_unseen(close, sink) };
        let last = close.last_stream;
        let connection = &mut self.connections[at];
        connection.side = connection.side.or(Side::from_wire(close.side));
        if close.header.flags & CLOSE_HTTP2 != 0 {
            connection.end(close.received_pieces, close.sent_pieces);
        }
        let missing = connection.account(last, true);
        if missing > 0 {
            sink.lost_many(stream_loss(loss::RECORDS_MISSING, connection), missing);
        }
        while let Some(slot) = self.connections[at].first {
            self.close_stream(slot, close, sink);
        }
        self.connections.release(at);
        self.streams.tell_forgotten(sink);
    }

    /// Drops a connection whose streams the kernel side has reported as lost. `false` when it is not known.
    pub(in crate::protocol) fn forget(&mut self, number: u64, sink: &mut impl Sink) -> bool {
        let Some(at) = self.connections.find(number >> ORDINAL_BITS) else { return false };
        self.drop_connection(at);
        self.streams.tell_forgotten(sink);
        true
    }

    /// Ends what was waited for long enough at `now`, see [`crate::protocol::Exchanges::sweep`].
    pub(in crate::protocol) fn sweep(&mut self, now: u64, max_age: Duration, sink: &mut impl Sink) {
        for slot in self.streams.slots() {
            let stream = &self.streams[slot];
            let age = Duration::from_nanos(now.saturating_sub(stream.touched));
            if stream.id == 0 || age < SETTLE.min(max_age) {
                continue;
            }
            let connection = &self.connections[stream.connection];
            let is_uncertain = is_uncertain(stream, connection);
            match stream.response_ended() {
                _ if !stream.is_asked => {
                    self.evicted.orphaned += 1;
                    self.release(slot);
                }
                // The request is not going to end: the server does not read it any more.
                Some(ended) => {
                    self.finish(slot, End { ended, failure: None, is_cancelled: false }, sink);
                }
                None if is_uncertain && age >= UNCERTAIN_AGE.min(max_age) => {
                    self.lose(slot, stream_loss(loss::RECORDS_MISSING, connection), sink);
                }
                None if age >= max_age.saturating_mul(STREAM_AGES) => {
                    self.lose(slot, stream_loss(loss::EXPIRED, connection), sink);
                }
                None => {}
            }
        }
        for at in self.connections.slots() {
            let connection = &self.connections[at];
            let age = Duration::from_nanos(now.saturating_sub(connection.touched));
            if connection.number != 0
                && connection.first.is_none()
                && age >= max_age.saturating_mul(STREAM_AGES)
            {
                self.drop_connection(at);
            }
        }
        self.streams.tell_forgotten(sink);
    }

    fn close_stream(&mut self, slot: u32, close: &close_event, sink: &mut impl Sink) {
        let stream = &self.streams[slot];
        let connection = &self.connections[stream.connection];
        let reason = u32::from(close.reason);
        if !stream.is_asked {
            return self.release(slot);
        }
        if let Some(ended) = stream.response_ended() {
            return self.finish(slot, End { ended, failure: None, is_cancelled: false }, sink);
        }
        if reason >= CLOSE_ABANDONED || is_uncertain(stream, connection) {
            let loss = stream_loss(loss::RECORDS_MISSING, connection);
            let loss = match reason {
                CLOSE_ABANDONED.. => loss.of_kernel(u32::from(close.loss)),
                _ => loss,
            };
            return self.lose(slot, loss, sink);
        }
        let by_client = match connection.side {
            Some(Side::Client) => CLOSE_LOCAL,
            _ => CLOSE_REMOTE,
        };
        let end = End {
            ended: close.header.time,
            failure: close_failure(reason, connection.side, stream.answer.is_some(), false),
            is_cancelled: reason == by_client,
        };
        self.finish(slot, end, sink);
    }

    fn lose(&mut self, slot: u32, loss: Loss, sink: &mut impl Sink) {
        if !self.streams[slot].is_settled {
            sink.lost(loss);
        }
        self.release(slot);
    }

    fn drop_connection(&mut self, at: u32) {
        while let Some(slot) = self.connections[at].first {
            self.release(slot);
        }
        self.connections.release(at);
    }
}

/// Records were missing since something was last seen of the stream: its end may have been among them.
fn is_uncertain(stream: &Stream, connection: &Connection) -> bool {
    (stream.request.gaps, stream.response.gaps) != connection.gaps()
}

/// A connection of which no record came, or which found no room.
fn count_unseen(close: &close_event, sink: &mut impl Sink) {
    let side = Side::from_wire(close.side);
    let pieces = match side {
        Some(Side::Client) => close.sent_pieces,
        _ => close.received_pieces,
    };
    // Joined in the middle, it had fewer streams than their numbers say, but not more than records.
    let streams = (close.last_stream / 2 + close.last_stream % 2).min(pieces);
    let reason = loss::RECORDS_MISSING;
    let lost = Loss { stage: loss::STAGE_PROTOCOL, reason, side, tgid: close.header.tgid };
    if streams > 0 {
        sink.lost_many(lost, streams);
    }
}
