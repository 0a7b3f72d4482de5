//! Workloads of gRPC: calls of every kind, whose identity is the trace id that they carry.
//!
//! In reading order:
//!
//! - [`plan`]: one call, what its ends report.
//! - [`peer`]: servers and clients in several languages.
//! - [`ledger`]: what happened against what the agent says.

pub mod ledger;
pub mod peer;
pub mod plan;
