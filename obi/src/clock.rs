//! `CLOCK_MONOTONIC`, in which the kernel stamps events, to Unix time.
//!
//! In: bracketed readings of both clocks. Out: conversions between them. The conversion is arithmetic on the last
//! good reading, so durations are never changed by it; [`Clock::tick`] follows steps of the wall clock and suspends.
#![forbid(unsafe_code)]

use rustix::time::{ClockId, clock_getres, clock_gettime};

/// One reading of the wall clock between two of the monotonic clock, nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reading {
    /// `CLOCK_MONOTONIC` before.
    pub before: u64,
    /// `CLOCK_REALTIME`, since the Unix epoch.
    pub unix: u64,
    /// `CLOCK_MONOTONIC` after.
    pub after: u64,
}

/// The relation of the two clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Clock {
    /// Unix time minus monotonic time, ns.
    offset: i64,
    /// Half the width of the bracket that the offset came from, ns.
    uncertainty: u64,
}

/// Readings per anchoring: enough that one of them was not interrupted.
const READINGS: usize = 9;

impl Clock {
    /// A clock anchored now.
    #[must_use]
    pub fn now() -> Self {
        Self::anchored(&read())
    }

    /// A clock anchored by the tightest of the readings; without readings both clocks are taken as equal.
    #[must_use]
    pub fn anchored(readings: &[Reading]) -> Self {
        let Some(tightest) = readings.iter().min_by_key(|reading| width(reading)) else {
            return Self { offset: 0, uncertainty: u64::MAX };
        };
        let middle = tightest.before + width(tightest) / 2;
        Self {
            offset: tightest.unix.wrapping_sub(middle).cast_signed(),
            uncertainty: width(tightest).div_ceil(2),
        }
    }

    /// Anchors again, to be called every second or so. Returns by how far the wall clock had moved, ns.
    pub fn tick(&mut self) -> i64 {
        self.follow(&read())
    }

    /// Anchors by the given readings. A difference within the error of the two anchors is no movement: the offset
    /// stays, so that equal monotonic times give equal Unix times from one tick to the next.
    pub fn follow(&mut self, readings: &[Reading]) -> i64 {
        let fresh = Self::anchored(readings);
        let moved = fresh.offset.saturating_sub(self.offset);
        if moved.unsigned_abs() <= self.uncertainty.saturating_add(fresh.uncertainty) {
            return 0;
        }
        *self = fresh;
        moved
    }

    /// Unix nanoseconds of a monotonic time. Never below zero.
    #[must_use]
    pub fn unix(&self, monotonic: u64) -> u64 {
        monotonic.saturating_add_signed(self.offset)
    }

    /// Monotonic nanoseconds of a Unix time. Never below zero.
    #[must_use]
    pub fn monotonic(&self, unix: u64) -> u64 {
        unix.saturating_add_signed(self.offset.saturating_neg())
    }
}

/// `CLOCK_MONOTONIC` now, ns.
#[must_use]
pub fn monotonic_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Monotonic))
}

/// `CLOCK_BOOTTIME` now, ns: the age of the machine's run, suspends included, in which the kernel counts the starts of
/// processes.
#[must_use]
pub fn boot_ns() -> u64 {
    nanoseconds(clock_gettime(ClockId::Boottime))
}

/// Length of a kernel tick (jiffy), ns: the resolution of `CLOCK_MONOTONIC_COARSE`, and so of every time that the
/// kernel keeps in jiffies.
#[must_use]
pub fn tick_ns() -> u64 {
    nanoseconds(clock_getres(ClockId::MonotonicCoarse))
}

fn read() -> [Reading; READINGS] {
    std::array::from_fn(|_| {
        let before = monotonic_ns();
        let unix = nanoseconds(clock_gettime(ClockId::Realtime));
        Reading { before, unix, after: monotonic_ns() }
    })
}

fn width(reading: &Reading) -> u64 {
    reading.after.saturating_sub(reading.before)
}

fn nanoseconds(time: rustix::time::Timespec) -> u64 {
    let seconds = u64::try_from(time.tv_sec).unwrap_or(0);
    seconds.saturating_mul(1_000_000_000).saturating_add(u64::try_from(time.tv_nsec).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const START: u64 = 1_700_000_000_000_000_000;

    fn reading(before: u64, unix: u64, after: u64) -> Reading {
        Reading { before, unix, after }
    }

    #[test]
    fn the_tightest_reading_wins() {
        let readings =
            [reading(100, START + 900, 2100), reading(3000, START + 3010, 3020), reading(4000, 0, 9000)];
        assert_eq!(Clock::anchored(&readings).unix(3010), START + 3010);
        assert_eq!(Clock::anchored(&readings).monotonic(START + 5000), 5000);
    }

    #[test]
    fn movement_within_the_error_is_none() {
        fn check(shift: i64, expected: i64) {
            let mut clock = Clock::anchored(&[reading(1000, START + 1050, 1100)]);
            let later = reading(1_000_000, (START + 1_000_050).saturating_add_signed(shift), 1_000_100);
            assert_eq!(clock.follow(&[later]), expected, "{shift}");
            assert_eq!(clock.unix(2_000_000), (START + 2_000_000).saturating_add_signed(expected), "{shift}");
        }
        check(0, 0);
        check(100, 0);
        check(-100, 0);
        check(101, 101);
        check(-5_000_000_000, -5_000_000_000);
        check(3_600_000_000_000, 3_600_000_000_000);
    }

    #[test]
    fn the_system_clocks_agree() {
        let mut clock = Clock::now();
        let wall = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
        let ours = clock.unix(monotonic_ns());
        assert!(u128::from(ours).abs_diff(wall.as_nanos()) < 1_000_000_000, "{ours} {wall:?}");
        assert!(clock.uncertainty < 1_000_000, "{clock:?}");
        clock.tick();
        assert!(clock.unix(monotonic_ns()) >= ours);
    }

    #[test]
    fn a_tick_is_between_one_and_ten_milliseconds() {
        assert!((900_000..=10_100_000).contains(&tick_ns()), "{}", tick_ns());
    }

    proptest! {
        #[test]
        fn conversions_are_inverse_and_never_panic(before: u64, unix: u64, after: u64, time: u64) {
            let clock = Clock::anchored(&[reading(before, unix, after)]);
            let (forth, back) = (clock.unix(time), clock.monotonic(time));
            if forth != 0 && forth != u64::MAX {
                prop_assert_eq!(clock.monotonic(forth), time);
            }
            if back != 0 && back != u64::MAX {
                prop_assert_eq!(clock.unix(back), time);
            }
        }
    }
}
