//! Listeners: connections, bounded in number and in patience, plain or over TLS.
//!
//! In: a bound socket, a certificate. Out: requests for an [`Answer`]. Refuses to know what is asked and answered.
//!
//! Both listeners of the agent are made of it: what people and scrapers ask ([`crate::web`]), and what SDKs send
//! ([`crate::receive`]).
#![forbid(unsafe_code)]

mod life;
pub mod tls;

use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;
use prost::bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Semaphore, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep_until, timeout};

use self::life::{Life, UnderWay};
use self::tls::Tls;

/// Requests at once on one connection.
const STREAMS: u32 = 32;
/// For a handshake of TLS, and for the head of the first request.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long a connection may say nothing: longer than SDKs and scrapers pause. A client that reads an answer more
/// slowly than that is cut off, too.
const IDLE: Duration = Duration::from_secs(120);
/// After the system has refused a connection, for want of descriptors for instance.
const PAUSE: Duration = Duration::from_millis(100);

/// What a listener takes.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Connections at once; others are closed at once.
    pub connections: usize,
    /// Largest head of a request, bytes.
    pub head_bytes: u32,
}

/// Who asks: an extension of each request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end of the connection.
    pub address: SocketAddr,
    /// Whether the connection is encrypted.
    pub over_tls: bool,
}

/// Why a connection came to nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TurnedAway {
    /// There are too many.
    Full,
    /// Its handshake took too long.
    Slow,
}

/// What answers requests; one per listener, shared by its connections.
pub trait Answer: Clone + Send + Sync + 'static {
    /// What answers are made of.
    type Body: Body<Data = Bytes, Error: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + 'static;

    /// Answers one request, which has a [`Peer`] among its extensions.
    fn answer(&self, request: Request<Incoming>) -> impl Future<Output = Response<Self::Body>> + Send;

    /// Takes note of a connection that was closed before it could ask.
    fn turned_away(&self, why: TurnedAway);
}

/// A listener at work.
#[derive(Debug)]
pub struct Listening {
    stop: watch::Sender<bool>,
    task: JoinHandle<()>,
}

impl Listening {
    /// Begins to answer. Must be called inside a tokio runtime.
    #[must_use]
    pub fn start<A: Answer>(socket: TcpListener, tls: Option<Tls>, bounds: Bounds, answer: A) -> Self {
        let (stop, stopped) = watch::channel(false);
        Self { stop, task: tokio::spawn(accept(socket, Door { tls, bounds, answer, stopped })) }
    }

    /// Takes no more connections, and ends those that there are once what they ask is answered, or after `patience`.
    pub async fn finish(mut self, patience: Duration) {
        // Only the task itself could have gone before.
        let _ = self.stop.send(true);
        if timeout(patience, &mut self.task).await.is_err() {
            self.task.abort();
            // Its end was asked for.
            let _ = self.task.await;
        }
    }
}

/// What each connection needs.
#[derive(Clone)]
struct Door<A> {
    tls: Option<Tls>,
    bounds: Bounds,
    answer: A,
    stopped: watch::Receiver<bool>,
}

async fn accept<A: Answer>(socket: TcpListener, mut door: Door<A>) {
    let room = Arc::new(Semaphore::new(door.bounds.connections));
    // Dropped with this task, and its connections with it.
    let mut connections = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = socket.accept() => accepted,
            _ = door.stopped.changed() => break,
        };
        let (stream, address) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                tracing::debug!(%error, "a connection was not accepted");
                tokio::time::sleep(PAUSE).await;
                continue;
            }
        };
        while connections.try_join_next().is_some() {}
        let Ok(permit) = Arc::clone(&room).try_acquire_owned() else {
            door.answer.turned_away(TurnedAway::Full);
            continue;
        };
        let door = door.clone();
        connections.spawn(async move {
            let _permit = permit;
            connected(stream, address, door).await;
        });
    }
    drop(socket);
    while connections.join_next().await.is_some() {}
}

async fn connected<A: Answer>(stream: TcpStream, address: SocketAddr, door: Door<A>) {
    // Answers are small; without it they may wait for acknowledgements.
    let _ = stream.set_nodelay(true);
    let peer = Peer { address, over_tls: door.tls.is_some() };
    match &door.tls {
        None => serve(stream, peer, door).await,
        Some(tls) => match timeout(PATIENCE, tls.acceptor().accept(stream)).await {
            Ok(Ok(stream)) => serve(stream, peer, door).await,
            Ok(Err(error)) => tracing::debug!(%error, "a handshake of TLS failed"),
            Err(_) => door.answer.turned_away(TurnedAway::Slow),
        },
    }
}

async fn serve<S, A>(stream: S, peer: Peer, door: Door<A>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    A: Answer,
{
    let Door { bounds, answer, mut stopped, .. } = door;
    let life = Arc::new(Life::new());
    let of_requests = Arc::clone(&life);
    let service = service_fn(move |mut request: Request<Incoming>| {
        let (answer, under_way) = (answer.clone(), UnderWay::new(Arc::clone(&of_requests)));
        request.extensions_mut().insert(peer);
        async move {
            let response = answer.answer(request).await;
            drop(under_way);
            Ok::<_, std::convert::Infallible>(response)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    let http1_bytes = bounds.head_bytes as usize;
    builder.http1().timer(TokioTimer::new()).header_read_timeout(IDLE).max_buf_size(http1_bytes);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(bounds.head_bytes);
    let connection = builder.serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    let mut is_ending = *stopped.borrow();
    if is_ending {
        connection.as_mut().graceful_shutdown();
    }
    loop {
        let until = life.ends().unwrap_or_else(|| Instant::now() + PATIENCE);
        tokio::select! {
            // Whichever way it ended, the other end knows.
            _ = poll_fn(|context| connection.as_mut().poll(context)) => return,
            _ = stopped.changed(), if !is_ending => {
                is_ending = true;
                connection.as_mut().graceful_shutdown();
            }
            () = sleep_until(until) => {
                if life.ends().is_some_and(|end| end <= Instant::now()) {
                    return;
                }
            }
        }
    }
}
