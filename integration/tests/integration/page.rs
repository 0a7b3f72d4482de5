//! The agent's own page: from an alert to the span by its links alone, and every number as the API has it.

mod demo;
mod evidence;

use std::collections::BTreeSet;
use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use integration::agent::{Agent, Config};
use integration::fetch::{self, Answer};
use integration::patience::until;
use integration::plan::Address;
use integration::seed::seeded;
use integration::server::{Server, language};
use integration::traffic::Traffic;
use serde_json::{Value, json};

/// Of a browser.
const ACCEPT: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";
/// The page of an alert is due so long after it began to burn.
const ALERT_WITHIN: Duration = Duration::from_secs(60);
const SOON: Duration = Duration::from_secs(20);

fn slo(service: &str) -> String {
    format!(
        "---\napiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: answers}}\nspec:\n  service: {service}\n  indicator:\n    \
         metadata: {{name: answers}}\n    spec:\n      ratioMetric:\n        counter: true\n        good: {{metricSource: \
         {{type: obi, spec: {{outcome: good}}}}}}\n        total: {{metricSource: {{type: obi, spec: {{service: \
         {service}}}}}}}\n  timeWindow: [{{duration: 28d, isRolling: true}}]\n  budgetingMethod: Occurrences\n  \
         objectives: [{{target: 0.99}}]\n"
    )
}

fn tcp(server: &Server) -> SocketAddr {
    match &server.address {
        Address::Tcp(address) => *address,
        other => panic!("{other:?} is not TCP"),
    }
}

/// A page, which is whole and says what a browser may do with it.
#[track_caller]
fn open(agent: &Agent, path: &str, status: u16) -> String {
    let Answer { status: given, content_type, policy, body } =
        fetch::get(agent.address(), path, ACCEPT).unwrap();
    assert_eq!((given, content_type.as_str()), (status, "text/html; charset=utf-8"), "{path}: {body}");
    for directive in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "base-uri 'none'"]
    {
        assert!(policy.contains(directive), "{path}: {policy}");
    }
    assert!(!policy.contains("unsafe"), "{path}: {policy}");
    assert!(body.starts_with("<!DOCTYPE html>") && body.ends_with("</html>"), "{path}: {body}");
    body
}

/// Addresses that a page links to, in their order.
fn links(page: &str) -> Vec<String> {
    let parts = page.split(" href=\"").skip(1);
    parts.filter_map(|part| Some(part.split_once('"')?.0.replace("&amp;", "&"))).collect()
}

/// The first link that begins so.
#[track_caller]
fn link(page: &str, begins: &str) -> String {
    let found = links(page).into_iter().find(|link| link.starts_with(begins));
    found.unwrap_or_else(|| panic!("no link to {begins}…: {page}"))
}

/// Numbers that a page says are this.
fn reported(page: &str, what: &str) -> Vec<u64> {
    let begin = format!("data-is=\"{what}\">");
    let parts = page.split(&begin).skip(1);
    parts.map(|part| part.split('<').next().unwrap().replace(',', "").parse().unwrap()).collect()
}

#[test]
fn from_an_alert_to_the_span() {
    let server = language::python_http("threading").unwrap();
    let service = server.service.clone();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slo.yaml");
    fs::write(&file, slo(&service)).unwrap();
    let config = Config::default().alone().set("slo", "files", json!([file])).set(
        "slo",
        "state",
        folder.path().join("state").display().to_string(),
    );
    let agent = Agent::start(config).unwrap();
    let traffic = Traffic::start(tcp(&server), 40, seeded("page"));
    traffic.fail(500);

    let page = until("the alert is on the page", ALERT_WITHIN, || {
        let page = open(&agent, "/", 200);
        if page.contains("class=\"alert\"") { Ok(page) } else { Err(page) }
    });
    // First click: the objective. Second: a trace of its evidence. Third: the span that failed.
    let objective = link(&page[page.find("class=\"alert\"").unwrap()..], "/slos/");
    assert_eq!(objective, "/slos/answers");
    let page = open(&agent, &objective, 200);
    assert!(page.contains("burning"), "{page}");
    let trace = link(&page, "/traces/");
    let page = open(&agent, &trace, 200);
    let spans: Vec<_> = links(&page).into_iter().filter(|it| it.starts_with(&format!("{trace}/"))).collect();
    let whole: Value = fetch::json(agent.address(), &format!("/api/v1{trace}")).unwrap();
    let ids: BTreeSet<String> = whole["spans"]
        .as_array()
        .unwrap()
        .iter()
        .map(|span| format!("{trace}/{}", span["span_id"].as_str().unwrap()))
        .collect();
    assert_eq!(spans.iter().cloned().collect::<BTreeSet<_>>(), ids, "the waterfall has the API's spans");
    let page = open(&agent, &spans[0], 200);
    assert!(page.contains("503") && page.contains("Where its CPU time went"), "{page}");

    let counted = traffic.finish();
    assert_numbers(&agent, &service, counted);
    assert_missing(&agent);
    assert_whole(&agent);
}

/// What the pages show is what the API shows and what was sent.
#[track_caller]
fn assert_numbers(agent: &Agent, service: &str, (good, bad): (u64, u64)) {
    let sent = good + bad;
    let overview = until("every request is counted", SOON, || {
        let page = open(agent, &format!("/?range=all&q={}", fetch::encode(service)), 200);
        if reported(&page, "requests") == [sent] { Ok(page) } else { Err(format!("{sent} sent: {page}")) }
    });
    let of = |figures: &str| format!("title=\"{bad} of {sent}\">▲ {figures} %<");
    let percent = 100.0 * bad as f64 / sent as f64;
    assert_eq!(reported(&overview, "errors"), [bad]);
    let shown = [format!("{percent:.0}"), format!("{percent:.1}"), format!("{percent:.2}")];
    assert!(shown.iter().any(|percent| overview.contains(&of(percent))), "{bad} of {sent}: {overview}");
    let labels = [("service_name", service)];
    let metric = agent.metrics().unwrap().sum("http_server_request_duration_seconds_count", &labels);
    assert_eq!(metric, sent as f64);
    let page = open(agent, &format!("{}?range=all", link(&overview, "/services/")), 200);
    let shown = reported(&page, "requests");
    assert_eq!(
        (shown[0], shown[1..].iter().sum::<u64>()),
        (sent, sent),
        "the tile, and the sum of the routes"
    );
    let shown = reported(&page, "errors");
    assert_eq!(
        (shown[0], shown[1..].iter().sum::<u64>()),
        (bad, bad),
        "errors of the tile and of the routes"
    );
    // The last five minutes are all there is: rate and line are made of the same requests.
    let page = open(agent, &link(&overview, "/services/"), 200);
    assert!(page.contains(&format!("title=\"{sent} requests\"")), "{page}");
    assert!(page.contains(">≈ "), "quantiles of a range are marked: {page}");
    assert!(page.contains("class=\"unknown\""), "the agent began within these five minutes: {page}");
    let heat = page.split_once("class=\"heat\"").and_then(|(_, rest)| rest.split_once("</figure>"));
    let example = link(heat.unwrap_or_else(|| panic!("no picture: {page}")).0, "/traces/");
    assert!(open(agent, &example, 200).contains("GET "), "{example}");

    // Other programs of the machine may call between the two looks.
    until("the map has the graph's calls", SOON, || {
        let graph: Value = fetch::json(agent.address(), "/api/v1/service-graph").unwrap();
        let edges = graph["edges"].as_array().unwrap().iter();
        let mut calls: Vec<u64> = edges.map(|edge| edge["requests"].as_u64().unwrap()).collect();
        let mut drawn = reported(&open(agent, "/map", 200), "calls");
        calls.sort_unstable();
        drawn.sort_unstable();
        if drawn == calls { Ok(()) } else { Err(format!("drawn {drawn:?}, in the graph {calls:?}")) }
    });
    let slos: Value = fetch::json(agent.address(), "/api/v1/slos").unwrap();
    let slo = open(agent, "/slos/answers", 200);
    assert_eq!((reported(&slo, "bad"), slos["slos"][0]["bad"].as_u64()), (vec![bad], Some(bad)));
    assert_burn_down(&slos["slos"][0], &slo, (good, bad));
    assert!(page.contains("The hour before is not known"), "the agent has run for a minute: {page}");
    let status: Value = fetch::json(agent.address(), "/api/v1/status").unwrap();
    assert_eq!(reported(&open(agent, "/agent", 200), "lost"), [status["lost"].as_u64().unwrap()]);
}

/// The budget along its period ends with what is left of it, and never rises.
#[track_caller]
fn assert_burn_down(slo: &Value, page: &str, (good, bad): (u64, u64)) {
    let moments = slo["burn_down"].as_array().unwrap();
    let left = |moment: &Value| moment["error_budget_remaining_ratio"].as_f64().unwrap();
    assert!(moments.is_sorted_by(|one, next| left(one) >= left(next)), "{moments:?}");
    let last = left(moments.last().unwrap());
    assert!((last - left(slo)).abs() < 1e-9, "{slo}");
    let truth = 1.0 - bad as f64 / (good + bad) as f64 / 0.01;
    assert!((last - truth).abs() < 1e-6, "{last} instead of {truth}");
    // All but the last days of the period were before this agent.
    assert_eq!(moments[0]["coverage"].as_f64(), Some(0.0), "{moments:?}");
    assert!(page.contains("No line where this agent did not count"), "{page}");
}

#[track_caller]
fn assert_missing(agent: &Agent) {
    for (path, way) in [
        ("/services/-/nothing", "/"),
        ("/slos/nothing", "/slos"),
        ("/traces/12121212121212121212121212121212", "/"),
        ("/nothing", "/"),
    ] {
        let page = open(agent, path, 404);
        let said = &page[page.find("<main").unwrap()..page.find("</main>").unwrap()];
        assert_eq!(links(said).last().map(String::as_str), Some(way), "{path}: {page}");
    }
    assert_eq!(fetch::get(agent.address(), "/nothing", "*/*").unwrap().content_type, "application/json");
}

/// Whatever the parts of the page link to is there.
#[track_caller]
fn assert_whole(agent: &Agent) {
    let parts = ["/", "/spans?limit=20", "/slos", "/map", "/agent"];
    let mut found: BTreeSet<String> = parts.iter().flat_map(|part| links(&open(agent, part, 200))).collect();
    // Nothing is sampled in this test, and pictures of it say so.
    found.retain(|link| link.starts_with('/') && !link.starts_with("/api/v1/profiles"));
    assert!(found.len() > 30, "{found:?}");
    for link in found {
        let path = link.split('#').next().unwrap();
        let answer = fetch::get(agent.address(), path, ACCEPT).unwrap();
        assert_eq!(answer.status, 200, "{path}: {}", answer.body);
    }
}
