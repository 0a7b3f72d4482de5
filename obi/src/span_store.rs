//! Recent spans, bounded by number and bytes.
//!
//! In: finished spans; filters. Out: pages of spans, and evicted spans whose buffers the caller may fill again.
//! Refuses to know URLs and JSON.

mod filter;
mod kept;
mod trace;

use std::cmp::Reverse;
use std::collections::VecDeque;
use std::mem::{size_of, size_of_val};

pub use filter::{Filter, StatusFilter};
pub use kept::Usage;
pub use trace::{First, Placed, Trace, TraceQuery, tree};

use self::kept::Kept;
use crate::span::{Detail, Http, Span};

/// How much a [`Store`] may hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Spans.
    pub spans: usize,
    /// Bytes of spans and their buffers, capacity counted.
    pub bytes: usize,
    /// Bytes of spans of traces that are held, beyond the ring; 0 holds no trace.
    pub kept_bytes: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { spans: 10_000, bytes: 16 << 20, kept_bytes: 2 << 20 }
    }
}

/// Evicted spans with more buffer than this are dropped: reused, they would waste the store's bytes on short ones.
const MAX_SPARE_BYTES: usize = 2_048;
const MAX_SPARES: usize = 64;
/// Bytes that a text's buffer may have beyond twice its length.
const SLACK: usize = 32;
/// A span without what it points to.
const OWN_BYTES: usize = size_of::<Stored>() + size_of::<Span>();
/// Spans that are looked through for those of a trace: they have ended shortly before.
const LOOK_BACK: usize = 20_000;

/// A span and its place in the order of arrival.
#[derive(Debug, Clone)]
pub struct Stored {
    /// From 1, without gaps.
    pub sequence: u64,
    /// The span; it lies where it was made, since it is large.
    pub span: Box<Span>,
}

/// A ring of recent spans. It grows to its limits as needed and then allocates no more.
#[derive(Debug)]
pub struct Store {
    limits: Limits,
    spans: VecDeque<Stored>,
    bytes: usize,
    last: u64,
    #[expect(clippy::vec_box, reason = "boxes go round: those of the ring are filled again")]
    spares: Vec<Box<Span>>,
    kept: Kept,
}

/// Where a page begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Order {
    /// The newest spans, newest first.
    Newest,
    /// Spans with a higher sequence than this, oldest first.
    After(u64),
    /// The spans that took longest, the longest first.
    Slowest,
}

/// What to look up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Query {
    /// Which spans.
    pub filter: Filter,
    /// From where, in which direction.
    pub order: Order,
    /// At most so many.
    pub limit: usize,
}

/// An answer to a [`Query`].
#[derive(Debug, Clone, Default)]
pub struct Page {
    /// Matching spans.
    pub spans: Vec<Stored>,
    /// Every span up to this sequence has been looked at: continue with `Order::After(next)`.
    pub next: u64,
    /// Spans after the given sequence that are gone.
    pub evicted: u64,
    /// Spans held now.
    pub stored: usize,
}

impl Store {
    /// An empty store.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            spans: VecDeque::new(),
            bytes: 0,
            last: 0,
            spares: Vec::with_capacity(MAX_SPARES),
            kept: Kept::new(limits.kept_bytes),
        }
    }

    /// Keeps a span, evicting the oldest ones for it. Returns an evicted span to fill again, if there is one.
    pub fn push(&mut self, span: impl Into<Box<Span>>) -> Option<Box<Span>> {
        let mut span = span.into();
        fit(&mut span);
        self.last += 1;
        let size = size(&span);
        while !self.spans.is_empty()
            && (self.spans.len() >= self.limits.spans || self.bytes + size > self.limits.bytes)
        {
            self.evict();
        }
        self.bytes += size;
        self.kept.add(&span.trace_id, self.last);
        self.spans.push_back(Stored { sequence: self.last, span });
        self.spares.pop()
    }

    /// The sequence of the newest span, 0 when there never was one.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Keeps a span beyond its time in the ring, until it has been released as often as it was kept; what keeps spans
    /// bounds their number. They are found by [`Order::Newest`] and [`Order::Slowest`]. Does nothing when the span is
    /// gone already.
    pub fn keep(&mut self, sequence: u64) {
        let first = self.spans.front().map_or(self.last + 1, |stored| stored.sequence);
        if (first..=self.last).contains(&sequence) || self.kept.is_held(sequence) {
            self.kept.hold(sequence);
        }
    }

    /// Keeps all spans of a trace beyond their time in the ring, those that come later too, while there is room for
    /// them: until it has been released as often as it was kept. Looks back [`LOOK_BACK`] spans for those that are
    /// here.
    pub fn keep_trace(&mut self, trace_id: [u8; 16]) {
        if self.limits.kept_bytes > 0 && self.kept.hold_trace(trace_id) {
            for stored in self.spans.iter().rev().take(LOOK_BACK).filter(|it| it.span.trace_id == trace_id) {
                self.kept.add(&trace_id, stored.sequence);
            }
        }
    }

    /// Lets go of a trace kept before.
    pub fn release_trace(&mut self, trace_id: &[u8; 16]) {
        self.kept.release_trace(trace_id);
    }

    /// The traces that are kept, if they are others than those that this call has given the last time.
    pub fn kept_traces(&mut self) -> Option<Vec<[u8; 16]>> {
        self.kept.changed()
    }

    /// What kept traces take, and what found no room.
    #[must_use]
    pub fn kept_usage(&self) -> Usage {
        self.kept.usage()
    }

    /// Changes a span that is held: an SDK has reported the same event.
    pub fn change(&mut self, sequence: u64, change: impl FnOnce(&mut Span)) {
        let first = self.spans.front().map_or(self.last + 1, |stored| stored.sequence);
        let nth = sequence.checked_sub(first).and_then(|nth| usize::try_from(nth).ok());
        if let Some(stored) = nth.and_then(|nth| self.spans.get_mut(nth)) {
            self.bytes -= size(&stored.span);
            change(&mut stored.span);
            self.bytes += size(&stored.span);
        } else {
            self.kept.change(sequence, change);
        }
    }

    /// Lets go of a span kept before.
    pub fn release(&mut self, sequence: u64) {
        self.kept.release(sequence);
    }

    /// Finds the spans that a query asks for.
    #[must_use]
    pub fn page(&self, query: &Query) -> Page {
        let first = self.spans.front().map_or(self.last + 1, |stored| stored.sequence);
        let matching = |stored: &&Stored| query.filter.matches(&stored.span);
        let (after, spans): (u64, Vec<Stored>) = match query.order {
            Order::Newest => {
                let newest = self.spans.iter().rev().chain(self.kept.stored().rev());
                (0, newest.filter(matching).take(query.limit).cloned().collect())
            }
            Order::After(after) => {
                let skip = usize::try_from((after + 1).saturating_sub(first)).unwrap_or(usize::MAX);
                let rest = self.spans.range(skip.min(self.spans.len())..);
                (after, rest.filter(matching).take(query.limit).cloned().collect())
            }
            Order::Slowest => {
                (0, slowest(self.spans.iter().chain(self.kept.stored()).filter(matching), query.limit))
            }
        };
        let next = match (query.order, spans.last()) {
            (Order::After(_), Some(last)) if spans.len() == query.limit => last.sequence,
            _ => self.last,
        };
        Page { spans, next, evicted: (first - 1).saturating_sub(after), stored: self.spans.len() }
    }

    /// Finds the traces that a query asks for, and up to which sequence every span has been looked at.
    #[must_use]
    pub fn traces(&self, query: &TraceQuery) -> (Vec<Trace>, u64) {
        let traces = trace::find(self.kept.stored().chain(&self.spans), query);
        let next = match (query.after, traces.last()) {
            (Some(_), Some(last)) if traces.len() == query.limit => last.last,
            _ => self.last,
        };
        (traces, next)
    }

    fn evict(&mut self) {
        let Some(stored) = self.spans.pop_front() else { return };
        let size = size(&stored.span);
        self.bytes -= size;
        let Some(Stored { span, .. }) = self.kept.take(stored, size) else { return };
        if self.spares.len() < MAX_SPARES && size - OWN_BYTES <= MAX_SPARE_BYTES {
            self.spares.push(span);
        }
    }
}

/// Those that took longest; of equal ones the newer first.
fn slowest<'a>(spans: impl Iterator<Item = &'a Stored>, limit: usize) -> Vec<Stored> {
    let rank =
        |stored: &&Stored| Reverse((stored.span.end.saturating_sub(stored.span.start), stored.sequence));
    let mut found: Vec<&Stored> = spans.collect();
    // Only what is asked for is put in order: there may be a hundred thousand.
    if (1..found.len()).contains(&limit) {
        found.select_nth_unstable_by_key(limit - 1, rank);
    }
    found.truncate(limit);
    found.sort_unstable_by_key(rank);
    found.into_iter().cloned().collect()
}

/// Buffers go round with their boxes: those that were made for longer texts, or for texts that this span has not, are
/// given back. Else the ring grows for hours, until each of its boxes has held the longest of everything.
fn fit(span: &mut Span) {
    let fit = |text: &mut String| {
        if text.is_empty() || text.capacity() > 2 * text.len() + SLACK {
            text.shrink_to_fit();
        }
    };
    [&mut span.trace_state, &mut span.server.address].into_iter().for_each(fit);
    if let Detail::Rpc(rpc) = &mut span.detail {
        fit(&mut rpc.message);
    }
    if let Some(http) = span.detail.carrier_mut() {
        http.texts_mut().into_iter().for_each(fit);
    }
}

/// Bytes a span occupies; the service and the route are shared and belong to their tables.
fn size(span: &Span) -> usize {
    let particular = match &span.detail {
        Detail::Rpc(rpc) => rpc.message.capacity(),
        Detail::Http(_) | Detail::WebSocket(_) => 0,
        Detail::Database(database) => database.held_bytes(),
        Detail::Sdk(sdk) => sdk.held_bytes(),
    };
    let twin = span.twin.as_ref().map_or(0, |twin| size_of_val(&**twin) + twin.name.len());
    let own = [&span.trace_state, &span.server.address];
    let carried = span.detail.carrier().map(Http::texts);
    let strings = own.into_iter().chain(carried.into_iter().flatten());
    let spent = span.spent.as_deref().map_or(0, size_of_val);
    OWN_BYTES + spent + particular + twin + strings.map(|string| string.capacity()).sum::<usize>()
}

#[cfg(test)]
mod tests;
