//! Where connections live: found by number, with bounded memory.
//!
//! In: connection numbers. Out: connections by slot. When header tables take more than their share of memory, those of
//! connections that were quiet are forgotten. Refuses to know streams.

use super::connection::Connection;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::ops::{Index, IndexMut};

/// Connections looked at per record when memory is wanted.
const LOOKS: usize = 8;

#[derive(Debug)]
pub(super) struct Connections {
    /// Connections at once.
    limit: usize,
    /// Memory of header tables and unfinished blocks, bytes.
    limit_bytes: usize,
    slots: HashMap<u64, u32, RandomState>,
    entries: Vec<Connection>,
    free: Vec<u32>,
    held_bytes: usize,
    /// Where the look for memory goes on.
    hand: usize,
}

impl Connections {
    pub(super) fn new(limit: usize, limit_bytes: usize) -> Self {
        Self {
            limit,
            limit_bytes,
            slots: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
            hand: 0,
        }
    }

    pub(super) fn find(&self, number: u64) -> Option<u32> {
        self.slots.get(&number).copied()
    }

    /// `None` at the bound, and for number 0, which is none.
    pub(super) fn find_or_insert(&mut self, number: u64, make: impl FnOnce() -> Connection) -> Option<u32> {
        if let Some(slot) = self.find(number) {
            return Some(slot);
        }
        if number == 0 || self.slots.len() >= self.limit {
            return None;
        }
        let connection = make();
        let slot = match self.free.pop() {
            Some(slot) => {
                self[slot] = connection;
                slot
            }
            None => {
                let slot = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(connection);
                slot
            }
        };
        self.slots.insert(number, slot);
        Some(slot)
    }

    /// Its streams must have been released.
    pub(super) fn release(&mut self, slot: u32) {
        let (number, endpoints) = (self[slot].number, self[slot].endpoints);
        self.slots.remove(&number);
        self.held_bytes -= self[slot].capacity();
        self[slot] = Connection::new(0, endpoints);
        self.free.push(slot);
    }

    /// Does something that may change what a connection holds.
    pub(super) fn change<T>(&mut self, slot: u32, change: impl FnOnce(&mut Connection) -> T) -> T {
        let connection = &mut self.entries[slot as usize];
        let before = connection.capacity();
        let result = change(connection);
        self.held_bytes = self.held_bytes + connection.capacity() - before;
        if self.held_bytes > self.limit_bytes {
            self.relieve(slot);
        }
        result
    }

    /// Takes memory from connections that were not used since the last time round, else from this one.
    fn relieve(&mut self, slot: u32) {
        for _ in 0..LOOKS {
            self.hand = (self.hand + 1) % self.entries.len();
            if !std::mem::take(&mut self.entries[self.hand].is_recent) {
                self.shrink(self.hand);
                if self.held_bytes <= self.limit_bytes {
                    return;
                }
            }
        }
        self.shrink(slot as usize);
    }

    fn shrink(&mut self, place: usize) {
        let connection = &mut self.entries[place];
        self.held_bytes -= connection.capacity();
        connection.shrink();
        self.held_bytes += connection.capacity();
    }

    /// Slots of all connections.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Memory of header tables and unfinished blocks, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

impl Index<u32> for Connections {
    type Output = Connection;

    fn index(&self, slot: u32) -> &Connection {
        &self.entries[slot as usize]
    }
}

impl IndexMut<u32> for Connections {
    fn index_mut(&mut self, slot: u32) -> &mut Connection {
        &mut self.entries[slot as usize]
    }
}
