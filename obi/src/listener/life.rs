//! When a connection has been silent for too long.
//!
//! In: begins and ends of its requests. Out: when it is to be closed. Refuses to know the connection itself.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tokio::time::Instant;

use super::{IDLE, PATIENCE};

/// When something was last asked on a connection, and what is under way.
pub(super) struct Life {
    born: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
    under_way: AtomicU64,
}

impl Life {
    /// A connection that begins now.
    pub(super) fn new() -> Self {
        Self { born: Instant::now(), last: AtomicU64::new(0), under_way: AtomicU64::new(0) }
    }

    /// When it will have been silent for too long; never while a request is under way.
    pub(super) fn ends(&self) -> Option<Instant> {
        let patience = if self.last.load(Relaxed) == 0 { PATIENCE } else { IDLE };
        let last = self.born + Duration::from_millis(self.last.load(Relaxed));
        (self.under_way.load(Relaxed) == 0).then_some(last + patience)
    }

    fn touch(&self) {
        let since = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since.max(1), Relaxed);
    }
}

/// A request of a connection, also one that its sender gives up.
pub(super) struct UnderWay(Arc<Life>);

impl UnderWay {
    /// It begins.
    pub(super) fn new(life: Arc<Life>) -> Self {
        life.under_way.fetch_add(1, Relaxed);
        Self(life)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.touch();
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn silence_counts_from_the_last_request() {
        let life = Arc::new(Life::new());
        let begun = Instant::now();
        assert_eq!(life.ends(), Some(begun + PATIENCE), "nothing was asked yet");
        tokio::time::advance(Duration::from_secs(3)).await;
        let (one, other) = (UnderWay::new(Arc::clone(&life)), UnderWay::new(Arc::clone(&life)));
        assert_eq!(life.ends(), None);
        tokio::time::advance(Duration::from_secs(500)).await;
        drop(one);
        assert_eq!(life.ends(), None, "one is under way");
        drop(other);
        assert_eq!(life.ends(), Some(begun + Duration::from_secs(503) + IDLE));
    }
}
