//! Sockets at the level of single system calls, so that a workload can produce every oddity exactly.
//!
//! In: bytes and the system call to move them with. Out: bytes. Refuses to know HTTP (but see [`message`]).
//!
//! - [`mode`]: which system call reads or writes.
//! - [`stream`]: one connected socket.
//! - [`listener`]: one listening socket.
//! - [`message`]: heads and bodies over a stream.
//! - [`sockmap`]: sockets whose functions are replaced.
//! - [`multiple`], [`fork`]: the islands of unsafe code.

pub mod fork;
pub mod listener;
pub mod message;
pub mod mode;
pub mod multiple;
pub mod sockmap;
pub mod stream;

pub use listener::Listener;
pub use message::{Body, Connection};
pub use mode::{ReadMode, WriteMode};
pub use stream::{Outgoing, Stream};

/// `CLOCK_MONOTONIC`, nanoseconds.
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    let seconds = u64::try_from(now.tv_sec).expect("the monotonic clock is never negative");
    seconds * 1_000_000_000 + u64::try_from(now.tv_nsec).expect("nanoseconds are never negative")
}
