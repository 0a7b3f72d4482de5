//! A service as an OTLP resource, and the scope under which everything of ours goes out.
//!
//! In: [`Service`]. Out: its attributes; bytes of `Resource` and `InstrumentationScope`. Refuses to know how a service
//! got its name.

use super::wire;
use crate::span::Service;

/// The semantic conventions that names and values follow.
pub const SCHEMA_URL: &str = "https://opentelemetry.io/schemas/1.44.0";
/// Name of the instrumentation scope.
pub(super) const SCOPE_NAME: &str = "obi";
/// Its version: the agent's.
pub(super) const SCOPE_VERSION: &str = env!("CARGO_PKG_VERSION");

/// Calls `visit` with each attribute of a service's resource, each key once.
pub(super) fn attributes(service: &Service, mut visit: impl FnMut(&str, &str)) {
    visit("service.name", &service.name);
    if !service.namespace.is_empty() {
        visit("service.namespace", &service.namespace);
    }
    for (key, value) in &service.attributes {
        visit(key, value);
    }
}

/// Appends the fields of a `Resource`.
pub(super) fn encode(out: &mut Vec<u8>, service: &Service) {
    attributes(service, |key, value| wire::text_attribute(out, 1, key, value));
}

/// Appends the fields of the `InstrumentationScope`.
pub(super) fn encode_scope(out: &mut Vec<u8>) {
    wire::bytes(out, 1, SCOPE_NAME.as_bytes());
    wire::bytes(out, 2, SCOPE_VERSION.as_bytes());
}
