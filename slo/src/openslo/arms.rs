//! From alert policies to arms.
//!
//! In: an SLO's policies and the objects that they name. Out: [`Arm`]s, and findings on those that can never fire.
//! Refuses to guess: without policies the default table applies.

use std::collections::BTreeMap;
use std::time::Duration;

use super::cursor::Findings;
use super::finding::{Finding, Place, Severity};
use super::object::{
    AlertCondition, AlertNotificationTarget, AlertPolicy, Metadata, Named, Object, Operator,
};
use super::resolve::{Index, error};
use crate::alert::{Arm, Condition, Gate, Source, workbook};
use crate::duration::{Short, parse_shorthand};
use crate::objective::{BudgetingMethod, Objective};

/// The arms of an objective; `None` after an error.
pub(super) fn arms(
    objective: &Objective,
    policies: Option<&[Named<AlertPolicy>]>,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<Vec<Arm>> {
    let arms = match policies {
        None => workbook(objective.window.duration()),
        Some(policies) => policies
            .iter()
            .map(|policy| arm(policy, &objective.place, index, findings))
            .collect::<Option<Vec<Arm>>>()?,
    };
    for arm in &arms {
        check(arm, objective, findings);
    }
    Some(arms)
}

fn arm(
    policy: &Named<AlertPolicy>,
    place: &Place,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<Arm> {
    let (metadata, policy, place) = match policy {
        Named::Inline(metadata, policy) => (metadata, policy, place.clone()),
        Named::Reference(name, at) => {
            let found = index.find(name, |document| match &document.object {
                Object::AlertPolicy(policy) => Some((&document.metadata, policy)),
                _ => None,
            });
            let Some((metadata, policy)) = found else {
                findings.push(error(
                    at,
                    format!("no AlertPolicy is called {name:?}"),
                    "write the name of one",
                ));
                return None;
            };
            (metadata, policy, at.clone())
        }
    };
    let further = metadata.annotations.get("obi/conditions").map(String::as_str).unwrap_or_default();
    let further = further.split([',', ' ']).filter(|name| !name.is_empty());
    let further = further.map(|name| Named::Reference(name.to_owned(), place.clone()));
    let mut conditions = Vec::new();
    let mut severity = None;
    let mut after = Duration::ZERO;
    for named in policy.conditions.iter().cloned().chain(further) {
        let (annotations, condition) = condition(&named, index, findings)?;
        conditions.extend(windows(&condition, &annotations, findings)?);
        after = after.max(condition.alert_after);
        severity.get_or_insert_with(|| condition.severity.clone());
    }
    conditions.sort_by_key(|condition| std::cmp::Reverse(condition.window));
    let mut targets = Vec::new();
    for target in &policy.notification_targets {
        targets.push(notification_target(target, index, findings)?);
    }
    Some(Arm {
        severity: severity?,
        policy: metadata.name.clone(),
        conditions,
        after,
        gate: gate(metadata, &place, findings)?,
        when_breaching: policy.when_breaching,
        when_resolved: policy.when_resolved,
        when_no_data: policy.when_no_data,
        targets,
        description: policy.description.clone(),
        source: Source::Policy(place),
    })
}

type Annotations = BTreeMap<String, String>;

fn condition(
    named: &Named<AlertCondition>,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<(Annotations, AlertCondition)> {
    match named {
        Named::Inline(metadata, condition) => Some((metadata.annotations.clone(), condition.clone())),
        Named::Reference(name, at) => {
            let found = index.find(name, |document| match &document.object {
                Object::AlertCondition(condition) => {
                    Some((document.metadata.annotations.clone(), condition.clone()))
                }
                _ => None,
            });
            if found.is_none() {
                let what = format!("no AlertCondition is called {name:?}");
                findings.push(error(at, what, "write the name of one"));
            }
            found
        }
    }
}

fn notification_target(
    named: &Named<AlertNotificationTarget>,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<String> {
    match named {
        Named::Inline(_, target) => Some(target.target.clone()),
        Named::Reference(name, at) => {
            let found = index.find(name, |document| match &document.object {
                Object::AlertNotificationTarget(target) => Some(target.target.clone()),
                _ => None,
            });
            if found.is_none() {
                let what = format!("no AlertNotificationTarget is called {name:?}");
                findings.push(error(at, what, "write the name of one"));
            }
            found
        }
    }
}

/// The condition's window, and the short one of its annotation `obi/short-window`.
fn windows(
    condition: &AlertCondition,
    annotations: &Annotations,
    findings: &mut Findings,
) -> Option<Vec<Condition>> {
    let over = |window: Duration| Condition {
        window,
        threshold: condition.threshold,
        // `lt` and `lte` are read as `gt` and `gte`, which a finding says.
        inclusive: matches!(condition.op, Operator::Gte | Operator::Lte),
    };
    let mut windows = vec![over(condition.lookback_window)];
    if let Some(text) = annotations.get("obi/short-window") {
        let short = parse_shorthand(text).map(|(count, unit)| unit.duration().saturating_mul(count));
        let Some(short) = short.filter(|short| *short < condition.lookback_window) else {
            let what = format!("the annotation obi/short-window is {text:?}");
            let instead = format!("write a duration shorter than {}", Short(condition.lookback_window));
            findings.push(error(&condition.place, what, instead));
            return None;
        };
        windows.push(over(short));
    }
    Some(windows)
}

/// Annotations `obi/min-bad` and `obi/confidence` of the policy.
fn gate(metadata: &Metadata, place: &Place, findings: &mut Findings) -> Option<Gate> {
    let mut gate = Gate::default();
    if let Some(text) = metadata.annotations.get("obi/min-bad") {
        let Ok(min_bad) = text.parse() else {
            findings.push(error(
                place,
                format!("the annotation obi/min-bad is {text:?}"),
                "write a number such as \"5\"",
            ));
            return None;
        };
        gate.min_bad = min_bad;
    }
    if let Some(text) = metadata.annotations.get("obi/confidence") {
        let confidence = text.parse().ok().filter(|confidence| (0.0..1.0).contains(confidence));
        let Some(confidence) = confidence else {
            let instead = "write a number from 0 (off) to below 1 such as \"0.95\"";
            findings.push(error(place, format!("the annotation obi/confidence is {text:?}"), instead));
            return None;
        };
        gate.confidence = confidence;
    }
    Some(gate)
}

/// What can never fire, or always would.
fn check(arm: &Arm, objective: &Objective, findings: &mut Findings) {
    let place = match &arm.source {
        Source::Table => &objective.place,
        Source::Policy(place) => place,
    };
    let mut warn = |what: String, instead: String| {
        findings.push(Finding { place: place.clone(), severity: Severity::Warning, what, instead });
    };
    if !arm.when_breaching && !arm.when_no_data {
        warn(
            format!(
                "the alert policy {:?} can never fire: it reacts neither to breaching nor to missing data",
                arm.policy
            ),
            "write alertWhenBreaching: true".to_owned(),
        );
        return;
    }
    let highest = highest_burn_rate(objective);
    for (at, condition) in arm.conditions.iter().enumerate() {
        let said = arm.conditions[..at].iter().any(|earlier| earlier.threshold >= condition.threshold);
        let out_of_reach =
            if condition.inclusive { condition.threshold > highest } else { condition.threshold >= highest };
        if out_of_reach && !said && arm.when_breaching && !objective.target().is_zero() {
            warn(
                format!(
                    "the {} alert over {} can never fire: it needs a burn rate of {}, and with target {} even a full \
                     outage burns at {}",
                    arm.severity,
                    Short(condition.window),
                    rounded(condition.threshold),
                    objective.target(),
                    rounded(highest)
                ),
                match arm.source {
                    Source::Table => {
                        "write alertPolicies with lower thresholds, or a higher target".to_owned()
                    }
                    Source::Policy(_) => {
                        format!("write a threshold below {}, or a higher target", rounded(highest))
                    }
                },
            );
        }
        if condition.window > objective.window.duration() {
            warn(
                format!(
                    "the {} alert looks back {}, longer than the period",
                    arm.severity,
                    Short(condition.window)
                ),
                format!("write a lookbackWindow of at most {}", objective.window),
            );
        }
        if let BudgetingMethod::Timeslices { slice } | BudgetingMethod::RatioTimeslices { slice } =
            objective.budgeting
            && condition.window < slice
            && arm.source != Source::Table
        {
            warn(
                format!(
                    "the {} alert looks back {}, shorter than a time slice",
                    arm.severity,
                    Short(condition.window)
                ),
                format!("write a lookbackWindow of at least {}", Short(slice)),
            );
        }
    }
}

/// With everything bad.
fn highest_burn_rate(objective: &Objective) -> f64 {
    let burn = |part: &crate::objective::Part| part.weight / part.target.complement().as_f64();
    match objective.budgeting {
        BudgetingMethod::Occurrences => objective.parts.iter().map(burn).sum(),
        BudgetingMethod::Timeslices { .. } | BudgetingMethod::RatioTimeslices { .. } => {
            1.0 / objective.target().complement().as_f64()
        }
    }
}

/// Four significant digits at most.
fn rounded(number: f64) -> f64 {
    let scale = 10_f64.powf(3.0 - number.abs().max(1e-9).log10().floor());
    (number * scale).round() / scale
}
