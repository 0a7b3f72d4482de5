//! One builder per workload client.
//!
//! In: calls. Out: what the client says of each. Every client is a process of its own, so that its spans are
//! attributed to it. Refuses to know the agent.

mod curl;
pub mod threads;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use tempfile::NamedTempFile;

use crate::plan::{Address, Call, Plan, SimpleCall, SimplePlan, Truth};
use crate::process::run;
use crate::program::{self, Build};
use crate::server::service;
use crate::shape::{Ending, Shape};

/// No client of a test takes longer.
const LIMIT: Duration = Duration::from_secs(120);

/// Which client program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Our own on raw sockets, one request at a time.
    Shape,
    /// curl, all URLs in one invocation.
    Curl,
    /// Python's `http.client`.
    Python,
    /// Node's `http`.
    Node,
    /// Go's `net/http`.
    Go,
    /// golang.org/x/net/http2 over one connection, by prior knowledge; so are the following.
    Http2Go,
    /// Node's `http2`.
    Http2Node,
    /// curl, by prior knowledge.
    Http2Curl,
    /// curl, by `Upgrade`.
    UpgradeCurl,
}

impl Kind {
    /// All of HTTP/1.
    pub const ALL: [Self; 5] = [Self::Shape, Self::Curl, Self::Python, Self::Node, Self::Go];

    /// Those that need no upgrade to HTTP/2.
    pub const HTTP2: [Self; 3] = [Self::Http2Go, Self::Http2Node, Self::Http2Curl];

    /// Its name in service names and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Shape => "client-shape",
            Self::Curl => "client-curl",
            Self::Python => "client-python",
            Self::Node => "client-node",
            Self::Go => "client-go",
            Self::Http2Go => "client-http2-go",
            Self::Http2Node => "client-http2-node",
            Self::Http2Curl => "client-http2-curl",
            Self::UpgradeCurl => "client-upgrade-curl",
        }
    }

    /// Whether its library can make this exchange, and makes it exactly once.
    #[must_use]
    pub fn can(self, shape: &Shape) -> bool {
        self == Self::Shape
            || shape.ending == Ending::Whole && !shape.old && !shape.absolute && shape.filler == 0
    }
}

/// What one client process did.
#[derive(Debug)]
pub struct Done {
    /// Its unique `service.name`.
    pub service: String,
    /// One per exchange.
    pub truths: Vec<Truth>,
}

/// Runs a client of `kind` that makes `calls` to `address` over `concurrency` connections.
///
/// # Errors
/// When it fails or does not report every call exactly once.
pub fn call(kind: Kind, address: &Address, calls: &[Call], concurrency: usize) -> anyhow::Result<Done> {
    call_over(kind, address, false, calls, concurrency)
}

/// The same over TLS, without a look at the certificate; [`Kind::Shape`] cannot.
///
/// # Errors
/// As [`call`].
pub fn call_encrypted(
    kind: Kind,
    address: &Address,
    calls: &[Call],
    concurrency: usize,
) -> anyhow::Result<Done> {
    call_over(kind, address, true, calls, concurrency)
}

/// Python's asyncio over TLS, through memory BIOs, `depth` requests at a time on each of `concurrency` connections.
/// With `gate`, each connection makes `GATE.waiting` after its first answers and goes on when the file exists.
///
/// # Errors
/// As [`call`].
pub fn asyncio_encrypted(
    address: &Address,
    calls: &[Call],
    (concurrency, depth): (usize, usize),
    gate: Option<&Path>,
) -> anyhow::Result<Done> {
    let mut command = Command::new("python3");
    command.arg(program::source("asyncio_client.py")).args(gate);
    let plan = SimplePlan { depth, ..simple_plan(address, true, calls, concurrency)? };
    report_plan("client-asyncio", command, &plan)
}

/// Go's `net/http` over TLS, built in this way, with variables of the environment; see `client.go`.
///
/// # Errors
/// As [`call`].
pub fn go_encrypted(
    build: Build,
    address: &Address,
    calls: &[Call],
    concurrency: usize,
    environment: &[(&str, &str)],
) -> anyhow::Result<Done> {
    let mut command = Command::new(program::go_built("client", build)?);
    command.envs(environment.iter().copied());
    let name = format!("{}-{build:?}", Kind::Go.name()).to_lowercase();
    report_plan(&name, command, &simple_plan(address, true, calls, concurrency)?)
}

/// A client over rustls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Rustls {
    /// reqwest, HTTP/1.1.
    One,
    /// reqwest, HTTP/2.
    Two,
    /// ureq: threads that wait.
    Ureq,
    /// rustls alone: each head in several records, each call over a connection of its own.
    Pieces,
}

/// One of them, with variables of the environment; see `rustls_peer.rs`.
///
/// # Errors
/// As [`call`].
pub fn rustls(
    client: Rustls,
    address: &Address,
    calls: &[Call],
    concurrency: usize,
    environment: &[(&str, &str)],
) -> anyhow::Result<Done> {
    let mut command = Command::new(program::rustls_peer()?);
    let how = match client {
        Rustls::One => "http1",
        Rustls::Two => "http2",
        Rustls::Ureq => "ureq",
        Rustls::Pieces => "pieces",
    };
    command.arg("call").arg(how).envs(environment.iter().copied());
    report_plan(&format!("client-{how}"), command, &simple_plan(address, true, calls, concurrency)?)
}

/// Version of HTTP that [`boringssl`] is to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Version {
    /// HTTP/1.1.
    One,
    /// HTTP/2.
    Two,
}

/// A Python extension with curl and BoringSSL compiled in, over `concurrency` connections.
///
/// # Errors
/// As [`call`].
pub fn boringssl(
    version: Version,
    address: &Address,
    calls: &[Call],
    concurrency: usize,
) -> anyhow::Result<Done> {
    let mut command = boringssl_command()?;
    command.arg(match version {
        Version::One => "v1",
        Version::Two => "v2",
    });
    report_plan("client-boringssl", command, &simple_plan(address, true, calls, concurrency)?)
}

/// That program, which without arguments says `ready` and waits.
///
/// # Errors
/// When its packages cannot be had.
pub fn boringssl_command() -> anyhow::Result<Command> {
    let mut command = Command::new("python3");
    command.arg(program::source("boringssl_client.py")).env("PYTHONPATH", program::python_packages()?);
    Ok(command)
}

fn call_over(
    kind: Kind,
    address: &Address,
    tls: bool,
    calls: &[Call],
    concurrency: usize,
) -> anyhow::Result<Done> {
    let mut command = match kind {
        Kind::Shape if tls => bail!("{} speaks no TLS", kind.name()),
        Kind::Shape => {
            let size = calls.len().div_ceil(concurrency).max(1);
            let connections = calls
                .chunks(size)
                .map(|part| crate::plan::ConnectionPlan::new(address, part.to_vec()))
                .collect();
            return follow(&Plan { seed: 0, concurrency, rate: 0, connections });
        }
        Kind::Curl | Kind::Http2Curl | Kind::UpgradeCurl => return curl::call(kind, address, tls, calls),
        Kind::Python => Command::new("python3"),
        Kind::Node | Kind::Http2Node => Command::new("node"),
        Kind::Http2Go => Command::new(program::multiplex()?),
        Kind::Go => Command::new(program::go("client")?),
    };
    match kind {
        Kind::Python => drop(command.arg(program::source("client.py"))),
        Kind::Node => drop(command.arg(program::source("client.js"))),
        Kind::Http2Node => drop(command.arg(program::source("http2_client.js"))),
        Kind::Http2Go => drop(command.arg("call-http2")),
        _ => {}
    }
    report_plan(kind.name(), command, &simple_plan(address, tls, calls, concurrency)?)
}

fn simple_plan(
    address: &Address,
    tls: bool,
    calls: &[Call],
    concurrency: usize,
) -> anyhow::Result<SimplePlan> {
    let Address::Tcp(server) = address else { bail!("no client of another language can reach {address:?}") };
    Ok(SimplePlan {
        host: server.ip().to_string(),
        port: server.port(),
        tls,
        concurrency,
        depth: 1,
        calls: calls.iter().map(SimpleCall::from).collect(),
    })
}

fn report_plan(name: &str, mut command: Command, plan: &SimplePlan) -> anyhow::Result<Done> {
    let file = NamedTempFile::new()?;
    serde_json::to_writer(file.as_file(), plan)?;
    command.arg(file.path());
    report(name, command, plan.calls.len())
}

/// Runs `shape_client` by `plan`.
///
/// # Errors
/// When it fails or does not report every call exactly once.
pub fn follow(plan: &Plan) -> anyhow::Result<Done> {
    follow_in(plan, |command| command)
}

/// The same, in a command that `wrap` makes: another namespace, fewer rights.
///
/// # Errors
/// As [`follow`].
pub fn follow_in(plan: &Plan, wrap: impl Fn(Command) -> Command) -> anyhow::Result<Done> {
    let file = NamedTempFile::new()?;
    serde_json::to_writer(file.as_file(), plan)?;
    let mut command = Command::new(program::binary("shape_client")?);
    command.arg(file.path());
    let command = wrap(command);
    let count = plan.connections.iter().map(|connection| connection.calls.len()).sum();
    report(Kind::Shape.name(), command, count)
}

/// Runs `command` as a service of its own and reads its report of `count` calls.
fn report(name: &str, mut command: Command, count: usize) -> anyhow::Result<Done> {
    let service = service(name);
    command.env("OTEL_SERVICE_NAME", &service);
    let lines = run(name, command, LIMIT)?;
    let truths: Vec<Truth> = lines
        .iter()
        .map(|line| serde_json::from_str(line).with_context(|| format!("{name} reported {line}")))
        .collect::<anyhow::Result<_>>()?;
    if truths.len() != count {
        bail!("{name} reported {} of {count} calls", truths.len());
    }
    Ok(Done { service, truths })
}
