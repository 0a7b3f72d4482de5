//! Alerts: when budget burns too fast, when that is over, and why it is believed.
//!
//! In: burn rates over windows. Out: transitions with all that a person needs to know. Refuses to send anything.

mod arm;
mod confidence;
mod report;
mod state;
mod table;
mod tracker;

pub use self::arm::{Arm, Condition, Gate, Source};
pub use self::confidence::{quantile, wilson};
pub use self::report::{Alert, Change, Evidence, FiringArm, Transition};
pub use self::state::{ArmState, CLEAN, End, QUIET, RECENT};
pub(crate) use self::state::{EXPECTED, RECOVERY_CONFIDENCE};
pub use self::table::workbook;
pub(crate) use self::tracker::AlertTracker;
pub use self::tracker::SavedArm;
