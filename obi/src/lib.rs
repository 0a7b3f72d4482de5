//! obi: zero-code eBPF auto-instrumentation and reliability metrics, one agent per machine.
//!
//! The modules stand in flow order; a stage may use only stages to its left (`tests/layers.rs` checks it):
//!
//! ```text
//! capture ──Event──▶ protocol ──Exchange──▶ span ──Span──▶ red ──Snapshot──▶ export ─▶ web
//! ```
//!
//! - [`capture`]: kernel programs, ring buffer, discovery of processes; bytes of heads as [`capture::event::Event`].
//! - [`protocol`]: heads to [`protocol::Exchange`], one per request and response pair.
//! - [`span`]: exchanges to [`span::Span`], with ids, parents, routes and service names.
//! - [`red`]: spans to rate, error and duration series, aggregated once.
//! - [`profile`]: sampled stacks, named and tied to spans.
//! - [`export`]: encoders of a [`red::Snapshot`].
//! - [`objective`]: spans to error budgets, burn rates and alerts, beside the flow.
//! - [`web`]: the listener: `/metrics`, health, JSON API.

pub mod agent;
pub mod capture;
pub mod clock;
pub mod command;
pub mod config;
pub mod export;
pub mod objective;
pub mod privilege;
pub mod profile;
pub mod protocol;
pub mod red;
pub mod shutdown;
pub mod span;
pub mod stats;
pub mod web;
