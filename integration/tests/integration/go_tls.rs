//! Go's own TLS: what Go servers and clients read and write becomes exact spans, however they were built, whatever
//! their runtime does to their stacks meanwhile, and whatever carries the records.

use std::process::Command;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::plan::{Address, Call};
use integration::process::Program;
use integration::program::{self, Build};
use integration::rpc::ledger::RpcLedger;
use integration::rpc::peer::{self, Library, RpcServer};
use integration::seed::{note, seeded};
use integration::server::{Features, Server, encrypted};
use integration::shape::{Framing, RequestFraming, Shape};
use integration::span::{self, Span};

use crate::gate;
use crate::multiplexed;
use crate::tls::{PROBING, uncovered_of};

const CALLS: usize = 60;

/// Starts the agent and waits until it has probed these servers, which run already, and the clients of `builds`, of
/// which one each waits for as long as it lives: what the first process of a program does is not seen from the
/// beginning.
#[track_caller]
fn agent_that_probes(servers: &[&str], builds: &[Build]) -> (Agent, Vec<Program>) {
    let start = |build: &Build| {
        let command = Command::new(program::go_built("client", *build).unwrap());
        let mut waiting = Program::spawn("client", command).unwrap();
        waiting.await_line("ready", PROBING).unwrap();
        waiting
    };
    let waiting: Vec<Program> = builds.iter().map(start).collect();
    let agent = Agent::start(Config::default()).unwrap();
    let clients: Vec<String> = builds.iter().copied().map(client_file).collect();
    let clients = clients.iter().map(String::as_str);
    let names: Vec<&str> = servers.iter().copied().chain(clients).chain(["/libssl.so"]).collect();
    agent.await_probes(&names, PROBING).unwrap();
    (agent, waiting)
}

fn client_file(build: Build) -> String {
    format!("/go-client-{build:?}").to_lowercase()
}

/// Spans of the ledger's services say that they were encrypted, by which version, and between whom.
#[track_caller]
fn assert_reported(agent: &mut Agent, ledger: &Ledger, version: &str) {
    for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
        let reported = (span.text("url.scheme"), span.text("network.protocol.version"));
        assert_eq!(reported, (Some("https"), Some(version)), "{span:?}");
        let peer = match span.kind {
            span::Kind::Server => "client.address",
            span::Kind::Client => "server.address",
        };
        assert_eq!(span.text(peer), Some("127.0.0.1"), "{span:?}");
    }
}

#[track_caller]
fn assert_covered(agent: &Agent, servers: &[&Server]) {
    for server in servers {
        assert_eq!(uncovered_of(agent, server.pid()), 0, "{}: {}", server.name, agent.tls().unwrap());
    }
}

#[test]
fn every_build_over_http1() {
    let mut rng = seeded("Go TLS");
    let certificates = Certificates::new().unwrap();
    let servers = Build::READ.map(|build| encrypted::go(&certificates, build).unwrap());
    let others = [encrypted::nginx(&certificates).unwrap(), encrypted::node(&certificates).unwrap()];
    let (mut agent, _waiting) = agent_that_probes(
        &["/go-server-plain", "/go-server-stripped", "/go-server-pie", "/node"],
        &Build::READ,
    );
    let mut ledger = Ledger::default();
    for server in &servers {
        for kind in [Kind::Curl, Kind::Python, Kind::Node] {
            let calls = load::calls(&mut rng, &server.features, kind, CALLS);
            let done = client::call_encrypted(kind, &server.address, &calls, 4).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
    }
    for (build, server) in Build::READ.iter().zip(&servers) {
        for server in others.iter().chain([server]) {
            let mut calls = load::calls(&mut rng, &server.features, Kind::Go, CALLS);
            if server.name == "node" {
                // With bodies, Node 20 ends a connection of Go's now and then: 9 of 24,000 calls where no agent runs.
                calls.retain(|call| call.shape.request_framing == RequestFraming::None);
            }
            let done = client::go_encrypted(*build, &server.address, &calls, 4, &[]).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_reported(&mut agent, &ledger, "1.1");
    assert_covered(&agent, &servers.iter().collect::<Vec<_>>());
}

/// grpc-go to itself and to and from Node's library.
#[test]
fn grpc() {
    let mut rng = seeded("Go TLS, gRPC");
    let certificates = Certificates::new().unwrap();
    let libraries = [Library::Go, Library::Node];
    let servers = libraries.map(|library| RpcServer::start(library, Some(&certificates)).unwrap());
    let (mut agent, _) = agent_that_probes(&["/multiplex", "/node"], &[]);
    for (library, server) in libraries.iter().zip(&servers) {
        let mut ledger = RpcLedger::default();
        for client in libraries {
            let calls = multiplexed::calls(&mut rng, 3, true);
            let done = peer::call(client, server.port, Some(&certificates), (&calls, 8)).unwrap();
            ledger.enter(&calls, &done, server, &[]).unwrap();
        }
        multiplexed::assert_exact(&mut agent, &ledger, &format!("gRPC over Go's TLS, {}", library.name()));
    }
}

/// What a Go client asks a Go server, and the variables of their environments.
struct Case {
    name: &'static str,
    calls: Vec<Call>,
    server: &'static [(&'static str, &'static str)],
    client: &'static [(&'static str, &'static str)],
}

const HTTP2: &[(&str, &str)] = &[("HTTP2", "1")];

/// One after the other, before one agent.
#[track_caller]
fn check(cases: Vec<Case>) {
    let certificates = Certificates::new().unwrap();
    let started: Vec<(Case, Server)> = cases
        .into_iter()
        .map(|case| {
            let server = encrypted::go_with(&certificates, Build::Plain, case.server).unwrap();
            (case, server)
        })
        .collect();
    let (mut agent, _waiting) = agent_that_probes(&["/go-server-plain"], &[Build::Plain]);
    for (Case { name, calls, client, .. }, server) in started {
        let mut ledger = Ledger::default();
        let done = client::go_encrypted(Build::Plain, &server.address, &calls, 8, client).unwrap();
        ledger.enter(&calls, &done, &server.roles());
        let report = gate::report(&mut agent, &ledger);
        note(&format!("{name}: {} spans expected, exact: {}", report.expected, report.is_exact()));
        assert!(report.is_exact(), "{name}: {report}");
        gate::assert_exact(&mut agent, &ledger);
        assert_covered(&agent, &[&server]);
    }
}

/// What needs no other program: it runs on any machine that Go builds for.
#[test]
fn both_ends_in_go() {
    let mut rng = seeded("Go TLS, both ends");
    let mut calls = |kind| load::calls(&mut rng, &Features::full(), kind, CALLS);
    check(vec![
        Case { name: "HTTP/1.1", calls: calls(Kind::Go), server: &[], client: &[] },
        Case { name: "HTTP/2", calls: calls(Kind::Http2Go), server: &[], client: HTTP2 },
    ]);
}

/// A client that leaves ends the exchange at both ends.
#[test]
fn an_early_close_ends_its_exchange() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::go(&certificates, Build::Plain).unwrap();
    let (mut agent, _) = agent_that_probes(&["/go-server-plain"], &[]);
    let Address::Tcp(address) = server.address else { panic!("a server of Go listens on TCP") };
    let call = Call::new(Shape { delay: 6_000_000, ..Shape::default() });
    let url = format!("https://{address}{}", call.shape.target(&call.id));
    let mut command = Command::new("curl");
    command.args(["--silent", "--insecure", "--http1.1", "--max-time", "2", &url]);
    assert_eq!(command.status().unwrap().code(), Some(28), "curl gives up");
    let is_it = |span: &Span| span.request_id() == Some(&call.id) && span.kind == span::Kind::Server;
    let spans = agent.spans_until(gate::PATIENCE, |spans| spans.iter().any(is_it)).unwrap();
    assert_eq!(spans.iter().filter(|span| is_it(span)).count(), 1, "the server's span");
    assert_covered(&agent, &[&server]);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Connections of the server's own make that read seven bytes at a time, below TLS and above; TLS inside of TLS;
    /// bodies of many records in both directions, over either version.
    #[test]
    fn whatever_carries_the_records_and_however_large_they_are() {
        let mut rng = seeded("Go TLS, carried");
        let small = load::calls(&mut rng, &Features::full(), Kind::Go, CALLS);
        let inside = vec![Shape { response_bytes: 9_000, ..Shape::default() }; 40];
        let large = || -> Vec<Call> {
            let both = [RequestFraming::Length, RequestFraming::Chunked];
            let framings = [Framing::Length, Framing::Chunked];
            framings
                .iter()
                .flat_map(|framing| both.map(|request| Call::new(Shape::large(*framing, request))))
                .collect()
        };
        let twice = &[("TWICE", "1")];
        check(vec![
            Case { name: "seven bytes at a time", calls: small, server: &[("CHOPPED", "1")], client: &[] },
            Case {
                name: "inside of TLS",
                calls: inside.into_iter().map(Call::new).collect(),
                server: twice,
                client: twice,
            },
            Case { name: "large, HTTP/1", calls: large(), server: &[], client: &[] },
            Case { name: "large, HTTP/2", calls: large(), server: &[], client: HTTP2 },
        ]);
    }

    #[test]
    fn every_build_over_http2() {
        let mut rng = seeded("Go TLS, HTTP/2");
        let certificates = Certificates::new().unwrap();
        let servers = Build::READ.map(|build| encrypted::go(&certificates, build).unwrap());
        let others =
            [encrypted::http2_nginx(&certificates).unwrap(), encrypted::http2_node(&certificates).unwrap()];
        let (mut agent, _waiting) = agent_that_probes(
            &["/go-server-plain", "/go-server-stripped", "/go-server-pie", "/node"],
            &Build::READ,
        );
        let mut ledger = Ledger::default();
        for (build, server) in Build::READ.iter().zip(&servers) {
            for kind in [Kind::Http2Curl, Kind::Http2Node] {
                let calls = load::calls(&mut rng, &server.features, kind, CALLS);
                let done = client::call_encrypted(kind, &server.address, &calls, 8).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
            for server in others.iter().chain([server]) {
                let calls = load::calls(&mut rng, &server.features, Kind::Http2Go, CALLS);
                let done = client::go_encrypted(*build, &server.address, &calls, 8, HTTP2).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
        }
        let report = gate::report(&mut agent, &ledger);
        assert!(report.is_exact(), "{report}\n{}", agent.tls().unwrap());
        gate::assert_exact(&mut agent, &ledger);
        assert_reported(&mut agent, &ledger, "2");
        assert_covered(&agent, &servers.iter().collect::<Vec<_>>());
    }

    /// Collections one after the other stop goroutines wherever they check their stacks, and stacks grow and move: what
    /// such a check repeats is reported once.
    #[test]
    fn collections_and_growing_stacks() {
        let mut rng = seeded("Go TLS, collections");
        let mut calls = || -> Vec<Call> {
            let call = |_| {
                Call::new(Shape {
                    framing: if rng.bool() { Framing::Chunked } else { Framing::Length },
                    response_bytes: rng.u64(1..12_000),
                    pieces: rng.u32(1..5),
                    ..Shape::default()
                })
            };
            (0..3_000).map(call).collect()
        };
        let server = &[("PRESSURE", "1")];
        check(vec![
            Case { name: "collections, HTTP/1", calls: calls(), server, client: &[] },
            Case { name: "collections, HTTP/2", calls: calls(), server, client: HTTP2 },
        ]);
    }
}
