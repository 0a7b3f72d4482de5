//! A service as an OTLP resource, and the scope under which everything of ours goes out.
//!
//! In: [`Service`], [`Span`]. Out: its attributes; bytes of `Resource` and `InstrumentationScope`. Refuses to know how
//! a service got its name.

use super::wire;
use crate::span::{AttributeValue, Service, Span};
pub(super) use crate::span::{SCHEMA_URL, SCOPE_NAME};

/// Version of the instrumentation scope: the agent's.
pub(super) const SCOPE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Calls `visit` with each attribute of a service's resource, each key once.
pub(super) fn attributes(service: &Service, mut visit: impl FnMut(&str, AttributeValue<'_>)) {
    identity(service, &mut visit);
    service.attributes.iter().for_each(|(key, value)| visit(key, value));
}

/// Appends the fields of the `Resource` of a span: of its service, and of the process that it comes from.
pub(super) fn encode(out: &mut Vec<u8>, span: &Span) {
    let mut append = |key: &str, value: AttributeValue<'_>| match value {
        AttributeValue::Int(value) => wire::number_attribute(out, 1, key, value),
        AttributeValue::Str(value) => wire::text_attribute(out, 1, key, value),
        AttributeValue::Bool(value) => wire::bool_attribute(out, 1, key, value),
        AttributeValue::Text(value) => wire::text_attribute(out, 1, key, &value.to_string()),
    };
    identity(&span.service, &mut append);
    span.resource().for_each(|(key, value)| append(key, value));
}

fn identity(service: &Service, visit: &mut impl FnMut(&str, AttributeValue<'_>)) {
    visit("service.name", AttributeValue::Str(&service.name));
    if !service.namespace.is_empty() {
        visit("service.namespace", AttributeValue::Str(&service.namespace));
    }
}

/// Appends the fields of the `InstrumentationScope`.
pub(super) fn encode_scope(out: &mut Vec<u8>) {
    wire::bytes(out, 1, SCOPE_NAME.as_bytes());
    wire::bytes(out, 2, SCOPE_VERSION.as_bytes());
}
