//! Every shape an HTTP/1 exchange can have, from raw ends that control each system call.

use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::load;
use integration::patience::patience;
use integration::plan::{Address, Call, ConnectionPlan, Plan, Segmentation, ServerPlan};
use integration::script;
use integration::seed::seeded;
use integration::server::shape::{ShapeServer, every_way};
use integration::server::{Features, Server};
use integration::shape::{Ending, Framing, RequestFraming, Shape};
use integration::span::Span;
use integration::wire::{Connection, Listener, Outgoing, ReadMode, Stream, WriteMode};
use rustix::event::{PollFd, PollFlags, poll};

use crate::gate;

/// Raw ends over which every test of this module runs: an agent, a server of every way, and what happened.
struct Bench {
    agent: Agent,
    server: ShapeServer,
    ledger: Ledger,
    rng: fastrand::Rng,
}

impl Bench {
    fn start(name: &str, plan: ServerPlan) -> Self {
        Self::start_with(name, plan, Config::default().alone())
    }

    fn start_with(name: &str, plan: ServerPlan, config: Config) -> Self {
        let mut rng = seeded(name);
        // Heads in tiny pieces need room, 600,000 records in seconds for an agent without optimization; what happens
        // without it is `overload`'s business.
        let agent = Agent::start(config.set("capture", "ring_bytes", 64 << 20)).unwrap();
        let server = ShapeServer::start("shape", ServerPlan { seed: rng.u64(..), ..plan }).unwrap();
        Self { agent, server, ledger: Ledger::default(), rng }
    }

    fn server(&self) -> &Server {
        &self.server.server
    }

    /// One connection per group of calls, with the given depth and cuts and every way to read and write.
    fn connection(&mut self, calls: Vec<Call>, depth: usize, segmentation: Segmentation) -> ConnectionPlan {
        ConnectionPlan {
            depth,
            segmentation,
            reads: ReadMode::ALL.to_vec(),
            writes: WriteMode::ALL.to_vec(),
            ..ConnectionPlan::new(&self.server().address, calls)
        }
    }

    #[track_caller]
    fn run(&mut self, mut connections: Vec<ConnectionPlan>) {
        connections.push(gate::lasting(&self.server().address));
        let plan = Plan { seed: self.rng.u64(..), concurrency: 4, rate: 0, connections };
        gate::follow(&mut self.ledger, &self.server.server, &plan);
    }

    #[track_caller]
    fn assert_exact(mut self) {
        gate::assert_exact(&mut self.agent, &self.ledger);
    }
}

/// `count` calls of one shape.
fn calls(count: usize, shape: &Shape) -> Vec<Call> {
    (0..count).map(|_| Call::new(shape.clone())).collect()
}

#[test]
fn random_shapes_in_random_segments() {
    let mut bench = Bench::start("shape random", every_way(0));
    let connections = (0..40)
        .map(|_| {
            let calls: Vec<Call> = (0..bench.rng.usize(1..60))
                .map(|_| Call::new(load::odd_shape(&mut bench.rng, &Features::full())))
                .collect();
            let segmentation = match bench.rng.u8(..3) {
                0 => Segmentation::Whole,
                1 => Segmentation::Pieces(bench.rng.usize(20..200)),
                _ => Segmentation::Pieces(bench.rng.usize(1_000..9_000)),
            };
            let depth = bench.rng.usize(1..10);
            bench.connection(calls, depth, segmentation)
        })
        .collect();
    bench.run(connections);
    bench.assert_exact();
}

/// Packets come in while the kernel program looks at where the connection began: it has to be seen from there.
#[test]
fn first_heads_that_arrive_while_they_are_read() {
    let plan = ServerPlan { reads: vec![ReadMode::Tiny, ReadMode::Recv], ..ServerPlan::default() };
    let mut bench = Bench::start("shape arriving", plan);
    let long = Shape { filler: 3_000, ..Shape::default() };
    let connections = (0..1_000)
        .map(|_| ConnectionPlan {
            segmentation: Segmentation::Pieces(10),
            ..ConnectionPlan::new(&bench.server().address, calls(1, &long))
        })
        .collect();
    bench.run(connections);
    bench.assert_exact();
}

#[test]
fn pipelines_of_any_depth() {
    let mut bench = Bench::start("shape pipelines", every_way(0));
    for depth in [1, 2, 3, 10, 50, 100, 300, 1000] {
        for segmentation in [Segmentation::Whole, Segmentation::Pieces(700)] {
            let small = Shape { response_bytes: bench.rng.u64(0..60), ..Shape::default() };
            let chunked = Shape { framing: Framing::Chunked, trailers: true, ..small.clone() };
            let posted = Shape {
                method: "POST".into(),
                request_framing: RequestFraming::Length,
                request_bytes: 9,
                ..small.clone()
            };
            let mixed: Vec<Call> = [small, chunked, posted]
                .iter()
                .cycle()
                .take(depth)
                .map(|shape| Call::new(shape.clone()))
                .collect();
            let connection = bench.connection(mixed, depth, segmentation);
            bench.run(vec![connection]);
        }
    }
    bench.assert_exact();
}

#[test]
fn heads_byte_by_byte() {
    let plan = ServerPlan { reads: vec![ReadMode::Tiny, ReadMode::Read], ..every_way(0) };
    let mut bench = Bench::start("shape bytewise", plan);
    let shapes = [
        Shape { head_pieces: 0, ..Shape::default() },
        Shape { head_pieces: 0, interim: 2, framing: Framing::Chunked, trailers: true, ..Shape::default() },
        Shape { head_pieces: 0, method: "HEAD".into(), response_bytes: 5000, ..Shape::default() },
        Shape {
            head_pieces: 0,
            method: "POST".into(),
            request_framing: RequestFraming::Chunked,
            request_bytes: 100,
            trailers: true,
            ..Shape::default()
        },
    ];
    let calls: Vec<Call> = shapes.iter().cycle().take(40).map(|shape| Call::new(shape.clone())).collect();
    let connections = vec![
        bench.connection(calls[..20].to_vec(), 1, Segmentation::Bytewise),
        bench.connection(calls[20..].to_vec(), 5, Segmentation::Bytewise),
    ];
    bench.run(connections);
    bench.assert_exact();
}

#[test]
fn heads_beyond_the_limit() {
    let config = Config::default().alone().set("capture", "head_limit", 4096);
    let mut bench = Bench::start_with("shape long heads", every_way(0), config);
    let long: Vec<Call> = [3_000, 4_000, 5_000, 9_000, 30_000, 200_000]
        .iter()
        .cycle()
        .take(60)
        .map(|filler| Call::new(Shape { filler: *filler, ..Shape::default() }))
        .collect();
    let connections = vec![
        bench.connection(long[..20].to_vec(), 1, Segmentation::Whole),
        bench.connection(long[20..40].to_vec(), 4, Segmentation::Whole),
        bench.connection(long[40..].to_vec(), 4, Segmentation::Pieces(900)),
    ];
    bench.run(connections);
    gate::assert_exact(&mut bench.agent, &bench.ledger);
    // Those that were longer say so, and are counted.
    let marked = |span: &&Span| span.attributes.get("obi.request.head.truncated") == Some(&true.into());
    let n_marked = bench.agent.spans().unwrap().iter().filter(marked).count();
    let counted = bench.agent.metric_value("obi_truncated_heads_total", &[]).unwrap();
    assert!(n_marked >= 60 && n_marked as f64 == counted, "{n_marked} marked, {counted} counted");
}

#[test]
fn large_bodies_in_large_calls() {
    let mut bench = Bench::start("shape large", every_way(0));
    let mebibyte = Shape {
        method: "PUT".into(),
        request_framing: RequestFraming::Length,
        request_bytes: 1 << 20,
        response_bytes: 1 << 20,
        ..Shape::default()
    };
    let chunked =
        Shape { framing: Framing::Chunked, request_framing: RequestFraming::Chunked, ..mebibyte.clone() };
    let connections =
        [mebibyte, chunked].map(|shape| bench.connection(calls(12, &shape), 1, Segmentation::Whole));
    bench.run(connections.into());
    bench.assert_exact();
}

#[test]
fn exchanges_that_break() {
    let mut bench = Bench::start("shape broken", every_way(0));
    let large = Shape { response_bytes: 12 << 20, ..Shape::default() };
    let shapes = [
        Shape { response_bytes: 5_000, ending: Ending::ServerCloses(0), ..Shape::default() },
        Shape { response_bytes: 5_000, ending: Ending::ServerCloses(2_500), ..Shape::default() },
        Shape {
            response_bytes: 5_000,
            ending: Ending::ServerCloses(70),
            framing: Framing::Chunked,
            ..Shape::default()
        },
        Shape { response_bytes: 5_000, ending: Ending::ServerResets(1_000), ..Shape::default() },
        Shape { ending: Ending::ClientResets(1), ..large.clone() },
        Shape { ending: Ending::ClientResets(70_000), ..large.clone() },
        Shape { ending: Ending::ClientResets(9_000), framing: Framing::Chunked, ..large },
        Shape { ending: Ending::ClientLeaves, delay: 20_000, ..Shape::default() },
        Shape::default(),
    ];
    let connections = (0..20)
        .map(|_| {
            let mut calls: Vec<Call> = shapes.iter().map(|shape| Call::new(shape.clone())).collect();
            bench.rng.shuffle(&mut calls);
            bench.connection(calls, 1, Segmentation::Whole)
        })
        .collect();
    bench.run(connections);
    bench.assert_exact();
}

/// Odd shapes over another address family; both ends read by `reads`.
fn over(address: Address, reads: &[ReadMode]) -> Bench {
    let name = format!("shape {address:?}");
    let mut bench = Bench::start(&name, ServerPlan { address, reads: reads.to_vec(), ..every_way(0) });
    let connections = (0..10)
        .map(|_| {
            let calls =
                (0..30).map(|_| Call::new(load::odd_shape(&mut bench.rng, &Features::full()))).collect();
            let depth = bench.rng.usize(1..5);
            let connection = bench.connection(calls, depth, Segmentation::Pieces(5_000));
            ConnectionPlan { reads: reads.to_vec(), ..connection }
        })
        .collect();
    bench.run(connections);
    bench
}

#[test]
fn ipv6() {
    over(Address::Tcp(SocketAddr::from((std::net::Ipv6Addr::LOCALHOST, 0))), &ReadMode::ALL).assert_exact();
}

/// All but splice: a socket without stream offsets shows nothing of unseen bytes (see `docs/limits.md`).
fn all_but_splice() -> Vec<ReadMode> {
    ReadMode::ALL.into_iter().filter(|mode| *mode != ReadMode::Splice).collect()
}

#[test]
fn unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    over(Address::Unix(folder.path().join("socket")), &all_but_splice()).assert_exact();
}

/// Its sockets are seen as what they are to their processes, not the paths that the kernel has them take.
#[test]
fn multipath_tcp() {
    let any = Address::Multipath(SocketAddr::from((std::net::Ipv4Addr::LOCALHOST, 0)));
    let mut bench = over(any, &all_but_splice());
    gate::assert_exact(&mut bench.agent, &bench.ledger);
    let uncovered = bench.agent.metric_value("obi_uncovered_connections_total", &[]).unwrap();
    assert_eq!(uncovered, 0.0);
}

#[test]
fn a_span_is_visible_within_a_second_on_an_idle_connection() {
    let mut bench = Bench::start("shape idle", ServerPlan::default());
    let call = Call::new(Shape::default());
    let stream = Stream::connect(&bench.server().address, None).unwrap();
    let mut connection = Connection::new(stream, &[ReadMode::Read], &[WriteMode::Write], 0);
    connection.write(&script::request(&call, "idle")).unwrap();
    let (head, _) = connection.head().unwrap().unwrap();
    assert!(head.starts_with(b"HTTP/1.1 200"));
    assert_eq!(connection.length_body(17).bytes, 17);
    let answered = Instant::now();
    let service = bench.server().service.clone();
    let is_it = |span: &Span| span.request_id() == Some(&call.id) && span.service.name == service;
    let spans = bench.agent.spans_until(gate::PATIENCE, |spans| spans.iter().any(is_it)).unwrap();
    assert!(spans.iter().any(is_it), "no span while the connection stays open");
    assert!(
        answered.elapsed() < patience(Duration::from_secs(1)),
        "visible only after {:?}",
        answered.elapsed()
    );
}

/// The server is this process: it lets a request wait before it reads it.
#[test]
fn the_wait_before_the_first_read_is_kept() {
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let listener = Listener::bind(&Address::loopback(0), false).unwrap();
    let address = Address::loopback(listener.port().unwrap());
    let call = Call::new(Shape::default());
    let wait = Duration::from_millis(300);
    let waited = thread::scope(|scope| {
        let client = scope.spawn(|| client::call(Kind::Shape, &address, std::slice::from_ref(&call), 1));
        let accepted = Instant::now();
        let stream = listener.accept().unwrap();
        poll(&mut [PollFd::new(&stream, PollFlags::IN)], None).unwrap();
        // This pause is what is measured, not a way to wait for something.
        thread::sleep(wait);
        let mut connection = Connection::new(stream, &[ReadMode::Read], &[WriteMode::Write], 0);
        connection.head().unwrap().unwrap();
        let waited = accepted.elapsed();
        let answer = "HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\nbbbbbbbbbbbbbbbbb";
        connection.write(&[Outgoing { bytes: answer.into(), is_body: false }]).unwrap();
        client.join().unwrap().unwrap();
        waited
    });
    let is_it = |span: &Span| span.request_id() == Some(&call.id) && span.pid == std::process::id();
    let spans = agent.spans_until(gate::PATIENCE, |spans| spans.iter().any(is_it)).unwrap();
    let span = spans.iter().find(|span| is_it(span)).expect("the span is shown");
    // No shorter than the pause, no longer than from before the connection was taken to after it was read.
    let possible = wait.as_secs_f64() - 0.03..waited.as_secs_f64() + 0.03;
    assert!(
        possible.contains(&span.queue_wait_seconds),
        "waited {} s: {possible:?}",
        span.queue_wait_seconds
    );
    assert!(span.duration_seconds >= span.queue_wait_seconds, "{} s in all", span.duration_seconds);
}
