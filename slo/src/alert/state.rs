//! One arm over time: pending, firing, over.
//!
//! In: an account at a moment. Out: the arm's next state. Refuses to hang on after the errors have ended, and to
//! resolve for lack of observation.
//!
//! An arm fires when all its conditions hold and the evidence suffices ([`Gate`]). It is over when
//!
//! - a condition holds no more (the usual end of multi-window alerts), or
//! - **recovery**: in the last minute budget burnt surely slower than the threshold (the upper bound of Wilson's
//!   interval, 95 %), or no event was bad for 100 s although, at half of the ratio of the short window (or of the
//!   last 10 min, if higher), three would be expected; or
//! - nothing at all came for five minutes.
//!
//! Each needs observed time. Without the second rule an arm with a window of 30 min would go on for as long after
//! an outage. What burnt before an end of the
//! last two kinds does not count for the same arm again.

use std::time::Duration;

use super::arm::{Arm, Condition, Gate};
use super::confidence::quantile;
use crate::account::{Account, Burn};
use crate::coverage::Coverage;
use crate::ledger::Counts;
use crate::objective::BudgetingMethod;
use crate::time::Time;

/// Recovery looks back so far.
pub const RECENT: Duration = Duration::from_secs(60);
/// And so far for a run without a bad event.
pub const CLEAN: Duration = Duration::from_secs(100);
/// The ratio before such a run is that of the short window, or of this one if that is higher: a short outage is only a
/// small part of a window of six hours.
const BEFORE: Duration = Duration::from_secs(600);
/// Bad events that such a run would have had, at half of the ratio of before.
pub(crate) const EXPECTED: f64 = 3.0;
/// Without any event for so long an alert is over.
pub const QUIET: Duration = Duration::from_secs(300);
/// How sure a recovery must be.
pub(crate) const RECOVERY_CONFIDENCE: f64 = 0.95;
/// A window counts as looked at from this share on; beats come every second or so.
const LOOKED: f64 = 0.8;

/// What must be remembered of an arm.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ArmState {
    /// Conditions have held since.
    pub pending_since: Option<Time>,
    /// It has been firing since.
    pub firing_since: Option<Time>,
    /// It recovered then; events from before do not count any more.
    pub recovered_at: Option<Time>,
    /// It fires because events are missing.
    pub missing: bool,
}

/// Why an alert is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// A condition holds no more.
    BelowThreshold,
    /// The errors have ended.
    Recovered,
    /// No event came for five minutes.
    Quiet,
    /// Events come again, after an alert that they were missing.
    EventsAgain,
    /// The objective or its alert is no longer defined.
    Removed,
}

/// An account to be judged at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct View<'a> {
    pub(super) account: &'a Account,
    pub(super) coverage: &'a Coverage,
    pub(super) now: Time,
}

impl View<'_> {
    /// The next state of an arm, and why it ended if it did.
    pub(super) fn step(&self, arm: &Arm, state: &mut ArmState) -> Option<End> {
        let longest = arm.long().window;
        state.recovered_at = state.recovered_at.filter(|at| *at <= self.now && self.now.since(*at) < longest);
        if state.firing_since.is_some() {
            let end = self.end(arm, state)?;
            if matches!(end, End::Recovered | End::Quiet) {
                state.recovered_at = Some(self.now);
            }
            state.firing_since = None;
            state.pending_since = None;
            state.missing = false;
            return Some(end);
        }
        let missing = arm.when_no_data && self.is_missing(arm);
        let breaching = arm.when_breaching && self.holds(arm, state) && self.passes(arm, state);
        if !(missing || breaching) {
            state.pending_since = None;
            return None;
        }
        let since = *state.pending_since.get_or_insert(self.now);
        // A clock that went back begins the wait anew.
        if since > self.now {
            state.pending_since = Some(self.now);
        }
        if self.now.since(since) >= arm.after {
            state.firing_since = Some(self.now);
            state.missing = !breaching;
        }
        None
    }

    /// How fast it burns in a condition's window, as far as it counts for this arm.
    pub(super) fn burn(&self, condition: &Condition, state: &ArmState) -> Burn {
        let start = self.now.minus(condition.window);
        let start = match state.recovered_at {
            Some(at) if at > start => self.after(at),
            _ => start,
        };
        self.account.burn_between(start, self.now, self.coverage)
    }

    /// The first slot or slice that begins after a moment.
    fn after(&self, at: Time) -> Time {
        let length = self.account.objective().budgeting.slice().unwrap_or(Duration::from_secs(10));
        let length = i64::try_from(length.as_nanos()).expect("a slice is at most a day");
        Time::from_nanos(at.nanos().div_euclid(length).saturating_add(1).saturating_mul(length))
    }

    /// Cheap windows first: nearly always the shortest shows that all is well.
    fn holds(&self, arm: &Arm, state: &ArmState) -> bool {
        let mut conditions = arm.conditions.iter().rev();
        conditions.all(|condition| exceeds(condition, self.burn(condition, state).rate))
    }

    /// Whether the evidence suffices.
    fn passes(&self, arm: &Arm, state: &ArmState) -> bool {
        let Gate { min_bad, confidence } = arm.gate;
        let long = arm.long();
        let burn = self.burn(&long, state);
        burn.counts.bad >= min_bad
            && (confidence <= 0.0
                || exceeds(&long, Some(self.account.lower_bound(&burn, quantile(confidence)))))
    }

    /// Nothing came in the longest window, and it was observed.
    fn is_missing(&self, arm: &Arm) -> bool {
        let window = arm.long().window;
        self.looked(window) && self.counts(window).total() == 0
    }

    fn end(&self, arm: &Arm, state: &ArmState) -> Option<End> {
        if !self.looked(RECENT) {
            return None;
        }
        if state.missing {
            return (self.counts(arm.long().window).total() > 0).then_some(End::EventsAgain);
        }
        if self.is_below(arm, state) {
            Some(End::BelowThreshold)
        } else if self.has_recovered(arm, state) {
            Some(End::Recovered)
        } else if self.looked(QUIET) && self.counts(QUIET).total() == 0 {
            Some(End::Quiet)
        } else {
            None
        }
    }

    /// Whether a condition surely holds no more: there were events, and the time was observed.
    fn is_below(&self, arm: &Arm, state: &ArmState) -> bool {
        arm.conditions.iter().any(|condition| {
            let burn = self.burn(condition, state);
            burn.coverage >= LOOKED && burn.rate.is_some() && !exceeds(condition, burn.rate)
        })
    }

    fn has_recovered(&self, arm: &Arm, state: &ArmState) -> bool {
        let recent = self.account.burn(RECENT, self.now, self.coverage);
        let threshold =
            arm.conditions.iter().map(|condition| condition.threshold).fold(f64::INFINITY, f64::min);
        let z = quantile(RECOVERY_CONFIDENCE);
        let surely_slower = match self.account.objective().budgeting {
            BudgetingMethod::Occurrences => {
                recent.counts.total() > 0 && self.account.upper_bound(&recent, z) < threshold
            }
            // A slice that is bad stays bad until it ends; its events show sooner.
            BudgetingMethod::Timeslices { .. } => {
                let allowed = |part: &crate::objective::Part| part.slice_target.complement().as_f64();
                self.is_surely_below(recent.counts, self.least(allowed))
            }
            BudgetingMethod::RatioTimeslices { .. } => {
                let allowed = |part: &crate::objective::Part| part.target.complement().as_f64() * threshold;
                self.is_surely_below(recent.counts, self.least(allowed))
            }
        };
        surely_slower || self.is_clean(arm, state)
    }

    fn least(&self, of: impl Fn(&crate::objective::Part) -> f64) -> f64 {
        self.account.objective().parts.iter().map(of).fold(f64::INFINITY, f64::min)
    }

    fn is_surely_below(&self, counts: Counts, ratio: f64) -> bool {
        let z = quantile(RECOVERY_CONFIDENCE);
        counts.total() > 0 && super::confidence::wilson(counts.bad as f64, counts.total() as f64, z).1 < ratio
    }

    /// No bad event for a while, although some would be expected.
    fn is_clean(&self, arm: &Arm, state: &ArmState) -> bool {
        let clean = self.counts(CLEAN);
        let ratio = |counts: Counts| counts.bad as f64 / counts.total().max(1) as f64;
        let ratio = ratio(self.burn(&arm.short(), state).counts).max(ratio(self.counts(BEFORE)));
        clean.bad == 0 && self.looked(CLEAN) && clean.total() as f64 * ratio / 2.0 >= EXPECTED
    }

    fn counts(&self, window: Duration) -> Counts {
        self.account.counts(self.now.minus(window), self.now)
    }

    fn looked(&self, window: Duration) -> bool {
        self.coverage.ratio(self.now.minus(window), self.now) >= LOOKED
    }
}

/// Whether a burn rate is over a condition's threshold.
fn exceeds(condition: &Condition, rate: Option<f64>) -> bool {
    rate.is_some_and(|rate| {
        if condition.inclusive { rate >= condition.threshold } else { rate > condition.threshold }
    })
}
