//! Where the time of a request went.
//!
//! In: what the kernel has booked of the thread that served it, and whether that thread is believed. Out: parts that
//! add up to the span, to the nanosecond: queue wait, CPU, run queue, blocked by reason, and what is not known
//! (`elsewhere`). Of a request whose thread is not believed, as in an event loop, it is known when calls that it has
//! made were open: that counts as blocked. Refuses to know how threads are believed, and how calls find their requests.

use crate::protocol::{Exchange, Times, WAIT_REASON_NAMES};

/// Time on a CPU, ns.
pub const CPU: &str = "obi.cpu_ns";
/// Time waiting for a CPU, ns.
pub const RUNQUEUE: &str = "obi.runqueue_ns";
/// Time waiting for something else, ns.
pub const BLOCKED: &str = "obi.blocked_ns";
/// Time of which nothing is known, ns.
pub const ELSEWHERE: &str = "obi.elsewhere_ns";

/// Blocked time by reason, ns, in the order of [`WAIT_REASON_NAMES`].
pub const BLOCKED_BY: [&str; WAIT_REASON_NAMES.len()] = [
    "obi.blocked.other_ns",
    "obi.blocked.lock_ns",
    "obi.blocked.gil_ns",
    "obi.blocked.condition_ns",
    "obi.blocked.network_ns",
    "obi.blocked.poll_ns",
    "obi.blocked.disk_ns",
    "obi.blocked.file_ns",
    "obi.blocked.page_fault_ns",
    "obi.blocked.sleep_ns",
    "obi.blocked.child_ns",
];

/// Time in which calls of the request were open, where nothing else is known of it, ns: part of [`BLOCKED`].
pub const BLOCKED_BY_CALLS: &str = "obi.blocked.downstream_ns";
/// Its reason as a label.
pub const BY_CALLS: &str = "downstream";

/// The parts of a span beside its queue wait: together they are the rest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Of the one thread that has served it; `None` where it was not one thread, or nothing is known of it.
    pub times: Option<Times>,
    /// Where that is not known: calls that the request has made were open.
    pub downstream: u64,
    /// What is left.
    pub elsewhere: u64,
}

impl Spent {
    /// Of an exchange; what its thread did counts if the thread `served` it from the first byte to the last. Parts that
    /// are more than the whole cannot be right: none is taken.
    #[must_use]
    pub fn of(exchange: &Exchange<'_>, served: bool) -> Self {
        let whole = exchange.ended.saturating_sub(exchange.started);
        let fits = |times: &Times| times.sum() <= whole;
        let times = exchange.times.filter(|times| served && fits(times)).copied();
        let elsewhere = whole - times.map_or(0, |times| times.sum());
        Self { times, downstream: 0, elsewhere }
    }

    /// Calls of the request were open for so long; says nothing new where its thread is known.
    pub fn had_calls(&mut self, open: u64) {
        if self.times.is_none() {
            let open = open.min(self.elsewhere);
            self.downstream += open;
            self.elsewhere -= open;
        }
    }

    /// Waiting for something else than a CPU, whatever it was.
    #[must_use]
    pub fn blocked(&self) -> u64 {
        self.times.map_or(0, |times| times.blocked_sum()) + self.downstream
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::{Cause, Database, Endpoints, Message, Side, System};

    fn exchange(times: Option<&Times>) -> Exchange<'_> {
        Exchange {
            number: 1,
            side: Side::Server,
            tgid: 1,
            tid: 1,
            cause: Cause::default(),
            answerer: None,
            endpoints: Endpoints::Unix,
            encrypted: false,
            arrival: 100,
            started: 130,
            ended: 1_130,
            times,
            request_bytes: None,
            response_bytes: None,
            failure: None,
            message: Message::Database(Database {
                system: System::Redis,
                operation: "",
                summary: "",
                collection: "",
                text: "",
                namespace: "",
                code: "",
            }),
        }
    }

    #[test]
    fn parts_are_the_whole_whatever_is_known() {
        let mut blocked = [0; WAIT_REASON_NAMES.len()];
        blocked[4] = 300;
        let whole = Times { cpu: 500, runqueue: 200, blocked, switches: 2 };
        let part = Times { cpu: 100, ..Times::default() };
        let more = Times { cpu: 1_001, ..Times::default() };
        let check = |times: Option<&Times>, served, expected: Option<&Times>, elsewhere| {
            let spent = Spent::of(&exchange(times), served);
            assert_eq!(
                spent,
                Spent { times: expected.copied(), downstream: 0, elsewhere },
                "{times:?}, {served}"
            );
            assert_eq!(spent.times.map_or(0, |times| times.sum()) + spent.elsewhere, 1_000);
        };
        check(Some(&whole), true, Some(&whole), 0);
        check(Some(&whole), false, None, 1_000);
        check(Some(&part), true, Some(&part), 900);
        check(Some(&more), true, None, 1_000);
        check(None, true, None, 1_000);
    }

    #[test]
    fn open_calls_explain_what_no_thread_does() {
        let times = Times { cpu: 400, ..Times::default() };
        let check = |times: Option<&Times>, open: u64, expected: (u64, u64)| {
            let mut spent = Spent::of(&exchange(times), true);
            spent.had_calls(open);
            assert_eq!((spent.downstream, spent.elsewhere), expected, "{times:?} {open}");
            let cpu = spent.times.map_or(0, |times| times.cpu);
            assert_eq!(cpu + spent.blocked() + spent.elsewhere, 1_000);
        };
        check(None, 0, (0, 1_000));
        check(None, 700, (700, 300));
        check(None, 1_001, (1_000, 0));
        check(Some(&times), 700, (0, 600));
    }
}
