//! Which span of an SDK is the same event as a captured exchange.
//!
//! In: captured spans with what their requests' heads name, received spans, time. Out: pairs, and what has waited long
//! enough. The key is on the wire: the parent id in a request's `traceparent` is the parent of the SDK's SERVER span at
//! one end, and the id of the SDK's CLIENT span at the other. Nothing is paired by likeness. Refuses to know stores and
//! exporters; time is an argument.
//!
//! A captured span of a process that has an SDK is held back from export (`H` is what is held), since the SDK's span of
//! the same event is to take its place there: it comes some seconds later, or never.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use super::{Received, Role};
use crate::span::{Service, Span, SpanKind};

/// So long a received span waits at first: its exchange may be on its way through the ring, ns.
const FIRST_LOOK: u64 = 200_000_000;
/// Between looks; after the last of them there is no exchange for it.
const LOOKS: u32 = 8;
/// So long a captured span is held for an SDK's, ns: twice the usual delay of their batches.
const HELD: u64 = 10_000_000_000;
/// So long it is known, ns.
const KNOWN: u64 = 60_000_000_000;
/// A process that was not heard of as having an SDK within this time has none, ns.
const YOUNG: u64 = 60_000_000_000;
/// One that has none any more, ns.
const SILENT: u64 = 600_000_000_000;
/// Captured spans that are known at most; those that are held; processes; ids that were taken over.
const CAPTURED: usize = 32_768;
const HELD_SPANS: usize = 8_192;
const PROCESSES: usize = 4_096;
const FORMER: usize = 32_768;

/// What a captured request's head and an SDK's span of the same event have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    trace_id: [u8; 16],
    wire_parent: [u8; 8],
    kind: SpanKind,
}

impl Key {
    /// Of a captured span; `None` when its head names no span.
    #[must_use]
    pub fn of_captured(span: &Span) -> Option<Self> {
        Some(Self { trace_id: span.trace_id, wire_parent: span.wire_parent?, kind: span.kind })
    }

    /// Of a received span; `None` when it is no end of a request, or begins its trace.
    #[must_use]
    pub fn of_received(received: &Received) -> Option<Self> {
        let span = &received.span;
        let wire_parent = match received.role {
            Role::Server => span.parent_span_id?,
            Role::Client => span.span_id,
            Role::Internal | Role::Message => return None,
        };
        Some(Self { trace_id: span.trace_id, wire_parent, kind: span.kind })
    }
}

/// A captured span, as far as pairing needs it.
#[derive(Debug, Clone)]
pub struct Captured {
    /// Its place in the store.
    pub sequence: u64,
    /// Its own id.
    pub span_id: [u8; 8],
    /// Its beginning, ns since the Unix epoch.
    pub start: u64,
    /// Its process.
    pub pid: u32,
    /// What that is called.
    pub service: Arc<Service>,
    /// `obi.exchange.id`.
    pub exchange_id: Option<u64>,
    /// Time until it was read, ns; of servers.
    pub queue_wait: Option<u64>,
}

/// What has been found out.
#[derive(Debug)]
pub enum Found<H> {
    /// A received span is a captured one; whether the captured one has been exported already.
    Pair(Box<(Captured, Received)>, bool),
    /// A received span is no captured one.
    Alone(Box<Received>),
    /// A captured span goes out by itself, below this parent where its former one has another id now.
    Out(Box<H>),
}

/// A captured span in the table.
#[derive(Debug)]
struct Entry<H> {
    captured: Captured,
    held: Option<H>,
}

/// A process that may have an SDK.
#[derive(Debug, Clone, Copy)]
struct Process {
    since: u64,
    paired: Option<u64>,
}

/// The table. Owned by one task.
#[derive(Debug)]
pub struct Joins<H> {
    captured: HashMap<Key, Vec<Entry<H>>>,
    /// When entries are let go, and when they are forgotten.
    holding: VecDeque<(u64, Key, u64)>,
    known: VecDeque<(u64, Key, u64)>,
    /// Held without a key.
    beside: VecDeque<(u64, H)>,
    waiting: VecDeque<(u64, u32, Received)>,
    processes: HashMap<u32, Process>,
    former: HashMap<[u8; 8], [u8; 8]>,
    former_order: VecDeque<[u8; 8]>,
    n_held: usize,
}

impl<H> Default for Joins<H> {
    fn default() -> Self {
        Self {
            captured: HashMap::new(),
            holding: VecDeque::new(),
            known: VecDeque::new(),
            beside: VecDeque::new(),
            waiting: VecDeque::new(),
            processes: HashMap::new(),
            former: HashMap::new(),
            former_order: VecDeque::new(),
            n_held: 0,
        }
    }
}

impl<H> Joins<H> {
    /// Whether a captured span of this process is to be held back: the process is known for its SDK, or not known long.
    pub fn holds(&mut self, pid: u32, now: u64) -> bool {
        if self.n_held >= HELD_SPANS {
            return false;
        }
        let room = self.processes.len() < PROCESSES;
        match self.processes.get(&pid) {
            Some(Process { paired: Some(paired), .. }) => now.saturating_sub(*paired) < SILENT,
            Some(Process { since, .. }) => now.saturating_sub(*since) < YOUNG,
            None if room => {
                self.processes.insert(pid, Process { since: now, paired: None });
                true
            }
            None => false,
        }
    }

    /// Takes a captured span, and what is held of it.
    pub fn captured(&mut self, key: Key, captured: Captured, held: Option<H>, now: u64) {
        let sequence = captured.sequence;
        if held.is_some() {
            self.n_held += 1;
            self.holding.push_back((now + HELD, key, sequence));
        }
        self.known.push_back((now + KNOWN, key, sequence));
        self.captured.entry(key).or_default().push(Entry { captured, held });
    }

    /// Holds a captured span that no SDK's can be known by, but which may be below one that is.
    pub fn hold(&mut self, held: H, now: u64) {
        self.n_held += 1;
        self.beside.push_back((now + HELD, held));
    }

    /// Takes a received span; one that is no end of a request comes back at once.
    pub fn received(&mut self, received: Received, now: u64) -> Option<Received> {
        if Key::of_received(&received).is_none() {
            return Some(received);
        }
        self.waiting.push_back((now + FIRST_LOOK, 1, received));
        None
    }

    /// Takes a received span that has no key: while it waits, its service may show that it is captured.
    pub fn wait(&mut self, received: Received, now: u64) {
        self.waiting.push_back((now + FIRST_LOOK, 1, received));
    }

    /// The id that stands for this one since an SDK's span was found for it.
    #[must_use]
    pub fn present_id(&self, id: [u8; 8]) -> [u8; 8] {
        self.former.get(&id).copied().unwrap_or(id)
    }

    /// Received spans that wait, and captured ones that are held.
    #[must_use]
    pub fn counts(&self) -> (usize, usize) {
        (self.waiting.len(), self.n_held)
    }

    /// Everything whose time has come by `now`.
    pub fn tick(&mut self, now: u64) -> Vec<Found<H>> {
        let mut found = Vec::new();
        let mut again = Vec::new();
        while self.waiting.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((due, look, received)) = self.waiting.pop_front() else { break };
            match self.pair(received, now) {
                Ok(pair) => found.push(pair),
                Err(received) if look >= LOOKS => found.push(Found::Alone(received)),
                Err(received) => again.push((due + FIRST_LOOK, look + 1, *received)),
            }
        }
        // Each waits as long as the others, so the queue stays nearly in order; a look may come late, never early.
        self.waiting.extend(again);
        self.let_go(now, &mut found);
        found
    }

    /// Everything, at the end.
    pub fn finish(&mut self) -> Vec<Found<H>> {
        let mut found = Vec::new();
        for (_, _, received) in std::mem::take(&mut self.waiting) {
            found.push(self.pair(received, u64::MAX).unwrap_or_else(Found::Alone));
        }
        self.let_go(u64::MAX, &mut found);
        found
    }

    fn let_go(&mut self, now: u64, found: &mut Vec<Found<H>>) {
        let is_full = |n: usize, limit: usize| n > limit;
        while self.holding.front().is_some_and(|(due, ..)| *due <= now) {
            let Some((_, key, sequence)) = self.holding.pop_front() else { break };
            let entry = self.captured.get_mut(&key).and_then(|all| find(all, sequence));
            if let Some(held) = entry.and_then(|entry| entry.held.take()) {
                self.n_held -= 1;
                found.push(Found::Out(Box::new(held)));
            }
        }
        while self.beside.front().is_some_and(|(due, _)| *due <= now) {
            let Some((_, held)) = self.beside.pop_front() else { break };
            self.n_held -= 1;
            found.push(Found::Out(Box::new(held)));
        }
        while self.known.front().is_some_and(|(due, ..)| *due <= now) || is_full(self.known.len(), CAPTURED) {
            let Some((_, key, sequence)) = self.known.pop_front() else { break };
            if let Some(entry) = self.remove(&key, sequence)
                && let Some(held) = entry.held
            {
                self.n_held -= 1;
                found.push(Found::Out(Box::new(held)));
            }
        }
    }

    /// The captured span of the same event: the one whose service is called the same, then the nearest in time. A proxy
    /// may pass a `traceparent` on as it came, so that two exchanges have one key.
    fn pair(&mut self, received: Received, now: u64) -> Result<Found<H>, Box<Received>> {
        let Some(key) = Key::of_received(&received) else { return Err(Box::new(received)) };
        let span = &received.span;
        let distance = |entry: &Entry<H>| {
            let is_other = entry.captured.service.name != span.service.name;
            (is_other, entry.captured.start.abs_diff(span.start))
        };
        let candidates = self.captured.get(&key).map_or(&[][..], Vec::as_slice);
        let best = candidates.iter().min_by_key(|entry| distance(entry)).map(|it| it.captured.sequence);
        let Some(entry) = best.and_then(|sequence| self.remove(&key, sequence)) else {
            return Err(Box::new(received));
        };
        let Entry { captured, held } = entry;
        self.n_held -= usize::from(held.is_some());
        if let Some(process) = self.processes.get_mut(&captured.pid) {
            process.paired = Some(now);
        }
        self.rename(captured.span_id, span.span_id);
        Ok(Found::Pair(Box::new((captured, received)), held.is_none()))
    }

    fn rename(&mut self, former: [u8; 8], present: [u8; 8]) {
        if self.former_order.len() >= FORMER
            && let Some(oldest) = self.former_order.pop_front()
        {
            self.former.remove(&oldest);
        }
        self.former.insert(former, present);
        self.former_order.push_back(former);
    }

    fn remove(&mut self, key: &Key, sequence: u64) -> Option<Entry<H>> {
        let entries = self.captured.get_mut(key)?;
        let nth = entries.iter().position(|entry| entry.captured.sequence == sequence)?;
        let entry = entries.swap_remove(nth);
        if entries.is_empty() {
            self.captured.remove(key);
        }
        Some(entry)
    }
}

fn find<H>(entries: &mut [Entry<H>], sequence: u64) -> Option<&mut Entry<H>> {
    entries.iter_mut().find(|entry| entry.captured.sequence == sequence)
}

#[cfg(test)]
mod tests;
