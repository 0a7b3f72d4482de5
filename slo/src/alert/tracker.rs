//! All alerts of one objective.
//!
//! In: its account at a moment. Out: transitions. Refuses to know where they go.

use super::arm::Arm;
use super::confidence::quantile;
use super::report::{Alert, Change, FiringArm, Transition};
use super::state::{ArmState, View};
use crate::account::Account;
use crate::coverage::Coverage;
use crate::time::Time;

/// States of an objective's arms, and since when its alerts have been firing.
#[derive(Clone, Debug, Default)]
pub(crate) struct AlertTracker {
    /// As the objective's arms.
    states: Vec<ArmState>,
    /// Severities with the start of their incident.
    firing: Vec<(String, Time)>,
}

/// What is to be kept of one arm over restarts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SavedArm {
    /// Name of the objective.
    pub objective: String,
    /// Severity of the alert.
    pub severity: String,
    /// Name of the policy.
    pub policy: String,
    /// Number of the arm within its objective.
    pub arm: u32,
    /// Start of the incident that the alert is in, if it is firing.
    pub starts_at: Option<Time>,
    /// The arm itself.
    pub state: ArmState,
}

impl AlertTracker {
    pub(crate) fn new(arms: usize) -> Self {
        Self { states: vec![ArmState::default(); arms], firing: Vec::new() }
    }

    /// Moves every arm on; at most one transition for each severity.
    pub(crate) fn evaluate(
        &mut self,
        objective: usize,
        account: &Account,
        coverage: &Coverage,
        now: Time,
        transitions: &mut Vec<Transition>,
    ) {
        let view = View { account, coverage, now };
        let arms = &account.objective().arms;
        for (at, arm) in arms.iter().enumerate() {
            let before = self.states[at];
            let end = view.step(arm, &mut self.states[at]);
            let after = self.states[at];
            let started = self.firing.iter().position(|(severity, _)| *severity == arm.severity);
            match (started, end) {
                (None, _) if after.firing_since.is_some() => {
                    self.firing.push((arm.severity.clone(), now));
                    let alert = self.alert(objective, &view, &arm.severity, now, None);
                    transitions.push(Transition { at: now, change: Change::Fired, alert });
                }
                (Some(known), Some(end)) if !self.is_firing(arms, &arm.severity) => {
                    let (severity, starts_at) = self.firing.remove(known);
                    let alert = self.alert(objective, &view, &severity, starts_at, Some((at, before)));
                    transitions.push(Transition { at: now, change: Change::Resolved(end), alert });
                }
                _ => {}
            }
        }
    }

    fn is_firing(&self, arms: &[Arm], severity: &str) -> bool {
        let mut pairs = arms.iter().zip(&self.states);
        pairs.any(|(arm, state)| arm.severity == severity && state.firing_since.is_some())
    }

    /// Alerts that are firing, with their numbers at this moment.
    pub(crate) fn firing(
        &self,
        objective: usize,
        account: &Account,
        coverage: &Coverage,
        now: Time,
    ) -> Vec<Alert> {
        let view = View { account, coverage, now };
        self.firing
            .iter()
            .map(|(severity, start)| self.alert(objective, &view, severity, *start, None))
            .collect()
    }

    /// Severities that are firing, with the start of their incident.
    pub(crate) fn severities(&self) -> &[(String, Time)] {
        &self.firing
    }

    /// The alert of a severity; `ended` is its last arm with the state before it ended.
    fn alert(
        &self,
        objective: usize,
        view: &View<'_>,
        severity: &str,
        starts_at: Time,
        ended: Option<(usize, ArmState)>,
    ) -> Alert {
        let account = view.account;
        let all = &account.objective().arms;
        let reported: Vec<(&Arm, ArmState)> = match ended {
            Some((at, state)) => vec![(&all[at], state)],
            None => {
                let pairs = all.iter().zip(&self.states);
                let firing = |(arm, state): &(&Arm, &ArmState)| {
                    arm.severity == severity && state.firing_since.is_some()
                };
                pairs.filter(firing).map(|(arm, state)| (arm, *state)).collect()
            }
        };
        let arms: Vec<FiringArm> = reported.iter().map(|(arm, state)| firing_arm(view, arm, state)).collect();
        let budget = account.budget(view.now, view.coverage);
        let fastest = arms.iter().filter_map(|arm| arm.conditions.first()?.1.rate).fold(0.0, f64::max);
        let mut targets: Vec<String> = reported.iter().flat_map(|(arm, _)| arm.targets.clone()).collect();
        targets.sort_unstable();
        targets.dedup();
        Alert {
            objective,
            name: account.objective().name.clone(),
            service: account.objective().service.clone(),
            severity: severity.to_owned(),
            starts_at,
            exhausted_in: account.exhausted_in(&budget, fastest),
            budget,
            when_resolved: reported.iter().any(|(arm, _)| arm.when_resolved),
            arms,
            targets,
        }
    }

    /// What is to be kept: arms that are not at rest.
    pub(crate) fn save<'a>(&'a self, account: &'a Account) -> impl Iterator<Item = SavedArm> + 'a {
        let objective = account.objective();
        let pairs = objective.arms.iter().zip(&self.states).enumerate();
        pairs.filter(|(_, (_, state))| **state != ArmState::default()).map(|(at, (arm, state))| SavedArm {
            objective: objective.name.clone(),
            severity: arm.severity.clone(),
            policy: arm.policy.clone(),
            arm: u32::try_from(at).unwrap_or(u32::MAX),
            starts_at: self.firing.iter().find(|(severity, _)| *severity == arm.severity).map(|(_, at)| *at),
            state: *state,
        })
    }

    /// Takes over what an earlier process kept; `false` when there is no such arm any more.
    pub(crate) fn restore(&mut self, account: &Account, saved: &SavedArm) -> bool {
        let arms = &account.objective().arms;
        let at = usize::try_from(saved.arm).unwrap_or(usize::MAX);
        let same = |arm: &&Arm| arm.severity == saved.severity && arm.policy == saved.policy;
        if arms.get(at).filter(same).is_none() {
            return false;
        }
        self.states[at] = saved.state;
        if let Some(since) = saved.state.firing_since {
            let starts_at = saved.starts_at.unwrap_or(since);
            match self.firing.iter_mut().find(|(severity, _)| *severity == saved.severity) {
                Some((_, known)) => *known = starts_at.min(*known),
                None => self.firing.push((saved.severity.clone(), starts_at)),
            }
        }
        true
    }
}

fn firing_arm(view: &View<'_>, arm: &Arm, state: &ArmState) -> FiringArm {
    let conditions: Vec<_> =
        arm.conditions.iter().map(|condition| (*condition, view.burn(condition, state))).collect();
    let longest = conditions.first().map(|(_, burn)| burn);
    let z = quantile(arm.gate.confidence);
    FiringArm {
        policy: arm.policy.clone(),
        gate: arm.gate,
        lower_bound: longest.map_or(0.0, |burn| view.account.lower_bound(burn, z)),
        missing: state.missing,
        conditions,
    }
}
