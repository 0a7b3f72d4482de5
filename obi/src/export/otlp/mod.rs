//! OTLP out: spans, metrics and profiles to any number of destinations, over gRPC or HTTP.
//!
//! In: finished spans from the pipeline thread, and spans that were received ([`SpanExport`]), snapshots and selections
//! of samples now and then ([`Exporter`]). Out: requests. Refuses to know where spans, snapshots and samples come from.
//!
//! ```text
//! pipeline thread                          async runtime, per destination and signal
//! Span ─▶ sample ─▶ encode ─▶ chunk ──▶ queue ─▶ lane ─▶ transport ─▶ the network
//!                         Snapshot ─▶ metric ┤ (bounded)   (retries)
//!                      Selection ─▶ profile ┘
//! ```
//!
//! - [`sample`]: which spans leave. `encode`, `chunk`: spans to bytes, once for all destinations, by service.
//! - `metric`: a snapshot to bytes. [`profile`]: samples to bytes, and back. `resource`: services as resources. `wire`: protobuf fields.
//! - `plan`: the configuration to lanes. `queue`, `lane`: bounded, one per destination and signal, so that none waits for another; `retry`: the
//!   specification's rules; `meter`: what became of every item.
//! - `spooling`: lanes with a place on the disk.
//! - `transport`, `tls`: connections. Servers that speak Pyroscope's `/ingest` have lanes like the others, and so have
//!   those that take remote write (`remote`).

mod chunk;
mod encode;
mod lane;
mod meter;
mod metric;
mod plan;
pub mod profile;
mod queue;
mod remote;
mod resource;
mod retry;
pub mod sample;
mod spooling;
mod tls;
mod transport;
mod wire;

use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::task::JoinSet;
use tokio::time::{Instant, timeout_at};

use self::chunk::Chunk;
use self::lane::Lane;
use self::meter::{Account, Meter};
use self::queue::{Payload, Queue};
use self::remote::Writings;
use self::sample::Sampler;
use super::{Metrics, pyroscope};
use crate::config::export::Histograms;
use crate::profile::Selection;
use crate::receive::{Kind, Passed, Received};
use crate::red::Snapshot;
use crate::span::{AttributeValue, Span};
use crate::stats;

pub use self::meter::{Accounts, lost_reasons};
pub use self::tls::TlsError;

/// Spans in a payload at most; payloads are put together to requests.
const CHUNK_ITEMS: u64 = 512;

/// Why a destination cannot be used.
#[derive(Debug, Error)]
pub enum OtlpError {
    /// Its TLS files are of no use.
    #[error("export.otlp: destination `{destination}`: {reason}")]
    Tls {
        /// Its name.
        destination: String,
        /// What is wrong.
        reason: TlsError,
    },
    /// Its URL is none; the configuration checks that before.
    #[error("export.otlp: destination `{destination}`: {reason}")]
    Url {
        /// Its name.
        destination: String,
        /// What is wrong.
        reason: http::uri::InvalidUri,
    },
}

/// Everything that is needed to export, made at the start while files can still be read; nothing runs yet.
#[derive(Debug)]
pub struct Plan {
    lanes: Vec<Lane>,
    /// Where spans go in.
    pub span_export: SpanExport,
    metrics: Vec<(Histograms, Queue)>,
    profiles: Vec<(ProfileFormat, Queue)>,
    logs: Vec<Queue>,
    writings: Writings,
    accounts: Accounts,
    retry_for: Duration,
}

/// How profiles are written for a destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProfileFormat {
    Otlp,
    Pyroscope,
}

/// Where the pipeline thread puts spans. Never waits. The default one leads nowhere.
#[derive(Debug, Default)]
pub struct SpanExport {
    sampler: Sampler,
    /// `None` when no destination takes spans: then everything counts as sampled.
    chunk: Option<Chunk>,
    queues: Vec<Queue>,
    accounts: Vec<Arc<Account>>,
    is_spool_usable: Option<bool>,
    /// Spans that profiles may link to say so.
    are_linked: bool,
}

/// The running end: lanes, and where snapshots go in.
#[derive(Debug)]
pub struct Exporter {
    lanes: JoinSet<()>,
    metrics: Vec<(Histograms, Queue)>,
    profiles: Vec<(ProfileFormat, Queue)>,
    logs: Vec<Queue>,
    writings: Writings,
    start: u64,
    meters: Vec<Arc<Meter>>,
    retry_for: Duration,
}

impl SpanExport {
    /// Decides whether a span leaves, and says so on the span; [`Self::push`] comes after.
    pub fn sample(&mut self, span: &mut Span) -> Option<sample::Kept> {
        self.chunk.as_ref()?;
        let kept = self.sampler.decide(span);
        span.sampled = kept.is_some();
        kept
    }

    /// Takes a span that [`Self::sample`] kept.
    pub fn push(&mut self, span: &Span, kept: sample::Kept) {
        let Some(chunk) = &mut self.chunk else { return };
        if let Some(payload) = chunk.push(span, kept) {
            self.hand_over(&payload);
        }
    }

    /// Takes a span that was received: it goes on as it came, with these attributes behind its own.
    pub fn pass(&mut self, received: &Received, more: &[(&str, AttributeValue<'_>)]) {
        let Some(chunk) = &mut self.chunk else { return };
        if let Some(payload) = chunk.pass(received, more) {
            self.hand_over(&payload);
        }
    }

    /// Hands over what has waited long enough; to be called every some milliseconds.
    pub fn tick(&mut self) {
        if let Some(payload) = self.chunk.as_mut().and_then(Chunk::close_old) {
            self.hand_over(&payload);
        }
    }

    /// Hands over everything, when this ends.
    pub fn flush(&mut self) {
        if let Some(payload) = self.chunk.as_mut().and_then(Chunk::close) {
            self.hand_over(&payload);
        }
    }

    /// Puts that of the next configuration in the place of this one, which hands over everything first.
    pub fn replace(&mut self, next: Self) {
        self.flush();
        let sampler = std::mem::take(&mut self.sampler).with(next.sampler.sampling());
        let are_linked = self.are_linked;
        *self = Self { sampler, ..next };
        self.link_profiles(are_linked);
    }

    /// Whether spans that profiles may link to say so, from now on: those of servers over HTTP/1, whose threads are
    /// known (Grafana looks for `pyroscope.profile.id` on the spans that begin in a process).
    pub fn link_profiles(&mut self, are_linked: bool) {
        self.are_linked = are_linked;
        if let Some(chunk) = &mut self.chunk {
            chunk.link_profiles(are_linked);
        }
    }

    /// What became of every item, by destination and signal; of former destinations, too.
    #[must_use]
    pub fn lanes(&self) -> Vec<stats::Lane> {
        self.accounts.iter().map(|account| account.state()).collect()
    }

    /// Whether the spool can be used; `None` where it is not wanted.
    #[must_use]
    pub fn is_spool_usable(&self) -> Option<bool> {
        self.is_spool_usable
    }

    /// Spans that sampling kept from leaving; `None` when there was never anything to sample for.
    #[must_use]
    pub fn unsampled(&self) -> Option<u64> {
        let n = self.sampler.dropped();
        (self.chunk.is_some() || n > 0).then_some(n)
    }

    fn hand_over(&self, payload: &Payload) {
        self.queues.iter().for_each(|queue| queue.push(payload));
    }
}

impl Exporter {
    /// Whether any destination wants metrics.
    #[must_use]
    pub fn wants_metrics(&self) -> bool {
        !self.metrics.is_empty()
    }

    /// Encodes a snapshot that was taken at `now` (ns since the Unix epoch) and queues it everywhere.
    pub fn export(&mut self, snapshot: &Snapshot, now: u64) {
        for wanted in Histograms::ALL {
            let queues: Vec<&Queue> =
                self.metrics.iter().filter(|(kind, _)| *kind == wanted).map(|(_, queue)| queue).collect();
            if queues.is_empty() {
                continue;
            }
            for payload in metric::encode(snapshot, self.start, now, wanted) {
                queues.iter().for_each(|queue| queue.push(&payload));
            }
        }
    }

    /// Waits until a destination of remote write is due; for ever where there is none.
    pub async fn until_due(&self) {
        match self.writings.due() {
            Some(due) => tokio::time::sleep_until(due).await,
            None => std::future::pending().await,
        }
    }

    /// Queues metrics of `now` (ns since the Unix epoch) for the destinations of remote write that are due; without
    /// metrics they wait for the next time.
    pub fn write(&mut self, metrics: Option<&Arc<Metrics>>, now: u64) {
        match metrics {
            Some(metrics) => self.writings.write(metrics, now),
            None => self.writings.skip(),
        }
    }

    /// Whether there are destinations of remote write.
    #[must_use]
    pub fn writes(&self) -> bool {
        self.writings.due().is_some()
    }

    /// Queues the last metrics for all destinations of remote write.
    pub fn write_last(&mut self, metrics: &Arc<Metrics>, now: u64) {
        self.writings.write_last(metrics, now);
    }

    /// Takes the place of another exporter in the eyes of remote write.
    pub fn succeed(&mut self, former: &mut Self, now: u64) {
        self.writings.succeed(&mut former.writings, now);
    }

    /// Whether any destination wants profiles.
    #[must_use]
    pub fn wants_profiles(&self) -> bool {
        !self.profiles.is_empty()
    }

    /// Encodes samples, once for each format, and queues them everywhere.
    pub fn export_profile(&mut self, selection: &Selection) {
        for wanted in [ProfileFormat::Otlp, ProfileFormat::Pyroscope] {
            let queues: Vec<&Queue> = self
                .profiles
                .iter()
                .filter(|(format, _)| *format == wanted)
                .map(|(_, queue)| queue)
                .collect();
            if queues.is_empty() {
                continue;
            }
            let payloads: Vec<Payload> = match wanted {
                ProfileFormat::Otlp => profile::encode(selection)
                    .into_iter()
                    .map(|request| Payload::new(request.bytes, request.n_profiles))
                    .collect(),
                ProfileFormat::Pyroscope => pyroscope::pushes(selection)
                    .into_iter()
                    .map(|push| Payload { query: Some(push.query.into()), ..Payload::new(push.body, 1) })
                    .collect(),
            };
            for payload in payloads {
                queues.iter().for_each(|queue| queue.push(&payload));
            }
        }
    }

    /// Whether some destination takes what others send.
    #[must_use]
    pub fn takes(&self, kind: Kind) -> bool {
        match kind {
            Kind::Traces => true,
            Kind::Metrics => !self.metrics.is_empty(),
            Kind::Logs => !self.logs.is_empty(),
        }
    }

    /// Queues what others have sent, as it came.
    pub fn pass_on(&mut self, passed: &Passed) {
        let payload = Payload::new(passed.bytes.clone(), passed.n_items);
        match passed.kind {
            Kind::Traces => {}
            Kind::Metrics => self.metrics.iter().for_each(|(_, queue)| queue.push(&payload)),
            Kind::Logs => self.logs.iter().for_each(|queue| queue.push(&payload)),
        }
    }

    /// How long what is queued may be tried at most, once nothing more comes.
    #[must_use]
    pub fn retry_for(&self) -> Duration {
        self.retry_for
    }

    /// Takes no more snapshots and sends what is queued, for at most `limit`. The [`SpanExport`] must be gone, or go.
    pub async fn drain(&mut self, limit: Duration) {
        // Lanes end when no sender to their queues is left.
        self.metrics.clear();
        self.profiles.clear();
        self.logs.clear();
        self.writings.0.clear();
        let deadline = Instant::now() + limit;
        while let Ok(Some(_)) = timeout_at(deadline, self.lanes.join_next()).await {}
    }

    /// The same; counts the rest as lost.
    pub async fn finish(mut self, limit: Duration) {
        self.drain(limit).await;
        self.lanes.shutdown().await;
        for meter in self.meters {
            let n_items = meter.abandon();
            if n_items > 0 {
                let (destination, signal) = meter.name();
                tracing::warn!(destination, signal, items = n_items, "not sent before the end");
            }
        }
    }
}

#[cfg(test)]
mod tests;
