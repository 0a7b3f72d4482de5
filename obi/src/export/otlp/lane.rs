//! A lane: one signal to one destination. Gathers payloads to requests, sends them, sends them again.
//!
//! In: payloads of its queue. Out: requests; every item ends as sent or as lost with a reason. Ends when the queue is
//! closed and empty. Refuses to know who else sends what to whom.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep, timeout, timeout_at};

use super::meter::{Lost, Meter};
use super::queue::{PAYLOAD_BYTES, Payload, Receiver, release};
use super::retry::{Answer, Backoff};
use super::spooling::{self, Spooling};
use super::transport::Transport;

/// Between two warnings of the same lane.
const QUIET: Duration = Duration::from_secs(60);
/// How long a destination is left alone that does not know the signal.
const REST: Duration = Duration::from_secs(600);

/// How requests are made.
#[derive(Debug, Clone, Copy)]
pub(super) struct Settings {
    pub(super) batch_items: u64,
    pub(super) batch_delay: Duration,
    pub(super) timeout: Duration,
    pub(super) retry_for: Duration,
}

/// A lane's state; [`Lane::run`] is its life.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) receiver: Receiver,
    pub(super) transport: Transport,
    pub(super) meter: Arc<Meter>,
    pub(super) settings: Settings,
    /// For the log.
    pub(super) name: String,
    /// Taken from the queue, but belongs to the next request.
    pub(super) left_over: Option<Payload>,
    pub(super) warned: Option<Instant>,
    /// Until when nothing is sent, and that this has been said.
    pub(super) rests: Option<Instant>,
    /// Where what the destination does not take waits.
    pub(super) spooling: Option<Spooling>,
}

impl Lane {
    /// Sends until the queue is closed and empty.
    pub(super) async fn run(mut self) {
        match self.spooling.take() {
            Some(spooling) => spooling::run(self, spooling).await,
            None => self.run_in_memory().await,
        }
    }

    async fn run_in_memory(mut self) {
        while let Some(batch) = self.next_batch().await {
            if self.is_resting() {
                self.meter.lose(Lost::Unsupported, n_items(&batch));
            } else {
                self.deliver(&batch).await;
            }
            batch.iter().for_each(|payload| release(&self.meter, payload));
        }
    }

    /// Payloads for one request: as many as fit, or as came in time. `None` at the end.
    async fn next_batch(&mut self) -> Option<Vec<Payload>> {
        let first = match self.left_over.take() {
            Some(payload) => payload,
            None => self.receiver.recv().await?,
        };
        let deadline = Instant::now() + self.settings.batch_delay;
        let (mut n_items, mut n_bytes) = (first.n_items, first.bytes.len());
        let mut batch = vec![first];
        while n_items < self.settings.batch_items {
            // At the end, or when nothing came in time, the request goes as it is.
            let Ok(Some(payload)) = timeout_at(deadline, self.receiver.recv()).await else { break };
            n_items += payload.n_items;
            n_bytes += payload.bytes.len();
            if n_items > self.settings.batch_items || n_bytes > PAYLOAD_BYTES {
                self.left_over = Some(payload);
                break;
            }
            batch.push(payload);
        }
        Some(batch)
    }

    async fn deliver(&mut self, batch: &[Payload]) {
        let n_items = n_items(batch);
        let begun = Instant::now();
        let mut backoff = Backoff::new();
        loop {
            let answer = timeout(self.settings.timeout, self.transport.send(batch, &self.meter)).await;
            let (asked, why) = match answer {
                Ok(Answer::Again(asked, why)) => (asked, why),
                Ok(answer) => return self.settle(n_items, answer),
                Err(_) => {
                    self.transport.reset();
                    (None, format!("no answer within {:?}", self.settings.timeout))
                }
            };
            let pause = backoff.pause(asked);
            if begun.elapsed().saturating_add(pause) > self.settings.retry_for {
                self.meter.lose(Lost::RetriesExhausted, n_items);
                return self.warn(&format!("{n_items} items given up: {why}"));
            }
            self.warn(&format!("trying again: {why}"));
            self.meter.retry();
            sleep(pause).await;
        }
    }

    /// Counts what an answer means for a request that is not sent again.
    pub(super) fn settle(&mut self, n_items: u64, answer: Answer) {
        match answer {
            Answer::Accepted { rejected, message } => self.accepted(n_items, rejected.min(n_items), &message),
            Answer::Unsupported(why) => {
                self.meter.lose(Lost::Unsupported, n_items);
                self.rest(&why);
            }
            Answer::Refused(why) | Answer::Again(_, why) => {
                self.meter.lose(Lost::Refused, n_items);
                self.warn(&format!("{n_items} items refused: {why}"));
            }
        }
    }

    /// Whether the destination is left alone, since it does not know the signal.
    pub(super) fn is_resting(&self) -> bool {
        self.rests.is_some_and(|until| Instant::now() < until)
    }

    fn accepted(&mut self, n_items: u64, rejected: u64, message: &str) {
        self.meter.send(n_items - rejected);
        self.meter.lose(Lost::Rejected, rejected);
        if rejected > 0 || !message.is_empty() {
            self.warn(&format!("{rejected} of {n_items} items rejected: {message}"));
        }
    }

    /// Said once: a destination seldom changes its mind.
    fn rest(&mut self, why: &str) {
        if self.rests.is_none() {
            let destination = &self.name;
            tracing::warn!(destination, "does not take this signal, asked again every {REST:?}: {why}");
        }
        self.rests = Some(Instant::now() + REST);
    }

    pub(super) fn warn(&mut self, what: &str) {
        if self.warned.is_none_or(|warned| warned.elapsed() >= QUIET) {
            self.warned = Some(Instant::now());
            tracing::warn!(destination = self.name, "{what}");
        }
    }
}

fn n_items(batch: &[Payload]) -> u64 {
    batch.iter().map(|payload| payload.n_items).sum()
}
