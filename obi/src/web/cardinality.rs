//! `/api/v1/cardinality`: who spends the series budget, on what, and what found no room.
//!
//! In: a snapshot of all series. Out: JSON, services that spend most first.

use std::collections::{BTreeMap, HashSet};

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Command, Error};
use crate::red::{Labels, Share, Snapshot, StatusLabel};
use crate::span::SpanKind;

#[derive(Serialize)]
struct Cardinality<'a> {
    /// Series that may be, of all kinds.
    limit: usize,
    /// Of them, those that are no overflow.
    ordinary_limit: usize,
    series: usize,
    overflow_series: usize,
    folded_spans: u64,
    /// Series by metric; metrics that share their labels are one.
    metrics: BTreeMap<&'static str, usize>,
    /// Distinct values of each label.
    labels: BTreeMap<&'static str, usize>,
    services: Vec<Service<'a>>,
}

#[derive(Serialize)]
struct Service<'a> {
    name: &'a str,
    namespace: &'a str,
    series: usize,
    promised: usize,
    overflow_series: usize,
    /// Times that a metric counted a span in overflow.
    folded_spans: u64,
    expired_series: u64,
    /// Some of the label sets that found no room first.
    folded: &'a [String],
    /// Distinct values of each label in this service's series.
    labels: BTreeMap<&'static str, usize>,
}

/// Distinct values of each label.
#[derive(Default)]
struct Values<'a> {
    methods: HashSet<&'a str>,
    routes: HashSet<&'a str>,
    addresses: HashSet<(&'a str, u16)>,
    statuses: HashSet<StatusLabel>,
    errors: HashSet<&'a str>,
    span_names: HashSet<&'a str>,
}

pub(super) async fn serve(State(state): State<super::State>) -> Result<Response, Error> {
    state.answer(Command::Metrics, |metrics| Json(cardinality(&metrics.red)).into_response()).await
}

fn cardinality(red: &Snapshot) -> Cardinality<'_> {
    let mut values = BTreeMap::<u32, Values<'_>>::new();
    let mut all = Values::default();
    for series in &red.requests {
        values.entry(series.labels.service.id).or_default().add(&series.labels);
        all.add(&series.labels);
    }
    for series in &red.spans {
        values.entry(series.labels.service.id).or_default().span_names.insert(&series.labels.name);
        all.span_names.insert(&series.labels.name);
    }
    let mut services: Vec<_> = red.usage.shares.iter().map(|share| service(share, &values)).collect();
    services.sort_by_key(|service| std::cmp::Reverse((service.series, service.folded_spans)));
    let overflow_series = services.iter().map(|service| service.overflow_series).sum();
    let kind = |kind| red.requests.iter().filter(|series| series.labels.kind == kind).count();
    Cardinality {
        limit: red.usage.limit,
        ordinary_limit: red.usage.ordinary_limit,
        series: red.series(),
        overflow_series,
        folded_spans: services.iter().map(|service| service.folded_spans).sum(),
        metrics: BTreeMap::from([
            ("http.server.request", kind(SpanKind::Server)),
            ("http.client.request", kind(SpanKind::Client)),
            ("traces.span.metrics", red.spans.len()),
        ]),
        labels: all.counts(),
        services,
    }
}

fn service<'a>(share: &'a Share, values: &BTreeMap<u32, Values<'_>>) -> Service<'a> {
    Service {
        name: &share.service.name,
        namespace: &share.service.namespace,
        series: share.series,
        promised: share.promised,
        overflow_series: share.overflow_series,
        folded_spans: share.folded.value,
        expired_series: share.expired,
        folded: &share.examples,
        labels: values.get(&share.service.id).map(Values::counts).unwrap_or_default(),
    }
}

impl<'a> Values<'a> {
    fn add(&mut self, labels: &'a Labels) {
        self.methods.insert(labels.method);
        self.statuses.insert(labels.status);
        self.errors.insert(labels.error_type);
        match labels.kind {
            SpanKind::Server => drop(self.routes.insert(&labels.route)),
            SpanKind::Client => drop(self.addresses.insert((&labels.server_address, labels.server_port))),
            SpanKind::Internal => {}
        }
    }

    fn counts(&self) -> BTreeMap<&'static str, usize> {
        BTreeMap::from([
            ("http_request_method", self.methods.len()),
            ("http_route", self.routes.len()),
            ("server_address:server_port", self.addresses.len()),
            ("http_response_status_code", self.statuses.len()),
            ("error_type", self.errors.len()),
            ("span_name", self.span_names.len()),
        ])
    }
}
