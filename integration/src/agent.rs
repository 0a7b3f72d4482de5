//! The real agent, started as users start it.
//!
//! In: a configuration. Out: its spans, its metrics, its end. Refuses to know its insides.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::exposition::Exposition;
use crate::fetch;
use crate::hook::{self, HookSet, View};
use crate::patience::patience;
use crate::process::{Ended, Program, free_port};
use crate::program;
use crate::seat::Seat;
use crate::span::{Page, Span};

/// `Accept` of a scraper that wants exemplars.
pub const OPENMETRICS: &str = "application/openmetrics-text;version=1.0.0";
/// `Accept` of an old scraper.
pub const TEXT: &str = "text/plain;version=0.0.4";

/// How long the agent may take to attach in a test: its bar is 1 s, a busy machine is slower.
const READY: Duration = Duration::from_secs(30);
/// Between two looks at something that can only be asked for.
const LOOK: Duration = Duration::from_millis(20);
const SPANS_PER_PAGE: usize = 10_000;

/// Name of its configuration file.
const FILE: &str = "obi.yaml";

/// A configuration in the making.
#[derive(Debug, Clone)]
pub struct Config {
    value: Value,
    is_alone: bool,
}

impl Default for Config {
    /// The agent's defaults, with room for all spans of a test. No stacks are sampled unless a test asks for it: the
    /// first look at all files of a machine costs an agent that is not optimised more than everything else together.
    fn default() -> Self {
        Self {
            value: json!({
                "web": {"spans": 200_000, "span_bytes": 256 << 20},
                "profile": {"enabled": false},
            }),
            is_alone: false,
        }
    }
}

impl Config {
    /// The agent's own defaults, nothing else.
    #[must_use]
    pub fn plain() -> Self {
        Self { value: json!({}), is_alone: false }
    }

    /// Sets `section.key`.
    #[must_use]
    pub fn set(mut self, section: &str, key: &str, value: impl Into<Value>) -> Self {
        self.value[section][key] = value.into();
        self
    }

    /// No other agent runs at that time: for tests that fill a machine, or measure, or look at all of it.
    #[must_use]
    pub fn alone(mut self) -> Self {
        self.is_alone = true;
        self
    }

    /// The file's text: JSON, which is YAML.
    #[must_use]
    pub fn text(&self) -> String {
        self.value.to_string()
    }
}

/// The configuration, with address and forced hook set.
fn placed(config: Config, address: SocketAddr) -> Config {
    let config = match hook::forced() {
        Some(set) => config.set("capture", "hooks", set.name()),
        None => config,
    };
    // A test may say at which address it listens; the port is chosen here.
    let named = config.value["web"]["listen"].as_str().and_then(|ip| ip.parse().ok());
    config.set("web", "listen", SocketAddr::new(named.unwrap_or(address.ip()), address.port()).to_string())
}

/// A command that runs the agent with nothing of our environment that configures it.
///
/// # Errors
/// When the agent has not been built.
pub fn command() -> anyhow::Result<Command> {
    let mut command = Command::new(program::agent()?);
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("OBI_") || name.to_string_lossy().starts_with("OTEL_") {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// `command`, executed where the file system of tracepoints is mounted: on most machines it is already. On others it is
/// mounted for the agent alone, in a mount namespace of its own.
#[must_use]
pub fn with_tracefs(command: Command) -> Command {
    if hook::forced() != Some(HookSet::Syscall) || Path::new("/sys/kernel/tracing/events").exists() {
        return command;
    }
    let script = "mount -t tracefs none /sys/kernel/tracing && exec \"$@\"";
    let mut wrapped = Command::new("unshare");
    wrapped.args(["--mount", "sh", "-c", script, "sh"]).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    wrapped
}

/// A running agent. Dropping it kills it.
#[derive(Debug)]
pub struct Agent {
    program: Program,
    address: SocketAddr,
    spans: Vec<Span>,
    next: u64,
    begun: Instant,
    ready_at: Instant,
    files: TempDir,
    _seat: Option<Seat>,
}

impl Agent {
    /// Starts the agent on a free port and waits until it is attached; with the hook set that `OBI_HOOKS` forces.
    ///
    /// # Errors
    /// When it ends or does not get ready, with its stderr, or uses another set than the forced one.
    pub fn start(config: Config) -> anyhow::Result<Self> {
        Self::start_in(config, |command| command)
    }

    /// The same with a seat that was taken before, so that what runs until then does so for a known time only.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_seated(config: Config, seat: Seat) -> anyhow::Result<Self> {
        Self::start_with(config, |command| command, Some(seat))
    }

    /// The same, in a command that `wrap` makes: another user, fewer rights. What it returns is executed in the end by
    /// the same process, or the pid is another's.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in(config: Config, wrap: impl FnOnce(Command) -> Command) -> anyhow::Result<Self> {
        let seat = if config.is_alone { Seat::alone() } else { Seat::beside_others() };
        Self::start_with(config, wrap, Some(seat))
    }

    /// Starts another one beside this one, which goes on. Both see the whole machine, so tests of one agent never do
    /// this.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_beside(&self, config: Config) -> anyhow::Result<Self> {
        Self::start_with(config, |command| command, None)
    }

    fn start_with(
        config: Config,
        wrap: impl FnOnce(Command) -> Command,
        seat: Option<Seat>,
    ) -> anyhow::Result<Self> {
        let address = SocketAddr::from(([127, 0, 0, 1], free_port()?));
        let files = tempfile::tempdir()?;
        let file: PathBuf = files.path().join(FILE);
        let speaks_tls = config.value["web"]["cert_file"].is_string();
        let captures = config.value["capture"]["enabled"] != false;
        fs::write(&file, placed(config, address).text())?;
        // The user that the agent runs as may read it.
        fs::set_permissions(files.path(), fs::Permissions::from_mode(0o755))?;
        let mut command = command()?;
        command.arg("run").arg("--config").arg(&file);
        let command = wrap(command);
        let begun = Instant::now();
        let mut agent = Self {
            program: Program::spawn("agent", command)?,
            address,
            spans: Vec::new(),
            next: 0,
            begun,
            ready_at: begun,
            files,
            _seat: seat,
        };
        let is_ready = |program: &Program| match speaks_tls {
            // Nothing here speaks it; the agent says where it is once it listens.
            true => program.stderr().is_ok_and(|said| said.contains("metrics on https://")),
            false => fetch::get(address, "/readyz", "*/*").is_ok_and(|answer| answer.status == 200),
        };
        while !is_ready(&agent.program) {
            if !agent.program.is_running()? || begun.elapsed() > patience(READY) {
                bail!("agent did not get ready within {:?}: {}", begun.elapsed(), agent.program.stderr()?);
            }
            // Where everything is slow, asking takes time from what is asked for.
            thread::sleep(patience(Duration::from_millis(1)));
        }
        agent.ready_at = Instant::now();
        if speaks_tls || !captures {
            return Ok(agent);
        }
        let used = agent.hook_set()?;
        if let Some(forced) = hook::forced().filter(|forced| *forced != used) {
            bail!("agent uses hook set {used}, although {forced} was forced");
        }
        Ok(agent)
    }

    /// Writes another text in the place of its configuration and sends SIGHUP; returns when the agent has counted that,
    /// with what became of it: `applied` or `refused`.
    ///
    /// # Errors
    /// When it does not count it in time.
    pub fn reload(&self, text: &str) -> anyhow::Result<&'static str> {
        let count = |outcome: &str| self.metric_value("obi_config_reloads_total", &[("outcome", outcome)]);
        let before = (count("applied")?, count("refused")?);
        fs::write(self.files.path().join(FILE), text)?;
        self.program.signal(Signal::HUP)?;
        let deadline = Instant::now() + patience(READY);
        while Instant::now() < deadline {
            match (count("applied")? > before.0, count("refused")? > before.1) {
                (true, _) => return Ok("applied"),
                (_, true) => return Ok("refused"),
                _ => thread::sleep(LOOK),
            }
        }
        bail!("the agent did not reload: {}", self.stderr()?)
    }

    /// The text of a configuration for this agent, on its address.
    #[must_use]
    pub fn placed(&self, config: Config) -> String {
        placed(config, self.address).text()
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// All it has logged so far.
    ///
    /// # Errors
    /// What reading reports.
    pub fn stderr(&self) -> anyhow::Result<String> {
        self.program.stderr()
    }

    /// Its process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.program.pid()
    }

    /// Bytes of the kernel maps that it holds open, as the kernel counts them.
    ///
    /// # Errors
    /// When the process has ended.
    pub fn kernel_map_bytes(&self) -> anyhow::Result<u64> {
        let mut maps = BTreeMap::new();
        for entry in std::fs::read_dir(format!("/proc/{}/fdinfo", self.pid()))? {
            // A descriptor may be closed by now.
            let Ok(text) = std::fs::read_to_string(entry?.path()) else { continue };
            let value = |name: &str| -> Option<u64> {
                text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok())
            };
            if let (Some(id), Some(bytes)) = (value("map_id:"), value("memlock:")) {
                maps.insert(id, bytes);
            }
        }
        Ok(maps.values().sum())
    }

    /// The hook set it uses.
    ///
    /// # Errors
    /// When its metrics name none that is known.
    pub fn hook_set(&self) -> anyhow::Result<HookSet> {
        let metrics = self.metrics()?;
        let info = metrics.matching("obi_hook_info", &[]).find(|sample| sample.value == 1.0);
        let name = info.and_then(|sample| sample.labels.get("set")).context("obi_hook_info names no set")?;
        HookSet::by_name(name).with_context(|| format!("obi_hook_info names {name}"))
    }

    /// How its set sees on this kernel.
    ///
    /// # Errors
    /// When its metrics name no known set, or its status cannot be read.
    pub fn view(&self) -> anyhow::Result<View> {
        let status: serde_json::Value = fetch::json(self.address, "/api/v1/status")?;
        let not_seen = status["not_seen"].as_array().context("the status has no `not_seen`")?;
        let says =
            |word: &str| not_seen.iter().any(|spot| spot.as_str().is_some_and(|spot| spot.contains(word)));
        Ok(View {
            set: self.hook_set()?,
            is_preempted: says("preempted"),
            has_short_walks: says("pieces of one system call"),
        })
    }

    /// What it says of TLS: which files are probed, who is not covered.
    ///
    /// # Errors
    /// When its status cannot be read.
    pub fn tls(&self) -> anyhow::Result<Value> {
        let mut status: Value = fetch::json(self.address, "/api/v1/status")?;
        Ok(status["tls"].take())
    }

    /// Waits until it has probed a file of each of these names.
    ///
    /// # Errors
    /// When it takes longer than `limit`; says what is probed.
    pub fn await_probes(&self, names: &[&str], limit: Duration) -> anyhow::Result<()> {
        let deadline = Instant::now() + patience(limit);
        loop {
            let tls = self.tls()?;
            let probed = tls["probed"].as_array().map_or(&[][..], Vec::as_slice);
            let is_probed = |name: &&str| {
                probed.iter().any(|file| file["path"].as_str().is_some_and(|path| path.contains(*name)))
            };
            if names.iter().all(is_probed) {
                return Ok(());
            }
            if Instant::now() > deadline {
                bail!("not all of {names:?} are probed: {tls}");
            }
            thread::sleep(LOOK);
        }
    }

    /// From its start to the first 200 of `/readyz`.
    #[must_use]
    pub fn ready_after(&self) -> Duration {
        self.ready_at - self.begun
    }

    /// When the first 200 of `/readyz` had come, which is asked for every millisecond.
    #[must_use]
    pub fn ready_at(&self) -> Instant {
        self.ready_at
    }

    /// All spans of the machine so far, in order.
    ///
    /// # Errors
    /// When the API fails, or spans were evicted before they could be read.
    pub fn spans(&mut self) -> anyhow::Result<&[Span]> {
        loop {
            let path = format!("/api/v1/spans?after={}&limit={SPANS_PER_PAGE}", self.next);
            let page: Page = fetch::json(self.address, &path)?;
            for span in &page.spans {
                let last = self.spans.last().map_or(span.sequence, |last| last.sequence + 1);
                if span.sequence != last {
                    bail!("spans {last} to {} were evicted before they were read", span.sequence - 1);
                }
                self.spans.push(span.clone());
            }
            self.next = page.next;
            // Not until a page is empty: our own asking makes spans.
            if page.spans.len() < SPANS_PER_PAGE {
                return Ok(&self.spans);
            }
        }
    }

    /// Looks at all spans so far until `is_enough` of them, or for `limit`; returns them either way, because only
    /// a comparison can say what is missing.
    ///
    /// # Errors
    /// As [`Self::spans`].
    pub fn spans_until(
        &mut self,
        limit: Duration,
        mut is_enough: impl FnMut(&[Span]) -> bool,
    ) -> anyhow::Result<&[Span]> {
        let deadline = Instant::now() + patience(limit);
        while !is_enough(self.spans()?) && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        Ok(&self.spans)
    }

    /// Its metrics, as a scraper with exemplars gets them.
    ///
    /// # Errors
    /// When the scrape fails or is malformed.
    pub fn metrics(&self) -> anyhow::Result<Exposition> {
        let answer = self.scrape(OPENMETRICS)?;
        Exposition::parse(&answer.body)
    }

    /// The raw answer of `/metrics`.
    ///
    /// # Errors
    /// When the scrape fails.
    pub fn scrape(&self, accept: &str) -> anyhow::Result<fetch::Answer> {
        let answer = fetch::get(self.address, "/metrics", accept).context("scrape the agent")?;
        if answer.status != 200 {
            bail!("/metrics answered {}: {}", answer.status, answer.body);
        }
        Ok(answer)
    }

    /// Scrapes until `is_enough`, or for `limit`; returns the last scrape either way.
    ///
    /// # Errors
    /// As [`Self::metrics`].
    pub fn metrics_until(
        &self,
        limit: Duration,
        mut is_enough: impl FnMut(&Exposition) -> bool,
    ) -> anyhow::Result<Exposition> {
        let deadline = Instant::now() + patience(limit);
        loop {
            let metrics = self.metrics()?;
            if is_enough(&metrics) || Instant::now() >= deadline {
                return Ok(metrics);
            }
            thread::sleep(LOOK);
        }
    }

    /// Sum of the series `name` that have at least `labels`, now.
    ///
    /// # Errors
    /// As [`Self::metrics`].
    pub fn metric_value(&self, name: &str, labels: &[(&str, &str)]) -> anyhow::Result<f64> {
        Ok(self.metrics()?.sum(name, labels))
    }

    /// What `work` does while the agent stands still (SIGSTOP): it learns of it afterwards, from the kernel.
    ///
    /// # Errors
    /// When it cannot be signalled.
    pub fn stopped<T>(&self, work: impl FnOnce() -> T) -> anyhow::Result<T> {
        self.program.signal(Signal::STOP)?;
        let done = work();
        self.program.signal(Signal::CONT)?;
        Ok(done)
    }

    /// Asks it to end (SIGTERM) and waits for that.
    ///
    /// # Errors
    /// When it does not end within 10 s.
    pub fn stop(mut self) -> anyhow::Result<Ended> {
        self.program.signal(Signal::TERM)?;
        self.program.wait(Duration::from_secs(10))
    }

    /// Kills it without warning (SIGKILL) and waits for its end.
    ///
    /// # Errors
    /// When it does not end within 10 s.
    pub fn kill(mut self) -> anyhow::Result<Ended> {
        self.program.signal(Signal::KILL)?;
        self.program.wait(Duration::from_secs(10))
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        if thread::panicking() {
            let stderr = self.program.stderr().unwrap_or_default();
            crate::seed::note(&format!("agent said:\n{}", stderr.lines().collect::<Vec<_>>().join("\n")));
        }
    }
}
