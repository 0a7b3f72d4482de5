//! Event bytes → exchange → span, on one core.
//!
//! In: the records of small real heads (nginx answering wrk; a service behind a proxy). Out: exchanges per
//! second. Run with `cargo bench -p obi --bench pipeline`.

use divan::{Bencher, black_box, counter::ItemsCount};
use obi::capture::event::decode;
use obi::protocol::{Exchange, Exchanges, Limits, Loss, Sink};
use obi::span::{Assembler, Service, Span, assemble::DEFAULT_ROUTES, method::KnownMethods};
use obi_ebpf::{MESSAGE_REQUEST, MESSAGE_RESPONSE};
use std::sync::Arc;
use wire::{Record, WHOLE, Wire};

#[path = "../tests/library/wire/mod.rs"]
mod wire;

const WRK: &str = "GET /index.html HTTP/1.1\r\nHost: localhost:8080\r\n\r\n";
const NGINX: &str = "HTTP/1.1 200 OK\r\nServer: nginx/1.22.1\r\nDate: Fri, 21 Nov 2025 00:31:00 GMT\r\n\
    Content-Type: text/html\r\nContent-Length: 1024\r\nLast-Modified: Fri, 21 Nov 2025 00:00:00 GMT\r\n\
    Connection: keep-alive\r\nETag: \"691faf80-400\"\r\nAccept-Ranges: bytes\r\n\r\n";
const SERVICE: &str = "GET /api/v1/orders/8812/items?limit=20&token=abc HTTP/1.1\r\nHost: orders.internal:8080\r\n\
    User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36\r\nAccept: application/json\r\n\
    Accept-Encoding: gzip, br\r\nCookie: session=0123456789abcdef0123456789abcdef\r\n\
    X-Request-Id: 5b2c8f0e-9d1a-4c6e-8f3b-2a1d0c9e8b7f\r\nX-Forwarded-For: 203.0.113.7\r\n\
    traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01\r\ntracestate: vendor=1\r\n\r\n";

/// Exchanges in one round.
const ROUND: u64 = 1024;
/// Exchanges open at the same time, as `wrk -c64` keeps them.
const OPEN: usize = 64;

fn main() {
    divan::main();
}

/// Everything behind the ring buffer.
struct Spans {
    assembler: Assembler,
    service: Arc<Service>,
    span: Span,
    n_spans: u64,
}

impl Sink for Spans {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        self.assembler.assemble(exchange, &self.service, 1_700_000_000_000_000_000, &mut self.span);
        self.n_spans += 1;
        black_box(&self.span);
    }

    fn lost(&mut self, loss: Loss) {
        panic!("the benchmark loses nothing: {loss:?}");
    }
}

impl Spans {
    fn new() -> Self {
        let assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
        Self { assembler, service: Arc::new(Service::default()), span: Span::blank(), n_spans: 0 }
    }
}

/// One record per head and body end, as for a file that leaves with its head by `writev` and `sendfile`.
fn records(request: &str) -> Vec<Record> {
    let wires: Vec<_> = (1..=ROUND).map(|nth| Wire::server(nth << 24).at(nth)).collect();
    let records_of = |batch: &[Wire]| {
        let requests = batch.iter().map(|wire| wire.piece(MESSAGE_REQUEST, WHOLE, 0, 0, request.as_bytes()));
        let responses = batch.iter().map(|wire| wire.head(MESSAGE_RESPONSE, 0, NGINX));
        let ends = batch.iter().map(|wire| wire.end(MESSAGE_RESPONSE, 0, 1024));
        requests.chain(responses).chain(ends).collect::<Vec<_>>()
    };
    wires.chunks(OPEN).flat_map(records_of).collect()
}

fn run(bencher: Bencher<'_, '_>, request: &str) {
    let records = records(request);
    let (mut exchanges, mut spans) = (Exchanges::new(Limits::default()), Spans::new());
    bencher.counter(ItemsCount::new(ROUND)).bench_local(|| {
        for record in &records {
            let event = decode(black_box(record.bytes())).expect("the records are well formed");
            exchanges.accept(&event, &mut spans);
        }
    });
    assert!(spans.n_spans > 0 && spans.n_spans.is_multiple_of(ROUND));
}

#[divan::bench]
fn wrk_to_nginx(bencher: Bencher<'_, '_>) {
    run(bencher, WRK);
}

#[divan::bench]
fn proxy_to_service(bencher: Bencher<'_, '_>) {
    run(bencher, SERVICE);
}
