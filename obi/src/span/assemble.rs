//! Exchanges to spans, by the semantic conventions for HTTP and for gRPC.
//!
//! In: an [`Exchange`] and the service that took part in it. Out: a [`Span`], written over a used one so that
//! its buffers serve again. The rules on errors of HTTP (semantic conventions, HTTP spans, Status) are
//! here and nowhere else; those of calls are in [`grpc`](super::grpc), those of WebSockets in
//! [`websocket`](super::websocket). Refuses to know who reads the span.

use super::call::{Call, Calls};
use super::database::{Database, Words};
use super::method::{KnownMethods, OTHER};
use super::route::{self, Routes};
use super::{ClientEnd, Detail, Http, Rpc, Service, Span, SpanKind, WebSocket, grpc, websocket};
use crate::cause::context::{parse_traceparent, valid_tracestate};
use crate::protocol::{self, Endpoints, Exchange, Message, Semantics, Side, UnderWay, Version, Wire};
use std::net::SocketAddr;
use std::sync::Arc;

/// Writes spans. Owned by one task.
#[derive(Debug)]
pub struct Assembler {
    methods: KnownMethods,
    routes: Routes,
    calls: Calls,
    words: Words,
}

/// Distinct routes of one service unless configured.
pub const DEFAULT_ROUTES: usize = 200;

/// `server.address` of a unix socket whose request names no host.
pub const UNIX_ADDRESS: &str = "unix";

impl Assembler {
    /// `routes` is the bound on distinct routes per service.
    #[must_use]
    pub fn new(methods: KnownMethods, routes: usize) -> Self {
        Self { methods, routes: Routes::new(routes), calls: Calls::default(), words: Words::default() }
    }

    /// Writes the span of `exchange` over `span`, all but its place in a trace ([`Span::put`]). `wall_offset` is what
    /// to add to `CLOCK_MONOTONIC` for nanoseconds since the Unix epoch.
    pub fn assemble(
        &mut self,
        exchange: &Exchange<'_>,
        service: &Arc<Service>,
        wall_offset: u64,
        span: &mut Span,
    ) {
        span.sampled = true;
        span.exchange = exchange.number;
        (span.wire_parent, span.twin) = (None, None);
        span.kind = kind_of(exchange.side);
        span.start = exchange.arrival.saturating_add(wall_offset);
        span.end = exchange.ended.saturating_add(wall_offset);
        span.queue_wait = exchange.started.saturating_sub(exchange.arrival);
        span.pid = exchange.tgid;
        span.exchange_id = exchange.cause.wire.map(Wire::id);
        share(&mut span.service, service);
        span.request_bytes = exchange.request_bytes;
        span.response_bytes = exchange.response_bytes;
        match &exchange.message {
            Message::Http(http) => self.http(exchange, http, span),
            Message::Database(said) => self.database(exchange, said, span),
        }
    }

    /// A call of a database.
    fn database(&mut self, exchange: &Exchange<'_>, said: &protocol::Database<'_>, span: &mut Span) {
        span.trace_state.clear();
        span.is_truncated = false;
        write_ends(span, exchange, "");
        let database = be_database(&mut span.detail);
        database.write(said, &mut self.words);
        span.error_type = match (database.code, exchange.failure) {
            ("", None) => "",
            ("", Some(failure)) => failure.error_type(),
            (code, _) => code,
        };
    }

    /// What HTTP says: of both ends, and of what was carried.
    fn http(&mut self, exchange: &Exchange<'_>, message: &protocol::Http<'_>, span: &mut Span) {
        let request = &message.request;
        let header = parse_traceparent(request.traceparent);
        let is_passed_on = header.is_some();
        span.wire_parent = header.map(|parent| parent.span_id);
        replace(&mut span.trace_state, if is_passed_on { valid_tracestate(request.tracestate) } else { "" });
        span.is_truncated = request.is_truncated;
        write_ends(span, exchange, request.host);
        let (service, said) = (&*span.service, Said { exchange, message });
        match message.semantics {
            Semantics::Http => {
                self.carrier(said, service, be_http(&mut span.detail));
                span.error_type = error_type(said);
            }
            Semantics::Rpc(call) => {
                let status = self.call(said, call, service, be_rpc(&mut span.detail));
                span.error_type = grpc::error_type(exchange, status);
            }
            Semantics::WebSocket(ended) => {
                let socket = be_websocket(&mut span.detail);
                self.carrier(said, service, &mut socket.http);
                socket.client_messages = ended.request_messages;
                socket.server_messages = ended.response_messages;
                socket.close_code = ended.close_code;
                socket.closed_by = ended.closed_by.map(kind_of);
                span.error_type = websocket::error_type(&ended, exchange.failure, exchange.side);
            }
        }
    }

    /// The HTTP request.
    fn carrier(&mut self, said: Said<'_>, service: &Service, http: &mut Http) {
        let Said { exchange, message } = said;
        let request = &message.request;
        http.method = self.methods.classify(request.method);
        let asked = route::Request {
            service,
            side: kind_of(exchange.side),
            method: http.method,
            path: request.path,
            status: status_of(message),
        };
        self.routes.assign(asked, &mut http.route);
        replace(&mut http.method_original, if http.method == OTHER { request.method } else { "" });
        describe(http, said);
    }

    /// Everything of a call but its error, which follows from its status; returns that.
    fn call(
        &mut self,
        said: Said<'_>,
        call: protocol::Rpc<'_>,
        service: &Service,
        rpc: &mut Rpc,
    ) -> Option<grpc::Code> {
        let Said { exchange, message } = said;
        let status = grpc::status(exchange, status_of(message), &call);
        let (side, path) = (kind_of(exchange.side), message.request.path);
        rpc.streaming = self.calls.assign(Call { service, side, path, status, rpc: call }, &mut rpc.method);
        rpc.status = status;
        rpc.status_unknown = status.is_none() && exchange.failure.is_none();
        grpc::write_message(&mut rpc.message, call.message);
        rpc.request_messages = call.request_messages;
        rpc.response_messages = call.response_messages;
        rpc.timeout = call.timeout;
        rpc.cancelled = call.is_cancelled;
        rpc.web = call.is_web;
        let http = &mut rpc.http;
        http.method = self.methods.classify(message.request.method);
        http.method_original.clear();
        if !http.route.is_empty() {
            http.route = Arc::default();
        }
        describe(http, said);
        status
    }

    /// The routes: their patterns, their bound, what has been learned.
    pub fn routes_mut(&mut self) -> &mut Routes {
        &mut self.routes
    }

    /// `http.request.method` of a method as sent.
    #[must_use]
    pub fn method(&self, sent: &str) -> &'static str {
        self.methods.classify(sent)
    }

    /// Forgets the routes and methods of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        self.routes.forget(service);
        self.calls.forget(service);
    }
}

/// `server.address` and `server.port` of a client's request that is under way, as its span will have them.
#[must_use]
pub fn server_of(under_way: &UnderWay<'_>) -> (String, u16) {
    let server = match under_way.endpoints {
        Endpoints::Unix | Endpoints::Unknown => None,
        Endpoints::Ip { remote, .. } => Some(remote),
    };
    let (host, port) = split_host(under_way.request.host);
    let mut address = String::new();
    write_server_address(&mut address, host, server);
    (address, port.or(server.map(|server| server.port())).unwrap_or(0))
}

/// An exchange over HTTP, and what was said.
#[derive(Clone, Copy)]
struct Said<'a> {
    exchange: &'a Exchange<'a>,
    message: &'a protocol::Http<'a>,
}

fn status_of(message: &protocol::Http<'_>) -> Option<u16> {
    message.response.and_then(|response| response.status)
}

fn kind_of(side: Side) -> SpanKind {
    match side {
        Side::Server => SpanKind::Server,
        Side::Client => SpanKind::Client,
    }
}

/// `url.scheme` of a request.
#[must_use]
pub fn scheme(encrypted: bool) -> &'static str {
    if encrypted { "https" } else { "http" }
}

// A span that was of another protocol keeps its buffers when it changes.

fn be_http(detail: &mut Detail) -> &mut Http {
    if !matches!(detail, Detail::Http(_)) {
        *detail = Detail::Http(take_carrier(detail));
    }
    match detail {
        Detail::Http(http) => http,
        _ => unreachable!("just made one"),
    }
}

fn be_rpc(detail: &mut Detail) -> &mut Rpc {
    if !matches!(detail, Detail::Rpc(_)) {
        *detail = Detail::Rpc(Rpc { http: take_carrier(detail), ..Rpc::default() });
    }
    match detail {
        Detail::Rpc(rpc) => rpc,
        _ => unreachable!("just made one"),
    }
}

fn be_websocket(detail: &mut Detail) -> &mut WebSocket {
    if !matches!(detail, Detail::WebSocket(_)) {
        *detail = Detail::WebSocket(WebSocket { http: take_carrier(detail), ..WebSocket::default() });
    }
    match detail {
        Detail::WebSocket(socket) => socket,
        _ => unreachable!("just made one"),
    }
}

fn be_database(detail: &mut Detail) -> &mut Database {
    if !matches!(detail, Detail::Database(_)) {
        *detail = Detail::Database(Database::default());
    }
    match detail {
        Detail::Database(database) => database,
        _ => unreachable!("just made one"),
    }
}

fn take_carrier(detail: &mut Detail) -> Http {
    detail.carrier_mut().map(std::mem::take).unwrap_or_default()
}

fn describe(http: &mut Http, said: Said<'_>) {
    let Said { exchange, message } = said;
    let request = &message.request;
    replace(&mut http.path, request.path);
    replace(&mut http.query, request.query);
    replace(&mut http.user_agent, request.user_agent);
    http.scheme = scheme(exchange.encrypted);
    http.version = match request.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    http.status = status_of(message);
    http.status_unknown = message.response.is_some() && http.status.is_none();
}

/// Both ends of the connection, as far as this side shows them.
fn write_ends(span: &mut Span, exchange: &Exchange<'_>, host: &str) {
    let (server, client) = match (exchange.side, exchange.endpoints) {
        (_, Endpoints::Unix | Endpoints::Unknown) => (None, None),
        (Side::Server, Endpoints::Ip { local, remote }) => (Some(local), Some(remote)),
        (Side::Client, Endpoints::Ip { remote, .. }) => (Some(remote), None),
    };
    let port = client.map_or(0, |client| client.port());
    span.client = ClientEnd { address: client.map(|client| client.ip()), port };
    let (host, port) = split_host(host);
    span.server.port = port.or(server.map(|server| server.port())).unwrap_or(0);
    write_server_address(&mut span.server.address, host, server);
    if host.is_empty() && exchange.endpoints == Endpoints::Unknown {
        span.server.address.clear();
    }
}

/// `error.type`: the status code when the side's rule calls it an error, else what broke, else empty. An
/// error of the client's making (4xx) is one at the client only.
fn error_type(said: Said<'_>) -> &'static str {
    let Said { exchange, message } = said;
    let first_error = match exchange.side {
        Side::Server => 500,
        Side::Client => 400,
    };
    match (status_of(message), exchange.failure) {
        (Some(status), _) if status >= first_error => status_text(status),
        (_, Some(failure)) => failure.error_type(),
        (_, None) => "",
    }
}

/// A status code in decimal digits, from a table: 100 to 999, else `_OTHER`.
pub(super) fn status_text(status: u16) -> &'static str {
    const FIRST: usize = 100;
    const DIGITS: [u8; 2700] = {
        let mut digits = [0; 2700];
        let mut status = FIRST;
        while status < 1000 {
            let at = (status - FIRST) * 3;
            digits[at] = b'0' + (status / 100) as u8;
            digits[at + 1] = b'0' + (status / 10 % 10) as u8;
            digits[at + 2] = b'0' + (status % 10) as u8;
            status += 1;
        }
        digits
    };
    static TABLE: [u8; 2700] = DIGITS;
    let digits = usize::from(status).checked_sub(FIRST).and_then(|nth| TABLE.get(nth * 3..nth * 3 + 3));
    digits.and_then(|digits| std::str::from_utf8(digits).ok()).unwrap_or(OTHER)
}

fn write_server_address(text: &mut String, host: &str, server: Option<SocketAddr>) {
    use std::fmt::Write;
    match server {
        _ if !host.is_empty() => replace(text, host),
        None => replace(text, UNIX_ADDRESS),
        Some(server) => {
            text.clear();
            // Writing to a string cannot fail.
            let _ = write!(text, "{}", server.ip());
        }
    }
}

/// Splits `host:port`; an IPv6 address loses its brackets. A port that is no number is ignored.
fn split_host(host: &str) -> (&str, Option<u16>) {
    if let Some((address, rest)) = host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        return (address, rest.strip_prefix(':').and_then(|port| port.parse().ok()));
    }
    match host.split_once(':') {
        // More than one colon: an IPv6 address without brackets, against the rules.
        Some((_, port)) if port.contains(':') => (host, None),
        Some((name, port)) => (name, port.parse().ok()),
        None => (host, None),
    }
}

fn replace(text: &mut String, with: &str) {
    text.clear();
    text.push_str(with);
}

/// Points `place` at `shared`; leaves the counter alone when it does already, as in most spans in a row.
fn share<T: ?Sized>(place: &mut Arc<T>, shared: &Arc<T>) {
    if !Arc::ptr_eq(place, shared) {
        *place = Arc::clone(shared);
    }
}

#[cfg(test)]
#[path = "assemble_tests.rs"]
mod tests;
