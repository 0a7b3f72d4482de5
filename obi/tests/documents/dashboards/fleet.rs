//! All services of all machines: which of them needs a look.

use super::link::{AGENT_SERVICE, SERVICE};
use super::model::{
    Dashboard, Unit, Variable, collapsed, column, line, lines, number, row, stacked, table, with_exemplars,
};
use super::query::{addressed, aggregated, histogram, or_zero, part, rate, sum, top};

const CHOSEN: &str = "service_namespace=~\"$namespace\"";
const SERVED: &str = "span_kind=\"SPAN_KIND_SERVER\",service_namespace=~\"$namespace\"";
const FAILED: &str =
    "status_code=\"STATUS_CODE_ERROR\",span_kind=\"SPAN_KIND_SERVER\",service_namespace=~\"$namespace\"";
const BY: &str = "service_namespace, service_name";
const CALLS: &str = "traces_span_metrics_calls_total";

/// Of spans of servers, whatever they speak.
fn error_share(by: &str) -> String {
    part(&rate(CALLS, FAILED, by), &rate(CALLS, SERVED, by))
}

pub(crate) fn dashboard() -> Dashboard {
    let durations = histogram("traces_span_metrics_duration_seconds", SERVED);
    let waits = histogram("obi_server_queue_wait_seconds", CHOSEN);
    let databases = histogram("db_client_operation_duration_seconds", CHOSEN);
    let calls = histogram("http_client_request_duration_seconds", CHOSEN);
    let lost = part(&or_zero(&rate("obi_lost_total", "", "")), &rate("obi_spans_total", "", ""));
    let glance = row(
        "At a glance",
        [
            number(
                ("Requests", "Requests that servers answered, of all protocols, each second"),
                (Unit::PerSecond, 4),
                rate(CALLS, SERVED, ""),
            ),
            number(("Errors", "Part of them that failed"), (Unit::Share, 4), error_share("")),
            number(
                ("p95", "95 % of them took at most so long"),
                (Unit::Seconds, 4),
                durations.quantile(0.95, ""),
            ),
            number(
                ("Alerts", "Alerts of objectives that fire on any machine"),
                (Unit::Count, 4),
                or_zero(&sum("slo_alert_firing", "", "")),
            ),
            number(
                ("Agents", "Agents that were scraped the last time"),
                (Unit::Count, 4),
                aggregated("count", "obi_build_info", "", ""),
            ),
            number(
                ("Not seen", "Exchanges that agents lost, as part of the spans they made"),
                (Unit::Share, 4),
                lost,
            ),
        ],
    );
    let services = row("Services", [table(
        (
            "Services",
            "Rate, errors and duration of requests to each service; a high queue wait says that it is saturated",
        ),
        [
            column("Requests", Unit::PerSecond, addressed(&rate(CALLS, SERVED, BY))),
            column("Errors", Unit::Share, addressed(&error_share(BY))),
            column("p50", Unit::Seconds, addressed(&durations.quantile(0.5, BY))),
            column("p95", Unit::Seconds, addressed(&durations.quantile(0.95, BY))),
            column("Queue wait p95", Unit::Seconds, addressed(&waits.quantile(0.95, BY))),
        ],
    )
    .links_to([SERVICE, AGENT_SERVICE])]);
    let trends = row(
        "The ten that stand out",
        [
            lines(
                ("Most requests", "Requests to servers, by service"),
                (Unit::PerSecond, 12),
                [line(top(&rate(CALLS, SERVED, BY)), "{{service_name}}")],
            ),
            lines(
                ("Most errors", "Part of the requests that failed, by service"),
                (Unit::Share, 12),
                [line(top(&error_share(BY)), "{{service_name}}")],
            ),
            lines(
                ("Slowest", "95 % of requests took at most so long, by service; dots are single requests"),
                (Unit::Seconds, 12),
                [with_exemplars(top(&durations.quantile(0.95, BY)), "{{service_name}}")],
            ),
            lines(
                (
                    "Longest queues",
                    "95 % of requests waited at most so long until their server first read them",
                ),
                (Unit::Seconds, 12),
                [line(top(&waits.quantile(0.95, BY)), "{{service_name}}")],
            ),
        ],
    );
    let outside = collapsed(
        "What services call",
        [
            stacked(
                ("Databases", "Calls of databases, by kind"),
                (Unit::PerSecond, 12),
                [line(databases.rate("db_system_name"), "{{db_system_name}}")],
            ),
            lines(
                ("Slow databases", "95 % of their calls took at most so long, by kind"),
                (Unit::Seconds, 12),
                [with_exemplars(databases.quantile(0.95, "db_system_name"), "{{db_system_name}}")],
            ),
            lines(
                ("Failing HTTP calls", "Part of the calls over HTTP that failed, by who was called"),
                (Unit::Share, 12),
                [line(
                    top(&calls.errors("server_address, server_port")),
                    "{{server_address}}:{{server_port}}",
                )],
            ),
            lines(
                ("Slow HTTP calls", "95 % of the calls over HTTP took at most so long, by who was called"),
                (Unit::Seconds, 12),
                [with_exemplars(
                    top(&calls.quantile(0.95, "server_address, server_port")),
                    "{{server_address}}:{{server_port}}",
                )],
            ),
        ],
    );
    Dashboard {
        uid: "obi-fleet",
        title: "obi / Fleet",
        description: "Every service that the agents see: rate, errors, duration and saturation",
        variables: vec![Variable::Label {
            name: "namespace",
            label: "service_namespace",
            selector: "traces_span_metrics_calls_total",
            help: "Namespace of services",
        }],
        rows: vec![glance, services, trends, outside],
    }
}
