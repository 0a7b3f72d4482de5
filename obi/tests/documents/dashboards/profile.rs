//! What requests spend CPU time on.

use super::link::FLAME_GRAPH;
use super::model::{
    Dashboard, Row, Unit, Variable, collapsed, column, flame, line, lines, row, stacked, table,
};
use super::query::{addressed, gained, histogram, part, rate, ratio, sum, top};

const CHOSEN: &str = "service_namespace=~\"$namespace\",service_name=~\"$service\"";
const BY: &str = "service_namespace, service_name, http_route";
const CPU: &str = "obi_server_request_cpu_seconds_total";
const SAMPLES: &str = "obi_server_request_cpu_samples_total";

fn routes() -> Row {
    let requests = histogram("http_server_request_duration_seconds", CHOSEN);
    // The standard error of a count is its root.
    let error = format!("1 / sqrt({} > 0)", gained(SAMPLES, CHOSEN, BY));
    let each = ratio(&rate(CPU, CHOSEN, BY), &requests.rate(BY));
    row("By route", [
        table(
            ("Routes", "CPU time of requests, estimated from samples; the error is one standard deviation at most"),
            [
                column("CPU", Unit::Processors, addressed(&rate(CPU, CHOSEN, BY))),
                column("For each request", Unit::Seconds, addressed(&each)),
                column("Samples", Unit::Count, addressed(&gained(SAMPLES, CHOSEN, BY))),
                column("Error ±", Unit::Share, addressed(&error)),
            ],
        )
        .links_to([FLAME_GRAPH]),
        stacked(
            ("CPU", "CPU seconds in each second, by route"),
            (Unit::Processors, 12),
            [line(top(&rate(CPU, CHOSEN, BY)), "{{service_name}} {{http_route}}")],
        ),
        lines(
            ("For each request", "CPU time of a request, by route"),
            (Unit::Seconds, 12),
            [line(top(&each), "{{service_name}} {{http_route}}")],
        ),
    ])
}

fn sampling() -> Row {
    let frames = rate("obi_profile_frames_total", "", "fidelity");
    let all = rate("obi_profile_samples_total", "", "instance");
    row(
        "How well it is seen",
        [
            lines(
                ("Samples", "Stacks that were sampled each second, by machine"),
                (Unit::PerSecond, 6),
                [line(all.clone(), "{{instance}}")],
            ),
            stacked(
                ("Requests", "Samples taken while an exchange was served, by whether its span covers them"),
                (Unit::PerSecond, 6),
                [line(rate("obi_profile_links_total", "", "outcome"), "{{outcome}}")],
            ),
            stacked(
                ("Frames", "Frames that were named, by what names them"),
                (Unit::PerSecond, 6),
                [line(frames, "{{fidelity}}")],
            ),
            lines(
                ("Cut stacks", "Part of the stacks whose walk ended before the first frame, by machine"),
                (Unit::Share, 6),
                [line(
                    part(&rate("obi_profile_truncated_stacks_total", "", "instance"), &all),
                    "{{instance}}",
                )],
            ),
            lines(
                ("Memory", "Memory of agents that profiles take, by what for"),
                (Unit::Bytes, 12),
                [line(sum("obi_profile_memory_bytes", "", "what"), "{{what}}")],
            ),
            lines(
                ("Lost samples", "Samples that were lost, by reason"),
                (Unit::PerSecond, 12),
                [line(rate("obi_profile_lost_samples_total", "", "reason"), "{{reason}}")],
            ),
        ],
    )
}

pub(crate) fn dashboard() -> Dashboard {
    let graph = collapsed(
        "Flame graph, of Pyroscope",
        [flame(
            (
                "Flame graph",
                "Where the chosen service spends CPU time; needs the agents to push to Pyroscope",
            ),
            "{service_name=~\"$service\"}",
        )],
    );
    Dashboard {
        uid: "obi-profile",
        title: "obi / Profiles",
        description: "CPU time of requests by route, and how well stacks are sampled",
        variables: vec![
            Variable::Label {
                name: "namespace",
                label: "service_namespace",
                selector: "obi_server_request_cpu_seconds_total",
                help: "Namespace of services",
            },
            Variable::Label {
                name: "service",
                label: "service_name",
                selector: "obi_server_request_cpu_seconds_total{service_namespace=~\"$namespace\"}",
                help: "Service",
            },
            Variable::Source {
                name: "pyroscope",
                plugin: "grafana-pyroscope-datasource",
                help: "Pyroscope, for the flame graph",
            },
        ],
        rows: vec![routes(), sampling(), graph],
    }
}
