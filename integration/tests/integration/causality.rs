//! Parents without a header: calls to the requests that made them, requests to the calls at the other end.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::Command;
use std::thread;

mod chain;
mod explained;
mod multiplex;
mod nginx;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::causality::{self, Score};
use integration::client;
use integration::exposition::Exposition;
use integration::fetch;
use integration::namespace::Translated;
use integration::plan::{Address, Call, ConnectionPlan, Plan, ServerPlan};
use integration::process::{Program, READY};
use integration::program::{self, Build};
use integration::seed::{note, request_id};
use integration::server::shape;
use integration::server::{Features, Server, service};
use integration::shape::Shape;
use integration::span::{Kind, Span};
use rustix::process::Signal;

use self::explained::explained;
use crate::gate;
use crate::tls::PROBING;

/// Requests of each run, unless `OBI_CAUSALITY_REQUESTS` says otherwise (`make test-causality`).
const REQUESTS: usize = 400;

fn n_requests() -> usize {
    chosen_requests().unwrap_or(REQUESTS)
}

fn chosen_requests() -> Option<usize> {
    std::env::var("OBI_CAUSALITY_REQUESTS").ok().map(|text| text.parse().unwrap())
}

/// How many clients at once, and whether the agent starts last: few and many, or all of them by `make test-causality`.
fn clients() -> &'static [(usize, bool)] {
    match chosen_requests() {
        Some(_) => &[(1, false), (2, true), (3, false), (16, true), (64, false)],
        None => &[(3, true), (64, false)],
    }
}

/// The same for kinds of requests that only differ in one thing from those that were tried with all.
fn few_clients() -> &'static [(usize, bool)] {
    match chosen_requests() {
        Some(_) => &[(2, true), (64, false)],
        None => &[(16, true)],
    }
}

/// A program of `workload/causality` that listens.
struct Listening {
    program: Program,
    service: String,
    address: SocketAddr,
}

fn start(script: &str, arguments: &[&str]) -> Listening {
    let mut command = Command::new("python3");
    command.arg(program::source("causality").join(script)).args(arguments);
    listening(script, command)
}

fn listening(name: &str, mut command: Command) -> Listening {
    let service = service(name);
    command.env("OTEL_SERVICE_NAME", &service);
    let mut program = Program::spawn(name, command).unwrap();
    let port: u16 = program.await_line("ready ", READY).unwrap().parse().unwrap();
    Listening { program, service, address: SocketAddr::from(([127, 0, 0, 1], port)) }
}

/// One request after the other, on one connection for as long as the server keeps it, each with an id of its own.
fn ask(address: SocketAddr, kinds: &[&str], n: usize) -> Vec<String> {
    let connect = || {
        let stream = TcpStream::connect(address).unwrap();
        stream.set_nodelay(true).unwrap();
        BufReader::new(stream)
    };
    let (mut reader, mut is_over) = (connect(), false);
    (0..n)
        .map(|nth| {
            if std::mem::take(&mut is_over) {
                reader = connect();
            }
            let id = request_id();
            let kind = kinds[nth % kinds.len()];
            let head = format!("GET /{kind}/{id} HTTP/1.1\r\nhost: front\r\n\r\n");
            reader.get_mut().write_all(head.as_bytes()).unwrap();
            let (mut line, mut length) = (String::new(), 0);
            reader.read_line(&mut line).unwrap();
            // Its application has failed. nginx refuses some that it is to refuse.
            assert!(!line.contains(" 500 "), "the front says {line:?} to {kind}");
            while line != "\r\n" {
                line.clear();
                assert!(reader.read_line(&mut line).unwrap() > 0, "the front went away");
                let lower = line.to_lowercase();
                if let Some(value) = lower.strip_prefix("content-length:") {
                    length = value.trim().parse().unwrap();
                }
                is_over |= lower.trim_end() == "connection: close";
            }
            reader.read_exact(&mut vec![0; length]).unwrap();
            id
        })
        .collect()
}

/// So many clients at once, all requests of a run together.
fn ask_by(address: SocketAddr, kinds: &[&str], clients: usize) -> Vec<String> {
    let each = n_requests().div_ceil(clients);
    thread::scope(|scope| {
        let asking: Vec<_> = (0..clients).map(|_| scope.spawn(|| ask(address, kinds, each))).collect();
        asking.into_iter().flat_map(|asking| asking.join().unwrap()).collect()
    })
}

/// What a run came to.
struct Run {
    score: Score,
    /// Of requests and calls.
    pairs: causality::Pairs,
    spans: Vec<Span>,
    ids: Vec<String>,
    /// Services of the front and the back.
    services: [String; 2],
    agent: Agent,
}

/// Who runs the code of requests.
#[derive(Clone, Copy)]
enum Front {
    /// A model of `front.py`.
    Python(&'static str),
    /// Goroutines.
    Go(Build),
    /// One loop, in `front.js`.
    Node,
    /// A model of `front_asyncio.py`.
    Asyncio(&'static str),
    /// `front_wsgi.py`, by workers of this kind.
    Gunicorn(&'static str),
    /// `Servlets.java`, by the threads of a pool.
    Tomcat,
}

impl Front {
    fn start(self, back: &Listening, log: &Path) -> Listening {
        let (port, log) = (back.address.port().to_string(), log.to_str().unwrap());
        match self {
            Self::Python(model) => start("front.py", &[model, &port, log]),
            Self::Go(build) => {
                let mut command = Command::new(program::go_built("front", build).unwrap());
                command.args([&port, log]);
                listening("front", command)
            }
            Self::Node => {
                let mut command = Command::new("node");
                command.arg(program::source("causality").join("front.js")).args([&port, log]);
                listening("front.js", command)
            }
            Self::Asyncio(model) => {
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", program::python_packages().unwrap());
                command.arg(program::source("causality").join("front_asyncio.py")).args([model, &port, log]);
                listening("front_asyncio.py", command)
            }
            Self::Gunicorn(workers) => {
                let (folder, threads) =
                    (program::source("causality"), if workers == "sync" { "1" } else { "8" });
                let packages = [program::python_packages().unwrap(), folder.clone()];
                let mut command = Command::new("python3");
                command
                    .env("PYTHONPATH", std::env::join_paths(packages).unwrap())
                    .env("BACK", port)
                    .env("LOG", log);
                command.args([
                    "-m",
                    "gunicorn",
                    "--workers",
                    "4",
                    "--threads",
                    threads,
                    "-k",
                    workers,
                    "--chdir",
                ]);
                command.arg(&folder).arg("--config").arg(folder.join("front_wsgi.py")).arg("front_wsgi:app");
                listening("front_wsgi.py", command)
            }
            Self::Tomcat => {
                let mut command = Command::new("java");
                command.args(["-Xmx128m", "-cp"]).arg(program::java_with_packages("Servlets").unwrap());
                command.args(["Servlets", &port, log]);
                listening("Servlets", command)
            }
        }
    }

    /// Until the agent has found what it looks for in the program.
    fn await_probes(self, agent: &Agent) {
        let files = match self {
            Self::Gunicorn("gevent") => vec![interpreter(), "/greenlet/_greenlet.".to_owned()],
            Self::Python(_) | Self::Gunicorn(_) | Self::Tomcat => return,
            Self::Node => vec![node()],
            Self::Go(build) => vec![format!("/go-front-{build:?}").to_lowercase()],
            Self::Asyncio(model) if model.contains('+') => vec![interpreter(), "/uvloop/loop.".to_owned()],
            Self::Asyncio(_) => vec![interpreter()],
        };
        let files: Vec<&str> = files.iter().map(String::as_str).collect();
        agent.await_probes(&files, PROBING).unwrap();
    }

    /// Whether it ends what calls in the background when it is asked to.
    fn ends(self) -> bool {
        matches!(self, Self::Python("pool") | Self::Go(_) | Self::Node | Self::Asyncio(_))
    }
}

impl fmt::Display for Front {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Python(model) => write!(out, "{model}"),
            Self::Go(build) => write!(out, "Go, {build:?}"),
            Self::Node => write!(out, "Node"),
            Self::Asyncio(model) => write!(out, "asyncio, {model}"),
            Self::Gunicorn(workers) => write!(out, "gunicorn, {workers}"),
            Self::Tomcat => write!(out, "Tomcat"),
        }
    }
}

/// The Node that the tests start.
pub(crate) fn node() -> String {
    let output = Command::new("node").args(["-p", "process.execPath"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
}

/// Name of the file with the interpreter.
pub(crate) fn interpreter() -> String {
    const WHICH: &str = "import os, sys, sysconfig
shared = sysconfig.get_config_var('Py_ENABLE_SHARED')
print('/libpython3.' if shared else os.path.realpath(sys.executable), end='')";
    let output = Command::new("python3").args(["-c", WHICH]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// `clients` at once ask a front, with the agent started before it or after.
#[track_caller]
fn run(front: Front, kinds: &[&str], clients: usize, agent_last: bool) -> Run {
    let model = front;
    let early = (!agent_last).then(|| Agent::start(Config::default()).unwrap());
    let back = start("back.py", &[]);
    let files = tempfile::tempdir().unwrap();
    let log = files.path().join("log");
    let front = model.start(&back, &log);
    let address = front.address;
    let mut agent = early.unwrap_or_else(|| Agent::start(Config::default()).unwrap());
    model.await_probes(&agent);
    let ids = ask_by(address, kinds, clients);
    // Ends what calls in the background.
    let mut program = front.program;
    if model.ends() {
        program.signal(Signal::TERM).unwrap();
        assert_eq!(program.wait(READY).unwrap().code, 0);
    }
    drop(program);
    let barrier = gate::Barrier::start();
    assert!(barrier.pass(&mut agent), "the agent does not show what has passed");
    let truth = causality::read_file(&log).unwrap();
    let spans = agent.spans().unwrap().to_vec();
    let score = causality::score(&truth, &spans);
    let all = ids.iter().map(String::as_str).chain(truth.keys().map(String::as_str));
    let pairs = causality::pairs(all, &spans);
    let reasons = reasons(&spans, &front.service);
    let explained = explained(&spans, &front.service);
    note(&format!(
        "causality {model}, {kinds:?}, {clients} clients, agent last {agent_last}: {score} {reasons:?}; pairs {pairs:?}; {explained}"
    ));
    explained.check(&format!("{model}, {kinds:?}, {clients} clients"));
    Run { score, pairs, spans, ids, services: [front.service, back.service], agent }
}

/// Why parents of this service's calls are not known, and how often.
fn reasons<'a>(spans: &'a [Span], service: &str) -> BTreeMap<&'a str, usize> {
    let mut reasons = BTreeMap::new();
    let calls = spans.iter().filter(|span| span.kind == Kind::Client && span.service.name == service);
    for reason in calls.filter_map(|call| call.text("obi.parent.reason")) {
        *reasons.entry(reason).or_default() += 1;
    }
    reasons
}

/// Every call has its span; none has another's parent; `floor` of a hundred have their own. All ends are paired.
#[track_caller]
fn check(front: Front, kinds: &[&str], floor: f64) {
    check_by(clients(), front, kinds, floor);
}

/// The same by few numbers of clients.
#[track_caller]
fn check_briefly(front: Front, kinds: &[&str], floor: f64) {
    check_by(few_clients(), front, kinds, floor);
}

#[track_caller]
fn check_by(clients: &[(usize, bool)], front: Front, kinds: &[&str], floor: f64) {
    for &(clients, agent_last) in clients {
        let Run { score, pairs, .. } = run(front, kinds, clients, agent_last);
        assert_eq!((score.wrong, score.missing), (0, 0), "{front} {kinds:?} by {clients}: {score}");
        let share = 100.0 * score.right as f64 / score.calls() as f64;
        assert!(share >= floor, "{front} {kinds:?} by {clients}: {share} % of {score}");
        assert_eq!((pairs.unknown, pairs.wrong), (0, 0), "{front} {kinds:?} by {clients}: {pairs:?}");
    }
}

#[test]
fn a_thread_for_each_connection() {
    check(Front::Python("threading"), &["in"], 99.5);
}

/// Callbacks of Node are known by their numbers, and by what was read.
#[test]
fn callbacks_of_node() {
    check(Front::Node, &["fan"], 99.0);
    check_briefly(Front::Node, &["bounded"], 99.0);
    check_briefly(Front::Node, &["file"], 99.0);
}

/// Goroutines are known by their numbers: any goroutine may start them or write for them, on any thread.
#[test]
fn goroutines() {
    check(Front::Go(Build::Plain), &["sequence", "fan", "nested", "bounded"], 99.0);
}

/// What tasks do for one request, in any way that keeps contexts.
const IN_TASKS: [&str; 4] = ["sequence", "gather", "semaphore", "to_thread"];

#[test]
fn tasks_of_uvicorn() {
    check(Front::Asyncio("uvicorn"), &IN_TASKS, 99.0);
}

/// As `uvicorn[standard]` installs it: another loop, which reads outside of all contexts.
#[test]
fn tasks_of_uvicorn_on_uvloop() {
    check(Front::Asyncio("uvicorn+uvloop"), &IN_TASKS, 99.0);
}

/// One task for each connection, made before there is a request.
#[test]
fn tasks_of_connections() {
    check(Front::Asyncio("aiohttp"), &IN_TASKS, 99.0);
    check_briefly(Front::Asyncio("aiohttp+uvloop"), &IN_TASKS, 99.0);
}

/// One thread runs all requests of a worker, each in a greenlet, which is known by its stack of frames.
#[test]
fn greenlets_of_gunicorn() {
    check(Front::Gunicorn("gevent"), &["in", "copied"], 99.0);
}

/// What a request was sent by, what it sent and what that came to: one trace, shown as a tree.
#[test]
fn a_request_is_one_trace() {
    let Run { spans, ids, .. } = run(Front::Python("threading"), &["in"], 4, false);
    for id in &ids {
        let path = format!("/in/{id}");
        let of_path: Vec<&Span> = spans.iter().filter(|span| span.text("url.path") == Some(&path)).collect();
        let traces: HashSet<&str> = of_path.iter().map(|span| span.trace_id.as_str()).collect();
        assert_eq!((of_path.len(), traces.len()), (2, 1), "{path}");
    }
}

/// Edges are what happened, each call once: clients to the front, the front to the back.
#[test]
fn the_graph_counts_each_call_once() {
    let Run { spans, ids, services: [front, back], agent, .. } =
        run(Front::Python("pool"), &["in"], 8, false);
    let calls = spans.iter().filter(|span| span.kind == Kind::Client && span.service.name == front).count();
    let edge = |metrics: &Exposition, name: &str, labels: &[(&str, &str)]| {
        metrics.sum(&format!("traces_service_graph_request_{name}"), labels)
    };
    let into_front = [("server", front.as_str())];
    let into_back = [("client", front.as_str()), ("server", back.as_str())];
    let expected = [(&into_front[..], ids.len()), (&into_back[..], calls)];
    let is_there =
        |metrics: &Exposition| expected.iter().all(|(labels, n)| edge(metrics, "total", labels) == *n as f64);
    let metrics = agent.metrics_until(gate::PATIENCE, is_there).unwrap();
    let graph: serde_json::Value = fetch::json(agent.address(), "/api/v1/service-graph").unwrap();
    for (labels, n) in expected {
        for name in ["total", "server_seconds_count", "client_seconds_count"] {
            assert_eq!(edge(&metrics, name, labels), n as f64, "{name} of {labels:?}: {graph}");
        }
        assert_eq!(edge(&metrics, "failed_total", labels), 0.0);
    }
    let edges = graph["edges"].as_array().unwrap();
    let found = edges.iter().find(|edge| edge["client"]["name"] == front && edge["server"]["name"] == back);
    assert_eq!(found.unwrap()["requests"], calls, "{graph}");
}

/// The client knows the router's address only, and so does the server: what both ends say of the connection is the same
/// all the same.
#[test]
fn ends_are_paired_through_translated_addresses() {
    const CALLS_EACH: usize = 10;
    let mut agent = Agent::start(Config::default()).unwrap();
    let hosts = Translated::make(8080).unwrap();
    let plan = ServerPlan { address: Address::Tcp(hosts.listens), ..ServerPlan::default() };
    let command = hosts.server.inside(shape::command(&plan).unwrap());
    let server = Server::start("translated", command, Features::full()).unwrap();
    let calls: Vec<Call> = (0..n_requests()).map(|_| Call::new(Shape::default())).collect();
    let connections = calls
        .chunks(CALLS_EACH)
        .map(|calls| ConnectionPlan::new(&Address::Tcp(hosts.reached), calls.to_vec()))
        .collect();
    let plan = Plan { seed: 0, concurrency: 16, rate: 0, connections };
    let done = client::follow_in(&plan, |command| hosts.client.inside(command)).unwrap();
    let mut ledger = Ledger::default();
    ledger.enter(&calls, &done, &server.roles());
    assert!(gate::settle(&mut agent, &[&ledger]));
    let spans = agent.spans().unwrap();
    let of = |service: &str| -> HashMap<&str, &Span> {
        let own = spans.iter().filter(|span| span.service.name == service);
        own.filter_map(|span| Some((span.request_id()?, span))).collect()
    };
    let (asked, served) = (of(&done.service), of(&server.service));
    let mut exchanges = HashSet::new();
    for Call { id, .. } in &calls {
        let (asked, served) = (asked[id.as_str()], served[id.as_str()]);
        assert_eq!(served.text("obi.exchange.id"), asked.text("obi.exchange.id"), "{id}");
        assert_eq!(served.parent_span_id.as_deref(), Some(&*asked.span_id), "{id}");
        assert_eq!(served.trace_id, asked.trace_id, "{id}");
        assert_eq!(served.text("obi.parent.evidence"), Some("certain"), "{id}");
        // The addresses of its ends have nothing to do with each other.
        assert_eq!(asked.text("server.address"), Some(&*hosts.reached.ip().to_string()));
        assert_ne!(served.text("client.address"), Some("10.231.1.2"));
        exchanges.insert(asked.text("obi.exchange.id").unwrap());
    }
    assert_eq!(exchanges.len(), calls.len(), "each exchange has an id of its own");
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// Tasks are known by their contexts: those of requests, those that these make, and threads that are given a copy.
    #[test]
    fn tasks_of_requests() {
        check(Front::Asyncio("protocol"), &["sequence", "gather", "semaphore", "nested", "to_thread"], 99.0);
    }

    #[test]
    fn requests_that_stay_on_a_thread_of_a_pool() {
        check(Front::Python("continued"), &["sync"], 99.5);
    }

    /// Promises of requests that make several calls at once, and timers, say nothing; what was answered says it is
    /// late.
    #[test]
    fn callbacks_of_node_that_may_be_for_others() {
        check(Front::Node, &["sequence", "fan", "fetch", "bounded", "timer", "late"], 35.0);
        check_briefly(Front::Node, &["limited", "closing", "awaited", "file", "sequence"], 20.0);
        check_briefly(Front::Node, &["limited"], 0.0);
    }

    /// A request is read, worked on and answered by one thread of one of four processes.
    #[test]
    fn workers_of_gunicorn() {
        check(Front::Gunicorn("gthread"), &["in"], 99.5);
        check(Front::Gunicorn("sync"), &["in"], 99.5);
    }

    /// Greenlets that requests start have read nothing: their calls belong to no request, whose memory they may have.
    #[test]
    fn greenlets_that_requests_start() {
        check(Front::Gunicorn("gevent"), &["in", "copied", "spawned"], 50.0);
    }

    /// One thread waits for all connections; the one that it hands a request to reads, calls and answers.
    #[test]
    fn threads_of_tomcat() {
        check(Front::Tomcat, &["in"], 99.5);
    }

    #[test]
    fn goroutines_of_every_build() {
        for build in [Build::Stripped, Build::Pie] {
            let Run { score, .. } =
                run(Front::Go(build), &["sequence", "fan", "nested", "bounded"], 16, true);
            assert_eq!((score.wrong, score.missing), (0, 0), "{build:?}: {score}");
            assert!(score.right * 100 >= score.calls() * 99, "{build:?}: {score}");
        }
    }

    /// Goroutines that work for many requests, and for none any more, belong to no request.
    #[test]
    fn goroutines_that_outlive_requests() {
        check(Front::Go(Build::Plain), &["sequence", "fan", "nested", "bounded", "worker", "after"], 60.0);
    }

    /// Nothing shows what belongs together: nothing is put together.
    #[test]
    fn requests_that_go_from_hand_to_hand() {
        check(Front::Python("handover"), &["in"], 0.0);
        check(Front::Python("asyncio"), &["in"], 0.0);
        check(Front::Python("continued"), &["async"], 0.0);
        check(Front::Python("continued"), &["sync", "async"], 0.0);
    }

    /// Another loop reads outside of the contexts of callbacks, here also in one that is around all of it.
    #[test]
    fn tasks_of_another_loop() {
        for model in ["protocol+uvloop", "protocol+around", "streams+uvloop"] {
            check_briefly(Front::Asyncio(model), &IN_TASKS, 99.0);
        }
    }

    #[test]
    fn tasks_of_streams() {
        check(Front::Asyncio("streams"), &["sequence", "gather", "semaphore", "nested", "to_thread"], 99.0);
    }

    /// Tasks that work for many requests, for none any more, or without a context, belong to no request.
    #[test]
    fn tasks_that_outlive_requests() {
        for model in ["protocol", "uvicorn", "streams", "aiohttp", "uvicorn+uvloop", "streams+uvloop"] {
            check(Front::Asyncio(model), &["sequence", "gather", "after", "queue", "executor"], 50.0);
        }
    }

    /// Promises go on while all other requests wait for calls of their own. At first some wait for connections: with
    /// few requests for each client, that is a large part.
    #[test]
    fn promises_of_node() {
        check(Front::Node, &["sequence"], 75.0);
        check_briefly(Front::Node, &["fetch"], 80.0);
    }

    #[test]
    fn processes_that_accept() {
        check(Front::Python("prefork"), &["in"], 99.5);
    }

    #[test]
    fn threads_that_accept() {
        check(Front::Python("pool"), &["in"], 99.5);
    }
}
