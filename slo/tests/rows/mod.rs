//! Eight situations in which error budgets from scraped rates go wrong, and what everyone makes of them.
//!
//! In: a story of single events. Out: what Sloth's rules, Pyrra's rules and ours say over the same scrapes, in promtool,
//! and what the engine says that got the same events. The files `sloth.yaml` and `pyrra.yaml` have the form of what
//! these tools generate.

#![expect(clippy::cast_precision_loss, reason = "counts of a few million events")]

pub(crate) mod row;
mod story;

use std::fmt;
use std::fs;
use std::path::Path;
use std::process::Command;

use slo::Objective;
use slo::openslo::read;
use slo::rules::{self, Timing};

use self::row::{BUDGET, Question, Row};
use self::story::Outcome;

const SLO: &str = include_str!("shop.yaml");

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
    pub(crate) fn is(self, truth: f64) -> bool {
        matches!(self, Self::Value(value) if (value - truth).abs() <= 1e-9 * truth.abs().max(1.0))
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

/// Asks all three, in this order, over the same scrapes.
pub(crate) fn ask(row: &Row) -> [Answer; 3] {
    let folder = tempfile::tempdir().expect("a folder for rules");
    let path = |name: &str| folder.path().join(name);
    let ours = rules::generate(&[objective()], Timing::default()).file.to_yaml();
    for (name, text) in [
        ("sloth.yaml", include_str!("sloth.yaml")),
        ("pyrra.yaml", include_str!("pyrra.yaml")),
        ("obi.yaml", &ours),
    ] {
        fs::write(path(name), text).expect("the folder can be written");
    }
    [Who::Sloth, Who::Pyrra, Who::Rules].map(|who| {
        fs::write(path("test.yaml"), test(row, who)).expect("the folder can be written");
        promtool(folder.path())
    })
}

/// A test that never holds: what promtool says it got is the answer.
fn test(row: &Row, who: Who) -> String {
    let file = match who {
        Who::Sloth => "sloth.yaml",
        Who::Pyrra => "pyrra.yaml",
        Who::Rules => "obi.yaml",
    };
    let series = story::series(&row.story, row.scrape, row.asked, row.label_born);
    let series: Vec<String> = series
        .iter()
        .map(|series| format!("  - {{series: '{}', values: '{}'}}", series.name, series.notation()))
        .collect();
    format!(
        "rule_files: [{file}]\nevaluation_interval: 30s\ntests:\n- interval: {}s\n  input_series:\n{}\n  \
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
