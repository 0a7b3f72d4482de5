//! What makes one series: typed labels, and the borrowed key that finds them without allocating.
//!
//! In: a span. Out: its [`Key`] and, for a new series, owned [`Labels`]. Refuses to know counts and limits.

use std::sync::{Arc, LazyLock};

use super::table::{LabelSet, is_same};
use super::{call_series, database_series};
use crate::span::{Detail, Http, Service, Span, SpanKind};

/// Stands for a label value that was folded away (the semantic conventions' fallback word).
pub const OTHER: &str = "_OTHER";

/// A route or server address longer than this, in bytes, never becomes a label; a DNS name has at most 253.
pub(super) const MAX_LABEL_BYTES: usize = 255;

/// `http.response.status_code` as a label.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum StatusLabel {
    /// No response was received, or its status could not be read.
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

/// Overflow series that one service can need: kinds × (classes × (error or not) of requests + statuses of calls +
/// statuses of spans × (timed or not)), and systems of databases × (error or not).
pub(super) const LAST_RESORT_SERIES: usize =
    2 * (CLASSES * 2 + call_series::STATUSES + 2 * 2) + 2 * database_series::SYSTEMS;

/// Labels that spans are counted by, and those that are left when a span finds no room.
pub(super) trait Dimensions: LabelSet + Sized {
    /// The key of a span, borrowed from it.
    fn key_of(span: &Span) -> Self::Key<'_>;
    /// Whether its text is short enough to be labels.
    fn fits(span: &Span) -> bool;
    /// The labels of a span.
    fn labels_of(span: &Span) -> Self;
    /// The key of the overflow series that takes the span, under this service.
    fn overflow_key_of(span: &Span, service: &Service) -> Self::Key<'static>;
    /// The labels of that overflow series.
    fn overflow_labels_of(span: &Span, service: &Arc<Service>) -> Self;
    /// What distinguishes this span from others, for people who ask what was folded.
    fn describe(span: &Span) -> String;
    /// Who holds the series.
    fn service(&self) -> &Arc<Service>;
    /// Whether it stands for what found no room.
    fn is_overflow(&self) -> bool;
}

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
            SpanKind::Client | SpanKind::Internal => ("", span.server.address.as_str(), span.server.port),
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
            error_type: span.error_type,
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
            SpanKind::Client | SpanKind::Internal => ("", OTHER),
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
}

impl LabelSet for Labels {
    type Key<'a> = Key<'a>;

    fn key(&self) -> Key<'_> {
        Key::from(self)
    }

    #[inline]
    fn is(&self, key: Key<'_>) -> bool {
        // All fields by name: a new one does not compile until it is compared.
        let Key {
            service,
            server_port,
            status,
            kind,
            overflow,
            route,
            server_address,
            method,
            error_type,
            scheme,
            version,
        } = key;
        (service, server_port, status) == (self.service.id, self.server_port, self.status)
            && (kind, overflow) == (self.kind, self.overflow)
            && is_same(route, &self.route)
            && is_same(server_address, &self.server_address)
            && is_same(method, self.method)
            && is_same(error_type, self.error_type)
            && is_same(scheme, self.scheme)
            && is_same(version, self.version)
    }
}

/// Only spans of HTTP requests are counted by these labels: `Registry::record` looks at what a span is first.
fn http_of(span: &Span) -> &Http {
    static NONE: LazyLock<Http> = LazyLock::new(Http::default);
    match &span.detail {
        Detail::Http(http) => http,
        _ => &NONE,
    }
}

impl Dimensions for Labels {
    #[inline]
    fn key_of(span: &Span) -> Key<'_> {
        Key::of(span, http_of(span))
    }

    fn fits(span: &Span) -> bool {
        !Self::key_of(span).is_too_long()
    }

    fn labels_of(span: &Span) -> Self {
        let http = http_of(span);
        Key::of(span, http).to_labels(&span.service, &http.route)
    }

    fn overflow_key_of(span: &Span, service: &Service) -> Key<'static> {
        Key { service: service.id, ..Self::key_of(span).overflow() }
    }

    fn overflow_labels_of(span: &Span, service: &Arc<Service>) -> Self {
        let key = Self::overflow_key_of(span, service);
        let route = Arc::from(key.route);
        Self { overflow: true, ..key.to_labels(service, &route) }
    }

    fn describe(span: &Span) -> String {
        let http = http_of(span);
        let status = http.status.map_or("no status".to_owned(), |status| status.to_string());
        match span.kind {
            SpanKind::Server => format!("server {} {} {status}", http.method, shorten(&http.route)),
            SpanKind::Client | SpanKind::Internal => {
                let address = shorten(&span.server.address);
                format!("client {} {address}:{} {status}", http.method, span.server.port)
            }
        }
    }

    fn service(&self) -> &Arc<Service> {
        &self.service
    }

    fn is_overflow(&self) -> bool {
        self.overflow
    }
}

/// The beginning of a text that may be long.
pub(super) fn shorten(text: &str) -> &str {
    const SHOWN_BYTES: usize = 80;
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
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
