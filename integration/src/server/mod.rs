//! One builder per workload server.
//!
//! In: nothing, or a plan. Out: a running [`Server`] that honours the protocol of [`crate::shape`], as far as its
//! [`Features`] say. Refuses to know clients and the agent.
//!
//! - [`nginx`]: static files, and a reverse proxy in front of it.
//! - [`language`]: Python, Node, Go and Java.
//! - [`encrypted`]: nginx, Python and Node over TLS.
//! - [`shape`]: the raw server that can do everything; [`io_uring`]: the one that bypasses system calls.

pub mod encrypted;
pub mod io_uring;
pub mod language;
pub mod lighttpd;
pub mod nginx;
pub mod shape;

use std::path::PathBuf;
use std::process::Command;

use tempfile::TempDir;

use crate::otlp::certificate::Certificates;
use crate::plan::Address;
use crate::process::{Program, READY};
use crate::seed::unique;
use crate::shape::{Framing, RequestFraming};
use crate::span::Kind;

/// What of a shape a server honours.
#[derive(Debug, Clone, Copy)]
pub struct Features {
    /// Statuses it can be asked for.
    pub statuses: &'static [u16],
    /// Response body sizes it can be asked for; empty means any.
    pub sizes: &'static [u64],
    /// Response framings.
    pub framings: &'static [Framing],
    /// Methods.
    pub methods: &'static [&'static str],
    /// Request framings.
    pub request_framings: &'static [RequestFraming],
    /// Request bodies with any status, not only with 200.
    pub has_body_always: bool,
    /// Several requests may be under way on one connection.
    pub has_pipelining: bool,
    /// Response body sizes that it can be asked for while several requests are under way; empty means as above.
    pub pipelined_sizes: &'static [u64],
    /// It pauses as asked and reports its handling time.
    pub has_clock: bool,
}

/// Methods that every server and client knows.
pub const METHODS: &[&str] = &["GET", "GET", "GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];
/// All request framings.
pub const REQUEST_FRAMINGS: &[RequestFraming] =
    &[RequestFraming::None, RequestFraming::Length, RequestFraming::Chunked];
/// Framings that keep a connection.
pub const KEPT: &[Framing] = &[Framing::Length, Framing::Chunked];

impl Features {
    /// A server that answers what it is asked for.
    #[must_use]
    pub fn full() -> Self {
        Self {
            statuses: &[200, 200, 200, 200, 201, 204, 301, 304, 400, 404, 429, 500, 503],
            sizes: &[],
            framings: &[Framing::Length, Framing::Length, Framing::Chunked, Framing::Close],
            methods: METHODS,
            request_framings: REQUEST_FRAMINGS,
            has_body_always: true,
            has_pipelining: true,
            pipelined_sizes: &[],
            has_clock: true,
        }
    }
}

/// A running workload server. Dropping it kills it.
#[derive(Debug)]
pub struct Server {
    /// For reports.
    pub name: String,
    /// Its unique `service.name`.
    pub service: String,
    /// Where it listens.
    pub address: Address,
    /// What it honours.
    pub features: Features,
    /// Further spans that each request makes behind this server.
    pub behind: Vec<(Kind, String)>,
    program: Program,
    files: TempDir,
}

impl Server {
    /// Starts `command` as service `name-…` and waits for its `ready PORT`.
    ///
    /// # Errors
    /// When it does not get ready, with its stderr.
    pub fn start(name: &str, command: Command, features: Features) -> anyhow::Result<Self> {
        Self::start_as(name, &service(name), command, features)
    }

    /// The same with a given service name.
    ///
    /// # Errors
    /// When it does not get ready, with its stderr.
    pub fn start_as(name: &str, service: &str, command: Command, features: Features) -> anyhow::Result<Self> {
        let mut command = command;
        command.env("OTEL_SERVICE_NAME", service);
        let mut program = Program::spawn(name, command)?;
        let port = program.await_line("ready ", READY)?.parse()?;
        Ok(Self {
            name: name.to_owned(),
            service: service.to_owned(),
            address: Address::loopback(port),
            features,
            behind: Vec::new(),
            program,
            files: tempfile::tempdir()?,
        })
    }

    /// As [`Self::start`], over TLS.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_encrypted(
        name: &str,
        mut command: Command,
        certificates: &Certificates,
        features: Features,
    ) -> anyhow::Result<Self> {
        command.env("TLS_CERTIFICATE", certificates.path("server.pem"));
        command.env("TLS_KEY", certificates.path("server.key"));
        Self::start(name, command, features)
    }

    /// The spans that one request to this server makes, those of its client left out.
    #[must_use]
    pub fn roles(&self) -> Vec<(Kind, String)> {
        let own = (Kind::Server, self.service.clone());
        std::iter::once(own).chain(self.behind.iter().cloned()).collect()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Its process.
    #[must_use]
    pub fn program(&mut self) -> &mut Program {
        &mut self.program
    }

    /// A path in a folder that is removed with the server.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.files.path().join(name)
    }
}

/// A `service.name` that no other server has.
#[must_use]
pub fn service(name: &str) -> String {
    format!("{name}-{}", unique())
}
