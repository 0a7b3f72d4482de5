//! Exchanges to spans: semantic-convention attributes, routes, service names.
//!
//! In: [`crate::protocol::Exchange`], its [`crate::cause::TracePosition`] and what is known of its process. Out:
//! [`Span`]. Refuses to know metrics, exporters and the kernel.
//!
//! - [`assemble`]: the [`Assembler`], which makes a [`Span`] of an exchange and its service.
//! - [`attribute`]: name, status and attributes of a span, once for all exporters.
//! - [`service`]: what a process is called; its attributes are a [`resource`].
//! - [`grpc`]: statuses of gRPC, which of them are errors. [`call`]: methods of remote procedure calls.
//! - [`database`]: calls of databases.
//! - [`sdk`]: spans that programs have made themselves. [`foreign`]: the requests that they report.
//! - [`websocket`]: how a WebSocket ended.
//! - [`method`]: known request methods. [`route`]: few routes for many paths, learned [`segment`] by segment.
#![forbid(unsafe_code)]

use crate::cause::{Origin, TracePosition};
use std::net::IpAddr;
use std::sync::{Arc, LazyLock};

pub mod assemble;
pub mod attribute;
pub mod call;
pub mod database;
pub mod detail;
pub mod foreign;
pub mod grpc;
pub mod method;
pub mod resource;
pub mod route;
pub mod sdk;
pub mod segment;
pub mod service;
pub mod spent;
pub mod websocket;

pub use assemble::Assembler;
pub use attribute::{AttributeValue, Status};
pub use database::Database;
pub use detail::{Answer, Detail, Http, Operation, Rpc, WebSocket};
pub use resource::Resource;
pub use sdk::{Sdk, Twin};
pub use spent::Spent;

/// The version of OpenTelemetry's semantic conventions that all names and values follow.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";

/// Name of the instrumentation scope under which everything of ours goes out.
pub const SCOPE_NAME: &str = "obi";

/// Who served or called, shared by all processes that say the same of themselves. Metrics are distinguished by it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Service {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`, empty when unknown.
    pub namespace: String,
    /// Dense number of this (namespace, name) pair, for tables keyed by service.
    pub id: u32,
    /// What holds for all its processes on this machine, beside name and namespace: the resource of metrics.
    pub attributes: Resource,
}

/// One instance of a service: what is particular to a process. With the attributes of its [`Service`], it is the
/// resource of spans.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Instance {
    /// `process.pid`, `container.id` and the like. `service.instance.id` here takes the place of the service's own.
    pub attributes: Resource,
}

impl Instance {
    /// `service.version`, of this process or of all of its service.
    #[must_use]
    pub fn version<'a>(&'a self, service: &'a Service) -> Option<&'a str> {
        let [own, shared] = [&self.attributes, &service.attributes];
        own.get("service.version").or_else(|| shared.get("service.version"))
    }
}

/// Span kind. The protocols we read know the first two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SpanKind {
    /// The process received the request.
    Server,
    /// The process sent the request.
    Client,
    /// Something inside of a process: only SDKs report it, and nothing counts it.
    Internal,
}

/// A finished span. Times are nanoseconds since the Unix epoch. Its buffers are reused: see `span::assemble`.
#[derive(Debug, Clone)]
pub struct Span {
    /// 16 bytes, never all zero.
    pub trace_id: [u8; 16],
    /// 8 bytes, never all zero.
    pub span_id: [u8; 8],
    /// The span that caused it; `None` for a root.
    pub parent_span_id: Option<[u8; 8]>,
    /// The span that the request's own head names, on whichever side: what an SDK's span of the same event is known by.
    pub wire_parent: Option<[u8; 8]>,
    /// What an SDK has reported of the same event.
    pub twin: Option<Box<Twin>>,
    /// How the parent was found out, or why not.
    pub origin: Origin,
    /// W3C trace flags; bit 0 is "sampled".
    pub trace_flags: u8,
    /// Whether it leaves this agent: head sampling's word, always true while no destination takes spans. What is not
    /// sampled is counted all the same, but is no exemplar: no reader could look it up.
    pub sampled: bool,
    /// `tracestate`, as received.
    pub trace_state: String,
    /// The kernel's exchange number.
    pub exchange: u64,
    /// Server or client.
    pub kind: SpanKind,
    /// Arrival of the request (server) or its sending (client).
    pub start: u64,
    /// Last byte of the response, or the moment it broke.
    pub end: u64,
    /// Time between arrival and the process's first read of the request, ns.
    pub queue_wait: u64,
    /// Where the rest of the time went; `None` of spans of which nothing of it is known: calls, WebSockets, and all
    /// where no time is booked.
    pub spent: Option<Box<Spent>>,
    /// Process id in the initial namespace.
    pub pid: u32,
    /// Service.
    pub service: Arc<Service>,
    /// Which of the service's processes.
    pub instance: Arc<Instance>,
    /// `error.type`, by the rule of the protocol and the side; empty when the span is no error, or it is not known.
    pub error_type: &'static str,
    /// Who was asked.
    pub server: ServerEnd,
    /// Who that is, of a call; `None` when it is not known for certain.
    pub peer: Option<service::Peer>,
    /// Who asked; of server spans only.
    pub client: ClientEnd,
    /// Bytes of what was asked with, without the protocol's own: of HTTP the request's body. `None` when some may have
    /// passed unseen.
    pub request_bytes: Option<u64>,
    /// Bytes of the answer, as `request_bytes`.
    pub response_bytes: Option<u64>,
    /// `obi.request.head.truncated`: what the request held behind the limit of what is copied was not seen.
    pub is_truncated: bool,
    /// `obi.exchange.id`: both ends of the exchange have the same. `None` where the connection does not show it.
    pub exchange_id: Option<u64>,
    /// What is particular to the protocol.
    pub detail: Detail,
}

/// The end of a connection that answers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ServerEnd {
    /// `server.address`: the name that the client used, else the address; a unix socket has its own marker `unix`.
    pub address: String,
    /// `server.port`, 0 when unknown.
    pub port: u16,
}

/// The end of a connection that asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClientEnd {
    /// `client.address`; `None` over unix sockets.
    pub address: Option<IpAddr>,
    /// `client.port`, 0 when unknown.
    pub port: u16,
}

impl SpanKind {
    /// In small letters.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Client => "client",
            Self::Internal => "internal",
        }
    }
}

/// The service and the process of a span that is not written yet: shared, since blank spans are made for every span
/// that is received.
static NOT_KNOWN: LazyLock<(Arc<Service>, Arc<Instance>)> = LazyLock::new(Default::default);

impl Span {
    /// A span to be written over by [`Assembler::assemble`]; its ids are not valid before [`Self::put`].
    #[must_use]
    pub fn blank() -> Self {
        let (service, instance) = &*NOT_KNOWN;
        Self {
            trace_id: [0; 16],
            span_id: [0; 8],
            parent_span_id: None,
            wire_parent: None,
            twin: None,
            origin: Origin::Root,
            trace_flags: 0,
            sampled: true,
            trace_state: String::new(),
            exchange: 0,
            kind: SpanKind::Server,
            start: 0,
            end: 0,
            queue_wait: 0,
            spent: None,
            pid: 0,
            service: Arc::clone(service),
            instance: Arc::clone(instance),
            error_type: "",
            server: ServerEnd::default(),
            peer: None,
            client: ClientEnd::default(),
            request_bytes: None,
            response_bytes: None,
            is_truncated: false,
            exchange_id: None,
            detail: Detail::Http(Http::default()),
        }
    }

    /// Puts it into its place in a trace.
    pub fn put(&mut self, place: &TracePosition) {
        let TracePosition { trace_id, span_id, parent_span_id, flags, origin } = *place;
        (self.trace_id, self.span_id, self.parent_span_id) = (trace_id, span_id, parent_span_id);
        (self.trace_flags, self.origin) = (flags, origin);
    }

    /// The resource of this span: attributes of its instance, then those of its service that the instance does not
    /// replace. Name and namespace of the service are not among them.
    pub fn resource(&self) -> impl Iterator<Item = (&str, AttributeValue<'_>)> {
        let own = &self.instance.attributes;
        let shared =
            self.service.attributes.iter().filter(|(name, _)| own.iter().all(|(held, _)| held != *name));
        own.iter().chain(shared)
    }
}
