//! What an earlier run has left becomes part of this one.
//!
//! In: chunks, coverage, alerts. Out: an engine that goes on where the other one stopped, with counters at zero; the
//! time between is a gap. What cannot be read is skipped and said.

use std::collections::HashMap;

use slo::ledger::Series;
use slo::{Page, PageKey, Time};

use super::Evaluator;
use crate::objective::alert::Lifecycle;
use crate::objective::state::{Batch, Key, Left, SavedAlerts};

impl Evaluator {
    /// Takes over everything, before the first event.
    pub(in crate::objective) fn restore(&mut self, left: Left) {
        let SavedAlerts { alerts, arms } = left.alerts;
        self.restore_counts(&left.chunks, &left.coverage);
        // Arms that are no more have nothing that could fire: the life cycle resolves their alerts by itself.
        drop(self.engine.restore_arms(arms.into_iter().map(Into::into).collect()));
        self.lifecycle = Lifecycle::restore(alerts);
    }

    /// Takes over counts when events have been counted already. Alerts go on as they have begun here.
    pub(super) fn restore_late(&mut self, left: Left) {
        self.restore_counts(&left.chunks, &left.coverage);
        if !left.chunks.is_empty() {
            tracing::info!("counts of an earlier run are read");
        }
    }

    fn restore_counts(&mut self, chunks: &[(Key, Vec<u8>)], coverage: &[(i64, i64)]) {
        let mut by_objective: HashMap<u64, Vec<&(Key, Vec<u8>)>> = HashMap::new();
        for chunk in chunks {
            by_objective.entry(chunk.0.0).or_default().push(chunk);
        }
        let mut unreadable = 0;
        for (objective, tracked) in self.tracked.iter().enumerate() {
            let Some(chunks) = by_objective.remove(&tracked.identity) else { continue };
            // Those of one objective at a time: a page takes many times what it takes on disk.
            let pages: Vec<Page> = chunks.iter().filter_map(|(key, bytes)| page(*key, bytes)).collect();
            unreadable += chunks.len() - pages.len();
            self.engine.restore(objective, &pages);
        }
        if unreadable > 0 {
            tracing::warn!(unreadable, "stored counts skipped");
        }
        let interval = |(begin, end): &(i64, i64)| (Time::from_nanos(*begin), Time::from_nanos(*end));
        self.engine.restore_coverage(coverage.iter().map(interval));
    }
}

/// Adds the counts of an earlier run to those of the chunks that will take their place.
pub(in crate::objective) fn add_up(left: &Left, batch: &mut Batch) {
    let stored: HashMap<Key, &Vec<u8>> = left.chunks.iter().map(|(key, bytes)| (*key, bytes)).collect();
    for (key, bytes) in &mut batch.chunks {
        let both = stored.get(key).and_then(|stored| Some((page(*key, stored)?, page(*key, bytes)?)));
        let Some((earlier, mut sum)) = both else { continue };
        for ((good, bad), (earlier_good, earlier_bad)) in sum.slots.iter_mut().zip(earlier.slots) {
            *good = good.saturating_add(earlier_good);
            *bad = bad.saturating_add(earlier_bad);
        }
        *bytes = sum.encode();
    }
}

fn page((_, part, series, index): Key, bytes: &[u8]) -> Option<Page> {
    Page::decode(PageKey { part, series: Series::from_number(series)?, index }, bytes)
}
