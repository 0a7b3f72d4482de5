//! Alerts on their way out: what is firing → what is to be sent now.
//!
//! In: the alerts that the engine says are firing, and the time. Out: messages, by the life cycle that Prometheus gives
//! its own alerts, which is what Alertmanager is made for: an alert is sent when it fires and every minute while it
//! does, with an end that moves ahead of it; when it has ended, that is sent at once and for another 15 minutes. Its
//! labels are its identity and never carry values; the numbers are in its annotations. Refuses to know HTTP and what
//! makes an alert fire.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Between two messages of the same alert (`--rules.alert.resend-delay` of Prometheus).
pub const RESEND: Duration = Duration::from_secs(60);
/// How long a message says that the alert still fires: four of them may get lost (Prometheus: 4 × the longer of
/// evaluation interval and resend delay).
pub const VALIDITY: Duration = Duration::from_secs(4 * 60);
/// How long the end of an alert is repeated, for an Alertmanager that was down (Prometheus: `resolvedRetention`).
pub const RESOLVED_RETENTION: Duration = Duration::from_secs(15 * 60);

/// What distinguishes one alert from another.
pub type Labels = BTreeMap<String, String>;

/// An alert, firing or resolved. Times are Unix nanoseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alert {
    /// Its identity: no values in here.
    pub labels: Labels,
    /// For people: numbers, explanations, trace ids.
    pub annotations: BTreeMap<String, String>,
    /// When it began to fire; constant over the incident.
    pub starts_at: u64,
    /// When it ended; `None` while it fires.
    pub resolved_at: Option<u64>,
}

impl Alert {
    /// Whether it fires.
    #[must_use]
    pub fn is_firing(&self) -> bool {
        self.resolved_at.is_none()
    }
}

/// The alerts of the last minutes and when each was sent.
#[derive(Debug, Default)]
pub struct Lifecycle {
    alerts: BTreeMap<Labels, Tracked>,
}

#[derive(Debug)]
struct Tracked {
    alert: Alert,
    sent: Option<Sent>,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    at: u64,
    as_firing: bool,
}

impl Lifecycle {
    /// Goes on with the alerts of an earlier run. They are sent at once, as they are: a receiver that has them already
    /// does not take them for new ones, since labels and start are the same.
    #[must_use]
    pub fn restore(alerts: impl IntoIterator<Item = Alert>) -> Self {
        let tracked = |alert: Alert| (alert.labels.clone(), Tracked { alert, sent: None });
        Self { alerts: alerts.into_iter().map(tracked).collect() }
    }

    /// Takes what fires now; what is missing has ended. Returns the alerts that began or ended.
    pub fn observe(&mut self, firing: Vec<Alert>, now: u64) -> Vec<Alert> {
        let mut firing: BTreeMap<Labels, Alert> =
            firing.into_iter().map(|alert| (alert.labels.clone(), alert)).collect();
        let mut changed = Vec::new();
        for (labels, Tracked { alert, .. }) in &mut self.alerts {
            if !alert.is_firing() {
                continue;
            }
            match firing.remove(labels) {
                Some(still) => alert.annotations = still.annotations,
                None => {
                    alert.resolved_at = Some(now);
                    changed.push(alert.clone());
                }
            }
        }
        for (labels, alert) in firing {
            changed.push(alert.clone());
            self.alerts.insert(labels, Tracked { alert, sent: None });
        }
        changed
    }

    /// The messages that are due, and forgets what has been resolved for long enough.
    pub fn due(&mut self, now: u64) -> Vec<Alert> {
        self.alerts.retain(|_, tracked| {
            tracked.alert.resolved_at.is_none_or(|at| now < at.saturating_add(nanos(RESOLVED_RETENTION)))
        });
        let mut due = Vec::new();
        for tracked in self.alerts.values_mut() {
            if tracked.is_due(now) {
                tracked.sent = Some(Sent { at: now, as_firing: tracked.alert.is_firing() });
                due.push(tracked.alert.clone());
            }
        }
        due
    }

    /// All of them, the resolved ones of the last minutes too.
    pub fn alerts(&self) -> impl Iterator<Item = &Alert> {
        self.alerts.values().map(|tracked| &tracked.alert)
    }
}

impl Tracked {
    fn is_due(&self, now: u64) -> bool {
        self.sent.is_none_or(|sent| {
            // A clock that was set back must not keep an alert from being repeated.
            sent.as_firing != self.alert.is_firing() || now < sent.at || now - sent.at >= nanos(RESEND)
        })
    }
}

/// A duration in nanoseconds.
pub(super) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn alert(name: &str, starts_at: u64) -> Alert {
        let labels = Labels::from([("slo".to_owned(), name.to_owned())]);
        let annotations = BTreeMap::from([("burn_rate".to_owned(), starts_at.to_string())]);
        Alert { labels, annotations, starts_at: starts_at * SECOND, resolved_at: None }
    }

    /// What is sent in each second of a story: `true` while the alert fires.
    fn story(
        lifecycle: &mut Lifecycle,
        fires: impl Fn(u64) -> bool,
        seconds: std::ops::Range<u64>,
    ) -> Vec<String> {
        let mut reported = Vec::new();
        for second in seconds {
            let firing = if fires(second) { vec![alert("shop", second)] } else { Vec::new() };
            lifecycle.observe(firing, second * SECOND);
            for alert in lifecycle.due(second * SECOND) {
                let start = alert.starts_at / SECOND;
                let end = alert.resolved_at.map_or("-".to_owned(), |at| (at / SECOND).to_string());
                reported.push(format!("{second}: {start} to {end}"));
            }
        }
        reported
    }

    #[test]
    fn an_incident_is_reported_as_prometheus_tells_it() {
        let mut lifecycle = Lifecycle::default();
        let reported = story(&mut lifecycle, |second| (10..150).contains(&second), 0..2_000);
        assert_eq!(
            reported[..5],
            ["10: 10 to -", "70: 10 to -", "130: 10 to -", "150: 10 to 150", "210: 10 to 150"]
        );
        assert_eq!((reported.len(), reported.last().unwrap().as_str()), (4 + 14, "990: 10 to 150"));
        assert_eq!(lifecycle.alerts().count(), 0);
    }

    #[test]
    fn another_incident_has_another_start() {
        let reported = story(&mut Lifecycle::default(), |second| second == 5 || second == 8, 0..20);
        assert_eq!(reported, ["5: 5 to -", "6: 5 to 6", "8: 8 to -", "9: 8 to 9"]);
    }

    #[test]
    fn a_restart_changes_neither_identity_nor_start() {
        let mut before = Lifecycle::default();
        story(&mut before, |_| true, 10..30);
        let kept: Vec<Alert> = before.alerts().cloned().collect();
        let reported = story(&mut Lifecycle::restore(kept.clone()), |second| second < 95, 33..100);
        assert_eq!(reported, ["33: 10 to -", "93: 10 to -", "95: 10 to 95"]);
        let reported = story(&mut Lifecycle::restore(kept), |_| false, 33..40);
        assert_eq!(reported, ["33: 10 to 33"], "what ended while we were away is resolved");
    }

    #[test]
    fn a_clock_that_was_set_back_repeats_rather_than_waits() {
        let mut lifecycle = Lifecycle::default();
        story(&mut lifecycle, |_| true, 1_000..1_001);
        assert_eq!(story(&mut lifecycle, |_| true, 10..11), ["10: 1000 to -"]);
    }

    #[test]
    fn changes_are_beginnings_and_ends() {
        let mut lifecycle = Lifecycle::default();
        let changed = |changes: Vec<Alert>| -> Vec<bool> { changes.iter().map(Alert::is_firing).collect() };
        assert_eq!(changed(lifecycle.observe(vec![alert("a", 1), alert("b", 1)], SECOND)), [true, true]);
        assert_eq!(changed(lifecycle.observe(vec![alert("a", 2), alert("b", 2)], 2 * SECOND)), [false; 0]);
        assert_eq!(changed(lifecycle.observe(vec![alert("a", 3)], 3 * SECOND)), [false]);
        let annotation =
            |lifecycle: &Lifecycle| lifecycle.alerts().next().unwrap().annotations["burn_rate"].clone();
        assert_eq!(annotation(&lifecycle), "3", "annotations are the newest");
    }
}
