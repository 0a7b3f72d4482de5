//! Alert policies, conditions and notification targets.
//!
//! In: their specs' nodes. Out: typed objects. Refuses to resolve references.

use std::time::Duration;

use super::cursor::{Cursor, Findings};
use super::head::{description, metadata};
use super::object::{AlertCondition, AlertNotificationTarget, AlertPolicy, Named, Operator, Version};
use crate::duration::parse_shorthand;

/// `AlertPolicy.spec`.
pub(super) fn policy(spec: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<AlertPolicy> {
    spec.only(
        &[
            "description",
            "alertWhenNoData",
            "alertWhenResolved",
            "alertWhenBreaching",
            "conditions",
            "notificationTargets",
        ],
        findings,
    );
    let breaching = spec.boolean("alertWhenBreaching", findings);
    let resolved = spec.boolean("alertWhenResolved", findings);
    let no_data = spec.boolean("alertWhenNoData", findings);
    let conditions = spec.required("conditions", "[{conditionRef: my-condition}]", findings)?;
    let items = conditions.items(findings);
    if items.len() != 1 {
        let what = format!("has {} conditions", items.len());
        let instead = "write one here and name further AlertConditions in the policy's annotation \
                       obi/conditions: \"second, third\"; all of them must hold";
        findings.push(conditions.error(what, instead));
        return None;
    }
    let read = |item: &Cursor<'_>, findings: &mut Findings| {
        named(item, version, ("conditionRef", "AlertCondition"), condition, findings)
    };
    let targets =
        spec.child("notificationTargets").map(|targets| targets.items(findings)).unwrap_or_default();
    if targets.is_empty() {
        let instead = "write notificationTargets: [{targetRef: my-target}]";
        findings.push(
            spec.warning(
                "names no notification target, so alerts only go where the agent sends all",
                instead,
            ),
        );
    }
    let target = |item: &Cursor<'_>, findings: &mut Findings| {
        named(item, version, ("targetRef", "AlertNotificationTarget"), notification_target, findings)
    };
    Some(AlertPolicy {
        description: description(spec, findings),
        when_breaching: breaching.unwrap_or(resolved.is_none() && no_data.is_none()),
        when_resolved: resolved.unwrap_or(false),
        when_no_data: no_data.unwrap_or(false),
        conditions: items.iter().filter_map(|item| read(item, findings)).collect(),
        notification_targets: targets.iter().filter_map(|item| target(item, findings)).collect(),
    })
}

/// Reads the spec of something in a version.
type ReadSpec<T> = fn(&Cursor<'_>, Version, &mut Findings) -> Option<T>;

/// Something in place (`kind`, `metadata`, `spec`), or a reference to it.
pub(super) fn named<T>(
    item: &Cursor<'_>,
    version: Version,
    (reference, kind): (&str, &str),
    read: ReadSpec<T>,
    findings: &mut Findings,
) -> Option<Named<T>> {
    if let Some(name) = item.child(reference) {
        item.only(&[reference], findings);
        return Some(Named::Reference(name.scalar(findings)?, name.place));
    }
    item.only(&["kind", "metadata", "spec", reference], findings);
    let written = item.required("kind", kind, findings)?;
    if written.scalar(findings)? != kind {
        findings.push(written.error(format!("is {}", written.node.describe()), format!("write {kind}")));
        return None;
    }
    let metadata = metadata(item, version, findings)?;
    let spec = item.required("spec", "{…}", findings)?;
    let value = read(&spec, version, findings)?;
    Some(Named::Inline(metadata, value))
}

/// `AlertCondition.spec`.
pub(super) fn condition(spec: &Cursor<'_>, _: Version, findings: &mut Findings) -> Option<AlertCondition> {
    spec.only(&["description", "severity", "condition"], findings);
    let description = description(spec, findings);
    let severity = spec.required("severity", "page", findings)?.scalar(findings)?;
    let condition = spec.required("condition", "{kind: burnrate, …}", findings)?;
    condition.only(&["kind", "op", "threshold", "lookbackWindow", "alertAfter"], findings);
    // The specification gives `kind` a default, the validator requires it.
    if let Some(kind) = condition.child("kind")
        && kind.scalar(findings)?.as_str() != "burnrate"
    {
        findings.push(kind.error(format!("is {}", kind.node.describe()), "write burnrate"));
        return None;
    }
    let op = condition.required("op", "gte", findings).and_then(|op| operator(&op, findings));
    condition.required("threshold", "14.4", findings);
    let threshold = condition.number("threshold", findings)?;
    let window = condition.required("lookbackWindow", "1h", findings)?;
    let lookback_window = duration(&window, findings)?;
    let after = condition.child("alertAfter");
    let zero = |after: &Cursor<'_>| {
        after.node.scalar().is_some_and(|text| {
            text.len() > 1 && text.starts_with('0') && parse_shorthand(&text.replacen('0', "1", 1)).is_some()
        })
    };
    let alert_after = match after {
        None => Duration::ZERO,
        Some(after) if zero(&after) => Duration::ZERO,
        Some(after) => duration(&after, findings)?,
    };
    let op = op?;
    if !threshold.is_sign_positive() {
        findings.push(condition.error(format!("has threshold {threshold}"), "write a burn rate above 0"));
        return None;
    }
    if matches!(op, Operator::Lt | Operator::Lte) {
        // The specification's own example says `lte` and describes it as "exceeds".
        let (written, meant) = if op == Operator::Lt { ("lt", "gt") } else { ("lte", "gte") };
        let what = format!("op {written} would alert while all is well; it is read as {meant}");
        findings.push(condition.warning(what, format!("write op: {meant}")));
    }
    Some(AlertCondition {
        description,
        severity,
        op,
        threshold,
        lookback_window,
        alert_after,
        place: condition.place,
    })
}

/// `AlertNotificationTarget.spec`.
pub(super) fn notification_target(
    spec: &Cursor<'_>,
    _: Version,
    findings: &mut Findings,
) -> Option<AlertNotificationTarget> {
    spec.only(&["description", "target"], findings);
    let description = description(spec, findings);
    let target = spec.required("target", "email", findings)?.scalar(findings)?;
    Some(AlertNotificationTarget { description, target })
}

/// `op`.
pub(super) fn operator(op: &Cursor<'_>, findings: &mut Findings) -> Option<Operator> {
    match op.scalar(findings)?.as_str() {
        "lt" => Some(Operator::Lt),
        "lte" => Some(Operator::Lte),
        "gt" => Some(Operator::Gt),
        "gte" => Some(Operator::Gte),
        other => {
            findings.push(op.error(format!("is {other:?}"), "write one of lt, lte, gt, gte"));
            None
        }
    }
}

/// OpenSLO's duration shorthand, months as 30 days.
pub(super) fn duration(written: &Cursor<'_>, findings: &mut Findings) -> Option<Duration> {
    let text = written.scalar(findings)?;
    let parsed = parse_shorthand(&text).map(|(count, unit)| unit.duration().saturating_mul(count));
    if parsed.is_none() {
        findings.push(written.error(format!("{text:?} is no duration"), DURATION));
    }
    parsed
}

/// What to write instead of something that is no duration.
pub(super) const DURATION: &str =
    "write a positive integer and one of m h d w M Q Y, for example 5m, 28d or 1M";
