//! Who receives what the agent exports.
//!
//! - [`receiver`]: a receiver of our own that answers as it is told: refusals, partial success, silence.
//! - [`proxy`]: a network that fails: resets, stalls, drips.
//! - [`collector`]: the real OpenTelemetry Collector; [`certificate`]: what TLS needs.

pub mod certificate;
pub mod collector;
pub mod proxy;
pub mod receiver;
