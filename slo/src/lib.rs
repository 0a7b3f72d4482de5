//! Service level objectives as pure arithmetic: OpenSLO text in, exact error budgets, burn rates and alerts out.
//!
//! Time is an argument everywhere, and an event is a handful of borrowed texts and numbers: this crate knows no
//! clock, no thread, no file, no network, and no span.
#![forbid(unsafe_code)]

mod account;
pub mod alert;
mod classifiers;
mod coverage;
pub mod duration;
mod engine;
pub mod evaluate;
pub mod indicator;
pub mod ledger;
mod objective;
pub mod openslo;
mod ratio;
pub mod rules;
mod time;
mod window;

pub use self::account::{Account, Budget, Burn};
pub use self::classifiers::{Classifiers, Target};
pub use self::coverage::{Coverage, LONGEST_BEAT};
pub use self::engine::{Engine, Status};
pub use self::indicator::{Classifier, Indicator, Kind, Outcome, Status as ResponseStatus, Subject};
pub use self::ledger::{Counts, Page, PageKey, Recorded};
pub use self::objective::{BudgetingMethod, Objective, Part};
pub use self::ratio::Ratio;
pub use self::time::Time;
pub use self::window::{Calendar, Period, Unit, Window};
