//! What makes one series: typed labels, and the borrowed key that finds them without allocating.
//!
//! In: a span. Out: its [`Key`] and, for a new series, owned [`Labels`]. Refuses to know counts and limits.

use std::sync::Arc;

use crate::span::{Http, Service, Span, SpanKind};

/// Stands for a label value that was folded away (the semantic conventions' fallback word).
pub const OTHER: &str = "_OTHER";

/// A route or server address longer than this, in bytes, never becomes a label; a DNS name has at most 253.
pub(super) const MAX_LABEL_BYTES: usize = 255;

/// `http.response.status_code` as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatusLabel {
    /// No response was received.
    Absent,
    /// The code itself.
    Code(u16),
    /// Only the first digit, in overflow series: 5 is written `5xx`.
    Class(u8),
}

impl StatusLabel {
    /// The class of this status; absent stays absent.
    #[must_use]
    pub fn class(self) -> Self {
        match self {
            Self::Code(code) => Self::Class(u8::try_from(code / 100).unwrap_or(9).min(9)),
            other => other,
        }
    }
}

/// Classes that [`StatusLabel::class`] can give: absent and ten digits.
pub(super) const CLASSES: usize = 11;

/// Labels of one series. Values that do not apply to the kind are empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Labels {
    /// `service.name` and `service.namespace`.
    pub service: Arc<Service>,
    /// Server or client: which of the two metrics.
    pub kind: SpanKind,
    /// `http.request.method`.
    pub method: &'static str,
    /// `http.route`, servers only.
    pub route: Arc<str>,
    /// `http.response.status_code`.
    pub status: StatusLabel,
    /// `error.type`; empty when no error.
    pub error_type: &'static str,
    /// `url.scheme`.
    pub scheme: &'static str,
    /// `network.protocol.version`.
    pub version: &'static str,
    /// `server.address`, clients only.
    pub server_address: Arc<str>,
    /// `server.port`, clients only, 0 when unknown.
    pub server_port: u16,
    /// This series stands for all that found no room (`otel.metric.overflow`).
    pub overflow: bool,
}

/// Identity of a series, borrowed from a span or from [`Labels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Key<'a> {
    service: u32,
    server_port: u16,
    status: StatusLabel,
    kind: SpanKind,
    overflow: bool,
    route: &'a str,
    server_address: &'a str,
    method: &'static str,
    error_type: &'static str,
    scheme: &'static str,
    version: &'static str,
}

impl<'a> Key<'a> {
    /// The key of a span. A route names a server's series, an address and port name a client's.
    pub(super) fn of(span: &'a Span, http: &'a Http) -> Self {
        let (route, server_address, server_port) = match span.kind {
            SpanKind::Server => (&*http.route, "", 0),
            SpanKind::Client => ("", http.server_address.as_str(), http.server_port),
        };
        Self {
            service: span.service.id,
            server_port,
            status: http.status.map_or(StatusLabel::Absent, StatusLabel::Code),
            kind: span.kind,
            overflow: false,
            route,
            server_address,
            method: http.method,
            error_type: http.error_type,
            scheme: http.scheme,
            version: http.version,
        }
    }

    /// Text from outside that is too long to be a label.
    pub(super) fn is_too_long(&self) -> bool {
        self.route.len() > MAX_LABEL_BYTES || self.server_address.len() > MAX_LABEL_BYTES
    }

    /// Owns the labels. `route` is the span's own, shared instead of copied.
    pub(super) fn to_labels(self, service: &Arc<Service>, route: &Arc<str>) -> Labels {
        Labels {
            service: Arc::clone(service),
            kind: self.kind,
            method: self.method,
            route: if self.route.is_empty() { Arc::from("") } else { Arc::clone(route) },
            status: self.status,
            error_type: self.error_type,
            scheme: self.scheme,
            version: self.version,
            server_address: Arc::from(self.server_address),
            server_port: self.server_port,
            overflow: false,
        }
    }

    /// The key of the overflow series that keeps service, kind, status class and "is an error".
    pub(super) fn overflow(self) -> Key<'static> {
        let (route, server_address) = match self.kind {
            SpanKind::Server => (OTHER, ""),
            SpanKind::Client => ("", OTHER),
        };
        Key {
            service: self.service,
            server_port: 0,
            status: self.status.class(),
            kind: self.kind,
            overflow: true,
            route,
            server_address,
            method: OTHER,
            error_type: if self.error_type.is_empty() { "" } else { OTHER },
            scheme: "",
            version: "",
        }
    }

    /// The same key under the last-resort service.
    pub(super) fn of_service(self, service: &Service) -> Self {
        Self { service: service.id, ..self }
    }

    pub(super) fn to_overflow_labels(self, service: &Arc<Service>) -> Labels {
        let route = Arc::from(self.route);
        Labels { overflow: true, ..self.to_labels(service, &route) }
    }
}

impl<'a> From<&'a Labels> for Key<'a> {
    fn from(labels: &'a Labels) -> Self {
        Self {
            service: labels.service.id,
            server_port: labels.server_port,
            status: labels.status,
            kind: labels.kind,
            overflow: labels.overflow,
            route: &labels.route,
            server_address: &labels.server_address,
            method: labels.method,
            error_type: labels.error_type,
            scheme: labels.scheme,
            version: labels.version,
        }
    }
}
