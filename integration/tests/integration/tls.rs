//! TLS: what programs read from and write to OpenSSL becomes exact spans, whatever carries the ciphertext; TLS that
//! no probe reads is counted once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Done, Kind};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::patience::{patience, slowness};
use integration::plan::{Address, Call};
use integration::process::Program;
use integration::program::Build;
use integration::seed::{note, seeded};
use integration::server::{Features, KEPT, Server, encrypted};
use integration::shape::{Framing, RequestFraming, Shape};
use integration::span::{self, Span};

use crate::gate;

const CALLS: usize = 40;
/// How long the agent may take to probe the TLS libraries of programs that run already; a debug build reads them
/// slowly.
pub(crate) const PROBING: Duration = Duration::from_secs(60);

/// A program that makes requests over TLS.
#[derive(Debug, Clone, Copy)]
enum Client {
    /// Blocking reads and writes, or those of a library with its own callbacks.
    Simple(Kind),
    /// Memory BIOs, this many requests at a time.
    Asyncio(usize),
}

const CLIENTS: [Client; 5] = [
    Client::Simple(Kind::Curl),
    Client::Simple(Kind::Python),
    Client::Simple(Kind::Node),
    Client::Asyncio(1),
    Client::Asyncio(5),
];

impl Client {
    fn calls(self, rng: &mut fastrand::Rng, features: &Features, count: usize) -> Vec<Call> {
        match self {
            Self::Simple(kind) => load::calls(rng, features, kind, count),
            Self::Asyncio(1) => load::calls(rng, features, Kind::Python, count),
            // What ends a connection cannot have requests behind it.
            Self::Asyncio(_) => {
                let sizes = if features.sizes.is_empty() { features.pipelined_sizes } else { features.sizes };
                load::calls(rng, &Features { framings: KEPT, sizes, ..*features }, Kind::Python, count)
            }
        }
    }

    #[track_caller]
    fn call(self, server: &Server, calls: &[Call]) -> Done {
        let done = match self {
            Self::Simple(kind) => client::call_encrypted(kind, &server.address, calls, 4),
            Self::Asyncio(depth) => client::asyncio_encrypted(&server.address, calls, (4, depth), None),
        };
        done.unwrap_or_else(|error| panic!("{} by {self:?}: {error:#}", server.name))
    }
}

/// Starts the agent and waits until it has probed a file of each of these names: the servers run already.
#[track_caller]
pub(crate) fn agent_that_probes(names: &[&str]) -> Agent {
    let agent = Agent::start(Config::default().alone()).unwrap();
    agent.await_probes(names, PROBING).unwrap();
    agent
}

/// The spans of the ledger's services say that they were encrypted, and between whom.
#[track_caller]
fn assert_reported(agent: &mut Agent, ledger: &Ledger) {
    for span in agent.spans().unwrap().iter().filter(|span| ledger.is_ours(span)) {
        assert_eq!(span.text("url.scheme"), Some("https"), "{span:?}");
        let peer = match span.kind {
            span::Kind::Server => "client.address",
            span::Kind::Client => "server.address",
        };
        assert_eq!(span.text(peer), Some("127.0.0.1"), "{span:?}");
    }
}

#[test]
fn every_server_by_every_client() {
    let mut rng = seeded("tls");
    let certificates = Certificates::new().unwrap();
    let servers = [
        encrypted::nginx(&certificates).unwrap(),
        encrypted::python_threads(&certificates).unwrap(),
        encrypted::python_asyncio(&certificates).unwrap(),
        encrypted::node(&certificates).unwrap(),
    ];
    let mut agent = agent_that_probes(&["/libssl.so", "/libcrypto.so", "/node"]);
    let mut ledger = Ledger::default();
    for server in &servers {
        for client in CLIENTS {
            let calls = client.calls(&mut rng, &server.features, CALLS);
            let done = client.call(server, &calls);
            ledger.enter(&calls, &done, &server.roles());
        }
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_reported(&mut agent, &ledger);
    for server in &servers {
        assert_eq!(uncovered_of(&agent, server.pid()), 0, "{}: read and uncovered", server.name);
    }
}

/// Two loops that take all processors, for as long as this lives.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn start() -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        for _ in 0..2 {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Self(stop)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A server's part is over when the bytes have left, not when its library returns: that may be long after the client
/// has them, where processors are scarce.
#[test]
fn a_server_ends_before_its_client() {
    let mut rng = seeded("ends over TLS");
    let certificates = Certificates::new().unwrap();
    let servers =
        [encrypted::nginx(&certificates).unwrap(), encrypted::python_threads(&certificates).unwrap()];
    let mut agent = agent_that_probes(&["/libssl.so"]);
    let busy = Busy::start();
    let mut ledger = Ledger::default();
    for server in &servers {
        let calls = Client::Simple(Kind::Python).calls(&mut rng, &server.features, 400);
        let done = Client::Simple(Kind::Python).call(server, &calls);
        ledger.enter(&calls, &done, &server.roles());
    }
    drop(busy);
    let spans = agent.spans_until(gate::PATIENCE, |spans| ledger.is_complete(spans)).unwrap();
    let ends = |kind: span::Kind| -> BTreeMap<&str, u64> {
        let of_kind = spans.iter().filter(|span| span.kind == kind && ledger.is_ours(span));
        of_kind.filter_map(|span| Some((span.request_id()?, span.end_unix_nano.get()))).collect()
    };
    let (servers, clients) = (ends(span::Kind::Server), ends(span::Kind::Client));
    let pairs = servers.iter().filter_map(|(id, end)| Some(end.saturating_sub(*clients.get(id)?)));
    let late: Vec<_> = pairs.filter(|late| *late > 0).collect();
    note(&format!("{} servers end after their clients, by up to {:?} ns", late.len(), late.iter().max()));
    // The kernel says that bytes have left when it is done with them; a client on another processor may be as fast.
    assert!(servers.len() >= 800 && late.len() * 100 <= servers.len(), "{} spans: {late:?}", servers.len());
}

/// How many connections of this process no probe reads, as far as the agent says so by now.
pub(crate) fn uncovered_of(agent: &Agent, pid: u32) -> u64 {
    let tls = agent.tls().unwrap();
    let uncovered = tls["uncovered"].as_array().cloned().unwrap_or_default();
    let of = uncovered.iter().filter(|entry| entry["pid"] == pid);
    of.map(|entry| entry["connections"].as_u64().unwrap()).sum()
}

/// Waits until this many connections of this process count as read by no probe, and no more. Returns the agent's entry.
#[track_caller]
pub(crate) fn await_uncovered(agent: &Agent, pid: u32, expected: u64) -> serde_json::Value {
    let deadline = Instant::now() + patience(PROBING);
    while uncovered_of(agent, pid) < expected && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20) * slowness());
    }
    let tls = agent.tls().unwrap();
    assert_eq!(uncovered_of(agent, pid), expected, "{tls}");
    tls["uncovered"].as_array().unwrap().iter().find(|entry| entry["pid"] == pid).unwrap().clone()
}

/// A library with curl and BoringSSL compiled in, which has symbols of its own only: HTTP/1 and HTTP/2.
#[test]
fn boringssl_compiled_in() {
    let mut rng = seeded("BoringSSL");
    let certificates = Certificates::new().unwrap();
    let servers = [
        (client::Version::One, encrypted::nginx(&certificates).unwrap()),
        (client::Version::One, encrypted::python_asyncio(&certificates).unwrap()),
        (client::Version::Two, encrypted::http2_nginx(&certificates).unwrap()),
    ];
    // Probed before the first of its connections: what a process maps is looked at when it begins, and 0.1 s later.
    let mut waiting = Program::spawn("boringssl", client::boringssl_command().unwrap()).unwrap();
    waiting.await_line("ready", PROBING).unwrap();
    let mut agent = agent_that_probes(&["/libssl.so", "/curl_cffi/_wrapper"]);
    let mut ledger = Ledger::default();
    for (version, server) in &servers {
        let calls = load::calls(&mut rng, &server.features, Kind::Curl, CALLS);
        let calls: Vec<Call> =
            calls.into_iter().filter(|call| call.shape.request_framing != RequestFraming::Chunked).collect();
        let done = client::boringssl(*version, &server.address, &calls, 4).unwrap();
        ledger.enter(&calls, &done, &server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_reported(&mut agent, &ledger);
}

/// Bodies of many records, pieces and chunks, in both directions at once.
#[test]
fn large_bodies() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::python_asyncio(&certificates).unwrap();
    let mut agent = agent_that_probes(&["/libssl.so", "/libcrypto.so"]);
    let mut ledger = Ledger::default();
    for client in [Client::Simple(Kind::Curl), Client::Simple(Kind::Python), Client::Asyncio(3)] {
        let calls: Vec<Call> = [Framing::Length, Framing::Chunked, Framing::Length]
            .into_iter()
            .flat_map(|framing| {
                let both = [RequestFraming::Length, RequestFraming::Chunked];
                both.map(|request_framing| Call::new(Shape::large(framing, request_framing)))
            })
            .collect();
        let done = client.call(&server, &calls);
        ledger.enter(&calls, &done, &server.roles());
    }
    gate::assert_exact(&mut agent, &ledger);
    assert_reported(&mut agent, &ledger);
}

/// The agent starts while connections are open: what is asked from then on is seen, and nothing else.
#[test]
fn joined() {
    let certificates = Certificates::new().unwrap();
    let servers = [
        encrypted::nginx(&certificates).unwrap(),
        encrypted::python_asyncio(&certificates).unwrap(),
        encrypted::go(&certificates, Build::Plain).unwrap(),
    ];
    let folder = tempfile::tempdir().unwrap();
    let n_connections = 4;
    let calls: Vec<Call> =
        (0..40).map(|_| Call::new(Shape { response_bytes: 4096, ..Shape::default() })).collect();
    let gates = ["first", "second", "third"].map(|name| folder.path().join(name));
    let (mut agent, done) = thread::scope(|scope| {
        let clients: Vec<_> = servers
            .iter()
            .zip(&gates)
            .map(|(server, gate)| {
                let (calls, address) = (&calls, &server.address);
                scope.spawn(move || {
                    client::asyncio_encrypted(address, calls, (n_connections, 1), Some(gate)).unwrap()
                })
            })
            .collect();
        let deadline = Instant::now() + patience(gate::PATIENCE);
        while !gates.iter().all(|gate| gate.with_extension("waiting").exists()) {
            assert!(Instant::now() < deadline, "the clients get no answers");
            thread::sleep(Duration::from_millis(2));
        }
        let agent = std::panic::catch_unwind(|| {
            agent_that_probes(&["/libssl.so", "/libcrypto.so", "/go-server-plain"])
        });
        for gate in &gates {
            std::fs::write(gate, "").unwrap();
        }
        let done: Vec<_> = clients.into_iter().map(|client| client.join().unwrap()).collect();
        (agent.unwrap_or_else(|panic| std::panic::resume_unwind(panic)), done)
    });
    let mut ledger = Ledger::default();
    let mut early = Vec::new();
    for (server, done) in servers.iter().zip(&done) {
        // Each connection has made its first call before; which of them after it, the gate has decided.
        let mut truths = done.truths.clone();
        truths.sort_by_key(|truth| truth.ended_ns);
        let (first, later) = truths.split_at(n_connections);
        early.extend(first.iter().map(|truth| truth.id.clone()));
        for truth in later {
            let shape = Shape { response_bytes: 4096, ..Shape::default() };
            ledger.expect(&shape, truth, span::Kind::Client, &done.service);
            ledger.expect(&shape, truth, span::Kind::Server, &server.service);
        }
    }
    let mut report = gate::report(&mut agent, &ledger);
    report.phantom.retain(|line| !early.iter().any(|id| line.contains(id)));
    report.assert_exact();
}

/// TLS whose functions have lost their names: each connection counts once, on the side that cannot be read, and the
/// other side is seen.
#[test]
fn foreign_tls_is_uncovered_once() {
    let certificates = Certificates::new().unwrap();
    let go = encrypted::go(&certificates, Build::Nameless).unwrap();
    let nginx = encrypted::nginx(&certificates).unwrap();
    let mut agent = agent_that_probes(&["/libssl.so"]);
    let before = gate::uncovered(&agent.metrics().unwrap(), "tls");
    let mut ledger = Ledger::default();
    // The client's side is read, the server's is not.
    let calls: Vec<Call> = (0..20).map(|_| Call::new(Shape::default())).collect();
    let done = client::call_encrypted(Kind::Python, &go.address, &calls, 3).unwrap();
    ledger.enter(&calls, &done, &[]);
    // And the other way round: as many connections as the client likes.
    let calls: Vec<Call> =
        (0..20).map(|_| Call::new(Shape { response_bytes: 17, ..Shape::default() })).collect();
    let done = client::go_encrypted(Build::Nameless, &nginx.address, &calls, 2, &[]).unwrap();
    ledger.enter_server(&calls, &done, &nginx.roles());
    gate::assert_exact(&mut agent, &ledger);
    assert_reported(&mut agent, &ledger);
    let is_seen = |span: &Span| span.service.name == go.service || span.service.name == done.service;
    assert_eq!(agent.spans().unwrap().iter().filter(|span| is_seen(span)).count(), 0);
    let least = before + 3.0 + 1.0;
    let metrics =
        agent.metrics_until(gate::PATIENCE, |metrics| gate::uncovered(metrics, "tls") >= least).unwrap();
    assert!(gate::uncovered(&metrics, "tls") >= least, "{} of {least}", gate::uncovered(&metrics, "tls"));
    let deadline = Instant::now() + patience(gate::PATIENCE);
    while uncovered_of(&agent, go.pid()) < 3 && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(uncovered_of(&agent, go.pid()), 3, "{}", agent.tls().unwrap());
    assert_eq!(uncovered_of(&agent, nginx.pid()), 0);
}

/// A server that closes, a client that leaves: the exchange ends with its connection, in TLS as without.
#[test]
fn broken_exchanges_end_with_their_connection() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::python_asyncio(&certificates).unwrap();
    let mut agent = agent_that_probes(&["/libssl.so", "/libcrypto.so"]);
    let Address::Tcp(address) = server.address else { panic!("a server of Python listens on TCP") };
    let call = Call::new(Shape { delay: 6_000_000, ..Shape::default() });
    let url = format!("https://{address}{}", call.shape.target(&call.id));
    let mut command = std::process::Command::new("curl");
    command.args(["--silent", "--insecure", "--max-time", "2", &url]);
    let status = command.status().unwrap();
    assert_eq!(status.code(), Some(28), "curl gives up");
    let is_it = |span: &Span, kind| span.request_id() == Some(&call.id) && span.kind == kind;
    let both = [span::Kind::Client, span::Kind::Server];
    let spans = agent
        .spans_until(gate::PATIENCE, |spans| {
            both.iter().all(|kind| spans.iter().any(|span| is_it(span, *kind)))
        })
        .unwrap();
    let client = spans.iter().find(|span| is_it(span, span::Kind::Client)).expect("the client's span");
    assert_eq!(client.number("http.response.status_code"), None, "{client:?}");
    assert_eq!(client.status, "error", "{client:?}");
    assert!(spans.iter().any(|span| is_it(span, span::Kind::Server)), "the server's span");
}

/// A request that comes with the first bytes of a session that goes on (0-RTT): both ends show it.
#[test]
fn early_data() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::nginx_early(&certificates).unwrap();
    let Address::Tcp(address) = server.address else { panic!("this nginx is on TCP") };
    let mut agent = agent_that_probes(&["/libssl.so"]);
    let folder = tempfile::tempdir().unwrap();
    let session = folder.path().join("session");
    let mut ids = Vec::new();
    // The first one gets the session that the others go on with.
    for nth in 0..5 {
        let Call { id, shape } = Call::new(Shape { response_bytes: 17, ..Shape::default() });
        let request = folder.path().join(&id);
        let target = shape.target(&id);
        let text = format!("GET {target} HTTP/1.1\r\nhost: a\r\nconnection: close\r\n\r\n");
        std::fs::write(&request, text).unwrap();
        let mut client = std::process::Command::new("openssl");
        client.args(["s_client", "-tls1_3", "-ign_eof", "-connect", &address.to_string()]);
        if nth == 0 {
            client.arg("-sess_out").arg(&session).stdin(std::fs::File::open(&request).unwrap());
        } else {
            client.arg("-sess_in").arg(&session).arg("-early_data").arg(&request);
            client.stdin(std::process::Stdio::null());
        }
        let output = client.output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout);
        assert!(output.contains("HTTP/1.1 200 OK"), "{output}");
        assert_eq!(output.contains("Early data was accepted"), nth > 0, "{output}");
        ids.push(id);
    }
    let both = [span::Kind::Client, span::Kind::Server];
    let reported = |spans: &[Span]| {
        let of = |id: &String, kind| {
            spans.iter().filter(|span| span.request_id() == Some(id) && span.kind == kind).count()
        };
        ids.iter().flat_map(|id| both.map(|kind| of(id, kind))).collect::<Vec<_>>()
    };
    let spans = agent.spans_until(gate::PATIENCE, |spans| reported(spans).iter().all(|n| *n > 0)).unwrap();
    assert_eq!(reported(spans), [1; 10], "once at each end: {spans:?}");
    for span in spans.iter().filter(|span| span.request_id().is_some()) {
        assert_eq!(span.text("url.scheme"), Some("https"), "{span:?}");
        assert_eq!(span.number("http.response.status_code"), Some(200), "{span:?}");
        assert_eq!(span.number("http.response.body.size"), Some(17), "{span:?}");
    }
}

mod wide {
    use std::process::Command;

    use integration::process::{READY, run};
    use integration::server::service;

    use super::*;

    /// Opens tunnels as `CONNECT` asks for (RFC 9110 §9.3.6), and passes on what comes.
    const PROXY: &str = "
import socket, socketserver, threading
def pass_on(one, other):
    try:
        while data := one.recv(65536):
            other.sendall(data)
        other.shutdown(socket.SHUT_WR)
    except OSError:
        pass
class Tunnel(socketserver.StreamRequestHandler):
    def handle(self):
        host, port = self.rfile.readline().split()[1].decode().rsplit(':', 1)
        while self.rfile.readline().strip():
            pass
        with socket.create_connection((host, int(port))) as other:
            self.wfile.write(b'HTTP/1.1 200 Connection established\\r\\n\\r\\n')
            back = threading.Thread(target=pass_on, args=(other, self.connection))
            back.start()
            pass_on(self.connection, other)
            back.join()
server = socketserver.ThreadingTCPServer(('127.0.0.1', 0), Tunnel)
print('ready', server.server_address[1], flush=True)
server.serve_forever()
";
    const TUNNELS: usize = 20;
    const REQUESTS: usize = 3;

    /// TLS that begins inside a request for a tunnel: that request is seen at the client and the proxy, and what the
    /// client asks inside at the client and the server. The proxy's other connection carries TLS that is not its own.
    #[test]
    fn requests_inside_a_tunnel() {
        let certificates = Certificates::new().unwrap();
        let server = encrypted::nginx(&certificates).unwrap();
        let mut agent = agent_that_probes(&["/libssl.so"]);
        let [client, proxy] = ["inside", "tunnels"].map(service);
        let mut command = Command::new("python3");
        command.args(["-c", PROXY]).env("OTEL_SERVICE_NAME", &proxy);
        let mut program = Program::spawn("proxy", command).unwrap();
        let port = program.await_line("ready ", READY).unwrap();
        let Address::Tcp(address) = server.address else { panic!("{:?}", server.address) };
        for nth in 0..TUNNELS {
            let mut command = Command::new("curl");
            command.args([
                "--silent",
                "--insecure",
                "--http1.1",
                "--proxy",
                &format!("http://127.0.0.1:{port}"),
            ]);
            command.args((0..REQUESTS).flat_map(|n| {
                ["--output".to_owned(), "/dev/null".to_owned(), format!("https://{address}/{nth}/{n}")]
            }));
            run(
                "curl",
                {
                    command.env("OTEL_SERVICE_NAME", &client);
                    command
                },
                patience(READY),
            )
            .unwrap();
        }
        let parts = [(&client, "CONNECT"), (&proxy, "CONNECT"), (&client, "GET"), (&server.service, "GET")];
        let counted = |spans: &[Span]| {
            parts.map(|(service, method)| {
                let is_one = |span: &&Span| {
                    span.service.name == *service && span.text("http.request.method") == Some(method)
                };
                spans.iter().filter(is_one).count()
            })
        };
        let expected = [TUNNELS, TUNNELS, TUNNELS * REQUESTS, TUNNELS * REQUESTS];
        let spans = agent.spans_until(gate::PATIENCE, |spans| {
            counted(spans).iter().zip(expected).all(|(found, expected)| *found >= expected)
        });
        let spans = spans.unwrap();
        assert_eq!(counted(spans), expected);
        let inside = spans.iter().filter(|span| span.service.name == client);
        for span in inside.filter(|span| span.text("http.request.method") == Some("GET")) {
            assert_eq!(span.text("url.scheme"), Some("https"), "{span:?}");
            assert_eq!(span.number("http.response.status_code"), Some(404), "{span:?}");
        }
    }
}
