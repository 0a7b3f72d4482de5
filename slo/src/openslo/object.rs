//! OpenSLO's objects, typed; the names are the specification's.
//!
//! In: nothing, these are plain values. Out: the same. Refuses to know how they were written.

use std::collections::BTreeMap;
use std::time::Duration;

use super::finding::Place;
use super::node::Node;
use crate::indicator::Outcome;
use crate::objective::Objective;
use crate::ratio::Ratio;
use crate::window::Window;

/// `apiVersion`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `openslo/v1alpha`
    V1Alpha,
    /// `openslo/v1`
    V1,
    /// `openslo.com/v2alpha`
    V2Alpha,
}

/// One object with its head.
#[derive(Clone, Debug, PartialEq)]
pub struct Document {
    /// Version that it is written in.
    pub version: Version,
    /// Its `metadata`.
    pub metadata: Metadata,
    /// Its `spec`.
    pub object: Object,
    /// Where it begins.
    pub place: Place,
}

/// `metadata`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    /// Unique among objects of its kind.
    pub name: String,
    /// Empty when absent.
    pub display_name: String,
    /// Each with all its values.
    pub labels: BTreeMap<String, Vec<String>>,
    /// For implementations such as this one.
    pub annotations: BTreeMap<String, String>,
}

/// `kind` and `spec`.
#[derive(Clone, Debug, PartialEq)]
pub enum Object {
    /// Connection to a metric source.
    DataSource(DataSource),
    /// A service level objective.
    Slo(Box<Slo>),
    /// A service level indicator.
    Sli(Box<Sli>),
    /// When to alert.
    AlertPolicy(AlertPolicy),
    /// The condition of an alert.
    AlertCondition(AlertCondition),
    /// Where an alert goes.
    AlertNotificationTarget(AlertNotificationTarget),
    /// A group of SLOs; its description.
    Service(String),
}

/// `DataSource.spec`.
#[derive(Clone, Debug, PartialEq)]
pub struct DataSource {
    /// Empty when absent.
    pub description: String,
    /// For example `Prometheus`.
    pub kind: String,
    /// As written.
    pub connection_details: Option<Node>,
}

/// `SLO.spec`.
#[derive(Clone, Debug, PartialEq)]
pub struct Slo {
    /// Empty when absent.
    pub description: String,
    /// Name of the service.
    pub service: String,
    /// Of the SLO as a whole; absent in composites.
    pub indicator: Option<Named<Box<Sli>>>,
    /// The period; rolling 28 days when absent.
    pub window: Window,
    /// How events become used budget.
    pub budgeting_method: Method,
    /// At least one.
    pub objectives: Vec<SloObjective>,
    /// `None` when the key is absent or empty: then the default table applies.
    pub alert_policies: Option<Vec<Named<AlertPolicy>>>,
}

/// `budgetingMethod`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Method {
    /// Counts events.
    Occurrences,
    /// Counts good slices.
    Timeslices,
    /// Averages slices.
    RatioTimeslices,
}

/// An item of `objectives`.
#[derive(Clone, Debug, PartialEq)]
pub struct SloObjective {
    /// Empty when absent.
    pub display_name: String,
    /// Comparison for a threshold metric.
    pub op: Option<Operator>,
    /// Value for a threshold metric.
    pub value: Option<f64>,
    /// `target` or `targetPercent`.
    pub target: Ratio,
    /// `timeSliceTarget`.
    pub time_slice_target: Option<Ratio>,
    /// `timeSliceWindow`.
    pub time_slice_window: Option<Duration>,
    /// Of a composite.
    pub indicator: Option<Named<Box<Sli>>>,
    /// Of a composite.
    pub composite_weight: Option<f64>,
    /// Where it is written.
    pub place: Place,
}

/// Something that is either written in place or refers to an object by name.
#[derive(Clone, Debug, PartialEq)]
pub enum Named<T> {
    /// Written in place.
    Inline(Metadata, T),
    /// The name of an object, and where it is named.
    Reference(String, Place),
}

/// `SLI.spec`.
#[derive(Clone, Debug, PartialEq)]
pub enum Sli {
    /// `thresholdMetric`
    Threshold(MetricSource),
    /// `ratioMetric` with `total`
    Ratio {
        /// Whether the metrics are counters.
        counter: bool,
        /// Whether `good` or `bad` is given.
        of: Outcome,
        /// `good` or `bad`
        counted: MetricSource,
        /// `total`
        total: MetricSource,
    },
    /// `ratioMetric` with `raw`
    Raw {
        /// The ratio.
        raw: MetricSource,
        /// Whether it is good of total (`rawType: success`) or bad of total (`failure`).
        of: Outcome,
    },
}

/// `metricSource`.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSource {
    /// `metricSourceRef` (`dataSourceRef` in v2alpha).
    pub reference: Option<String>,
    /// `type`; where absent, that of the data source referred to.
    pub kind: Option<String>,
    /// Every key as written.
    pub spec: Node,
    /// Where it is written.
    pub place: Place,
}

/// `AlertPolicy.spec`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertPolicy {
    /// Empty when absent.
    pub description: String,
    /// `alertWhenBreaching`; true when none of the three is given.
    pub when_breaching: bool,
    /// `alertWhenResolved`
    pub when_resolved: bool,
    /// `alertWhenNoData`
    pub when_no_data: bool,
    /// One, and those that the annotation `obi/conditions` names.
    pub conditions: Vec<Named<AlertCondition>>,
    /// Where it goes.
    pub notification_targets: Vec<Named<AlertNotificationTarget>>,
}

/// `AlertCondition.spec`.
#[derive(Clone, Debug, PartialEq)]
pub struct AlertCondition {
    /// Empty when absent.
    pub description: String,
    /// For example `page`.
    pub severity: String,
    /// `condition.op`
    pub op: Operator,
    /// `condition.threshold`, a burn rate.
    pub threshold: f64,
    /// `condition.lookbackWindow`
    pub lookback_window: Duration,
    /// `condition.alertAfter`
    pub alert_after: Duration,
    /// Where it is written.
    pub place: Place,
}

/// `AlertNotificationTarget.spec`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AlertNotificationTarget {
    /// Empty when absent.
    pub description: String,
    /// For example `email`.
    pub target: String,
}

/// `op`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `lt`
    Lt,
    /// `lte`
    Lte,
    /// `gt`
    Gt,
    /// `gte`
    Gte,
}

/// Everything that was in the texts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Reading {
    /// All objects that could be read, in order.
    pub documents: Vec<Document>,
    /// The objectives that can be executed, in order.
    pub objectives: Vec<Objective>,
    /// Remarks, in order of file and line.
    pub findings: Vec<super::Finding>,
}
