//! The agent starts while connections are already open: in the middle of a body, or idle.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client;
use integration::fetch;
use integration::patience::patience;
use integration::plan::{Address, Call, ConnectionPlan, Plan, ServerPlan};
use integration::script;
use integration::seat::Seat;
use integration::server::shape::ShapeServer;
use integration::shape::{Framing, Shape};
use integration::span::{Kind, Span};
use integration::wire::{Connection, ReadMode, Stream, WriteMode};

use crate::gate;

/// Starts the agent while the body of a first exchange flows in both roles, then makes ten more on the same
/// connection: all of them are exact, or the connection is reported as uncovered.
#[track_caller]
fn check(framing: Framing) {
    let folder = tempfile::tempdir().unwrap();
    let gate = folder.path().join("gate");
    let plan = ServerPlan { gate: Some(gate.clone()), ..ServerPlan::default() };
    let server = ShapeServer::start("joined", plan).unwrap();
    let first = Call::new(Shape { framing, response_bytes: 200_000, pieces: 2, ..Shape::default() });
    let later: Vec<Call> = (0..10).map(|_| Call::new(Shape::default())).collect();
    let calls: Vec<Call> = std::iter::once(first.clone()).chain(later.clone()).collect();
    let connections = vec![ConnectionPlan::new(&server.server.address, calls)];
    let plan = Plan { seed: 0, concurrency: 1, rate: 0, connections };
    let (mut agent, done) = thread::scope(|scope| {
        let client = scope.spawn(|| client::follow(&plan));
        let deadline = Instant::now() + patience(gate::PATIENCE);
        while !gate.with_extension("waiting").exists() {
            assert!(Instant::now() < deadline, "the server does not send");
            thread::sleep(Duration::from_millis(2));
        }
        let agent = Agent::start(Config::default().alone()).unwrap();
        std::fs::write(&gate, "").unwrap();
        (agent, client.join().unwrap().unwrap())
    });
    let mut ledger = Ledger::default();
    for truth in done.truths.iter().filter(|truth| truth.id != first.id) {
        ledger.expect(&Shape::default(), truth, Kind::Client, &done.service);
        ledger.expect(&Shape::default(), truth, Kind::Server, &server.server.service);
    }
    let mut report = gate::report(&mut agent, &ledger);
    // The first exchange itself may be shown or not: its request was never seen.
    report.phantom.retain(|line| !line.contains(&first.id));
    let uncovered = gate::uncovered(&agent.metrics().unwrap(), "joined");
    let lost = |side, service: &str| {
        agent.metric_value("obi_lost_total", &[("side", side), ("service_name", service)])
    };
    let lost = lost("server", &server.server.service).unwrap() + lost("client", &done.service).unwrap();
    if uncovered + lost > 0.0 {
        report.missing.clear();
    }
    report.assert_exact();
}

#[test]
fn in_a_body_with_a_length() {
    check(Framing::Length);
}

#[test]
fn in_a_chunked_body() {
    check(Framing::Chunked);
}

/// An idle connection has no secret: its next request is the beginning of one.
#[test]
fn on_an_idle_connection() {
    let server = ShapeServer::start("joined-idle", ServerPlan::default()).unwrap();
    let stream = Stream::connect(&server.server.address, None).unwrap();
    let mut connection = Connection::new(stream, &[ReadMode::Read], &[WriteMode::Write], 0);
    let mut exchange = |call: &Call| {
        connection.write(&script::request(call, "idle")).unwrap();
        connection.head().unwrap().expect("the server answers");
        assert_eq!(connection.length_body(17).bytes, 17);
    };
    exchange(&Call::new(Shape::default()));
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let calls: Vec<Call> = (0..10).map(|_| Call::new(Shape::default())).collect();
    calls.iter().for_each(&mut exchange);
    let mut ledger = Ledger::default();
    for truth in server.truths_of(1 + calls.len()).unwrap().iter().skip(1) {
        ledger.expect(&Shape::default(), truth, Kind::Server, &server.server.service);
    }
    gate::assert_exact(&mut agent, &ledger);
}

/// Requests on new connections, one after the other, until it is over: their ids, and when each began.
fn ask_until(is_over: &AtomicBool, server: SocketAddr, asked: &Mutex<Vec<(String, Instant)>>) {
    for n in 0_u32.. {
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let (id, begun) = (format!("ready-{n}"), Instant::now());
        let answer = fetch::get(server, &Shape::default().target(&id), "*/*").unwrap();
        assert_eq!(answer.status, 200, "{}", answer.body);
        asked.lock().unwrap().push((id, begun));
    }
}

/// What begins once the agent has said that it is ready is seen on both sides, from the first request on.
#[test]
fn nothing_is_missed_from_ready_on() {
    const STARTS: usize = 5;
    const WANTED: usize = 100;
    for start in 0..STARTS {
        let server = ShapeServer::start("ready", ServerPlan::default()).unwrap();
        let Address::Tcp(address) = server.server.address else { panic!("it listens on TCP") };
        let (is_over, asked) = (AtomicBool::new(false), Mutex::new(Vec::new()));
        let seat = Seat::alone();
        let mut agent = thread::scope(|scope| {
            scope.spawn(|| ask_until(&is_over, address, &asked));
            let agent = Agent::start_seated(Config::default(), seat).unwrap();
            let of_ready = |(_, begun): &&(String, Instant)| *begun >= agent.ready_at();
            let deadline = Instant::now() + patience(gate::PATIENCE);
            while asked.lock().unwrap().iter().filter(of_ready).count() < WANTED {
                assert!(Instant::now() < deadline, "too few requests");
                thread::sleep(Duration::from_millis(2));
            }
            is_over.store(true, Ordering::Relaxed);
            agent
        });
        let asked = asked.into_inner().unwrap();
        let wanted: Vec<&str> =
            asked.iter().filter(|(_, begun)| *begun >= agent.ready_at()).map(|(id, _)| &**id).collect();
        let missing = |spans: &[Span]| {
            let of = |kind| {
                let spans = spans.iter().filter(move |span| span.kind == kind);
                spans.filter_map(|span| span.request_id()).collect::<BTreeSet<_>>()
            };
            let (served, called) = (of(Kind::Server), of(Kind::Client));
            let seen = |id: &&&str| served.contains(**id) && called.contains(**id);
            wanted.iter().filter(|id| !seen(id)).map(|id| (*id).to_owned()).collect::<Vec<_>>()
        };
        let spans = agent.spans_until(gate::PATIENCE, |spans| missing(spans).is_empty()).unwrap();
        let missing = missing(spans);
        assert!(
            missing.is_empty(),
            "start {start}: {} of {} are missing: {missing:?}",
            missing.len(),
            wanted.len()
        );
    }
}
