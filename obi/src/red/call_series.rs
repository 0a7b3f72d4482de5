//! What makes one series of `rpc.{server,client}.call.duration`: service, method, status, error.
//!
//! In: a span of a call. Out: its [`CallKey`] and, for a new series, owned [`CallLabels`]. Refuses to know counts and
//! limits.

use std::sync::Arc;

use super::series::{Dimensions, MAX_LABEL_BYTES, OTHER, shorten};
use super::table::LabelSet;
use crate::span::detail::GRPC;
use crate::span::grpc::{CODES, Code};
use crate::span::{Detail, Rpc, Service, Span, SpanKind};

/// Statuses that distinguish calls of one side when method and all else is folded: every code, none, and none with an
/// error. A code decides by itself whether it is an error.
pub(super) const STATUSES: usize = CODES + 2;

/// Labels of one series.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallLabels {
    /// `service.name` and `service.namespace`.
    pub service: Arc<Service>,
    /// Server or client: which of the two metrics.
    pub kind: SpanKind,
    /// `rpc.system.name`.
    pub system: &'static str,
    /// `rpc.method`.
    pub method: Arc<str>,
    /// `rpc.response.status_code`; empty when none came or could be read.
    pub status: &'static str,
    /// `error.type`; empty when no error.
    pub error_type: &'static str,
    /// This series stands for all that found no room (`otel.metric.overflow`).
    pub overflow: bool,
}

/// Identity of a series, borrowed from a span or from [`CallLabels`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct CallKey<'a> {
    service: u32,
    kind: SpanKind,
    overflow: bool,
    method: &'a str,
    status: &'static str,
    error_type: &'static str,
}

impl LabelSet for CallLabels {
    type Key<'a> = CallKey<'a>;

    fn key(&self) -> CallKey<'_> {
        let Self { kind, status, error_type, overflow, .. } = *self;
        CallKey { service: self.service.id, kind, overflow, method: &self.method, status, error_type }
    }

    #[inline]
    fn is(&self, key: CallKey<'_>) -> bool {
        self.key() == key
    }
}

/// The caller that records a span looks at what it is first.
fn rpc_of(span: &Span) -> Option<&Rpc> {
    match &span.detail {
        Detail::Rpc(rpc) => Some(rpc),
        Detail::Http(_) | Detail::WebSocket(_) | Detail::Database(_) | Detail::Sdk(_) => None,
    }
}

impl Dimensions for CallLabels {
    #[inline]
    fn key_of(span: &Span) -> CallKey<'_> {
        CallKey {
            service: span.service.id,
            kind: span.kind,
            overflow: false,
            method: span.detail.operation().place,
            status: rpc_of(span).and_then(|rpc| rpc.status).map_or("", Code::name),
            error_type: span.error_type,
        }
    }

    fn fits(span: &Span) -> bool {
        Self::key_of(span).method.len() <= MAX_LABEL_BYTES
    }

    fn labels_of(span: &Span) -> Self {
        let CallKey { kind, status, error_type, overflow, .. } = Self::key_of(span);
        let (service, method) = (Arc::clone(&span.service), Arc::clone(span.detail.operation().place));
        Self { service, kind, system: GRPC, method, status, error_type, overflow }
    }

    /// Statuses are few: they stay, so that every ratio by status stays exact.
    fn overflow_key_of(span: &Span, service: &Service) -> CallKey<'static> {
        let CallKey { kind, status, error_type, .. } = Self::key_of(span);
        let error_type = match (status, error_type) {
            (_, "") => "",
            ("", _) => OTHER,
            (status, _) => status,
        };
        CallKey { service: service.id, kind, overflow: true, method: OTHER, status, error_type }
    }

    fn overflow_labels_of(span: &Span, service: &Arc<Service>) -> Self {
        let CallKey { kind, status, error_type, overflow, method, .. } = Self::overflow_key_of(span, service);
        let (service, method) = (Arc::clone(service), Arc::from(method));
        Self { service, kind, system: GRPC, method, status, error_type, overflow }
    }

    fn describe(span: &Span) -> String {
        let CallKey { kind, method, status, .. } = Self::key_of(span);
        let side = match kind {
            SpanKind::Server => "server",
            SpanKind::Client | SpanKind::Internal => "client",
        };
        let status = if status.is_empty() { "no status" } else { status };
        format!("{side} {GRPC} {} {status}", shorten(method))
    }

    fn service(&self) -> &Arc<Service> {
        &self.service
    }

    fn is_overflow(&self) -> bool {
        self.overflow
    }
}
