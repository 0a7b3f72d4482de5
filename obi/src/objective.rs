//! Objectives of the running agent: spans to exact budgets, burn rates and alerts.
//!
//! In: spans, OpenSLO files. Out: alerts to Alertmanagers and webhooks, views for the API and the metrics, counts on disk.
//! Refuses to know how a burn rate is computed: that is the crate `slo`.
#![forbid(unsafe_code)]

pub mod alert;
pub mod classify;
pub mod evidence;
pub mod notify;
pub mod state;
