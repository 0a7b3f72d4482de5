//! Alerts: when budget burns too fast, when that is over, and why it is believed.
//!
//! In: burn rates over windows. Out: transitions with all that a person needs to know. Refuses to send anything.

mod arm;
mod table;

pub use self::arm::{Arm, Condition, Gate, Source};
pub use self::table::workbook;
