//! Proof that nothing is allocated per exchange once the stages have grown to their load.
//!
//! In: a load of every kind of exchange. Out: failure when the counter moves in the second round.

use obi::capture::event::decode;
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Sink};
use obi::span::{Assembler, Service, Span, assemble::DEFAULT_ROUTES, method::KnownMethods};
use obi_ebpf::{
    CLOSE_ABANDONED, CLOSE_RESET, FLAG_FIRST_PIECE, FLAG_LAST_PIECE, FLAG_MESSAGE_END, FLAG_TRUNCATED,
    MESSAGE_REQUEST, MESSAGE_RESPONSE,
};
use std::sync::Arc;
use std::time::Duration;

use super::wire::http2::{Connection, From};
use super::wire::{Record, WHOLE, Wire};
use super::{allocations, alone};

struct Spans {
    assembler: Assembler,
    service: Arc<Service>,
    span: Span,
    n_spans: u64,
    n_lost: u64,
}

impl Sink for Spans {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        self.assembler.assemble(exchange, &self.service, 1, &mut self.span);
        let mut n_attributes = 0;
        self.span.attributes(|_, _| n_attributes += 1);
        self.n_spans += u64::from(n_attributes > 5);
    }

    fn lost(&mut self, _: Loss) {
        self.n_lost += 1;
    }
}

/// Every kind of exchange on one connection each: whole, in pieces, folded lines, bytes that are not UTF-8,
/// response first, with a body, unparsable, reset, abandoned, cut.
fn records(nth: u64) -> Vec<Record> {
    let wire = |kind: u64| Wire::client((nth * 16 + kind + 1) << 24);
    let path = format!("/orders/{nth}/items;s={nth}?token={nth}&x");
    let headers = "Host: shop:80\r\nUser-Agent: \u{fc}a\r\ntracestate: a=1\r\n\
        traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\n";
    let plain = format!("GET {path} HTTP/1.1\r\n{headers}\r\n");
    let folded = format!("BREW {path} HTTP/1.1\r\n{headers} folded\r\nX: \u{1}\r\n\r\n");
    let many: String = (0..100).map(|line| format!("X-{line}: y\r\n")).collect();
    let many = format!("GET {path} HTTP/1.1\r\n{many}{headers}\r\n");
    let ok = "HTTP/1.1 200 OK\r\n\r\n";
    let request = |kind, head: &str| wire(kind).piece(MESSAGE_REQUEST, WHOLE, 0, 0, head.as_bytes());
    let response = |kind| wire(kind).piece(MESSAGE_RESPONSE, WHOLE, 3, 0, ok.as_bytes());
    let piece = |kind, flags, start: usize, part: &str| {
        wire(kind).piece(MESSAGE_REQUEST, flags | FLAG_MESSAGE_END, 0, start, part.as_bytes())
    };
    let (start, end) = many.split_at(700);
    vec![
        request(0, &plain),
        response(0),
        response(1),
        request(1, &folded),
        piece(2, FLAG_FIRST_PIECE, 0, start),
        piece(2, FLAG_LAST_PIECE, 700, end),
        response(2),
        piece(3, FLAG_FIRST_PIECE, 0, start),
        piece(3, FLAG_LAST_PIECE | FLAG_TRUNCATED, 700, ""),
        response(3),
        wire(4).head(MESSAGE_REQUEST, 0, &plain),
        wire(4).end(MESSAGE_REQUEST, 0, 9),
        wire(4).head(MESSAGE_RESPONSE, 0, ok),
        wire(4).end(MESSAGE_RESPONSE, 0, 9),
        request(5, "nonsense\r\n\r\n"),
        response(5),
        request(6, &plain),
        wire(6).close(CLOSE_RESET, 1, |_| {}),
        request(7, &plain),
        wire(7).close(CLOSE_ABANDONED, 1, |_| {}),
        response(8),
    ]
}

/// Streams on one connection: without bodies, with them, with a head in pieces, a call, and calls and requests that are
/// given up or not read to their end. Paths and parents are new each time, so the header tables turn over.
fn streams(c: &mut Connection, nth: u32) -> Vec<Record> {
    use From::{Client, Server};
    let (path, parent) = (format!("/orders/{nth}/items?token={nth}"), format!("00-{nth:032x}-{nth:016x}-01"));
    let asked = |method: &'static str, kind: &'static str| {
        [(":method", method), (":path", &*path), ("traceparent", &*parent), ("content-type", kind)]
            .map(|(name, value)| (name.to_owned(), value.to_owned()))
    };
    let (get, post) = (asked("GET", "text/plain"), asked("POST", "application/json"));
    let call = [
        (":method", "POST"),
        (":path", "/shop.Cart/Add"),
        ("traceparent", &parent),
        ("content-type", "application/grpc"),
    ];
    let ok = [(":status", "200"), ("content-length", "9")];
    let rpc_ok = [(":status", "200"), ("content-type", "application/grpc")];
    let stream = |kind: u32| (nth * 5 + kind) * 2 + 1;
    let long = [&get[..], &[("x-long".to_owned(), "y".repeat(3_000))]].concat();
    [
        c.headers(Client, stream(0), true, &get),
        c.headers(Client, stream(1), false, &post),
        c.headers(Server, stream(0), true, &rpc_ok[..1]),
        c.headers(Client, stream(2), true, &long),
        c.data_end(Client, stream(1), 9, 0),
        c.headers(Server, stream(1), false, &ok),
        c.data_end(Server, stream(1), 9, 0),
        c.headers(Server, stream(2), false, &ok),
        c.reported(Server, stream(2), 9, 0),
        c.reset(Client, stream(2), 5),
        c.headers(Client, stream(3), false, &call),
        c.headers(Client, stream(4), false, &call),
        c.headers(Server, stream(3), false, &rpc_ok),
        c.data_end(Client, stream(3), 9, 1),
        c.headers(Server, stream(3), true, &[("grpc-status", "0")]),
        c.reported(Client, stream(4), 9, 1),
        c.reset(Client, stream(4), 8),
    ]
    .concat()
}

/// A round of HTTP/1: each exchange on a connection of its own.
fn round_of_http1(exchanges: &mut Exchanges, batches: &[Vec<Record>], spans: &mut Spans) -> u64 {
    for batch in batches {
        for record in batch {
            exchanges.accept(&decode(record.bytes()).expect("a record made here"), spans);
        }
        exchanges.sweep(2_000_000_000, Duration::from_secs(60), spans);
    }
    allocations()
}

#[test]
fn nothing_is_allocated_per_exchange_in_steady_state() {
    let _alone = alone();
    const ROUND: u64 = 500;
    let batches: Vec<_> = (0..ROUND).map(records).collect();
    let assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
    let service = Arc::new(Service { name: "shop".into(), ..Service::default() });
    let mut spans = Spans { assembler, service, span: Span::blank(), n_spans: 0, n_lost: 0 };
    let mut exchanges = Exchanges::new(Limits::default());
    let mut round = || round_of_http1(&mut exchanges, &batches, &mut spans);
    round();
    let before = round();
    let after = round();
    assert!(before > 0, "the counter counts");
    assert_eq!(after - before, 0, "allocations in a round of {ROUND} batches");
    assert_eq!((spans.n_spans, spans.n_lost), (3 * 6 * ROUND, 3 * 2 * ROUND));

    // HTTP/2: connections live on, so each round has records of its own.
    (spans.n_spans, spans.n_lost) = (0, 0);
    let mut connections: Vec<_> = (1..=5).map(|number| Connection::server(1_000_000 + number)).collect();
    let mut rounds: [Vec<Record>; 3] = Default::default();
    for (records, first) in rounds.iter_mut().zip([0, 200, 400]) {
        for nth in first..first + 200 {
            records.extend(connections.iter_mut().flat_map(|c| streams(c, nth)));
        }
    }
    let counts = rounds.iter().map(|records| {
        for record in records {
            exchanges.accept(&decode(record.bytes()).unwrap(), &mut spans);
        }
        allocations()
    });
    let mut seen = [0; 3];
    counts.zip(&mut seen).for_each(|(count, seen)| *seen = count);
    assert!(seen[0] > after, "the counter counts");
    assert_eq!(seen[2] - seen[1], 0, "allocations in a round of 1,000 batches of streams");
    assert_eq!((spans.n_spans, spans.n_lost, exchanges.open()), (3 * 200 * 5 * 5, 0, 0));
}
