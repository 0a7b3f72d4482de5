//! Exports beside the pipeline: a snapshot now and then while the agent runs, and everything at its end.
//!
//! In: an exporter, the way to ask the pipeline, its last state. Out: nothing but requests. Refuses to know how they are
//! made.

use std::time::{Duration, SystemTime};

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{MissedTickBehavior, interval};

use super::outlet::Outlet;
use crate::export::otlp::Exporter;
use crate::web::{Command, Handle};

/// How long the end may wait for destinations.
const FLUSH: Duration = Duration::from_secs(5);

/// The task that exports metrics.
pub(super) struct Exports {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Exporter>,
}

/// Starts exporting a snapshot every `period`.
pub(super) fn start(exporter: Exporter, handle: Handle, period: Duration) -> Exports {
    let (stop, stopped) = oneshot::channel();
    Exports { stop, task: tokio::spawn(run(exporter, handle, period, stopped)) }
}

async fn run(
    mut exporter: Exporter,
    handle: Handle,
    period: Duration,
    mut stopped: oneshot::Receiver<()>,
) -> Exporter {
    if !exporter.wants_metrics() {
        // Whichever way it ends, it is time.
        let _ = stopped.await;
        return exporter;
    }
    let mut ticks = interval(period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    // The first tick is now: there is nothing yet.
    ticks.tick().await;
    loop {
        tokio::select! {
            _ = &mut stopped => return exporter,
            _ = ticks.tick() => match handle.ask(Command::Metrics).await {
                Ok(metrics) => exporter.export(&metrics.red, unix_now()),
                Err(error) => tracing::warn!(%error, "metrics not exported this time"),
            },
        }
    }
}

impl Exports {
    /// Exports the pipeline's last state and waits, not for long, until everything has been sent.
    pub(super) async fn finish(self, outlet: &mut Outlet) {
        // A task that has ended takes no message.
        let _ = self.stop.send(());
        let Ok(mut exporter) = self.task.await else { return };
        if exporter.wants_metrics() {
            exporter.export(&outlet.registry.snapshot(), unix_now());
        }
        // With the tap, the last way to queue spans is gone.
        drop(std::mem::take(&mut outlet.tap));
        exporter.finish(FLUSH).await;
    }
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
