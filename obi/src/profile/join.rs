//! Samples and the spans they were taken in.
//!
//! In: finished spans by exchange number, and samples that carry such numbers. Out: links. A sample is linked only when
//! its time lies inside the span: a number that a thread still carried when the exchange had ended links nothing. And
//! of an event loop only when its runtime says for which request its code ran, or when that was the only one: it counts
//! for the route that was read last, but a span shows nothing that may be another's.
//! Refuses to know how exchanges become spans.
//!
//! A sample comes before its span, which is reported at the exchange's end. It waits for it as long as it is held, so
//! that a later caller sees the link; an export waits for [`EXPORT_WAIT`] and then lets it go without.

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::sample::Link;
use super::sample_type::{ROWS, SampleKind};
use super::store::Store;
use crate::span::Service;

/// How long a sample whose exchange goes on is kept back from export, ns. Receivers want samples while they are fresh;
/// a request that takes longer than this is an exception, and its samples show up, though without its span.
pub const EXPORT_WAIT: u64 = 30_000_000_000;

/// A finished span, as far as samples are concerned. Times are `CLOCK_MONOTONIC`.
#[derive(Debug, Clone)]
pub struct Ended {
    /// The kernel's number.
    pub exchange: u64,
    /// First moment.
    pub start: u64,
    /// Last moment.
    pub end: u64,
    /// Of its trace.
    pub trace_id: [u8; 16],
    /// Of the span.
    pub span_id: [u8; 8],
    /// Route, or method of a call.
    pub route: Arc<str>,
    /// Whose.
    pub service: Arc<Service>,
    /// It was received, not sent.
    pub is_server: bool,
    /// Its CPU time is known without samples.
    pub is_booked: bool,
    /// Of a call whose answer its runtime goes on with: the request that it was made for.
    pub continues: Option<u64>,
    /// Its process is an event loop, which had other requests open meanwhile, or it is a call of such a process.
    pub is_shared: bool,
}

/// A span of which there are samples.
#[derive(Debug)]
pub struct Served {
    /// Its ids.
    pub link: Arc<Link>,
    /// First moment.
    pub start: u64,
    /// Last moment.
    pub end: u64,
    /// Whose.
    pub service: Arc<Service>,
    /// It was received, not sent.
    pub is_server: bool,
    /// Samples of it that the store holds; answers under way hold others.
    samples: AtomicU32,
}

impl Served {
    /// What one takes; route and service are shared with spans.
    pub(super) const BYTES: usize = size_of::<Self>() + size_of::<Link>() + 4 * size_of::<usize>();

    /// One sample less; whether it was the last.
    pub(super) fn release(&self) -> bool {
        self.samples.fetch_sub(1, Ordering::Relaxed) == 1
    }

    /// How long the request took, ns.
    #[must_use]
    pub fn duration(&self) -> u64 {
        self.end.saturating_sub(self.start)
    }
}

/// Samples that were taken in a span, linked or not, and the sum of their values, by kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Linked([(u64, u64); ROWS.len()]);

impl Linked {
    /// How many there are of a kind, and their sum.
    #[must_use]
    pub fn of(&self, kind: SampleKind) -> (u64, u64) {
        self.0[kind as usize]
    }

    fn add(&mut self, kind: SampleKind, value: u64) {
        let (samples, sum) = &mut self.0[kind as usize];
        (*samples, *sum) = (*samples + 1, sum.saturating_add(value));
    }
}

/// Numbers of samples that wait for a span, by exchange.
#[derive(Debug, Default)]
pub(super) struct Waiting(HashMap<u64, VecDeque<u64>, RandomState>);

/// An entry with its slack.
const ENTRY: usize = 64;

impl Waiting {
    /// Bytes that it takes.
    pub(super) fn add(&mut self, exchange: u64, number: u64) -> usize {
        let numbers = self.0.entry(exchange).or_default();
        numbers.push_back(number);
        if numbers.len() == 1 { ENTRY } else { 8 }
    }

    /// As [`Self::add`], of a sample that newer ones have come behind.
    fn add_older(&mut self, exchange: u64, number: u64) -> usize {
        let bytes = self.add(exchange, number);
        if let Some(numbers) = self.0.get_mut(&exchange) {
            numbers.make_contiguous().sort_unstable();
        }
        bytes
    }

    /// Bytes that it frees. Samples go in the order in which they came: an exchange may have as many as there is room
    /// for.
    pub(super) fn remove(&mut self, exchange: u64, number: u64) -> usize {
        let Some(numbers) = self.0.get_mut(&exchange) else { return 0 };
        if numbers.front() != Some(&number) {
            return 0;
        }
        numbers.pop_front();
        if !numbers.is_empty() {
            return 8;
        }
        self.0.remove(&exchange);
        ENTRY
    }

    fn take(&mut self, exchange: u64) -> Option<(VecDeque<u64>, usize)> {
        let numbers = self.0.remove(&exchange)?;
        let bytes = ENTRY + 8 * numbers.len().saturating_sub(1);
        Some((numbers, bytes))
    }
}

impl<P: Clone + Eq + Hash> Store<P> {
    /// A span has ended; all samples taken during it are here already. Returns what they come to.
    pub fn ended(&mut self, span: &Ended) -> Linked {
        if span.is_server {
            self.ranks.add(span);
        }
        if let Some(request) = span.continues {
            self.continued.put(span.exchange, request);
        }
        let Some((numbers, bytes)) = self.waiting.take(span.exchange) else { return Linked::default() };
        self.shrink(bytes);
        let link = Link { trace_id: span.trace_id, span_id: span.span_id, route: Arc::clone(&span.route) };
        let served = Arc::new(Served {
            link: Arc::new(link),
            start: span.start,
            end: span.end,
            service: Arc::clone(&span.service),
            is_server: span.is_server,
            samples: AtomicU32::new(0),
        });
        let (mut taken, mut is_linked) = (Linked::default(), false);
        for number in numbers {
            let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            let Some(held) = self.samples.get_mut(index) else { continue };
            held.exchange = 0;
            if let Some(request) = span.continues.filter(|_| held.by_runtime) {
                held.exchange = request;
                let bytes = self.waiting.add_older(request, number);
                self.grow(bytes);
                continue;
            }
            if !(span.start..=span.end).contains(&held.time) {
                self.counts.outside += 1;
                continue;
            }
            taken.add(held.kind, held.value);
            if span.is_shared && !held.by_runtime {
                self.counts.ambiguous += 1;
                continue;
            }
            held.served = Some(Arc::clone(&served));
            served.samples.fetch_add(1, Ordering::Relaxed);
            self.counts.linked += 1;
            is_linked = true;
        }
        if is_linked {
            self.grow(Served::BYTES);
        }
        taken
    }
}
