//! Spans to OTLP bytes, without an intermediate tree.
//!
//! In: a [`Span`] and its sampling threshold. Out: one `Span` message of `opentelemetry/proto/trace/v1/trace.proto`.
//! Refuses to know resources, batches and where they go.

use std::fmt::Write as _;

use super::sample::{Kept, trace_state};
use super::wire;
use crate::span::{AttributeValue, Detail, Http, Span, SpanKind, Status};

/// Bits 8 and 9 of `flags`: whether the parent is in another process is known; it is.
const FLAG_HAS_IS_REMOTE: u32 = 0x100;
const FLAG_IS_REMOTE: u32 = 0x200;
/// By which Grafana finds the profile of a span: the id that its samples have as label `span_id`.
const PROFILE_ID: &str = "pyroscope.profile.id";
/// `Status.code` of an error.
const STATUS_ERROR: u64 = 2;

/// Writes spans; its buffers go round.
#[derive(Debug, Default)]
pub(super) struct Encoder {
    message: Vec<u8>,
    status: Vec<u8>,
    text: String,
    /// Spans that profiles may link to say so.
    pub(super) are_linked: bool,
}

impl Encoder {
    /// Appends `span` as a length-delimited field of number `field`.
    pub(super) fn append(&mut self, out: &mut Vec<u8>, field: u8, span: &Span, kept: Kept) {
        let Self { message, status, text, are_linked } = self;
        message.clear();
        wire::bytes(message, 1, &span.trace_id);
        wire::bytes(message, 2, &span.span_id);
        let state = trace_state(&span.trace_state, kept, text);
        wire::bytes_unless_empty(message, 3, state.as_bytes());
        if let Some(parent) = &span.parent_span_id {
            wire::bytes(message, 4, parent);
        }
        // Writing to a string cannot fail, here and below.
        let _ = write!(cleared(text), "{}", span.name());
        wire::bytes(message, 5, text.as_bytes());
        wire::number(message, 6, kind(span.kind));
        wire::fixed64(message, 7, span.start);
        // A clock that was set back in between must not make an end before the start.
        wire::fixed64(message, 8, span.end.max(span.start));
        span.attributes(|name, value| match value {
            AttributeValue::Str(value) => wire::text_attribute(message, 9, name, value),
            AttributeValue::Int(value) => wire::number_attribute(message, 9, name, value),
            AttributeValue::Bool(value) => wire::bool_attribute(message, 9, name, value),
            AttributeValue::Text(value) => {
                let _ = cleared(text).write_fmt(value);
                wire::text_attribute(message, 9, name, text);
            }
        });
        if *are_linked && may_be_profiled(span) {
            let id = u64::from_be_bytes(span.span_id);
            let _ = write!(cleared(text), "{id:016x}");
            wire::text_attribute(message, 9, PROFILE_ID, text);
        }
        if span.status() == Status::Error {
            status.clear();
            wire::bytes_unless_empty(status, 2, span.status_message().as_bytes());
            wire::number(status, 3, STATUS_ERROR);
            wire::bytes(message, 15, status);
        }
        // Field 16, fixed32: its tag is two bytes long.
        message.extend_from_slice(&[0x85, 0x01]);
        message.extend_from_slice(&flags(span).to_le_bytes());
        wire::bytes(out, field, message);
    }
}

/// Whether samples can belong to it: they do to what a thread has read, and only a request over HTTP/1 is read by the
/// thread that serves it.
fn may_be_profiled(span: &Span) -> bool {
    let is_plain = |http: &Http| matches!(http.version, "1.0" | "1.1");
    span.kind == SpanKind::Server && matches!(&span.detail, Detail::Http(http) if is_plain(http))
}

fn cleared(text: &mut String) -> &mut String {
    text.clear();
    text
}

/// `SpanKind` of the protocol.
fn kind(kind: SpanKind) -> u64 {
    match kind {
        SpanKind::Server => 2,
        SpanKind::Client => 3,
        SpanKind::Internal => 1,
    }
}

fn flags(span: &Span) -> u32 {
    let remote = if span.parent_span_id.is_some() { FLAG_IS_REMOTE } else { 0 };
    u32::from(span.trace_flags) | FLAG_HAS_IS_REMOTE | remote
}
