//! Service level objectives as pure arithmetic: OpenSLO text in, exact error budgets, burn rates and alerts out.
//!
//! Time is an argument everywhere, and an event is a handful of borrowed texts and numbers: this crate knows no
//! clock, no thread, no file, no network, and no span.
#![forbid(unsafe_code)]

pub mod alert;
pub mod duration;
pub mod evaluate;
pub mod indicator;
mod objective;
pub mod openslo;
mod ratio;
pub mod rules;
mod time;
mod window;

pub use self::indicator::{Classifier, Indicator, Kind, Outcome, Status, Subject};
pub use self::objective::{BudgetingMethod, Objective, Part};
pub use self::ratio::Ratio;
pub use self::time::Time;
pub use self::window::{Calendar, Period, Unit, Window};
