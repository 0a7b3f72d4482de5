//! nginx over TLS, a 1 KiB file, `wrk -c64` over kept-alive connections: probes hit per request, throughput with and
//! without.
//!
//! In: an effort. Out: rows. What a hit costs beyond our program, the trap, shows in the throughput alone.

use std::time::Duration;

use anyhow::bail;
use integration::agent::Agent;
use integration::otlp::certificate::Certificates;
use integration::seed::note;
use integration::server::{encrypted, service};
use serde_json::{Value, json};

use crate::nginx::{load_over, watching};
use crate::table::{Row, Table};
use crate::{Effort, median};

/// How long the agent may take to probe the libraries of nginx and wrk.
const PROBING: Duration = Duration::from_secs(60);

/// Adds all rows about TLS.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    let certificates = Certificates::new()?;
    let server = encrypted::nginx(&certificates)?;
    let client = service("wrk");
    let only_server = vec![json!({"service": server.service})];
    let both = vec![json!({"service": server.service}), json!({"service": client})];
    let started = |include: &[Value], has_statistics| {
        let agent = Agent::start(watching(include, has_statistics))?;
        agent.await_probes(&["/libssl.so"], PROBING)?;
        anyhow::Ok(agent)
    };

    note("probe hits per TLS request, watching server and client");
    let agent = started(&both, true)?;
    load_over("https", &server, &client, 1)?;
    let before = agent.metrics()?;
    let load = load_over("https", &server, &client, effort.seconds * 2)?;
    let after = agent.metrics()?;
    drop(agent);
    let is_probe = |program: &str| program.starts_with("tls_") || program.starts_with("bio_");
    let grown = |name: &str| {
        let sum = |metrics: &integration::exposition::Exposition| {
            let of = metrics.matching(name, &[]);
            let ours =
                of.filter(|sample| sample.labels.get("program").is_some_and(|program| is_probe(program)));
            ours.fold(0.0, |sum, sample| sum + sample.value)
        };
        sum(&after) - sum(&before)
    };
    let (hits, seconds) = (grown("obi_bpf_program_runs_total"), grown("obi_bpf_program_run_seconds_total"));
    let seen = after.sum("obi_spans_total", &[]) - before.sum("obi_spans_total", &[]);
    if hits <= 0.0 || seen < 1.9 * load.requests {
        bail!("{hits} hits and {seen} spans for {} requests: the probes do not see them", load.requests);
    }
    table.add(Row::new("TLS: probe hits per request and side", hits / load.requests / 2.0, "", "report"));
    table.add(Row::new(
        "TLS: program time per probe hit, without the trap",
        seconds * 1e6 / hits,
        "µs",
        "≤ 0.6 µs",
    ));

    let (mut same, mut server_only, mut server_and_client) = (Vec::new(), Vec::new(), Vec::new());
    let mut base = Vec::new();
    for pair in 1..=effort.pairs {
        note(&format!("TLS throughput, pair {pair} of {}", effort.pairs));
        let without = || load_over("https", &server, &client, effort.seconds).map(|load| load.per_second);
        let with = |include: &[Value]| {
            let _agent = started(include, false)?;
            without()
        };
        let first = without()?;
        same.push(without()? / first);
        server_only.push(with(&only_server)? / without()?);
        server_and_client.push(with(&both)? / without()?);
        base.push(first);
    }
    table.add(Row::new("TLS throughput without agent", median(&base), "/s", ""));
    table.add(Row::spread("TLS throughput without / without (A/A)", &same, "noise"));
    table.add(Row::spread("TLS throughput with / without, watching server", &server_only, "≥ 0.60"));
    table.add(Row::spread("TLS throughput with / without, watching both", &server_and_client, "≥ 0.60"));
    Ok(())
}
