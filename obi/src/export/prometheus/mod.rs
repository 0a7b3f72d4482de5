//! Metrics as OpenMetrics 1.0 text with exemplars, as Prometheus text 0.0.4, as Prometheus protobuf with native
//! histograms, or as requests of remote write ([`remote`]).
//!
//! In: [`Metrics`] and what the scraper saw last. Out: an [`Exposition`], made a piece at a time. Refuses to know HTTP
//! and scrapers.
//!
//! The agent's own families are written by prometheus-client. Those of spans ([`red`]) are many, and it cannot write
//! them: its `Exemplar` has no public constructor, so that a custom collector cannot hand exemplars over, its native
//! histograms carry none, and 8,000 series took it 200 ms. They go from the snapshot straight to bytes, through one
//! [`family::Encoder`] for each format, so that formats cannot disagree on what there is.
//!
//! A label that does not apply has the empty value, which Prometheus treats as absent: every series of a family
//! has the same label names. Protobuf leaves them out.

mod agent;
mod family;
mod native;
mod objective;
mod protobuf;
mod red;
pub(crate) mod remote;
mod text;
mod wire;

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::prometheus_protobuf;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{EncodeLabelValue, LabelSetEncoder, LabelValueEncoder};
use prometheus_client::registry::Registry;

use super::{Cursor, Metrics, Unseen};
use family::Encoder;
use protobuf::ProtobufEncoder;
use red::Walk;
use text::{AgentText, TextEncoder};

/// The formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// OpenMetrics 1.0, with exemplars.
    OpenMetrics,
    /// Prometheus text 0.0.4, which knows no exemplars.
    Text,
    /// Delimited `io.prometheus.client.MetricFamily` messages, with exemplars and native histograms.
    Protobuf,
}

/// Pieces of an exposition are about so long; one of protobuf is at least a family.
const PIECE_BYTES: usize = 256 * 1024;

/// Everything, a piece at a time: only one of them is in memory.
#[derive(Debug)]
pub struct Exposition {
    metrics: Arc<Metrics>,
    format: Format,
    unseen: Unseen,
    encoder: AnyEncoder,
    /// `None` when all is written.
    walk: Option<Walk>,
}

#[derive(Debug)]
enum AnyEncoder {
    Text(TextEncoder),
    Protobuf(ProtobufEncoder),
}

impl Exposition {
    /// Begins. What was born since `previous` is shown as zero (see [`crate::red`], zero points).
    #[must_use]
    pub fn new(metrics: Arc<Metrics>, format: Format, previous: Option<Cursor>) -> Self {
        let encoder = match format {
            Format::Protobuf => AnyEncoder::Protobuf(ProtobufEncoder::default()),
            Format::OpenMetrics | Format::Text => AnyEncoder::Text(TextEncoder::new(format)),
        };
        Self { metrics, format, unseen: Unseen(previous), encoder, walk: Some(Walk::default()) }
    }

    /// Whether [`Iterator::next`] has nothing more to give.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.walk.is_none()
    }

    fn agent(&self) -> Vec<u8> {
        let mut registry = Registry::default();
        let (metrics, unseen) = (Arc::clone(&self.metrics), self.unseen);
        registry.register_collector(Box::new(objective::Collector { metrics: Arc::clone(&metrics) }));
        registry.register_collector(Box::new(agent::Collector { metrics, unseen }));
        if self.format == Format::Protobuf {
            return prometheus_protobuf::encode_to_vec(&registry).expect("writing to memory cannot fail");
        }
        let mut out = AgentText::new(self.format);
        encode_registry(&mut out, &registry).expect("writing to a string cannot fail");
        if self.format == Format::OpenMetrics {
            encode_eof(&mut out).expect("writing to a string cannot fail");
        }
        out.finish()
    }
}

impl Iterator for Exposition {
    type Item = Vec<u8>;

    fn next(&mut self) -> Option<Vec<u8>> {
        let walk = self.walk.as_mut()?;
        let encoder: &mut dyn Encoder = match &mut self.encoder {
            AnyEncoder::Text(encoder) => encoder,
            AnyEncoder::Protobuf(encoder) => encoder,
        };
        let more = walk.write(&self.metrics, self.unseen, encoder, PIECE_BYTES);
        let mut piece = encoder.take();
        if !more {
            self.walk = None;
            piece.append(&mut self.agent());
        }
        Some(piece)
    }
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
