//! The dynamic table of one direction (RFC 7541 §2.3.2), as far as it was seen.
//!
//! In: insertions and size updates. Out: entries by index. An index counts from the newest insertion, so the newest
//! entries are right however little is known of the older ones: what lies beyond the insertions seen is unknown, and
//! that is all it takes to join a connection in the middle or to go on after a gap ([`Table::forget`]).
//! Entries are dropped once they are surely evicted, by sizes that are too small where a name is unknown: what is kept
//! is never less than what the peer keeps, but for the bounds below. Refuses to know header blocks.

use super::Name;
use std::collections::VecDeque;

/// Bytes that RFC 7541 §4.1 adds to the size of each entry.
const ENTRY_OVERHEAD: u32 = 32;
/// Size of a table until it is announced (RFC 9113 §6.5.2).
const DEFAULT_BYTES: u32 = 4096;
/// No larger table is followed: older entries of it are unknown.
pub(super) const MAX_TABLE_BYTES: u32 = 64 * 1024;
/// Values kept per table, bytes; beyond it new ones are unknown.
pub(super) const MAX_VALUE_BYTES: usize = 16 * 1024;
/// `Entry::kept` of a value for which there was no room.
const NOT_KEPT: u16 = u16::MAX;

#[derive(Debug, Clone, Copy)]
struct Entry {
    /// Where its value is, counted from the table's first byte ever.
    start: u32,
    /// Bytes of its name and value as sent, without the name where that is unknown.
    length: u16,
    name_length: u16,
    /// Bytes of its value that are kept.
    kept: u16,
    name: Name,
}

impl Entry {
    /// Size by RFC 7541 §4.1.
    fn size(&self) -> u32 {
        u32::from(self.length) + ENTRY_OVERHEAD
    }
}

/// An entry that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Found<'a> {
    pub(super) name: Name,
    pub(super) name_length: u16,
    /// `None` when it is not kept, though the name's values are.
    pub(super) value: Option<&'a [u8]>,
}

#[derive(Debug)]
pub(super) struct Table {
    /// Newest first.
    entries: VecDeque<Entry>,
    /// Kept values, oldest first; the first `dead` bytes belong to no entry.
    values: Vec<u8>,
    dead: usize,
    /// Where `values` begins, as entries count.
    base: u32,
    /// Sum of the entries' sizes.
    size: u32,
    max_size: u32,
    /// Entries dropped since the table was last empty.
    n_dropped: u32,
}

impl Default for Table {
    fn default() -> Self {
        Self {
            entries: VecDeque::new(),
            values: Vec::new(),
            dead: 0,
            base: 0,
            size: 0,
            max_size: DEFAULT_BYTES,
            n_dropped: 0,
        }
    }
}

impl Table {
    /// The entry of a dynamic index, 1 for the newest; `None` when it is not known.
    pub(super) fn get(&mut self, index: u32) -> Option<Found<'_>> {
        let place = index.checked_sub(1)? as usize;
        if place >= self.entries.len() {
            // In use and dropped: the table is larger than we thought. An announcement may have passed unseen.
            if place - self.entries.len() < self.n_dropped as usize {
                self.max_size = (self.max_size * 2).min(MAX_TABLE_BYTES);
            }
            return None;
        }
        let Entry { start, kept, name, name_length, .. } = self.entries[place];
        let start = start.wrapping_sub(self.base) as usize;
        let value = (kept != NOT_KEPT).then(|| &self.values[start..start + usize::from(kept)]);
        Some(Found { name, name_length, value })
    }

    /// A new entry. `value_length` is that of the value as sent, `write` writes what is to be kept of it.
    pub(super) fn insert(
        &mut self,
        name: Name,
        name_length: usize,
        value_length: usize,
        write: impl FnOnce(&mut Vec<u8>),
    ) {
        let length = u16::try_from(name_length.saturating_add(value_length));
        let (Ok(length), Ok(name_length)) = (length, u16::try_from(name_length)) else {
            return self.evict_to(0);
        };
        let size = u32::from(length) + ENTRY_OVERHEAD;
        if size > self.max_size {
            return self.evict_to(0);
        }
        self.evict_to(self.max_size - size);
        if name.is_kept() {
            self.make_room(value_length);
        }
        let before = self.values.len();
        write(&mut self.values);
        let written = self.values.len() - before;
        let fits = self.values.len() - self.dead <= MAX_VALUE_BYTES && written < usize::from(NOT_KEPT);
        if !fits {
            self.values.truncate(before);
        }
        let kept = u16::try_from(written).ok().filter(|_| fits).unwrap_or(NOT_KEPT);
        let start = self.base.wrapping_add(before as u32);
        self.entries.push_front(Entry { start, length, name_length, kept, name });
        self.size += size;
    }

    /// The peer's encoder uses so many bytes from now on.
    pub(super) fn resize(&mut self, bytes: u32) {
        self.max_size = bytes.min(MAX_TABLE_BYTES);
        self.evict_to(self.max_size);
        if bytes == 0 {
            self.n_dropped = 0;
        }
    }

    /// Insertions were missed: from here on every entry is unknown until it is inserted anew.
    pub(super) fn forget(&mut self) {
        let max_size = self.max_size;
        *self = Self { max_size: max_size.max(DEFAULT_BYTES), ..Self::default() };
    }

    /// Memory held, bytes.
    pub(super) fn capacity(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>() + self.values.capacity()
    }

    fn evict_to(&mut self, bytes: u32) {
        while self.size > bytes {
            let Some(oldest) = self.entries.pop_back() else { break };
            self.size -= oldest.size();
            self.n_dropped = self.n_dropped.saturating_add(1);
            if oldest.kept != NOT_KEPT {
                self.dead += usize::from(oldest.kept);
            }
        }
        if self.dead * 2 > self.values.len() {
            self.compact();
        }
    }

    /// Memory for a value. Most connections are idle, so it grows by little; and no byte is moved often for it.
    fn make_room(&mut self, bytes: usize) {
        if self.values.capacity() - self.values.len() >= bytes {
            return;
        }
        if self.dead * 8 >= self.values.len() {
            self.compact();
        }
        if self.values.capacity() - self.values.len() < bytes {
            self.values.reserve_exact(bytes.min(MAX_VALUE_BYTES) + self.values.len() / 8);
        }
    }

    fn compact(&mut self) {
        self.values.drain(..self.dead);
        self.base = self.base.wrapping_add(self.dead as u32);
        self.dead = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Inserts values as `+v`, then looks at indices 1 to `n`.
    fn shown(table: &mut Table, n: u32) -> String {
        let mut text = String::new();
        for index in 1..=n {
            match table.get(index) {
                None => text.push('-'),
                Some(Found { value: None, .. }) => text.push('?'),
                Some(Found { value: Some(value), .. }) => text.push_str(str::from_utf8(value).unwrap()),
            }
        }
        text
    }

    fn insert(table: &mut Table, value: &str, length: usize) {
        table.insert(Name::Path, 5, length, |values| values.extend_from_slice(value.as_bytes()));
    }

    #[test]
    fn indices_count_from_the_newest() {
        let mut table = Table::default();
        for value in ["a", "b", "c"] {
            insert(&mut table, value, 1);
        }
        assert_eq!(shown(&mut table, 4), "cba-");
        // Two entries of 38 bytes fit.
        table.resize(100);
        assert_eq!(shown(&mut table, 3), "cb-");
        // In use and dropped: from now on there is room.
        insert(&mut table, "d", 1);
        assert_eq!(shown(&mut table, 3), "dcb");
        table.forget();
        assert_eq!(shown(&mut table, 1), "-");
        insert(&mut table, "e", 1);
        assert_eq!(shown(&mut table, 2), "e-");
        // Larger than the table: it is empty then.
        insert(&mut table, "f", 5_000);
        assert_eq!(shown(&mut table, 1), "-");
        table.resize(0);
        insert(&mut table, "g", 1);
        assert_eq!(shown(&mut table, 1), "-");
    }

    #[test]
    fn memory_is_bounded() {
        let mut table = Table::default();
        table.resize(u32::MAX);
        for nth in 0..100_000_usize {
            insert(&mut table, &"x".repeat(nth % 5_000), nth % 5_000);
            assert!(table.values.len() <= 3 * MAX_VALUE_BYTES, "{nth}");
            insert(&mut table, "", 0);
        }
        assert!(table.capacity() < 150_000, "{}", table.capacity());
        table.forget();
        assert_eq!(table.capacity(), 0);
    }
}
