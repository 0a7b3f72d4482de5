//! What the agent reports to systemd (`Type=notify`): that it is ready, lives, reloads, stops.
//!
//! In: the pipeline's beat. Out: datagrams to `$NOTIFY_SOCKET`; without it, nothing. Refuses to know what is watched.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sd_notify::NotifyState;

/// How often within the watchdog's limit there is a look at the pipeline.
const LOOKS: u32 = 4;

/// Counts the pipeline's rounds: who sees it grow knows that the pipeline lives.
#[derive(Debug, Clone, Default)]
pub(super) struct Beat(Arc<AtomicU64>);

impl Beat {
    /// One more round.
    pub(super) fn strike(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn count(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Everything is attached and can be asked; `status` is what `systemctl status` shows.
pub(super) fn ready(status: &str) {
    tell(&[NotifyState::Ready, NotifyState::Status(status)]);
}

/// A reload has begun.
pub(super) fn reloading() {
    // With the time of its own, or systemd may take the next `READY=1` for an older one.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => tell(&[NotifyState::Reloading, now]),
        Err(error) => tracing::debug!("no monotonic time for systemd: {error}"),
    }
}

/// It is over, whatever came of it.
pub(super) fn reloaded() {
    tell(&[NotifyState::Ready]);
}

/// The end has begun.
pub(super) fn stopping() {
    tell(&[NotifyState::Stopping]);
}

/// Feeds systemd's watchdog for as long as the pipeline lives; returns at once where there is none.
pub(super) async fn keep_alive(beat: Beat) {
    if let Some(limit) = sd_notify::watchdog_enabled().filter(|limit| !limit.is_zero()) {
        feed(limit, &beat, || tell(&[NotifyState::Watchdog])).await;
    }
}

async fn feed(limit: Duration, beat: &Beat, mut tell: impl FnMut()) {
    let mut ticks = tokio::time::interval(limit / LOOKS);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut last = None;
    loop {
        ticks.tick().await;
        let count = beat.count();
        if last.replace(count) != Some(count) {
            tell();
        }
    }
}

/// A datagram into the socket's buffer: it does not wait for systemd to read it.
fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("failed to notify systemd of `{}`: {error}", states[0]);
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pipeline_that_stands_still_is_not_called_alive() {
        let (beat, reported) = (Beat::default(), Cell::new(0));
        let feeding = feed(Duration::from_secs(8), &beat, || reported.set(reported.get() + 1));
        let living = async {
            for _ in 0..5 {
                beat.strike();
                tokio::time::sleep(Duration::from_secs(2)).await;
            }
            let alive = reported.get();
            tokio::time::sleep(Duration::from_secs(60)).await;
            (alive, reported.get())
        };
        let (alive, later) = tokio::select! {
            // Of two that are due at the same moment the beat comes first.
            biased;
            counts = living => counts,
            () = feeding => unreachable!("it feeds for ever"),
        };
        assert_eq!(alive, 5);
        assert_eq!(later, alive, "it stood still for a minute");
    }
}
