//! A program with known stacks while it runs.
//!
//! It spins from its start, but counts only from [`Running::count`] on: by then the sampler has had time to look at
//! its files. In: a built program. Out: what it says of itself. Refuses to know samples.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::Signal;

use super::{Built, Tree};
use crate::process::{Program, READY};

/// A program spins for some seconds of CPU time, beside others.
const SPINS: Duration = Duration::from_secs(300);

/// It runs. Dropping it kills it.
#[derive(Debug)]
pub struct Running {
    program: Program,
}

/// What it did while it counted.
#[derive(Debug, Clone)]
pub struct Truth {
    /// When it began and ended to count, Unix time, ns.
    pub window: std::ops::Range<u64>,
    /// CPU time of each path, ns.
    pub paths: Vec<u64>,
    /// CPU time of the process, ns.
    pub total: u64,
}

impl Running {
    /// Starts it; when it has counted, it executes `next` in its place.
    ///
    /// # Errors
    /// When it does not start.
    pub fn start(built: &Built, next: Option<&Path>) -> anyhow::Result<Self> {
        let mut command = Command::new(&built.path);
        command.args(next);
        let mut program = Program::spawn(&built.tree.service, command)?;
        program.await_line("ready", READY)?;
        Ok(Self { program })
    }

    /// Signals it to count, and waits until it has.
    ///
    /// # Errors
    /// When it ends before, or says what cannot be understood.
    pub fn count(&mut self, tree: &Tree) -> anyhow::Result<Truth> {
        self.program.signal(Signal::USR1)?;
        let begin = self.number("begin ")?;
        let paths = tree.paths.iter().map(|_| self.number("path ")).collect::<Result<_, _>>()?;
        let total = self.number("total ")?;
        Ok(Truth { window: begin..self.number("end ")?, paths, total })
    }

    /// Waits for the program that was executed in its place.
    ///
    /// # Errors
    /// When it does not start.
    pub fn await_next(&mut self) -> anyhow::Result<()> {
        self.program.await_line("ready", READY)?;
        Ok(())
    }

    fn number(&mut self, prefix: &str) -> anyhow::Result<u64> {
        let text = self.program.await_line(prefix, SPINS)?;
        text.parse().with_context(|| format!("a number behind {prefix:?}, not {text:?}"))
    }
}
