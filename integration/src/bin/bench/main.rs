//! Benchmarks of the whole agent on this machine: `bench [--seconds N] [--pairs N] [--only PART]`; one table on stdout.
//!
//! In: a built agent, nginx, wrk, PostgreSQL, Go. Out: what the agent costs, per exchange and side, beside what the
//! machine's noise is. Progress goes to stderr. Judges nothing: the bars are printed beside the figures.

mod crowd;
mod fleet;
mod hooks;
mod instructions;
mod nginx;
mod profile;
mod received;
mod rows;
mod table;
mod tls;

use std::time::Duration;

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::seed::note;

use crate::table::{Row, Table, median};

/// Starts that the time to ready is the median of.
const STARTS: usize = 7;

/// Each adds its rows.
type Part = (&'static str, fn(Effort, &mut Table) -> anyhow::Result<()>);
const PARTS: [Part; 9] = [
    ("ready", ready),
    ("nginx", nginx::measure),
    ("tls", tls::measure),
    ("fleet", fleet::measure),
    ("profile", profile::measure),
    ("rows", rows::measure),
    ("received", received::measure),
    (HOOKS, hooks::measure),
    (INSTRUCTIONS, instructions::measure),
];
/// Only when asked for: they are meant for a kernel that has all sets, and for a machine that counts instructions.
const HOOKS: &str = "hooks";
const INSTRUCTIONS: &str = "instructions";

/// How long and how often.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Of one measurement.
    seconds: u32,
    /// Interleaved pairs for throughput.
    pairs: usize,
}

fn main() -> anyhow::Result<()> {
    let (effort, parts) = arguments(std::env::args().skip(1))?;
    let mut table = Table::default();
    for (_, measure) in parts {
        measure(effort, &mut table)?;
    }
    print!("{table}");
    Ok(())
}

fn arguments(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<(Effort, Vec<Part>)> {
    let (mut effort, mut only) = (Effort { seconds: 5, pairs: 8 }, None);
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        let number = || value.parse().with_context(|| format!("{name} {value} is not a number"));
        match name.as_str() {
            "--seconds" => effort.seconds = number()?,
            "--pairs" => effort.pairs = usize::try_from(number()?)?,
            "--only" if PARTS.iter().any(|(part, _)| *part == value) => only = Some(value),
            "--only" => bail!("unknown part {value}: one of {:?}", PARTS.map(|(part, _)| part)),
            _ => bail!("unknown argument {name}: usage: bench [--seconds N] [--pairs N] [--only PART]"),
        }
    }
    let is_ordinary = |part: &str| part != HOOKS && part != INSTRUCTIONS;
    let is_asked_for = |part: &str| only.as_ref().map_or_else(|| is_ordinary(part), |only| part == only);
    Ok((effort, PARTS.into_iter().filter(|(part, _)| is_asked_for(part)).collect()))
}

fn ready(_: Effort, table: &mut Table) -> anyhow::Result<()> {
    note("time from start to ready");
    let times: anyhow::Result<Vec<f64>> =
        (0..STARTS).map(|_| Ok(Agent::start(Config::default())?.ready_after().as_secs_f64())).collect();
    table.add(Row::new("`obi run` to ready", median(&times?), "s", "≤ 1 s"));
    Ok(())
}

/// CPU time that a process has used so far, all threads, from `/proc`.
fn cpu_time(pid: u32) -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let after_name = stat.rsplit_once(')').context("a stat line names its program")?.1;
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    let ticks = |index: usize| -> anyhow::Result<u64> {
        Ok(fields.get(index).context("a stat line has CPU times")?.parse()?)
    };
    // utime and stime are fields 14 and 15; the first one here is 3.
    let ticks = ticks(11)? + ticks(12)?;
    Ok(Duration::from_secs_f64(ticks as f64 / rustix::param::clock_ticks_per_second() as f64))
}
