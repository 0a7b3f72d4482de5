//! One child process: this executable again, with the hidden subcommand.
//!
//! In: a [`Launch`]. Out: a running [`Child`] that cannot outlive us: it is stopped when dropped, and the kernel
//! terminates it when we die (see `service::demo_service`).

use std::ffi::OsString;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process};
use tokio::time::sleep;

use super::service::Member;

/// How long a child may take to stop before it is killed; the agent flushes in this time.
const STOP_LIMIT: Duration = Duration::from_secs(10);
const STOP_POLL: Duration = Duration::from_millis(20);

/// What to start and what it needs to know.
pub(super) struct Launch {
    member: Member,
    arguments: Vec<String>,
    variables: Vec<(&'static str, OsString)>,
}

impl Launch {
    pub(super) fn new(member: Member) -> Self {
        Self { member, arguments: Vec::new(), variables: Vec::new() }
    }

    /// Where the service finds one that it calls.
    pub(super) fn peer(self, member: Member, address: SocketAddr) -> Self {
        self.argument("--peer", format!("{member}={address}"))
    }

    /// Requests per second.
    pub(super) fn rate(self, rate: f64) -> Self {
        self.argument("--rate", rate.to_string())
    }

    /// Where the agent listens.
    pub(super) fn listen(self, address: SocketAddr) -> Self {
        self.argument("--listen", address.to_string())
    }

    /// Variables of its environment.
    pub(super) fn variables(mut self, variables: impl IntoIterator<Item = (&'static str, OsString)>) -> Self {
        self.variables.extend(variables);
        self
    }

    fn argument(mut self, name: &str, value: String) -> Self {
        self.arguments.extend([name.to_owned(), value]);
        self
    }
}

/// A running child.
pub(super) struct Child {
    pub(super) member: Member,
    process: std::process::Child,
}

impl Child {
    pub(super) fn start(launch: Launch) -> anyhow::Result<Self> {
        let executable = std::env::current_exe().context("failed to find our own executable")?;
        let mut command = Command::new(&executable);
        command
            .arg("demo-service")
            .arg(launch.member.to_string())
            .args(["--parent", &std::process::id().to_string()])
            .args(launch.arguments)
            .envs(launch.variables)
            .stdin(Stdio::null())
            // A group of its own: Ctrl-C reaches us alone, and we stop the children in order.
            .process_group(0);
        if launch.member.is_service() {
            command.env("OTEL_SERVICE_NAME", launch.member.to_string()).stdout(Stdio::piped());
        }
        let process = command.spawn().with_context(|| {
            format!("failed to start `{} demo-service {}`", executable.display(), launch.member)
        })?;
        Ok(Self { member: launch.member, process })
    }

    /// The address that a service prints once it listens.
    pub(super) fn read_address(&mut self) -> anyhow::Result<SocketAddr> {
        let output = self.process.stdout.take().context("the child has no output to read")?;
        let mut line = String::new();
        BufReader::new(output)
            .read_line(&mut line)
            .with_context(|| format!("failed to read the address of {}", self.member))?;
        line.trim()
            .parse()
            .with_context(|| format!("{} did not say where it listens but `{line}`", self.member))
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// The exit status, once there is one.
    pub(super) fn ended(&mut self) -> anyhow::Result<Option<ExitStatus>> {
        self.process.try_wait().with_context(|| format!("failed to wait for {}", self.member))
    }

    /// SIGTERM, some patience, then SIGKILL.
    pub(super) async fn stop(&mut self) {
        self.terminate();
        let mut waited = Duration::ZERO;
        while waited < STOP_LIMIT && matches!(self.process.try_wait(), Ok(None)) {
            sleep(STOP_POLL).await;
            waited += STOP_POLL;
        }
        self.kill();
    }

    fn terminate(&mut self) {
        // Unreaped, so the number is still its own.
        if let (Ok(None), Ok(pid)) = (self.process.try_wait(), i32::try_from(self.process.id())) {
            let asked = Pid::from_raw(pid).map(|pid| kill_process(pid, Signal::TERM));
            if let Some(Err(error)) = asked {
                eprintln!("failed to stop {} (pid {pid}): {error}", self.member);
            }
        }
    }

    fn kill(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let killed = self.process.kill().and_then(|()| self.process.wait());
            if let Err(error) = killed {
                eprintln!("failed to kill {} (pid {}): {error}", self.member, self.process.id());
            }
        }
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}
