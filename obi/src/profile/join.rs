//! Samples and the spans they were taken in.
//!
//! In: finished spans by exchange number, and samples that carry such numbers. Out: links. A sample is linked only when
//! its time lies inside the span: a number that a thread still carried when the exchange had ended links nothing.
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

/// Samples that were taken in a span, and the sum of their values, by kind.
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

    fn is_empty(&self) -> bool {
        self.0.iter().all(|(samples, _)| *samples == 0)
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
        let mut linked = Linked::default();
        for number in numbers {
            let index = usize::try_from(number - self.first).unwrap_or(usize::MAX);
            let Some(held) = self.samples.get_mut(index) else { continue };
            held.exchange = 0;
            if (span.start..=span.end).contains(&held.time) {
                held.served = Some(Arc::clone(&served));
                served.samples.fetch_add(1, Ordering::Relaxed);
                linked.add(held.kind, held.value);
                self.counts.linked += 1;
            } else {
                self.counts.outside += 1;
            }
        }
        if !linked.is_empty() {
            self.grow(Served::BYTES);
        }
        linked
    }
}
