//! Running programs that never outlive their owner.
//!
//! In: a command. Out: its lines, its exit, its pids. Refuses to know what the program is.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{BufRead as _, BufReader, ErrorKind, Read as _, Seek as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, kill_process, kill_process_group, pidfd_open, waitid,
};

use crate::patience::patience;

/// How long a workload program may take to get ready: a JVM on a busy machine needs some seconds. As all limits, it
/// passes through [`patience`] where it is waited for.
pub const READY: Duration = Duration::from_secs(60);

/// Lines of stderr that a failed test shows of each of its programs.
const SHOWN: usize = 20;

/// A running program in a process group of its own. Dropping it kills the whole group.
///
/// It is reaped then and not before, since until then nothing else can have its pid, which is that of the group.
#[derive(Debug)]
pub struct Program {
    name: String,
    child: Child,
    lines: Receiver<String>,
    stderr: File,
}

/// How a program ended.
#[derive(Debug)]
pub struct Ended {
    /// Exit code; 128 + signal when killed by one.
    pub code: i32,
    /// Lines of stdout that were not read before.
    pub lines: Vec<String>,
    /// All of stderr.
    pub stderr: String,
}

impl Program {
    /// Starts `command` with closed stdin.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn spawn(name: &str, mut command: Command) -> anyhow::Result<Self> {
        let stderr = tempfile::tempfile().context("make a file for stderr")?;
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(stderr.try_clone()?).process_group(0);
        let mut child = start(&mut command).with_context(|| format!("start {name}: {command:?}"))?;
        let stdout = child.stdout.take().context("stdout was piped")?;
        let (sender, lines) = channel();
        // Ends with the program: then the pipe does.
        thread::spawn(move || {
            BufReader::new(stdout).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
        });
        Ok(Self { name: name.to_owned(), child, lines, stderr })
    }

    /// Its process id, which is also that of its group.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Its process id and those of all that descend from it, now.
    #[must_use]
    pub fn family(&self) -> Vec<u32> {
        let mut family = VecDeque::from([self.pid()]);
        let mut found = Vec::new();
        while let Some(pid) = family.pop_front() {
            found.push(pid);
            let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
            for task in tasks {
                let children = std::fs::read_to_string(task.path().join("children")).unwrap_or_default();
                family.extend(children.split_whitespace().filter_map(|pid| pid.parse::<u32>().ok()));
            }
        }
        found
    }

    /// Waits for a line of stdout that starts with `prefix`; returns the rest of it.
    ///
    /// # Errors
    /// When the program ends or `timeout` passes first, with its stderr.
    pub fn await_line(&mut self, prefix: &str, timeout: Duration) -> anyhow::Result<String> {
        let timeout = patience(timeout);
        let deadline = Instant::now() + timeout;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
                Ok(line) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        return Ok(rest.trim().to_owned());
                    }
                }
                Err(RecvTimeoutError::Timeout) => {
                    bail!("{} printed no {prefix:?} within {timeout:?}: {}", self.name, self.stderr()?)
                }
                Err(RecvTimeoutError::Disconnected) => {
                    bail!("{} ended before it printed {prefix:?}: {}", self.name, self.stderr()?)
                }
            }
        }
    }

    /// Sends a signal to the program, not to its children.
    ///
    /// # Errors
    /// When it is gone already.
    pub fn signal(&self, signal: Signal) -> anyhow::Result<()> {
        kill_process(self.raw_pid(), signal).with_context(|| format!("signal {}", self.name))
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// What `wait` reports.
    pub fn is_running(&self) -> anyhow::Result<bool> {
        Ok(self.code(WaitIdOptions::NOHANG)?.is_none())
    }

    /// How it ended, as in [`Ended`]; nothing as long as it runs, where `options` say that this is not waited for.
    fn code(&self, options: WaitIdOptions) -> anyhow::Result<Option<i32>> {
        let options = options | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.raw_pid()), options)
            .with_context(|| format!("ask how {} ended", self.name))?;
        Ok(status.and_then(|status| status.exit_status().or(status.terminating_signal().map(|it| 128 + it))))
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// When it takes longer than `timeout`.
    pub fn wait(&mut self, timeout: Duration) -> anyhow::Result<Ended> {
        let timeout = patience(timeout);
        if self.is_running()? {
            let pidfd = pidfd_open(self.raw_pid(), PidfdFlags::empty())?;
            let limit = Timespec {
                tv_sec: i64::try_from(timeout.as_secs())?,
                tv_nsec: timeout.subsec_nanos().into(),
            };
            if poll(&mut [PollFd::new(&pidfd, PollFlags::IN)], Some(&limit))? == 0 {
                bail!("{} did not end within {timeout:?}: {}", self.name, self.stderr()?);
            }
        }
        let code = self.code(WaitIdOptions::empty())?.context("an end that was waited for has a code")?;
        Ok(Ended { code, lines: self.lines.iter().collect(), stderr: self.stderr()? })
    }

    /// All it wrote to stderr so far.
    ///
    /// # Errors
    /// What reading the file reports.
    pub fn stderr(&self) -> anyhow::Result<String> {
        // The file description is shared with the program: its position must not be moved, so read by position.
        let mut copy =
            File::open(format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&self.stderr)))?;
        copy.rewind()?;
        let mut bytes = Vec::new();
        copy.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// What a failed test should know of it.
    fn tell(&self) {
        let state = match self.code(WaitIdOptions::NOHANG) {
            Ok(None) => "still running".to_owned(),
            Ok(Some(code)) => format!("ended with {code}"),
            Err(error) => format!("{error:#}"),
        };
        let stderr = self.stderr().unwrap_or_else(|error| format!("{error:#}"));
        let lines: Vec<&str> = stderr.lines().collect();
        let shown = &lines[lines.len().saturating_sub(SHOWN)..];
        eprintln!("{} (pid {}) {state}: {}", self.name, self.pid(), shown.join("\n"));
    }

    fn raw_pid(&self) -> Pid {
        i32::try_from(self.pid()).ok().and_then(Pid::from_raw).expect("a child has a positive pid")
    }
}

/// A copied executable is busy while a child that another test has just forked still holds the copy open: until it
/// executes something itself.
fn start(command: &mut Command) -> std::io::Result<Child> {
    let deadline = Instant::now() + READY;
    loop {
        match command.spawn() {
            Err(error) if error.kind() == ErrorKind::ExecutableFileBusy && Instant::now() < deadline => {
                thread::sleep(Duration::from_millis(5));
            }
            result => return result,
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if thread::panicking() {
            self.tell();
        }
        // A group that is gone already is what we want.
        let _ = kill_process_group(self.raw_pid(), Signal::KILL);
        let _ = self.child.wait();
    }
}

/// Runs `command` to its end and returns its stdout lines.
///
/// # Errors
/// When it cannot start, takes longer than `timeout` or fails, with its stderr.
pub fn run(name: &str, command: Command, timeout: Duration) -> anyhow::Result<Vec<String>> {
    let ended = Program::spawn(name, command)?.wait(timeout)?;
    if ended.code != 0 {
        bail!("{name} failed with {}: {}{}", ended.code, ended.lines.join("\n"), ended.stderr);
    }
    Ok(ended.lines)
}

/// A port on IPv4 loopback that was free just now. Not from the range that the kernel gives to connections: one of
/// them would take it before its listener does.
///
/// # Errors
/// When a thousand tries find none.
pub fn free_port() -> anyhow::Result<u16> {
    (0..1_000)
        .map(|_| fastrand::u16(10_000..32_000))
        .find(|port| std::net::TcpListener::bind(("127.0.0.1", *port)).is_ok())
        .context("found no free port from 10000 to 32000")
}
