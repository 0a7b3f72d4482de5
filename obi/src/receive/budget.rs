//! Memory that everything received may take at once.
//!
//! In: bytes, before they are used. Out: a [`Share`] that gives them back when it is dropped, or nothing when they are
//! used up: there is no waiting for memory here.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// All of it.
#[derive(Debug, Clone)]
pub struct Budget {
    free: Arc<Semaphore>,
    bytes: usize,
}

/// Part of a budget.
#[derive(Debug)]
pub struct Share(Option<OwnedSemaphorePermit>);

impl Budget {
    /// So many bytes.
    #[must_use]
    pub fn new(bytes: usize) -> Self {
        Self { free: Arc::new(Semaphore::new(bytes)), bytes }
    }

    /// A share without bytes, to be extended.
    #[must_use]
    pub fn share(&self) -> Share {
        Share(None)
    }

    /// Takes so many more bytes into the share; says whether they were there.
    #[must_use]
    pub fn extend(&self, share: &mut Share, n_bytes: usize) -> bool {
        let Ok(n_bytes) = u32::try_from(n_bytes) else { return false };
        let Ok(more) = Arc::clone(&self.free).try_acquire_many_owned(n_bytes) else { return false };
        match &mut share.0 {
            Some(held) => held.merge(more),
            none => *none = Some(more),
        }
        true
    }

    /// Bytes in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        (self.bytes - self.free.available_permits().min(self.bytes)) as u64
    }
}

impl Share {
    /// Gives back all but so many bytes.
    pub fn shrink(&mut self, n_bytes: usize) {
        if let Some(held) = &mut self.0 {
            drop(held.split(held.num_permits().saturating_sub(n_bytes)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_given_back() {
        let budget = Budget::new(100);
        let mut share = budget.share();
        for (more, is_there, used) in
            [(60, true, 60), (41, false, 60), (40, true, 100), (1, false, 100), (0, true, 100)]
        {
            assert_eq!((budget.extend(&mut share, more), budget.used()), (is_there, used));
        }
        assert!(!budget.extend(&mut share, usize::MAX));
        share.shrink(30);
        assert_eq!(budget.used(), 30);
        drop(share);
        assert_eq!(budget.used(), 0);
    }
}
