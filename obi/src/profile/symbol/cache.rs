//! Symbols by place, and texts that are the same.
//!
//! In: places and their symbols. Out: the symbol of a place, if it is still known. Holds as many as fit into so many
//! bytes; the one that was asked for the longest time ago goes first. Refuses to know what a place is.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};

use crate::profile::{Line, Symbol};

/// Where something is: in which space of addresses, and the address there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Key {
    /// A number that no other file, process or kernel has, and they themselves not after their content has changed.
    pub space: u64,
    /// In it.
    pub address: u64,
}

/// No slot.
const NONE: u32 = u32::MAX;
/// A slot, its place in the table, the head of the symbol and of its list.
const SLOT_BYTES: usize = 160;
const LINE_BYTES: usize = size_of::<Line>();

/// Symbols by place.
#[derive(Debug)]
pub struct Cache {
    most_bytes: usize,
    bytes: usize,
    places: HashMap<Key, u32, RandomState>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Asked for last.
    newest: u32,
    /// Asked for the longest time ago.
    oldest: u32,
}

#[derive(Debug)]
struct Slot {
    key: Key,
    symbol: Arc<Symbol>,
    bytes: usize,
    newer: u32,
    older: u32,
}

impl Cache {
    /// Room for so many bytes; texts that symbols share count for each of them.
    #[must_use]
    pub fn new(most_bytes: usize) -> Self {
        Self {
            most_bytes,
            bytes: 0,
            places: HashMap::default(),
            slots: Vec::new(),
            free: Vec::new(),
            newest: NONE,
            oldest: NONE,
        }
    }

    /// The symbol of a place.
    pub fn get(&mut self, key: Key) -> Option<Arc<Symbol>> {
        let at = *self.places.get(&key)?;
        if self.newest != at {
            self.unlink(at);
            self.link(at);
        }
        Some(Arc::clone(&self.slots[at as usize].symbol))
    }

    /// Keeps the symbol of a place that has none yet.
    pub fn insert(&mut self, key: Key, symbol: &Arc<Symbol>) {
        let bytes = bytes(symbol);
        if bytes > self.most_bytes || self.places.contains_key(&key) {
            return;
        }
        while self.bytes + bytes > self.most_bytes {
            self.forget_oldest();
        }
        let slot = Slot { key, symbol: Arc::clone(symbol), bytes, newer: NONE, older: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.slots[at as usize] = slot;
                at
            }
            None => {
                let Ok(at) = u32::try_from(self.slots.len()) else { return };
                self.slots.push(slot);
                at
            }
        };
        self.bytes += bytes;
        self.places.insert(key, at);
        self.link(at);
    }

    /// Memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Places that are known.
    #[must_use]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// None at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    fn forget_oldest(&mut self) {
        let at = self.oldest;
        if at == NONE {
            return;
        }
        self.unlink(at);
        let slot = &mut self.slots[at as usize];
        self.bytes -= slot.bytes;
        slot.symbol = Arc::default();
        self.places.remove(&slot.key);
        self.free.push(at);
    }

    fn link(&mut self, at: u32) {
        let newest = self.newest;
        let slot = &mut self.slots[at as usize];
        (slot.newer, slot.older) = (NONE, newest);
        match newest {
            NONE => self.oldest = at,
            newest => self.slots[newest as usize].newer = at,
        }
        self.newest = at;
    }

    fn unlink(&mut self, at: u32) {
        let (newer, older) = (self.slots[at as usize].newer, self.slots[at as usize].older);
        match newer {
            NONE => self.newest = older,
            newer => self.slots[newer as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            older => self.slots[older as usize].newer = newer,
        }
    }
}

fn bytes(symbol: &Symbol) -> usize {
    let texts = |line: &Line| line.function.len() + line.system_name.len() + line.file.len();
    SLOT_BYTES + symbol.lines.iter().map(|line| LINE_BYTES + texts(line)).sum::<usize>()
}

/// Texts, each once for as long as it is held elsewhere.
#[derive(Debug, Default)]
pub struct Texts {
    known: HashSet<Arc<str>, RandomState>,
    sweep_at: usize,
    empty: Arc<str>,
}

/// Between two sweeps at least so many new texts.
const SWEEP: usize = 4096;

impl Texts {
    /// The one with these characters.
    pub fn get(&mut self, text: &str) -> Arc<str> {
        if text.is_empty() {
            return Arc::clone(&self.empty);
        }
        if let Some(known) = self.known.get(text) {
            return Arc::clone(known);
        }
        if self.known.len() >= self.sweep_at {
            self.known.retain(|text| Arc::strong_count(text) > 1);
            self.sweep_at = self.known.len() * 2 + SWEEP;
        }
        let new: Arc<str> = text.into();
        self.known.insert(Arc::clone(&new));
        new
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap as Model;

    use proptest::prelude::*;

    use super::*;

    fn symbol(name: &str) -> Arc<Symbol> {
        let line = Line { function: name.into(), ..Line::default() };
        Arc::new(Symbol { lines: vec![line], ..Symbol::default() })
    }

    #[test]
    fn the_oldest_goes_first() {
        let one = bytes(&symbol("a"));
        let mut cache = Cache::new(3 * one);
        let key = |address| Key { space: 1, address };
        for address in 0..3 {
            cache.insert(key(address), &symbol("a"));
        }
        assert!(cache.get(key(0)).is_some());
        cache.insert(key(3), &symbol("b"));
        let known: Vec<bool> = (0..4).map(|address| cache.get(key(address)).is_some()).collect();
        assert_eq!(known, [true, false, true, true]);
        assert_eq!(cache.bytes(), 3 * one);
    }

    #[test]
    fn texts_are_shared_and_forgotten() {
        let mut texts = Texts::default();
        let first = texts.get("one");
        assert!(Arc::ptr_eq(&first, &texts.get("one")));
        for at in 0..100_000 {
            texts.get(&at.to_string());
        }
        assert!(texts.known.len() <= 2 * SWEEP && Arc::ptr_eq(&first, &texts.get("one")));
    }

    proptest! {
        #[test]
        fn it_is_bounded_and_never_wrong(
            steps in proptest::collection::vec((0_u64..3, 0_u64..40, "[a-z]{0,40}", any::<bool>()), 1..300),
            most in 200_usize..4000,
        ) {
            let mut cache = Cache::new(most);
            let mut model: Model<Key, Arc<Symbol>> = Model::new();
            for (space, address, name, is_new) in steps {
                let key = Key { space, address };
                let known = cache.get(key);
                if let Some(known) = &known {
                    prop_assert_eq!(known, &model[&key]);
                } else if is_new {
                    let new = symbol(&name);
                    cache.insert(key, &new);
                    model.insert(key, new);
                    prop_assert!(bytes(&model[&key]) > most || cache.get(key).is_some());
                }
                prop_assert!(cache.bytes() <= most);
                prop_assert_eq!(cache.bytes(), cache.places.values().map(|at| cache.slots[*at as usize].bytes).sum::<usize>());
            }
        }
    }
}
