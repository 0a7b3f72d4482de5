//! Who calls whom.

use super::link::CALLED;
use super::model::{Dashboard, Unit, Variable, column, line, lines, row, stacked, table, text};
use super::query::{addressed_by, histogram, part, rate, top};

const CHOSEN: &str = "client=~\"$client\",server=~\"$server\"";
const BY: &str = "client, server, connection_type";
/// Names alone are not enough to lead anywhere.
const ENDS: &str = "client_service_namespace, client, server_service_namespace, server, connection_type";
const ALL: &str = "traces_service_graph_request_total";

fn failed(by: &str) -> String {
    part(&rate("traces_service_graph_request_failed_total", CHOSEN, by), &rate(ALL, CHOSEN, by))
}

/// A row for each edge between two services of two namespaces.
fn by_ends(expression: &str) -> String {
    addressed_by(&addressed_by(expression, "client_service_namespace"), "server_service_namespace")
}

pub(crate) fn dashboard() -> Dashboard {
    let served = histogram("traces_service_graph_request_server_seconds", CHOSEN);
    let called = histogram("traces_service_graph_request_client_seconds", CHOSEN);
    let edges = row(
        "Edges",
        [table(
            ("Edges", "Calls of one node to another, each once; a virtual node is known from one end only"),
            [
                column("Calls", Unit::PerSecond, by_ends(&rate(ALL, CHOSEN, ENDS))),
                column("Failed", Unit::Share, by_ends(&failed(ENDS))),
                column("p95 by the server", Unit::Seconds, by_ends(&served.quantile(0.95, ENDS))),
                column("p95 by the client", Unit::Seconds, by_ends(&called.quantile(0.95, ENDS))),
            ],
        )
        .links_to([CALLED])],
    );
    let trends = row(
        "The ten that stand out",
        [
            stacked(
                ("Most calls", "Calls each second, by edge"),
                (Unit::PerSecond, 12),
                [line(top(&rate(ALL, CHOSEN, BY)), "{{client}} → {{server}}")],
            ),
            lines(
                ("Most failures", "Part of the calls that either end calls failed"),
                (Unit::Share, 12),
                [line(top(&failed(BY)), "{{client}} → {{server}}")],
            ),
            lines(
                ("Slowest", "95 % of the calls took at most so long by their clients"),
                (Unit::Seconds, 12),
                [line(top(&called.quantile(0.95, BY)), "{{client}} → {{server}}")],
            ),
            lines(
                ("Between the ends", "What a call takes longer by its client than by its server, on average"),
                (Unit::Seconds, 12),
                [line(
                    top(&format!("({}) - ({})", called.average(BY), served.average(BY))),
                    "{{client}} → {{server}}",
                )],
            ),
        ],
    );
    let map = row(
        "As a map",
        [text(
            (
                "How to see a map",
                "The metrics have the names of Tempo's service graph. Set this Prometheus as `serviceMap.datasourceUid` of \
             a Tempo data source, and Explore draws them; `deploy/examples/grafana/datasources.yaml` does. The \
             agent's own map of its machine is at its page, `/map`.",
            ),
            24,
        )],
    );
    let variable = |name, help| Variable::Label { name, label: name, selector: ALL, help };
    Dashboard {
        uid: "obi-service-graph",
        title: "obi / Service graph",
        description: "Which service calls which, how often, how fast and with how many failures",
        variables: vec![variable("client", "Who calls"), variable("server", "Who is called")],
        rows: vec![edges, trends, map],
    }
}
