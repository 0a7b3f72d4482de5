//! A span's name, status and attributes, once for all exporters.
//!
//! In: a [`Span`]. Out: what the semantic conventions for HTTP and gRPC call its parts; what they have no word for
//! begins with `obi.`. Refuses to know encodings.

use super::detail::GRPC;
use super::grpc::Code;
use super::method::OTHER;
use super::{Database, Detail, Http, Rpc, Sdk, ServerEnd, Span, SpanKind, Spent, WebSocket, call, spent};
use std::fmt::{self, Display, Formatter};

/// Time between the arrival of a request and the process's first read of it, ns: an attribute of our own.
pub const QUEUE_WAIT: &str = "obi.queue_wait_ns";

/// The same at both ends of an exchange, wherever they are ([`crate::protocol::Wire::id`]): an attribute of our own.
/// A WebSocket has none, since that of its upgrade is the connection's.
pub const EXCHANGE_ID: &str = "obi.exchange.id";

/// What an SDK calls the same event: an attribute of our own.
pub const TWIN_NAME: &str = "obi.sdk.span.name";

/// Span status. Instrumentation never says `Ok`: that is the application's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Status {
    /// Nothing went wrong as far as this side is concerned.
    Unset,
    /// `error.type` says what went wrong.
    Error,
}

/// Value of an attribute; [`Display`] writes it as text.
#[derive(Debug, Clone, Copy)]
pub enum AttributeValue<'a> {
    /// Text as it is.
    Str(&'a str),
    /// Text made when it is written (addresses, URLs).
    Text(fmt::Arguments<'a>),
    /// A whole number.
    Int(i64),
    /// Yes or no.
    Bool(bool),
}

impl Display for AttributeValue<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(text) => formatter.write_str(text),
            Self::Text(text) => formatter.write_fmt(*text),
            Self::Int(number) => number.fmt(formatter),
            Self::Bool(yes) => yes.fmt(formatter),
        }
    }
}

impl Span {
    /// Of HTTP `{method} {route}`, with `HTTP` for a method that is not known and without a route where there is
    /// none (`CONNECT`). Of a call its method, with `grpc` for one that is not known. Of a database the statement's
    /// summary, or the command. Low cardinality.
    pub fn name(&self) -> impl Display + '_ {
        Name(self)
    }

    /// By the conventions' rule for this side.
    #[must_use]
    pub fn status(&self) -> Status {
        if self.error_type.is_empty() { Status::Unset } else { Status::Error }
    }

    /// What the server said of an error; empty without one.
    #[must_use]
    pub fn status_message(&self) -> &str {
        match &self.detail {
            Detail::Rpc(rpc) if self.status() == Status::Error => &rpc.message,
            Detail::Sdk(sdk) if self.status() == Status::Error => &sdk.message,
            _ => "",
        }
    }

    /// Calls `visit` once with each attribute that has a value, in a fixed order. Resource attributes are
    /// not among them: see [`super::Service`].
    pub fn attributes<'a>(&'a self, visit: impl FnMut(&'a str, AttributeValue<'_>)) {
        let mut out = Attributes { span: self, visit };
        match &self.detail {
            Detail::Http(http) => out.http(http),
            Detail::Rpc(rpc) => out.rpc(rpc),
            Detail::WebSocket(socket) => out.websocket(socket),
            Detail::Database(database) => out.database(database),
            Detail::Sdk(sdk) => return out.sdk(sdk),
        }
        if self.kind == SpanKind::Server && !matches!(self.detail, Detail::WebSocket(_)) {
            out.number(QUEUE_WAIT, self.queue_wait);
        }
        if let Some(spent) = &self.spent {
            out.spent(spent);
        }
        if let Some(id) = self.exchange_id
            && !matches!(self.detail, Detail::WebSocket(_))
        {
            (out.visit)(EXCHANGE_ID, AttributeValue::Text(format_args!("{id:016x}")));
        }
        if let Some(peer) = &self.peer {
            out.text("service.peer.name", peer.name());
            out.text("service.peer.namespace", peer.namespace());
        }
        out.text(TWIN_NAME, self.twin.as_ref().map_or("", |twin| &*twin.name));
        out.text("obi.parent.evidence", self.origin.evidence().unwrap_or_default());
        out.text("obi.parent.reason", self.origin.reason().unwrap_or_default());
    }
}

/// Gives the parts of a detail their names.
struct Attributes<'a, V> {
    span: &'a Span,
    visit: V,
}

impl<'a, V: FnMut(&'a str, AttributeValue<'_>)> Attributes<'a, V> {
    fn http(&mut self, http: &Http) {
        self.text("http.request.method", http.method);
        self.text("http.request.method_original", &http.method_original);
        self.target(http);
        self.text("user_agent.original", &http.user_agent);
        self.text("network.protocol.version", http.version);
        self.text("error.type", self.span.error_type);
        if self.span.kind == SpanKind::Client {
            (self.visit)(
                "url.full",
                AttributeValue::Text(format_args!("{}", FullUrl(http, &self.span.server))),
            );
        }
        self.ends();
        if let Some(status) = http.status {
            self.number("http.response.status_code", status.into());
        }
        self.mark("obi.request.head.truncated", self.span.is_truncated);
        self.known("http.request.body.size", self.span.request_bytes);
        if http.status.is_some() || http.status_unknown {
            self.known("http.response.body.size", self.span.response_bytes);
        }
    }

    /// The parts that add up to the span, its queue wait among them; reasons only where there was such a wait.
    fn spent(&mut self, spent: &Spent) {
        if let Some(times) = &spent.times {
            self.number(spent::CPU, times.cpu);
            self.number(spent::RUNQUEUE, times.runqueue);
        }
        if spent.times.is_some() || spent.downstream > 0 {
            self.number(spent::BLOCKED, spent.blocked());
            let by_thread = spent.times.map(|times| times.blocked).unwrap_or_default();
            let by_thread = spent::BLOCKED_BY.into_iter().zip(by_thread);
            for (name, part) in by_thread.chain([(spent::BLOCKED_BY_CALLS, spent.downstream)]) {
                self.known(name, Some(part).filter(|part| *part > 0));
            }
        }
        self.number(spent::ELSEWHERE, spent.elsewhere);
    }

    fn rpc(&mut self, rpc: &Rpc) {
        let http = &rpc.http;
        self.text("rpc.system.name", GRPC);
        self.text("rpc.method", &rpc.method);
        if *rpc.method == *OTHER {
            self.text("rpc.method_original", call::method_of(&http.path).unwrap_or(&http.path));
        }
        self.text("rpc.response.status_code", rpc.status.map_or("", Code::name));
        self.text("error.type", self.span.error_type);
        self.text("server.address", &self.span.server.address);
        self.text("url.scheme", http.scheme);
        self.text("network.protocol.version", http.version);
        self.ends();
        for (name, count) in [
            ("obi.rpc.request.messages", rpc.request_messages.map(u64::from)),
            ("obi.rpc.response.messages", rpc.response_messages.map(u64::from)),
            ("obi.rpc.timeout_ns", rpc.timeout),
        ] {
            if let Some(count) = count {
                self.number(name, count);
            }
        }
        self.mark("obi.rpc.streaming", rpc.streaming);
        self.mark("obi.rpc.cancelled", rpc.cancelled);
        self.mark("obi.rpc.web", rpc.web);
    }

    /// Without method and status: those are the upgrade's, and a receiver that derives metrics of HTTP from spans must
    /// not take this for a request.
    fn websocket(&mut self, socket: &WebSocket) {
        let http = &socket.http;
        self.text("network.protocol.name", "websocket");
        self.target(http);
        self.text("user_agent.original", &http.user_agent);
        self.text("error.type", self.span.error_type);
        self.ends();
        self.number("obi.websocket.client.messages", socket.client_messages.into());
        self.known("obi.websocket.client.bytes", self.span.request_bytes);
        self.number("obi.websocket.server.messages", socket.server_messages.into());
        self.known("obi.websocket.server.bytes", self.span.response_bytes);
        if let Some(code) = socket.close_code {
            self.number("obi.websocket.close_code", code.into());
        }
        let closed_by = socket.closed_by.map(SpanKind::name);
        self.text("obi.websocket.closed_by", closed_by.unwrap_or_default());
    }

    fn database(&mut self, database: &Database) {
        self.text("db.system.name", database.system);
        self.text("db.operation.name", &database.operation);
        self.text("db.collection.name", &database.collection);
        self.text("db.query.summary", &database.summary);
        self.text("db.query.text", &database.text);
        self.text("db.namespace", &database.namespace);
        self.text("db.response.status_code", database.code);
        self.text("error.type", self.span.error_type);
        self.text("server.address", &self.span.server.address);
        self.ends();
    }

    /// As they were sent.
    fn sdk(&mut self, sdk: &'a Sdk) {
        sdk.attributes.iter().for_each(|(name, value)| (self.visit)(name, value));
    }

    /// What was asked for, and whom.
    fn target(&mut self, http: &Http) {
        let route_name = match self.span.kind {
            SpanKind::Server => "http.route",
            SpanKind::Client | SpanKind::Internal => "url.template",
        };
        self.text("url.scheme", http.scheme);
        self.text("url.path", &http.path);
        self.text("url.query", &http.query);
        self.text(route_name, &http.route);
        self.text("server.address", &self.span.server.address);
    }

    /// The ends of the connection, but for the server's address.
    fn ends(&mut self) {
        let Span { client, server, .. } = self.span;
        if let Some(address) = client.address {
            (self.visit)("client.address", AttributeValue::Text(format_args!("{address}")));
        }
        if server.port != 0 {
            self.number("server.port", server.port.into());
        }
        if client.port != 0 {
            self.number("client.port", client.port.into());
        }
    }

    fn text(&mut self, name: &'static str, value: &str) {
        if !value.is_empty() {
            (self.visit)(name, AttributeValue::Str(value));
        }
    }

    /// A number that is not always known.
    fn known(&mut self, name: &'static str, value: Option<u64>) {
        if let Some(value) = value {
            self.number(name, value);
        }
    }

    fn number(&mut self, name: &'static str, value: u64) {
        (self.visit)(name, AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX)));
    }

    /// Something that is said only where it holds.
    fn mark(&mut self, name: &'static str, holds: bool) {
        if holds {
            (self.visit)(name, AttributeValue::Bool(true));
        }
    }
}

struct Name<'a>(&'a Span);

impl Display for Name<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let operation = self.0.detail.operation();
        let place = operation.place;
        match operation.verb {
            GRPC if **place == *OTHER => formatter.write_str(GRPC),
            GRPC => formatter.write_str(place),
            _ if matches!(self.0.detail, Detail::Database(_) | Detail::Sdk(_)) => formatter.write_str(place),
            verb => {
                formatter.write_str(if verb == OTHER { "HTTP" } else { verb })?;
                if place.is_empty() { Ok(()) } else { write!(formatter, " {place}") }
            }
        }
    }
}

struct FullUrl<'a>(&'a Http, &'a ServerEnd);

impl Display for FullUrl<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        const HTTP_PORT: u16 = 80;
        const HTTPS_PORT: u16 = 443;
        let (http, ServerEnd { address, port }) = (self.0, self.1);
        if address.contains(':') {
            write!(formatter, "{}://[{address}]", http.scheme)?;
        } else {
            write!(formatter, "{}://{address}", http.scheme)?;
        }
        let usual_port = if http.scheme == "https" { HTTPS_PORT } else { HTTP_PORT };
        if *port != 0 && *port != usual_port {
            write!(formatter, ":{port}")?;
        }
        if http.path.starts_with('/') {
            formatter.write_str(&http.path)?;
        }
        if http.query.is_empty() { Ok(()) } else { write!(formatter, "?{}", http.query) }
    }
}
