//! Requests that the agent counts by the spans that programs send it: where their services are not captured, and where
//! nothing is.
//!
//! The truth is the workload's ledger, or the plan by which a generator made its spans.

use std::process::Command;
use std::time::Duration;

use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::otlp::generator::{
    Kind, NAMESPACE, Plan, ROUTES, SERVICES, SPANS_PER_TRACE, Sent, generate, name, request, total,
};
use integration::patience::patience;
use integration::process::free_port;
use integration::seed::seeded;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use serde_json::json;

use crate::objective::{Setting, assert_counted, slo};
use crate::receive::{CALLED, CALLS, LIMIT, REQUESTS, Services, addresses, ask, ask_with, config, counted};

/// An excluded service counts by its SDK's spans; one that is captured does not count twice, although it was allowed.
#[test]
fn services_that_are_not_captured_count_by_their_spans() {
    let (mut receive, endpoint) = addresses("http/protobuf");
    receive["count"] = true.into();
    let config = config(receive, json!([])).set("discover", "include", json!([{"service": "stock"}]));
    let agent = Agent::start(config).unwrap();
    let services = Services::start("http/protobuf", &endpoint);
    for _ in 0..CALLS {
        ask(services.orders);
    }
    let all = |metrics: &Exposition| counted(metrics, "span") + counted(metrics, "uncaptured") >= 2 * CALLS;
    let metrics = agent.metrics_until(LIMIT, all).unwrap();
    assert_eq!((counted(&metrics, "span"), counted(&metrics, "uncaptured")), (2 * CALLS, 0));
    let sum = |name: &str, labels: &[(&str, &str)]| metrics.sum(name, labels) as usize;
    let labels = [
        ("service_name", "orders"),
        ("http_route", "/order/{id}"),
        ("http_response_status_code", "200"),
        ("http_request_method", "GET"),
    ];
    assert_eq!((sum(REQUESTS, &labels), sum(REQUESTS, &labels[..1])), (CALLS, CALLS));
    let port = services.stock.port().to_string();
    assert_eq!(sum(CALLED, &[("service_name", "orders"), ("server_port", &port)]), CALLS);
    assert_eq!(sum(REQUESTS, &[("service_name", "stock")]), CALLS, "what is captured counts by that");
    assert_eq!(agent.stop().unwrap().code, 0);
}

/// What begins its trace has no id in common with its exchange: it is not counted beside that.
#[test]
fn a_captured_service_counts_once_also_without_traceparent() {
    let (mut receive, endpoint) = addresses("http/protobuf");
    receive["count"] = true.into();
    let agent = Agent::start(config(receive, json!([]))).unwrap();
    let services = Services::start("http/protobuf", &endpoint);
    for _ in 0..CALLS {
        ask_with(services.orders, "");
    }
    let all = |metrics: &Exposition| {
        ["captured", "span", "uncaptured"].map(|what| counted(metrics, what)).iter().sum::<usize>()
            >= 2 * CALLS
    };
    let metrics = agent.metrics_until(LIMIT, all).unwrap();
    let found = ["captured", "span", "uncaptured"].map(|what| counted(&metrics, what));
    assert_eq!(found, [CALLS, 0, CALLS], "the client's spans are paired, the server's are not");
    assert_eq!(metrics.sum(REQUESTS, &[("service_name", "orders")]) as usize, CALLS);
    assert_eq!(agent.stop().unwrap().code, 0);
}

const TRACES: usize = 2_000;

/// The configuration of an agent that loads nothing, and where it takes spans.
fn capturing_nothing() -> (Config, String) {
    let port = free_port().unwrap();
    let config = Config::plain().set("capture", "enabled", false).set(
        "receive",
        "otlp",
        json!({"http": format!("127.0.0.1:{port}")}),
    );
    (config, format!("http://127.0.0.1:{port}/v1/traces"))
}

fn without_capture(wrap: impl FnOnce(Command) -> Command) -> (Agent, String) {
    let (config, url) = capturing_nothing();
    (Agent::start_in(config, wrap).unwrap(), url)
}

fn send(url: &str, spans: &[Sent]) {
    let post = ureq::post(url).content_type("application/x-protobuf");
    assert_eq!(post.send(&request(spans)).unwrap().status(), 200);
}

/// A process without any right counts a stream of spans as its plan says.
#[test]
fn without_capture_requests_are_counted_by_spans() {
    let mut rng = seeded("without_capture");
    let (agent, url) = without_capture(|command| {
        let mut wrapped = Command::new("setpriv");
        wrapped.args(["--bounding-set=-all", "--inh-caps=-all", "--no-new-privs", "--"]);
        wrapped.arg(command.get_program()).args(command.get_args());
        wrapped
    });
    let mut plan = Plan::new();
    let spans = generate(&mut rng, TRACES, &mut plan);
    for batch in spans.chunks(500) {
        send(&url, batch);
    }
    let all = |metrics: &Exposition| {
        counted(metrics, "span") + counted(metrics, "internal") == SPANS_PER_TRACE * TRACES
            && metrics.sum(EDGES, &[]) >= 2.0 * TRACES as f64
    };
    let metrics = agent.metrics_until(patience(LIMIT), all).unwrap();
    assert_eq!((counted(&metrics, "span"), counted(&metrics, "internal")), (3 * TRACES, TRACES));
    check_requests(&metrics, &plan);
    check_edges(&metrics, &plan);
    let named = metrics.sum("traces_span_metrics_calls_total", &[("span_name", "Internal")]);
    assert_eq!(named as usize, TRACES, "work inside is counted as a span");
    assert!(agent.stderr().unwrap().contains("capabilities kept: none"));
    assert_eq!(agent.stop().unwrap().code, 0);
}

/// What an objective counts of a service is what its spans say, good and bad.
#[test]
fn objectives_count_requests_by_spans() {
    let mut rng = seeded("objectives_by_spans");
    let (config, url) = capturing_nothing();
    let setting = Setting::of(config, &[slo("errors", &name(0))]);
    let agent = setting.start();
    let mut plan = Plan::new();
    let spans = generate(&mut rng, TRACES, &mut plan);
    for batch in spans.chunks(500) {
        send(&url, batch);
    }
    let bad = total(&plan, |kind| kind.server == 0 && kind.status >= 500);
    // What comes from outside is answered by 200.
    let good =
        total(&plan, |kind| kind.client == 0) + total(&plan, |kind| kind.server == 0 && kind.status < 500);
    assert!(good > 0 && bad > 0);
    assert_counted(&agent, (good as u64, bad as u64));
    assert_eq!(agent.stop().unwrap().code, 0);
}

const EDGES: &str = "traces_service_graph_request_total";

fn check_requests(metrics: &Exposition, plan: &Plan) {
    for service in 0..SERVICES {
        let name = name(service);
        let own = [("service_name", &*name), ("service_namespace", NAMESPACE)];
        let sum = |metric: &str, labels: &[(&str, &str)]| {
            metrics.sum(metric, &[&own[..], labels].concat()) as usize
        };
        assert_eq!(
            sum(REQUESTS, &[("http_route", "/")]),
            total(plan, |kind| kind.client == service),
            "{name}"
        );
        for route in 0..ROUTES {
            for status in [200, 204, 404, 500, 503] {
                let is = |kind: &Kind| (kind.server, kind.route, kind.status) == (service, route, status);
                let (route, code) = (format!("/{route}"), status.to_string());
                let error = if status >= 500 { &*code } else { "" };
                let labels =
                    [("http_route", &*route), ("http_response_status_code", &*code), ("error_type", error)];
                assert_eq!(sum(REQUESTS, &labels), total(plan, is), "{name} {labels:?}");
            }
        }
        let failed = total(plan, |kind| kind.client == service && kind.status == 404);
        assert_eq!(sum(CALLED, &[("error_type", "404"), ("server_address", "inside")]), failed, "{name}");
    }
}

/// Each call is one edge between its services, and each request from outside one from a user.
fn check_edges(metrics: &Exposition, plan: &Plan) {
    let sum = |metric: &str, client: &str, server: &str| {
        metrics.sum(metric, &[("client", client), ("server", server)]) as usize
    };
    for client in 0..SERVICES {
        for server in 0..SERVICES {
            let is = |kind: &Kind| (kind.client, kind.server) == (client, server);
            let found = sum(EDGES, &name(client), &name(server));
            assert_eq!(found, total(plan, is), "{client} to {server}");
            let failed = sum("traces_service_graph_request_failed_total", &name(client), &name(server));
            assert_eq!(failed, total(plan, |kind| is(kind) && kind.status >= 400), "{client} to {server}");
        }
        let asked = sum(EDGES, "user", &name(client));
        assert_eq!(asked, total(plan, |kind| kind.client == client), "from outside to {client}");
    }
}

/// Longer than an end waits for the other one.
#[test]
fn ends_whose_other_end_is_elsewhere_lead_there() {
    let (agent, url) = without_capture(|command| command);
    let mut rng = seeded("elsewhere");
    let mut plan = Plan::new();
    let spans = generate(&mut rng, TRACES, &mut plan);
    // Only the ends of the callers.
    let sent: Vec<_> =
        spans.into_iter().filter(|(_, span)| span.kind() == SpanKind::Client).take(50).collect();
    send(&url, &sent);
    let to_inside = [("server", "inside"), ("connection_type", "virtual_node")];
    let all = |metrics: &Exposition| metrics.sum(EDGES, &to_inside) >= 50.0;
    let metrics = agent.metrics_until(LIMIT.max(Duration::from_secs(30)), all).unwrap();
    assert_eq!((metrics.sum(EDGES, &to_inside), metrics.sum(EDGES, &[])), (50.0, 50.0));
}
