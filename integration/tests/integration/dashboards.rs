//! The dashboards' expressions, each put to a real Prometheus that scrapes a real agent: under load and afterwards.
//!
//! That names and labels exist, and how panels must look, is tested beside the generator
//! (`obi/tests/documents/dashboards`). Here is what can only be seen: numbers are there, finite and of the right size,
//! lines have their labels, exemplars lead to spans. Twice: with native histograms, and with classic ones.

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use integration::agent::{self, Agent, Config};
use integration::alertmanager::Inbox;
use integration::client::{self, Kind};
use integration::database::{self, Library};
use integration::fetch;
use integration::load;
use integration::otlp::receiver::Receiver;
use integration::patience::patience;
use integration::plan::Address;
use integration::process;
use integration::rpc::peer::{self, RpcServer};
use integration::rpc::plan::{Method, RpcCall};
use integration::seed::{note, seeded};
use integration::server::Server;
use integration::server::language;
use integration::server::nginx::{self, Files, Upstream};
use integration::server::shape::{ShapeServer, every_way};
use integration::traffic::Traffic;
use serde_json::{Value, json};
use tempfile::TempDir;

mod variables;

use crate::multiplexed;
use crate::prometheus::Prometheus;

/// Requests a second to the service whose numbers are known, and how many of a thousand fail.
const RATE: u32 = 40;
const FAILING: u64 = 200;
/// What `$__rate_interval` stands for, and `$__range`.
const WINDOW: u64 = 15;
const RANGE: u64 = 60;
const ROUNDS: Duration = Duration::from_secs(25);
/// Clients of databases, by name.
const REDIS: &str = "boards-redis";
const POSTGRES: &str = "boards-postgres";

/// What a machine without any trouble does not have: counters that begin with the first time that it happens.
const TROUBLES: [&str; 9] = [
    "obi_lost_total",
    "obi_uncovered_connections_total",
    "obi_unknown_parents_total",
    "obi_truncated_heads_total",
    "obi_folded_spans_total",
    "obi_profile_lost_samples_total",
    "obi_parents_total",
    // This kernel may not count them.
    "obi_bpf_program_misses_total",
    "obi_bpf_program_run_seconds_total",
];

/// A target of a panel.
#[derive(Debug, Clone)]
struct Question {
    dashboard: String,
    panel: String,
    legend: String,
    kind: String,
    expression: String,
    has_exemplars: bool,
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

fn questions_of(dashboard: &Value) -> Vec<Question> {
    let text = |value: &Value| value.as_str().unwrap_or("").to_owned();
    let outer = dashboard["panels"].as_array().unwrap();
    let panels = outer
        .iter()
        .flat_map(|panel| std::iter::once(panel).chain(panel["panels"].as_array().into_iter().flatten()));
    let of_panel = |panel: &Value| -> Vec<Question> {
        let targets = panel["targets"].as_array().into_iter().flatten().filter(|it| it["expr"].is_string());
        targets
            .map(|target| Question {
                dashboard: text(&dashboard["uid"]),
                panel: text(&panel["title"]),
                legend: text(&target["legendFormat"]),
                kind: text(&panel["type"]),
                expression: text(&target["expr"]),
                has_exemplars: target["exemplar"] == true,
            })
            .collect()
    };
    panels.flat_map(of_panel).collect()
}

/// All that the shipped files ask for.
fn questions() -> Vec<Question> {
    let mut files: Vec<PathBuf> =
        fs::read_dir(root().join("dashboards")).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let questions: Vec<Question> = files
        .iter()
        .filter(|file| file.extension().is_some_and(|it| it == "json"))
        .flat_map(|file| questions_of(&serde_json::from_str(&fs::read_to_string(file).unwrap()).unwrap()))
        .collect();
    assert!(questions.len() > 80, "{} expressions", questions.len());
    questions
}

/// With values for variables, as Grafana would put them in.
fn filled(expression: &str, service: &str) -> String {
    let mut text = expression
        .replace("$__rate_interval", &format!("{WINDOW}s"))
        .replace("$__range", &format!("{RANGE}s"))
        .replace("=\"$service\"", &format!("=\"{service}\""));
    for all in ["$namespace", "$within", "$service", "$slo", "$client", "$server", "$instance"] {
        text = text.replace(&format!("=~\"{all}\""), "=~\".*\"");
    }
    assert!(!text.contains('$'), "a variable has no value: {text}");
    text
}

/// What one expression has come to.
struct Answer {
    warnings: Value,
    /// Labels and value; of a native histogram its count.
    series: Vec<(BTreeMap<String, String>, f64)>,
}

fn evaluate(prometheus: SocketAddr, expression: &str) -> Answer {
    let path = format!("/api/v1/query?query={}", fetch::encode(expression));
    let answer: Value =
        fetch::json(prometheus, &path).unwrap_or_else(|error| panic!("{expression}: {error:#}"));
    assert_eq!(answer["status"], "success", "{expression}: {answer}");
    let result = &answer["data"]["result"];
    let series = if answer["data"]["resultType"] == "scalar" {
        vec![(BTreeMap::new(), number(&result[1]))]
    } else {
        result.as_array().unwrap().iter().map(series).collect()
    };
    let said =
        [&answer["warnings"], &answer["infos"]].map(|list| list.as_array().cloned().unwrap_or_default());
    Answer { warnings: Value::Array(said.concat()), series }
}

fn series(one: &Value) -> (BTreeMap<String, String>, f64) {
    let labels = serde_json::from_value(one["metric"].clone()).unwrap();
    let value = if one["histogram"].is_null() { &one["value"][1] } else { &one["histogram"][1]["count"] };
    (labels, number(value))
}

fn number(value: &Value) -> f64 {
    value.as_str().and_then(|text| text.parse().ok()).unwrap_or(f64::NAN)
}

/// No warnings.
const QUIET: Value = Value::Array(Vec::new());

/// Labels that a line's or a row's name is made of.
fn wanted_labels(question: &Question) -> Vec<String> {
    if question.kind == "table" {
        let by =
            question.expression.split("by (").nth(1).and_then(|rest| rest.split(')').next()).unwrap_or("");
        return by
            .split(", ")
            .filter(|label| !label.is_empty() && *label != "le")
            .map(str::to_owned)
            .collect();
    }
    let parts = question.legend.split("{{").skip(1);
    parts.filter_map(|part| Some(part.split_once("}}")?.0.to_owned())).filter(|label| label != "le").collect()
}

/// Everything that makes numbers.
struct World {
    agent: Agent,
    native: Prometheus,
    classic: Prometheus,
    traffic: Option<Traffic>,
    /// The one that `traffic` asks.
    known: String,
    services: Vec<String>,
    held: Held,
}

/// What runs as long as the world does.
struct Held {
    rpc: RpcServer,
    shapes: ShapeServer,
    front: Server,
    redis: database::Server,
    postgres: database::Server,
    /// The one whose numbers are known, and that of files.
    behind: [Server; 2],
    _reported: (Receiver, Inbox),
    _folder: TempDir,
}

fn slo(service: &str) -> String {
    format!(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: boards}}\nspec:\n  service: shop\n  indicator:\n    \
         metadata: {{name: boards}}\n    spec:\n      ratioMetric:\n        counter: true\n        bad: {{metricSource: \
         {{type: obi, spec: {{outcome: bad}}}}}}\n        total: {{metricSource: {{type: obi, spec: {{service: \
         {service}}}}}}}\n  timeWindow: [{{duration: 28d, isRolling: true}}]\n  budgetingMethod: Occurrences\n  \
         objectives: [{{target: 0.99}}]\n"
    )
}

/// Recording rules by our own command, as an operator would make them.
fn rules(folder: &Path) -> PathBuf {
    let rules = folder.join("rules");
    let mut command = agent::command().unwrap();
    command.args(["slo", "rules", "--interval", "2s", "--settle", "1s", "--output"]);
    command.arg(&rules).arg(folder.join("slo.yaml"));
    process::run("obi slo rules", command, patience(Duration::from_secs(60))).unwrap();
    let file = rules.join("rules.yaml");
    // What covers the period is evaluated every two minutes; the test is shorter.
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("interval: 2m"), "{text}");
    fs::write(&file, text.replace("interval: 2m", "interval: 2s")).unwrap();
    file
}

fn prometheus(agent: &Agent, rules: &Path, features: &str) -> Prometheus {
    let text = format!(
        "global: {{evaluation_interval: 2s}}\nrule_files: ['{}']\nscrape_configs:\n- job_name: obi\n  \
         scrape_interval: 1s\n  scrape_timeout: 1s\n  static_configs:\n  - targets: ['{}']\n",
        rules.display(),
        agent.address()
    );
    Prometheus::with_features(&text, features)
}

fn tcp(server: &Server) -> SocketAddr {
    match &server.address {
        Address::Tcp(address) => *address,
        other => panic!("{other:?} is not TCP"),
    }
}

impl World {
    fn start() -> Self {
        let known = language::python_http("threading").unwrap();
        let rpc = RpcServer::start(peer::Library::Tonic, None).unwrap();
        let shapes = ShapeServer::start("shapes", every_way(1)).unwrap();
        let files = nginx::files(Files::Sendfile).unwrap();
        let front = nginx::proxy(&files, Upstream::Tcp).unwrap();
        let (redis, postgres) = (database::Server::redis().unwrap(), database::Server::postgres().unwrap());
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("slo.yaml"), slo(&known.service)).unwrap();
        let (receiver, hook) = (Receiver::start([]).unwrap(), Inbox::open().unwrap());
        let config = Config::default()
            .set("profile", "enabled", true)
            .set("slo", "files", json!([folder.path().join("slo.yaml")]))
            .set("slo", "state", json!(folder.path().join("state")))
            .set("slo", "webhooks", json!([hook.url()]))
            .set("export", "otlp", json!([{"endpoint": format!("http://{}", receiver.http)}]))
            .set("export", "spool", json!({"bytes": "64 MiB", "directory": folder.path().join("spool")}));
        let agent = Agent::start(config).unwrap();
        let rules = rules(folder.path());
        let native = prometheus(&agent, &rules, "native-histograms,exemplar-storage");
        let classic = prometheus(&agent, &rules, "exemplar-storage");
        let traffic = Traffic::start(tcp(&known), RATE, seeded("dashboards"));
        traffic.fail(FAILING);
        let services =
            [&known.service, &rpc.service, &shapes.server.service, &front.service].map(String::clone);
        let services = services.into_iter().chain([REDIS, POSTGRES].map(str::to_owned)).collect();
        let name = known.service.clone();
        let (behind, reported) = ([known, files], (receiver, hook));
        let held = Held { rpc, shapes, front, redis, postgres, behind, _reported: reported, _folder: folder };
        Self { agent, native, classic, traffic: Some(traffic), known: name, services, held }
    }

    /// A client whose process lives as long as a window: what lives shorter has no rate of its own.
    fn call_slowly(&self) -> thread::JoinHandle<String> {
        let port = self.held.rpc.port;
        let call = || RpcCall::new(Method::Unary, 1, 1).takes(200_000);
        let calls: Vec<RpcCall> = (0..2 * 5 * (ROUNDS.as_secs() - 5)).map(|_| call()).collect();
        thread::spawn(move || peer::call(peer::Library::Tonic, port, None, (&calls, 2)).unwrap().service)
    }

    /// A request that is under way at every scrape, as long as this is held.
    fn ask_and_wait(&self) -> TcpStream {
        let mut stream = TcpStream::connect(tcp(&self.held.behind[0])).unwrap();
        let head = "GET /held/0/200/length/1?d=600000000 HTTP/1.1\r\nHost: held\r\n\r\n";
        stream.write_all(head.as_bytes()).unwrap();
        stream
    }

    /// A round of everything else than the traffic whose numbers are known.
    fn call(&self, rng: &mut fastrand::Rng) {
        let Held { rpc, shapes, front, redis, postgres, .. } = &self.held;
        let calls = load::calls(rng, &shapes.server.features, Kind::Shape, 30);
        client::call(Kind::Shape, &shapes.server.address, &calls, 2).unwrap();
        let calls = load::calls(rng, &front.features, Kind::Shape, 20);
        client::call(Kind::Shape, &front.address, &calls, 2).unwrap();
        let calls = multiplexed::calls(rng, 1, false);
        peer::call(peer::Library::Tonic, rpc.port, None, (&calls, 4)).unwrap();
        let command = |words: &[&str]| {
            let words = words.iter().map(|word| (*word).to_owned()).collect();
            database::Call { words, ..Default::default() }
        };
        let commands = [command(&["SET", "a", "1"]), command(&["GET", "a"]), command(&["LPUSH", "a", "x"])];
        database::call(Library::RedisPy, REDIS, redis.at(), &commands).unwrap();
        let statement = |text: &str| database::Call { text: text.to_owned(), ..Default::default() };
        let statements = [statement("SELECT 1 FROM pg_class"), statement("SELECT 1 / 0")];
        database::call(Library::Psycopg, POSTGRES, postgres.at(), &statements).unwrap();
    }

    /// Whom an expression is asked about.
    fn services_of(&self, question: &Question) -> &[String] {
        let is_of_one = question.expression.contains("=\"$service\"");
        if is_of_one { &self.services } else { &self.services[..1] }
    }

    /// Answers about all services together.
    fn ask(&self, prometheus: &Prometheus, question: &Question) -> Answer {
        let ask = |service: &String| evaluate(prometheus.address, &filled(&question.expression, service));
        let answers: Vec<Answer> = self.services_of(question).iter().map(ask).collect();
        let warnings = answers.iter().map(|answer| answer.warnings.clone()).find(|said| *said != QUIET);
        let series = answers.into_iter().flat_map(|answer| answer.series).collect();
        Answer { warnings: warnings.unwrap_or(QUIET), series }
    }

    fn is_there(prometheus: &Prometheus, metric: &str) -> bool {
        !evaluate(prometheus.address, &format!("count({metric})")).series.is_empty()
    }

    /// The value of a panel for the service whose numbers are known.
    fn value(
        &self,
        all: &[Question],
        prometheus: &Prometheus,
        (uid, panel, legend): (&str, &str, &str),
    ) -> f64 {
        let found = all.iter().find(|it| {
            (it.dashboard.as_str(), it.panel.as_str()) == (uid, panel) && it.legend.starts_with(legend)
        });
        let question = found.unwrap_or_else(|| panic!("no panel {panel} in {uid}"));
        let answer = evaluate(prometheus.address, &filled(&question.expression, &self.known));
        assert_eq!(answer.series.len(), 1, "{question:?}");
        answer.series[0].1
    }
}

/// What is wrong with an answer under load.
fn faults(question: &Question, answer: &Answer, is_absent: impl Fn(&str) -> bool) -> Vec<String> {
    let mut faults = Vec::new();
    if answer.warnings != QUIET {
        faults.push(format!("warnings: {}", answer.warnings));
    }
    faults.extend(not_finite(answer));
    let trouble = TROUBLES.iter().any(|it| question.expression.contains(&format!("{it}{{")) && is_absent(it));
    // Two ways to one heat map, of which each Prometheus has one; what has not happened has no lines.
    let may_be_empty = trouble || question.kind == "heatmap";
    if answer.series.is_empty() && !may_be_empty {
        faults.push("nothing".to_owned());
    }
    for label in wanted_labels(question) {
        let has_it = answer.series.iter().any(|(labels, _)| labels.contains_key(&label));
        if !has_it && !may_be_empty {
            faults.push(format!("no series has {label}"));
        }
    }
    faults
}

fn not_finite(answer: &Answer) -> Vec<String> {
    let wrong = answer.series.iter().filter(|(_, value)| !value.is_finite());
    wrong.map(|(labels, value)| format!("{value} of {labels:?}")).collect()
}

fn summary(answer: &Answer) -> String {
    let values = answer.series.iter().map(|(_, value)| *value);
    let (least, most) =
        values.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), value| (a.min(value), b.max(value)));
    match answer.series.len() {
        0 => "nothing".to_owned(),
        1 => short(least),
        n => format!("{n} series, {} to {}", short(least), short(most)),
    }
}

fn short(value: f64) -> String {
    if value == 0.0 || value.abs() >= 0.001 { format!("{value:.3}") } else { format!("{value:.2e}") }
}

/// Trace ids of the exemplars of an expression's metrics, whichever service has some.
fn traces(world: &World, prometheus: &Prometheus, question: &Question) -> Vec<String> {
    let of = |service: &String| -> Vec<String> {
        let query = fetch::encode(&filled(&question.expression, service));
        let path = format!("/api/v1/query_exemplars?query={query}&start=0&end=9999999999");
        let answer: Value = fetch::json(prometheus.address, &path).unwrap();
        let series = answer["data"].as_array().into_iter().flatten();
        let exemplars = series.flat_map(|series| series["exemplars"].as_array().into_iter().flatten());
        exemplars.map(|it| it["labels"]["trace_id"].as_str().unwrap_or("none").to_owned()).collect()
    };
    world.services.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

#[test]
fn every_expression_says_something_true() {
    let questions = questions();
    let mut world = World::start();
    let mut rng = seeded("rounds");
    let begun = Instant::now();
    let _under_way = world.ask_and_wait();
    let slow = world.call_slowly();
    // Rounds until all of them are in the window, and a request of the known service has been sampled.
    while begun.elapsed() < ROUNDS {
        world.call(&mut rng);
    }
    world.services.push(slow.join().unwrap());
    let mut wrong = Vec::new();
    note("dashboard | panel | column or line | native histograms | classic ones");
    for question in &questions {
        let mut said = Vec::new();
        let mut is_empty = true;
        for (kind, prometheus) in [("native", &world.native), ("classic", &world.classic)] {
            let answer = world.ask(prometheus, question);
            let faults = faults(question, &answer, |metric| !World::is_there(prometheus, metric));
            is_empty &= answer.series.is_empty();
            wrong.extend(faults.into_iter().map(|fault| format!("{kind}: {question:?}: {fault}")));
            said.push(summary(&answer));
        }
        if question.kind == "heatmap" && is_empty {
            wrong.push(format!("{question:?}: nothing in either"));
        }
        let Question { dashboard, panel, legend, .. } = question;
        note(&format!("{dashboard} | {panel} | {legend} | {}", said.join(" | ")));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    for (kind, prometheus) in [("native", &world.native), ("classic", &world.classic)] {
        right_size(&world, &questions, kind, prometheus);
    }
    variables::have_values(&world);
    variables::links_lead_to_the_page(&world);
    exemplars_are_known(&mut world, &questions);
    idle(world, &questions);
}

/// Against what was asked of the server: a Prometheus that is new may miss the first and the last second of a window.
fn right_size(world: &World, questions: &[Question], kind: &str, prometheus: &Prometheus) {
    let value =
        |panel: &str, legend: &str| world.value(questions, prometheus, ("obi-service", panel, legend));
    let (rate, errors) = (value("Requests", ""), value("Errors", ""));
    let [p50, p95, p99] = ["p50", "p95", "p99"].map(|legend| value("Duration", legend));
    note(&format!("{kind}: {rate}/s, {errors} errors, p50 {p50} p95 {p95} p99 {p99}"));
    assert!((rate / f64::from(RATE) - 1.0).abs() < 0.2, "{kind}: {rate} requests a second, not {RATE}");
    // Of 600 requests, five standard deviations are 0.08.
    assert!((errors - 0.2).abs() < 0.08, "{kind}: {errors} failed");
    assert!(0.0 < p50 && p50 <= p95 && p95 <= p99 && p99 < 10.0, "{kind}: {p50} {p95} {p99}");
}

fn exemplars_are_known(world: &mut World, questions: &[Question]) {
    let marked: Vec<&Question> = questions.iter().filter(|question| question.has_exemplars).collect();
    assert!(marked.len() > 8, "{} targets with exemplars", marked.len());
    let kinds = [("native", &world.native), ("classic", &world.classic)];
    let found: Vec<(&str, &Question, Vec<String>)> = marked
        .iter()
        .flat_map(|it| kinds.map(|(kind, prometheus)| (kind, *it, traces(world, prometheus, it))))
        .collect();
    let spans = world.agent.spans().unwrap();
    let known: std::collections::BTreeSet<&str> = spans.iter().map(|span| span.trace_id.as_str()).collect();
    // Prometheus 3.5 keeps exemplars of the first native histogram of a family only, those in its own list and those
    // of its classic buckets alike: it does not go back to the first one for the next histogram, unless it reads the
    // classic buckets as well (`always_scrape_classic_histograms`).
    let n_native = found.iter().filter(|(kind, _, traces)| *kind == "native" && !traces.is_empty()).count();
    assert!(n_native >= marked.len() / 2, "{n_native} of {} targets have exemplars", marked.len());
    for (kind, question, traces) in found {
        assert!(kind == "native" || !traces.is_empty(), "no exemplar: {question:?}");
        let lost = traces.iter().find(|trace| !known.contains(trace.as_str()));
        assert_eq!(lost, None, "{question:?} leads to a trace that the agent does not know");
    }
}

/// Nothing is asked of anything but by Prometheus itself: no `NaN`, and no infinity.
fn idle(mut world: World, questions: &[Question]) {
    world.traffic.take();
    thread::sleep(patience(Duration::from_secs(WINDOW + 3)));
    for question in questions {
        for prometheus in [&world.native, &world.classic] {
            for service in world.services_of(question) {
                let answer = evaluate(prometheus.address, &filled(&question.expression, service));
                assert_eq!(not_finite(&answer), Vec::<String>::new(), "idle: {question:?}");
            }
        }
    }
    let rate = world.value(questions, &world.classic, ("obi-service", "Requests", ""));
    assert!(rate.abs() < f64::EPSILON, "{rate} requests a second of an idle service");
}
