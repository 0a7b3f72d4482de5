//! How callers ask for samples with names.
//!
//! In: a [`Filter`]. Out: a [`Selection`], or why there is none. Refuses to know threads, and who asks what for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use thiserror::Error;
use tokio::sync::{mpsc, oneshot};

use super::choose::Filter;
use super::sample::Selection;
use super::sample_type::SampleKind;

/// How long an answer may take: functions of files that were never asked for are looked up first.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Why there is no selection.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum AskError {
    /// Nothing is sampled.
    #[error("no profiles: {0}")]
    Off(Arc<str>),
    /// Other kinds are, or those who are asked for have nothing of this kind.
    #[error("no profiles of type {name}: {reason}")]
    TypeOff {
        /// As it is asked for.
        name: &'static str,
        /// Why.
        reason: Arc<str>,
    },
    /// The answer did not come in time, or others are being made.
    #[error(
        "samples could not be named in {max} s; names that were found are kept, so asking again is faster",
        max = TIMEOUT.as_secs()
    )]
    Unanswered,
}

/// A kind that is not sampled, and why.
pub type Missing = (SampleKind, Arc<str>);

/// What a caller wants to know.
#[derive(Debug)]
pub struct Question {
    /// Which samples; times are nanoseconds since the Unix epoch.
    pub filter: Filter,
    /// Where the answer goes: a selection, or why there can be none of this type.
    pub reply: oneshot::Sender<Answer>,
}

/// What comes of a question: a selection, or why there is none of what was asked for.
pub type Answer = Result<Selection, Arc<str>>;

/// The asking end.
#[derive(Clone)]
pub struct Handle(Result<Asking, Arc<str>>);

#[derive(Clone)]
struct Asking {
    sender: mpsc::Sender<Question>,
    waker: Arc<dyn Fn() + Send + Sync>,
    missing: Arc<[Missing]>,
}

impl fmt::Debug for Handle {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let reason = self.0.as_ref().err();
        out.debug_struct("Handle").field("off", &reason).finish_non_exhaustive()
    }
}

impl Handle {
    /// `waker` makes the owner look at its channel; it must not block. Of kinds that are `missing` there is nothing.
    #[must_use]
    pub fn new(
        sender: mpsc::Sender<Question>,
        waker: Arc<dyn Fn() + Send + Sync>,
        missing: Vec<Missing>,
    ) -> Self {
        Self(Ok(Asking { sender, waker, missing: missing.into() }))
    }

    /// Nothing is sampled, for this reason.
    #[must_use]
    pub fn off(reason: &str) -> Self {
        Self(Err(reason.into()))
    }

    /// Whether there are samples to ask for.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.0.is_ok()
    }

    /// Whether there are samples of a kind to ask for.
    #[must_use]
    pub fn has(&self, kind: SampleKind) -> bool {
        self.0.as_ref().is_ok_and(|asking| asking.missing.iter().all(|(missing, _)| *missing != kind))
    }

    /// Asks and waits.
    ///
    /// # Errors
    /// When nothing is sampled, or no answer comes within [`TIMEOUT`].
    pub async fn ask(&self, filter: Filter) -> Result<Selection, AskError> {
        let asking = self.0.as_ref().map_err(|reason| AskError::Off(Arc::clone(reason)))?;
        if let Some((kind, reason)) = asking.missing.iter().find(|(missing, _)| *missing == filter.kind) {
            return Err(AskError::TypeOff { name: kind.row().name, reason: Arc::clone(reason) });
        }
        let (reply, answer) = oneshot::channel();
        let name = filter.kind.row().name;
        let exchange = async {
            asking.sender.send(Question { filter, reply }).await.map_err(|_| AskError::Unanswered)?;
            (asking.waker)();
            let answer = answer.await.map_err(|_| AskError::Unanswered)?;
            answer.map_err(|reason| AskError::TypeOff { name, reason })
        };
        tokio::time::timeout(TIMEOUT, exchange).await.unwrap_or(Err(AskError::Unanswered))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_asks_gets_an_answer_or_a_reason() {
        let reason = Handle::off("profile.enabled is false").ask(Filter::default()).await.unwrap_err();
        assert_eq!(reason.to_string(), "no profiles: profile.enabled is false");
        let (sender, mut questions) = mpsc::channel(1);
        let missing = vec![(SampleKind::OffCpu, "profile.off_cpu is off".into())];
        let handle = Handle::new(sender, Arc::new(|| ()), missing);
        assert!(handle.has(SampleKind::Cpu) && !handle.has(SampleKind::OffCpu));
        let reason = handle.ask(Filter { kind: SampleKind::OffCpu, ..Filter::default() }).await.unwrap_err();
        assert_eq!(reason.to_string(), "no profiles of type off_cpu: profile.off_cpu is off");
        let answering = tokio::spawn(async move {
            let question: Question = questions.recv().await.unwrap();
            let lost = question.filter.start;
            question.reply.send(Ok(Selection { lost, ..Selection::default() })).unwrap();
            let question: Question = questions.recv().await.unwrap();
            question.reply.send(Err("not written in Go".into())).unwrap();
        });
        let selection = handle.ask(Filter { start: 7, ..Filter::default() }).await;
        assert_eq!(selection.map(|selection| selection.lost), Ok(7));
        let reason = handle.ask(Filter { kind: SampleKind::Heap, ..Filter::default() }).await.unwrap_err();
        assert_eq!(reason.to_string(), "no profiles of type heap: not written in Go");
        answering.await.unwrap();
        assert_eq!(handle.ask(Filter::default()).await, Err(AskError::Unanswered));
    }
}
