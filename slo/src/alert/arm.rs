//! One way in which an alert can fire.
//!
//! In: the conditions of a policy, or a line of the default table. Out: plain values. Refuses to evaluate.

use std::time::Duration;

use crate::openslo::Place;

/// Conditions that must hold together for an alert of one severity to fire. An alert fires when any of its arms does.
#[derive(Clone, Debug, PartialEq)]
pub struct Arm {
    /// `page`, `ticket`, or whatever the condition's `severity` says. All arms of an objective with the same severity
    /// are one alert.
    pub severity: String,
    /// Name of the policy; `default` for lines of the default table.
    pub policy: String,
    /// Where it comes from.
    pub source: Source,
    /// All of these hold, each over its window. The first has the longest window.
    pub conditions: Vec<Condition>,
    /// They must have held for so long.
    pub after: Duration,
    /// What must be there before they are believed.
    pub gate: Gate,
    /// Whether breaching fires (`alertWhenBreaching`).
    pub when_breaching: bool,
    /// Whether people want to hear of the end (`alertWhenResolved`).
    pub when_resolved: bool,
    /// Whether missing events fire (`alertWhenNoData`).
    pub when_no_data: bool,
    /// `target` of each notification target.
    pub targets: Vec<String>,
    /// For people; empty when absent.
    pub description: String,
}

/// A burn rate that is too high over a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Condition {
    /// Events of the last so much time.
    pub window: Duration,
    /// The burn rate: 1 uses exactly the budget in exactly the period.
    pub threshold: f64,
    /// Whether a burn rate of exactly the threshold is too high already.
    pub inclusive: bool,
}

/// Least evidence, so that one failed request in a quiet night does not page.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gate {
    /// At least so many bad events in the longest window.
    pub min_bad: u64,
    /// How sure it must be that the true ratio is over the threshold, one-sided: the lower bound of Wilson's interval
    /// over the longest window lies above it. 0 switches this off.
    pub confidence: f64,
}

impl Default for Gate {
    fn default() -> Self {
        Self { min_bad: 5, confidence: 0.95 }
    }
}

/// Where an arm is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The SRE workbook's table, scaled to the period.
    Table,
    /// A policy in a file.
    Policy(Place),
}

impl Arm {
    /// The longest window, which the evidence is taken from.
    pub fn long(&self) -> Condition {
        self.conditions.first().copied().expect("an arm has at least one condition")
    }

    /// The shortest window.
    pub fn short(&self) -> Condition {
        self.conditions.last().copied().expect("an arm has at least one condition")
    }
}
