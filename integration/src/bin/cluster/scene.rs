//! The scenes: rights, churn, outage, crowd.
//!
//! In: a plan. Out: rows of the report.

use std::collections::{BTreeMap, HashSet};
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use integration::agent::{Agent, Config};
use integration::process::run;
use integration::span::{Kind, Span};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Plan;
use crate::api::Api;
use crate::calls::{Call, Caller, by_path, judge};
use crate::control::ControlPlane;
use crate::node::{CONTAINERS, HEARING, NODE, Node, REQUESTS, address};
use crate::oracle::{ATTRIBUTES, Oracle};
use crate::pod::{NAMESPACE, Owner, Pod, Runtime, SEEN, UNSEEN};
use crate::report::Report;

const AGENT: &str = "obi";
const LIMIT: Duration = Duration::from_secs(60);
/// What the agent may take for pods of other nodes, MB.
const CROWD: f64 = 20.0;

/// All that runs.
#[derive(Debug)]
pub(crate) struct Scene {
    plan: Plan,
    agent: Agent,
    node: Node,
    plane: ControlPlane,
    files: TempDir,
}

impl Scene {
    /// Starts the control plane, installs the chart, starts the agent with the token of the chart's account.
    pub(crate) fn begin(plan: Plan) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let runtime = Runtime::make(files.path())?;
        let plane = ControlPlane::start(&plan.api_server)?;
        let admin = plane.admin()?;
        for (name, level) in [(NAMESPACE, "baseline"), (AGENT, "privileged")] {
            let labels = json!({"pod-security.kubernetes.io/enforce": level});
            admin.post("/api/v1/namespaces", &json!({"metadata": {"name": name, "labels": labels}}))?;
        }
        let folder = files.path();
        helm(
            &plan,
            &plane,
            &[
                "install",
                AGENT,
                &plan.chart.display().to_string(),
                "--set",
                "config.kubernetes.peers=services,image.repository=registry.example/obi",
            ],
        )?;
        std::fs::write(folder.join("token"), token(&admin)?)?;
        std::fs::copy(plane.authority(), folder.join("ca.crt"))?;
        let left_out =
            [UNSEEN, "kube-apiserver", "etcd"].map(|name| json!({"executable": format!("*/{name}")}));
        let config = Config::default()
            .set("kubernetes", "metadata", "api")
            .set("kubernetes", "peers", "services")
            .set("kubernetes", "node", NODE)
            .set("kubernetes", "api_server", format!("https://{}", plane.address))
            .set("kubernetes", "credentials", folder.display().to_string())
            .set("kubernetes", "log_folder", "/nonexistent")
            .set("kubernetes", "spread", "0s")
            // What the control plane is asked would fill the agent's memory with spans.
            .set("capture", "tls", false)
            .set("discover", "exclude", json!(left_out));
        let agent = Agent::start(config)?;
        let live =
            |metrics: &integration::exposition::Exposition| metrics.sum("obi_kubernetes_live", &[]) > 0.5;
        agent.metrics_until(LIMIT, live)?;
        Ok(Self { plan, agent, node: Node { admin, runtime }, plane, files })
    }

    /// What the chart's account may read, and what not.
    pub(crate) fn rights(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let account = self.node.admin.of(&std::fs::read_to_string(self.files.path().join("token"))?);
        let check = |report: &mut Report, path: &str, expected: u16| -> anyhow::Result<()> {
            report.equal(&format!("GET {path}"), &expected, &account.status(path)?);
            Ok(())
        };
        for path in ["/api/v1/pods", "/api/v1/services", "/apis/discovery.k8s.io/v1/endpointslices"] {
            check(report, path, 200)?;
        }
        for path in [
            "/api/v1/secrets",
            "/api/v1/nodes",
            "/api/v1/configmaps",
            "/api/v1/namespaces",
            "/api/v1/serviceaccounts",
            "/api/v1/nodes/node-a/proxy/pods",
            "/api/v1/namespaces/shop/pods/any/log",
        ] {
            check(report, path, 403)?;
        }
        let refused = Pod::make(&account, "intruder", NODE).is_err();
        report.equal("a pod made by the account is refused", &true, &refused);
        Ok(())
    }

    /// Pods at the API server and containers by runc come and go.
    pub(crate) fn churn(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let (n_foreign, calls) = self.node.churn(self.plan.seconds)?;
        let n_containers = self.plan.seconds * CONTAINERS;
        report.at_least(
            "pods made and removed at the API server, a second",
            8.0,
            f64::from(n_foreign) / f64::from(self.plan.seconds),
        );
        report.equal("containers of pods", &n_containers, &u32::try_from(calls.len() / REQUESTS)?);
        self.judge(report, "churn", &calls)
    }

    /// Pods of every kind of owner have the attributes that a Collector gives them.
    pub(crate) fn oracle(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let oracle = Oracle::start(&self.plan.collector, &self.plane.kubeconfig()?, NODE)?;
        let named = json!({
            "resource.opentelemetry.io/service.name": "till",
            "resource.opentelemetry.io/service.version": "7.1",
            "resource.opentelemetry.io/deployment.environment.name": "production",
        });
        for (n, (kind, name, annotations)) in [
            ("ReplicaSet", "cart", json!({})),
            ("ReplicaSet", "cart-2024", named),
            ("StatefulSet", "db", json!({})),
            ("DaemonSet", "logger", json!({})),
            ("Job", "report", json!({})),
            ("", "bare", json!({})),
        ]
        .into_iter()
        .enumerate()
        {
            let pod = Pod::make_of(&self.node.admin, Owner { kind, name }, &annotations, NODE)?;
            let container = self.node.runtime.start(&pod, address(u32::try_from(n)?), SEEN)?;
            pod.report(&self.node.admin, &container.id, container.address)?;
            thread::sleep(HEARING);
            let mut caller = Caller::new(&pod, &container, true);
            caller.ask(1, true)?;
            let ours = self.attributes(&caller.calls)?;
            let theirs = oracle.ask(&pod.uid, &container.id)?;
            report.equal(
                &format!("attributes of a pod of {kind} {name}, beside a Collector"),
                &theirs,
                &ours,
            );
            pod.remove(&self.node.admin)?;
        }
        Ok(())
    }

    /// What the one call's server span says of what the oracle may say.
    fn attributes(&mut self, calls: &[Call]) -> anyhow::Result<BTreeMap<String, String>> {
        self.await_spans(calls)?;
        let spans = by_path(self.agent.spans()?);
        let span = calls.first().and_then(|call| *spans.get(&(Kind::Server, call.path()))?);
        let span = span.context("a request has one server span")?;
        let service = [("service.name", &span.service.name), ("service.namespace", &span.service.namespace)];
        let service = service.map(|(name, value)| (name.to_owned(), value.clone()));
        let resource = span.resource.iter().filter(|(name, _)| ATTRIBUTES.contains(&name.as_str()));
        let resource = resource.filter_map(|(name, value)| Some((name.clone(), value.as_str()?.to_owned())));
        Ok(resource.chain(service).collect())
    }

    /// The API server is killed: names stay, containers that start have those of their pods. Afterwards new pods have
    /// names again.
    pub(crate) fn outage(&mut self, report: &mut Report) -> anyhow::Result<()> {
        let pods: Vec<Pod> = (0..5)
            .map(|n| Pod::make(&self.node.admin, &format!("shop-{n}"), NODE))
            .collect::<Result<_, _>>()?;
        thread::sleep(HEARING);
        self.plane.kill_server();
        let containers = pods.iter().zip(0..).map(|(pod, n)| self.node.runtime.start(pod, address(n), SEEN));
        let containers: Vec<_> = containers.collect::<Result<_, _>>()?;
        let mut callers: Vec<_> =
            pods.iter().zip(&containers).map(|(pod, container)| Caller::new(pod, container, true)).collect();
        let end = Instant::now() + Duration::from_secs(self.plan.outage);
        while Instant::now() < end {
            callers.iter_mut().try_for_each(|caller| caller.ask(1, false))?;
            thread::sleep(Duration::from_secs(1));
        }
        let calls: Vec<Call> = callers.into_iter().flat_map(|caller| caller.calls).collect();
        self.judge(report, &format!("{} s without an API server", self.plan.outage), &calls)?;
        self.plane.start_server()?;
        let begun = Instant::now();
        let pod = Pod::make(&self.node.admin, "after", NODE)?;
        let container = self.node.runtime.start(&pod, address(20), SEEN)?;
        let mut caller = Caller::new(&pod, &container, true);
        while begun.elapsed() < 2 * LIMIT {
            caller.ask(1, false)?;
            let last = self.attributes(&caller.calls[caller.calls.len() - 1..])?;
            if last.get("k8s.pod.name") == Some(&pod.name) {
                break;
            }
            thread::sleep(Duration::from_millis(200));
        }
        // Waits double up to a minute; each is a random part of that.
        report.at_most("s until a new pod has its name", 60.0, begun.elapsed().as_secs_f64());
        for pod in pods.iter().chain([&pod]) {
            pod.remove(&self.node.admin)?;
        }
        Ok(())
    }

    /// Ten thousand pods of other nodes, each behind a service.
    pub(crate) fn crowd(&mut self, report: &mut Report) -> anyhow::Result<()> {
        const PER_SERVICE: u32 = 100;
        const KINDS: [&str; 2] = ["service", "endpointslice"];
        let before = self.resident()?;
        let n_services = self.plan.pods / PER_SERVICE;
        thread::scope(|scope| -> anyhow::Result<()> {
            let threads: Vec<_> = (0..4)
                .map(|part| {
                    let admin = &self.node.admin;
                    scope.spawn(move || {
                        (0..n_services)
                            .filter(|n| n % 4 == part)
                            .try_for_each(|n| service(admin, n, PER_SERVICE))
                    })
                })
                .collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().ok().context("a thread does not panic")?)
        })?;
        // The API server has a service and a slice for itself.
        let count = |kind: &str| self.agent.metric_value("obi_kubernetes_peers", &[("kind", kind)]);
        let all = f64::from(n_services) + 1.0;
        // A watch that has been refused while the server was away may wait for a minute.
        self.agent.metrics_until(2 * LIMIT, |metrics| {
            KINDS.iter().all(|kind| metrics.sum("obi_kubernetes_peers", &[("kind", kind)]) >= all)
        })?;
        for kind in KINDS {
            report.equal(&format!("objects of kind {kind}"), &all, &count(kind)?);
        }
        // Nothing says that it has come to rest.
        thread::sleep(Duration::from_secs(5));
        let after = self.resident()?;
        report.at_most(
            &format!("MB more, resident, for {} pods of other nodes", self.plan.pods),
            CROWD,
            after - before,
        );
        Ok(())
    }

    /// What is left after the chart is uninstalled.
    pub(crate) fn end(self, report: &mut Report) -> anyhow::Result<()> {
        let metrics = self.agent.metrics()?;
        let lost = metrics.sum("obi_lost_total", &[("service_namespace", NAMESPACE)]);
        report.equal("exchanges of pods that were lost", &0.0, &lost);
        let unused = metrics.sum("obi_kubernetes_unused_events_total", &[]);
        report.equal("messages that could not be used", &0.0, &unused);
        helm(&self.plan, &self.plane, &["uninstall", AGENT])?;
        for path in [
            "/apis/rbac.authorization.k8s.io/v1/clusterroles/obi",
            "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/obi",
            "/apis/apps/v1/namespaces/obi/daemonsets/obi",
            "/api/v1/namespaces/obi/serviceaccounts/obi",
            "/api/v1/namespaces/obi/configmaps/obi",
        ] {
            report.equal(&format!("after helm uninstall: GET {path}"), &404, &self.node.admin.status(path)?);
        }
        let ended = self.agent.stop()?;
        report.equal("exit status of the agent", &0, &ended.code);
        Ok(())
    }

    fn await_spans(&mut self, calls: &[Call]) -> anyhow::Result<()> {
        let wanted: usize = calls.iter().map(Call::n_spans).sum();
        let ours: HashSet<&str> = calls.iter().map(Call::path).collect();
        let count = |spans: &[Span]| by_path(spans).keys().filter(|(_, path)| ours.contains(path)).count();
        self.agent.spans_until(LIMIT, |spans| count(spans) >= wanted).map(drop)
    }

    fn judge(&mut self, report: &mut Report, when: &str, calls: &[Call]) -> anyhow::Result<()> {
        self.await_spans(calls)?;
        let verdict = judge(calls, self.agent.spans()?);
        let n_seen = calls.iter().filter(|call| call.n_spans() == 2).count();
        let row = |report: &mut Report, what: &str, expected: usize, found: usize| {
            report.equal(&format!("{when}: {what}"), &expected, &found);
        };
        row(
            report,
            "server spans with the names of their pod, from the first request on",
            n_seen,
            verdict.named,
        );
        row(report, "server spans without a name", 0, verdict.unnamed);
        row(report, "server spans with the name of another pod", 0, verdict.misnamed);
        row(report, "requests without a span", 0, verdict.missing);
        row(report, "calls that say which service answers", n_seen, verdict.peers);
        row(report, "calls that name another service", 0, verdict.wrong_peers);
        row(report, "calls that do not, although it is known", 0, verdict.late_peers);
        if n_seen < calls.len() {
            let least = (calls.len() - n_seen) / 2;
            report.at_least(
                &format!("{when}: calls that say it by the address alone"),
                least,
                verdict.peers_by_address,
            );
        }
        Ok(())
    }

    /// Memory of the agent, MB.
    fn resident(&self) -> anyhow::Result<f64> {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.agent.pid()))?;
        let value = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"));
        Ok(value.context("a process has a resident set")?.parse::<f64>()? * 1024.0 / 1e6)
    }
}

/// A service whose endpoints are pods of other nodes.
fn service(api: &Api, n: u32, n_pods: u32) -> anyhow::Result<()> {
    let name = format!("elsewhere-{n}");
    let metadata = json!({"name": name, "labels": {"kubernetes.io/service-name": name}});
    let ports = json!([{"port": 8080}]);
    let space = format!("/namespaces/{NAMESPACE}");
    api.post(&format!("/api/v1{space}/services"), &json!({"metadata": metadata, "spec": {"ports": ports}}))?;
    let mut endpoints = Vec::new();
    for nth in 0..n_pods {
        let address = Ipv4Addr::from(u32::from(Ipv4Addr::new(10, 200, 0, 1)) + n * n_pods + nth);
        let container = json!({"name": "app", "image": "registry.example/app:1"});
        let spec = json!({"nodeName": format!("node-{}", nth % 50), "containers": [container]});
        let pod =
            json!({"metadata": {"name": format!("{name}-{nth}"), "labels": {"app": name}}, "spec": spec});
        api.post(&format!("/api/v1{space}/pods"), &pod)?;
        endpoints.push(json!({"addresses": [address.to_string()], "conditions": {"ready": true}}));
    }
    let slice: Value =
        json!({"metadata": metadata, "addressType": "IPv4", "endpoints": endpoints, "ports": ports});
    api.post(&format!("/apis/discovery.k8s.io/v1{space}/endpointslices"), &slice).map(drop)
}

/// A token of the account that the chart has made, as a pod of it is given.
fn token(admin: &Api) -> anyhow::Result<String> {
    let request = json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let answer = admin.post("/api/v1/namespaces/obi/serviceaccounts/obi/token", &request)?;
    Ok(answer["status"]["token"].as_str().context("an answer to a TokenRequest has a token")?.to_owned())
}

fn helm(plan: &Plan, plane: &ControlPlane, arguments: &[&str]) -> anyhow::Result<()> {
    let mut command = Command::new::<&Path>(&plan.helm);
    command.args(arguments).args(["--namespace", AGENT]).arg("--kubeconfig").arg(plane.kubeconfig()?);
    run("helm", command, 2 * LIMIT).map(drop)
}
