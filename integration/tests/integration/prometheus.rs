//! A real Prometheus scrapes the agent; what comes out of its API is what went in.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::SocketAddr;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config, OPENMETRICS, TEXT};
use integration::client::Kind;
use integration::exposition::Exposition;
use integration::fetch;
use integration::load;
use integration::patience::patience;
use integration::plan::{Address, Call};
use integration::process::{Program, free_port};
use integration::seed::seeded;
use integration::server::shape::{ShapeServer, every_way};
use integration::shape::Shape;
use integration::span::Span;
use serde_json::Value;
use tempfile::TempDir;

use crate::gate;

pub(crate) struct Prometheus {
    pub(crate) address: SocketAddr,
    _program: Program,
    _files: TempDir,
}

impl Prometheus {
    fn start(target: SocketAddr) -> Self {
        Self::start_with(target, "exemplar-storage")
    }

    /// With native histograms it asks for protobuf and keeps no classic buckets.
    fn start_native(target: SocketAddr) -> Self {
        Self::start_with(target, "native-histograms,exemplar-storage")
    }

    fn start_with(target: SocketAddr, features: &str) -> Self {
        let text = format!(
            "scrape_configs:\n- job_name: obi\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  \
             static_configs:\n  - targets: ['{target}']\n"
        );
        Self::with_features(&text, features)
    }

    /// With this configuration.
    pub(crate) fn with(text: &str) -> Self {
        Self::with_features(text, "exemplar-storage")
    }

    /// The same, with features that are off by default.
    pub(crate) fn with_features(text: &str, features: &str) -> Self {
        Self::run(text, &[&format!("--enable-feature={features}")])
    }

    /// One that scrapes no target: it is written to.
    pub(crate) fn receiver(features: &str) -> Self {
        let features = format!("--enable-feature={features}");
        Self::run("scrape_configs: []\n", &[&features, "--web.enable-remote-write-receiver"])
    }

    fn run(text: &str, options: &[&str]) -> Self {
        let files = tempfile::tempdir().unwrap();
        let config = files.path().join("prometheus.yml");
        fs::write(&config, text).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", files.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .args(options);
        Self { address, _program: Program::spawn("prometheus", command).unwrap(), _files: files }
    }

    /// The data of an API answer, empty while it is not there yet.
    pub(crate) fn ask(&self, path: &str) -> Value {
        fetch::json::<Value>(self.address, path).map_or(Value::Null, |answer| answer["data"].clone())
    }

    /// Asks until `is_enough`, or until patience is over.
    pub(crate) fn ask_until(&self, path: &str, is_enough: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + patience(gate::PATIENCE);
        loop {
            let data = self.ask(path);
            if is_enough(&data) || Instant::now() > deadline {
                return data;
            }
            thread::sleep(Duration::from_millis(50));
        }
    }
}

/// Exemplars of all series that `selector` selects, as soon as there is one.
fn exemplars(prometheus: &Prometheus, selector: &str) -> Vec<Value> {
    let path = format!("/api/v1/query_exemplars?query={}&start=0&end=9999999999", fetch::encode(selector));
    let data = prometheus.ask_until(&path, |data| data.as_array().is_some_and(|series| !series.is_empty()));
    let series = data.as_array().into_iter().flatten();
    let exemplars: Vec<Value> =
        series.flat_map(|series| series["exemplars"].as_array().into_iter().flatten().cloned()).collect();
    assert!(!exemplars.is_empty(), "Prometheus keeps no exemplar of {selector}: {data}");
    exemplars
}

pub(crate) fn first_value(data: &Value) -> Option<f64> {
    data["result"][0]["value"][1].as_str()?.parse().ok()
}

#[test]
fn series_and_exemplars_come_back() {
    let mut rng = seeded("prometheus");
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", every_way(1)).unwrap();
    let prometheus = Prometheus::start(agent.address());
    let service = &server.server.service;
    let query = format!("sum(http_server_request_duration_seconds_count{{service_name=\"{service}\"}})");
    let path = format!("/api/v1/query?query={}", fetch::encode(&query));
    let mut ledger = Ledger::default();
    let calls = load::calls(&mut rng, &server.server.features, Kind::Shape, 200);
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 4);
    gate::assert_exact(&mut agent, &ledger);
    let data = prometheus.ask_until(&path, |data| first_value(data) == Some(200.0));
    assert_eq!(first_value(&data), Some(200.0), "{data}");

    let selector = format!("http_server_request_duration_seconds_bucket{{service_name=\"{service}\"}}");
    let exemplars = exemplars(&prometheus, &selector);
    let spans = agent.spans().unwrap();
    let known: BTreeSet<(&str, &str)> = spans
        .iter()
        .filter(|span| &span.service.name == service)
        .map(|span| (span.trace_id.as_str(), span.span_id.as_str()))
        .collect();
    for exemplar in exemplars {
        let labels = &exemplar["labels"];
        let ids = (labels["trace_id"].as_str().unwrap_or(""), labels["span_id"].as_str().unwrap_or(""));
        assert!(known.contains(&ids), "exemplar of no span: {exemplar}");
    }
}

/// Native histograms as Prometheus has them: counts, exemplars with the time of their span, and quantiles that are in
/// the same bucket as the truth, whose bounds are 9 % apart.
#[test]
fn native_histograms_come_back() {
    const CALLS: usize = 300;
    let mut rng = seeded("native");
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("native", every_way(1)).unwrap();
    let prometheus = Prometheus::start_native(agent.address());
    let service = &server.server.service;
    let mut ledger = Ledger::default();
    // From a millisecond to a tenth of a second, evenly on a logarithmic scale.
    let delay = |rng: &mut fastrand::Rng| (1_000.0 * 100.0_f64.powf(rng.f64())) as u32;
    let shape = |rng: &mut fastrand::Rng| Shape { delay: delay(rng), ..Shape::default() };
    let calls: Vec<Call> = (0..CALLS).map(|_| Call::new(shape(&mut rng))).collect();
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 16);
    gate::assert_exact(&mut agent, &ledger);

    let selector = format!("http_server_request_duration_seconds{{service_name=\"{service}\"}}");
    let query = |function: String| format!("/api/v1/query?query={}", fetch::encode(&function));
    let count = query(format!("histogram_count(sum({selector}))"));
    let data = prometheus.ask_until(&count, |data| first_value(data) == Some(CALLS as f64));
    assert_eq!(first_value(&data), Some(CALLS as f64), "{data}");

    let spans: Vec<&Span> =
        agent.spans().unwrap().iter().filter(|span| &span.service.name == service).collect();
    let mut durations: Vec<f64> = spans.iter().map(|span| span.duration_seconds).collect();
    durations.sort_by(f64::total_cmp);
    let sum = first_value(&prometheus.ask(&query(format!("histogram_sum(sum({selector}))")))).unwrap();
    let truth: f64 = durations.iter().sum();
    assert!((sum / truth - 1.0).abs() < 1e-9, "{sum} instead of {truth}");
    for quantile in [0.01, 0.25, 0.5, 0.9, 0.99] {
        let data = prometheus.ask(&query(format!("histogram_quantile({quantile}, sum({selector}))")));
        let read = first_value(&data).unwrap();
        let rank = (quantile * CALLS as f64).ceil() as usize;
        let truth = durations[rank.clamp(1, CALLS) - 1];
        let eighths = (read / truth).log2().abs() * 8.0;
        assert!(eighths <= 1.0 + 1e-9, "quantile {quantile} is {truth}, read {read}: {eighths} buckets away");
    }

    for selector in [selector, format!("traces_span_metrics_duration_seconds{{service_name=\"{service}\"}}")]
    {
        for exemplar in exemplars(&prometheus, &selector) {
            let labels = &exemplar["labels"];
            let span = spans.iter().find(|span| labels["span_id"] == span.span_id.as_str()).unwrap();
            assert_eq!(labels["trace_id"], span.trace_id.as_str());
            let value: f64 = exemplar["value"].as_str().unwrap().parse().unwrap();
            assert!((value / span.duration_seconds - 1.0).abs() < 1e-9, "{exemplar}");
            let ended = span.end_unix_nano.get() as f64 / 1e9;
            assert!(
                (exemplar["timestamp"].as_f64().unwrap() - ended).abs() < 0.002,
                "{exemplar} ended at {ended}"
            );
        }
    }
    let own = fetch::get(prometheus.address, "/metrics", TEXT).unwrap();
    let own = Exposition::parse(&own.body).unwrap();
    assert!(own.sum("prometheus_tsdb_exemplar_exemplars_appended_total", &[]) > 0.0);
    assert_eq!(own.sum("prometheus_tsdb_exemplar_out_of_order_exemplars_total", &[]), 0.0);
}

/// A request under way is seen while it is, on both sides.
#[test]
fn requests_under_way_are_gauged() {
    let agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("under-way", every_way(1)).unwrap();
    let service = server.server.service.clone();
    let labels = [("service_name", service.as_str()), ("http_request_method", "GET")];
    let address = server.server.address.clone();
    let client = thread::spawn(move || {
        let call = Call::new(Shape { delay: 3_000_000, ..Shape::default() });
        integration::client::call(Kind::Shape, &address, &[call], 1).map(|_| ())
    });
    let server_side = "http_server_active_requests";
    let under_way =
        agent.metrics_until(gate::PATIENCE, |metrics| metrics.sum(server_side, &labels) == 1.0).unwrap();
    assert_eq!(under_way.sum(server_side, &labels), 1.0, "the request is under way");
    let port = server_port(&server);
    let peer = [("server_port", port.as_str()), ("http_request_method", "GET")];
    assert_eq!(under_way.sum("http_client_active_requests", &peer), 1.0, "at its client as well");
    client.join().unwrap().unwrap();
    let over =
        agent.metrics_until(gate::PATIENCE, |metrics| metrics.sum(server_side, &labels) == 0.0).unwrap();
    assert!(
        over.matching(server_side, &labels).any(|sample| sample.value == 0.0),
        "the gauge stays, at zero"
    );
    assert_eq!(over.sum("http_client_active_requests", &peer), 0.0);
}

fn server_port(server: &ShapeServer) -> String {
    match &server.server.address {
        Address::Tcp(address) | Address::Multipath(address) => address.port().to_string(),
        Address::Unix(path) => panic!("a TCP server listens on {}", path.display()),
    }
}

#[test]
fn promtool_finds_nothing() {
    let mut agent = Agent::start(Config::default()).unwrap();
    let server = ShapeServer::start("shape", every_way(1)).unwrap();
    let mut ledger = Ledger::default();
    let calls = load::calls(&mut seeded("promtool"), &server.server.features, Kind::Shape, 50);
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 4);
    gate::report(&mut agent, &ledger).assert_exact();
    let text = agent.scrape(TEXT).unwrap();
    assert!(text.content_type.starts_with("text/plain; version=0.0.4"), "{}", text.content_type);
    assert!(!text.body.contains(" # {"), "text 0.0.4 has no exemplars");
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), &text.body).unwrap();
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::from(File::open(file.path()).unwrap()));
    let output = promtool.output().unwrap();
    let said = [output.stdout, output.stderr].concat();
    assert!(output.status.success() && said.is_empty(), "{}", String::from_utf8_lossy(&said));

    let open = agent.scrape(OPENMETRICS).unwrap();
    assert!(
        open.content_type.starts_with("application/openmetrics-text; version=1.0.0"),
        "{}",
        open.content_type
    );
    assert!(open.body.ends_with("# EOF\n"), "OpenMetrics ends with its mark");
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    /// A counter that first appears with its first error would hide that error from `increase()`.
    #[test]
    fn a_first_error_is_an_increase() {
        let mut agent = Agent::start(Config::default()).unwrap();
        let server = ShapeServer::start("first-error", every_way(1)).unwrap();
        let prometheus = Prometheus::start(agent.address());
        // The agent must be known to Prometheus before the error happens.
        let data = prometheus.ask_until("/api/v1/query?query=up", |data| first_value(data) == Some(1.0));
        assert_eq!(first_value(&data), Some(1.0), "{data}");
        let service = &server.server.service;
        let mut ledger = Ledger::default();
        let shape = Shape { status: 503, ..Shape::default() };
        let calls = [Call::new(shape)];
        gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 1);
        gate::assert_exact(&mut agent, &ledger);
        let query = format!(
            "sum(increase(http_server_request_duration_seconds_count{{service_name=\"{service}\"}}[1m]))"
        );
        let path = format!("/api/v1/query?query={}", fetch::encode(&query));
        let data = prometheus.ask_until(&path, |data| first_value(data).is_some_and(|value| value > 0.0));
        assert!(
            first_value(&data).is_some_and(|value| value > 0.0),
            "the first error is no increase: {data}"
        );
    }
}
