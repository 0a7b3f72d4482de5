//! What an earlier process counted becomes part of a ledger.
//!
//! In: its pages. Out: rings with the sum of both. Refuses to know where pages come from.
//!
//! Everything is added up as values of slots, and made cumulative once: a restart adds a thousand ledgers' history.

use super::page::{PAGE, Page, Series};
use super::ring::{Ring, Sum as _};
use super::{Counts, FINE, Ledger, MINUTE};

/// Later slots than these after our own head are of a clock that was wrong.
const LEAD: i64 = 24 * 360;

impl Ledger {
    /// Adds what an earlier process counted. `pages` are those of one part, in any order.
    ///
    /// Slots before those that are held are forgotten; events that this process recorded already stay counted.
    pub(crate) fn restore(&mut self, pages: &[&Page]) {
        let mut fine = Values::new(&mut self.fine, Series::Seconds, pages);
        let mut minutes = Values::new(&mut self.minutes, Series::Minutes, pages);
        let hours = Values::new(&mut self.hours, Series::Hours, pages);
        // What came so late that finer slots did not hold it is only in coarser ones. After a step back of the clock
        // finer slots may be asked for it: it goes into the first of them, so that it is in every window that it
        // should be in.
        if self.coarse.offset.rem_euclid(MINUTE) == 0 {
            minutes.refine(&hours, self.coarse.length / MINUTE, self.coarse.offset / MINUTE);
        }
        fine.refine(&minutes, MINUTE / FINE, 0);
        // The sums of the three agree on the total, so that windows may mix them.
        let totals = [&fine, &minutes, &hours].map(Values::total);
        let most = Counts {
            good: totals.iter().map(|counts| counts.good).max().unwrap_or(0),
            bad: totals.iter().map(|counts| counts.bad).max().unwrap_or(0),
        };
        let rings = [&mut self.fine, &mut self.minutes, &mut self.hours];
        for ((ring, values), total) in rings.into_iter().zip([fine, minutes, hours]).zip(totals) {
            ring.rebuild(most.minus(total), &values.counts);
        }
    }
}

/// Counts of all slots that a ring holds, oldest first.
struct Values {
    oldest: i64,
    counts: Vec<Counts>,
}

impl Values {
    /// The ring's own and those of the pages; the ring is as new as the newest of both.
    fn new(ring: &mut Ring<Counts>, series: Series, pages: &[&Page]) -> Self {
        let pages = || pages.iter().filter(|page| page.key.series == series);
        // After a step back of the clock the store may know later slots than we do, but not a wrong year.
        let limit = ring.head().saturating_add(LEAD);
        ring.advance(pages().filter_map(|page| newest(page)).max().unwrap_or(i64::MIN).min(limit));
        let mut values = Self { oldest: ring.oldest(), counts: ring.values() };
        pages().for_each(|page| values.add(page));
        values
    }

    fn add(&mut self, page: &Page) {
        let first = first(page);
        let distance = |from: i64, to: i64| usize::try_from(to.saturating_sub(from)).unwrap_or(0);
        let own = self.counts.get_mut(distance(self.oldest, first)..).unwrap_or_default();
        let others = page.slots.get(distance(first, self.oldest)..).unwrap_or_default();
        for (value, (good, bad)) in own.iter_mut().zip(others) {
            *value = value.plus(Counts { good: *good, bad: *bad });
        }
    }

    /// Adds to the first of the slots that make up a coarser one what they lack of it; nothing where that is not held.
    fn refine(&mut self, coarser: &Self, per_slot: i64, offset: i64) {
        let length = usize::try_from(per_slot).unwrap_or(usize::MAX);
        for (slot, sum) in (coarser.oldest..).zip(&coarser.counts) {
            let first = (slot * per_slot + offset).checked_sub(self.oldest);
            let first = first.and_then(|first| usize::try_from(first).ok());
            let Some(slots) = first.and_then(|first| self.counts.get_mut(first..)) else { continue };
            let held = slots.iter().take(length).fold(Counts::default(), |sum, counts| sum.plus(*counts));
            let missing =
                Counts { good: sum.good.saturating_sub(held.good), bad: sum.bad.saturating_sub(held.bad) };
            if let Some(first) = slots.first_mut() {
                *first = first.plus(missing);
            }
        }
    }

    fn total(&self) -> Counts {
        self.counts.iter().fold(Counts::default(), |sum, counts| sum.plus(*counts))
    }
}

/// Number of the first slot.
fn first(page: &Page) -> i64 {
    page.key.index.saturating_mul(PAGE as i64)
}

/// Number of the newest slot with events.
fn newest(page: &Page) -> Option<i64> {
    let last = page.slots.iter().rposition(|slot| *slot != (0, 0))?;
    Some(first(page).saturating_add(last as i64))
}
