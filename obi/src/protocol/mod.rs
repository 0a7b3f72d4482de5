//! Events to exchanges: one [`Exchange`] per request and its response.
//!
//! In: [`crate::capture::event::Event`]. Out: whole exchanges, borrowed from the table that assembled them,
//! and [`Loss`]es, each handed to a [`Sink`]. Refuses to know services, routes, ids and metrics.
//!
//! - [`exchange`]: the table of open exchanges. [`cause`]: what the kernel says of why one began.
//! - [`http2`]: frames to streams, header blocks to fields; `grpc`: what some of the fields mean.
//! - `websocket`: what comes of a request that was upgraded to one.
//! - [`database`]: messages of PostgreSQL and Redis to calls; literals of statements end here.
//! - [`http1`]: heads to [`Request`] and [`Response`]; secrets end here ([`redact`]).
//! - `times`: what the kernel has booked of the thread that served a request.
//! - [`loss`]: what could not become an exchange, and why.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

pub mod cause;
pub mod database;
mod entry;
pub mod exchange;
mod grpc;
pub mod http1;
mod http1_lines;
pub mod http2;
pub mod loss;
pub mod redact;
mod table;
mod times;
mod websocket;

pub use cause::{Answerer, Begun, Cause, Wire};
pub use exchange::{Evicted, Exchanges, Sink};
pub use loss::Loss;
pub use table::{Limits, MAX_HEAD_BYTES};
pub use times::{Times, WAIT_REASON_NAMES};

/// Which end of the connection the observed process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// It received the request.
    Server,
    /// It sent the request.
    Client,
}

impl Side {
    /// Reads the wire's `side`; `None` for `SIDE_UNKNOWN` and for values of a newer kernel side.
    #[must_use]
    pub fn from_wire(side: u8) -> Option<Self> {
        match u32::from(side) {
            obi_ebpf::SIDE_SERVER => Some(Self::Server),
            obi_ebpf::SIDE_CLIENT => Some(Self::Client),
            _ => None,
        }
    }
}

/// The two ends of a connection as the observed process sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoints {
    /// TCP over IPv4 or IPv6 (IPv4-mapped addresses are unmapped).
    Ip {
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// A unix stream socket.
    Unix,
    /// Read at a TLS library whose socket has not been seen yet.
    Unknown,
}

impl Endpoints {
    /// Reads the wire's family, addresses and ports.
    #[must_use]
    pub fn from_wire(family: u16, local: ([u8; 16], u16), remote: ([u8; 16], u16)) -> Self {
        const AF_UNIX: u16 = 1;
        match family {
            AF_UNIX => return Self::Unix,
            0 => return Self::Unknown,
            _ => {}
        }
        let address = |(ip, port)| SocketAddr::new(canonical_ip(ip), port);
        Self::Ip { local: address(local), remote: address(remote) }
    }
}

/// How a broken exchange ended: the connection, or its stream of HTTP/2, went away before the response was whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Failure {
    /// The connection was reset, by either end.
    Reset,
    /// The peer closed the connection, or cancelled the stream, before the response was whole. At a client: the server
    /// went away without an answer. At a server: the client did not wait.
    Closed,
    /// The observed process itself closed the connection, or cancelled the stream, before the response was whole. At a
    /// client: it gave up waiting. At a server: it refused to answer.
    Aborted,
    /// The responding end closed the connection, or the stream, after a whole head, in the middle of the body.
    Truncated,
    /// The transport timed out.
    Timeout,
    /// The stream was reset because of an error (RFC 9113 §7), by either end.
    StreamReset,
    /// The server did not process the request and says so (REFUSED_STREAM, GOAWAY): it may be sent again.
    Refused,
}

impl Failure {
    /// The span's `error.type`: one of seven fixed words.
    #[must_use]
    pub fn error_type(self) -> &'static str {
        match self {
            Self::Reset => "connection_reset",
            Self::Closed => "connection_closed",
            Self::Aborted => "connection_aborted",
            Self::Truncated => "response_truncated",
            Self::Timeout => "timeout",
            Self::StreamReset => "stream_reset",
            Self::Refused => "stream_refused",
        }
    }
}

/// One request and its response, whole or broken. Times are `CLOCK_MONOTONIC` nanoseconds, and
/// `arrival <= started <= ended`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange<'a> {
    /// The kernel's exchange number.
    pub number: u64,
    /// Server or client.
    pub side: Side,
    /// Observed process.
    pub tgid: u32,
    /// Thread that read (server) or sent (client) the request head.
    pub tid: u32,
    /// What the kernel says of why it was asked.
    pub cause: Cause,
    /// Who sent the response's head; `None` when that is not known.
    pub answerer: Option<Answerer>,
    /// Addresses.
    pub endpoints: Endpoints,
    /// The bytes were read at a TLS library.
    pub encrypted: bool,
    /// When the first data of the request arrived (server) or was sent (client).
    pub arrival: u64,
    /// When the process first read it; `started - arrival` is the queue wait.
    pub started: u64,
    /// Last byte of the response, or the moment it broke.
    pub ended: u64,
    /// Where the time of the thread went, if it has read the request and answered it.
    pub times: Option<&'a Times>,
    /// Bytes of the request without the protocol's own: of HTTP the body, without chunk framing. `None` when some may
    /// have passed unseen.
    pub request_bytes: Option<u64>,
    /// As `request_bytes`.
    pub response_bytes: Option<u64>,
    /// Set when the exchange did not end with a whole response.
    pub failure: Option<Failure>,
    /// What was said, in the words of the protocol.
    pub message: Message<'a>,
}

/// What an exchange said, in the words of its protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Message<'a> {
    /// A request over HTTP, and what it carried.
    Http(Http<'a>),
    /// A call of a database.
    Database(Database<'a>),
}

/// What a database was asked, and what it said. No literal, value, key or password gets this far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Database<'a> {
    /// Which one.
    pub system: System,
    /// `db.operation.name`; empty where there are several, or where it is not known.
    pub operation: &'a str,
    /// `db.query.summary`; empty where it is not known.
    pub summary: &'a str,
    /// `db.collection.name`; empty where there is none, or several.
    pub collection: &'a str,
    /// `db.query.text` with every literal replaced; empty where it is not known, or not to be shown.
    pub text: &'a str,
    /// `db.namespace`; empty where it is not known.
    pub namespace: &'a str,
    /// `db.response.status_code`: the code of an error; empty without one.
    pub code: &'a str,
}

/// A database's kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum System {
    /// PostgreSQL, and what speaks its protocol.
    Postgres,
    /// Redis, and what speaks its protocol.
    Redis,
}

impl System {
    /// `db.system.name`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Postgres => "postgresql",
            Self::Redis => "redis",
        }
    }
}

/// A request over HTTP/1 or HTTP/2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Http<'a> {
    /// The request head.
    pub request: Request<'a>,
    /// The response head, if one was seen whole.
    pub response: Option<Response>,
    /// What it was beyond a request and its response.
    pub semantics: Semantics<'a>,
}

/// What a request means beyond HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Semantics<'a> {
    /// Nothing: a request and its response.
    #[default]
    Http,
    /// A remote procedure call over gRPC or gRPC-Web; the request's path is its full method.
    Rpc(Rpc<'a>),
    /// The WebSocket that a request was upgraded to: `started` is the upgrade, `ended` its end, the bodies are the
    /// payload of its messages. The upgrade itself is an exchange of its own, with the same `number`.
    WebSocket(WebSocket),
}

/// What makes an exchange a remote procedure call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Rpc<'a> {
    /// `grpc-status`, from trailers or from a trailers-only response; `None` when none came or could be read.
    pub status: Option<u32>,
    /// `grpc-message` as sent, percent-encoded; empty when absent. At most a few hundred bytes of it.
    pub message: &'a str,
    /// Messages the client sent; `None` when not known.
    pub request_messages: Option<u32>,
    /// Messages the server sent; `None` when not known.
    pub response_messages: Option<u32>,
    /// `grpc-timeout`, ns.
    pub timeout: Option<u64>,
    /// The client gave up: RST_STREAM with CANCEL, or its end of the connection, before the status came.
    pub is_cancelled: bool,
    /// gRPC-Web rather than gRPC.
    pub is_web: bool,
}

/// How a WebSocket went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WebSocket {
    /// Messages the client sent.
    pub request_messages: u32,
    /// Messages the server sent.
    pub response_messages: u32,
    /// Code of the first Close frame (RFC 6455 §7.4); `None` when there was none, or it had none.
    pub close_code: Option<u16>,
    /// Who sent the first Close frame; `None` when none was seen.
    pub closed_by: Option<Side>,
}

/// Version of HTTP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub enum Version {
    /// HTTP/1.0.
    Http10,
    /// HTTP/1.1.
    #[default]
    Http11,
    /// HTTP/2.
    Http2,
}

impl Version {
    /// HTTP/1 by its minor version.
    #[must_use]
    pub fn http1(minor: u8) -> Self {
        if minor == 0 { Self::Http10 } else { Self::Http11 }
    }
}

/// A request whose answer has not come to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnderWay<'a> {
    /// Server or client.
    pub side: Side,
    /// Observed process.
    pub tgid: u32,
    /// Addresses.
    pub endpoints: Endpoints,
    /// The bytes were read at a TLS library.
    pub encrypted: bool,
    /// It is a remote procedure call.
    pub is_rpc: bool,
    /// The request head.
    pub request: Request<'a>,
}

/// What the request head says. No query value, cookie or authorization gets this far.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Request<'a> {
    /// As sent, case kept. Empty when not known: a header table of HTTP/2 was joined in the middle.
    pub method: &'a str,
    /// Path of the target; empty when not known. Without the query, percent-encoding as sent, values of path
    /// parameters replaced by `REDACTED`. `*` for the asterisk form, empty for `CONNECT`.
    pub path: &'a str,
    /// The query with every value replaced by `REDACTED`; empty without a query.
    pub query: &'a str,
    /// Version.
    pub version: Version,
    /// Authority of an absolute target, of `CONNECT` or of HTTP/2, else the `Host` header; without user information.
    pub host: &'a str,
    /// `User-Agent` header.
    pub user_agent: &'a str,
    /// `traceparent` header; empty when absent or sent more than once.
    pub traceparent: &'a str,
    /// `tracestate` headers, joined by commas when there are several.
    pub tracestate: &'a str,
    /// The head was longer than what is copied (`capture.head_limit`), or broke off: fields behind that were not seen,
    /// `traceparent` perhaps among them.
    pub is_truncated: bool,
}

/// What the response head says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Status code, 100–999. `None` when a response came and its status is not known: a header table of HTTP/2 was
    /// joined in the middle.
    pub status: Option<u16>,
}

/// Unmaps IPv4-mapped addresses: the kernel sends sixteen bytes always.
#[must_use]
pub fn canonical_ip(bytes: [u8; 16]) -> IpAddr {
    IpAddr::from(bytes).to_canonical()
}

#[cfg(test)]
#[path = "../../tests/library/wire/mod.rs"]
mod wire;
