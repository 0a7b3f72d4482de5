//! The sets of kernel hooks by name.
//!
//! In: nothing. Out: [`HookSet`], in the order of what an exchange costs. Refuses to know what a kernel has.
#![forbid(unsafe_code)]

use std::fmt;

use serde::Serialize;

/// A set of kernel hooks that captures. Ordered by cost per exchange, the cheapest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum HookSet {
    /// Socket tracepoints.
    Socket,
    /// Trampolines at the entry and exit of kernel functions.
    Fentry,
    /// Breakpoints in kernel functions.
    Kprobe,
    /// Tracepoints at the exit of system calls.
    Syscall,
}

impl HookSet {
    /// All of them, the cheapest first.
    pub const ALL: [Self; 4] = [Self::Socket, Self::Fentry, Self::Kprobe, Self::Syscall];

    /// Its name in configuration, metrics and `doctor`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Syscall => "syscall",
        }
    }
}

/// What becomes of a set's usual programs on a kernel that preempts itself. The kernel skips a program of kind kprobe or
/// performance event on a processor where a thread, anybody's, was preempted in the middle of bpf(2) on a map
/// (`bpf_prog_active`), and one of any kind where it was itself preempted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Preemption {
    /// The kernel does not preempt itself.
    None,
    /// It does, but not while a program of the set runs.
    Kernel,
    /// Also while one does.
    Programs,
}

impl fmt::Display for HookSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
