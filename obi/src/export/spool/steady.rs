//! What time it is for the spool.
//!
//! In: the system's clock when the spool is opened, and the time since. Out: seconds, and which times are too old.
//! Refuses to follow steps: were the system's clock set forward, for a moment or for good, all that waits would be too
//! old at once.

use std::time::{Duration, Instant, SystemTime};

/// Times before this one (14 November 2023) are those of a clock that had not been set, as of a machine that has just
/// been switched on: how old they are is not known.
const SET: u64 = 1_700_000_000;

/// A clock that only goes forward, as fast as time.
#[derive(Debug, Clone, Copy)]
pub(super) struct SteadyClock {
    /// Seconds since the Unix epoch.
    began_at: u64,
    began: Instant,
}

impl SteadyClock {
    /// The system's clock, as it is now.
    pub(super) fn now_by_the_system() -> Self {
        let since_epoch = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        Self::at(since_epoch.as_secs())
    }

    /// A clock that says this now.
    pub(super) fn at(seconds: u64) -> Self {
        Self { began_at: seconds, began: Instant::now() }
    }

    /// Seconds since the Unix epoch.
    pub(super) fn seconds(&self) -> u64 {
        self.began_at.saturating_add(self.began.elapsed().as_secs())
    }

    /// What is older than `max_age`.
    pub(super) fn too_old(&self, max_age: Duration) -> TooOld {
        TooOld { before: self.seconds().saturating_sub(max_age.as_secs()) }
    }
}

/// Which times are too old.
#[derive(Debug, Clone, Copy)]
pub(super) struct TooOld {
    before: u64,
}

impl TooOld {
    /// Whether this one is, in seconds since the Unix epoch.
    pub(super) fn is(self, time: u64) -> bool {
        (SET..self.before).contains(&time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_too_old() {
        const NOW: u64 = 1_800_000_000;
        let check = |now: u64, time: u64, expected: bool| {
            let too_old = SteadyClock::at(now).too_old(Duration::from_secs(3_600));
            assert_eq!(too_old.is(time), expected, "{time} at {now}");
        };
        check(NOW, NOW - 3_590, false);
        check(NOW, NOW - 3_610, true);
        check(NOW, SET, true);
        // By a clock that was ahead then.
        check(NOW, NOW + 100_000, false);
        // By one that was not set, then and now.
        check(NOW, 20, false);
        check(NOW, SET - 1, false);
        check(90, 20, false);
        check(10_000, 20, false);
    }

    #[test]
    fn it_goes_on_from_where_it_began() {
        let clock = SteadyClock::at(1_000);
        assert!((1_000..1_010).contains(&clock.seconds()));
        assert!(SteadyClock::now_by_the_system().seconds() > SET);
        assert_eq!(SteadyClock::at(u64::MAX).seconds(), u64::MAX);
    }
}
