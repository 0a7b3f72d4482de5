//! Service level objectives as pure arithmetic: OpenSLO text in, exact error budgets, burn rates and alerts out.
//!
//! In: text, events, and what time it is. Out: budgets, burn rates, transitions of alerts, pages of counts to be kept.
//! Refuses to know a clock, a thread, a file, a network, and what a span is.
//!
//! ```text
//! OpenSLO text ─ openslo ─▶ Objective ─┬─▶ Classifier    event ─▶ good, bad, not counted
//!                                      └─▶ Engine        counts ─▶ budget, burn rate, alerts
//! ```
//!
//! ```
//! use slo::{Engine, Outcome, Recorded, Target, Time};
//!
//! let text = "
//! apiVersion: openslo/v1
//! kind: SLO
//! metadata: {name: checkout-availability}
//! spec:
//!   service: shop
//!   indicator:
//!     metadata: {name: success}
//!     spec:
//!       ratioMetric:
//!         counter: true
//!         good: {metricSource: {type: obi, spec: {outcome: good}}}
//!         total: {metricSource: {type: obi, spec: {service: shop, route: /checkout}}}
//!   timeWindow: [{duration: 28d, isRolling: true}]
//!   budgetingMethod: Occurrences
//!   objectives: [{target: 0.999}]
//! ";
//! let reading = slo::openslo::read([("slo.yaml", text)]);
//! assert!(reading.findings.is_empty());
//!
//! let now = Time::from_seconds(1_800_000_000);
//! let mut engine = Engine::new(reading.objectives, now);
//! let target = Target { objective: 0, part: 0 };
//! for _ in 0..9_999 {
//!     assert_eq!(engine.record(target, now, Outcome::Good), Recorded::Counted);
//! }
//! engine.record(target, now, Outcome::Bad);
//! assert!(engine.evaluate(now).is_empty());
//! // One of ten thousand is a tenth of what 99.9 % allows.
//! let status = engine.status(0, now).expect("there is one objective");
//! assert!((status.budget.remaining - 0.9).abs() < 1e-9);
//! ```
//!
//! # What is counted
//!
//! Events, once, when they happen ([`indicator`]); never averages of ratios. An event belongs to the slot of its end,
//! however late it is reported. A window begins with the slot that it reaches back into ([`ledger`]): 10 s for six
//! hours, a minute for three days, an hour for the period. Time without observation counts neither as good nor as bad;
//! every answer says how much of its window was observed ([`Coverage`]).
//!
//! | method | achieved | budget |
//! |---|---|---|
//! | Occurrences | good ÷ all events so far | allowed share of the events so far |
//! | Timeslices | good ÷ observed slices | allowed share of all slices of the period |
//! | RatioTimeslices | mean ratio of the observed slices | as Timeslices |
//!
//! Slices begin at multiples of their length since the Unix epoch; one without events is good if it was observed.
//!
//! # OpenSLO, where it leaves a choice
//!
//! | question | choice |
//! |---|---|
//! | `op`, `value` beside a `ratioMetric`: in the specification's examples, refused by its validator | warning, ignored |
//! | names with capitals: in its examples, refused by its validator | warning |
//! | `op: lte` of an alert condition that is described as "exceeds" | read as `gte`, warning |
//! | `timeSliceWindow: 5`: in its text, refused by its validator | minutes |
//! | no `timeWindow`: optional in its text, required by its validator | the last 28 days, note |
//! | no `connectionDetails`, no `kind: burnrate`: required by its validator only | taken |
//! | `value` beside v1alpha's `ratioMetrics`: required by its validator | not required |
//! | v2alpha: `service` in examples, `serviceRef` in its validator | both |
//! | months, quarters and years of a rolling window | 30, 90 and 365 days |
//! | several objectives with one indicator | one [`Objective`] each, named SLO-objective |
//! | several objectives with indicators of their own | one composite; events: weighted burn rates add up; slices: bad when any is, or what is missing adds up; the strictest target holds for slices |
//! | one condition per policy | annotations below |
//! | no `alertPolicies` | the SRE workbook's table, `[]` for none ([`alert::workbook`]) |
//!
//! Annotations of ours:
//!
//! | on | annotation | means |
//! |---|---|---|
//! | AlertPolicy | `obi/conditions: "a, b"` | these AlertConditions must hold, too |
//! | AlertCondition | `obi/short-window: 5m` | it must hold over this window, too |
//! | AlertPolicy | `obi/min-bad: "5"`, `obi/confidence: "0.95"` | least evidence ([`alert::Gate`]) |
//!
//! Keys of a metric source of type `obi`: `service kind route method status peer attributes outcome faster_than
//! streaming queue_wait bad_statuses good_statuses ignore_statuses unit`; their meaning is in
//! [`indicator::Selector`], [`indicator::ErrorDefinition`] and `openslo/events.rs`.
#![forbid(unsafe_code)]

mod account;
pub mod alert;
mod burn_down;
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
mod suggest;
mod time;
mod window;

pub use self::account::{Account, Budget, Burn};
pub use self::burn_down::Moment;
pub use self::classifiers::{Classifiers, Target};
pub use self::coverage::{Coverage, LONGEST_BEAT};
pub use self::engine::{Engine, Status};
pub use self::indicator::{Classifier, Indicator, Kind, Outcome, Status as ResponseStatus, Subject};
pub use self::ledger::{Counts, Page, PageKey, Recorded};
pub use self::objective::{BudgetingMethod, Objective, Part};
pub use self::ratio::Ratio;
pub use self::suggest::{Measured, suggest};
pub use self::time::Time;
pub use self::window::{Calendar, Period, Unit, Window};
