//! Where open exchanges live: entries found by number, with bounded memory.
//!
//! In: exchange numbers and pieces of request heads. Out: entries by slot. Entries and their buffers are used
//! again, so that nothing is allocated once the table has grown to its load. Refuses to know what ends an
//! exchange and who counts it.

use super::entry::{Entry, RequestHead};
use super::exchange::Sink;
use super::http1::{Parsed, RequestText, parse_request, terminate_truncated};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::{FLAG_FIRST_PIECE, FLAG_LAST_PIECE, FLAG_TRUNCATED, head_event};

/// Bounds of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Exchanges open at once; one more is refused and counted as `pending_full`.
    pub open: usize,
    /// Longest request head that is kept, bytes (at most [`MAX_HEAD_BYTES`]); a longer one is cut.
    pub head_bytes: usize,
    /// Memory for request texts and unfinished heads, bytes. Beyond it new exchanges are refused and
    /// unfinished heads are cut.
    pub held_bytes: usize,
}

/// The highest meaningful [`Limits::head_bytes`].
pub const MAX_HEAD_BYTES: usize = 64 * 1024;

impl Default for Limits {
    fn default() -> Self {
        Self { open: 65_536, head_bytes: 8 * 1024, held_bytes: 32 * 1024 * 1024 }
    }
}

/// Buffers for heads in several pieces that are kept for the next such head.
const SPARE_BUFFERS: usize = 64;

/// What a piece of a request head came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestStep {
    Taken,
    Whole,
    Unparsable,
    /// Bytes before this piece are missing.
    Gap,
}

#[derive(Debug)]
pub(super) struct Table {
    limits: Limits,
    slots: HashMap<u64, u32, RandomState>,
    entries: Vec<Entry>,
    free: Vec<u32>,
    spare: Vec<Vec<u8>>,
    /// Capacity of all texts and unfinished heads of `entries`, free ones included.
    held_bytes: usize,
    /// Numbers that others know and will not hear of again.
    forgotten: Vec<u64>,
}

impl Table {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits: Limits { head_bytes: limits.head_bytes.min(MAX_HEAD_BYTES), ..limits },
            slots: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            spare: Vec::new(),
            held_bytes: 0,
            forgotten: Vec::new(),
        }
    }

    /// Open exchanges.
    pub(super) fn open(&self) -> usize {
        self.slots.len()
    }

    /// Slots in use or free: `0..slots()` are valid.
    pub(super) fn slots(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    pub(super) fn find(&self, number: u64) -> Option<usize> {
        self.slots.get(&number).map(|slot| *slot as usize)
    }

    pub(super) fn entry(&mut self, slot: usize) -> &mut Entry {
        &mut self.entries[slot]
    }

    /// Opens an entry. `None` at the bound, and for number 0, which is none.
    pub(super) fn insert(&mut self, number: u64) -> Option<usize> {
        if number == 0 || self.slots.len() >= self.limits.open || self.held_bytes > self.limits.held_bytes {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(Entry::default());
                slot
            }
        };
        self.slots.insert(number, slot);
        self.entries[slot as usize].reset(number);
        Some(slot as usize)
    }

    /// Reports the exchanges that had begun and will not be heard of again.
    pub(super) fn tell_forgotten(&mut self, sink: &mut impl Sink) {
        self.forgotten.drain(..).for_each(|number| sink.forgotten(number));
    }

    fn note_forgotten(&mut self, slot: usize) {
        let entry = &mut self.entries[slot];
        if std::mem::take(&mut entry.is_reported) {
            self.forgotten.push(entry.number);
        }
    }

    pub(super) fn release(&mut self, slot: usize) {
        self.note_forgotten(slot);
        self.recycle_partial(slot);
        let entry = &mut self.entries[slot];
        self.slots.remove(&entry.number);
        entry.number = 0;
        if self.held_bytes > self.limits.held_bytes {
            self.held_bytes -= entry.text.capacity();
            entry.text = Default::default();
        }
        self.free.push(u32::try_from(slot).expect("slots are made from u32"));
    }

    /// Keeps the entry only to swallow the rest of its records.
    pub(super) fn give_up(&mut self, slot: usize) {
        self.note_forgotten(slot);
        self.recycle_partial(slot);
        let entry = &mut self.entries[slot];
        entry.given_up = true;
        entry.request_head = RequestHead::Whole;
    }

    /// The entry's number goes to another exchange.
    pub(super) fn restart(&mut self, slot: usize) {
        self.note_forgotten(slot);
        self.recycle_partial(slot);
        let number = self.entries[slot].number;
        self.entries[slot].reset(number);
    }

    /// The text of a request that goes on elsewhere.
    pub(super) fn take_text(&mut self, slot: usize) -> RequestText {
        let text = std::mem::take(&mut self.entries[slot].text);
        self.held_bytes -= text.capacity();
        text
    }

    /// Adds a piece to a request head and reads the head when it is the last one.
    pub(super) fn take_request_piece(
        &mut self,
        slot: usize,
        head: &head_event,
        payload: &[u8],
    ) -> RequestStep {
        const ONLY_PIECE: u32 = FLAG_FIRST_PIECE | FLAG_LAST_PIECE;
        let flags = head.header.flags;
        let in_one_piece = flags & (ONLY_PIECE | FLAG_TRUNCATED) == ONLY_PIECE;
        let parsed = if in_one_piece && payload.len() <= self.limits.head_bytes {
            self.parse(slot, payload)
        } else if !self.append(slot, head, payload) {
            return RequestStep::Gap;
        } else if flags & FLAG_LAST_PIECE == 0 {
            return RequestStep::Taken;
        } else {
            self.parse_partial(slot)
        };
        if !parsed {
            return RequestStep::Unparsable;
        }
        self.entries[slot].request_head = RequestHead::Whole;
        RequestStep::Whole
    }

    /// The rest of an unfinished head will not come: reads what there is. `false` when it has no whole
    /// request line.
    pub(super) fn cut_request_head(&mut self, slot: usize) -> bool {
        self.entries[slot].partial_truncated = true;
        let parsed = self.parse_partial(slot);
        if parsed {
            self.entries[slot].request_head = RequestHead::Whole;
        }
        parsed
    }

    /// Adds a piece to an unfinished head. `false` when bytes before it are missing.
    fn append(&mut self, slot: usize, head: &head_event, payload: &[u8]) -> bool {
        let entry = &mut self.entries[slot];
        entry.partial_truncated |= head.header.flags & FLAG_TRUNCATED != 0;
        if head.position as usize != entry.partial.len() {
            return entry.partial_truncated;
        }
        if entry.partial.capacity() == 0 {
            entry.partial = self.spare.pop().unwrap_or_default();
            self.held_bytes += entry.partial.capacity();
        }
        let budget = self.limits.held_bytes.saturating_sub(self.held_bytes);
        let reserved = entry.partial.capacity() - entry.partial.len();
        let room = (self.limits.head_bytes - entry.partial.len()).min(reserved.saturating_add(budget));
        entry.partial_truncated |= room < payload.len();
        let before = entry.partial.capacity();
        entry.partial.extend_from_slice(&payload[..payload.len().min(room)]);
        self.held_bytes += entry.partial.capacity() - before;
        true
    }

    fn parse_partial(&mut self, slot: usize) -> bool {
        let entry = &mut self.entries[slot];
        let mut head = std::mem::take(&mut entry.partial);
        self.held_bytes -= head.capacity();
        if entry.partial_truncated {
            terminate_truncated(&mut head);
        }
        let parsed = self.parse(slot, &head);
        self.keep_spare(head);
        parsed
    }

    fn parse(&mut self, slot: usize, head: &[u8]) -> bool {
        let text = &mut self.entries[slot].text;
        let before = text.capacity();
        let parsed = matches!(parse_request(head, text), Parsed::Whole(_));
        self.held_bytes += text.capacity() - before;
        parsed
    }

    fn recycle_partial(&mut self, slot: usize) {
        let head = std::mem::take(&mut self.entries[slot].partial);
        self.held_bytes -= head.capacity();
        self.keep_spare(head);
    }

    fn keep_spare(&mut self, mut head: Vec<u8>) {
        if head.capacity() > 0 && self.spare.len() < SPARE_BUFFERS {
            head.clear();
            self.spare.push(head);
        }
    }
}
