//! Alerting rules: the conditions of an objective's arms over the fleet's burn rates.
//!
//! In: an [`Objective`]. Out: rules whose labels are an identity and whose annotations carry the numbers. Refuses to
//! send anything without the evidence that the arm asks for.

use std::time::Duration;

use super::counter::Timing;
use super::file::{Labels, Rule, short};
use super::record::{
    BAD_RATIO_UPPER_BOUND, BUDGET_REMAINING, BURN_RATE, BURN_RATE_LOWER_BOUND, EVENTS, budget, counts,
    identity, matching, step_events,
};
use crate::alert::{Arm, CLEAN, Condition, EXPECTED, QUIET, RECENT};
use crate::indicator::Outcome;
use crate::objective::{BudgetingMethod, Objective};
use crate::window::Window;

/// Name of every alert that a burn rate makes.
pub const BURN_ALERT: &str = "SLOErrorBudgetBurn";
/// Name of every alert that silence makes.
pub const NO_DATA_ALERT: &str = "SLONoData";

/// Alerts of one objective.
pub(super) fn rules(objective: &Objective, timing: Timing) -> Vec<Rule> {
    let mut rules = burn_alerts(objective);
    rules.extend(
        objective.arms.iter().find(|arm| arm.when_no_data).map(|arm| no_data(objective, arm, timing)),
    );
    rules
}

/// One rule per severity and waiting time; arms that share both are alternatives of one alert.
fn burn_alerts(objective: &Objective) -> Vec<Rule> {
    let mut alternatives: Vec<Vec<&Arm>> = Vec::new();
    for arm in objective.arms.iter().filter(|arm| arm.when_breaching) {
        let same = |arms: &&mut Vec<&Arm>| arms[0].severity == arm.severity && arms[0].after == arm.after;
        match alternatives.iter_mut().find(same) {
            Some(arms) => arms.push(arm),
            None => alternatives.push(vec![arm]),
        }
    }
    alternatives.iter().map(|arms| burn_alert(objective, arms)).collect()
}

fn burn_alert(objective: &Objective, arms: &[&Arm]) -> Rule {
    let first = arms[0];
    let any: Vec<String> = arms.iter().map(|arm| fires(objective, arm)).collect();
    Rule::Alert {
        alert: BURN_ALERT.to_owned(),
        expr: format!("max without (window) (\n{}\n)", any.join("\n  or\n")),
        after: wait(first.after),
        labels: identity_of(objective, first),
        annotations: annotations(objective, arms),
    }
}

/// All conditions of an arm, and its evidence. The value is the burn rate over its longest window.
fn fires(objective: &Objective, arm: &Arm) -> String {
    let mut all: Vec<String> = arm.conditions.iter().map(|condition| exceeds(objective, condition)).collect();
    let window = short(arm.long().window);
    if arm.gate.min_bad > 1 {
        let bad = matching(objective, &[("window", &window), ("outcome", "bad")]);
        all.push(format!("{EVENTS}{bad} >= {}", arm.gate.min_bad));
    }
    if arm.gate.confidence > 0.0 {
        let confidence = arm.gate.confidence.to_string();
        let bound = matching(objective, &[("window", &window), ("confidence", &confidence)]);
        all.push(format!("{BURN_RATE_LOWER_BOUND}{bound} > {}", arm.long().threshold));
    }
    let and = all.join("\n    and on (slo)\n  ");
    let unless = recovered(objective, arm).join("\n    unless on (slo)\n  ");
    format!("  {and}\n    unless on (slo)\n  {unless}")
}

/// Each shows that the errors have ended, though the windows still remember them: the last minute was surely better
/// than the threshold; no event was bad for a while though some would have been; or nothing came at all.
fn recovered(objective: &Objective, arm: &Arm) -> [String; 3] {
    let least = arm.conditions.iter().map(|condition| condition.threshold).fold(f64::INFINITY, f64::min);
    let allowed = match objective.budgeting {
        BudgetingMethod::Occurrences | BudgetingMethod::RatioTimeslices { .. } => budget(objective) * least,
        BudgetingMethod::Timeslices { .. } => objective.parts[0].slice_target.complement().as_f64(),
    };
    let recent = matching(objective, &[("window", &short(RECENT))]);
    let [bad, all] = [Some(Outcome::Bad), None].map(|outcome| counts(objective, CLEAN, outcome));
    let [bad_before, before] =
        [Some(Outcome::Bad), None].map(|outcome| counts(objective, arm.short().window, outcome));
    let unlikely = format!(
        "{all}\n      * ignoring (window) {bad_before}\n      / ignoring (window) {before} / 2 >= {EXPECTED}"
    );
    [
        format!("{BAD_RATIO_UPPER_BOUND}{recent} < {allowed}"),
        format!("({bad} == 0 and on (slo) {unlikely})"),
        format!("{} == 0", counts(objective, QUIET, None)),
    ]
}

fn exceeds(objective: &Objective, condition: &Condition) -> String {
    let series = matching(objective, &[("window", &short(condition.window))]);
    let operator = if condition.inclusive { ">=" } else { ">" };
    format!("{BURN_RATE}{series} {operator} {}", condition.threshold)
}

fn annotations(objective: &Objective, arms: &[&Arm]) -> Labels {
    let name = if objective.display_name.is_empty() { &objective.name } else { &objective.display_name };
    let summary = format!(
        "{name} of {} burns its error budget {{{{ $value | printf \"%.1f\" }}}} times faster than it lasts",
        objective.service
    );
    let counted: Vec<String> = arms.iter().map(|arm| bad_and_good(objective, arm.long().window)).collect();
    let description = format!(
        "All machines together: {}.\nThe objective is {} over {}.",
        counted.join("; "),
        objective.target(),
        objective.window
    );
    let evidence: Vec<String> = arms.iter().map(|arm| evidence(arm)).collect();
    let mut annotations = Labels::from([
        ("summary".to_owned(), summary),
        ("description".to_owned(), description),
        ("evidence".to_owned(), evidence.join("; or ")),
    ]);
    if let Window::Rolling(period) = objective.window {
        annotations.insert("time_to_exhaustion".to_owned(), time_to_exhaustion(objective, arms[0], period));
    }
    if !arms[0].description.is_empty() {
        annotations.insert("policy".to_owned(), arms[0].description.clone());
    }
    annotations
}

fn bad_and_good(objective: &Objective, window: Duration) -> String {
    let window = short(window);
    let [bad, good] = ["bad", "good"].map(|outcome| {
        let series = matching(objective, &[("window", &window), ("outcome", outcome)]);
        ask(&format!("{EVENTS}{series}"), "printf \"%.0f\"", "0")
    });
    format!("{bad} bad and {good} good events in {window}")
}

/// At the burn rate over the longest window of an arm.
fn time_to_exhaustion(objective: &Objective, arm: &Arm, period: Duration) -> String {
    let burn_rate = matching(objective, &[("window", &short(arm.long().window))]);
    let query = format!(
        "clamp_min({BUDGET_REMAINING}{}, 0) * {} / on (slo) {BURN_RATE}{burn_rate}",
        matching(objective, &[]),
        period.as_secs()
    );
    ask(&query, "humanizeDuration", "unknown")
}

/// A template for the first result of a query.
fn ask(query: &str, format: &str, otherwise: &str) -> String {
    format!(
        "{{{{ with query `{query}` }}}}{{{{ . | first | value | {format} }}}}{{{{ else }}}}{otherwise}{{{{ end }}}}"
    )
}

/// What had to be there before the alert was sent.
fn evidence(arm: &Arm) -> String {
    let window = short(arm.long().window);
    let least = format!("at least {} bad in {window}", arm.gate.min_bad);
    if arm.gate.confidence > 0.0 {
        let percent = (arm.gate.confidence * 100_000.0).round() / 1000.0;
        format!(
            "{least}, and {percent} % sure that the burn rate over {window} is more than {}",
            arm.long().threshold
        )
    } else {
        least
    }
}

fn no_data(objective: &Objective, arm: &Arm, timing: Timing) -> Rule {
    let summary = format!("no machine reports events of {}", objective.name);
    Rule::Alert {
        alert: NO_DATA_ALERT.to_owned(),
        expr: format!("absent({}{})", step_events(timing.step), matching(objective, &[])),
        after: wait(arm.after.max(arm.long().window)),
        labels: identity_of(objective, arm),
        annotations: Labels::from([("summary".to_owned(), summary)]),
    }
}

fn identity_of(objective: &Objective, arm: &Arm) -> Labels {
    let mut labels = identity(objective);
    labels.insert("severity".to_owned(), arm.severity.clone());
    labels
}

fn wait(after: Duration) -> Option<String> {
    (!after.is_zero()).then(|| short(after))
}
