//! OpenSLO text: read, checked, made executable.
//!
//! In: texts with the names of their files. Out: [`Reading`]: objects, executable [`Objective`](crate::Objective)s and
//! [`Finding`]s. Refuses to open files.

mod finding;
mod node;
mod object;

pub use self::finding::{Finding, Place, Severity};
pub use self::node::{Entry, Node, Value};
pub use self::object::{
    AlertCondition, AlertNotificationTarget, AlertPolicy, DataSource, Document, Metadata, Method,
    MetricSource, Named, Object, Operator, Reading, Sli, Slo, SloObjective, Version,
};
