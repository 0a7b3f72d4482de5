//! What a sample is once its addresses have places, and a selection of samples once they have names.
//!
//! In: nothing; these are the types that the parts of this stage hand to each other and to exporters.
//! Everything shared is behind [`Arc`]: a stack that is sampled a thousand times exists once.

use std::sync::Arc;

use serde::Serialize;

use super::sample_type::{SampleKind, SampleType};
use crate::span::{Instance, Service};

/// One file, or part of it, mapped executable into a process; shared by the frames inside it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Mapping {
    /// First address in the process.
    pub start: u64,
    /// First address behind it.
    pub end: u64,
    /// Of `start` in the file, bytes.
    pub offset: u64,
    /// As the process sees it; `[vdso]` and the like for what is no file; empty for anonymous memory.
    pub path: Arc<str>,
    /// `NT_GNU_BUILD_ID` in hexadecimal, empty if there is none.
    pub gnu_build_id: Arc<str>,
    /// Go's own build id, empty if it is no Go program.
    pub go_build_id: Arc<str>,
    /// `process.executable.build_id.htlhash`: of the file's ends and length, in hexadecimal; empty if not readable.
    pub htlhash: Arc<str>,
}

impl Mapping {
    /// The range that a profile from elsewhere gives, as `(start, end)`. Both are 0 if no address lies in it: so do
    /// OTLP and pprof say that a range is not known, and receivers take nothing else for one.
    pub fn reported_range(start: u64, end: u64) -> (u64, u64) {
        if start < end { (start, end) } else { (0, 0) }
    }
}

/// Which kind of code a frame is in: `profile.frame.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Runtime {
    /// The kernel's.
    Kernel,
    /// Compiled ahead of time, of no more exact kind.
    #[default]
    Native,
    /// Go.
    Go,
    /// Rust, known by its mangled names.
    Rust,
    /// Compiled while running by V8 (`v8js`), as its perf map says.
    #[serde(rename = "v8js")]
    V8,
    /// By the JVM.
    Jvm,
    /// By .NET.
    Dotnet,
    /// By CPython (its perf trampolines).
    Cpython,
}

/// How well a frame is named.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Fidelity {
    /// File and line, inlined calls distinguished: from debug information or Go's tables.
    Lines,
    /// The function's name: from a symbol table, a perf map or jitdump.
    Function,
    /// Only file and address: nothing names it on this machine.
    #[default]
    Address,
    /// No frame of the program: says why the walk along the stack ended here.
    Marker,
}

/// One function of a frame; a frame has several where calls were inlined into its function.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Line {
    /// Demangled.
    pub function: Arc<str>,
    /// As in the symbol table; empty where it is the same.
    pub system_name: Arc<str>,
    /// Source file, empty if not known.
    pub file: Arc<str>,
    /// Line in it, 0 if not known.
    pub line: u32,
    /// Column, 0 if not known.
    pub column: u32,
    /// Where the function begins, 0 if not known.
    pub start_line: u32,
}

/// What a frame is called.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Symbol {
    /// The innermost inlined function first; its last is the function itself. With [`Fidelity::Address`] one that says
    /// where the function begins (`file+0x1a30`, an address in the file's own layout), or none.
    pub lines: Vec<Line>,
    /// How it is known.
    pub fidelity: Fidelity,
    /// Whose code.
    pub runtime: Runtime,
}

/// A frame, with its name.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Frame {
    /// In the process, or in the kernel; 0 for markers. Of a caller the address *behind* its call.
    pub address: u64,
    /// 1 where `address` is behind a call: what is looked up is `address - 1`.
    pub is_return: bool,
    /// What it lies in; `None` for the kernel, markers and memory that belongs to no file.
    pub mapping: Option<Arc<Mapping>>,
    /// Its name.
    pub symbol: Arc<Symbol>,
}

/// The frames of a stack, leaf first; the kernel's before the user's.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct Stack {
    /// Frames.
    pub frames: Vec<Frame>,
}

/// Whose samples: what is the same for all samples of a process.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Origin {
    /// Process in the initial namespace.
    pub pid: u32,
    /// The same as its spans'.
    pub service: Arc<Service>,
    /// The same as its spans'.
    pub instance: Arc<Instance>,
    /// File name of the executable.
    pub executable: Arc<str>,
}

/// The span that a thread was serving.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Link {
    /// Of the trace.
    pub trace_id: [u8; 16],
    /// Of the span.
    pub span_id: [u8; 8],
    /// Its route, or the method of a call; empty if it has none.
    pub route: Arc<str>,
}

/// One time that a CPU was looked at, or one event of another kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// What was measured.
    pub kind: SampleKind,
    /// How much, in the kind's unit.
    pub value: u64,
    /// Nanoseconds since the Unix epoch.
    pub time: u64,
    /// Whose.
    pub origin: Arc<Origin>,
    /// What it was doing.
    pub stack: Arc<Stack>,
    /// Thread.
    pub tid: u32,
    /// Its name.
    pub thread: Arc<str>,
    /// CPU.
    pub cpu: u32,
    /// The span, if the thread was serving one that has been reported.
    pub link: Option<Arc<Link>>,
}

/// Named samples of a time, as they are exported: sorted by time.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Selection {
    /// First moment of the time looked at, nanoseconds since the Unix epoch.
    pub start: u64,
    /// First moment behind it.
    pub end: u64,
    /// What its samples are, one type for each kind.
    pub types: Vec<SampleType>,
    /// Samples in `start..end`.
    pub samples: Vec<Sample>,
    /// Samples of that time that are not among them because they were lost, all reasons.
    pub lost: u64,
}
