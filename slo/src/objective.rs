//! What is promised: the checked, executable form of an OpenSLO SLO.
//!
//! In: fields read by [`crate::openslo`]. Out: values that the engine, the rule generator and the agent work with.
//! Refuses to know text, and what an event is beyond its [`Indicator`].

use std::collections::BTreeMap;
use std::time::Duration;

use crate::alert::Arm;
use crate::indicator::Indicator;
use crate::openslo::Place;
use crate::ratio::Ratio;
use crate::window::Window;

/// One objective: what is good, how much of it is promised, over which time.
///
/// An OpenSLO SLO with several objectives gives one of these for each, unless the objectives have indicators of their
/// own: then it is a composite, one `Objective` with several [`Part`]s.
#[derive(Clone, Debug, PartialEq)]
pub struct Objective {
    /// Unique among all objectives that were read together, the `slo` label everywhere. The SLO's name; where an SLO
    /// has several objectives, followed by `-` and the objective's display name in lower case and dashes, or its
    /// number from 1.
    pub name: String,
    /// Name of the OpenSLO object.
    pub slo: String,
    /// For people; empty when absent.
    pub display_name: String,
    /// The service that it is promised for, the `service` label everywhere.
    pub service: String,
    /// For people; empty when absent.
    pub description: String,
    /// The SLO's labels, each with all its values.
    pub labels: BTreeMap<String, Vec<String>>,
    /// The SLO's annotations.
    pub annotations: BTreeMap<String, String>,
    /// One, or those of a composite. Never empty.
    pub parts: Vec<Part>,
    /// How events become used budget.
    pub budgeting: BudgetingMethod,
    /// The period that the budget is for.
    pub window: Window,
    /// All alert conditions; those of one severity are one alert.
    pub arms: Vec<Arm>,
    /// Where it is written.
    pub place: Place,
}

/// An indicator and its target; a composite has several.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Name of the indicator, or of the objective.
    pub name: String,
    /// What is good.
    pub indicator: Indicator,
    /// The promised ratio, in `[0, 1)`.
    pub target: Ratio,
    /// Timeslices only: the ratio that makes a slice good, in `(0, 1]`. One with the other methods.
    pub slice_target: Ratio,
    /// By how much its burn counts in a composite; 1 elsewhere.
    pub weight: f64,
}

/// How events become used budget (OpenSLO `budgetingMethod`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BudgetingMethod {
    /// Bad events of all events.
    Occurrences,
    /// Bad slices of all slices; a slice is good when its ratio reaches [`Part::slice_target`].
    Timeslices {
        /// Length of a slice, a multiple of a minute.
        slice: Duration,
    },
    /// The mean of the slices' ratios.
    RatioTimeslices {
        /// Length of a slice, a multiple of a minute.
        slice: Duration,
    },
}

impl BudgetingMethod {
    /// Length of a slice; `None` where events are counted.
    pub const fn slice(self) -> Option<Duration> {
        match self {
            Self::Occurrences => None,
            Self::Timeslices { slice } | Self::RatioTimeslices { slice } => Some(slice),
        }
    }
}

impl Objective {
    /// The promised ratio; of a composite the strictest of its parts'.
    pub fn target(&self) -> Ratio {
        let stricter = |one: Ratio, other: Ratio| {
            let (a, b) = (u128::from(one.numerator()), u128::from(other.numerator()));
            if a * u128::from(other.denominator()) >= b * u128::from(one.denominator()) { one } else { other }
        };
        let targets = self.parts.iter().map(|part| part.target);
        targets.reduce(stricter).expect("an objective has at least one part")
    }

    /// Whether it has indicators of its own for each part.
    pub fn is_composite(&self) -> bool {
        self.parts.len() > 1
    }

    /// Whether all its indicators select events of the agent, so that an [`crate::Engine`] can count it.
    pub fn counts_events(&self) -> bool {
        self.parts.iter().all(|part| matches!(part.indicator, Indicator::Events(_)))
    }
}
