//! Everything that ends the demo from outside: signals and the time limit.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

/// Signals are caught from the moment this is made.
pub(super) struct Stop {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
    deadline: Option<Instant>,
}

impl Stop {
    /// `seconds` from now, or never without them.
    pub(super) fn new(seconds: Option<u64>) -> anyhow::Result<Self> {
        let on = |kind| signal(kind).context("failed to listen for signals");
        Ok(Self {
            interrupt: on(SignalKind::interrupt())?,
            terminate: on(SignalKind::terminate())?,
            hang_up: on(SignalKind::hangup())?,
            deadline: seconds.and_then(|seconds| Instant::now().checked_add(Duration::from_secs(seconds))),
        })
    }

    /// Returns when the first of them happens. May be dropped and called again.
    pub(super) async fn wait(&mut self) {
        let time_is_up = async {
            match self.deadline {
                Some(deadline) => sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
            () = time_is_up => {}
        }
    }
}
