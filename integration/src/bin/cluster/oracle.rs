//! A Collector that is asked about the same containers: its processor of Kubernetes attributes adds what it knows.
//!
//! In: its program, a configuration for the API server. Out: attributes of a container. Refuses to know the agent.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::process::{Program, free_port};
use serde_json::{Value, json};
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(60);

/// What is compared: all that both can know, but `container.image.tags`, which is a list.
pub(crate) const ATTRIBUTES: [&str; 16] = [
    "k8s.namespace.name",
    "k8s.pod.name",
    "k8s.pod.uid",
    "k8s.node.name",
    "k8s.deployment.name",
    "k8s.replicaset.name",
    "k8s.statefulset.name",
    "k8s.daemonset.name",
    "k8s.job.name",
    "k8s.cronjob.name",
    "k8s.container.name",
    "container.image.name",
    "service.name",
    "service.namespace",
    "service.version",
    "service.instance.id",
];

/// A running Collector.
#[derive(Debug)]
pub(crate) struct Oracle {
    address: SocketAddr,
    program: Program,
    files: TempDir,
}

impl Oracle {
    /// Starts one that watches the pods of `node` with all rights.
    pub(crate) fn start(binary: &Path, kubeconfig: &Path, node: &str) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let source = |name: &str| json!({"sources": [{"from": "resource_attribute", "name": name}]});
        let extract = json!({
            "metadata": ATTRIBUTES, "otel_annotations": true,
        });
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": address.to_string()}}}},
            "processors": {"k8s_attributes": {"auth_type": "kubeConfig", "filter": {"node": node},
                "wait_for_metadata": true, "extract": extract, "pod_association": [source("k8s.pod.uid")]}},
            "exporters": {"file": {"path": files.path().join("traces"), "flush_interval": "50ms"}},
            "service": {"telemetry": {"metrics": {"level": "none"}}, "pipelines": {"traces": {
                "receivers": ["otlp"], "processors": ["k8s_attributes"], "exporters": ["file"]}}},
        });
        let file = files.path().join("collector.yaml");
        fs::write(&file, config.to_string())?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&file).env("KUBECONFIG", kubeconfig);
        let program = Program::spawn("collector", command)?;
        let begun = Instant::now();
        while std::net::TcpStream::connect(address).is_err() {
            if !program.is_running()? || begun.elapsed() > LIMIT {
                bail!("the Collector does not listen on {address}: {}", program.stderr()?);
            }
            thread::sleep(Duration::from_millis(50));
        }
        Ok(Self { address, program, files })
    }

    /// What it adds to a span of this container, of [`ATTRIBUTES`].
    pub(crate) fn ask(&self, uid: &str, container: &str) -> anyhow::Result<BTreeMap<String, String>> {
        let attribute = |key: &str, value: &str| json!({"key": key, "value": {"stringValue": value}});
        let name = integration::seed::unique();
        let span = json!({"traceId": "5b8efff798038103d269b633813fc60c", "spanId": "eee19b7ec3c1b174", "name": name,
            "kind": 2, "startTimeUnixNano": "1544712660000000000", "endTimeUnixNano": "1544712661000000000"});
        let resource = [attribute("k8s.pod.uid", uid), attribute("container.id", container)];
        let request = json!({"resourceSpans": [{"resource": {"attributes": resource},
            "scopeSpans": [{"spans": [span]}]}]});
        let url = format!("http://{}/v1/traces", self.address);
        ureq::post(url).header("content-type", "application/json").send(request.to_string())?;
        let begun = Instant::now();
        while begun.elapsed() < LIMIT {
            let text = fs::read_to_string(self.files.path().join("traces")).unwrap_or_default();
            if let Some(line) = text.lines().find(|line| line.contains(&name) && line.ends_with('}')) {
                return attributes(&serde_json::from_str(line)?);
            }
            thread::sleep(Duration::from_millis(50));
        }
        bail!("the Collector passed no span on: {}", self.program.stderr()?)
    }
}

fn attributes(request: &Value) -> anyhow::Result<BTreeMap<String, String>> {
    let all = request["resourceSpans"][0]["resource"]["attributes"].as_array();
    let all = all.context("a resource has attributes")?.iter();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let pairs = all.filter_map(|pair| Some((text(&pair["key"])?, text(&pair["value"]["stringValue"])?)));
    Ok(pairs.filter(|(key, _)| ATTRIBUTES.contains(&&**key)).collect())
}
