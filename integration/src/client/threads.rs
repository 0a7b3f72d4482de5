//! Many threads of one process over TLS, which make exchanges of random shapes for a given time.
//!
//! In: how many, how long, a seed. Out: what each exchange was to be and what came of it: here the client chooses,
//! since it is not known before how many it will make. Refuses to know the agent.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use serde::Deserialize;

use super::LIMIT;
use crate::plan::{Address, Truth};
use crate::process::run;
use crate::program::{self, Threads};
use crate::server::service;
use crate::shape::{RequestFraming, Shape};

/// How much.
#[derive(Debug, Clone, Copy)]
pub struct Load {
    /// Threads, each with a connection of its own at a time.
    pub threads: usize,
    /// They begin no exchange later.
    pub lasts: Duration,
    /// Exchanges of each.
    pub most: usize,
    /// Seed of the shapes.
    pub seed: u64,
}

/// What the client process did.
#[derive(Debug)]
pub struct Made {
    /// Its unique `service.name`.
    pub service: String,
    /// Exchanges.
    pub exchanges: Vec<(Shape, Truth)>,
}

#[derive(Debug, Deserialize)]
struct Line {
    method: String,
    size: u64,
    has_body: bool,
    #[serde(flatten)]
    truth: Truth,
}

/// Runs it against a server of [`crate::server::encrypted::threads`].
///
/// # Errors
/// When it cannot be compiled, an exchange fails, or none is made.
pub fn call(address: &Address, load: Load) -> anyhow::Result<Made> {
    call_by(Threads::Shared, address, load)
}

/// The same over this library.
///
/// # Errors
/// As [`call`].
pub fn call_by(library: Threads, address: &Address, load: Load) -> anyhow::Result<Made> {
    let Address::Tcp(server) = address else { bail!("threads call servers on TCP, not at {address:?}") };
    let service = service("client-threads");
    let mut command = Command::new(program::threads(library)?);
    command.arg("call").arg(server.port().to_string()).arg(load.threads.to_string());
    command.arg(load.lasts.as_millis().to_string()).arg(load.most.to_string()).arg(load.seed.to_string());
    command.env("OTEL_SERVICE_NAME", &service);
    let lines = run("client-threads", command, load.lasts + LIMIT)?;
    let exchanges: Vec<(Shape, Truth)> =
        lines.iter().map(|line| exchange(line)).collect::<anyhow::Result<_>>()?;
    if exchanges.is_empty() {
        bail!("client-threads made no exchange within {:?}", load.lasts);
    }
    Ok(Made { service, exchanges })
}

fn exchange(line: &str) -> anyhow::Result<(Shape, Truth)> {
    let Line { method, size, has_body, truth } =
        serde_json::from_str(line).with_context(|| format!("client-threads reported {line}"))?;
    let shape = Shape {
        method,
        status: truth.status.context("an exchange without a status")?,
        response_bytes: size,
        request_framing: if has_body { RequestFraming::Length } else { RequestFraming::None },
        request_bytes: truth.request_bytes,
        ..Shape::default()
    };
    Ok((shape, truth))
}
