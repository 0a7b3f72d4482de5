//! `SLI.spec`: threshold and ratio metrics and their sources.
//!
//! In: the spec's node, of v1 or v2alpha. Out: [`Sli`]. Refuses to know what a source's `spec` means.

use super::cursor::{Cursor, Findings};
use super::head::description;
use super::node::{Node, Value};
use super::object::{MetricSource, Sli, Version};
use crate::indicator::Outcome;

/// Reads an SLI's spec.
pub(super) fn sli(spec: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Sli> {
    spec.only(&["description", "thresholdMetric", "ratioMetric"], findings);
    description(spec, findings);
    match (spec.child("thresholdMetric"), spec.child("ratioMetric")) {
        (Some(metric), None) => metric_source(&metric, version, findings).map(Sli::Threshold),
        (None, Some(metric)) => ratio(&metric, version, findings),
        (Some(_), Some(ratio)) => {
            findings.push(ratio.error("stands beside thresholdMetric", "write only one of the two"));
            None
        }
        (None, None) => {
            findings.push(spec.error("has no metric", "write thresholdMetric or ratioMetric"));
            None
        }
    }
}

fn ratio(metric: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Sli> {
    metric.only(&["counter", "good", "bad", "total", "rawType", "raw"], findings);
    let counter = metric.boolean("counter", findings).unwrap_or(false);
    let total = metric.child("total");
    let raw = metric.child("raw");
    let counted = (metric.child("good"), metric.child("bad"));
    match (total, raw, counted) {
        (Some(total), None, (Some(good), None)) => {
            let counted = metric_source(&good, version, findings);
            let total = metric_source(&total, version, findings)?;
            Some(Sli::Ratio { counter, of: Outcome::Good, counted: counted?, total })
        }
        (Some(total), None, (None, Some(bad))) => {
            let counted = metric_source(&bad, version, findings);
            let total = metric_source(&total, version, findings)?;
            Some(Sli::Ratio { counter, of: Outcome::Bad, counted: counted?, total })
        }
        (None, Some(raw), (None, None)) => self::raw(metric, &raw, version, findings),
        (None, None, _) => {
            findings.push(
                metric.error("has no total", "write total and one of good and bad, or raw and rawType"),
            );
            None
        }
        (_, Some(raw), _) => {
            findings.push(
                raw.error("stands beside good, bad or total", "write either raw, or total with good or bad"),
            );
            None
        }
        (Some(_), None, (Some(_), Some(bad))) => {
            findings.push(bad.error("stands beside good", "write only one of the two"));
            None
        }
        (Some(total), None, (None, None)) => {
            findings.push(total.error("stands alone", "write good or bad beside it"));
            None
        }
    }
}

fn raw(metric: &Cursor<'_>, raw: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Sli> {
    let kind = metric.required("rawType", "success", findings)?;
    let of =
        match kind.scalar(findings)?.as_str() {
            "success" => Outcome::Good,
            "failure" => Outcome::Bad,
            other => {
                findings.push(kind.error(
                    format!("is {other:?}"),
                    "write success (good of total) or failure (bad of total)",
                ));
                return None;
            }
        };
    Some(Sli::Raw { raw: metric_source(raw, version, findings)?, of })
}

/// `metricSource` (v1), or its parts (v2alpha).
fn metric_source(metric: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<MetricSource> {
    if version == Version::V2Alpha {
        return data_source_spec(metric, findings);
    }
    metric.only(&["metricSource"], findings);
    let source = metric.required("metricSource", "{type: obi, spec: {…}}", findings)?;
    source.only(&["metricSourceRef", "type", "spec"], findings);
    let spec = source.required("spec", "{…}", findings)?;
    if spec.node.entries().is_empty() {
        findings.push(
            spec.error(format!("is {}", spec.node.describe()), "write a mapping with at least one key"),
        );
    }
    Some(MetricSource {
        reference: source.text("metricSourceRef", findings),
        kind: source.text("type", findings),
        spec: spec.node.clone(),
        place: spec.place,
    })
}

/// v2alpha: `dataSourceRef` or `dataSourceSpec`, and `spec`.
fn data_source_spec(metric: &Cursor<'_>, findings: &mut Findings) -> Option<MetricSource> {
    metric.only(&["dataSourceRef", "dataSourceSpec", "spec"], findings);
    let source = metric.child("dataSourceSpec");
    if let Some(source) = &source {
        source.only(&["description", "type", "connectionDetails"], findings);
    }
    let reference = metric.text("dataSourceRef", findings);
    if reference.is_some() == source.is_some() {
        findings.push(metric.error("needs one data source", "write either dataSourceRef or dataSourceSpec"));
        return None;
    }
    let spec = metric.child("spec");
    let empty = Node { value: Value::Map(Vec::new()), line: metric.place.line };
    Some(MetricSource {
        reference,
        kind: source.and_then(|source| source.text("type", findings)),
        place: spec.as_ref().map_or_else(|| metric.place.clone(), |spec| spec.place.clone()),
        spec: spec.map_or(empty, |spec| spec.node.clone()),
    })
}
