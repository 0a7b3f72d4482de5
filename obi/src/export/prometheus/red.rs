//! The RED families: request durations of servers and clients, and the servers' queue wait.
//!
//! In: [`crate::red::Snapshot`]. Out: samples through prometheus-client, exemplars in the same order.
//! Refuses to know formats.

use std::fmt;
use std::sync::Arc;

use prometheus_client::encoding::{
    DescriptorEncoder, EncodeLabelSet, EncodeLabelValue, LabelSetEncoder, LabelValueEncoder, NoLabelSet,
};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Unit;

use super::label;
use crate::export::{Metrics, Unseen};
use crate::red::{
    BUCKETS, Bounds, Buckets, DURATION_BOUNDS, Exemplar, Labels, QUEUE_WAIT_BOUNDS, Series, ServiceTotals,
    StatusLabel, seconds,
};
use crate::span::SpanKind;

/// A duration histogram.
pub(super) struct Family {
    kind: SpanKind,
    name: &'static str,
    help: &'static str,
    /// Sample name without `_bucket`.
    pub(super) bucket_prefix: &'static str,
}

/// The families with exemplars, in the order they are written.
pub(super) const FAMILIES: [Family; 2] = [
    Family {
        kind: SpanKind::Server,
        name: "http_server_request_duration",
        help: "Duration of HTTP server requests, from the arrival of the request to the last byte of the response",
        bucket_prefix: "http_server_request_duration_seconds",
    },
    Family {
        kind: SpanKind::Client,
        name: "http_client_request_duration",
        help: "Duration of HTTP client requests, from sending the request to the last byte of the response",
        bucket_prefix: "http_client_request_duration_seconds",
    },
];

#[derive(Debug)]
pub(super) struct Collector {
    pub(super) metrics: Arc<Metrics>,
    pub(super) unseen: Unseen,
}

/// One entry per bucket line of [`FAMILIES`], in the order in which [`Collector`] writes them.
pub(super) fn exemplars(metrics: &Metrics, unseen: Unseen) -> impl Iterator<Item = Option<&Exemplar>> {
    FAMILIES.iter().flat_map(move |family| series_of(metrics, family)).flat_map(move |series| {
        let shown = !unseen.in_red(series.born);
        series.histogram.exemplars().iter().map(move |exemplar| exemplar.as_ref().filter(|_| shown))
    })
}

fn series_of<'a>(metrics: &'a Metrics, family: &Family) -> impl Iterator<Item = &'a Series> {
    let kind = family.kind;
    metrics.red.series.iter().filter(move |series| series.labels.kind == kind)
}

impl prometheus_client::collector::Collector for Collector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in &FAMILIES {
            let mut out = encoder.encode_descriptor(
                family.name,
                family.help,
                Some(&Unit::Seconds),
                MetricType::Histogram,
            )?;
            for series in series_of(&self.metrics, family) {
                let buckets = shown(&series.histogram.buckets, self.unseen.in_red(series.born));
                let labels = SeriesLabels(&series.labels);
                write_histogram(out.encode_family(&labels)?, &buckets, &DURATION_BOUNDS)?;
            }
        }
        let mut out = encoder.encode_descriptor(
            "obi_server_queue_wait",
            "Time between the arrival of a request and the first read of it by its server",
            Some(&Unit::Seconds),
            MetricType::Histogram,
        )?;
        for totals in self.metrics.red.services.iter().filter(|totals| totals.server_spans.value > 0) {
            let buckets = shown(&totals.queue_wait, self.unseen.in_red(totals.server_spans.born));
            write_histogram(out.encode_family(&ServiceLabels(totals))?, &buckets, &QUEUE_WAIT_BOUNDS)?;
        }
        Ok(())
    }
}

fn shown(buckets: &Buckets, as_zero: bool) -> Buckets {
    if as_zero { Buckets::default() } else { *buckets }
}

fn write_histogram(
    mut out: prometheus_client::encoding::MetricEncoder<'_>,
    buckets: &Buckets,
    bounds: &Bounds,
) -> fmt::Result {
    let mut rows = [(f64::INFINITY, 0); BUCKETS];
    for (row, bound) in rows.iter_mut().zip(bounds) {
        row.0 = seconds(*bound);
    }
    for (row, count) in rows.iter_mut().zip(buckets.counts()) {
        row.1 = *count;
    }
    out.encode_histogram::<NoLabelSet>(buckets.sum_seconds(), buckets.count(), &rows, None)
}

#[derive(Debug)]
struct SeriesLabels<'a>(&'a Labels);

impl EncodeLabelSet for SeriesLabels<'_> {
    fn encode(&self, out: &mut LabelSetEncoder<'_>) -> fmt::Result {
        let labels = self.0;
        label(out, "service_namespace", labels.service.namespace.as_str())?;
        label(out, "service_name", labels.service.name.as_str())?;
        label(out, "http_request_method", labels.method)?;
        match labels.kind {
            SpanKind::Server => label(out, "http_route", &*labels.route)?,
            SpanKind::Client => {
                label(out, "server_address", &*labels.server_address)?;
                label(out, "server_port", Some(labels.server_port).filter(|port| *port != 0))?;
            }
        }
        label(out, "http_response_status_code", labels.status)?;
        label(out, "error_type", labels.error_type)?;
        label(out, "url_scheme", labels.scheme)?;
        label(out, "network_protocol_version", labels.version)?;
        if labels.overflow {
            label(out, "otel_metric_overflow", "true")?;
        }
        Ok(())
    }
}

impl EncodeLabelValue for StatusLabel {
    fn encode(&self, out: &mut LabelValueEncoder<'_>) -> fmt::Result {
        use fmt::Write;
        match self {
            Self::Absent => Ok(()),
            Self::Code(code) => code.encode(out),
            Self::Class(digit) => write!(out, "{digit}xx"),
        }
    }
}

#[derive(Debug)]
struct ServiceLabels<'a>(&'a ServiceTotals);

impl EncodeLabelSet for ServiceLabels<'_> {
    fn encode(&self, out: &mut LabelSetEncoder<'_>) -> fmt::Result {
        label(out, "service_namespace", self.0.service.namespace.as_str())?;
        label(out, "service_name", self.0.service.name.as_str())
    }
}
