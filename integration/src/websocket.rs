//! Workload WebSockets, and what became of them against what the agent says.
//!
//! In: sockets to be opened. Out: what both ends exchanged, and what is wrong about the agent's spans. Refuses to know
//! frames.

use std::collections::BTreeMap;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::{Deserialize, Serialize};
use tempfile::NamedTempFile;

use crate::otlp::certificate::Certificates;
use crate::process::{Program, READY, run};
use crate::program;
use crate::seed::request_id;
use crate::server::service;
use crate::span::{Kind, Span};

const LIMIT: Duration = Duration::from_secs(120);

/// One WebSocket.
#[derive(Debug, Clone, Serialize)]
pub struct SocketCall {
    /// In the path.
    pub id: String,
    /// Sizes of the messages that the client sends; one more says `done`.
    pub requests: Vec<u32>,
    /// Messages that the server sends then.
    pub responses: u32,
    /// `client` or `server`.
    pub closes: &'static str,
    /// Code of the closing frame.
    pub code: u16,
    /// How long the client waits before it closes.
    pub lasts_ms: u32,
}

impl SocketCall {
    /// A socket with a fresh id.
    #[must_use]
    pub fn new(requests: Vec<u32>, responses: u32, closes: &'static str, code: u16) -> Self {
        Self { id: request_id(), requests, responses, closes, code, lasts_ms: 0 }
    }
}

/// What the client saw: messages and bytes by sender.
#[derive(Debug, Clone, Deserialize)]
pub struct SocketTruth {
    /// Id.
    pub id: String,
    client: (u64, u64),
    server: (u64, u64),
    code: u16,
}

/// A running server. Dropping it kills it.
#[derive(Debug)]
pub struct SocketServer {
    /// Its unique `service.name`.
    pub service: String,
    port: u16,
    _program: Program,
}

/// With certificates over TLS.
fn command(role: &str, certificates: Option<&Certificates>) -> anyhow::Result<(Command, String)> {
    let service = service(&format!("websocket-{role}"));
    let mut command = Command::new("python3");
    command.env("PYTHONPATH", program::python_packages()?).env("OTEL_SERVICE_NAME", &service);
    if let Some(certificates) = certificates {
        command.env("TLS_CERTIFICATE", certificates.path("server.pem"));
        command.env("TLS_KEY", certificates.path("server.key"));
        command.env("TLS_AUTHORITY", certificates.path("ca.pem"));
    }
    command.arg(program::source("websocket.py")).arg(role);
    Ok((command, service))
}

impl SocketServer {
    /// Starts it; with certificates over TLS.
    ///
    /// # Errors
    /// When its packages cannot be had or it does not get ready.
    pub fn start(certificates: Option<&Certificates>) -> anyhow::Result<Self> {
        let (command, service) = command("serve", certificates)?;
        let mut program = Program::spawn("websocket server", command)?;
        let port = program.await_line("ready ", READY)?.parse()?;
        Ok(Self { service, port, _program: program })
    }

    /// Opens all of these at once, as the server was started; the client's service and what it saw.
    ///
    /// # Errors
    /// When it fails, or does not report every one as its plan says.
    pub fn call(
        &self,
        calls: &[SocketCall],
        certificates: Option<&Certificates>,
    ) -> anyhow::Result<(String, Vec<SocketTruth>)> {
        let file = NamedTempFile::new()?;
        let plan = serde_json::json!({"host": "127.0.0.1", "port": self.port, "calls": calls});
        serde_json::to_writer(file.as_file(), &plan)?;
        let (mut command, service) = command("call", certificates)?;
        command.arg(file.path());
        let lines = run("websocket client", command, LIMIT)?;
        let truths: Vec<SocketTruth> = lines
            .iter()
            .map(|line| serde_json::from_str(line).with_context(|| format!("the client reported {line}")))
            .collect::<anyhow::Result<_>>()?;
        let by_id: BTreeMap<&str, &SocketTruth> =
            truths.iter().map(|truth| (truth.id.as_str(), truth)).collect();
        for call in calls {
            let truth = by_id.get(call.id.as_str()).with_context(|| format!("{call:?} is not reported"))?;
            let bytes = call.requests.iter().map(|size| u64::from(*size)).sum::<u64>() + 4;
            let sent = (call.requests.len() as u64 + 1, bytes);
            if (truth.client, truth.server.0, truth.code) != (sent, call.responses.into(), call.code) {
                bail!("{call:?} became {truth:?}");
            }
        }
        Ok((service, truths))
    }
}

/// The spans of one id at one end: those of its upgrade, and those of the socket.
fn ends<'a>(spans: &'a [Span], id: &str, (kind, service): (Kind, &str)) -> (Vec<&'a Span>, Vec<&'a Span>) {
    let is_here =
        |span: &&Span| span.request_id() == Some(id) && span.kind == kind && span.service.name == service;
    spans.iter().filter(is_here).partition(|span| !span.name.starts_with("WEBSOCKET"))
}

/// Whether every socket has a span at both ends.
#[must_use]
pub fn is_complete(calls: &[SocketCall], roles: [(Kind, &str); 2], spans: &[Span]) -> bool {
    calls.iter().all(|call| roles.iter().all(|role| !ends(spans, &call.id, *role).1.is_empty()))
}

/// What is not as it was, by line.
#[must_use]
pub fn wrong(
    calls: &[SocketCall],
    truths: &[SocketTruth],
    roles: [(Kind, &str); 2],
    spans: &[Span],
) -> Vec<String> {
    let mut wrong = Vec::new();
    for call in calls {
        let truth = truths.iter().find(|truth| truth.id == call.id).expect("every call is reported");
        for role in roles {
            let found = ends(spans, &call.id, role);
            let ([upgrade], [socket]) = (&found.0[..], &found.1[..]) else {
                wrong.push(format!(
                    "{role:?} {call:?}: {} upgrades, {} sockets",
                    found.0.len(),
                    found.1.len()
                ));
                continue;
            };
            wrong.extend(
                differences(call, truth, upgrade, socket).map(|line| format!("{role:?} {call:?}: {line}")),
            );
        }
    }
    wrong
}

fn differences<'a>(
    call: &'a SocketCall,
    truth: &'a SocketTruth,
    upgrade: &'a Span,
    socket: &'a Span,
) -> impl Iterator<Item = String> + 'a {
    let numbers = [
        ("obi.websocket.client.messages", truth.client.0),
        ("obi.websocket.client.bytes", truth.client.1),
        ("obi.websocket.server.messages", truth.server.0),
        ("obi.websocket.server.bytes", truth.server.1),
        ("obi.websocket.close_code", truth.code.into()),
    ];
    let numbers = numbers.into_iter().filter_map(|(name, expected)| {
        let seen = socket.number(name);
        (seen != Some(expected)).then(|| format!("{name} {seen:?} instead of {expected}"))
    });
    let lasted = f64::from(call.lasts_ms) / 1e3;
    let facts = [
        (upgrade.number("http.response.status_code") == Some(101), "the upgrade's status"),
        (socket.trace_id == upgrade.trace_id, "its trace"),
        (socket.parent_span_id.as_ref() == Some(&upgrade.span_id), "its parent"),
        (socket.text("obi.websocket.closed_by") == Some(call.closes), "who closed"),
        (socket.duration_seconds >= lasted, "its duration"),
        (upgrade.end_unix_nano.get() <= socket.end_unix_nano.get(), "its end"),
    ];
    let facts = facts.into_iter().filter(|(holds, _)| !holds).map(|(_, what)| what.to_owned());
    numbers.chain(facts)
}
