//! Spans to payloads: gathered by process, closed when large or old.
//!
//! In: spans that are kept. Out: [`Payload`]s that are whole `ExportTraceServiceRequest`s. Encoded once, whatever the
//! number of destinations. Refuses to know queues.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::encode::Encoder;
use super::queue::Payload;
use super::resource::{self, SCHEMA_URL};
use super::sample::Kept;
use super::wire;
use crate::receive::{Origin, Received};
use crate::span::{AttributeValue, Instance, Service, Span};

/// Bytes of spans in a payload, about: far below what a request may have, so that requests are filled well.
const CHUNK_BYTES: usize = 256 << 10;
/// How long a span may lie in an unfinished payload.
const CHUNK_AGE: Duration = Duration::from_millis(200);

/// An unfinished payload.
#[derive(Debug)]
pub(super) struct Chunk {
    encoder: Encoder,
    groups: Vec<Group>,
    /// Spans that were received, by who sent them.
    foreign: Vec<(Arc<Origin>, Vec<u8>)>,
    /// The group of the last span: most come in rows.
    last: usize,
    n_items: u64,
    n_bytes: usize,
    begun: Option<Instant>,
    limit_items: u64,
}

/// Spans of one process of a service.
#[derive(Debug)]
struct Group {
    service: Arc<Service>,
    instance: Arc<Instance>,
    /// `Resource`.
    resource: Vec<u8>,
    /// `ScopeSpans.spans` fields.
    spans: Vec<u8>,
}

impl Chunk {
    /// An empty one; payloads will have at most `limit_items` spans.
    pub(super) fn new(limit_items: u64) -> Self {
        let (encoder, groups, foreign) = (Encoder::default(), Vec::new(), Vec::new());
        Self { encoder, groups, foreign, last: 0, n_items: 0, n_bytes: 0, begun: None, limit_items }
    }

    /// Whether spans that profiles may link to say so.
    pub(super) fn link_profiles(&mut self, are_linked: bool) {
        self.encoder.are_linked = are_linked;
    }

    /// Adds a span; a payload comes out when one is full.
    pub(super) fn push(&mut self, span: &Span, kept: Kept) -> Option<Payload> {
        let group = self.group(span);
        let spans = &mut self.groups[group].spans;
        let before = spans.len();
        self.encoder.append(spans, 2, span, kept);
        let n_bytes = spans.len() - before;
        self.added(n_bytes)
    }

    /// Adds a span that was received, with these attributes behind its own; as [`Self::push`].
    pub(super) fn pass(
        &mut self,
        received: &Received,
        more: &[(&str, AttributeValue<'_>)],
    ) -> Option<Payload> {
        let nth = self.foreign.iter().position(|(origin, _)| Arc::ptr_eq(origin, &received.origin));
        let nth = nth.unwrap_or_else(|| {
            let origin = &received.origin;
            self.n_bytes += origin.resource.len() + origin.scope.len();
            self.foreign.push((Arc::clone(origin), Vec::new()));
            self.foreign.len() - 1
        });
        let mut attributes = Vec::new();
        for (name, value) in more {
            match value {
                AttributeValue::Int(value) => wire::number_attribute(&mut attributes, 9, name, *value),
                value => wire::text_attribute(&mut attributes, 9, name, &value.to_string()),
            }
        }
        // A field may stand behind others of a message: so attributes are appended to bytes.
        let (_, spans) = &mut self.foreign[nth];
        let before = spans.len();
        spans.push(wire::tag(2, wire::LENGTH));
        wire::varint(spans, (received.message.len() + attributes.len()) as u64);
        spans.extend_from_slice(&received.message);
        spans.extend_from_slice(&attributes);
        let n_bytes = spans.len() - before;
        self.added(n_bytes)
    }

    fn added(&mut self, n_bytes: usize) -> Option<Payload> {
        self.n_bytes += n_bytes;
        self.n_items += 1;
        self.begun.get_or_insert_with(Instant::now);
        if self.n_items >= self.limit_items || self.n_bytes >= CHUNK_BYTES { self.close() } else { None }
    }

    /// The payload so far when its oldest span has waited long enough.
    pub(super) fn close_old(&mut self) -> Option<Payload> {
        if self.begun?.elapsed() >= CHUNK_AGE { self.close() } else { None }
    }

    /// The payload so far; `None` when there is none.
    pub(super) fn close(&mut self) -> Option<Payload> {
        self.begun.take()?;
        let mut bytes = Vec::with_capacity(self.n_bytes + 512 * self.groups.len());
        let mut scope = Vec::new();
        resource::encode_scope(&mut scope);
        for Group { resource, spans, .. } in self.groups.drain(..) {
            let schemas = [SCHEMA_URL; 2];
            Written { resource: &resource, scope: &scope, spans: &spans, schemas }.append(&mut bytes);
        }
        for (origin, spans) in self.foreign.drain(..) {
            let schemas = [&*origin.resource_schema, &*origin.scope_schema];
            let (resource, scope) = (&origin.resource, &origin.scope);
            Written { resource, scope, spans: &spans, schemas }.append(&mut bytes);
        }
        let payload = Payload::new(bytes, self.n_items);
        (self.n_items, self.n_bytes) = (0, 0);
        Some(payload)
    }

    fn group(&mut self, span: &Span) -> usize {
        let is_of = |group: &Group| {
            Arc::ptr_eq(&group.instance, &span.instance) && Arc::ptr_eq(&group.service, &span.service)
        };
        if !self.groups.get(self.last).is_some_and(is_of) {
            self.last = self.groups.iter().position(is_of).unwrap_or_else(|| {
                self.groups.push(Group::of(span));
                self.groups.len() - 1
            });
        }
        self.last
    }
}

impl Group {
    fn of(span: &Span) -> Self {
        let (service, instance) = (Arc::clone(&span.service), Arc::clone(&span.instance));
        let mut resource = Vec::new();
        resource::encode(&mut resource, span);
        Self { service, instance, resource, spans: Vec::new() }
    }
}

/// A `ResourceSpans`, its parts written already.
struct Written<'a> {
    resource: &'a [u8],
    scope: &'a [u8],
    spans: &'a [u8],
    /// Of the resource, and of the scope.
    schemas: [&'a str; 2],
}

impl Written<'_> {
    fn append(&self, out: &mut Vec<u8>) {
        let Self { resource, scope, spans, schemas: [of_resource, of_scope] } = *self;
        let scope_spans_len = field_len(scope.len()) + spans.len() + field_len(of_scope.len());
        let resource_spans_len =
            field_len(resource.len()) + field_len(scope_spans_len) + field_len(of_resource.len());
        out.push(wire::tag(1, wire::LENGTH));
        wire::varint(out, resource_spans_len as u64);
        wire::bytes(out, 1, resource);
        out.push(wire::tag(2, wire::LENGTH));
        wire::varint(out, scope_spans_len as u64);
        wire::bytes(out, 1, scope);
        out.extend_from_slice(spans);
        wire::bytes(out, 3, of_scope.as_bytes());
        wire::bytes(out, 3, of_resource.as_bytes());
    }
}

/// Bytes of a length-delimited field below 16.
fn field_len(length: usize) -> usize {
    1 + wire::varint_len(length as u64) + length
}
