//! A connection of HTTP/2 as records of the kernel side, for tests and benchmarks.
//!
//! In: frames as a client and a server send them. Out: their records, cut into pieces and numbered as the kernel side
//! does it; any of them may be dropped, which makes a gap.

use super::header_block::{Coding, Encoder};
use super::{Record, event_header};
use obi_ebpf::{
    CLOSE_HTTP2, EVENT_CLOSE, EVENT_FRAME, FRAME_APART, FRAME_FIRST_PIECE, FRAME_JOINED, FRAME_LAST_PIECE,
    FRAME_TRUNCATED, ORDINAL_BITS, SIDE_CLIENT, SIDE_SERVER, close_event, frame_event,
};
use zerocopy::IntoBytes;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const GOAWAY: u8 = 7;
pub const CONTINUATION: u8 = 9;
pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
pub const PADDED: u8 = 8;
pub const PRIORITY: u8 = 0x20;

/// Who sends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

/// One frame.
#[derive(Debug, Clone, Default)]
pub struct Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
    pub body_bytes: u64,
    pub messages: u32,
}

/// A connection whose records are made.
#[derive(Debug, Clone)]
pub struct Connection {
    pub number: u64,
    /// `SIDE_SERVER` or `SIDE_CLIENT`: whom the kernel side observes.
    pub side: u32,
    /// Time of the next record.
    pub time: u64,
    /// `frame_event.arrival` of the next record.
    pub arrival: u64,
    /// Set on all records.
    pub is_joined: bool,
    /// Bytes of a piece at most.
    pub piece: usize,
    /// Bytes copied of a frame at most.
    pub copied: usize,
    pub coding: Coding,
    encoders: [Encoder; 2],
    sequences: [u32; 2],
    last_stream: u32,
}

impl Connection {
    pub fn new(number: u64, side: u32) -> Self {
        Self {
            number,
            side,
            time: 0,
            arrival: 0,
            is_joined: false,
            piece: 1880,
            copied: 1 << 20,
            coding: Coding::Eager,
            encoders: [Encoder::new(number), Encoder::new(!number)],
            sequences: [0, 0],
            last_stream: 0,
        }
    }

    pub fn server(number: u64) -> Self {
        Self::new(number, SIDE_SERVER)
    }

    pub fn client(number: u64) -> Self {
        Self::new(number, SIDE_CLIENT)
    }

    /// The same at another time.
    pub fn at(&mut self, time: u64) -> &mut Self {
        self.time = time;
        self.arrival = 0;
        self
    }

    /// The next frame arrived before it was read.
    pub fn arrived(&mut self, arrival: u64) -> &mut Self {
        self.arrival = arrival;
        self
    }

    /// What came before was not seen.
    pub fn join(&mut self) {
        self.is_joined = true;
        self.sequences = [0, 0];
    }

    pub fn encoder(&mut self, from: From) -> &mut Encoder {
        &mut self.encoders[from as usize]
    }

    fn is_sent(&self, from: From) -> bool {
        (self.side == SIDE_CLIENT) == (from == From::Client)
    }

    /// The records of a frame.
    pub fn frame(&mut self, from: From, frame: &Frame) -> Vec<Record> {
        self.records(from, frame, 0)
    }

    fn records(&mut self, from: From, frame: &Frame, flag: u32) -> Vec<Record> {
        if from == From::Client && frame.kind == HEADERS && frame.stream % 2 == 1 {
            self.last_stream = self.last_stream.max(frame.stream);
        }
        let copied = &frame.payload[..frame.payload.len().min(self.copied)];
        let is_cut = copied.len() < frame.payload.len();
        let mut pieces: Vec<&[u8]> = copied.chunks(self.piece).collect();
        if pieces.is_empty() {
            pieces.push(&[]);
        }
        let n_pieces = pieces.len();
        let mut records = Vec::new();
        for (nth, piece) in pieces.into_iter().enumerate() {
            let is_last = nth + 1 == n_pieces;
            let mut flags = flag;
            flags |= if nth == 0 { FRAME_FIRST_PIECE } else { 0 };
            flags |= if is_last { FRAME_LAST_PIECE } else { 0 };
            flags |= if is_last && is_cut { FRAME_TRUNCATED } else { 0 };
            flags |= if self.is_joined { FRAME_JOINED } else { 0 };
            let is_sent = self.is_sent(from);
            let sequence = &mut self.sequences[usize::from(is_sent)];
            let mapped = |last: u8| [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 192, 0, 2, last];
            let event = frame_event {
                header: event_header {
                    kind: EVENT_FRAME,
                    tgid: 4242,
                    tid: 4243,
                    flags,
                    time: self.time,
                    exchange: self.number << ORDINAL_BITS,
                },
                arrival: if self.arrival == 0 { self.time } else { self.arrival },
                body_bytes: frame.body_bytes,
                messages: frame.messages,
                offset: 0,
                sequence: *sequence,
                stream: frame.stream,
                frame_bytes: u32::try_from(frame.payload.len()).unwrap(),
                position: u32::try_from(nth * self.piece).unwrap(),
                length: u16::try_from(piece.len()).unwrap(),
                type_: frame.kind,
                flags: frame.flags,
                sent: u8::from(is_sent),
                side: u8::try_from(self.side).unwrap(),
                encrypted: 0,
                family: 2,
                local_port: 8080,
                remote_port: 50_000,
                local_address: mapped(1),
                remote_address: mapped(2),
                ..frame_event::default()
            };
            *sequence += 1;
            records.push(Record::new(&[event.as_bytes(), piece]));
        }
        records
    }

    /// A header block in one frame.
    pub fn headers<N: AsRef<str>, V: AsRef<str>>(
        &mut self,
        from: From,
        stream: u32,
        is_end: bool,
        fields: &[(N, V)],
    ) -> Vec<Record> {
        let coding = self.coding;
        let payload = self.encoder(from).encode(fields, coding);
        let flags = END_HEADERS | u8::from(is_end);
        self.frame(from, &Frame { kind: HEADERS, flags, stream, payload, ..Frame::default() })
    }

    /// The end of a message with data.
    pub fn data_end(&mut self, from: From, stream: u32, body_bytes: u64, messages: u32) -> Vec<Record> {
        let frame =
            Frame { kind: DATA, flags: END_STREAM, stream, body_bytes, messages, payload: Vec::new() };
        self.frame(from, &frame)
    }

    /// What a stream had carried one way, reported before it ends otherwise. `arrival`: when the last of it passed.
    pub fn reported(&mut self, from: From, stream: u32, body_bytes: u64, messages: u32) -> Vec<Record> {
        let frame = Frame { kind: DATA, stream, body_bytes, messages, ..Frame::default() };
        let sequences = self.sequences;
        let records = self.records(from, &frame, FRAME_APART);
        self.sequences = sequences;
        records
    }

    pub fn reset(&mut self, from: From, stream: u32, code: u32) -> Vec<Record> {
        let payload = code.to_be_bytes().to_vec();
        self.frame(from, &Frame { kind: RST_STREAM, stream, payload, ..Frame::default() })
    }

    pub fn go_away(&mut self, from: From, last: u32) -> Vec<Record> {
        let payload = [last.to_be_bytes(), [0; 4]].concat();
        self.frame(from, &Frame { kind: GOAWAY, payload, ..Frame::default() })
    }

    /// The end of the connection; `adjust` sets the rest of the record.
    pub fn close(&mut self, reason: u32, adjust: impl FnOnce(&mut close_event)) -> Vec<Record> {
        let header = event_header {
            kind: EVENT_CLOSE,
            tgid: 4242,
            tid: 4243,
            flags: CLOSE_HTTP2,
            time: self.time,
            exchange: self.number << ORDINAL_BITS,
        };
        let mut close = close_event {
            header,
            reason: u8::try_from(reason).unwrap(),
            side: u8::try_from(self.side).unwrap(),
            last_stream: self.last_stream,
            received_pieces: self.sequences[0],
            sent_pieces: self.sequences[1],
            ..close_event::default()
        };
        adjust(&mut close);
        vec![Record::new(&[close.as_bytes()])]
    }
}
