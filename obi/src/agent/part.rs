//! A thread of the agent beside the pipeline, from its start to its end.
//!
//! In: its work, which ends by itself when the last sender to it is dropped. Out: the wait for that, within bounds.
//! Each part is prepared with all privileges, started with those that are left, and finished in this shape.

use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread, to be ended.
#[derive(Debug)]
pub(super) struct Running {
    thread: JoinHandle<()>,
    /// Its other end goes with the thread.
    ended: Receiver<()>,
    ending: Ending,
}

/// How a part ends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ending {
    /// How long the agent waits for it.
    pub(super) within: Duration,
    /// What is left undone when that is not enough.
    pub(super) else_left: &'static str,
    /// Whether a user loses something by it.
    pub(super) is_loss: bool,
}

/// Starts the thread `name`.
///
/// # Errors
/// When the system has no room for it.
pub(super) fn spawn(
    name: &'static str,
    ending: Ending,
    work: impl FnOnce() + Send + 'static,
) -> io::Result<Running> {
    let (alive, ended) = channel::<()>();
    let work = move || {
        work();
        drop(alive);
    };
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work)?;
    Ok(Running { thread, ended, ending })
}

impl Running {
    /// Waits for the end of the thread; the senders to it must have been dropped.
    pub(super) async fn finish(self) {
        // The wait ends in any case: no need to hold up the runtime by it.
        if tokio::task::spawn_blocking(move || self.wait()).await.is_err() {
            tracing::error!("a part of the agent could not be waited for");
        }
    }

    fn wait(self) {
        let Ending { within, else_left, is_loss } = self.ending;
        let thread = self.thread.thread().name().unwrap_or_default().to_owned();
        match self.ended.recv_timeout(within) {
            Err(RecvTimeoutError::Timeout) if is_loss => tracing::warn!(thread, ?within, "{else_left}"),
            Err(RecvTimeoutError::Timeout) => tracing::debug!(thread, ?within, "{else_left}"),
            _ if self.thread.join().is_err() => tracing::error!(thread, "a thread panicked"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Barrier};

    use super::*;

    #[tokio::test]
    async fn an_end_is_waited_for_but_not_for_ever() {
        let ending = |within| Ending { within, else_left: "nothing", is_loss: true };
        let done = Arc::new(AtomicBool::new(false));
        let work = Arc::clone(&done);
        let running =
            spawn("works", ending(Duration::from_secs(60)), move || work.store(true, Ordering::Release));
        running.unwrap().finish().await;
        assert!(done.load(Ordering::Acquire));
        // One that panics has ended, too.
        spawn("panics", ending(Duration::from_secs(60)), || panic!("as it should")).unwrap().finish().await;
        let held = Arc::new(Barrier::new(2));
        let holds = Arc::clone(&held);
        let running = spawn("hangs", ending(Duration::from_millis(1)), move || {
            holds.wait();
        });
        running.unwrap().finish().await;
        held.wait();
    }
}
