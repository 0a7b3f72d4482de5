//! Generated rules, judged by promtool: it checks them, and runs the tests that are generated beside them.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::fs;
use std::process::Command;

use slo::Objective;
use slo::openslo::read;
use slo::rules::{self, Rule, Timing};

fn objectives(text: &str) -> Vec<Objective> {
    let reading = read([("objectives.yaml", text)]);
    assert!(!reading.objectives.is_empty(), "{:?}", reading.findings);
    reading.objectives
}

fn promtool(folder: &std::path::Path, arguments: [&str; 3]) -> String {
    let output = Command::new("promtool").args(arguments).current_dir(folder).output();
    let output = output.expect("promtool comes with the package prometheus");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "promtool {arguments:?}: {text}");
    text.into_owned()
}

/// Promtool finds nothing wrong, and every generated test holds. Returns the number of tests.
fn check(text: &str, timing: Timing) -> usize {
    let objectives = objectives(text);
    let folder = tempfile::tempdir().unwrap();
    let generated = rules::generate(&objectives, timing);
    let tests = rules::tests(&objectives, timing, "rules.yaml");
    fs::write(folder.path().join("rules.yaml"), generated.file.to_yaml()).unwrap();
    fs::write(folder.path().join("tests.yaml"), &tests).unwrap();
    let checked = promtool(folder.path(), ["check", "rules", "rules.yaml"]);
    let count: usize = generated.file.groups.iter().map(|group| group.rules.len()).sum();
    assert!(checked.contains(&format!("SUCCESS: {count} rules found")), "{checked}");
    promtool(folder.path(), ["test", "rules", "tests.yaml"]);
    tests.matches("promql_expr_test:").count()
}

fn slo(name: &str, spec: &str) -> String {
    format!(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: {name}}}\nspec:\n  service: shop\n  indicator:\n    \
         metadata: {{name: {name}}}\n    spec:\n      ratioMetric:\n        counter: true\n        \
         bad: {{metricSource: {{type: obi, spec: {{service: shop, outcome: bad}}}}}}\n        \
         total: {{metricSource: {{type: obi, spec: {{service: shop}}}}}}\n{spec}"
    )
}

const OCCURRENCES: &str =
    "  budgetingMethod: Occurrences\n  timeWindow: [{duration: 28d, isRolling: true}]\n";

#[test]
fn the_default_table() {
    let text = slo("checkout", &format!("{OCCURRENCES}  objectives: [{{target: 0.999}}]\n"));
    assert_eq!(check(&text, Timing::default()), 4);
}

#[test]
fn all_budgeting_methods_and_periods() {
    let window = "  timeWindow: [{duration: 4w, isRolling: true}]\n";
    let slices = |method: &str| {
        let target =
            if method == "Timeslices" { "target: 0.9, timeSliceTarget: 0.95" } else { "target: 0.9" };
        let spec = format!(
            "{window}  budgetingMethod: {method}\n  objectives: [{{{target}, timeSliceWindow: 5m}}]\n"
        );
        slo(&method.to_lowercase(), &spec)
    };
    // At 90 % not even a full outage can burn 13.44 times too fast: the generated test expects that no page fires.
    let texts = [
        slices("Timeslices"),
        slices("RatioTimeslices"),
        slo("low", &format!("{OCCURRENCES}  objectives: [{{target: 0.5}}]\n")),
        slo(
            "several",
            &format!(
                "{OCCURRENCES}  objectives: [{{target: 0.99, displayName: Most}}, {{target: 0.9999}}]\n"
            ),
        ),
        slo(
            "short",
            "  budgetingMethod: Occurrences\n  timeWindow: [{duration: 1d, isRolling: true}]\n  objectives: [{target: 0.99}]\n",
        ),
    ];
    assert_eq!(check(&texts.join("---\n"), Timing::default()), 4);
}

/// Counters of other programs: the same exactness, from a series that is born with its first error.
#[test]
fn counters_of_other_programs() {
    let text = "apiVersion: openslo/v1\nkind: SLO\nmetadata: {name: shop}\nspec:\n  service: shop\n  \
        budgetingMethod: Occurrences\n  timeWindow: [{duration: 28d, isRolling: true}]\n  \
        objectives: [{target: 0.999}]\n  indicator:\n    metadata: {name: shop}\n    spec:\n      ratioMetric:\n        \
        counter: true\n        \
        bad: {metricSource: {type: Prometheus, spec: {query: 'http_requests_total{code=~\"5..\"}'}}}\n        \
        total: {metricSource: {type: Prometheus, spec: {query: http_requests_total}}}\n";
    let generated = rules::generate(&objectives(text), Timing::default());
    let folder = tempfile::tempdir().unwrap();
    fs::write(folder.path().join("rules.yaml"), generated.file.to_yaml()).unwrap();
    fs::write(folder.path().join("tests.yaml"), OTHER_PROGRAMS).unwrap();
    promtool(folder.path(), ["test", "rules", "tests.yaml"]);
}

const OTHER_PROGRAMS: &str = r#"
rule_files: [rules.yaml]
evaluation_interval: 30s
tests:
- interval: 15s
  input_series:
  - {series: 'http_requests_total{code="200",job="shop",instance="a"}', values: '0+100x40'}
  - {series: 'http_requests_total{code="500",job="shop",instance="a"}', values: '_x20 500x20'}
  - {series: 'process_start_time_seconds{job="shop",instance="a"}', values: '-90000x40'}
  promql_expr_test:
  - expr: slo:events:increase{slo="shop",window="1h"}
    eval_time: 5m
    exp_samples:
    - {labels: 'slo:events:increase{slo="shop",service="shop",window="1h",outcome="bad"}', value: 0}
    - {labels: 'slo:events:increase{slo="shop",service="shop",window="1h",outcome="good"}', value: 1900}
  - expr: slo:events:increase{slo="shop",window="1h"}
    eval_time: 15m
    exp_samples:
    - {labels: 'slo:events:increase{slo="shop",service="shop",window="1h",outcome="bad"}', value: 500}
    - {labels: 'slo:events:increase{slo="shop",service="shop",window="1h",outcome="good"}', value: 4000}
"#;

/// What cannot be summed over machines is said, with what to write instead.
#[test]
fn what_has_no_rules() {
    let check = |what: &str, spec: &str, expected: &str| {
        let generated = rules::generate(&objectives(&slo("odd", spec)), Timing::default());
        let findings: Vec<String> = generated.findings.iter().map(ToString::to_string).collect();
        assert!(findings.iter().any(|finding| finding.contains(expected)), "{what}: {findings:?}");
        generated
    };
    let calendar = "  budgetingMethod: Occurrences\n  timeWindow:\n  - duration: 1M\n    isRolling: false\n    \
        calendar: {startTime: '2026-01-01 00:00:00', timeZone: Europe/Berlin}\n  objectives: [{target: 0.99}]\n";
    let generated = check("calendar", calendar, "PromQL knows no time zones; ask `obi slo evaluate`");
    let records = |name: &str| {
        let rules = generated.file.groups.iter().flat_map(|group| &group.rules);
        rules.filter(|rule| matches!(rule, Rule::Record { record, .. } if record == name)).count()
    };
    assert_eq!(records(rules::BUDGET_REMAINING), 0);
    assert!(records(rules::BURN_RATE) > 0, "alerts need no period");
}
