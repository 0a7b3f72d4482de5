//! Objectives to begin with, for a service whose numbers are known.
//!
//! In: what was measured. Out: OpenSLO text that can be used as it is. Refuses to promise more than was kept: the
//! targets are what the service has reached, rounded down.

use std::fmt::Write;

use crate::Ratio;

/// What was measured of a service over some time, a day or more at best.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Name of the service.
    pub service: String,
    /// Requests that it answered.
    pub requests: u64,
    /// Those of them that failed.
    pub errors: u64,
    /// A duration that 99 % of the successful ones stayed below, in nanoseconds; `None` when it is not known.
    pub p99_ns: Option<u64>,
}

/// Targets to choose from, in per cent.
const TARGETS: [&str; 7] = ["99.99", "99.95", "99.9", "99.5", "99", "95", "90"];
/// So many bad events must fit into the budget of what was measured, or the promise looks like chance.
const LEAST_BUDGET: u64 = 10;
/// Latencies to choose from, in milliseconds.
const LATENCIES: [u64; 16] =
    [5, 10, 25, 50, 100, 200, 300, 500, 750, 1000, 2000, 3000, 5000, 10_000, 30_000, 60_000];

/// Fewer requests than this are no measurement.
const FEW: u64 = 1_000;
/// Longer names are cut, so that they fit with what is added.
const LONGEST_NAME: usize = 40;

/// OpenSLO text with an objective for success, and one for speed: 99 % below the next round duration above what 99 %
/// reached. `None` when nothing was measured, or more than one of ten requests failed: not even the lowest target was
/// kept.
pub fn suggest(measured: &Measured) -> Option<String> {
    if measured.requests == 0 || measured.errors > measured.requests / 10 {
        return None;
    }
    let mut name = crate::openslo::slug(&measured.service);
    name.truncate(LONGEST_NAME);
    let name = if name.is_empty() { "service" } else { name.trim_end_matches('-') };
    let mut text = String::new();
    let service = quoted(&measured.service);
    let ratio = 100.0 * (measured.requests - measured.errors) as f64 / measured.requests as f64;
    let why = format!(
        "{} of {} requests succeeded ({ratio:.3} %).{}",
        measured.requests - measured.errors,
        measured.requests,
        if measured.requests < FEW { " So few say little; suggest again after a day or more." } else { "" }
    );
    write_slo(&mut text, &format!("{name}-availability"), &service, &why, "outcome: good", target(measured));
    let above = |p99: u64| Some((p99, LATENCIES.iter().find(|limit| **limit * 1_000_000 > p99)?));
    if let Some((p99, limit)) = measured.p99_ns.and_then(above) {
        let why = format!("99 % of the successful requests took up to {:.1} ms.", p99 as f64 / 1e6);
        text.push_str("---\n");
        write_slo(
            &mut text,
            &format!("{name}-latency"),
            &service,
            &why,
            &format!("faster_than: {limit}ms"),
            "99",
        );
    }
    Some(text)
}

/// The highest target that was kept with a margin of half of its budget, and whose budget is more than chance.
fn target(measured: &Measured) -> &'static str {
    let kept = |percent: &&&str| {
        let budget = Ratio::parse_percent(percent).map(Ratio::complement);
        budget.is_some_and(|budget| {
            let allowed = u128::from(measured.requests) * u128::from(budget.numerator())
                / u128::from(budget.denominator());
            u128::from(measured.errors) * 2 <= allowed && allowed >= u128::from(LEAST_BUDGET)
        })
    };
    TARGETS.iter().find(kept).unwrap_or(&TARGETS[TARGETS.len() - 1])
}

fn write_slo(text: &mut String, name: &str, service: &str, why: &str, good: &str, target: &str) {
    let speed = if good.starts_with("faster_than") { ", outcome: good, streaming: exclude" } else { "" };
    let written = write!(
        text,
        "apiVersion: openslo/v1
kind: SLO
metadata:
  name: {name}
spec:
  description: Suggested from what was measured. {why}
  service: {service}
  indicator:
    metadata:
      name: {name}
    spec:
      ratioMetric:
        counter: true
        good: {{metricSource: {{type: obi, spec: {{{good}}}}}}}
        total: {{metricSource: {{type: obi, spec: {{service: {service}{speed}}}}}}}
  timeWindow:
    - duration: 28d
      isRolling: true
  budgetingMethod: Occurrences
  objectives:
    - targetPercent: {target}
"
    );
    written.expect("writing to a string cannot fail");
}

/// A text that YAML reads as itself, whatever it is.
fn quoted(text: &str) -> String {
    let escape = |character: char| match character {
        '"' | '\\' => format!("\\{character}"),
        control if control.is_control() => format!("\\U{:08x}", u32::from(control)),
        other => other.to_string(),
    };
    format!("\"{}\"", text.chars().map(escape).collect::<String>())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(service: &str, requests: u64, errors: u64, p99_ms: u64) -> Measured {
        Measured { service: service.to_owned(), requests, errors, p99_ns: Some(p99_ms * 1_000_000) }
    }

    #[test]
    fn suggestions_can_be_used_as_they_are() {
        let check = |measured: &Measured, expected: &[(&str, &str)]| {
            let text = suggest(measured).expect("something was measured");
            let reading = crate::openslo::read([("suggested.yaml", text.as_str())]);
            let errors: Vec<_> = reading
                .findings
                .iter()
                .filter(|finding| finding.severity == crate::openslo::Severity::Error)
                .collect();
            assert!(errors.is_empty(), "{errors:?}\n{text}");
            let objectives: Vec<_> =
                reading.objectives.iter().map(|one| (one.name.clone(), one.target().to_string())).collect();
            let objectives: Vec<_> =
                objectives.iter().map(|(name, target)| (name.as_str(), target.as_str())).collect();
            assert_eq!(objectives, expected, "{text}");
            assert!(
                reading.objectives.iter().all(|one| one.service == measured.service && one.counts_events())
            );
        };
        check(
            &measured("shop", 1_000_000, 10, 120),
            &[("shop-availability", "0.9999"), ("shop-latency", "0.99")],
        );
        check(
            &measured("shop", 1_000_000, 900, 3),
            &[("shop-availability", "0.995"), ("shop-latency", "0.99")],
        );
        check(&measured("shop", 1_000, 0, 90_000), &[("shop-availability", "0.99")]);
        check(&measured("shop", 10, 1, 5), &[("shop-availability", "0.9"), ("shop-latency", "0.99")]);
        check(&measured("null", 10, 0, 5), &[("null-availability", "0.9"), ("null-latency", "0.99")]);
        check(
            &measured("5 \"a\": {b}", 10, 0, 5),
            &[("5-a-b-availability", "0.9"), ("5-a-b-latency", "0.99")],
        );
        let unknown = Measured { p99_ns: None, ..measured("shop", 1_000, 0, 0) };
        check(&unknown, &[("shop-availability", "0.99")]);
        // Not even the lowest target was kept, so nothing is promised.
        for (requests, failed) in [(0, 0), (1, 1), (10, 10), (100_000, 100_000), (10, 9), (10, 2), (9, 1)] {
            assert_eq!(suggest(&measured("shop", requests, failed, 0)), None, "{failed} of {requests}");
        }
        let few =
            |requests| suggest(&measured("shop", requests, 0, 5)).unwrap().contains("So few say little");
        assert_eq!([10, 999, 1_000].map(few), [true, true, false]);
    }
}
