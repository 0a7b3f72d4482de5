//! What is particular to a protocol, as values of the semantic conventions.
//!
//! In: nothing; the assembler fills it. Out: typed fields, and what all protocols have in common: an operation and an
//! answer. Refuses to know how spans are counted and encoded.

use std::sync::Arc;

use super::SpanKind;
use super::database::Database;
use super::grpc::Code;
use super::sdk::Sdk;

/// What is particular to a protocol.
#[derive(Debug, Clone)]
pub enum Detail {
    /// An HTTP request.
    Http(Http),
    /// A remote procedure call.
    Rpc(Rpc),
    /// A WebSocket, from its upgrade to its end.
    WebSocket(WebSocket),
    /// A call of a database.
    Database(Database),
    /// What an SDK has reported; it is in no metric of ours.
    Sdk(Box<Sdk>),
}

/// What was done, with few values: an HTTP method and route, a system of calls and a method, `WEBSOCKET` and a route,
/// a system of databases and the summary of a statement.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Operation<'a> {
    /// HTTP method, `grpc`, `WEBSOCKET` or `db.system.name`.
    pub verb: &'static str,
    /// Route, method called or name of the span; empty where there is none.
    pub place: &'a Arc<str>,
}

/// How the other side answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Answer {
    /// Not at all, or with something that has no status.
    None,
    /// There was an answer, and its status could not be read.
    Unknown,
    /// `http.response.status_code`.
    Http(u16),
    /// `rpc.response.status_code`.
    Rpc(Code),
}

/// Verb of every call over gRPC, and the name of the system (`rpc.system.name`).
pub const GRPC: &str = "grpc";
/// Verb of every WebSocket.
pub const WEBSOCKET: &str = "WEBSOCKET";
/// Verb of what an SDK has reported.
pub const SDK: &str = "sdk";

impl Detail {
    /// The HTTP request that carries it, or is it; `None` for what is carried by none.
    #[must_use]
    pub fn carrier(&self) -> Option<&Http> {
        match self {
            Self::Http(http) => Some(http),
            Self::Rpc(rpc) => Some(&rpc.http),
            Self::WebSocket(socket) => Some(&socket.http),
            Self::Database(_) | Self::Sdk(_) => None,
        }
    }

    /// The same, to be changed.
    pub fn carrier_mut(&mut self) -> Option<&mut Http> {
        match self {
            Self::Http(http) => Some(http),
            Self::Rpc(rpc) => Some(&mut rpc.http),
            Self::WebSocket(socket) => Some(&mut socket.http),
            Self::Database(_) | Self::Sdk(_) => None,
        }
    }

    /// What was done.
    #[must_use]
    pub fn operation(&self) -> Operation<'_> {
        match self {
            Self::Http(http) => Operation { verb: http.method, place: &http.route },
            Self::Rpc(rpc) => Operation { verb: GRPC, place: &rpc.method },
            Self::WebSocket(socket) => Operation { verb: WEBSOCKET, place: &socket.http.route },
            Self::Database(database) => Operation { verb: database.system, place: &database.name },
            Self::Sdk(sdk) => Operation { verb: SDK, place: &sdk.name },
        }
    }

    /// How it was answered.
    #[must_use]
    pub fn answer(&self) -> Answer {
        match self {
            Self::Http(Http { status: Some(status), .. }) => Answer::Http(*status),
            Self::Http(http) if http.status_unknown => Answer::Unknown,
            Self::Rpc(Rpc { status: Some(status), .. }) => Answer::Rpc(*status),
            Self::Rpc(rpc) if rpc.status_unknown => Answer::Unknown,
            Self::Http(_) | Self::Rpc(_) | Self::WebSocket(_) | Self::Database(_) | Self::Sdk(_) => {
                Answer::None
            }
        }
    }

    /// Whether it lasts as long as its ends like, so that its duration says nothing about speed.
    #[must_use]
    pub fn is_streaming(&self) -> bool {
        /// After this the connection belongs to another protocol.
        const SWITCHING_PROTOCOLS: u16 = 101;
        match self {
            Self::Http(http) => http.status == Some(SWITCHING_PROTOCOLS),
            Self::Rpc(rpc) => rpc.streaming,
            Self::WebSocket(_) => true,
            Self::Database(_) | Self::Sdk(_) => false,
        }
    }
}

/// HTTP attributes, semantic-convention meaning.
#[derive(Debug, Clone, Default)]
pub struct Http {
    /// `http.request.method`: a known method or `_OTHER`; `_OTHER` without an original where it could not be read.
    pub method: &'static str,
    /// `http.request.method_original` when `method` is `_OTHER`, else empty.
    pub method_original: String,
    /// `url.path`; empty where it could not be read.
    pub path: String,
    /// `url.query` with values redacted; empty when absent.
    pub query: String,
    /// `url.scheme`.
    pub scheme: &'static str,
    /// `http.route` (server) or `url.template` (client): the templated path; bounded in number, empty where there is
    /// none.
    pub route: Arc<str>,
    /// `network.protocol.version`.
    pub version: &'static str,
    /// `http.response.status_code`, if one was received and could be read.
    pub status: Option<u16>,
    /// A response was received, and its status could not be read. `status` is `None`.
    pub status_unknown: bool,
    /// `user_agent.original`.
    pub user_agent: String,
}

impl Http {
    /// The texts that it owns.
    #[must_use]
    pub fn texts(&self) -> [&String; 4] {
        [&self.method_original, &self.path, &self.query, &self.user_agent]
    }

    /// The same, to be changed.
    pub fn texts_mut(&mut self) -> [&mut String; 4] {
        [&mut self.method_original, &mut self.path, &mut self.query, &mut self.user_agent]
    }
}

/// Attributes of a remote procedure call, semantic-convention meaning.
#[derive(Debug, Clone, Default)]
pub struct Rpc {
    /// The request that carries it: `method`, `status` and the like are the carrier's.
    pub http: Http,
    /// `rpc.method`: `package.Service/Method`, or `_OTHER`; bounded in number.
    pub method: Arc<str>,
    /// `rpc.response.status_code`; `None` when none came or could be read.
    pub status: Option<Code>,
    /// It ended in order, with a status that could not be read. `status` is `None`.
    pub status_unknown: bool,
    /// The status's message, decoded; empty when there was none.
    pub message: String,
    /// The method is known to stream: it lasts as long as its ends like.
    pub streaming: bool,
    /// Messages that the client sent; `None` when not known.
    pub request_messages: Option<u32>,
    /// Messages that the server sent; `None` when not known.
    pub response_messages: Option<u32>,
    /// Time that the client gave, ns.
    pub timeout: Option<u64>,
    /// The client gave up before the status came.
    pub cancelled: bool,
    /// gRPC-Web rather than gRPC.
    pub web: bool,
}

/// How a WebSocket went.
#[derive(Debug, Clone, Default)]
pub struct WebSocket {
    /// The request that was upgraded. The span's bytes are the payload of messages both ways.
    pub http: Http,
    /// Messages that the client sent.
    pub client_messages: u32,
    /// Messages that the server sent.
    pub server_messages: u32,
    /// Code of the first Close frame (RFC 6455 §7.4), if there was one with a code.
    pub close_code: Option<u16>,
    /// Who sent the first Close frame, if one was seen.
    pub closed_by: Option<SpanKind>,
}
