//! Interpreters in processes: which one, where it keeps its frames, what proves it.
//!
//! In: a file that a process maps ([`recognise`]), then that process's memory ([`examine`](Build::examine)). Out:
//! ranges of code that [`mapping`](super::mapping) marks, [`ForKernel`] for the kernel's walk, and a [`Layout`] for the
//! reader of names. What does not prove itself switches the interpreter off for that process, with a reason; the native
//! walk never depends on it. Everything that is read is anybody's. Refuses to know names and samples.
#![forbid(unsafe_code)]

mod greenlet;
pub mod hotspot;
pub mod memory;
mod nginx;
mod node;
pub mod python;
mod relocation;
mod symbol;
mod uvloop;
pub mod v8;

use std::ops::Range;

use obi_ebpf::{MAPPING_BUILTIN, MAPPING_EVAL, guest, jvm};
use thiserror::Error;

pub use memory::{Memory, ProcessMemory};
pub use node::{Loop, Text};
pub use python::{Contexts, Version};

use crate::capture::tls::elf::Source;

/// Kinds of interpreters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// CPython.
    Cpython,
    /// The JVM of OpenJDK.
    HotSpot,
    /// V8, as in Node.
    V8,
}

/// The interpreter in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Build {
    /// CPython.
    Cpython(python::Build),
    /// HotSpot.
    HotSpot(hotspot::Build),
    /// V8.
    V8(v8::Build),
}

/// What is needed of a process.
#[derive(Debug, Clone)]
pub struct Known {
    /// Which version.
    pub version: String,
    /// For the kernel's walk.
    pub for_kernel: ForKernel,
    /// For the thread that reads names.
    pub layout: Layout,
}

/// What the kernel's walk needs of a process; `tgid` is to be set.
#[derive(Debug, Clone, Copy)]
pub enum ForKernel {
    /// CPython's threads and frames.
    Cpython(guest),
    /// Where HotSpot has its code.
    HotSpot(jvm),
    /// How functions of V8 are recognised.
    V8(obi_ebpf::v8),
}

/// How an interpreter's functions lie in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Layout {
    /// Code objects of CPython.
    Cpython(python::Layout),
    /// Methods of HotSpot.
    HotSpot(hotspot::Layout),
    /// What functions of V8 are made of.
    V8(v8::Layout),
}

/// Why an interpreter's frames are not reported.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Unfit {
    /// A version whose structures are not known here.
    #[error("Python {0} is not known to this agent")]
    Version(Version),
    /// A version of Java whose frames are not known here.
    #[error("Java {0} is older than 11")]
    OldJava(String),
    /// It does not say which version it is.
    #[error("the file does not say which Python it is")]
    NoVersion,
    /// A symbol that is needed is missing.
    #[error("the file has no symbol `{0}`")]
    NoSymbol(&'static str),
    /// No way to a thread's state.
    #[error("the way to a thread's state is not found in the machine code")]
    NoThreadKey,
    /// This processor's way to a thread's descriptor, or what stands in a frame, is not known.
    #[error("an interpreter's frames are followed on x86-64 only")]
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
    /// It does not say where it has something that is needed.
    #[error("it does not say where it has `{0}`")]
    NoField(&'static str),
    /// What the kernel takes for functions are none.
    #[error("what should be its functions are none")]
    NoCode,
    /// The kernel finds no thread state that names its thread.
    #[error("threads' states do not name their threads")]
    NoThread,
    /// The kernel finds no frame of the JVM's code that is as expected.
    #[error("frames of its code are not as expected")]
    NoFrame,
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
    let found = python::recognise(source).map(|found| found.map(Build::Cpython));
    let found = found.or_else(|| hotspot::recognise(source).map(|found| found.map(Build::HotSpot)));
    found.or_else(|| v8::recognise(source).map(|found| found.map(Build::V8)))
}

/// What a file may be whose requests are followed by its own functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Followed {
    /// CPython, or its library.
    pub python: bool,
    /// uvloop.
    pub uvloop: bool,
    /// The module of greenlets, for CPython.
    pub greenlet: bool,
    /// Node.
    pub node: bool,
    /// nginx.
    pub nginx: bool,
}

/// By one function of each that the file exports: one walk along all names, since most files are none of these.
#[must_use]
pub fn followed(source: &dyn Source) -> Followed {
    let names = [python::EXPORTED, uvloop::EXPORTED, greenlet::EXPORTED, node::EXPORTED, nginx::EXPORTED];
    let [python, uvloop, greenlet, node, nginx] =
        symbol::addresses(source, names).unwrap_or_default().map(|address| address.is_some());
    Followed { python, uvloop, greenlet, node, nginx }
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

/// The function by which uvloop enters contexts; `None` where it is not uvloop.
#[must_use]
pub fn uvloop(source: &dyn Source) -> Option<u64> {
    uvloop::enters(source)
}

/// The function that makes greenlets; `None` where it is not their module.
#[must_use]
pub fn greenlet(source: &dyn Source) -> Option<u64> {
    greenlet::makes(source)
}

/// Where nginx sends bytes over TLS, `ngx_ssl_write(ngx_connection_t *, u_char *, size_t)`: an address in the file's
/// own layout. `None` where it is not nginx, or was built without TLS.
#[must_use]
pub fn nginx(source: &dyn Source) -> Option<u64> {
    nginx::encrypted_send(source)
}

impl Build {
    /// Which kind.
    #[must_use]
    pub fn kind(&self) -> Kind {
        match self {
            Self::Cpython(_) => Kind::Cpython,
            Self::HotSpot(_) => Kind::HotSpot,
            Self::V8(_) => Kind::V8,
        }
    }

    /// As far as the file says; else it is empty.
    #[must_use]
    pub fn version(&self) -> String {
        match self {
            Self::Cpython(build) => build.version.to_string(),
            Self::HotSpot(_) => String::new(),
            Self::V8(build) => build.version.clone(),
        }
    }

    /// What the walk and the reader of names need of a process that has this file at `bias`: its addresses less those
    /// of the file's layout.
    ///
    /// # Errors
    /// When something does not prove itself, or has not begun.
    pub fn examine(&self, memory: &dyn Memory, bias: u64) -> Result<Known, Unfit> {
        match self {
            Self::Cpython(build) => {
                let python::Known { guest, layout } = build.examine(memory, bias)?;
                let version = build.version.to_string();
                Ok(Known { version, for_kernel: ForKernel::Cpython(guest), layout: Layout::Cpython(layout) })
            }
            Self::HotSpot(build) => {
                let hotspot::Known { version, jvm, layout } = build.examine(memory, bias)?;
                Ok(Known { version, for_kernel: ForKernel::HotSpot(jvm), layout: Layout::HotSpot(layout) })
            }
            Self::V8(build) => {
                let v8::Known { v8, layout } = build.examine();
                let version = build.version.clone();
                Ok(Known { version, for_kernel: ForKernel::V8(v8), layout: Layout::V8(layout) })
            }
        }
    }

    /// What the kernel's walk is to know of this file's code, in a process that has it at `bias`, with bits of
    /// `enum mapping_flag`: where it has the program's functions beside native frames, and what V8 has made of its own.
    #[must_use]
    pub fn marked_at(&self, bias: u64) -> Vec<(Range<u64>, u32)> {
        match self {
            Self::Cpython(build) => build.eval_at(bias).map(|range| (range, MAPPING_EVAL)).collect(),
            // Its functions are frames of the machine's stack, in code without a file.
            Self::HotSpot(_) => Vec::new(),
            Self::V8(build) => vec![(build.builtins_at(bias), MAPPING_BUILTIN)],
        }
    }
}

impl ForKernel {
    /// The same of a process with this number.
    #[must_use]
    pub fn of(self, tgid: u32) -> Self {
        match self {
            Self::Cpython(guest) => Self::Cpython(guest { tgid, ..guest }),
            Self::HotSpot(jvm) => Self::HotSpot(jvm { tgid, ..jvm }),
            Self::V8(v8) => Self::V8(obi_ebpf::v8 { tgid, ..v8 }),
        }
    }
}

impl Kind {
    /// What people call its language.
    #[must_use]
    pub fn language(self) -> &'static str {
        match self {
            Self::Cpython => "Python",
            Self::HotSpot => "Java",
            Self::V8 => "JavaScript",
        }
    }
}
