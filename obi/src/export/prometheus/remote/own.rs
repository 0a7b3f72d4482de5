//! The agent's own families, as prometheus-client makes them.
//!
//! In: a registry. Out: its series to the [`Writer`]. Refuses to know what they mean.

use prometheus_client::encoding::prometheus_protobuf::encode;
use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{Metric, MetricType};
use prometheus_client::registry::Registry;

use super::writer::Writer;

/// Writes all families. `start` is when their counters began; none where that is not one moment.
pub(super) fn write(registry: &Registry, start: Option<u64>, out: &mut Writer<'_>) {
    for family in encode(registry).expect("writing to memory cannot fail") {
        // The numbers of the specification.
        let (kind, start) = match family.r#type() {
            MetricType::Counter => (1, start),
            MetricType::Gauge => (2, None),
            _ => (0, None),
        };
        out.describe(&family.name, (&family.help, &family.unit), kind);
        for metric in &family.metric {
            if let Some(value) = value(metric) {
                let labels = metric.label.iter();
                out.single(
                    &|sink| labels.clone().for_each(|label| sink(&label.name, &label.value)),
                    value,
                    start,
                );
            }
        }
    }
}

/// They have counters and gauges only.
fn value(metric: &Metric) -> Option<f64> {
    let counter = metric.counter.as_ref().map(|counter| counter.value);
    counter.or_else(|| metric.gauge.as_ref().map(|gauge| gauge.value))
}
