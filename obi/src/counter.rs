//! A count that knows when it began.
//!
//! In: additions, each with the number of the last snapshot. Out: the sum, and the snapshot before it left zero.
//! Refuses to know what is counted.
#![forbid(unsafe_code)]

/// A count and the number of the last snapshot taken before it left zero (see [`crate::red`], zero points).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counter {
    /// The count.
    pub value: u64,
    /// Snapshot number at birth.
    pub born: u64,
}

impl Counter {
    /// Adds `n`; the first addition above zero is the birth, in generation `snapshots`.
    #[inline]
    pub fn add(&mut self, n: u64, snapshots: u64) {
        if self.value == 0 {
            self.born = snapshots;
        }
        self.value += n;
    }
}
