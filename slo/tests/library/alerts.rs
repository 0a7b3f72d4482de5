//! Alerts over simulated time: when they fire, when they end, and that restarts do not show.
//!
//! In: traffic second by second. Out: transitions. Refuses to wait for real time.

use slo::alert::{Change, End, Transition};
use slo::{Counts, Engine, Objective, Recorded, Target, Time};

const START: i64 = 1_800_000_000;
const ONLY: Target = Target { objective: 0, part: 0 };

fn objective(target: &str, rest: &str) -> Objective {
    let text = format!(
        "
apiVersion: openslo/v1
kind: SLO
metadata: {{name: checkout}}
spec:
  service: shop
  indicator:
    metadata: {{name: success}}
    spec:
      ratioMetric:
        counter: true
        good: {{metricSource: {{type: obi, spec: {{outcome: good}}}}}}
        total: {{metricSource: {{type: obi, spec: {{service: shop}}}}}}
  timeWindow: [{{duration: 30d, isRolling: true}}]
  budgetingMethod: Occurrences
  objectives: [{{target: {target}}}]
{rest}"
    );
    let mut reading = slo::openslo::read([("test.yaml", text.as_str())]);
    assert_eq!(reading.objectives.len(), 1, "{:?}", reading.findings);
    reading.objectives.remove(0)
}

/// Traffic for some seconds: requests in a second, by their ordinal number; and how many of a thousand are bad.
struct Traffic {
    seconds: i64,
    per_thousand_seconds: u64,
    bad_per_mille: u64,
}

const fn traffic(seconds: i64, per_thousand_seconds: u64, bad_per_mille: u64) -> Traffic {
    Traffic { seconds, per_thousand_seconds, bad_per_mille }
}

struct Simulation {
    engine: Engine,
    second: i64,
    sent: u64,
    bad: u64,
    transitions: Vec<Transition>,
}

impl Simulation {
    fn new(objective: Objective) -> Self {
        let engine = Engine::new(vec![objective], Time::from_seconds(START));
        Self { engine, second: 0, sent: 0, bad: 0, transitions: Vec::new() }
    }

    fn run(&mut self, traffic: &Traffic) {
        for n in 0..traffic.seconds {
            let before = n.unsigned_abs() * traffic.per_thousand_seconds / 1000;
            let after = (n + 1).unsigned_abs() * traffic.per_thousand_seconds / 1000;
            let bad = |requests: u64| requests * traffic.bad_per_mille / 1000;
            let counts =
                Counts { bad: bad(after) - bad(before), good: after - before - (bad(after) - bad(before)) };
            let at = Time::from_seconds(START + self.second);
            if counts.total() > 0 {
                assert_eq!(self.engine.record_n(ONLY, at, counts), Recorded::Counted);
            }
            self.sent += counts.total();
            self.bad += counts.bad;
            self.second += 1;
            self.transitions.extend(self.engine.evaluate(Time::from_seconds(START + self.second)));
        }
    }

    /// The agent is away for so long: a new one takes over what was kept.
    fn restart(&mut self, away: i64) {
        let mut pages = Vec::new();
        self.engine.drain(|_, page| pages.push(page));
        let intervals = self.engine.coverage().intervals().to_vec();
        let arms = self.engine.save_arms();
        let objective = self.engine.account(0).expect("there is one objective").objective().clone();
        self.second += away;
        self.engine = Engine::new(vec![objective], Time::from_seconds(START + self.second));
        self.engine.restore(0, &pages);
        self.engine.restore_coverage(intervals);
        assert!(self.engine.restore_arms(arms).is_empty());
    }

    /// Seconds since the start, severity, and whether it fired.
    fn story(&self) -> Vec<(i64, &str, Change)> {
        let reported = self.transitions.iter();
        reported.map(|one| (one.at.seconds() - START, one.alert.severity.as_str(), one.change)).collect()
    }

    fn times(&self, severity: &str) -> (Vec<i64>, Vec<(i64, End)>) {
        let mut fired = Vec::new();
        let mut ended = Vec::new();
        for (at, reported, change) in self.story() {
            match change {
                _ if reported != severity => {}
                Change::Fired => fired.push(at),
                Change::Resolved(end) => ended.push((at, end)),
            }
        }
        (fired, ended)
    }
}

#[test]
fn one_failed_request_in_an_hour_pages_nobody() {
    let mut simulation = Simulation::new(objective("0.999", ""));
    // One request a minute for three hours, then the only failure, then an hour more.
    simulation.run(&traffic(10_800, 17, 0));
    simulation.run(&traffic(60, 17, 1000));
    simulation.run(&traffic(3600, 17, 0));
    assert_eq!(simulation.bad, 1);
    assert_eq!(simulation.story(), []);
}

#[test]
fn an_outage_pages_within_a_minute_and_is_over_two_minutes_after_its_end() {
    let mut simulation = Simulation::new(objective("0.999", ""));
    simulation.run(&traffic(6 * 3600, 100_000, 0));
    simulation.run(&traffic(20 * 60, 100_000, 1000));
    simulation.run(&traffic(2 * 3600, 100_000, 0));
    let outage = 6 * 3600;
    let over = outage + 20 * 60;
    for severity in ["page", "ticket"] {
        let (fired, ended) = simulation.times(severity);
        assert_eq!((fired.len(), ended.len()), (1, 1), "{severity}: {:?}", simulation.story());
        // 1.44 % of an hour is 52 s.
        let crossing = if severity == "page" { 52 } else { 3600 };
        assert!(fired[0] <= outage + crossing + 60, "{:?}", simulation.story());
        assert!((over..=over + 120).contains(&ended[0].0), "{:?}", simulation.story());
        assert_eq!(ended[0].1, End::Recovered);
    }
}

#[test]
fn tickets_of_little_traffic_end_in_time_too() {
    // One request a second: the ticket's short window of 6 h holds 20 min of outage.
    let mut simulation = Simulation::new(objective("0.999", ""));
    simulation.run(&traffic(6 * 3600, 1000, 0));
    simulation.run(&traffic(20 * 60, 1000, 1000));
    simulation.run(&traffic(3600, 1000, 0));
    let over = 6 * 3600 + 20 * 60;
    for severity in ["page", "ticket"] {
        let (fired, ended) = simulation.times(severity);
        assert_eq!((fired.len(), ended.len()), (1, 1), "{severity}: {:?}", simulation.story());
        assert!((over..=over + 120).contains(&ended[0].0), "{:?}", simulation.story());
    }
}

#[test]
fn a_share_of_failures_pages_at_the_crossing_and_ends_in_time() {
    for per_second in [5, 50, 500] {
        let mut simulation = Simulation::new(objective("0.99", ""));
        simulation.run(&traffic(600, per_second * 1000, 0));
        simulation.run(&traffic(600, per_second * 1000, 300));
        simulation.run(&traffic(1800, per_second * 1000, 0));
        let (fired, ended) = simulation.times("page");
        assert_eq!((fired.len(), ended.len()), (1, 1), "{per_second}: {:?}", simulation.story());
        assert!((1200..=1320).contains(&ended[0].0), "{per_second}: {:?}", simulation.story());
    }
}

#[test]
fn a_restart_in_an_incident_does_not_show() {
    let check = |away: i64| {
        let mut simulation = Simulation::new(objective("0.99", ""));
        simulation.run(&traffic(3600, 50_000, 0));
        simulation.run(&traffic(900, 50_000, 500));
        let (fired, _) = simulation.times("page");
        assert_eq!(fired.len(), 1, "{:?}", simulation.story());
        simulation.restart(away);
        simulation.run(&traffic(900, 50_000, 500));
        assert_eq!(simulation.times("page"), (fired.clone(), vec![]), "away {away}");
        let since = simulation.engine.firing_since(0, "page").unwrap();
        assert_eq!(since.seconds() - START, fired[0]);
        simulation.run(&traffic(600, 50_000, 0));
        let (fired, ended) = simulation.times("page");
        assert_eq!((fired.len(), ended.len()), (1, 1), "away {away}: {:?}", simulation.story());
    };
    check(1);
    check(20);
    check(400);
    check(7200);
}

#[test]
fn nobody_looking_is_no_recovery() {
    let mut simulation = Simulation::new(objective("0.99", ""));
    simulation.run(&traffic(1800, 50_000, 0));
    simulation.run(&traffic(600, 50_000, 800));
    simulation.restart(1800);
    simulation.run(&traffic(30, 50_000, 0));
    assert_eq!(simulation.times("page").1, []);
    simulation.run(&traffic(120, 50_000, 0));
    assert_eq!(simulation.times("page").1.len(), 1, "{:?}", simulation.story());
}

#[test]
fn silence_ends_an_alert_after_five_minutes() {
    let mut simulation = Simulation::new(objective("0.99", ""));
    simulation.run(&traffic(1800, 50_000, 0));
    simulation.run(&traffic(900, 50_000, 800));
    simulation.run(&traffic(900, 0, 0));
    let (_, ended) = simulation.times("page");
    assert_eq!(ended.len(), 1, "{:?}", simulation.story());
    assert_eq!(ended[0].1, End::Quiet);
    assert!((3000..=3020).contains(&ended[0].0), "{:?}", simulation.story());
}

#[test]
fn low_traffic_that_fails_wholly_still_pages() {
    // One request a minute: five failures are the least evidence.
    let mut simulation = Simulation::new(objective("0.999", ""));
    simulation.run(&traffic(10_800, 17, 0));
    simulation.run(&traffic(1200, 17, 1000));
    let (fired, _) = simulation.times("page");
    assert_eq!(fired.len(), 1, "{:?}", simulation.story());
    assert!(fired[0] <= 10_800 + 360, "{fired:?}");
}

#[test]
fn an_alert_of_a_spent_budget_says_so_and_promises_no_time() {
    let mut simulation = Simulation::new(objective("0.99", ""));
    simulation.run(&traffic(600, 50_000, 0));
    simulation.run(&traffic(900, 50_000, 800));
    let fired = simulation.transitions.iter().find(|reported| reported.alert.severity == "page").unwrap();
    let described = &fired.alert.annotations(&slo::alert::Evidence::default())["description"];
    assert!(described.contains("the error budget is used up: "), "{described}");
    assert!(!described.contains("used up in"), "{described}");
}

#[test]
fn an_alert_says_why() {
    let mut simulation = Simulation::new(objective("0.99", ""));
    simulation.run(&traffic(600, 50_000, 0));
    simulation.run(&traffic(900, 50_000, 500));
    let fired = simulation.transitions.iter().find(|reported| reported.alert.severity == "page").unwrap();
    let evidence = slo::alert::Evidence {
        worst_route: "/pay".to_owned(),
        trace_ids: ["a", "b", "c", "d"].map(str::to_owned).to_vec(),
    };
    let annotations = fired.alert.annotations(&evidence);
    for (name, part) in [
        ("summary", "checkout of shop burns its error budget"),
        ("description", "30m: burn rate"),
        ("evidence", "at least 5 needed; with 95 % confidence the burn rate over 6h is above 6."),
        ("worst_route", "/pay"),
        ("trace_ids", "a b c"),
    ] {
        assert!(annotations[name].contains(part), "{name}: {}", annotations[name]);
    }
    assert!(annotations["bad_events"].parse::<u64>().unwrap() >= 5);
    assert_eq!(fired.alert.labels().len(), 4);
}
