//! How the budget of a period was spent along the time.
//!
//! In: the counts of an objective, and its budget now. Out: some moments of the period, oldest first, with what was
//! left of the budget. Refuses to guess: each moment says how much of the time before it was observed.

use crate::account::{Account, Budget};
use crate::coverage::Coverage;
use crate::ledger::SLICE_UNIT;
use crate::time::Time;

/// A moment of a period.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Moment {
    /// When it is.
    pub at: Time,
    /// Part of the period that has passed by then.
    pub elapsed: f64,
    /// What was left of the budget, 1 when nothing was used.
    ///
    /// The budget is that of now: of events, the allowed share of all events so far. So it never rises, and ends with
    /// [`Budget::remaining`].
    pub remaining: f64,
    /// The share of the time since the moment before that was observed.
    pub coverage: f64,
}

impl Account {
    /// The period of a budget until its end or now, in so many steps of the same length. Counts are held by the hour:
    /// a step that is shorter can show up to an hour early what was spent days ago.
    pub fn burn_down(&self, budget: &Budget, coverage: &Coverage, steps: u32) -> Vec<Moment> {
        let (start, now) = (budget.period.start, budget.burn.period.end);
        let (passed, whole) = (now.since(start), budget.period.duration());
        let mut moments: Vec<Moment> = Vec::with_capacity(steps as usize);
        let (mut before, mut spent) = (start, 0.0_f64);
        for step in 1..=steps {
            let at = if step == steps {
                now
            } else {
                start.plus(passed.mul_f64(f64::from(step) / f64::from(steps)))
            };
            // What is held by the hour and what is held by the minute do not begin at one moment.
            spent = spent.max(self.spent(budget, at));
            moments.push(Moment {
                at,
                elapsed: if whole.is_zero() {
                    1.0
                } else {
                    at.since(start).as_secs_f64() / whole.as_secs_f64()
                },
                remaining: 1.0 - spent,
                coverage: coverage.ratio(before, at),
            });
            before = at;
        }
        moments
    }

    /// The part of the budget of now that was spent by then.
    fn spent(&self, budget: &Budget, at: Time) -> f64 {
        let start = budget.period.start;
        match self.burnt_slices(start, at) {
            None => self.spent_by_events(budget, at),
            Some(burnt) => {
                let slice = self.objective().budgeting.slice().unwrap_or(budget.period.duration());
                let all = budget.period.duration().as_secs_f64() / slice.as_secs_f64();
                burnt / SLICE_UNIT as f64 / (all * self.allowed_whole())
            }
        }
    }

    fn spent_by_events(&self, budget: &Budget, at: Time) -> f64 {
        let (start, now) = (budget.period.start, budget.burn.period.end);
        let parts = self.ledgers().iter().zip(&self.objective().parts).zip(self.allowed());
        let spent = parts.map(|((ledger, part), allowed)| {
            let (bad, total) = (ledger.between(start, at).bad, ledger.between(start, now).total());
            if total == 0 { 0.0 } else { part.weight * bad as f64 / total as f64 / allowed }
        });
        spent.sum()
    }
}
