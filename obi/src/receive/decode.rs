//! Bytes of a request to spans.
//!
//! In: protobuf or JSON. Out: spans as they are shown, each with its message as it is passed on, and how many were
//! rejected and why. A span that makes no sense is rejected alone. The decoders are those of `prost` and `serde`, but
//! for spans as they usually are ([`message`]). Refuses to know connections.

mod message;

use std::hash::BuildHasher as _;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::InstrumentationScope;
use opentelemetry_proto::tonic::resource::v1::Resource as SentResource;
use opentelemetry_proto::tonic::trace::v1::Span as Sent;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as SentKind;
use prost::Message;
use prost::bytes::Bytes;
use prost::encoding::{DecodeContext, WireType, decode_key, skip_field};

use self::message::{Any, Fields};
use super::budget::{Budget, Share};
use super::view::{Refused, Rejected};
use super::weigh::{Weight, weigh};
use super::{Batch, Format, Kind, Origin, Received, Role};
use crate::cause::Origin as Parent;
use crate::span::foreign::{Attributes, OTHER_ERROR, Request};
use crate::span::sdk::{Sdk, SentAttributes, Value};
use crate::span::{AttributeValue, Detail, Instance, Resource, Service, Span, SpanKind};

/// Largest span, and largest resource, in bytes of protobuf.
const SPAN_BYTES: usize = 256 << 10;
/// What is kept of attributes to be shown; everything is passed on.
const SHOWN_ATTRIBUTES: usize = 32;
const SHOWN_BYTES: usize = 512;
/// A request that a span reports, with its few short texts.
const REQUEST_BYTES: usize = size_of::<Request>() + 512;
/// Numbers of services that were not found here have this bit, so that they are apart from those that were.
const FOREIGN_SERVICE: u32 = 1 << 31;
/// An object of JSON is at most so large once decoded.
const OBJECT_BYTES: usize = 416;

/// Bytes to be decoded, and what they take.
#[derive(Debug)]
pub struct Body<'a> {
    /// The bytes. Spans that are passed on are parts of them.
    pub bytes: Bytes,
    /// How they are written.
    pub format: Format,
    /// Where memory is taken from.
    pub budget: &'a Budget,
    /// The name of this machine, by which spans of our own are known.
    pub host: &'a str,
    /// Whether requests that spans report may count, and are looked for.
    pub finds_requests: bool,
}

/// What a request with spans held.
#[derive(Debug)]
pub struct Decoded {
    /// Spans to be taken.
    pub batch: Batch,
    /// How many were not, by reason.
    pub rejected: [u64; Rejected::ALL.len()],
}

impl Body<'_> {
    /// The spans of a request.
    ///
    /// # Errors
    /// When it cannot be decoded at all, or there is no memory for it.
    pub fn spans(&self) -> Result<Decoded, Refused> {
        let mut share = self.share(Kind::Traces)?.1;
        let Self { host, finds_requests, .. } = *self;
        let source = match self.format {
            Format::Protobuf => self.bytes.clone(),
            Format::Json => {
                let request: ExportTraceServiceRequest =
                    serde_json::from_slice(&self.bytes).map_err(|_| Refused::Malformed)?;
                request.encode_to_vec().into()
            }
        };
        let (spans, rejected, names) = Default::default();
        let mut taken = Taken { host, finds_requests, source: &source, names, spans, rejected };
        taken.request(&source)?;
        let Taken { spans, rejected, .. } = taken;
        // What stays is what is shown, and the request, of which each span that is passed on is a part.
        share.shrink(source.len() + spans.iter().map(|(it, ..)| size(it)).sum::<usize>());
        let share = Arc::new(share);
        let spans = spans.into_iter().map(|(shown, origin, message)| {
            let Shown { span, role, request } = shown;
            Received { span, role, request, message, origin, _share: Arc::clone(&share) }
        });
        Ok(Decoded { batch: Batch { spans: spans.collect() }, rejected })
    }

    /// A request with metrics or logs, checked and as protobuf, and its items; its memory counts with the share.
    ///
    /// # Errors
    /// As [`Self::spans`].
    pub fn passed(&self, kind: Kind) -> Result<(Bytes, u64, Share), Refused> {
        let (weight, mut share) = self.share(kind)?;
        let malformed = |_| Refused::Malformed;
        let bad_json = |_| Refused::Malformed;
        let bytes: Bytes = match (kind, self.format) {
            (Kind::Metrics, Format::Protobuf) => {
                ExportMetricsServiceRequest::decode(&*self.bytes).map_err(malformed)?;
                self.bytes.clone()
            }
            (Kind::Metrics, Format::Json) => {
                serde_json::from_slice::<ExportMetricsServiceRequest>(&self.bytes)
                    .map_err(bad_json)?
                    .encode_to_vec()
                    .into()
            }
            (Kind::Logs, Format::Protobuf) => {
                ExportLogsServiceRequest::decode(&*self.bytes).map_err(malformed)?;
                self.bytes.clone()
            }
            (Kind::Logs, Format::Json) => serde_json::from_slice::<ExportLogsServiceRequest>(&self.bytes)
                .map_err(bad_json)?
                .encode_to_vec()
                .into(),
            (Kind::Traces, _) => return Err(Refused::Unsupported),
        };
        share.shrink(bytes.len());
        let items = match self.format {
            Format::Protobuf => weight.items,
            Format::Json => weigh(kind, &bytes).map_or(0, |weight| weight.items),
        };
        Ok((bytes, items, share))
    }

    /// Takes the memory for its decoded form.
    fn share(&self, kind: Kind) -> Result<(Weight, Share), Refused> {
        let weight = match self.format {
            Format::Protobuf => weigh(kind, &self.bytes).ok_or(Refused::Malformed)?,
            // Every message is an object, and there are texts and numbers.
            Format::Json => {
                let n_objects = self.bytes.iter().filter(|byte| **byte == b'{').count();
                Weight { items: 0, bytes: (n_objects * OBJECT_BYTES + 8 * self.bytes.len()) as u64 }
            }
        };
        // The decoded form, and its spans as they are shown and passed on.
        let wanted = usize::try_from(2 * weight.bytes).unwrap_or(usize::MAX);
        let mut share = self.budget.share();
        match self.budget.extend(&mut share, wanted) {
            true => Ok((weight, share)),
            // Never fits, or does not fit now.
            false if wanted > super::listener::BUDGET_BYTES => Err(Refused::TooLarge),
            false => Err(Refused::Busy),
        }
    }
}

fn size(Shown { span, request, .. }: &Shown) -> usize {
    let particular = if let Detail::Sdk(sdk) = &span.detail { sdk.held_bytes() } else { 0 };
    let requests = if request.is_some() { REQUEST_BYTES } else { 0 };
    size_of::<Received>() + size_of::<Span>() + particular + requests + span.trace_state.len()
}

/// Spans that are taken, and the count of the others.
struct Taken<'a> {
    host: &'a str,
    finds_requests: bool,
    /// The whole request.
    source: &'a Bytes,
    names: Recent,
    spans: Vec<(Shown, Arc<Origin>, Bytes)>,
    rejected: [u64; Rejected::ALL.len()],
}

impl Taken<'_> {
    fn reject(&mut self, reason: Rejected, n: usize) {
        self.rejected[reason as usize] += n as u64;
    }

    /// `ExportTraceServiceRequest`.
    fn request(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        contents(bytes, 1, |_, group| self.resource(group))
    }

    /// `ResourceSpans`.
    fn resource(&mut self, bytes: &[u8]) -> Result<(), Refused> {
        let (mut resource, mut schema, mut scopes) = (SentResource::default(), "", Vec::new());
        contents(bytes, 3, |number, content| {
            match number {
                1 => resource.merge(content).map_err(|_| Refused::Malformed)?,
                2 => scopes.push(content),
                _ => schema = text(content)?,
            }
            Ok(())
        })?;
        let encoded = resource.encode_to_vec();
        let is_too_large = encoded.len() + schema.len() > SPAN_BYTES;
        let is_of_here = text_of(&resource, "host.name") == Some(self.host);
        let sender = Sender {
            origin: Origin { resource: encoded, resource_schema: schema.to_owned(), ..Origin::default() },
            is_too_large,
            is_of_here,
            service: Arc::new(service(&resource)),
            instance: Arc::default(),
        };
        scopes.into_iter().try_for_each(|scope| self.scope(scope, &sender))
    }

    /// `ScopeSpans`.
    fn scope(&mut self, bytes: &[u8], sender: &Sender) -> Result<(), Refused> {
        let (mut scope, mut schema, mut spans) = (InstrumentationScope::default(), "", Vec::new());
        contents(bytes, 3, |number, content| {
            match number {
                1 => scope.merge(content).map_err(|_| Refused::Malformed)?,
                2 => spans.push(content),
                _ => schema = text(content)?,
            }
            Ok(())
        })?;
        let encoded = scope.encode_to_vec();
        if sender.is_too_large || encoded.len() + schema.len() > SPAN_BYTES {
            self.reject(Rejected::TooLarge, spans.len());
            return Ok(());
        }
        if sender.is_of_here && scope.name == crate::span::SCOPE_NAME {
            self.reject(Rejected::Loop, spans.len());
            return Ok(());
        }
        let Origin { resource, resource_schema, .. } = &sender.origin;
        let origin = Arc::new(Origin {
            resource: resource.clone(),
            resource_schema: resource_schema.clone(),
            scope: encoded,
            scope_schema: schema.to_owned(),
        });
        self.spans.reserve(spans.len());
        spans.into_iter().try_for_each(|span| self.span(span, sender, &origin))
    }

    /// `Span`.
    fn span(&mut self, bytes: &[u8], sender: &Sender, origin: &Arc<Origin>) -> Result<(), Refused> {
        let decoded;
        let fields = match Fields::read(bytes) {
            Some(fields) => fields,
            None => {
                decoded = Sent::decode(bytes).map_err(|_| Refused::Malformed)?;
                Fields::of(&decoded)
            }
        };
        let reason = fault(&fields).or((bytes.len() > SPAN_BYTES).then_some(Rejected::TooLarge));
        if let Some(reason) = reason {
            self.reject(reason, 1);
            return Ok(());
        }
        let request = self.finds_requests.then(|| request(&fields)).flatten().map(Box::new);
        let (span, role) = shown(&fields, sender, &mut self.names);
        self.spans.push((
            Shown { span: Box::new(span), role, request },
            Arc::clone(origin),
            self.source.slice_ref(bytes),
        ));
        Ok(())
    }
}

/// The last names of spans: many have the same one, and memory for each would cost as much as the rest of its text.
#[derive(Default)]
struct Recent {
    names: Vec<Arc<str>>,
    /// The one that gives way next.
    oldest: usize,
}

impl Recent {
    /// How many are looked through.
    const LENGTH: usize = 16;

    fn shared(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.iter().find(|known| ***known == *name) {
            return Arc::clone(known);
        }
        let made: Arc<str> = name.into();
        if self.names.len() < Self::LENGTH {
            self.names.push(Arc::clone(&made));
        } else {
            self.names[self.oldest] = Arc::clone(&made);
            self.oldest = (self.oldest + 1) % Self::LENGTH;
        }
        made
    }
}

/// Who sent the spans of a `ResourceSpans`.
struct Sender {
    /// Without a scope.
    origin: Origin,
    is_too_large: bool,
    is_of_here: bool,
    service: Arc<Service>,
    instance: Arc<Instance>,
}

/// Takes the content of each field up to `last`; all of them are messages or texts. Others are passed over.
fn contents<'a>(
    mut bytes: &'a [u8],
    last: u32,
    mut take: impl FnMut(u32, &'a [u8]) -> Result<(), Refused>,
) -> Result<(), Refused> {
    while !bytes.is_empty() {
        let (number, wire) = decode_key(&mut bytes).map_err(|_| Refused::Malformed)?;
        match (number <= last, wire) {
            (true, WireType::LengthDelimited) => {
                take(number, message::content(&mut bytes).ok_or(Refused::Malformed)?)?;
            }
            (true, _) => return Err(Refused::Malformed),
            (false, _) => skip_field(wire, number, &mut bytes, DecodeContext::default())
                .map_err(|_| Refused::Malformed)?,
        }
    }
    Ok(())
}

fn text(bytes: &[u8]) -> Result<&str, Refused> {
    str::from_utf8(bytes).map_err(|_| Refused::Malformed)
}

/// A span as it is shown, and what it reports.
struct Shown {
    span: Box<Span>,
    role: Role,
    request: Option<Box<Request>>,
}

/// What is wrong with a span.
fn fault(sent: &Fields<'_>) -> Option<Rejected> {
    let is_id = |id: &[u8], length| id.len() == length && id.iter().any(|byte| *byte != 0);
    let is_parent = sent.parent_span_id.is_empty() || sent.parent_span_id.len() == 8;
    if !is_id(sent.trace_id, 16) || !is_id(sent.span_id, 8) || !is_parent {
        return Some(Rejected::Ids);
    }
    (sent.start == 0 || sent.end < sent.start).then_some(Rejected::Times)
}

fn kind_of(sent: &Fields<'_>) -> (SpanKind, Role) {
    match SentKind::try_from(sent.kind).unwrap_or_default() {
        SentKind::Server => (SpanKind::Server, Role::Server),
        SentKind::Client => (SpanKind::Client, Role::Client),
        SentKind::Producer => (SpanKind::Client, Role::Message),
        SentKind::Consumer => (SpanKind::Server, Role::Message),
        SentKind::Internal | SentKind::Unspecified => (SpanKind::Internal, Role::Internal),
    }
}

/// The request that a span reports, if it is the end of one.
fn request(sent: &Fields<'_>) -> Option<Request> {
    let (kind, role) = kind_of(sent);
    if !matches!(role, Role::Server | Role::Client) {
        return None;
    }
    let mut attributes = Attributes::default();
    for (key, value) in &sent.attributes {
        match value {
            Any::Text(text) => attributes.take(kind, key, AttributeValue::Str(text)),
            Any::Int(number) => attributes.take(kind, key, AttributeValue::Int(*number)),
            _ => {}
        }
    }
    attributes.request(kind, sent.is_error(), cut(sent.trace_state))
}

/// A span as it is shown.
fn shown(sent: &Fields<'_>, sender: &Sender, names: &mut Recent) -> (Span, Role) {
    let (kind, role) = kind_of(sent);
    let mut span = Span::blank();
    span.trace_id = array(sent.trace_id);
    span.span_id = array(sent.span_id);
    span.parent_span_id = Some(array(sent.parent_span_id)).filter(|id| *id != [0; 8]);
    // Its sender's word.
    span.origin = if span.parent_span_id.is_some() { Parent::Header } else { Parent::Root };
    span.trace_flags = (sent.flags & 0xff) as u8;
    span.trace_state = cut(sent.trace_state).into();
    (span.kind, span.start, span.end) = (kind, sent.start, sent.end);
    (span.service, span.instance) = (Arc::clone(&sender.service), Arc::clone(&sender.instance));
    span.error_type = if sent.is_error() { OTHER_ERROR } else { "" };
    span.detail = Detail::Sdk(Box::new(Sdk {
        name: names.shared(cut(sent.name)),
        message: cut(sent.message).into(),
        attributes: attributes(&sent.attributes),
    }));
    (span, role)
}

fn attributes(sent: &[(&str, Any<'_>)]) -> SentAttributes {
    let shown = &sent[..sent.len().min(SHOWN_ATTRIBUTES)];
    let text_bytes = |value: &Any<'_>| if let Any::Text(text) = value { cut(text).len() } else { 0 };
    let n_bytes = shown.iter().map(|(key, value)| cut(key).len() + text_bytes(value)).sum();
    let mut attributes = SentAttributes::with_capacity(shown.len(), n_bytes);
    for (key, value) in shown {
        if let Some(value) = value.shown() {
            attributes.push(cut(key), &value);
        }
    }
    attributes
}

/// The beginning of a text, as much of it as is shown.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

fn text_of<'a>(resource: &'a SentResource, name: &str) -> Option<&'a str> {
    let found = resource.attributes.iter().find(|attribute| attribute.key == name)?;
    if let Any::Text(text) = Any::of(found.value.as_ref()) { Some(text) } else { None }
}

/// Who sent it, as it is shown.
fn service(resource: &SentResource) -> Service {
    let named = |name| cut(text_of(resource, name).unwrap_or_default()).to_owned();
    let (name, namespace) = (named("service.name"), named("service.namespace"));
    let name = if name.is_empty() { "unknown_service".to_owned() } else { name };
    let mut attributes = Resource::default();
    for attribute in resource.attributes.iter().take(SHOWN_ATTRIBUTES) {
        let key = cut(&attribute.key);
        match Any::of(attribute.value.as_ref()).shown() {
            _ if matches!(key, "service.name" | "service.namespace") => {}
            Some(Value::Text(text)) => attributes.text(key.to_owned(), &text),
            Some(Value::Int(number)) => attributes.int(key.to_owned(), number),
            Some(Value::Bool(yes)) => attributes.text(key.to_owned(), if yes { "true" } else { "false" }),
            None => {}
        }
    }
    // The same for the same name, so that pages show one colour.
    let hash = foldhash::quality::FixedState::default().hash_one((&namespace, &name));
    Service { id: FOREIGN_SERVICE | (hash & 0x7fff_ffff) as u32, name, namespace, attributes }
}

#[cfg(test)]
mod tests;
