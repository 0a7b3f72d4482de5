//! Where streams live: found by connection and identifier, linked by connection, with bounded memory.
//!
//! In: slots of connections and stream identifiers. Out: streams by slot. Entries and their texts are used again, so
//! that nothing is allocated once the table has grown to its load. Refuses to know what ends a stream.

use super::connection::Connection;
use super::stream::{self, Stream};
use crate::protocol::{Limits, Sink};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use std::ops::{Index, IndexMut};

#[derive(Debug)]
pub(super) struct Streams {
    limits: Limits,
    slots: HashMap<u64, u32, RandomState>,
    entries: Vec<Stream>,
    free: Vec<u32>,
    /// Capacity of all texts, those of free entries included.
    held_bytes: usize,
    /// Exchange numbers that others know and will not hear of again.
    forgotten: Vec<u64>,
}

impl Streams {
    pub(super) fn new(limits: Limits) -> Self {
        Self {
            limits,
            slots: HashMap::default(),
            entries: Vec::new(),
            free: Vec::new(),
            held_bytes: 0,
            forgotten: Vec::new(),
        }
    }

    pub(super) fn find(&self, connection: u32, id: u32) -> Option<u32> {
        self.slots.get(&key(connection, id)).copied()
    }

    /// Opens a stream of the connection in slot `at`. `None` at the bound.
    pub(super) fn insert(&mut self, at: u32, connection: &mut Connection, id: u32) -> Option<u32> {
        if self.slots.len() >= self.limits.open || self.held_bytes > self.limits.held_bytes {
            return None;
        }
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                let slot = u32::try_from(self.entries.len()).ok()?;
                self.entries.push(Stream::default());
                slot
            }
        };
        self.slots.insert(key(at, id), slot);
        self[slot].reset(at, id);
        self[slot].next = connection.first.replace(slot);
        if let Some(next) = self[slot].next {
            self[next].previous = Some(slot);
        }
        Some(slot)
    }

    pub(super) fn release(&mut self, slot: u32, connection: &mut Connection) {
        let Stream { id, connection: at, previous, next, is_reported, .. } = self[slot];
        if is_reported {
            self.forgotten.push(stream::number(connection.number, id));
        }
        match previous {
            Some(previous) => self[previous].next = next,
            None => connection.first = next,
        }
        if let Some(next) = next {
            self[next].previous = previous;
        }
        self.slots.remove(&key(at, id));
        self[slot].id = 0;
        if self.held_bytes > self.limits.held_bytes {
            self.held_bytes -= self[slot].capacity();
            self[slot] = Stream::default();
        }
        self.free.push(slot);
    }

    /// Reports the exchanges that had begun and will not be heard of again.
    pub(super) fn tell_forgotten(&mut self, sink: &mut impl Sink) {
        self.forgotten.drain(..).for_each(|number| sink.forgotten(number));
    }

    /// Does something that may change what a stream holds.
    pub(super) fn change<T>(&mut self, slot: u32, change: impl FnOnce(&mut Stream) -> T) -> T {
        let stream = &mut self.entries[slot as usize];
        let before = stream.capacity();
        let result = change(stream);
        self.held_bytes = self.held_bytes + stream.capacity() - before;
        result
    }

    /// Slots of all streams, free ones included.
    pub(super) fn slots(&self) -> impl Iterator<Item = u32> + use<> {
        0..u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }

    /// Streams open now.
    pub(super) fn open(&self) -> usize {
        self.slots.len()
    }

    /// Memory of texts, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }
}

fn key(connection: u32, id: u32) -> u64 {
    u64::from(connection) << 32 | u64::from(id)
}

impl Index<u32> for Streams {
    type Output = Stream;

    fn index(&self, slot: u32) -> &Stream {
        &self.entries[slot as usize]
    }
}

impl IndexMut<u32> for Streams {
    fn index_mut(&mut self, slot: u32) -> &mut Stream {
        &mut self.entries[slot as usize]
    }
}
