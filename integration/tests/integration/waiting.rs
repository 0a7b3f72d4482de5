//! Where the time of server spans went, against what the serving threads have measured themselves.

mod sampled;

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::ops::Range;
use std::process::Command;
use std::time::Duration;

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::process::{Program, READY};
use integration::seed::{note, request_id, seeded};
use integration::server::{language, service};
use integration::span::{self, Span};
use integration::{fetch, load, program};
use serde::Deserialize;
use serde_json::Value;

const REQUESTS: usize = 80;
/// Of each request.
const TASKS: usize = 4;
const LIMIT: Duration = Duration::from_secs(60);
/// A part may be off by the hundredth part, or by this, ns: what lies between our clocks and the thread's.
const OFF: u64 = 100_000;

/// Wall time, CPU time, and time waiting for a CPU, ns.
type Clocks = [u64; 3];

/// What a thread says of a request that it has served.
#[derive(Debug, Deserialize)]
struct Truth {
    whole: Clocks,
    tasks: Vec<(String, u64, u64, u64)>,
}

/// A server of `workload/waiting`, or its like.
struct Serving {
    _program: Program,
    service: String,
    address: SocketAddr,
    _folder: tempfile::TempDir,
}

fn start(name: &str, mut command: Command) -> Serving {
    let (service, folder) = (service(name), tempfile::tempdir().unwrap());
    command.env("OTEL_SERVICE_NAME", &service).current_dir(folder.path());
    let mut program = Program::spawn(name, command).unwrap();
    let port: u16 = program.await_line("ready ", READY).unwrap().parse().unwrap();
    Serving { _program: program, service, address: SocketAddr::from(([127, 0, 0, 1], port)), _folder: folder }
}

fn compiled() -> Serving {
    start("waiting_server", Command::new(program::binary("waiting_server").unwrap()))
}

fn python() -> Serving {
    let mut command = Command::new("python3");
    command.arg(program::source("waiting").join("server.py"));
    start("waiting-python", command)
}

/// Requests of random tasks, one after the other on one connection; what each came to, by its path.
fn ask(rng: &mut fastrand::Rng, address: SocketAddr, tasks: &[&str]) -> BTreeMap<String, Truth> {
    ask_for(rng, address, (tasks, 1_000..4_000))
}

/// The same for tasks of so many microseconds.
fn ask_for(
    rng: &mut fastrand::Rng,
    address: SocketAddr,
    (tasks, microseconds): (&[&str], Range<usize>),
) -> BTreeMap<String, Truth> {
    let paths = (0..REQUESTS).map(|_| {
        let chosen: Vec<String> = (0..TASKS)
            .map(|_| format!("{}.{}", tasks[rng.usize(..tasks.len())], rng.usize(microseconds.clone())))
            .collect();
        format!("/spend/{}/{}", request_id(), chosen.join("-"))
    });
    get(address, paths)
}

/// Asks for paths one after the other, on one connection.
fn get(address: SocketAddr, paths: impl Iterator<Item = String>) -> BTreeMap<String, Truth> {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut answers = BTreeMap::new();
    for path in paths {
        (&stream).write_all(format!("GET {path} HTTP/1.1\r\nHost: spender\r\n\r\n").as_bytes()).unwrap();
        let (mut line, mut length) = (String::new(), 0);
        while line != "\r\n" {
            line.clear();
            assert!(reader.read_line(&mut line).unwrap() > 0, "the server went away");
            if let Some((_, value)) = line.to_ascii_lowercase().split_once("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).unwrap();
        answers.insert(path, serde_json::from_slice(&body).unwrap());
    }
    answers
}

/// Its spans, by path, as soon as all are there.
fn spans(agent: &mut Agent, serving: &Serving, n: usize) -> BTreeMap<String, Span> {
    let is_ours = |span: &&Span| span.kind == span::Kind::Server && span.service.name == serving.service;
    let spans = agent.spans_until(LIMIT, |spans| spans.iter().filter(is_ours).count() >= n).unwrap().iter();
    spans.filter(is_ours).map(|span| (span.text("url.path").unwrap().to_owned(), span.clone())).collect()
}

fn part(span: &Span, name: &str) -> u64 {
    span.number(&format!("obi.{name}_ns")).unwrap_or(0)
}

fn duration(span: &Span) -> u64 {
    span.end_unix_nano.get() - span.start_unix_nano.get()
}

/// The parts of a span are the span, to the nanosecond.
fn check_identity(span: &Span) {
    let sum: u64 =
        ["queue_wait", "cpu", "runqueue", "blocked", "elsewhere"].iter().map(|name| part(span, name)).sum();
    assert_eq!(sum, duration(span), "{span:?}");
    let by_reason = span.attributes.iter().filter(|(name, _)| name.starts_with("obi.blocked."));
    let by_reason: u64 = by_reason.map(|(_, value)| value.as_u64().unwrap()).sum();
    assert_eq!(by_reason, part(span, "blocked"), "{span:?}");
}

/// By part: what the agent says, what the thread says, and how much more it may be for what lies outside of the
/// thread's own clocks; of each request.
type Compared = BTreeMap<&'static str, Vec<(u64, u64, u64)>>;

fn reason_of(task: &str) -> Option<&'static str> {
    Some(match task {
        "sleep" => "blocked.sleep",
        "lock" => "blocked.lock",
        "condition" => "blocked.condition",
        "poll" => "blocked.poll",
        "network" => "blocked.network",
        "child" => "blocked.child",
        // Whether it is the journal or the device that it waits for is the file system's affair.
        "sync" | "pipe" => "storage",
        _ => return None,
    })
}

fn compare(span: &Span, truth: &Truth, compared: &mut Compared) {
    let [wall, cpu, delay] = truth.whole;
    let outside = (duration(span) - part(span, "queue_wait")).saturating_sub(wall);
    let said = |name: &str| match name {
        "storage" => part(span, "blocked.disk") + part(span, "blocked.file"),
        other => part(span, other),
    };
    let mut add = |name: &'static str, reported, outside| {
        compared.entry(name).or_default().push((said(name), reported, outside));
    };
    add("cpu", cpu, outside);
    add("runqueue", delay, outside);
    add("blocked", wall.saturating_sub(cpu + delay), outside);
    let mut by_reason = BTreeMap::<&str, u64>::new();
    for (task, wall, cpu, delay) in &truth.tasks {
        if let Some(reason) = reason_of(task) {
            *by_reason.entry(reason).or_default() += wall.saturating_sub(cpu + delay);
        }
    }
    by_reason.into_iter().for_each(|(reason, reported)| add(reason, reported, 0));
}

fn median(mut values: Vec<u64>) -> u64 {
    values.sort_unstable();
    values[values.len() / 2]
}

/// Half of all requests at least are right in each part: a machine that takes a CPU away from a thread that holds the
/// interpreter's lock, or wakes one late, can do that to any one of them.
fn judge(name: &str, compared: Compared) {
    for (part, values) in compared {
        let truth = median(values.iter().map(|(_, reported, _)| *reported).collect());
        let errors = values.iter().map(|(said, reported, outside)| {
            said.saturating_sub(reported + outside).max(reported.saturating_sub(*said))
        });
        let error = median(errors.collect());
        note(&format!(
            "{name}: {part}: {} requests, median {truth} ns, median error {error} ns",
            values.len()
        ));
        assert!(error <= OFF.max(truth / 100), "{name}: {part}: off by {error} of {truth} ns: {values:?}");
    }
}

fn parts_are_what_the_threads_have_measured(serving: &Serving, tasks: &[&str], seed: &str) {
    let mut rng = seeded(seed);
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let answers = ask(&mut rng, serving.address, tasks);
    let spans = spans(&mut agent, serving, answers.len());
    assert!(spans.keys().eq(answers.keys()), "{} spans of {} requests", spans.len(), answers.len());
    let mut compared = Compared::new();
    for (path, truth) in &answers {
        let span = &spans[path];
        check_identity(span);
        assert!(span.attributes.contains_key("obi.cpu_ns"), "{span:?}");
        assert_eq!(part(span, "elsewhere"), 0, "one thread has served it: {span:?}");
        compare(span, truth, &mut compared);
    }
    judge(&serving.service, compared);
    check_metrics(&agent, &serving.service, spans.values());
}

/// The metrics are the sums of the spans.
fn check_metrics<'a>(agent: &Agent, service: &str, spans: impl Iterator<Item = &'a Span> + Clone) {
    let metrics = agent.metrics().unwrap();
    let check = |name: &str, labels: &[(&str, &str)], of: &str| {
        let labels = [&[("service_name", service)], labels].concat();
        let reported = metrics.sum(&format!("obi_server_request_{name}_seconds_total"), &labels);
        let sum: u64 = spans.clone().map(|span| part(span, of)).sum();
        assert!(
            (reported - sum as f64 / 1e9).abs() < 1e-6,
            "{name} {labels:?}: {reported}, spans say {sum} ns"
        );
    };
    check("cpu", &[("obi_cpu_source", "booked")], "cpu");
    check("cpu", &[], "cpu");
    check("runqueue", &[], "runqueue");
    check("blocked", &[], "blocked");
    check("blocked", &[("reason", "sleep")], "blocked.sleep");
    check("elsewhere", &[], "elsewhere");
}

#[test]
fn a_thread_for_each_connection() {
    let tasks = ["spin", "sleep", "lock", "condition", "poll", "network", "pipe", "child", "sync"];
    parts_are_what_the_threads_have_measured(&compiled(), &tasks, "waiting-compiled");
}

/// Waiting for the interpreter's lock is a condition to us, so tasks whose helpers want it are left to the compiled
/// one.
#[test]
fn a_thread_for_each_connection_of_an_interpreter() {
    let tasks = ["spin", "sleep", "poll", "child", "sync"];
    parts_are_what_the_threads_have_measured(&python(), &tasks, "waiting-python");
}

/// Answers without a length, behind which the thread leaves the CPU three times before it closes.
const CLOSING: &str = "
import socket, time
listener = socket.create_server(('127.0.0.1', 0))
print('ready', listener.getsockname()[1], flush=True)
while True:
    connection, _ = listener.accept()
    connection.recv(4096)
    time.sleep(0.005)
    connection.sendall(b'HTTP/1.1 200 OK\\r\\nConnection: close\\r\\n\\r\\n')
    connection.sendall(b'hello')
    for _ in range(3):
        time.sleep(0.01)
    connection.close()
";

/// Such an answer ends with its last byte, and only the close says so: what the thread does until then is not the
/// request's, and what it did before is known.
#[test]
fn an_answer_that_ends_with_its_connection() {
    const ASKED: usize = 20;
    let mut command = Command::new("python3");
    command.args(["-c", CLOSING]);
    let serving = start("waiting-closing", command);
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    for _ in 0..ASKED {
        let mut stream = TcpStream::connect(serving.address).unwrap();
        let head = format!("GET /closing/{} HTTP/1.1\r\nHost: closing\r\n\r\n", request_id());
        stream.write_all(head.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.ends_with("hello"), "{answer}");
    }
    let spans = spans(&mut agent, &serving, ASKED);
    for span in spans.values() {
        check_identity(span);
        assert!(span.attributes.contains_key("obi.cpu_ns"), "{span:?}");
        // The sleep begins when its end is set, which is a little before the thread leaves the CPU, or loses it.
        let asleep = part(span, "blocked.sleep");
        let before = part(span, "cpu") + part(span, "runqueue");
        assert!(asleep > 0 && asleep <= duration(span) && asleep + before >= 5_000_000, "{span:?}");
        assert_eq!(part(span, "elsewhere"), 0, "{span:?}");
    }
    let metrics = agent.metrics().unwrap();
    assert_eq!(metrics.sum("obi_lost_times_total", &[]), 0.0);
}

/// Of requests that take turns on one thread only their sum is reported.
#[test]
fn turns_of_an_event_loop_are_elsewhere() {
    let mut rng = seeded("waiting-loop");
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let server = language::python_asyncio().unwrap();
    let calls = load::calls(&mut rng, &server.features, Kind::Shape, 50);
    client::call(Kind::Shape, &server.address, &calls, 4).unwrap();
    let is_ours = |span: &&Span| span.kind == span::Kind::Server && span.service.name == server.service;
    let spans = agent.spans_until(LIMIT, |spans| spans.iter().filter(is_ours).count() >= 50).unwrap();
    for span in spans.iter().filter(is_ours) {
        check_identity(span);
        assert!(!span.attributes.contains_key("obi.cpu_ns"), "{span:?}");
        assert_eq!(part(span, "elsewhere"), duration(span) - part(span, "queue_wait"));
    }
}

#[test]
fn off_is_off_and_says_so() {
    let mut rng = seeded("waiting-off");
    let mut agent = Agent::start(Config::default().alone().set("profile", "waiting", "off")).unwrap();
    let serving = compiled();
    let answers = ask(&mut rng, serving.address, &["spin"]);
    let spans = spans(&mut agent, &serving, answers.len());
    assert_eq!(spans.len(), answers.len());
    for span in spans.values() {
        assert!(!span.attributes.contains_key("obi.elsewhere_ns"), "{span:?}");
    }
    let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
    let expected = serde_json::json!({"booked": false, "reason": "profile.waiting is off"});
    assert_eq!(status["waiting"], expected, "{status}");
    let metrics = agent.metrics().unwrap();
    assert_eq!(metrics.matching("obi_bpf_program_runs_total", &[("program", "sched_switch")]).count(), 0);
}
