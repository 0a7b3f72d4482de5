//! How much memory peers can cost.

use super::*;
use crate::capture::event::Event;
use crate::protocol::http2::Http2;
use crate::protocol::wire::http2::CONTINUATION;

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
        let whole = tables + size_of::<crate::protocol::http2::Connection>() + 2 * size_of::<(u64, u32)>();
        println!("{coding:?}: {whole} bytes per idle connection, {tables} of them header tables");
        assert!(whole <= 4 * 1024, "{coding:?}: {whole}");
    }
}
