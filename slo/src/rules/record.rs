//! Recording rules: counts of the fleet over every window, burn rates, the budget.
//!
//! In: an [`Objective`] and its counters. Out: rules. Refuses to average ratios: counts are summed, and divided once.

use std::collections::BTreeSet;
use std::time::Duration;

use super::counter::{Timing, gained};
use super::file::{Group, Labels, Rule, labels, short};
use super::source::Counters;
use crate::alert::{CLEAN, QUIET, RECENT, RECOVERY_CONFIDENCE, quantile};
use crate::indicator::Outcome;
use crate::objective::{BudgetingMethod, Objective};
use crate::window::Window;

/// Counts over a window, by outcome.
pub const EVENTS: &str = "slo:events:increase";
/// Used budget per budget, over a window.
pub const BURN_RATE: &str = "slo:burn_rate:ratio";
/// What the burn rate is at least, with the confidence that the alerts ask for.
pub const BURN_RATE_LOWER_BOUND: &str = "slo:burn_rate_lower_bound:ratio";
/// How large the part of bad events may be, over the last minute.
pub const BAD_RATIO_UPPER_BOUND: &str = "slo:bad_ratio_upper_bound:ratio";
/// How bad the slice was that ends now.
pub const SLICE_ERROR: &str = "slo:slice_error:ratio";
/// The promise.
pub const OBJECTIVE: &str = "slo:objective:ratio";
/// What is left of the period's budget; below zero when it is overdrawn.
pub const BUDGET_REMAINING: &str = "slo:error_budget_remaining:ratio";
/// Steps in which any machine was seen, of all steps of the period.
pub const PERIOD_COVERAGE: &str = "slo:period_coverage:ratio";

/// Name of what was gained in one step, by outcome: `slo:events:increase30s`.
pub fn step_events(step: Duration) -> String {
    format!("slo:events:increase{}", short(step))
}

/// The same of counters that keep no outcomes.
fn step_total(step: Duration) -> String {
    format!("slo:events_of_all_outcomes:increase{}", short(step))
}

/// Time between evaluations of what covers the whole period.
const PERIOD_INTERVAL: Duration = Duration::from_mins(2);

/// What alerts need, soon.
pub(super) fn fast_group(objective: &Objective, counters: &Counters, timing: Timing) -> Group {
    let windows = alert_windows(objective);
    let mut counted = windows.clone();
    counted.extend(objective.budgeting.slice());
    if !objective.arms.is_empty() {
        counted.extend([RECENT, CLEAN, QUIET]);
    }
    let mut rules = steps(objective, counters, timing);
    rules.extend(counted.iter().map(|window| events(objective, *window, timing)));
    rules.extend(objective.budgeting.slice().map(|slice| slice_error(objective, slice)));
    rules.extend(windows.iter().map(|window| burn_rate(objective, *window)));
    rules.extend(lower_bounds(objective));
    if !objective.arms.is_empty() {
        rules.push(upper_bound(objective));
    }
    Group { name: format!("slo-{}", objective.name), interval: short(timing.step), rules }
}

/// What people look at. Without the budget where the period follows a calendar: PromQL 2.42 knows no time zones.
pub(super) fn period_group(objective: &Objective, timing: Timing) -> Group {
    let promise = format!("vector({})", objective.target().as_f64());
    let mut rules = vec![Rule::record(OBJECTIVE, promise, identity(objective))];
    if let Window::Rolling(period) = objective.window {
        if !alert_windows(objective).contains(&period) {
            rules.extend([events(objective, period, timing), burn_rate(objective, period)]);
        }
        rules.extend([budget_remaining(objective, period), coverage(objective, period, timing)]);
    }
    let name = format!("slo-{}-period", objective.name);
    Group { name, interval: short(PERIOD_INTERVAL), rules }
}

/// Windows of all alert conditions.
pub(super) fn alert_windows(objective: &Objective) -> BTreeSet<Duration> {
    let conditions = objective.arms.iter().flat_map(|arm| &arm.conditions);
    conditions.map(|condition| condition.window).collect()
}

/// `{slo="…",…}`.
pub(super) fn matching(objective: &Objective, labels: &[(&str, &str)]) -> String {
    let slo = [("slo", objective.name.as_str())];
    let matchers: Vec<String> =
        slo.iter().chain(labels).map(|(name, value)| format!("{name}=\"{}\"", escape(value))).collect();
    format!("{{{}}}", matchers.join(","))
}

/// What every series of an objective has.
pub(super) fn identity(objective: &Objective) -> Labels {
    labels([("slo", &objective.name), ("service", &objective.service)])
}

/// Text inside quotes.
pub(crate) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// The one place that reads what machines expose.
fn steps(objective: &Objective, counters: &Counters, timing: Timing) -> Vec<Rule> {
    let with_outcome = |outcome: Outcome| {
        let mut labels = identity(objective);
        labels.insert("outcome".to_owned(), outcome.as_str().to_owned());
        labels
    };
    let [step_events, step_total] = [step_events(timing.step), step_total(timing.step)];
    match counters {
        Counters::Agents => {
            let selector = format!("slo_events_total{}", matching(objective, &[]));
            vec![Rule::record(&step_events, gained(&selector, "outcome", timing), identity(objective))]
        }
        Counters::Queries { counted, counted_is, total } => {
            let all = format!("{step_total}{}", matching(objective, &[]));
            let known = matching(objective, &[("outcome", counted_is.as_str())]);
            // A series that is born with its first event is absent before: that is zero while others are there.
            let counted = format!("{}\nor on () {all} * 0", gained(counted, "", timing));
            let rest = format!("clamp_min({all} - ignoring (outcome) {step_events}{known}, 0)");
            vec![
                Rule::record(&step_total, gained(total, "", timing), identity(objective)),
                Rule::record(&step_events, counted, with_outcome(*counted_is)),
                Rule::record(&step_events, rest, with_outcome(other(*counted_is))),
            ]
        }
    }
}

const fn other(outcome: Outcome) -> Outcome {
    match outcome {
        Outcome::Good => Outcome::Bad,
        Outcome::Bad => Outcome::Good,
    }
}

/// Counts over a window: steps do not overlap, so their sum is exact.
fn events(objective: &Objective, window: Duration, timing: Timing) -> Rule {
    let steps = format!("{}{}[{}]", step_events(timing.step), matching(objective, &[]), range(window));
    Rule::record(EVENTS, format!("sum_over_time({steps})"), over(objective, window))
}

/// Used budget per budget. No events use none: zero, not `NaN`; without any machine there is no result at all.
fn burn_rate(objective: &Objective, window: Duration) -> Rule {
    let budget = budget(objective);
    let Some(slice) = objective.budgeting.slice() else {
        let [bad, total] = [Some(Outcome::Bad), None].map(|outcome| counts(objective, window, outcome));
        let expr = format!("{bad}\n/ clamp_min({total}, 1)\n/ {budget}");
        return Rule::record(BURN_RATE, expr, over(objective, window));
    };
    let expr = format!("{}\n/ {budget}", over_slices(objective, "avg", slice, window));
    Rule::record(BURN_RATE, expr, over(objective, window))
}

/// How bad the last slice was. Read once per slice, at its end.
fn slice_error(objective: &Objective, slice: Duration) -> Rule {
    let [bad, good, total] =
        [Some(Outcome::Bad), Some(Outcome::Good), None].map(|outcome| counts(objective, slice, outcome));
    let expr = match objective.budgeting {
        BudgetingMethod::Timeslices { .. } => {
            let enough = objective.parts[0].slice_target.as_f64();
            format!("max without (window) ({good} < bool {total} * {enough})")
        }
        BudgetingMethod::RatioTimeslices { .. } | BudgetingMethod::Occurrences => {
            format!("max without (window) ({bad} / clamp_min({total}, 1))")
        }
    };
    Rule::record(SLICE_ERROR, expr, identity(objective))
}

/// For the windows that alerts take their evidence from.
fn lower_bounds(objective: &Objective) -> Vec<Rule> {
    let gates = objective.arms.iter().filter(|arm| arm.gate.confidence > 0.0);
    let mut wanted: Vec<(Duration, f64)> =
        gates.map(|arm| (arm.long().window, arm.gate.confidence)).collect();
    wanted.sort_by(|one, other| one.0.cmp(&other.0).then(one.1.total_cmp(&other.1)));
    wanted.dedup();
    wanted.into_iter().map(|(window, confidence)| lower_bound(objective, window, confidence)).collect()
}

fn lower_bound(objective: &Objective, window: Duration, confidence: f64) -> Rule {
    let (bad, total) = match objective.budgeting.slice() {
        None => (counts(objective, window, Some(Outcome::Bad)), counts(objective, window, None)),
        Some(slice) => {
            let [bad, total] = ["sum", "count"].map(|which| over_slices(objective, which, slice, window));
            (bad, total)
        }
    };
    let bound = wilson(&bad, &total, -quantile(confidence));
    let mut labels = over(objective, window);
    labels.insert("confidence".to_owned(), confidence.to_string());
    Rule::record(BURN_RATE_LOWER_BOUND, format!("{bound}\n/ {}", budget(objective)), labels)
}

/// How bad the last minute may have been: what prompt recovery asks for.
fn upper_bound(objective: &Objective) -> Rule {
    let [bad, total] = [Some(Outcome::Bad), None].map(|outcome| counts(objective, RECENT, outcome));
    let bound = wilson(&bad, &total, quantile(RECOVERY_CONFIDENCE));
    Rule::record(BAD_RATIO_UPPER_BOUND, bound, over(objective, RECENT))
}

/// The end of Wilson's interval on the side of `z`, for `bad` of `total`.
fn wilson(bad: &str, total: &str, z: f64) -> String {
    let (square, half, quarter) = (z * z, z * z / 2.0, z * z / 4.0);
    let sign = if z < 0.0 { '-' } else { '+' };
    let z = z.abs();
    format!(
        "(\n  {bad}\n  + {half} {sign} {z} * sqrt(\n    {bad}\n    * ({total} - {bad})\n    \
         / clamp_min({total}, 1) + {quarter}\n  )\n)\n/ ({total} + {square})"
    )
}

fn budget_remaining(objective: &Objective, period: Duration) -> Rule {
    let expr = match objective.budgeting.slice() {
        None => {
            let burn_rate = matching(objective, &[("window", &short(period))]);
            format!("1 - max without (window) ({BURN_RATE}{burn_rate})")
        }
        // Of the slices of the whole period, also while it has just begun.
        Some(slice) => {
            let all = period.as_secs_f64() / slice.as_secs_f64();
            format!("1 - {}\n/ {all}\n/ {}", over_slices(objective, "sum", slice, period), budget(objective))
        }
    };
    Rule::record(BUDGET_REMAINING, expr, identity(objective))
}

/// Sum, count or mean of the slices of a window.
fn over_slices(objective: &Objective, which: &str, slice: Duration, window: Duration) -> String {
    let slices = format!("{SLICE_ERROR}{}", matching(objective, &[]));
    format!("{which}_over_time({slices}[{}:{}])", range(window), short(slice))
}

fn coverage(objective: &Objective, period: Duration, timing: Timing) -> Rule {
    let bad = matching(objective, &[("outcome", "bad")]);
    let steps = format!("{}{bad}[{}]", step_events(timing.step), range(period));
    let all = period.as_secs() / timing.step.as_secs().max(1);
    let expr = format!("sum without (outcome) (\n  count_over_time({steps})\n) / {all}");
    Rule::record(PERIOD_COVERAGE, expr, identity(objective))
}

/// Labels of what is about a window.
fn over(objective: &Objective, window: Duration) -> Labels {
    let mut labels = identity(objective);
    labels.insert("window".to_owned(), short(window));
    labels
}

/// Events of a window, of one outcome or of both, without the label `outcome`.
pub(super) fn counts(objective: &Objective, window: Duration, outcome: Option<Outcome>) -> String {
    let window = short(window);
    let mut labels = vec![("window", window.as_str())];
    labels.extend(outcome.map(|outcome| ("outcome", outcome.as_str())));
    format!("sum without (outcome) ({EVENTS}{})", matching(objective, &labels))
}

/// The error budget as a decimal number with all its digits.
pub(super) fn budget(objective: &Objective) -> f64 {
    objective.target().complement().as_f64()
}

/// A range that holds as many evaluations as fit into the window. Servers before 3.0 take what lies exactly on its
/// older edge, newer ones do not: a millisecond less, and all agree.
fn range(window: Duration) -> String {
    let millis = window.saturating_sub(Duration::from_millis(1)).as_millis();
    let units = [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];
    let mut rest = millis;
    let mut text = String::new();
    for (unit, size) in units {
        if rest / size > 0 {
            text.push_str(&format!("{}{unit}", rest / size));
            rest %= size;
        }
    }
    text
}
