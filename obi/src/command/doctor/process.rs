//! `obi doctor --pid`: what of one process is seen, what is not, and why.
//!
//! In: a pid, the configuration, what doctor has found out of this machine. Out: [`About`], for people or as JSON.
//! Reads what `obi run` would read and attaches nothing. It knows what an agent would say that starts now, not what a
//! running one has seen.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use serde::Serialize;
use serde_json::Map;

use super::go_runtime::{self, GoRuntime};
use super::interpreter::{self, Interpreter};
use super::report::Report;
use crate::capture::discover::{ExecArguments, Facts, Naming, Particulars, Processes, Verdict};
use crate::capture::hook_set::HookSet;
use crate::capture::tls::point::Returns;
use crate::capture::tls::program::Program;
use crate::capture::tls::survey::{Survey, survey_of};
use crate::config::Config;
use crate::kubernetes::Pods;
use crate::kubernetes::source::Plan;
use crate::kubernetes::view::View;
use crate::span::service::{Host, Services};
use crate::span::{Instance, Service};

/// How long the sources may take to name the pods of this node.
const PODS: Duration = Duration::from_secs(5);

/// One process.
#[derive(Debug, Serialize)]
pub(super) struct About {
    pid: u32,
    executable: String,
    control_group: String,
    /// Whether it is watched, and why not.
    watched: bool,
    verdict: &'static str,
    /// The set that captures; `None`: nothing is.
    hook_set: Option<HookSet>,
    service_name: String,
    service_namespace: String,
    /// What gives the name.
    name_from: &'static str,
    /// UID of its pod; `None` outside of pods.
    pod_uid: Option<String>,
    /// The source of pods' names; `None` on machines without Kubernetes.
    kubernetes: Option<View>,
    /// Attributes of its spans' resource.
    resource: Map<String, serde_json::Value>,
    /// Its files with TLS, by whether they are read.
    tls: Survey,
    /// Why no TLS is read at all.
    tls_error: Option<String>,
    /// Why no stacks of it are sampled; `None`: they are.
    profile_error: Option<String>,
    /// Whose functions are in profiles; `None`: it runs none that is known.
    interpreter: Option<Interpreter>,
    /// What Go's runtime knows of it; `None`: it is no program made by Go.
    go_runtime: Option<GoRuntime>,
    /// How its calls find the requests that cause them.
    parents: &'static str,
}

/// Names as the agent does, and notes why.
#[derive(Debug)]
struct Explained {
    services: Services,
    origin: &'static str,
    uid: Option<String>,
}

impl Naming for Explained {
    type Service = Arc<Service>;
    type Instance = Arc<Instance>;

    fn service(&mut self, facts: &Facts, parent: Option<&Arc<Service>>) -> Arc<Service> {
        self.origin = self.services.origin(facts);
        self.uid = facts.container.pod.map(|uid| uid.to_string());
        self.services.service(facts, parent)
    }

    fn instance(&mut self, tgid: u32, start: Option<u64>, particulars: &Particulars) -> Arc<Instance> {
        self.services.instance(tgid, start, particulars)
    }

    fn name(service: &Arc<Service>) -> &str {
        Services::name(service)
    }
}

/// Looks at a process as an agent would that starts now.
///
/// # Errors
/// When there is no such process, or `/proc` cannot be read.
pub(super) fn examine(pid: u32, config: &Config, report: &Report) -> anyhow::Result<About> {
    let pods = pods(config)?;
    let mut services = Services::new(Host::read());
    if let Some(pods) = &pods {
        services = services.with_pods(pods.clone(), &config.kubernetes);
    }
    let naming = Explained { services, origin: "", uid: None };
    let mut processes =
        Processes::new(config.discover.clone(), std::process::id(), naming, Default::default());
    // Parents first: a process that says nothing of itself has its parent's name.
    processes.scan().context("failed to list `/proc`")?;
    processes.lookup(pid).with_context(|| format!("--pid: no process `{pid}` that can be read"))?;
    processes.exec(pid, b"", &ExecArguments::default());
    let instance = processes.instance(pid).unwrap_or_default();
    let process = processes.lookup(pid).with_context(|| format!("--pid: process `{pid}` has just ended"))?;
    let returns = if report.tls.return_probes { Returns::Allowed } else { Returns::Forbidden };
    let tls = survey_of([pid], returns);
    let shared = process.service.attributes.iter();
    let own = instance.attributes.iter();
    let resource: Map<_, _> =
        shared.chain(own).map(|(name, value)| (name.to_owned(), value.to_string().into())).collect();
    let text = |name: &str| resource.get(name).and_then(serde_json::Value::as_str).unwrap_or_default();
    Ok(About {
        pid,
        executable: process.executable.to_string(),
        control_group: process.cgroup.to_string(),
        watched: process.verdict.is_watched(),
        verdict: verdict(process.verdict),
        hook_set: report.hook_set,
        service_name: process.service.name.clone(),
        service_namespace: process.service.namespace.clone(),
        name_from: processes.naming().origin,
        pod_uid: processes.naming().uid.clone(),
        kubernetes: pods.map(|pods| pods.view()),
        parents: parents(
            &tls,
            report.tls.error.is_none() && report.object == Some("modern"),
            text("telemetry.sdk.language"),
        ),
        tls,
        tls_error: report.tls.error.clone(),
        profile_error: report.profiles.error.clone(),
        interpreter: interpreter::examine(pid),
        go_runtime: go_runtime::examine(pid),
        resource,
    })
}

/// The pods of this node, as far as they are named in time.
fn pods(config: &Config) -> anyhow::Result<Option<Pods>> {
    let at_once = crate::config::Kubernetes { spread: Duration::ZERO, ..config.kubernetes.clone() };
    let Some(plan) = Plan::new(&at_once) else { return Ok(None) };
    let pods = Pods::default();
    plan.look_at_names(&pods);
    let patience = plan.patience();
    if !patience.is_zero() {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        runtime.block_on(async {
            let live = async {
                while !pods.is_live() {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::select! {
                () = plan.run(&pods) => {}
                () = live => {}
                () = tokio::time::sleep(PODS) => {}
            }
        });
    }
    Ok(Some(pods))
}

fn verdict(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Watch => "watched",
        Verdict::Ourselves => "the agent itself is never watched",
        Verdict::Excluded => "a rule of discover.exclude matches",
        Verdict::NotIncluded => "no rule of discover.include matches",
    }
}

/// What `docs/traces.md` says of parents within a process: by the programs that would be in its files; only newer
/// kernels have those.
fn parents(tls: &Survey, may_probe: bool, language: &str) -> &'static str {
    let has = |program| may_probe && tls.probed.iter().any(|used| used.file.programs.contains(&program));
    if has(Program::GoCreate) {
        return "calls of a request's goroutine, and of those that it starts, are its children";
    }
    if has(Program::NodeScope) {
        return "calls of a request's callbacks are its children, those of its promises where nothing else could go on";
    }
    if has(Program::NginxSend) {
        return "what nginx asks for a request is its child";
    }
    if has(Program::PythonCopy) {
        return "calls of a request's thread are its children, and of its asyncio tasks with those that they make";
    }
    match language {
        "go" => {
            "goroutines are not followed in this program: calls are roots, unless traceparent is passed on"
        }
        "nodejs" => {
            "callbacks are not followed in this program: calls are roots, unless traceparent is passed on"
        }
        _ => "calls of a request's thread are its children; event loops and pools need traceparent",
    }
}

impl About {
    /// Whether exchanges of it are captured.
    pub(super) fn is_seen(&self) -> bool {
        self.watched && self.hook_set.is_some()
    }

    pub(super) fn json(&self) -> serde_json::Result<String> {
        Ok(serde_json::to_string_pretty(self)? + "\n")
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            let _ = writeln!(text, "{name:>10}  {value}");
        };
        line("process", &format!("{} {}", self.pid, self.executable));
        line("watched", self.verdict);
        let set = self.hook_set.map_or("none: see `obi doctor`", HookSet::name);
        line("hook set", set);
        let (name, namespace) = (&self.service_name, &self.service_namespace);
        let namespace = if namespace.is_empty() { String::new() } else { format!(" in {namespace}") };
        line("service", &format!("{name}{namespace}, by: {}", self.name_from));
        line("pod", &self.pod());
        let read = self.tls.probed.iter().map(|used| &used.file).filter(|file| file.reads_tls());
        let mut tls: Vec<String> = read.map(|file| format!("read at {}", file.path)).collect();
        tls.extend(self.tls.not_probed.iter().map(|not| format!("not read: {}, {}", not.path, not.reason)));
        match &self.tls_error {
            Some(error) => line("TLS", &format!("not read: {error}")),
            None if tls.is_empty() => line("TLS", "no library of TLS that is known"),
            None => tls.iter().for_each(|file| line("TLS", file)),
        }
        let profiles = self.profile_error.as_ref().map(|error| format!("none: {error}"));
        line("profiles", profiles.as_deref().unwrap_or("CPU time"));
        if let Some(interpreter) = &self.interpreter {
            line("functions", &interpreter.to_string());
        }
        for (name, value) in self.go_runtime.iter().flat_map(GoRuntime::lines) {
            line(name, &value);
        }
        line("parents", self.parents);
        for (name, value) in &self.resource {
            line("resource", &format!("{name}={}", value.as_str().unwrap_or_default()));
        }
        text
    }

    fn pod(&self) -> String {
        let Some(uid) = &self.pod_uid else { return "none: its control group names no pod".to_owned() };
        let known = self.resource.get("k8s.pod.name").and_then(serde_json::Value::as_str);
        let source = self.kubernetes.as_ref().map_or("none", |view| view.source);
        match known {
            Some(name) => format!("{name} ({uid}), by: {source}"),
            None => {
                let error = self.kubernetes.as_ref().map_or("", |view| &view.error);
                format!("{uid}, which no source has reported ({source}) {error}").trim_end().to_owned()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::tls::point::Cost;
    use crate::capture::tls::survey::Used;
    use crate::capture::tls::view::ProbedFile;
    use crate::command::doctor;

    /// A process with one file that has these programs.
    fn surveyed(programs: &[Program]) -> Survey {
        let programs = programs.iter().copied().collect();
        let file = ProbedFile { path: "/app".to_owned(), inode: 1, programs, cost: Cost::Emulated };
        Survey { probed: vec![Used { file, processes: 1 }], not_probed: Vec::new() }
    }

    #[test]
    fn parents_are_found_by_what_is_probed() {
        let check = |programs: &[Program], may_probe, language, expected: &str| {
            let said = parents(&surveyed(programs), may_probe, language);
            assert!(said.contains(expected), "{programs:?} {may_probe} {language}: {said}");
        };
        let go = [Program::GoCreate, Program::GoRequest, Program::GoCall];
        check(&go, true, "go", "request's goroutine");
        check(&go, false, "go", "goroutines are not followed");
        check(&[Program::TlsNowSend], true, "go", "goroutines are not followed");
        check(&[Program::NodeScope, Program::TlsReadEnter], true, "nodejs", "promises");
        check(&[], true, "nodejs", "callbacks are not followed");
        check(&[Program::NginxSend], true, "", "nginx");
        check(&[Program::PythonFree, Program::PythonCopy], true, "python", "asyncio");
        check(&[Program::TlsReadEnter], true, "", "request's thread");
    }

    #[test]
    fn only_programs_that_see_bytes_read_tls() {
        let check = |programs: &[Program], expected: bool| {
            assert_eq!(surveyed(programs).probed[0].file.reads_tls(), expected, "{programs:?}");
        };
        check(&[Program::TlsReadEnter, Program::NodeScope], true);
        check(&[Program::TlsNowSend], true);
        check(&[Program::GoCreate, Program::GoRequest, Program::GoCall], false);
        check(&[Program::PythonCopy, Program::NginxSend], false);
    }

    #[test]
    fn a_process_of_ours_is_reported_of() {
        let mut child = std::process::Command::new("/bin/sleep")
            .arg("60")
            .env_clear()
            .env("OTEL_SERVICE_NAME", "sleeper")
            .spawn()
            .unwrap();
        let config = Config::default();
        let report = doctor::examine(&config);
        let about = examine(child.id(), &config, &report);
        let excluded = serde_json::from_str(r#"{"discover": {"exclude": [{"service": "sleep*"}]}}"#).unwrap();
        let not_watched = examine(child.id(), &excluded, &report);
        child.kill().unwrap();
        child.wait().unwrap();
        let about = about.unwrap();
        assert_eq!((&*about.service_name, about.name_from), ("sleeper", "OTEL_SERVICE_NAME"));
        assert!(about.watched && about.text().contains("sleeper, by: OTEL_SERVICE_NAME"), "{}", about.text());
        let json: serde_json::Value = serde_json::from_str(&about.json().unwrap()).unwrap();
        assert_eq!(json["resource"]["process.pid"], about.pid.to_string());
        let not_watched = not_watched.unwrap();
        assert!(!not_watched.is_seen() && not_watched.text().contains("discover.exclude"));
        let gone = examine(child.id(), &config, &report).unwrap_err().to_string();
        assert!(gone.contains(&format!("no process `{}`", child.id())), "{gone}");
    }
}
