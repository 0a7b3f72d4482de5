//! Which TLS libraries the agent and `obi doctor` find.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::fetch;
use integration::otlp::certificate::Certificates;
use integration::patience::patience;
use integration::plan::Address;
use integration::process::Program;
use integration::server::{encrypted, service};
use integration::span::Span;
use serde_json::Value;

use crate::gate;

const PATIENCE: Duration = Duration::from_secs(60);
const DISTRIBUTED: &str = "/usr/lib/x86_64-linux-gnu/libssl.so.3";

/// A program with a libssl of its own, in a place that no cache knows.
fn program_with_library(folder: &Path) -> Program {
    fs::copy(DISTRIBUTED, folder.join("libssl.so.3")).unwrap();
    let mut command = Command::new("python3");
    command.args([
        "-c",
        "import ctypes, time; ctypes.CDLL('libssl.so.3'); print('ready', flush=True); time.sleep(1000)",
    ]);
    command.env("LD_LIBRARY_PATH", folder);
    let mut program = Program::spawn("python3", command).unwrap();
    program.await_line("ready", patience(PATIENCE)).unwrap();
    program
}

/// What the list `probed` says of the library in this folder.
fn probed<'a>(tls: &'a Value, folder: &Path) -> Option<&'a Value> {
    let path = folder.join("libssl.so.3");
    tls["probed"].as_array()?.iter().find(|file| file["path"].as_str() == path.to_str())
}

#[track_caller]
fn await_probed(agent: &Agent, folder: &Path) -> Value {
    let deadline = Instant::now() + patience(PATIENCE);
    loop {
        let status = status(agent);
        if let Some(found) = probed(&status["tls"], folder) {
            return found.clone();
        }
        assert!(Instant::now() < deadline, "{status}");
        thread::sleep(Duration::from_millis(20));
    }
}

fn status(agent: &Agent) -> Value {
    fetch::json(agent.address(), "/api/v1/status").unwrap()
}

#[test]
fn a_library_is_probed_when_a_program_begins_to_use_it() {
    let agent = Agent::start(Config::default().alone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    assert!(probed(&status(&agent)["tls"], folder.path()).is_none());
    let _program = program_with_library(folder.path());
    let found = await_probed(&agent, folder.path());
    assert_eq!(found["cost"], "emulated", "{found}");
    let programs = found["programs"].as_array().unwrap();
    for program in ["tls_exit", "tls_read_ex_enter", "tls_write_ex_enter", "tls_handshake_enter", "tls_free"]
    {
        assert!(programs.contains(&program.into()), "{program} is missing: {found}");
    }
}

/// One connection: requests to `/early` until it must have been counted as one that no probe reads (64 segments, ten
/// seconds), then, when the file is there, five to `/late`.
const ONE_CONNECTION: &str = "
import http.client, os, ssl, sys, time
port, gate = sys.argv[1:]
connection = http.client.HTTPSConnection('127.0.0.1', int(port), context=ssl._create_unverified_context())
def ask(path):
    connection.request('GET', path)
    connection.getresponse().read()
    connection.sock.fileno()  # fails once the server has closed it
begun, n = time.monotonic(), 0
while n < 80 or time.monotonic() < begun + 11:
    ask('/early')
    n += 1
    time.sleep(0.05)
print('unread', flush=True)
while not os.path.exists(gate):
    time.sleep(0.01)
for _ in range(5):
    ask('/late')
print('done', flush=True)
";

/// The agent stands still until the connection has counted as unread, then it learns of the library.
#[test]
fn a_connection_whose_library_is_found_late_is_read_from_then_on() {
    let certificates = Certificates::new().unwrap();
    let server = encrypted::nginx(&certificates).unwrap();
    let Address::Tcp(address) = server.address.clone() else { panic!("{:?}", server.address) };
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    fs::copy(DISTRIBUTED, folder.path().join("libssl.so.3")).unwrap();
    let (wanted, service) = (folder.path().join("gate"), service("late"));
    let mut command = Command::new("python3");
    command.args(["-c", ONE_CONNECTION, &address.port().to_string()]).arg(&wanted);
    command.env("LD_LIBRARY_PATH", folder.path()).env("OTEL_SERVICE_NAME", &service);
    let mut client = agent
        .stopped(|| {
            let mut client = Program::spawn("late", command).unwrap();
            client.await_line("unread", PATIENCE).unwrap();
            client
        })
        .unwrap();
    await_probed(&agent, folder.path());
    fs::write(&wanted, "").unwrap();
    client.await_line("done", PATIENCE).unwrap();
    let n_of = |spans: &[Span], path: &str| {
        let is_one = |span: &&Span| span.service.name == service && span.text("url.path") == Some(path);
        spans.iter().filter(is_one).count()
    };
    let spans = agent.spans_until(PATIENCE, |spans| n_of(spans, "/late") >= 5).unwrap();
    assert_eq!((n_of(spans, "/early"), n_of(spans, "/late")), (0, 5), "{:?}", spans.last());
    let metrics = agent.metrics().unwrap();
    let of_tls = |name: &str| metrics.sum(name, &[("reason", "tls")]);
    let read_later = of_tls("obi_uncovered_connections_read_later_total");
    assert!(read_later >= 1.0 && gate::uncovered(&metrics, "tls") >= read_later, "{read_later}");
}

#[test]
fn doctor_tells_where_tls_would_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let _program = program_with_library(folder.path());
    let doctor = |arguments: &[&str], tls: &str| {
        let mut command = agent::command().unwrap();
        command.args(arguments).env("OBI_CAPTURE_TLS", tls);
        let ended = Program::spawn("obi", command).unwrap().wait(patience(PATIENCE)).unwrap();
        assert_eq!(ended.code, 0, "{}", ended.stderr);
        ended.lines.join("\n")
    };
    let report: Value = serde_json::from_str(&doctor(&["doctor", "--json"], "true")).unwrap();
    let found = probed(&report["tls"], folder.path()).unwrap_or_else(|| panic!("{report}"));
    assert_eq!((found["cost"].as_str(), found["processes"].as_u64()), (Some("emulated"), Some(1)), "{found}");
    assert!(report["tls"]["mode"].is_string() && report["tls"]["error"].is_null(), "{report}");
    let text = doctor(&["doctor"], "true");
    let line = format!("cheap  {}/libssl.so.3: 6 programs, in 1 processes now", folder.path().display());
    assert!(text.contains(&line) && text.contains("TLS: read at the programs' libraries"), "{text}");
    let text = doctor(&["doctor"], "false");
    assert!(text.contains("TLS: not read, capture.tls is false"), "{text}");
}

#[test]
fn nothing_is_probed_where_that_is_not_wanted() {
    let agent = Agent::start(Config::default().alone().set("capture", "tls", false)).unwrap();
    assert!(status(&agent)["tls"].is_null());
}
