//! The request to stop: signals in, one flag out, for async tasks and plain threads alike.
//!
//! SIGTERM and SIGINT ask for a clean end; a second one ends the process at once, for an operator who does not wait.
#![forbid(unsafe_code)]

use std::io;

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// Whether we have been asked to stop. Clones share the request.
#[derive(Debug, Clone)]
pub struct Shutdown {
    requested: watch::Receiver<bool>,
}

/// The other end of a [`Shutdown`]: asks for it. Dropping it without asking never stops anything.
#[derive(Debug)]
pub struct Trigger {
    requested: watch::Sender<bool>,
}

impl Shutdown {
    /// A shutdown that only the trigger asks for.
    #[must_use]
    pub fn new() -> (Trigger, Self) {
        let (sender, receiver) = watch::channel(false);
        (Trigger { requested: sender }, Self { requested: receiver })
    }

    /// A shutdown on SIGTERM or SIGINT. Must be called inside a tokio runtime.
    ///
    /// # Errors
    /// When the signal handlers cannot be installed.
    pub fn on_signals() -> io::Result<Self> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let (trigger, shutdown) = Self::new();
        tokio::spawn(async move {
            let mut next = async || {
                tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                }
            };
            // Awaited outside of the log macros: they do not evaluate what they do not log.
            let first = next().await;
            tracing::info!("{first} received, shutting down");
            trigger.request();
            let second = next().await;
            tracing::warn!("{second} received again, ending at once");
            std::process::exit(1);
        });
        Ok(shutdown)
    }

    /// Whether it has been asked for; never waits.
    #[must_use]
    pub fn requested(&self) -> bool {
        *self.requested.borrow()
    }

    /// Returns when it is asked for.
    pub async fn wait(&mut self) {
        if self.requested.wait_for(|requested| *requested).await.is_err() {
            // No trigger is left that could ask.
            std::future::pending::<()>().await;
        }
    }
}

impl Trigger {
    /// Asks everyone to stop.
    pub fn request(&self) {
        self.requested.send_replace(true);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn every_clone_hears_the_request() {
        let (trigger, mut shutdown) = Shutdown::new();
        let mut other = shutdown.clone();
        assert!(!shutdown.requested());
        assert!(timeout(Duration::from_millis(20), shutdown.wait()).await.is_err());
        trigger.request();
        assert!(shutdown.requested() && other.requested());
        shutdown.wait().await;
        other.wait().await;
        drop(trigger);
        shutdown.wait().await;
    }

    #[tokio::test]
    async fn a_lost_trigger_stops_nothing() {
        let (trigger, mut shutdown) = Shutdown::new();
        drop(trigger);
        assert!(timeout(Duration::from_millis(20), shutdown.wait()).await.is_err());
        assert!(!shutdown.requested());
    }
}
