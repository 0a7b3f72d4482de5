//! What a destination does not take waits on the disk: over kills of the agent, beside a destination that is well,
//! until a real Collector takes it.

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

/// This of each span that a Collector has, as often as they came.
fn each(collector: &Collector, key: &str) -> Vec<String> {
    let requests = collector.traces().unwrap();
    let within = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    let resources = requests.iter().flat_map(|request| within(request, "resourceSpans"));
    let scopes = resources.flat_map(|resource| within(&resource, "scopeSpans"));
    let spans = scopes.flat_map(|scope| within(&scope, "spans"));
    spans.filter_map(|span| Some(span[key].as_str()?.to_owned())).collect()
}

/// The same, once all that are wanted have come; what there is after a while, if they do not. The Collector writes its
/// files some time after it has answered.
fn awaited(collector: &Collector, key: &str, wanted: &BTreeSet<String>) -> Vec<String> {
    let deadline = Instant::now() + patience(ARRIVAL * 2);
    loop {
        let came = each(collector, key);
        let there: BTreeSet<&String> = came.iter().collect();
        if wanted.iter().all(|it| there.contains(it)) || Instant::now() > deadline {
            return came;
        }
        thread::sleep(Duration::from_millis(100));
    }
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
    let came = awaited(&collector, "spanId", &produced);
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

mod wide {
    use std::io::{Read as _, Write as _};
    use std::net::{SocketAddr, TcpStream};
    use std::process::Command;
    use std::sync::atomic::{AtomicBool, Ordering};

    use integration::plan::Address;
    use integration::seed::seeded;

    use super::*;

    const KILLS: usize = 10;
    /// Requests a second.
    const RATE: u32 = 200;
    /// Between a span and its place on the disk, in mode `always`; as long again for a busy machine.
    const IN_MEMORY: Duration = Duration::from_secs(2);

    /// Requests until it is over: the trace of each, and when it was answered.
    fn load(address: SocketAddr, is_over: &AtomicBool) -> Vec<(String, Instant)> {
        let (begun, mut made) = (Instant::now(), Vec::new());
        while !is_over.load(Ordering::Relaxed) {
            let (trace, parent) = (format!("{:032x}", fastrand::u128(1..)), fastrand::u64(1..));
            let mut stream = TcpStream::connect(address).unwrap();
            let header = format!("traceparent: 00-{trace}-{parent:016x}-01");
            write!(stream, "GET /e/{trace}/200/close/5 HTTP/1.1\r\nhost: a\r\n{header}\r\n\r\n").unwrap();
            let mut answer = String::new();
            stream.read_to_string(&mut answer).unwrap();
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            made.push((trace, Instant::now()));
            let next = begun + Duration::from_secs_f64(made.len() as f64 / f64::from(RATE));
            thread::sleep(next.saturating_duration_since(Instant::now()));
        }
        made
    }

    /// The system's clock, as the agent sees it, is set a week ahead while requests wait on the disk, and back again.
    /// None of them is too old for that.
    #[test]
    fn a_clock_that_steps_loses_nothing() {
        let library =
            ["x86_64", "aarch64"].map(|it| format!("/usr/lib/{it}-linux-gnu/faketime/libfaketime.so.1"));
        let library = library.iter().find(|path| Path::new(path).exists()).expect("libfaketime is installed");
        let folder = tempfile::tempdir().unwrap();
        let clock = folder.path().join("clock");
        fs::write(&clock, "+0").unwrap();
        let collector = Collector::start(None).unwrap();
        let away = Proxy::start(collector.http, Fault::Reset).unwrap();
        let otlp = json!([{"name": "away", "endpoint": format!("http://{}", away.address),
            "signals": ["traces"], "timeout": "1s", "batch_delay": "50ms"}]);
        let spool = json!({"bytes": "64 MiB", "directory": folder.path().join("spool"), "mode": "always"});
        let world = World::new("stepped", json!({"otlp": otlp, "spool": spool}));
        let stepping = |mut command: Command| {
            command.env("LD_PRELOAD", library).env("FAKETIME_TIMESTAMP_FILE", &clock);
            command.env("FAKETIME_NO_CACHE", "1").env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
            command
        };
        let mut agent = Agent::start_in(world.config.clone(), stepping).unwrap();
        let mut produced = BTreeSet::new();
        for (nth, time) in ["+0", "+7d", "+0"].into_iter().enumerate() {
            fs::write(&clock, time).unwrap();
            produced.extend(world.call(&mut agent, &plain_calls(CALLS)));
            await_metric(&agent, "obi_export_spool_items", &[], (nth + 1) * CALLS);
        }
        away.set(Fault::None);
        await_metric(&agent, "obi_export_sent_total", &[], 3 * CALLS);
        let delivered: BTreeSet<String> = awaited(&collector, "spanId", &produced).into_iter().collect();
        assert_eq!(delivered, produced, "{}", agent.stderr().unwrap());
        assert_eq!(agent.metrics().unwrap().sum("obi_export_lost_total", &[]), 0.0);
        assert_eq!(agent.stop().unwrap().code, 0);
    }

    /// Kills come at any moment of the load, while the destination is away and while it takes what waits. Spans that
    /// had their time to reach the disk are delivered; a kill sends one request twice at most.
    #[test]
    fn ten_kills_amid_load() {
        let mut rng = seeded("ten kills");
        let folder = tempfile::tempdir().unwrap();
        let collector = Collector::start(None).unwrap();
        let away = Proxy::start(collector.http, Fault::Reset).unwrap();
        let otlp = json!([{"name": "away", "endpoint": format!("http://{}", away.address),
            "signals": ["traces"], "timeout": "1s", "batch_delay": "200ms"}]);
        let spool = json!({"bytes": "64 MiB", "directory": folder.path(), "mode": "always"});
        let world = World::new("killed", json!({"otlp": otlp, "spool": spool}));
        let Address::Tcp(address) = *world.address() else { panic!("it listens on TCP") };
        let (mut due, mut n_made) = (Vec::new(), 0);
        for nth in 0..KILLS {
            away.set(if nth % 2 == 0 { Fault::Reset } else { Fault::None });
            let agent = Agent::start(world.config.clone()).unwrap();
            let is_over = AtomicBool::new(false);
            let lives = Duration::from_millis(rng.u64(3_000..7_000));
            let begun = Instant::now();
            let (made, killed) = thread::scope(|scope| {
                let made = scope.spawn(|| load(address, &is_over));
                thread::sleep(lives);
                let killed = Instant::now();
                agent.kill().unwrap();
                is_over.store(true, Ordering::Relaxed);
                (made.join().unwrap(), killed)
            });
            n_made += made.len();
            let had_time = |(_, answered): &(String, Instant)| *answered + IN_MEMORY < killed;
            due.extend(made.into_iter().filter(had_time).map(|(trace, answered)| {
                let (after, before) = (answered.saturating_duration_since(begun), killed - answered);
                (trace, format!("run {nth}, {after:?} after its begin, {before:?} before its end"))
            }));
        }
        away.set(Fault::None);
        let agent = Agent::start(world.config.clone()).unwrap();
        await_metric(&agent, "obi_export_spool_items", &[], 0);
        // A kill in the middle of a write leaves a record that is cut; its spans had no time.
        let n_cut = agent.metrics().unwrap().sum("obi_export_lost_total", &[]);
        assert_eq!(agent.stop().unwrap().code, 0);
        let wanted = due.iter().map(|(trace, _)| trace.clone()).collect();
        let came = awaited(&collector, "traceId", &wanted);
        let delivered: BTreeSet<String> = came.iter().cloned().collect();
        let is_missing = |(trace, _): &&(String, String)| !delivered.contains(trace);
        let missing: Vec<&str> = due.iter().filter(is_missing).map(|(_, when)| &**when).collect();
        let n_twice = came.len() - delivered.len();
        let spans = |request: &Value| request.to_string().matches("\"spanId\"").count();
        let largest = collector.traces().unwrap().iter().map(spans).max().unwrap_or(0);
        note(&format!(
            "{n_made} requests over {KILLS} kills: {} had their time, {} of them missing; {} delivered, {n_twice} twice; {largest} in a request at most; cut after the last kill: {n_cut}",
            due.len(),
            missing.len(),
            delivered.len()
        ));
        assert!(due.len() > KILLS * RATE as usize / 2);
        assert_eq!(missing, [""; 0]);
        assert!(n_twice <= KILLS * largest, "{n_twice} twice, {largest} in a request at most");
    }
}
