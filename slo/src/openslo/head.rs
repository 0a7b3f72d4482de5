//! The head that every object has.
//!
//! In: a document. Out: version, kind and metadata. Refuses to look into `spec`.

use std::collections::BTreeMap;

use super::cursor::{Cursor, Findings, nearest};
use super::node::Value;
use super::object::{Metadata, Version};

/// Longest `description`.
const DESCRIPTION: usize = 1050;
/// Longest name, label key and display name.
const NAME: usize = 63;
/// Annotations that mean something to us.
const ANNOTATIONS: [&str; 4] = ["obi/conditions", "obi/short-window", "obi/min-bad", "obi/confidence"];

/// All kinds, in the order of the specification.
pub(super) const KINDS: [&str; 7] =
    ["DataSource", "SLO", "SLI", "AlertPolicy", "AlertCondition", "AlertNotificationTarget", "Service"];

/// `apiVersion`.
pub(super) fn version(document: &Cursor<'_>, findings: &mut Findings) -> Option<Version> {
    let written = document.required("apiVersion", "openslo/v1", findings)?;
    match written.scalar(findings)?.as_str() {
        "openslo/v1alpha" => Some(Version::V1Alpha),
        "openslo/v1" => Some(Version::V1),
        "openslo.com/v2alpha" => Some(Version::V2Alpha),
        other => {
            let what = format!("{other:?} is no version of OpenSLO");
            findings.push(written.error(what, "write openslo/v1"));
            None
        }
    }
}

/// `kind`, one of [`KINDS`] and known to the version.
pub(super) fn kind(document: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<&'static str> {
    let written = document.required("kind", "SLO", findings)?;
    let text = written.scalar(findings)?;
    let known: &[&str] = if version == Version::V1Alpha { &["SLO", "Service"] } else { &KINDS };
    let found = KINDS.iter().find(|kind| **kind == text && known.contains(kind)).copied();
    if found.is_none() {
        let instead = match nearest(&text, known) {
            Some(near) => format!("write {near}"),
            None => format!("write one of {}", known.join(", ")),
        };
        findings.push(written.error(format!("{text:?} is no kind of this version"), instead));
    }
    found
}

/// `metadata` of an object or of something written in place.
pub(super) fn metadata(owner: &Cursor<'_>, version: Version, findings: &mut Findings) -> Option<Metadata> {
    let metadata = owner.required("metadata", "{name: my-name}", findings)?;
    let known: &[&str] = match version {
        Version::V1Alpha => &["name", "displayName"],
        Version::V1 => &["name", "displayName", "labels", "annotations"],
        // The enhancement dropped displayName; written in a v1 habit it does no harm.
        Version::V2Alpha => &["name", "displayName", "labels", "annotations"],
    };
    metadata.only(known, findings);
    let name = metadata.required("name", "my-name", findings)?;
    let text = name.scalar(findings)?;
    check_name(&name, &text, findings);
    Some(Metadata {
        name: text,
        display_name: bounded(&metadata, "displayName", NAME, findings),
        labels: labels(&metadata, findings),
        annotations: annotations(&metadata, findings),
    })
}

/// `description` of a spec, at most 1,050 characters.
pub(super) fn description(spec: &Cursor<'_>, findings: &mut Findings) -> String {
    bounded(spec, "description", DESCRIPTION, findings)
}

fn bounded(owner: &Cursor<'_>, key: &str, limit: usize, findings: &mut Findings) -> String {
    let Some(child) = owner.child(key) else { return String::new() };
    let text = child.scalar(findings).unwrap_or_default();
    let length = text.chars().count();
    if length > limit {
        findings.push(child.error(format!("has {length} characters"), format!("write at most {limit}")));
    }
    text
}

/// RFC 1123 labels are what every implementation must take; the validator takes nothing else, while the
/// specification's own examples have capitals. So capitals, dots and underscores are a warning, the rest an error.
fn check_name(name: &Cursor<'_>, text: &str, findings: &mut Findings) {
    let edges = |text: &str| {
        let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
        alphanumeric(text.bytes().next()) && alphanumeric(text.bytes().next_back())
    };
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let strict = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let rule = "lower-case letters, digits and '-', a letter or digit at both ends";
    let instead = match slug(text) {
        slug if slug.is_empty() => format!("write {rule}"),
        slug => format!("write {slug} ({rule})"),
    };
    if text.len() > NAME {
        findings.push(name.error(format!("has {} characters", text.len()), format!("write at most {NAME}")));
    } else if !text.bytes().all(allowed) || !edges(text) {
        findings.push(name.error(format!("{text:?} is no name"), instead));
    } else if !text.bytes().all(strict) {
        findings.push(name.warning(format!("{text:?} is not a name that every tool takes"), instead));
    }
}

/// A name made of any text: lower case, runs of other characters as one dash.
pub(super) fn slug(text: &str) -> String {
    let mut name = String::new();
    for character in text.chars() {
        if character.is_ascii_alphanumeric() {
            name.push(character.to_ascii_lowercase());
        } else if !name.is_empty() && !name.ends_with('-') {
            name.push('-');
        }
    }
    name.truncate(NAME);
    name.trim_end_matches('-').to_owned()
}

fn labels(metadata: &Cursor<'_>, findings: &mut Findings) -> BTreeMap<String, Vec<String>> {
    let Some(labels) = metadata.child("labels") else { return BTreeMap::new() };
    let mut read = BTreeMap::new();
    for entry in labels.node.entries() {
        if !is_segment(&entry.key) {
            let instead =
                "write letters, digits, '-', '_' and '.', a letter or digit at both ends, at most 63";
            findings.push(labels.error(format!("{:?} is no label", entry.key), instead));
        }
        let Some(label) = labels.child(&entry.key) else { continue };
        let values = match &label.node.value {
            Value::List(_) => label.items(findings).iter().filter_map(|item| item.scalar(findings)).collect(),
            _ => label.scalar(findings).into_iter().collect(),
        };
        read.insert(entry.key.clone(), values);
    }
    read
}

fn annotations(metadata: &Cursor<'_>, findings: &mut Findings) -> BTreeMap<String, String> {
    let Some(annotations) = metadata.child("annotations") else { return BTreeMap::new() };
    let mut read = BTreeMap::new();
    for entry in annotations.node.entries() {
        let (prefix, name) = entry.key.rsplit_once('/').unwrap_or(("", &entry.key));
        let prefix_fits = entry.key.starts_with(name)
            || (prefix.len() <= 253
                && prefix.split('.').all(|label| is_segment(label) && slug(label) == label));
        if !is_segment(name) || !prefix_fits {
            let instead = "write my-domain.org/my-key or my-key";
            findings.push(annotations.error(format!("{:?} is no annotation", entry.key), instead));
        }
        let Some(annotation) = annotations.child(&entry.key) else { continue };
        if prefix == "obi" && !ANNOTATIONS.contains(&entry.key.as_str()) {
            let instead = format!("known: {}", ANNOTATIONS.join(", "));
            findings.push(annotation.error("means nothing", instead));
        }
        if let Some(text) = annotation.scalar(findings) {
            read.insert(entry.key.clone(), text);
        }
    }
    read
}

/// Name of a label, or of an annotation behind its prefix.
fn is_segment(text: &str) -> bool {
    let alphanumeric = |byte: Option<u8>| byte.is_some_and(|byte| byte.is_ascii_alphanumeric());
    text.len() <= NAME
        && alphanumeric(text.bytes().next())
        && alphanumeric(text.bytes().next_back())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}
