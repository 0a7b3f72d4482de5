//! `SLO.spec` of v1 and v2alpha.
//!
//! In: the spec's node. Out: [`Slo`]. Refuses to resolve references.

use std::time::Duration;

use super::alerting::{duration, named, operator, policy};
use super::cursor::{Cursor, Findings, nearest};
use super::finding::Severity;
use super::head::{description, metadata};
use super::node::Value;
use super::object::{Method, Named, Sli, Slo, SloObjective, Version};
use super::sli::sli;
use super::time_window;
use crate::ratio::Ratio;
use crate::window::Window;

/// The period when `timeWindow` is absent, which the specification allows and the validator does not.
const DEFAULT_WINDOW: Duration = Duration::from_secs(28 * 86_400);

/// Reads the spec of an SLO.
pub(super) fn slo(spec: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Slo> {
    let (inline, reference) = indicator_keys(version);
    let service_key = service_key(spec, version);
    spec.only(
        &[
            "description",
            service_key,
            inline,
            reference,
            "timeWindow",
            "budgetingMethod",
            "objectives",
            "alertPolicies",
        ],
        findings,
    );
    let description = description(spec, findings);
    let service =
        spec.required(service_key, "my-service", findings).and_then(|service| service.scalar(findings));
    let window = window(spec, findings);
    let budgeting_method = budgeting_method(spec, findings);
    let indicator = indicator(spec, version, findings);
    let items =
        spec.required("objectives", "[{target: 0.999}]", findings).map(|list| list.items(findings))?;
    if items.is_empty() {
        findings.push(spec.error("has no objective", "write objectives: [{target: 0.999}]"));
    }
    let method = budgeting_method?;
    let read: Vec<Option<SloObjective>> =
        items.iter().map(|item| objective(item, version, method, findings)).collect();
    check_indicators(spec, &items, (inline, reference), findings);
    let alert_policies = spec.child("alertPolicies").map(|list| list.items(findings)).map(|list| {
        let read = |item: &Cursor<'_>, findings: &mut Findings| {
            named(item, version, ("alertPolicyRef", "AlertPolicy"), policy, findings)
        };
        list.iter().filter_map(|item| read(item, findings)).collect()
    });
    Some(Slo {
        description,
        service: service?,
        indicator,
        window: window?,
        budgeting_method: method,
        objectives: read.into_iter().collect::<Option<_>>()?,
        alert_policies,
    })
}

/// Keys of the indicator, in place and by reference.
const fn indicator_keys(version: Version) -> (&'static str, &'static str) {
    match version {
        Version::V2Alpha => ("sli", "sliRef"),
        Version::V1 | Version::V1Alpha => ("indicator", "indicatorRef"),
    }
}

/// v2alpha's validator says `serviceRef`, its examples say `service`; both are read.
fn service_key(spec: &Cursor<'_>, version: Version) -> &'static str {
    if version == Version::V2Alpha && spec.child("serviceRef").is_some() { "serviceRef" } else { "service" }
}

fn window(spec: &Cursor<'_>, findings: &mut Findings) -> Option<Window> {
    let Some(list) = spec.child("timeWindow") else {
        let what = "has no timeWindow, so the last 28 days count";
        findings.push(spec.finding(
            Severity::Note,
            what,
            "write timeWindow: [{duration: 28d, isRolling: true}]",
        ));
        return Some(Window::Rolling(DEFAULT_WINDOW));
    };
    let items = list.items(findings);
    let [item] = items.as_slice() else {
        findings.push(list.error(format!("has {} items", items.len()), "write exactly one"));
        return None;
    };
    time_window::time_window(item, findings)
}

/// `budgetingMethod`.
pub(super) fn budgeting_method(spec: &Cursor<'_>, findings: &mut Findings) -> Option<Method> {
    const KNOWN: [&str; 3] = ["Occurrences", "Timeslices", "RatioTimeslices"];
    let written = spec.required("budgetingMethod", "Occurrences", findings)?;
    match written.scalar(findings)?.as_str() {
        "Occurrences" => Some(Method::Occurrences),
        "Timeslices" => Some(Method::Timeslices),
        "RatioTimeslices" => Some(Method::RatioTimeslices),
        other => {
            let instead = match nearest(other, &KNOWN) {
                Some(near) => format!("write {near}"),
                None => format!("write one of {}", KNOWN.join(", ")),
            };
            findings.push(written.error(format!("{other:?} is no budgeting method"), instead));
            None
        }
    }
}

/// The indicator of an SLO or of a composite's objective.
fn indicator(owner: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Named<Box<Sli>>> {
    let (inline, reference) = indicator_keys(version);
    match (owner.child(inline), owner.child(reference)) {
        (Some(_), Some(reference)) => {
            findings.push(reference.error(format!("stands beside {inline}"), "write only one of the two"));
            None
        }
        (None, Some(name)) => Some(Named::Reference(name.scalar(findings)?, name.place)),
        (Some(inline), None) => {
            inline.only(&["metadata", "spec"], findings);
            let metadata = metadata(&inline, version, findings);
            let spec = inline.required("spec", "{ratioMetric: {…}}", findings)?;
            let read = sli(&spec, version, findings)?;
            Some(Named::Inline(metadata?, Box::new(read)))
        }
        (None, None) => None,
    }
}

/// Indicators are either the SLO's or all objectives' own.
fn check_indicators(
    spec: &Cursor<'_>,
    objectives: &[Cursor<'_>],
    (inline, reference): (&str, &str),
    findings: &mut Findings,
) {
    let has = |owner: &Cursor<'_>| owner.child(inline).is_some() || owner.child(reference).is_some();
    let own = objectives.iter().filter(|objective| has(objective)).count();
    if !has(spec) && own == 0 {
        let instead = format!("write {inline} or {reference}, or one in every objective of a composite");
        findings.push(spec.error("has no indicator", instead));
    } else if has(spec) && own > 0 {
        let instead = format!("write {inline} or {reference} either here or in the objectives");
        findings.push(spec.error("has an indicator, and so have its objectives", instead));
    } else if own > 0 {
        for objective in objectives.iter().filter(|objective| !has(objective)) {
            let instead =
                format!("write {inline} or {reference} as the other objectives of this composite do");
            findings.push(objective.error("has no indicator", instead));
        }
    }
}

fn objective(
    item: &Cursor<'_>,
    version: Version,
    method: Method,
    findings: &mut Findings,
) -> Option<SloObjective> {
    let (inline, reference) = indicator_keys(version);
    let mut known = vec![
        "displayName",
        "op",
        "value",
        "target",
        "targetPercent",
        "timeSliceTarget",
        "timeSliceWindow",
        inline,
        reference,
        "compositeWeight",
    ];
    if version == Version::V2Alpha {
        known.push("labels");
    }
    item.only(&known, findings);
    let target = target(item, findings);
    let (time_slice_target, time_slice_window) = slices(item, method, findings);
    let op = item.child("op").map(|op| operator(&op, findings));
    let composite_weight = item.number("compositeWeight", findings);
    if composite_weight.is_some_and(|weight| weight <= 0.0) {
        findings.push(
            item.error(
                "has a compositeWeight that is not above 0",
                "write compositeWeight: 1, or leave it out",
            ),
        );
    }
    Some(SloObjective {
        display_name: item.text("displayName", findings).unwrap_or_default(),
        op: op.flatten(),
        value: item.number("value", findings),
        target: target?,
        time_slice_target,
        time_slice_window,
        indicator: indicator(item, version, findings),
        composite_weight,
        place: item.place.clone(),
    })
}

/// Exactly one of `target` and `targetPercent`, below one.
pub(super) fn target(item: &Cursor<'_>, findings: &mut Findings) -> Option<Ratio> {
    let (key, percent) = match (item.child("target"), item.child("targetPercent")) {
        (Some(_), Some(percent)) => {
            findings.push(percent.error("stands beside target", "write only one of the two"));
            return None;
        }
        (None, None) => {
            findings.push(item.error("has no target", "write target: 0.999 or targetPercent: 99.9"));
            return None;
        }
        (Some(_), None) => ("target", false),
        (None, Some(_)) => ("targetPercent", true),
    };
    let ratio = item.ratio(key, percent, findings)?;
    if !ratio.is_below_one() {
        let written = item.child(key)?;
        let what = format!(
            "is {}, which leaves no error budget: one bad event breaks it for the whole period",
            written.node.describe()
        );
        let instead = match (percent, ratio.numerator() == ratio.denominator()) {
            (false, false) => {
                format!("write a ratio below 1 such as 0.999, or targetPercent: {}", written.node.scalar()?)
            }
            (false, true) => "write a target below 1 such as 0.9999".to_owned(),
            (true, _) => "write a percentage below 100 such as 99.99".to_owned(),
        };
        findings.push(written.error(what, instead));
        return None;
    }
    Some(ratio)
}

/// `timeSliceTarget` and `timeSliceWindow`, as far as the method has them.
fn slices(item: &Cursor<'_>, method: Method, findings: &mut Findings) -> (Option<Ratio>, Option<Duration>) {
    let mut target = item.ratio("timeSliceTarget", false, findings);
    if method == Method::Timeslices {
        item.required("timeSliceTarget", "0.95", findings);
    } else if let Some(written) = item.child("timeSliceTarget") {
        findings.push(written.warning(
            "means nothing with this budgetingMethod",
            "leave it out, or write budgetingMethod: Timeslices",
        ));
        target = None;
    }
    let within = |ratio: Ratio| !ratio.is_zero() && ratio.numerator() <= ratio.denominator();
    if let (Some(ratio), Some(written)) = (target, item.child("timeSliceTarget"))
        && !within(ratio)
    {
        findings.push(written.error(
            format!("is {}", written.node.describe()),
            "write a ratio above 0 and up to 1 such as 0.95",
        ));
        target = None;
    }
    if method == Method::Occurrences {
        if let Some(written) = item.child("timeSliceWindow") {
            findings.push(written.warning("means nothing with Occurrences", "leave it out"));
        }
        return (target, None);
    }
    let window =
        item.required("timeSliceWindow", "1m", findings).and_then(|written| slice(&written, findings));
    (target, window)
}

/// A duration, or a number of minutes as the specification (not the validator) allows.
fn slice(written: &Cursor<'_>, findings: &mut Findings) -> Option<Duration> {
    const DAY: Duration = Duration::from_secs(86_400);
    let slice = match &written.node.value {
        Value::Number(text) => {
            let minutes = text.parse::<u64>().ok().filter(|minutes| *minutes > 0);
            let slice = minutes.and_then(|minutes| minutes.checked_mul(60)).map(Duration::from_secs);
            if slice.is_none() {
                findings.push(written.error(format!("is {}", written.node.describe()), "write 1m"));
            }
            slice?
        }
        _ => duration(written, findings)?,
    };
    if slice > DAY {
        findings.push(written.error(format!("is {}", written.node.describe()), "write at most 1d"));
        return None;
    }
    Some(slice)
}
