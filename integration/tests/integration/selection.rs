//! The choice of a hook set on kernels that refuse something: which, and the reason given.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use integration::agent::{self, Agent, Config};
use integration::hook::{self, HookSet};
use integration::patience::patience;
use integration::process::{Ended, Program};
use integration::refusal::{Refusal, types_without};
use serde_json::Value;

/// Best first: those that see every program, the cheaper first; then what sees less.
const PREFERENCE: [HookSet; 4] = [HookSet::Fentry, HookSet::Kprobe, HookSet::Socket, HookSet::Syscall];

const NOTHING: Refusal = Refusal { hidden: &[], dropped: &[] };
const NO_TYPES: Refusal = Refusal { hidden: &["/sys/kernel/btf"], dropped: &[] };
const NO_TRACEFS: &[&str] = &["/sys/kernel/tracing", "/sys/kernel/debug"];

fn end(refusal: Refusal, command: &Command) -> Ended {
    Program::spawn("obi", refusal.wrap(command)).unwrap().wait(patience(Duration::from_secs(120))).unwrap()
}

/// What `doctor` says.
struct Reported {
    report: Value,
    code: i32,
}

impl Reported {
    fn by_doctor(refusal: Refusal, environment: &[(&str, &str)]) -> Self {
        let mut command = agent::command().unwrap();
        command.args(["doctor", "--json"]).envs(environment.iter().copied());
        let ended = end(refusal, &command);
        let report = serde_json::from_str(&ended.lines.join("\n"))
            .unwrap_or_else(|error| panic!("{error}: {ended:?}"));
        Self { report, code: ended.code }
    }

    fn hook_set(&self) -> Option<HookSet> {
        assert_eq!(self.code, i32::from(self.report["hook_set"].is_null()), "{:#}", self.report);
        self.report["hook_set"].as_str().map(|name| HookSet::by_name(name).unwrap())
    }

    /// State and reason of each set.
    fn sets(&self) -> BTreeMap<&'static str, (&str, &str)> {
        let sets = self.report["sets"].as_array().unwrap().iter();
        let text = |set: &Value, key: &str| set[key].as_str().unwrap().to_owned();
        sets.map(|set| {
            let name = HookSet::by_name(&text(set, "set")).unwrap().name();
            (name, (set["state"].as_str().unwrap(), set["reason"].as_str().unwrap()))
        })
        .collect()
    }

    fn usable(&self) -> Vec<HookSet> {
        let sets = self.sets();
        let is_usable = |set: &HookSet| ["used", "spare"].contains(&sets[set.name()].0);
        PREFERENCE.into_iter().filter(is_usable).collect()
    }
}

#[test]
fn what_this_kernel_refuses_itself_has_its_reason() {
    let reported = Reported::by_doctor(NOTHING, &[]);
    assert_eq!(reported.hook_set(), reported.usable().first().copied(), "{:#}", reported.report);
    for (set, mechanisms) in [
        ("socket", ["sock_send_length", "sock_recv_length"]),
        ("fentry", ["trampolines", "unix_"]),
        ("kprobe", ["breakpoints", "unix_"]),
        ("syscall", ["tracing file system", "programs at system calls"]),
    ] {
        let (state, reason) = reported.sets()[set];
        let explained = mechanisms.iter().any(|mechanism| reason.starts_with(mechanism));
        assert!(state != "refused" && (state != "unsupported" || explained), "{set} {state}: {reason}");
    }
}

#[test]
fn without_what_every_set_needs_there_is_none_and_the_error_says_what() {
    for (refusal, reason) in [
        (NO_TYPES, "kernel type information (BTF): failed to read `/sys/kernel/btf/vmlinux`"),
        (Refusal { dropped: &["sys_admin", "bpf"], ..NOTHING }, "CAP_BPF"),
        (Refusal { dropped: &["sys_admin", "perfmon"], ..NOTHING }, "CAP_PERFMON"),
    ] {
        let reported = Reported::by_doctor(refusal, &[]);
        assert_eq!(reported.hook_set(), None);
        let error = reported.report["error"].as_str().unwrap();
        assert!(error.starts_with("no hook set can be used: ") && error.contains(reason), "{error}");
        assert!(reported.sets().values().all(|(state, _)| *state == "unsupported"), "{:#}", reported.report);
        let mut command = agent::command().unwrap();
        command.arg("run").env("OBI_WEB_LISTEN", "127.0.0.1:0");
        let ended = end(refusal, &command);
        assert!(ended.code == 1 && ended.stderr.contains(reason), "{ended:?}");
    }
}

#[test]
fn a_forced_set_is_used_or_the_error_says_why_not() {
    let usual = Reported::by_doctor(NOTHING, &[]).usable();
    for set in HookSet::ALL {
        let reported = Reported::by_doctor(NOTHING, &[("OBI_CAPTURE_HOOKS", set.name())]);
        if usual.contains(&set) {
            assert_eq!(reported.hook_set(), Some(set));
        } else {
            assert_eq!(reported.hook_set(), None);
            let error = reported.report["error"].as_str().unwrap();
            let expected = format!("capture.hooks: `{set}` cannot be used: ");
            assert!(error.starts_with(&expected) && error.len() > expected.len(), "{error}");
        }
    }
}

#[test]
fn tracefs_need_not_be_mounted() {
    if !Reported::by_doctor(NOTHING, &[]).usable().contains(&HookSet::Syscall) {
        return;
    }
    let refusal = Refusal { hidden: NO_TRACEFS, ..NOTHING };
    let reported = Reported::by_doctor(refusal, &[("OBI_CAPTURE_HOOKS", "syscall")]);
    assert_eq!(reported.hook_set(), Some(HookSet::Syscall), "{:#}", reported.report);
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn each_refusal_leads_to_the_next_best_set() {
        let usual = Reported::by_doctor(NOTHING, &[]).usable();
        let check = |refusal: Refusal, hidden_names: &[&str], refused: &[(HookSet, &str, &str)]| {
            let types = types_without(hidden_names).unwrap();
            let path = types.path().to_str().unwrap();
            let reported = Reported::by_doctor(refusal, &[("OBI_CAPTURE_BTF", path)]);
            let expected = usual.iter().find(|set| refused.iter().all(|(refused, ..)| refused != *set));
            assert_eq!(
                reported.hook_set(),
                expected.copied(),
                "{refusal:?} {hidden_names:?}: {:#}",
                reported.report
            );
            let sets = reported.sets();
            for (set, state, reason) in refused.iter().filter(|(set, ..)| usual.contains(set)) {
                let (found_state, found) = sets[set.name()];
                assert!(
                    found_state == *state && found.contains(reason),
                    "{refusal:?} {set}: {found_state}, {found}"
                );
            }
            if let (Some(expected), None) = (expected, hook::forced()) {
                let config = Config::default().set("capture", "btf", path);
                let agent = Agent::start_in(config, |command| refusal.wrap(&command)).unwrap();
                assert_eq!(agent.hook_set().unwrap(), *expected);
                let metrics = agent.metrics().unwrap();
                for (set, (state, _)) in &sets {
                    let labels = [("set", *set), ("state", *state)];
                    assert_eq!(metrics.sum("obi_hook_set_info", &labels), 1.0, "{refusal:?}: {labels:?}");
                }
            }
        };
        use HookSet::{Fentry, Kprobe, Socket, Syscall};
        let dropped = &["sys_admin"];
        check(NO_TYPES, &[], &[]);
        check(
            Refusal { hidden: &["/sys/bus/event_source/devices"], ..NOTHING },
            &[],
            &[(Kprobe, "unsupported", "failed to read `/sys/bus/event_source/devices/kprobe/type`")],
        );
        check(
            Refusal { hidden: NO_TRACEFS, dropped },
            &[],
            &[(Syscall, "unsupported", "tracefs is not at `/sys/kernel/tracing`")],
        );
        check(
            NOTHING,
            &["btf_trace_sock_recv_length"],
            &[(Socket, "unsupported", "type `btf_trace_sock_recv_length` is not in")],
        );
        check(
            NOTHING,
            &["unix_stream_recvmsg"],
            &[
                (Fentry, "unsupported", "function `unix_stream_recvmsg` is not in"),
                (Kprobe, "unsupported", "function `unix_stream_recvmsg` is not in"),
            ],
        );
        // Probing finds nothing amiss; the verifier does.
        check(
            NOTHING,
            &["flags", "msg_iter"],
            &[
                (Fentry, "refused", "the kernel refused it"),
                (Kprobe, "refused", "the kernel refused it"),
                (Socket, "refused", "the kernel refused it"),
            ],
        );
    }
}
