//! HTTP/2 without TLS: every stream is one span at both ends, whoever opens how many at the same time.

use std::collections::BTreeMap;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::Kind;
use integration::load;
use integration::plan::Call;
use integration::seed::seeded;
use integration::server::nginx::{self, Files};
use integration::server::{Server, language};
use integration::shape::{RequestFraming, Shape};

use crate::gate;

const CALLS: usize = 60;

/// Calls that both ends can make over HTTP/2: bodies have no framing of their own there.
fn calls(rng: &mut fastrand::Rng, server: &Server, kind: Kind, count: usize) -> Vec<Call> {
    let mut calls = load::calls(rng, &server.features, kind, count);
    for call in &mut calls {
        if call.shape.request_framing == RequestFraming::Chunked {
            call.shape.request_framing = RequestFraming::Length;
        }
    }
    calls
}

/// All spans of the ledger say that they are HTTP/2.
#[track_caller]
fn assert_version(agent: &mut Agent, ledger: &Ledger) {
    let mut versions = BTreeMap::<_, usize>::new();
    for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
        *versions.entry(span.text("network.protocol.version").unwrap_or("none").to_owned()).or_default() += 1;
    }
    assert_eq!(versions, BTreeMap::from([("2".to_owned(), ledger.len())]));
}

#[test]
fn nginx_and_curl() {
    let mut rng = seeded("http2 nginx");
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = nginx::files(Files::Http2).unwrap();
    let mut ledger = Ledger::default();
    for kind in Kind::HTTP2 {
        let calls = calls(&mut rng, &server, kind, CALLS);
        gate::call(&mut ledger, kind, &server, &calls, 8);
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_version(&mut agent, &ledger);
}

/// So many streams at the same time on one connection.
fn multiplexed(concurrency: usize, count: usize) {
    let mut rng = seeded("http2 go");
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = language::go().unwrap();
    let mut ledger = Ledger::default();
    // Each answer waits a little, so that all of them are open together.
    let calls: Vec<Call> = (0..count)
        .map(|_| Call::new(Shape { delay: 20_000, response_bytes: rng.u64(..3_000), ..Shape::default() }))
        .collect();
    gate::call(&mut ledger, Kind::GoHttp2, &server, &calls, concurrency);
    gate::assert_exact(&mut agent, &ledger);
    assert_version(&mut agent, &ledger);
}

#[test]
fn go_one_stream_at_a_time() {
    multiplexed(1, 50);
}

#[test]
fn go_a_hundred_streams() {
    multiplexed(100, 2_000);
}

#[test]
fn go_a_thousand_streams() {
    multiplexed(1_000, 5_000);
}

#[test]
fn go_any_shape() {
    let mut rng = seeded("http2 go shapes");
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = language::go().unwrap();
    let mut ledger = Ledger::default();
    for kind in Kind::HTTP2 {
        let calls = calls(&mut rng, &server, kind, CALLS);
        gate::call(&mut ledger, kind, &server, &calls, 16);
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_version(&mut agent, &ledger);
}
