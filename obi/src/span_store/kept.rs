//! What stays beyond its time in the ring: single spans, and all spans of a trace.
//!
//! In: numbers of spans and ids of traces that are held; spans that the ring gives up. Out: those of them that stay.
//! Spans that are held by their number are few, and always stay; those of a trace stay while there is room for them,
//! and what finds none is counted. Refuses to know why anything is held.

use std::collections::BTreeMap;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::{Stored, size};
use crate::span::Span;

/// Spans of one trace that are held; of a longer one the rest is counted as refused.
pub(super) const SPANS_OF_TRACE: usize = 1_000;

/// A span that something holds on to.
#[derive(Debug, Default)]
struct Held {
    /// By its number.
    holders: u32,
    /// As one of its trace.
    of_trace: bool,
    /// Once the ring has given it up, with its bytes.
    stored: Option<(Stored, usize)>,
}

/// A trace that is held.
#[derive(Debug, Default)]
struct Trace {
    holders: u32,
    spans: Vec<u64>,
}

/// Traces that are held, what their spans take beyond the ring, and what found no room.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Usage {
    /// Traces.
    pub traces: usize,
    /// Bytes of spans that the ring has given up.
    pub bytes: usize,
    /// Spans that found no room, since the start.
    pub refused: u64,
}

/// Everything that is held.
#[derive(Debug, Default)]
pub(super) struct Kept {
    limit: usize,
    spans: BTreeMap<u64, Held>,
    traces: HashMap<[u8; 16], Trace, RandomState>,
    bytes: usize,
    refused: u64,
    is_changed: bool,
}

impl Kept {
    /// Spans of traces may take `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { limit, ..Self::default() }
    }

    /// One holder more; whether it is the first.
    pub(super) fn hold_trace(&mut self, trace_id: [u8; 16]) -> bool {
        let trace = self.traces.entry(trace_id).or_default();
        trace.holders += 1;
        self.is_changed |= trace.holders == 1;
        trace.holders == 1
    }

    /// One holder less; the last one lets its spans go.
    pub(super) fn release_trace(&mut self, trace_id: &[u8; 16]) {
        let Some(trace) = self.traces.get_mut(trace_id) else { return };
        trace.holders -= 1;
        if trace.holders > 0 {
            return;
        }
        self.is_changed = true;
        for sequence in self.traces.remove(trace_id).map(|trace| trace.spans).unwrap_or_default() {
            if let Some(held) = self.spans.get_mut(&sequence) {
                held.of_trace = false;
                self.drop_if_free(sequence);
            }
        }
    }

    /// A span that the ring has belongs to this trace.
    pub(super) fn add(&mut self, trace_id: &[u8; 16], sequence: u64) {
        if self.traces.is_empty() {
            return;
        }
        let Some(trace) = self.traces.get_mut(trace_id) else { return };
        if trace.spans.len() >= SPANS_OF_TRACE {
            self.refused += 1;
            return;
        }
        trace.spans.push(sequence);
        self.spans.entry(sequence).or_default().of_trace = true;
    }

    pub(super) fn hold(&mut self, sequence: u64) {
        self.spans.entry(sequence).or_default().holders += 1;
    }

    pub(super) fn is_held(&self, sequence: u64) -> bool {
        self.spans.contains_key(&sequence)
    }

    pub(super) fn release(&mut self, sequence: u64) {
        if let Some(held) = self.spans.get_mut(&sequence) {
            held.holders = held.holders.saturating_sub(1);
            self.drop_if_free(sequence);
        }
    }

    /// The ring gives a span up; it comes back if nothing holds it, or only its trace does and there is no room.
    pub(super) fn take(&mut self, stored: Stored, size: usize) -> Option<Stored> {
        if self.spans.is_empty() {
            return Some(stored);
        }
        let sequence = stored.sequence;
        let Some(held) = self.spans.get_mut(&sequence) else { return Some(stored) };
        if held.holders == 0 && self.bytes + size > self.limit {
            self.refused += 1;
            self.spans.remove(&sequence);
            return Some(stored);
        }
        self.bytes += size;
        held.stored = Some((stored, size));
        None
    }

    /// Changes a span that the ring has given up, if it is here.
    pub(super) fn change(&mut self, sequence: u64, change: impl FnOnce(&mut Span)) {
        let held = self.spans.get_mut(&sequence).and_then(|held| held.stored.as_mut());
        if let Some((stored, bytes)) = held {
            change(&mut stored.span);
            self.bytes -= *bytes;
            *bytes = size(&stored.span);
            self.bytes += *bytes;
        }
    }

    /// Spans that the ring has given up, the oldest first.
    pub(super) fn stored(&self) -> impl DoubleEndedIterator<Item = &Stored> {
        self.spans.values().filter_map(|held| held.stored.as_ref().map(|(stored, _)| stored))
    }

    /// The traces that are held, if they are others than the last time.
    pub(super) fn changed(&mut self) -> Option<Vec<[u8; 16]>> {
        std::mem::take(&mut self.is_changed).then(|| self.traces.keys().copied().collect())
    }

    pub(super) fn usage(&self) -> Usage {
        Usage { traces: self.traces.len(), bytes: self.bytes, refused: self.refused }
    }

    fn drop_if_free(&mut self, sequence: u64) {
        if self.spans.get(&sequence).is_some_and(|held| held.holders == 0 && !held.of_trace) {
            let stored = self.spans.remove(&sequence).and_then(|held| held.stored);
            self.bytes -= stored.map_or(0, |(_, size)| size);
        }
    }
}
