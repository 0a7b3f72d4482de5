//! SIGHUP: rules, routes and destinations follow the file, a bad file changes nothing; and routes that outlive the
//! agent.

use std::collections::BTreeSet;

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::otlp::receiver::Receiver;
use integration::plan::{Call, ServerPlan};
use integration::server::shape::ShapeServer;
use integration::shape::Shape;
use integration::span;
use serde_json::{Value, json};

use crate::gate::{self, Barrier};

/// Sends one request; the route of its server span, or `None` when a later request has been seen and this one has not.
fn route_of(agent: &mut Agent, server: &ShapeServer, barrier: &Barrier) -> Option<String> {
    let call = Call::new(Shape::default());
    client::call(Kind::Shape, &server.server.address, std::slice::from_ref(&call), 1).unwrap();
    assert!(barrier.pass(agent), "the agent does not show a request of a watched process");
    let spans = agent.spans().unwrap();
    let is_it = |span: &&span::Span| {
        span.request_id() == Some(call.id.as_str())
            && span.kind == span::Kind::Server
            && span.service.name == server.server.service
    };
    spans.iter().find(is_it).map(|span| span.text("http.route").unwrap_or("").to_owned())
}

#[test]
fn rules_and_routes_follow_the_file_and_a_bad_one_changes_nothing() {
    let first = ShapeServer::start("first", ServerPlan::default()).unwrap();
    let second = ShapeServer::start("second", ServerPlan::default()).unwrap();
    let barrier = Barrier::start();
    let mut agent = Agent::start(Config::default()).unwrap();
    let learned = route_of(&mut agent, &first, &barrier).expect("everybody is watched");
    assert!(learned.starts_with("/e/{id}/"), "{learned}");

    // Rules: the first server is no longer watched, the second still is.
    let excluded = Config::default().set("discover", "exclude", json!([{"service": first.server.service}]));
    assert_eq!(agent.reload(&agent.placed(excluded.clone())).unwrap(), "applied");
    assert_eq!(route_of(&mut agent, &first, &barrier), None);
    assert_eq!(route_of(&mut agent, &second, &barrier), Some(learned.clone()));

    // A bad file, and one that is none at all: nothing changes.
    for bad in ["discover: {exclude: [{port: 0}]}", "trace: {routes: [nowhere]}", "web: [", "colour: red"] {
        assert_eq!(agent.reload(bad).unwrap(), "refused", "{bad}");
        assert_eq!(agent.metric_value("obi_config_last_reload_successful", &[]).unwrap(), 0.0);
    }
    let log = agent.stderr().unwrap();
    assert!(
        log.contains("configuration refused, the old one stays") && log.contains("discover.exclude[0].port"),
        "{log}"
    );
    assert_eq!(route_of(&mut agent, &first, &barrier), None);
    assert_eq!(route_of(&mut agent, &second, &barrier), Some(learned.clone()));

    // Routes; and who was excluded is watched again. A key that needs a restart is named and changes nothing.
    let routes =
        Config::default().set("trace", "routes", json!(["/e/{request}/*"])).set("capture", "head_limit", 300);
    assert_eq!(agent.reload(&agent.placed(routes)).unwrap(), "applied");
    assert_eq!(agent.metric_value("obi_config_last_reload_successful", &[]).unwrap(), 1.0);
    for server in [&first, &second] {
        assert_eq!(route_of(&mut agent, server, &barrier).as_deref(), Some("/e/{request}/*"));
    }
    let log = agent.stderr().unwrap();
    assert!(log.contains("capture.head_limit") && log.contains("need a restart"), "{log}");

    // And back.
    assert_eq!(agent.reload(&agent.placed(Config::default())).unwrap(), "applied");
    assert_eq!(route_of(&mut agent, &first, &barrier), Some(learned));
    assert_eq!(agent.stop().unwrap().code, 0);
}

/// Spans follow the file to another destination; what became of earlier ones stays counted; a bad file changes nothing.
#[test]
fn destinations_follow_the_file() {
    let [first, second] = [(); 2].map(|()| Receiver::start([]).unwrap());
    let server = ShapeServer::start("exported", ServerPlan::default()).unwrap();
    let barrier = Barrier::start();
    let destination = |name: &str, receiver: &Receiver| {
        let endpoint = format!("http://{}", receiver.grpc);
        // It waits long: what lies there when the file changes is sent all the same.
        json!({"name": name, "endpoint": endpoint, "protocol": "grpc", "signals": ["traces"], "batch_delay": "1m"})
    };
    let with = |destinations: Value| Config::default().set("export", "otlp", destinations);
    let mut agent = Agent::start(with(json!([destination("first", &first)]))).unwrap();
    let n_exported = |agent: &Agent, name: &str, state: &str| {
        let metrics =
            agent.metrics_until(gate::PATIENCE, |metrics| metrics.sum(state, &[("destination", name)]) > 0.0);
        metrics.unwrap().sum(state, &[("destination", name)]) as usize
    };
    route_of(&mut agent, &server, &barrier).expect("everybody is watched");
    assert!(n_exported(&agent, "first", "obi_export_queue_items") > 0);
    assert!(first.span_ids().is_empty());

    // A destination that cannot be used: the old one stays.
    let mut unusable = destination("second", &second);
    unusable["endpoint"] = json!("https://127.0.0.1:1");
    unusable["ca_file"] = json!("/nowhere/ca.pem");
    assert_eq!(agent.reload(&agent.placed(with(json!([unusable])))).unwrap(), "refused");
    let log = agent.stderr().unwrap();
    assert!(log.contains("destination `second`: failed to read `/nowhere/ca.pem`"), "{log}");

    let mut next = destination("second", &second);
    next["batch_delay"] = json!("10ms");
    assert_eq!(agent.reload(&agent.placed(with(json!([next])))).unwrap(), "applied");
    let n_first = n_exported(&agent, "first", "obi_export_sent_total");
    let before = first.span_ids();
    assert_eq!(before.len(), n_first, "what was queued arrives at once");
    route_of(&mut agent, &server, &barrier).expect("everybody is watched");
    assert!(n_exported(&agent, "second", "obi_export_sent_total") > 0);

    // No span is gone, none came twice, none went to the wrong one.
    let spans = agent.spans_until(gate::PATIENCE, |_| true).unwrap();
    let seen: Vec<String> = spans.iter().map(|span| span.span_id.clone()).collect();
    let metrics =
        agent.metrics_until(gate::PATIENCE, |metrics| metrics.sum("obi_export_queue_items", &[]) == 0.0);
    assert_eq!(metrics.unwrap().sum("obi_export_lost_total", &[]), 0.0);
    assert_eq!(agent.stop().unwrap().code, 0);
    assert_eq!(first.span_ids(), before);
    let exported: BTreeSet<String> = before.into_iter().chain(second.span_ids()).collect();
    let n_arrived = first.span_ids().len() + second.span_ids().len();
    assert_eq!(exported.len(), n_arrived);
    assert!(seen.iter().all(|id| exported.contains(id)));
}

#[test]
fn learned_routes_outlive_the_agent() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("routes.json");
    let config =
        || Config::default().set("trace", "route_state", file.to_str().expect("temporary paths are text"));
    let server = ShapeServer::start("kept", ServerPlan::default()).unwrap();
    let barrier = Barrier::start();
    let mut agent = Agent::start(config()).unwrap();
    let route = route_of(&mut agent, &server, &barrier).expect("everybody is watched");
    assert!(!file.exists(), "news are written once a minute");
    agent.stop().unwrap();
    let kept = std::fs::read_to_string(&file).unwrap();
    assert!(kept.contains(&server.server.service), "{kept}");

    // 404 teaches nothing: only a route that is known already can be given to it.
    let mut agent = Agent::start(config()).unwrap();
    assert!(agent.stderr().unwrap().contains("learned routes restored"), "{}", agent.stderr().unwrap());
    let call = Call::new(Shape { status: 404, ..Shape::default() });
    client::call(Kind::Shape, &server.server.address, std::slice::from_ref(&call), 1).unwrap();
    assert!(barrier.pass(&mut agent));
    let spans = agent.spans_until(gate::PATIENCE, |_| true).unwrap();
    let is_it =
        |span: &&span::Span| span.request_id() == Some(call.id.as_str()) && span.kind == span::Kind::Server;
    assert_eq!(spans.iter().find(is_it).and_then(|span| span.text("http.route")), Some(route.as_str()));
}
