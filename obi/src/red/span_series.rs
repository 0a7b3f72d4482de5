//! What makes one series of `traces.span.metrics`: service, span name, kind and status.
//!
//! In: a span. Out: its [`SpanKey`] and, for a new series, owned [`SpanLabels`]. Refuses to know counts and limits.

use std::sync::Arc;

use super::series::{Dimensions, MAX_LABEL_BYTES, OTHER, shorten};
use super::table::{LabelSet, is_same};
use crate::span::{Detail, Operation, Service, Span, SpanKind, Status};

/// Labels of one span series, as OpenTelemetry's span metrics connector has them.
#[derive(Debug, Clone)]
pub struct SpanLabels {
    /// `service.name` and `service.namespace`.
    pub service: Arc<Service>,
    /// `span.name`.
    pub name: Box<str>,
    /// `span.kind`.
    pub kind: SpanKind,
    /// `status.code`.
    pub status: Status,
    /// This series stands for all that found no room (`otel.metric.overflow`).
    pub overflow: bool,
    /// Durations of these spans say something about speed; else only their number is reported.
    pub timed: bool,
    verb: &'static str,
    place: Arc<str>,
}

/// Identity of a span series. The operation makes the name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct SpanKey<'a> {
    service: u32,
    kind: SpanKind,
    status: Status,
    overflow: bool,
    timed: bool,
    verb: &'static str,
    place: &'a str,
}

impl SpanLabels {
    fn borrowed(&self) -> SpanKey<'_> {
        SpanKey {
            service: self.service.id,
            kind: self.kind,
            status: self.status,
            overflow: self.overflow,
            timed: self.timed,
            verb: self.verb,
            place: &self.place,
        }
    }
}

/// A WebSocket lasts for hours: among durations it would drown everything else.
fn is_timed(span: &Span) -> bool {
    !matches!(span.detail, Detail::WebSocket(_))
}

impl LabelSet for SpanLabels {
    type Key<'a> = SpanKey<'a>;

    fn key(&self) -> SpanKey<'_> {
        self.borrowed()
    }

    #[inline]
    fn is(&self, key: SpanKey<'_>) -> bool {
        let SpanKey { service, kind, status, overflow, timed, verb, place } = key;
        (service, kind, status) == (self.service.id, self.kind, self.status)
            && (overflow, timed) == (self.overflow, self.timed)
            && is_same(verb, self.verb)
            && is_same(place, &self.place)
    }
}

impl Dimensions for SpanLabels {
    #[inline]
    fn key_of(span: &Span) -> SpanKey<'_> {
        let Operation { verb, place } = span.detail.operation();
        SpanKey {
            service: span.service.id,
            kind: span.kind,
            status: span.status(),
            overflow: false,
            timed: is_timed(span),
            verb,
            place,
        }
    }

    fn fits(span: &Span) -> bool {
        Self::key_of(span).place.len() <= MAX_LABEL_BYTES
    }

    fn labels_of(span: &Span) -> Self {
        let Operation { verb, place } = span.detail.operation();
        Self {
            service: Arc::clone(&span.service),
            name: span.name().to_string().into(),
            kind: span.kind,
            status: span.status(),
            overflow: false,
            timed: is_timed(span),
            verb,
            place: Arc::clone(place),
        }
    }

    fn overflow_key_of(span: &Span, service: &Service) -> SpanKey<'static> {
        let (kind, status, timed) = (span.kind, span.status(), is_timed(span));
        SpanKey { service: service.id, kind, status, overflow: true, timed, verb: OTHER, place: "" }
    }

    fn overflow_labels_of(span: &Span, service: &Arc<Service>) -> Self {
        Self {
            service: Arc::clone(service),
            name: OTHER.into(),
            kind: span.kind,
            status: span.status(),
            overflow: true,
            timed: is_timed(span),
            verb: OTHER,
            place: Arc::from(""),
        }
    }

    fn describe(span: &Span) -> String {
        format!("span {}", shorten(&span.name().to_string()))
    }

    fn service(&self) -> &Arc<Service> {
        &self.service
    }

    fn is_overflow(&self) -> bool {
        self.overflow
    }
}
