//! Prometheus rule files, in the subset that Prometheus 2.42, Mimir and Thanos share.
//!
//! In: groups of rules. Out: YAML. Refuses what newer servers added: `query_offset`, labels of a group.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;

use crate::duration::Short;

/// Labels or annotations by name.
pub type Labels = BTreeMap<String, String>;

/// A whole file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct RuleFile {
    /// Evaluated independently of each other.
    pub groups: Vec<Group>,
}

/// Rules that are evaluated one after another, at one time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Unique in the file.
    pub name: String,
    /// Time between evaluations, for example `30s`.
    pub interval: String,
    /// In order of evaluation.
    pub rules: Vec<Rule>,
}

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Rule {
    /// Writes a series.
    Record {
        /// Its name.
        record: String,
        /// What it is, PromQL.
        expr: String,
        /// Added to what the expression has.
        #[serde(skip_serializing_if = "BTreeMap::is_empty")]
        labels: Labels,
    },
    /// Fires while the expression has a result.
    Alert {
        /// Its name.
        alert: String,
        /// When it fires, PromQL.
        expr: String,
        /// For how long it must hold, for example `2m`.
        #[serde(rename = "for", skip_serializing_if = "Option::is_none")]
        after: Option<String>,
        /// Added to what the expression has; its identity.
        labels: Labels,
        /// What it says.
        annotations: Labels,
    },
}

impl RuleFile {
    /// The file's text.
    pub fn to_yaml(&self) -> String {
        yaml(self)
    }
}

impl Rule {
    /// A recording rule.
    pub(super) fn record(name: &str, expr: String, labels: Labels) -> Self {
        Self::Record { record: name.to_owned(), expr, labels }
    }

    /// What it computes.
    pub fn expr(&self) -> &str {
        match self {
            Self::Record { expr, .. } | Self::Alert { expr, .. } => expr,
        }
    }
}

/// Labels from pairs.
pub(super) fn labels<const N: usize>(pairs: [(&str, &str); N]) -> Labels {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// A duration as PromQL writes it.
pub(super) fn short(duration: Duration) -> String {
    Short(duration).to_string()
}

/// Text of a value that has only texts, lists and maps.
pub(super) fn yaml<T: Serialize>(value: &T) -> String {
    serde_saphyr::to_string(value).expect("texts, lists and maps with text keys are YAML")
}
