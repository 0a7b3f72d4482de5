//! The capture logic of the kernel programs, compiled for the host: the same C text, run in a kernel made of
//! plain memory (`kernel.c`), so that it can be tested against truth without a kernel.
//!
//! In: segments, as a hook set would hand them over. Out: the records and counters that the agent would see.
//! Knows nothing of HTTP; [`conversation`] makes HTTP/1 for tests, [`ledger`] and [`frames`] keep the agent's
//! books.

pub mod conversation;
pub mod drive;
pub mod frames;
pub mod guest;
pub mod hotspot;
pub mod ledger;
pub mod line;
pub mod multiplex;
mod sys;
pub mod unwind;
pub mod waiting;

pub use sys::{
    Chunk, Connection, Entry, Faults, Head, Kernel, Prefix, Segment, State, first_newline, scan_chunk,
    scan_head,
};
