//! The real OpenTelemetry Collector: its OTLP receiver, and its file exporter that writes what arrived.
//!
//! In: the Go module `integration/collector`, built once (minutes, when the Go build cache is empty). Out: the requests
//! that it received, as the JSON of the OTLP specification. Refuses to know who sends.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::certificate::Certificates;
use crate::patience::patience;
use crate::process::{Program, free_port};
use crate::program;

const READY: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// What it does with what it receives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Work {
    /// Spans and metrics are written as they came.
    Keep,
    /// Profiles as well.
    KeepProfiles,
    /// Metrics are made of spans by the connectors `spanmetrics` and `servicegraph`.
    Count,
}

/// A running collector. Dropping it kills it.
#[derive(Debug)]
pub struct Collector {
    /// Where gRPC is spoken; with TLS where certificates were given.
    pub grpc: SocketAddr,
    /// Where HTTP is spoken, without TLS.
    pub http: SocketAddr,
    files: TempDir,
    program: Program,
}

impl Collector {
    /// Starts it; with certificates, gRPC wants the client's.
    ///
    /// # Errors
    /// When it cannot be built or does not get ready.
    pub fn start(certificates: Option<&Certificates>) -> anyhow::Result<Self> {
        Self::launch(certificates, Work::Keep)
    }

    /// Starts it with the feature gate that lets it take profiles.
    ///
    /// # Errors
    /// When it cannot be built or does not get ready.
    pub fn with_profiles() -> anyhow::Result<Self> {
        Self::launch(None, Work::KeepProfiles)
    }

    /// Starts it as a maker of metrics: spans go to its connectors and nowhere else. These have their own defaults but
    /// for the time between two exports and the number of edges that wait for their other end.
    ///
    /// # Errors
    /// When it cannot be built or does not get ready.
    pub fn with_connectors() -> anyhow::Result<Self> {
        Self::launch(None, Work::Count)
    }

    fn launch(certificates: Option<&Certificates>, work: Work) -> anyhow::Result<Self> {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("collector");
        let binary = program::go_module(&folder, "collector")?;
        let files = tempfile::tempdir()?;
        let address = || anyhow::Ok(SocketAddr::from(([127, 0, 0, 1], free_port()?)));
        let (grpc, http) = (address()?, address()?);
        let mut grpc_settings = json!({"endpoint": grpc.to_string()});
        if let Some(certificates) = certificates {
            grpc_settings["tls"] = json!({
                "cert_file": certificates.path("server.pem"),
                "key_file": certificates.path("server.key"),
                "client_ca_file": certificates.path("ca.pem"),
            });
        }
        let pipeline = |exporter: &str| json!({"receivers": ["otlp"], "exporters": [exporter]});
        let output = |name: &str| json!({"path": files.path().join(name), "flush_interval": "50ms"});
        let mut config = json!({
            "receivers": {"otlp": {"protocols": {
                "grpc": grpc_settings,
                "http": {"endpoint": http.to_string()},
            }}},
            "exporters": {"file/traces": output("traces"), "file/metrics": output("metrics")},
            "service": {
                "telemetry": {"metrics": {"level": "none"}},
                "pipelines": {"traces": pipeline("file/traces"), "metrics": pipeline("file/metrics")},
            },
        });
        match work {
            Work::Keep => {}
            Work::KeepProfiles => {
                config["exporters"]["file/profiles"] = output("profiles");
                config["exporters"]["file/profiles"]["format"] = json!("proto");
                config["service"]["pipelines"]["profiles"] = pipeline("file/profiles");
            }
            Work::Count => {
                let connectors = ["spanmetrics", "servicegraph"];
                let settings = json!({"metrics_flush_interval": "5s"});
                config["connectors"] = json!({"spanmetrics": settings, "servicegraph": settings});
                // A thousand would be dropped within 2 ms of a benchmark.
                config["connectors"]["servicegraph"]["store"] = json!({"max_items": 1_000_000});
                config["exporters"] = json!({"file/metrics": output("metrics")});
                config["service"]["pipelines"] = json!({
                    "traces": {"receivers": ["otlp"], "exporters": connectors},
                    "metrics": {"receivers": connectors, "exporters": ["file/metrics"]},
                });
            }
        }
        let file = files.path().join("collector.yaml");
        fs::write(&file, config.to_string())?;
        let mut command = Command::new(binary);
        command.arg("--config").arg(&file);
        if work == Work::KeepProfiles {
            command.arg("--feature-gates=service.profilesSupport");
        }
        let program = Program::spawn("collector", command)?;
        let deadline = Instant::now() + patience(READY);
        for address in [grpc, http] {
            while std::net::TcpStream::connect(address).is_err() {
                if !program.is_running()? || Instant::now() > deadline {
                    bail!("the collector does not listen on {address}: {}", program.stderr()?);
                }
                thread::sleep(LOOK);
            }
        }
        Ok(Self { grpc, http, files, program })
    }

    /// The requests with spans so far.
    ///
    /// # Errors
    /// When the file is not what the exporter writes.
    pub fn traces(&self) -> anyhow::Result<Vec<Value>> {
        self.lines("traces")
    }

    /// The requests with metrics so far.
    ///
    /// # Errors
    /// When the file is not what the exporter writes.
    pub fn metrics(&self) -> anyhow::Result<Vec<Value>> {
        self.lines("metrics")
    }

    /// The requests with profiles so far, as protobuf.
    ///
    /// # Errors
    /// When the file is not what the exporter writes.
    pub fn profiles(&self) -> anyhow::Result<Vec<Vec<u8>>> {
        let bytes = fs::read(self.files.path().join("profiles")).unwrap_or_default();
        let (mut rest, mut messages) = (&bytes[..], Vec::new());
        // Each behind its length; the last one may be under way.
        while let Some((length, after)) = rest.split_first_chunk::<4>() {
            let length = usize::try_from(u32::from_be_bytes(*length))?;
            let Some((message, after)) = after.split_at_checked(length) else { break };
            messages.push(message.to_vec());
            rest = after;
        }
        Ok(messages)
    }

    /// The process.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// What it has logged.
    ///
    /// # Errors
    /// What reading reports.
    pub fn log(&self) -> anyhow::Result<String> {
        self.program.stderr()
    }

    /// Whole lines: the last one may be under way.
    fn lines(&self, name: &str) -> anyhow::Result<Vec<Value>> {
        let text = fs::read_to_string(self.files.path().join(name)).unwrap_or_default();
        let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines =
            whole.lines().map(|line| serde_json::from_str(line).context("parse the collector's file"));
        lines.collect()
    }
}
