//! What sampling a whole machine costs: [`Crowd`] on busy CPUs, the agent with its defaults.
//!
//! In: an effort. Out: rows: time to the first profile; CPU time of agent and kernel programs by share of the machine,
//! in windows one after another, since it is a rate and no comparison; memory before and after all stacks were named.

use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::fetch;
use integration::patience::patience;
use integration::seed::note;
use serde_json::Value;

use crate::crowd::{Crowd, EXECUTABLES, PROCESSES};
use crate::table::{Row, Table};
use crate::{Effort, cpu_time};

/// Starts that the time to the first profile is the median of.
const STARTS: usize = 5;
const WINDOWS: usize = 5;
/// Until all files were looked at and all tables made.
const SETTLED: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(120);

/// Adds all rows about profiles.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    let mut crowd = Crowd::compile()?;
    crowd.start_hogs()?;
    firsts("one process for each CPU", "≤ 2 s", &crowd, table)?;
    crowd.start()?;
    firsts("200 processes on busy CPUs", "", &crowd, table)?;

    let agent = Agent::start(Config::plain().set("capture", "statistics", true))?;
    note("until tables are made");
    settle(&agent)?;
    note("cost of sampling");
    let windows: anyhow::Result<Vec<Window>> = (0..WINDOWS).map(|_| Window::of(&agent, effort)).collect();
    let windows = windows?;
    let column = |of: fn(&Window) -> f64| windows.iter().map(of).collect::<Vec<f64>>();
    let whole = column(|window| window.agent + window.kernel);
    table.add(Row::spread_of("profiles: whole cost, of the machine", &whole, "%", "≤ 1 %"));
    table.add(Row::spread_of("of it, the agent's threads", &column(|window| window.agent), "%", ""));
    table.add(Row::spread_of("of it, programs in the kernel", &column(|window| window.kernel), "%", ""));
    table.add(Row::spread_of("of these, the sampler", &column(|window| window.sampler), "%", ""));
    table.add(Row::spread_of("kernel program per sample", &column(|window| window.sample), "µs", "≤ 6 µs"));
    table.add(Row::spread_of("samples per CPU and second", &column(|window| window.rate), "", "99"));
    table.add(Row::spread_of("CPUs idle meanwhile", &column(|window| window.idle), "%", "0"));

    let who = format!("{PROCESSES} processes, {EXECUTABLES} executables");
    let resident = |agent: &Agent, field| Ok::<f64, anyhow::Error>(memory(agent.pid(), field)? / 1e6);
    table.add(Row::new(&format!("RSS, {who}"), resident(&agent, "Rss")?, "MB", "≤ 120 MB"));
    table.add(Row::new(&format!("PSS, {who}"), resident(&agent, "Pss")?, "MB", ""));
    let metrics = agent.metrics()?;
    let maps = |labels: &[(&str, &str)]| metrics.sum("obi_bpf_map_bytes", labels) / 1e6;
    table.add(Row::new("kernel maps of profiles", maps(&[("subsystem", "profile")]), "MB", "≤ 64 MB"));
    table.add(Row::new("all kernel maps", maps(&[]), "MB", ""));

    note("names of everything");
    let begun = Instant::now();
    let named: Value = fetch::json(agent.address(), "/api/v1/profiles?format=json")?;
    let seconds = begun.elapsed().as_secs_f64();
    let samples = named["samples"].as_f64().context("a profile counts its samples")?;
    table.add(Row::new("names for all samples of a minute, asked first", seconds, "s", ""));
    table.add(Row::new("samples in it", samples, "", ""));
    table.add(Row::new("RSS when all was named", resident(&agent, "Rss")?, "MB", "≤ 120 MB"));
    table.add(Row::new("most RSS ever", peak(agent.pid())? / 1e6, "MB", ""));
    let alive = crowd.alive()?;
    if alive < PROCESSES {
        bail!("of {PROCESSES} processes {alive} are left: less was sampled than said");
    }
    Ok(())
}

/// Adds rows about starts: by the clock, and the agent's own CPU time, which other programs do not lengthen.
fn firsts(beside: &str, bar: &str, crowd: &Crowd, table: &mut Table) -> anyhow::Result<()> {
    note(&format!("time from start to the first profile, {beside}"));
    let times: anyhow::Result<Vec<(f64, f64)>> = (0..STARTS).map(|_| first(crowd.hog()?)).collect();
    let (clock, own): (Vec<f64>, Vec<f64>) = times?.into_iter().unzip();
    table.add(Row::spread_of(&format!("`obi run` to the first profile, {beside}"), &clock, "s", bar));
    table.add(Row::spread_of("CPU time of the agent until then", &own, "s", ""));
    Ok(())
}

/// Seconds from the start of an agent to a profile of a process that ran before, and of its CPU time.
fn first(pid: u32) -> anyhow::Result<(f64, f64)> {
    let begun = Instant::now();
    let agent = Agent::start(Config::plain())?;
    let path = format!("/api/v1/profiles?format=json&pid={pid}");
    loop {
        let profile: Value = fetch::json(agent.address(), &path)?;
        if profile["samples"].as_u64().is_some_and(|samples| samples > 0) {
            return Ok((begun.elapsed().as_secs_f64(), cpu_time(agent.pid())?.as_secs_f64()));
        }
        if begun.elapsed() > patience(LIMIT) {
            bail!("process {pid} is busy and has no profile: {profile}");
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Waits until the number of files with tables stays.
fn settle(agent: &Agent) -> anyhow::Result<()> {
    let begun = Instant::now();
    let (mut known, mut since) = (-1.0, Instant::now());
    while since.elapsed() < SETTLED {
        let files = agent.metrics()?.sum("obi_profile_table_files", &[]);
        if files != known {
            (known, since) = (files, Instant::now());
        }
        if begun.elapsed() > patience(LIMIT) {
            bail!("tables of {known} files, and still more");
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Shares of the machine's CPU time in percent, of some seconds.
struct Window {
    agent: f64,
    kernel: f64,
    sampler: f64,
    /// µs of each
    sample: f64,
    rate: f64,
    idle: f64,
}

impl Window {
    fn of(agent: &Agent, effort: Effort) -> anyhow::Result<Self> {
        let look = || anyhow::Ok((agent.metrics()?, cpu_time(agent.pid())?, idle()?, Instant::now()));
        let before = look()?;
        std::thread::sleep(Duration::from_secs(u64::from(effort.seconds) * 2));
        let after = look()?;
        let grown = |name, labels: &[(&str, &str)]| {
            let sum = |metrics: &Exposition| metrics.sum(name, labels);
            sum(&after.0) - sum(&before.0)
        };
        let n_cpus = std::thread::available_parallelism()?.get() as f64;
        let seconds = after.3.duration_since(before.3).as_secs_f64();
        let share = |used: f64| used / (seconds * n_cpus) * 100.0;
        // The walk of the portable object is part of the run that it continues.
        let sampler = [("program", "profile")];
        let runs = grown("obi_bpf_program_runs_total", &sampler);
        let sampled = grown("obi_bpf_program_run_seconds_total", &sampler);
        if runs <= 0.0 {
            bail!("the program `profile` does not run, or statistics are off in this kernel");
        }
        Ok(Self {
            agent: share(after.1.saturating_sub(before.1).as_secs_f64()),
            kernel: share(grown("obi_bpf_program_run_seconds_total", &[])),
            sampler: share(sampled),
            sample: sampled * 1e6 / runs,
            rate: runs / seconds / n_cpus,
            idle: share(after.2.saturating_sub(before.2).as_secs_f64()),
        })
    }
}

/// Time in which CPUs had nothing to do.
fn idle() -> anyhow::Result<Duration> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let ticks: Option<u64> =
        stat.lines().next().and_then(|line| line.split_whitespace().nth(4)?.parse().ok());
    let seconds = ticks.context("/proc/stat tells idle time")? as f64;
    Ok(Duration::from_secs_f64(seconds / rustix::param::clock_ticks_per_second() as f64))
}

/// A field of `smaps_rollup`, bytes.
fn memory(pid: u32, field: &str) -> anyhow::Result<f64> {
    kibibytes(&format!("/proc/{pid}/smaps_rollup"), field)
}

/// The most that was resident, bytes.
fn peak(pid: u32) -> anyhow::Result<f64> {
    kibibytes(&format!("/proc/{pid}/status"), "VmHWM")
}

fn kibibytes(path: &str, field: &str) -> anyhow::Result<f64> {
    let text = std::fs::read_to_string(path)?;
    let of_field = |line: &str| {
        line.strip_prefix(field)?.strip_prefix(':')?.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    let value: Option<f64> = text.lines().find_map(of_field);
    Ok(value.with_context(|| format!("{path} has no {field}"))? * 1024.0)
}
