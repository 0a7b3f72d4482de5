//! All objectives together: events in, alerts out.
//!
//! In: events, and the time once a second. Out: transitions of alerts, and the state of everything on request.
//! Refuses to know a clock, a thread or a disk.

use std::time::Duration;

use crate::account::{Account, Budget, Burn};
use crate::alert::{Alert, AlertTracker, SavedArm, Transition};
use crate::classifiers::{Classifiers, Target};
use crate::coverage::Coverage;
use crate::indicator::Outcome;
use crate::ledger::{Counts, Page, Recorded};
use crate::objective::Objective;
use crate::time::Time;

/// Events may end so long after the last time that is known; later ones have a wrong clock.
const LEAD: Duration = Duration::from_secs(3600);
/// Observed time is remembered for so long: the longest period and a bit.
const MEMORY: Duration = Duration::from_secs(400 * 86_400);

/// Counts, budgets and alerts of many objectives.
///
/// One owner calls it: [`Self::record`] for every event, [`Self::evaluate`] every second. The calls of `evaluate` are
/// also the heart beat; time without them is a gap, and so is the time between the last kept heart beat and the first
/// one of a new process.
#[derive(Clone, Debug)]
pub struct Engine {
    tracked: Vec<Tracked>,
    coverage: Coverage,
    clock: Time,
}

#[derive(Clone, Debug)]
struct Tracked {
    account: Account,
    tracker: AlertTracker,
}

/// An objective at a moment.
#[derive(Clone, Debug, PartialEq)]
pub struct Status {
    /// The budget of its period.
    pub budget: Budget,
    /// When nothing is left, at the burn rate of the last hour (or the shorter period).
    pub exhausted_in: Option<Duration>,
    /// Burn over each window of its arms, shortest first, and over the last hour.
    pub windows: Vec<(Duration, Burn)>,
    /// Alerts that are firing.
    pub firing: Vec<Alert>,
    /// Events that this process counted.
    pub counted: Counts,
}

impl Engine {
    /// Tracks those objectives that count events; queries to other systems are left out. `now` is the first heart beat.
    pub fn new(objectives: Vec<Objective>, now: Time) -> Self {
        let tracked = objectives.into_iter().filter(Objective::counts_events).map(|objective| Tracked {
            tracker: AlertTracker::new(objective.arms.len()),
            account: Account::new(objective, now),
        });
        let mut coverage = Coverage::default();
        coverage.beat(now);
        Self { tracked: tracked.collect(), coverage, clock: now }
    }

    /// How many objectives are tracked; their indices are smaller.
    pub fn len(&self) -> usize {
        self.tracked.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.tracked.is_empty()
    }

    /// The tracked objectives, by index.
    pub fn accounts(&self) -> impl ExactSizeIterator<Item = &Account> {
        self.tracked.iter().map(|tracked| &tracked.account)
    }

    /// One of them.
    pub fn account(&self, objective: usize) -> Option<&Account> {
        self.tracked.get(objective).map(|tracked| &tracked.account)
    }

    /// Verdicts over events, to be used wherever events are.
    pub fn classifiers(&self) -> Classifiers {
        Classifiers::new(self.tracked.iter().map(|tracked| tracked.account.objective()))
    }

    /// Counts one event that ended at `at`.
    pub fn record(&mut self, target: Target, at: Time, outcome: Outcome) -> Recorded {
        self.record_n(target, at, Counts::one(outcome))
    }

    /// Counts events that ended at the same moment.
    pub fn record_n(&mut self, target: Target, at: Time, counts: Counts) -> Recorded {
        if at > self.clock.plus(LEAD) {
            return Recorded::TooEarly;
        }
        match self.tracked.get_mut(target.objective) {
            Some(tracked) => tracked.account.record(target.part, at, counts),
            None => Recorded::TooLate,
        }
    }

    /// The heart beat: what changed by now. Call it about every second.
    pub fn evaluate(&mut self, now: Time) -> Vec<Transition> {
        self.coverage.beat(now);
        self.clock = now;
        self.coverage.forget(now.minus(MEMORY));
        let mut transitions = Vec::new();
        for (objective, tracked) in self.tracked.iter_mut().enumerate() {
            let Tracked { account, tracker } = tracked;
            tracker.evaluate(objective, account, &self.coverage, now, &mut transitions);
        }
        transitions
    }

    /// Events were observed from `start` to before `end`, which need not be now: for counts that come from elsewhere.
    pub fn observe(&mut self, start: Time, end: Time) {
        self.coverage.observe(start, end);
        self.clock = self.clock.max(end);
    }

    /// When events were observed, to be kept over restarts.
    pub const fn coverage(&self) -> &Coverage {
        &self.coverage
    }

    /// Alerts that are firing, with their numbers at this moment.
    pub fn firing(&self, now: Time) -> Vec<Alert> {
        let alerts = self.tracked.iter().enumerate().flat_map(|(objective, tracked)| {
            tracked.tracker.firing(objective, &tracked.account, &self.coverage, now)
        });
        alerts.collect()
    }

    /// Whether an alert of this severity is firing, and since when.
    pub fn firing_since(&self, objective: usize, severity: &str) -> Option<Time> {
        let tracker = &self.tracked.get(objective)?.tracker;
        tracker.severities().iter().find(|(known, _)| known == severity).map(|(_, since)| *since)
    }

    /// Everything about one objective.
    pub fn status(&self, objective: usize, now: Time) -> Option<Status> {
        const HOUR: Duration = Duration::from_secs(3600);
        let tracked = self.tracked.get(objective)?;
        let account = &tracked.account;
        let budget = account.budget(now, &self.coverage);
        let recent = HOUR.min(account.objective().window.duration());
        let arms = account.objective().arms.iter();
        let mut windows: Vec<Duration> =
            arms.flat_map(|arm| arm.conditions.iter().map(|condition| condition.window)).collect();
        windows.push(recent);
        windows.sort_unstable();
        windows.dedup();
        let windows: Vec<(Duration, Burn)> =
            windows.into_iter().map(|window| (window, account.burn(window, now, &self.coverage))).collect();
        let rate = windows.iter().find(|(window, _)| *window == recent).and_then(|(_, burn)| burn.rate);
        Some(Status {
            exhausted_in: account.exhausted_in(&budget, rate.unwrap_or(0.0)),
            firing: tracked.tracker.firing(objective, account, &self.coverage, now),
            counted: account.counted(),
            budget,
            windows,
        })
    }

    /// Hands over every page of counts that changed since it was last asked, with the index of its objective.
    pub fn drain(&mut self, mut keep: impl FnMut(usize, Page)) {
        for (objective, tracked) in self.tracked.iter_mut().enumerate() {
            tracked.account.drain(|page| keep(objective, page));
        }
    }

    /// Adds the counts that an earlier process kept of one objective, all pages at once. It may come at any time:
    /// what this process counted stays.
    pub fn restore(&mut self, objective: usize, pages: &[Page]) {
        if let Some(tracked) = self.tracked.get_mut(objective) {
            tracked.account.restore(pages, self.clock);
        }
    }

    /// When an earlier process looked.
    pub fn restore_coverage(&mut self, intervals: impl IntoIterator<Item = (Time, Time)>) {
        self.coverage.restore(intervals);
    }

    /// States of all arms that are not at rest, to be kept over restarts.
    pub fn save_arms(&self) -> Vec<SavedArm> {
        self.tracked.iter().flat_map(|tracked| tracked.tracker.save(&tracked.account)).collect()
    }

    /// Takes over states that an earlier process kept. Returns those whose objective or arm is no more: where
    /// `starts_at` is set, their alerts are to be resolved by their sender.
    pub fn restore_arms(&mut self, saved: Vec<SavedArm>) -> Vec<SavedArm> {
        saved.into_iter().filter(|saved| !self.restore_arm(saved)).collect()
    }

    fn restore_arm(&mut self, saved: &SavedArm) -> bool {
        let mut tracked = self.tracked.iter_mut();
        let named = tracked.find(|tracked| tracked.account.objective().name == saved.objective);
        named.is_some_and(|Tracked { account, tracker }| tracker.restore(account, saved))
    }

    /// Bytes that counts take.
    pub fn bytes(&self) -> usize {
        self.tracked.iter().map(|tracked| tracked.account.bytes()).sum()
    }
}
