//! TLS libraries: which files have one, where in them the kernel programs go, who is not covered.
//!
//! In: processes that begin, and what they map. Out: attached probes; a list of what cannot be read. Refuses to know
//! what the kernel programs do with a hit.

pub mod attach;
pub mod blind;
mod code;
mod context;
pub mod elf;
pub mod file;
pub mod finder;
mod go;
mod goroutine;
mod library;
pub mod mapping;
mod nameless;
mod nginx;
mod node;
pub(crate) mod place;
pub mod point;
pub mod program;
pub mod recent_programs;
mod rustls;
mod scan_queue;
pub mod survey;
pub mod view;
