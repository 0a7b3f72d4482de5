//! Samples that stay beyond their time: those of requests that show why an objective burns.
//!
//! In: which traces are kept, samples that the store gives up. Out: those that belong to one of these traces and find
//! room; what finds none is counted. Stacks are shared with the other samples, and counted there; here each sample
//! takes as much room as if its stack was its own.

use std::hash::Hash;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::store::{Store, StoredSample, stack_bytes, wait_bytes};

/// All of them, by trace.
#[derive(Debug)]
pub(super) struct Kept<P> {
    pub(super) limit: usize,
    traces: HashMap<[u8; 16], Vec<StoredSample<P>>, RandomState>,
    bytes: usize,
    refused: u64,
}

impl<P> Default for Kept<P> {
    fn default() -> Self {
        Self { limit: 0, traces: HashMap::default(), bytes: 0, refused: 0 }
    }
}

impl<P> Kept<P> {
    /// A sample that the store gives up; it comes back if it does not stay.
    pub(super) fn take(&mut self, held: StoredSample<P>) -> Option<StoredSample<P>> {
        if self.traces.is_empty() {
            return Some(held);
        }
        let Some(served) = &held.served else { return Some(held) };
        let Some(samples) = self.traces.get_mut(&served.link.trace_id) else { return Some(held) };
        let size = size(&held);
        if self.bytes + size > self.limit {
            self.refused += 1;
            return Some(held);
        }
        self.bytes += size;
        samples.push(held);
        None
    }

    /// Samples of kept traces that the store has given up.
    pub(super) fn samples(&self) -> impl Iterator<Item = &StoredSample<P>> {
        self.traces.values().flatten()
    }

    /// Bytes that they take, and samples that found no room.
    pub(super) fn usage(&self) -> (usize, u64) {
        (self.bytes, self.refused)
    }

    /// From now on these are kept; samples of others come back.
    fn change(&mut self, traces: &[[u8; 16]]) -> Vec<StoredSample<P>> {
        let wanted: std::collections::BTreeSet<&[u8; 16]> = traces.iter().collect();
        let gone = self.traces.extract_if(|trace_id, _| !wanted.contains(trace_id));
        let gone: Vec<StoredSample<P>> = gone.flat_map(|(_, samples)| samples).collect();
        self.bytes -= gone.iter().map(size).sum::<usize>();
        for trace_id in traces {
            self.traces.entry(*trace_id).or_default();
        }
        gone
    }
}

fn size<P>(held: &StoredSample<P>) -> usize {
    size_of::<StoredSample<P>>() + wait_bytes(held.wait.is_some()) + stack_bytes(&held.stack)
}

impl<P: Clone + Eq + Hash> Store<P> {
    /// The same with so many bytes for samples of kept traces.
    #[must_use]
    pub fn with_room_for_traces(mut self, limit: usize) -> Self {
        self.kept.limit = limit;
        self
    }

    /// Samples of these traces stay when their time has come, while there is room for them; those of all others that
    /// have stayed so far go.
    pub fn keep_traces(&mut self, traces: &[[u8; 16]]) {
        for held in self.kept.change(traces) {
            self.let_go(&held);
        }
    }

    /// Bytes that samples of kept traces take, and how many found no room.
    #[must_use]
    pub fn kept_usage(&self) -> (usize, u64) {
        self.kept.usage()
    }
}
