//! A span seen from outside: name, status and attributes by semantic-convention name.
//!
//! In: [`Span`]. Out: text and numbers, visited without allocation. Refuses to know exporters.

use std::fmt;

use super::{Detail, Span, SpanKind};

/// Span status; `Ok` is never set by instrumentation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Status {
    /// No error.
    Unset,
    /// `error.type` says why.
    Error,
}

/// Value of an attribute.
#[derive(Debug, Clone, Copy)]
pub enum AttributeValue<'a> {
    /// Text.
    Str(&'a str),
    /// Text made when it is written.
    Text(fmt::Arguments<'a>),
    /// Whole number.
    Int(i64),
}

struct Name<'a>(&'a str, &'a str);

impl fmt::Display for Name<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(if self.0 == "_OTHER" { "HTTP" } else { self.0 })?;
        if self.1.is_empty() { Ok(()) } else { write!(out, " {}", self.1) }
    }
}

impl Span {
    /// `{method} {route}`.
    pub fn name(&self) -> impl fmt::Display {
        let Detail::Http(http) = &self.detail;
        Name(http.method, &http.route)
    }

    /// Error when `error.type` is set.
    #[must_use]
    pub fn status(&self) -> Status {
        let Detail::Http(http) = &self.detail;
        if http.error_type.is_empty() { Status::Unset } else { Status::Error }
    }

    /// Visits every attribute that is present.
    pub fn attributes(&self, mut visit: impl FnMut(&'static str, AttributeValue<'_>)) {
        let Detail::Http(http) = &self.detail;
        let route_name = match self.kind {
            SpanKind::Server => "http.route",
            SpanKind::Client => "url.template",
        };
        for (name, value) in [
            ("http.request.method", http.method),
            ("url.path", &http.path),
            ("url.scheme", http.scheme),
            (route_name, &*http.route),
            ("error.type", http.error_type),
            ("server.address", &http.server_address),
        ] {
            if !value.is_empty() {
                visit(name, AttributeValue::Str(value));
            }
        }
        if let Some(address) = http.client_address {
            visit("client.address", AttributeValue::Text(format_args!("{address}")));
        }
        if let Some(status) = http.status {
            visit("http.response.status_code", AttributeValue::Int(i64::from(status)));
        }
    }
}
