//! Tests of the rules, for `promtool test rules`.
//!
//! In: objectives. Out: a test file with series as two agents expose them, and what must come out of it, computed here
//! from the objective and not from the rules. Refuses objectives over other programs' counters: their series are not
//! known.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::Serialize;

use super::alert::BURN_ALERT;
use super::counter::Timing;
use super::file::{short, yaml};
use super::record::{BURN_RATE, alert_windows, matching, step_events};
use super::source::Counters;
use crate::alert::{Arm, quantile};
use crate::objective::Objective;
use crate::window::Window;

/// Between scrapes, in the tests.
const SCRAPE: Duration = Duration::from_secs(15);
/// When what happened in the first minutes is looked at.
const LATER: Duration = Duration::from_mins(20);
/// When no machine has been seen for long enough.
const SILENT: Duration = Duration::from_mins(40);

#[derive(Serialize)]
struct TestFile {
    rule_files: [String; 1],
    evaluation_interval: String,
    tests: Vec<Test>,
}

#[derive(Serialize)]
struct Test {
    name: String,
    interval: String,
    input_series: Vec<Series>,
    promql_expr_test: Vec<Expectation>,
}

#[derive(Serialize)]
struct Series {
    series: String,
    values: String,
}

#[derive(Serialize)]
struct Expectation {
    expr: String,
    eval_time: String,
    exp_samples: Vec<Sample>,
}

#[derive(Serialize)]
struct Sample {
    labels: String,
    value: f64,
}

/// What machines expose, the same for every objective, and what must come of it.
struct Scenario {
    name: &'static str,
    /// Machine → starts of its process.
    starts: Vec<(&'static str, String)>,
    /// Machine, outcome → counter.
    counters: Vec<(&'static str, &'static str, String)>,
    expected: fn(&Objective, Timing) -> Vec<Expectation>,
}

/// A test file for the rules of these objectives, which are in `rule_file`.
///
/// All objectives go through each scenario together: every rule is evaluated in every test, so tests of their own would
/// take the square of the time.
pub fn tests(objectives: &[Objective], timing: Timing, rule_file: &str) -> String {
    let counted = |objective: &&Objective| Counters::of(objective) == Ok(Counters::Agents);
    let objectives: Vec<&Objective> = objectives.iter().filter(counted).collect();
    let test = |scenario: Scenario| {
        let expected =
            objectives.iter().flat_map(|objective| (scenario.expected)(objective, timing)).collect();
        Test {
            name: scenario.name.to_owned(),
            interval: short(SCRAPE),
            input_series: series(&scenario, &objectives),
            promql_expr_test: expected,
        }
    };
    let scenarios = [counts(), no_traffic(), outage(&objectives), one_failure()];
    yaml(&TestFile {
        rule_files: [rule_file.to_owned()],
        evaluation_interval: short(timing.step),
        tests: scenarios.into_iter().map(test).filter(|test| !test.promql_expr_test.is_empty()).collect(),
    })
}

fn series(scenario: &Scenario, objectives: &[&Objective]) -> Vec<Series> {
    let starts = scenario.starts.iter().map(|(machine, values)| {
        let series = format!("process_start_time_seconds{{job=\"obi\",instance=\"{machine}\"}}");
        Series { series, values: values.clone() }
    });
    let counters = objectives.iter().flat_map(|objective| {
        scenario.counters.iter().map(|(machine, outcome, values)| {
            let target = [("outcome", *outcome), ("job", "obi"), ("instance", *machine)];
            Series { series: labels(objective, "slo_events_total", &target), values: values.clone() }
        })
    });
    starts.chain(counters).collect()
}

/// Births, restarts and ends.
fn counts() -> Scenario {
    Scenario {
        name: "what a machine exposed counts once, through births, restarts and ends",
        starts: vec![
            ("one", "-2x40 stale".to_owned()),
            ("two", "-2x7 119x4 stale".to_owned()),
            ("three", "-90000x2 _x12 -90000x2 stale".to_owned()),
        ],
        counters: vec![
            // Born two seconds before the first scrape, with 7 events already; then one more each scrape: 47.
            ("one", "good", "7+1x40 stale".to_owned()),
            ("one", "bad", "0x40 stale".to_owned()),
            // Restarted, and behind where it was: 40, then 5.
            ("two", "good", "0 10 20 30 40 40 40 40 0 5 5 5 5 stale".to_owned()),
            // Restarted, and in front of where it was: 10, then 12.
            ("two", "bad", "0 0 10 10 10 10 10 10 12 12 12 12 12 stale".to_owned()),
            // There long before Prometheus came: what it had does not count; then 3 more; out of sight for a while: 2.
            ("three", "good", "900000 900003 900003 _x12 900005x2 stale".to_owned()),
            ("three", "bad", "800x2 _x12 800x2 stale".to_owned()),
        ],
        expected: |objective, timing| {
            let steps = format!("{}{}", step_events(timing.step), matching(objective, &[]));
            let total = |outcome: &str, value: f64| {
                let labels = labels(objective, "", &[("outcome", outcome)]);
                Sample { labels, value }
            };
            let sum = Expectation {
                expr: format!("sum_over_time({steps}[1h])"),
                eval_time: short(LATER),
                exp_samples: vec![total("bad", 10.0 + 12.0), total("good", 47.0 + 40.0 + 5.0 + 3.0 + 2.0)],
            };
            let gone = Expectation { expr: steps, eval_time: short(SILENT), exp_samples: Vec::new() };
            vec![sum, gone]
        },
    }
}

/// Zero events burn nothing, and are a number.
fn no_traffic() -> Scenario {
    Scenario {
        name: "no traffic burns nothing",
        starts: vec![("one", "-2x100".to_owned())],
        counters: vec![("one", "good", "0x100".to_owned()), ("one", "bad", "0x100".to_owned())],
        expected: |objective, _| {
            let calm = |window: &Duration| {
                let labels = labels(objective, BURN_RATE, &[("window", &short(*window))]);
                Sample { labels, value: 0.0 }
            };
            vec![Expectation {
                expr: format!("{BURN_RATE}{}", matching(objective, &[])),
                eval_time: short(LATER),
                exp_samples: burn_windows(objective).iter().map(calm).collect(),
            }]
        },
    }
}

/// Nothing but failures: whatever can fire does, and nothing else.
fn outage(objectives: &[&Objective]) -> Scenario {
    let longest = objectives.iter().map(|objective| end_of_outage(objective)).max().unwrap_or_default();
    let scrapes = longest.as_secs() / SCRAPE.as_secs() + 4;
    let machine = |name: &'static str| {
        let counters = [(name, "good", format!("0x{scrapes}")), (name, "bad", format!("0+1000x{scrapes}"))];
        ((name, format!("-2x{scrapes}")), counters)
    };
    let (starts, counters): (Vec<_>, Vec<_>) = ["one", "two"].map(machine).into_iter().unzip();
    Scenario {
        name: "an outage fires what can fire",
        starts,
        counters: counters.into_iter().flatten().collect(),
        expected: |objective, _| {
            let arms = objective.arms.iter();
            let fires = arms.filter(|arm| arm.when_breaching && fires_when_all_fail(objective, arm));
            let expected: BTreeSet<String> = fires.map(|arm| firing(objective, &arm.severity)).collect();
            vec![Expectation {
                expr: all_firing(objective),
                eval_time: short(end_of_outage(objective)),
                exp_samples: expected.into_iter().map(|labels| Sample { labels, value: 1.0 }).collect(),
            }]
        },
    }
}

/// Ten minutes, and as long as the slowest alert waits.
fn end_of_outage(objective: &Objective) -> Duration {
    Duration::from_mins(10) + objective.arms.iter().map(|arm| arm.after).max().unwrap_or_default()
}

/// A quiet night with a single failure.
fn one_failure() -> Scenario {
    Scenario {
        name: "one failure wakes nobody",
        starts: vec![("one", "-2x100".to_owned())],
        counters: vec![
            ("one", "good", "0x3 1x3 2x3 3x3 4x80".to_owned()),
            ("one", "bad", "0x20 1x80".to_owned()),
        ],
        expected: |objective, _| {
            let at = |minutes: u64| Expectation {
                expr: all_firing(objective),
                eval_time: short(Duration::from_mins(minutes)),
                exp_samples: Vec::new(),
            };
            // A user who switches the gate off wants to be woken.
            let is_gated = objective.arms.iter().all(|arm| arm.gate.min_bad > 1);
            if is_gated { [6, 8, 20].map(at).into() } else { Vec::new() }
        },
    }
}

/// Whether nothing but failures, in numbers, is too much for this arm.
fn fires_when_all_fail(objective: &Objective, arm: &Arm) -> bool {
    let highest = 1.0 / objective.target().complement().as_f64();
    let exceeded = arm.conditions.iter().all(|condition| {
        highest > condition.threshold || condition.inclusive && highest >= condition.threshold
    });
    // Two machines, a thousand a scrape, or as many slices as have ended by then.
    let lasts = end_of_outage(objective).as_secs();
    let count = match objective.budgeting.slice() {
        None => 2000.0 * (lasts / SCRAPE.as_secs() - 2) as f64,
        Some(slice) => (lasts / slice.as_secs().max(1)) as f64,
    };
    let square = if arm.gate.confidence > 0.0 { quantile(arm.gate.confidence).powi(2) } else { 0.0 };
    exceeded && highest * count / (count + square) > arm.long().threshold
}

fn burn_windows(objective: &Objective) -> Vec<Duration> {
    let mut windows = alert_windows(objective);
    if let Window::Rolling(period) = objective.window {
        windows.insert(period);
    }
    windows.into_iter().collect()
}

fn all_firing(objective: &Objective) -> String {
    format!("ALERTS{}", matching(objective, &[("alertname", BURN_ALERT), ("alertstate", "firing")]))
}

fn firing(objective: &Objective, severity: &str) -> String {
    labels(
        objective,
        "ALERTS",
        &[("alertname", BURN_ALERT), ("alertstate", "firing"), ("severity", severity)],
    )
}

/// A series of the objective.
fn labels(objective: &Objective, name: &str, more: &[(&str, &str)]) -> String {
    let service = [("service", objective.service.as_str())];
    let all: Vec<(&str, &str)> = service.iter().chain(more).copied().collect();
    format!("{name}{}", matching(objective, &all))
}
