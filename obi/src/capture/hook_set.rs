//! The sets of kernel hooks, and what a kernel that preempts itself makes of them.
//!
//! In: nothing. Out: [`HookSet`], as the configuration names it, and [`Preemption`]. Refuses to know what a kernel has.
#![forbid(unsafe_code)]

pub use crate::config::HookSet;

/// What becomes of a set's usual programs on a kernel that preempts itself. The kernel skips a program of kind kprobe
/// or performance event on a processor where a thread of any program was preempted in the middle of bpf(2) on a map
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
