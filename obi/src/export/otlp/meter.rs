//! What becomes of the items of a destination and a signal: waiting, sent, lost. A reload makes new lanes; accounts
//! stay.
//!
//! In: counts from the lane and from the caller that fills its queue. Out: a [`Lane`] at any time, from any thread.
//! Refuses to know what an item is: a span, a point of a metric, or a profile.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use crate::config::export::Signal;
use crate::export::spool::{Counts, Gone, Held, Spool};
use crate::stats::{Lane, Spooled};

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
    /// The agent ended before they could be sent, or a reload took the destination away.
    Shutdown,
    /// The destination does not know this signal.
    Unsupported,
    /// The spool or its file system had no room: they were the oldest there.
    SpoolFull,
    /// They had been in the spool for longer than they may.
    SpoolExpired,
    /// What was read from the spool is not what was written.
    SpoolCorrupt,
    /// The spool could not be written, for another reason than room.
    SpoolUnwritable,
}

impl Lost {
    /// All reasons.
    pub(super) const ALL: [Self; 11] = [
        Self::QueueFull,
        Self::Rejected,
        Self::Refused,
        Self::RetriesExhausted,
        Self::TooLarge,
        Self::Shutdown,
        Self::Unsupported,
        Self::SpoolFull,
        Self::SpoolExpired,
        Self::SpoolCorrupt,
        Self::SpoolUnwritable,
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
            Self::Unsupported => "unsupported",
            Self::SpoolFull => "spool_full",
            Self::SpoolExpired => "spool_expired",
            Self::SpoolCorrupt => "spool_corrupt",
            Self::SpoolUnwritable => "spool_unwritable",
        }
    }
}

/// Values of the `reason` label of `obi_export_lost_total`.
pub fn lost_reasons() -> impl Iterator<Item = &'static str> {
    Lost::ALL.into_iter().map(Lost::name)
}

impl Lost {
    /// The same in the words of the spool, which counts it.
    fn in_spool(self) -> Option<Gone> {
        match self {
            Self::SpoolFull => Some(Gone::Full),
            Self::SpoolExpired => Some(Gone::Expired),
            Self::SpoolCorrupt => Some(Gone::Corrupt),
            Self::SpoolUnwritable => Some(Gone::Unwritable),
            _ => None,
        }
    }
}

/// Counts of a destination and a signal, over all the lanes it has had since the agent's start.
#[derive(Debug)]
pub(super) struct Account {
    destination: Arc<str>,
    signal: Signal,
    queued_items: AtomicU64,
    queued_bytes: AtomicU64,
    attempt_bytes: AtomicU64,
    sent: AtomicU64,
    retries: AtomicU64,
    lost: [AtomicU64; Lost::ALL.len()],
    /// Its shelves in the spool: one, or several after its URL has changed.
    shelves: Mutex<Vec<Arc<Counts>>>,
}

impl Account {
    fn new(destination: Arc<str>, signal: Signal) -> Self {
        Self {
            destination,
            signal,
            queued_items: AtomicU64::new(0),
            queued_bytes: AtomicU64::new(0),
            attempt_bytes: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            retries: AtomicU64::new(0),
            lost: Default::default(),
            shelves: Mutex::default(),
        }
    }

    /// What is on this shelf is its as well.
    fn keep(&self, counts: &Arc<Counts>) {
        let mut shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        if !shelves.iter().any(|shelf| Arc::ptr_eq(shelf, counts)) {
            shelves.push(Arc::clone(counts));
        }
    }

    fn spooled(&self) -> Option<Held> {
        let shelves = self.shelves.lock().unwrap_or_else(PoisonError::into_inner);
        shelves.iter().map(|shelf| shelf.held()).reduce(Held::plus)
    }

    /// Everything now. What leaves the queue is counted as sent or lost before, so that the sum never falls short.
    pub(super) fn state(&self) -> Lane {
        let spooled = self.spooled();
        let lost = |reason: Lost| {
            let kept = spooled.map_or(0, |held| reason.in_spool().map_or(0, |gone| held.lost[gone as usize]));
            (reason.name(), self.lost[reason as usize].load(Relaxed) + kept)
        };
        Lane {
            destination: Arc::clone(&self.destination),
            signal: self.signal.name(),
            queued_items: self.queued_items.load(Relaxed),
            queued_bytes: self.queued_bytes.load(Relaxed),
            attempt_bytes: self.attempt_bytes.load(Relaxed),
            sent: self.sent.load(Relaxed),
            retries: self.retries.load(Relaxed),
            lost: Lost::ALL.map(lost).to_vec(),
            spooled: spooled.map(|held| Spooled {
                bytes: held.bytes,
                items: held.items,
                oldest: held.oldest,
                written: held.written,
                delivered: held.delivered,
                restored: held.restored,
            }),
        }
    }
}

/// What one configuration leaves to the next. Who is no longer a destination keeps its account: a counter that vanished
/// would hide losses.
#[derive(Debug, Clone)]
pub struct Accounts {
    /// When counting began, ns since the Unix epoch.
    pub(super) start: u64,
    pub(super) all: Vec<Arc<Account>>,
    /// Whether there are logs: only where they are received.
    pub(super) has_logs: bool,
    /// Where what is not taken waits, if it is wanted and can be used.
    pub(super) spool: Option<Arc<Spool>>,
    /// Whether it can be used; `None` where it is not wanted.
    pub(super) is_spool_usable: Option<bool>,
}

impl Accounts {
    /// None yet. Metrics count from `start`, ns since the Unix epoch.
    #[must_use]
    pub fn new(start: u64) -> Self {
        Self { start, all: Vec::new(), has_logs: false, spool: None, is_spool_usable: None }
    }

    /// The same where logs may come from others.
    #[must_use]
    pub fn with_logs(self, has_logs: bool) -> Self {
        Self { has_logs, ..self }
    }

    /// Whether there has never been a destination.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Reports what is in the spool for former destinations: it waits for them until it is too old.
    pub(super) fn tell_of_others(&mut self) {
        for (about, counts) in self.spool.iter().flat_map(|spool| spool.all()).collect::<Vec<_>>() {
            let signal = Signal::ALL.into_iter().find(|signal| signal.name() == about.signal);
            if let Some(signal) = signal {
                self.meter(&about.destination.into(), signal).keep(&counts);
            }
        }
    }

    /// The meter of a new lane, which goes on with the account of those before it.
    pub(super) fn meter(&mut self, destination: &Arc<str>, signal: Signal) -> Meter {
        let same = |account: &&Arc<Account>| account.destination == *destination && account.signal == signal;
        let account = self.all.iter().find(same).map(Arc::clone).unwrap_or_else(|| {
            let account = Arc::new(Account::new(Arc::clone(destination), signal));
            self.all.push(Arc::clone(&account));
            account
        });
        Meter { account, queued_items: AtomicU64::new(0), queued_bytes: AtomicU64::new(0) }
    }
}

/// Where one lane counts: in its account, and beside it what waits in its own queue.
#[derive(Debug)]
pub(super) struct Meter {
    account: Arc<Account>,
    queued_items: AtomicU64,
    queued_bytes: AtomicU64,
}

impl Meter {
    pub(super) fn lose(&self, reason: Lost, n_items: u64) {
        self.account.lost[reason as usize].fetch_add(n_items, Relaxed);
    }

    pub(super) fn send(&self, n_items: u64) {
        self.account.sent.fetch_add(n_items, Relaxed);
    }

    pub(super) fn retry(&self) {
        self.account.retries.fetch_add(1, Relaxed);
    }

    /// Counts the memory of a request under way, beside what is queued, until the guard is dropped.
    pub(super) fn attempt(&self, n_bytes: u64) -> Attempt<'_> {
        self.account.attempt_bytes.fetch_add(n_bytes, Relaxed);
        Attempt { account: &self.account, n_bytes }
    }

    /// Items and bytes that wait or are under way in this lane.
    pub(super) fn queued(&self) -> (u64, u64) {
        (self.queued_items.load(Relaxed), self.queued_bytes.load(Relaxed))
    }

    /// Takes room in the queue.
    pub(super) fn queue(&self, n_items: u64, n_bytes: u64) {
        for (items, bytes) in self.levels() {
            items.fetch_add(n_items, Relaxed);
            bytes.fetch_add(n_bytes, Relaxed);
        }
    }

    /// Gives room back when the items have been counted as sent or lost.
    pub(super) fn release(&self, n_items: u64, n_bytes: u64) {
        for (items, bytes) in self.levels() {
            items.fetch_sub(n_items, Relaxed);
            bytes.fetch_sub(n_bytes, Relaxed);
        }
    }

    /// Counts what still waits as lost: the lane is gone. Returns the items.
    pub(super) fn abandon(&self) -> u64 {
        let (n_items, n_bytes) = self.queued();
        self.lose(Lost::Shutdown, n_items);
        self.release(n_items, n_bytes);
        n_items
    }

    /// Counts what is on this shelf, too.
    pub(super) fn keep(&self, counts: &Arc<Counts>) {
        self.account.keep(counts);
    }

    /// Destination and signal, for the log.
    pub(super) fn name(&self) -> (&str, &'static str) {
        (&self.account.destination, self.account.signal.name())
    }

    fn levels(&self) -> [(&AtomicU64, &AtomicU64); 2] {
        let account = &self.account;
        [(&self.queued_items, &self.queued_bytes), (&account.queued_items, &account.queued_bytes)]
    }
}

/// A request under way, whose memory counts.
#[derive(Debug)]
pub(super) struct Attempt<'a> {
    account: &'a Account,
    n_bytes: u64,
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.account.attempt_bytes.fetch_sub(self.n_bytes, Relaxed);
    }
}
