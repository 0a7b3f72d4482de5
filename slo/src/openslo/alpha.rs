//! `SLO.spec` of v1alpha, read into the shape of v1.
//!
//! In: the spec's node. Out: [`Slo`]. Refuses what v1alpha had not.
//!
//! The validator wants `value` also beside `ratioMetrics`, where it means nothing; it is not required here.

use super::alerting::operator;
use super::cursor::{Cursor, Findings};
use super::head::{description, slug};
use super::node::{Entry, Node, Value};
use super::object::{Metadata, Method, MetricSource, Named, Sli, Slo, SloObjective};
use super::slo::{budgeting_method, target};
use super::time_window::alpha_window;
use crate::indicator::Outcome;

/// Length of a time slice, which v1alpha does not give.
const SLICE: std::time::Duration = std::time::Duration::from_secs(60);

/// Reads the spec of an SLO.
pub(super) fn slo(spec: &Cursor<'_>, findings: &mut Findings) -> Option<Slo> {
    spec.only(
        &["timeWindows", "budgetingMethod", "description", "indicator", "service", "objectives"],
        findings,
    );
    let service =
        spec.required("service", "my-service", findings).and_then(|service| service.scalar(findings));
    let windows = spec.required("timeWindows", "[{unit: Day, count: 28, isRolling: true}]", findings)?;
    let items = windows.items(findings);
    let [window] = items.as_slice() else {
        findings.push(windows.error(format!("has {} items", items.len()), "write exactly one"));
        return None;
    };
    let window = alpha_window(window, findings);
    let method = budgeting_method(spec, findings)?;
    if method == Method::RatioTimeslices {
        findings
            .push(spec.error("budgetingMethod RatioTimeslices came with v1", "write apiVersion: openslo/v1"));
    }
    let indicator = spec.child("indicator").map(|indicator| threshold(&indicator, findings));
    let items = spec.required("objectives", "[{target: 0.999}]", findings)?.items(findings);
    let read: Vec<Option<SloObjective>> =
        items.iter().map(|item| objective(item, method, findings)).collect();
    check_indicators(spec, &items, findings);
    let mut objectives = read.into_iter().collect::<Option<Vec<_>>>()?;
    let mut indicator = indicator.flatten().map(|sli| named(&objectives, sli));
    if indicator.is_none() && objectives.len() == 1 {
        // One ratio is the SLO's own indicator; several make a composite, as objectives with indicators do in v1.
        indicator = objectives[0].indicator.take();
    }
    Some(Slo {
        description: description(spec, findings),
        service: service?,
        indicator,
        window: window?,
        budgeting_method: method,
        objectives,
        alert_policies: None,
    })
}

fn check_indicators(spec: &Cursor<'_>, objectives: &[Cursor<'_>], findings: &mut Findings) {
    let own = objectives.iter().filter(|objective| objective.child("ratioMetrics").is_some()).count();
    match (spec.child("indicator"), own) {
        (Some(indicator), 1..) => {
            findings.push(
                indicator.error("stands beside ratioMetrics of an objective", "write only one of the two"),
            );
        }
        (None, 0) => {
            findings
                .push(spec.error("has no indicator", "write indicator, or ratioMetrics in the objectives"));
        }
        _ => {}
    }
}

fn threshold(indicator: &Cursor<'_>, findings: &mut Findings) -> Option<Sli> {
    indicator.only(&["thresholdMetric"], findings);
    let metric = indicator.required("thresholdMetric", "{source: …, queryType: …, query: …}", findings)?;
    query(&metric, findings).map(Sli::Threshold)
}

fn objective(item: &Cursor<'_>, method: Method, findings: &mut Findings) -> Option<SloObjective> {
    item.only(&["displayName", "value", "ratioMetrics", "target", "timeSliceTarget", "op"], findings);
    let target = target(item, findings);
    let slice_target = item.ratio("timeSliceTarget", false, findings);
    if method == Method::Timeslices {
        item.required("timeSliceTarget", "0.95", findings);
    }
    let display_name = item.text("displayName", findings).unwrap_or_default();
    let ratio = item.child("ratioMetrics");
    let sli = ratio.as_ref().map(|ratio| ratio_metrics(ratio, findings));
    let op = item.child("op").map(|op| operator(&op, findings));
    let name = Metadata { name: slug(&display_name), ..Metadata::default() };
    Some(SloObjective {
        op: op.flatten(),
        value: item.number("value", findings),
        target: target?,
        time_slice_target: slice_target,
        time_slice_window: (method == Method::Timeslices).then_some(SLICE),
        indicator: sli.flatten().map(|sli| Named::Inline(name, Box::new(sli))),
        composite_weight: None,
        place: item.place.clone(),
        display_name,
    })
}

fn ratio_metrics(ratio: &Cursor<'_>, findings: &mut Findings) -> Option<Sli> {
    ratio.only(&["good", "total", "incremental"], findings);
    let counter = ratio.boolean("incremental", findings).unwrap_or(false);
    let good = ratio.required("good", "{source: …, queryType: …, query: …}", findings)?;
    let total = ratio.required("total", "{source: …, queryType: …, query: …}", findings)?;
    let (counted, total) = (query(&good, findings), query(&total, findings));
    Some(Sli::Ratio { counter, of: Outcome::Good, counted: counted?, total: total? })
}

/// `{source, queryType, query}`; the source becomes the type, the rest the spec.
fn query(metric: &Cursor<'_>, findings: &mut Findings) -> Option<MetricSource> {
    metric.only(&["source", "queryType", "query"], findings);
    let source = metric.required("source", "prometheus", findings)?.scalar(findings)?;
    metric.required("queryType", "promql", findings)?.scalar(findings)?;
    metric.required("query", "sum(http_requests)", findings)?.scalar(findings)?;
    let spec: Vec<Entry> =
        metric.node.entries().iter().filter(|entry| entry.key != "source").cloned().collect();
    Some(MetricSource {
        reference: None,
        kind: Some(source),
        spec: Node { value: Value::Map(spec), line: metric.place.line },
        place: metric.place.clone(),
    })
}

/// Something to call the SLO's indicator.
fn named(objectives: &[SloObjective], sli: Sli) -> Named<Box<Sli>> {
    let name = objectives.first().map(|objective| slug(&objective.display_name)).unwrap_or_default();
    Named::Inline(Metadata { name, ..Metadata::default() }, Box::new(sli))
}
