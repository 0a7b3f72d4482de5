//! Where the time of a request went.
//!
//! In: what the kernel has booked of the thread that served it, and whether that thread is believed. Out: parts that
//! add up to the span, to the nanosecond: queue wait, CPU, run queue, blocked by reason, and what is not known
//! (`elsewhere`). Refuses to know how threads are believed.

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

/// The parts of a span beside its queue wait: together they are the rest of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Spent {
    /// Of the one thread that has served it; `None` where it was not one thread, or nothing is known of it.
    pub times: Option<Times>,
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
        Self { times, elsewhere }
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
            assert_eq!(spent, Spent { times: expected.copied(), elsewhere }, "{times:?}, {served}");
            assert_eq!(spent.times.map_or(0, |times| times.sum()) + spent.elsewhere, 1_000);
        };
        check(Some(&whole), true, Some(&whole), 0);
        check(Some(&whole), false, None, 1_000);
        check(Some(&part), true, Some(&part), 900);
        check(Some(&more), true, None, 1_000);
        check(None, true, None, 1_000);
    }
}
