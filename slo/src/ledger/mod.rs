//! Counts of good and bad events over time.
//!
//! In: events with their time. Out: counts over any window. Refuses to know what an event is, and what was promised.

mod page;
mod restore;
mod ring;
mod slices;

use std::time::Duration;

pub use self::page::{PAGE, Page, PageKey, Series};
use self::ring::{Ring, Sum};
pub(crate) use self::slices::{SLICE_UNIT, Slices};
use crate::indicator::Outcome;
use crate::time::Time;
use crate::window::Window;

const SECOND: i64 = 1_000_000_000;
/// Length of the finest slots.
const FINE: i64 = 10 * SECOND;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 3600 * SECOND;
/// Finest slots: 6 h, and one for the slot that is being filled.
const FINE_SLOTS: usize = 2161;
/// With time slices nothing shorter than a minute is asked for, but by prompt recovery.
const FINE_SLOTS_OF_SLICES: usize = 60;
/// Minutes: 3 d.
const MINUTE_SLOTS: usize = 4321;
/// Most coarse slots: a quarter of hours.
const COARSE_SLOTS: i64 = 2300;
const COARSE_SLOTS_OF_SLICES: i64 = 1100;

/// Events by outcome.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Good ones.
    pub good: u64,
    /// Bad ones.
    pub bad: u64,
}

impl Counts {
    /// All.
    pub const fn total(self) -> u64 {
        self.good.saturating_add(self.bad)
    }

    /// Both, element by element.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self { good: self.good.wrapping_add(other.good), bad: self.bad.wrapping_add(other.bad) }
    }

    /// One event.
    pub const fn one(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Good => Self { good: 1, bad: 0 },
            Outcome::Bad => Self { good: 0, bad: 1 },
        }
    }
}

impl Sum for Counts {
    fn plus(self, other: Self) -> Self {
        Self::plus(self, other)
    }

    fn minus(self, other: Self) -> Self {
        Self { good: self.good.wrapping_sub(other.good), bad: self.bad.wrapping_sub(other.bad) }
    }
}

/// Whether an event was counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recorded {
    /// In the slot of its time.
    Counted,
    /// It ended before the oldest slot that is held.
    TooLate,
    /// It ends more than an hour after the last time that is known: its clock is wrong.
    TooEarly,
}

/// Lengths of the coarse slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Coarse {
    /// Nanoseconds of a slot.
    pub(crate) length: i64,
    /// The slots begin so many nanoseconds after multiples of it, so that calendar periods begin with a slot.
    pub(crate) offset: i64,
    pub(crate) slots: usize,
}

impl Coarse {
    /// Hours where they fit, several hours in longer periods.
    pub(crate) fn new(window: &Window, sliced: bool) -> Self {
        let longest = match window {
            Window::Rolling(duration) => *duration,
            // Nominal months have 30 days; a day more covers 31 and the clocks' changes.
            Window::Calendar(calendar) => {
                window.duration() + Duration::from_secs(7200) + calendar_slack(calendar)
            }
        };
        let hours = i64::try_from(longest.as_secs().div_ceil(3600)).expect("a period is at most some years");
        let most = if sliced { COARSE_SLOTS_OF_SLICES } else { COARSE_SLOTS };
        let per_slot = (hours + 2).div_euclid(most) + 1;
        let length = per_slot * HOUR;
        let offset = match window {
            Window::Rolling(_) => 0,
            Window::Calendar(calendar) => calendar.first().nanos().rem_euclid(length),
        };
        let slots = usize::try_from(hours.div_euclid(per_slot) + 3).expect("at most a few thousand");
        Self { length, offset, slots }
    }

    pub(crate) fn slot(self, at: Time) -> i64 {
        at.nanos().saturating_sub(self.offset).div_euclid(self.length)
    }
}

fn calendar_slack(calendar: &crate::window::Calendar) -> Duration {
    const DAY: u64 = 86_400;
    let months = match calendar.unit {
        crate::window::Unit::Month => 1,
        crate::window::Unit::Quarter => 3,
        crate::window::Unit::Year => 1,
        _ => 0,
    };
    Duration::from_secs(DAY * months * u64::from(calendar.count))
}

/// Good and bad events of one part of an objective: 10 s slots for 6 h, minutes for 3 d, hours for the period.
///
/// A window begins at the start of the slot that it reaches back into, in the finest slots that are still held: it is
/// longer than asked for by less than a slot, never shorter: but that a clock which went back by more than two hours
/// has cost the beginning of the period.
#[derive(Clone, Debug)]
pub struct Ledger {
    fine: Ring<Counts>,
    minutes: Ring<Counts>,
    hours: Ring<Counts>,
    coarse: Coarse,
    counted: Counts,
    dirty: Vec<(Series, i64)>,
}

impl Ledger {
    pub(crate) fn new(coarse: Coarse, sliced: bool, now: Time) -> Self {
        let fine = if sliced { FINE_SLOTS_OF_SLICES } else { FINE_SLOTS };
        Self {
            fine: Ring::new(fine, now.nanos().div_euclid(FINE)),
            minutes: Ring::new(MINUTE_SLOTS, now.nanos().div_euclid(MINUTE)),
            hours: Ring::new(coarse.slots, coarse.slot(now)),
            coarse,
            counted: Counts::default(),
            dirty: Vec::new(),
        }
    }

    /// Adds events of one moment.
    pub(crate) fn record(&mut self, at: Time, counts: Counts) -> Recorded {
        let hour = self.coarse.slot(at);
        if hour < self.hours.oldest() {
            return Recorded::TooLate;
        }
        let fine = at.nanos().div_euclid(FINE);
        let minute = at.nanos().div_euclid(MINUTE);
        self.fine.change(fine, |sum| sum.plus(counts));
        self.minutes.change(minute, |sum| sum.plus(counts));
        self.hours.change(hour, |sum| sum.plus(counts));
        self.counted = self.counted.plus(counts);
        self.mark(Series::Seconds, fine);
        self.mark(Series::Minutes, minute);
        self.mark(Series::Hours, hour);
        Recorded::Counted
    }

    /// Time has come as far as an event at `at`, which may be another part's: so windows of all parts are alike.
    pub(crate) fn advance(&mut self, at: Time) {
        self.fine.advance(at.nanos().div_euclid(FINE));
        self.minutes.advance(at.nanos().div_euclid(MINUTE));
        self.hours.advance(self.coarse.slot(at));
    }

    /// Start of the newest slot that was reached.
    pub(crate) fn newest(&self) -> Time {
        Time::from_nanos(self.fine.head().saturating_mul(FINE))
    }

    /// Everything recorded by this process, which is what a counter shows; restored counts are not in it.
    pub const fn counted(&self) -> Counts {
        self.counted
    }

    /// Events that ended in the last `window`.
    pub fn last(&self, window: Duration, now: Time) -> Counts {
        self.between(now.minus(window), now)
    }

    /// Events from the slot that `start` is in to the one that `now` is in.
    pub fn between(&self, start: Time, now: Time) -> Counts {
        self.up_to(now).minus(self.before(start))
    }

    /// Events of a whole number of minutes.
    pub(crate) fn minutes_between(&self, start: Time, end: Time) -> Option<Counts> {
        let before = self.minutes.before(start.nanos().div_euclid(MINUTE))?;
        Some(self.minutes.before(end.nanos().div_euclid(MINUTE))?.minus(before))
    }

    /// The oldest minute whose events are kept apart.
    pub(crate) fn oldest_minute(&self) -> Time {
        Time::from_nanos(self.minutes.oldest().saturating_mul(MINUTE))
    }

    /// Where events of `start` are kept apart from earlier ones: the start of its slot.
    pub fn slot_start(&self, start: Time) -> Time {
        let coarse = self.coarse.slot(start);
        let coarse_start = coarse.saturating_mul(self.coarse.length).saturating_add(self.coarse.offset);
        let fine = start.nanos().div_euclid(FINE);
        let minute = start.nanos().div_euclid(MINUTE);
        if coarse_start == start.nanos() && self.hours.before(coarse).is_some() {
            start
        } else if self.fine.before(fine).is_some() {
            Time::from_nanos(fine.saturating_mul(FINE))
        } else if self.minutes.before(minute).is_some() {
            Time::from_nanos(minute.saturating_mul(MINUTE))
        } else {
            let held = coarse.max(self.hours.oldest());
            Time::from_nanos(held.saturating_mul(self.coarse.length).saturating_add(self.coarse.offset))
        }
    }

    fn before(&self, start: Time) -> Counts {
        let coarse = self.coarse.slot(start);
        let on_boundary =
            start.nanos().saturating_sub(self.coarse.offset).rem_euclid(self.coarse.length) == 0;
        let exact = if on_boundary { self.hours.before(coarse) } else { None };
        exact
            .or_else(|| self.fine.before(start.nanos().div_euclid(FINE)))
            .or_else(|| self.minutes.before(start.nanos().div_euclid(MINUTE)))
            .or_else(|| self.hours.before(coarse.max(self.hours.oldest())))
            .unwrap_or_default()
    }

    fn up_to(&self, now: Time) -> Counts {
        let after = |slot: i64| slot.saturating_add(1);
        self.fine
            .before(after(now.nanos().div_euclid(FINE)))
            .or_else(|| self.minutes.before(after(now.nanos().div_euclid(MINUTE))))
            .or_else(|| self.hours.before(after(self.coarse.slot(now)).max(self.hours.oldest())))
            .unwrap_or_default()
    }

    /// Remembers that a slot changed; nearly always it is the one that changed before.
    fn mark(&mut self, series: Series, slot: i64) {
        let page = (series, slot.div_euclid(PAGE as i64));
        if !self.dirty.iter().rev().any(|known| *known == page) {
            self.dirty.push(page);
        }
    }

    /// Hands over every page that changed since it was last asked and of which slots are still held.
    pub(crate) fn drain(&mut self, part: u16, mut keep: impl FnMut(Page)) {
        for (series, index) in std::mem::take(&mut self.dirty) {
            let ring = match series {
                Series::Seconds => &self.fine,
                Series::Minutes => &self.minutes,
                Series::Hours | Series::Burn => &self.hours,
            };
            let first = index.saturating_mul(PAGE as i64);
            // After a long time without a drain, or for late events: it has nothing that is still known.
            if first.saturating_add(PAGE as i64) <= ring.oldest() {
                continue;
            }
            let mut slots = [(0, 0); PAGE];
            for (slot, value) in (first..).zip(&mut slots) {
                let counts = ring.value(slot);
                *value = (counts.good, counts.bad);
            }
            keep(Page { key: PageKey { part, series, index }, slots });
        }
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.fine.bytes() + self.minutes.bytes() + self.hours.bytes()
    }
}
