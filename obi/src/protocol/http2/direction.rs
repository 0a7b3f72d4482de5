//! One direction of a connection: what was missed of it, and header blocks put together.
//!
//! In: records of frames in the order of their sequence. Out: whole header blocks with whom they belong to, and how
//! often records were missing. Refuses to know the other direction.

use super::frame::{CONTINUATION, END_HEADERS, END_STREAM, PUSH_PROMISE, fragment};
use super::hpack::Decoder;
use obi_ebpf::{FRAME_FIRST_PIECE, FRAME_LAST_PIECE, FRAME_TRUNCATED, frame_event};
use std::ops::Deref;

/// Longest header block that is kept, bytes; a longer one is cut, and its direction's table forgotten.
const MAX_BLOCK_BYTES: usize = 64 * 1024;
/// Buffers for blocks in several pieces that are kept for the next such block, and their size at most.
const SPARE_BUFFERS: usize = 16;
/// Of the payload of RST_STREAM and GOAWAY, what has a meaning here.
const CONTROL_BYTES: usize = 8;

#[derive(Debug, Default)]
pub(super) struct Direction {
    pub(super) decoder: Decoder,
    /// The sequence number that comes next.
    expected: u32,
    /// How often records were missing.
    pub(super) gaps: u32,
    open: Option<Block>,
    /// Bytes of the open block, if it does not come in one piece.
    bytes: Vec<u8>,
    /// Where in `bytes` the current frame begins.
    frame_start: usize,
    /// The beginning of the RST_STREAM or GOAWAY that is coming, and how much of it has come.
    control: ([u8; CONTROL_BYTES], usize),
}

/// A header block and what was true when it began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Block {
    pub(super) stream: u32,
    pub(super) tgid: u32,
    pub(super) tid: u32,
    pub(super) arrival: u64,
    pub(super) started: u64,
    /// The stream ends with it.
    pub(super) is_end: bool,
    /// Of a promise: the client did not ask for that stream.
    pub(super) is_promise: bool,
    /// Bytes of it are missing.
    pub(super) is_cut: bool,
}

/// The bytes of a block.
#[derive(Debug)]
pub(super) enum Bytes<'p> {
    Borrowed(&'p [u8]),
    Owned(Vec<u8>),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Borrowed(bytes) => bytes,
            Self::Owned(bytes) => bytes,
        }
    }
}

impl Direction {
    /// Notes the place of a record. `false` when a later one has come already: it counts as missed.
    pub(super) fn follow(&mut self, frame: &frame_event) -> bool {
        let step = frame.sequence.wrapping_sub(self.expected).cast_signed();
        if step >= 0 {
            self.expected = frame.sequence.wrapping_add(1);
        }
        if step > 0 {
            self.miss();
        }
        step >= 0
    }

    /// Notes that nothing comes any more, and how many records there were when the connection ended. A thread may have
    /// been about to count the last one that came: more records than that number are no gap.
    pub(super) fn end(&mut self, pieces: u32) {
        if pieces.wrapping_sub(self.expected).cast_signed() > 0 {
            self.miss();
        }
    }

    fn miss(&mut self) {
        self.gaps = self.gaps.wrapping_add(1);
        self.open = None;
        self.bytes.clear();
        self.control.1 = 0;
        self.decoder.forget();
    }

    /// Takes a piece of HEADERS, PUSH_PROMISE or CONTINUATION; returns the block that it completes.
    pub(super) fn take<'p>(
        &mut self,
        frame: &frame_event,
        payload: &'p [u8],
        spare: &mut Spare,
    ) -> Option<(Block, Bytes<'p>)> {
        let flags = frame.header.flags;
        let (is_first, is_last) = (flags & FRAME_FIRST_PIECE != 0, flags & FRAME_LAST_PIECE != 0);
        if is_first && frame.type_ != CONTINUATION {
            if self.open.is_some() {
                // The one before never ended, against the rules: what it would have inserted is not known.
                self.decoder.forget();
            }
            self.bytes.clear();
            self.open = Some(begin(frame));
        }
        let block = self.open.as_mut().filter(|block| block.stream == frame.stream)?;
        if is_first && is_last && self.bytes.is_empty() && frame.flags & END_HEADERS != 0 {
            let (start, end) = fragment(frame.type_, frame.flags, payload, flags & FRAME_TRUNCATED != 0)
                .unwrap_or((payload.len(), payload.len()));
            block.is_cut |= flags & FRAME_TRUNCATED != 0;
            return Some((self.open.take()?, Bytes::Borrowed(&payload[start..end])));
        }
        if is_first {
            self.frame_start = self.bytes.len();
        }
        block.is_cut |= flags & FRAME_TRUNCATED != 0;
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take();
        }
        let room = MAX_BLOCK_BYTES.saturating_sub(self.bytes.len());
        block.is_cut |= room < payload.len();
        self.bytes.extend_from_slice(&payload[..payload.len().min(room)]);
        if !is_last {
            return None;
        }
        self.strip(frame);
        if frame.flags & END_HEADERS == 0 {
            return None;
        }
        let bytes = std::mem::take(&mut self.bytes);
        Some((self.open.take()?, Bytes::Owned(bytes)))
    }

    /// Takes a piece of RST_STREAM or GOAWAY; returns the beginning of its payload once all of it has come. A segment
    /// may end anywhere, inside the error code too.
    pub(super) fn gather(&mut self, frame: &frame_event, piece: &[u8]) -> Option<&[u8]> {
        let (bytes, n) = &mut self.control;
        if frame.header.flags & FRAME_FIRST_PIECE != 0 {
            *n = 0;
        }
        if frame.position as usize == *n {
            let taken = piece.len().min(CONTROL_BYTES - *n);
            bytes[*n..*n + taken].copy_from_slice(&piece[..taken]);
            *n += taken;
        }
        (frame.header.flags & FRAME_LAST_PIECE != 0).then_some(&bytes[..*n])
    }

    /// Takes padding and priority away from the frame that has just come to its end.
    fn strip(&mut self, frame: &frame_event) {
        let is_cut = self.open.is_some_and(|block| block.is_cut);
        let payload = self.bytes.get(self.frame_start..).unwrap_or_default();
        let (start, end) = fragment(frame.type_, frame.flags, payload, is_cut).unwrap_or_default();
        self.bytes.truncate(self.frame_start + end);
        self.bytes.drain(self.frame_start..self.frame_start + start);
        self.frame_start = self.bytes.len();
    }

    /// Memory held, bytes.
    pub(super) fn capacity(&self) -> usize {
        self.decoder.capacity() + self.bytes.capacity()
    }

    /// Gives up memory: what tables held is unknown from here on, an unfinished block is cut.
    pub(super) fn shrink(&mut self) {
        self.decoder.forget();
        self.bytes = Vec::new();
        self.frame_start = 0;
        if let Some(block) = &mut self.open {
            block.is_cut = true;
        }
    }
}

fn begin(frame: &frame_event) -> Block {
    let started = frame.header.time;
    let known_and_earlier = frame.arrival != 0 && frame.arrival < started;
    Block {
        stream: frame.stream,
        tgid: frame.header.tgid,
        tid: frame.header.tid,
        arrival: if known_and_earlier { frame.arrival } else { started },
        started,
        is_end: frame.flags & END_STREAM != 0 && frame.type_ != PUSH_PROMISE,
        is_promise: frame.type_ == PUSH_PROMISE,
        is_cut: false,
    }
}

/// Buffers that wait for the next block in several pieces.
#[derive(Debug, Default)]
pub(super) struct Spare(Vec<Vec<u8>>);

impl Spare {
    fn take(&mut self) -> Vec<u8> {
        self.0.pop().unwrap_or_default()
    }

    /// Takes back the bytes of a block.
    pub(super) fn put(&mut self, bytes: Bytes<'_>) {
        if let Bytes::Owned(mut bytes) = bytes
            && self.0.len() < SPARE_BUFFERS
        {
            bytes.clear();
            self.0.push(bytes);
        }
    }
}
