//! Interpreters in processes: which one, where it keeps its frames, what proves it.
//!
//! In: a file that a process maps ([`recognise`]), then that process's memory ([`examine`](Build::examine)). Out:
//! ranges of code that [`mapping`](super::mapping) marks, a [`guest`](obi_ebpf::guest) for the kernel's walk, and a
//! [`Layout`] for whoever reads names. Whatever does not prove itself switches the interpreter off for that process,
//! with a reason; the native walk never depends on it. Everything that is read is anybody's. Refuses to know names
//! and samples.
#![forbid(unsafe_code)]

pub mod memory;
mod node;
mod python;
mod symbol;

use thiserror::Error;

pub use memory::{Memory, ProcessMemory};
pub use node::{Loop, Text};
pub use python::{Build, Contexts, Known, Layout, Version};

use crate::capture::tls::elf::Source;

/// Why an interpreter's frames are not told.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// A version whose structures are not known here.
    #[error("Python {0} is not known to this agent")]
    Version(Version),
    /// It does not say which version it is.
    #[error("the file does not say which Python it is")]
    NoVersion,
    /// A symbol that is needed is missing.
    #[error("the file has no symbol `{0}`")]
    NoSymbol(&'static str),
    /// No way to a thread's state.
    #[error("the way to a thread's state is not found in the machine code")]
    NoThreadKey,
    /// This processor's way to a thread's descriptor is not known.
    #[error("Python's frames are followed on x86-64 only")]
    Processor,
    /// It has not begun yet.
    #[error("the interpreter has not begun yet")]
    NotBegun,
    /// The thread's state is not where the C library's descriptor has it.
    #[error("the key of a thread's state is {0}, beyond those in the thread's descriptor")]
    ThreadKey(u32),
    /// Its memory cannot be read.
    #[error("its memory cannot be read: {0}")]
    Memory(String),
    /// What should describe itself is something else.
    #[error("`{0}` does not look like it should")]
    Proof(&'static str),
    /// What the kernel takes for code objects are none.
    #[error("what should be code objects are none")]
    NoCode,
    /// The kernel finds no thread state that names its thread.
    #[error("threads' states do not name their threads")]
    NoThread,
    /// Too many processes.
    #[error("too many processes have interpreters")]
    Full,
    /// Reading its memory does not return.
    #[error("reading its memory takes too long")]
    Stuck,
}

/// The interpreter in a file; `None`: there is none.
#[must_use]
pub fn recognise(source: &dyn Source) -> Option<Result<Build, Unfit>> {
    python::recognise(source)
}

/// What makes and frees the contexts that CPython runs code in; `None` where that is not known.
#[must_use]
pub fn contexts(source: &dyn Source) -> Option<Contexts> {
    python::contexts(source)
}

/// Where the callbacks of Node's event loop begin; `None` where that is not known.
#[must_use]
pub fn event_loop(source: &dyn Source) -> Option<Loop> {
    node::event_loop(source)
}
