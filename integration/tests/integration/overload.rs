//! At saturation nothing is silently lost: spans and counted losses together are what was sent, and what could not be
//! reported of processes is found out.

use std::path::Path;
use std::process::Command;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind as ClientKind};
use integration::exposition::Exposition;
use integration::plan::{Address, Call, ConnectionPlan, Plan, Segmentation, ServerPlan};
use integration::process::{Program, READY};
use integration::server::service;
use integration::server::shape::{self, ShapeServer};
use integration::shape::Shape;
use integration::span::Kind;
use rustix::fs::{CWD, Mode, mkfifoat};

use crate::gate;

const CONNECTIONS: usize = 40;
const CALLS: usize = 500;

/// Spans and losses of one side of one service.
fn accounted(metrics: &Exposition, kind: Kind, service: &str) -> (f64, f64) {
    let side = if kind == Kind::Server { "server" } else { "client" };
    let labels = [("side", side), ("service_name", service)];
    (metrics.sum("obi_spans_total", &labels), metrics.sum("obi_lost_total", &labels))
}

#[test]
fn spans_and_losses_are_what_was_sent() {
    let mut agent = Agent::start(Config::default().alone().set("capture", "ring_bytes", 8192)).unwrap();
    let server = ShapeServer::start("overload", ServerPlan { batch: true, ..ServerPlan::default() }).unwrap();
    let connections: Vec<ConnectionPlan> = (0..CONNECTIONS)
        .map(|_| ConnectionPlan {
            depth: 100,
            segmentation: Segmentation::Whole,
            ..ConnectionPlan::new(
                &server.server.address,
                (0..CALLS).map(|_| Call::new(Shape::default())).collect(),
            )
        })
        .collect();
    let mut ledger = Ledger::default();
    let plan = Plan { seed: 0, concurrency: 8, rate: 0, connections };
    gate::follow(&mut ledger, &server.server, &plan);
    let sent = (CONNECTIONS * CALLS) as f64;
    let settled = |metrics: &Exposition| {
        ledger.roles().iter().all(|(kind, service)| {
            let (spans, lost) = accounted(metrics, *kind, service);
            spans + lost >= sent
        })
    };
    let metrics = agent.metrics_until(gate::PATIENCE, settled).unwrap();
    let mut lost_in_all = 0.0;
    for (kind, service) in ledger.roles() {
        let (spans, lost) = accounted(&metrics, kind, &service);
        assert_eq!(spans + lost, sent, "{kind:?} of {service}: {spans} spans and {lost} lost");
        lost_in_all += lost;
    }
    assert!(lost_in_all > 0.0, "the ring was never full: this test proves nothing");
    // What is shown is true even so.
    let mut report = ledger.compare(agent.spans().unwrap());
    report.missing.clear();
    report.assert_exact();
}

/// A shell that becomes a server, of another name than its own, when a line comes in at `gate`.
fn waiting_server(gate: &Path, name: &str) -> Program {
    const SCRIPT: &str = "read -r line < \"$0\"; export OTEL_SERVICE_NAME=\"$1\"; shift; exec \"$@\"";
    let server = shape::command(&ServerPlan::default()).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", SCRIPT]).arg(gate).arg(name).arg(server.get_program()).args(server.get_args());
    command.env("OTEL_SERVICE_NAME", service("shell"));
    Program::spawn(name, command).unwrap()
}

/// The agent knows a process, but the ring is full: no record says which program that process goes over to.
#[test]
fn a_program_that_began_unreported_has_its_own_name() {
    let mut agent = Agent::start(Config::default().alone().set("capture", "ring_bytes", 65_536)).unwrap();
    let crowd = ShapeServer::start("crowd", ServerPlan::default()).unwrap();
    let files = tempfile::tempdir().unwrap();
    let gate_file = files.path().join("gate");
    mkfifoat(CWD, &gate_file, Mode::RWXU).unwrap();
    let name = service("unreported");
    let mut program = waiting_server(&gate_file, &name);
    // A scrape has the agent read the records so far: it knows the shell by name.
    let before = agent.metric_value("obi_lost_process_events_total", &[]).unwrap();
    let port = agent
        .stopped(|| {
            // A record that found no room says that none as large finds any: the last one is that of the server.
            for _ in 0..8 {
                let calls: Vec<Call> = (0..50).map(|_| Call::new(Shape::default())).collect();
                client::call(ClientKind::Shape, &crowd.server.address, &calls, 4).unwrap();
            }
            std::fs::write(&gate_file, "\n").unwrap();
            program.await_line("ready ", READY).unwrap().parse().unwrap()
        })
        .unwrap();
    let after = agent.metric_value("obi_lost_process_events_total", &[]).unwrap();
    assert!(after > before, "the ring was never full: this test proves nothing");
    let mut ledger = Ledger::default();
    let calls: Vec<Call> = (0..5).map(|_| Call::new(Shape::default())).collect();
    let done = client::call(ClientKind::Shape, &Address::loopback(port), &calls, 1).unwrap();
    ledger.enter(&calls, &done, &[(Kind::Server, name)]);
    gate::assert_exact(&mut agent, &ledger);
}
