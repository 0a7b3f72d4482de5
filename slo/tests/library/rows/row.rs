//! The eight rows: what happened, when it is looked at, and what is asked.

use super::story::{Burst, Outcome, Process};

/// What a row asks of everyone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Question {
    /// What is left of the period's budget.
    Budget,
    /// Events of one outcome in the period.
    Events(Outcome),
    /// Events of one outcome in the last minutes.
    EventsIn(Outcome, u32),
    /// Alerts that fire.
    Alerts,
    /// Minutes for which a page went on after this second.
    PageAfter(i64),
}

#[derive(Clone, Debug)]
pub(crate) struct Row {
    pub(crate) number: u32,
    pub(crate) what: &'static str,
    /// Seconds between scrapes.
    pub(crate) scrape: i64,
    /// Whether the application's own error counter appears with its first error, as client libraries have it. Where
    /// it is not what the row is about, the counter is there from the start.
    pub(crate) label_born: bool,
    pub(crate) story: Vec<Process>,
    /// Seconds from the beginning to the question.
    pub(crate) asked: i64,
    pub(crate) question: Question,
    /// The answer, from what happened.
    pub(crate) truth: f64,
}

const FOREVER: i64 = i64::MAX;
const HOUR: i64 = 3600;
/// Of the objective in all rows: 99.9 %.
pub(crate) const BUDGET: f64 = 0.001;

fn bursts(outcome: Outcome, from: i64, every: i64, count: i64) -> Burst {
    Burst { outcome, from, every, count }
}

fn one_process(bursts: Vec<Burst>) -> Vec<Process> {
    vec![Process { machine: "one", start: 0, end: FOREVER, bursts }]
}

/// What is left, from exact counts.
fn left(good: f64, bad: f64) -> f64 {
    1.0 - bad / (good + bad) / BUDGET
}

/// All rows.
pub(crate) fn rows() -> Vec<Row> {
    use Outcome::{Bad, Good};
    let uneven = vec![
        bursts(Good, 10_000, 20_000, 3 * 360),
        bursts(Bad, 20_000, 20_000, 3 * 360),
        bursts(Good, 6 * HOUR * 1000 + 10, 10, 6000 * 60 * 18),
    ];
    let quiet = vec![bursts(Good, 500, 1000, HOUR), bursts(Good, (HOUR + 600) * 1000, 1000, 9 * HOUR)];
    // From the second hour on all requests fail for twenty minutes; ten a second all the time.
    let outage = vec![
        bursts(Good, 50, 100, 2 * HOUR * 10),
        bursts(Bad, 2 * HOUR * 1000 + 50, 100, 1200 * 10),
        bursts(Good, (2 * HOUR + 1200) * 1000 + 50, 100, 2 * HOUR * 10),
    ];
    let recovered = 2 * HOUR + 1200;
    let pod = |machine: &'static str| Process {
        machine,
        start: 0,
        end: 45,
        bursts: vec![bursts(Good, 125, 250, 120)],
    };
    let life = |start: i64, end: i64, first: i64, count: i64| Process {
        machine: "one",
        start,
        end,
        bursts: vec![bursts(Good, first * 1000, 500, count)],
    };
    vec![
        Row {
            number: 1,
            what: "6 h of 6 a minute, half bad; 18 h of 6,000 a minute, clean: budget left",
            scrape: 60,
            label_born: false,
            story: one_process(uneven),
            asked: 24 * HOUR + 120,
            question: Question::Budget,
            truth: left(6_481_080.0, 1080.0),
        },
        Row {
            number: 2,
            what: "ten minutes without traffic, nine hours ago: budget left",
            scrape: 60,
            label_born: false,
            story: one_process(quiet),
            asked: 10 * HOUR,
            question: Question::Budget,
            truth: 1.0,
        },
        Row {
            number: 3,
            what: "one request a minute, one failure: alerts",
            scrape: 15,
            label_born: false,
            story: one_process(vec![
                bursts(Good, 7_000, 60_000, 180),
                bursts(Bad, HOUR * 1000 + 37_000, 60_000, 1),
            ]),
            asked: HOUR + 180,
            question: Question::Alerts,
            truth: 0.0,
        },
        Row {
            number: 4,
            what: "500 errors at once, the first ever: bad events",
            scrape: 15,
            label_born: true,
            story: one_process(vec![bursts(Good, 500, 1000, HOUR), bursts(Bad, 1_801_000, 10, 500)]),
            asked: HOUR,
            question: Question::Events(Bad),
            truth: 500.0,
        },
        Row {
            number: 5,
            what: "10 events, restart, 12 events until the next scrape: events since the 10",
            scrape: 15,
            label_born: false,
            story: vec![life(0, 601, 500, 10), life(602, FOREVER, 603, 12)],
            asked: 890,
            question: Question::EventsIn(Good, 5),
            truth: 12.0,
        },
        Row {
            number: 6,
            what: "one event, looked at over a minute: events",
            scrape: 15,
            label_born: false,
            story: one_process(vec![bursts(Good, 40_000, 1000, 1)]),
            asked: 70,
            question: Question::EventsIn(Good, 1),
            truth: 1.0,
        },
        Row {
            number: 7,
            what: "two pods of three scrapes, 120 events each: events",
            scrape: 15,
            label_born: false,
            story: vec![pod("one"), pod("two")],
            asked: 300,
            question: Question::Events(Good),
            truth: 240.0,
        },
        Row {
            number: 8,
            what: "after 20 minutes of full outage: minutes that the page goes on",
            scrape: 15,
            label_born: false,
            story: one_process(outage),
            asked: recovered + 2 * HOUR - 60,
            question: Question::PageAfter(recovered),
            truth: 0.0,
        },
    ]
}
