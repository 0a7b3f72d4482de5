//! Whether the request that a thread has read last, or that a runtime names, has caused a call.
//!
//! In: facts. Out: a verdict. Pure, and the only place where the rules stand.
//!
//! Code that serves a request from its first line to its last on one thread calls others from that thread (vPath,
//! USENIX ATC 2009). Which code is like that, nothing says but its behaviour: who reads a request answers it, and does
//! nothing else meanwhile. What waits for many things at once is not like that.

use super::evidence::{Evidence, Reason};

/// What is known once the request was answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Facts {
    /// The kernel programs mark threads that wait for many things at once.
    pub sees_waits: bool,
    /// The calling thread, by the call's head, or the one that answers, by its answer, has waited for many things at
    /// once.
    pub waits_many: bool,
    /// Threads that do so read requests in this process.
    pub is_loop: bool,
    /// The thread that calls has read the request.
    pub same_thread: bool,
    /// Another request came in before this one was answered, on its connection or by its thread.
    pub overlaps: bool,
    /// The call began while the request was open.
    pub inside: bool,
    /// The thread that has read the request has answered it.
    pub same_answerer: bool,
    /// Requests of its route have been answered by other threads than those that had read them.
    pub is_asynchronous: bool,
}

/// Nothing speaks against the request: it is the parent, by strong evidence.
///
/// # Errors
/// The first reason that speaks against it.
pub fn by_thread(facts: Facts) -> Result<(), Reason> {
    if !facts.sees_waits || facts.waits_many || facts.is_loop {
        return Err(Reason::RuntimeUnproven);
    }
    if !facts.same_thread {
        return Err(Reason::OtherThread);
    }
    if facts.overlaps {
        return Err(Reason::Ambiguous);
    }
    if !facts.inside {
        return Err(Reason::Late);
    }
    if !facts.same_answerer || facts.is_asynchronous {
        return Err(Reason::OtherThread);
    }
    Ok(())
}

/// What a runtime says of the request that a call is made for, by ids of its own: a goroutine's number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Said {
    /// It is a request of the same process.
    pub same_process: bool,
    /// The call began while the request was open.
    pub inside: bool,
    /// Who calls was started for the request, and is not who has read it.
    pub is_started: bool,
    /// Promises went on when it was made, of this request alone, as all others waited for calls of their own.
    pub is_behind: bool,
    /// What was started for requests of its route has gone on calling when they had been answered.
    pub outlives: bool,
}

/// It is the parent: the evidence is certain where the request's own reader calls. What was started for it and goes on
/// when it has been answered may work for other requests, or for none: a worker that the first request has started.
/// Where that is seen, what is started is not believed; where it was never seen, the evidence is strong.
///
/// # Errors
/// What speaks against it.
pub fn by_runtime(said: Said) -> Result<Evidence, Reason> {
    match said {
        Said { same_process: false, .. } => Err(Reason::NoContext),
        Said { inside: false, .. } => Err(Reason::Late),
        Said { is_started: true, outlives: true, .. } => Err(Reason::NoContext),
        Said { is_started: true, .. } | Said { is_behind: true, .. } => Ok(Evidence::Strong),
        Said { .. } => Ok(Evidence::Certain),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_runtime_says_holds_while_the_request_is_open() {
        const SAID: Said =
            Said { same_process: true, inside: true, is_started: false, is_behind: false, outlives: false };
        let check =
            |said, expected: Result<Evidence, Reason>| assert_eq!(by_runtime(said), expected, "{said:?}");
        check(SAID, Ok(Evidence::Certain));
        check(Said { outlives: true, ..SAID }, Ok(Evidence::Certain));
        check(Said { is_started: true, ..SAID }, Ok(Evidence::Strong));
        check(Said { is_behind: true, ..SAID }, Ok(Evidence::Strong));
        check(Said { is_behind: true, inside: false, ..SAID }, Err(Reason::Late));
        check(Said { is_started: true, outlives: true, ..SAID }, Err(Reason::NoContext));
        check(Said { inside: false, ..SAID }, Err(Reason::Late));
        check(Said { same_process: false, ..SAID }, Err(Reason::NoContext));
    }

    const ALL_WELL: Facts = Facts {
        sees_waits: true,
        waits_many: false,
        is_loop: false,
        same_thread: true,
        overlaps: false,
        inside: true,
        same_answerer: true,
        is_asynchronous: false,
    };

    #[test]
    fn one_fact_against_it_is_enough() {
        let check =
            |facts: Facts, expected: Result<(), Reason>| assert_eq!(by_thread(facts), expected, "{facts:?}");
        check(ALL_WELL, Ok(()));
        check(Facts { sees_waits: false, ..ALL_WELL }, Err(Reason::RuntimeUnproven));
        check(Facts { waits_many: true, ..ALL_WELL }, Err(Reason::RuntimeUnproven));
        check(Facts { is_loop: true, ..ALL_WELL }, Err(Reason::RuntimeUnproven));
        check(Facts { same_thread: false, ..ALL_WELL }, Err(Reason::OtherThread));
        check(Facts { overlaps: true, ..ALL_WELL }, Err(Reason::Ambiguous));
        check(Facts { inside: false, ..ALL_WELL }, Err(Reason::Late));
        check(Facts { same_answerer: false, ..ALL_WELL }, Err(Reason::OtherThread));
        check(Facts { is_asynchronous: true, ..ALL_WELL }, Err(Reason::OtherThread));
    }
}
