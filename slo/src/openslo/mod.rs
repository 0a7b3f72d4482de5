//! OpenSLO text: read, checked, made executable.
//!
//! In: texts with the names of their files. Out: [`Reading`]: objects, executable [`Objective`](crate::Objective)s and
//! [`Finding`]s. Refuses to open files.

mod alerting;
mod alpha;
mod arms;
mod cursor;
mod events;
mod finding;
mod head;
mod node;
mod object;
mod read;
mod resolve;
mod sli;
mod slo;
mod syntax;
mod time_window;

pub use self::finding::{Finding, Place, Severity};
pub(crate) use self::head::slug;
pub use self::node::{Entry, Node, Value};
pub use self::object::{
    AlertCondition, AlertNotificationTarget, AlertPolicy, DataSource, Document, Metadata, Method,
    MetricSource, Named, Object, Operator, Reading, Sli, Slo, SloObjective, Version,
};
pub use self::read::read;
pub use self::syntax::SyntaxError;
