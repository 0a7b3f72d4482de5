//! Who receives what the agent exports, and who sends what it takes in.
//!
//! - [`receiver`]: a receiver of our own that answers as its test says: refusals, partial success, silence.
//! - [`proxy`]: a network that fails: resets, stalls, drips.
//! - [`collector`]: the real OpenTelemetry Collector; [`certificate`]: what TLS needs.
//! - [`generator`]: what SDKs of services that there are not would send.
//! - [`profile_rules`]: what must hold of every request with profiles.

pub mod certificate;
pub mod collector;
pub mod generator;
pub mod profile_rules;
pub mod proxy;
pub mod receiver;
