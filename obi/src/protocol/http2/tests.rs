//! Tests of streams: scripts of frames in, one line of text per outcome out.

mod bound;
mod call;
mod end;
mod exchange;
mod missing;
mod random;

use crate::capture::event::decode;
use crate::protocol::wire::Record;
use crate::protocol::wire::header_block::Coding;
use crate::protocol::wire::http2::{Connection, END_HEADERS, END_STREAM, Frame, From, HEADERS};
use crate::protocol::{Exchange, Exchanges, Failure, Http, Limits, Loss, Message, Semantics, Sink};
use obi_ebpf::{CLOSE_REMOTE, CLOSE_RESET, ORDINAL_BITS};
use std::time::Duration;

use From::{Client, Server};

#[derive(Default)]
struct Lines(Vec<String>);

impl Sink for Lines {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Exchange { number, arrival, started, ended, failure, .. } = exchange;
        let Message::Http(Http { request, response, semantics }) = exchange.message else {
            panic!("not HTTP")
        };
        let status = response.map_or("none".into(), |response| format!("{:?}", response.status));
        let status = status.trim_start_matches("Some(").trim_end_matches(')');
        let [sent, received] = [exchange.request_bytes, exchange.response_bytes]
            .map(|bytes| bytes.map_or("?".to_owned(), |bytes| bytes.to_string()));
        let failure = failure.map_or("", Failure::error_type);
        let rpc = match semantics {
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
            "{:?} {} {} {}?{} {status} {sent}/{received} {arrival}-{started}-{ended} {failure}{rpc}{}",
            exchange.side,
            number & ((1 << ORDINAL_BITS) - 1),
            request.method,
            request.path,
            request.query,
            if request.is_truncated { " cut" } else { "" },
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
