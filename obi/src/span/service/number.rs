//! Dense numbers of services.
//!
//! In: a namespace and a name. Out: the number of the pair, the same wherever it is asked for: processes and spans that
//! are sent to us are named in different threads, and tables are indexed by it. Refuses to know what else a service is.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// Numbers by namespace and name.
type Table = HashMap<(String, String), u32, RandomState>;

/// The numbers given out so far; clones share them.
#[derive(Debug, Clone, Default)]
pub struct Numbers(Arc<Mutex<Table>>);

impl Numbers {
    /// The number of this namespace and name: the next one when it is new. Who asks has a bound to what is new.
    #[must_use]
    pub fn of(&self, namespace: &str, name: &str) -> u32 {
        let mut numbers = self.locked();
        let next = u32::try_from(numbers.len()).unwrap_or(u32::MAX);
        *numbers.entry((namespace.to_owned(), name.to_owned())).or_insert(next)
    }

    /// How many there are: every one is below it.
    #[must_use]
    pub fn count(&self) -> usize {
        self.locked().len()
    }

    /// The table is whole after each statement, so that a panic elsewhere leaves it usable.
    fn locked(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_dense_and_shared() {
        let numbers = Numbers::default();
        let other = numbers.clone();
        let check = |pair: (&str, &str), expected| assert_eq!(other.of(pair.0, pair.1), expected, "{pair:?}");
        check(("", "a"), 0);
        check(("b", "a"), 1);
        assert_eq!(numbers.of("", "c"), 2);
        check(("", "c"), 2);
        check(("", "a"), 0);
        assert_eq!(numbers.count(), 3);
    }
}
