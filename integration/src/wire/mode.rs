//! Which system call moves the bytes.
//!
//! Plain data, named in plans. Refuses to know sockets.

use serde::{Deserialize, Serialize};

/// A way to read from a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReadMode {
    /// `read`.
    Read,
    /// `recv`.
    Recv,
    /// `read` with a buffer of one to seven bytes.
    Tiny,
    /// `readv` over many buffers, the first ones of a few bytes.
    Readv,
    /// `recvmsg`.
    Recvmsg,
    /// `recvmmsg` with several messages.
    Recvmmsg,
    /// `recv` with `MSG_PEEK`, then `read`.
    Peek,
    /// `recv` with `MSG_WAITALL`; only where the size is known, else `recv`.
    WaitAll,
    /// `recv` with `MSG_TRUNC`, which throws bytes away; only inside bodies, else `recv`.
    Truncate,
    /// `splice` into a pipe; only inside bodies, else `recv`.
    Splice,
}

impl ReadMode {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Read,
        Self::Recv,
        Self::Tiny,
        Self::Readv,
        Self::Recvmsg,
        Self::Recvmmsg,
        Self::Peek,
        Self::WaitAll,
        Self::Truncate,
        Self::Splice,
    ];
}

/// A way to write to a socket.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WriteMode {
    /// Everything in one `write`.
    Write,
    /// Everything in one `send`.
    Send,
    /// One `send` per piece, `MSG_MORE` on all but the last.
    More,
    /// One `writev`, cut into many small buffers.
    Writev,
    /// One `sendmsg`, a buffer per piece.
    Sendmsg,
    /// One `sendmmsg`, a message per piece.
    Sendmmsg,
    /// Heads by `write`, bodies by `sendfile`.
    Sendfile,
    /// Heads by `write`, bodies by `splice` from a pipe.
    Splice,
}

impl WriteMode {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Write,
        Self::Send,
        Self::More,
        Self::Writev,
        Self::Sendmsg,
        Self::Sendmmsg,
        Self::Sendfile,
        Self::Splice,
    ];
}
