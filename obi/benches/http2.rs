//! Records of HTTP/2 frames → header blocks → streams → exchanges, on one core.
//!
//! In: header blocks as Go and curl make them: requests to a service behind a proxy, and unary calls over gRPC; a few
//! connections with a hundred streams open on each. Out: streams per second. Run with
//! `cargo bench -p obi --bench http2`.

use divan::{Bencher, black_box, counter::ItemsCount};
use obi::capture::event::decode;
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Message, Sink};
use obi_ebpf::{CLOSE_REMOTE, ORDINAL_BITS};
use wire::Record;
use wire::header_block::Coding;
use wire::http2::{Connection, END_HEADERS, END_STREAM, Frame, From, HEADERS};

#[path = "../tests/library/wire/mod.rs"]
mod wire;

/// Connections in a round; each ends with it.
const CONNECTIONS: u64 = 4;
/// Streams of a connection.
const STREAMS: u32 = 1_000;
/// Streams open at the same time on each.
const OPEN: u32 = 100;

fn main() {
    divan::main();
}

#[derive(Default)]
struct Count(u64);

impl Sink for Count {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Message::Http(http) = exchange.message else { return };
        assert!(!http.request.path.is_empty() && exchange.failure.is_none());
        black_box(exchange);
        self.0 += 1;
    }

    fn lost(&mut self, loss: Loss) {
        panic!("the benchmark loses nothing: {loss:?}");
    }
}

/// A request to a service behind a proxy.
fn get(c: &mut Connection, stream: u32) -> Vec<Record> {
    let (path, parent) = (
        format!("/api/v1/orders/{}/items?limit=20", stream % 97),
        format!("00-{:032x}-{:016x}-01", u128::from(stream) << 64 | 7, stream),
    );
    let fields = [
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "orders.internal:8443"),
        (":path", &path),
        ("user-agent", "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36"),
        ("accept", "application/json"),
        ("accept-encoding", "gzip, deflate"),
        ("cookie", "session=0123456789abcdef0123456789abcdef"),
        ("traceparent", &parent),
    ];
    c.headers(From::Client, stream, true, &fields)
}

fn got(c: &mut Connection, stream: u32) -> Vec<Record> {
    let (length, etag) = (format!("{}", stream * 13 % 5_000), format!("\"{stream:x}\""));
    let fields = [
        (":status", if stream % 20 == 1 { "404" } else { "200" }),
        ("content-type", "application/json"),
        ("content-length", &length),
        ("date", "Fri, 21 Nov 2025 00:31:00 GMT"),
        ("etag", &etag),
    ];
    let head = c.headers(From::Server, stream, false, &fields);
    [head, c.data_end(From::Server, stream, 1024, 0)].concat()
}

/// A unary call.
fn call(c: &mut Connection, stream: u32) -> Vec<Record> {
    let path = format!("/shop.v1.Orders/Method{}", stream % 13);
    let fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", &path),
        (":authority", "orders:50051"),
        ("content-type", "application/grpc"),
        ("user-agent", "grpc-go/1.76.0"),
        ("te", "trailers"),
        ("grpc-timeout", "999m"),
    ];
    let head = c.headers(From::Client, stream, false, &fields);
    [head, c.data_end(From::Client, stream, 57, 1)].concat()
}

fn called(c: &mut Connection, stream: u32) -> Vec<Record> {
    let head =
        c.headers(From::Server, stream, false, &[(":status", "200"), ("content-type", "application/grpc")]);
    let payload =
        c.encoder(From::Server).encode(&[("grpc-status", "0"), ("grpc-message", "")], Coding::Eager);
    let flags = END_HEADERS | END_STREAM;
    let trailers = Frame { kind: HEADERS, flags, stream, payload, body_bytes: 99, messages: 1 };
    [head, c.frame(From::Server, &trailers)].concat()
}

type Step = fn(&mut Connection, u32) -> Vec<Record>;

fn records(ask: Step, answer: Step, coding: Coding) -> Vec<Vec<Record>> {
    let made = |number| {
        let mut c = Connection::server(number);
        c.coding = coding;
        let mut records = Vec::new();
        for first in (0..STREAMS).step_by(OPEN as usize) {
            for steps in [ask, answer] {
                for nth in first..first + OPEN {
                    records.extend(steps(c.at(u64::from(nth) + 1), nth * 2 + 1));
                }
            }
        }
        records.extend(c.close(CLOSE_REMOTE, |_| {}));
        records
    };
    (1..=CONNECTIONS).map(made).collect()
}

fn run(bencher: Bencher<'_, '_>, ask: Step, answer: Step, coding: Coding) {
    let mut connections = records(ask, answer, coding);
    let (mut exchanges, mut count, mut number) = (Exchanges::new(Limits::default()), Count::default(), 0);
    let n_streams = CONNECTIONS * u64::from(STREAMS);
    bencher.counter(ItemsCount::new(n_streams)).bench_local(|| {
        for records in &mut connections {
            number += 1;
            for record in records {
                // Each round is another life of the connection.
                record.renumber(number << ORDINAL_BITS);
                let event = decode(black_box(record.bytes())).expect("the records are well formed");
                exchanges.accept(&event, &mut count);
            }
        }
    });
    assert!(count.0 > 0 && count.0.is_multiple_of(n_streams));
    assert_eq!(exchanges.open(), 0);
}

#[divan::bench]
fn requests_by_an_eager_encoder(bencher: Bencher<'_, '_>) {
    run(bencher, get, got, Coding::Eager);
}

#[divan::bench]
fn requests_by_a_selective_encoder(bencher: Bencher<'_, '_>) {
    run(bencher, get, got, Coding::Selective);
}

#[divan::bench]
fn unary_calls(bencher: Bencher<'_, '_>) {
    run(bencher, call, called, Coding::Eager);
}
