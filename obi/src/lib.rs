//! obi: zero-code eBPF auto-instrumentation and reliability metrics, one agent per machine.
//!
//! The modules stand in one order; each may use only those before it (`tests/layers.rs` has the order and checks it).
//! The stages among them follow the flow:
//!
//! ```text
//! capture ──Event──▶ protocol ──Exchange──▶ span ──Span──▶ red ──Snapshot──▶ export ─▶ web
//! ```
//!
//! - [`capture`]: kernel programs, ring buffer, discovery of processes; bytes of heads as [`capture::event::Event`].
//! - [`kubernetes`]: what the pods of this node are called, for [`span`].
//! - [`protocol`]: heads to [`protocol::Exchange`], one per request and response pair.
//! - [`span`]: exchanges to [`span::Span`], with ids, parents, routes and service names.
//! - [`red`]: spans to rate, error and duration series, aggregated once.
//! - [`profile`]: sampled stacks, named and tied to spans.
//! - [`span_store`]: recent spans, for the API and for evidence of alerts.
//! - [`export`]: encoders of a [`red::Snapshot`].
//! - [`objective`]: spans to error budgets, burn rates and alerts, beside the flow.
//! - [`web`]: `/metrics`, health, JSON API and pages, over a [`listener`].

pub mod agent;
pub mod capture;
pub mod cause;
pub mod clock;
pub mod command;
pub mod config;
pub mod counter;
pub mod export;
pub mod kubernetes;
pub mod listener;
pub mod objective;
pub mod privilege;
pub mod profile;
pub mod protocol;
pub mod receive;
pub mod red;
pub mod shutdown;
pub mod span;
pub mod span_store;
pub mod stats;
pub mod web;
