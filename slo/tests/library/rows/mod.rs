//! Eight situations in which error budgets from scraped rates go wrong, and what everyone makes of them.
//!
//! In: a story of single events. Out: what Sloth's rules, Pyrra's rules and ours say over the same scrapes, in
//! promtool, and what the engine says that got the same events. The files `sloth.yaml` and `pyrra.yaml` have the form
//! of what these tools generate.

#![expect(clippy::cast_precision_loss, reason = "counts of a few million events")]

pub(crate) mod row;
mod story;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use std::time::Duration;

use slo::openslo::read;
use slo::rules::{self, Timing};
use slo::{Counts, Engine, Objective, Target, Time};

use self::row::{BUDGET, Question, Row};
use self::story::Outcome;

const SLO: &str = include_str!("shop.yaml");

/// Minutes after the last error in which an alert must be over.
const SOON: f64 = 2.0;
/// The beginning of every story.
const BEGINNING: i64 = 1_700_000_000;

/// Who is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Who {
    Sloth,
    Pyrra,
    Rules,
}

/// What promtool answered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    /// No series.
    Nothing,
    Value(f64),
}

impl Answer {
    #[allow(dead_code, reason = "the table shows, tests judge")]
    /// Whether it is the truth: to the last digit, or soon enough where it is about the end of an alert.
    pub(crate) fn is_true(self, row: &Row) -> bool {
        let Self::Value(value) = self else { return false };
        match row.question {
            Question::PageAfter(_) => value <= SOON,
            _ => (value - row.truth).abs() <= 1e-9 * row.truth.abs().max(1.0),
        }
    }
}

impl fmt::Display for Answer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => out.pad("nothing"),
            Self::Value(value) => out.pad(&format!("{value:.6}")),
        }
    }
}

pub(crate) fn objective() -> Objective {
    let mut reading = read([("shop.yaml", SLO)]);
    assert_eq!(reading.objectives.len(), 1, "{:?}", reading.findings);
    reading.objectives.remove(0)
}

/// Asks a backend, over the same scrapes.
pub(crate) fn ask(row: &Row, who: Who) -> Answer {
    let folder = tempfile::tempdir().expect("a folder for rules");
    let ours = rules::generate(&[objective()], Timing::default()).file.to_yaml();
    let rules = match who {
        Who::Sloth => include_str!("sloth.yaml"),
        Who::Pyrra => include_str!("pyrra.yaml"),
        Who::Rules => &ours,
    };
    for (name, text) in [("rules.yaml", rules), ("test.yaml", &test(row, who))] {
        fs::write(folder.path().join(name), text).expect("the folder can be written");
    }
    promtool(folder.path())
}

/// What the engine says that got the same events.
pub(crate) fn engine(row: &Row) -> Answer {
    let at = |second: i64| Time::from_seconds(BEGINNING + second);
    let mut engine = Engine::new(vec![objective()], at(0));
    let mut paged = 0_u32;
    for second in 0..row.asked {
        let (good, bad) = story::within(&row.story, second);
        engine.record_n(Target { objective: 0, part: 0 }, at(second), Counts { good, bad });
        engine.evaluate(at(second + 1));
        let recovered = matches!(row.question, Question::PageAfter(end) if second >= end);
        paged += u32::from(recovered && engine.firing_since(0, "page").is_some());
    }
    let now = at(row.asked);
    let status = engine.status(0, now).expect("one objective is tracked");
    let of = |outcome: Outcome, counts: Counts| match outcome {
        Outcome::Good => counts.good as f64,
        Outcome::Bad => counts.bad as f64,
    };
    Answer::Value(match row.question {
        Question::Budget => status.budget.remaining,
        Question::Events(outcome) => of(outcome, status.budget.burn.counts),
        Question::EventsIn(outcome, minutes) => {
            let account = engine.account(0).expect("one objective is tracked");
            let window = Duration::from_mins(minutes.into());
            of(outcome, account.burn(window, now, engine.coverage()).counts)
        }
        Question::Alerts => engine.firing(now).len() as f64,
        Question::PageAfter(_) => f64::from(paged) / 60.0,
    })
}

/// A test that never holds: what promtool says it got is the answer.
fn test(row: &Row, who: Who) -> String {
    let series = story::series(&row.story, row.scrape, row.asked, row.label_born);
    let series: Vec<String> = series
        .iter()
        .map(|series| format!("  - {{series: '{}', values: '{}'}}", series.name, series.notation()))
        .collect();
    format!(
        "rule_files: [rules.yaml]\nevaluation_interval: 30s\ntests:\n- interval: {}s\n  input_series:\n{}\n  \
         promql_expr_test:\n  - expr: |\n      {}\n    eval_time: {}s\n    \
         exp_samples: [{{labels: nobody, value: 0}}]\n",
        row.scrape,
        series.join("\n"),
        expression(row, who),
        row.asked
    )
}

fn expression(row: &Row, who: Who) -> String {
    let code = |outcome: Outcome| if outcome == Outcome::Bad { "500" } else { "200" };
    let label = |outcome: Outcome| if outcome == Outcome::Bad { "bad" } else { "good" };
    match (row.question, who) {
        (Question::Budget, Who::Sloth) => "slo:period_error_budget_remaining:ratio".to_owned(),
        (Question::Budget, Who::Pyrra) => format!(
            "1 - sum(http_requests:increase4w{{code=~\"5..\"}}) / sum(http_requests:increase4w) / {BUDGET}"
        ),
        (Question::Budget, Who::Rules) => rules::BUDGET_REMAINING.to_owned(),
        // Sloth records no counts: what its error ratio says of the number of requests that it sees.
        (Question::Events(Outcome::Bad), Who::Sloth) => {
            "slo:sli_error:ratio_rate30d * on () sum(increase(http_requests_total[30d]))".to_owned()
        }
        (Question::Events(outcome), Who::Sloth | Who::Pyrra) => {
            format!("sum(increase(http_requests_total{{code=\"{}\"}}[4w])) or vector(0)", code(outcome))
        }
        (Question::Events(outcome), Who::Rules) => {
            format!("sum({}{{window=\"28d\",outcome=\"{}\"}})", rules::EVENTS, label(outcome))
        }
        // Both compute from `rate` over the window.
        (Question::EventsIn(outcome, minutes), Who::Sloth | Who::Pyrra) => format!(
            "sum(rate(http_requests_total{{code=\"{}\"}}[{minutes}m])) * {}",
            code(outcome),
            60 * minutes
        ),
        (Question::EventsIn(outcome, minutes), Who::Rules) => format!(
            "sum(sum_over_time(slo:events:increase30s{{outcome=\"{}\"}}[{}s999ms]))",
            label(outcome),
            60 * minutes - 1
        ),
        (Question::Alerts, _) => "count(ALERTS{alertstate=\"firing\"}) or vector(0)".to_owned(),
        (Question::PageAfter(second), _) => {
            let severity = match who {
                Who::Sloth => "sloth_severity=\"page\"",
                Who::Pyrra => "severity=\"critical\"",
                Who::Rules => "severity=\"page\"",
            };
            let firing = format!("ALERTS{{alertstate=\"firing\",{severity}}}");
            // Evaluated every half minute.
            format!("max(count_over_time({firing}[{}s])) / 2 or vector(0)", row.asked - second)
        }
    }
}

fn promtool(folder: &Path) -> Answer {
    let output = Command::new("promtool").args(["test", "rules", "test.yaml"]).current_dir(folder).output();
    let output = output.expect("promtool comes with the package prometheus");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    let got = text.lines().find_map(|line| line.trim().strip_prefix("got: "));
    let got = got.unwrap_or_else(|| panic!("promtool says nothing that it got: {text}"));
    if got == "nil" {
        return Answer::Nothing;
    }
    let value = got.rsplit(' ').next().and_then(|word| word.parse().ok());
    Answer::Value(value.unwrap_or_else(|| panic!("promtool got no number: {text}")))
}

/// The truth, as the table shows it.
#[allow(dead_code, reason = "for the table only")]
pub(crate) fn truth(row: &Row) -> String {
    match row.question {
        Question::PageAfter(_) => format!("≤ {SOON}"),
        _ => Answer::Value(row.truth).to_string(),
    }
}
