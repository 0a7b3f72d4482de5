//! Which TLS libraries the agent and `obi doctor` find.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::fetch;
use integration::patience::patience;
use integration::process::Program;
use serde_json::Value;

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

/// What the list `probed` tells of the library in this folder.
fn probed<'a>(tls: &'a Value, folder: &Path) -> Option<&'a Value> {
    let path = folder.join("libssl.so.3");
    tls["probed"].as_array()?.iter().find(|file| file["path"].as_str() == path.to_str())
}

fn status(agent: &Agent) -> Value {
    fetch::json(agent.address(), "/api/v1/status").unwrap()
}

#[test]
fn a_library_is_probed_when_a_program_begins_to_use_it() {
    let agent = Agent::start(Config::default()).unwrap();
    let folder = tempfile::tempdir().unwrap();
    assert!(probed(&status(&agent)["tls"], folder.path()).is_none());
    let _program = program_with_library(folder.path());
    let deadline = Instant::now() + patience(PATIENCE);
    let found = loop {
        let status = status(&agent);
        if let Some(found) = probed(&status["tls"], folder.path()) {
            break found.clone();
        }
        assert!(Instant::now() < deadline, "{status}");
        thread::sleep(Duration::from_millis(20));
    };
    assert_eq!(found["cost"], "emulated", "{found}");
    let programs = found["programs"].as_array().unwrap();
    for program in ["tls_exit", "tls_read_ex_enter", "tls_write_ex_enter", "tls_handshake_enter", "tls_free"]
    {
        assert!(programs.contains(&program.into()), "{program} is missing: {found}");
    }
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
    let agent = Agent::start(Config::default().set("capture", "tls", false)).unwrap();
    assert!(status(&agent)["tls"].is_null());
}
