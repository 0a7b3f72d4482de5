//! Exchanges by their numbers, side by side in memory.
//!
//! In: what is known of an exchange. Out: the same, by its number. What is known of one is large: in a hash table that
//! has room to grow half of that memory would stand empty, and who comes after whom would be chance, so that each look
//! would wait for memory. Refuses to know when one is forgotten.

use super::table::Known;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use slab::Slab;

#[derive(Debug, Default)]
pub(super) struct Numbered {
    places: HashMap<u64, u32, RandomState>,
    held: Slab<Known>,
}

impl Numbered {
    pub(super) fn get(&self, number: u64) -> Option<&Known> {
        self.held.get(*self.places.get(&number)? as usize)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Known> {
        self.held.get_mut(*self.places.get(&number)? as usize)
    }

    /// Takes one in, in the place of an earlier one of its number. Not when there are four thousand million.
    pub(super) fn insert(&mut self, known: Known) {
        self.remove(known.number);
        let Ok(place) = u32::try_from(self.held.vacant_key()) else { return };
        self.places.insert(known.number, place);
        self.held.insert(known);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Known> {
        let place = self.places.remove(&number)?;
        self.held.try_remove(place as usize)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Known> {
        self.held.iter().map(|(_, known)| known)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}
