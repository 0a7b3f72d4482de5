//! An evaluator without a pipeline and without peers: batches in, views out, and another evaluator after it.

use std::path::Path;
use std::sync::mpsc::sync_channel;

use super::*;
use crate::objective::classify::tests::{objectives, slo};
use crate::objective::state::Left;

const SECOND: u64 = 1_000_000_000;

/// An evaluator over this directory, with what an earlier one has left there.
fn evaluator(directory: &Path) -> Evaluator {
    let texts = [
        slo("errors", "{service: shop}", "{outcome: good}"),
        slo("other", "{service: b}", "{outcome: good}"),
    ];
    let engine = Engine::new(objectives(&texts), time(unix_now()));
    let (writer, left) = Writer::start(directory, Box::new(|_, _| panic!("the directory is there")))
        .expect("threads can be started");
    let notifier = Notifier::start(&[], &[], "").unwrap();
    let (_, messages) = sync_channel(1);
    let firing = [false, false].map(AtomicBool::new).into_iter().collect();
    let instance = "here".to_owned();
    let mut evaluator = Evaluator::new(Ingredients { engine, notifier, writer, firing, instance, messages });
    evaluator.restore(left);
    evaluator
}

fn batch(good: u64, bad: u64) -> record::Batch {
    let exhibit = Exhibit { worst_route: "GET /a".to_owned(), trace_ids: vec!["1".repeat(32)] };
    let at = unix_now() / (10 * SECOND) * (10 * SECOND);
    let counts = vec![Count { objective: 0, part: 0, at, good, bad }];
    record::Batch { counts, exhibits: vec![(0, exhibit)] }
}

/// Good and bad of the period, and of the counter.
fn counts(evaluator: &mut Evaluator) -> [(u64, u64); 2] {
    let objective = evaluator.view().objectives.remove(0);
    let counter = &objective.events[0];
    [(objective.good, objective.bad), (counter.good, counter.bad)]
}

#[test]
fn an_alert_fires_explains_itself_and_outlives_the_process() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = evaluator(directory.path());
    first.round();
    assert!(first.view().alerts.is_empty());
    first.take(batch(100, 100));
    first.round();
    let view = first.view();
    let alert = view.alerts.iter().find(|alert| alert.labels["severity"] == "page").unwrap().clone();
    assert_eq!((alert.labels["slo"].as_str(), alert.labels["instance"].as_str()), ("errors", "here"));
    assert_eq!(alert.annotations["bad_events"], "100");
    assert_eq!(alert.annotations["total_events"], "200");
    assert_eq!(alert.annotations["worst_route"], "GET /a");
    assert_eq!(alert.annotations["trace_ids"], "1".repeat(32));
    assert!(first.firing[0].load(Ordering::Relaxed) && !first.firing[1].load(Ordering::Relaxed));
    let page = |view: &View| {
        view.objectives[0].alerts.iter().any(|alert| alert.severity == "page" && alert.is_firing)
    };
    assert!(page(&view));
    assert!(!view.objectives[1].alerts.iter().any(|alert| alert.is_firing));
    first.finish();

    let mut second = evaluator(directory.path());
    second.round();
    let again = second.view();
    let same = again.alerts.iter().find(|again| again.labels == alert.labels).unwrap();
    assert_eq!((&same.starts_at, &same.state), (&alert.starts_at, &"firing".to_owned()));
    assert!(page(&again));
}

#[test]
fn budgets_go_on_and_counters_begin_at_zero() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = evaluator(directory.path());
    first.take(batch(5, 2));
    assert_eq!(counts(&mut first), [(5, 2), (5, 2)]);
    first.finish();
    // After a clean end.
    let mut second = evaluator(directory.path());
    assert_eq!(counts(&mut second), [(5, 2), (0, 0)]);
    second.take(batch(1, 1));
    assert_eq!(counts(&mut second), [(6, 3), (1, 1)]);
    // As if killed once everything is on disk: no thread learns that the end came.
    second.round();
    while !second.writer.is_idle() {
        std::thread::sleep(Duration::from_millis(5));
    }
    drop(second);
    let begun = Instant::now();
    while crate::objective::state::State::open(directory.path()).is_err() {
        assert!(begun.elapsed() < Duration::from_secs(30), "its writer ends on its own");
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut third = evaluator(directory.path());
    assert_eq!(counts(&mut third), [(6, 3), (0, 0)]);
}

#[test]
fn what_comes_late_is_added() {
    let directory = tempfile::tempdir().unwrap();
    let mut first = evaluator(directory.path());
    first.take(batch(5, 2));
    let mut stored = first.batch();
    let left = Left { chunks: stored.chunks.clone(), coverage: stored.coverage.clone(), ..Left::default() };
    // The same counts again, of a process that did not know of them.
    let elsewhere = tempfile::tempdir().unwrap();
    let mut second = evaluator(elsewhere.path());
    second.take(batch(1, 1));
    second.restore_late(left.clone());
    assert_eq!(counts(&mut second), [(6, 3), (1, 1)]);
    add_up(&left, &mut stored);
    let sum: u64 = stored
        .chunks
        .iter()
        .filter_map(|(key, bytes)| {
            let series = Series::from_number(key.2)?;
            let page = Page::decode(slo::PageKey { part: key.1, series, index: key.3 }, bytes)?;
            Some(page.slots.iter().map(|(good, _)| good).sum::<u64>())
        })
        .sum();
    assert_eq!(sum, 3 * 10, "three series, each twice five");
}

#[test]
fn chunks_of_slots_that_are_held_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let mut evaluator = evaluator(directory.path());
    evaluator.take(batch(5, 2));
    let before = {
        let batch = evaluator.batch();
        evaluator.writer.write(batch);
        while !evaluator.writer.is_idle() {
            std::thread::sleep(Duration::from_millis(5));
        }
        counts(&mut evaluator)
    };
    evaluator.prune();
    while !evaluator.writer.is_idle() {
        std::thread::sleep(Duration::from_millis(5));
    }
    evaluator.finish();
    let mut again = super::tests::evaluator(directory.path());
    assert_eq!(counts(&mut again)[0], before[0]);
}
