//! A span's name, status and attributes, once for all exporters.
//!
//! In: a [`Span`]. Out: what the HTTP semantic conventions call its parts. Refuses to know encodings.

use super::method::OTHER;
use super::{Detail, Http, Span, SpanKind};
use std::fmt::{self, Display, Formatter};

/// Time between the arrival of a request and the process's first read of it, ns: an attribute of our own.
pub const QUEUE_WAIT: &str = "obi.queue_wait_ns";

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
}

impl Display for AttributeValue<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Str(text) => formatter.write_str(text),
            Self::Text(text) => formatter.write_fmt(*text),
            Self::Int(number) => number.fmt(formatter),
        }
    }
}

impl Span {
    /// `{method} {route}`, with `HTTP` for a method that is not known and without a route where there is
    /// none (`CONNECT`). Low cardinality.
    pub fn name(&self) -> impl Display + '_ {
        Name(self)
    }

    /// By the conventions' rule for this side.
    #[must_use]
    pub fn status(&self) -> Status {
        let Detail::Http(http) = &self.detail;
        if http.error_type.is_empty() { Status::Unset } else { Status::Error }
    }

    /// Calls `visit` once with each attribute that has a value, in a fixed order. Resource attributes are
    /// not among them: see [`super::Service`].
    pub fn attributes(&self, mut visit: impl FnMut(&'static str, AttributeValue<'_>)) {
        let Detail::Http(http) = &self.detail;
        let mut text = |name, value: &str| {
            if !value.is_empty() {
                visit(name, AttributeValue::Str(value));
            }
        };
        let route_name = match self.kind {
            SpanKind::Server => "http.route",
            SpanKind::Client => "url.template",
        };
        text("http.request.method", http.method);
        text("http.request.method_original", &http.method_original);
        text("url.scheme", http.scheme);
        text("url.path", &http.path);
        text("url.query", &http.query);
        text(route_name, &http.route);
        text("server.address", &http.server_address);
        text("user_agent.original", &http.user_agent);
        text("network.protocol.version", http.version);
        text("error.type", http.error_type);
        if self.kind == SpanKind::Client {
            visit("url.full", AttributeValue::Text(format_args!("{}", FullUrl(http))));
        }
        if let Some(address) = http.client_address {
            visit("client.address", AttributeValue::Text(format_args!("{address}")));
        }
        let mut number = |name, value: u64| {
            visit(name, AttributeValue::Int(i64::try_from(value).unwrap_or(i64::MAX)));
        };
        if http.server_port != 0 {
            number("server.port", http.server_port.into());
        }
        if http.client_port != 0 {
            number("client.port", http.client_port.into());
        }
        if let Some(status) = http.status {
            number("http.response.status_code", status.into());
        }
        number("http.request.body.size", http.request_body_bytes);
        if http.status.is_some() {
            number("http.response.body.size", http.response_body_bytes);
        }
        if self.kind == SpanKind::Server {
            number(QUEUE_WAIT, self.queue_wait);
        }
    }
}

struct Name<'a>(&'a Span);

impl Display for Name<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        let Detail::Http(http) = &self.0.detail;
        formatter.write_str(if http.method == OTHER { "HTTP" } else { http.method })?;
        if http.route.is_empty() { Ok(()) } else { write!(formatter, " {}", http.route) }
    }
}

struct FullUrl<'a>(&'a Http);

impl Display for FullUrl<'_> {
    fn fmt(&self, formatter: &mut Formatter<'_>) -> fmt::Result {
        const HTTP_PORT: u16 = 80;
        let http = self.0;
        let address = &http.server_address;
        if address.contains(':') {
            write!(formatter, "{}://[{address}]", http.scheme)?;
        } else {
            write!(formatter, "{}://{address}", http.scheme)?;
        }
        if !matches!(http.server_port, 0 | HTTP_PORT) {
            write!(formatter, ":{}", http.server_port)?;
        }
        if http.path.starts_with('/') {
            formatter.write_str(&http.path)?;
        }
        if http.query.is_empty() { Ok(()) } else { write!(formatter, "?{}", http.query) }
    }
}
