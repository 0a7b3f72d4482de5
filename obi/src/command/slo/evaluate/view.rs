//! A fleet's objective for people and programs.
//!
//! In: a report. Out: JSON with the names of `/api/v1/slos`, or a line of a table. Refuses to compute.

use serde::Serialize;
use slo::Objective;
use slo::duration::Short;
use slo::evaluate::Report;

use crate::command::slo::status::{aligned, duration, trimmed};

/// One objective over all machines.
#[derive(Debug, Clone, Serialize)]
pub(super) struct FleetView {
    /// Its name.
    name: String,
    /// Its service.
    service: String,
    /// The promised ratio.
    target: f64,
    /// The period, as OpenSLO writes it.
    window: String,
    /// Its first moment, RFC 3339.
    period_start: String,
    /// As of when, RFC 3339.
    evaluated_at: String,
    /// Events of the period that kept the promise.
    good: u64,
    /// Events of the period that used up budget.
    bad: u64,
    /// What has been kept of the promise; absent without events.
    ratio: Option<f64>,
    /// Part of the error budget that is left; negative when overspent.
    error_budget_remaining_ratio: f64,
    /// Seconds until the budget is gone at the pace of the last hour.
    exhausted_in_seconds: Option<f64>,
    /// Burn rates, shortest window first.
    burn_rates: Vec<BurnRate>,
    /// Part of the period so far in which any machine was seen.
    coverage: f64,
    /// Times in which none was, RFC 3339.
    gaps: Vec<[String; 2]>,
    /// Machines seen in the period.
    machines: usize,
    /// Those seen in the last five minutes.
    machines_now: usize,
}

#[derive(Debug, Clone, Serialize)]
struct BurnRate {
    window: String,
    /// 1 uses exactly the budget in exactly the period; absent without events.
    burn_rate: Option<f64>,
    good: u64,
    bad: u64,
    coverage: f64,
}

impl FleetView {
    /// What is shown of a report.
    pub(super) fn new(objective: &Objective, report: &Report) -> Self {
        let burn = &report.budget.burn;
        let burn_rates = report.windows.iter().map(|(window, burn)| BurnRate {
            window: Short(*window).to_string(),
            burn_rate: burn.rate,
            good: burn.counts.good,
            bad: burn.counts.bad,
            coverage: burn.coverage,
        });
        Self {
            name: objective.name.clone(),
            service: objective.service.clone(),
            target: objective.target().as_f64(),
            window: objective.window.to_string(),
            period_start: report.budget.period.start.to_string(),
            evaluated_at: burn.period.end.to_string(),
            good: burn.counts.good,
            bad: burn.counts.bad,
            ratio: report.budget.achieved,
            error_budget_remaining_ratio: report.budget.remaining,
            exhausted_in_seconds: report.exhausted_in.map(|left| left.as_secs_f64()),
            burn_rates: burn_rates.collect(),
            coverage: burn.coverage,
            gaps: report.gaps.iter().map(|(from, until)| [from.to_string(), until.to_string()]).collect(),
            machines: report.machines,
            machines_now: report.machines_now,
        }
    }

    fn row(&self) -> Vec<String> {
        let percent = |ratio: f64| format!("{}%", trimmed(ratio * 100.0, 4));
        let hour = self.burn_rates.iter().find(|rate| rate.window == "1h").and_then(|rate| rate.burn_rate);
        vec![
            self.name.clone(),
            self.service.clone(),
            percent(self.target),
            self.ratio.map_or_else(|| "-".to_owned(), percent),
            self.bad.to_string(),
            (self.good + self.bad).to_string(),
            percent(self.error_budget_remaining_ratio),
            self.exhausted_in_seconds.map_or_else(|| "-".to_owned(), duration),
            hour.map_or_else(|| "-".to_owned(), |rate| trimmed(rate, 2)),
            format!("{}%", trimmed(self.coverage * 100.0, 1)),
            format!("{}/{}", self.machines_now, self.machines),
        ]
    }
}

/// A line for each, and what coverage means where it is not whole.
pub(super) fn table(views: &[FleetView]) -> String {
    let heading = [
        "slo",
        "service",
        "target",
        "kept",
        "bad",
        "events",
        "budget left",
        "gone in",
        "burn 1h",
        "coverage",
        "machines",
    ];
    let mut rows = vec![heading.map(str::to_owned).to_vec()];
    rows.extend(views.iter().map(FleetView::row));
    let mut text = aligned(&rows, 2..=10);
    if views.iter().any(|view| view.coverage < 0.9995) {
        text.push_str("coverage: part of the period in which any machine was seen; the rest is not known\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(name: &str, coverage: f64) -> FleetView {
        let rate =
            BurnRate { window: "1h".to_owned(), burn_rate: Some(14.4), good: 9856, bad: 144, coverage: 1.0 };
        FleetView {
            name: name.to_owned(),
            service: "shop".to_owned(),
            target: 0.999,
            window: "28d".to_owned(),
            period_start: String::new(),
            evaluated_at: String::new(),
            good: 99_990,
            bad: 10,
            ratio: Some(0.9999),
            error_budget_remaining_ratio: 0.9,
            exhausted_in_seconds: Some(97_200.0),
            burn_rates: vec![rate],
            coverage,
            gaps: Vec::new(),
            machines: 3,
            machines_now: 2,
        }
    }

    #[test]
    fn the_table_says_what_is_not_known() {
        let expected = "\
slo       service  target    kept  bad  events  budget left  gone in  burn 1h  coverage  machines
checkout  shop      99.9%  99.99%   10  100000          90%     1d3h     14.4     12.5%       2/3
coverage: part of the period in which any machine was seen; the rest is not known
";
        assert_eq!(table(&[view("checkout", 0.125)]), expected);
        assert_eq!(table(&[view("checkout", 1.0)]).lines().count(), 2);
    }
}
