//! Least privilege: what each capability is for, what happens without it, and that nothing more is held afterwards.
//!
//! The agent runs as user `nobody` with exactly the capabilities that `docs/requirements.md` names.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::process::Command;

use integration::agent::{self, Agent, Config};
use integration::client::{self, Kind};
use integration::hook::HookSet;
use integration::plan::{Call, ServerPlan};
use integration::process::{Ended, Program};
use integration::server::io_uring::io_uring;
use integration::server::shape::ShapeServer;
use integration::shape::Shape;
use integration::span::Span;
use tempfile::TempDir;

use crate::failure::{LIMIT, check};
use crate::gate;

/// What `docs/requirements.md` names, by the words of `setpriv`.
const DOCUMENTED: [&str; 6] =
    ["bpf", "perfmon", "sys_ptrace", "dac_read_search", "checkpoint_restore", "syslog"];

/// Bits of `linux/capability.h`.
const DAC_READ_SEARCH: u64 = 1 << 2;
const SYS_PTRACE: u64 = 1 << 19;
const PERFMON: u64 = 1 << 38;
const CHECKPOINT_RESTORE: u64 = 1 << 40;
/// What is kept of all that is documented.
const KEPT: u64 = SYS_PTRACE | DAC_READ_SEARCH | CHECKPOINT_RESTORE;

/// The documented set on this kernel: Debian and Ubuntu let only `CAP_SYS_ADMIN` open performance events while
/// the setting is above 2, and kprobes and tracepoints of system calls are attached by them.
fn documented(set: Option<HookSet>) -> Vec<&'static str> {
    with_events(matches!(set, Some(HookSet::Kprobe | HookSet::Syscall)))
}

fn with_events(by_events: bool) -> Vec<&'static str> {
    let is_closed = setting("perf_event_paranoid") > 2;
    DOCUMENTED.into_iter().chain((is_closed && by_events).then_some("sys_admin")).collect()
}

fn setting(name: &str) -> i32 {
    fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().parse().unwrap()
}

fn documented_without(lacking: &str) -> Vec<&'static str> {
    let mut held = documented(integration::hook::forced());
    held.retain(|name| *name != lacking);
    held
}

/// The agent's binary where user `nobody` may execute it.
struct Sandbox(TempDir);

impl Sandbox {
    fn new() -> Self {
        use std::os::unix::fs::PermissionsExt as _;
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::copy(agent::command().unwrap().get_program(), folder.path().join("obi")).unwrap();
        Self(folder)
    }

    /// `command` as user `nobody` with exactly these capabilities, now and ever.
    fn nobody(&self, command: &Command, capabilities: &[&str]) -> Command {
        let only = capabilities.iter().fold("-all".to_owned(), |list, name| list + ",+" + name);
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--reuid=65534", "--regid=65534", "--clear-groups"]);
        for set in ["inh-caps", "ambient-caps", "bounding-set"] {
            wrapped.arg(format!("--{set}={only}"));
        }
        wrapped.arg(self.0.path().join("obi")).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        agent::with_tracefs(wrapped)
    }

    fn start(&self, capabilities: &[&str]) -> Agent {
        self.start_with(Config::default(), capabilities)
    }

    fn start_with(&self, config: Config, capabilities: &[&str]) -> Agent {
        Agent::start_in(config, |command| self.nobody(&command, capabilities)).unwrap()
    }

    /// Runs it to its end: when the kernel has refused both flavours of a set, on a busy machine.
    fn run(&self, capabilities: &[&str]) -> Ended {
        let mut command = agent::command().unwrap();
        command.arg("run").env("OBI_WEB_LISTEN", "127.0.0.1:0");
        if let Some(set) = integration::hook::forced() {
            command.env("OBI_CAPTURE_HOOKS", set.name());
        }
        Program::spawn("agent", self.nobody(&command, capabilities)).unwrap().wait(3 * LIMIT).unwrap()
    }
}

/// A named server, asked once; the span that it made, by whatever name.
fn span_of_a_request(agent: &mut Agent) -> (String, Span) {
    let server = ShapeServer::start("privilege", ServerPlan::default()).unwrap();
    let call = Call::new(Shape { delay: 300_000, ..Shape::default() });
    client::call(Kind::Shape, &server.server.address, std::slice::from_ref(&call), 1).unwrap();
    let is_it =
        |span: &Span| span.request_id() == Some(&call.id) && span.kind == integration::span::Kind::Server;
    let spans = agent.spans_until(gate::PATIENCE, |spans| spans.iter().any(is_it)).unwrap();
    let span = spans.iter().find(|span| is_it(span)).expect("the request is captured").clone();
    (server.server.service.clone(), span)
}

/// By field, the values of all threads of a process, each once, with the threads that have it.
fn held(pid: u32, field: &str) -> BTreeMap<u64, Vec<String>> {
    let mut values: BTreeMap<u64, Vec<String>> = BTreeMap::new();
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let status = fs::read_to_string(task.unwrap().path().join("status")).unwrap();
        let value = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(":\t"));
            line.unwrap_or_else(|| panic!("no {name} in {status}")).to_owned()
        };
        let number = u64::from_str_radix(&value(field), 16).unwrap();
        values.entry(number).or_default().push(value("Name"));
    }
    values
}

/// Threads that read what belongs to other users: the first always, and each may have begun or not.
const READERS: [&str; 3] = ["processes", "memory", "tls"];
/// As well where stacks are sampled.
const PROFILE_READERS: [&str; 10] = [
    "processes",
    "memory",
    "tls",
    "profile",
    "symbolizer",
    "obi-symbols",
    "mapping",
    "tables",
    "guests",
    "moment",
];

/// The threads that read processes and find TLS libraries hold `kept`, all others nothing, that which reads what others
/// have sent among them; there is no way to more.
#[track_caller]
fn assert_minimum(agent: &Agent, kept: u64, bounding: Option<u64>) {
    assert_held(agent, kept, bounding, &READERS);
}

#[track_caller]
fn assert_held(agent: &Agent, kept: u64, bounding: Option<u64>, readers: &[&str]) {
    let pid = agent.pid();
    for field in ["CapPrm", "CapEff"] {
        let mut values = held(pid, field);
        if kept != 0 {
            let holders = values.remove(&kept).unwrap_or_default();
            let is_reader = |name: &String| readers.contains(&name.as_str());
            let is_right = holders.iter().any(|name| name == readers[0]) && holders.iter().all(is_reader);
            assert!(is_right, "{field} {kept:x}: {holders:?}");
        }
        let others: Vec<u64> = values.into_keys().collect();
        assert_eq!(others, [0], "{field}");
    }
    for field in ["CapInh", "CapAmb"] {
        assert_eq!(held(pid, field).into_keys().collect::<Vec<_>>(), [0], "{field}");
    }
    assert_eq!(held(pid, "NoNewPrivs").into_keys().collect::<Vec<_>>(), [1], "no_new_privs");
    for value in held(pid, "CapBnd").into_keys() {
        assert!(bounding.is_none_or(|bounding| value & !bounding == 0), "CapBnd {value:x}");
    }
}

/// The files that people install name the same set.
#[test]
fn deployments_ask_for_the_documented_capabilities() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let words = |file: &str, key: &str| -> BTreeSet<String> {
        let text = fs::read_to_string(root.join(file)).unwrap();
        let line = text.lines().find_map(|line| line.trim().strip_prefix(key)).unwrap();
        let names = line.split([' ', ',']).map(|word| word.trim_matches(['[', ']', '"', '=', ':']));
        names.filter(|name| !name.is_empty()).map(|name| name.replace("CAP_", "").to_lowercase()).collect()
    };
    let expected = BTreeSet::from(DOCUMENTED.map(str::to_owned));
    assert_eq!(words("deploy/obi.service", "AmbientCapabilities="), expected);
    assert_eq!(words("deploy/obi.service", "CapabilityBoundingSet="), expected);
    assert_eq!(words("deploy/daemonset.yaml", "add:"), expected);
    assert_eq!(words("deploy/helm/obi/values.yaml", "add:"), expected);
    let document = fs::read_to_string(root.join("docs/requirements.md")).unwrap();
    for name in DOCUMENTED {
        assert!(document.contains(&format!("`CAP_{}`", name.to_uppercase())), "{name}");
    }
}

#[test]
fn the_documented_capabilities_are_enough() {
    let place = Sandbox::new();
    let mut agent = place.start(&documented(integration::hook::forced()));
    let (service, span) = span_of_a_request(&mut agent);
    assert_eq!(span.service.name, service, "named by its own environment, although it is another user's");
    assert_minimum(&agent, KEPT, None);
}

#[test]
fn root_gives_up_all_but_the_minimum() {
    let mut agent = Agent::start(Config::default().set("capture", "statistics", true)).unwrap();
    let (service, span) = span_of_a_request(&mut agent);
    assert_eq!(span.service.name, service);
    assert_minimum(&agent, KEPT, Some(KEPT));
    // Switched on before it was given up.
    let runs = agent.metric_value("obi_bpf_program_runs_total", &[]).unwrap();
    assert!(runs > 0.0, "no run-time statistics");
}

#[test]
fn without_what_loads_programs_one_line_says_so() {
    let place = Sandbox::new();
    for (lacking, named) in [("bpf", "CAP_BPF"), ("perfmon", "CAP_PERFMON")] {
        // CAP_SYS_ADMIN would stand for either.
        let held: Vec<&str> = DOCUMENTED.into_iter().filter(|name| *name != lacking).collect();
        check(&place.run(&held), 1, &[named]);
    }
    check(&place.run(&[]), 1, &["CAP_BPF"]);
}

/// Starts without one capability, or says why not; returns what it said and the span of a request, with the name that
/// the service gave itself.
fn degraded(lacking: &str) -> (String, String, Span) {
    let place = Sandbox::new();
    let mut agent = place.start(&documented_without(lacking));
    let (service, span) = span_of_a_request(&mut agent);
    let kept = match lacking {
        "sys_ptrace" => DAC_READ_SEARCH | CHECKPOINT_RESTORE | PERFMON,
        _ => SYS_PTRACE | CHECKPOINT_RESTORE,
    };
    assert_minimum(&agent, kept, None);
    (agent.stop().unwrap().stderr, service, span)
}

#[test]
fn without_ptrace_executables_have_their_short_name() {
    let (said, service, span) = degraded("sys_ptrace");
    assert!(said.contains("CAP_SYS_PTRACE") && said.contains("short names"), "{said}");
    // Newer kernels let CAP_PERFMON read the environment.
    assert!([service.as_str(), "shape_server"].contains(&span.service.name.as_str()), "{span:?}");
}

/// Names of functions that two programs of root's spend their time in: an interpreter's own, and the kernel's that the
/// other one calls. Empty where they have none.
struct Named {
    own: Vec<String>,
    kernel: Vec<String>,
}

/// Samples as user `nobody` with these capabilities, until both programs have been seen often and the one's functions
/// are named.
fn profiled(capabilities: &[&str]) -> (Agent, Named) {
    const ENOUGH: u64 = 50;
    let agent = Sandbox::new().start_with(Config::default().set("profile", "enabled", true), capabilities);
    let start = |name: &str, arguments: &[&str]| {
        let mut command = Command::new(name);
        command.args(arguments);
        Program::spawn(name, command).unwrap()
    };
    let spin = start("/usr/bin/python3", &["-c", "while True: pass"]);
    let copy = start("dd", &["if=/dev/zero", "of=/dev/null", "bs=1M"]);
    let of = |program: &Program, runtime: &str| {
        let path = format!("/api/v1/profiles?format=json&pid={}", program.pid());
        let profile: serde_json::Value = integration::fetch::json(agent.address(), &path).unwrap();
        let functions = profile["functions"].as_array().unwrap().iter();
        let names = functions.filter(|function| function["runtime"] == runtime);
        let names = names.map(|function| function["function"].as_str().unwrap().to_owned());
        // What has no name goes by its file, in brackets.
        let names: Vec<String> = names.filter(|name| !name.is_empty() && !name.starts_with('[')).collect();
        (profile["samples"].as_u64().unwrap(), names)
    };
    let begun = std::time::Instant::now();
    loop {
        let ((spun, own), (copied, kernel)) = (of(&spin, "native"), of(&copy, "kernel"));
        let is_named = own.iter().any(|name| name.contains("PyEval"));
        if spun > ENOUGH && copied > ENOUGH && is_named {
            return (agent, Named { own, kernel });
        }
        let is_over = begun.elapsed() > integration::patience::patience(LIMIT);
        assert!(!is_over, "{spun} and {copied} samples, {own:?}: {}", agent.stderr().unwrap());
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn profiles_take_no_more_than_is_documented() {
    let (agent, named) = profiled(&with_events(true));
    // A kernel may hide them from every process.
    assert_eq!(named.kernel.is_empty(), setting("kptr_restrict") > 1, "{:?}", named.kernel);
    assert_held(&agent, KEPT, None, &PROFILE_READERS);
}

/// Some programs are attached when they are first wanted, which is after everything has been given up.
#[test]
fn what_is_wanted_later_is_attached_without_privilege() {
    let place = Sandbox::new();
    let mut agent = place.start(&documented(integration::hook::forced()));
    let server = io_uring().unwrap();
    let shape = Shape { response_bytes: 1024, ..Shape::default() };
    let calls: Vec<Call> = (0..20).map(|_| Call::new(shape.clone())).collect();
    client::call(Kind::Shape, &server.address, &calls, 1).unwrap();
    // Looked at once a second.
    let is_attached =
        |agent: &mut Agent| agent.stderr().unwrap().contains("further kernel programs attached");
    let wants = agent.hook_set().unwrap() == HookSet::Socket && has_tracepoint("tcp_sendmsg_locked");
    let deadline = std::time::Instant::now() + integration::patience::patience(gate::PATIENCE);
    while wants && !is_attached(&mut agent) && std::time::Instant::now() < deadline {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
    assert_eq!(is_attached(&mut agent), wants);
    let said = agent.stop().unwrap().stderr;
    assert!(!said.contains("stays unreadable"), "{said}");
}

fn has_tracepoint(name: &str) -> bool {
    let types = fs::read(Path::new("/sys/kernel/btf/vmlinux")).unwrap();
    let wanted = format!("btf_trace_{name}\0");
    types.windows(wanted.len()).any(|window| window == wanted.as_bytes())
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn without_admin_there_are_no_statistics() {
        let place = Sandbox::new();
        let measuring = || Config::default().set("capture", "statistics", true);
        let without = documented(integration::hook::forced());
        if !without.contains(&"sys_admin") {
            let said = place.start_with(measuring(), &without).stop().unwrap().stderr;
            assert!(said.contains("CAP_SYS_ADMIN") && said.contains("no statistics"), "{said}");
        }
        let with = [&without[..], &["sys_admin"]].concat();
        let mut agent = place.start_with(measuring(), &with);
        span_of_a_request(&mut agent);
        assert!(agent.metric_value("obi_bpf_program_runs_total", &[]).unwrap() > 0.0);
        assert_minimum(&agent, KEPT, None);
    }

    #[test]
    fn without_search_services_have_no_name_of_their_own() {
        if integration::hook::forced() == Some(HookSet::Syscall) {
            // This set cannot even find its tracepoints, unless it may mount their file system.
            let ended = Sandbox::new().run(&documented_without("dac_read_search"));
            assert!(ended.code == 1 && ended.stderr.contains("tracefs"), "{}", ended.stderr);
            return;
        }
        let (said, service, span) = degraded("dac_read_search");
        assert!(said.contains("CAP_DAC_READ_SEARCH") && said.contains("no environment"), "{said}");
        assert_eq!(span.service.name, "shape_server", "{service} is in an environment of another user");
    }

    #[test]
    fn without_syslog_only_the_kernels_functions_lack_names() {
        let mut held = with_events(true);
        held.retain(|name| *name != "syslog");
        let (agent, named) = profiled(&held);
        assert!(!named.own.is_empty());
        let is_hidden = setting("kptr_restrict") > 0 || setting("perf_event_paranoid") > 1;
        assert_eq!(named.kernel.is_empty(), is_hidden, "{:?}", named.kernel);
        let said = agent.stop().unwrap().stderr;
        assert!(said.contains("CAP_SYSLOG") && said.contains("no kernel names"), "{said}");
    }

    #[test]
    fn without_checkpoint_restore_deleted_files_are_not_read() {
        let place = Sandbox::new();
        let agent = place.start(&documented_without("checkpoint_restore"));
        assert_minimum(&agent, SYS_PTRACE | DAC_READ_SEARCH, None);
        let said = agent.stop().unwrap().stderr;
        assert!(said.contains("CAP_CHECKPOINT_RESTORE") && said.contains("no deleted files"), "{said}");
    }

    /// An agent that may only load programs: what lies where every user can read it has names.
    #[test]
    fn without_what_reads_of_others_their_readable_files_have_names() {
        let mut held = with_events(true);
        held.retain(|name| !["sys_ptrace", "dac_read_search", "checkpoint_restore"].contains(name));
        let (agent, named) = profiled(&held);
        assert!(!named.own.is_empty());
        assert_held(&agent, 0, None, &[]);
    }
}
