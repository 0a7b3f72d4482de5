//! An objective with its counts: how fast it burns, what is left.
//!
//! In: events by part, and when the agent was observing. Out: burn rates over any window, and the budget. Refuses to
//! know alerts.

use std::time::Duration;

use crate::coverage::Coverage;
use crate::ledger::{Coarse, Counts, Ledger, Page, Recorded, SLICE_UNIT, Slices};
use crate::objective::{BudgetingMethod, Objective};
use crate::time::Time;
use crate::window::Period;

/// Counts of an objective.
#[derive(Clone, Debug)]
pub struct Account {
    objective: Objective,
    ledgers: Vec<Ledger>,
    slices: Option<Slices>,
    /// 1 − target of each part, and of the whole.
    allowed: Vec<f64>,
    allowed_whole: f64,
}

/// How fast budget burns over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Burn {
    /// First and last moment that were asked for.
    pub period: Period,
    /// Good and bad events of all parts together.
    pub counts: Counts,
    /// With time slices: burnt ones and observed ones.
    pub slices: Option<(f64, f64)>,
    /// 1 uses exactly the budget in exactly the period. `None` when nothing is known: no events, or no observation.
    pub rate: Option<f64>,
    /// The share of the window that was observed. What is not observed counts neither as good nor as bad.
    pub coverage: f64,
}

/// What is left of the budget of the current period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Budget {
    /// The whole period; of a rolling window it ends now.
    pub period: Period,
    /// How it burnt so far.
    pub burn: Burn,
    /// The achieved ratio of events or slices; `None` when nothing is known.
    pub achieved: Option<f64>,
    /// 1 when nothing is used, 0 when all is, negative beyond. 1 when nothing is known.
    ///
    /// Of events: one minus the bad ratio so far over the allowed ratio. Of slices: one minus the burnt slices over
    /// those that the whole period allows.
    pub remaining: f64,
}

impl Account {
    /// An account that was opened at `now`, with no events.
    pub fn new(objective: Objective, now: Time) -> Self {
        let sliced = objective.budgeting.slice();
        let coarse = Coarse::new(&objective.window, sliced.is_some());
        let ledger = || Ledger::new(coarse, sliced.is_some(), now);
        Self {
            ledgers: objective.parts.iter().map(|_| ledger()).collect(),
            slices: sliced.map(|slice| Slices::new(slice, coarse, now)),
            allowed: objective.parts.iter().map(|part| part.target.complement().as_f64()).collect(),
            allowed_whole: objective.target().complement().as_f64(),
            objective,
        }
    }

    /// What it is about.
    pub const fn objective(&self) -> &Objective {
        &self.objective
    }

    /// Counts of each part.
    pub fn ledgers(&self) -> &[Ledger] {
        &self.ledgers
    }

    /// What this process recorded, all parts together.
    pub fn counted(&self) -> Counts {
        self.ledgers.iter().fold(Counts::default(), |sum, ledger| sum.plus(ledger.counted()))
    }

    /// Adds events of one part that ended at one moment.
    pub fn record(&mut self, part: usize, at: Time, counts: Counts) -> Recorded {
        let recorded = self.record_part(part, at, counts);
        if recorded == Recorded::Counted && self.ledgers.len() > 1 {
            self.ledgers.iter_mut().for_each(|ledger| ledger.advance(at));
        }
        recorded
    }

    fn record_part(&mut self, part: usize, at: Time, counts: Counts) -> Recorded {
        let Some(slices) = &mut self.slices else {
            let Some(ledger) = self.ledgers.get_mut(part) else { return Recorded::TooLate };
            return ledger.record(at, counts);
        };
        let (start, end) = slices.slice(at);
        let Some(before) = burn(&self.objective, &self.ledgers, start, end) else { return Recorded::TooLate };
        let Some(ledger) = self.ledgers.get_mut(part) else { return Recorded::TooLate };
        let recorded = ledger.record(at, counts);
        if recorded == Recorded::Counted {
            slices.advance(at);
            let after = burn(&self.objective, &self.ledgers, start, end).unwrap_or(before);
            if before != after {
                slices.change(start, before, after);
            }
        }
        recorded
    }

    /// How fast budget burnt in the last `window`.
    pub fn burn(&self, window: Duration, now: Time, coverage: &Coverage) -> Burn {
        self.burn_between(now.minus(window), now, coverage)
    }

    /// How fast budget burnt from `start` to `now`.
    pub fn burn_between(&self, start: Time, now: Time, coverage: &Coverage) -> Burn {
        let counts = self.counts(start, now);
        let covered = coverage.ratio(start, now);
        let slices = self.slices.as_ref().map(|slices| {
            let (burnt, all) = slices.between(start, now);
            (burnt as f64 / SLICE_UNIT as f64, all as f64 * covered)
        });
        let rate = match slices {
            None => self.rate_of_events(start, now, |bad, total| (total > 0.0).then(|| bad / total)),
            Some((burnt, all)) => (all > 0.0).then(|| (burnt / all).min(1.0) / self.allowed_whole),
        };
        Burn { period: Period { start, end: now }, counts, slices, rate, coverage: covered }
    }

    /// The burn rate that the true one exceeds with a probability: `z` standard deviations below what was seen.
    pub(crate) fn lower_bound(&self, burn: &Burn, z: f64) -> f64 {
        self.bound(burn, |bad, total| Some(crate::alert::wilson(bad, total, z).0))
    }

    /// The burn rate that the true one stays below with a probability.
    pub(crate) fn upper_bound(&self, burn: &Burn, z: f64) -> f64 {
        self.bound(burn, |bad, total| Some(crate::alert::wilson(bad, total, z).1))
    }

    fn bound(&self, burn: &Burn, ratio: impl Fn(f64, f64) -> Option<f64>) -> f64 {
        match burn.slices {
            Some((burnt, all)) => ratio(burnt, all).unwrap_or(0.0) / self.allowed_whole,
            None => self.rate_of_events(burn.period.start, burn.period.end, ratio).unwrap_or(0.0),
        }
    }

    /// Sum over the parts of weight × ratio ÷ allowed ratio; `None` when no part has a ratio.
    fn rate_of_events(&self, start: Time, now: Time, ratio: impl Fn(f64, f64) -> Option<f64>) -> Option<f64> {
        let mut sum = None;
        for ((ledger, part), allowed) in self.ledgers.iter().zip(&self.objective.parts).zip(&self.allowed) {
            let counts = ledger.between(start, now);
            if let Some(ratio) = ratio(counts.bad as f64, counts.total() as f64) {
                *sum.get_or_insert(0.0) += part.weight * ratio / allowed;
            }
        }
        sum
    }

    /// Events of all parts from `start` to `now`.
    pub(crate) fn counts(&self, start: Time, now: Time) -> Counts {
        self.ledgers.iter().fold(Counts::default(), |sum, ledger| sum.plus(ledger.between(start, now)))
    }

    /// The budget of the period that `now` is in.
    pub fn budget(&self, now: Time, coverage: &Coverage) -> Budget {
        let period = self.objective.window.period(now);
        let burn = self.burn_between(period.start, now, coverage);
        let remaining = match burn.slices {
            None => 1.0 - burn.rate.unwrap_or(0.0),
            Some((burnt, _)) => {
                let slice = self.objective.budgeting.slice().unwrap_or(period.duration());
                let all = period.duration().as_secs_f64() / slice.as_secs_f64();
                1.0 - burnt / (all * self.allowed_whole)
            }
        };
        Budget { period, burn, achieved: burn.rate.map(|rate| 1.0 - rate * self.allowed_whole), remaining }
    }

    /// 1 − target of each part.
    pub(crate) fn allowed(&self) -> &[f64] {
        &self.allowed
    }

    /// 1 − target of the whole.
    pub(crate) const fn allowed_whole(&self) -> f64 {
        self.allowed_whole
    }

    /// Burnt slices in their smallest unit; `None` when events are counted instead.
    pub(crate) fn burnt_slices(&self, start: Time, now: Time) -> Option<f64> {
        self.slices.as_ref().map(|slices| slices.between(start, now).0 as f64)
    }

    /// When nothing is left, if it goes on burning at this rate; `None` when it lasts until the end of a calendar
    /// period, or does not burn.
    pub fn exhausted_in(&self, budget: &Budget, rate: f64) -> Option<Duration> {
        if budget.remaining <= 0.0 {
            return Some(Duration::ZERO);
        }
        if rate <= 0.0 {
            return None;
        }
        let seconds = budget.remaining * budget.period.duration().as_secs_f64() / rate;
        let left = Duration::try_from_secs_f64(seconds).ok()?;
        let ends = match self.objective.window {
            crate::window::Window::Rolling(_) => None,
            crate::window::Window::Calendar(_) => Some(budget.period.end.since(budget.burn.period.end)),
        };
        if ends.is_some_and(|ends| left > ends) { None } else { Some(left) }
    }

    /// Hands over every page of counts that changed since it was last asked.
    pub fn drain(&mut self, mut keep: impl FnMut(Page)) {
        for (part, ledger) in self.ledgers.iter_mut().enumerate() {
            ledger.drain(u16::try_from(part).unwrap_or(u16::MAX), &mut keep);
        }
        if let Some(slices) = &mut self.slices {
            slices.drain(&mut keep);
        }
    }

    /// Adds what an earlier process kept, in any order; all pages at once. What this process recorded stays.
    pub fn restore(&mut self, pages: &[Page], now: Time) {
        for (part, ledger) in self.ledgers.iter_mut().enumerate() {
            let own: Vec<&Page> = pages
                .iter()
                .filter(|page| {
                    usize::from(page.key.part) == part && page.key.series != crate::ledger::Series::Burn
                })
                .collect();
            ledger.restore(&own);
        }
        let newest = self.ledgers.iter().map(Ledger::newest).max().unwrap_or(now);
        self.ledgers.iter_mut().for_each(|ledger| ledger.advance(newest));
        if let Some(slices) = &mut self.slices {
            let oldest = self.ledgers.iter().map(Ledger::oldest_minute).max().unwrap_or(now);
            let newest = newest.max(now);
            let (objective, ledgers) = (&self.objective, &self.ledgers);
            let boundaries = slices.clone();
            slices.restore(pages, oldest, newest, |start| {
                let (start, end) = boundaries.slice(start);
                burn(objective, ledgers, start, end).unwrap_or(0)
            });
        }
    }

    /// A number that stays while stored counts mean the same: it changes with indicators and budgeting, not with
    /// targets of events, alerts or descriptions.
    pub fn fingerprint(&self) -> u64 {
        let coarse = Coarse::new(&self.objective.window, self.slices.is_some());
        let mut text = format!("{:?} {} {}", self.objective.budgeting, coarse.length, coarse.offset);
        for part in &self.objective.parts {
            text.push_str(&part.indicator.canonical());
            if self.slices.is_some() {
                text.push_str(&format!(" {:?} {}", part.slice_target, part.weight));
            }
        }
        // FNV-1a, which is the same everywhere and always.
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
    }

    /// Bytes that it takes.
    pub fn bytes(&self) -> usize {
        let ledgers: usize = self.ledgers.iter().map(Ledger::bytes).sum();
        size_of::<Self>() + ledgers + self.slices.as_ref().map_or(0, Slices::bytes)
    }
}

/// How much of a slice burns, in parts of [`SLICE_UNIT`]; `None` when its minutes are not held any more.
///
/// A slice without events burns nothing. In composites a slice is bad when it is for any part (Timeslices); what is
/// missing adds up, times the weights, to at most the whole (RatioTimeslices).
fn burn(objective: &Objective, ledgers: &[Ledger], start: Time, end: Time) -> Option<u64> {
    let mut burnt = 0_u64;
    for (ledger, part) in ledgers.iter().zip(&objective.parts) {
        let counts = ledger.minutes_between(start, end)?;
        match objective.budgeting {
            BudgetingMethod::Timeslices { .. } => {
                if !part.slice_target.is_reached(counts.good, counts.total()) {
                    burnt = SLICE_UNIT;
                }
            }
            BudgetingMethod::Occurrences | BudgetingMethod::RatioTimeslices { .. } => {
                if counts.bad > 0 {
                    let missing =
                        u128::from(counts.bad) * u128::from(SLICE_UNIT) / u128::from(counts.total());
                    burnt = burnt.saturating_add((missing as f64 * part.weight) as u64);
                }
            }
        }
    }
    Some(burnt.min(SLICE_UNIT))
}
