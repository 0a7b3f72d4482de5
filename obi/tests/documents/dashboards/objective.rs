//! Objectives: budgets, burn rates, alerts; of the fleet by recording rules, and of single machines.

use super::link::AGENT_SLO;
use super::model::{Dashboard, Row, Unit, Variable, column, line, lines, number, row, stacked, table, text};
use super::query::{aggregated, or_zero, part, rate, sum};
use slo::rules::{BUDGET_REMAINING, BURN_ALERT, BURN_RATE, OBJECTIVE, PERIOD_COVERAGE};

const CHOSEN: &str = "slo=~\"$slo\"";
const BY: &str = "slo, service";

/// The ratio of bad events.
fn bad_share(by: &str) -> String {
    let bad = rate("slo_events_total", "outcome=\"bad\",slo=~\"$slo\"", by);
    part(&bad, &rate("slo_events_total", CHOSEN, by))
}

fn glance() -> Row {
    row(
        "At a glance",
        [
            number(
                ("Least budget", "What is left of the error budget where least is left, on any machine"),
                (Unit::Budget, 6),
                aggregated("min", "slo_error_budget_remaining_ratio", CHOSEN, ""),
            ),
            number(
                ("Fastest burn", "Highest burn rate over one hour; 1 uses the budget in exactly the period"),
                (Unit::Times, 6),
                aggregated("max", "slo_burn_rate", "slo=~\"$slo\",window=\"1h\"", ""),
            ),
            number(
                ("Alerts", "Alerts that fire on machines"),
                (Unit::Count, 6),
                or_zero(&sum("slo_alert_firing", CHOSEN, "")),
            ),
            number(
                ("Least coverage", "Part of the period that was watched, where least of it was"),
                (Unit::Share, 6),
                aggregated("min", "slo_coverage_ratio", CHOSEN, ""),
            ),
        ],
    )
}

fn fleet() -> Row {
    let alerts = format!("alertname=\"{BURN_ALERT}\",slo=~\"$slo\"");
    row(
        "Fleet, by the rules of `obi slo rules`",
        [
            text(
                (
                    "What these are",
                    "One agent sees one machine. Budgets of the fleet are counts of all machines, added up and divided \
                 once, by the recording rules that `obi slo rules` writes. Without these rules this row is empty.",
                ),
                24,
            ),
            table(
                ("Objectives", "Budget and burn rate of the fleet"),
                [
                    column("Objective", Unit::Share, aggregated("max", OBJECTIVE, CHOSEN, BY)),
                    column("Budget left", Unit::Budget, aggregated("min", BUDGET_REMAINING, CHOSEN, BY)),
                    column(
                        "Burn rate 1h",
                        Unit::Times,
                        aggregated("max", BURN_RATE, "slo=~\"$slo\",window=\"1h\"", BY),
                    ),
                    column("Coverage", Unit::Share, aggregated("min", PERIOD_COVERAGE, CHOSEN, BY)),
                ],
            )
            .links_to([AGENT_SLO]),
            lines(
                (
                    "Budget left",
                    "Of the error budget of the period; it rises again as bad events leave a rolling period",
                ),
                (Unit::Budget, 8),
                [line(aggregated("min", BUDGET_REMAINING, CHOSEN, BY), "{{slo}}")],
            ),
            lines(
                ("Burn rates", "By window; 1 uses the budget in exactly the period"),
                (Unit::Times, 8),
                [line(aggregated("max", BURN_RATE, CHOSEN, "slo, window"), "{{slo}} {{window}}")],
            ),
            stacked(
                ("Alerts", "Alerts of Prometheus that fire or are about to"),
                (Unit::Count, 8),
                [line(
                    or_zero(&aggregated("count", "ALERTS", &alerts, "slo, severity, alertstate")),
                    "{{slo}} {{severity}} {{alertstate}}",
                )],
            ),
        ],
    )
}

fn machines() -> Row {
    row(
        "Machines",
        [
            table(
                ("Objectives by machine", "As each agent computes them from every event that it saw"),
                [
                    column(
                        "Objective",
                        Unit::Share,
                        aggregated("max", "slo_objective_ratio", CHOSEN, "slo, service, instance"),
                    ),
                    column(
                        "Budget left",
                        Unit::Share,
                        aggregated(
                            "min",
                            "slo_error_budget_remaining_ratio",
                            CHOSEN,
                            "slo, service, instance",
                        ),
                    ),
                    column("Bad", Unit::Share, bad_share("slo, service, instance")),
                    column(
                        "Coverage",
                        Unit::Share,
                        aggregated("min", "slo_coverage_ratio", CHOSEN, "slo, service, instance"),
                    ),
                ],
            )
            .links_to([AGENT_SLO]),
            lines(
                ("Burn rates", "Highest of any machine, by window"),
                (Unit::Times, 8),
                [line(aggregated("max", "slo_burn_rate", CHOSEN, "slo, window"), "{{slo}} {{window}}")],
            ),
            stacked(
                ("Bad events", "Events that break the promise, each hour at the present rate"),
                (Unit::PerHour, 8),
                [line(
                    format!("3600 * {}", rate("slo_events_total", "outcome=\"bad\",slo=~\"$slo\"", "slo")),
                    "{{slo}}",
                )],
            ),
            lines(
                ("Alerts", "Alerts that fire, by severity"),
                (Unit::Count, 8),
                [line(sum("slo_alert_firing", CHOSEN, "slo, severity"), "{{slo}} {{severity}}")],
            ),
        ],
    )
}

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "obi-slo",
        title: "obi / Objectives",
        description: "Service level objectives: error budgets, burn rates and alerts, counted from every request",
        variables: vec![Variable::Label {
            name: "slo",
            label: "slo",
            selector: "slo_objective_ratio",
            help: "Objective",
        }],
        rows: vec![glance(), fleet(), machines()],
    }
}
