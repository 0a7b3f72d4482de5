//! Bytes of a request to spans.
//!
//! In: protobuf or JSON. Out: spans as they are shown, each with its message as it is passed on, and how many were
//! rejected and why. A span that makes no sense is rejected alone. The decoders are those of `prost` and `serde`.
//! Refuses to know connections.

use std::hash::BuildHasher as _;
use std::sync::Arc;

use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceRequest;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceRequest;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::resource::v1::Resource as SentResource;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind as SentKind;
use opentelemetry_proto::tonic::trace::v1::status::StatusCode;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, ScopeSpans, Span as Sent};
use prost::Message as _;

use super::budget::{Budget, Share};
use super::view::{Refused, Rejected};
use super::weigh::{Weight, weigh};
use super::{Batch, Format, Kind, Origin, Received, Role};
use crate::cause::Origin as Parent;
use crate::span::foreign::{Attributes, OTHER_ERROR, Request};
use crate::span::sdk::{Sdk, Value};
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
    /// The bytes.
    pub bytes: &'a [u8],
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
        let request: ExportTraceServiceRequest = match self.format {
            Format::Protobuf => {
                ExportTraceServiceRequest::decode(self.bytes).map_err(|_| Refused::Malformed)?
            }
            Format::Json => serde_json::from_slice(self.bytes).map_err(|_| Refused::Malformed)?,
        };
        let Self { host, finds_requests, .. } = *self;
        let mut taken = Taken { host, finds_requests, spans: Vec::new(), rejected: [0; Rejected::ALL.len()] };
        request.resource_spans.into_iter().for_each(|group| taken.resource(group));
        let Taken { spans, rejected, .. } = taken;
        // What stays is what is shown and what is passed on.
        share.shrink(spans.iter().map(|(it, _, message)| message.len() + size(it)).sum());
        let share = Arc::new(share);
        let spans = spans.into_iter().map(|(shown, origin, message)| {
            let Shown { span, role, request } = shown;
            let (message, _share) = (message.into(), Arc::clone(&share));
            Received { span, role, request, message, origin, _share }
        });
        Ok(Decoded { batch: Batch { spans: spans.collect() }, rejected })
    }

    /// A request with metrics or logs, checked and as protobuf, and its items; its memory counts with the share.
    ///
    /// # Errors
    /// As [`Self::spans`].
    pub fn passed(&self, kind: Kind) -> Result<(Vec<u8>, u64, Share), Refused> {
        let (weight, mut share) = self.share(kind)?;
        let malformed = |_| Refused::Malformed;
        let bad_json = |_| Refused::Malformed;
        let bytes = match (kind, self.format) {
            (Kind::Metrics, Format::Protobuf) => {
                ExportMetricsServiceRequest::decode(self.bytes).map_err(malformed)?;
                self.bytes.to_vec()
            }
            (Kind::Metrics, Format::Json) => {
                serde_json::from_slice::<ExportMetricsServiceRequest>(self.bytes)
                    .map_err(bad_json)?
                    .encode_to_vec()
            }
            (Kind::Logs, Format::Protobuf) => {
                ExportLogsServiceRequest::decode(self.bytes).map_err(malformed)?;
                self.bytes.to_vec()
            }
            (Kind::Logs, Format::Json) => serde_json::from_slice::<ExportLogsServiceRequest>(self.bytes)
                .map_err(bad_json)?
                .encode_to_vec(),
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
            Format::Protobuf => weigh(kind, self.bytes).ok_or(Refused::Malformed)?,
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
    size_of::<Received>() + particular + requests + span.trace_state.len()
}

/// Spans that are taken, and the count of the others.
struct Taken<'a> {
    host: &'a str,
    finds_requests: bool,
    spans: Vec<(Shown, Arc<Origin>, Vec<u8>)>,
    rejected: [u64; Rejected::ALL.len()],
}

impl Taken<'_> {
    fn reject(&mut self, reason: Rejected, n: usize) {
        self.rejected[reason as usize] += n as u64;
    }

    fn resource(&mut self, ResourceSpans { resource, scope_spans, schema_url }: ResourceSpans) {
        let resource = resource.unwrap_or_default();
        let encoded = resource.encode_to_vec();
        let is_of_here = text_of(&resource.attributes, "host.name") == Some(self.host);
        let n_spans = scope_spans.iter().map(|scope| scope.spans.len()).sum::<usize>();
        if encoded.len() + schema_url.len() > SPAN_BYTES {
            return self.reject(Rejected::TooLarge, n_spans);
        }
        let service = Arc::new(service(resource));
        let instance = Arc::new(Instance::default());
        for ScopeSpans { scope, spans, schema_url: scope_schema } in scope_spans {
            let scope = scope.unwrap_or_default();
            if is_of_here && scope.name == crate::span::SCOPE_NAME {
                self.reject(Rejected::Loop, spans.len());
                continue;
            }
            let origin = Arc::new(Origin {
                resource: encoded.clone(),
                resource_schema: schema_url.clone(),
                scope: scope.encode_to_vec(),
                scope_schema,
            });
            if origin.scope.len() + origin.scope_schema.len() > SPAN_BYTES {
                self.reject(Rejected::TooLarge, spans.len());
                continue;
            }
            for sent in spans {
                match fault(&sent) {
                    Some(reason) => self.reject(reason, 1),
                    None => {
                        let message = sent.encode_to_vec();
                        let request = self.finds_requests.then(|| request(&sent)).flatten();
                        let (span, role) = shown(sent, &service, &instance);
                        let shown = Shown { span, role, request: request.map(Box::new) };
                        self.spans.push((shown, Arc::clone(&origin), message));
                    }
                }
            }
        }
    }
}

/// A span as it is shown, and what it reports.
struct Shown {
    span: Span,
    role: Role,
    request: Option<Box<Request>>,
}

/// What is wrong with a span.
fn fault(sent: &Sent) -> Option<Rejected> {
    let is_id = |id: &[u8], length| id.len() == length && id.iter().any(|byte| *byte != 0);
    let is_parent = sent.parent_span_id.is_empty() || sent.parent_span_id.len() == 8;
    if !is_id(&sent.trace_id, 16) || !is_id(&sent.span_id, 8) || !is_parent {
        return Some(Rejected::Ids);
    }
    if sent.start_time_unix_nano == 0 || sent.end_time_unix_nano < sent.start_time_unix_nano {
        return Some(Rejected::Times);
    }
    (sent.encoded_len() > SPAN_BYTES).then_some(Rejected::TooLarge)
}

fn kind_of(sent: &Sent) -> (SpanKind, Role) {
    match sent.kind() {
        SentKind::Server => (SpanKind::Server, Role::Server),
        SentKind::Client => (SpanKind::Client, Role::Client),
        SentKind::Producer => (SpanKind::Client, Role::Message),
        SentKind::Consumer => (SpanKind::Server, Role::Message),
        SentKind::Internal | SentKind::Unspecified => (SpanKind::Internal, Role::Internal),
    }
}

/// The request that a span reports, if it is the end of one.
fn request(sent: &Sent) -> Option<Request> {
    let (kind, role) = kind_of(sent);
    if !matches!(role, Role::Server | Role::Client) {
        return None;
    }
    let mut attributes = Attributes::default();
    for KeyValue { key, value, .. } in &sent.attributes {
        match value.as_ref().and_then(|value| value.value.as_ref()) {
            Some(Any::StringValue(text)) => attributes.take(kind, key, AttributeValue::Str(text)),
            Some(Any::IntValue(number)) => attributes.take(kind, key, AttributeValue::Int(*number)),
            _ => {}
        }
    }
    let is_error = sent.status.as_ref().is_some_and(|status| status.code() == StatusCode::Error);
    attributes.request(kind, is_error, cut(&sent.trace_state))
}

/// A span as it is shown.
fn shown(sent: Sent, service: &Arc<Service>, instance: &Arc<Instance>) -> (Span, Role) {
    let (kind, role) = kind_of(&sent);
    let status = sent.status.unwrap_or_default();
    let is_error = status.code() == StatusCode::Error;
    let mut span = Span::blank();
    span.trace_id = array(&sent.trace_id);
    span.span_id = array(&sent.span_id);
    span.parent_span_id = Some(array(&sent.parent_span_id)).filter(|id| *id != [0; 8]);
    // Its sender's word.
    span.origin = if span.parent_span_id.is_some() { Parent::Header } else { Parent::Root };
    span.trace_flags = (sent.flags & 0xff) as u8;
    span.trace_state = cut(&sent.trace_state).into();
    (span.kind, span.start, span.end) = (kind, sent.start_time_unix_nano, sent.end_time_unix_nano);
    (span.service, span.instance) = (Arc::clone(service), Arc::clone(instance));
    span.error_type = if is_error { OTHER_ERROR } else { "" };
    span.detail = Detail::Sdk(Box::new(Sdk {
        name: cut(&sent.name).into(),
        message: shortened(status.message),
        attributes: attributes(sent.attributes),
    }));
    (span, role)
}

fn attributes(sent: Vec<KeyValue>) -> Vec<(Box<str>, Value)> {
    let shown = sent.into_iter().take(SHOWN_ATTRIBUTES);
    shown.filter_map(|KeyValue { key, value, .. }| Some((shortened(key), value_of(value?)?))).collect()
}

fn value_of(value: AnyValue) -> Option<Value> {
    Some(match value.value? {
        Any::StringValue(text) => Value::Text(shortened(text)),
        Any::BoolValue(yes) => Value::Bool(yes),
        Any::IntValue(number) => Value::Int(number),
        Any::DoubleValue(number) => Value::Text(number.to_string().into()),
        Any::BytesValue(bytes) => Value::Text(format!("{} bytes", bytes.len()).into()),
        Any::ArrayValue(list) => {
            let parts = list.values.into_iter().take(SHOWN_ATTRIBUTES).filter_map(value_of);
            let parts: Vec<String> = parts.map(|part| part.borrowed().to_string()).collect();
            Value::Text(cut(&format!("[{}]", parts.join(", "))).into())
        }
        Any::KvlistValue(list) => Value::Text(format!("{} values", list.values.len()).into()),
        _ => return None,
    })
}

/// The beginning of a text, as much of it as is shown.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(SHOWN_BYTES)]
}

/// The same of a text that is not copied where all of it is shown.
fn shortened(text: String) -> Box<str> {
    if text.len() <= SHOWN_BYTES { text.into() } else { cut(&text).into() }
}

fn array<const N: usize>(bytes: &[u8]) -> [u8; N] {
    bytes.try_into().unwrap_or([0; N])
}

fn text_of<'a>(attributes: &'a [KeyValue], name: &str) -> Option<&'a str> {
    let found = attributes.iter().find(|attribute| attribute.key == name)?;
    match found.value.as_ref()?.value.as_ref()? {
        Any::StringValue(text) => Some(text),
        _ => None,
    }
}

/// Who sent it, as it is shown.
fn service(resource: SentResource) -> Service {
    let named = |name| cut(text_of(&resource.attributes, name).unwrap_or_default()).to_owned();
    let (name, namespace) = (named("service.name"), named("service.namespace"));
    let name = if name.is_empty() { "unknown_service".to_owned() } else { name };
    let mut attributes = Resource::default();
    for (key, value) in self::attributes(resource.attributes) {
        match value {
            _ if matches!(&*key, "service.name" | "service.namespace") => {}
            Value::Text(text) => attributes.text(key.into_string(), &text),
            Value::Int(number) => attributes.int(key.into_string(), number),
            Value::Bool(yes) => attributes.text(key.into_string(), if yes { "true" } else { "false" }),
        }
    }
    // The same for the same name, so that pages show one colour.
    let hash = foldhash::quality::FixedState::default().hash_one((&namespace, &name));
    Service { id: FOREIGN_SERVICE | (hash & 0x7fff_ffff) as u32, name, namespace, attributes }
}

#[cfg(test)]
mod tests;
