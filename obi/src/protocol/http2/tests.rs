//! Tests of streams: scripts of frames in, one line of text per outcome out.

use super::Http2;
use crate::capture::event::{Event, decode};
use crate::protocol::wire::header_block::Coding;
use crate::protocol::wire::http2::{
    CONTINUATION, Connection, END_HEADERS, END_STREAM, Frame, From, HEADERS, PADDED, PRIORITY, PUSH_PROMISE,
};
use crate::protocol::wire::{Record, Wire};
use crate::protocol::{Exchange, Exchanges, Failure, Limits, Loss, Semantics, Sink};
use obi_ebpf::{
    CLOSE_ABANDONED, CLOSE_LOCAL, CLOSE_REMOTE, CLOSE_RESET, FLAG_HTTP2, FLAG_MESSAGE_END, FLAG_TUNNEL,
    FLAG_WEBSOCKET, LOSS_FRAMING, MESSAGE_REQUEST, MESSAGE_RESPONSE, ORDINAL_BITS,
};
use proptest::prelude::*;
use std::time::Duration;

use From::{Client, Server};

#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Exchange { number, arrival, started, ended, request, failure, .. } = exchange;
        let status = exchange.response.map_or("none".into(), |response| format!("{:?}", response.status));
        let status = status.trim_start_matches("Some(").trim_end_matches(')');
        let (sent, received) = (exchange.request_body_bytes, exchange.response_body_bytes);
        let failure = failure.map_or("", Failure::error_type);
        let rpc = match exchange.semantics {
            Semantics::Rpc(rpc) => format!(
                " rpc {:?} {} {:?}/{:?} {:?}{}{}",
                rpc.status,
                rpc.message,
                rpc.request_messages,
                rpc.response_messages,
                rpc.timeout,
                if rpc.is_cancelled { " cancelled" } else { "" },
                if rpc.is_web { " web" } else { "" },
            ),
            _ => String::new(),
        };
        self.0.push(format!(
            "{:?} {} {} {}?{} {status} {sent}/{received} {arrival}-{started}-{ended} {failure}{rpc}",
            exchange.side,
            number & ((1 << ORDINAL_BITS) - 1),
            request.method,
            request.path,
            request.query,
        ));
    }

    fn lost(&mut self, loss: Loss) {
        self.0.push(format!("lost {} {} {:?} {}", loss.stage, loss.reason, loss.side, loss.tgid));
    }
}

fn feed(exchanges: &mut Exchanges, records: &[Vec<Record>], lines: &mut Lines) {
    for record in records.iter().flatten() {
        exchanges.accept(&decode(record.bytes()).unwrap(), lines);
    }
}

/// All records give exactly these lines; so many streams stay open.
fn check_open(records: &[Vec<Record>], expected: &[&str], open: usize) {
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, records, &mut lines);
    assert_eq!(lines.0, expected);
    assert_eq!(exchanges.open(), open, "open at the end");
}

fn check(records: &[Vec<Record>], expected: &[&str]) {
    check_open(records, expected, 0);
}

const GET: [(&str, &str); 4] =
    [(":method", "GET"), (":scheme", "http"), (":authority", "me@h:1"), (":path", "/a?k=v")];
const POST: [(&str, &str); 3] = [(":method", "POST"), (":path", "/p"), ("content-type", "application/json")];
const CALL: [(&str, &str); 4] =
    [(":method", "POST"), (":path", "/s.S/M"), ("content-type", "application/grpc"), ("grpc-timeout", "2m")];
const OK: [(&str, &str); 2] = [(":status", "200"), ("server", "x")];
const RPC_OK: [(&str, &str); 2] = [(":status", "200"), ("content-type", "application/grpc")];

fn get(c: &mut Connection, stream: u32) -> Vec<Record> {
    c.at(20).arrived(10).headers(Client, stream, true, &GET)
}

fn ok(c: &mut Connection, stream: u32) -> Vec<Record> {
    c.at(30).headers(Server, stream, true, &OK)
}

const GOT: &str = "Server 1 GET /a?k=REDACTED 200 0/0 10-20-30 ";

#[test]
fn a_stream_is_an_exchange() {
    let mut c = Connection::server(7);
    check(&[get(&mut c, 1), ok(&mut c, 1)], &[GOT]);
    let second = "Server 2 GET /a?k=REDACTED 200 0/0 10-20-30 ";
    // From the header tables; interleaved.
    let records = [get(&mut c, 3), get(&mut c, 5), ok(&mut c, 5), ok(&mut c, 3)];
    let mut c = Connection::server(7);
    let first = [get(&mut c, 1), ok(&mut c, 1)];
    check(
        &[&first[..], &records[..]].concat(),
        &[GOT, "Server 3 GET /a?k=REDACTED 200 0/0 10-20-30 ", second],
    );
    // A client; the records of its response come first.
    let mut c = Connection::client(7);
    let (asked, answered) = (get(&mut c, 1), ok(&mut c, 1));
    check(&[answered, asked], &["Client 1 GET /a?k=REDACTED 200 0/0 10-20-30 "]);
    // Bodies, interim heads, trailers on both ways.
    let mut c = Connection::server(7);
    let records = [
        c.at(20).headers(Client, 1, false, &POST),
        c.at(21).headers(Server, 1, false, &[(":status", "100")]),
        c.at(22).headers(Server, 1, false, &[(":status", "103")]),
        c.at(23).headers(Client, 1, true, &[("x-trailer", "1")]),
        c.at(24).headers(Server, 1, false, &[(":status", "201")]),
        c.at(25).data_end(Server, 1, 9, 0),
        // After its end.
        c.at(26).reset(Server, 1, 0),
    ];
    check(&records, &["Server 1 POST /p? 201 0/9 20-20-25 "]);
    let mut c = Connection::server(7);
    let _lost = get(&mut c, 1);
    let records = [
        c.at(20).headers(Client, 3, false, &POST),
        c.at(21).headers(Server, 3, false, &OK),
        c.at(22).data_end(Client, 3, 7, 0),
        c.at(25).headers(Server, 3, true, &[("x-trailer", "1")]),
    ];
    check(
        &records,
        &["lost protocol records_missing Some(Server) 4242", "Server 2 POST /p? 200 7/0 20-20-25 "],
    );
}

#[test]
fn blocks_come_in_any_pieces() {
    let long = "x".repeat(5_000);
    let fields = [&GET[..], &[("x-long", long.as_str()), ("user-agent", "me")]].concat();
    for piece in [1, 7, 100, 1880] {
        for coding in [Coding::Eager, Coding::Plain] {
            let mut c = Connection::server(7);
            (c.piece, c.coding) = (piece, coding);
            let block = c.encoder(Client).encode(&fields, coding);
            let (first, rest) = block.split_at(block.len() / 3);
            let (second, third) = rest.split_at(0);
            let padded = [&[3, 0, 0, 0, 0, 9], first, &[0; 3]].concat();
            let (stream, kind) = (1, CONTINUATION);
            let frames = [
                Frame {
                    kind: HEADERS,
                    flags: END_STREAM | PADDED | PRIORITY,
                    stream,
                    payload: padded,
                    ..Frame::default()
                },
                Frame { kind, stream, payload: second.to_vec(), ..Frame::default() },
                Frame { kind, flags: END_HEADERS, stream, payload: third.to_vec(), ..Frame::default() },
            ];
            c.at(20).arrived(10);
            let records: Vec<_> = frames.iter().map(|frame| c.frame(Client, frame)).collect();
            let next = [ok(&mut c, 1), get(&mut c, 3), ok(&mut c, 3)];
            let second = "Server 2 GET /a?k=REDACTED 200 0/0 10-20-30 ";
            check(&[&records[..], &next[..]].concat(), &[GOT, second]);
        }
    }
}

#[test]
fn pushes_change_tables_and_nothing_else() {
    let mut c = Connection::client(7);
    let asked = get(&mut c, 1);
    let promised = c.encoder(Server).encode(&[(":method", "GET"), (":path", "/pushed")], Coding::Eager);
    let payload = [&[0, 0, 0, 2], &promised[..]].concat();
    let promise = Frame { kind: PUSH_PROMISE, flags: END_HEADERS, stream: 1, payload, ..Frame::default() };
    let records = [
        asked,
        c.frame(Server, &promise),
        c.headers(Server, 2, false, &[(":status", "203"), ("x-a", "1")]),
        c.data_end(Server, 2, 5, 0),
        c.at(30).headers(Server, 1, true, &[("x-a", "1"), (":status", "203")]),
    ];
    check(&records, &["Client 1 GET /a?k=REDACTED 203 0/0 10-20-30 "]);
}

#[test]
fn streams_end_early() {
    let check_side = |side, started: bool, from, code: u32, word: &str| {
        let mut c = Connection::new(7, side);
        let mut records = vec![get(&mut c, 1)];
        if started {
            records.push(c.at(25).headers(Server, 1, false, &OK));
        }
        records.push(c.at(40).reset(from, 1, code));
        records.push(ok(&mut c, 1));
        let side = if side == obi_ebpf::SIDE_SERVER { "Server" } else { "Client" };
        let status = if started { "200" } else { "none" };
        check(&records, &[&format!("{side} 1 GET /a?k=REDACTED {status} 0/0 10-20-40 {word}")]);
    };
    let (server, client) = (obi_ebpf::SIDE_SERVER, obi_ebpf::SIDE_CLIENT);
    check_side(client, false, Client, 8, "connection_aborted");
    check_side(server, true, Client, 8, "connection_closed");
    check_side(server, false, Server, 7, "stream_refused");
    check_side(client, true, Server, 8, "response_truncated");
    check_side(client, true, Server, 2, "stream_reset");

    // The server answers without reading the request to its end.
    let mut c = Connection::server(7);
    let records = [
        c.at(20).headers(Client, 1, false, &POST),
        c.at(30).headers(Server, 1, true, &OK),
        c.at(31).reset(Server, 1, 0),
    ];
    check(&records, &["Server 1 POST /p? 200 0/0 20-20-30 "]);
    // It does not say so: a second later nobody waits any more.
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &records[..2], &mut lines);
    exchanges.sweep(1_000_000_000, Duration::from_secs(60), &mut lines);
    assert!(lines.0.is_empty());
    exchanges.sweep(1_000_000_030, Duration::from_secs(60), &mut lines);
    assert_eq!(lines.0, ["Server 1 POST /p? 200 0/0 20-20-30 "]);

    // A server that goes away: what it has not processed is refused, whenever the record comes.
    let mut c = Connection::server(7);
    let records =
        [get(&mut c, 1), get(&mut c, 3), c.at(40).go_away(Server, 1), ok(&mut c, 1), get(&mut c, 5)];
    check(
        &records,
        &[
            "Server 2 GET /a?k=REDACTED none 0/0 10-20-40 stream_refused",
            GOT,
            "Server 3 GET /a?k=REDACTED none 0/0 10-20-20 stream_refused",
        ],
    );
    // The client's own concerns only pushes.
    let mut c = Connection::server(7);
    check(&[get(&mut c, 1), c.go_away(Client, 0), ok(&mut c, 1)], &[GOT]);
}

#[test]
fn ends_of_connections_end_their_streams() {
    let failed = |status, word| format!("Server 1 GET /a?k=REDACTED {status} 0/0 10-20-50 {word}");
    for (reason, before, after) in [
        (CLOSE_REMOTE, "connection_closed", "connection_closed"),
        (CLOSE_LOCAL, "connection_aborted", "response_truncated"),
        (CLOSE_RESET, "connection_reset", "connection_reset"),
    ] {
        let mut c = Connection::server(7);
        check(&[get(&mut c, 1), c.at(50).close(reason, |_| {})], &[&failed("none", before)]);
        let mut c = Connection::server(7);
        let records = [get(&mut c, 1), c.headers(Server, 1, false, &OK), c.at(50).close(reason, |_| {})];
        check(&records, &[&failed("200", after)]);
    }
    // An answer whose request was not read to its end is whole.
    let mut c = Connection::server(7);
    let records = [c.at(20).headers(Client, 1, false, &POST), ok(&mut c, 1), c.close(CLOSE_LOCAL, |_| {})];
    check(&records, &["Server 1 POST /p? 200 0/0 20-20-30 "]);
    // The kernel side could not go on.
    let mut c = Connection::server(7);
    let abandoned = |close: &mut obi_ebpf::close_event| close.loss = LOSS_FRAMING as u8;
    let records = [get(&mut c, 1), get(&mut c, 3), ok(&mut c, 1), c.close(CLOSE_ABANDONED, abandoned)];
    check(&records, &[GOT, "lost kernel framing Some(Server) 4242"]);
    // It has counted them itself.
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &records[..2], &mut lines);
    assert!(exchanges.forget(7 << ORDINAL_BITS) && exchanges.open() == 0 && lines.0.is_empty());
}

#[test]
fn remote_procedure_calls() {
    let mut c = Connection::server(7);
    let records = [
        c.at(20).headers(Client, 1, false, &CALL),
        c.at(21).data_end(Client, 1, 17, 2),
        c.at(22).headers(Server, 1, false, &RPC_OK),
        {
            let fields = [("grpc-status", "5"), ("grpc-message", "no%20such")];
            let payload = c.encoder(Server).encode(&fields, Coding::Eager);
            let flags = END_HEADERS | END_STREAM;
            let trailers = Frame { kind: HEADERS, flags, stream: 1, payload, body_bytes: 33, messages: 3 };
            c.at(30).frame(Server, &trailers)
        },
    ];
    let called =
        "Server 1 POST /s.S/M? 200 17/33 20-20-30  rpc Some(5) no%20such Some(2)/Some(3) Some(2000000)";
    check(&records, &[called]);
    // Trailers only; more messages than anybody can count.
    let mut c = Connection::client(7);
    let only = [&RPC_OK[..], &[("grpc-status", "12")]].concat();
    let records = [
        c.at(20).headers(Client, 1, false, &CALL),
        c.at(21).data_end(Client, 1, 5, u32::MAX),
        c.at(30).headers(Server, 1, true, &only),
    ];
    check(&records, &["Client 1 POST /s.S/M? 200 5/0 20-20-30  rpc Some(12)  None/Some(0) Some(2000000)"]);
    // The client gives up; so does its connection.
    for is_reset in [true, false] {
        let mut c = Connection::server(7);
        let asked = c.at(20).headers(Client, 1, false, &CALL);
        let gone = if is_reset { c.at(30).reset(Client, 1, 8) } else { c.at(30).close(CLOSE_REMOTE, |_| {}) };
        let expected = "Server 1 POST /s.S/M? none 0/0 20-20-30 connection_closed rpc None  None/None Some(2000000) cancelled";
        check(&[asked, gone], &[expected]);
    }
    // gRPC-Web: its status is in the body, but for trailers-only.
    let mut c = Connection::server(7);
    let web = [(":method", "POST"), (":path", "/s.S/M"), ("content-type", "application/grpc-web+proto")];
    let head = [(":status", "200"), ("content-type", "application/grpc-web+proto")];
    let records = [
        c.at(20).headers(Client, 1, false, &web),
        c.at(21).data_end(Client, 1, 9, 1),
        c.at(22).headers(Server, 1, false, &head),
        c.at(30).data_end(Server, 1, 9, 2),
        c.at(20).headers(Client, 3, true, &web),
        c.at(30).headers(Server, 3, true, &[&head[..], &[("grpc-status", "7")]].concat()),
    ];
    check(
        &records,
        &[
            "Server 1 POST /s.S/M? 200 9/9 20-20-30  rpc None  Some(1)/None None web",
            "Server 2 POST /s.S/M? 200 0/0 20-20-30  rpc Some(7)  Some(0)/None None web",
        ],
    );
}

#[test]
fn grpc_web_over_http1() {
    let server = Wire::server(7 << ORDINAL_BITS);
    let asked = "POST /s.S/M HTTP/1.1\r\nContent-Type: application/grpc-web\r\nGrpc-Timeout: 1S\r\n\r\n";
    let answered = "HTTP/1.1 200 OK\r\ngrpc-status: 3\r\ngrpc-message: bad\r\n\r\n";
    let plain = "HTTP/1.1 200 OK\r\n\r\n";
    for (answer, status) in [(answered, "Some(3) bad"), (plain, "None ")] {
        let records = vec![
            server.at(20).head(MESSAGE_REQUEST, FLAG_MESSAGE_END, asked),
            server.at(30).head(MESSAGE_RESPONSE, FLAG_MESSAGE_END, answer),
        ];
        let expected =
            format!("Server 0 POST /s.S/M? 200 0/0 20-20-30  rpc {status} None/None Some(1000000000) web");
        check(&[records], &[&expected]);
    }
}

#[test]
fn upgrades() {
    let server = Wire::server(7 << ORDINAL_BITS | 3);
    let asked =
        server.at(20).arrived(10).head(MESSAGE_REQUEST, FLAG_MESSAGE_END, "GET /a?k=v HTTP/1.1\r\n\r\n");
    let switched = |flags| {
        server.at(25).head(MESSAGE_RESPONSE, FLAG_MESSAGE_END | FLAG_TUNNEL | flags, "HTTP/1.1 101 X\r\n\r\n")
    };
    // Its answer comes on stream 1; the next request is stream 3.
    let mut c = Connection::server(7);
    let records = [
        vec![asked.clone(), switched(FLAG_HTTP2)],
        ok(&mut c, 1),
        get(&mut c, 3),
        ok(&mut c, 3),
        c.close(CLOSE_REMOTE, |_| {}),
    ];
    let second = "Server 2 GET /a?k=REDACTED 200 0/0 10-20-30 ";
    check(&records, &[GOT, second]);
    // The records of another thread were faster.
    let mut c = Connection::server(7);
    check(&[ok(&mut c, 1), vec![switched(FLAG_HTTP2), asked.clone()]], &[GOT]);
    // It breaks before the answer, in the way of either protocol.
    let mut c = Connection::server(7);
    let broken = "Server 1 GET /a?k=REDACTED none 0/0 10-20-40 connection_closed";
    let begun = vec![asked.clone(), switched(FLAG_HTTP2)];
    check(&[begun.clone(), c.at(40).close(CLOSE_REMOTE, |_| {})], &[broken]);
    check(&[begun, vec![server.at(40).close(CLOSE_REMOTE, 0, |_| {})]], &[broken]);
    // A WebSocket is an exchange of its own.
    let upgraded = "Server 3 GET /a?k=REDACTED 101 0/0 10-20-25 ";
    check_open(&[vec![asked, switched(FLAG_WEBSOCKET)]], &[upgraded], 1);
}

#[test]
fn tunnels_end_with_their_heads() {
    let mut c = Connection::client(7);
    let connect =
        [(":method", "CONNECT"), (":protocol", "websocket"), (":path", "/chat"), (":authority", "h")];
    let records = [
        c.at(20).headers(Client, 1, false, &connect),
        c.at(30).headers(Server, 1, false, &OK),
        c.at(40).data_end(Client, 1, 100, 0),
        c.at(50).data_end(Server, 1, 100, 0),
        // Refused.
        c.at(20).headers(Client, 3, false, &connect[..1]),
        c.at(30).headers(Server, 3, true, &[(":status", "403")]),
        c.at(31).reset(Server, 3, 0),
    ];
    check(&records, &["Client 1 CONNECT /chat? 200 0/0 20-20-30 ", "Client 2 CONNECT ? 403 0/0 20-20-30 "]);
}

const LOST: &str = "lost protocol records_missing Some(Server) 4242";

#[test]
fn what_is_missing_is_counted() {
    // Requests that were lost: by their numbers, when the next one or the end comes.
    let mut c = Connection::server(7);
    let first = [get(&mut c, 1), ok(&mut c, 1)];
    let _lost = [get(&mut c, 3), get(&mut c, 5)];
    let answered = [ok(&mut c, 3), ok(&mut c, 5)];
    let later = [get(&mut c, 7), ok(&mut c, 7)];
    // Its path was put into the table by stream 1, whose records came before the gap: unknown.
    let unknown = "Server 4 GET ? 200 0/0 10-20-30 ";
    check_open(&[&first[..], &answered[..], &later[..]].concat(), &[GOT, LOST, LOST, unknown], 2);
    let mut d = c.clone();
    let end = d.close(CLOSE_REMOTE, |_| {});
    check(&[&first[..], &answered[..], std::slice::from_ref(&end)].concat(), &[GOT, LOST, LOST, LOST]);
    check(&[&first[..], &answered[..], &later[..], &[end]].concat(), &[GOT, LOST, LOST, unknown]);
    // Nothing is missing: identifiers that are left out mean nothing.
    let mut c = Connection::server(7);
    let records = [get(&mut c, 1), ok(&mut c, 1), get(&mut c, 2_000_001)];
    check_open(&records, &[GOT], 1);
    // A connection of which nothing was seen.
    let mut c = Connection::server(8);
    let _lost = [get(&mut c, 1), get(&mut c, 3)];
    check(&[c.close(CLOSE_REMOTE, |_| {})], &[LOST, LOST]);
}

#[test]
fn ends_that_may_have_been_missed() {
    // The response's head and end are lost: at the end of the connection nobody knows.
    let mut c = Connection::server(7);
    let open = [get(&mut c, 1), get(&mut c, 3)];
    let _lost = ok(&mut c, 1);
    let third = ok(&mut c, 3);
    let close = c.at(50).close(CLOSE_REMOTE, |_| {});
    let seen = "Server 2 GET /a?k=REDACTED 200 0/0 10-20-30 ";
    check(&[&open[..], &[third.clone(), close.clone()]].concat(), &[seen, LOST]);
    check(&[&open[..], &[close]].concat(), &[LOST, LOST]);
    // Nor after some minutes.
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &[&open[..], &[third]].concat(), &mut lines);
    exchanges.sweep(200_000_000_000, Duration::from_secs(3600), &mut lines);
    assert_eq!(exchanges.open(), 1);
    exchanges.sweep(300_000_000_030, Duration::from_secs(3600), &mut lines);
    assert_eq!((exchanges.open(), &lines.0[..]), (0, &[seen.to_owned(), LOST.to_owned()][..]));
    // The head alone is lost: without it nobody knows how it went, but for a call.
    let mut c = Connection::server(7);
    let asked = c.at(20).headers(Client, 1, true, &CALL);
    let _lost = c.headers(Server, 1, false, &RPC_OK);
    let trailers = c.at(30).headers(Server, 1, true, &[("grpc-status", "0")]);
    let called = "Server 1 POST /s.S/M? None 0/0 20-20-30  rpc Some(0)  Some(0)/Some(0) Some(2000000)";
    check(&[asked, trailers], &[called]);
    let mut c = Connection::server(7);
    let asked = get(&mut c, 1);
    let _lost = c.headers(Server, 1, false, &OK);
    check(&[asked, c.data_end(Server, 1, 5, 0)], &[LOST]);
    // The end of the request is lost: the answer does not wait for it.
    let mut c = Connection::server(7);
    let asked = c.at(20).headers(Client, 1, false, &POST);
    let _lost = c.data_end(Client, 1, 5, 0);
    let next = get(&mut c, 3);
    check_open(&[asked, next, ok(&mut c, 1)], &["Server 1 POST /p? 200 0/0 20-20-30 "], 1);
}

#[test]
fn joined_in_the_middle() {
    let mut c = Connection::server(7);
    let _before = [get(&mut c, 1), ok(&mut c, 1), get(&mut c, 3)];
    c.join();
    let records = [
        // Of a request before our time.
        ok(&mut c, 3),
        get(&mut c, 5),
        ok(&mut c, 5),
        c.at(20).headers(Client, 7, true, &[(":method", "GET"), (":path", "/new")]),
        ok(&mut c, 7),
        c.close(CLOSE_REMOTE, |_| {}),
    ];
    check(&records, &["Server 3 GET ? 200 0/0 10-20-30 ", "Server 4 GET /new? 200 0/0 20-20-30 "]);
}

#[test]
fn hostile_peers_cost_bounded_memory() {
    let limits = Limits { open: 100, head_bytes: 1024, held_bytes: 256 * 1024 };
    let (mut exchanges, mut lines) = (Exchanges::new(limits), Lines::default());
    // More streams than there is room for: each is counted once.
    let mut c = Connection::server(7);
    for nth in 0..1_000 {
        feed(&mut exchanges, &[get(&mut c, 2 * nth + 1)], &mut lines);
    }
    assert_eq!(exchanges.open(), 100);
    feed(&mut exchanges, &[c.at(50).close(CLOSE_RESET, |_| {})], &mut lines);
    let is_full = |line: &&String| line.contains("pending_full");
    assert_eq!((lines.0.iter().filter(is_full).count(), lines.0.len()), (900, 1_000));
    // Endless continuations and header bombs on many connections.
    let big = "y".repeat(60_000);
    for number in 10..60 {
        let mut c = Connection::server(number);
        feed(&mut exchanges, &[get(&mut c, 1), ok(&mut c, 1)], &mut lines);
        let begin = Frame { kind: HEADERS, stream: 3, payload: vec![0; 9_000], ..Frame::default() };
        let more = Frame { kind: CONTINUATION, ..begin.clone() };
        feed(&mut exchanges, &[c.frame(Client, &begin)], &mut lines);
        for _ in 0..20 {
            feed(&mut exchanges, &[c.frame(Client, &more)], &mut lines);
            assert!(exchanges.held_bytes() <= 2 * limits.held_bytes, "{}", exchanges.held_bytes());
        }
        c.encoder(Server).resize(65_536);
        for nth in 0..20 {
            let path = format!("/{nth}{big}");
            feed(&mut exchanges, &[c.headers(Server, 1, true, &[(":path", path)])], &mut lines);
            assert!(exchanges.held_bytes() <= 2 * limits.held_bytes, "{}", exchanges.held_bytes());
        }
    }
    // All of them go on afterwards.
    lines.0.clear();
    let mut c = Connection::server(99);
    feed(&mut exchanges, &[get(&mut c, 1), ok(&mut c, 1)], &mut lines);
    assert_eq!(lines.0, [GOT]);
}

/// Connections that have served many streams and are idle now.
#[test]
fn idle_connections_are_small() {
    const CONNECTIONS: u64 = 50;
    for coding in [Coding::Eager, Coding::Selective, Coding::Plain] {
        let (mut http2, mut lines) = (Http2::new(Limits::default()), Lines::default());
        for number in 1..=CONNECTIONS {
            let mut c = Connection::server(number);
            c.coding = coding;
            for stream in (1..400).step_by(2) {
                let (path, parent) =
                    (format!("/orders/{stream}/items"), format!("00-{stream:032x}-{stream:016x}-01"));
                let agent = ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36");
                let asked = [
                    (":method", "GET"),
                    (":path", &path),
                    agent,
                    ("traceparent", &parent),
                    ("cookie", &path),
                ];
                let answered = [(":status", "200"), ("content-type", "application/json"), ("etag", &parent)];
                let records =
                    [c.headers(Client, stream, true, &asked), c.headers(Server, stream, true, &answered)];
                for record in records.iter().flatten() {
                    let Event::Frame(frame, payload) = decode(record.bytes()).unwrap() else {
                        panic!("a frame")
                    };
                    http2.accept(frame, payload, &mut lines);
                }
            }
        }
        assert_eq!((http2.open(), lines.0.len()), (0, 200 * CONNECTIONS as usize));
        let tables = http2.connections.held_bytes() / CONNECTIONS as usize;
        let whole = tables + size_of::<super::Connection>() + 2 * size_of::<(u64, u32)>();
        println!("{coding:?}: {whole} bytes per idle connection, {tables} of them header tables");
        assert!(whole <= 4 * 1024, "{coding:?}: {whole}");
    }
}

/// A stream of a random connection.
#[derive(Debug, Clone)]
struct Script {
    path: u8,
    status: u16,
    has_request_body: bool,
    has_response_body: bool,
    is_interim: bool,
    has_trailers: bool,
    /// 0: answered, 1: reset by the client, 2: by the server, 3: never answered.
    fate: u8,
}

fn script() -> impl Strategy<Value = Script> {
    (
        0..20_u8,
        200..600_u16,
        any::<[bool; 4]>(),
        prop_oneof![8 => Just(0), 1 => Just(1), 1 => Just(2), 1 => Just(3)],
    )
        .prop_map(
            |(path, status, [has_request_body, has_response_body, is_interim, has_trailers], fate)| Script {
                path,
                status,
                has_request_body,
                has_response_body,
                is_interim,
                has_trailers,
                fate,
            },
        )
}

/// The steps of one stream, each of which makes a frame.
fn step(c: &mut Connection, id: u32, script: &Script, nth: u32) -> Option<Vec<Record>> {
    let (path, status) = (format!("/path/{}", script.path), script.status.to_string());
    let Script { has_request_body, has_response_body, has_trailers, .. } = *script;
    match (nth, script.fate) {
        (0, _) => Some(c.headers(Client, id, !has_request_body, &[(":method", "PUT"), (":path", &path)])),
        (1, _) if has_request_body => Some(c.data_end(Client, id, 11, 0)),
        (2, 1) => Some(c.reset(Client, id, 8)),
        (2, 2) => Some(c.reset(Server, id, 7)),
        (2, 0) if script.is_interim => Some(c.headers(Server, id, false, &[(":status", "103")])),
        (3, 0) => {
            let is_end = !has_response_body && !has_trailers;
            Some(c.headers(Server, id, is_end, &[(":status", &status), ("x-path", &path)]))
        }
        (4, 0) if has_trailers => Some(c.headers(Server, id, true, &[("x-trailer", &path)])),
        (4, 0) if has_response_body => Some(c.data_end(Server, id, 22, 0)),
        _ => None,
    }
}

/// Ordinal, path, status if there was a response, failure.
type SeenExchange = (u64, String, Option<Option<u16>>, Option<Failure>);

#[derive(Default)]
struct Seen {
    exchanges: Vec<SeenExchange>,
    n_lost: usize,
}

impl Sink for Seen {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        assert!(exchange.arrival <= exchange.started && exchange.started <= exchange.ended);
        let status = exchange.response.map(|response| response.status);
        let ordinal = exchange.number & ((1 << ORDINAL_BITS) - 1);
        self.exchanges.push((ordinal, exchange.request.path.to_owned(), status, exchange.failure));
    }

    fn lost(&mut self, _: Loss) {
        self.n_lost += 1;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Streams in any order, in any pieces, with any records missing: each is seen or lost, once, and nothing that is
    /// told of it is wrong. Without missing records all are seen, and everything of them.
    #[test]
    fn each_stream_counts_once(
        scripts in prop::collection::vec(script(), 1..60),
        concurrency in 1..12_usize,
        piece in prop_oneof![Just(1880_usize), 1..60_usize],
        coding in prop::sample::select(vec![Coding::Random, Coding::Eager, Coding::Selective, Coding::Plain]),
        is_client: bool,
        drops in prop_oneof![Just(0_u32), 1..300_u32],
        seed: u64,
    ) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut c = if is_client { Connection::client(seed >> 30 | 1) } else { Connection::server(seed >> 30 | 1) };
        (c.piece, c.coding) = (piece, coding);
        let (mut exchanges, mut seen) = (Exchanges::new(Limits::default()), Seen::default());
        let (mut open, mut next, mut time) = (Vec::new(), 0, 1);
        while next < scripts.len() || !open.is_empty() {
            if next < scripts.len() && (open.is_empty() || open.len() < concurrency && rng.bool()) {
                open.push((next, 0));
                next += 1;
            }
            // Requests are opened in the order of their numbers.
            let first_new = open.iter().position(|(_, nth)| *nth == 0);
            let at = first_new.unwrap_or_else(|| rng.usize(..open.len()));
            let (stream, nth) = &mut open[at];
            let records = step(c.at(time), *stream as u32 * 2 + 1, &scripts[*stream], *nth);
            time += 1;
            *nth += 1;
            if *nth == 5 {
                open.swap_remove(at);
            }
            for record in records.into_iter().flatten() {
                if rng.u32(..1_000) >= drops {
                    exchanges.accept(&decode(record.bytes()).unwrap(), &mut seen);
                }
            }
        }
        for record in c.at(time).close(CLOSE_REMOTE, |_| {}) {
            exchanges.accept(&decode(record.bytes()).unwrap(), &mut seen);
        }
        prop_assert_eq!(exchanges.open(), 0);
        prop_assert_eq!(seen.exchanges.len() + seen.n_lost, scripts.len(), "sent = seen + lost");
        seen.exchanges.sort();
        prop_assert!(seen.exchanges.windows(2).all(|pair| pair[0].0 != pair[1].0), "no stream twice");
        prop_assert!(drops > 0 || seen.n_lost == 0);
        for (ordinal, path, status, failure) in &seen.exchanges {
            let script = &scripts[*ordinal as usize - 1];
            let right = format!("/path/{}", script.path);
            prop_assert!(*path == right || path.is_empty() && drops > 0, "{} {}", path, right);
            if script.fate == 0 && failure.is_none() {
                let is_unknown = *status == Some(None) && drops > 0;
                prop_assert!(*status == Some(Some(script.status)) || is_unknown, "{:?}", status);
            }
            prop_assert_eq!(failure.is_some(), script.fate != 0, "{:?} {:?}", failure, script);
        }
    }
}
