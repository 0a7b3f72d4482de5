//! The listeners and what they share.
//!
//! In: addresses, certificates. Out: requests for [`super::answer`]. Refuses to know what is in a request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::net::TcpListener;
use tokio::sync::mpsc;

use super::answer::{Answerer, Shared};
use super::budget::Budget;
use super::view::Counts;
use super::{Batch, Batches, Kind, Passed};
use crate::config::OtlpReceiver;
use crate::listener::tls::{Files, Tls};
use crate::listener::{Bounds, Listening};

/// Memory of everything that was received and is still here.
pub(super) const BUDGET_BYTES: usize = 64 << 20;
/// Of each listener.
const BOUNDS: Bounds = Bounds { connections: 512, head_bytes: 16 << 10 };
/// Requests that may wait for the pipeline, and for the exporter.
const WAITING: usize = 64;
/// Why nothing can be received.
#[derive(Debug, Error)]
pub enum ReceiveError {
    /// The certificate or its key is of no use.
    #[error("receive.otlp.cert_file: {0}")]
    Tls(String),
    /// The address is taken, or not ours.
    #[error("receive.otlp.{key}: failed to listen on `{address}`: {reason}")]
    Listen {
        /// `grpc` or `http`.
        key: &'static str,
        /// The address.
        address: SocketAddr,
        /// What the system says.
        reason: std::io::Error,
    },
}

/// Bound addresses; nothing is read yet.
pub struct Plan {
    listeners: Vec<(bool, TcpListener)>,
    tls: Option<Tls>,
    shared: Shared,
}

/// Where what was received comes out.
#[derive(Debug)]
pub struct Inlets {
    /// Spans, for the pipeline.
    pub batches: Batches,
    /// Metrics and logs, for the exporter.
    pub passed: mpsc::Receiver<Passed>,
    /// What became of everything.
    pub counts: Arc<Counts>,
}

/// Listeners at work.
#[derive(Debug)]
pub struct Listeners(Vec<Listening>);

impl Plan {
    /// Listens; `None` when no address is configured.
    ///
    /// # Errors
    /// When an address or a certificate cannot be used.
    pub async fn new(config: &OtlpReceiver, host: String) -> Result<Option<(Self, Inlets)>, ReceiveError> {
        if !config.is_on() {
            return Ok(None);
        }
        let tls = match (&config.cert_file, &config.key_file) {
            (Some(cert), Some(key)) => {
                let files = Files { cert: cert.clone(), key: key.clone(), client_ca: None };
                Some(Tls::read(files).map_err(ReceiveError::Tls)?)
            }
            _ => None,
        };
        let mut listeners = Vec::new();
        for (is_grpc, key, address) in [(true, "grpc", config.grpc), (false, "http", config.http)] {
            let Some(address) = address else { continue };
            let refuse = |reason| ReceiveError::Listen { key, address, reason };
            listeners.push((is_grpc, TcpListener::bind(address).await.map_err(refuse)?));
        }
        let counts = Arc::new(Counts::new(Budget::new(BUDGET_BYTES)));
        let (batches, batches_out) = mpsc::channel::<Batch>(WAITING);
        let (passed, passed_out) = mpsc::channel::<Passed>(WAITING);
        let shared = Shared {
            token: config.token.get().map(str::to_owned),
            host,
            finds_requests: false,
            counts: Arc::clone(&counts),
            batches,
            passed,
            takes: Arc::new(|_| false),
            waker: Arc::new(|| {}),
        };
        let inlets = Inlets { batches: batches_out, passed: passed_out, counts };
        Ok(Some((Self { listeners, tls, shared }, inlets)))
    }

    /// The same, which looks for the requests that spans report when `wanted`: they may count.
    #[must_use]
    pub fn finding_requests(mut self, wanted: bool) -> Self {
        self.shared.finds_requests = wanted;
        self
    }

    /// Where it listens: port 0 has become a free one.
    ///
    /// # Errors
    /// When the system does not report them.
    pub fn addresses(&self) -> std::io::Result<Vec<SocketAddr>> {
        self.listeners.iter().map(|(_, listener)| listener.local_addr()).collect()
    }

    /// Begins to answer. `takes` says whether some destination takes a kind; `waker` makes the pipeline look.
    #[must_use]
    pub fn start(
        self,
        takes: Arc<dyn Fn(Kind) -> bool + Send + Sync>,
        waker: Arc<dyn Fn() + Send + Sync>,
    ) -> Listeners {
        let Self { listeners, tls, shared } = self;
        let shared = Arc::new(Shared { takes, waker, ..shared });
        let run = |(is_grpc, listener): (bool, TcpListener)| {
            if let Ok(address) = listener.local_addr() {
                let (protocol, tls) = (if is_grpc { "grpc" } else { "http" }, tls.is_some());
                tracing::info!(protocol, tls, "OTLP is received on {address}");
            }
            let answerer = Answerer { is_grpc, shared: Arc::clone(&shared) };
            Listening::start(listener, tls.clone(), BOUNDS, answerer)
        };
        Listeners(listeners.into_iter().map(run).collect())
    }
}

impl std::fmt::Debug for Plan {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Plan").field("listeners", &self.listeners).finish_non_exhaustive()
    }
}

impl Listeners {
    /// Takes no more; requests under way are given up, and sent again by their senders.
    pub async fn finish(self) {
        for listening in self.0 {
            listening.finish(Duration::ZERO).await;
        }
    }
}
