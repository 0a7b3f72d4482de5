//! End-to-end tests of the agent with real programs on this machine's kernel.
//!
//! They need root: a missing privilege fails them. Build the workspace first (`cargo build --workspace`).
//! `OBI_TEST_SEED` repeats a run, `OBI_BINARY` chooses the agent, `OBI_HOOKS` its hook set, `OBI_TEST_SLOWNESS`
//! multiplies every time limit.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

mod access;
mod accuracy;
mod cardinality;
mod causality;
mod commands;
mod compiled_in;
mod dashboards;
mod database;
mod discovery;
mod encrypted;
mod examples;
mod failure;
mod fleet;
mod foreign;
mod gate;
mod go_tls;
mod http1;
mod join;
mod kubernetes;
mod multiplexed;
mod objective;
mod otlp;
mod overload;
mod page;
mod privilege;
mod process;
mod profile;
mod prometheus;
mod receive;
mod recording;
mod reload;
mod remote_write;
mod resource;
mod runtime_name;
mod rust_tls;
mod selection;
mod shape;
mod spool;
mod stress;
mod system_call;
mod systemd;
mod tls;
mod tls_library;
mod waiting;
mod workload;
