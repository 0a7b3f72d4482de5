//! Records as the kernel programs submit them, for tests and benchmarks.
//!
//! In: what happened on a connection. Out: the bytes of a record, aligned as in the ring buffer.
#![allow(
    unreachable_pub,
    dead_code,
    clippy::unwrap_used,
    reason = "included by several binaries, each uses a part"
)]

use obi_ebpf::{
    EVENT_CLOSE, EVENT_END, EVENT_HEAD, EVENT_TIMES, FLAG_FIRST_PIECE, FLAG_LAST_PIECE, FLAG_MESSAGE_END,
    SIDE_CLIENT, SIDE_SERVER, close_event, end_event, event_header, head_event, times_event,
};
use zerocopy::IntoBytes;

pub mod header_block;
pub mod http2;

/// A head in one piece.
pub const ONE_PIECE: u32 = FLAG_FIRST_PIECE | FLAG_LAST_PIECE;
/// A whole message in one piece.
pub const WHOLE: u32 = ONE_PIECE | FLAG_MESSAGE_END;

/// One record.
#[derive(Debug, Clone)]
pub struct Record {
    words: Vec<u64>,
    length: usize,
}

impl Record {
    fn new(parts: &[&[u8]]) -> Self {
        let length = parts.iter().map(|part| part.len()).sum::<usize>();
        let mut words = vec![0u64; length.div_ceil(8)];
        let mut rest = words.as_mut_bytes();
        for part in parts {
            let (place, after) = rest.split_at_mut(part.len());
            place.copy_from_slice(part);
            rest = after;
        }
        Self { words, length }
    }

    /// The same record of another exchange or connection.
    pub fn renumber(&mut self, exchange: u64) {
        let at = std::mem::offset_of!(event_header, exchange) / 8;
        self.words[at] = exchange;
    }

    /// The record's bytes, 8-byte aligned.
    pub fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.length]
    }
}

/// Makes the records of one exchange number.
#[derive(Debug, Clone, Copy)]
pub struct Wire {
    /// `event_header.exchange`.
    pub exchange: u64,
    /// `enum side`.
    pub side: u32,
    /// `event_header.time` of the next record.
    pub time: u64,
    /// `head_event.arrival` of the next record.
    pub arrival: u64,
}

impl Wire {
    /// A request that the process receives.
    pub fn server(exchange: u64) -> Self {
        Self { exchange, side: SIDE_SERVER, time: 0, arrival: 0 }
    }

    /// A request that the process sends.
    pub fn client(exchange: u64) -> Self {
        Self { side: SIDE_CLIENT, ..Self::server(exchange) }
    }

    /// The same at another time.
    pub fn at(self, time: u64) -> Self {
        Self { time, ..self }
    }

    /// The same with a time of arrival.
    pub fn arrived(self, arrival: u64) -> Self {
        Self { arrival, ..self }
    }

    fn header(&self, kind: u32, flags: u32) -> event_header {
        event_header { kind, tgid: 4242, tid: 4243, flags, time: self.time, exchange: self.exchange }
    }

    /// A head that comes in one piece.
    pub fn head(&self, message: u32, flags: u32, payload: &str) -> Record {
        self.piece(message, ONE_PIECE | flags, 0, 0, payload.as_bytes())
    }

    /// Any piece of a head.
    pub fn piece(&self, message: u32, flags: u32, body: u64, position: usize, payload: &[u8]) -> Record {
        let mapped = |last: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
        let head = head_event {
            header: self.header(EVENT_HEAD, flags),
            arrival: self.arrival,
            started: self.time,
            body_bytes: body,
            position: u32::try_from(position).unwrap(),
            length: u16::try_from(payload.len()).unwrap(),
            side: u8::try_from(self.side).unwrap(),
            message: u8::try_from(message).unwrap(),
            family: 2,
            local_port: 8080,
            remote_port: 50_000,
            local_address: mapped(1),
            remote_address: mapped(2),
            ..head_event::default()
        };
        Record::new(&[head.as_bytes(), payload])
    }

    /// The end of a message.
    pub fn end(&self, message: u32, flags: u32, body_bytes: u64) -> Record {
        let (side, message) = (u8::try_from(self.side).unwrap(), u8::try_from(message).unwrap());
        let header = self.header(EVENT_END, flags);
        Record::new(&[end_event { header, body_bytes, side, message, pad: [0; 6] }.as_bytes()])
    }

    /// Where the thread's time went.
    pub fn times(&self, cpu: u64) -> Record {
        let times = times_event { header: self.header(EVENT_TIMES, 0), cpu, ..times_event::default() };
        Record::new(&[times.as_bytes()])
    }

    /// The end of a connection; `adjust` sets the rest of the record.
    pub fn close(&self, reason: u32, pending: u32, adjust: impl FnOnce(&mut close_event)) -> Record {
        let mut close = close_event {
            header: self.header(EVENT_CLOSE, 0),
            pending,
            reason: u8::try_from(reason).unwrap(),
            side: u8::try_from(self.side).unwrap(),
            ..close_event::default()
        };
        adjust(&mut close);
        Record::new(&[close.as_bytes()])
    }
}
