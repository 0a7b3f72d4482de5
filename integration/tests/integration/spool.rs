//! What a destination does not take waits on the disk: over kills of the agent, beside a destination that is well, until a
//! real Collector takes it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::Agent;
use integration::otlp::collector::Collector;
use integration::otlp::proxy::{Fault, Proxy};
use integration::otlp::receiver::Receiver;
use integration::patience::patience;
use integration::seed::note;
use serde_json::{Value, json};

use crate::otlp::{ARRIVAL, World, plain_calls};

/// Spans of each run of the agent.
const CALLS: usize = 200;
const KILLS: usize = 4;

/// Ids of the spans that a Collector has, as often as they came.
fn ids(collector: &Collector) -> Vec<String> {
    let requests = collector.traces().unwrap();
    let within = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let resources = requests.iter().flat_map(|request| within(request, "resourceSpans"));
    let scopes = resources.flat_map(|resource| within(&resource, "scopeSpans"));
    let spans = scopes.flat_map(|scope| within(&scope, "spans"));
    spans.filter_map(|span| Some(span["spanId"].as_str()?.to_owned())).collect()
}

fn segments(folder: &Path) -> Vec<PathBuf> {
    let within = |folder: &Path| -> Vec<PathBuf> {
        fs::read_dir(folder).into_iter().flatten().map(|entry| entry.unwrap().path()).collect()
    };
    let all = within(folder).into_iter().filter(|path| path.is_dir()).flat_map(|folder| within(&folder));
    all.filter(|path| path.extension().is_some_and(|it| it == "seg")).collect()
}

#[track_caller]
fn await_metric(agent: &Agent, name: &str, labels: &[(&str, &str)], expected: usize) {
    let metrics =
        agent.metrics_until(ARRIVAL, |metrics| metrics.sum(name, labels) == expected as f64).unwrap();
    assert_eq!(metrics.sum(name, labels), expected as f64, "{name}: {}", agent.stderr().unwrap());
}

#[test]
fn a_collector_that_was_away_gets_everything_after_four_kills() {
    let folder = tempfile::tempdir().unwrap();
    let (well, collector) = (Receiver::start([]).unwrap(), Collector::start(None).unwrap());
    let away = Proxy::start(collector.http, Fault::Stall).unwrap();
    let destination = |name: &str, address| {
        json!({"name": name, "endpoint": format!("http://{address}"), "signals": ["traces"], "timeout": "1s",
            "batch_delay": "50ms"})
    };
    let otlp = json!([destination("well", well.http), destination("away", away.address)]);
    let spool = json!({"bytes": "64 MiB", "directory": folder.path(), "mode": "always"});
    let world = World::new("spooled", json!({"otlp": otlp, "spool": spool}));
    let mut produced = BTreeSet::new();
    for run in 1..=KILLS {
        let mut agent = Agent::start(world.config.clone()).unwrap();
        produced.extend(world.call(&mut agent, &plain_calls(CALLS)));
        await_metric(&agent, "obi_export_spool_items", &[("destination", "away")], run * CALLS);
        await_metric(&agent, "obi_export_sent_total", &[("destination", "well")], CALLS);
        let restored = [("destination", "away")];
        await_metric(&agent, "obi_export_spool_restored_total", &restored, (run - 1) * CALLS);
        agent.kill().unwrap();
    }
    assert!(!segments(folder.path()).is_empty());
    // Nothing of the connections so far may pass later: what comes is what comes from the disk.
    away.set(Fault::Reset);
    let mut agent = Agent::start(world.config.clone()).unwrap();
    produced.extend(world.call(&mut agent, &plain_calls(CALLS)));
    away.set(Fault::None);
    let deadline = Instant::now() + patience(ARRIVAL * 2);
    let mut came = ids(&collector);
    while came.len() < produced.len() && Instant::now() < deadline {
        thread::sleep(Duration::from_millis(100));
        came = ids(&collector);
    }
    let delivered: BTreeSet<String> = came.iter().cloned().collect();
    assert_eq!(delivered, produced, "{}", agent.stderr().unwrap());
    let n_twice = came.len() - delivered.len();
    note(&format!("{} spans after {KILLS} kills, {n_twice} of them twice", delivered.len()));
    await_metric(&agent, "obi_export_spool_items", &[], 0);
    let metrics = agent.metrics().unwrap();
    let of = |name: &str| metrics.sum(name, &[("destination", "away")]);
    assert_eq!(of("obi_export_spool_restored_total"), (KILLS * CALLS) as f64);
    assert_eq!(of("obi_export_sent_total"), ((KILLS + 1) * CALLS) as f64);
    assert_eq!((of("obi_export_lost_total"), of("obi_export_spool_bytes")), (0.0, 0.0));
    assert_eq!(agent.stop().unwrap().code, 0);
    assert_eq!(segments(folder.path()), Vec::<PathBuf>::new(), "nothing is left");
    let well: BTreeSet<String> = well.span_ids().into_iter().collect();
    assert_eq!(well, produced, "one that is away holds up nobody");
}
