//! Records that are missing, and connections joined in the middle.

use super::*;

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
    // The response's head and end are lost: at the end of the connection the outcome is not known.
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
    // A thread was about to count its last record when the network ended the connection.
    let mut c = Connection::server(7);
    let begun = [get(&mut c, 1), c.at(30).headers(Server, 1, false, &OK)];
    let early = c.at(50).close(CLOSE_RESET, |close| close.sent_pieces -= 1);
    check(
        &[&begun[..], &[early]].concat(),
        &["Server 1 GET /a?k=REDACTED 200 0/? 10-20-50 connection_reset"],
    );
    // The head alone is lost: without it the outcome is not known, but for a call.
    let mut c = Connection::server(7);
    let asked = c.at(20).headers(Client, 1, true, &CALL);
    let _lost = c.headers(Server, 1, false, &RPC_OK);
    let trailers = c.at(30).headers(Server, 1, true, &[("grpc-status", "0")]);
    let called = "Server 1 POST /s.S/M? None 0/0 20-20-30  rpc Some(0)  Some(0)/Some(0) Some(2000000)";
    check(&[asked, trailers], &[called]);
    // The trailers say what was carried, unless that passed unseen, too.
    for (body_bytes, messages, reported) in [
        (42_750, 3, "0/42750 20-20-30  rpc Some(0)  Some(0)/Some(3)"),
        (u64::MAX, u32::MAX, "0/? 20-20-30  rpc Some(0)  Some(0)/None"),
    ] {
        let mut c = Connection::server(7);
        let asked = c.at(20).headers(Client, 1, true, &CALL);
        let _lost = c.headers(Server, 1, false, &RPC_OK);
        let payload = c.encoder(Server).encode(&[("grpc-status", "0")], Coding::Eager);
        let flags = END_HEADERS | END_STREAM;
        let trailers =
            c.at(30).frame(Server, &Frame { kind: HEADERS, flags, stream: 1, payload, body_bytes, messages });
        check(&[asked, trailers], &[&format!("Server 1 POST /s.S/M? None {reported} Some(2000000)")]);
    }
    let mut c = Connection::server(7);
    let asked = get(&mut c, 1);
    let _lost = c.headers(Server, 1, false, &OK);
    check(&[asked, c.data_end(Server, 1, 5, 0)], &[LOST]);
    // The end of the request is lost: the answer does not wait for it.
    let mut c = Connection::server(7);
    let asked = c.at(20).headers(Client, 1, false, &POST);
    let _lost = c.data_end(Client, 1, 5, 0);
    let next = get(&mut c, 3);
    check_open(&[asked, next, ok(&mut c, 1)], &["Server 1 POST /p? 200 ?/0 20-20-30 "], 1);
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
