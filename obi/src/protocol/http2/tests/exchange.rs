//! Streams that end as they should, in any pieces; upgrades and tunnels.

use super::*;
use crate::protocol::wire::Wire;
use crate::protocol::wire::http2::{CONTINUATION, PADDED, PRIORITY, PUSH_PROMISE};
use obi_ebpf::{
    FLAG_HTTP2, FLAG_MESSAGE_END, FLAG_TUNNEL, FLAG_WEBSOCKET, MESSAGE_REQUEST, MESSAGE_RESPONSE,
};

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
    check(&records, &["Client 1 CONNECT /chat? 200 ?/? 20-20-30 ", "Client 2 CONNECT ? 403 ?/0 20-20-30 "]);
}

/// What stands behind the limit may have been a `traceparent`.
#[test]
fn a_header_block_that_is_not_copied_whole_is_marked() {
    let long = "x".repeat(300);
    for (copied, reported) in [(usize::MAX, ""), (120, " cut")] {
        let mut c = Connection::server(7);
        c.copied = copied;
        let fields: Vec<(&str, &str)> = GET.into_iter().chain([("cookie", long.as_str())]).collect();
        let asked = c.at(20).arrived(10).headers(Client, 1, true, &fields);
        check(&[asked, ok(&mut c, 1)], &[&format!("{GOT}{reported}")]);
    }
}
