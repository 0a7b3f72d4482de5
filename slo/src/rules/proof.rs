//! Tests of the rules, for `promtool test rules`.
//!
//! In: objectives. Out: a test file with series as two agents expose them, and what must come out of it, computed here
//! from the objective and not from the rules. Refuses objectives over other programs' counters: their series are not
//! known.

use std::time::Duration;

use serde::Serialize;

use super::alert::BURN_ALERT;
use super::file::{short, yaml};
use super::record::{BURN_RATE, STEP_EVENTS, alert_windows, matching, quantile};
use super::source::Counters;
use crate::alert::Arm;
use crate::objective::Objective;

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

/// A test file for the rules of these objectives, which are in `rule_file`.
pub fn tests(objectives: &[Objective], rule_file: &str) -> String {
    let of_agents = objectives.iter().filter(|objective| Counters::of(objective) == Ok(Counters::Agents));
    yaml(&TestFile {
        rule_files: [rule_file.to_owned()],
        evaluation_interval: short(super::STEP),
        tests: of_agents.flat_map(tests_of).collect(),
    })
}

fn tests_of(objective: &Objective) -> Vec<Test> {
    let mut tests = vec![counts(objective), no_traffic(objective), outage(objective)];
    let is_gated = |arm: &Arm| arm.gate.min_bad > 1;
    if objective.arms.iter().all(is_gated) {
        tests.push(one_failure(objective));
    }
    tests
}

/// Births, restarts and ends: every event that was exposed counts once.
fn counts(objective: &Objective) -> Test {
    let input_series = [
        // Born two seconds before the first scrape, with 7 events already; then one more each scrape.
        events(objective, "one", "good", "7+1x40 stale"),
        events(objective, "one", "bad", "0x40 stale"),
        started("one", "-2x40 stale"),
        // Restarted, and behind where it was: 40, then 5.
        events(objective, "two", "good", "0 10 20 30 40 40 40 40 0 5 5 5 5 stale"),
        // Restarted, and in front of where it was: 10, then 12.
        events(objective, "two", "bad", "0 0 10 10 10 10 10 10 12 12 12 12 12 stale"),
        started("two", "-2x7 119x4 stale"),
        // Long there before Prometheus came: what it had is nobody's; then 3 more. Out of sight for a while: 2 more.
        events(objective, "three", "good", "900000 900003 900003 _x12 900005x2 stale"),
        events(objective, "three", "bad", "800x2 _x12 800x2 stale"),
        started("three", "-90000x2 _x12 -90000x2 stale"),
    ];
    let steps = format!("{STEP_EVENTS}{}", matching(objective, &[]));
    let total =
        |outcome: &str, value: f64| Sample { labels: labels(objective, "", &[("outcome", outcome)]), value };
    let sum = Expectation {
        expr: format!("sum_over_time({steps}[1h])"),
        eval_time: short(LATER),
        exp_samples: vec![total("bad", 10.0 + 12.0), total("good", 47.0 + 40.0 + 5.0 + 3.0 + 2.0)],
    };
    let gone = Expectation { expr: steps, eval_time: short(SILENT), exp_samples: Vec::new() };
    test(objective, "births, restarts and ends are counted once", input_series.into(), vec![sum, gone])
}

/// Zero events burn nothing, and are a number.
fn no_traffic(objective: &Objective) -> Test {
    let input_series = [
        events(objective, "one", "good", "0x100"),
        events(objective, "one", "bad", "0x100"),
        started("one", "-2x100"),
    ];
    let calm = |window: &Duration| {
        let window = short(*window);
        let labels = labels(objective, BURN_RATE, &[("window", &window)]);
        Sample { labels, value: 0.0 }
    };
    let burn_rates = Expectation {
        expr: format!("{BURN_RATE}{}", matching(objective, &[])),
        eval_time: short(LATER),
        exp_samples: burn_windows(objective).iter().map(calm).collect(),
    };
    test(objective, "no traffic burns nothing", input_series.into(), vec![burn_rates])
}

/// Nothing but failures: whatever can fire does, and nothing else.
fn outage(objective: &Objective) -> Test {
    let input_series = ["one", "two"].into_iter().flat_map(|machine| {
        [
            events(objective, machine, "good", "0x100"),
            events(objective, machine, "bad", "0+1000x100"),
            started(machine, "-2x100"),
        ]
    });
    let longest_wait = objective.arms.iter().map(|arm| arm.after).max().unwrap_or_default();
    let mut expected: Vec<String> = objective
        .arms
        .iter()
        .filter(|arm| arm.when_breaching && fires_when_all_fail(objective, arm))
        .map(|arm| firing(objective, &arm.severity))
        .collect();
    expected.sort_unstable();
    expected.dedup();
    let fired = Expectation {
        expr: all_firing(objective),
        eval_time: short(LATER.min(Duration::from_mins(10)) + longest_wait),
        exp_samples: expected.into_iter().map(|labels| Sample { labels, value: 1.0 }).collect(),
    };
    test(objective, "an outage fires what can fire", input_series.collect(), vec![fired])
}

/// A quiet night with a single failure.
fn one_failure(objective: &Objective) -> Test {
    let input_series = [
        events(objective, "one", "good", "0x3 1x3 2x3 3x3 4x80"),
        events(objective, "one", "bad", "0x20 1x80"),
        started("one", "-2x100"),
    ];
    let at = |minutes: u64| Expectation {
        expr: all_firing(objective),
        eval_time: short(Duration::from_mins(minutes)),
        exp_samples: Vec::new(),
    };
    test(objective, "one failure wakes nobody", input_series.into(), vec![at(6), at(8), at(20)])
}

/// Whether nothing but failures, in numbers, is too much for this arm.
fn fires_when_all_fail(objective: &Objective, arm: &Arm) -> bool {
    let highest = 1.0 / objective.target().complement().as_f64();
    let exceeded = arm.conditions.iter().all(|condition| {
        highest > condition.threshold || condition.inclusive && highest >= condition.threshold
    });
    // Two machines, a thousand a scrape; at least five minutes of it.
    let count = 40_000.0;
    let square = if arm.gate.confidence > 0.0 { quantile(arm.gate.confidence).powi(2) } else { 0.0 };
    exceeded && highest * count / (count + square) > arm.long().threshold
}

fn burn_windows(objective: &Objective) -> Vec<Duration> {
    let mut windows = alert_windows(objective);
    if let crate::window::Window::Rolling(period) = objective.window {
        windows.insert(period);
    }
    windows.into_iter().collect()
}

fn test(
    objective: &Objective,
    what: &str,
    input_series: Vec<Series>,
    promql_expr_test: Vec<Expectation>,
) -> Test {
    let name = format!("{}: {what}", objective.name);
    Test { name, interval: short(SCRAPE), input_series, promql_expr_test }
}

fn events(objective: &Objective, machine: &str, outcome: &str, values: &str) -> Series {
    let target = [("outcome", outcome), ("job", "obi"), ("instance", machine)];
    Series { series: labels(objective, "slo_events_total", &target), values: values.to_owned() }
}

fn started(machine: &str, values: &str) -> Series {
    let series = format!("process_start_time_seconds{{job=\"obi\",instance=\"{machine}\"}}");
    Series { series, values: values.to_owned() }
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
