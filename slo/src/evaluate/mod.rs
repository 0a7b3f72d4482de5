//! The fleet's budgets from any PromQL backend, with the agent's own arithmetic.
//!
//! In: [`Objective`](crate::Objective)s and, piece by piece, the raw samples of their counters. Out: the queries to
//! ask, and budgets and burn rates. Refuses to do the asking, and to let the backend compute: `increase` and `rate`
//! extrapolate, raw samples are what machines said.

mod fleet;
mod report;
mod sample;

pub use self::fleet::{Fleet, Gain, Role};
pub use self::report::{Evaluation, PIECE, Query, Report, with_roles};
pub use self::sample::{AnswerError, Labels, Sample, Series, read};
