//! Cost as a count of instructions: for a machine whose clock counts them (`kernels run --instructions`), one a
//! nanosecond.
//!
//! In: an effort. Out: rows, per hook set that works here: instructions of each kernel program a run, of nginx, `wrk`
//! and the agent an exchange and side. What else the host does changes nothing; two windows stand beside each other.

use std::collections::BTreeMap;
use std::fs;

use anyhow::Context as _;
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::hook::HookSet;
use integration::seed::note;
use integration::server::nginx::{Files, files};
use integration::server::{Server, service};
use serde_json::{Value, json};

use crate::Effort;
use crate::nginx::{load_with, settled, watching};
use crate::table::{Row, Table};

/// One processor serves nginx, `wrk` and the agent: few connections, so that none waits long.
const WRK: [&str; 2] = ["-c16", "-t1"];
const NANOSECONDS: f64 = 1e9;
/// Programs that take less of the set's instructions are not listed.
const LEAST_SHARE: f64 = 0.01;

/// Instructions per exchange in one window.
#[derive(Debug, Clone, Copy)]
struct Window {
    server: f64,
    client: f64,
    agent: f64,
}

struct Bench {
    server: Server,
    client: String,
    seconds: u32,
}

/// Adds the rows of all sets that work here; server and client are watched.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    let bench =
        Bench { server: files(Files::Sendfile)?, client: service("wrk"), seconds: effort.seconds.min(3) };
    let include = [json!({"service": bench.server.service}), json!({"service": bench.client})];
    note("no agent");
    bench.load(1)?;
    let base = bench.windows(None)?;
    bench.add("no agent", &base, table);
    for set in HookSet::ALL {
        let with = |has_statistics| with(set, &include, has_statistics);
        note(&format!("{set}: application and agent"));
        let agent = match Agent::start(with(false)) {
            Ok(agent) => agent,
            Err(error) => {
                note(&format!("{set} does not work here: {error:#}"));
                continue;
            }
        };
        bench.load(1)?;
        bench.add(set.name(), &bench.windows(Some(&agent))?, table);
        drop(agent);
        note(&format!("{set}: kernel programs"));
        bench.add_programs(set, &Agent::start(with(true))?, table)?;
    }
    Ok(())
}

/// As users have it, but for samples: their number follows the clock, not the exchanges.
fn with(set: HookSet, include: &[Value], has_statistics: bool) -> Config {
    watching(include, has_statistics).set("capture", "hooks", set.name()).set("profile", "enabled", false)
}

impl Bench {
    /// Returns the number of exchanges.
    fn load(&self, seconds: u32) -> anyhow::Result<f64> {
        Ok(load_with(&WRK, &self.server, &self.client, seconds)?.requests)
    }

    /// Two windows of the same.
    fn windows(&self, agent: Option<&Agent>) -> anyhow::Result<[Window; 2]> {
        Ok([self.window(agent)?, self.window(agent)?])
    }

    fn window(&self, agent: Option<&Agent>) -> anyhow::Result<Window> {
        let agent_now = || -> anyhow::Result<f64> {
            let Some(agent) = agent else { return Ok(0.0) };
            settled(agent)?;
            instructions(agent.pid())
        };
        let now =
            || -> anyhow::Result<[f64; 3]> { Ok([instructions(self.server.pid())?, ended()?, agent_now()?]) };
        let before = now()?;
        let exchanges = self.load(self.seconds)?;
        let after = now()?;
        let [server, client, agent] = [0, 1, 2].map(|part| (after[part] - before[part]) / exchanges);
        // The agent's part is of both sides.
        Ok(Window { server, client, agent: agent / 2.0 })
    }

    fn add(&self, what: &str, windows: &[Window; 2], table: &mut Table) {
        let [first, second] = windows;
        for (part, first, second) in [
            ("nginx per exchange", first.server, second.server),
            ("wrk per exchange", first.client, second.client),
            ("agent per exchange and side", first.agent, second.agent),
        ] {
            if first > 0.0 {
                let text =
                    format!("{first:.0} ({:+.1} % in a second window)", 100.0 * (second / first - 1.0));
                table.add(Row::text(&format!("{what}: {part}"), text, ""));
            }
        }
    }

    /// What each program takes a run, and how often it runs.
    fn add_programs(&self, set: HookSet, agent: &Agent, table: &mut Table) -> anyhow::Result<()> {
        self.load(1)?;
        let before = programs(&settled(agent)?);
        let sides = 2.0 * self.load(self.seconds)?;
        let after = programs(&settled(agent)?);
        let grown = |name: &str| {
            let of = |all: &BTreeMap<String, [f64; 2]>| all.get(name).copied().unwrap_or_default();
            [0, 1].map(|part| of(&after)[part] - of(&before)[part])
        };
        let all: f64 = after.keys().map(|name| grown(name)[0]).sum();
        table.add(Row::text(
            &format!("{set}: kernel programs per exchange and side"),
            format!("{:.0}", all / sides),
            "",
        ));
        for name in after.keys() {
            let [taken, runs] = grown(name);
            if runs > 0.0 && taken / all >= LEAST_SHARE {
                let text = format!("{:.0} a run, {:.2} runs", taken / runs, runs / sides);
                table.add(Row::text(&format!("{set}: {name}"), text, ""));
            }
        }
        Ok(())
    }
}

/// Instructions and runs of each program, by name.
fn programs(metrics: &Exposition) -> BTreeMap<String, [f64; 2]> {
    let mut programs: BTreeMap<String, [f64; 2]> = BTreeMap::new();
    let names = [("obi_bpf_program_run_seconds_total", NANOSECONDS), ("obi_bpf_program_runs_total", 1.0)];
    for (part, (metric, scale)) in names.into_iter().enumerate() {
        for sample in metrics.matching(metric, &[]) {
            let name = sample.labels.get("program").cloned().unwrap_or_default();
            programs.entry(name).or_default()[part] += sample.value * scale;
        }
    }
    programs
}

/// What a process, its threads and its children have taken so far.
fn instructions(pid: u32) -> anyhow::Result<f64> {
    let mut sum = 0.0;
    for task in fs::read_dir(format!("/proc/{pid}/task"))? {
        let task = task?.path();
        // A thread may have ended meanwhile.
        let Ok(text) = fs::read_to_string(task.join("schedstat")) else { continue };
        let taken: f64 = text.split_whitespace().next().context("schedstat has three figures")?.parse()?;
        sum += taken;
        for child in fs::read_to_string(task.join("children"))?.split_whitespace() {
            sum += instructions(child.parse()?)?;
        }
    }
    Ok(sum)
}

/// What children of this process that have ended have taken.
fn ended() -> anyhow::Result<f64> {
    let stat = fs::read_to_string("/proc/self/stat")?;
    let fields: Vec<&str> =
        stat.rsplit_once(')').context("a stat line names its program")?.1.split(' ').collect();
    // cutime and cstime are fields 16 and 17; the second one here is 3.
    let ticks: f64 = [14, 15].iter().filter_map(|field| fields.get(*field)?.parse::<f64>().ok()).sum();
    Ok(ticks * NANOSECONDS / rustix::param::clock_ticks_per_second() as f64)
}
