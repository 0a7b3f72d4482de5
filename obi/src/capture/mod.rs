//! Kernel programs to events: loads and attaches the programs, discovers processes, reads the ring buffer.

pub mod discover;
pub mod event;
pub mod program;
pub mod run_time;
pub mod support;
