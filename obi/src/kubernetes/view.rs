//! What users are shown of the pods: which source, how many, what went wrong.
//!
//! In: counts and states of the table. Out: [`View`], for metrics and the API. Refuses to know formats.

use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::services::Services;

/// What is counted, from any thread.
#[derive(Debug, Default)]
pub struct Counts {
    /// Messages of sources.
    pub events: AtomicU64,
    /// Messages that could not be decoded.
    pub undecodable: AtomicU64,
    /// Streams that began.
    pub streams: AtomicU64,
    /// Streams that could not begin or broke.
    pub failures: AtomicU64,
    /// Pods without a UID that could be read.
    pub without_uid: AtomicU64,
    /// Pods that found no room.
    pub refused: AtomicU64,
    /// Processes of pods that were not known, while a stream was heard.
    pub unknown_pod: AtomicU64,
    /// The same while none was.
    pub no_source: AtomicU64,
}

impl Counts {
    /// Counts `n`.
    pub fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Ordering::Relaxed);
    }
}

/// Which source is asked, and what became of it.
#[derive(Debug, Clone, Default)]
pub struct SourceState {
    /// `kubelet`, `api`, `logs` or `none`.
    pub source: &'static str,
    /// Why the last attempt failed; empty when it did not.
    pub error: String,
}

/// Kubernetes, as users are shown it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct View {
    /// Where names come from: `kubelet`, `api`, `logs` or `none`.
    pub source: &'static str,
    /// A stream of pods is heard, and has sent all that were there.
    pub live: bool,
    /// Pods that are there.
    pub pods: usize,
    /// Pods that ended a moment ago.
    pub ended: usize,
    /// Services of the cluster; 0 unless they are asked for.
    pub services: usize,
    /// Parts of their endpoints.
    pub slices: usize,
    /// Messages of sources.
    pub events: u64,
    /// Messages that could not be decoded.
    pub undecodable: u64,
    /// Streams that began.
    pub streams: u64,
    /// Streams that could not begin or broke.
    pub failures: u64,
    /// Pods that found no room, or had no UID that could be read; addresses of services that found none.
    pub refused: u64,
    /// Processes of pods that were not known, by reason.
    pub unresolved: Unresolved,
    /// Why the last attempt failed; empty when it did not.
    pub error: String,
}

/// Processes of pods that were not known when they were named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Unresolved {
    /// A stream was heard, and had not sent the pod.
    pub unknown_pod: u64,
    /// No stream was heard.
    pub no_source: u64,
}

impl View {
    pub(super) fn new(
        state: SourceState,
        counts: &Counts,
        (pods, ended): (usize, usize),
        is_live: bool,
    ) -> Self {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Self {
            source: if state.source.is_empty() { "none" } else { state.source },
            live: is_live,
            pods,
            ended,
            services: 0,
            slices: 0,
            events: read(&counts.events),
            undecodable: read(&counts.undecodable),
            streams: read(&counts.streams),
            failures: read(&counts.failures),
            refused: read(&counts.refused) + read(&counts.without_uid),
            unresolved: Unresolved {
                unknown_pod: read(&counts.unknown_pod),
                no_source: read(&counts.no_source),
            },
            error: state.error,
        }
    }

    pub(super) fn with_services(self, known: &Services) -> Self {
        let (services, slices, refused) = known.counts();
        Self { services, slices, refused: self.refused + refused, ..self }
    }
}
