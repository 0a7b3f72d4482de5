//! Streams that end early, or with their connection.

use super::*;
use crate::protocol::wire::Wire;
use obi_ebpf::{CLOSE_ABANDONED, CLOSE_LOCAL, FLAG_MESSAGE_END, LOSS_FRAMING, MESSAGE_REQUEST};

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
        // No record has said how much of the answer's content had passed.
        let (status, bytes) = if started { ("200", "?") } else { ("none", "0") };
        check(&records, &[&format!("{side} 1 GET /a?k=REDACTED {status} 0/{bytes} 10-20-40 {word}")]);
    };
    let (server, client) = (obi_ebpf::SIDE_SERVER, obi_ebpf::SIDE_CLIENT);
    check_side(client, false, Client, 8, "connection_aborted");
    check_side(server, true, Client, 8, "connection_closed");
    check_side(server, false, Server, 7, "stream_refused");
    check_side(client, true, Server, 8, "response_truncated");
    check_side(client, true, Server, 2, "stream_reset");

    // Segments may end inside of the code, and of the stream that a server names when it goes away.
    for piece in 1..=4 {
        let mut c = Connection::server(7);
        let mut records = vec![get(&mut c, 1), get(&mut c, 0x103), get(&mut c, 0x105)];
        c.piece = piece;
        records.extend([c.at(40).reset(Client, 1, 8), c.at(40).go_away(Server, 0x103)]);
        let closed = "Server 1 GET /a?k=REDACTED none 0/0 10-20-40 connection_closed";
        let refused = "Server 131 GET /a?k=REDACTED none 0/0 10-20-40 stream_refused";
        check_open(&records, &[closed, refused], 1);
    }

    // The server answers without reading the request to its end.
    let mut c = Connection::server(7);
    let records = [
        c.at(20).headers(Client, 1, false, &POST),
        c.at(30).headers(Server, 1, true, &OK),
        c.at(31).reset(Server, 1, 0),
    ];
    check(&records, &["Server 1 POST /p? 200 ?/0 20-20-30 "]);
    // It does not say so: a second later no end waits any more.
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &records[..2], &mut lines);
    exchanges.sweep(1_000_000_000, Duration::from_secs(60), &mut lines);
    assert!(lines.0.is_empty());
    exchanges.sweep(1_000_000_030, Duration::from_secs(60), &mut lines);
    assert_eq!(lines.0, ["Server 1 POST /p? 200 ?/0 20-20-30 "]);

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
    let failed =
        |status, bytes, word| format!("Server 1 GET /a?k=REDACTED {status} 0/{bytes} 10-20-50 {word}");
    for (reason, before, after) in [
        (CLOSE_REMOTE, "connection_closed", "connection_closed"),
        (CLOSE_LOCAL, "connection_aborted", "response_truncated"),
        (CLOSE_RESET, "connection_reset", "connection_reset"),
    ] {
        let mut c = Connection::server(7);
        check(&[get(&mut c, 1), c.at(50).close(reason, |_| {})], &[&failed("none", "0", before)]);
        let mut c = Connection::server(7);
        let records = [get(&mut c, 1), c.headers(Server, 1, false, &OK), c.at(50).close(reason, |_| {})];
        check(&records, &[&failed("200", "?", after)]);
    }
    // An answer whose request was not read to its end is whole.
    let mut c = Connection::server(7);
    let records = [c.at(20).headers(Client, 1, false, &POST), ok(&mut c, 1), c.close(CLOSE_LOCAL, |_| {})];
    check(&records, &["Server 1 POST /p? 200 ?/0 20-20-30 "]);
    // The kernel side could not go on.
    let mut c = Connection::server(7);
    let abandoned = |close: &mut obi_ebpf::close_event| close.loss = LOSS_FRAMING as u8;
    let records = [get(&mut c, 1), get(&mut c, 3), ok(&mut c, 1), c.close(CLOSE_ABANDONED, abandoned)];
    check(&records, &[GOT, "lost kernel framing Some(Server) 4242"]);
    // It has counted them itself.
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &records[..2], &mut lines);
    assert!(exchanges.forget(7 << ORDINAL_BITS, &mut lines) && exchanges.open() == 0 && lines.0.is_empty());
}

/// The first exchange before an upgrade has the number of the connection, and is what goes first.
#[test]
fn an_exchange_is_forgotten_before_its_connection() {
    const NUMBER: u64 = 7 << ORDINAL_BITS;
    let asked = Wire::server(NUMBER).at(20).head(MESSAGE_REQUEST, FLAG_MESSAGE_END, "GET / HTTP/1.1\r\n\r\n");
    let mut c = Connection::server(7);
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    feed(&mut exchanges, &[vec![asked], get(&mut c, 3)], &mut lines);
    assert!(exchanges.forget(NUMBER, &mut lines));
    assert_eq!(exchanges.open(), 1, "the stream");
    assert!(exchanges.forget(NUMBER, &mut lines));
    assert_eq!((exchanges.open(), exchanges.forget(NUMBER, &mut lines)), (0, false));
}

/// What a stream has carried is reported before it is reset, and before its connection ends.
#[test]
fn ends_tell_what_was_carried() {
    for is_reset in [true, false] {
        let mut c = Connection::server(7);
        let records = [
            c.at(20).headers(Client, 1, false, &POST),
            c.at(25).headers(Server, 1, false, &OK),
            c.at(40).arrived(21).reported(Client, 1, 70, u32::MAX),
            c.at(40).arrived(30).reported(Server, 1, 500, u32::MAX),
            if is_reset { c.at(40).reset(Client, 1, 8) } else { c.at(40).close(CLOSE_REMOTE, |_| {}) },
            // Of what is over, and of a connection that is not known.
            c.reported(Server, 1, 500, 0),
            Connection::server(8).reported(Server, 1, 500, 0),
        ];
        check(&records, &["Server 1 POST /p? 200 70/500 20-20-40 connection_closed"]);
    }
}

/// Who knows how many bytes come stops reading behind them: the end of the stream is not seen, or long after.
#[test]
fn promised_bytes_make_a_response_whole() {
    let check_end = |length: &str, carried: u64, end: fn(&mut Connection) -> Vec<Record>, expected: &str| {
        let mut c = Connection::client(7);
        let head = [(":status", "200"), ("content-length", length)];
        let mut records = vec![get(&mut c, 1), c.at(25).headers(Server, 1, false, &head)];
        if carried > 0 {
            records.push(c.at(50).arrived(30).reported(Server, 1, carried, 0));
        }
        records.push(end(&mut c));
        let expected = format!("Client 1 GET /a?k=REDACTED 200 0/{carried} 10-20-{expected}");
        check(&records, &[&expected]);
    };
    let reset: fn(&mut Connection) -> _ = |c| c.at(50).reset(Client, 1, 5);
    let close: fn(&mut Connection) -> _ = |c| c.at(50).close(CLOSE_LOCAL, |_| {});
    let broken: fn(&mut Connection) -> _ = |c| c.at(50).close(CLOSE_RESET, |_| {});
    for end in [reset, close, broken] {
        check_end("500", 500, end, "30 ");
    }
    check_end("500", 499, reset, "50 connection_aborted");
    check_end("500", 499, broken, "50 connection_reset");
    check_end("5x", 5, reset, "50 connection_aborted");
    check_end("-5", 5, reset, "50 connection_aborted");
    // The frame with the end may be empty, and read with the next response.
    let end: fn(&mut Connection) -> _ = |c| c.at(50).arrived(30).data_end(Server, 1, 500, 0);
    let mut c = Connection::client(7);
    let head = |length| [(":status", "200"), ("content-length", length)];
    let records = [get(&mut c, 1), c.at(25).headers(Server, 1, false, &head("500")), end(&mut c)];
    check(&records, &["Client 1 GET /a?k=REDACTED 200 0/500 10-20-30 "]);
    let mut c = Connection::client(7);
    let records = [get(&mut c, 1), c.at(25).headers(Server, 1, false, &head("501")), end(&mut c)];
    check(&records, &["Client 1 GET /a?k=REDACTED 200 0/500 10-20-50 "]);
    // An answer to HEAD, and trailers behind the body.
    let mut c = Connection::client(7);
    let records = [get(&mut c, 1), c.at(25).headers(Server, 1, true, &head("500"))];
    check(&records, &["Client 1 GET /a?k=REDACTED 200 0/0 10-20-25 "]);
}

#[test]
fn open_streams_are_those_of_the_connection() {
    let (mut exchanges, mut lines) = (Exchanges::new(Limits::default()), Lines::default());
    let (mut one, mut other) = (Connection::server(7), Connection::server(8));
    let records = [get(&mut one, 1), get(&mut one, 3), get(&mut other, 1), get(&mut one, 5), ok(&mut one, 3)];
    feed(&mut exchanges, &records, &mut lines);
    let open = |number: u64| {
        let mut streams = exchanges.open_streams(number << ORDINAL_BITS);
        streams.sort_unstable();
        streams
    };
    assert_eq!((open(7), open(8), open(9)), (vec![1, 5], vec![1], vec![]));
}
