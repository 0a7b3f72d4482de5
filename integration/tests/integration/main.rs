//! End-to-end tests of the agent with real programs on this machine's kernel.
//!
//! They need root: a missing privilege fails them. Build the workspace first (`cargo build --workspace`).
//! `OBI_TEST_SEED` repeats a run, `OBI_BINARY` chooses the agent.

mod workload;
