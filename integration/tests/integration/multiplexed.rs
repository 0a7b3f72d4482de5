//! The accuracy gate over HTTP/2, gRPC and WebSockets: by identity, at both ends and in between.

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::exposition::Exposition;
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::patience::slowness;
use integration::plan::Call;
use integration::rpc::ledger::RpcLedger;
use integration::rpc::peer::{self, Library, RpcServer};
use integration::rpc::plan::{Method, RpcCall};
use integration::seed::{note, seeded};
use integration::server::{Server, encrypted, language, nginx};
use integration::shape::Shape;
use integration::span;
use integration::websocket::{self, SocketCall, SocketServer};

use crate::gate;
use crate::tls::agent_that_probes;

/// Calls of every kind, `rounds` times in random order; those whose client gives up only where no proxy is in between.
pub(crate) fn calls(rng: &mut fastrand::Rng, rounds: usize, gives_up: bool) -> Vec<RpcCall> {
    use Method::{Chat, Collect, Expand, Missing, Unary};
    let mut calls = Vec::new();
    for _ in 0..rounds {
        let delay = rng.u32(0..20_000);
        calls.extend([
            RpcCall::new(Unary, 1, 1),
            RpcCall::new(Unary, 1, 1).takes(delay),
            RpcCall::new(Unary, 1, 1).of_bytes(100_000),
            RpcCall::new(Unary, 1, 0).fails(5),
            RpcCall::new(Unary, 1, 0).fails(14).takes(delay),
            RpcCall::new(Collect, 7, 1).takes(delay),
            RpcCall::new(Collect, 3, 0).fails(13),
            RpcCall::new(Collect, 9, 1).of_bytes(40_000),
            RpcCall::new(Expand, 1, 9).takes(delay),
            RpcCall::new(Expand, 1, 20).of_bytes(50_000),
            RpcCall::new(Expand, 1, 4).fails(9),
            RpcCall::new(Chat, 6, 6).takes(delay),
            RpcCall::new(Chat, 2, 2).fails(3),
            RpcCall::new(Missing, 1, 0),
        ]);
        if gives_up {
            calls.extend([
                RpcCall::new(Expand, 1, 3).is_cancelled(),
                RpcCall::new(Chat, 4, 4).is_cancelled(),
                RpcCall::new(Unary, 1, 0).times_out(1_500 * slowness().min(10)),
            ]);
        }
    }
    rng.shuffle(&mut calls);
    calls
}

/// WebSockets of every end.
pub(crate) fn sockets() -> Vec<SocketCall> {
    vec![
        SocketCall::new(vec![1, 2, 3], 2, "client", 1000),
        SocketCall::new(vec![], 0, "client", 1001),
        SocketCall::new(vec![70_000, 125, 126, 127], 12, "server", 1000),
        SocketCall::new(vec![5; 200], 30, "server", 1011),
        SocketCall::new(vec![9], 1, "client", 4321),
        SocketCall { lasts_ms: 400, ..SocketCall::new(vec![9], 1, "client", 1000) },
    ]
}

fn check_http2(agent: &mut Agent, server: &Server, rng: &mut fastrand::Rng, kinds: &[Kind]) {
    let mut ledger = Ledger::default();
    for kind in kinds {
        let calls = load::calls(rng, &server.features, *kind, 60);
        gate::call(&mut ledger, *kind, server, &calls, 8);
    }
    let report = gate::report(agent, &ledger);
    note(&format!("{}: {} spans expected, exact: {}", server.name, report.expected, report.is_exact()));
    assert!(report.is_exact(), "{}: {report}", server.name);
    gate::assert_exact(agent, &ledger);
    if !kinds.contains(&Kind::UpgradeCurl) {
        for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
            assert_eq!(span.text("network.protocol.version"), Some("2"), "{span:?}");
        }
    }
}

#[test]
fn http2_in_cleartext() {
    let mut rng = seeded("HTTP/2 in cleartext");
    let before = language::http2_go().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    check_http2(&mut agent, &before, &mut rng, &Kind::HTTP2);
    check_http2(&mut agent, &language::http2_node().unwrap(), &mut rng, &Kind::HTTP2);
    check_http2(&mut agent, &nginx::http2().unwrap(), &mut rng, &Kind::HTTP2);
}

/// What nginx and curl read by the shared library, and Node by its own copy; a connection of HTTP/2 says so in TLS.
#[test]
fn http2_over_tls() {
    let mut rng = seeded("HTTP/2 over TLS");
    let certificates = Certificates::new().unwrap();
    let servers =
        [encrypted::http2_nginx(&certificates).unwrap(), encrypted::http2_node(&certificates).unwrap()];
    let mut agent = agent_that_probes(&["/libssl.so", "/node"]);
    for server in &servers {
        let mut ledger = Ledger::default();
        for kind in [Kind::Http2Curl, Kind::Http2Node] {
            let calls = load::calls(&mut rng, &server.features, kind, 60);
            let done = client::call_encrypted(kind, &server.address, &calls, 8).unwrap();
            ledger.enter(&calls, &done, &server.roles());
        }
        let report = gate::report(&mut agent, &ledger);
        note(&format!(
            "TLS {}: {} spans expected, exact: {}",
            server.name,
            report.expected,
            report.is_exact()
        ));
        assert!(report.is_exact(), "{}: {report}", server.name);
        gate::assert_exact(&mut agent, &ledger);
        for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
            let reported = (span.text("network.protocol.version"), span.text("url.scheme"));
            assert_eq!(reported, (Some("2"), Some("https")), "{span:?}");
        }
    }
}

/// The sets are equal with one stream at a time, with a hundred and with a thousand.
#[test]
fn http2_with_many_streams() {
    let mut agent = Agent::start(Config::default()).unwrap();
    for streams in [1, 100, 1_000] {
        for server in [language::http2_go().unwrap(), language::http2_node().unwrap()] {
            // None is answered before all are open.
            let delay = if streams == 1 { 0 } else { 300_000 };
            let shape = Shape { delay, response_bytes: 2_000, ..Shape::default() };
            let mut ledger = Ledger::default();
            for kind in [Kind::Http2Go, Kind::Http2Node] {
                let calls: Vec<Call> = (0..streams.max(50)).map(|_| Call::new(shape.clone())).collect();
                gate::call(&mut ledger, kind, &server, &calls, streams);
            }
            let report = gate::report(&mut agent, &ledger);
            note(&format!(
                "{streams} streams, {}: {} spans expected, exact: {}",
                server.name,
                report.expected,
                report.is_exact()
            ));
            assert!(report.is_exact(), "{streams} streams, {}: {report}", server.name);
            gate::assert_exact(&mut agent, &ledger);
        }
    }
}

/// Calls between every pair of libraries.
#[track_caller]
fn check_grpc(agent: &mut Agent, libraries: &[Library], certificates: Option<&Certificates>, what: &str) {
    let mut rng = seeded(what);
    for library in libraries.iter().copied() {
        let server = RpcServer::start(library, certificates).unwrap();
        let mut ledger = RpcLedger::default();
        for client in libraries.iter().copied() {
            let calls = calls(&mut rng, 3, true);
            let done = peer::call(client, server.port, certificates, (&calls, 8)).unwrap();
            ledger.enter(&calls, &done, &server, &[]).unwrap();
        }
        assert_exact(agent, &ledger, &format!("{what}, {}", library.name()));
    }
}

#[track_caller]
pub(crate) fn assert_exact(agent: &mut Agent, ledger: &RpcLedger, what: &str) {
    agent.spans_until(gate::PATIENCE, |spans| ledger.is_complete(spans)).unwrap();
    let is_alive = gate::Barrier::start().pass(agent);
    let report = ledger.compare(agent.spans().unwrap());
    let metrics = agent.metrics().unwrap();
    note(&format!("{what}: {} spans expected, exact: {}", report.expected, report.is_exact()));
    assert!(is_alive, "{what}: the agent does not show a request in time; {report}");
    let wrong = miscounted(&metrics, ledger);
    let losses = gate::losses(&metrics, ledger.roles());
    assert!(report.is_exact() && wrong.is_empty(), "{what}: {report}\n{}\n{losses}", wrong.join("\n"));
    assert!(report.expected > 0, "{what}: the workload did not run");
}

/// RED counts that are not what happened: every call once, and not as a request of HTTP again.
fn miscounted(metrics: &Exposition, ledger: &RpcLedger) -> Vec<String> {
    let mut wrong = Vec::new();
    for (kind, service) in ledger.roles() {
        let side = match kind {
            span::Kind::Server => "server",
            span::Kind::Client => "client",
        };
        let labels = [("service_name", service.as_str())];
        let sided = [("service_name", service.as_str()), ("side", side)];
        let expected = ledger.count(kind, &service) as f64;
        for (name, labels, expected) in [
            (format!("rpc_{side}_call_duration_seconds_count"), &labels[..], expected),
            (format!("http_{side}_request_duration_seconds_count"), &labels[..], 0.0),
            ("obi_spans_total".to_owned(), &sided[..], expected),
            ("obi_lost_total".to_owned(), &sided[..], 0.0),
        ] {
            let counted = metrics.sum(&name, labels);
            if counted != expected {
                wrong.push(format!("{name} of {service} is {counted} instead of {expected}"));
            }
        }
    }
    wrong
}

#[test]
fn grpc_in_cleartext() {
    let mut agent = Agent::start(Config::default()).unwrap();
    check_grpc(&mut agent, &Library::ALL, None, "gRPC in cleartext");
}

/// What a stream has carried is known, though it never ends: of one in each direction from the kernel side, which puts
/// the others aside.
#[test]
fn calls_that_end_with_their_connection() {
    let mut agent = Agent::start(Config::default()).unwrap();
    for library in Library::ALL {
        let server = RpcServer::start(library, None).unwrap();
        let left = [2, 3, 5, 6].map(|messages| RpcCall::new(Method::Chat, messages, messages).is_left());
        let done = peer::call(Library::Tonic, server.port, None, (&left, left.len())).unwrap();
        let mut ledger = RpcLedger::default();
        ledger.enter(&left, &done, &server, &[]).unwrap();
        let spans = agent.spans_until(gate::PATIENCE, |spans| ledger.is_complete(spans)).unwrap();
        // Whether the end is a reset depends on what the server had to say just then: the rest is not compared.
        for call in &left {
            let reported: Vec<_> = spans.iter().filter(|span| span.trace_id == call.id).collect();
            let messages = ["obi.rpc.request.messages", "obi.rpc.response.messages"];
            let counts = reported.iter().map(|span| messages.map(|name| span.number(name)));
            let expected = [[Some(call.requests.into()), Some(call.responses.into())]; 2];
            assert_eq!(counts.collect::<Vec<_>>(), expected, "{}: {reported:?}", library.name());
        }
    }
}

/// nginx 1.22 fails a call over a connection that it has kept when a frame of the call before comes late. It says so.
pub(crate) const LATE_FRAME: &str = "upstream sent frame for unknown stream";
/// Programs are new each time, so that nothing of a call that nginx has failed is in the ledger.
pub(crate) const NGINX_TRIES: usize = 3;

/// `None` when nginx has failed a call as above.
#[track_caller]
fn call_through_nginx(rng: &mut fastrand::Rng, library: Library) -> Option<(RpcLedger, impl Sized + use<>)> {
    let server = RpcServer::start(library, None).unwrap();
    let (mut proxy, port) = nginx::grpc_proxy(server.port).unwrap();
    let mut ledger = RpcLedger::default();
    let calls = calls(rng, 3, false);
    let done = peer::call(Library::Go, port, None, (&calls, 8)).unwrap();
    let entered = ledger.enter(&calls, &done, &server, &proxy.roles());
    let log = proxy.program().stderr().unwrap();
    // Asked even where the client got what it expected: nginx answers UNAVAILABLE, as some calls are to be answered.
    if log.contains(LATE_FRAME) {
        note(&format!("called again: {}", log.trim()));
        return None;
    }
    entered.unwrap_or_else(|error| panic!("{error:#}\n{log}"));
    Some((ledger, (server, proxy)))
}

/// In Base64 and not, over HTTP/1.1. Its status is at the end of the body, which is not read: it is not reported.
#[test]
fn grpc_web() {
    let mut rng = seeded("gRPC-Web");
    let mut agent = Agent::start(Config::default()).unwrap();
    for is_text in [false, true] {
        let server = RpcServer::start(Library::Tonic, None).unwrap();
        let calls: Vec<RpcCall> = calls(&mut rng, 6, false)
            .into_iter()
            .filter(|call| matches!(call.method, Method::Unary | Method::Expand | Method::Missing))
            .collect();
        let done = peer::call_web(server.port, is_text, (&calls, 8)).unwrap();
        let mut ledger = RpcLedger::of_web();
        ledger.enter(&calls, &done, &server, &[]).unwrap();
        assert_exact(&mut agent, &ledger, if is_text { "gRPC-Web as text" } else { "gRPC-Web" });
    }
}

#[test]
fn websockets_in_cleartext() {
    let mut agent = Agent::start(Config::default()).unwrap();
    check_websockets(&mut agent, &SocketServer::start(None).unwrap(), None, "http");
}

#[track_caller]
fn check_websockets(
    agent: &mut Agent,
    server: &SocketServer,
    certificates: Option<&Certificates>,
    scheme: &str,
) {
    let calls = sockets();
    let (client, truths) = server.call(&calls, certificates).unwrap();
    let roles = [(span::Kind::Client, client.as_str()), (span::Kind::Server, server.service.as_str())];
    let is_complete = |spans: &[span::Span]| websocket::is_complete(&calls, roles, spans);
    agent.spans_until(gate::PATIENCE, is_complete).unwrap();
    let wrong = websocket::wrong(&calls, &truths, roles, agent.spans().unwrap());
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let is_ours = |span: &&span::Span| roles.iter().any(|(_, service)| span.service.name == *service);
    for span in agent.spans().unwrap().iter().filter(is_ours) {
        assert_eq!(span.text("url.scheme"), Some(scheme), "{span:?}");
    }
    note(&format!("WebSockets over {scheme}: {} at each end, exact: true", calls.len()));
    let metrics = agent.metrics().unwrap();
    let sockets = calls.len() as f64;
    for (kind, service) in roles {
        let side = if kind == span::Kind::Server { "server" } else { "client" };
        let labels = [("service_name", service)];
        for (name, expected) in [
            // The upgrades.
            (format!("http_{side}_request_duration_seconds_count"), sockets),
            ("traces_span_metrics_duration_seconds_count".to_owned(), sockets),
            ("traces_span_metrics_calls_total".to_owned(), 2.0 * sockets),
            ("obi_lost_total".to_owned(), 0.0),
        ] {
            assert_eq!(metrics.sum(&name, &labels), expected, "{name} of {service}");
        }
    }
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Go's TLS is in `go_tls.rs`, the library below Python in `compiled_in.rs`.
    #[test]
    fn grpc_over_tls() {
        let certificates = Certificates::new().unwrap();
        let before = RpcServer::start(Library::Node, Some(&certificates)).unwrap();
        let mut agent = agent_that_probes(&["/node"]);
        drop(before);
        check_grpc(&mut agent, &[Library::Node], Some(&certificates), "gRPC over TLS");
    }

    #[test]
    fn http2_by_upgrade() {
        let mut rng = seeded("HTTP/2 by Upgrade");
        let mut agent = Agent::start(Config::default()).unwrap();
        check_http2(&mut agent, &language::http2_go().unwrap(), &mut rng, &[Kind::UpgradeCurl]);
    }

    /// A proxy ends one stream and begins another: four spans per call.
    #[test]
    fn grpc_through_nginx() {
        let mut rng = seeded("gRPC through nginx");
        let mut agent = Agent::start(Config::default()).unwrap();
        for library in Library::ALL {
            let call = || call_through_nginx(&mut rng, library);
            let (ledger, _running) = std::iter::repeat_with(call).take(NGINX_TRIES).flatten().next().unwrap();
            assert_exact(&mut agent, &ledger, &format!("through nginx to {}", library.name()));
        }
    }

    /// Python's asyncio: memory BIOs at both ends.
    #[test]
    fn websockets_over_tls() {
        let certificates = Certificates::new().unwrap();
        let server = SocketServer::start(Some(&certificates)).unwrap();
        let mut agent = agent_that_probes(&["/libssl.so", "/libcrypto.so"]);
        check_websockets(&mut agent, &server, Some(&certificates), "https");
    }
}
