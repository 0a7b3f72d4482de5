//! What the agent exports over OTLP, and what becomes of it when a destination or the network fails.
//!
//! The identity that every test asks for: what was delivered and what was counted as lost is together what was
//! produced.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::exposition::Exposition;
use integration::otlp::certificate::Certificates;
use integration::otlp::collector::Collector;
use integration::otlp::proxy::{Fault, Proxy};
use integration::otlp::receiver::{Answer, Receiver, hex, spans_of};
use integration::patience::patience;
use integration::plan::{Address, Call};
use integration::process::free_port;
use integration::server::shape::{ShapeServer, every_way};
use integration::shape::Shape;
use serde_json::{Value, json};

/// How long everything may take to arrive: some pauses between retries, and a busy machine.
pub(crate) const ARRIVAL: Duration = Duration::from_secs(40);
const SECOND: Duration = Duration::from_secs(1);

/// A watched server and nothing else, so that the set of spans is known.
pub(crate) struct World {
    server: ShapeServer,
    pub(crate) config: Config,
}

impl World {
    pub(crate) fn new(name: &str, export: Value) -> Self {
        let server = ShapeServer::start(name, every_way(1)).unwrap();
        let rule = json!([{"service": server.server.service}]);
        let mut config = Config::default().set("discover", "include", rule);
        for (key, value) in export.as_object().unwrap() {
            config = config.set("export", key, value.clone());
        }
        Self { server, config }
    }

    pub(crate) fn address(&self) -> &Address {
        &self.server.server.address
    }

    /// Makes the calls and waits until the agent has a span of each; their ids.
    pub(crate) fn call(&self, agent: &mut Agent, calls: &[Call]) -> BTreeSet<String> {
        let n_before = agent.spans().unwrap().len();
        client::call(Kind::Shape, self.address(), calls, 8).unwrap();
        let wanted = n_before + calls.len();
        let spans = agent.spans_until(ARRIVAL, |spans| spans.len() >= wanted).unwrap();
        assert_eq!(spans.len(), wanted);
        spans[n_before..].iter().map(|span| span.span_id.clone()).collect()
    }
}

pub(crate) fn plain_calls(n: usize) -> Vec<Call> {
    (0..n).map(|_| Call::new(Shape::default())).collect()
}

/// Waits until nothing is queued any more; the metrics then.
fn drained(agent: &Agent) -> Exposition {
    let metrics =
        agent.metrics_until(ARRIVAL, |metrics| metrics.sum("obi_export_queue_items", &[]) == 0.0).unwrap();
    assert_eq!(metrics.sum("obi_export_queue_items", &[]), 0.0, "{}", agent.stderr().unwrap());
    assert_eq!(metrics.sum("obi_export_queue_bytes", &[]), 0.0);
    metrics
}

/// Losses of a destination by reason, without those that did not happen.
fn lost(metrics: &Exposition, destination: &str) -> BTreeMap<String, u64> {
    metrics
        .matching("obi_export_lost_total", &[("destination", destination)])
        .filter(|sample| sample.value > 0.0)
        .map(|sample| (sample.labels["reason"].clone(), sample.value as u64))
        .collect()
}

/// How one destination fails, and which reasons of loss that may give.
struct Case {
    name: String,
    receiver: Receiver,
    proxy: Option<Proxy>,
    expected: &'static [&'static str],
    destination: Value,
}

impl Case {
    fn new(protocol: &str, name: &str, answers: &[Answer], expected: &'static [&'static str]) -> Self {
        let receiver = Receiver::start(answers.iter().copied()).unwrap();
        let address = if protocol == "grpc" { receiver.grpc } else { receiver.http };
        let name = format!("{protocol} {name}");
        let destination = json!({
            "name": name, "endpoint": format!("http://{address}"), "protocol": protocol, "signals": ["traces"],
            "batch_items": 100, "batch_delay": "50ms", "retry_for": "30s",
        });
        Self { name, receiver, proxy: None, expected, destination }
    }

    fn set(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.destination[key] = value.into();
        self
    }

    fn behind(mut self, fault: Fault) -> Self {
        let is_grpc = self.destination["protocol"] == "grpc";
        let target = if is_grpc { self.receiver.grpc } else { self.receiver.http };
        let proxy = Proxy::start(target, fault).unwrap();
        let endpoint = format!("http://{}", proxy.address);
        self.proxy = Some(proxy);
        self.set("endpoint", endpoint)
    }

    /// Delivered ∪ lost = produced; and what was sent was sent once, unless the fault hid the answer.
    fn check(&self, metrics: &Exposition, produced: &BTreeSet<String>) {
        let name = &self.name;
        let lost = lost(metrics, name);
        let n_lost: u64 = lost.values().sum();
        let sent = metrics.sum("obi_export_sent_total", &[("destination", name)]) as u64;
        let ids = self.receiver.span_ids();
        let delivered: BTreeSet<String> = ids.iter().cloned().collect();
        let n_delivered = delivered.len() as u64;
        assert_eq!(sent + n_lost, produced.len() as u64, "{name}: {sent} sent, lost {lost:?}");
        assert!(delivered.is_subset(produced), "{name}: spans nobody made");
        assert!(n_delivered >= sent, "{name}: {sent} sent, {n_delivered} delivered");
        let reasons: Vec<&str> = lost.keys().map(String::as_str).collect();
        assert_eq!(reasons, self.expected, "{name}: {lost:?}");
        if self.proxy.is_none() {
            assert_eq!((ids.len() as u64, n_delivered), (sent, sent), "{name}: delivered twice");
        }
    }
}

fn cases(protocol: &str) -> Vec<Case> {
    let case = |name: &str, answers: &[Answer], expected| Case::new(protocol, name, answers, expected);
    let exhausted: &[&str] = if protocol == "grpc" { &["refused"] } else { &[] };
    let nobody = format!("http://127.0.0.1:{}", free_port().unwrap());
    vec![
        case("healthy", &[], &[]),
        case("gzip", &[], &[]).set("compression", "gzip"),
        case("partial", &[Answer::Partial(3), Answer::Accept, Answer::Partial(2)], &["rejected"]),
        case("again", &[Answer::Again(SECOND * 2), Answer::Accept, Answer::Again(SECOND)], &[]),
        case("exhausted", &[Answer::Exhausted], exhausted),
        case("unavailable", &[Answer::Unavailable, Answer::Unavailable], &[]),
        case("refused", &[Answer::Refuse, Answer::Accept], &["refused"]),
        case("silent", &[Answer::Silence, Answer::Silence], &[]).set("timeout", "1s"),
        case("given up", &[Answer::Unavailable; 2], &["retries_exhausted"]).set("retry_for", "0s"),
        case("nobody", &[], &["retries_exhausted"]).set("endpoint", nobody).set("retry_for", "1s"),
        case("full", &[Answer::Silence; 2], &["queue_full"]).set("queue_items", 512).set("timeout", "1s"),
        case("reset", &[], &[]).behind(Fault::Reset),
        case("stall", &[], &[]).behind(Fault::Stall).set("timeout", "1s"),
        case("drip", &[], &[]).behind(Fault::Drip).set("timeout", "1s"),
    ]
}

/// All faults at once: none may hold up the pipeline or another destination.
#[test]
fn delivered_and_lost_are_what_was_produced() {
    let cases: Vec<Case> = ["grpc", "http/protobuf"].into_iter().flat_map(cases).collect();
    let destinations: Vec<Value> = cases.iter().map(|case| case.destination.clone()).collect();
    let world = World::new("otlp-faults", json!({"otlp": destinations}));
    let mut agent = Agent::start(world.config.clone()).unwrap();
    let begun = Instant::now();
    let produced = world.call(&mut agent, &plain_calls(2_000));
    // The healthy ones have everything, while others are silent.
    for case in cases.iter().filter(|case| case.name.ends_with("healthy")) {
        let is_there = |metrics: &Exposition| {
            metrics.sum("obi_export_sent_total", &[("destination", &case.name)]) == produced.len() as f64
        };
        assert!(is_there(&agent.metrics_until(SECOND * 10, is_there).unwrap()), "{}", case.name);
    }
    let n_queued = agent.metric_value("obi_export_queue_items", &[("destination", "grpc stall")]).unwrap();
    assert_eq!(n_queued, produced.len() as f64, "{:?} after the first call", begun.elapsed());
    std::thread::sleep(SECOND);
    cases.iter().filter_map(|case| case.proxy.as_ref()).for_each(|proxy| proxy.set(Fault::None));
    let metrics = drained(&agent);
    cases.iter().for_each(|case| case.check(&metrics, &produced));
    for case in cases.iter().filter(|case| case.name.ends_with("again")) {
        let requests = case.receiver.requests();
        let pause = requests[1].at - requests[0].at;
        assert!(pause >= SECOND * 2, "{}: sent again after {pause:?}", case.name);
        assert_eq!(requests[0].n_spans, requests[1].n_spans, "{}", case.name);
    }
    let count = metrics.sum("http_server_request_duration_seconds_count", &[]);
    assert_eq!(count, produced.len() as f64, "metrics count everything");
    assert_eq!(agent.stop().unwrap().code, 0);
}

#[test]
fn the_end_of_the_agent_sends_what_waits_and_counts_what_cannot_go() {
    let healthy = ["grpc", "http/protobuf"].map(|protocol| Case::new(protocol, "waits", &[], &[]));
    let healthy = healthy.map(|case| case.set("batch_delay", "1m").set("batch_items", 100_000));
    let dead = Case::new("grpc", "silent", &[Answer::Silence; 20], &[]);
    let destinations: Vec<Value> =
        healthy.iter().chain([&dead]).map(|case| case.destination.clone()).collect();
    let world = World::new("otlp-end", json!({"otlp": destinations}));
    let mut agent = Agent::start(world.config.clone()).unwrap();
    let produced = world.call(&mut agent, &plain_calls(300));
    assert!(healthy.iter().all(|case| case.receiver.span_ids().is_empty()), "nothing was to be sent yet");
    let ended = agent.stop().unwrap();
    assert_eq!(ended.code, 0, "{}", ended.stderr);
    for case in &healthy {
        let ids = case.receiver.span_ids();
        assert_eq!(ids.len(), produced.len(), "{}", case.name);
        assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), produced, "{}", case.name);
    }
    let said = ended.stderr.lines().find(|line| line.contains("not sent before the end")).unwrap_or_default();
    assert!(said.contains("grpc silent") && said.contains("items=300"), "{}", ended.stderr);
}

#[test]
fn sampling_keeps_errors_and_the_slowest_and_counts_everything() {
    let case = Case::new("grpc", "sampled", &[], &[]);
    let export = json!({"otlp": [case.destination], "sampling": {"ratio": 0.2}});
    let world = World::new("otlp-sampled", export);
    let mut agent = Agent::start(world.config.clone()).unwrap();
    let mut calls = plain_calls(1_000);
    let slow = Shape { delay: 300_000, ..Shape::default() };
    calls.insert(700, Call::new(slow));
    for _ in 0..50 {
        calls.push(Call::new(Shape { status: 503, ..Shape::default() }));
    }
    let produced = world.call(&mut agent, &calls);
    // What waits for a batch to be full is in no queue yet.
    let accounted = |metrics: &Exposition| {
        let sent = metrics.sum("obi_export_sent_total", &[("signal", "traces")]);
        sent + metrics.sum("obi_export_unsampled_spans_total", &[])
    };
    let all = |metrics: &Exposition| accounted(metrics) >= produced.len() as f64;
    let metrics = agent.metrics_until(ARRIVAL, all).unwrap();
    let delivered: BTreeMap<String, _> = case
        .receiver
        .spans()
        .iter()
        .flat_map(spans_of)
        .map(|span| (hex(&span.span_id), span.clone()))
        .collect();
    let unsampled = metrics.sum("obi_export_unsampled_spans_total", &[]) as usize;
    assert_eq!(delivered.len() + unsampled, produced.len());
    let spans = agent.spans().unwrap();
    let errors: Vec<_> = spans.iter().filter(|span| span.status == "error").collect();
    let slowest = spans.iter().max_by(|a, b| a.duration_seconds.total_cmp(&b.duration_seconds)).unwrap();
    assert_eq!(errors.len(), 50);
    for span in errors.into_iter().chain([slowest]) {
        let exported = delivered.get(&span.span_id).unwrap_or_else(|| panic!("not exported: {span:?}"));
        assert_eq!(exported.trace_state, "ot=th:0");
    }
    let by_ratio = delivered.values().filter(|span| span.trace_state.starts_with("ot=th:cccc")).count();
    // Six standard deviations of a binomial with n = 1000, p = 0.2.
    assert!((125..=275).contains(&by_ratio), "{by_ratio} of 1000 by ratio");
    let count = metrics.sum("http_server_request_duration_seconds_count", &[]);
    assert_eq!(count, produced.len() as f64, "metrics are never sampled");
}

/// The value of an attribute as the collector's file has it, as text.
fn attribute(of: &Value, key: &str) -> String {
    let attributes = of["attributes"].as_array().into_iter().flatten();
    let value = attributes.into_iter().find(|attribute| attribute["key"] == key).map(|found| &found["value"]);
    let value = value.and_then(|value| value.as_object()?.values().next());
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned)).unwrap_or_default()
}

fn each<'a>(of: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> + use<'a> {
    of[key].as_array().into_iter().flatten()
}

/// Points of a metric of one service, in all requests so far.
fn points<'a>(requests: &'a [Value], service: &str, name: &str) -> Vec<&'a Value> {
    let resources = requests.iter().flat_map(|request| each(request, "resourceMetrics"));
    let ours = resources.filter(|resource| attribute(&resource["resource"], "service.name") == service);
    let metrics =
        ours.flat_map(|resource| each(resource, "scopeMetrics")).flat_map(|scope| each(scope, "metrics"));
    let wanted = metrics.filter(|metric| metric["name"] == name);
    wanted
        .inspect(|metric| {
            assert_eq!(
                (&metric["unit"], &metric["histogram"]["aggregationTemporality"]),
                (&json!("s"), &json!(2))
            )
        })
        .flat_map(|metric| each(&metric["histogram"], "dataPoints"))
        .collect()
}

fn number(value: &Value) -> u64 {
    value.as_u64().or_else(|| value.as_str()?.parse().ok()).unwrap_or_default()
}

/// The real collector, over gRPC with certificates on both sides and gzip, and over HTTP by the standard variables.
#[test]
fn a_real_collector_reads_traces_metrics_and_exemplars() {
    let certificates = Certificates::new().unwrap();
    let collector = Collector::start(Some(&certificates)).unwrap();
    let destination = json!({
        "endpoint": format!("https://{}", collector.grpc), "protocol": "grpc", "compression": "gzip",
        "ca_file": certificates.path("ca.pem"), "cert_file": certificates.path("client.pem"),
        "key_file": certificates.path("client.key"), "batch_delay": "50ms",
    });
    let world = World::new("otlp-collector", json!({"otlp": [destination], "metric_interval": "1s"}));
    let endpoint = format!("http://{}", collector.http);
    let mut agent = Agent::start_in(world.config.clone(), |mut command| {
        command.env("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint).env("OTEL_BSP_SCHEDULE_DELAY", "50");
        command
    })
    .unwrap();
    let mut calls = plain_calls(200);
    calls.extend((0..10).map(|_| Call::new(Shape { status: 500, ..Shape::default() })));
    let produced = world.call(&mut agent, &calls);
    let metrics = drained(&agent);
    assert_eq!(metrics.sum("obi_export_lost_total", &[]), 0.0, "{}", agent.stderr().unwrap());

    let service = world.server.server.service.clone();
    let deadline = Instant::now() + patience(ARRIVAL);
    let (traces, measured) = loop {
        let (traces, measured) = (collector.traces().unwrap(), collector.metrics().unwrap());
        let points = points(&measured, &service, "http.server.request.duration");
        let counted = points.iter().filter(|point| number(&point["count"]) == 200).count();
        let n_spans = spans(&traces).count();
        if counted >= 2 && n_spans >= 2 * produced.len() || Instant::now() > deadline {
            break (traces, measured);
        }
        std::thread::sleep(Duration::from_millis(100));
    };
    // By both ways once.
    let mut ids = BTreeMap::<String, usize>::new();
    for (resource, span) in spans(&traces) {
        assert_eq!(attribute(&resource["resource"], "service.name"), service);
        assert_eq!(attribute(span, "http.request.method"), "GET");
        assert_eq!(span["kind"], 2);
        let status = attribute(span, "http.response.status_code");
        assert_eq!(number(&span["status"]["code"]), if status == "500" { 2 } else { 0 }, "{span}");
        *ids.entry(span["spanId"].as_str().unwrap().to_owned()).or_default() += 1;
    }
    assert_eq!(ids.keys().cloned().collect::<BTreeSet<_>>(), produced, "{}", collector.log().unwrap());
    assert!(ids.values().all(|times| *times == 2), "{ids:?}");

    let points = points(&measured, &service, "http.server.request.duration");
    let mut last = BTreeMap::new();
    for point in &points {
        assert!(number(&point["startTimeUnixNano"]) < number(&point["timeUnixNano"]), "{point}");
        let n_counted: u64 = each(point, "bucketCounts").map(number).sum();
        assert_eq!(n_counted, number(&point["count"]), "{point}");
        last.insert(attribute(point, "http.response.status_code"), number(&point["count"]));
    }
    assert_eq!(last, BTreeMap::from([("200".to_owned(), 200), ("500".to_owned(), 10)]));
    let exemplars: Vec<&Value> = points.iter().flat_map(|point| each(point, "exemplars")).collect();
    assert!(!exemplars.is_empty(), "no exemplar in {points:?}");
    for exemplar in exemplars {
        assert!(produced.contains(exemplar["spanId"].as_str().unwrap_or_default()), "{exemplar}");
        assert!(exemplar["asDouble"].as_f64().is_some_and(|seconds| seconds > 0.0), "{exemplar}");
    }
}

/// Spans in the collector's file, with their resources.
fn spans(requests: &[Value]) -> impl Iterator<Item = (&Value, &Value)> {
    requests.iter().flat_map(|request| each(request, "resourceSpans")).flat_map(|resource| {
        each(resource, "scopeSpans").flat_map(|scope| each(scope, "spans")).map(move |span| (resource, span))
    })
}
