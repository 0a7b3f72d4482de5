//! Outputs: encoders of one snapshot.
//!
//! In: [`crate::red::Snapshot`], [`crate::stats::Snapshot`], spans. Out: bytes.
//! Refuses to know HTTP and where snapshots come from.
#![forbid(unsafe_code)]

pub mod flame;
pub mod folded;
pub mod otlp;
pub mod pprof;
pub mod prometheus;
mod pyroscope;
pub mod spool;
pub mod summary;
mod table;

use std::sync::Arc;

use crate::objective::view::View;
use crate::red::{self, Registry};
use crate::stats::{self, Process, Stats};

/// Everything an exporter of metrics needs, taken at one moment.
#[derive(Debug, Clone, Default)]
pub struct Metrics {
    /// Series of spans.
    pub red: red::Snapshot,
    /// The agent about itself.
    pub stats: stats::Snapshot,
    /// The agent's process; absent when `/proc` could not be read.
    pub process: Option<Process>,
    /// Objectives; absent when there are none.
    pub objectives: Option<Arc<View>>,
}

impl Metrics {
    /// Takes both snapshots. `process` and `objectives` stay empty: reading `/proc` is for another
    /// thread, and objectives are known to theirs.
    pub fn take(registry: &mut Registry, stats: &mut Stats) -> Self {
        Self { red: registry.snapshot(), stats: stats.snapshot(), process: None, objectives: None }
    }

    /// The same series without what was counted, to be reported as ended once they are gone.
    #[must_use]
    pub fn outline(&self) -> Self {
        Self { red: self.red.outline(), ..self.clone() }
    }

    /// What to remember of these metrics to know later what is new.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        Cursor { red: self.red.number, stats: self.stats.number }
    }
}

/// Snapshot numbers of an earlier [`Metrics`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cursor {
    red: u64,
    stats: u64,
}

/// Says what a scraper has never seen. Without a cursor nothing is new.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Unseen(pub(crate) Option<Cursor>);

impl Unseen {
    /// Whether something counted by the registry was born since the cursor.
    pub(crate) fn in_red(self, born: u64) -> bool {
        self.0.is_some_and(|cursor| born >= cursor.red)
    }

    /// Whether something counted by the stats was born since the cursor.
    pub(crate) fn in_stats(self, born: u64) -> bool {
        self.0.is_some_and(|cursor| born >= cursor.stats)
    }
}
