//! Programs that were looked at lately and had no TLS library: of many short-lived processes one is looked at.
//!
//! In: which program, and when. Out: whether it is worth a look. Refuses to know what a look finds.
#![forbid(unsafe_code)]

use std::collections::HashMap;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// After this time it is looked at again.
const STAYS: Duration = Duration::from_secs(60);
/// Programs that are remembered.
const MOST: usize = 4096;

/// By the program's file.
#[derive(Debug)]
pub(super) struct Familiar<K>(HashMap<K, Instant>);

impl<K> Default for Familiar<K> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<K: Eq + Hash> Familiar<K> {
    /// A look at a process of this program has found nothing.
    pub(super) fn note(&mut self, program: K, now: Instant) {
        if self.0.len() >= MOST {
            self.0.retain(|_, noted| now.duration_since(*noted) < STAYS);
        }
        if self.0.len() < MOST {
            self.0.insert(program, now);
        }
    }

    /// A look at a process of this program has found something.
    pub(super) fn forget(&mut self, program: &K) {
        self.0.remove(program);
    }

    /// Whether nothing was found not long ago.
    #[must_use]
    pub(super) fn contains(&self, program: &K, now: Instant) -> bool {
        self.0.get(program).is_some_and(|noted| now.duration_since(*noted) < STAYS)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_found_empty_is_familiar_for_a_while() {
        let (mut familiar, now) = (Familiar::default(), Instant::now());
        assert!(!familiar.contains(&1, now));
        familiar.note(1, now);
        assert!(familiar.contains(&1, now + STAYS / 2) && !familiar.contains(&1, now + STAYS));
        familiar.forget(&1);
        assert!(!familiar.contains(&1, now));
        for program in 0..2 * MOST {
            familiar.note(program, now);
        }
        assert_eq!(familiar.0.len(), MOST);
        familiar.note(usize::MAX, now + STAYS);
        assert_eq!(familiar.0.len(), 1);
    }
}
