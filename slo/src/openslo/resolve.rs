//! From documents to executable objectives.
//!
//! In: all documents that were read. Out: [`Objective`]s, and findings on references and on what can never work.
//! Refuses to look at text.

use std::collections::HashSet;

use super::cursor::Findings;
use super::finding::{Finding, Place, Severity};
use super::head::slug;
use super::object::{
    DataSource, Document, Metadata, Method, MetricSource, Named, Object, Reading, Sli, Slo, SloObjective,
};
use super::{arms, events};
use crate::indicator::{Indicator, Queries};
use crate::objective::{BudgetingMethod, Objective, Part};
use crate::ratio::Ratio;

/// Fills [`Reading::objectives`].
pub(super) fn resolve(reading: &mut Reading) {
    let Reading { documents, objectives, findings } = reading;
    check_twice(documents, findings);
    let index = Index(documents);
    for document in documents.iter() {
        if let Object::Slo(slo) = &document.object {
            objectives.extend(executable(document, slo, &index, findings));
        }
    }
    let mut names = HashSet::new();
    objectives.retain(|objective| {
        let new = names.insert(objective.name.clone());
        if !new {
            let what = format!("gives another objective called {:?}", objective.name);
            findings.push(error(&objective.place, what, "write another metadata.name or displayName"));
        }
        new
    });
}

/// Objects by kind and name.
pub(super) struct Index<'a>(&'a [Document]);

impl<'a> Index<'a> {
    /// What `pick` finds in the first document with this name.
    pub(super) fn find<T>(&self, name: &str, pick: impl Fn(&'a Document) -> Option<T>) -> Option<T> {
        self.0.iter().filter(|document| document.metadata.name == name).find_map(pick)
    }

    fn sli(&self, name: &str) -> Option<&'a Sli> {
        self.find(name, |document| match &document.object {
            Object::Sli(sli) => Some(&**sli),
            _ => None,
        })
    }

    fn data_source(&self, name: &str) -> Option<&'a DataSource> {
        self.find(name, |document| match &document.object {
            Object::DataSource(source) => Some(source),
            _ => None,
        })
    }
}

/// An error of the given text.
pub(super) fn error(place: &Place, what: impl Into<String>, instead: impl Into<String>) -> Finding {
    Finding { place: place.clone(), severity: Severity::Error, what: what.into(), instead: instead.into() }
}

fn check_twice(documents: &[Document], findings: &mut Findings) {
    let mut seen = HashSet::new();
    for document in documents {
        let kind = std::mem::discriminant(&document.object);
        if !seen.insert((kind, &document.metadata.name)) {
            let what = format!("{:?} is the name of another object of this kind", document.metadata.name);
            let place = Place { key: "metadata.name".to_owned(), ..document.place.clone() };
            let mut finding = error(&place, what, "write another name");
            // Nothing of a Service is used, so a second one does no harm.
            if matches!(document.object, Object::Service(_)) {
                finding.severity = Severity::Warning;
            }
            findings.push(finding);
        }
    }
}

/// All objectives of an SLO; those with errors are left out.
fn executable(document: &Document, slo: &Slo, index: &Index<'_>, findings: &mut Findings) -> Vec<Objective> {
    let metadata = &document.metadata;
    let composite = slo.objectives.iter().any(|objective| objective.indicator.is_some());
    let several = slo.objectives.len() > 1;
    let groups: Vec<&[SloObjective]> =
        if composite { vec![&slo.objectives] } else { slo.objectives.chunks(1).collect() };
    let mut made = Vec::new();
    for (at, group) in groups.into_iter().enumerate() {
        let parts: Option<Vec<Part>> =
            group.iter().map(|item| part(item, slo, &document.place, index, findings)).collect();
        let budgeting = budgeting(slo.budgeting_method, group, findings);
        let (Some(parts), Some(budgeting)) = (parts, budgeting) else { continue };
        let place = if composite { document.place.clone() } else { group[0].place.clone() };
        let mut objective = Objective {
            name: name(metadata, group, (several && !composite).then_some(at)),
            slo: metadata.name.clone(),
            display_name: if several && !composite && !group[0].display_name.is_empty() {
                group[0].display_name.clone()
            } else {
                metadata.display_name.clone()
            },
            service: slo.service.clone(),
            description: slo.description.clone(),
            labels: metadata.labels.clone(),
            annotations: metadata.annotations.clone(),
            parts,
            budgeting,
            window: slo.window.clone(),
            arms: Vec::new(),
            place,
        };
        check_parts(&objective, findings);
        if let Some(arms) = arms::arms(&objective, slo.alert_policies.as_deref(), index, findings) {
            objective.arms = arms;
            made.push(objective);
        }
    }
    made
}

/// The SLO's name, and what distinguishes its objectives.
fn name(metadata: &Metadata, group: &[SloObjective], number: Option<usize>) -> String {
    let Some(number) = number else { return metadata.name.clone() };
    match slug(&group[0].display_name) {
        slug if slug.is_empty() => format!("{}-{}", metadata.name, number + 1),
        slug => format!("{}-{slug}", metadata.name),
    }
}

/// All objectives of a composite must have one length of slice.
fn budgeting(method: Method, group: &[SloObjective], findings: &mut Findings) -> Option<BudgetingMethod> {
    let mut slices = group.iter().map(|objective| objective.time_slice_window);
    let first = slices.next().flatten();
    if slices.any(|slice| slice != first) {
        let what = "the objectives of this composite have different timeSliceWindows";
        findings.push(error(&group[0].place, what, "write the same timeSliceWindow in each"));
        return None;
    }
    match method {
        Method::Occurrences => Some(BudgetingMethod::Occurrences),
        Method::Timeslices => Some(BudgetingMethod::Timeslices { slice: first? }),
        Method::RatioTimeslices => Some(BudgetingMethod::RatioTimeslices { slice: first? }),
    }
}

fn part(
    item: &SloObjective,
    slo: &Slo,
    place: &Place,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<Part> {
    let named = item.indicator.as_ref().or(slo.indicator.as_ref())?;
    let (name, sli) = match named {
        Named::Inline(metadata, sli) => (metadata.name.clone(), &**sli),
        Named::Reference(name, at) => match index.sli(name) {
            Some(sli) => (name.clone(), sli),
            None => {
                findings.push(error(
                    at,
                    format!("no SLI is called {name:?}"),
                    "write the name of an SLI, or the SLI in place",
                ));
                return None;
            }
        },
    };
    let one = Ratio::new(1, 1).expect("one is not zero");
    Some(Part {
        name: if item.display_name.is_empty() { name } else { item.display_name.clone() },
        indicator: indicator(sli, item, place, index, findings)?,
        target: item.target,
        slice_target: item.time_slice_target.unwrap_or(one),
        weight: item.composite_weight.unwrap_or(1.0),
    })
}

fn indicator(
    sli: &Sli,
    item: &SloObjective,
    place: &Place,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<Indicator> {
    if let Sli::Threshold(metric) = sli {
        return threshold(metric, item, index, findings);
    }
    if item.op.is_some() || item.value.is_some() {
        // The specification's own examples have `op` here, its validator forbids it.
        let what = "op and value mean nothing with a ratioMetric";
        findings.push(Finding { severity: Severity::Warning, ..error(&item.place, what, "leave them out") });
    }
    match sli {
        Sli::Ratio { counter, of, counted, total } => {
            match (is_own(counted, index, findings)?, is_own(total, index, findings)?) {
                (true, true) => events::ratio(*of, counted, total, findings).map(Indicator::Events),
                (false, false) => {
                    let (counted, total) = (counted.clone(), total.clone());
                    Some(Indicator::Queries(Queries::Ratio { of: *of, counted, total, counter: *counter }))
                }
                _ => {
                    let what = format!("{} and total are of different types", of.as_str());
                    findings.push(error(&counted.place, what, "write type: obi in both, or in none"));
                    None
                }
            }
        }
        Sli::Raw { raw, of } => {
            if is_own(raw, index, findings)? {
                let what = "raw is a ratio that is computed already, and obi counts events";
                findings.push(error(&raw.place, what, "write total and one of good and bad"));
                return None;
            }
            Some(Indicator::Queries(Queries::Raw { raw: raw.clone(), of: *of }))
        }
        Sli::Threshold(_) => {
            findings.push(error(place, "has no ratioMetric", "write one"));
            None
        }
    }
}

fn threshold(
    metric: &MetricSource,
    item: &SloObjective,
    index: &Index<'_>,
    findings: &mut Findings,
) -> Option<Indicator> {
    let (Some(operator), Some(value)) = (item.op, item.value) else {
        let what = "lacks op or value, which a thresholdMetric needs";
        findings.push(error(&item.place, what, "write op: lte and value: 0.3"));
        return None;
    };
    if is_own(metric, index, findings)? {
        events::threshold(metric, operator, value, findings).map(Indicator::Events)
    } else {
        Some(Indicator::Queries(Queries::Threshold { metric: metric.clone(), operator, value }))
    }
}

/// Whether a source is ours; an error when nothing is said of its type.
fn is_own(source: &MetricSource, index: &Index<'_>, findings: &mut Findings) -> Option<bool> {
    if let Some(kind) = &source.kind {
        return Some(events::is_own(kind));
    }
    let referred = source.reference.as_deref().map(|name| (name, index.data_source(name)));
    match referred {
        Some((_, Some(data_source))) => Some(events::is_own(&data_source.kind)),
        Some((name, None)) => {
            // The validator does not look; the data source may be known elsewhere.
            let what = format!(
                "no DataSource is called {name:?}, so this is taken for a query to some other system"
            );
            let finding = error(&source.place, what, "write type: obi beside it, or the DataSource");
            findings.push(Finding { severity: Severity::Warning, ..finding });
            Some(false)
        }
        None => {
            findings.push(error(&source.place, "has no type", "write type: obi beside spec"));
            None
        }
    }
}

fn check_parts(objective: &Objective, findings: &mut Findings) {
    let first = objective.parts[0].target;
    if objective.parts.iter().any(|part| part.target != first) && objective.budgeting.slice().is_some() {
        let what = format!("has different targets; the composite's is the strictest, {}", objective.target());
        let place = objective.place.clone();
        findings.push(Finding { place, severity: Severity::Note, what, instead: String::new() });
    }
    for part in &objective.parts {
        if part.target.is_zero() {
            let what = "target 0 promises nothing: its budget cannot be used up, and no alert can fire";
            let finding = error(&objective.place, what, "write a target above 0 such as 0.99");
            findings.push(Finding { severity: Severity::Warning, ..finding });
        }
    }
}
