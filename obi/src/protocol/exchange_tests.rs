//! Tests of the table: scripts of records in, one line of text per outcome out.

use super::*;
use crate::capture::event::decode;
use crate::protocol::table::Limits;
use crate::protocol::wire::{ONE_PIECE, Record, WHOLE, Wire};
use crate::protocol::{Http, Message};
use obi_ebpf::*;
use proptest::prelude::*;

const GET: &str = "GET /a?k=v HTTP/1.1\r\nHost: h\r\n\r\n";
const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
const REQUEST: u32 = MESSAGE_REQUEST;
const RESPONSE: u32 = MESSAGE_RESPONSE;
const END: u32 = FLAG_MESSAGE_END;
const FIRST: u64 = 7 << ORDINAL_BITS;

#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Exchange { arrival, started, ended, failure, .. } = exchange;
        let Message::Http(Http { request, response, .. }) = exchange.message else { panic!("not HTTP") };
        let status = response.and_then(|response| response.status).unwrap_or(0);
        let [sent, received] = [exchange.request_bytes, exchange.response_bytes]
            .map(|bytes| bytes.map_or("?".to_owned(), |bytes| bytes.to_string()));
        let failure = failure.map_or("", Failure::error_type);
        let cpu = exchange.times.map_or(String::new(), |times| format!(" cpu {}", times.cpu));
        self.0.push(format!(
            "{:?} {} {}?{} {status} {sent}/{received} {arrival}-{started}-{ended} {failure}{cpu}",
            exchange.side, request.method, request.path, request.query,
        ));
    }

    fn lost(&mut self, loss: Loss) {
        self.0.push(format!("lost {} {} {:?} {}", loss.stage, loss.reason, loss.side, loss.tgid));
    }
}

fn feed(exchanges: &mut Exchanges, records: &[Record], sink: &mut Lines) {
    for record in records {
        exchanges.accept(&decode(record.bytes()).unwrap(), sink);
    }
}

fn run(limits: Limits, records: &[Record]) -> (Vec<String>, Exchanges) {
    let (mut exchanges, mut lines) = (Exchanges::new(limits), Lines::default());
    feed(&mut exchanges, records, &mut lines);
    (lines.0, exchanges)
}

/// All records give exactly these lines, and nothing stays open.
fn check(records: &[Record], expected: &[&str]) {
    let (lines, exchanges) = run(Limits::default(), records);
    assert_eq!(lines, expected);
    assert_eq!(exchanges.open(), 0, "nothing stays open");
}

fn request(wire: Wire) -> Record {
    wire.at(20).arrived(10).head(REQUEST, END, GET)
}

fn response(wire: Wire) -> Record {
    wire.at(30).piece(RESPONSE, WHOLE, 5, 0, OK.as_bytes())
}

/// The record of the thread's time comes behind a head that says so, or before the end of a body.
#[test]
fn times_are_waited_for_where_they_are_announced() {
    let wire = Wire::server(FIRST);
    let done = "Server GET /a?k=REDACTED 200 0/5 10-20-30 ";
    let announced = wire.at(30).piece(RESPONSE, WHOLE | FLAG_TIMES, 5, 0, OK.as_bytes());
    let with = [done, "cpu 7"].join(" ");
    check(&[request(wire), announced.clone(), wire.at(30).times(7)], &[&*with]);
    let head = wire.at(25).head(RESPONSE, 0, OK);
    check(&[request(wire), head, wire.at(30).times(7), wire.at(30).end(RESPONSE, 0, 5)], &[&*with]);
    // Of an exchange that is not known they count for none.
    check(&[wire.at(30).times(7), request(wire), response(wire)], &[done]);
    // One that is lost holds the exchange up for a moment only.
    let (lines, mut exchanges) = run(Limits::default(), &[request(wire), announced]);
    assert!(lines.is_empty());
    let mut swept = Lines::default();
    exchanges.sweep(30 + SETTLE.as_nanos() as u64, Duration::from_secs(60), &mut swept);
    assert_eq!(swept.0, [done]);
}

#[test]
fn whole_exchanges_are_handed_over_once() {
    let (server, client) = (Wire::server(FIRST), Wire::client(FIRST));
    let done = "Server GET /a?k=REDACTED 200 0/5 10-20-30 ";
    check(&[request(server), response(server)], &[done]);
    check(&[response(client), request(client)], &["Client GET /a?k=REDACTED 200 0/5 10-20-30 "]);
    // A response head, then its body's end.
    let head = server.at(25).head(RESPONSE, 0, OK);
    check(&[request(server), head.clone(), server.at(30).end(RESPONSE, 0, 5)], &[done]);
    // A client sends no arrival: it is the sending.
    let sent = client.at(20).head(REQUEST, END, GET);
    check(&[sent, response(client)], &["Client GET /a?k=REDACTED 200 0/5 20-20-30 "]);
    // Interim responses are forgotten, whether whole or in pieces.
    let interim = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let (first, rest) = interim.split_at(9);
    let pieces = [
        request(server),
        server.head(RESPONSE, FLAG_INTERIM, "HTTP/1.1 100 Continue\r\n\r\n"),
        server.piece(RESPONSE, FLAG_FIRST_PIECE, 0, 0, first.as_bytes()),
        server.piece(RESPONSE, FLAG_LAST_PIECE | FLAG_INTERIM, 0, 9, rest.as_bytes()),
        response(server),
    ];
    check(&pieces, &[done]);
    // Pipelined.
    let next = Wire::server(FIRST + 1);
    check(&[request(server), request(next), response(server), response(next)], &[done, done]);
    // Records that concern no exchange change nothing.
    check(&[Wire::server(0).head(REQUEST, END, GET), server.end(RESPONSE, 0, 1)], &[]);
}

/// What is reported of exchanges beside their ends.
#[derive(Default)]
struct Story(Vec<String>);

impl Sink for Story {
    fn begun(&mut self, begun: &Begun<'_>) {
        let Begun { number, side, tid, started, traceparent, .. } = begun;
        self.0.push(format!("begun {} {side:?} {tid} {started} {traceparent}", number - FIRST));
    }

    fn forgotten(&mut self, number: u64) {
        self.0.push(format!("forgotten {}", number - FIRST));
    }

    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let answerer = exchange.answerer.map(|answerer| answerer.tid);
        self.0.push(format!("ended {} {answerer:?}", exchange.number - FIRST));
    }

    fn lost(&mut self, loss: Loss) {
        self.0.push(format!("lost {}", loss.reason));
    }
}

/// The records, and then a sweep of everything, give this.
fn check_story(records: &[Record], expected: &[&str]) {
    let (mut exchanges, mut story) = (Exchanges::new(Limits::default()), Story::default());
    for record in records {
        exchanges.accept(&decode(record.bytes()).unwrap(), &mut story);
    }
    exchanges.sweep(u64::MAX, Duration::from_secs(1), &mut story);
    assert_eq!(story.0, expected);
}

#[test]
fn what_has_begun_ends_or_is_forgotten() {
    let server = Wire::server(FIRST);
    let begun = "begun 0 Server 4243 20 ";
    check_story(&[request(server), response(server)], &[begun, "ended 0 None"]);
    check_story(&[response(server), request(server)], &[begun, "ended 0 None"]);
    // Each head by itself, in whatever pieces.
    let head = "GET /a HTTP/1.1\r\ntraceparent: 00-1\r\n\r\n";
    let (first, rest) = head.split_at(11);
    let pieces = [
        server.at(20).piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, first.as_bytes()),
        server.at(25).piece(REQUEST, FLAG_LAST_PIECE | END, 0, 11, rest.as_bytes()),
        response(server),
    ];
    check_story(&pieces, &["begun 0 Server 4243 20 00-1", "ended 0 None"]);
    check_story(&pieces[..1], &[]);
    // Never answered.
    check_story(&[request(server)], &[begun, "forgotten 0"]);
    let lost = server.at(40).close(CLOSE_ABANDONED, 1, |close| close.loss = 1);
    check_story(&[request(server), lost], &[begun, "lost ring_full", "forgotten 0"]);
    let unreadable = server.piece(RESPONSE, WHOLE, 0, 0, b"HTTP/1.1 2\r\n\r\n");
    check_story(&[request(server), unreadable], &[begun, "lost unparsable", "forgotten 0"]);
    // The number is used again, before the end of the first was seen.
    check_story(
        &[request(server), request(server)],
        &[begun, "lost superseded", "forgotten 0", begun, "forgotten 0"],
    );
}

#[test]
fn request_bodies_are_waited_for() {
    let server = Wire::server(FIRST);
    let post = server.at(20).head(REQUEST, 0, "POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n");
    let done = "Server POST /a? 200 9/5 20-20-30 ";
    check(&[post.clone(), server.end(REQUEST, 0, 9), response(server)], &[done]);
    check(&[post.clone(), response(server), server.end(REQUEST, 0, 9)], &[done]);
    check(&[response(server), server.end(REQUEST, 0, 9), post.clone()], &[done]);
    let early = server.at(30).piece(RESPONSE, WHOLE | FLAG_REQUEST_INCOMPLETE, 5, 0, OK.as_bytes());
    check(&[post, early, server.end(REQUEST, 0, 9)], &[done]);
}

#[test]
fn ends_of_connections_tell_how_exchanges_failed() {
    let (server, client) = (Wire::server(FIRST), Wire::client(FIRST));
    let partial = |wire: Wire| wire.at(25).head(RESPONSE, 0, OK);
    let close = |wire: Wire, reason| wire.at(40).close(reason, 1, |_| {});
    let failed = |side, status, word| format!("{side} GET /a?k=REDACTED {status} 0/0 10-20-40 {word}");
    for (wire, side) in [(server, "Server"), (client, "Client")] {
        for (reason, word) in [
            (CLOSE_LOCAL, "connection_aborted"),
            (CLOSE_REMOTE, "connection_closed"),
            (CLOSE_RESET, "connection_reset"),
            (CLOSE_TIMEOUT, "timeout"),
        ] {
            check(&[request(wire), close(wire, reason)], &[&failed(side, 0, word)]);
            let cut = [("Server", CLOSE_LOCAL), ("Client", CLOSE_REMOTE)].contains(&(side, reason));
            let word = if cut { "response_truncated" } else { word };
            check(&[request(wire), partial(wire), close(wire, reason)], &[&failed(side, 200, word)]);
        }
    }
    // Half a request head is no exchange.
    let half = server.piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, b"GET /a HT");
    check(&[half.clone(), close(server, CLOSE_REMOTE)], &[]);
    let abandoned = server.close(CLOSE_ABANDONED, 1, |close| close.loss = LOSS_FRAMING as u8);
    check(&[half, abandoned], &["lost kernel framing Some(Server) 4242"]);
}

#[test]
fn a_close_ends_all_pending_exchanges() {
    let (server, next, last) = (Wire::server(FIRST), Wire::server(FIRST + 1), Wire::server(FIRST + 2));
    let post = last.at(20).head(REQUEST, 0, "POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n");
    let close = |pending, reason, loss: u32| {
        server.at(40).close(reason, pending, |close| {
            close.request_body_bytes = 4;
            close.response_body_bytes = 3;
            close.last_byte = 35;
            close.loss = u8::try_from(loss).unwrap();
        })
    };
    let open = [request(server), server.at(25).head(RESPONSE, 0, OK), request(next), post];
    let with = |record: Record| [&open[..], &[record]].concat();
    let failed = [
        "Server GET /a?k=REDACTED 200 0/3 10-20-35 connection_reset",
        "Server GET /a?k=REDACTED 0 0/0 10-20-40 connection_reset",
        "Server POST /a? 0 4/0 20-20-40 connection_reset",
    ];
    check(&with(close(3, CLOSE_RESET, 0)), &failed);
    let lost = "lost kernel steps Some(Server) 4242";
    check(&with(close(3, CLOSE_ABANDONED, LOSS_STEPS)), &[lost; 3]);
    check(&with(close(u32::MAX, CLOSE_ABANDONED, LOSS_STEPS)), &[lost; 3]);
    let (lines, exchanges) = run(Limits::default(), &with(close(1, CLOSE_RESET, 0)));
    assert_eq!((lines.len(), exchanges.open()), (1, 2), "only the oldest ended");
}

#[test]
fn the_end_of_a_close_delimited_body_is_the_connections() {
    let server = Wire::server(FIRST);
    let head = server.at(25).head(RESPONSE, FLAG_CLOSE_DELIMITED, "HTTP/1.0 200 OK\r\n\r\n");
    let close = |reason| {
        server.at(40).close(reason, 1, |close| (close.last_byte, close.response_body_bytes) = (35, 8))
    };
    let line = |word| format!("Server GET /a?k=REDACTED 200 0/8 10-20-35 {word}");
    for (reason, word) in [(CLOSE_LOCAL, ""), (CLOSE_REMOTE, ""), (CLOSE_RESET, "connection_reset")] {
        check(&[request(server), head.clone(), close(reason)], &[&line(word)]);
    }
}

#[test]
fn what_cannot_be_read_is_lost_once() {
    let server = Wire::server(FIRST);
    let lost = "lost protocol unparsable Some(Server) 4242";
    check(&[server.head(REQUEST, END, "\u{1}\u{2} HTTP/1.1\r\n\r\n"), response(server)], &[lost]);
    let odd = server.at(30).piece(RESPONSE, WHOLE, 5, 0, b"ICY 200 OK\r\n\r\n");
    let (lines, _) = run(Limits::default(), &[request(server), odd]);
    assert_eq!(lines, [lost]);
    // The same number twice: the first one was lost.
    check(
        &[request(server), request(server), response(server)],
        &["lost protocol superseded Some(Server) 4242", "Server GET /a?k=REDACTED 200 0/5 10-20-30 "],
    );
    // A hole in the head: the kernel has counted it.
    let hole = [
        server.piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, b"GET /a"),
        server.piece(REQUEST, FLAG_LAST_PIECE | END, 0, 9, b"HTTP/1.1\r\n\r\n"),
        response(server),
    ];
    let (lines, exchanges) = run(Limits::default(), &hole);
    assert_eq!((lines.len(), exchanges.open(), exchanges.evicted().gap), (0, 0, 1));
}

/// Which requests were not seen whole.
#[derive(Default)]
struct Truncated(Vec<bool>);

impl Sink for Truncated {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Message::Http(http) = exchange.message else { panic!("not HTTP") };
        self.0.push(http.request.is_truncated);
    }

    fn lost(&mut self, loss: Loss) {
        panic!("{loss:?}");
    }
}

#[test]
fn a_head_that_was_not_seen_whole_says_so() {
    let server = Wire::server(FIRST);
    let long = format!("GET /a HTTP/1.1\r\nHost: h\r\nCookie: {}\r\n\r\n", "c".repeat(3000));
    let check = |request: &[Record], head_bytes: usize, expected: bool| {
        let mut exchanges = Exchanges::new(Limits { head_bytes, ..Limits::default() });
        let mut seen = Truncated::default();
        for record in request.iter().chain([&response(server)]) {
            exchanges.accept(&decode(record.bytes()).unwrap(), &mut seen);
        }
        assert_eq!(seen.0, [expected], "{head_bytes}");
    };
    let one_piece = [server.head(REQUEST, END, &long)];
    check(&one_piece, 8_192, false);
    check(&one_piece, 512, true);
    check(&[server.head(REQUEST, END, GET)], 8_192, false);
    let cut_by_the_kernel = [
        server.piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, &long.as_bytes()[..1800]),
        server.piece(REQUEST, FLAG_LAST_PIECE | END | FLAG_TRUNCATED, 0, 2990, b""),
    ];
    check(&cut_by_the_kernel, 8_192, true);
}

#[test]
fn long_heads_are_cut_and_still_count() {
    let server = Wire::server(FIRST);
    let long = format!("GET /a HTTP/1.1\r\nHost: h\r\nCookie: {}\r\n\r\n", "c".repeat(3000));
    let (start, rest) = long.split_at(1800);
    let done = "Server GET /a? 200 0/5 0-0-30 ";
    let kernel_cut = [
        server.piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, start.as_bytes()),
        server.piece(REQUEST, FLAG_LAST_PIECE | END | FLAG_TRUNCATED, 0, 2990, b""),
        response(server),
    ];
    check(&kernel_cut, &[done]);
    let whole = [
        server.piece(REQUEST, FLAG_FIRST_PIECE, 0, 0, start.as_bytes()),
        server.piece(REQUEST, FLAG_LAST_PIECE | END, 0, 1800, rest.as_bytes()),
        response(server),
    ];
    check(&whole, &[done]);
    for limits in [
        Limits { head_bytes: 512, ..Limits::default() },
        Limits { head_bytes: 1900, ..Limits::default() },
        Limits { held_bytes: 1024, ..Limits::default() },
    ] {
        let (lines, exchanges) = run(limits, &whole);
        assert_eq!(lines, [done], "{limits:?}");
        assert!(exchanges.held_bytes() <= 2 * limits.held_bytes, "{limits:?}");
    }
    let one_piece = [server.head(REQUEST, END, &long), response(server)];
    assert_eq!(run(Limits { head_bytes: 512, ..Limits::default() }, &one_piece).0, [done]);
}

#[test]
fn the_table_is_bounded() {
    let limits = Limits { open: 2, ..Limits::default() };
    let wires = [0, 1, 2].map(|ordinal| Wire::server(FIRST + ordinal));
    let records = [wires.map(request), wires.map(response)].concat();
    let (lines, mut exchanges) = run(limits, &records);
    let done = "Server GET /a?k=REDACTED 200 0/5 10-20-30 ";
    assert_eq!(lines, ["lost protocol pending_full Some(Server) 4242", done, done]);
    // The response of the refused one found room; it goes with the next sweep, uncounted.
    let mut sink = Lines::default();
    exchanges.sweep(2_000_000_000, Duration::from_secs(60), &mut sink);
    assert_eq!((sink.0.len(), exchanges.open(), exchanges.evicted().orphaned), (0, 0, 1));
    // Memory is a bound too.
    let limits = Limits { held_bytes: 0, ..Limits::default() };
    let (lines, _) = run(limits, &[request(wires[0]), request(wires[1])]);
    assert_eq!(lines, ["lost protocol pending_full Some(Server) 4242"]);
}

#[test]
fn sweeping_evicts_what_never_ends() {
    const SECOND: u64 = 1_000_000_000;
    let (mut exchanges, mut sink) = (Exchanges::new(Limits::default()), Lines::default());
    let post = "POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\n";
    let settled = Wire::server(FIRST + 1);
    let records = [
        request(Wire::server(FIRST)),
        settled.at(20).head(REQUEST, 0, post),
        response(settled),
        Wire::server(FIRST + 2).at(50 * SECOND).head(REQUEST, END, GET),
    ];
    feed(&mut exchanges, &records, &mut sink);
    let minute = Duration::from_secs(60);
    exchanges.sweep(SECOND / 2, minute, &mut sink);
    assert_eq!((sink.0.len(), exchanges.open()), (0, 3));
    exchanges.sweep(2 * SECOND, minute, &mut sink);
    assert_eq!(sink.0, ["Server POST /a? 200 ?/5 20-20-30 "]);
    exchanges.sweep(61 * SECOND, minute, &mut sink);
    assert_eq!((sink.0.len(), exchanges.open(), exchanges.evicted().unfinished), (1, 1, 1));
    assert!(exchanges.forget(FIRST + 2, &mut sink));
    assert!(!exchanges.forget(FIRST + 2, &mut sink));
    assert_eq!(exchanges.open(), 0);
}

#[test]
fn an_answer_before_the_request_head_is_complete_is_an_exchange() {
    let answered = |head: &str| {
        let wire = Wire::server(FIRST);
        let incomplete = FLAG_MESSAGE_END | FLAG_REQUEST_INCOMPLETE;
        [
            wire.at(10).piece(MESSAGE_REQUEST, FLAG_FIRST_PIECE, 0, 0, head.as_bytes()),
            wire.at(30).head(MESSAGE_RESPONSE, incomplete, "HTTP/1.1 431 Too Large\r\n\r\n"),
        ]
    };
    check(&answered("GET /a HTTP/1.1\r\nHost: h\r\nCookie: xxx"), &["Server GET /a? 431 ?/0 10-10-30 "]);
    let (lines, exchanges) = run(Limits::default(), &answered("GET"));
    assert_eq!(lines.len(), 1, "lost once: {lines:?}");
    assert!(lines[0].contains("unparsable"), "{lines:?}");
    assert_eq!(exchanges.open(), 0, "nothing stays open");
}

/// Cuts `head` at `cuts` into the pieces the kernel would submit.
fn pieces(wire: Wire, message: u32, last: u32, head: &[u8], cuts: &[usize]) -> Vec<Record> {
    let mut bounds: Vec<_> = cuts.iter().map(|cut| cut % (head.len() + 1)).collect();
    bounds.extend([0, head.len()]);
    bounds.sort_unstable();
    let n_pieces = bounds.len() - 1;
    let piece = |nth: usize| {
        let first = if nth == 0 { FLAG_FIRST_PIECE } else { 0 };
        let last = if nth + 1 == n_pieces { FLAG_LAST_PIECE | last } else { 0 };
        let (start, end) = (bounds[nth], bounds[nth + 1]);
        wire.piece(message, first | last, 5, start, &head[start..end])
    };
    (0..n_pieces).map(piece).collect()
}

proptest! {
    /// However heads are cut, and whichever side's records come first: the same exchange.
    #[test]
    fn segmentation_and_order_do_not_matter(
        path in "/[a-z0-9/;=%]{0,40}", query in "(\\?[a-z=&]{0,20})?", n_headers in 0usize..80,
        request_cuts in prop::collection::vec(any::<usize>(), 0..12),
        response_cuts in prop::collection::vec(any::<usize>(), 0..12),
        order in prop::collection::vec(any::<bool>(), 40), other in any::<bool>(),
    ) {
        let headers: String = (0..n_headers).map(|nth| format!("X-{nth}: {nth}\r\n")).collect();
        let head = format!("GET {path}{query} HTTP/1.1\r\nHost: h\r\n{headers}\r\n");
        let wire = Wire::client(FIRST).at(20);
        let expected = run(Limits::default(), &[
            wire.piece(REQUEST, ONE_PIECE | END, 5, 0, head.as_bytes()),
            wire.piece(RESPONSE, WHOLE, 5, 0, OK.as_bytes()),
        ]).0;
        prop_assert_eq!(expected.len(), 1);
        let mut requests = pieces(wire, REQUEST, END, head.as_bytes(), &request_cuts).into_iter().peekable();
        let mut responses = pieces(wire, RESPONSE, END, OK.as_bytes(), &response_cuts).into_iter().peekable();
        let mut records = Vec::new();
        let mut order = order.into_iter().chain(std::iter::repeat(other));
        while requests.peek().is_some() || responses.peek().is_some() {
            records.extend(if order.next().unwrap() { requests.next() } else { responses.next() });
            if requests.peek().is_none() { records.extend(responses.by_ref()); }
            if responses.peek().is_none() { records.extend(requests.by_ref()); }
        }
        let (lines, exchanges) = run(Limits::default(), &records);
        prop_assert_eq!(lines, expected);
        prop_assert_eq!(exchanges.open(), 0);
    }
}
