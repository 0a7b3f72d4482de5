//! `/api/v1/status`: what the agent watches, and how.
//!
//! In: a snapshot of everything. Out: JSON.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Command, Error};
use crate::capture::tls::view::View as Tls;
use crate::export::Metrics;
use crate::kubernetes::view::View as Kubernetes;
use crate::profile::view::View as Profile;
use crate::receive::View as Receive;
use crate::stats::{HookSetState, Lane, Spooled};

#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    ready: bool,
    hook_set: Option<&'static str>,
    hook_sets: Vec<HookSet<'a>>,
    /// What the set in use does not see.
    not_seen: &'a [&'static str],
    watched_processes: u64,
    series: usize,
    lost: u64,
    /// What shows where objectives burn; `null` without objectives.
    evidence: Option<Evidence>,
    /// Where TLS is read, and where not; `null` when it is not wanted or this kernel cannot.
    tls: Option<&'a Tls>,
    /// What CPUs do is sampled; `null` when it is not wanted or this kernel cannot.
    profile: Option<&'a Profile>,
    /// Whether it is booked where the time of server spans goes.
    waiting: Waiting<'a>,
    /// The pods of this node; `null` outside of Kubernetes.
    kubernetes: Option<&'a Kubernetes>,
    /// What other programs send; `null` where nothing is received.
    receive: Option<&'a Receive>,
    /// What became of what is sent, by destination and signal.
    exports: Vec<Export<'a>>,
    /// Whether the spool can be used; `null` where it is not wanted.
    spool_usable: Option<bool>,
    services: Vec<Service<'a>>,
}

#[derive(Serialize)]
struct Evidence {
    /// Kept whole.
    traces: u64,
    /// Of their spans, beyond the recent ones.
    bytes: u64,
    refused_spans: u64,
}

#[derive(Serialize)]
struct HookSet<'a> {
    set: &'static str,
    state: &'static str,
    reason: &'a str,
}

#[derive(Serialize)]
struct Waiting<'a> {
    booked: bool,
    /// Why not; empty where it is.
    reason: &'a str,
}

#[derive(Serialize)]
struct Export<'a> {
    destination: &'a str,
    signal: &'static str,
    queued_items: u64,
    queued_bytes: u64,
    sent: u64,
    retries: u64,
    /// By reason.
    lost: BTreeMap<&'static str, u64>,
    /// What waits on the disk; `null` without a spool.
    spool: Option<Spool>,
}

#[derive(Serialize)]
struct Spool {
    items: u64,
    bytes: u64,
    written: u64,
    delivered: u64,
    restored: u64,
    /// When the oldest of it came, seconds since the Unix epoch; `null` for none.
    oldest_unix: Option<u64>,
}

impl Spool {
    fn of(spooled: Spooled) -> Self {
        let Spooled { bytes, items, oldest, written, delivered, restored } = spooled;
        Self { items, bytes, written, delivered, restored, oldest_unix: Some(oldest).filter(|at| *at > 0) }
    }
}

impl<'a> Export<'a> {
    fn of(lane: &'a Lane) -> Self {
        let Lane { destination, signal, queued_items, queued_bytes, sent, retries, .. } = lane;
        let (queued_items, queued_bytes, sent) = (*queued_items, *queued_bytes, *sent);
        let lost = lane.lost.iter().copied().filter(|(_, n)| *n > 0).collect();
        let spool = lane.spooled.map(Spool::of);
        Self { destination, signal, queued_items, queued_bytes, sent, retries: *retries, lost, spool }
    }
}

#[derive(Serialize)]
struct Service<'a> {
    name: &'a str,
    namespace: &'a str,
    server_spans: u64,
    client_spans: u64,
}

pub(super) async fn serve(State(state): State<super::State>) -> Result<Response, Error> {
    let ready = state.ready.load(Ordering::Acquire);
    state.answer(Command::Metrics, move |metrics| Json(status(&metrics, ready)).into_response()).await
}

fn status(metrics: &Metrics, ready: bool) -> Status<'_> {
    let services = metrics.red.services.iter().map(|totals| Service {
        name: &totals.service.name,
        namespace: &totals.service.namespace,
        server_spans: totals.server_spans.value,
        client_spans: totals.client_spans.value,
    });
    let hook_sets = metrics.stats.hook_sets.iter().map(|HookSetState { set, state, reason }| HookSet {
        set,
        state,
        reason,
    });
    Status {
        version: env!("CARGO_PKG_VERSION"),
        ready,
        hook_set: Some(metrics.stats.hook_set).filter(|set| !set.is_empty()),
        hook_sets: hook_sets.collect(),
        not_seen: &metrics.stats.not_seen,
        watched_processes: metrics.stats.watched_processes,
        series: metrics.red.series(),
        lost: metrics.stats.lost.iter().map(|(_, counter)| counter.value).sum(),
        evidence: metrics.stats.evidence.map(|it| Evidence {
            traces: it.traces,
            bytes: it.bytes,
            refused_spans: it.refused,
        }),
        tls: metrics.stats.tls.as_deref(),
        profile: metrics.stats.profile.as_deref(),
        waiting: Waiting {
            booked: metrics.stats.waiting.as_deref() == Some(""),
            reason: metrics.stats.waiting.as_deref().unwrap_or("capture is not attached yet"),
        },
        kubernetes: metrics.stats.kubernetes.as_deref(),
        receive: metrics.stats.sent_to_us.as_deref(),
        exports: metrics.stats.lanes.iter().map(Export::of).collect(),
        spool_usable: metrics.stats.is_spool_usable,
        services: services.collect(),
    }
}
