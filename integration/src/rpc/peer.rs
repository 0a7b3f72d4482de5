//! gRPC servers and clients: grpc-go, grpcio (Python), @grpc/grpc-js (Node) and tonic; a client of gRPC-Web.
//!
//! In: calls. Out: what their clients and handlers report. Refuses to know the agent.

use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use tempfile::{NamedTempFile, TempDir};

use super::plan::{Called, Handled, RpcCall, RpcPlan};
use crate::otlp::certificate::Certificates;
use crate::patience::patience;
use crate::process::{Program, READY, run};
use crate::program;
use crate::server::service;
use crate::span::Kind;

/// No client of a test takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Whose library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Library {
    /// grpc-go.
    Go,
    /// grpcio, a C library below Python.
    Python,
    /// @grpc/grpc-js, on Node's `http2`.
    Node,
    /// tonic, on hyper and h2; its server speaks gRPC-Web too.
    Tonic,
}

impl Library {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Go, Self::Python, Self::Node, Self::Tonic];

    /// For service names and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Go => "grpc-go",
            Self::Python => "grpc-python",
            Self::Node => "grpc-node",
            Self::Tonic => "grpc-tonic",
        }
    }

    /// A command that runs its `server` or `client`.
    fn command(self, role: &str) -> anyhow::Result<Command> {
        let mut command = match self {
            Self::Go => {
                let mut command = Command::new(program::multiplex()?);
                command.arg(if role == "server" { "serve-grpc" } else { "call-grpc" });
                command
            }
            Self::Python => {
                let mut command = Command::new("python3");
                command.env("PYTHONPATH", program::python_packages()?);
                command.arg(program::source(&format!("grpc_{role}.py")));
                command
            }
            Self::Node => {
                let mut command = Command::new("node");
                command.env("NODE_PATH", program::node_packages()?.join("node_modules"));
                command.arg(program::source(&format!("grpc_{role}.js")));
                command
            }
            Self::Tonic => {
                let mut command = Command::new(program::binary("rpc_tonic")?);
                command.arg(role);
                command
            }
        };
        command.env("OTEL_SERVICE_NAME", service(&format!("{}-{role}", self.name())));
        Ok(command)
    }
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct RpcServer {
    /// Its unique `service.name`.
    pub service: String,
    /// Its port on IPv4 loopback.
    pub port: u16,
    files: TempDir,
    _program: Program,
}

impl RpcServer {
    /// Starts it; with certificates over TLS.
    ///
    /// # Errors
    /// When it cannot be made or does not get ready.
    pub fn start(library: Library, certificates: Option<&Certificates>) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let mut command = library.command("server")?;
        command.arg(files.path().join("log"));
        if let Some(certificates) = certificates {
            command.arg(certificates.path("server.pem")).arg(certificates.path("server.key"));
        }
        let service = service_of(&command)?;
        let mut program = Program::spawn(library.name(), command)?;
        let port = program.await_line("ready ", READY)?.parse()?;
        Ok(Self { service, port, files, _program: program })
    }

    /// The spans that a call makes here.
    #[must_use]
    pub fn roles(&self) -> Vec<(Kind, String)> {
        vec![(Kind::Server, self.service.clone())]
    }

    /// What its handlers report of these calls, once all of them have: a client knows its status first.
    ///
    /// # Errors
    /// When a handler does not end in time, or the log cannot be read.
    pub fn handled(&self, calls: &[RpcCall]) -> anyhow::Result<Vec<Handled>> {
        let served = |call: &&RpcCall| call.method != super::plan::Method::Missing;
        let wanted: Vec<&str> = calls.iter().filter(served).map(|call| call.id.as_str()).collect();
        let deadline = Instant::now() + patience(READY);
        loop {
            let all = read_log(&self.files.path().join("log"))?;
            let found: Vec<Handled> =
                all.into_iter().filter(|handled| wanted.contains(&handled.id.as_str())).collect();
            if found.len() == wanted.len() {
                return Ok(found);
            }
            if Instant::now() > deadline {
                bail!("{} handled {} of {} calls", self.service, found.len(), wanted.len());
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Whole lines: the last one may be under way.
fn read_log(file: &Path) -> anyhow::Result<Vec<Handled>> {
    let text = std::fs::read_to_string(file).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().map(|line| serde_json::from_str(line).with_context(|| format!("log line {line}"))).collect()
}

fn service_of(command: &Command) -> anyhow::Result<String> {
    let found = command.get_envs().find(|(name, _)| *name == "OTEL_SERVICE_NAME");
    let name = found.and_then(|(_, value)| value).context("every command has a service name")?;
    Ok(name.to_string_lossy().into_owned())
}

/// What a client did.
#[derive(Debug)]
pub struct RpcDone {
    /// Its unique `service.name`.
    pub service: String,
    /// One per call.
    pub called: Vec<Called>,
}

/// Runs a client that makes `calls` to a port of IPv4 loopback over one connection, `concurrency` at a time.
///
/// # Errors
/// When it fails or does not report every call once.
pub fn call(
    library: Library,
    port: u16,
    certificates: Option<&Certificates>,
    (calls, concurrency): (&[RpcCall], usize),
) -> anyhow::Result<RpcDone> {
    let file = NamedTempFile::new()?;
    let certificate = certificates.map_or(String::new(), |made| made.path("ca.pem").display().to_string());
    let plan = RpcPlan {
        target: format!("127.0.0.1:{port}"),
        authority: "127.0.0.1".to_owned(),
        certificate,
        concurrency,
        calls: calls.to_vec(),
    };
    serde_json::to_writer(file.as_file(), &plan)?;
    let mut command = library.command("client")?;
    command.arg(file.path());
    report(library.name(), command, calls)
}

/// Makes `calls` over gRPC-Web and HTTP/1.1, in Base64 or not, by Node's `http`. Of these calls nothing but `Unary` and
/// `Expand` is possible.
///
/// # Errors
/// As [`call`].
pub fn call_web(
    port: u16,
    is_text: bool,
    (calls, concurrency): (&[RpcCall], usize),
) -> anyhow::Result<RpcDone> {
    let file = NamedTempFile::new()?;
    let plan = serde_json::json!({"port": port, "text": is_text, "concurrency": concurrency, "calls": calls});
    serde_json::to_writer(file.as_file(), &plan)?;
    let mut command = Command::new("node");
    command.env("OTEL_SERVICE_NAME", service("grpc-web-client"));
    command.arg(program::source("grpc_web_client.js")).arg(file.path());
    report("grpc-web", command, calls)
}

/// Runs a client and reads its lines.
fn report(name: &str, command: Command, calls: &[RpcCall]) -> anyhow::Result<RpcDone> {
    let service = service_of(&command)?;
    let lines = run(name, command, LIMIT)?;
    let called: Vec<Called> = lines
        .iter()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{name} reported {line}")))
        .collect::<anyhow::Result<_>>()?;
    if called.len() != calls.len() {
        bail!("{name} reported {} of {} calls", called.len(), calls.len());
    }
    Ok(RpcDone { service, called })
}
