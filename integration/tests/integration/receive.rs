//! Programs with SDKs send to the agent while it captures them: each event once.
//!
//! The truth is the workload's ledger: paths and ids that were drawn while the test ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::process::Command;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::fetch;
use integration::otlp::receiver::{Receiver, hex, spans_of};
use integration::patience::patience;
use integration::process::{Program, READY, free_port};
use integration::sdk::{self, Language};
use opentelemetry_proto::tonic::trace::v1::Span as Exported;
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const CALLS: usize = 60;
/// Longer than captured spans wait for those of SDKs.
pub(crate) const LIMIT: Duration = Duration::from_secs(40);
pub(crate) const REQUESTS: &str = "http_server_request_duration_seconds_count";
pub(crate) const CALLED: &str = "http_client_request_duration_seconds_count";

/// The services `orders`, with an SDK, and `stock`, without, that it calls.
pub(crate) struct Services {
    pub(crate) orders: SocketAddr,
    pub(crate) stock: SocketAddr,
    folder: TempDir,
    _programs: [Program; 2],
}

/// What `orders` says of a request.
#[derive(Debug)]
struct Entry {
    trace_id: String,
    /// Server, internal, client.
    span_ids: [String; 3],
}

impl Services {
    pub(crate) fn start(protocol: &str, endpoint: &str) -> Self {
        Self::start_in(Language::Python, protocol, endpoint)
    }

    /// The service `orders` is written in this language.
    fn start_in(language: Language, protocol: &str, endpoint: &str) -> Self {
        let folder = TempDir::new().unwrap();
        let mut command = sdk::stock().unwrap();
        command.arg(folder.path().join("stock"));
        let (stock, stock_address) = serve("stock", command);
        let variables = [
            ("OTEL_EXPORTER_OTLP_PROTOCOL", protocol),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
            ("OTEL_EXPORTER_OTLP_COMPRESSION", "gzip"),
            ("OTEL_BSP_SCHEDULE_DELAY", "500"),
            ("OTEL_METRIC_EXPORT_INTERVAL", "500"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=orders,team=sales"),
        ];
        let mut command = language.orders().unwrap();
        command.arg(folder.path().join("orders")).arg(format!("http://{stock_address}")).envs(variables);
        let (orders, orders_address) = serve("orders", command);
        Self { orders: orders_address, stock: stock_address, folder, _programs: [orders, stock] }
    }

    /// What was served, by path.
    fn ledger(&self) -> BTreeMap<String, Entry> {
        let text = fs::read_to_string(self.folder.path().join("orders")).unwrap();
        let entry = |line: &str| {
            let words: Vec<String> = line.split(' ').map(str::to_owned).collect();
            let [path, trace_id, a, b, c] = words.try_into().expect("a line has five words");
            (path, Entry { trace_id, span_ids: [a, b, c] })
        };
        text.lines().map(entry).collect()
    }
}

fn serve(role: &str, mut command: Command) -> (Program, SocketAddr) {
    command.env("OTEL_SERVICE_NAME", role);
    let mut program = Program::spawn(role, command).unwrap();
    let line = program.await_line("ready ", READY).unwrap();
    let port: u16 = line.parse().unwrap();
    (program, SocketAddr::from(([127, 0, 0, 1], port)))
}

/// A request whose caller is not seen here: its path, trace and parent.
pub(crate) fn ask(address: SocketAddr) -> (String, String, String) {
    let (trace, parent) = (format!("{:032x}", fastrand::u128(1..)), format!("{:016x}", fastrand::u64(1..)));
    let path = ask_with(address, &format!("traceparent: 00-{trace}-{parent}-01\r\n"));
    (path, trace, parent)
}

/// A request with these header lines; its path.
pub(crate) fn ask_with(address: SocketAddr, headers: &str) -> String {
    let path = format!("/order/{:016x}", fastrand::u64(1..));
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(patience(Duration::from_secs(20)))).unwrap();
    write!(stream, "GET {path} HTTP/1.1\r\nhost: orders\r\n{headers}connection: close\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    path
}

pub(crate) fn config(receive: Value, otlp: Value) -> Config {
    Config::default()
        .set("discover", "include", json!([{"service": "orders"}, {"service": "stock"}]))
        .set("receive", "otlp", receive)
        .set("export", "otlp", otlp)
}

/// The agent's own addresses for OTLP, and the one that speaks `protocol`.
pub(crate) fn addresses(protocol: &str) -> (Value, String) {
    let [grpc, http] = [free_port().unwrap(), free_port().unwrap()];
    let receive = json!({"grpc": format!("127.0.0.1:{grpc}"), "http": format!("127.0.0.1:{http}")});
    let port = if protocol == "grpc" { grpc } else { http };
    (receive, format!("http://127.0.0.1:{port}"))
}

pub(crate) fn counted(metrics: &Exposition, what: &str) -> usize {
    metrics.sum("obi_received_spans_total", &[("counted", what)]) as usize
}

/// A span of `/api/v1/traces/{id}`: depth, service, kind, id, parent.
fn shown(span: &Value) -> (u64, &str, &str, &str, &str) {
    let text = |value: &'static str| span[value].as_str().unwrap_or_default();
    (
        span["depth"].as_u64().unwrap(),
        span["service"]["name"].as_str().unwrap(),
        text("kind"),
        text("span_id"),
        text("parent_span_id"),
    )
}

fn each_event_once(language: Language, protocol: &str) {
    let (mut receive, endpoint) = addresses(protocol);
    // Spans of services that are not captured would count: these are.
    receive["count"] = true.into();
    let receiver = Receiver::start([]).unwrap();
    let destination = json!([{"endpoint": format!("http://{}", receiver.http), "batch_delay": "50ms"}]);
    let agent = Agent::start(config(receive, destination)).unwrap();
    let services = Services::start_in(language, protocol, &endpoint);
    let asked: Vec<_> = (0..CALLS).map(|_| ask(services.orders)).collect();
    let ledger = services.ledger();
    assert_eq!(ledger.len(), CALLS);

    let all = |metrics: &Exposition| {
        counted(metrics, "captured") + counted(metrics, "uncaptured") + counted(metrics, "span") >= 2 * CALLS
    };
    let metrics = agent.metrics_until(LIMIT, all).unwrap();
    assert_eq!(counted(&metrics, "captured"), 2 * CALLS, "{}", agent.stderr().unwrap());
    assert_eq!((counted(&metrics, "internal"), counted(&metrics, "uncaptured")), (CALLS, 0));
    assert_eq!(counted(&metrics, "span"), 0);
    assert_eq!(metrics.sum("obi_received_rejected_spans_total", &[]), 0.0);
    for service in ["orders", "stock"] {
        let requests = metrics.sum(REQUESTS, &[("service_name", service)]);
        assert_eq!(requests, CALLS as f64, "{service} is counted by what was captured");
    }
    let port = services.stock.port().to_string();
    let called = metrics.sum(CALLED, &[("service_name", "orders"), ("server_port", &port)]);
    assert_eq!(called, CALLS as f64);

    for (path, trace, caller) in &asked {
        let Entry { trace_id, span_ids: [server, work, client] } = &ledger[path];
        assert_eq!(trace_id, trace);
        let tree: Value = fetch::json(agent.address(), &format!("/api/v1/traces/{trace}")).unwrap();
        let spans: Vec<_> = tree["spans"].as_array().unwrap().iter().map(shown).collect();
        let [a, b, c, d] = *spans else { panic!("{spans:?}") };
        assert_eq!(a, (0, "orders", "server", &**server, &**caller));
        assert_eq!(b, (1, "orders", "internal", &**work, &**server));
        assert_eq!(c, (2, "orders", "client", &**client, &**work));
        assert_eq!((d.0, d.1, d.2, d.4), (3, "stock", "server", &**client));
        assert_eq!(tree["spans"][0]["attributes"]["obi.sdk.span.name"], "handle");
        assert_eq!(tree["spans"][0]["attributes"]["url.path"], **path, "it is the captured span");
    }
    exported(&receiver, &asked, &ledger);
    let is_there =
        |metrics: &Exposition| metrics.sum("obi_received_passed_items_total", &[("signal", "metrics")]) > 0.0;
    agent.metrics_until(LIMIT, is_there).unwrap();
    until("a metric of the SDK's", || {
        let resources = receiver.metrics();
        let scopes = resources.iter().flat_map(|it| &it.scope_metrics);
        scopes.flat_map(|scope| &scope.metrics).any(|metric| metric.name == "orders.served")
    });
    assert_eq!(agent.stop().unwrap().code, 0);
}

/// Every span of the workload's has arrived once, as it was sent; and ours of `stock`, below the SDK's call.
fn exported(receiver: &Receiver, asked: &[(String, String, String)], ledger: &BTreeMap<String, Entry>) {
    let traces: BTreeSet<&str> = asked.iter().map(|(_, trace, _)| trace.as_str()).collect();
    let of_traces = || {
        let mut found: BTreeMap<String, Vec<(String, Exported)>> = BTreeMap::new();
        for resource in receiver.spans() {
            let attributes = &resource.resource.as_ref().unwrap().attributes;
            let team = attributes.iter().any(|it| it.key == "team");
            let sender = if team { "sdk" } else { "obi" };
            for span in spans_of(&resource) {
                let trace = hex(&span.trace_id);
                if traces.contains(&*trace) {
                    found.entry(trace).or_default().push((sender.to_owned(), span.clone()));
                }
            }
        }
        found
    };
    until("all spans of all traces", || of_traces().values().map(Vec::len).sum::<usize>() >= 4 * CALLS);
    let found = of_traces();
    for (path, trace, caller) in asked {
        let Entry { span_ids: [server, work, client], .. } = &ledger[path];
        let mut reported: Vec<_> = found[trace]
            .iter()
            .map(|(sender, span)| (&**sender, &*span.name, hex(&span.span_id), hex(&span.parent_span_id)))
            .collect();
        reported.sort_by_key(|(sender, name, ..)| (*sender, *name));
        let [stock, ask, handle, within] = &*reported else { panic!("{reported:?}") };
        assert_eq!(*ask, ("sdk", "ask stock", client.clone(), work.clone()));
        assert_eq!(*handle, ("sdk", "handle", server.clone(), caller.clone()));
        assert_eq!(*within, ("sdk", "work", work.clone(), server.clone()));
        assert_eq!((stock.0, &stock.3), ("obi", client));
        let (_, handled) = found[trace].iter().find(|(_, span)| span.name == "handle").unwrap();
        let names: Vec<&str> = handled.attributes.iter().map(|it| &*it.key).collect();
        for name in ["url.path", "test.list", "test.share", "obi.queue_wait_ns"] {
            assert!(names.contains(&name), "{names:?}");
        }
        assert!(!names.contains(&"obi.duplicate"), "{names:?}");
    }
}

fn until(what: &str, is_there: impl Fn() -> bool) {
    let begun = Instant::now();
    while !is_there() {
        assert!(begun.elapsed() < patience(LIMIT), "{what} did not come");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn an_sdk_over_grpc_counts_once() {
    each_event_once(Language::Python, "grpc");
}

mod wide {
    use flate2::Compression;
    use flate2::write::GzEncoder;
    use integration::plan::{Address, ServerPlan};
    use integration::seed::{note, seeded};
    use integration::server::shape::ShapeServer;
    use integration::traffic::Traffic;

    use super::*;

    #[test]
    fn an_sdk_over_http_counts_once() {
        each_event_once(Language::Python, "http/protobuf");
    }

    #[test]
    fn an_sdk_of_node_counts_once() {
        each_event_once(Language::Node, "http/json");
    }

    #[test]
    fn an_sdk_of_go_counts_once() {
        each_event_once(Language::Go, "grpc");
    }

    #[test]
    fn an_sdk_of_java_counts_once() {
        for protocol in ["grpc", "http/protobuf"] {
            each_event_once(Language::Java, protocol);
        }
    }

    #[test]
    fn an_sdk_of_rust_counts_once() {
        each_event_once(Language::Rust, "http/protobuf");
    }

    /// More than the listener holds.
    const SILENT: usize = 1_000;
    const ROUNDS: usize = 40;
    /// What everything received may take together, and what the allocator keeps of it.
    const ROOM: u64 = 2 * (64 << 20);

    /// The status of an answer; `None` where there is none.
    fn post(address: SocketAddr, headers: &str, body: &[u8]) -> Option<u16> {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(patience(Duration::from_secs(20)))).unwrap();
        // An answer may come, and the connection end, before the body has been taken.
        let _ = write!(stream, "POST {headers}\r\nhost: a\r\n\r\n");
        let _ = stream.write_all(body);
        let mut line = [0; 12];
        stream.read_exact(&mut line).ok()?;
        std::str::from_utf8(&line[9..]).unwrap().parse().ok()
    }

    /// 256 MiB of zeros.
    fn bomb() -> Vec<u8> {
        let mut packed = GzEncoder::new(Vec::new(), Compression::best());
        (0..256).for_each(|_| packed.write_all(&[0; 1 << 20]).unwrap());
        packed.finish().unwrap()
    }

    fn resident_bytes(pid: u32) -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() * 1024
    }

    /// Connections that say nothing, bodies that inflate without end, garbage and halves of requests: each gets the
    /// answer of the specification or an end, memory stays bounded, and nothing is missing of what is captured
    /// meanwhile.
    #[test]
    fn hostile_senders_leave_capture_alone() {
        let (receive, _) = addresses("http/protobuf");
        let [grpc, http] = ["grpc", "http"].map(|of| receive[of].as_str().unwrap().parse().unwrap());
        let server = ShapeServer::start("beset", ServerPlan::default()).unwrap();
        let Address::Tcp(address) = server.server.address else { panic!("it listens on TCP") };
        let service = &*server.server.service;
        let config = Config::default()
            .set("discover", "include", json!([{"service": service}]))
            .set("receive", "otlp", receive);
        let agent = Agent::start(config).unwrap();
        let traffic = Traffic::start(address, 100, seeded("beset"));
        let (before, bomb) = (resident_bytes(agent.pid()), bomb());
        let silent: Vec<_> = (0..SILENT).map(|_| TcpStream::connect(grpc)).collect();
        let protobuf = "/v1/traces HTTP/1.1\r\ncontent-type: application/x-protobuf";
        let json = "/v1/traces HTTP/1.1\r\ncontent-type: application/json";
        let (mut most, mut halves) = (before, Vec::new());
        for _ in 0..ROUNDS {
            let gzip = format!("{protobuf}\r\ncontent-encoding: gzip\r\ncontent-length: {}", bomb.len());
            assert_eq!(post(http, &gzip, &bomb), Some(413));
            assert_eq!(post(http, &format!("{protobuf}\r\ncontent-length: {}", 64 << 20), b""), Some(413));
            assert_eq!(post(http, &format!("{protobuf}\r\ncontent-length: 4"), &[0xff; 4]), Some(400));
            assert_eq!(post(http, &format!("{json}\r\ncontent-length: 3"), b"[[["), Some(400));
            let mut half = TcpStream::connect(http).unwrap();
            write!(half, "POST {protobuf}\r\nhost: a\r\ncontent-length: 100000\r\n\r\nabc").unwrap();
            halves.push(half);
            post(grpc, "/ HTTP/1.1\r\ncontent-length: 0", b"");
            most = most.max(resident_bytes(agent.pid()));
        }
        let (good, bad) = traffic.finish();
        let sent = (good + bad) as f64;
        let of = [("service_name", service)];
        let metrics = agent.metrics_until(LIMIT, |metrics| metrics.sum(REQUESTS, &of) >= sent).unwrap();
        let refused = metrics.sum("obi_received_refused_requests_total", &[]);
        note(&format!("{sent} requests seen, {refused} refused, RSS {before} to {most} bytes"));
        assert_eq!((metrics.sum(REQUESTS, &of), metrics.sum("obi_lost_total", &of)), (sent, 0.0));
        assert!(refused >= (4 * ROUNDS) as f64 && most < before + ROOM, "{refused} refused, {most} bytes");
        drop((silent, halves));
        assert_eq!(post(http, &format!("{protobuf}\r\ncontent-length: 0"), b""), Some(200));
        assert_eq!(agent.stop().unwrap().code, 0);
    }
}
