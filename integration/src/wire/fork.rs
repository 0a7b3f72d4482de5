//! `fork` with a safe face.
//!
//! In: nothing. Out: which of the two processes this is. An island: all unsafe code is here.

use std::io;

/// Which process `fork` returned in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fork {
    /// The one that called it.
    Parent,
    /// The new one.
    Child,
}

/// Splits the process. Children are reaped by the kernel: no wait is needed.
///
/// # Errors
/// When the process has more than one thread (only the forking one would live on, and locks of the others would
/// stay locked), or what `fork` reports.
pub fn fork() -> io::Result<Fork> {
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    if threads != 1 {
        return Err(io::Error::other(format!("fork in a process of {threads} threads")));
    }
    // SAFETY: SIG_IGN is no handler, so nothing runs asynchronously; it makes the kernel reap children.
    unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
    // SAFETY: the process has one thread, so that memory and locks are consistent in the child.
    match unsafe { libc::fork() } {
        0 => Ok(Fork::Child),
        pid if pid > 0 => Ok(Fork::Parent),
        _ => Err(io::Error::last_os_error()),
    }
}
