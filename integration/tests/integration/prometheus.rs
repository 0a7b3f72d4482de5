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
use integration::fetch;
use integration::load;
use integration::patience::patience;
use integration::process::{Program, free_port};
use integration::seed::seeded;
use integration::server::shape::{ShapeServer, every_way};
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
        Self::with(&format!(
            "scrape_configs:\n- job_name: obi\n  scrape_interval: 500ms\n  scrape_timeout: 500ms\n  \
             static_configs:\n  - targets: ['{target}']\n"
        ))
    }

    /// With this configuration.
    pub(crate) fn with(text: &str) -> Self {
        let files = tempfile::tempdir().unwrap();
        let config = files.path().join("prometheus.yml");
        fs::write(&config, text).unwrap();
        let address = SocketAddr::from(([127, 0, 0, 1], free_port().unwrap()));
        let mut command = Command::new("prometheus");
        command
            .arg(format!("--config.file={}", config.display()))
            .arg(format!("--storage.tsdb.path={}", files.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .arg("--enable-feature=exemplar-storage");
        Self { address, _program: Program::spawn("prometheus", command).unwrap(), _files: files }
    }

    /// The data of an API answer, empty while it is not there yet.
    fn ask(&self, path: &str) -> Value {
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
    let path = format!("/api/v1/query_exemplars?query={}&start=0&end=9999999999", fetch::encode(&selector));
    let data = prometheus.ask_until(&path, |data| data.as_array().is_some_and(|series| !series.is_empty()));
    let exemplars: Vec<&Value> = data
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|series| series["exemplars"].as_array().into_iter().flatten())
        .collect();
    assert!(!exemplars.is_empty(), "Prometheus keeps no exemplar: {data}");
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
    let shape = integration::shape::Shape { status: 503, ..integration::shape::Shape::default() };
    let calls = [integration::plan::Call::new(shape)];
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 1);
    gate::assert_exact(&mut agent, &ledger);
    let query = format!(
        "sum(increase(http_server_request_duration_seconds_count{{service_name=\"{service}\"}}[1m]))"
    );
    let path = format!("/api/v1/query?query={}", fetch::encode(&query));
    let data = prometheus.ask_until(&path, |data| first_value(data).is_some_and(|value| value > 0.0));
    assert!(first_value(&data).is_some_and(|value| value > 0.0), "the first error is no increase: {data}");
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
