//! A hundred services at a thousand requests per second in all: memory of the agent.
//!
//! In: an effort. Out: rows. The services are small processes of one binary with different names.

use anyhow::Context as _;
use integration::agent::{Agent, Config};
use integration::client;
use integration::plan::{Call, ConnectionPlan, Plan, ServerPlan};
use integration::seed::note;
use integration::server::shape::ShapeServer;
use integration::shape::Shape;

use crate::table::{Row, Table};
use crate::{Effort, cpu_time};

const SERVICES: usize = 100;
const RATE: u32 = 1_000;

/// Adds all rows about memory.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    note(&format!("memory with {SERVICES} services at {RATE} requests per second"));
    let servers: anyhow::Result<Vec<ShapeServer>> =
        (0..SERVICES).map(|_| ShapeServer::start("fleet", ServerPlan::default())).collect();
    let servers = servers?;
    let agent = Agent::start(Config::plain())?;
    let seconds = effort.seconds * 4;
    let calls_each = RATE as usize * seconds as usize / SERVICES;
    let connections = servers
        .iter()
        .map(|server| {
            let calls =
                (0..calls_each).map(|_| Call::new(Shape { response_bytes: 1024, ..Shape::default() }));
            ConnectionPlan::new(&server.server.address, calls.collect())
        })
        .collect();
    let begun = cpu_time(agent.pid())?;
    let plan = Plan { seed: 0, concurrency: SERVICES, rate: RATE, connections };
    client::follow(&plan)?;
    let used = cpu_time(agent.pid())?.saturating_sub(begun);
    let metrics = agent.metrics()?;
    table.add(Row::new(
        "RSS at 1,000 req/s over 100 services",
        resident_bytes(agent.pid())? / 1e6,
        "MB",
        "≤ 40 MB",
    ));
    let maps = metrics.sum("obi_bpf_map_bytes", &[]);
    table.add(Row::new("capture maps (all kernel maps)", maps / 1e6, "MB", "≤ 25 MB"));
    let share = used.as_secs_f64() / f64::from(seconds) * 100.0;
    table.add(Row::new("agent CPU at 1,000 req/s, both sides watched", share, "% of a core", ""));
    Ok(())
}

/// `VmRSS` of a process.
fn resident_bytes(pid: u32) -> anyhow::Result<f64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("no VmRSS")?;
    let kibibytes: f64 = line.trim().trim_end_matches("kB").trim().parse()?;
    Ok(kibibytes * 1024.0)
}
