//! `obi slo status`: budgets and burn rates of the running agent.
//!
//! In: the agent's address, from an argument or its configuration. Out: a table, or the API's JSON. Refuses to compute
//! anything itself.

use std::fmt::Write as _;
use std::ops::RangeInclusive;
use std::process::ExitCode;

use anyhow::Context as _;
use serde::Deserialize;

use super::agent::{self, AgentAddress};
use crate::command::print;
use crate::objective::view::ObjectiveView;

/// Show error budgets and burn rates of the running agent
///
/// Asks the agent on this machine, at the address in its configuration or at --address. Exit codes: 0 shown; 1 no agent
/// answers there.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  obi slo status\n  obi slo status --config /etc/obi.yaml\n  \
    obi slo status --address 127.0.0.1:9464 --json | jq '.slos[].error_budget_remaining_ratio'")]
pub struct StatusArgs {
    /// Which agent is asked.
    #[command(flatten)]
    pub place: AgentAddress,

    /// Print what `/api/v1/slos` says
    #[arg(long)]
    pub json: bool,
}

#[derive(Deserialize)]
struct Answer {
    slos: Vec<ObjectiveView>,
}

/// Asks and prints.
///
/// # Errors
/// When the configuration is not valid, or no agent answers.
pub fn status(args: &StatusArgs) -> anyhow::Result<ExitCode> {
    let text = agent::ask(&args.place, "/api/v1/slos", &[])?;
    if args.json {
        print(&format!("{}\n", text.trim_end()))?;
    } else {
        let answer: Answer = serde_json::from_str(&text).context("the answer is not what an agent says")?;
        print(&table(&answer.slos))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(slos: &[ObjectiveView]) -> String {
    let mut rows = vec![
        ["slo", "service", "target", "kept", "bad", "events", "budget left", "gone in", "burn 1h", "alerts"]
            .map(str::to_owned)
            .to_vec(),
    ];
    rows.extend(slos.iter().map(row));
    let mut text = aligned(&rows, 2..=8);
    if slos.is_empty() {
        text.push_str("the agent has no objectives: `slo.files` is empty\n");
    }
    text
}

/// Columns as wide as their widest cell; those with numbers stand right.
pub(super) fn aligned(rows: &[Vec<String>], numbers: RangeInclusive<usize>) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for (index, (cell, width)) in row.iter().zip(&widths).enumerate() {
            let is_number = numbers.contains(&index);
            let written =
                if is_number { write!(line, "{cell:>width$}  ") } else { write!(line, "{cell:<width$}  ") };
            written.expect("writing to a string cannot fail");
        }
        text.push_str(line.trim_end());
        text.push('\n');
    }
    text
}

fn row(slo: &ObjectiveView) -> Vec<String> {
    let percent = |ratio: f64| format!("{}%", trimmed(ratio * 100.0, 4));
    let hour = slo.burn_rates.iter().find(|rate| rate.window == "1h");
    let firing: Vec<&str> =
        slo.alerts.iter().filter(|alert| alert.is_firing).map(|alert| alert.severity.as_str()).collect();
    vec![
        slo.name.clone(),
        slo.service.clone(),
        percent(slo.target),
        slo.ratio.map_or_else(|| "-".to_owned(), percent),
        slo.bad.to_string(),
        (slo.good + slo.bad).to_string(),
        percent(slo.error_budget_remaining_ratio),
        slo.exhausted_in_seconds.map_or_else(|| "-".to_owned(), duration),
        hour.map_or_else(|| "-".to_owned(), |rate| trimmed(rate.burn_rate, 2)),
        if firing.is_empty() { "-".to_owned() } else { firing.join(",") },
    ]
}

/// At most so many decimals, no zeros at the end.
pub(super) fn trimmed(number: f64, decimals: usize) -> String {
    let text = format!("{number:.decimals$}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// The two largest units.
pub(super) fn duration(seconds: f64) -> String {
    // A float that is too large becomes the largest number.
    let seconds = seconds as u64;
    let units = [(86_400, "d"), (3_600, "h"), (60, "m"), (1, "s")];
    let first = units.iter().position(|(length, _)| seconds >= *length).unwrap_or(units.len() - 1);
    let mut rest = seconds;
    let mut text = String::new();
    for (length, letter) in units.iter().skip(first).take(2) {
        let n = rest / length;
        rest %= length;
        if n > 0 || text.is_empty() {
            text.push_str(&format!("{n}{letter}"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::objective::view::tests::objective as slo;

    #[test]
    fn the_table_is_aligned() {
        let idle = ObjectiveView {
            ratio: None,
            exhausted_in_seconds: None,
            burn_rates: Vec::new(),
            alerts: Vec::new(),
            good: 0,
            bad: 0,
            error_budget_remaining_ratio: 1.0,
            ..slo("idle")
        };
        let expected = "\
slo       service  target    kept  bad  events  budget left  gone in  burn 1h  alerts
checkout  shop      99.9%  99.99%   10  100000          90%     1d3h     14.4  page
idle      shop      99.9%       -    0       0         100%        -        -  -
";
        assert_eq!(table(&[slo("checkout"), idle]), expected);
        assert!(table(&[]).ends_with("`slo.files` is empty\n"));
    }

    #[test]
    fn numbers_are_short() {
        let check = |seconds: f64, expected: &str| assert_eq!(duration(seconds), expected, "{seconds}");
        check(0.0, "0s");
        check(59.9, "59s");
        check(60.0, "1m");
        check(3_725.0, "1h2m");
        check(2_592_000.0, "30d");
        check(f64::MAX, "213503982334601d7h");
        assert_eq!(
            (trimmed(-0.0001, 2), trimmed(99.95, 4), trimmed(-12_434.0, 2)),
            ("0".into(), "99.95".into(), "-12434".into())
        );
    }
}
