//! The agent starts while connections are already open: in the middle of a body, or idle.

use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client;
use integration::patience::patience;
use integration::plan::{Call, ConnectionPlan, Plan, ServerPlan};
use integration::script;
use integration::server::shape::ShapeServer;
use integration::shape::{Framing, Shape};
use integration::span::Kind;
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
        let agent = Agent::start(Config::default()).unwrap();
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
    let mut agent = Agent::start(Config::default()).unwrap();
    let calls: Vec<Call> = (0..10).map(|_| Call::new(Shape::default())).collect();
    calls.iter().for_each(&mut exchange);
    let mut ledger = Ledger::default();
    for truth in server.truths_of(1 + calls.len()).unwrap().iter().skip(1) {
        ledger.expect(&Shape::default(), truth, Kind::Server, &server.server.service);
    }
    gate::assert_exact(&mut agent, &ledger);
}
