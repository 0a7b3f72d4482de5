//! One receiver of alerts: takes messages, delivers them in order, tries again until they are taken.
//!
//! In: batches over a bounded channel. Out: requests; counts. Never makes anyone wait: a slow or dead peer only fills
//! its own backlog. Refuses to know why an alert fires.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, StatusCode, Url};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use super::backlog::Backlog;
use super::body;
use crate::objective::alert::{Alert, nanos};

/// Between two tries: doubled from the first to the second.
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// How often an end that is held back is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// Bytes of an answer that are shown in the log.
const SHOWN_BYTES: usize = 200;

/// What became of the messages for one peer.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) sent: AtomicU64,
    pub(super) failed: AtomicU64,
    pub(super) dropped: AtomicU64,
    pub(super) waiting: AtomicU64,
}

/// What a peer speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// Alertmanager's API v2: every message, several in a request.
    Alertmanager,
    /// A webhook: beginnings and ends, one by one.
    Webhook,
}

/// A receiver of alerts.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) kind: Kind,
    pub(super) url: Url,
    /// For the log: without user and password.
    pub(super) name: String,
    pub(super) generator_url: String,
    pub(super) client: Client,
    pub(super) counts: Arc<Counts>,
    pub(super) messages: mpsc::Receiver<Vec<Alert>>,
}

/// What became of a request.
enum Outcome {
    Taken,
    /// It would be refused again.
    Refused(String),
    /// Worth another try.
    Failed(String),
}

impl Peer {
    /// Delivers until the other end of the channel is gone; then tries once more what is waiting.
    pub(super) async fn run(mut self) {
        let mut backlog = Backlog::default();
        let mut pause = FIRST_PAUSE;
        let mut next_try = Instant::now();
        let mut is_down = false;
        loop {
            let waiting = backlog.len() > 0;
            tokio::select! {
                biased;
                batch = self.messages.recv() => match batch {
                    Some(batch) => {
                        self.take(&mut backlog, batch);
                        continue;
                    }
                    None => {
                        self.deliver(&mut backlog).await;
                        return;
                    }
                },
                () = sleep_until(next_try), if waiting => {}
            }
            match self.deliver(&mut backlog).await {
                Some(Outcome::Failed(reason)) => {
                    if !std::mem::replace(&mut is_down, true) {
                        tracing::warn!(
                            peer = self.name,
                            reason,
                            "alerts cannot be delivered; kept, and tried again"
                        );
                    }
                    next_try = Instant::now() + pause;
                    pause = (2 * pause).min(LONGEST_PAUSE);
                }
                Some(_) => {
                    if std::mem::replace(&mut is_down, false) {
                        tracing::info!(peer = self.name, "alerts are delivered again");
                    }
                    (pause, next_try) = (FIRST_PAUSE, Instant::now());
                }
                None => next_try = Instant::now() + LOOK,
            }
        }
    }

    fn take(&self, backlog: &mut Backlog, batch: Vec<Alert>) {
        let dropped = backlog.push(batch);
        self.counts.dropped.fetch_add(dropped as u64, Ordering::Relaxed);
        self.counts.waiting.store(backlog.len() as u64, Ordering::Relaxed);
    }

    /// One request; `None` when nothing may be sent now.
    async fn deliver(&self, backlog: &mut Backlog) -> Option<Outcome> {
        let limit = if self.kind == Kind::Webhook { 1 } else { super::BATCH };
        let batch = backlog.next(unix_now(), limit);
        let body = match (self.kind, batch.as_slice()) {
            (_, []) => return None,
            (Kind::Webhook, [alert, ..]) => body::webhook(alert, &self.generator_url),
            (Kind::Alertmanager, alerts) => body::alertmanager(alerts, &self.generator_url, unix_now()),
        };
        let outcome = self.post(body).await;
        let n = batch.len() as u64;
        match &outcome {
            Outcome::Taken => {
                backlog.done(unix_now());
                self.counts.sent.fetch_add(n, Ordering::Relaxed);
            }
            Outcome::Refused(reason) => {
                tracing::error!(peer = self.name, reason, n, "alerts refused, not tried again");
                backlog.done(unix_now());
                self.counts.dropped.fetch_add(n, Ordering::Relaxed);
            }
            Outcome::Failed(_) => {
                backlog.failed();
                self.counts.failed.fetch_add(n, Ordering::Relaxed);
            }
        }
        self.counts.waiting.store(backlog.len() as u64, Ordering::Relaxed);
        Some(outcome)
    }

    async fn post(&self, body: Vec<u8>) -> Outcome {
        let request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        let answer = match request.send().await {
            Ok(answer) => answer,
            Err(error) => return Outcome::Failed(chain(&error.without_url())),
        };
        let status = answer.status();
        if status.is_success() {
            return Outcome::Taken;
        }
        let text = answer.text().await.unwrap_or_default();
        let text =
            text[..text.floor_char_boundary(SHOWN_BYTES)].split_whitespace().collect::<Vec<_>>().join(" ");
        let reason = format!("answered {status}: {text}");
        let is_refusal = status.is_client_error()
            && !matches!(
                status,
                StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::NOT_FOUND
            );
        if is_refusal { Outcome::Refused(reason) } else { Outcome::Failed(reason) }
    }
}

/// The error and what caused it, on one line.
fn chain(error: &dyn std::error::Error) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    causes.map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, nanos)
}
