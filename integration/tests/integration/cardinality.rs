//! More series than the budget has: ratios stay exact, and the agent says who spent it.

use std::collections::BTreeMap;

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::Kind;
use integration::fetch;
use integration::plan::Call;
use integration::server::shape::{ShapeServer, every_way};
use integration::shape::Shape;
use serde_json::Value;

use crate::gate;

/// Room for the overflow of a few services, and for half of the label sets of ours.
const LIMIT: u64 = 1_000;
const METHODS: [&str; 6] = ["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"];

/// Calls with as many label sets as calls.
fn calls() -> Vec<Call> {
    let statuses = (210..260).chain(510..560);
    let shape =
        |(method, status): (&&str, u16)| Shape { method: (*method).to_owned(), status, ..Shape::default() };
    METHODS
        .iter()
        .flat_map(|method| statuses.clone().map(move |status| (method, status)))
        .map(shape)
        .map(Call::new)
        .collect()
}

#[test]
fn beyond_the_budget_ratios_are_exact() {
    let mut agent = Agent::start(Config::default().set("metrics", "series_limit", LIMIT)).unwrap();
    let server = ShapeServer::start("many", every_way(1)).unwrap();
    let service = &server.server.service;
    let (mut ledger, calls) = (Ledger::default(), calls());
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 4);
    gate::assert_exact(&mut agent, &ledger);

    let metrics = agent.metrics().unwrap();
    let labels = [("service_name", service.as_str())];
    let mut classes = BTreeMap::<String, f64>::new();
    let mut folded = 0.0;
    for sample in metrics.matching("http_server_request_duration_seconds_count", &labels) {
        let class = sample.labels["http_response_status_code"][..1].to_owned();
        assert_eq!(sample.labels["error_type"].is_empty(), class != "5", "{:?}", sample.labels);
        *classes.entry(class).or_default() += sample.value;
        folded += if sample.labels.contains_key("otel_metric_overflow") { sample.value } else { 0.0 };
    }
    let each = (calls.len() / 2) as f64;
    assert_eq!(classes, BTreeMap::from([("2".to_owned(), each), ("5".to_owned(), each)]));
    assert!(folded > 0.0, "{} label sets cannot fit {LIMIT} series", calls.len());
    let failed = [labels[0], ("status_code", "STATUS_CODE_ERROR"), ("span_kind", "SPAN_KIND_SERVER")];
    assert_eq!(metrics.sum("traces_span_metrics_calls_total", &failed), each);

    let json: Value = fetch::json(agent.address(), "/api/v1/cardinality").unwrap();
    assert_eq!(json["limit"], LIMIT);
    assert!(json["series"].as_u64().unwrap() <= LIMIT, "{json}");
    let services = json["services"].as_array().unwrap();
    let ours = services.iter().find(|entry| entry["name"] == service.as_str()).unwrap();
    assert!(ours["folded_spans"].as_f64().unwrap() >= folded, "{ours}");
    assert!(!ours["folded"].as_array().unwrap().is_empty(), "{ours}");
}
