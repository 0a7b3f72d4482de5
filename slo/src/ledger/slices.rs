//! Burnt time slices over time.
//!
//! In: how much each slice of time burns, as often as that changes. Out: sums over windows. Refuses to know why a
//! slice burns.

use std::collections::HashMap;
use std::time::Duration;

use super::page::{PAGE, Page, PageKey, Series};
use super::ring::Ring;
use super::{Coarse, MINUTE, MINUTE_SLOTS};
use crate::time::Time;

/// A slice that is burnt wholly. Sums are in parts of it, so that adding and taking away is exact.
pub(crate) const SLICE_UNIT: u64 = 1 << 32;

/// Burnt slices of an objective, each in the slot where it begins: minutes for 3 d, hours for the period.
///
/// Slices begin at multiples of their length since the Unix epoch.
#[derive(Clone, Debug)]
pub(crate) struct Slices {
    length: i64,
    minutes: Ring<u64>,
    hours: Ring<u64>,
    coarse: Coarse,
    dirty: Vec<i64>,
}

impl Slices {
    pub(crate) fn new(slice: Duration, coarse: Coarse, now: Time) -> Self {
        let length = i64::try_from(slice.as_nanos()).expect("a slice is at most a day");
        Self {
            length,
            minutes: Ring::new(MINUTE_SLOTS, now.nanos().div_euclid(MINUTE)),
            hours: Ring::new(coarse.slots, coarse.slot(now)),
            coarse,
            dirty: Vec::new(),
        }
    }

    /// Start and end of the slice that a moment is in.
    pub(crate) fn slice(&self, at: Time) -> (Time, Time) {
        let start = at.nanos().div_euclid(self.length).saturating_mul(self.length);
        (Time::from_nanos(start), Time::from_nanos(start.saturating_add(self.length)))
    }

    /// Time has come as far as an event at `at`.
    pub(crate) fn advance(&mut self, at: Time) {
        self.minutes.advance(at.nanos().div_euclid(MINUTE));
        self.hours.advance(self.coarse.slot(at));
    }

    /// The burn of the slice that begins at `start` changed.
    pub(crate) fn change(&mut self, start: Time, from: u64, to: u64) {
        let hour = self.coarse.slot(start);
        let change = |sum: u64| sum.wrapping_sub(from).wrapping_add(to);
        self.minutes.change(start.nanos().div_euclid(MINUTE), change);
        self.hours.change(hour, change);
        self.touch(hour);
    }

    /// Burnt slices and all slices from the one that `start` is in to the one that `now` is in.
    pub(crate) fn between(&self, start: Time, now: Time) -> (u64, u64) {
        let (mut first, _) = self.slice(start);
        let (last, end) = self.slice(now);
        if self.minutes.before(first.nanos().div_euclid(MINUTE)).is_none() {
            // Only hours are held: count the slices of whole ones.
            let slot = self.coarse.slot(start).max(self.hours.oldest());
            first =
                Time::from_nanos(slot.saturating_mul(self.coarse.length).saturating_add(self.coarse.offset));
        }
        let before = |at: Time| {
            let coarse = self.coarse.slot(at).max(self.hours.oldest());
            let minutes = self.minutes.before(at.nanos().div_euclid(MINUTE));
            minutes.or_else(|| self.hours.before(coarse)).unwrap_or_default()
        };
        let after_last = Time::from_nanos(last.nanos().saturating_add(MINUTE));
        let burnt = before(after_last).wrapping_sub(before(first));
        let slices = end.nanos().saturating_sub(first.nanos()).max(0).div_euclid(self.length);
        (burnt, slices.unsigned_abs())
    }

    /// Pages that changed since it was last asked.
    pub(crate) fn drain(&mut self, mut keep: impl FnMut(Page)) {
        for index in std::mem::take(&mut self.dirty) {
            let mut slots = [(0, 0); PAGE];
            for (slot, value) in (index.saturating_mul(PAGE as i64)..).zip(&mut slots) {
                value.0 = self.hours.value(slot);
            }
            keep(Page { key: PageKey { part: 0, series: Series::Burn, index }, slots });
        }
    }

    /// Makes everything anew: `burn` returns what a slice burns whose minutes are held (from `oldest` to `newest`),
    /// `pages` what was before.
    pub(crate) fn restore(&mut self, pages: &[Page], oldest: Time, newest: Time, burn: impl Fn(Time) -> u64) {
        // The first slice whose minutes are all held.
        let first = oldest.nanos().div_euclid(self.length).saturating_add(1).saturating_mul(self.length);
        self.advance(newest);
        let in_minutes = |minute: i64| {
            let at = minute.saturating_mul(MINUTE);
            if at >= first && at.rem_euclid(self.length) == 0 { burn(Time::from_nanos(at)) } else { 0 }
        };
        let oldest_hour = self.hours.oldest();
        let mut values = vec![0_u64; usize::try_from(self.hours.head() - oldest_hour + 1).unwrap_or(0)];
        let kept_until = self.coarse.slot(Time::from_nanos(first));
        for page in pages.iter().filter(|page| page.key.series == Series::Burn) {
            for (slot, (burnt, _)) in (page.key.index.saturating_mul(PAGE as i64)..).zip(&page.slots) {
                let at = usize::try_from(slot.saturating_sub(oldest_hour)).ok();
                if let Some(value) = at.and_then(|at| values.get_mut(at)).filter(|_| slot <= kept_until) {
                    *value = *burnt;
                }
            }
        }
        let mut minutes = Vec::with_capacity(MINUTE_SLOTS);
        for minute in self.minutes.oldest()..=self.minutes.head() {
            let burnt = in_minutes(minute);
            minutes.push(burnt);
            let hour = self.coarse.slot(Time::from_nanos(minute.saturating_mul(MINUTE)));
            let at = usize::try_from(hour - oldest_hour).ok();
            if let Some(value) = at.and_then(|at| values.get_mut(at)).filter(|_| hour > kept_until) {
                *value = value.wrapping_add(burnt);
            }
        }
        self.hours.rebuild(0, &values);
        self.touch_changed(pages);
        let sum: u64 = minutes.iter().fold(0, |sum, burnt| sum.wrapping_add(*burnt));
        self.minutes.rebuild(self.hours.total().wrapping_sub(sum), &minutes);
    }

    /// What this process recorded before it was restored can have changed what a kept slice burns.
    fn touch_changed(&mut self, pages: &[Page]) {
        let kept: HashMap<i64, u64> = pages
            .iter()
            .filter(|page| page.key.series == Series::Burn)
            .flat_map(|page| {
                (page.key.index.saturating_mul(PAGE as i64)..).zip(page.slots.map(|(burnt, _)| burnt))
            })
            .collect();
        for (hour, burnt) in (self.hours.oldest()..).zip(self.hours.values()) {
            if kept.get(&hour).copied().unwrap_or_default() != burnt {
                self.touch(hour);
            }
        }
    }

    /// The page that an hour is in is to be kept.
    fn touch(&mut self, hour: i64) {
        let page = hour.div_euclid(PAGE as i64);
        if !self.dirty.contains(&page) {
            self.dirty.push(page);
        }
    }

    pub(crate) fn bytes(&self) -> usize {
        size_of::<Self>() + self.minutes.bytes() + self.hours.bytes()
    }
}
