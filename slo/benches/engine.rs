//! What an event and a second cost, and a restart, with many objectives.
//!
//! `classify`: one event for one objective. `record`: counting it. `evaluate`: one second of 1,000 objectives with the
//! default alerts. `restart`: 1,000 objectives with 90 days of history, from stored pages.

use divan::Bencher;
use divan::counter::ItemsCount;
use slo::indicator::{Classifier, Status};
use slo::{Counts, Engine, Indicator, Kind, Objective, Page, Subject, Target, Time};

const START: i64 = 1_800_000_000;
const DAY: i64 = 86_400;
const OBJECTIVES: usize = 1000;
/// Events of an iteration.
const EVENTS: usize = 1024;

fn main() {
    let engine = full(1);
    println!(
        "one objective over 90 d: {} bytes; 1,000: {} MB",
        engine.bytes(),
        engine.bytes() * OBJECTIVES / 1_000_000
    );
    divan::main();
}

fn objective(number: usize, good: &str) -> Objective {
    let text = format!(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: slo-{number}}}\nspec:\n  service: shop-{number}\n  \
         indicator: {{metadata: {{name: success}}, spec: {{ratioMetric: {{counter: true, \
         good: {{metricSource: {{type: obi, spec: {{{good}}}}}}}, \
         total: {{metricSource: {{type: obi, spec: {{service: shop-{number}, route: \"/cart/*\", method: GET}}}}}}}}}}}}\n  \
         timeWindow: [{{duration: 90d, isRolling: true}}]\n  budgetingMethod: Occurrences\n  \
         objectives: [{{target: 0.999}}]\n"
    );
    let mut reading = slo::openslo::read([("bench.yaml", text.as_str())]);
    reading.objectives.pop().expect("the text is valid")
}

/// The pages that keep 90 days of counts of one objective.
fn history() -> Vec<Page> {
    let mut engine = Engine::new(vec![objective(0, "outcome: good")], Time::from_seconds(START - 90 * DAY));
    engine.observe(Time::from_seconds(START - 90 * DAY), Time::from_seconds(START));
    let hours = (-90 * 24..-72_i64).map(|hour| hour * 3600);
    let minutes = (-72 * 60..-360).map(|minute| minute * 60);
    let seconds = (-2160..0).map(|slot| slot * 10);
    for at in hours.chain(minutes).chain(seconds) {
        let counts = Counts { good: 1000 + at.unsigned_abs() % 77, bad: at.unsigned_abs() % 3 };
        engine.record_n(Target { objective: 0, part: 0 }, Time::from_seconds(START + at), counts);
    }
    let mut pages = Vec::new();
    engine.drain(|_, page| pages.push(page));
    pages
}

/// An engine of objectives that all have this history.
fn full(objectives: usize) -> Engine {
    let definitions = (0..objectives).map(|number| objective(number, "outcome: good")).collect();
    let mut engine = Engine::new(definitions, Time::from_seconds(START));
    engine.restore_coverage([(Time::from_seconds(START - 90 * DAY), Time::from_seconds(START))]);
    let pages = history();
    (0..objectives).for_each(|objective| engine.restore(objective, &pages));
    engine
}

fn subjects(random: &mut fastrand::Rng) -> Vec<Subject<'static>> {
    (0..EVENTS)
        .map(|_| Subject {
            service: "shop-7",
            kind: Kind::Server,
            route: "/cart/{id}",
            method: "GET",
            status: Status::Code(*random.choice(&[200, 404, 429, 500]).expect("not empty")),
            peer: "10.0.0.7",
            duration_ns: random.u64(0..600_000_000),
            queue_wait_ns: 0,
            error: random.bool(),
            streaming: false,
            attributes: &(),
        })
        .collect()
}

#[divan::bench(args = ["outcome: good", "faster_than: 300ms", "outcome: good, bad_statuses: [429], ignore_statuses: [499]"])]
fn classify(bencher: Bencher<'_, '_>, good: &str) {
    let definition = objective(7, good);
    let Indicator::Events(indicator) = &definition.parts[0].indicator else { panic!("counts events") };
    let classifier = Classifier::new(indicator);
    let mut random = fastrand::Rng::with_seed(7);
    let subjects = subjects(&mut random);
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        subjects
            .iter()
            .map(|subject| classifier.classify(divan::black_box(subject)).map_or(0, |outcome| outcome as u64))
            .sum::<u64>()
    });
}

/// The half that remains when the caller remembers who an event belongs to.
#[divan::bench]
fn judge(bencher: Bencher<'_, '_>) {
    let definition = objective(7, "faster_than: 300ms");
    let Indicator::Events(indicator) = &definition.parts[0].indicator else { panic!("counts events") };
    let classifier = Classifier::new(indicator);
    let mut random = fastrand::Rng::with_seed(7);
    let subjects = subjects(&mut random);
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        let judge = |subject| classifier.judge(divan::black_box(subject)).map_or(0, |outcome| outcome as u64);
        subjects.iter().map(judge).sum::<u64>()
    });
}

/// Events of one second, as they come.
#[divan::bench]
fn record(bencher: Bencher<'_, '_>) {
    let mut engine = full(1);
    let mut second = START;
    bencher.counter(ItemsCount::new(EVENTS)).bench_local(|| {
        second += 1;
        for n in 0..EVENTS as i64 {
            let counts = Counts { good: 1, bad: 0 };
            let at = Time::from_nanos(second * 1_000_000_000 + n);
            divan::black_box(engine.record_n(Target { objective: 0, part: 0 }, at, counts));
        }
        engine.evaluate(Time::from_seconds(second))
    });
}

/// One second: 10 ms are 1 % of a core.
#[divan::bench]
fn evaluate(bencher: Bencher<'_, '_>) {
    let mut engine = full(OBJECTIVES);
    let mut second = START;
    bencher.bench_local(|| {
        second += 1;
        engine.evaluate(Time::from_seconds(second))
    });
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn restart(bencher: Bencher<'_, '_>) {
    let definitions: Vec<Objective> =
        (0..OBJECTIVES).map(|number| objective(number, "outcome: good")).collect();
    let stored: Vec<(slo::PageKey, Vec<u8>)> =
        history().iter().map(|page| (page.key, page.encode())).collect();
    bencher.bench_local(|| {
        let mut engine = Engine::new(definitions.clone(), Time::from_seconds(START));
        for objective in 0..OBJECTIVES {
            let pages: Vec<Page> =
                stored.iter().filter_map(|(key, bytes)| Page::decode(*key, bytes)).collect();
            engine.restore(objective, &pages);
        }
        engine
    });
}
