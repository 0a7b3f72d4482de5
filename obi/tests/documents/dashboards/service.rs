//! One service: rate, errors, duration, saturation; its routes, its calls, its databases.

use super::link::{AGENT_SERVICE, FLAME_GRAPH, SLOW_TRACES};
use super::model::{
    Dashboard, Row, Unit, Variable, collapsed, column, heatmap, line, lines, number, row, stacked, table,
    with_exemplars,
};
use super::query::{addressed, histogram, rate, ratio, sum, top, within};

/// `$namespace` is one, `-` for none, or all; `$within` matches it.
const SERVICE: &str = "service_namespace=~\"$within\",service_name=\"$service\"";
const ROUTE: &str = "service_namespace, service_name, http_request_method, http_route";

pub(crate) fn dashboard() -> Dashboard {
    Dashboard {
        uid: "obi-service",
        title: "obi / Service",
        description: "One service: rate, errors, duration and saturation of its requests, and what it calls",
        variables: vec![
            Variable::Computed {
                name: "namespace",
                label: "service_namespace",
                expression: addressed("group by (service_namespace) (traces_span_metrics_calls_total)"),
                help: "Namespace of the service; - is none",
                is_shown: true,
            },
            Variable::Computed {
                name: "within",
                label: "within",
                expression: within(),
                help: "What matches the namespace",
                is_shown: false,
            },
            Variable::One {
                name: "service",
                label: "service_name",
                selector: "traces_span_metrics_calls_total{service_namespace=~\"$within\"}",
                help: "The service",
            },
        ],
        rows: vec![glance(), requests(), spread(), routes(), calls(), rpc(), databases(), bodies()],
    }
}

fn glance() -> Row {
    let requests = histogram("http_server_request_duration_seconds", SERVICE);
    let waits = histogram("obi_server_queue_wait_seconds", SERVICE);
    row(
        "At a glance",
        [
            number(("Requests", "HTTP requests each second"), (Unit::PerSecond, 4), requests.rate("")),
            number(("Errors", "Part of them that failed"), (Unit::Share, 4), requests.errors("")),
            number(
                ("p50", "Half of them took at most so long"),
                (Unit::Seconds, 4),
                requests.quantile(0.5, ""),
            ),
            number(
                ("p95", "95 % of them took at most so long"),
                (Unit::Seconds, 4),
                requests.quantile(0.95, ""),
            ),
            number(
                (
                    "Queue wait p95",
                    "95 % of them waited at most so long until they were first read: saturation",
                ),
                (Unit::Seconds, 4),
                waits.quantile(0.95, ""),
            ),
            number(
                ("In flight", "HTTP requests under way"),
                (Unit::Count, 4),
                sum("http_server_active_requests", SERVICE, ""),
            ),
        ],
    )
}

fn requests() -> Row {
    let requests = histogram("http_server_request_duration_seconds", SERVICE);
    let waits = histogram("obi_server_queue_wait_seconds", SERVICE);
    row(
        "HTTP requests",
        [
            stacked(
                ("Rate", "Requests each second, by status of the response"),
                (Unit::PerSecond, 8),
                [line(requests.rate("http_response_status_code"), "{{http_response_status_code}}")],
            ),
            stacked(
                ("Errors", "Part of the requests that failed, by what went wrong"),
                (Unit::Share, 8),
                [line(
                    format!(
                        "{} / on () group_left () ({} > 0)",
                        requests.and("error_type!=\"\"").rate("error_type"),
                        requests.rate("")
                    ),
                    "{{error_type}}",
                )],
            ),
            lines(
                (
                    "Duration",
                    "Of requests, from their arrival to the last byte of the response; dots lead to traces",
                ),
                (Unit::Seconds, 8),
                [
                    with_exemplars(requests.quantile(0.5, ""), "p50"),
                    with_exemplars(requests.quantile(0.95, ""), "p95"),
                    with_exemplars(requests.quantile(0.99, ""), "p99"),
                ],
            ),
            lines(
                (
                    "Queue wait",
                    "Between the arrival of a request and the first read of it by its server: saturation",
                ),
                (Unit::Seconds, 12),
                [line(waits.quantile(0.5, ""), "p50"), line(waits.quantile(0.99, ""), "p99")],
            ),
            stacked(
                ("In flight", "Requests under way, by method"),
                (Unit::Count, 12),
                [line(
                    sum("http_server_active_requests", SERVICE, "http_request_method"),
                    "{{http_request_method}}",
                )],
            ),
        ],
    )
}

fn spread() -> Row {
    let requests = histogram("http_server_request_duration_seconds", SERVICE);
    row(
        "How durations are spread",
        [heatmap(
            (
                "Durations",
                "How many requests took how long: native buckets, or classic ones where only these are scraped",
            ),
            (Unit::Seconds, 24),
            requests.heatmap(),
        )],
    )
}

fn routes() -> Row {
    let requests = histogram("http_server_request_duration_seconds", SERVICE);
    let by_route = "service_namespace, service_name, http_route";
    let cpu =
        ratio(&rate("obi_server_request_cpu_seconds_total", SERVICE, by_route), &requests.rate(by_route));
    row(
        "Routes",
        [
            table(
                ("Routes", "Each route by method: rate, errors and duration"),
                [
                    column("Requests", Unit::PerSecond, addressed(&requests.rate(ROUTE))),
                    column("Errors", Unit::Share, addressed(&requests.errors(ROUTE))),
                    column("p50", Unit::Seconds, addressed(&requests.quantile(0.5, ROUTE))),
                    column("p95", Unit::Seconds, addressed(&requests.quantile(0.95, ROUTE))),
                    column("p99", Unit::Seconds, addressed(&requests.quantile(0.99, ROUTE))),
                ],
            )
            .links_to([AGENT_SERVICE, SLOW_TRACES, FLAME_GRAPH]),
            lines(
                (
                    "Slowest routes",
                    "95 % of the requests of a route took at most so long; dots lead to traces",
                ),
                (Unit::Seconds, 12),
                [with_exemplars(top(&requests.quantile(0.95, "http_route")), "{{http_route}}")],
            ),
            lines(
                (
                    "CPU for each request",
                    "CPU time of a route's requests, estimated from samples; needs profiles",
                ),
                (Unit::Seconds, 12),
                [line(cpu, "{{http_route}}")],
            ),
        ],
    )
}

fn calls() -> Row {
    let calls = histogram("http_client_request_duration_seconds", SERVICE);
    let by = "server_address, server_port";
    row(
        "HTTP calls that it makes",
        [
            table(
                ("Calls", "HTTP calls by who is called: rate, errors and duration as this service sees them"),
                [
                    column("Calls", Unit::PerSecond, calls.rate(by)),
                    column("Errors", Unit::Share, calls.errors(by)),
                    column("p50", Unit::Seconds, calls.quantile(0.5, by)),
                    column("p95", Unit::Seconds, calls.quantile(0.95, by)),
                ],
            ),
            lines(
                (
                    "Duration of calls",
                    "95 % of the calls took at most so long, by who is called; dots lead to traces",
                ),
                (Unit::Seconds, 24),
                [with_exemplars(calls.quantile(0.95, by), "{{server_address}}:{{server_port}}")],
            ),
        ],
    )
}

fn rpc() -> Row {
    let served = histogram("rpc_server_call_duration_seconds", SERVICE);
    let made = histogram("rpc_client_call_duration_seconds", SERVICE);
    collapsed(
        "gRPC",
        [
            table(
                ("Methods that it serves", "Each method: rate, errors and duration"),
                [
                    column("Calls", Unit::PerSecond, served.rate("rpc_method")),
                    column("Errors", Unit::Share, served.errors("rpc_method")),
                    column("Average", Unit::Seconds, served.average("rpc_method")),
                    column("p95", Unit::Seconds, served.quantile(0.95, "rpc_method")),
                ],
            ),
            stacked(
                ("Status", "Calls that it serves each second, by status"),
                (Unit::PerSecond, 8),
                [line(served.rate("rpc_response_status_code"), "{{rpc_response_status_code}}")],
            ),
            lines(
                ("Duration", "95 % of the calls that it serves took at most so long; dots lead to traces"),
                (Unit::Seconds, 8),
                [with_exemplars(served.quantile(0.95, "rpc_method"), "{{rpc_method}}")],
            ),
            lines(
                (
                    "Calls that it makes",
                    "95 % of the calls that it makes took at most so long; dots lead to traces",
                ),
                (Unit::Seconds, 8),
                [with_exemplars(made.quantile(0.95, "rpc_method"), "{{rpc_method}}")],
            ),
        ],
    )
}

fn databases() -> Row {
    let asked = histogram("db_client_operation_duration_seconds", SERVICE);
    let by = "db_system_name, db_operation_name, db_query_summary";
    collapsed(
        "Databases",
        [
            table(
                (
                    "Statements and commands",
                    "By their summary: rate, errors and duration as this service sees them",
                ),
                [
                    column("Calls", Unit::PerSecond, asked.rate(by)),
                    column("Errors", Unit::Share, asked.errors(by)),
                    column("p50", Unit::Seconds, asked.quantile(0.5, by)),
                    column("p95", Unit::Seconds, asked.quantile(0.95, by)),
                ],
            ),
            stacked(
                ("Calls", "Calls of databases each second, by operation"),
                (Unit::PerSecond, 12),
                [line(
                    asked.rate("db_system_name, db_operation_name"),
                    "{{db_system_name}} {{db_operation_name}}",
                )],
            ),
            lines(
                ("Duration", "95 % of the calls took at most so long, by operation; dots lead to traces"),
                (Unit::Seconds, 12),
                [with_exemplars(
                    asked.quantile(0.95, "db_system_name, db_operation_name"),
                    "{{db_system_name}} {{db_operation_name}}",
                )],
            ),
        ],
    )
}

fn bodies() -> Row {
    let taken = histogram("http_server_request_body_size_bytes", SERVICE);
    let given = histogram("http_server_response_body_size_bytes", SERVICE);
    collapsed(
        "Bodies",
        [
            lines(
                ("Requests", "Size of request bodies; none before the first that is not empty"),
                (Unit::Bytes, 12),
                [line(taken.average(""), "average"), line(taken.quantile(0.95, ""), "p95")],
            ),
            lines(
                ("Responses", "Size of response bodies"),
                (Unit::Bytes, 12),
                [line(given.average(""), "average"), line(given.quantile(0.95, ""), "p95")],
            ),
        ],
    )
}
