//! One connection that speaks HTTP/2: who is who, and which streams were opened.
//!
//! In: records of frames. Out: its two directions, and the streams whose opening was not seen. Refuses to know what
//! streams carry.

use super::direction::Direction;
use super::hpack::{Head, Name};
use crate::protocol::{Endpoints, Side};
use obi_ebpf::{FRAME_JOINED, frame_event};

#[derive(Debug)]
pub(super) struct Connection {
    /// 0: this entry is free.
    pub(super) number: u64,
    pub(super) tgid: u32,
    /// `None` until a request was seen.
    pub(super) side: Option<Side>,
    pub(super) endpoints: Endpoints,
    pub(super) encrypted: bool,
    received: Direction,
    sent: Direction,
    /// Highest identifier of a stream that is accounted for: opened, or counted as lost. 0: none.
    pub(super) last_stream: u32,
    /// Gaps of the request's direction up to there.
    accounted_gaps: u32,
    /// Joined in the middle: streams before the first one seen are none of our business.
    is_joined: bool,
    /// The server's GOAWAY: streams above are not processed.
    pub(super) refused_above: Option<u32>,
    /// One of its streams; the others hang on it.
    pub(super) first: Option<u32>,
    /// Time of the latest record, ns.
    pub(super) touched: u64,
    /// Used since memory was last looked for.
    pub(super) is_recent: bool,
}

impl Connection {
    pub(super) fn new(number: u64, endpoints: Endpoints) -> Self {
        Self {
            number,
            tgid: 0,
            side: None,
            endpoints,
            encrypted: false,
            received: Direction::default(),
            sent: Direction::default(),
            last_stream: 0,
            accounted_gaps: 0,
            is_joined: false,
            refused_above: None,
            first: None,
            touched: 0,
            is_recent: true,
        }
    }

    /// A connection as its first record shows it.
    pub(super) fn of(number: u64, frame: &frame_event) -> Self {
        let (local, remote) =
            ((frame.local_address, frame.local_port), (frame.remote_address, frame.remote_port));
        let mut made = Self::new(number, Endpoints::from_wire(frame.family, local, remote));
        made.encrypted = frame.encrypted != 0;
        made.is_joined = frame.header.flags & FRAME_JOINED != 0;
        made
    }

    /// Notes what each record says of the connection.
    pub(super) fn note(&mut self, frame: &frame_event) {
        self.tgid = frame.header.tgid;
        self.side = self.side.or(Side::from_wire(frame.side));
        self.touched = frame.header.time;
        if self.endpoints == Endpoints::Unknown {
            self.endpoints = Self::of(self.number, frame).endpoints;
        }
        self.is_recent = true;
    }

    /// What was sent, or what was received.
    pub(super) fn direction(&mut self, is_sent: bool) -> &mut Direction {
        if is_sent { &mut self.sent } else { &mut self.received }
    }

    /// Gaps of the requests' and of the responses' direction.
    pub(super) fn gaps(&self) -> (u32, u32) {
        match self.side {
            Some(Side::Client) => (self.sent.gaps, self.received.gaps),
            _ => (self.received.gaps, self.sent.gaps),
        }
    }

    /// Whether requests go this way; `None` when the side is not known.
    pub(super) fn is_request(&self, is_sent: bool) -> Option<bool> {
        self.side.map(|side| is_sent == (side == Side::Client))
    }

    /// The same, where a header block helps to know.
    pub(super) fn is_request_head(&mut self, is_sent: bool, head: &Head) -> Option<bool> {
        if self.side.is_none() {
            let asks = super::is_request_head(head);
            if asks != head.has(Name::Status) {
                self.side = Some(if asks == is_sent { Side::Client } else { Side::Server });
            }
        }
        self.is_request(is_sent)
    }

    /// The request of `stream` was seen, or the connection has ended with it as the last one: returns how many streams
    /// before it were opened unseen. Identifiers that are left out count only when records were missing.
    pub(super) fn account(&mut self, stream: u32, is_included: bool) -> u32 {
        let (gaps, _) = self.gaps();
        let has_gap = std::mem::replace(&mut self.accounted_gaps, gaps) != gaps;
        let first = match self.last_stream {
            0 => 1,
            last => last.saturating_add(2),
        };
        let is_before_us = self.is_joined && self.last_stream == 0;
        if stream < first {
            return 0;
        }
        self.last_stream = stream;
        if !has_gap || is_before_us {
            return 0;
        }
        (stream - first) / 2 + u32::from(is_included)
    }

    /// Memory held besides itself, bytes.
    pub(super) fn capacity(&self) -> usize {
        self.received.capacity() + self.sent.capacity()
    }

    /// Gives up what can be given up: header tables are unknown from here on.
    pub(super) fn shrink(&mut self) {
        self.received.shrink();
        self.sent.shrink();
    }

    /// Notes how many records there were; missing ones at the end are a gap like any other.
    pub(super) fn end(&mut self, received_pieces: u32, sent_pieces: u32) {
        self.received.end(received_pieces);
        self.sent.end(sent_pieces);
    }
}
