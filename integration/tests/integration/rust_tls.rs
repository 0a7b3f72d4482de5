//! rustls: what Rust servers and clients read and write becomes exact spans, although their connections are moved about
//! in memory; what cannot be read is counted.

use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::threads::{self, Load};
use integration::client::{self, Kind, Rustls};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::patience::patience;
use integration::plan::Call;
use integration::process::Program;
use integration::program;
use integration::seed::seeded;
use integration::server::{Server, encrypted};
use integration::shape::{Ending, Framing, RequestFraming, Shape};
use integration::span::{self, Span};

use crate::gate;
use crate::tls::{PROBING, await_uncovered, uncovered_of};

const CALLS: usize = 60;

/// Starts the agent and waits until it has probed rustls and these files. One process waits as long as the other
/// value lives: what the first process of a program does is not seen from its beginning.
#[track_caller]
fn agent_that_probes(names: &[&str]) -> (Agent, Program) {
    let file = program::rustls_peer().unwrap();
    let name = format!("/{}", file.file_name().unwrap().display());
    let mut waiting = Program::spawn("rustls_peer", Command::new(file)).unwrap();
    waiting.await_line("ready", PROBING).unwrap();
    let agent = Agent::start(Config::default().alone()).unwrap();
    let names: Vec<&str> = names.iter().copied().chain([name.as_str()]).collect();
    agent.await_probes(&names, PROBING).unwrap();
    (agent, waiting)
}

#[track_caller]
fn assert_exact(agent: &mut Agent, ledger: &Ledger, servers: &[&Server]) {
    let report = gate::report(agent, ledger);
    assert!(report.is_exact(), "{report}\n{}", agent.tls().unwrap());
    gate::assert_exact(agent, ledger);
    for server in servers {
        assert_eq!(uncovered_of(agent, server.pid()), 0, "{}: {}", server.name, agent.tls().unwrap());
    }
}

/// The address at the other end, where the span says one.
fn peer(span: &Span) -> Option<&str> {
    span.text(match span.kind {
        span::Kind::Server => "client.address",
        span::Kind::Client => "server.address",
    })
}

#[track_caller]
fn assert_reported(agent: &mut Agent, ledger: &Ledger, version: &str) {
    for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
        let reported = (span.text("url.scheme"), span.text("network.protocol.version"), peer(span));
        assert_eq!(reported, (Some("https"), Some(version), Some("127.0.0.1")), "{span:?}");
    }
}

#[test]
fn servers_and_clients_over_http1() {
    let mut rng = seeded("rustls");
    let certificates = Certificates::new().unwrap();
    let server = encrypted::rustls(&certificates, &[]).unwrap();
    let others = [encrypted::nginx(&certificates).unwrap(), encrypted::node(&certificates).unwrap()];
    let (mut agent, _waiting) = agent_that_probes(&["/libssl.so", "/node"]);
    let mut ledger = Ledger::default();
    for kind in [Kind::Curl, Kind::Python, Kind::Node] {
        let calls = load::calls(&mut rng, &server.features, kind, CALLS);
        let done = client::call_encrypted(kind, &server.address, &calls, 4).unwrap();
        ledger.enter(&calls, &done, &server.roles());
    }
    for server in others.iter().chain([&server]) {
        for client in [Rustls::One, Rustls::Ureq] {
            let mut calls = load::calls(&mut rng, &server.features, Kind::Go, CALLS);
            if server.name == "node" {
                // As Go's: with bodies, Node 20 ends 4 of 12,000 where no agent runs and the machine is busy.
                calls.retain(|call| call.shape.request_framing == RequestFraming::None);
            }
            let done = client::rustls(client, &server.address, &calls, 4, &[]).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
    }
    assert_exact(&mut agent, &ledger, &[&server]);
    assert_reported(&mut agent, &ledger, "1.1");
}

/// Small exchanges whose bodies have lengths.
fn plain(rng: &mut fastrand::Rng, count: usize) -> Vec<Call> {
    let mut shape = || {
        let response_bytes = rng.u64(..3_000);
        let shape = Shape { response_bytes, ..Shape::default() };
        if rng.bool() {
            return shape;
        }
        let request_bytes = rng.u64(1..3_000);
        Shape { method: "POST".into(), request_framing: RequestFraming::Length, request_bytes, ..shape }
    };
    (0..count).map(|_| Call::new(shape())).collect()
}

/// Without symbols: counted, with the reason.
#[test]
fn without_symbols_it_is_counted() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::rustls_stripped(&certificates).unwrap();
    let (mut agent, _waiting) = agent_that_probes(&["/libssl.so"]);
    let calls: Vec<Call> =
        (0..12).map(|_| Call::new(Shape { response_bytes: 17, ..Shape::default() })).collect();
    let done = client::call_encrypted(Kind::Python, &server.address, &calls, 3).unwrap();
    let mut ledger = Ledger::default();
    ledger.enter(&calls, &done, &[]);
    gate::assert_exact(&mut agent, &ledger);
    let entry = await_uncovered(&agent, server.pid(), 3);
    let reason = entry["reason"].as_str().unwrap();
    assert!(reason.contains("without the program's symbols"), "{entry}");
    assert!(agent.spans().unwrap().iter().all(|span| span.service.name != server.service));
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn servers_and_clients_over_http2() {
        let mut rng = seeded("rustls, HTTP/2");
        let certificates = Certificates::new().unwrap();
        let server = encrypted::rustls(&certificates, &[]).unwrap();
        let others =
            [encrypted::http2_nginx(&certificates).unwrap(), encrypted::http2_node(&certificates).unwrap()];
        let (mut agent, _waiting) = agent_that_probes(&["/libssl.so", "/node"]);
        let mut ledger = Ledger::default();
        for kind in [Kind::Http2Curl, Kind::Http2Node] {
            let calls = load::calls(&mut rng, &server.features, kind, CALLS);
            let done = client::call_encrypted(kind, &server.address, &calls, 8).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
        for server in others.iter().chain([&server]) {
            let calls = load::calls(&mut rng, &server.features, Kind::Http2Go, CALLS);
            let done = client::rustls(Rustls::Two, &server.address, &calls, 8, &[]).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
        assert_exact(&mut agent, &ledger, &[&server]);
        assert_reported(&mut agent, &ledger, "2");
    }

    /// Agents come and go while both kinds of programs work: every request is answered.
    #[test]
    fn harmless_with_symbols_and_without() {
        const AGENTS: usize = 3;
        const AT_ONCE: usize = 60;
        let certificates = Certificates::new().unwrap();
        let servers = [
            encrypted::rustls(&certificates, &[]).unwrap(),
            encrypted::rustls_stripped(&certificates).unwrap(),
        ];
        let name = format!("/{}", program::rustls_peer().unwrap().file_name().unwrap().display());
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let workers = servers.each_ref().map(|server| {
                let (is_over, address) = (&is_over, server.address.clone());
                scope.spawn(move || {
                    let mut answered = 0;
                    while !is_over.load(Ordering::Relaxed) {
                        let calls = plain(&mut fastrand::Rng::new(), AT_ONCE);
                        // It fails where one call is not answered.
                        answered += client::rustls(Rustls::One, &address, &calls, 8, &[])?.truths.len();
                    }
                    anyhow::Ok(answered)
                })
            });
            let attached = (0..AGENTS)
                .try_for_each(|_| Agent::start(Config::default().alone())?.await_probes(&[&name], PROBING));
            is_over.store(true, Ordering::Relaxed);
            attached.unwrap();
            for (server, worker) in servers.iter().zip(workers) {
                let answered =
                    worker.join().unwrap().unwrap_or_else(|error| panic!("{}: {error:#}", server.name));
                assert!(answered >= AT_ONCE, "{}: {answered} answers", server.name);
            }
        });
    }

    #[test]
    fn many_clients_keep_their_connections() {
        const CLIENTS: usize = 64;
        let mut rng = seeded("rustls, many clients");
        let certificates = Certificates::new().unwrap();
        let clients = [Rustls::One, Rustls::Ureq, Rustls::Two];
        let servers = clients.map(|_| encrypted::rustls(&certificates, &[]).unwrap());
        let (mut agent, _waiting) = agent_that_probes(&["/libssl.so"]);
        let mut ledger = Ledger::default();
        for (client, server) in clients.into_iter().zip(&servers) {
            let calls = load::calls(&mut rng, &server.features, Kind::Go, 3 * CLIENTS);
            let done = client::rustls(client, &server.address, &calls, CLIENTS, &[]).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
        // reqwest's pool opens connections that it does not use: they make no record that shows what object they have.
        assert_exact(&mut agent, &ledger, &[&servers[1], &servers[2]]);
        assert!(uncovered_of(&agent, servers[0].pid()) < CLIENTS as u64, "{}", agent.tls().unwrap());
    }

    /// Connections that break off in the middle of an answer, by the server and by the client.
    #[test]
    fn connections_are_cut() {
        let certificates = Certificates::new().unwrap();
        let server = encrypted::rustls(&certificates, &[]).unwrap();
        let (mut agent, _waiting) = agent_that_probes(&["/libssl.so"]);
        let mut ledger = Ledger::default();
        let long = Shape { response_bytes: 60_000, ..Shape::default() };
        let slow = Shape { pieces: 40, gap: 10_000, ending: Ending::ClientResets(1), ..long.clone() };
        for (shape, environment) in [
            (Shape { ending: Ending::ServerCloses(2_500), ..long.clone() }, &[][..]),
            (Shape { ending: Ending::ServerCloses(40_000), ..long.clone() }, &[]),
            (Shape { framing: Framing::Chunked, ..slow.clone() }, &[("LEAVES", "1")]),
            (slow, &[("LEAVES", "1")]),
            (long, &[]),
        ] {
            let calls: Vec<Call> = (0..24).map(|_| Call::new(shape.clone())).collect();
            let done = client::rustls(Rustls::One, &server.address, &calls, 6, environment).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
        assert_exact(&mut agent, &ledger, &[&server]);
    }

    /// TLS 1.2, whose first encrypted record goes behind one in the clear, and servers that send no tickets, whose
    /// first encrypted record is an answer; bodies of many records in both directions.
    #[test]
    fn versions_of_tls_and_large_bodies() {
        let mut rng = seeded("rustls, versions");
        let certificates = Certificates::new().unwrap();
        let servers = [&[("TLS_VERSION", "1.2")][..], &[("TICKETS", "0")]]
            .map(|environment| encrypted::rustls(&certificates, environment).unwrap());
        let (mut agent, _waiting) = agent_that_probes(&["/libssl.so"]);
        let mut ledger = Ledger::default();
        for server in &servers {
            for kind in [Kind::Curl, Kind::Python] {
                let calls = load::calls(&mut rng, &server.features, kind, CALLS);
                let done = client::call_encrypted(kind, &server.address, &calls, 4).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
            let both = [RequestFraming::Length, RequestFraming::Chunked];
            let framings = [Framing::Length, Framing::Chunked];
            for client in [Rustls::One, Rustls::Two] {
                let shapes = framings.iter().flat_map(|framing| both.map(|of| Shape::large(*framing, of)));
                let calls: Vec<Call> = shapes.map(Call::new).collect();
                let done = client::rustls(client, &server.address, &calls, 4, &[]).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
        }
        assert_exact(&mut agent, &ledger, &servers.iter().collect::<Vec<_>>());
        let spans = agent.spans().unwrap();
        let of = |server: &Server| {
            spans.iter().filter(|span| span.service.name == server.service).collect::<Vec<_>>()
        };
        assert!(of(&servers[0]).iter().all(|span| peer(span) == Some("127.0.0.1")), "TLS 1.2");
        let known = of(&servers[1]).iter().filter(|span| peer(span) == Some("127.0.0.1")).count();
        assert!(known > 0, "without tickets, no address from the second exchange of a connection on");
    }

    /// What encrypts the records of one connection lies where that of an earlier one did, in this thread or another.
    #[test]
    fn addresses_are_used_again() {
        const THREADS: usize = 16;
        const SHORT: [(&str, &str); 1] = [("IDLE", "0")];
        let mut rng = seeded("rustls, short connections");
        let certificates = Certificates::new().unwrap();
        let servers = [&[][..], &[("TLS_VERSION", "1.2")], &[("TICKETS", "0")]]
            .map(|environment| encrypted::rustls(&certificates, environment).unwrap());
        let (mut agent, _waiting) = agent_that_probes(&["/libssl.so"]);
        let mut ledger = Ledger::default();
        for server in &servers {
            let lasts = patience(Duration::from_secs(20));
            let load = Load { threads: THREADS, lasts, most: 30, seed: rng.u64(..) };
            let made = threads::call(&server.address, load).unwrap();
            for (shape, truth) in &made.exchanges {
                ledger.expect(shape, truth, span::Kind::Client, &made.service);
                ledger.expect(shape, truth, span::Kind::Server, &server.service);
            }
            for (client, environment) in
                [(Rustls::One, &SHORT[..]), (Rustls::Ureq, &SHORT), (Rustls::Pieces, &[])]
            {
                let calls = plain(&mut rng, 96);
                let done = client::rustls(client, &server.address, &calls, THREADS, environment).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
        }
        assert_exact(&mut agent, &ledger, &servers.iter().collect::<Vec<_>>());
    }
}
