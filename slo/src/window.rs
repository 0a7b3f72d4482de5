//! The period of an objective: rolling, or aligned with a calendar.
//!
//! In: a point in time. Out: the period that it is in. Refuses to know what is counted in it.

use std::fmt;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use jiff::{Span, Timestamp};

use crate::time::Time;

/// The period that a budget is for (OpenSLO `timeWindow`).
#[derive(Clone, Debug, PartialEq)]
pub enum Window {
    /// The last so much time. Months count 30 days, quarters 90, years 365.
    Rolling(Duration),
    /// Periods that follow each other from a start, by the calendar of a time zone.
    Calendar(Calendar),
}

/// Calendar-aligned periods.
#[derive(Clone, Debug, PartialEq)]
pub struct Calendar {
    /// Wall-clock time at which the first period begins.
    pub start: DateTime,
    /// The zone whose clocks are meant.
    pub zone: TimeZone,
    /// How many [`Unit`]s a period lasts, at least one.
    pub count: u32,
    /// What is counted.
    pub unit: Unit,
}

/// Units of OpenSLO's durations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// `m`: 60 seconds, also across a change of the clocks.
    Minute,
    /// `h`: 3,600 seconds, also across a change of the clocks.
    Hour,
    /// `d`: a day of the calendar; 23 or 25 hours where clocks change.
    Day,
    /// `w`: seven days of the calendar.
    Week,
    /// `M`: to the same day of the next month, or its last.
    Month,
    /// `Q`: three months.
    Quarter,
    /// `Y`: twelve months.
    Year,
}

/// From `start` on, until before `end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Its first moment.
    pub start: Time,
    /// The first moment after it.
    pub end: Time,
}

impl Period {
    /// How long it lasts.
    pub fn duration(self) -> Duration {
        self.end.since(self.start)
    }
}

impl Unit {
    /// Nominal length: months 30 days, quarters 90, years 365.
    pub const fn duration(self) -> Duration {
        const DAY: u64 = 86_400;
        Duration::from_secs(match self {
            Self::Minute => 60,
            Self::Hour => 3600,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Quarter => 90 * DAY,
            Self::Year => 365 * DAY,
        })
    }

    /// The letter of OpenSLO's durations.
    pub const fn letter(self) -> char {
        match self {
            Self::Minute => 'm',
            Self::Hour => 'h',
            Self::Day => 'd',
            Self::Week => 'w',
            Self::Month => 'M',
            Self::Quarter => 'Q',
            Self::Year => 'Y',
        }
    }
}

impl Window {
    /// Nominal length, by which alert windows and factors are chosen.
    pub fn duration(&self) -> Duration {
        match self {
            Self::Rolling(duration) => *duration,
            Self::Calendar(calendar) => calendar.unit.duration().saturating_mul(calendar.count),
        }
    }

    /// The period that `now` is in. A rolling one ends now.
    pub fn period(&self, now: Time) -> Period {
        match self {
            Self::Rolling(duration) => Period { start: now.minus(*duration), end: now },
            Self::Calendar(calendar) => calendar.period(now),
        }
    }
}

impl Calendar {
    /// The period that `now` is in; also before the first start, as if periods had always followed each other.
    ///
    /// Every boundary is counted from the start itself, so a start on the 31st comes back to the 31st after a
    /// shorter month. A wall-clock time that a change of the clocks skips is read as the moment after the gap by the
    /// same distance; one that comes twice, as the first.
    pub fn period(&self, now: Time) -> Period {
        let mut index = self.estimate(now);
        // The estimate is off by a few periods at most: months differ by three days, clocks by hours.
        while self.boundary(index) > now {
            index -= 1;
        }
        while self.boundary(index + 1) <= now {
            index += 1;
        }
        Period { start: self.boundary(index), end: self.boundary(index + 1) }
    }

    /// Start of the first period.
    pub(crate) fn first(&self) -> Time {
        self.boundary(0)
    }

    /// Whole periods of mean length between start and `now`.
    fn estimate(&self, now: Time) -> i64 {
        const YEAR: i128 = 31_556_952; // seconds of a mean Gregorian year
        let unit = match self.unit {
            Unit::Month => YEAR / 12,
            Unit::Quarter => YEAR / 4,
            Unit::Year => YEAR,
            exact => i128::from(exact.duration().as_secs()),
        };
        let elapsed = i128::from(now.seconds()) - i128::from(self.boundary(0).seconds());
        i64::try_from(elapsed.div_euclid(unit * i128::from(self.count.max(1)))).unwrap_or(0)
    }

    /// Start of the period with this number; the ends of time where the calendar has none.
    fn boundary(&self, index: i64) -> Time {
        let beyond = if index < 0 { Time::from_nanos(i64::MIN) } else { Time::from_nanos(i64::MAX) };
        let Some(n) = index.checked_mul(i64::from(self.count.max(1))) else { return beyond };
        self.instant(n).map_or(beyond, from_timestamp)
    }

    /// The start plus `n` units.
    fn instant(&self, n: i64) -> Option<Timestamp> {
        let span = Span::new();
        let span = match self.unit {
            Unit::Minute => span.try_minutes(n),
            Unit::Hour => span.try_hours(n),
            Unit::Day => span.try_days(n),
            Unit::Week => span.try_weeks(n),
            Unit::Month => span.try_months(n),
            Unit::Quarter => span.try_months(n.checked_mul(3)?),
            Unit::Year => span.try_years(n),
        };
        let span = span.ok()?;
        if matches!(self.unit, Unit::Minute | Unit::Hour) {
            let start = self.zone.to_timestamp(self.start).ok()?;
            start.checked_add(span).ok()
        } else {
            let civil = self.start.checked_add(span).ok()?;
            self.zone.to_timestamp(civil).ok()
        }
    }
}

/// Time zones, by which days and months are counted, reach further than [`Time`].
fn from_timestamp(timestamp: Timestamp) -> Time {
    let nanos = timestamp.as_nanosecond();
    Time::from_nanos(i64::try_from(nanos).unwrap_or(if nanos < 0 { i64::MIN } else { i64::MAX }))
}

/// As OpenSLO writes durations where that fits, for example `28d`.
impl fmt::Display for Window {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rolling(duration) => write!(out, "{}", crate::duration::Short(*duration)),
            Self::Calendar(calendar) => write!(out, "{}{}", calendar.count, calendar.unit.letter()),
        }
    }
}
