//! How the web asks the pipeline thread, which owns all state.
//!
//! In: a [`Command`] over a bounded channel. Out: an answer over its one-shot channel, or [`Error::Unanswered`].
//! Refuses to know what is done with the answer.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};

use super::Error;
use crate::export::Metrics;
use crate::red::{Past, Registry};
use crate::span_store::{Page, Query, Store, Trace, TraceQuery};
use crate::stats::Stats;

/// How long an answer may take.
pub const TIMEOUT: Duration = Duration::from_secs(5);

/// A question to the owner of the state.
#[derive(Debug)]
pub enum Command {
    /// All metrics.
    Metrics(oneshot::Sender<Metrics>),
    /// The last hour by service.
    Past(oneshot::Sender<Past>),
    /// Recent spans.
    Spans(Query, oneshot::Sender<Page>),
    /// Recent traces, and where to go on.
    Traces(TraceQuery, oneshot::Sender<(Vec<Trace>, u64)>),
}

/// What answers are made from, borrowed from its owner.
#[derive(Debug)]
pub struct Sources<'a> {
    /// Series.
    pub registry: &'a mut Registry,
    /// The agent about itself.
    pub stats: &'a mut Stats,
    /// Recent spans.
    pub store: &'a Store,
}

impl Command {
    /// Answers. Does nothing when the asker has gone.
    pub fn answer(self, sources: &mut Sources<'_>) {
        // A failed send means that the asker left in the meantime: no client waits for the answer.
        match self {
            Self::Metrics(reply) if !reply.is_closed() => {
                let _ = reply.send(Metrics::take(sources.registry, sources.stats));
            }
            Self::Past(reply) if !reply.is_closed() => {
                let _ = reply.send(sources.registry.past());
            }
            Self::Spans(query, reply) if !reply.is_closed() => {
                let _ = reply.send(sources.store.page(&query));
            }
            Self::Traces(query, reply) if !reply.is_closed() => {
                let _ = reply.send(sources.store.traces(&query));
            }
            Self::Metrics(_) | Self::Past(_) | Self::Spans(..) | Self::Traces(..) => {}
        }
    }
}

/// The asking end.
#[derive(Clone)]
pub struct Handle {
    sender: mpsc::Sender<Command>,
    waker: Arc<dyn Fn() + Send + Sync>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Handle").field("sender", &self.sender).finish_non_exhaustive()
    }
}

impl Handle {
    /// `waker` makes the owner look at its channel (it sleeps on the ring buffer); it must not block.
    #[must_use]
    pub fn new(sender: mpsc::Sender<Command>, waker: Arc<dyn Fn() + Send + Sync>) -> Self {
        Self { sender, waker }
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// [`Error::Unanswered`] after [`TIMEOUT`], or at once when the owner is gone.
    pub async fn ask<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Error> {
        let (reply, answer) = oneshot::channel();
        let exchange = async {
            self.sender.send(command(reply)).await.map_err(|_| Error::Unanswered)?;
            (self.waker)();
            answer.await.map_err(|_| Error::Unanswered)
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or(Err(Error::Unanswered))
    }
}
