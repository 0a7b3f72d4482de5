//! Points in time and durations as this crate counts them.
//!
//! In: nanoseconds since the Unix epoch, or OpenSLO's short durations. Out: plain integers to compute with.
//! Refuses to know what time it is: every caller says so.

use std::fmt;
use std::time::Duration;

/// Nanoseconds in a second.
const SECOND: i64 = 1_000_000_000;

/// A point in time: nanoseconds since the Unix epoch, leap seconds ignored.
///
/// Reaches from 1677 to 2262; arithmetic stops at these ends instead of wrapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Time(i64);

impl Time {
    /// From nanoseconds since the Unix epoch.
    pub const fn from_nanos(nanos: i64) -> Self {
        Self(nanos)
    }

    /// From whole seconds since the Unix epoch.
    pub const fn from_seconds(seconds: i64) -> Self {
        Self(seconds.saturating_mul(SECOND))
    }

    /// Nanoseconds since the Unix epoch.
    pub const fn nanos(self) -> i64 {
        self.0
    }

    /// Seconds since the Unix epoch, rounded down.
    pub const fn seconds(self) -> i64 {
        self.0.div_euclid(SECOND)
    }

    /// Later by `duration`.
    #[must_use]
    pub fn plus(self, duration: Duration) -> Self {
        Self(self.0.saturating_add(nanos(duration)))
    }

    /// Earlier by `duration`.
    #[must_use]
    pub fn minus(self, duration: Duration) -> Self {
        Self(self.0.saturating_sub(nanos(duration)))
    }

    /// How long after `earlier` this is; zero when it is not after it.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

/// Whole nanoseconds, as many as fit.
fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

/// RFC 3339 in UTC.
impl fmt::Display for Time {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match jiff::Timestamp::from_nanosecond(self.0.into()) {
            Ok(timestamp) => write!(out, "{timestamp}"),
            Err(_) => write!(out, "{} ns", self.0),
        }
    }
}
