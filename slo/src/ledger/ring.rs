//! Sums over time: a ring of cumulative values, one per slot.
//!
//! In: values with the number of their slot. Out: the sum up to any slot that is still held. Refuses to know what is
//! summed and how long a slot is.
//!
//! Values are cumulative, so a sum over any window is one subtraction; a late value costs one addition for each slot
//! that follows it.

/// What can be summed.
pub(super) trait Sum: Copy + Default + PartialEq {
    fn plus(self, other: Self) -> Self;
    fn minus(self, other: Self) -> Self;
}

/// Cumulative sums of the newest slots.
#[derive(Clone, Debug)]
pub(super) struct Ring<T> {
    /// Number of the newest slot.
    head: i64,
    /// The sum of everything up to the end of each slot, at slot number modulo length.
    cells: Box<[T]>,
}

impl<T: Sum> Ring<T> {
    /// Holds the newest `slots` slots and what was before them. `head` is the first newest one.
    pub(super) fn new(slots: usize, head: i64) -> Self {
        // One more, so that the sum before the oldest slot is known too.
        Self { head, cells: vec![T::default(); slots + 1].into_boxed_slice() }
    }

    fn cell(&self, slot: i64) -> usize {
        let length = i64::try_from(self.cells.len()).expect("a ring has a few thousand slots");
        usize::try_from(slot.rem_euclid(length)).expect("a remainder is not negative")
    }

    /// The oldest slot that is kept apart from those before.
    pub(super) fn oldest(&self) -> i64 {
        let length = i64::try_from(self.cells.len()).expect("a ring has a few thousand slots");
        self.head.saturating_sub(length).saturating_add(2)
    }

    pub(super) fn head(&self) -> i64 {
        self.head
    }

    /// The sum of everything.
    pub(super) fn total(&self) -> T {
        self.cells[self.cell(self.head)]
    }

    /// Makes `slot` the newest, if it is newer.
    pub(super) fn advance(&mut self, slot: i64) {
        if slot <= self.head {
            return;
        }
        let total = self.total();
        let length = i64::try_from(self.cells.len()).expect("a ring has a few thousand slots");
        if slot.saturating_sub(self.head) >= length {
            self.cells.fill(total);
        } else {
            for empty in self.head + 1..=slot {
                let cell = self.cell(empty);
                self.cells[cell] = total;
            }
        }
        self.head = slot;
    }

    /// Changes the value of a slot. One before all that are held changes only what was before them.
    pub(super) fn change(&mut self, slot: i64, change: impl Fn(T) -> T) {
        self.advance(slot);
        if slot == self.head {
            let cell = self.cell(slot);
            self.cells[cell] = change(self.cells[cell]);
            return;
        }
        if slot < self.oldest() {
            for cell in &mut self.cells {
                *cell = change(*cell);
            }
            return;
        }
        // From `slot` to the head, in at most two runs.
        let (first, last) = (self.cell(slot), self.cell(self.head));
        let runs =
            if first <= last { [first..last + 1, 0..0] } else { [first..self.cells.len(), 0..last + 1] };
        for run in runs {
            for cell in &mut self.cells[run] {
                *cell = change(*cell);
            }
        }
    }

    /// The sum of all slots before this one; `None` when that is not known any more.
    pub(super) fn before(&self, slot: i64) -> Option<T> {
        if slot > self.head {
            Some(self.total())
        } else if slot >= self.oldest() {
            Some(self.cells[self.cell(slot - 1)])
        } else {
            None
        }
    }

    /// The value of one slot; zero when it is not held.
    pub(super) fn value(&self, slot: i64) -> T {
        match (self.before(slot.saturating_add(1)), self.before(slot)) {
            (Some(after), Some(before)) if slot <= self.head => after.minus(before),
            _ => T::default(),
        }
    }

    /// The values of all slots that are held, oldest first.
    pub(super) fn values(&self) -> Vec<T> {
        let (newer, older) = self.cells.split_at(self.cell(self.oldest() - 1));
        let mut sums = older.iter().chain(newer).copied();
        let mut before = sums.next().unwrap_or_default();
        let mut values = Vec::with_capacity(self.cells.len());
        sums.for_each(|sum| {
            values.push(sum.minus(before));
            before = sum;
        });
        values
    }

    /// Replaces all values; there is one for each slot that is held, oldest first. `before` is the sum of what was
    /// before.
    pub(super) fn rebuild(&mut self, before: T, values: &[T]) {
        let start = self.cell(self.oldest() - 1);
        let (newer, older) = self.cells.split_at_mut(start);
        let mut sum = before;
        let mut values = values.iter();
        older.iter_mut().chain(newer).for_each(|cell| {
            *cell = sum;
            sum = sum.plus(values.next().copied().unwrap_or_default());
        });
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(&*self.cells)
    }
}

/// Burnt slices, in fixed point.
impl Sum for u64 {
    fn plus(self, other: Self) -> Self {
        self.wrapping_add(other)
    }

    fn minus(self, other: Self) -> Self {
        self.wrapping_sub(other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The newest three slots after some values: head 10 at first.
    fn check(values: &[(i64, u64)], head: i64, expected: &[u64], total: u64) {
        let mut ring = Ring::new(3, 10);
        for (slot, value) in values {
            ring.change(*slot, |sum: u64| sum.plus(*value));
        }
        assert_eq!(ring.head(), head, "{values:?}");
        let held: Vec<u64> = (ring.oldest()..=head).map(|slot| ring.value(slot)).collect();
        assert_eq!((held.as_slice(), ring.total()), (expected, total), "{values:?}");
    }

    #[test]
    fn the_newest_slots_are_held() {
        check(&[], 10, &[0, 0, 0], 0);
        check(&[(10, 1), (10, 2)], 10, &[0, 0, 3], 3);
        check(&[(10, 1), (11, 2), (12, 4)], 12, &[1, 2, 4], 7);
        check(&[(10, 1), (13, 2)], 13, &[0, 0, 2], 3);
        check(&[(10, 1), (100, 2)], 100, &[0, 0, 2], 3);
        check(&[(10, 1), (9, 2), (8, 4)], 10, &[4, 2, 1], 7);
        check(&[(10, 1), (7, 2), (-5, 4)], 10, &[0, 0, 1], 7);
        check(&[(10, 1), (11, 1), (12, 1), (13, 1), (11, 5), (12, 7)], 13, &[6, 8, 1], 16);
    }

    #[test]
    fn what_was_before_is_known_for_the_oldest() {
        let mut ring = Ring::new(3, 10);
        for slot in 10..20 {
            ring.change(slot, |sum: u64| sum.plus(1));
        }
        assert_eq!(ring.oldest(), 17);
        assert_eq!(ring.before(17), Some(7));
        assert_eq!(ring.before(16), None);
        assert_eq!(ring.before(20), Some(10));
        assert_eq!(ring.before(i64::MAX), Some(10));
    }

    #[test]
    fn rebuilt_from_its_values_it_is_the_same() {
        let mut ring = Ring::new(3, 10);
        for slot in [10, 12, 13, 13] {
            ring.change(slot, |sum: u64| sum.plus(slot.unsigned_abs()));
        }
        let mut again = Ring::new(3, 13);
        again.rebuild(10, &ring.values());
        assert_eq!(again.cells.len(), ring.cells.len());
        for slot in ring.oldest()..=15 {
            assert_eq!(again.before(slot), ring.before(slot), "{slot}");
        }
    }
}
