//! Invented samples of a fleet: restarts, births, gaps, and what they add up to.

use super::*;

const GOOD: Role = Role::Outcome(Outcome::Good);

/// Samples every 15 seconds from 1,000,000 on; `_` is none.
fn series(instance: &str, values: &str) -> Series {
    let samples =
        values.split_whitespace().enumerate().filter(|(_, value)| *value != "_").map(|(index, value)| {
            let seconds = 1_000_000 + 15 * i64::try_from(index).unwrap();
            Sample { time: Time::from_seconds(seconds), value: value.parse().unwrap() }
        });
    let labels = [("job", "obi"), ("instance", instance)];
    Series {
        labels: labels.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
        samples: samples.collect(),
    }
}

fn total(gains: &[Gain]) -> u64 {
    gains.iter().map(|gain| gain.count).sum()
}

/// Cuts both series at every place: pieces change nothing.
#[track_caller]
fn check(what: &str, values: &str, starts: &str, expected: u64) {
    let (counter, start) = (series("one", values), series("one", starts));
    for cut in 0..=values.split_whitespace().count() {
        let edge = Time::from_seconds(1_000_000 + 15 * i64::try_from(cut).unwrap());
        let mut fleet = Fleet::default();
        let piece = |series: &Series, early: bool| Series {
            samples: series.samples.iter().copied().filter(|sample| (sample.time < edge) == early).collect(),
            ..series.clone()
        };
        let found: u64 = [true, false]
            .map(|early| total(&fleet.add(vec![(GOOD, piece(&counter, early))], vec![piece(&start, early)])))
            .iter()
            .sum();
        assert_eq!(found, expected, "{what}, cut at {cut}");
    }
}

#[test]
fn every_event_that_a_sample_shows_counts_once() {
    let long_gap = "_ ".repeat(50);
    check("more and more", "0 7 9 9 12", "999990 999990 999990 999990 999990", 12);
    check("born late in a young process", "_ _ 7 9", "_ _ 1000020 1000020", 9);
    check("born in a process that was seen before", "_ _ 500 501", "5 5 5 5", 501);
    check("older than anybody's look", "1000 1003", "5 5", 3);
    check("older, start unknown", "1000 1003", "_ _", 3);
    check("restart below", "0 10 3 4", "999990 999990 1000025 1000025", 14);
    check("restart above", "0 10 12 13", "999990 999990 1000025 1000025", 23);
    check("restart, start unknown", "0 10 3 4", "_ _ _ _", 14);
    check("short gap", "0 10 _ _ _ 15", "5 5 _ _ _ 5", 15);
    check("start jitters", "0 10 12", "999990 999990.4 999989.8", 12);
    check("long gap", &format!("0 10 {long_gap} 500 501"), &format!("5 5 {long_gap} 5 5"), 11);
    check(
        "restart in a long gap, lately",
        &format!("0 10 {long_gap} 6 7"),
        &format!("5 5 {long_gap} 1000700 1000700"),
        17,
    );
}

#[test]
fn gaps_are_where_no_machine_was_seen() {
    let mut fleet = Fleet::default();
    let hole = "_ ".repeat(60);
    fleet.add(
        vec![(GOOD, series("one", &format!("0 0 0 {hole} 1 1"))), (GOOD, series("two", "_ _ 0 0 0"))],
        Vec::new(),
    );
    let at = |seconds: i64| Time::from_seconds(1_000_000 + seconds);
    let expected = vec![(at(-10), at(0)), (at(60), at(63 * 15)), (at(64 * 15), at(64 * 15 + 5))];
    assert_eq!(fleet.gaps(at(-10), at(64 * 15 + 5)), expected);
    assert_eq!((fleet.machines(), fleet.machines_since(at(900))), (2, 1));
}
