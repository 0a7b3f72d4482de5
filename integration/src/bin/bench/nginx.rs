//! nginx, a 1 KiB file, `wrk -c64`: cost per exchange and side, throughput with and without.
//!
//! In: an effort. Out: rows. Throughput pairs are interleaved and stand beside pairs with nothing changed, because
//! the machine's own noise is larger than most effects.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::plan::Address;
use integration::process::run;
use integration::seed::note;
use integration::server::nginx::{Files, files};
use integration::server::{Server, service};
use serde_json::{Value, json};

use crate::table::{Row, Table};
use crate::{Effort, cpu_time};

/// Connections of `wrk`.
const CONNECTIONS: f64 = 64.0;

/// What `wrk` saw.
pub(crate) struct Load {
    pub(crate) requests: f64,
    pub(crate) per_second: f64,
}

/// Cost of one exchange on one side, microseconds.
pub(crate) struct Cost {
    pub(crate) kernel: f64,
    pub(crate) runs: f64,
    pub(crate) agent: f64,
    pub(crate) lost: f64,
}

/// Adds all rows about nginx.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    let server = files(Files::Sendfile)?;
    let client = service("wrk");
    let only_server = vec![json!({"service": server.service})];
    let both = vec![json!({"service": server.service}), json!({"service": client})];

    for (who, include, sides) in [("server", &only_server, 1.0), ("server and client", &both, 2.0)] {
        // All run-time of our programs counts, also that for traffic that is not watched.
        note(&format!("cost per exchange and side, watching {who}"));
        let config = watching(include, true);
        let cost = cost(Traffic { server: &server, client: &client, sides }, config, effort)?;
        let kernel = format!("kernel programs per exchange and side, watching {who}");
        table.add(Row::new(&kernel, cost.kernel, "µs", "≤ 0.8 µs"));
        table.add(Row::new(
            &format!("program runs per exchange and side, watching {who}"),
            cost.runs,
            "",
            "",
        ));
        let agent = format!("agent CPU per exchange and side, watching {who}");
        table.add(Row::new(&agent, cost.agent, "µs", "≤ 1.0 µs"));
        table.add(Row::new(&format!("lost exchanges, watching {who}"), cost.lost * 100.0, "%", "counted"));
    }

    let (mut same, mut server_only, mut server_and_client) = (Vec::new(), Vec::new(), Vec::new());
    let mut base = Vec::new();
    for pair in 1..=effort.pairs {
        note(&format!("throughput, pair {pair} of {}", effort.pairs));
        let without = || load(&server, &client, effort.seconds).map(|load| load.per_second);
        let with = |include: &[Value]| {
            let _agent = Agent::start(watching(include, false))?;
            load(&server, &client, effort.seconds).map(|load| load.per_second)
        };
        let first = without()?;
        same.push(without()? / first);
        server_only.push(with(&only_server)? / without()?);
        server_and_client.push(with(&both)? / without()?);
        base.push(first);
    }
    table.add(Row::new("throughput without agent", crate::median(&base), "/s", ""));
    table.add(Row::spread("throughput without / without (A/A)", &same, "noise"));
    table.add(Row::spread("throughput with / without, watching server", &server_only, "about 0.80"));
    table.add(Row::spread("throughput with / without, watching both", &server_and_client, "report"));
    Ok(())
}

pub(crate) fn watching(include: &[Value], has_statistics: bool) -> Config {
    // The agent's defaults, not those of the accuracy tests, which keep every span.
    Config::plain().set("discover", "include", include.to_vec()).set("capture", "statistics", has_statistics)
}

/// Who talks, and how many of the two are watched.
#[derive(Clone, Copy)]
pub(crate) struct Traffic<'a> {
    pub(crate) server: &'a Server,
    pub(crate) client: &'a str,
    pub(crate) sides: f64,
}

/// The metrics when everything that has passed is in them: they do not grow any more.
pub(crate) fn settled(agent: &Agent) -> anyhow::Result<Exposition> {
    const LOOK: Duration = Duration::from_millis(300);
    const LOOKS: usize = 100;
    let grown =
        |metrics: &Exposition| ["obi_spans_total", "obi_lost_total"].map(|name| metrics.sum(name, &[]));
    let mut last = agent.metrics()?;
    for _ in 0..LOOKS {
        std::thread::sleep(LOOK);
        let now = agent.metrics()?;
        if grown(&now) == grown(&last) {
            return Ok(now);
        }
        last = now;
    }
    bail!("the agent still reports exchanges long after the load has ended")
}

/// What an agent with run-time statistics costs.
pub(crate) fn cost(traffic: Traffic<'_>, config: Config, effort: Effort) -> anyhow::Result<Cost> {
    let Traffic { server, client, sides } = traffic;
    let agent = Agent::start(config)?;
    // Warm caches and tables first.
    load(server, client, 1)?;
    let before = (settled(&agent)?, cpu_time(agent.pid())?);
    let load = load(server, client, effort.seconds * 2)?;
    let after = (settled(&agent)?, cpu_time(agent.pid())?);
    let grown = |name| after.0.sum(name, &[]) - before.0.sum(name, &[]);
    let exchanges = load.requests * sides;
    let kernel = grown("obi_bpf_program_run_seconds_total");
    if kernel <= 0.0 {
        bail!("obi_bpf_program_run_seconds_total does not grow: statistics are off in this kernel");
    }
    let runs = grown("obi_bpf_program_runs_total") / exchanges;
    let (seen, lost) = (grown("obi_spans_total"), grown("obi_lost_total"));
    // `wrk` does not count what is under way when it stops.
    let under_way = CONNECTIONS * sides;
    if (exchanges - seen - lost).abs() > 0.01 * exchanges + under_way {
        bail!("of {exchanges} exchanges {seen} are spans and {lost} are lost: the rest would cost nothing");
    }
    let micros = |time: Duration| time.as_secs_f64() * 1e6;
    let agent = micros(after.1.saturating_sub(before.1)) / exchanges;
    Ok(Cost { kernel: kernel * 1e6 / exchanges, runs, agent, lost: lost / exchanges })
}

pub(crate) fn load(server: &Server, client: &str, seconds: u32) -> anyhow::Result<Load> {
    load_over("http", server, client, seconds)
}

/// 64 connections ask for 1 KiB over and over; `scheme` is `http` or `https`.
pub(crate) fn load_over(scheme: &str, server: &Server, client: &str, seconds: u32) -> anyhow::Result<Load> {
    let Address::Tcp(address) = server.address else { bail!("nginx listens on TCP") };
    ask(&["-c64", "-t2"], &format!("{scheme}://{address}/plain/1024"), client, seconds)
}

/// The same with other arguments.
pub(crate) fn load_with(
    arguments: &[&str],
    server: &Server,
    client: &str,
    seconds: u32,
) -> anyhow::Result<Load> {
    let Address::Tcp(address) = server.address else { bail!("nginx listens on TCP") };
    ask(arguments, &format!("http://{address}/plain/1024"), client, seconds)
}

fn ask(arguments: &[&str], url: &str, client: &str, seconds: u32) -> anyhow::Result<Load> {
    let mut command = Command::new("wrk");
    // An emulated machine may leave a request waiting for longer than the 2 s that `wrk` gives it.
    command.args(arguments).args(["--timeout", "20s", &format!("-d{seconds}s"), url]);
    command.env("OTEL_SERVICE_NAME", client);
    let lines = run("wrk", command, Duration::from_secs(u64::from(seconds) + 30))?;
    if let Some(failure) =
        lines.iter().find(|line| line.contains("Non-2xx") || line.contains("Socket errors"))
    {
        bail!("wrk: {failure}");
    }
    let requests = lines.iter().find_map(|line| line.trim().split_once(" requests in "));
    let per_second = lines.iter().find_map(|line| line.strip_prefix("Requests/sec:"));
    Ok(Load {
        requests: requests.context("wrk counts its requests")?.0.parse()?,
        per_second: per_second.context("wrk tells its rate")?.trim().parse()?,
    })
}
