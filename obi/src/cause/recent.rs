//! A set and a map that forget: two generations, of which the older one goes when the younger one is full.
//!
//! In: keys. Out: what is known of them, as long as they were touched among the last so many. Refuses to know time.

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::hash::Hash;

/// Keeps at least the `room` keys touched last, at most twice as many.
#[derive(Debug)]
pub(super) struct Recent<K, V> {
    room: usize,
    young: HashMap<K, V, RandomState>,
    old: HashMap<K, V, RandomState>,
}

impl<K: Eq + Hash + Copy, V> Recent<K, V> {
    pub(super) fn new(room: usize) -> Self {
        Self { room, young: HashMap::default(), old: HashMap::default() }
    }

    /// The value, made young again.
    pub(super) fn get(&mut self, key: K) -> Option<&mut V> {
        if !self.young.contains_key(&key) {
            let value = self.old.remove(&key)?;
            self.put(key, value);
        }
        self.young.get_mut(&key)
    }

    pub(super) fn put(&mut self, key: K, value: V) {
        if self.young.len() >= self.room && !self.young.contains_key(&key) {
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(super) fn take(&mut self, key: K) -> Option<V> {
        self.young.remove(&key).or_else(|| self.old.remove(&key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_touched_last_stays() {
        let mut recent = Recent::new(2);
        for (key, value) in [(1, 'a'), (2, 'b'), (3, 'c')] {
            recent.put(key, value);
        }
        assert_eq!(recent.get(1), Some(&mut 'a'));
        recent.put(4, 'd');
        let known = [1, 2, 3, 4].map(|key| recent.get(key).copied());
        assert_eq!(known, [Some('a'), None, Some('c'), Some('d')]);
        assert_eq!((recent.take(4), recent.take(4)), (Some('d'), None));
    }

    #[test]
    fn it_never_holds_more_than_twice_its_room() {
        let mut recent = Recent::new(10);
        for key in 0..1_000 {
            recent.put(key, ());
            let _ = recent.get(key / 2);
            assert!(recent.young.len() <= 10 && recent.old.len() <= 10);
        }
    }
}
