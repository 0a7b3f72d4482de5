//! Objectives as readers see them: the API, the metrics, `obi slo status`.
//!
//! In: numbers of the engine at one moment. Out: plain values. Refuses to know formats.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::{Deserialize, Serialize};

use super::evidence::Exhibit;
use super::notify::PeerStats;

/// Everything at one moment.
#[derive(Debug, Clone, Default)]
pub struct View {
    /// Objectives in the order of the files.
    pub objectives: Vec<ObjectiveView>,
    /// Alerts that fire, and those that ended lately.
    pub alerts: Vec<AlertView>,
    /// The store.
    pub store: StoreView,
    /// Receivers of alerts.
    pub peers: Vec<PeerStats>,
}

/// One objective.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObjectiveView {
    /// Its name, unique.
    pub name: String,
    /// Its service.
    pub service: String,
    /// For people; empty when absent.
    pub display_name: String,
    /// For people; empty when absent.
    pub description: String,
    /// The promised ratio.
    pub target: f64,
    /// OpenSLO's word.
    pub budgeting_method: String,
    /// The period of the budget.
    pub window: WindowView,
    /// Events of the period that kept the promise.
    pub good: u64,
    /// Events of the period that used up budget.
    pub bad: u64,
    /// What has been kept of the promise in the period; absent without events.
    pub ratio: Option<f64>,
    /// Part of the error budget that is left, 1 when nothing is used, negative when overspent.
    pub error_budget_remaining_ratio: f64,
    /// Seconds until the budget is gone at the pace of the last hour; absent while it is not being used up, 0 when
    /// gone.
    pub exhausted_in_seconds: Option<f64>,
    /// How the budget was spent along the period, oldest first.
    pub burn_down: Vec<MomentView>,
    /// Burn rates, shortest window first.
    pub burn_rates: Vec<BurnRateView>,
    /// Alerts by severity.
    pub alerts: Vec<SeverityView>,
    /// Where it burns.
    pub evidence: Exhibit,
    /// Events counted by this process, for counters: one entry, or one per part of a composite.
    pub events: Vec<EventsView>,
}

/// The period of a budget.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct WindowView {
    /// As OpenSLO writes it: `28d`.
    pub duration: String,
    /// Whether it rolls, or follows the calendar.
    pub is_rolling: bool,
    /// Its first moment, RFC 3339.
    pub start: String,
    /// Its end; now if it rolls.
    pub end: String,
    /// Part of it so far in which the agent counted.
    pub coverage: f64,
}

/// What was left of a budget at a moment of its period.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct MomentView {
    /// RFC 3339.
    pub at: String,
    /// Part of the period that had passed.
    pub elapsed_ratio: f64,
    /// Of the budget of now: it never rises, and ends with the objective's own.
    pub error_budget_remaining_ratio: f64,
    /// Part of the time since the moment before in which the agent counted.
    pub coverage: f64,
}

/// The burn rate over a window that ends now.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct BurnRateView {
    /// As OpenSLO writes it: `5m`.
    pub window: String,
    /// 1 uses exactly the budget in exactly the period.
    pub burn_rate: f64,
    /// Events.
    pub good: u64,
    /// Events.
    pub bad: u64,
    /// Part of it in which the agent counted.
    pub coverage: f64,
}

/// The alert of one severity.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct SeverityView {
    /// `page`, `ticket`, …
    pub severity: String,
    /// Whether it fires.
    pub is_firing: bool,
}

/// A cumulative count.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct EventsView {
    /// The label `slo`: the objective's name; for a part of a composite followed by `/` and the part's.
    pub slo: String,
    /// Good events.
    pub good: u64,
    /// Bad events.
    pub bad: u64,
}

/// An alert, firing or over.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct AlertView {
    /// `firing` or `resolved`.
    pub state: String,
    /// Identity.
    pub labels: BTreeMap<String, String>,
    /// Numbers and explanations.
    pub annotations: BTreeMap<String, String>,
    /// RFC 3339.
    pub starts_at: String,
    /// RFC 3339; absent while it fires.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resolved_at: Option<String>,
}

/// What the store did and could not do.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreView {
    /// Transactions written.
    pub writes: u64,
    /// Transactions that failed; what was in them is tried again.
    pub failures: u64,
    /// For how long the newest counts have not been written, seconds; 0 while all is well.
    pub unsaved_seconds: u64,
}

/// [`StoreView`], written by one thread and read by others.
#[derive(Debug, Default)]
pub(super) struct StoreCounts {
    pub(super) writes: AtomicU64,
    pub(super) failures: AtomicU64,
    /// Since when, Unix nanoseconds; 0 while all is well.
    pub(super) unsaved_since: AtomicU64,
}

impl StoreCounts {
    pub(super) fn view(&self, now: u64) -> StoreView {
        let since = self.unsaved_since.load(Ordering::Relaxed);
        StoreView {
            writes: self.writes.load(Ordering::Relaxed),
            failures: self.failures.load(Ordering::Relaxed),
            unsaved_seconds: if since == 0 { 0 } else { now.saturating_sub(since) / 1_000_000_000 },
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    fn moment(elapsed_ratio: f64, left: f64, coverage: f64) -> MomentView {
        let at = "2026-11-24T22:00:00Z".to_owned();
        MomentView { at, elapsed_ratio, error_budget_remaining_ratio: left, coverage }
    }

    /// An objective on fire.
    pub(crate) fn objective(name: &str) -> ObjectiveView {
        let window = WindowView {
            duration: "28d".to_owned(),
            is_rolling: true,
            start: String::new(),
            end: String::new(),
            coverage: 1.0,
        };
        let rate = BurnRateView { window: "1h".to_owned(), burn_rate: 14.4, good: 9, bad: 1, coverage: 1.0 };
        ObjectiveView {
            name: name.to_owned(),
            service: "shop".to_owned(),
            display_name: String::new(),
            description: String::new(),
            target: 0.999,
            budgeting_method: "Occurrences".to_owned(),
            window,
            good: 99_990,
            bad: 10,
            ratio: Some(0.9999),
            error_budget_remaining_ratio: 0.9,
            exhausted_in_seconds: Some(100_000.0),
            burn_down: vec![moment(0.5, 1.0, 0.0), moment(0.75, 1.0, 1.0), moment(1.0, 0.9, 1.0)],
            burn_rates: vec![rate],
            alerts: vec![SeverityView { severity: "page".to_owned(), is_firing: true }],
            evidence: Exhibit::default(),
            events: vec![EventsView { slo: name.to_owned(), good: 99_990, bad: 10 }],
        }
    }
}
