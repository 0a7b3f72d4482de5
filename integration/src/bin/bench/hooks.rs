//! Hook sets beside each other, where a kernel has several: cost per exchange and side, throughput with and without.
//!
//! In: an effort. Out: rows. Each round visits every set that works here, beside a pair with nothing changed.

use integration::agent::{Agent, Config};
use integration::hook::HookSet;
use integration::seed::note;
use integration::server::nginx::{Files, files};
use integration::server::service;
use serde_json::{Value, json};

use crate::Effort;
use crate::nginx::{Cost, Traffic, cost, load, watching};
use crate::table::{Row, Table, median};

/// What the rounds have shown of one set.
#[derive(Default)]
struct Seen {
    costs: Vec<Cost>,
    throughput: Vec<f64>,
}

/// Adds the rows of all sets that work here; server and client are watched.
pub(crate) fn measure(effort: Effort, table: &mut Table) -> anyhow::Result<()> {
    let server = files(Files::Sendfile)?;
    let client = service("wrk");
    let include = [json!({"service": server.service}), json!({"service": client})];
    let traffic = Traffic { server: &server, client: &client, sides: 2.0 };
    let without = || load(&server, &client, effort.seconds).map(|load| load.per_second);
    let works = |set: &HookSet| match Agent::start(with(*set, &include, true)) {
        Ok(_) => true,
        Err(error) => {
            note(&format!("{set} does not work here: {error:#}"));
            false
        }
    };
    let sets: Vec<HookSet> = HookSet::ALL.into_iter().filter(works).collect();
    let mut seen: Vec<Seen> = sets.iter().map(|_| Seen::default()).collect();
    let (mut base, mut same) = (Vec::new(), Vec::new());
    for round in 1..=effort.pairs {
        let first = without()?;
        same.push(without()? / first);
        base.push(first);
        for (&set, seen) in sets.iter().zip(&mut seen) {
            note(&format!("round {round} of {}: {set}", effort.pairs));
            seen.costs.push(cost(traffic, with(set, &include, true), effort)?);
            let agent = Agent::start(with(set, &include, false))?;
            let watched = without()?;
            drop(agent);
            seen.throughput.push(watched / without()?);
        }
    }
    table.add(Row::new("throughput without agent", median(&base), "/s", ""));
    table.add(Row::spread("throughput without / without (A/A)", &same, "noise"));
    for (&set, seen) in sets.iter().zip(&seen) {
        add(set, seen, table);
    }
    Ok(())
}

fn with(set: HookSet, include: &[Value], has_statistics: bool) -> Config {
    watching(include, has_statistics).set("capture", "hooks", set.name())
}

fn add(set: HookSet, seen: &Seen, table: &mut Table) {
    let middle = |value: fn(&Cost) -> f64| median(&seen.costs.iter().map(value).collect::<Vec<_>>());
    let rows: [(&str, f64, &str); 4] = [
        ("kernel programs per exchange and side", middle(|cost| cost.kernel), "µs"),
        ("program runs per exchange and side", middle(|cost| cost.runs), ""),
        ("agent CPU per exchange and side", middle(|cost| cost.agent), "µs"),
        ("lost exchanges", middle(|cost| cost.lost) * 100.0, "%"),
    ];
    for (what, value, unit) in rows {
        table.add(Row::new(&format!("{set}: {what}"), value, unit, ""));
    }
    table.add(Row::spread(&format!("{set}: throughput with / without"), &seen.throughput, "report"));
}
