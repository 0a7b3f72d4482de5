//! Alerts of the engine to alerts that are sent.
//!
//! In: what fires, and the evidence. Out: labels that are an identity, annotations that explain. Refuses to send.

use slo::alert::Evidence;

use super::{Evaluator, Tracked, time};
use crate::objective::alert::Alert;

impl Evaluator {
    /// Everything that fires now, with its numbers of this moment.
    pub(super) fn firing_alerts(&self, now: u64) -> Vec<Alert> {
        let firing = self.engine.firing(time(now));
        self.mark_firing(&firing);
        firing.iter().map(|alert| self.reported(alert, &self.tracked[alert.objective])).collect()
    }

    fn reported(&self, alert: &slo::alert::Alert, tracked: &Tracked) -> Alert {
        let mut labels = alert.labels();
        // Agents of several machines may judge the same objective, each by what it sees.
        labels.insert("instance".to_owned(), self.instance.clone());
        let evidence = Evidence {
            worst_route: tracked.exhibit.worst_route.clone(),
            trace_ids: tracked.exhibit.trace_ids.clone(),
        };
        Alert {
            labels,
            annotations: alert.annotations(&evidence),
            starts_at: u64::try_from(alert.starts_at.nanos()).unwrap_or(0),
            resolved_at: None,
        }
    }
}
