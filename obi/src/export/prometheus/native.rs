//! Native histograms as Prometheus's formats have them: spans of neighbouring buckets, a few exemplars.
//!
//! In: exponential buckets. Out: their spans one after the other. Refuses to know how bytes look.

use crate::red::{Exemplar, Native};

/// Exemplars of one native histogram, those of the slowest buckets.
const NATIVE_EXEMPLARS: usize = 10;

/// Empty buckets in a row that are written rather than skipped: a new span costs about as much.
const WRITTEN_GAP: usize = 2;

/// Calls `visit` with each span: how far it is behind the one before (of the first: its index), and its counts. Nothing
/// comes for a histogram without buckets.
pub(super) fn spans(native: &Native, mut visit: impl FnMut(i32, &[u64])) {
    let mut offset = native.first_index();
    let mut rest = native.counts();
    while !rest.is_empty() {
        let length = span_length(rest);
        visit(offset, &rest[..length]);
        let gap = rest[length..].iter().take_while(|count| **count == 0).count();
        offset = i32::try_from(gap).unwrap_or(0);
        rest = &rest[length + gap..];
    }
}

/// Those of the slowest buckets.
pub(super) fn exemplars(all: &[(u8, Exemplar)]) -> Vec<&Exemplar> {
    let slowest = all.len().saturating_sub(NATIVE_EXEMPLARS);
    all[slowest..].iter().map(|(_, exemplar)| exemplar).collect()
}

/// Buckets from the first on, up to a gap that is worth skipping. The first and the last of `counts` are not empty.
fn span_length(counts: &[u64]) -> usize {
    let mut empty = 0;
    for (place, count) in counts.iter().enumerate() {
        empty = if *count == 0 { empty + 1 } else { 0 };
        if empty > WRITTEN_GAP {
            return place + 1 - empty;
        }
    }
    counts.len()
}
