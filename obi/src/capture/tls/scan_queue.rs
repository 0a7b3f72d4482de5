//! Looks at processes that are still to come, in the order of their time.
//!
//! In: whom to look at, and when. Out: whose time has come. Bounded. Refuses to know what a look is.
#![forbid(unsafe_code)]

use std::collections::VecDeque;
use std::time::Instant;

use super::recent_programs::Program;

/// So many may wait.
const MOST: usize = 8192;

/// One of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Look {
    pub(super) due: Instant,
    pub(super) tgid: u32,
    /// What it is to find out about the program, if that is known.
    pub(super) program: Option<Program>,
}

#[derive(Debug, Default)]
pub(super) struct ScanQueue(VecDeque<Look>);

impl ScanQueue {
    /// `false` when there is no room for it.
    #[must_use]
    pub(super) fn add(&mut self, look: Look) -> bool {
        if self.0.len() >= MOST {
            return false;
        }
        let at = self.0.partition_point(|other| other.due <= look.due);
        self.0.insert(at, look);
        true
    }

    /// One whose time has come, the longest due first.
    pub(super) fn take_due(&mut self, now: Instant) -> Option<Look> {
        self.0.pop_front_if(|look| look.due <= now)
    }

    /// When the next one is due.
    pub(super) fn next_due(&self) -> Option<Instant> {
        self.0.front().map(|look| look.due)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn looks_come_in_the_order_of_their_time() {
        let (mut looks, now) = (ScanQueue::default(), Instant::now());
        let look = |tgid, after| Look { due: now + Duration::from_secs(after), tgid, program: None };
        assert!(looks.add(look(1, 3)) && looks.add(look(2, 1)) && looks.add(look(3, 1)));
        assert_eq!((looks.next_due(), looks.take_due(now)), (Some(look(2, 1).due), None));
        let later = now + Duration::from_secs(2);
        let taken = [looks.take_due(later), looks.take_due(later), looks.take_due(later)];
        assert_eq!(taken, [Some(look(2, 1)), Some(look(3, 1)), None]);
        assert!((1..MOST).all(|_| looks.add(look(4, 9))) && !looks.add(look(5, 9)));
    }
}
