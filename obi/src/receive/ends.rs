//! Which two received spans are the ends of one call.
//!
//! In: spans of requests that count, time. Out: pairs, and ends whose other one did not come. A server's span names its
//! caller's span as its parent, in the same trace. Refuses to know who counts edges; time is an argument.

use std::collections::VecDeque;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::span::{Detail, Span, SpanKind};

/// An end waits so long for the other one, ns: SDKs send what they have every five seconds.
const WAITS: u64 = 12_000_000_000;
/// Ends that wait; beyond, the first goes.
const ENDS: usize = 8_192;

/// The call that a span is one end of: its trace, and the id of the client's span.
type Key = ([u8; 16], [u8; 8]);

/// One end.
#[derive(Debug)]
pub struct End {
    /// Its span.
    pub span: Box<Span>,
    /// Calls that it stands for.
    pub times: u32,
}

/// What is known of a call.
#[derive(Debug)]
pub enum Call {
    /// Both ends: the client's and the server's.
    Both(End, End),
    /// A client's, whose server has sent nothing.
    Client(End),
    /// A server's, whose client has sent nothing.
    Server(End),
}

type Waiting = HashMap<(Key, SpanKind), (u64, End), RandomState>;

/// Ends that wait. Owned by one task.
#[derive(Debug, Default)]
pub struct Ends {
    waiting: Waiting,
    /// Until when, in that order; of an end that is gone or has been replaced, the number is another.
    order: VecDeque<(u64, u64, Key, SpanKind)>,
    next: u64,
}

impl Ends {
    /// Takes an end. What begins a trace, or calls a database, has no other one.
    pub fn take(&mut self, end: End, now: u64, mut known: impl FnMut(Call)) {
        let span = &end.span;
        let (kind, is_database) = (span.kind, matches!(span.detail, Detail::Database(_)));
        let (own, other) = match (kind, span.parent_span_id) {
            (SpanKind::Client, _) if is_database => return known(Call::Client(end)),
            (SpanKind::Client, _) => (span.span_id, SpanKind::Server),
            (SpanKind::Server, Some(parent)) => (parent, SpanKind::Client),
            (SpanKind::Server, None) => return known(Call::Server(end)),
            (SpanKind::Internal, _) => return,
        };
        let key = (span.trace_id, own);
        if let Some((_, found)) = self.waiting.remove(&(key, other)) {
            let (client, server) = if kind == SpanKind::Client { (end, found) } else { (found, end) };
            return known(Call::Both(client, server));
        }
        self.next += 1;
        self.order.push_back((now + WAITS, self.next, key, kind));
        // A repeated id: the former one waits no more.
        if let Some((_, former)) = self.waiting.insert((key, kind), (self.next, end)) {
            known(alone(former));
        }
        if self.waiting.len() > ENDS {
            self.let_go(|_, n_waiting| n_waiting > ENDS, &mut known);
        }
        if self.order.len() > 2 * ENDS {
            let Self { waiting, order, .. } = self;
            order.retain(|(_, number, key, kind)| is_current(waiting, *number, (*key, *kind)));
        }
    }

    /// Lets go of what has waited until `now`.
    pub fn tick(&mut self, now: u64, mut known: impl FnMut(Call)) {
        self.let_go(|due, _| due <= now, &mut known);
    }

    /// Ends that wait.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    fn let_go(&mut self, goes: impl Fn(u64, usize) -> bool, known: &mut impl FnMut(Call)) {
        while let Some((due, number, key, kind)) = self.order.front().copied() {
            let is_current = is_current(&self.waiting, number, (key, kind));
            if is_current && !goes(due, self.waiting.len()) {
                break;
            }
            self.order.pop_front();
            if is_current && let Some((_, end)) = self.waiting.remove(&(key, kind)) {
                known(alone(end));
            }
        }
    }
}

fn is_current(waiting: &Waiting, number: u64, end: (Key, SpanKind)) -> bool {
    waiting.get(&end).is_some_and(|(current, _)| *current == number)
}

fn alone(end: End) -> Call {
    if end.span.kind == SpanKind::Server { Call::Server(end) } else { Call::Client(end) }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn span(kind: SpanKind, trace: u8, id: u8, parent: Option<u8>) -> End {
        let mut span = Span::blank();
        (span.kind, span.trace_id, span.span_id) = (kind, [trace; 16], [id; 8]);
        span.parent_span_id = parent.map(|id| [id; 8]);
        End { span: Box::new(span), times: 1 }
    }

    fn client(id: u8) -> End {
        span(SpanKind::Client, 1, id, None)
    }

    fn server(id: u8, parent: u8) -> End {
        span(SpanKind::Server, 1, id, Some(parent))
    }

    fn written(call: &Call) -> String {
        match call {
            Call::Both(client, server) => format!("{}>{}", client.span.span_id[0], server.span.span_id[0]),
            Call::Client(client) => format!("{}>", client.span.span_id[0]),
            Call::Server(server) => format!(">{}", server.span.span_id[0]),
        }
    }

    /// What becomes known of spans that come at these seconds, and until this one.
    #[track_caller]
    fn check(spans: Vec<(u64, End)>, until: u64, expected: &[&str]) {
        let (mut ends, mut found) = (Ends::default(), Vec::new());
        for (at, span) in spans {
            ends.tick(at * SECOND, |call| found.push(written(&call)));
            ends.take(span, at * SECOND, |call| found.push(written(&call)));
        }
        ends.tick(until * SECOND, |call| found.push(written(&call)));
        assert_eq!(found, expected);
    }

    #[test]
    fn ends_of_one_call_are_found() {
        check(vec![(0, client(1)), (5, server(2, 1))], 60, &["1>2"]);
        check(vec![(0, server(2, 1)), (11, client(1))], 60, &["1>2"]);
        // Another trace, another parent.
        check(vec![(0, client(1)), (1, span(SpanKind::Server, 2, 2, Some(1)))], 60, &["1>", ">2"]);
        check(vec![(0, client(1)), (1, server(2, 3))], 60, &["1>", ">2"]);
        // A root is asked from outside.
        check(vec![(0, span(SpanKind::Server, 1, 2, None))], 0, &[">2"]);
        // Too late, and not yet.
        check(vec![(0, client(1)), (13, server(2, 1))], 20, &["1>"]);
        check(vec![(0, client(1))], 11, &[]);
        // A request that was sent twice, by a client or a proxy; an id that comes twice.
        check(vec![(0, client(1)), (1, server(2, 1)), (2, server(3, 1))], 60, &["1>2", ">3"]);
        check(vec![(0, client(1)), (1, client(1)), (2, server(2, 1))], 60, &["1>", "1>2"]);
        check(vec![(0, span(SpanKind::Internal, 1, 1, None))], 60, &[]);
    }

    #[test]
    fn they_are_bounded() {
        let (mut ends, mut n_known) = (Ends::default(), 0);
        for nth in 0..4 * ENDS as u64 {
            let mut end = client(1);
            end.span.span_id = (nth + 1).to_ne_bytes();
            ends.take(end, 0, |_| n_known += 1);
            assert!(ends.waiting() <= ENDS);
        }
        assert_eq!(n_known + ends.waiting(), 4 * ENDS);
        // Pairs leave their places in the order behind.
        for nth in 0..4 * ENDS as u64 {
            let mut client = client(1);
            client.span.span_id = (1 << 40 | nth).to_ne_bytes();
            let mut server = server(2, 1);
            server.span.parent_span_id = Some(client.span.span_id);
            ends.take(client, SECOND, |_| {});
            ends.take(server, SECOND, |_| {});
            assert!(ends.order.len() <= 2 * ENDS + 1);
        }
        ends.tick(u64::MAX, |_| {});
        assert_eq!((ends.waiting(), ends.order.len()), (0, 0));
    }
}
