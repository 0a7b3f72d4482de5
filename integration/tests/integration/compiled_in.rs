//! TLS libraries beside OpenSSL's with names: what is compiled in and stripped, GnuTLS, Mbed TLS, wolfSSL. The same
//! requests give the same spans, and what cannot be read is counted exactly.

use std::process::Command;
use std::time::Duration;

use integration::accuracy::Ledger;
use integration::agent::Agent;
use integration::client::threads::{self, Load};
use integration::client::{self, Kind};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::patience::{patience, until};
use integration::plan::Call;
use integration::process::Program;
use integration::program::{self, Threads};
use integration::rpc::ledger::RpcLedger;
use integration::rpc::peer::{self, Library, RpcServer};
use integration::seed::seeded;
use integration::server::{encrypted, lighttpd};
use integration::shape::Shape;
use integration::span;

use crate::gate;
use crate::multiplexed;
use crate::tls::{PROBING, agent_that_probes, await_uncovered, uncovered_of};

const CALLS: usize = 40;

/// Exchanges of many threads at both ends, each over one of these libraries: those of the server and of the client.
#[track_caller]
fn check_threads(agent: &mut Agent, pairs: &[(Threads, Threads)], seed: &str) {
    let mut rng = seeded(seed);
    let certificates = Certificates::new().unwrap();
    let mut ledger = Ledger::default();
    let mut servers = Vec::new();
    for (of_server, of_client) in pairs.iter().copied() {
        let server = encrypted::threads_of(&certificates, of_server).unwrap();
        let lasts = patience(Duration::from_secs(20));
        let load = Load { threads: 8, lasts, most: 60, seed: rng.u64(..) };
        let made = threads::call_by(of_client, &server.address, load).unwrap();
        for (shape, truth) in &made.exchanges {
            ledger.expect(shape, truth, span::Kind::Client, &made.service);
            ledger.expect(shape, truth, span::Kind::Server, &server.service);
        }
        servers.push(server);
    }
    gate::assert_exact(agent, &ledger);
    for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
        assert_eq!(span.text("url.scheme"), Some("https"), "{span:?}");
    }
    for server in &servers {
        assert_eq!(uncovered_of(agent, server.pid()), 0, "{}: {}", server.service, agent.tls().unwrap());
    }
}

/// A program of this kind that lives on, so that its file is probed before the processes of the test begin.
fn waiting(library: Threads, certificates: &Certificates) -> Program {
    let mut command = Command::new(program::threads(library).unwrap());
    command.arg("serve").env("TLS_CERTIFICATE", certificates.path("server.pem"));
    command.env("TLS_KEY", certificates.path("server.key"));
    let mut program = Program::spawn("threads", command).unwrap();
    program.await_line("ready", PROBING).unwrap();
    program
}

/// OpenSSL compiled into a program that has lost its names: found by what its functions refer to.
#[test]
fn openssl_without_names() {
    let certificates = Certificates::new().unwrap();
    let _waiting = waiting(Threads::Nameless, &certificates);
    let mut agent = agent_that_probes(&["/libssl.so", "/threads-nameless"]);
    let pairs = [
        (Threads::Nameless, Threads::Nameless),
        (Threads::Nameless, Threads::Shared),
        (Threads::Shared, Threads::Nameless),
    ];
    check_threads(&mut agent, &pairs, "OpenSSL without names");
}

/// BoringSSL in grpcio's extension for Python, which has no names: records go through memory.
#[test]
fn boringssl_without_names() {
    let certificates = Certificates::new().unwrap();
    let python = RpcServer::start(Library::Python, Some(&certificates)).unwrap();
    let node = RpcServer::start(Library::Node, Some(&certificates)).unwrap();
    let mut agent = agent_that_probes(&["/_cython/cygrpc", "/node"]);
    let mut rng = seeded("BoringSSL without names");
    for (server, clients) in [(&python, &[Library::Python, Library::Node][..]), (&node, &[Library::Python])] {
        let mut ledger = RpcLedger::default();
        for client in clients {
            let calls = multiplexed::calls(&mut rng, 2, true);
            let done = peer::call(*client, server.port, Some(&certificates), (&calls, 8)).unwrap();
            ledger.enter(&calls, &done, server, &[]).unwrap();
        }
        multiplexed::assert_exact(&mut agent, &ledger, "gRPC over BoringSSL without names");
    }
}

/// GnuTLS in both roles, with bytes that are gathered before they are sent and sends that are tried again.
#[test]
fn gnutls() {
    let mut agent = agent_that_probes(&["/libssl.so", "/libgnutls.so"]);
    let pairs = [
        (Threads::GnuTls, Threads::GnuTls),
        (Threads::GnuTls, Threads::Shared),
        (Threads::Shared, Threads::GnuTls),
    ];
    check_threads(&mut agent, &pairs, "GnuTLS");
}

/// One server by five libraries, the same requests: four give the same spans, the fifth is counted.
#[test]
fn one_server_by_five_libraries() {
    const READ: [&str; 4] = ["openssl", "gnutls", "mbedtls", "wolfssl"];
    let mut rng = seeded("lighttpd");
    let certificates = Certificates::new().unwrap();
    let servers = READ.map(|module| lighttpd::files(&certificates, module).unwrap());
    let nss = lighttpd::files(&certificates, "nss").unwrap();
    let mut agent = agent_that_probes(&["/libssl.so", "/libgnutls.so", "/libmbedtls.so", "/libwolfssl.so"]);
    let mut ledger = Ledger::default();
    for kind in [Kind::Curl, Kind::Python] {
        // Ids are drawn anew for each server.
        let shapes: Vec<Shape> = load::calls(&mut rng, &servers[0].features, kind, CALLS)
            .into_iter()
            .map(|call| call.shape)
            .collect();
        for server in &servers {
            let calls: Vec<Call> = shapes.iter().cloned().map(Call::new).collect();
            let done = client::call_encrypted(kind, &server.address, &calls, 4).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
    }
    let calls: Vec<Call> =
        (0..12).map(|_| Call::new(Shape { response_bytes: 17, ..Shape::default() })).collect();
    let done = client::call_encrypted(Kind::Python, &nss.address, &calls, 3).unwrap();
    ledger.enter(&calls, &done, &[]);
    gate::assert_exact(&mut agent, &ledger);
    for server in &servers {
        assert_eq!(uncovered_of(&agent, server.pid()), 0, "{}: {}", server.name, agent.tls().unwrap());
    }
    let entry = await_uncovered(&agent, nss.pid(), 3);
    assert_eq!(entry["reason"], "NSS is not probed yet", "{entry}");
    assert!(agent.spans().unwrap().iter().all(|span| span.service.name != nss.service));
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// BoringSSL in a library that Netty unpacks, loads and deletes: in a server that runs when the agent begins, and
    /// in one that begins later and is looked at again until the library is there.
    #[test]
    fn netty_with_a_library_that_is_deleted() {
        const LIBRARY: &str = "/libnetty_tcnative_linux_x86_64";
        let mut rng = seeded("Netty");
        let certificates = Certificates::new().unwrap();
        let before = encrypted::netty(&certificates).unwrap();
        let mut agent = agent_that_probes(&["/libssl.so", LIBRARY]);
        let after = encrypted::netty(&certificates).unwrap();
        until("the library of either is probed", PROBING, || {
            let tls = agent.tls().unwrap();
            let is_it = |file: &&serde_json::Value| file["path"].as_str().unwrap().contains(LIBRARY);
            match tls["probed"].as_array().unwrap().iter().filter(is_it).count() {
                2 => Ok(()),
                n => Err(format!("{n} are: {tls}")),
            }
        });
        let mut ledger = Ledger::default();
        for server in [&before, &after] {
            for kind in [Kind::Curl, Kind::Python] {
                let calls = load::calls(&mut rng, &server.features, kind, CALLS);
                let done = client::call_encrypted(kind, &server.address, &calls, 4).unwrap();
                ledger.enter(&calls, &done, &server.roles());
            }
        }
        gate::assert_exact(&mut agent, &ledger);
        for server in [&before, &after] {
            assert_eq!(uncovered_of(&agent, server.pid()), 0, "{}: {}", server.name, agent.tls().unwrap());
        }
    }
}
