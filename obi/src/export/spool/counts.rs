//! What is on a shelf, and what became of what was there.
//!
//! In: counts from the shelf. Out: the same at any time, from any thread. Refuses to know what items are.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Why items that were on a shelf will not be delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Gone {
    /// There was no room: they were the oldest, or the file system has no more.
    Full,
    /// They were older than they may become.
    Expired,
    /// What was read is not what was written.
    Corrupt,
    /// They could not be written, for another reason than room.
    Unwritable,
}

impl Gone {
    /// All reasons.
    pub const ALL: [Self; 4] = [Self::Full, Self::Expired, Self::Corrupt, Self::Unwritable];
}

/// Counts of a shelf.
#[derive(Debug, Default)]
pub struct Counts {
    bytes: AtomicU64,
    items: AtomicU64,
    oldest: AtomicU64,
    written: AtomicU64,
    delivered: AtomicU64,
    restored: AtomicU64,
    lost: [AtomicU64; Gone::ALL.len()],
}

/// Counts at one moment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Held {
    /// Bytes of its files.
    pub bytes: u64,
    /// Items that wait there.
    pub items: u64,
    /// When the oldest of them came, seconds since the Unix epoch; 0 for none.
    pub oldest: u64,
    /// Items that were put there since the start.
    pub written: u64,
    /// Items that left because their destination has settled them.
    pub delivered: u64,
    /// Items that an earlier run had left.
    pub restored: u64,
    /// Items that are gone, in the order of [`Gone::ALL`].
    pub lost: [u64; Gone::ALL.len()],
}

impl Held {
    /// Both together.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        let oldest = match (self.oldest, other.oldest) {
            (0, oldest) | (oldest, 0) => oldest,
            (one, two) => one.min(two),
        };
        let mut lost = self.lost;
        lost.iter_mut().zip(other.lost).for_each(|(sum, n)| *sum += n);
        Self {
            bytes: self.bytes + other.bytes,
            items: self.items + other.items,
            oldest,
            written: self.written + other.written,
            delivered: self.delivered + other.delivered,
            restored: self.restored + other.restored,
            lost,
        }
    }
}

impl Counts {
    /// Everything now.
    #[must_use]
    pub fn held(&self) -> Held {
        Held {
            bytes: self.bytes.load(Relaxed),
            items: self.items.load(Relaxed),
            oldest: self.oldest.load(Relaxed),
            written: self.written.load(Relaxed),
            delivered: self.delivered.load(Relaxed),
            restored: self.restored.load(Relaxed),
            lost: self.lost.each_ref().map(|n| n.load(Relaxed)),
        }
    }

    pub(super) fn lose(&self, gone: Gone, items: u64) {
        self.lost[gone as usize].fetch_add(items, Relaxed);
    }

    pub(super) fn write(&self, items: u64) {
        self.written.fetch_add(items, Relaxed);
    }

    pub(super) fn deliver(&self, items: u64) {
        self.delivered.fetch_add(items, Relaxed);
    }

    pub(super) fn restore(&self, items: u64) {
        self.restored.fetch_add(items, Relaxed);
    }

    pub(super) fn hold(&self, bytes: u64, items: u64, oldest: u64) {
        self.bytes.store(bytes, Relaxed);
        self.items.store(items, Relaxed);
        self.oldest.store(oldest, Relaxed);
    }
}
