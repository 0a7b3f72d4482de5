//! Spans of SDKs: what an agent without capture takes to count them, beside a real Collector with the connectors
//! `spanmetrics` and `servicegraph`, over the same bytes.
//!
//! In: an effort. Out: rows: CPU time of a million spans, received, decoded and counted; what both have counted.

use std::collections::BTreeMap;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::agent::{Agent, Config};
use integration::otlp::collector::Collector;
use integration::otlp::generator::{Plan, SPANS_PER_TRACE, generate, request};
use integration::process::free_port;
use integration::seed::{note, seeded};
use serde_json::{Value, json};

use crate::table::{Row, Table};
use crate::{Effort, cpu_time};

/// Traces in a request.
const TRACES: usize = 125;
/// Requests in a round.
const REQUESTS: usize = 100;
const ROUNDS: usize = 5;
/// Until everything that was sent is counted.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(200);
/// Spans and edges that were counted, in names of the agent and of the connectors.
const SPANS: [&str; 2] = ["traces_span_metrics_calls_total", "traces.span.metrics.calls"];
const EDGES: [&str; 2] = ["traces_service_graph_request_total", "traces_service_graph_request_total"];

/// Adds the rows.
pub(crate) fn measure(_: Effort, table: &mut Table) -> anyhow::Result<()> {
    note("spans of SDKs, beside a Collector");
    let first = Counter::agent(None)?;
    let second = Counter::agent(Some(&first))?;
    let mut counters = [first, second, Counter::collector()?];
    let mut rng = seeded("received");
    let mut taken = [const { Vec::new() }; 3];
    for round in 0..=ROUNDS {
        let mut plan = Plan::new();
        let requests: Vec<Vec<u8>> =
            (0..REQUESTS).map(|_| request(&generate(&mut rng, TRACES, &mut plan))).collect();
        for (counter, taken) in counters.iter_mut().zip(&mut taken) {
            let seconds = counter.count(&requests)?;
            // Series begin and buffers grow in the first one.
            if round > 0 {
                taken.push(seconds * 1e6 / (REQUESTS * TRACES * SPANS_PER_TRACE) as f64);
            }
        }
    }
    let [one, other, collector] = &taken;
    let what = "CPU per million received spans, with their metrics and graph";
    table.add(Row::spread_of(&format!("{what}: agent without capture"), one, "s", "≤ 2.5 s"));
    table.add(Row::spread_of(
        &format!("{what}: Collector, spanmetrics and servicegraph"),
        collector,
        "s",
        "",
    ));
    let ratios = |others: &[f64]| others.iter().zip(one).map(|(other, one)| other / one).collect::<Vec<_>>();
    table.add(Row::spread("Collector / agent", &ratios(collector), "≥ 1"));
    table.add(Row::spread("agent / agent (A/A)", &ratios(other), "1"));
    for counter in &counters {
        let [spans, edges] = counter.counted()?;
        let sent = counter.sent;
        table.add(Row::text(
            &format!("counted by {}", counter.name()),
            format!("{spans} spans of {sent}, {edges} edges of {}", 2 * sent / SPANS_PER_TRACE),
            "all",
        ));
    }
    Ok(())
}

/// What counts spans.
enum Program {
    Agent(Agent),
    Collector(Collector),
}

struct Counter {
    program: Program,
    url: String,
    /// Spans so far.
    sent: usize,
    client: ureq::Agent,
}

impl Counter {
    /// One agent of two goes beside the other, which it would wait for otherwise.
    fn agent(beside: Option<&Self>) -> anyhow::Result<Self> {
        let address = format!("127.0.0.1:{}", free_port()?);
        let receive = json!({"http": address});
        let config = Config::plain().set("capture", "enabled", false).set("receive", "otlp", receive);
        let agent = match beside.map(|other| &other.program) {
            Some(Program::Agent(other)) => other.start_beside(config)?,
            _ => Agent::start(config)?,
        };
        Ok(Self::new(Program::Agent(agent), &address))
    }

    fn collector() -> anyhow::Result<Self> {
        let collector = Collector::with_connectors()?;
        let address = collector.http.to_string();
        Ok(Self::new(Program::Collector(collector), &address))
    }

    fn new(program: Program, address: &str) -> Self {
        let url = format!("http://{address}/v1/traces");
        let client = ureq::Agent::config_builder().http_status_as_error(false).build().into();
        Self { program, url, sent: 0, client }
    }

    fn name(&self) -> &'static str {
        match self.program {
            Program::Agent(_) => "the agent",
            Program::Collector(_) => "the Collector",
        }
    }

    fn pid(&self) -> u32 {
        match &self.program {
            Program::Agent(agent) => agent.pid(),
            Program::Collector(collector) => collector.pid(),
        }
    }

    /// Sends them all, and waits until they are counted. Returns CPU time, seconds.
    fn count(&mut self, requests: &[Vec<u8>]) -> anyhow::Result<f64> {
        let before = cpu_time(self.pid())?;
        for request in requests {
            self.send(request)?;
        }
        self.sent += requests.len() * TRACES * SPANS_PER_TRACE;
        let deadline = Instant::now() + PATIENCE;
        loop {
            let [spans, edges] = self.counted()?;
            if spans == self.sent && edges >= 2 * self.sent / SPANS_PER_TRACE {
                break;
            }
            if Instant::now() > deadline {
                note(&format!("{} has counted {spans} of {} spans, {edges} edges", self.name(), self.sent));
                break;
            }
            thread::sleep(LOOK);
        }
        Ok(cpu_time(self.pid())?.saturating_sub(before).as_secs_f64())
    }

    /// What is refused for want of room is sent again.
    fn send(&self, request: &[u8]) -> anyhow::Result<()> {
        loop {
            let mut answer =
                self.client.post(&self.url).content_type("application/x-protobuf").send(request)?;
            // So that the connection serves the next one.
            answer.body_mut().read_to_vec()?;
            match answer.status().as_u16() {
                200 => return Ok(()),
                429 | 503 => thread::sleep(LOOK / 20),
                status => bail!("{} answers {status}", self.name()),
            }
        }
    }

    /// Spans and edges so far.
    fn counted(&self) -> anyhow::Result<[usize; 2]> {
        match &self.program {
            Program::Agent(agent) => {
                let metrics = agent.metrics()?;
                Ok([SPANS[0], EDGES[0]].map(|name| metrics.sum(name, &[]) as usize))
            }
            Program::Collector(collector) => {
                let metrics = collector.metrics()?;
                Ok([sum(&metrics, SPANS[1])?, sum(&metrics, EDGES[1])?])
            }
        }
    }
}

/// The newest value of each series of a counter, added up.
fn sum(exports: &[Value], name: &str) -> anyhow::Result<usize> {
    let mut series = BTreeMap::<String, usize>::new();
    let list = |value: &Value, key: &str| value[key].as_array().cloned().unwrap_or_default();
    for resource in exports.iter().flat_map(|export| list(export, "resourceMetrics")) {
        for metric in list(&resource, "scopeMetrics").iter().flat_map(|scope| list(scope, "metrics")) {
            for point in list(&metric["sum"], "dataPoints").iter().filter(|_| metric["name"] == name) {
                let value =
                    point["asInt"].as_str().context("a counter of the Collector is a whole number")?;
                let key = format!("{} {}", resource["resource"], point["attributes"]);
                series.insert(key, value.parse()?);
            }
        }
    }
    Ok(series.values().sum())
}
