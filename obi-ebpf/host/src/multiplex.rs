//! Random HTTP/2 connections, written with no regard to how the kernel side reads them.
//!
//! In: a source of chance. Out: the two byte streams of one connection, and the truth about every frame in them.
//! Refuses to know segments, records, and what header blocks mean.
#![forbid(unsafe_code)]

use fastrand::Rng;

/// A frame in its stream of bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// Frame type.
    pub kind: u8,
    /// The frame's own flags.
    pub flags: u8,
    /// Stream identifier.
    pub stream: u32,
    /// Where the payload starts; the header is the nine bytes before it.
    pub start: usize,
    /// Where the frame ends.
    pub end: usize,
    /// With END_STREAM: content of the stream in this direction, without padding.
    pub body_bytes: u64,
    /// With END_STREAM: messages of gRPC's framing in it; `None` when it is other content.
    pub messages: Option<u32>,
}

/// One direction.
#[derive(Debug, Clone, Default)]
pub struct Direction {
    /// What is sent.
    pub bytes: Vec<u8>,
    /// In order.
    pub frames: Vec<Frame>,
    /// Bytes before the first frame: the preface.
    pub preface: usize,
}

/// A whole connection.
#[derive(Debug, Clone, Default)]
pub struct Multiplex {
    /// Client to server.
    pub requests: Direction,
    /// Server to client.
    pub responses: Direction,
    /// Highest identifier of a stream.
    pub last_stream: u32,
}

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bodies are made of this: no frame header is in it.
const FILLER: u8 = b'x';

/// What one message has to say in one direction: frames in order, not to be torn apart within an element.
type Says = Vec<Vec<(u8, u8, Vec<u8>)>>;

impl Direction {
    fn put(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8], content: (u64, Option<u32>)) {
        let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
        self.bytes.extend_from_slice(&length[1..]);
        self.bytes.extend_from_slice(&[kind, flags]);
        self.bytes.extend_from_slice(&stream.to_be_bytes());
        let start = self.bytes.len();
        self.bytes.extend_from_slice(payload);
        let end = self.bytes.len();
        self.frames.push(Frame {
            kind,
            flags,
            stream,
            start,
            end,
            body_bytes: content.0,
            messages: content.1,
        });
    }

    /// All streams' messages, interleaved; between them frames that say nothing about streams.
    fn interleave(&mut self, rng: &mut Rng, mut all: Vec<(u32, Says, (u64, Option<u32>))>) {
        // Streams open in the order of their identifiers.
        let mut open: Vec<(u32, Says, (u64, Option<u32>))> = Vec::new();
        all.reverse();
        while !all.is_empty() || !open.is_empty() {
            if open.is_empty() || (!all.is_empty() && rng.u8(..3) == 0) {
                open.push(all.pop().expect("not empty"));
                let (stream, says, content) = open.last_mut().expect("just pushed");
                let first = says.remove(0);
                first.iter().for_each(|(kind, flags, payload)| {
                    self.put(*kind, *flags, *stream, payload, *content);
                });
            } else {
                let nth = rng.usize(..open.len());
                let (stream, says, content) = &mut open[nth];
                if says.is_empty() {
                    open.swap_remove(nth);
                    continue;
                }
                let next = says.remove(0);
                next.iter().for_each(|(kind, flags, payload)| {
                    self.put(*kind, *flags, *stream, payload, *content);
                });
            }
            self.noise(rng);
        }
    }

    fn noise(&mut self, rng: &mut Rng) {
        let none = (0, None);
        match rng.u8(..24) {
            0 => self.put(6, rng.u8(..2), 0, &[7; 8], none),
            1 => self.put(8, 0, rng.u32(..9), &[0, 0, 1, 0], none),
            2 => self.put(4, 0, 0, &[0, 1, 0, 0, 16, 0].repeat(rng.usize(..4)), none),
            3 => self.put(4, 1, 0, &[], none),
            4 => self.put(2, 0, 3, &[0; 5], none),
            5 => {
                let payload = vec![FILLER; rng.usize(..300)];
                self.put(0xb + rng.u8(..9), rng.u8(..), rng.u32(..9), &payload, none);
            }
            6 => self.put(7, 0, 0, &vec![0; 8 + rng.usize(..90)], none),
            7 => self.put(3, 0, 1 << 20 | 1, &[0, 0, 0, 8], none),
            _ => {}
        }
    }
}

impl Multiplex {
    /// A connection with `n` streams.
    pub fn random(rng: &mut Rng, n: u32) -> Self {
        let mut all = Self::default();
        all.requests.bytes.extend_from_slice(PREFACE);
        all.requests.preface = PREFACE.len();
        all.requests.put(4, 0, 0, &[0, 3, 0, 0, 0, 100].repeat(rng.usize(..4)), (0, None));
        all.responses.put(4, 0, 0, &[0, 4, 0, 0, 255, 255].repeat(rng.usize(..4)), (0, None));
        let mut streams = Vec::new();
        let mut stream = 1;
        for _ in 0..n {
            streams.push(stream);
            stream += 2 * if rng.u8(..8) == 0 { 3 } else { 1 };
        }
        all.last_stream = streams.last().copied().unwrap_or(0);
        for server in [false, true] {
            let says = streams.iter().map(|stream| {
                let (says, content) = message(rng, server);
                (*stream, says, content)
            });
            let says = says.collect();
            let direction = if server { &mut all.responses } else { &mut all.requests };
            direction.interleave(rng, says);
        }
        all
    }
}

/// A header block in one HEADERS frame and CONTINUATIONs; its first field is a pseudo-header.
fn block(rng: &mut Rng, first: u8, end_stream: bool) -> Vec<(u8, u8, Vec<u8>)> {
    let length = match rng.u8(..8) {
        0 => rng.usize(1..5000),
        1 => rng.usize(1..9),
        _ => rng.usize(1..200),
    };
    let mut payload = vec![FILLER; length];
    payload[0] = first;
    let parts = if rng.u8(..6) == 0 { rng.usize(1..4) } else { 0 };
    let mut rest = Vec::new();
    for _ in 0..parts {
        rest.push(payload.split_off(rng.usize(1..=payload.len())));
    }
    rest.reverse();
    let mut flags = u8::from(end_stream);
    if rng.u8(..6) == 0 {
        flags |= 0x20;
        payload.splice(..0, [0, 0, 0, 0, 16]);
    }
    if rng.u8(..6) == 0 {
        let padding = rng.u8(..40);
        flags |= 8;
        payload.insert(0, padding);
        payload.resize(payload.len() + usize::from(padding), 0);
    }
    let n = rest.len();
    let mut frames = vec![(1, flags | if n == 0 { 4 } else { 0 }, payload)];
    for (nth, part) in rest.into_iter().enumerate() {
        frames.push((9, if nth + 1 == n { 4 } else { 0 }, part));
    }
    frames
}

/// What one side says on a stream, its content and the messages in it.
fn message(rng: &mut Rng, server: bool) -> (Says, (u64, Option<u32>)) {
    let first = if server { 0x88 } else { 0x82 };
    let mut says = Vec::new();
    if server && rng.u8(..6) == 0 {
        says.push(block(rng, 0x48, false)); // an interim response
    }
    let (content, messages) = content(rng);
    if content.is_empty() && rng.bool() {
        says.push(block(rng, first, true));
        return (says, (0, Some(0)));
    }
    says.push(block(rng, first, false));
    let trailers = rng.bool();
    let bytes = content.len() as u64;
    let mut left = &content[..];
    loop {
        let most = if rng.bool() { left.len() } else { left.len().min(40) };
        let (now, rest) = left.split_at(rng.usize(..=most));
        left = rest;
        let ends = left.is_empty() && !trailers && rng.u8(..4) != 0;
        let padded = rng.u8(..5) == 0;
        let mut payload = now.to_vec();
        if padded {
            let padding = rng.u8(..100);
            payload.insert(0, padding);
            payload.resize(payload.len() + usize::from(padding), 0);
        }
        says.push(vec![(0, u8::from(ends) | if padded { 8 } else { 0 }, payload)]);
        if ends {
            break;
        }
        if left.is_empty() && trailers {
            says.push(block(rng, 0x5a, true));
            break;
        }
    }
    (says, (bytes, messages))
}

/// Content, and how many messages of gRPC's framing it holds.
fn content(rng: &mut Rng) -> (Vec<u8>, Option<u32>) {
    let mut bytes = Vec::new();
    match rng.u8(..4) {
        0 => (bytes, Some(0)),
        1 => {
            bytes.resize(rng.usize(1..3000), FILLER);
            (bytes, None)
        }
        _ => {
            let n = if rng.u8(..8) == 0 { rng.u32(..60) } else { rng.u32(..5) };
            for _ in 0..n {
                let length = if rng.bool() { rng.usize(..20) } else { rng.usize(..700) };
                bytes.push(rng.u8(..2));
                bytes.extend_from_slice(&u32::try_from(length).expect("short").to_be_bytes());
                bytes.resize(bytes.len() + length, FILLER);
            }
            if rng.u8(..6) == 0 {
                bytes.extend_from_slice(b"\x80\0\0\0\x0fgrpc-status: 0\n"); // trailers of gRPC-Web
            }
            (bytes, Some(n))
        }
    }
}
