//! Exchanges to spans, by the HTTP semantic conventions.
//!
//! In: an [`Exchange`] and the service that took part in it. Out: a [`Span`], written over a used one so that
//! its buffers serve again. The rules on errors (`reference`: semantic conventions, HTTP spans, Status) are
//! here and nowhere else. Refuses to know who reads the span.

use super::context::{Ids, valid_tracestate};
use super::method::{KnownMethods, OTHER};
use super::route::{self, Routes};
use super::{Detail, Http, Service, Span, SpanKind};
use crate::protocol::{Endpoints, Exchange, Side, UnderWay, Version};
use std::net::SocketAddr;
use std::sync::Arc;

/// Writes spans. Owned by one task.
#[derive(Debug)]
pub struct Assembler {
    ids: Ids,
    methods: KnownMethods,
    routes: Routes,
}

/// Distinct routes of one service unless configured.
pub const DEFAULT_ROUTES: usize = 200;

/// `server.address` of a unix socket whose request names no host.
pub const UNIX_ADDRESS: &str = "unix";

impl Assembler {
    /// `routes` is the bound on distinct routes per service.
    #[must_use]
    pub fn new(ids: Ids, methods: KnownMethods, routes: usize) -> Self {
        Self { ids, methods, routes: Routes::new(routes) }
    }

    /// Writes the span of `exchange` over `span`. `wall_offset` is what to add to `CLOCK_MONOTONIC` for
    /// nanoseconds since the Unix epoch.
    pub fn assemble(
        &mut self,
        exchange: &Exchange<'_>,
        service: &Arc<Service>,
        wall_offset: u64,
        span: &mut Span,
    ) {
        let request = &exchange.request;
        let context = self.ids.context(request.traceparent);
        let remote_state =
            if context.parent_span_id.is_some() { valid_tracestate(request.tracestate) } else { "" };
        span.trace_id = context.trace_id;
        span.span_id = context.span_id;
        span.parent_span_id = context.parent_span_id;
        span.trace_flags = context.flags;
        span.sampled = true;
        replace(&mut span.trace_state, remote_state);
        span.exchange = exchange.number;
        span.kind = match exchange.side {
            Side::Server => SpanKind::Server,
            Side::Client => SpanKind::Client,
        };
        span.start = exchange.arrival.saturating_add(wall_offset);
        span.end = exchange.ended.saturating_add(wall_offset);
        span.queue_wait = exchange.started.saturating_sub(exchange.arrival);
        span.pid = exchange.tgid;
        share(&mut span.service, service);
        let Detail::Http(http) = &mut span.detail;
        http.method = self.methods.classify(request.method);
        let asked = route::Request {
            service,
            side: span.kind,
            method: http.method,
            path: request.path,
            status: exchange.response.and_then(|response| response.status),
        };
        self.routes.assign(asked, &mut http.route);
        replace(&mut http.method_original, if http.method == OTHER { request.method } else { "" });
        describe(http, exchange);
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

    /// Forgets the routes of a service that is gone.
    pub fn forget(&mut self, service: u32) {
        self.routes.forget(service);
    }
}

/// `server.address` and `server.port` of a client's request that is under way, as its span will have them.
#[must_use]
pub fn server_of(under_way: &UnderWay<'_>) -> (String, u16) {
    let server = match under_way.endpoints {
        Endpoints::Unix => None,
        Endpoints::Ip { remote, .. } => Some(remote),
    };
    let (host, port) = split_host(under_way.request.host);
    let mut address = String::new();
    write_server_address(&mut address, host, server);
    (address, port.or(server.map(|server| server.port())).unwrap_or(0))
}

fn describe(http: &mut Http, exchange: &Exchange<'_>) {
    let request = &exchange.request;
    replace(&mut http.path, request.path);
    replace(&mut http.query, request.query);
    replace(&mut http.user_agent, request.user_agent);
    http.scheme = if exchange.encrypted { "https" } else { "http" };
    http.version = match request.version {
        Version::Http10 => "1.0",
        Version::Http11 => "1.1",
        Version::Http2 => "2",
    };
    http.status = exchange.response.and_then(|response| response.status);
    http.error_type = error_type(exchange);
    http.request_body_bytes = exchange.request_body_bytes;
    http.response_body_bytes = exchange.response_body_bytes;
    let (server, client) = match (exchange.side, exchange.endpoints) {
        (_, Endpoints::Unix) => (None, None),
        (Side::Server, Endpoints::Ip { local, remote }) => (Some(local), Some(remote)),
        (Side::Client, Endpoints::Ip { remote, .. }) => (Some(remote), None),
    };
    http.client_address = client.map(|client| client.ip());
    http.client_port = client.map_or(0, |client| client.port());
    let (host, port) = split_host(request.host);
    http.server_port = port.or(server.map(|server| server.port())).unwrap_or(0);
    write_server_address(&mut http.server_address, host, server);
}

/// `error.type`: the status code when the side's rule calls it an error, else what broke, else empty. An
/// error of the client's making (4xx) is one at the client only.
fn error_type(exchange: &Exchange<'_>) -> &'static str {
    let first_error = match exchange.side {
        Side::Server => 500,
        Side::Client => 400,
    };
    let status = exchange.response.and_then(|response| response.status);
    match (status, exchange.failure) {
        (Some(status), _) if status >= first_error => status_text(status),
        (_, Some(failure)) => failure.error_type(),
        (_, None) => "",
    }
}

/// A status code in decimal digits, from a table: 100 to 999, else `_OTHER`.
fn status_text(status: u16) -> &'static str {
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
