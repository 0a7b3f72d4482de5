//! Wrong configuration, missing rights, taken ports, sudden death: one clear line, the right exit code, no trace.

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::client::Kind;
use integration::patience::patience;
use integration::plan::{Call, ServerPlan};
use integration::process::{Ended, Program, run};
use integration::server::shape::ShapeServer;
use integration::shape::Shape;
use serde_json::Value;

use crate::gate;

pub(crate) const LIMIT: Duration = Duration::from_secs(20);

/// Runs `wrapper… obi run --config FILE` with this text, to its end.
fn run_agent(wrapper: &[&str], config: &str) -> Ended {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), config).unwrap();
    let plain = agent::command().unwrap();
    let mut words = wrapper.iter().map(std::ffi::OsStr::new).chain([plain.get_program()]);
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["run", "--config"]).arg(file.path());
    Program::spawn("agent", command).unwrap().wait(LIMIT).unwrap()
}

/// The exit code, and a last line on stderr that has all of `words`.
#[track_caller]
pub(crate) fn check(ended: &Ended, code: i32, words: &[&str]) {
    let last = ended.stderr.lines().last().unwrap_or("");
    assert_eq!(ended.code, code, "{}", ended.stderr);
    for word in words {
        assert!(last.contains(word), "no {word:?} in the last line of:\n{}", ended.stderr);
    }
    assert!(!ended.stderr.contains("panicked"), "{}", ended.stderr);
}

#[test]
fn wrong_configuration() {
    for (config, words) in [
        ("web:\n  lisen: 127.0.0.1:0\n", &["web", "lisen"][..]),
        ("web:\n  listen: somewhere\n", &["web.listen", "somewhere"]),
        ("capture:\n  hooks: magic\n", &["capture.hooks", "magic"]),
        ("capture:\n  ring_bytes: many\n", &["capture.ring_bytes"]),
        ("discover: {include: [{port: 99999}]}\n", &["discover.include", "port"]),
        ("slo: {files: [/nonexistent.yaml]}\n", &["slo.files", "/nonexistent.yaml"]),
        ("nothing: 1\n", &["nothing"]),
    ] {
        let ended = run_agent(&[], config);
        check(&ended, 2, words);
        assert_eq!(ended.stderr.lines().count(), 1, "{}", ended.stderr);
    }
}

#[test]
fn a_configuration_that_is_not_there() {
    let mut command = agent::command().unwrap();
    command.args(["run", "--config", "/nonexistent/obi.yaml"]);
    check(&Program::spawn("agent", command).unwrap().wait(LIMIT).unwrap(), 2, &["/nonexistent/obi.yaml"]);
}

#[test]
fn a_taken_port() {
    let taken = TcpListener::bind(("127.0.0.1", 0)).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    check(&run_agent(&[], &format!("web: {{listen: '{address}'}}\n")), 1, &[&address]);
}

#[test]
fn without_capabilities() {
    let drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"];
    check(&run_agent(&drop, "web: {listen: '127.0.0.1:0'}\n"), 1, &["CAP_"]);
}

#[test]
fn without_type_information() {
    let hide = ["unshare", "--mount", "sh", "-c", "mount -t tmpfs none /sys/kernel/btf && exec \"$@\"", "sh"];
    check(&run_agent(&hide, "web: {listen: '127.0.0.1:0'}\n"), 1, &["BTF", "/sys/kernel/btf/vmlinux"]);
}

/// Ids of the kernel objects of `kind` (`prog`, `map`, `link`) that the process `pid` holds open.
fn objects(kind: &str, pid: u32) -> BTreeSet<u64> {
    let field = format!("{kind}_id:");
    let descriptors = std::fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten();
    descriptors
        .filter_map(|descriptor| std::fs::read_to_string(descriptor.path()).ok())
        .filter_map(|info| info.lines().find_map(|line| line.strip_prefix(&field)?.trim().parse().ok()))
        .collect()
}

fn of_machine(kind: &str) -> Vec<Value> {
    let mut command = Command::new("bpftool");
    command.args(["--json", kind, "show"]);
    let lines = run("bpftool", command, LIMIT).unwrap();
    serde_json::from_str(&lines.join("")).unwrap()
}

/// Waits until none of the objects exist: the kernel frees them a little after their last holder.
#[track_caller]
fn assert_gone(held: &[(&str, BTreeSet<u64>)]) {
    let deadline = Instant::now() + patience(LIMIT);
    for (kind, ids) in held {
        loop {
            let left: Vec<Value> = of_machine(kind)
                .into_iter()
                .filter(|object| object["id"].as_u64().is_some_and(|id| ids.contains(&id)))
                .collect();
            if left.is_empty() {
                break;
            }
            assert!(Instant::now() < deadline, "still there: {left:?}");
            thread::sleep(Duration::from_millis(20));
        }
    }
}

fn held_by(agent: &Agent) -> Vec<(&'static str, BTreeSet<u64>)> {
    let held: Vec<_> =
        ["prog", "map", "link"].iter().map(|kind| (*kind, objects(kind, agent.pid()))).collect();
    assert!(
        !held[0].1.is_empty() && !held[1].1.is_empty(),
        "the agent holds nothing in the kernel: {held:?}"
    );
    held
}

#[test]
fn sudden_death_leaves_nothing() {
    let agent = Agent::start(Config::default()).unwrap();
    let held = held_by(&agent);
    assert_eq!(agent.kill().unwrap().code, 128 + 9);
    assert_gone(&held);
}

#[test]
fn a_request_to_end_is_followed() {
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", ServerPlan::default()).unwrap();
    let mut ledger = integration::accuracy::Ledger::default();
    let calls: Vec<Call> = (0..200).map(|_| Call::new(Shape::default())).collect();
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 4);
    gate::assert_exact(&mut agent, &ledger);
    let held = held_by(&agent);
    let begun = Instant::now();
    let ended = agent.stop().unwrap();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    assert!(begun.elapsed() < patience(Duration::from_secs(5)), "took {:?} to end", begun.elapsed());
    assert_gone(&held);
}
