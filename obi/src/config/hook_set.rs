//! The sets of kernel hooks by name.
//!
//! In: nothing. Out: [`HookSet`], in the order of what an exchange costs. Refuses to know what a kernel has.

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

impl fmt::Display for HookSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}
