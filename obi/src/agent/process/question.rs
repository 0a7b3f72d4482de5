//! Who many processes are, without waiting for each of them.
//!
//! In: pids. Out: who they are, in turn, once that is known or as long has passed as would be waited. Samples of a busy
//! machine name dozens of new processes at once; rings are not emptied while the pipeline waits.

use std::sync::Arc;
use std::time::Instant;

use super::{Directory, Identity, Notice, PATIENCE};

/// Who a process is.
#[derive(Debug, Clone, Copy)]
pub(super) struct Question {
    tgid: u32,
    /// The notice that asks, 0: it is known; `None`: there was no room for one.
    number: Option<u64>,
    /// What is known by then is the answer.
    until: Instant,
}

impl Directory {
    /// Asks who the process is; [`Self::answered`] says it.
    pub(in super::super) fn ask(&mut self, tgid: u32) {
        let is_known = self.confirmed(tgid).is_some();
        let number = if is_known { Some(0) } else { self.send(Notice::Settle { tgid }) };
        self.questions.push_back(Question { tgid, number, until: Instant::now() + PATIENCE });
    }

    /// Waits until all are answered, or for as long as one may take. Call it at the end: nothing comes back to them.
    pub(in super::super) fn await_answers(&mut self) {
        if let Some(number) = self.questions.iter().rev().find_map(|question| question.number) {
            self.wait(number);
        }
        let now = Instant::now();
        self.questions.iter_mut().for_each(|question| question.until = now);
    }

    /// The process that was asked about first, and who it is; `None` as long as that may still become known.
    pub(in super::super) fn answered(&mut self) -> Option<(u32, Arc<Identity>)> {
        let Question { tgid, number, until } = *self.questions.front()?;
        let is_answered = number.is_some_and(|number| number <= self.progress.taken());
        if !is_answered && number.is_some() && Instant::now() < until {
            return None;
        }
        self.questions.pop_front();
        self.counts.late += u64::from(!is_answered);
        let identity = self.settled(tgid).map(Arc::clone);
        Some((tgid, identity.unwrap_or_else(|| Arc::new(self.known(tgid)))))
    }
}
