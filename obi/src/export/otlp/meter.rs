//! What becomes of the items of one lane (a destination and a signal): waiting, sent, lost.
//!
//! In: counts from the lane and from whoever fills its queue. Out: a [`Lane`] at any time, from any thread.
//! Refuses to know what an item is: a span, or a point of a metric.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::config::export::Signal;
use crate::stats::Lane;

/// Why items did not arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Lost {
    /// The queue was full.
    QueueFull,
    /// The destination took the request and rejected them (partial success).
    Rejected,
    /// The destination refused the request for good.
    Refused,
    /// It was tried again for as long as `retry_for` says.
    RetriesExhausted,
    /// One item alone was larger than a request may be.
    TooLarge,
    /// The agent ended before they could be sent.
    Shutdown,
}

impl Lost {
    /// All reasons.
    pub(super) const ALL: [Self; 6] = [
        Self::QueueFull,
        Self::Rejected,
        Self::Refused,
        Self::RetriesExhausted,
        Self::TooLarge,
        Self::Shutdown,
    ];

    /// The value of the `reason` label.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Rejected => "rejected",
            Self::Refused => "refused",
            Self::RetriesExhausted => "retries_exhausted",
            Self::TooLarge => "too_large",
            Self::Shutdown => "shutdown",
        }
    }
}

/// Counts of one lane.
#[derive(Debug)]
pub(super) struct Meter {
    destination: Arc<str>,
    signal: Signal,
    pub(super) queued_items: AtomicU64,
    pub(super) queued_bytes: AtomicU64,
    sent: AtomicU64,
    retries: AtomicU64,
    lost: [AtomicU64; Lost::ALL.len()],
}

impl Meter {
    pub(super) fn new(destination: Arc<str>, signal: Signal) -> Self {
        Self {
            destination,
            signal,
            queued_items: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            lost: Default::default(),
        }
    }

    pub(super) fn lose(&self, reason: Lost, n_items: u64) {
        self.lost[reason as usize].fetch_add(n_items, Relaxed);
    }

    pub(super) fn send(&self, n_items: u64) {
        self.sent.fetch_add(n_items, Relaxed);
    }

    pub(super) fn retry(&self) {
        self.retries.fetch_add(1, Relaxed);
    }

    /// Everything now. What leaves the queue is counted as sent or lost before, so that the sum never falls short.
    pub(super) fn state(&self) -> Lane {
        Lane {
            destination: Arc::clone(&self.destination),
            signal: self.signal.name(),
            queued_items: self.queued_items.load(Relaxed),
            queued_bytes: self.queued_bytes.load(Relaxed),
            sent: self.sent.load(Relaxed),
            retries: self.retries.load(Relaxed),
            lost: Lost::ALL.map(|reason| (reason.name(), self.lost[reason as usize].load(Relaxed))).to_vec(),
        }
    }
}
