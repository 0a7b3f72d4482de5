//! The listeners: connections, bounded in number and in patience.
//!
//! In: addresses, certificates. Out: requests for [`super::answer`]. Refuses to know what is in a request.

use std::future::{Future as _, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use rustls::ServerConfig;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;

use super::answer::{Answerer, Shared};
use super::budget::Budget;
use super::view::{Counts, Refused};
use super::{Batch, Batches, Kind, Passed, tls};
use crate::config::OtlpReceiver;

/// Memory of everything that was received and is still here.
pub(super) const BUDGET_BYTES: usize = 64 << 20;
/// Connections at once, of each listener.
const CONNECTIONS: usize = 512;
/// Calls at once on one connection.
const STREAMS: u32 = 32;
/// Requests that may wait for the pipeline, and for the exporter.
const WAITING: usize = 64;
/// For a handshake of TLS, and for the head of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may say nothing: longer than SDKs pause between their batches.
const IDLE: Duration = Duration::from_secs(120);
/// Largest head of a request.
const HEAD_BYTES: u32 = 16 << 10;

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
    tls: Option<Arc<ServerConfig>>,
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
pub struct Listeners(Vec<JoinHandle<()>>);

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
            (Some(cert), Some(key)) => Some(tls::configuration(cert, key).map_err(ReceiveError::Tls)?),
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
            counts: Arc::clone(&counts),
            batches,
            passed,
            takes: Arc::new(|_| false),
            waker: Arc::new(|| {}),
        };
        let inlets = Inlets { batches: batches_out, passed: passed_out, counts };
        Ok(Some((Self { listeners, tls, shared }, inlets)))
    }

    /// Where it listens: port 0 has become a free one.
    ///
    /// # Errors
    /// When the system does not tell.
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
        let tls = tls.map(TlsAcceptor::from);
        let run = |(is_grpc, listener): (bool, TcpListener)| {
            if let Ok(address) = listener.local_addr() {
                let (protocol, tls) = (if is_grpc { "grpc" } else { "http" }, tls.is_some());
                tracing::info!(protocol, tls, "OTLP is received on {address}");
            }
            let answerer = Answerer { is_grpc, shared: Arc::clone(&shared) };
            tokio::spawn(accept(listener, tls.clone(), answerer))
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
        for task in self.0 {
            task.abort();
            // Its end was asked for.
            let _ = task.await;
        }
    }
}

async fn accept(listener: TcpListener, tls: Option<TlsAcceptor>, answerer: Answerer) {
    let room = Arc::new(Semaphore::new(CONNECTIONS));
    // Dropped with this task, and its connections with it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            answerer.shared.counts.refuse(Refused::Connections);
            continue;
        };
        let (tls, answerer) = (tls.clone(), answerer.clone());
        connections.spawn(async move {
            let _permit = permit;
            connected(stream, tls, answerer).await;
        });
    }
}

async fn connected(stream: TcpStream, tls: Option<TlsAcceptor>, answerer: Answerer) {
    // Answers are small; without it they may wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    match tls {
        None => serve(stream, answerer).await,
        Some(tls) => match timeout(PATIENCE, tls.accept(stream)).await {
            Ok(Ok(stream)) => serve(stream, answerer).await,
            Ok(Err(error)) => tracing::debug!(%error, "a handshake of TLS failed"),
            Err(_) => answerer.shared.counts.refuse(Refused::Slow),
        },
    }
}

/// When something was last asked on a connection, and what is under way.
struct Life {
    born: Instant,
    /// Milliseconds after that.
    last: AtomicU64,
    under_way: AtomicU64,
}

impl Life {
    /// When it will have been silent for too long.
    fn ends(&self) -> Option<Instant> {
        let patience = if self.last.load(Relaxed) == 0 { PATIENCE } else { IDLE };
        let last = self.born + Duration::from_millis(self.last.load(Relaxed));
        (self.under_way.load(Relaxed) == 0).then_some(last + patience)
    }

    fn touch(&self) {
        let since = u64::try_from(self.born.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.store(since.max(1), Relaxed);
    }
}

/// A request of a connection, also one that its sender gives up.
struct UnderWay(Arc<Life>);

impl UnderWay {
    fn new(life: Arc<Life>) -> Self {
        life.under_way.fetch_add(1, Relaxed);
        Self(life)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        self.0.touch();
        self.0.under_way.fetch_sub(1, Relaxed);
    }
}

async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(stream: S, answerer: Answerer) {
    let life = Arc::new(Life { born: Instant::now(), last: AtomicU64::new(0), under_way: AtomicU64::new(0) });
    let of_requests = Arc::clone(&life);
    let service = service_fn(move |request| {
        let (answerer, life) = (answerer.clone(), Arc::clone(&of_requests));
        async move {
            let under_way = UnderWay::new(life);
            let response = answerer.answer(request).await;
            drop(under_way);
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(HEAD_BYTES as usize);
    builder.http2().timer(TokioTimer::new()).max_concurrent_streams(STREAMS).max_header_list_size(HEAD_BYTES);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    loop {
        let until = life.ends().unwrap_or_else(|| Instant::now() + PATIENCE);
        tokio::select! {
            // Whichever way it ended, its sender knows.
            _ = poll_fn(|context| connection.as_mut().poll(context)) => return,
            () = sleep_until(until) => {
                if life.ends().is_some_and(|end| end <= Instant::now()) {
                    return;
                }
            }
        }
    }
}
