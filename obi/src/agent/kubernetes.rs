//! The thread that asks for the names of pods.
//!
//! In: the configuration, while everything can be opened. Out: the table of pods, which the thread of processes and the
//! pipeline read. It holds no capability: whatever it needs of other users' is open before it begins.

use std::io;
use std::time::Duration;

use tokio::sync::oneshot;

use super::part::{self, Ending, Running};
use crate::config::Kubernetes;
use crate::kubernetes::Pods;
use crate::kubernetes::source::Plan;
use crate::privilege;

/// How long the end of the agent waits for the thread, which may be in the middle of a message.
const ENDING: Duration = Duration::from_secs(1);

/// The thread, to be ended, and what it fills.
pub(super) struct Started {
    pub(super) pods: Pods,
    running: Running,
    /// The thread ends when it is dropped.
    stop: oneshot::Sender<()>,
    patience: Duration,
}

/// Starts asking; `None` on machines that have nothing to do with Kubernetes.
///
/// # Errors
/// When the system has no room for a thread.
pub(super) fn start(config: &Kubernetes) -> io::Result<Option<Started>> {
    let Some(plan) = Plan::new(config) else { return Ok(None) };
    let pods = Pods::default();
    plan.look_at_names(&pods);
    let patience = plan.patience();
    let (stop, stopped) = oneshot::channel::<()>();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let reported = pods.clone();
    let work = move || {
        // What comes over the network is read without privileges.
        if let Err(error) = privilege::give_up() {
            return tracing::warn!(%error, "pods are not asked for");
        }
        runtime.block_on(async {
            tokio::select! {
                _ = stopped => {}
                () = plan.run(&reported) => {}
            }
        });
        runtime.shutdown_background();
    };
    let ending = Ending { within: ENDING, else_left: "a source of pods keeps it waiting", is_loss: false };
    let running = part::spawn("kubernetes", ending, work)?;
    Ok(Some(Started { pods, running, stop, patience }))
}

impl Started {
    /// Ends the thread.
    pub(super) async fn finish(self) {
        drop(self.stop);
        self.running.finish().await;
    }

    /// Waits a little for the first answer, if one is worth it: then processes have their names at once.
    pub(super) fn wait(&self) {
        if !self.patience.is_zero() && !self.pods.wait_until_live(self.patience) {
            tracing::info!("pods are not known yet; processes are named as soon as they are");
        }
    }
}
