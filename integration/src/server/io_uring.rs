//! A server whose socket I/O is all io_uring: no system call of its own carries the bytes.
//!
//! In: nothing. Out: a running server. Refuses to know clients.

use std::process::Command;

use super::{Features, Server};
use crate::program;
use crate::shape::{Framing, RequestFraming};

/// Starts it.
///
/// # Errors
/// When it cannot be compiled or does not get ready.
pub fn io_uring() -> anyhow::Result<Server> {
    let features = Features {
        statuses: &[200, 404, 503],
        // Its buffers are fixed.
        sizes: &[0, 1, 17, 1024, 65_536, 300_000],
        framings: &[Framing::Length],
        methods: &["GET", "HEAD"],
        request_framings: &[RequestFraming::None],
        has_clock: false,
        ..Features::full()
    };
    Server::start("io-uring", Command::new(program::c("io_uring_server", &["uring"])?), features)
}
