//! Whether what a thread did while it had an exchange in hand was for that one.
//!
//! In: exchanges that are over, with what all together show. Out: answers, for booked times and samples of stacks.
//! Refuses to know either.

use super::decide::{Facts, by_thread};
use super::{Causes, Ended, number_of};
use crate::protocol::Side;

impl Causes {
    /// The thread that has read a request has served it from its first byte to its last, and nothing else meanwhile:
    /// the rule by which it is believed to have caused what it calls. To be asked behind [`Self::ended`].
    #[must_use]
    pub fn is_served_by_reader(&mut self, ended: &Ended<'_>) -> bool {
        let is_loop = self.loops.get(ended.begun.tgid).is_some();
        let Some(known) = self.table.get(number_of(ended)) else { return false };
        let Some(end) = known.end else { return false };
        let facts = Facts {
            sees_waits: self.sees_waits,
            waits_many: known.cause.waits_many || end.waits_many,
            is_loop,
            same_thread: true,
            overlaps: known.overlaps,
            inside: true,
            same_answerer: end.by_reader,
            is_asynchronous: self.routes.is_asynchronous(end.route),
        };
        known.side == Side::Server && by_thread(facts).is_ok()
    }

    /// The thread of this exchange had others in hand as well: a loop with several requests open, or a loop's call. So
    /// what a thread does then may be for any of them. To be asked behind [`Self::ended`].
    pub fn is_shared(&mut self, number: u64) -> bool {
        let Some(known) = self.table.get(number) else { return true };
        let is_alone = known.side == Side::Server && !known.has_company;
        !is_alone && self.loops.get(known.tgid).is_some()
    }

    /// The request that its runtime has made this call for, and goes on with when it is answered.
    #[must_use]
    pub fn continued(&self, number: u64) -> Option<u64> {
        let call = self.table.get(number).filter(|known| known.side == Side::Client)?;
        let is_believed = call.cause.by_runtime && call.refused.is_none();
        Some(call.cause.candidate).filter(|request| is_believed && *request != 0)
    }
}
