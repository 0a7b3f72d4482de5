//! What the requests of an event loop waited for, at any time: whether only one of them could go on.
//!
//! In: requests and calls of a thread, as they begin and end. Out: whether each of its other requests had a call out at
//! a moment, and so was not what went on then. Bounded. Pure. Refuses to know which request has made a call.
//!
//! A call may be put down as that of the wrong request. Then the right one is seen without a call for as long as the
//! call is out. So when each other request is seen with a call, all of them wait, as long as none makes several at
//! once. One that does may wait for one of them while another has come back. So once that was seen on a thread, nothing
//! is concluded there, until it was not seen for long.

use super::Recent;
use super::synchronous::Synchronous;
use std::collections::VecDeque;

/// Threads that are known at least.
const THREADS: usize = 1_024;
/// Requests of a thread that are open at once; with more, nothing is concluded.
const OPEN: usize = 1_024;
/// Requests of a thread that have ended lately.
const ENDED: usize = 256;
/// Calls of a request that are distinguished; with more, it is taken for idle.
const CALLS: usize = 64;
/// Calls that are open at once.
const CALLERS: usize = 65_536;

/// Requests and their calls, by thread.
#[derive(Debug)]
pub(super) struct Outstanding {
    threads: Recent<u32, Thread>,
    /// Of calls that are open: thread and request.
    callers: Recent<u64, (u32, u64)>,
    /// Threads whose requests have had several calls out at once.
    fans: Synchronous,
}

#[derive(Debug, Default)]
struct Thread {
    open: Vec<Request>,
    /// In the order of their ends.
    ended: VecDeque<Request>,
    /// Some were not kept.
    is_cut: bool,
    /// The end of the last that is not kept any more.
    forgotten: u64,
}

#[derive(Debug)]
struct Request {
    number: u64,
    began: u64,
    ended: Option<u64>,
    calls: Vec<Call>,
    has_fanned: bool,
}

#[derive(Debug)]
struct Call {
    number: u64,
    began: u64,
    ended: Option<u64>,
}

impl Outstanding {
    pub(super) fn new() -> Self {
        Self { threads: Recent::new(THREADS), callers: Recent::new(CALLERS), fans: Synchronous::new() }
    }

    /// Whether this thread is followed; otherwise it is from now on, with these requests open.
    pub(super) fn follow(&mut self, tid: u32, open: impl Iterator<Item = (u64, u64)>) -> bool {
        if self.threads.get(tid).is_some() {
            return true;
        }
        let mut thread = Thread::default();
        open.for_each(|(number, began)| thread.begin(number, began));
        self.threads.put(tid, thread);
        false
    }

    /// A request was read by this thread.
    pub(super) fn request_begins(&mut self, tid: u32, number: u64, at: u64) {
        if let Some(thread) = self.threads.get(tid) {
            thread.begin(number, at);
        }
    }

    pub(super) fn request_ends(&mut self, tid: u32, number: u64, at: u64) {
        let Some(thread) = self.threads.get(tid) else { return };
        if let Some(has_fanned) = thread.end(number, at) {
            self.fans.answered(tid.into(), !has_fanned);
        }
    }

    /// A request of this thread has made a call.
    pub(super) fn call_begins(&mut self, tid: u32, request: u64, (number, at): (u64, u64)) {
        let Some(thread) = self.threads.get(tid) else { return };
        if let Some(request) = thread.open.iter_mut().find(|open| open.number == request) {
            request.has_fanned |= request.waits_at(at);
            if request.calls.len() < CALLS {
                request.calls.push(Call { number, began: at, ended: None });
            }
            self.callers.put(number, (tid, request.number));
        }
    }

    pub(super) fn call_ends(&mut self, number: u64, at: u64) {
        let Some((tid, caller)) = self.callers.take(number) else { return };
        let Some(thread) = self.threads.get(tid) else { return };
        let mut requests = thread.open.iter_mut().chain(thread.ended.iter_mut());
        let request = requests.find(|request| request.number == caller);
        if let Some(call) = request.and_then(|it| it.calls.iter_mut().find(|call| call.number == number)) {
            call.ended = Some(at);
        }
    }

    /// Each request of the thread that was open then waited for a call of its own, this one aside.
    pub(super) fn all_others_wait(&mut self, tid: u32, request: u64, at: u64) -> bool {
        if self.fans.is_asynchronous(tid.into()) {
            return false;
        }
        let Some(thread) = self.threads.get(tid) else { return false };
        let lately = thread.ended.iter().rev().take_while(|request| request.ended >= Some(at));
        let mut others = thread.open.iter().chain(lately).filter(|it| it.number != request && it.began <= at);
        !thread.is_cut && thread.forgotten < at && others.all(|other| !other.has_fanned && other.waits_at(at))
    }
}

impl Thread {
    fn begin(&mut self, number: u64, began: u64) {
        if self.open.is_empty() {
            self.is_cut = false;
        }
        if self.open.len() >= OPEN {
            self.is_cut = true;
            return;
        }
        self.open.push(Request { number, began, ended: None, calls: Vec::new(), has_fanned: false });
    }

    /// Whether it has had several calls out at once.
    fn end(&mut self, number: u64, at: u64) -> Option<bool> {
        let index = self.open.iter().position(|open| open.number == number)?;
        let mut request = self.open.swap_remove(index);
        request.ended = Some(at);
        let has_fanned = request.has_fanned;
        self.ended.push_back(request);
        if self.ended.len() > ENDED {
            let last = self.ended.pop_front().and_then(|gone| gone.ended);
            self.forgotten = self.forgotten.max(last.unwrap_or_default());
        }
        Some(has_fanned)
    }
}

impl Request {
    /// A call of it was out.
    fn waits_at(&self, at: u64) -> bool {
        self.calls.iter().any(|call| call.began < at && call.ended.is_none_or(|ended| ended > at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TID: u32 = 7;

    fn followed() -> Outstanding {
        let mut outstanding = Outstanding::new();
        assert!(!outstanding.follow(TID, std::iter::empty()));
        assert!(outstanding.follow(TID, std::iter::empty()));
        outstanding
    }

    #[test]
    fn a_request_goes_on_alone_while_all_others_wait() {
        let mut outstanding = followed();
        outstanding.request_begins(TID, 1, 10);
        assert!(outstanding.all_others_wait(TID, 1, 11), "there are no others");
        outstanding.request_begins(TID, 2, 20);
        assert!(!outstanding.all_others_wait(TID, 1, 25), "2 may go on by itself");
        assert!(outstanding.all_others_wait(TID, 1, 15), "it was not there yet");
        outstanding.call_begins(TID, 2, (100, 30));
        assert!(outstanding.all_others_wait(TID, 1, 35));
        assert!(!outstanding.all_others_wait(TID, 1, 30), "its call was not sent yet");
        assert!(!outstanding.all_others_wait(TID, 2, 35), "1 has no call out");
        outstanding.call_ends(100, 40);
        assert!(outstanding.all_others_wait(TID, 1, 39));
        assert!(!outstanding.all_others_wait(TID, 1, 40));
        outstanding.request_ends(TID, 2, 50);
        assert!(!outstanding.all_others_wait(TID, 1, 45), "it has ended since");
        assert!(outstanding.all_others_wait(TID, 1, 51));
        assert!(!outstanding.all_others_wait(8, 1, 51), "a thread that is not known");
    }

    #[test]
    fn several_calls_at_once_end_all_conclusions() {
        let mut outstanding = followed();
        outstanding.request_begins(TID, 1, 10);
        outstanding.request_begins(TID, 2, 10);
        outstanding.call_begins(TID, 2, (100, 20));
        assert!(outstanding.all_others_wait(TID, 1, 25));
        outstanding.call_begins(TID, 2, (101, 30));
        assert!(!outstanding.all_others_wait(TID, 1, 35));
        outstanding.request_ends(TID, 2, 40);
        assert!(!outstanding.all_others_wait(TID, 1, 50), "also of others, later");
        for number in 3..=3_003 {
            outstanding.request_begins(TID, number, 60);
            outstanding.request_ends(TID, number, 70);
        }
        assert!(outstanding.all_others_wait(TID, 1, 80), "until it was not seen for long");
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut outstanding = followed();
        for number in 1..=2_000 {
            outstanding.request_begins(TID, number, 1);
        }
        assert!(!outstanding.all_others_wait(TID, 1, 5));
        let thread = outstanding.threads.get(TID).unwrap();
        assert_eq!((thread.open.len(), thread.is_cut), (OPEN, true));
        for number in 1..=2_000 {
            outstanding.call_begins(TID, 2, (10_000 + number, number));
            outstanding.request_ends(TID, number, number);
        }
        let thread = outstanding.threads.get(TID).unwrap();
        assert_eq!((thread.open.len(), thread.ended.len()), (0, ENDED));
        assert!(thread.ended.iter().all(|request| request.calls.len() <= CALLS));
        assert!(!outstanding.all_others_wait(TID, 1, 5), "who was open then is forgotten");
    }
}
