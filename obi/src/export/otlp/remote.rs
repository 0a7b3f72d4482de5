//! Remote write's place among the exports: when each destination is written to, and its queue.
//!
//! In: metrics when they are due. Out: payloads in queues. Refuses to know how requests are made and sent.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::queue::{Payload, Queue};
use crate::config::remote_write::RemoteWriteDestination;
use crate::export::Metrics;
use crate::export::prometheus::remote::{Packed, Remote};

/// One destination.
#[derive(Debug)]
pub(super) struct Writing {
    destination: RemoteWriteDestination,
    remote: Remote,
    queue: Queue,
    due: Instant,
}

impl Writing {
    /// `start` is when counting began, nanoseconds since the Unix epoch.
    pub(super) fn new(destination: &RemoteWriteDestination, start: u64, queue: Queue) -> Self {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let remote = Remote::new(destination, &host, start);
        let due = Instant::now() + destination.interval;
        Self { destination: destination.clone(), remote, queue, due }
    }

    fn is_same(&self, other: &Self) -> bool {
        self.destination.label() == other.destination.label() && self.destination.url == other.destination.url
    }

    fn push(&self, requests: Vec<Packed>) {
        for Packed { bytes, n_samples } in requests {
            self.queue.push(&Payload::new(bytes, n_samples));
        }
    }
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Writings(pub(super) Vec<Writing>);

impl Writings {
    /// When the next one is due.
    pub(super) fn due(&self) -> Option<Instant> {
        self.0.iter().map(|writing| writing.due).min()
    }

    /// Writes to those that are due, with metrics of `now` (nanoseconds since the Unix epoch).
    pub(super) fn write(&mut self, metrics: &Arc<Metrics>, now: u64) {
        let clock = Instant::now();
        for writing in self.0.iter_mut().filter(|writing| writing.due <= clock) {
            let requests = writing.remote.write(metrics, milliseconds(now));
            writing.push(requests);
            writing.put_off(clock);
        }
    }

    /// Without metrics this time.
    pub(super) fn skip(&mut self) {
        let clock = Instant::now();
        self.0.iter_mut().filter(|writing| writing.due <= clock).for_each(|writing| writing.put_off(clock));
    }

    /// Writes the last values to all, and that everything ends.
    pub(super) fn write_last(&mut self, metrics: &Arc<Metrics>, now: u64) {
        for writing in &mut self.0 {
            let requests = writing.remote.write_last(metrics, milliseconds(now));
            writing.push(requests);
        }
    }

    /// Goes on where `former` ended; destinations that are gone are sent that everything there ends.
    pub(super) fn succeed(&mut self, former: &mut Self, now: u64) {
        for writing in &mut former.0 {
            if let Some(next) = self.0.iter_mut().find(|next| next.is_same(writing)) {
                next.remote.succeed(&mut writing.remote);
                next.due = writing.due.min(next.due);
            }
            let requests = writing.remote.end(milliseconds(now));
            writing.push(requests);
        }
    }
}

impl Writing {
    /// The next time that is a multiple of the interval away.
    fn put_off(&mut self, now: Instant) {
        let interval = self.destination.interval;
        self.due += interval;
        if self.due <= now {
            self.due = now + interval;
        }
    }
}

/// How long requests to these destinations are tried.
pub(super) fn retry_for(destinations: &[RemoteWriteDestination]) -> impl Iterator<Item = Duration> {
    destinations.iter().map(|destination| destination.retry_for)
}

fn milliseconds(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds / 1_000_000).expect("a number divided by a million")
}
