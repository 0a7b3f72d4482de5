//! The workload itself, without the agent: what clients report is what servers were asked for.

use std::collections::BTreeMap;

use integration::client::{self, Done, Kind};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::plan::{Address, Call, ConnectionPlan, Plan, Segmentation};
use integration::rpc::ledger::RpcLedger;
use integration::rpc::peer::{self, Library, RpcServer};
use integration::seed::{note, seeded};
use integration::server::nginx::{Files, Upstream};
use integration::server::shape::{ShapeServer, every_way};
use integration::server::{Server, io_uring, language, nginx};
use integration::shape::{Ending, Shape};
use integration::websocket::SocketServer;
use integration::wire::{ReadMode, WriteMode};

use crate::multiplexed::{self, LATE_FRAME, NGINX_TRIES};

/// The client's report against what the plan asks of it.
#[track_caller]
fn check(what: &str, calls: &[Call], done: &Done) {
    let shapes: BTreeMap<&str, &Shape> = calls.iter().map(|call| (call.id.as_str(), &call.shape)).collect();
    assert_eq!(shapes.len(), done.truths.len(), "{what}: each call is reported once");
    for truth in &done.truths {
        let shape = shapes[truth.id.as_str()];
        if shape.ending == Ending::Whole {
            let seen = (truth.status, truth.response_bytes, truth.broken.as_deref());
            assert_eq!(seen, (Some(shape.status), shape.body_bytes(), None), "{what}: {}", shape.describe());
        }
    }
}

#[track_caller]
fn check_server(server: &Server) {
    check_server_by(server, &Kind::ALL);
}

#[track_caller]
fn check_server_by(server: &Server, kinds: &[Kind]) {
    let mut rng = seeded(&format!("workload {}", server.name));
    for kind in kinds.iter().copied() {
        let calls = load::calls(&mut rng, &server.features, kind, 60);
        let what = format!("{} by {}", server.name, kind.name());
        let done = client::call(kind, &server.address, &calls, 4)
            .unwrap_or_else(|error| panic!("{what}: {error:#}"));
        check(&what, &calls, &done);
    }
}

#[test]
fn nginx_answers_as_asked() {
    for how in [Files::Sendfile, Files::Buffered] {
        let files = nginx::files(how).unwrap();
        check_server(&files);
        for over in [Upstream::Tcp, Upstream::Unix] {
            check_server(&nginx::proxy(&files, over).unwrap());
        }
        let mut rng = seeded("workload unix socket");
        for kind in [Kind::Shape, Kind::Curl] {
            let calls = load::calls(&mut rng, &files.features, kind, 30);
            let done = client::call(kind, &nginx::unix_address(&files), &calls, 2).unwrap();
            check("nginx over unix socket", &calls, &done);
        }
    }
}

#[test]
fn python_answers_as_asked() {
    check_server(&language::python_http("threading").unwrap());
    check_server(&language::python_http("forking").unwrap());
    check_server(&language::python_asyncio().unwrap());
}

#[test]
fn node_answers_as_asked() {
    check_server(&language::node().unwrap());
}

#[test]
fn go_answers_as_asked() {
    check_server(&language::go().unwrap());
}

#[test]
fn java_answers_as_asked() {
    check_server(&language::java().unwrap());
}

#[test]
fn http2_answers_as_asked() {
    let go = language::http2_go().unwrap();
    check_server_by(&go, &Kind::HTTP2);
    check_server_by(&go, &[Kind::UpgradeCurl]);
    check_server_by(&language::http2_node().unwrap(), &Kind::HTTP2);
    check_server_by(&nginx::http2().unwrap(), &Kind::HTTP2);
}

#[test]
fn grpc_answers_as_asked() {
    let mut rng = seeded("workload gRPC");
    for library in Library::ALL {
        let server = RpcServer::start(library, None).unwrap();
        for client in Library::ALL {
            let calls = multiplexed::calls(&mut rng, 1, true);
            let done = peer::call(client, server.port, None, (&calls, 4)).unwrap();
            let entered = RpcLedger::default().enter(&calls, &done, &server, &[]);
            entered.unwrap_or_else(|error| panic!("{client:?} to {library:?}: {error:#}"));
            let is_answered = (0..NGINX_TRIES).any(|_| answers_by_nginx(&mut rng, client, &server));
            assert!(is_answered, "{client:?} to {library:?}: nginx failed a call {NGINX_TRIES} times");
        }
    }
}

/// Whether calls through nginx are answered as asked; `false` when nginx has failed one.
#[track_caller]
fn answers_by_nginx(rng: &mut fastrand::Rng, client: Library, server: &RpcServer) -> bool {
    let (mut proxy, port) = nginx::grpc_proxy(server.port).unwrap();
    let calls = multiplexed::calls(rng, 1, false);
    let done = peer::call(client, port, None, (&calls, 4)).unwrap();
    let entered = RpcLedger::default().enter(&calls, &done, server, &proxy.roles());
    let log = proxy.program().stderr().unwrap();
    if log.contains(LATE_FRAME) {
        note(&format!("called again: {}", log.trim()));
        return false;
    }
    entered.unwrap_or_else(|error| panic!("{client:?} by nginx: {error:#}\n{log}"));
    true
}

#[test]
fn websockets_answer_as_asked() {
    let certificates = Certificates::new().unwrap();
    for certificates in [None, Some(&certificates)] {
        let server = SocketServer::start(certificates).unwrap();
        server.call(&multiplexed::sockets(), certificates).unwrap();
    }
}

#[test]
fn io_uring_answers_as_asked() {
    check_server(&io_uring::io_uring().unwrap());
}

#[test]
fn shape_server_answers_as_asked() {
    let server = ShapeServer::start("shape", every_way(7)).unwrap();
    check_server(&server.server);
}

/// Every oddity at once: the two raw ends agree on each exchange.
#[test]
fn raw_ends_agree() {
    let mut rng = seeded("workload raw ends");
    let server = ShapeServer::start("shape", every_way(rng.u64(..))).unwrap();
    let calls: Vec<Call> =
        (0..600).map(|_| Call::new(load::odd_shape(&mut rng, &server.server.features))).collect();
    let connections =
        calls.chunks(30).map(|part| odd_connection(&mut rng, &server.server.address, part)).collect();
    let plan = Plan { seed: rng.u64(..), concurrency: 4, rate: 0, connections };
    let done = client::follow(&plan).unwrap();
    check("raw ends", &calls, &done);
    let served: BTreeMap<String, _> =
        server.truths_of(calls.len()).unwrap().into_iter().map(|truth| (truth.id.clone(), truth)).collect();
    for truth in &done.truths {
        let other = &served[&truth.id];
        assert_eq!(
            (truth.status, truth.request_bytes, truth.response_bytes),
            (other.status, other.request_bytes, other.response_bytes),
            "{truth:?} {other:?}"
        );
    }
}

fn odd_connection(rng: &mut fastrand::Rng, address: &Address, calls: &[Call]) -> ConnectionPlan {
    let segmentation = match rng.u8(..4) {
        0 => Segmentation::Whole,
        1 => Segmentation::Pieces(rng.usize(10..100)),
        _ => Segmentation::Pieces(rng.usize(1_000..9_000)),
    };
    ConnectionPlan {
        depth: rng.usize(1..8),
        segmentation,
        reads: ReadMode::ALL.to_vec(),
        writes: WriteMode::ALL.to_vec(),
        ..ConnectionPlan::new(address, calls.to_vec())
    }
}
