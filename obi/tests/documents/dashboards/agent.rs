//! The agents themselves: what they lose, what they do not cover, what they cost.

use super::model::{Dashboard, Row, Unit, Variable, column, line, lines, number, row, stacked, table};
use super::query::{aggregated, or_zero, part, rate, ratio, sum};

const CHOSEN: &str = "instance=~\"$instance\"";
const BY: &str = "instance";

fn spans(by: &str) -> String {
    rate("obi_spans_total", CHOSEN, by)
}

/// Of all that was there to be seen.
fn lost_share(by: &str) -> String {
    let lost = format!("({} or 0 * {})", rate("obi_lost_total", CHOSEN, by), spans(by));
    format!("{lost} / (({lost} + {}) > 0)", spans(by))
}

fn glance() -> Row {
    row(
        "At a glance",
        [
            number(
                ("Agents", "Agents that were scraped the last time"),
                (Unit::Count, 4),
                aggregated("count", "obi_build_info", CHOSEN, ""),
            ),
            number(("Spans", "Spans made each second"), (Unit::PerSecond, 4), spans("")),
            number(
                ("Lost", "Exchanges lost, as part of those that were there to be seen"),
                (Unit::Share, 4),
                lost_share(""),
            ),
            number(
                (
                    "Not read",
                    "Connections each second that can be seen but not read, such as TLS of unknown libraries",
                ),
                (Unit::PerSecond, 4),
                or_zero(&rate("obi_uncovered_connections_total", CHOSEN, "")),
            ),
            number(
                ("CPU", "Processors that agents take, the kernel programs apart"),
                (Unit::Processors, 4),
                rate("process_cpu_seconds_total", CHOSEN, ""),
            ),
            number(
                (
                    "Refused configurations",
                    "Agents that run with an older configuration than the one they were given",
                ),
                (Unit::Count, 4),
                format!("count(obi_config_last_reload_successful{{{CHOSEN}}} == 0) or vector(0)"),
            ),
        ],
    )
}

fn agents() -> Row {
    let age = format!("time() - {}", aggregated("min", "process_start_time_seconds", CHOSEN, BY));
    row(
        "Agents",
        [table(
            ("Agents", "Each agent: what it sees, what it loses, what it costs"),
            [
                column(
                    "Version",
                    Unit::Count,
                    aggregated("max", "obi_build_info", CHOSEN, "instance, version"),
                ),
                column("Running for", Unit::Seconds, age),
                column("Hooks", Unit::Count, aggregated("max", "obi_hook_info", CHOSEN, "instance, set")),
                column("Processes", Unit::Count, sum("obi_watched_processes", CHOSEN, BY)),
                column("Spans", Unit::PerSecond, spans(BY)),
                column("Lost", Unit::Share, lost_share(BY)),
                column("CPU", Unit::Processors, rate("process_cpu_seconds_total", CHOSEN, BY)),
                column("Memory", Unit::Bytes, sum("process_resident_memory_bytes", CHOSEN, BY)),
                column("Kernel memory", Unit::Bytes, sum("obi_bpf_map_bytes", CHOSEN, BY)),
            ],
        )],
    )
}

fn coverage() -> Row {
    row(
        "What is not seen",
        [
            lines(
                (
                    "Lost exchanges",
                    "Exchanges that were seen to begin and could not be reported whole, by stage and reason",
                ),
                (Unit::PerSecond, 8),
                [line(rate("obi_lost_total", CHOSEN, "stage, reason"), "{{stage}} {{reason}}")],
            ),
            lines(
                (
                    "Connections that are not read",
                    "Counted as not covered, less those that were read later, by reason",
                ),
                (Unit::PerSecond, 8),
                [line(
                    format!(
                        "{uncovered} - ({later} or 0 * {uncovered})",
                        uncovered = rate("obi_uncovered_connections_total", CHOSEN, "reason"),
                        later = rate("obi_uncovered_connections_read_later_total", CHOSEN, "reason"),
                    ),
                    "{{reason}}",
                )],
            ),
            lines(
                ("Unknown parents", "Calls whose request is not known, by reason"),
                (Unit::PerSecond, 8),
                [line(rate("obi_unknown_parents_total", CHOSEN, "reason"), "{{reason}}")],
            ),
            lines(
                (
                    "Late names",
                    "Processes that were not read in time, and beginnings and ends that had to be read from /proc",
                ),
                (Unit::PerSecond, 8),
                [
                    line(rate("obi_late_processes_total", CHOSEN, ""), "late processes"),
                    line(rate("obi_lost_process_events_total", CHOSEN, ""), "lost process events"),
                ],
            ),
            lines(
                ("Long heads", "Part of the spans whose head was longer than capture.head_limit, by service"),
                (Unit::Share, 8),
                [line(
                    part(
                        &rate("obi_truncated_heads_total", CHOSEN, "service_name"),
                        &rate("obi_spans_total", CHOSEN, "service_name"),
                    ),
                    "{{service_name}}",
                )],
            ),
            stacked(
                ("Evidence of parents", "Spans whose parent had to be found, by how sure it is"),
                (Unit::PerSecond, 8),
                [line(rate("obi_parents_total", CHOSEN, "evidence"), "{{evidence}}")],
            ),
        ],
    )
}

fn cost() -> Row {
    let programs = rate("obi_bpf_program_run_seconds_total", CHOSEN, BY);
    row(
        "Cost",
        [
            lines(
                ("CPU of agents", "Processors that each agent takes, the kernel programs apart"),
                (Unit::Processors, 8),
                [line(rate("process_cpu_seconds_total", CHOSEN, BY), "{{instance}}")],
            ),
            lines(
                (
                    "Kernel programs for each span",
                    "Time in kernel programs, on the accounts of the watched processes; needs capture.statistics",
                ),
                (Unit::Seconds, 8),
                [line(ratio(&programs, &spans(BY)), "{{instance}}")],
            ),
            lines(
                (
                    "Skipped runs",
                    "Runs of kernel programs that the kernel skipped: what they would have seen is missing",
                ),
                (Unit::PerSecond, 8),
                [line(rate("obi_bpf_program_misses_total", CHOSEN, "program"), "{{program}}")],
            ),
            lines(
                ("Memory", "Resident memory of each agent"),
                (Unit::Bytes, 8),
                [line(sum("process_resident_memory_bytes", CHOSEN, BY), "{{instance}}")],
            ),
            stacked(
                ("Kernel memory", "Memory of kernel maps, by what they are for"),
                (Unit::Bytes, 8),
                [line(sum("obi_bpf_map_bytes", CHOSEN, "subsystem"), "{{subsystem}}")],
            ),
            lines(
                (
                    "Series",
                    "Part of metrics.series_limit that is taken; beyond it spans are counted in overflow",
                ),
                (Unit::Share, 8),
                [line(
                    ratio(&sum("obi_series", CHOSEN, BY), &sum("obi_series_limit", CHOSEN, BY)),
                    "{{instance}}",
                )],
            ),
        ],
    )
}

fn exports() -> Row {
    let by = "destination, signal";
    row(
        "Exports and alerts",
        [
            lines(
                ("Sent", "Spans, points of metrics and samples that destinations took"),
                (Unit::PerSecond, 6),
                [line(rate("obi_export_sent_total", CHOSEN, by), "{{destination}} {{signal}}")],
            ),
            lines(
                ("Lost", "Items that did not reach a destination, by reason"),
                (Unit::PerSecond, 6),
                [line(
                    rate("obi_export_lost_total", CHOSEN, "destination, signal, reason"),
                    "{{destination}} {{signal}} {{reason}}",
                )],
            ),
            lines(
                ("Waiting", "What waits for a destination, in memory and on the disk"),
                (Unit::Bytes, 6),
                [
                    line(sum("obi_export_queue_bytes", CHOSEN, by), "{{destination}} {{signal}}"),
                    line(
                        sum("obi_export_spool_bytes", CHOSEN, by),
                        "{{destination}} {{signal}}, on the disk",
                    ),
                ],
            ),
            lines(
                ("Sent again", "Requests that were sent again"),
                (Unit::PerSecond, 6),
                [line(rate("obi_export_retries_total", CHOSEN, by), "{{destination}} {{signal}}")],
            ),
            lines(
                ("Notifications", "Messages about alerts of objectives, by what became of them"),
                (Unit::PerSecond, 8),
                [line(rate("obi_slo_notifications_total", CHOSEN, "outcome"), "{{outcome}}")],
            ),
            lines(
                ("Unsaved counts", "For how long the newest counts of objectives could not be written"),
                (Unit::Seconds, 8),
                [line(aggregated("max", "obi_slo_store_unsaved_time", CHOSEN, BY), "{{instance}}")],
            ),
            lines(
                ("Overflow", "Spans that a metric counted in overflow, by service"),
                (Unit::PerSecond, 8),
                [line(rate("obi_folded_spans_total", CHOSEN, "service_name"), "{{service_name}}")],
            ),
        ],
    )
}

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "obi-agent",
        title: "obi / Agents",
        description: "The agents themselves: losses, coverage, cost, exports",
        variables: vec![Variable::Label {
            name: "instance",
            label: "instance",
            selector: "obi_build_info",
            help: "Agent, by its address",
        }],
        rows: vec![glance(), agents(), coverage(), cost(), exports()],
    }
}
