//! The raw server `shape_server`.
//!
//! In: a [`ServerPlan`]. Out: a running server, and what it really did. Refuses to know clients.

use std::path::PathBuf;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};

use super::{Features, Server, service};
use crate::patience::patience;
use crate::plan::{Address, ServerPlan, Truth};
use crate::process::{Program, READY};
use crate::program;
use crate::wire::{ReadMode, WriteMode};

/// A raw server and its log.
#[derive(Debug)]
pub struct ShapeServer {
    /// The server.
    pub server: Server,
    log: PathBuf,
}

/// A plan that uses every way to read and write.
#[must_use]
pub fn every_way(seed: u64) -> ServerPlan {
    ServerPlan {
        seed,
        batch: true,
        reads: ReadMode::ALL.to_vec(),
        writes: WriteMode::ALL.to_vec(),
        ..ServerPlan::default()
    }
}

/// The command that runs `shape_server` by `plan`.
///
/// # Errors
/// When it has not been built.
pub fn command(plan: &ServerPlan) -> anyhow::Result<Command> {
    let mut command = Command::new(program::binary("shape_server")?);
    command.arg(serde_json::to_string(plan)?);
    Ok(command)
}

impl ShapeServer {
    /// Starts it as service `name-…`; the log of `plan` is set here.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn start(name: &str, plan: ServerPlan) -> anyhow::Result<Self> {
        Self::start_as(name, &service(name), plan)
    }

    /// The same with a given service name.
    ///
    /// # Errors
    /// When it does not get ready.
    pub fn start_as(name: &str, service: &str, plan: ServerPlan) -> anyhow::Result<Self> {
        let files = tempfile::tempdir()?;
        let log = files.path().join("log");
        let plan = ServerPlan { log: Some(log.clone()), ..plan };
        let mut command = command(&plan)?;
        command.env("OTEL_SERVICE_NAME", service);
        let mut program = Program::spawn(name, command)?;
        let port = program.await_line("ready ", READY)?.parse()?;
        let mut address = plan.address;
        if let Address::Tcp(address) | Address::Multipath(address) = &mut address {
            address.set_port(port);
        }
        let server = Server {
            name: name.to_owned(),
            service: service.to_owned(),
            address,
            features: Features::full(),
            behind: Vec::new(),
            program,
            files,
        };
        Ok(Self { server, log })
    }

    /// What it did so far, by its own record, in the order the exchanges ended.
    ///
    /// # Errors
    /// When the log is unreadable.
    pub fn truths(&self) -> anyhow::Result<Vec<Truth>> {
        let text = match std::fs::read_to_string(&self.log) {
            // Nothing served yet.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => String::new(),
            result => result?,
        };
        text.lines()
            .map(|line| serde_json::from_str(line).with_context(|| format!("log line {line}")))
            .collect()
    }

    /// The same, once `count` exchanges are in the record: a client knows its answer before the server notes it.
    ///
    /// # Errors
    /// When the log is unreadable or stays shorter.
    pub fn truths_of(&self, count: usize) -> anyhow::Result<Vec<Truth>> {
        let deadline = Instant::now() + patience(READY);
        loop {
            let truths = self.truths()?;
            if truths.len() >= count {
                return Ok(truths);
            }
            if Instant::now() > deadline {
                bail!("{} noted {} of {count} exchanges", self.server.name, truths.len());
            }
            thread::sleep(Duration::from_millis(2));
        }
    }
}
