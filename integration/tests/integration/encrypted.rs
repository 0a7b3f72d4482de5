//! The accuracy gate over TLS, HTTP/2 and gRPC, small enough for an emulated machine: the same for every hook set and
//! kernel, as [`crate::accuracy`] is for HTTP/1 in the clear.
//!
//! Compared by identity; what a set cannot see must be counted ([`HookSet::sight`]).

use integration::accuracy::Ledger;
use integration::agent::Agent;
use integration::client::{self, Kind};
use integration::exposition::Exposition;
use integration::hook::{Passage, Sight, View};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::plan::Call;
use integration::rpc::ledger::RpcLedger;
use integration::rpc::peer::{self, Library, RpcServer};
use integration::seed::{note, seeded};
use integration::server::{Server, encrypted, nginx};
use integration::shape::Shape;

use crate::accuracy::{Row, calls, check};
use crate::gate;
use crate::multiplexed;
use crate::tls::agent_that_probes;

/// One row: all of `kinds` against `server`.
#[track_caller]
fn row(rng: &mut fastrand::Rng, server: &Server, kinds: &[Kind], how: (bool, Sight)) -> Row {
    let (tls, sight) = how;
    let mut ledger = Ledger::default();
    for kind in kinds {
        let calls = load::calls(rng, &server.features, *kind, calls(40));
        let done = if tls {
            client::call_encrypted(*kind, &server.address, &calls, 4)
        } else {
            client::call(*kind, &server.address, &calls, 4)
        };
        let done = done.unwrap_or_else(|error| panic!("{} by {}: {error:#}", server.name, kind.name()));
        ledger.enter(&calls, &done, &server.roles());
    }
    let has_frames = kinds.contains(&Kind::Http2Curl);
    Row { name: server.name.clone(), ledger, sight, has_frames }
}

/// Sockets at nginx, blocking threads, memory BIOs, and what OpenSSL does inside curl.
#[test]
fn http1() {
    let mut rng = seeded("encrypted HTTP/1");
    let certificates = Certificates::new().unwrap();
    let servers = [
        encrypted::nginx(&certificates).unwrap(),
        encrypted::python_threads(&certificates).unwrap(),
        encrypted::python_asyncio(&certificates).unwrap(),
    ];
    let mut agent = agent_that_probes(&["/libssl.so", "/libcrypto.so"]);
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    // Clients of the same kind have different services: each row is judged by itself.
    let kinds = [Kind::Curl, Kind::Python];
    let sight = view.sight(Passage::Library);
    let rows = servers.iter().map(|server| row(&mut rng, server, &kinds, (true, sight))).collect();
    check(&mut agent, &before, rows, view);
}

#[test]
fn http2() {
    let mut rng = seeded("encrypted HTTP/2");
    let certificates = Certificates::new().unwrap();
    let servers =
        [encrypted::http2_nginx(&certificates).unwrap(), encrypted::http2_node(&certificates).unwrap()];
    let clear = nginx::http2().unwrap();
    let mut agent = agent_that_probes(&["/libssl.so", "/node"]);
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    let kinds = [Kind::Http2Curl, Kind::Http2Node];
    let sight = view.sight(Passage::Library);
    let mut rows: Vec<Row> =
        servers.iter().map(|server| row(&mut rng, server, &kinds, (true, sight))).collect();
    rows.push(row(&mut rng, &clear, &kinds, (false, view.sight(Passage::Call))));
    check(&mut agent, &before, rows, view);
}

/// Calls of every kind and end, at sockets and over TLS.
#[test]
fn grpc() {
    let mut rng = seeded("encrypted gRPC");
    let certificates = Certificates::new().unwrap();
    let node = RpcServer::start(Library::Node, Some(&certificates)).unwrap();
    let mut agent = agent_that_probes(&["/node"]);
    let view = agent.view().unwrap();
    let tonic = RpcServer::start(Library::Tonic, None).unwrap();
    for (server, clients, encrypted) in [
        (&node, &[Library::Node][..], Some(&certificates)),
        (&tonic, &[Library::Tonic, Library::Python], None),
    ] {
        let mut ledger = RpcLedger::default();
        for client in clients {
            let calls = multiplexed::calls(&mut rng, 1, true);
            let done = peer::call(*client, server.port, encrypted, (&calls, 8)).unwrap();
            ledger.enter(&calls, &done, server, &[]).unwrap();
        }
        let passage = if encrypted.is_some() { Passage::Library } else { Passage::Call };
        check_calls(&mut agent, &ledger, view, passage);
    }
}

#[track_caller]
fn check_calls(agent: &mut Agent, ledger: &RpcLedger, view: View, passage: Passage) {
    let what = format!("{}: gRPC", view.set);
    if view.sight(passage) == Sight::Exact {
        multiplexed::assert_exact(agent, ledger, &what);
    }
    let unaccounted = |metrics: &Exposition| {
        gate::unaccounted(metrics, &ledger.roles(), |kind, service| ledger.count(kind, service))
    };
    let metrics = agent.metrics_until(gate::PATIENCE, |metrics| unaccounted(metrics).is_empty()).unwrap();
    let mut report = ledger.compare(agent.spans().unwrap());
    gate::tell(&what, &report, gate::lost(&metrics, &ledger.roles()));
    let missing = std::mem::take(&mut report.missing);
    assert_eq!(unaccounted(&metrics), [""; 0], "{what}: missing and not counted: {missing:?}");
    assert!(report.is_exact(), "{what}: {report}");
}

/// Records that the kernel makes, where it can: nginx writes plain bytes to its sockets, and files with `SSL_sendfile`.
/// OpenSSL 3.0 hands over what is sent of both protocols, and what is received of TLS 1.2.
#[test]
fn kernel_tls() {
    let mut rng = seeded("TLS of the kernel");
    let certificates = Certificates::new().unwrap();
    let servers = ["TLSv1.2", "TLSv1.3"].map(|name| encrypted::nginx_by_kernel(&certificates, name).unwrap());
    let mut agent = agent_that_probes(&["/libssl.so"]);
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    let offloaded_before = offloaded();
    let mut rows = Vec::new();
    let sight = view.sight(Passage::Library);
    for server in &servers {
        rows.push(row(&mut rng, server, &[Kind::Curl, Kind::Python], (true, sight)));
        let large: Vec<Call> = [300_000, 65_536, 17, 300_000, 0, 4096]
            .map(|response_bytes| Call::new(Shape { response_bytes, ..Shape::default() }))
            .into();
        let done = client::call_encrypted(Kind::Python, &server.address, &large, 2).unwrap();
        rows.last_mut().unwrap().ledger.enter(&large, &done, &server.roles());
    }
    check(&mut agent, &before, rows, view);
    let (sent, received) = offloaded();
    let is_required = std::env::var_os(KERNEL_TLS).is_some();
    note(&format!("{}: {sent} streams sent by the kernel's TLS, {received} received", view.set));
    if is_required {
        assert!(
            sent > offloaded_before.0 + 1 && received > offloaded_before.1,
            "nothing was handed to the kernel"
        );
    }
}

/// Set where the kernel is known to have TLS: then the test fails without it.
const KERNEL_TLS: &str = "OBI_TEST_KERNEL_TLS";

/// Streams that the kernel has encrypted and decrypted since it began; none where it has no TLS.
fn offloaded() -> (u64, u64) {
    let text = std::fs::read_to_string("/proc/net/tls_stat").unwrap_or_default();
    let count = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|count| count.trim().parse().ok()).unwrap_or(0)
    };
    (count("TlsTxSw "), count("TlsRxSw "))
}
