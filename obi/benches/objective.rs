//! What a thousand objectives cost the agent: a restart, a span, a second.
//!
//! In: nothing. Out: three lines. Not divan's: a restart is measured once, and the cost of threads by the kernel's
//! count of their CPU time, since they mostly sleep.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark fails by panicking, and prints")]

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use obi::config::Slo;
use obi::objective::record::Recorder;
use obi::objective::state::{Batch, State};
use obi::objective::{Start, identity, start};
use obi::span::{Detail, Http, Service, Span};
use obi::span_store::{Limits, Store};
use slo::{Counts, Engine, Objective, Target, Time};

const OBJECTIVES: usize = 1_000;
const HOUR: i64 = 3600;
const DAY: i64 = 24 * HOUR;
/// How long the threads are watched.
const WATCHED: Duration = Duration::from_secs(20);

fn main() {
    let objectives = objectives();
    let directory = tempfile::tempdir().unwrap();
    write_history(&objectives, directory.path());
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let _guard = runtime.enter();
    let config = Slo { state: directory.path().to_owned(), ..Slo::default() };
    let begun = Instant::now();
    let from = Start { config: &config, objectives, instance: "bench".to_owned(), url: String::new() };
    let (mut recorder, handle, running) = start(from).unwrap();
    let bytes = std::fs::metadata(directory.path().join("counts.redb")).unwrap().len();
    println!(
        "restart with {OBJECTIVES} objectives x 90 d, {} MB on disk: {:?}",
        bytes >> 20,
        begun.elapsed()
    );
    assert_eq!(handle.view().unwrap().objectives.len(), OBJECTIVES);
    bench_span(&mut recorder);
    bench_second(&mut recorder);
    runtime.block_on(running.finish());
}

/// One per service, of 90 days.
fn objectives() -> Vec<Objective> {
    let one = |n: usize| {
        format!(
            "---\napiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: slo-{n}}}\nspec:\n  service: service-{n}\n  \
             indicator:\n    metadata: {{name: sli-{n}}}\n    spec:\n      ratioMetric:\n        counter: true\n        good: \
             {{metricSource: {{type: obi, spec: {{outcome: good}}}}}}\n        total: {{metricSource: {{type: obi, spec: \
             {{service: service-{n}}}}}}}\n  timeWindow: [{{duration: 90d, isRolling: true}}]\n  budgetingMethod: \
             Occurrences\n  objectives: [{{target: 0.999}}]\n"
        )
    };
    let text: String = (0..OBJECTIVES).map(one).collect();
    let reading = slo::openslo::read([("bench", text.as_str())]);
    assert_eq!(reading.objectives.len(), OBJECTIVES, "{:?}", reading.findings.first());
    reading.objectives
}

/// Every slot of every series is in use.
fn write_history(objectives: &[Objective], directory: &Path) {
    let now = unix_seconds();
    let mut engine = Engine::new(objectives.to_vec(), Time::from_seconds(now - 90 * DAY));
    let state = State::open(directory).unwrap();
    let hours = (now - 90 * DAY..now - 3 * DAY).step_by(3600);
    let minutes = (now - 3 * DAY..now - 6 * HOUR).step_by(60);
    let seconds = (now - 6 * HOUR..now).step_by(10);
    let times: Vec<i64> = hours.chain(minutes).chain(seconds).collect();
    for at in &times {
        engine.observe(Time::from_seconds(*at), Time::from_seconds(*at + 10));
        for objective in 0..OBJECTIVES {
            let counts = Counts { good: 1_000 + at.unsigned_abs() % 977, bad: at.unsigned_abs() % 3 };
            engine.record_n(Target { objective, part: 0 }, Time::from_seconds(*at), counts);
        }
    }
    let identities: Vec<u64> = engine.accounts().map(identity::of).collect();
    let mut batch =
        Batch { coverage: vec![((now - 90 * DAY) * 1_000_000_000, now * 1_000_000_000)], ..Batch::default() };
    engine.drain(|objective, page| {
        let bytes = page.encode();
        if !bytes.is_empty() {
            let key = (identities[objective], page.key.part, page.key.series as u8, page.key.index);
            batch.chunks.push((key, bytes));
        }
    });
    state.write(&batch).unwrap();
}

fn span(service: u32) -> Span {
    let mut span = Span::blank();
    span.service =
        Arc::new(Service { name: format!("service-{service}"), id: service, ..Service::default() });
    span.detail = Detail::Http(Http {
        method: "GET",
        route: "/item/{id}".into(),
        status: Some(200),
        ..Http::default()
    });
    span.end = unix_seconds().unsigned_abs() * 1_000_000_000;
    span.start = span.end - 1_000_000;
    span
}

/// What an event costs the pipeline, whatever the number of objectives.
fn bench_span(recorder: &mut Recorder) {
    const N: u32 = 4_000_000;
    let spans: Vec<Span> = (0..64).map(|n| span(n * 15)).collect();
    let mut store = Store::new(Limits::default());
    let begun = Instant::now();
    for span in spans.iter().cycle().take(N as usize) {
        recorder.record(span);
        recorder.stored(&mut store);
    }
    println!("a span, judged and counted: {:?}", begun.elapsed() / N);
}

/// CPU of the objectives' threads while every objective has events all the time.
fn bench_second(recorder: &mut Recorder) {
    let before = cpu();
    let begun = Instant::now();
    let mut store = Store::new(Limits::default());
    while begun.elapsed() < WATCHED {
        for n in 0..u32::try_from(OBJECTIVES).unwrap() {
            recorder.record(&span(n));
            recorder.stored(&mut store);
        }
        recorder.flush();
        std::thread::sleep(Duration::from_secs(1));
    }
    let share = |ticks: u64| 100.0 * ticks as f64 / ticks_per_second() / begun.elapsed().as_secs_f64();
    let after = cpu();
    println!(
        "{OBJECTIVES} objectives with events in every second: evaluation {:.2} % of a core, writing {:.2} %, RSS {} MB",
        share(after.0 - before.0),
        share(after.1 - before.1),
        resident_bytes() >> 20
    );
}

/// CPU ticks of the thread that evaluates and of the one that writes.
fn cpu() -> (u64, u64) {
    let mut ticks = (0, 0);
    for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
        let stat = std::fs::read_to_string(task.path().join("stat")).unwrap_or_default();
        let Some((head, tail)) = stat.rsplit_once(") ") else { continue };
        let fields: Vec<&str> = tail.split(' ').collect();
        let used: u64 = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        if head.ends_with("(objectives") {
            ticks.0 += used;
        } else if head.ends_with("(objectives-disk") {
            ticks.1 += used;
        }
    }
    ticks
}

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

fn resident_bytes() -> u64 {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap();
    let pages: u64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
    pages * rustix::param::page_size() as u64
}

fn unix_seconds() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()).unwrap()
}
