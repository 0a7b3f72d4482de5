//! Kernel programs to events: loads and attaches the programs, discovers processes, reads the ring buffer.

pub mod bpf;
pub mod btf;
pub mod content;
pub mod discover;
pub mod event;
pub mod executable;
pub mod go_runtime;
pub mod guest;
pub mod hook_set;
pub mod kernel_types;
pub mod mapping;
pub mod program;
pub mod select;
pub mod stack;
pub mod support;
pub mod tls;
pub mod tracefs;
pub mod unwind;
