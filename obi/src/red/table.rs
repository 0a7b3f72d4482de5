//! Series found by a borrowed key, and forgotten when they are idle.
//!
//! In: keys, hashes of a foldhash state. Out: [`Series`] by place. Refuses to know what is counted and how many fit.

use std::hash::{BuildHasher, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashTable;

/// What was counted under one set of labels.
#[derive(Debug)]
pub struct Series<L, C> {
    /// What it counts.
    pub labels: Arc<L>,
    /// Number of the last snapshot taken before it was born.
    pub born: u64,
    /// When it began to count: the end of its first span, nanoseconds since the Unix epoch. A series that expired and
    /// comes back begins anew.
    pub created: u64,
    /// When it was last counted in, by the registry's clock.
    pub(super) touched: u64,
    /// What was counted. Shared with snapshots: copied by the first span after one.
    pub counts: Arc<C>,
}

impl<L, C> Series<L, C> {
    /// The same series with other counts.
    pub(super) fn with(&self, counts: Arc<C>) -> Self {
        Self { counts, ..self.clone() }
    }
}

impl<L, C> Clone for Series<L, C> {
    fn clone(&self) -> Self {
        let (labels, counts) = (Arc::clone(&self.labels), Arc::clone(&self.counts));
        Self { labels, counts, born: self.born, created: self.created, touched: self.touched }
    }
}

/// Labels that can be found by a key that borrows from somewhere else.
pub(super) trait LabelSet {
    type Key<'a>: Copy + Eq + Hash
    where
        Self: 'a;

    fn key(&self) -> Self::Key<'_>;
    fn is(&self, key: Self::Key<'_>) -> bool;
}

/// Whether two texts are equal. Most that are compared are the same one: constants, and routes that their table owns.
#[inline]
pub(super) fn is_same(one: &str, other: &str) -> bool {
    std::ptr::eq(one, other) || one == other
}

/// Series of one kind.
#[derive(Debug)]
pub(super) struct Table<L, C> {
    hasher: RandomState,
    /// Places in `series`.
    places: HashTable<usize>,
    series: Vec<Series<L, C>>,
}

impl<L: LabelSet, C: Clone + Default> Table<L, C> {
    pub(super) fn new() -> Self {
        Self { hasher: RandomState::default(), places: HashTable::new(), series: Vec::new() }
    }

    pub(super) fn series(&self) -> &[Series<L, C>] {
        &self.series
    }

    /// The place of a key, and its hash for [`Self::insert`].
    #[inline]
    pub(super) fn find(&self, key: L::Key<'_>) -> (u64, Option<usize>) {
        let hash = self.hasher.hash_one(key);
        (hash, self.places.find(hash, |place| self.series[*place].labels.is(key)).copied())
    }

    /// A new series, not touched yet. `hash` is that of its key.
    pub(super) fn insert(&mut self, hash: u64, labels: L, born: u64, created: u64) -> usize {
        let place = self.series.len();
        let labels = Arc::new(labels);
        self.series.push(Series { labels, born, created, touched: 0, counts: Arc::default() });
        let (series, hasher) = (&self.series, &self.hasher);
        self.places.insert_unique(hash, place, |place| hasher.hash_one(series[*place].labels.key()));
        place
    }

    /// The counts at a place, which is touched at `time`.
    #[inline]
    pub(super) fn touch(&mut self, place: usize, time: u64) -> &mut C {
        let series = &mut self.series[place];
        series.touched = time;
        Arc::make_mut(&mut series.counts)
    }

    /// Touches every series.
    pub(super) fn touch_all(&mut self, time: u64) {
        self.series.iter_mut().for_each(|series| series.touched = time);
    }

    /// Drops all series that `keep` does not want.
    pub(super) fn retain(&mut self, mut keep: impl FnMut(&Series<L, C>) -> bool) {
        let before = self.series.len();
        self.series.retain(|series| keep(series));
        if self.series.len() == before {
            return;
        }
        self.series.shrink_to(before / 2);
        self.places.clear();
        let (series, hasher) = (&self.series, &self.hasher);
        let hash_at = |place: usize| hasher.hash_one(series[place].labels.key());
        for place in 0..series.len() {
            self.places.insert_unique(hash_at(place), place, |place| hash_at(*place));
        }
    }
}
