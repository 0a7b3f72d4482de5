//! What became of everything that was sent to us.
//!
//! In: counts from tasks and from the pipeline thread. Out: a [`View`] at any time. Refuses to know metrics' names.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use serde::Serialize;

use super::Kind;
use super::budget::Budget;

/// Who has counted the event of a received span.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Counted {
    /// Its exchange was captured and is counted by that: not once more by this span.
    Captured,
    /// It is work within a process, which is in no count of requests.
    Internal,
    /// No captured exchange is known to be the same event: it is shown and passed on, and counted nowhere.
    Uncaptured,
    /// Its request was not captured and counts by this span.
    Span,
}

/// Why a span was not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rejected {
    /// Its ids have a wrong length or are zero.
    Ids,
    /// It begins never, or ends before it begins.
    Times,
    /// It alone is larger than may be.
    TooLarge,
    /// It is one of ours, on its way in a circle.
    Loop,
}

/// Why a request was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// There is no room at the moment: to be sent again.
    Busy,
    /// Its body, or what it inflates or decodes to, is larger than may be.
    TooLarge,
    /// It cannot be decoded.
    Malformed,
    /// The token is missing or wrong.
    Unauthorized,
    /// Of a kind, a method, a path or an encoding that is not taken.
    Unsupported,
    /// It did not come in time.
    Slow,
    /// There are too many connections.
    Connections,
}

impl Counted {
    /// All of them.
    pub const ALL: [(Self, &str); 4] = [
        (Self::Captured, "captured"),
        (Self::Internal, "internal"),
        (Self::Uncaptured, "uncaptured"),
        (Self::Span, "span"),
    ];
}

impl Rejected {
    /// All of them.
    pub const ALL: [(Self, &str); 4] =
        [(Self::Ids, "ids"), (Self::Times, "times"), (Self::TooLarge, "too_large"), (Self::Loop, "loop")];
}

impl Refused {
    /// All of them.
    pub const ALL: [(Self, &str); 7] = [
        (Self::Busy, "busy"),
        (Self::TooLarge, "too_large"),
        (Self::Malformed, "malformed"),
        (Self::Unauthorized, "unauthorized"),
        (Self::Unsupported, "unsupported"),
        (Self::Slow, "slow"),
        (Self::Connections, "connections"),
    ];
}

/// The counts themselves.
#[derive(Debug)]
pub struct Counts {
    spans: [AtomicU64; Counted::ALL.len()],
    rejected: [AtomicU64; Rejected::ALL.len()],
    refused: [AtomicU64; Refused::ALL.len()],
    requests: [AtomicU64; Kind::ALL.len()],
    passed: [AtomicU64; Kind::ALL.len()],
    /// Memory of everything that was received and is still here.
    pub budget: Budget,
}

impl Counts {
    /// Nothing yet.
    #[must_use]
    pub fn new(budget: Budget) -> Self {
        Self {
            spans: Default::default(),
            rejected: Default::default(),
            refused: Default::default(),
            requests: Default::default(),
            passed: Default::default(),
            budget,
        }
    }

    /// A span was taken.
    pub fn count(&self, counted: Counted) {
        self.spans[counted as usize].fetch_add(1, Relaxed);
    }

    /// Spans were not taken.
    pub fn reject(&self, reason: Rejected, n: u64) {
        self.rejected[reason as usize].fetch_add(n, Relaxed);
    }

    /// A request was not taken.
    pub fn refuse(&self, reason: Refused) {
        self.refused[reason as usize].fetch_add(1, Relaxed);
    }

    /// A request was taken.
    pub fn accept(&self, kind: Kind) {
        self.requests[kind as usize].fetch_add(1, Relaxed);
    }

    /// Points or records were passed on.
    pub fn pass(&self, kind: Kind, n: u64) {
        self.passed[kind as usize].fetch_add(n, Relaxed);
    }

    /// All of it now. `waiting` spans are not counted yet.
    #[must_use]
    pub fn view(&self, waiting: usize, held: usize) -> View {
        let spans = Counted::ALL.map(|(it, name)| (name, self.spans[it as usize].load(Relaxed)));
        let rejected = Rejected::ALL.map(|(it, name)| (name, self.rejected[it as usize].load(Relaxed)));
        let refused = Refused::ALL.map(|(it, name)| (name, self.refused[it as usize].load(Relaxed)));
        let requests = Kind::ALL.map(|kind| (kind.name(), self.requests[kind as usize].load(Relaxed)));
        let passed =
            [Kind::Metrics, Kind::Logs].map(|kind| (kind.name(), self.passed[kind as usize].load(Relaxed)));
        View {
            spans: spans.to_vec(),
            rejected: rejected.to_vec(),
            refused: refused.to_vec(),
            requests: requests.to_vec(),
            passed: passed.to_vec(),
            waiting,
            held,
            bytes: self.budget.used(),
        }
    }
}

/// [`Counts`] at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Spans taken, by who has counted their event.
    #[serde(serialize_with = "map")]
    pub spans: Vec<(&'static str, u64)>,
    /// Spans not taken, by reason.
    #[serde(serialize_with = "map")]
    pub rejected: Vec<(&'static str, u64)>,
    /// Requests not taken, by reason.
    #[serde(serialize_with = "map")]
    pub refused: Vec<(&'static str, u64)>,
    /// Requests taken, by signal.
    #[serde(serialize_with = "map")]
    pub requests: Vec<(&'static str, u64)>,
    /// Points and records passed on, by signal.
    #[serde(serialize_with = "map")]
    pub passed: Vec<(&'static str, u64)>,
    /// Received spans that wait for the exchange that they may belong to.
    pub waiting: usize,
    /// Captured spans that wait to be exported, since an SDK may report the same event.
    pub held: usize,
    /// Memory of what was received and is still here.
    pub bytes: u64,
}

fn map<S: serde::Serializer>(counts: &[(&'static str, u64)], out: S) -> Result<S::Ok, S::Error> {
    out.collect_map(counts.iter().copied())
}
