//! Exchanges by their numbers and by what they are on the wire, side by side in memory.
//!
//! In: what is known of an exchange. Out: the same, by its number, its position here, or as the other end of another
//! one. Refuses to know when one is forgotten.
//!
//! So many are kept that the oldest has left the processor's caches when it is let go. Both indices hold positions
//! only: they are small enough to stay in the caches, and an exchange leaves them by its position, without a look at
//! another.

use super::table::Known;
use crate::protocol::{Side, Wire};
use foldhash::fast::RandomState;
use hashbrown::HashTable;
use slab::Slab;
use std::hash::BuildHasher as _;

#[derive(Debug, Default)]
pub(super) struct Numbered {
    hasher: RandomState,
    /// Positions in `held`.
    by_number: HashTable<u32>,
    /// Of each wire and side the exchange that came last.
    by_wire: HashTable<u32>,
    held: Slab<Known>,
}

impl Numbered {
    pub(super) fn get(&self, number: u64) -> Option<&Known> {
        self.at(self.position(number)?)
    }

    pub(super) fn get_mut(&mut self, number: u64) -> Option<&mut Known> {
        let position = self.position(number)?;
        self.at_mut(position)
    }

    /// The exchange that has this position now.
    pub(super) fn at(&self, position: u32) -> Option<&Known> {
        self.held.get(position as usize)
    }

    pub(super) fn at_mut(&mut self, position: u32) -> Option<&mut Known> {
        self.held.get_mut(position as usize)
    }

    pub(super) fn position(&self, number: u64) -> Option<u32> {
        let is_it = |at: &u32| self.at(*at).is_some_and(|known| known.number == number);
        self.by_number.find(self.hasher.hash_one(number), is_it).copied()
    }

    pub(super) fn on_wire(&self, wire: Wire, side: Side) -> Option<&Known> {
        let is_it = |at: &u32| self.at(*at).is_some_and(|known| is_on(known, wire, side));
        self.at(*self.by_wire.find(hash_of(&self.hasher, wire, side), is_it)?)
    }

    /// Takes one in whose number is free. Not when there are four thousand million.
    pub(super) fn insert(&mut self, known: Known) {
        let Ok(position) = u32::try_from(self.held.vacant_key()) else { return };
        self.held.insert(known);
        let Self { hasher, by_number, by_wire, held } = self;
        let hash_at = |at: &u32| held.get(*at as usize).map_or(0, |known| hasher.hash_one(known.number));
        by_number.insert_unique(hasher.hash_one(known.number), position, hash_at);
        let Some(wire) = known.cause.wire else { return };
        let is_it = |at: &u32| held.get(*at as usize).is_some_and(|it| is_on(it, wire, known.side));
        let hash_at = |at: &u32| {
            let known = held.get(*at as usize);
            known.map_or(0, |it| it.cause.wire.map_or(0, |wire| hash_of(hasher, wire, it.side)))
        };
        let entry = by_wire.entry(hash_of(hasher, wire, known.side), is_it, hash_at);
        entry.insert(position);
    }

    pub(super) fn remove(&mut self, number: u64) -> Option<Known> {
        self.remove_at(self.position(number)?)
    }

    pub(super) fn remove_at(&mut self, position: u32) -> Option<Known> {
        let known = self.held.try_remove(position as usize)?;
        let is_it = |at: &u32| *at == position;
        if let Ok(found) = self.by_number.find_entry(self.hasher.hash_one(known.number), is_it) {
            found.remove();
        }
        if let Some(wire) = known.cause.wire
            && let Ok(found) = self.by_wire.find_entry(hash_of(&self.hasher, wire, known.side), is_it)
        {
            found.remove();
        }
        Some(known)
    }

    pub(super) fn values(&self) -> impl Iterator<Item = &Known> {
        self.held.iter().map(|(_, known)| known)
    }

    pub(super) fn len(&self) -> usize {
        self.held.len()
    }
}

fn is_on(known: &Known, wire: Wire, side: Side) -> bool {
    known.side == side && known.cause.wire == Some(wire)
}

fn hash_of(hasher: &RandomState, wire: Wire, side: Side) -> u64 {
    hasher.hash_one((wire, side))
}
