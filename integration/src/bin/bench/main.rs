//! Benchmarks of the whole agent on this machine: `bench [--seconds N] [--pairs N]`, or hook sets beside each other:
//! `bench --hooks SET,SET…`; one table on stdout.
//!
//! In: a built agent, nginx, wrk. Out: what the agent costs, per exchange and side, beside what the machine's noise
//! is. Progress goes to stderr. Judges nothing: the bars are printed beside the figures.

mod fleet;
mod hooks;
mod nginx;
mod table;
mod tls;

use std::time::Duration;

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::seed::note;

use crate::table::{Row, Table, median};

/// Starts that the time to ready is the median of.
const STARTS: usize = 7;

/// How long and how often.
#[derive(Debug, Clone, Copy)]
struct Effort {
    /// Of one measurement.
    seconds: u32,
    /// Interleaved pairs for throughput.
    pairs: usize,
}

/// What is asked for.
struct Request {
    effort: Effort,
    /// Hook sets to compare; when there are none, everything else is measured.
    hooks: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let Request { effort, hooks } = request(std::env::args().skip(1))?;
    let mut table = Table::default();
    if !hooks.is_empty() {
        hooks::measure(&hooks, effort, &mut table)?;
        print!("{table}");
        return Ok(());
    }
    table.add(ready()?);
    nginx::measure(effort, &mut table)?;
    tls::measure(effort, &mut table)?;
    fleet::measure(effort, &mut table)?;
    print!("{table}");
    Ok(())
}

fn request(mut arguments: impl Iterator<Item = String>) -> anyhow::Result<Request> {
    let mut effort = Effort { seconds: 5, pairs: 8 };
    let mut hooks = Vec::new();
    while let Some(name) = arguments.next() {
        let value = arguments.next().with_context(|| format!("{name} needs a value"))?;
        if name == "--hooks" {
            hooks = value.split(',').map(str::to_owned).collect();
            continue;
        }
        let number = value.parse().with_context(|| format!("{name} {value} is not a number"))?;
        match name.as_str() {
            "--seconds" => effort.seconds = number,
            "--pairs" => effort.pairs = usize::try_from(number)?,
            _ => bail!("unknown argument {name}: usage: bench [--seconds N] [--pairs N] [--hooks SET,SET]"),
        }
    }
    Ok(Request { effort, hooks })
}

fn ready() -> anyhow::Result<Row> {
    note("time from start to ready");
    let times: anyhow::Result<Vec<f64>> =
        (0..STARTS).map(|_| Ok(Agent::start(Config::default())?.ready_after().as_secs_f64())).collect();
    Ok(Row::new("`obi run` to ready", median(&times?), "s", "≤ 1 s"))
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
