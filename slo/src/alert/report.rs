//! What an alert reports.
//!
//! In: an account at a moment, and evidence that the caller collected. Out: numbers and text. Refuses to put numbers
//! into labels: an alert's labels are its identity.

use std::collections::BTreeMap;
use std::time::Duration;

use super::arm::{Condition, Gate};
use super::state::End;
use crate::account::{Budget, Burn};
use crate::duration::Short;
use crate::time::Time;

/// An alert that is firing, or has just ended, with its numbers.
#[derive(Clone, Debug, PartialEq)]
pub struct Alert {
    /// Index of the objective in the engine.
    pub objective: usize,
    /// [`Objective::name`](crate::Objective::name).
    pub name: String,
    /// [`Objective::service`](crate::Objective::service).
    pub service: String,
    /// Its severity.
    pub severity: String,
    /// When the incident began; the same until it ends.
    pub starts_at: Time,
    /// The arms that fire, or the ones that ended last.
    pub arms: Vec<FiringArm>,
    /// The budget of the current period.
    pub budget: Budget,
    /// When nothing is left, at the fastest burn rate of the arms' long windows.
    pub exhausted_in: Option<Duration>,
    /// Where notifications go (`target` of each notification target).
    pub targets: Vec<String>,
    /// Whether people asked to hear of the end (`alertWhenResolved`).
    pub when_resolved: bool,
}

/// One arm of an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct FiringArm {
    /// Its policy.
    pub policy: String,
    /// Each condition with the burn over its window, longest first.
    pub conditions: Vec<(Condition, Burn)>,
    /// What was asked of the evidence.
    pub gate: Gate,
    /// The burn rate over the longest window that the true one exceeds with the gate's confidence.
    pub lower_bound: f64,
    /// It fires because events are missing.
    pub missing: bool,
}

/// A change of an alert.
#[derive(Clone, Debug, PartialEq)]
pub struct Transition {
    /// When.
    pub at: Time,
    /// What.
    pub change: Change,
    /// The alert at that moment.
    pub alert: Alert,
}

/// What happened to an alert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It began.
    Fired,
    /// It is over.
    Resolved(End),
}

/// What the caller knows of the requests that burn; empty where nothing is known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Evidence {
    /// The route with most bad requests.
    pub worst_route: String,
    /// Trace ids of bad requests, newest first; three are shown.
    pub trace_ids: Vec<String>,
}

/// Trace ids that are shown.
const TRACES: usize = 3;

impl Alert {
    /// The alert's identity for Alertmanager: nothing in it changes during an incident.
    pub fn labels(&self) -> BTreeMap<String, String> {
        let labels = [
            ("alertname", "SLOBurnRate"),
            ("slo", &self.name),
            ("service", &self.service),
            ("severity", &self.severity),
        ];
        labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    /// Everything that a person needs to know.
    pub fn annotations(&self, evidence: &Evidence) -> BTreeMap<String, String> {
        let mut annotations = BTreeMap::new();
        let mut set = |name: &str, value: String| {
            if !value.is_empty() {
                annotations.insert(name.to_owned(), value);
            }
        };
        set("summary", self.summary());
        set("description", self.description());
        set("budget_remaining", format!("{:.2} %", self.budget.remaining * 100.0));
        set("exhausted_in", self.exhausted_in.map(remaining_time).unwrap_or_default());
        if let Some((condition, burn)) = self.worst() {
            set("burn_rate", burn.rate.map(|rate| format!("{rate:.1}")).unwrap_or_default());
            set("window", Short(condition.window).to_string());
            set("bad_events", burn.counts.bad.to_string());
            set("total_events", burn.counts.total().to_string());
        }
        set("evidence", self.evidence());
        set("worst_route", evidence.worst_route.clone());
        set("trace_ids", evidence.trace_ids.iter().take(TRACES).cloned().collect::<Vec<_>>().join(" "));
        annotations
    }

    /// The longest window of the arm that burns fastest.
    pub fn worst(&self) -> Option<&(Condition, Burn)> {
        let longest = self.arms.iter().filter_map(|arm| arm.conditions.first());
        longest.max_by(|(_, one), (_, other)| one.rate.unwrap_or(0.0).total_cmp(&other.rate.unwrap_or(0.0)))
    }

    fn summary(&self) -> String {
        match self.worst() {
            Some((condition, _)) if self.arms.iter().all(|arm| arm.missing) => {
                format!("{} of {}: no events for {}", self.name, self.service, Short(condition.window))
            }
            Some((condition, burn)) => format!(
                "{} of {} burns its error budget {:.1} times too fast: {} of {} bad in {}",
                self.name,
                self.service,
                burn.rate.unwrap_or(0.0),
                burn.counts.bad,
                burn.counts.total(),
                Short(condition.window)
            ),
            None => format!("{} of {}", self.name, self.service),
        }
    }

    fn description(&self) -> String {
        let mut sentences: Vec<String> = Vec::new();
        for arm in &self.arms {
            for (condition, burn) in &arm.conditions {
                let mut sentence = format!(
                    "{}: burn rate {} (threshold {:.2}), {} of {} bad",
                    Short(condition.window),
                    burn.rate.map_or_else(|| "unknown".to_owned(), |rate| format!("{rate:.2}")),
                    condition.threshold,
                    burn.counts.bad,
                    burn.counts.total()
                );
                if burn.coverage < 0.995 {
                    sentence.push_str(&format!(", {:.0} % of the window observed", burn.coverage * 100.0));
                }
                sentences.push(sentence);
            }
        }
        sentences.push(spent(self.budget.remaining));
        if let Some(left) = self.exhausted_in.filter(|left| !left.is_zero()) {
            sentences.push(format!("at this rate it is used up in {}", remaining_time(left)));
        }
        sentences.join("; ")
    }

    /// Why it is believed.
    fn evidence(&self) -> String {
        let arms = self.arms.iter().filter(|arm| !arm.missing && !arm.conditions.is_empty());
        let statement = |arm: &FiringArm| {
            let (condition, burn) = arm.conditions.first()?;
            let mut text = format!("{} bad events, at least {} needed", burn.counts.bad, arm.gate.min_bad);
            if arm.gate.confidence > 0.0 {
                text.push_str(&format!(
                    "; with {:.0} % confidence the burn rate over {} is above {:.2} (threshold {:.2})",
                    arm.gate.confidence * 100.0,
                    Short(condition.window),
                    arm.lower_bound,
                    condition.threshold
                ));
            }
            Some(text)
        };
        arms.filter_map(statement).next().unwrap_or_default()
    }
}

/// What is left of the budget, or how far it is overspent.
fn spent(remaining: f64) -> String {
    if remaining > 0.0 {
        return format!("budget left: {:.2} %", remaining * 100.0);
    }
    format!("the error budget is used up: {:.1} times as many were bad as it allows", 1.0 - remaining)
}

/// Two units at most: `3d 4h`, `12m`.
fn remaining_time(left: Duration) -> String {
    let seconds = left.as_secs();
    let (days, hours, minutes) = (seconds / 86_400, seconds / 3600 % 24, seconds / 60 % 60);
    match (days, hours, minutes) {
        (0, 0, 0) if left.is_zero() => "used up".to_owned(),
        (0, 0, 0) => "less than a minute".to_owned(),
        (0, 0, minutes) => format!("{minutes}m"),
        (0, hours, minutes) => format!("{hours}h {minutes}m"),
        (days, hours, _) => format!("{days}d {hours}h"),
    }
}
