//! The commands beside `run`, and how fast `run` gets ready.

use std::process::Command;
use std::time::Duration;

use integration::agent::{self, Agent, Config};
use integration::hook;
use integration::patience::patience;
use integration::process::{Ended, Program};
use integration::seed::note;
use serde_json::Value;

fn obi(arguments: &[&str]) -> Ended {
    let mut command: Command = agent::command().unwrap();
    command.args(arguments);
    Program::spawn("obi", command).unwrap().wait(Duration::from_secs(20)).unwrap()
}

#[test]
fn help_is_given() {
    let overview = obi(&["--help"]);
    assert_eq!(overview.code, 0);
    for command in ["run", "doctor", "check", "demo"] {
        assert!(overview.lines.join("\n").contains(command), "{:?}", overview.lines);
        let help = obi(&[command, "--help"]);
        assert!(help.code == 0 && help.lines.len() > 3, "{help:?}");
    }
    assert_eq!(obi(&["fly"]).code, 2);
    assert_eq!(obi(&["run", "--fast"]).code, 2);
}

#[test]
fn doctor_names_the_hook_set() {
    let reported = obi(&["doctor", "--json"]);
    assert_eq!(reported.code, 0, "{}", reported.stderr);
    let report: Value = serde_json::from_str(&reported.lines.join("\n")).unwrap();
    let hook_set = report["hook_set"].as_str().unwrap_or_default().to_owned();
    assert!(["socket", "fentry", "kprobe", "syscall"].contains(&hook_set.as_str()), "{report}");
    let agent = Agent::start(Config::default()).unwrap();
    if hook::forced().is_none() {
        assert_eq!(agent.hook_set().unwrap().name(), hook_set, "doctor and run disagree");
    }
    let plain = obi(&["doctor"]);
    assert!(plain.code == 0 && plain.lines.join("\n").contains(&hook_set), "{plain:?}");
}

#[test]
fn check_tells_good_from_bad() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let path = file.path().to_str().unwrap();
    for (text, code) in
        [("web:\n  listen: 127.0.0.1:9464\n", 0), ("", 0), ("web:\n  listen: 5\n", 2), ("a", 2)]
    {
        std::fs::write(file.path(), text).unwrap();
        let ended = obi(&["check", "--config", path]);
        assert_eq!(ended.code, code, "{text:?}: {ended:?}");
    }
}

#[test]
fn the_environment_overrides_the_file() {
    let mut command = agent::command().unwrap();
    command.args(["run"]).env("OBI_WEB_LISTEN", "nowhere");
    let ended = Program::spawn("obi", command).unwrap().wait(Duration::from_secs(20)).unwrap();
    assert!(ended.code == 2 && ended.stderr.contains("nowhere"), "{ended:?}");
}

/// Without authorities of TLS, as in an image without a base, the agent is asked all the same where it speaks no TLS.
#[test]
fn the_agent_is_asked_without_authorities() {
    let mut command = agent::command().unwrap();
    command.args(["slo", "status", "--address", "127.0.0.1:1"]);
    command.env("SSL_CERT_FILE", "/dev/null").env("SSL_CERT_DIR", "/nowhere");
    let ended = Program::spawn("obi", command).unwrap().wait(Duration::from_secs(20)).unwrap();
    assert!(ended.code == 1 && ended.stderr.contains("no agent answers at 127.0.0.1:1"), "{ended:?}");
}

#[test]
fn ready_soon() {
    let agent = Agent::start(Config::default()).unwrap();
    note(&format!("ready after {:?}", agent.ready_after()));
    // The bar of 1 s is measured by the benchmark on a quiet machine; tests share theirs.
    assert!(agent.ready_after() < patience(Duration::from_secs(5)), "ready after {:?}", agent.ready_after());
    let info = agent.metrics().unwrap();
    for name in ["obi_build_info", "obi_hook_info", "obi_bpf_map_bytes", "obi_watched_processes"] {
        assert!(info.sum(name, &[]) > 0.0, "{name} says nothing");
    }
}

/// Every map of capture is in the sum, as the kernel counts it: also tables of buckets, and what is thrown away by age.
#[test]
fn no_map_is_left_out_of_the_sum() {
    let agent = Agent::start(Config::default().set("capture", "hooks", "syscall")).unwrap();
    let reported = agent.metric_value("obi_bpf_map_bytes", &[]).unwrap();
    let counted = agent.kernel_map_bytes().unwrap() as f64;
    note(&format!("the agent says {reported}, the kernel {counted}"));
    // Programs come and go between the two looks.
    assert!((reported - counted).abs() < counted / 50.0, "{reported} is not {counted}");
}

/// Each further heap of glibc reserves 64 MiB of addresses, most of which cannot be used until it grows.
#[test]
fn all_threads_of_the_agent_share_one_heap() {
    let agent = Agent::start(Config::default()).unwrap();
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", agent.pid())).unwrap();
    let reserved = maps.lines().filter(|line| {
        let mut fields = line.split_whitespace();
        let range = fields.next().and_then(|range| range.split_once('-')).unwrap();
        let [from, to] = [range.0, range.1].map(|text| u64::from_str_radix(text, 16).unwrap());
        fields.next() == Some("---p") && (32 << 20..=64 << 20).contains(&(to - from))
    });
    assert_eq!(reserved.collect::<Vec<_>>(), Vec::<&str>::new(), "{maps}");
    assert!(maps.contains("[heap]"), "{maps}");
}
