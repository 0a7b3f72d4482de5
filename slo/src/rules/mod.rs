//! Rules for a fleet: what every agent counts for itself, summed by Prometheus, Mimir or Thanos.
//!
//! In: [`Objective`]s. Out: recording and alerting rules over `slo_events_total`, and tests of them for
//! `promtool test rules`. Refuses to average ratios, to extrapolate, and what Prometheus 2.42 cannot read.
//!
//! What holds for every objective:
//!
//! - Counts of all machines are summed, then divided once. Long windows are sums of recorded counts.
//! - An event that a machine exposed is counted once, whether its series was just born, the agent restarted, or the
//!   machine is gone by now (see the module `counter`). So counts are integers.
//! - No traffic is a burn rate of 0. No machine is no result. Nothing is `NaN`.
//! - Alerts ask for the same evidence as the agent's own.

mod alert;
mod counter;
mod file;
mod proof;
mod record;
mod source;

pub use self::alert::{BURN_ALERT, NO_DATA_ALERT};
pub use self::counter::{GAP, Timing};
pub use self::file::{Group, Labels, Rule, RuleFile};
pub use self::proof::tests;
pub(crate) use self::record::escape;
pub use self::record::{
    BAD_RATIO_UPPER_BOUND, BUDGET_REMAINING, BURN_RATE, BURN_RATE_LOWER_BOUND, EVENTS, OBJECTIVE,
    PERIOD_COVERAGE, SLICE_ERROR, step_events,
};
pub use self::source::Counters;

use crate::objective::Objective;
use crate::openslo::{Finding, Severity};
use crate::window::Window;

/// What could be made, and what is missing.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Generated {
    /// The rules.
    pub file: RuleFile,
    /// Objectives without rules, or without some of them, and what to write instead.
    pub findings: Vec<Finding>,
}

/// Makes the rules of all objectives.
pub fn generate(objectives: &[Objective], timing: Timing) -> Generated {
    let mut generated = Generated::default();
    for objective in objectives {
        match Counters::of(objective) {
            Ok(counters) => {
                generated.file.groups.extend(groups(objective, &counters, timing));
                generated.findings.extend(without_budget(objective));
            }
            Err(finding) => generated.findings.push(finding),
        }
    }
    generated
}

/// Alerts come after what they compare, in one group: they see the counts of the same moment.
fn groups(objective: &Objective, counters: &Counters, timing: Timing) -> [Group; 2] {
    let mut fast = record::fast_group(objective, counters, timing);
    fast.rules.extend(alert::rules(objective, timing));
    [fast, record::period_group(objective, timing)]
}

fn without_budget(objective: &Objective) -> Option<Finding> {
    matches!(objective.window, Window::Calendar(_)).then(|| Finding {
        place: objective.place.clone(),
        severity: Severity::Note,
        what: format!("no rule for the budget of {}: PromQL knows no time zones", objective.name),
        instead: "ask `obi slo evaluate`, or write a rolling window".to_owned(),
    })
}
