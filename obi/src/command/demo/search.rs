//! Search in the catalog, and the demo's incident: some time after the start every search becomes slow.
//!
//! In: a word. Out: products whose descriptions have it. The index is good for a while; then it is to be refined, and
//! the mistake is that nothing takes note of it: it is refined again at every search. Refuses to know HTTP.

use std::time::{Duration, Instant};

use super::inventory::PRODUCTS;
use super::similar::{description, edit_distance};

/// The index is stale from then on: soon, so that the page has something to find when it is opened for the first time,
/// and not before CPUs are sampled.
const FRESH: Duration = Duration::from_secs(6);
/// How long refining it takes, on every machine.
const REFINING: Duration = Duration::from_millis(150);
/// Products that are shown.
const SHOWN: usize = 5;

/// Descriptions of all products.
#[derive(Debug, Clone)]
pub(super) struct Index {
    descriptions: Vec<(u32, String)>,
    refined: Instant,
}

impl Index {
    /// An index that was refined just now.
    pub(super) fn new() -> Self {
        Self {
            descriptions: (1..=PRODUCTS).map(|id| (id, description(id))).collect(),
            refined: Instant::now(),
        }
    }

    /// Numbers of products whose descriptions have `word`.
    pub(super) fn search(&self, word: &str) -> Vec<u32> {
        if self.refined.elapsed() > FRESH {
            self.refine();
        }
        let found = self.descriptions.iter().filter(|(_, text)| text.contains(word));
        found.map(|(id, _)| *id).take(SHOWN).collect()
    }

    /// Finds out which descriptions are nearly the same. A function of its own in flame graphs.
    #[inline(never)]
    fn refine(&self) {
        let begun = Instant::now();
        let mut nearest = u64::MAX;
        let pairs =
            self.descriptions.iter().flat_map(|one| self.descriptions.iter().map(move |other| (one, other)));
        for ((_, one), (_, other)) in pairs.cycle() {
            nearest = nearest.min(edit_distance(one.as_bytes(), other.as_bytes()) as u64);
            if begun.elapsed() >= REFINING {
                break;
            }
        }
        std::hint::black_box(nearest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stale_index_stays_stale() {
        let mut index = Index::new();
        assert_eq!(index.search("copper").len(), SHOWN);
        assert!(index.search("marzipan").is_empty());
        index.refined = Instant::now().checked_sub(FRESH + REFINING).expect("the machine runs for longer");
        for _ in 0..2 {
            let begun = Instant::now();
            assert_eq!(index.search("copper").len(), SHOWN);
            assert!(begun.elapsed() >= REFINING, "{:?}", begun.elapsed());
        }
    }
}
