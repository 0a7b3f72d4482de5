//! The router, called without a socket; a thread answers as the pipeline would.

use std::net::SocketAddr;

use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, CONTENT_TYPE};
use serde_json::Value;
use tokio::sync::mpsc;
use tower_service::Service;

use super::*;
use crate::listener::Peer;
use crate::red::tests::{span, span_with};
use crate::red::{Limits, Registry};
use crate::span::SpanKind;
use crate::span_store::{Limits as StoreLimits, Store};
use crate::stats::{HookSetState, Stats};

/// A pipeline with a server span, a failed client span, and a thread that answers.
fn app(ready: bool) -> Router {
    let (sender, mut receiver) = mpsc::channel::<Command>(4);
    std::thread::spawn(move || {
        let mut registry = Registry::new(Limits::default());
        let (mut stats, mut store) = (Stats::default(), Store::new(StoreLimits::default()));
        stats.hook_set = "socket";
        stats.hook_sets = vec![
            HookSetState { set: "socket", state: "used", reason: String::new() },
            HookSetState { set: "fentry", state: "refused", reason: "too complex".to_owned() },
        ];
        stats.not_seen = vec!["receives by io_uring"];
        stats.watched_processes = 2;
        let failed = span_with(SpanKind::Client, |span| {
            span.http().status = Some(503);
            span.error_type = "503";
        });
        for span in [span(SpanKind::Server), failed] {
            registry.record(&span);
            store.push(span);
        }
        while let Some(command) = receiver.blocking_recv() {
            command.answer(&mut Sources { registry: &mut registry, stats: &mut stats, store: &store });
            // A new series between any two scrapes.
            let status = 200 + u16::try_from(stats.watched_processes).unwrap();
            stats.watched_processes += 1;
            registry.record(&span_with(SpanKind::Server, |span| span.http().status = Some(status)));
        }
    });
    router(State::new(Handle::new(sender, Arc::new(|| ())), Arc::new(AtomicBool::new(ready))))
}

#[tokio::test]
async fn cardinality_tells_who_spends_the_budget() {
    let json = get(&app(true), "/api/v1/cardinality").await.json();
    let check = |pointer: &str, expected: Value| {
        assert_eq!(json.pointer(pointer), Some(&expected), "{pointer} of {json}");
    };
    check("/limit", 10_000.into());
    check("/ordinary_limit", 8_000.into());
    // A server span and a client span, each a request series and a span series.
    check("/series", 4.into());
    check("/overflow_series", 0.into());
    check("/folded_spans", 0.into());
    check("/metrics/traces.span.metrics", 2.into());
    check("/labels/http_route", 1.into());
    check("/services/0/name", "service-1".into());
    check("/services/0/series", 4.into());
    check("/services/0/promised", 31.into());
    check("/services/0/labels/http_response_status_code", 2.into());
}

struct Answer {
    status: StatusCode,
    content_type: String,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {}", self.body))
    }
}

async fn call(app: &Router, request: Request) -> Answer {
    let response = app.clone().call(request).await.expect("a router cannot fail");
    let content_type = response.headers().get(CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
    let status = response.status();
    let body = to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let body = String::from_utf8(body.to_vec()).unwrap();
    Answer { status, content_type: content_type.unwrap_or_default(), body }
}

async fn get(app: &Router, uri: &str) -> Answer {
    call(app, Request::get(uri).body(Body::empty()).unwrap()).await
}

#[tokio::test]
async fn objectives_are_suggested_for_those_who_answer() {
    let answer = get(&app(true), "/api/v1/slos/suggested?service=service-1").await;
    assert_eq!(answer.status, 200, "{}", answer.body);
    let reading = slo::openslo::read([("suggested.yaml", answer.body.as_str())]);
    let is_error = |finding: &&slo::openslo::Finding| finding.severity == slo::openslo::Severity::Error;
    assert_eq!((reading.objectives.len(), reading.findings.iter().find(is_error)), (2, None));
    for uri in ["/api/v1/slos/suggested", "/api/v1/slos/suggested?service=nobody"] {
        let answer = get(&app(true), uri).await;
        assert_eq!(answer.status, 400, "{uri}");
        assert_eq!(answer.json()["parameter"], "service", "{uri}");
    }
}

/// A page that has its own name point at this machine reads nothing, on any path.
#[tokio::test]
async fn requests_for_foreign_names_are_refused_on_every_path() {
    let config = crate::config::Web { hosts: vec!["obi.example.org".to_owned()], ..Default::default() };
    let (sender, _) = mpsc::channel::<Command>(1);
    let handle = Handle::new(sender, Arc::new(|| ()));
    let app = router(State::new(handle, Arc::new(AtomicBool::new(true))).configured(&config));
    let check = async |uri: &str, hosts: &[&str], status: u16| {
        let mut request = Request::get(uri);
        for host in hosts {
            request = request.header("host", *host);
        }
        let answer = call(&app, request.body(Body::empty()).unwrap()).await;
        assert_eq!(answer.status, status, "{uri} {hosts:?}: {}", answer.body);
        if status == 421 {
            let error = answer.json()["error"].as_str().unwrap().to_owned();
            assert!(error.contains("web.hosts"), "{error}");
        }
    };
    let paths = [
        "/",
        "/metrics",
        "/healthz",
        "/readyz",
        "/api/v1/spans",
        "/api/v1/status",
        "/nothing",
        "/api/v1/slos",
    ];
    for path in paths {
        check(path, &["evil.example:9464"], 421).await;
    }
    check("/healthz", &["127.0.0.1:9464"], 200).await;
    check("/healthz", &["obi.example.org:9464"], 200).await;
    check("/healthz", &[], 200).await;
    check("/healthz", &["localhost", "evil.example"], 421).await;
    check("/healthz", &["localhost", "localhost"], 421).await;
    check("http://evil.example/healthz", &["localhost"], 421).await;
    check("http://localhost/healthz", &["localhost"], 200).await;
}

#[tokio::test]
async fn health_follows_capture() {
    for (ready, uri, status) in
        [(false, "/healthz", 200), (false, "/readyz", 503), (true, "/healthz", 200), (true, "/readyz", 200)]
    {
        assert_eq!(get(&app(ready), uri).await.status, status, "{uri} ready={ready}");
    }
}

#[tokio::test]
async fn status_tells_what_became_of_each_hook_set() {
    let status = get(&app(true), "/api/v1/status").await.json();
    assert_eq!(status["hook_set"], "socket");
    let expected = serde_json::json!([
        {"set": "socket", "state": "used", "reason": ""},
        {"set": "fentry", "state": "refused", "reason": "too complex"},
    ]);
    assert_eq!(status["hook_sets"], expected);
    assert_eq!(status["not_seen"], serde_json::json!(["receives by io_uring"]));
}

#[tokio::test]
async fn errors_are_json_and_name_what_is_wrong() {
    let app = app(true);
    let check = async |method: &str, uri: &str, status: u16, fields: Value| {
        let request = Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        let answer = call(&app, request).await;
        assert_eq!((answer.status.as_u16(), &*answer.content_type), (status, "application/json"), "{uri}");
        let json = answer.json();
        for (name, value) in fields.as_object().unwrap() {
            assert_eq!(json[name], *value, "{uri}");
        }
        assert!(json["error"].as_str().is_some_and(|error| !error.is_empty()));
    };
    let named = |parameter: &str, value: &str| serde_json::json!({"parameter": parameter, "value": value});
    check("GET", "/nothing?x=1", 404, serde_json::json!({"error": "no such path: /nothing"})).await;
    check("POST", "/metrics", 405, serde_json::json!({"error": "method POST is not allowed, use GET"})).await;
    check("GET", "/api/v1/spans?kind=a%20b", 400, named("kind", "a b")).await;
    check("GET", "/api/v1/spans?status=1", 400, named("status", "1")).await;
    check("GET", "/api/v1/spans?nonsense", 400, named("nonsense", "")).await;
    check("GET", "/api/v1/spans?limit=0&kind=server", 400, named("limit", "0")).await;
    check("GET", "/api/v1/traces?limit=0", 400, named("limit", "0")).await;
    check("GET", "/api/v1/traces?route=/a", 400, named("route", "/a")).await;
    check("GET", "/api/v1/traces/12", 400, named("trace_id", "12")).await;
    check("GET", &format!("/api/v1/traces/{}", "12".repeat(16)), 404, serde_json::json!({})).await;
    let long = format!("/api/v1/spans?path={}", "x".repeat(MAX_QUERY_BYTES));
    check("GET", &long, 414, serde_json::json!({"error": "query of 8197 bytes is longer than 8192"})).await;
}

#[tokio::test]
async fn a_trace_is_reported_from_its_first_span_on() {
    let app = app(true);
    let found = get(&app, "/api/v1/traces").await.json();
    let [trace] = &found["traces"].as_array().unwrap()[..] else { panic!("one trace: {found}") };
    assert_eq!((&trace["spans"], &trace["errors"], &found["next"]), (&2.into(), &1.into(), &2.into()));
    assert_eq!(get(&app, "/api/v1/traces?error=false").await.json()["traces"], serde_json::json!([]));
    assert_eq!(get(&app, "/api/v1/traces?after=2").await.json()["traces"], serde_json::json!([]));
    let id = trace["trace_id"].as_str().unwrap();
    let whole = get(&app, &format!("/api/v1/traces/{id}")).await.json();
    assert_eq!((whole["trace_id"].as_str(), whole["spans"].as_array().map(Vec::len)), (Some(id), Some(2)));
    for span in whole["spans"].as_array().unwrap() {
        assert_eq!((&span["depth"], span["is_cut"].is_boolean()), (&0.into(), true));
    }
}

#[tokio::test]
async fn metrics_come_in_the_wanted_format() {
    let app = app(true);
    for (accept, content_type, ends) in [
        ("", "text/plain; version=0.0.4; charset=utf-8", false),
        ("application/openmetrics-text", "application/openmetrics-text; version=1.0.0; charset=utf-8", true),
    ] {
        let request = Request::get("/metrics").header(ACCEPT, accept).body(Body::empty()).unwrap();
        let answer = call(&app, request).await;
        assert_eq!((answer.status, &*answer.content_type), (StatusCode::OK, content_type));
        assert_eq!(answer.body.ends_with("# EOF\n"), ends);
        assert!(answer.body.contains("process_resident_memory_bytes "));
        assert!(answer.body.contains("http_server_request_duration_seconds_count{"));
    }
}

#[tokio::test]
async fn only_a_scraper_that_returns_sees_zero_points() {
    let app = app(true);
    let scrape = async |address: [u8; 4], header: bool, code: &str| {
        let mut request = Request::get("/metrics").body(Body::empty()).unwrap();
        request
            .extensions_mut()
            .insert(Peer { address: SocketAddr::from((address, 40_000)), over_tls: false });
        if header {
            request.headers_mut().insert("X-Prometheus-Scrape-Timeout-Seconds", "10".parse().unwrap());
        }
        let answer = call(&app, request).await;
        let is_count = |line: &&str| line.starts_with("http_server") && line.contains("_count{");
        let line =
            answer.body.lines().filter(is_count).find(|line| line.contains(&format!("code=\"{code}\"")));
        line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    let (first, second) = ([10, 0, 0, 1], [10, 0, 0, 2]);
    assert_eq!(scrape(first, true, "200").await.as_deref(), Some("1"), "first scrape: real");
    assert_eq!(scrape(first, true, "202").await.as_deref(), Some("0"), "born since: zero");
    assert_eq!(scrape(second, true, "203").await.as_deref(), Some("1"), "another scraper: real");
    assert_eq!(scrape(first, false, "204").await.as_deref(), Some("1"), "no scraper: real");
    assert_eq!(scrape(first, true, "202").await.as_deref(), Some("1"), "second time: real");
    assert_eq!(scrape(second, true, "205").await.as_deref(), Some("0"), "born since: zero");
}

#[tokio::test]
async fn what_a_scraper_did_not_wait_for_it_has_not_seen() {
    let app = app(true);
    let request = || {
        let mut request = Request::get("/metrics").body(Body::empty()).unwrap();
        request
            .extensions_mut()
            .insert(Peer { address: SocketAddr::from(([10, 0, 0, 1], 40_000)), over_tls: false });
        request.headers_mut().insert("X-Prometheus-Scrape-Timeout-Seconds", "10".parse().unwrap());
        request
    };
    let scrape = async |code: &str| {
        let answer = call(&app, request()).await;
        let labels = format!("http_response_status_code=\"{code}\"");
        let is_count = |line: &&str| line.starts_with("http_server") && line.contains("_count{");
        let line = answer.body.lines().filter(is_count).find(|line| line.contains(&labels));
        line.map(|line| line.rsplit_once(' ').unwrap().1.to_owned())
    };
    assert_eq!(scrape("200").await.as_deref(), Some("1"), "first scrape: real");
    drop(app.clone().call(request()).await.unwrap());
    assert_eq!(scrape("202").await.as_deref(), Some("0"), "its first zero was never delivered");
    assert_eq!(scrape("202").await.as_deref(), Some("1"), "second time: real");
}

#[tokio::test]
async fn spans_are_json_with_everything() {
    let app = app(true);
    let json = get(&app, "/api/v1/spans?kind=client&status=5xx&error=true").await.json();
    let span = &json["spans"][0];
    let expected = serde_json::json!({
        "sequence": 2,
        "trace_id": "abababababababababababababababab",
        "span_id": "cdcdcdcdcdcdcdcd",
        "parent_span_id": null,
        "name": "GET /item/{id}",
        "kind": "client",
        "start_unix_nano": 1_700_000_000_000_000_000_u64,
        "end_unix_nano": 1_700_000_000_012_000_000_u64,
        "duration_seconds": 0.012,
        "queue_wait_seconds": 0.002,
        "status": "error",
        "service": {"name": "service-1", "namespace": "test"},
        "pid": 77,
        "exchange": "18446744073709551615",
        "resource": {"process.executable.name": "server"},
    });
    for (name, value) in expected.as_object().unwrap() {
        assert_eq!(span[name], *value, "{name}");
    }
    assert_eq!(span["attributes"]["http.request.method"], "GET");
    assert_eq!(span["attributes"]["http.response.status_code"], 503);
    assert_eq!(span["attributes"]["url.path"], "/item/7");
    assert_eq!((&json["next"], &json["evicted"], &json["stored"]), (&2.into(), &0.into(), &2.into()));
    assert_eq!(json["spans"].as_array().unwrap().len(), 1);

    let page = get(&app, "/api/v1/spans?after=0&limit=1").await.json();
    assert_eq!((&page["spans"][0]["sequence"], &page["next"]), (&1.into(), &1.into()));
    let page = get(&app, "/api/v1/spans?after=1").await.json();
    assert_eq!((&page["spans"][0]["sequence"], &page["next"]), (&2.into(), &2.into()));
}

#[tokio::test]
async fn status_and_index_tell_what_there_is() {
    let app = app(true);
    let json = get(&app, "/api/v1/status").await.json();
    assert_eq!((&json["hook_set"], &json["ready"]), (&"socket".into(), &true.into()));
    assert_eq!(
        (&json["watched_processes"], &json["version"]),
        (&2.into(), &env!("CARGO_PKG_VERSION").into())
    );
    assert_eq!(json["services"][0]["name"], "service-1");
    let index = get(&app, "/").await;
    assert!(index.content_type.starts_with("text/html"));
    assert!(index.body.contains("<bdi>service-1</bdi>"), "{}", index.body);
    for link in ["/metrics", "/api/v1/status", "/agent#api", "/services/test/service-1"] {
        assert!(index.body.contains(&format!("href=\"{link}\"")), "{link}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pipeline_that_does_not_answer_is_a_503() {
    let (sender, receiver) = mpsc::channel(1);
    let handle = Handle::new(sender, Arc::new(|| ()));
    let app = router(State::new(handle, Arc::new(AtomicBool::new(true))));
    for _ in 0..3 {
        let started = tokio::time::Instant::now();
        let answer = get(&app, "/metrics").await;
        assert_eq!((answer.status, started.elapsed()), (StatusCode::SERVICE_UNAVAILABLE, handle::TIMEOUT));
        assert_eq!(answer.json()["error"], "the pipeline did not answer in 5 s");
    }
    drop(receiver);
    let started = tokio::time::Instant::now();
    assert_eq!(get(&app, "/api/v1/spans").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(started.elapsed().as_secs(), 0, "a pipeline that is gone is known at once");
}

#[tokio::test]
async fn without_objectives_the_lists_are_empty() {
    let slos = get(&app(true), "/api/v1/slos").await;
    assert_eq!((slos.status, &slos.json()["slos"]), (StatusCode::OK, &Value::Array(Vec::new())));
    let alerts = get(&app(true), "/api/v1/alerts").await;
    assert_eq!((alerts.status, &alerts.json()["alerts"]), (StatusCode::OK, &Value::Array(Vec::new())));
}
