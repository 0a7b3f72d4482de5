//! What a client program has to send, and what it reports back.
//!
//! In and out: JSON. A [`Plan`] goes to the raw client `shape_client`, a [`SimplePlan`] to the clients written in
//! other languages; both answer with one [`Truth`] per exchange. Refuses to know the agent.

use std::net::SocketAddr;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use crate::shape::{RequestFraming, Shape};
use crate::wire::{ReadMode, WriteMode};

/// Where a server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Address {
    /// TCP.
    Tcp(SocketAddr),
    /// Multipath TCP, on one path.
    Multipath(SocketAddr),
    /// A unix stream socket.
    Unix(PathBuf),
}

impl Address {
    /// TCP on IPv4 loopback.
    #[must_use]
    pub fn loopback(port: u16) -> Self {
        Self::Tcp(SocketAddr::from(([127, 0, 0, 1], port)))
    }

    /// The value of a `Host` header.
    #[must_use]
    pub fn host(&self) -> String {
        match self {
            Self::Tcp(address) | Self::Multipath(address) => address.to_string(),
            Self::Unix(_) => "localhost".into(),
        }
    }
}

/// How request bytes are cut into system calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segmentation {
    /// All that is to be sent at once in one piece.
    Whole,
    /// Every byte on its own.
    Bytewise,
    /// Random pieces of at most this many bytes.
    Pieces(usize),
}

/// One exchange to make.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Call {
    /// Unique id, in the path.
    pub id: String,
    /// What to ask for and how.
    pub shape: Shape,
}

impl Call {
    /// A call with a fresh id.
    #[must_use]
    pub fn new(shape: Shape) -> Self {
        Self { id: crate::seed::request_id(), shape }
    }
}

/// One connection of `shape_client`. Exchanges that end a connection make the client open the next one.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ConnectionPlan {
    /// Where to connect.
    pub address: Address,
    /// Local address to bind first.
    pub source: Option<SocketAddr>,
    /// Requests that are sent before their answers are read, at least 1.
    pub depth: usize,
    /// How requests are cut.
    pub segmentation: Segmentation,
    /// Pause between two segments, microseconds.
    pub segment_gap: u32,
    /// System calls to read with, taken in random turns.
    pub reads: Vec<ReadMode>,
    /// System calls to write with, taken in random turns.
    pub writes: Vec<WriteMode>,
    /// Exchanges in order.
    pub calls: Vec<Call>,
}

impl ConnectionPlan {
    /// A plain client: one request at a time, each in one write.
    #[must_use]
    pub fn new(address: &Address, calls: Vec<Call>) -> Self {
        Self {
            address: address.clone(),
            source: None,
            depth: 1,
            segmentation: Segmentation::Whole,
            segment_gap: 0,
            reads: vec![ReadMode::Read],
            writes: vec![WriteMode::Write],
            calls,
        }
    }
}

/// All that one `shape_client` process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Plan {
    /// Seed of all random choices the client makes.
    pub seed: u64,
    /// Connections that run at the same time at most.
    pub concurrency: usize,
    /// Exchanges per second over all connections; 0 is as fast as possible.
    pub rate: u32,
    /// Connections.
    pub connections: Vec<ConnectionPlan>,
}

/// What clients in other languages do: calls in any order over `concurrency` kept-alive connections.
#[derive(Debug, Clone, Serialize)]
pub struct SimplePlan {
    /// Server's address.
    pub host: String,
    /// Server's port.
    pub port: u16,
    /// Speak TLS, whatever the certificate.
    pub tls: bool,
    /// Connections.
    pub concurrency: usize,
    /// Requests that are sent before their answers are read; only some clients can do more than one.
    pub depth: usize,
    /// Calls.
    pub calls: Vec<SimpleCall>,
}

/// One call of a [`SimplePlan`].
#[derive(Debug, Clone, Serialize)]
pub struct SimpleCall {
    /// Unique id, in the path.
    pub id: String,
    /// Method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// How the body ends.
    pub request_framing: RequestFraming,
    /// Body bytes.
    pub request_bytes: u64,
}

impl From<&Call> for SimpleCall {
    fn from(call: &Call) -> Self {
        Self {
            id: call.id.clone(),
            method: call.shape.method.clone(),
            target: call.shape.target(&call.id),
            request_framing: call.shape.request_framing,
            request_bytes: call.shape.request_bytes,
        }
    }
}

/// What really happened to one exchange, as an end of the connection saw it. Times are the program's own clock.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Truth {
    /// Id from the path.
    pub id: String,
    /// Status received or sent, if any.
    pub status: Option<u16>,
    /// Request body bytes, without chunk framing.
    pub request_bytes: u64,
    /// Response body bytes, without chunk framing.
    pub response_bytes: u64,
    /// `x-handler-ns`: the server's own measure of its handling, up to its response head.
    pub handler_ns: Option<u64>,
    /// When it began, ns.
    pub started_ns: u64,
    /// When its last byte had passed, ns.
    pub ended_ns: u64,
    /// Why it did not end whole.
    #[serde(default)]
    pub broken: Option<String>,
}

/// How `shape_server` turns a connection into a place where it is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Serving {
    /// A thread per connection.
    Thread,
    /// A forked process per connection.
    Fork,
    /// A thread per connection, which moves the socket to another descriptor number before each exchange.
    Dup2,
    /// A thread per connection, whose socket is in a socket map: the kernel sends and receives by other functions.
    Sockmap,
}

/// All that one `shape_server` process does.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ServerPlan {
    /// Seed of all random choices the server makes.
    pub seed: u64,
    /// Where to listen; TCP port 0 is any free one.
    pub address: Address,
    /// Share the port with other processes.
    pub reuse_port: bool,
    /// Thread, process, moving descriptor.
    pub serving: Serving,
    /// Answers to pipelined requests are written together.
    pub batch: bool,
    /// System calls to read with, taken in random turns.
    pub reads: Vec<ReadMode>,
    /// System calls to write with, taken in random turns.
    pub writes: Vec<WriteMode>,
    /// File that gets a [`Truth`] per exchange; none when absent.
    pub log: Option<PathBuf>,
    /// The last piece of a body in several pieces waits until this file exists.
    pub gate: Option<PathBuf>,
}

impl Default for ServerPlan {
    fn default() -> Self {
        Self {
            seed: 0,
            address: Address::loopback(0),
            reuse_port: false,
            serving: Serving::Thread,
            batch: false,
            reads: vec![ReadMode::Read],
            writes: vec![WriteMode::Write],
            log: None,
            gate: None,
        }
    }
}
