//! The compact accuracy gate: one table of ways to talk, small enough for an emulated machine, the same for every hook
//! set and kernel.
//!
//! Compared by identity; what a set cannot see must be counted ([`HookSet::sight`]).

mod case;
mod io_uring;

use std::collections::BTreeSet;
use std::thread;

use integration::accuracy::{Ledger, Report};
use integration::agent::{Agent, Config};
use integration::client::Kind;
use integration::exposition::Exposition;
use integration::hook::{Passage, Sight, View};
use integration::load;
use integration::patience::slowness;
use integration::plan::Plan;
use integration::seed::{note, seeded};
use integration::server::nginx::{self, Files, Upstream};
use integration::server::shape::{ShapeServer, every_way};
use integration::server::{Server, language};

use self::case::{CASES, Case};
use crate::gate;

/// `count` calls on a machine of ordinary speed, a few on one that is slow.
pub(crate) fn calls(count: usize) -> usize {
    count.div_ceil(usize::try_from(slowness()).unwrap_or(usize::MAX)).max(count.min(6))
}

/// Rows that run at the same time: their clients wait most of it.
const AT_ONCE: usize = 4;

/// What is to be found out about one row.
pub(crate) struct Row {
    pub(crate) name: String,
    pub(crate) ledger: Ledger,
    pub(crate) sight: Sight,
    /// Of HTTP/2: what is lost takes names with it that others refer to.
    pub(crate) has_frames: bool,
}

/// Each way to read, write, cut and end on its own, between raw ends.
#[test]
fn raw_ends() {
    let mut rng = seeded("accuracy raw ends");
    // Heads in thousands of tiny pieces need room.
    let mut agent = Agent::start(Config::default().alone().set("capture", "ring_bytes", 16 << 20).set(
        "capture",
        "statistics",
        true,
    ))
    .unwrap();
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let run = |number: usize, case: &Case, seed: u64| {
        let socket = folder.path().join(number.to_string());
        let server = ShapeServer::start("raw", case.server(&socket, seed)).unwrap();
        let connections = case.connections(&server.server.address);
        let mut ledger = Ledger::default();
        let plan = Plan { seed, concurrency: 3, rate: 0, connections };
        gate::follow(&mut ledger, &server.server, &plan);
        Row { name: case.name.to_owned(), ledger, sight: view.sight(case.passage), has_frames: false }
    };
    let cases: Vec<(usize, &Case, u64)> = CASES
        .iter()
        .enumerate()
        .filter(is_asked_for)
        .filter(has_sockets)
        .map(|(number, case)| (number, case, rng.u64(..)))
        .collect();
    let rows = thread::scope(|scope| {
        let part = |part: &[(usize, &Case, u64)]| {
            part.iter().map(|(number, case, seed)| run(*number, case, *seed)).collect::<Vec<_>>()
        };
        let threads: Vec<_> = cases
            .chunks(cases.len().div_ceil(AT_ONCE))
            .map(|chunk| scope.spawn(move || part(chunk)))
            .collect();
        threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
    });
    check(&mut agent, &before, rows, view);
}

/// `OBI_TEST_ROWS`: names of rows, comma-separated; without it all of them run.
fn is_asked_for((_, case): &(usize, &Case)) -> bool {
    match std::env::var("OBI_TEST_ROWS") {
        Ok(names) => names.split(',').any(|name| name == case.name),
        Err(_) => true,
    }
}

/// Whether the row can run on this kernel; says so when it cannot.
fn has_sockets((_, case): &(usize, &Case)) -> bool {
    let has_sockets = case.has_sockets();
    if !has_sockets {
        note(&format!("not run, as this kernel has no such sockets: {}", case.name));
    }
    has_sockets
}

/// Real servers by real clients.
#[test]
fn programs() {
    let mut rng = seeded("accuracy programs");
    let mut servers = vec![
        nginx::files(Files::Sendfile).unwrap(),
        nginx::files(Files::Buffered).unwrap(),
        language::python_http("threading").unwrap(),
    ];
    // Some run before the agent, some start after it.
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    servers.extend([
        language::python_http("forking").unwrap(),
        nginx::proxy(&servers[0], Upstream::Tcp).unwrap(),
        ShapeServer::start("shape", every_way(rng.u64(..))).unwrap().server,
    ]);
    // What is asked over unix sockets has no offsets by which a skipped program could be found out.
    if view.sight(Passage::UnixCall) == Sight::Exact {
        servers.push(nginx::proxy(&servers[0], Upstream::Unix).unwrap());
    }
    let mut rows = Vec::new();
    for server in &servers {
        for kind in [Kind::Shape, Kind::Curl, Kind::Python] {
            rows.push(row(server, kind, &mut rng));
        }
    }
    // A service's counts are those of all its rows together.
    let mut whole = Ledger::default();
    for row in &rows {
        whole.add(&row.ledger);
    }
    let rows = [Row {
        name: "all servers by all clients".to_owned(),
        ledger: whole,
        sight: view.sight(Passage::Call),
        has_frames: false,
    }];
    check(&mut agent, &before, rows.into(), view);
}

fn row(server: &Server, kind: Kind, rng: &mut fastrand::Rng) -> Row {
    let calls = load::calls(rng, &server.features, kind, calls(40));
    let mut ledger = Ledger::default();
    gate::call(&mut ledger, kind, server, &calls, 4);
    Row {
        name: format!("{} by {}", server.name, kind.name()),
        ledger,
        sight: Sight::Exact,
        has_frames: false,
    }
}

/// Judges every row after all of them have run; fails with all that are not as they should be.
#[track_caller]
pub(crate) fn check(agent: &mut Agent, before: &Exposition, rows: Vec<Row>, view: View) {
    let exact: Vec<&Ledger> =
        rows.iter().filter(|row| row.sight == Sight::Exact).map(|row| &row.ledger).collect();
    assert!(gate::settle(agent, &exact), "the agent does not show a request after it ended");
    let is_counted = |metrics: &Exposition| {
        rows.iter()
            .filter(|row| row.sight == Sight::Counted)
            .all(|row| gate::is_counted(before, metrics, &row.ledger))
    };
    let metrics = agent.metrics_until(gate::PATIENCE, is_counted).unwrap();
    let spans = agent.spans().unwrap();
    let mut whole = Report::default();
    let mut failed = Vec::new();
    for row in &rows {
        let report = match row.sight {
            Sight::Counted if row.has_frames => row.ledger.compare_damaged(spans),
            _ => row.ledger.compare(spans),
        };
        whole.add(&report);
        failed.extend(verdict(row, report, before, &metrics));
    }
    let lost =
        gate::lost(&metrics, rows.iter().flat_map(|row| row.ledger.roles()).collect::<BTreeSet<_>>().iter());
    let set = view.set;
    if let Some(cost) = cost(before, &metrics) {
        note(&format!("{set}: {cost:.0} ns of kernel programs per span"));
    }
    gate::tell(&format!("{set}: {} of {} rows failed", failed.len(), rows.len()), &whole, lost);
    assert!(failed.is_empty(), "hook set {set}:\n{}", failed.join("\n"));
}

/// Nanoseconds that kernel programs took for a span, where the kernel measures them.
fn cost(before: &Exposition, metrics: &Exposition) -> Option<f64> {
    let grown = |name| metrics.sum(name, &[]) - before.sum(name, &[]);
    let (seconds, spans) = (grown("obi_bpf_program_run_seconds_total"), grown("obi_spans_total"));
    (seconds > 0.0 && spans > 0.0).then(|| seconds * 1e9 / spans)
}

/// What is wrong with a row, or with the expectation of it.
fn verdict(row: &Row, mut report: Report, before: &Exposition, metrics: &Exposition) -> Option<String> {
    assert!(report.expected > 0, "{}: the workload did not run", row.name);
    let mut wrong = Vec::new();
    match row.sight {
        Sight::Exact => wrong.extend(gate::miscounted(metrics, &row.ledger)),
        Sight::Counted => {
            if !gate::is_counted(before, metrics, &row.ledger) {
                wrong.push(format!("{} are missing and not counted", report.missing.len()));
            }
            report.missing.clear();
        }
        Sight::Blind => {
            report.missing.clear();
            report.wrong.clear();
        }
    }
    if !report.is_exact() {
        wrong.push(report.to_string());
    }
    let losses = gate::losses(metrics, row.ledger.roles());
    (!wrong.is_empty()).then(|| format!("{} ({:?}): {}\n{losses}", row.name, row.sight, wrong.join("\n")))
}
