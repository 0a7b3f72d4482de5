//! A place in a document, and typed questions about what is there.
//!
//! In: nodes. Out: values, and findings for what is not as it should be. Refuses to know OpenSLO's keys.

use super::finding::{Finding, Place, Severity};
use super::node::{Node, Value};
use crate::ratio::Ratio;

/// Collects findings.
pub(super) type Findings = Vec<Finding>;

/// A node and the way to it.
#[derive(Clone, Debug)]
pub(super) struct Cursor<'a> {
    pub(super) node: &'a Node,
    pub(super) place: Place,
}

impl<'a> Cursor<'a> {
    /// The node under `key`; nothing when it is absent or empty.
    pub(super) fn child(&self, key: &str) -> Option<Self> {
        let entry = self.node.entries().iter().find(|entry| entry.key == key)?;
        let line = if entry.line > 0 { entry.line } else { entry.value.line };
        let place = Place { file: self.place.file.clone(), line, key: join(&self.place.key, key) };
        (entry.value.value != Value::Null).then_some(Self { node: &entry.value, place })
    }

    /// As [`Self::child`], an error when there is none.
    pub(super) fn required(&self, key: &str, example: &str, findings: &mut Findings) -> Option<Self> {
        let child = self.child(key);
        if child.is_none() {
            let mut place = self.place.clone();
            place.key = join(&place.key, key);
            let instead = format!("write {key}: {example}");
            findings.push(Finding {
                place,
                severity: Severity::Error,
                what: "is missing".to_owned(),
                instead,
            });
        }
        child
    }

    /// Items of a list; an error when it is something else.
    pub(super) fn items(&self, findings: &mut Findings) -> Vec<Self> {
        let Value::List(items) = &self.node.value else {
            findings
                .push(self.error(format!("is {}", self.node.describe()), "write a list, items with a dash"));
            return Vec::new();
        };
        let item = |(at, node): (usize, &'a Node)| Self {
            node,
            place: Place {
                file: self.place.file.clone(),
                line: node.line,
                key: format!("{}[{at}]", self.place.key),
            },
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Finds keys that are not among `known`, and anything that is no mapping.
    pub(super) fn only(&self, known: &[&str], findings: &mut Findings) {
        if !matches!(self.node.value, Value::Map(_)) {
            let what = format!("is {}", self.node.describe());
            findings.push(self.error(what, format!("write a mapping with keys among {}", known.join(", "))));
        }
        for entry in self.node.entries() {
            if !known.contains(&entry.key.as_str()) {
                let place = Place {
                    file: self.place.file.clone(),
                    line: entry.line,
                    key: join(&self.place.key, &entry.key),
                };
                let instead = match nearest(&entry.key, known) {
                    Some(near) => format!("write {near}"),
                    None => format!("known here: {}", known.join(", ")),
                };
                let what = "is no key of OpenSLO".to_owned();
                findings.push(Finding { place, severity: Severity::Error, what, instead });
            }
        }
    }

    /// Text of a scalar under `key`.
    pub(super) fn text(&self, key: &str, findings: &mut Findings) -> Option<String> {
        self.child(key)?.scalar(findings)
    }

    /// Text of this scalar; an error when it is none.
    pub(super) fn scalar(&self, findings: &mut Findings) -> Option<String> {
        let text = self.node.scalar();
        if text.is_none() {
            findings.push(self.error(format!("is {}", self.node.describe()), "write one value"));
        }
        text
    }

    /// `true` or `false` under `key`.
    pub(super) fn boolean(&self, key: &str, findings: &mut Findings) -> Option<bool> {
        let child = self.child(key)?;
        let Value::Bool(value) = child.node.value else {
            findings.push(child.error(format!("is {}", child.node.describe()), "write true or false"));
            return None;
        };
        Some(value)
    }

    /// A finite number under `key`.
    pub(super) fn number(&self, key: &str, findings: &mut Findings) -> Option<f64> {
        let child = self.child(key)?;
        let number = match &child.node.value {
            Value::Number(text) => text.parse().ok().filter(|number: &f64| number.is_finite()),
            _ => None,
        };
        if number.is_none() {
            findings.push(child.error(format!("is {}", child.node.describe()), "write a number"));
        }
        number
    }

    /// An exact ratio under `key`, written as such or in per cent.
    pub(super) fn ratio(&self, key: &str, percent: bool, findings: &mut Findings) -> Option<Ratio> {
        let child = self.child(key)?;
        let ratio = match &child.node.value {
            Value::Number(text) if percent => Ratio::parse_percent(text),
            Value::Number(text) => Ratio::parse(text),
            _ => None,
        };
        if ratio.is_none() {
            let instead =
                if percent { "write a number such as 99.9" } else { "write a number such as 0.999" };
            findings.push(child.error(format!("is {}", child.node.describe()), instead));
        }
        ratio
    }

    /// An error here.
    pub(super) fn error(&self, what: impl Into<String>, instead: impl Into<String>) -> Finding {
        self.finding(Severity::Error, what, instead)
    }

    /// A warning here.
    pub(super) fn warning(&self, what: impl Into<String>, instead: impl Into<String>) -> Finding {
        self.finding(Severity::Warning, what, instead)
    }

    /// A finding here.
    pub(super) fn finding(
        &self,
        severity: Severity,
        what: impl Into<String>,
        instead: impl Into<String>,
    ) -> Finding {
        Finding { place: self.place.clone(), severity, what: what.into(), instead: instead.into() }
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

/// The known key that was probably meant.
pub(super) fn nearest<'a>(written: &str, known: &[&'a str]) -> Option<&'a str> {
    let written = written.to_ascii_lowercase();
    if written.len() > 64 {
        return None;
    }
    let scored = known.iter().map(|key| (distance(&written, &key.to_ascii_lowercase()), *key));
    scored.filter(|(distance, key)| *distance <= key.len() / 3).min().map(|(_, key)| key)
}

/// Levenshtein's edit distance.
fn distance(one: &str, other: &str) -> usize {
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.bytes().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.bytes().enumerate() {
            let substituted = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_probably_meant() {
        let check = |written: &str, expected: Option<&str>| {
            let known = ["target", "targetPercent", "timeSliceTarget", "op"];
            assert_eq!(nearest(written, &known), expected, "{written}");
        };
        check("traget", Some("target"));
        check("targetpercent", Some("targetPercent"));
        check("timesliceTarget", Some("timeSliceTarget"));
        check("nonsense", None);
        check(&"x".repeat(1000), None);
    }
}
