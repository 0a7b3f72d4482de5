//! Metrics as OpenMetrics 1.0 text with exemplars, or as Prometheus text 0.0.4.
//!
//! In: [`Metrics`] and what the scraper saw last. Out: text; a pure function. Refuses to know HTTP and scrapers.
//!
//! prometheus-client encodes; two things it cannot do are added on the way out, line by line (`text.rs`):
//! its `Exemplar` has no public constructor, so a custom collector cannot hand exemplars to `encode_histogram`;
//! and it knows no text 0.0.4. Both formats come from the same collectors, so they cannot disagree.
//!
//! A label that does not apply has the empty value, which Prometheus treats as absent: every series of a family
//! has the same label names.

mod agent;
mod objective;
mod red;
mod text;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelValue, LabelSetEncoder, LabelValueEncoder};
use prometheus_client::registry::Registry;

use super::{Cursor, Metrics, Unseen};
use text::Exposition;

/// The text formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// Prometheus text 0.0.4, which knows no exemplars.
    Text,
}

/// Encodes everything. What was born since `previous` is shown as zero (see [`crate::red`], zero points).
#[must_use]
pub fn encode(metrics: &Arc<Metrics>, format: Format, previous: Option<Cursor>) -> String {
    let unseen = Unseen(previous);
    let mut registry = Registry::default();
    registry.register_collector(Box::new(red::Collector { metrics: Arc::clone(metrics), unseen }));
    registry.register_collector(Box::new(agent::Collector { metrics: Arc::clone(metrics), unseen }));
    registry.register_collector(Box::new(objective::Collector { metrics: Arc::clone(metrics) }));
    let mut out = Exposition::new(format, red::exemplars(metrics, unseen), estimate(metrics));
    encode_registry(&mut out, &registry).expect("writing to a string cannot fail");
    if format == Format::OpenMetrics {
        encode_eof(&mut out).expect("writing to a string cannot fail");
    }
    out.finish()
}

/// Bytes to reserve: a series is 17 lines of some 250 bytes. Growing by doubling would need twice the memory.
fn estimate(metrics: &Metrics) -> usize {
    8_192 + metrics.red.series.len() * 4_400 + metrics.red.services.len() * 2_000
}

/// Writes one label.
fn label(out: &mut LabelSetEncoder<'_>, name: &str, value: impl EncodeLabelValue) -> fmt::Result {
    use fmt::Write;
    let mut out = out.encode_label();
    let mut key = out.encode_label_key()?;
    key.write_str(name)?;
    let mut encoder: LabelValueEncoder<'_> = key.encode_label_value()?;
    value.encode(&mut encoder)?;
    encoder.finish()
}

#[cfg(test)]
mod tests;
