//! From texts to documents.
//!
//! In: texts. Out: [`Reading`]. Refuses to stop at the first fault: every text and object is looked at.

use std::sync::Arc;

use super::alerting::{condition, notification_target, policy};
use super::cursor::{Cursor, Findings};
use super::finding::{Finding, Place, Severity};
use super::head::{description, kind, metadata, version};
use super::node::{Value, parse};
use super::object::{DataSource, Document, Object, Reading, Version};
use super::syntax::SyntaxError;
use super::{alpha, resolve, sli::sli, slo};

/// Reads everything, and makes executable what can be.
///
/// Each text comes with the name that findings give it, and holds one object, a list of objects, or several YAML
/// documents of either. References are looked up among all texts.
pub fn read<'a>(texts: impl IntoIterator<Item = (&'a str, &'a str)>) -> Reading {
    let mut reading = Reading::default();
    for (file, text) in texts {
        let file: Arc<str> = file.into();
        match parse(text) {
            Ok(nodes) => {
                for node in &nodes {
                    let place = Place { file: file.clone(), line: node.line, key: String::new() };
                    top_level(&Cursor { node, place }, &mut reading);
                }
            }
            Err(SyntaxError { line, column, message }) => {
                let place = Place { file, line, key: String::new() };
                let (what, instead) = match message.split_once(", expected ") {
                    Some((what, wanted)) => (what, format!("expected {wanted}")),
                    None => (&*message, "check brackets, quotes and indentation there".to_owned()),
                };
                let what = format!("not valid YAML at column {column}: {what}");
                reading.findings.push(Finding { place, severity: Severity::Error, what, instead });
            }
        }
    }
    resolve::resolve(&mut reading);
    reading.findings.sort();
    reading.findings.dedup();
    reading
}

/// A document, or a list of them.
fn top_level(cursor: &Cursor<'_>, reading: &mut Reading) {
    if matches!(cursor.node.value, Value::List(_)) {
        for item in cursor.items(&mut reading.findings) {
            // Keys are named from the object's root, which the line makes unique.
            let place = Place { key: String::new(), ..item.place };
            one(&Cursor { node: item.node, place }, reading);
        }
    } else {
        one(cursor, reading);
    }
}

/// Kept when it has no error.
fn one(cursor: &Cursor<'_>, reading: &mut Reading) {
    let before = reading.findings.len();
    let document = document(cursor, &mut reading.findings);
    let sound = reading.findings[before..].iter().all(|finding| finding.severity < Severity::Error);
    reading.documents.extend(document.filter(|_| sound));
}

fn document(cursor: &Cursor<'_>, findings: &mut Findings) -> Option<Document> {
    cursor.only(&["apiVersion", "kind", "metadata", "spec"], findings);
    let version = version(cursor, findings)?;
    let kind = kind(cursor, version, findings)?;
    let metadata = metadata(cursor, version, findings);
    // Only a Service has a spec in which nothing is required.
    let empty = cursor.child("spec").is_none() && kind == "Service";
    let object = if empty {
        Some(Object::Service(String::new()))
    } else {
        cursor.required("spec", "{…}", findings).and_then(|spec| object(kind, &spec, version, findings))
    };
    Some(Document { version, metadata: metadata?, object: object?, place: cursor.place.clone() })
}

fn object(kind: &str, spec: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Object> {
    match kind {
        "SLO" if version == Version::V1Alpha => alpha::slo(spec, findings).map(Box::new).map(Object::Slo),
        "SLO" => slo::slo(spec, version, findings).map(Box::new).map(Object::Slo),
        "SLI" => sli(spec, version, findings).map(Box::new).map(Object::Sli),
        "AlertPolicy" => policy(spec, version, findings).map(Object::AlertPolicy),
        "AlertCondition" => condition(spec, version, findings).map(Object::AlertCondition),
        "AlertNotificationTarget" => {
            notification_target(spec, version, findings).map(Object::AlertNotificationTarget)
        }
        "DataSource" => data_source(spec, findings).map(Object::DataSource),
        _ => {
            spec.only(&["description"], findings);
            Some(Object::Service(description(spec, findings)))
        }
    }
}

fn data_source(spec: &Cursor<'_>, findings: &mut Findings) -> Option<DataSource> {
    spec.only(&["description", "type", "connectionDetails"], findings);
    let kind = spec.required("type", "Prometheus", findings)?.scalar(findings)?;
    // The specification leaves it to the source, the validator requires it.
    let connection_details = spec.child("connectionDetails").map(|details| details.node.clone());
    Some(DataSource { description: description(spec, findings), kind, connection_details })
}
