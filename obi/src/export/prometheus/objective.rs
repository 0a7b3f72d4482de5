//! The families of objectives: `slo_*`, and what became of their alerts and of their store.
//!
//! In: [`crate::objective::view::View`]. Out: samples through prometheus-client. Refuses to know formats.
//!
//! `slo_events_total` exists for both outcomes from the start, so that Prometheus sees a first bad event as an
//! increase. The other families of objectives are computed from exact counts and are not for adding up over machines.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, LabelSetEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use super::label;
use crate::export::Metrics;
use crate::objective::view::{ObjectiveView, View};

#[derive(Debug)]
pub(super) struct Collector {
    pub(super) metrics: Arc<Metrics>,
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        // Without objectives there is nothing to say, not even the names.
        let Some(view) = self.metrics.objectives.as_deref().filter(|view| !view.objectives.is_empty()) else {
            return Ok(());
        };
        let mut out = Families(encoder);
        write_events(&mut out, view)?;
        write_budgets(&mut out, &view.objectives)?;
        write_alerts(&mut out, view)?;
        write_store(&mut out, view)
    }
}

fn write_events(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let help = "Events that an objective counts, by whether they keep its promise";
    out.family("slo_events", help, MetricType::Counter, |family| {
        for objective in &view.objectives {
            for events in &objective.events {
                for (outcome, n) in [("good", events.good), ("bad", events.bad)] {
                    let labels =
                        [("slo", &*events.slo), ("service", &*objective.service), ("outcome", outcome)];
                    family.counter(&labels, n)?;
                }
            }
        }
        Ok(())
    })
}

fn write_budgets(out: &mut Families<'_>, objectives: &[ObjectiveView]) -> fmt::Result {
    let help = "Part of the error budget of the period that is left; negative when overspent";
    out.family("slo_error_budget_remaining_ratio", help, MetricType::Gauge, |family| {
        objectives.iter().try_for_each(|slo| family.gauge(&labels(slo), slo.error_budget_remaining_ratio))
    })?;
    let help = "How fast the error budget is used up: 1 uses all of it in exactly the period";
    out.family("slo_burn_rate", help, MetricType::Gauge, |family| {
        for objective in objectives {
            for rate in &objective.burn_rates {
                let labels =
                    [("slo", &*objective.name), ("service", &*objective.service), ("window", &*rate.window)];
                family.gauge(&labels, rate.burn_rate)?;
            }
        }
        Ok(())
    })?;
    let help = "The promised ratio of good events";
    out.family("slo_objective_ratio", help, MetricType::Gauge, |family| {
        objectives.iter().try_for_each(|slo| family.gauge(&labels(slo), slo.target))
    })?;
    let help = "Part of the period so far in which this agent counted";
    out.family("slo_coverage_ratio", help, MetricType::Gauge, |family| {
        objectives.iter().try_for_each(|slo| family.gauge(&labels(slo), slo.window.coverage))
    })
}

fn labels(objective: &ObjectiveView) -> [(&'static str, &str); 2] {
    [("slo", &objective.name), ("service", &objective.service)]
}

fn write_alerts(out: &mut Families<'_>, view: &View) -> fmt::Result {
    out.family("slo_alert_firing", "Whether an alert fires", MetricType::Gauge, |family| {
        for objective in &view.objectives {
            for alert in &objective.alerts {
                let labels = [
                    ("slo", &*objective.name),
                    ("service", &*objective.service),
                    ("severity", &*alert.severity),
                ];
                family.gauge(&labels, f64::from(u8::from(alert.is_firing)))?;
            }
        }
        Ok(())
    })?;
    if view.peers.is_empty() {
        return Ok(());
    }
    let help = "Messages about alerts: taken by the peer, not taken and tried again, given up";
    out.family("obi_slo_notifications", help, MetricType::Counter, |family| {
        for peer in &view.peers {
            for (outcome, n) in [("sent", peer.sent), ("failed", peer.failed), ("dropped", peer.dropped)] {
                family.counter(&[("peer", &peer.peer), ("outcome", outcome)], n)?;
            }
        }
        Ok(())
    })?;
    let help = "Messages about alerts that wait for a peer";
    out.family("obi_slo_notifications_waiting", help, MetricType::Gauge, |family| {
        view.peers.iter().try_for_each(|peer| family.gauge(&[("peer", &peer.peer)], peer.waiting as f64))
    })
}

fn write_store(out: &mut Families<'_>, view: &View) -> fmt::Result {
    let store = view.store;
    for (name, help, n) in [
        ("obi_slo_store_writes", "Transactions that the store of counts took", store.writes),
        ("obi_slo_store_failures", "Transactions that failed, to be tried again", store.failures),
    ] {
        out.family(name, help, MetricType::Counter, |family| family.counter(&[], n))?;
    }
    let help = "For how long the newest counts could not be written, in seconds";
    out.family("obi_slo_store_unsaved_time", help, MetricType::Gauge, |family| {
        family.gauge(&[], store.unsaved_seconds as f64)
    })
}

struct Families<'a>(DescriptorEncoder<'a>);

struct Family<'a>(prometheus_client::encoding::MetricEncoder<'a>);

impl Families<'_> {
    fn family(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        write: impl FnOnce(&mut Family<'_>) -> fmt::Result,
    ) -> fmt::Result {
        write(&mut Family(self.0.encode_descriptor(name, help, None, kind)?))
    }
}

impl Family<'_> {
    fn counter(&mut self, labels: &[(&'static str, &str)], value: u64) -> fmt::Result {
        if labels.is_empty() {
            return self.0.encode_counter::<NoLabelSet, _, f64>(&value, None);
        }
        self.0.encode_family(&LabelSet(labels))?.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    fn gauge(&mut self, labels: &[(&'static str, &str)], value: f64) -> fmt::Result {
        if labels.is_empty() {
            return self.0.encode_gauge(&value);
        }
        self.0.encode_family(&LabelSet(labels))?.encode_gauge(&value)
    }
}

#[derive(Debug)]
struct LabelSet<'a>(&'a [(&'static str, &'a str)]);

impl EncodeLabelSet for LabelSet<'_> {
    fn encode(&self, out: &mut LabelSetEncoder<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|(name, value)| label(out, name, *value))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Exposition, Format};
    use super::*;
    use crate::objective::notify::PeerStats;
    use crate::objective::view::tests::objective;

    fn exposition(view: View) -> String {
        let metrics = Metrics { objectives: Some(Arc::new(view)), ..Metrics::default() };
        let pieces: Vec<u8> = Exposition::new(Arc::new(metrics), Format::Text, None).flatten().collect();
        String::from_utf8(pieces).expect("text is UTF-8")
    }

    #[test]
    fn every_family_of_the_contract_is_there() {
        let peer = PeerStats { peer: "http://am/".to_owned(), sent: 3, failed: 2, dropped: 1, waiting: 4 };
        let text = exposition(View {
            objectives: vec![objective("checkout")],
            peers: vec![peer],
            ..View::default()
        });
        for line in [
            "# TYPE slo_events_total counter",
            "slo_events_total{slo=\"checkout\",service=\"shop\",outcome=\"good\"} 99990",
            "slo_events_total{slo=\"checkout\",service=\"shop\",outcome=\"bad\"} 10",
            "slo_error_budget_remaining_ratio{slo=\"checkout\",service=\"shop\"} 0.9",
            "slo_burn_rate{slo=\"checkout\",service=\"shop\",window=\"1h\"} 14.4",
            "slo_objective_ratio{slo=\"checkout\",service=\"shop\"} 0.999",
            "slo_coverage_ratio{slo=\"checkout\",service=\"shop\"} 1.0",
            "slo_alert_firing{slo=\"checkout\",service=\"shop\",severity=\"page\"} 1.0",
            "obi_slo_notifications_total{peer=\"http://am/\",outcome=\"dropped\"} 1",
            "obi_slo_notifications_waiting{peer=\"http://am/\"} 4.0",
            "obi_slo_store_failures_total 0",
            "obi_slo_store_unsaved_time 0.0",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }

    #[test]
    fn without_objectives_nothing_is_said() {
        assert!(!exposition(View::default()).contains("slo_"));
    }
}
