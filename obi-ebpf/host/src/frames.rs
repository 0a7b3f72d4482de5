//! The agent's books of connections that speak HTTP/2, WebSocket or a database's protocol: records as they came, and
//! checks that they keep the contract.
//!
//! In: records of the kinds `EVENT_FRAME`, `EVENT_WEBSOCKET` and `EVENT_CLOSE` with `CLOSE_HTTP2` or `CLOSE_DATABASE`.
//! Out: frames put together from their pieces. Panics where the kernel breaks a promise. Refuses to know what header
//! blocks mean.
#![forbid(unsafe_code)]

use obi_ebpf::*;
use std::collections::BTreeMap;
use zerocopy::FromBytes;

/// A frame as the agent knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The observed process sent it.
    pub sent: bool,
    /// Frame type.
    pub kind: u8,
    /// The frame's own flags.
    pub flags: u8,
    /// Stream identifier.
    pub stream: u32,
    /// Payload bytes of the whole frame.
    pub frame_bytes: u32,
    /// What was copied of the payload.
    pub payload: Vec<u8>,
    /// Content of the stream in this direction up to here.
    pub body_bytes: u64,
    /// Messages begun in it.
    pub messages: u32,
    /// Not all of it was copied.
    pub truncated: bool,
    /// The last piece came.
    pub whole: bool,
    /// `FRAME_JOINED`.
    pub joined: bool,
    /// `enum side`.
    pub side: u8,
    /// When the first byte came, of DATA when the stream's last content passed; when the last byte that was copied
    /// passed.
    pub times: (u64, u64),
    /// Stream offset of the first payload byte.
    pub offset: u32,
}

/// What a stream had carried one way when it was reset, or its connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Apart {
    /// The observed process sent it.
    pub sent: bool,
    /// Stream identifier.
    pub stream: u32,
    /// Content.
    pub body_bytes: u64,
    /// Messages begun in it.
    pub messages: u32,
    /// When its last byte had passed; 0: none has.
    pub last: u64,
}

/// The end of a WebSocket.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocket {
    /// Number of the exchange that was upgraded.
    pub exchange: u64,
    /// Payload received, sent.
    pub bytes: (u64, u64),
    /// Messages received, sent.
    pub messages: (u32, u32),
    /// Code of the first Close frame, and who sent it.
    pub close: (u16, u8),
    /// `enum close_reason`.
    pub reason: u8,
}

/// How an HTTP/2 connection ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Close {
    /// `enum close_reason`.
    pub reason: u8,
    /// `enum loss_reason`.
    pub loss: u8,
    /// `enum side`.
    pub side: u8,
    /// Highest stream opened by a request.
    pub last_stream: u32,
    /// Records of each direction, received and sent.
    pub pieces: (u32, u32),
    /// Streams that may have been put aside, for the agent to find.
    pub aside: u32,
}

/// All of one connection.
#[derive(Debug, Default)]
pub struct Frames {
    /// In the order in which they began.
    pub frames: Vec<Frame>,
    /// Beside them.
    pub apart: Vec<Apart>,
    /// Records missing, by direction.
    pub missing: BTreeMap<bool, u64>,
    /// At the end.
    pub close: Option<Close>,
    /// At the end, where a database's [`Self::close`] found no room: how many turns it was asked for.
    pub turns: Option<u32>,
    /// At the end.
    pub websocket: Option<WebSocket>,
    next: BTreeMap<bool, u32>,
}

impl Frames {
    /// Reads a record; returns whether it was one of these kinds.
    pub fn read(&mut self, bytes: &[u8]) -> bool {
        let (header, _) = event_header::ref_from_prefix(bytes).expect("a record has a header");
        match header.kind {
            EVENT_FRAME => {
                let (frame, rest) = frame_event::ref_from_prefix(bytes).expect("a frame event");
                self.piece(frame, rest.get(..usize::from(frame.length)).expect("payload inside the record"));
            }
            EVENT_WEBSOCKET => {
                let (end, _) = websocket_event::ref_from_prefix(bytes).expect("a websocket event");
                let websocket = WebSocket {
                    exchange: header.exchange,
                    bytes: (end.received_bytes, end.sent_bytes),
                    messages: (end.received_messages, end.sent_messages),
                    close: (end.close_code, end.closed),
                    reason: end.reason,
                };
                assert!(self.websocket.replace(websocket).is_none(), "a WebSocket ended twice");
            }
            EVENT_CLOSE if header.flags & (CLOSE_HTTP2 | CLOSE_DATABASE) != 0 => {
                let (end, _) = close_event::ref_from_prefix(bytes).expect("a close event");
                assert_eq!(header.exchange & ((1 << ORDINAL_BITS) - 1), 0, "ordinal 0");
                for (sent, pieces) in [(false, end.received_pieces), (true, end.sent_pieces)] {
                    self.expect(sent, pieces);
                }
                let close = Close {
                    reason: end.reason,
                    loss: end.loss,
                    side: end.side,
                    last_stream: end.last_stream,
                    pieces: (end.received_pieces, end.sent_pieces),
                    aside: end.n_aside,
                };
                assert!(self.close.replace(close).is_none(), "a connection closed twice");
            }
            _ => return false,
        }
        true
    }

    /// The end of a connection to a database could not be reported; `number` says how many turns were asked for.
    pub(crate) fn end_by_turns(&mut self, number: u64) {
        let turns = u32::try_from(number & ((1 << ORDINAL_BITS) - 1)).expect("fewer bits");
        assert!(self.close.is_none() && self.turns.replace(turns).is_none(), "a connection closed twice");
    }

    /// `sequence` is the next of its direction, or some are missing.
    fn expect(&mut self, sent: bool, sequence: u32) {
        let next = self.next.entry(sent).or_default();
        *self.missing.entry(sent).or_default() += u64::from(sequence.wrapping_sub(*next));
        assert!(sequence.wrapping_sub(*next) < 1 << 31, "sequence goes back");
        *next = sequence;
    }

    fn piece(&mut self, event: &frame_event, payload: &[u8]) {
        let (sent, flags) = (event.sent != 0, event.header.flags);
        assert!(self.close.is_none(), "a frame behind the end");
        assert_eq!(event.header.exchange & ((1 << ORDINAL_BITS) - 1), 0, "ordinal 0");
        if flags & FRAME_APART != 0 {
            assert_eq!((event.type_, event.flags, event.length), (0, 0, 0), "no frame");
            assert!(u32::from(event.protocol) < PROTOCOL_POSTGRES, "databases have no streams");
            let &frame_event { stream, body_bytes, messages, arrival: last, .. } = event;
            return self.apart.push(Apart { sent, stream, body_bytes, messages, last });
        }
        self.expect(sent, event.sequence);
        self.next.insert(sent, event.sequence + 1);
        let first = flags & FRAME_FIRST_PIECE != 0;
        if first {
            self.frames.push(Frame {
                sent,
                kind: event.type_,
                flags: event.flags,
                stream: event.stream,
                frame_bytes: event.frame_bytes,
                payload: Vec::new(),
                body_bytes: event.body_bytes,
                messages: event.messages,
                truncated: false,
                whole: false,
                joined: flags & FRAME_JOINED != 0,
                side: event.side,
                times: (event.arrival, event.header.time),
                offset: event.offset,
            });
        }
        let Some(frame) = self.frames.iter_mut().rev().find(|frame| frame.sent == sent) else { return };
        if frame.whole || (frame.kind, frame.stream) != (event.type_, event.stream) {
            return; // its first piece was lost
        }
        let at = if first { event.position } else { u32::try_from(frame.payload.len()).expect("short") };
        if at != event.position {
            return; // a piece in between was lost
        }
        if event.type_ != 0 && event.offset != frame.offset.wrapping_add(event.position) {
            return; // of another frame, whose first piece was lost
        }
        frame.payload.extend_from_slice(payload);
        frame.truncated |= flags & FRAME_TRUNCATED != 0;
        frame.whole = flags & FRAME_LAST_PIECE != 0;
        frame.times.1 = event.header.time;
    }
}
