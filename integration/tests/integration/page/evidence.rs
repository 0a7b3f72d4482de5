//! Evidence of an alert while much else has happened since: its whole traces, and the flame graphs of their spans.

use std::fs;
use std::net::SocketAddr;
use std::time::Duration;

use integration::agent::{Agent, Config};
use integration::fetch;
use integration::patience::until;
use integration::process::free_port;
use integration::seed::{note, seeded};
use integration::server::{Server, nginx};
use integration::stack::server::{HotServer, Route};
use serde_json::{Value, json};

use super::{ALERT_WITHIN, link, links, open};

/// Spans that the agent remembers.
const SPANS: usize = 100;
/// Looks at each CPU per second.
const HERTZ: u32 = 499;
/// Requests of either kind; more than evidence has room for.
const REQUESTS: usize = 20;
/// A tenth of a second and more.
const SLOW: u32 = 100_000_000;
/// Some looks at a CPU, far below what is promised.
const FAST: u32 = 8_000_000;
const FORGOTTEN_WITHIN: Duration = Duration::from_secs(90);

fn slo(service: &str) -> String {
    super::slo(service).replace("{outcome: good}", "{faster_than: 80ms}")
}

/// A proxy in front of a server, and its address.
fn before(server: &HotServer) -> (Server, SocketAddr) {
    let port = free_port().unwrap();
    (nginx::below(port, server.address, false).unwrap(), SocketAddr::from(([127, 0, 0, 1], port)))
}

#[track_caller]
fn ask(proxy: SocketAddr, route: &Route, rounds: u32) {
    let path = format!("/obi{}?{rounds}", route.path);
    assert_eq!(fetch::get(proxy, &path, "*/*").unwrap().status, 200, "{path}");
}

fn api(agent: &Agent, path: &str) -> Value {
    fetch::json(agent.address(), path).unwrap()
}

/// How often a span was looked at while it ran.
fn samples(agent: &Agent, span: &str) -> u64 {
    let path = format!("/api/v1/profiles?format=json&span={span}");
    let answer = fetch::get(agent.address(), &path, "*/*").unwrap();
    match answer.status {
        200 => serde_json::from_str::<Value>(&answer.body).unwrap()["samples"].as_u64().unwrap(),
        // None is held.
        404 => 0,
        other => panic!("{other}: {}", answer.body),
    }
}

/// Trace and span of each request that a service has served.
fn served(agent: &Agent, service: &str) -> Vec<(String, String)> {
    let path = format!("/api/v1/spans?kind=server&service={}", fetch::encode(service));
    let spans = api(agent, &path)["spans"].as_array().unwrap().clone();
    let text = |span: &Value, key: &str| span[key].as_str().unwrap().to_owned();
    spans.iter().map(|span| (text(span, "trace_id"), text(span, "span_id"))).collect()
}

/// How often a span was looked at, once all its samples are there: those of a later request are.
#[track_caller]
fn settled(agent: &Agent, server: &HotServer, proxy: SocketAddr, span: &str) -> u64 {
    let before = served(agent, &server.service);
    ask(proxy, &server.routes[0], SLOW);
    until("a later request was sampled", ALERT_WITHIN, || {
        let now = served(agent, &server.service);
        let later = now.iter().find(|it| !before.contains(it)).ok_or("it has no span")?;
        if samples(agent, &later.1) > 0 { Ok(()) } else { Err(format!("{later:?} has no sample")) }
    });
    let mut last = 0;
    until("the slow one was sampled", ALERT_WITHIN, || {
        let now = samples(agent, span);
        let is_settled = now > 0 && now == last;
        last = now;
        if is_settled { Ok(now) } else { Err(format!("{now} samples")) }
    })
}

fn is_known(agent: &Agent, trace: &str) -> bool {
    fetch::get(agent.address(), &format!("/api/v1/traces/{trace}"), "*/*").unwrap().status == 200
}

#[test]
fn four_clicks_after_all_else_is_forgotten() {
    let mut rng = seeded("evidence");
    let (server, other) = (HotServer::start(&mut rng).unwrap(), HotServer::start(&mut rng).unwrap());
    let (nginx, proxy) = before(&server);
    let (other_nginx, other_proxy) = before(&other);
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("slo.yaml");
    fs::write(&file, slo(&server.service)).unwrap();
    // Other programs of this machine have no part in it.
    let watched = [&server.service, &nginx.service, &other.service, &other_nginx.service];
    let watched = watched.map(|service| json!({"service": service}));
    let config = Config::default()
        .set("discover", "include", json!(watched))
        .set("slo", "files", json!([file]))
        .set("slo", "state", folder.path().join("state").display().to_string())
        .set("web", "spans", SPANS)
        .set("profile", "enabled", true)
        .set("profile", "frequency", HERTZ)
        .set("profile", "store_bytes", "1 MiB");
    let agent = Agent::start(config).unwrap();
    let route = &server.routes[0];

    (0..REQUESTS).for_each(|_| ask(proxy, route, FAST));
    let fast = until("the fast ones are known", ALERT_WITHIN, || {
        let spans = served(&agent, &server.service);
        if spans.len() == REQUESTS { Ok(spans) } else { Err(format!("{spans:?}")) }
    });
    (0..REQUESTS).for_each(|_| ask(proxy, route, SLOW));
    let page = until("the alert is on the page", ALERT_WITHIN, || {
        let page = open(&agent, "/", 200);
        if page.contains("class=\"alert\"") { Ok(page) } else { Err(page) }
    });
    // The first two clicks.
    let objective = link(&page[page.find("class=\"alert\"").unwrap()..], "/slos/");
    let trace = link(&open(&agent, &objective, 200), "/traces/");
    let path = format!("/api/v1{trace}");
    let of_server = |trace: &Value| {
        let spans = trace["spans"].as_array().unwrap();
        let span = spans.iter().find(|span| span["service"]["name"] == server.service.as_str());
        span.unwrap()["span_id"].as_str().unwrap().to_owned()
    };
    let span = of_server(&api(&agent, &path));
    let known = settled(&agent, &server, proxy, &span);
    let whole = api(&agent, &path);
    assert!(whole["spans"].as_array().unwrap().len() >= 2, "the proxy's call and the server's: {whole}");

    until("the fast ones are forgotten", FORGOTTEN_WITHIN, || {
        (0..SPANS).for_each(|_| ask(other_proxy, &other.routes[0], FAST));
        let known = fast.iter().filter(|(trace, span)| is_known(&agent, trace) || samples(&agent, span) > 0);
        // On a busy machine some of them were slow, too.
        let known = known.count();
        // What is older than they are may still be in the ring: then it is no evidence of anything.
        let kept = api(&agent, "/api/v1/status")["profile"]["memory"]["evidence"].as_u64().unwrap();
        if known * 2 < REQUESTS && kept > 0 {
            Ok(())
        } else {
            Err(format!("{known} are known, {kept} bytes"))
        }
    });
    let recent = served(&agent, &other.service);
    assert!(recent.len() > SPANS / 5, "the recent past is that of others: {recent:?}");

    // The same two clicks again, and the other two: nothing of it has changed.
    let page = open(&agent, &link(&open(&agent, "/", 200), "/slos/"), 200);
    assert!(links(&page).contains(&trace), "{trace}: {page}");
    assert_eq!(api(&agent, &path), whole);
    let page = open(&agent, &trace, 200);
    let page = open(&agent, &link(&page, &format!("{trace}/{span}")), 200);
    let shown = format!("{known} samples");
    assert!(page.contains(&shown), "{shown}: {page}");
    let page = open(&agent, &link(&page, "/profiles?trace="), 200);
    let picture = link(&page, "/api/v1/profiles?trace=");
    let picture = fetch::get(agent.address(), &picture, "image/svg+xml").unwrap();
    assert_eq!(picture.status, 200);
    assert!(picture.body.contains(&route.hot), "{} is not in {}", route.hot, picture.body);

    let status = api(&agent, "/api/v1/status");
    let (evidence, profile) = (&status["evidence"], &status["profile"]);
    note(&format!("evidence: {known} samples, {evidence}, {}", profile["memory"]["evidence"]));
    assert!(evidence["traces"].as_u64().is_some_and(|traces| traces > 0), "{evidence}");
    assert!(profile["memory"]["evidence"].as_u64().is_some_and(|bytes| bytes > 0), "{profile}");
    let refused = (&evidence["refused_spans"], &profile["failures"]["evidence_full"]);
    assert_eq!(refused, (&json!(0), &json!(0)));
}
