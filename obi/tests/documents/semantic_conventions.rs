//! Everything we emit, checked against the registry of the pinned version of the semantic conventions.
//!
//! In: `semantic_conventions.json`, facts of the registry (names, types, units, stability, requirement levels), and
//! spans, resources and metrics made by the agent's own stages. Out: failure when a name is unknown or deprecated, a
//! type, a value or a unit differs, something required is missing, or something recommended is without a reason. The
//! data of another version is made of its `model/` folder: requirement levels with what groups inherit.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use obi::capture::discover::{Container, Facts, Naming as _, Particulars};
use obi::export::Metrics;
use obi::export::prometheus::{Exposition, Format};
use obi::kubernetes::pod::{self, Labels, Owner};
use obi::kubernetes::{Pod, PodUid, Pods};
use obi::protocol::{
    Database, Endpoints, Exchange, Failure, Http, Message, Request, Response, Rpc, Semantics, Side, System,
    Version, WebSocket,
};
use obi::red::{Limits, Registry};
use obi::span::service::{Host, Services};
use obi::span::{
    Assembler, AttributeValue, Detail, Resource, Span, SpanKind, Status, assemble::DEFAULT_ROUTES,
    method::KnownMethods,
};
use obi::stats::Stats;
use serde::Deserialize;
use serde_json::Value;

/// Attributes of our own, which no convention knows.
const OWN: &str = "obi.";

#[derive(Deserialize)]
struct Conventions {
    version: String,
    schema_url: String,
    metrics: BTreeMap<String, Metric>,
    spans: BTreeMap<String, Levels>,
    entities: BTreeMap<String, Levels>,
    attributes: BTreeMap<String, Attribute>,
}

type Levels = BTreeMap<String, Level>;

#[derive(Deserialize, Clone, Copy, PartialEq, Debug)]
#[serde(rename_all = "snake_case")]
enum Level {
    Required,
    ConditionallyRequired,
    Recommended,
    OptIn,
}

#[derive(Deserialize)]
struct Attribute {
    r#type: String,
    stability: String,
    #[serde(default)]
    deprecated: bool,
    #[serde(default)]
    values: Vec<Value>,
}

#[derive(Deserialize)]
struct Metric {
    instrument: String,
    unit: String,
    attributes: Levels,
}

fn conventions() -> Conventions {
    serde_json::from_str(include_str!("semantic_conventions.json")).expect("the data is ours")
}

impl Conventions {
    /// Panics unless the attribute is known, not deprecated, and of this type.
    fn check(&self, name: &str, value: AttributeValue<'_>) {
        if name.starts_with(OWN) {
            return;
        }
        let known = self.attributes.get(name).unwrap_or_else(|| panic!("{name} is not in {}", self.version));
        assert!(!known.deprecated, "{name} is deprecated");
        assert!(["stable", "release_candidate", "beta", "alpha", "development"].contains(&&*known.stability));
        let is_int = matches!(value, AttributeValue::Int(_));
        let is_bool = matches!(value, AttributeValue::Bool(_));
        let kind = if is_int {
            "int"
        } else if is_bool {
            "boolean"
        } else {
            "string"
        };
        assert_eq!(known.r#type, kind, "{name} is {value}");
        // Lists of values are open where the conventions say so; these are closed by what the word means.
        if !is_int && !known.values.is_empty() && name != "error.type" {
            assert!(known.values.iter().any(|one| *one == value.to_string()), "{name} has no value {value}");
        }
    }
}

fn exchange() -> Exchange<'static> {
    Exchange {
        number: 1,
        side: Side::Server,
        tgid: 42,
        tid: 43,
        cause: obi::protocol::Cause::default(),
        answerer: None,
        endpoints: Endpoints::Ip {
            local: "192.0.2.1:8080".parse().expect("an address"),
            remote: "[2001:db8::2]:5000".parse().expect("an address"),
        },
        arrival: 10,
        started: 15,
        ended: 40,
        times: None,
        request_bytes: Some(3),
        response_bytes: Some(7),
        failure: None,
        encrypted: false,
        message: Message::Http(Http {
            request: Request {
                method: "GET",
                path: "/users/42",
                query: "q=REDACTED",
                host: "shop.example",
                user_agent: "curl/8",
                ..Request::default()
            },
            response: Some(Response { status: Some(200) }),
            semantics: Semantics::Http,
        }),
    }
}

/// What an exchange over HTTP said.
fn said<'a>(exchange: &Exchange<'a>) -> Http<'a> {
    let Message::Http(http) = exchange.message else { panic!("not over HTTP") };
    http
}

/// A call of a database.
const SELECT: Database<'static> = Database {
    system: System::Postgres,
    operation: "SELECT",
    summary: "SELECT items",
    collection: "items",
    text: "SELECT * FROM items WHERE id = ?",
    namespace: "shop",
    code: "",
};

const GET: Database<'static> = Database {
    system: System::Redis,
    operation: "GET",
    summary: "",
    collection: "",
    text: "",
    namespace: "",
    code: "",
};

/// Every sort of exchange on both sides.
fn exchanges() -> Vec<Exchange<'static>> {
    let base = exchange();
    let with = |change: &dyn Fn(&mut Exchange<'static>)| {
        let mut exchange = base;
        change(&mut exchange);
        exchange
    };
    let says = |change: &dyn Fn(&mut Http<'static>)| {
        let mut http = said(&base);
        change(&mut http);
        Exchange { message: Message::Http(http), ..base }
    };
    let cases = [
        base,
        says(&|http| http.request.method = "BREW"),
        says(&|http| http.request.query = ""),
        says(&|http| http.response = Some(Response { status: Some(404) })),
        says(&|http| http.response = Some(Response { status: Some(503) })),
        Exchange { failure: Some(Failure::Reset), ..says(&|http| http.response = None) },
        with(&|exchange| exchange.failure = Some(Failure::Closed)),
        with(&|exchange| exchange.endpoints = Endpoints::Unix),
        says(&|http| (http.request.method, http.request.path) = ("OPTIONS", "*")),
        Exchange { encrypted: true, ..says(&|http| http.request.version = Version::Http2) },
        // Joined in the middle.
        says(&|http| {
            http.request = Request { version: Version::Http2, ..Request::default() };
            http.response = Some(Response { status: None });
        }),
        says(&|http| {
            http.semantics = Semantics::WebSocket(WebSocket {
                request_messages: 1,
                response_messages: 2,
                close_code: Some(1000),
                closed_by: Some(Side::Server),
            });
        }),
        Exchange { message: Message::Database(SELECT), ..base },
        Exchange { message: Message::Database(Database { code: "42P01", ..SELECT }), ..base },
        Exchange { message: Message::Database(GET), failure: Some(Failure::Reset), ..base },
        Exchange { message: Message::Database(GET), endpoints: Endpoints::Unix, ..base },
        call(&|_| {}),
        call(&|rpc| rpc.status = None),
        call(&|rpc| (rpc.status, rpc.is_cancelled, rpc.timeout) = (None, true, Some(1))),
        call(&|rpc| (rpc.response_messages, rpc.is_web) = (Some(2), true)),
        call(&|rpc| rpc.status = Some(5)),
        call(&|rpc| rpc.status = Some(12)),
        call(&|rpc| rpc.status = Some(14)),
    ];
    let both = |exchange| [Side::Server, Side::Client].map(|side| Exchange { side, ..exchange });
    cases.into_iter().flat_map(both).collect()
}

/// A call whose end is as `change` says.
fn call(change: &dyn Fn(&mut Rpc<'static>)) -> Exchange<'static> {
    let mut rpc =
        Rpc { status: Some(0), request_messages: Some(1), response_messages: Some(1), ..Rpc::default() };
    change(&mut rpc);
    let request = Request {
        method: "POST",
        path: "/shop.Cart/Add",
        host: "cart:50051",
        version: Version::Http2,
        ..Request::default()
    };
    let message = Http { request, semantics: Semantics::Rpc(rpc), ..said(&exchange()) };
    Exchange { message: Message::Http(message), ..exchange() }
}

fn spans() -> Vec<(Exchange<'static>, Span)> {
    let mut assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
    let (service, instance) = described();
    let assemble = |exchange: Exchange<'static>| {
        let mut span = Span::blank();
        assembler.assemble(&exchange, &service, 1_700_000_000_000_000_000, &mut span);
        span.instance = Arc::clone(&instance);
        (exchange, span)
    };
    exchanges().into_iter().map(assemble).collect()
}

const UID: &str = "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab";

/// One of which everything is known.
fn pod() -> Pod {
    Pod {
        uid: UID.into(),
        name: "cart-5d4f8c7b9-x2x4z".into(),
        namespace: "shop".into(),
        node: "node-1".into(),
        owner: Some(Owner { kind: "ReplicaSet".into(), name: "cart-5d4f8c7b9".into() }),
        is_whole: true,
        labels: Labels { template_hash: "5d4f8c7b9".into(), ..Labels::default() },
        containers: vec![pod::Container {
            name: "app".into(),
            image: "cart:1".into(),
            id: "0".repeat(64).into(),
        }],
        ..Pod::default()
    }
}

fn described() -> (Arc<obi::span::Service>, Arc<obi::span::Instance>) {
    let pods = Pods::default();
    pods.put(pod(), 1);
    let mut services = Services::new(Host::read()).with_pods(pods, &obi::config::Kubernetes::default());
    let container = Container { id: "0".repeat(64), runtime: "containerd", pod: PodUid::parse(UID) };
    let facts = Facts {
        container: container.clone(),
        executable: "/usr/bin/python3.11".to_owned(),
        command: ["python3", "cart.py"].map(str::to_owned).to_vec(),
        kubernetes: true,
        host_name: "cart-5d4f8c7b9-x2x4z".to_owned(),
        pod_namespace: "shop".to_owned(),
        ..Facts::default()
    };
    let particulars = Particulars {
        executable: facts.executable.as_str().into(),
        container,
        host_name: facts.host_name.clone(),
        ..Particulars::default()
    };
    (services.service(&facts, None), services.instance(42, Some(1), &particulars))
}

/// Why a recommended attribute is never sent.
const NOT_SENT: [(&str, &str); 5] = [
    (
        "network.peer.address",
        "the peer is `client.address` or `server.address` already, since no proxy is in between",
    ),
    ("network.peer.port", "as the address"),
    ("db.operation.batch.size", "each command of a batch is a call of its own, as it is on the wire"),
    ("db.stored_procedure.name", "it is the target in the summary"),
    ("http.request.resend_count", "whether a request is a second attempt cannot be seen from outside"),
];

/// Attributes of the registry that a side's convention does not list, and why we send them.
const EXTRA: [(&str, &str, &str); 8] = [
    ("url.path", "http.client", "so that both sides of an exchange can be searched in the same way"),
    ("url.query", "http.client", "as the path"),
    ("client.address", "rpc.server", "so that calls can be searched in the same way as requests"),
    ("client.port", "rpc.server", "as the address"),
    ("url.scheme", "rpc.server", "tells encrypted calls from others"),
    ("url.scheme", "rpc.client", "as at the server"),
    ("network.protocol.version", "rpc.server", "tells gRPC from gRPC-Web over HTTP/1"),
    ("network.protocol.version", "rpc.client", "as at the server"),
];

/// What a convention requires, and why it is not always there.
fn is_unread(exchange: &Exchange<'_>, name: &str) -> bool {
    if matches!(exchange.message, Message::Database(_)) {
        return false;
    }
    match name {
        "url.path" => said(exchange).request.path.is_empty(),
        "http.request.method_original" => said(exchange).request.method.is_empty(),
        "http.response.status_code" => {
            said(exchange).response.is_some_and(|response| response.status.is_none())
        }
        "rpc.response.status_code" => {
            matches!(said(exchange).semantics, Semantics::Rpc(Rpc { status: None, is_cancelled: false, .. }))
        }
        _ => false,
    }
}

#[test]
fn spans_have_what_the_conventions_ask_for() {
    let conventions = conventions();
    let mut sent = BTreeMap::<&str, BTreeSet<String>>::new();
    for (exchange, span) in spans() {
        let kind = match (&span.detail, span.kind) {
            (Detail::Http(_), SpanKind::Server) => "http.server",
            (Detail::Http(_), SpanKind::Client) => "http.client",
            (Detail::Rpc(_), SpanKind::Server) => "rpc.server",
            (Detail::Rpc(_), SpanKind::Client) => "rpc.client",
            (Detail::Database(_), SpanKind::Client) => "db.client",
            (Detail::WebSocket(_), _) | (Detail::Database(_), SpanKind::Server) => {
                // There is no convention for its span; what it has must be known all the same.
                span.attributes(|name, value| conventions.check(name, value));
                continue;
            }
            (Detail::Sdk(_), _) | (_, SpanKind::Internal) => {
                unreachable!("no exchange becomes a span of an SDK")
            }
        };
        let levels = &conventions.spans[kind];
        let mut present = BTreeSet::new();
        span.attributes(|name, value| {
            conventions.check(name, value);
            let is_extra = EXTRA.iter().any(|(extra, side, _)| (*extra, *side) == (name, kind));
            assert!(name.starts_with(OWN) || is_extra != levels.contains_key(name), "{name} on {kind}");
            assert!(present.insert(name.to_owned()), "{name} twice");
        });
        let http = span.detail.carrier().cloned().unwrap_or_default();
        let is_error = span.status() == Status::Error;
        let over_ip = exchange.endpoints != Endpoints::Unix;
        for (name, level) in levels {
            let is_due = match (level, name.as_str()) {
                (_, name) if is_unread(&exchange, name) => false,
                // Nothing on a unix socket has a port.
                (_, "server.port") => over_ip,
                (Level::Required, _) => true,
                (Level::ConditionallyRequired, "error.type") => is_error,
                (Level::ConditionallyRequired, name) if name.starts_with("db.") => {
                    let Message::Database(said) = exchange.message else { panic!("{name} of no database") };
                    let value = match name {
                        "db.collection.name" => said.collection,
                        "db.namespace" => said.namespace,
                        "db.operation.name" => said.operation,
                        "db.response.status_code" => said.code,
                        other => panic!("no condition is known for {other}"),
                    };
                    !value.is_empty()
                }
                (Level::ConditionallyRequired, "http.response.status_code") => {
                    said(&exchange).response.is_some()
                }
                (Level::ConditionallyRequired, "http.route") => !http.route.is_empty(),
                (Level::ConditionallyRequired, "http.request.method_original") => http.method == "_OTHER",
                (Level::ConditionallyRequired, "url.query") => !said(&exchange).request.query.is_empty(),
                // The protocol is always http.
                (Level::ConditionallyRequired, "network.protocol.name") => false,
                (Level::ConditionallyRequired, "rpc.method" | "server.address") => true,
                (Level::ConditionallyRequired, "rpc.method_original") => {
                    span.detail.operation().place.starts_with("_OTHER")
                }
                (Level::ConditionallyRequired, other) => panic!("no condition is known for {other}"),
                (Level::Recommended | Level::OptIn, _) => continue,
            };
            assert_eq!(present.contains(name), is_due, "{name} ({level:?}) on {kind} of {exchange:?}");
        }
        sent.entry(kind).or_default().extend(present);
    }
    for (kind, levels) in &conventions.spans {
        let recommended = levels.iter().filter(|(_, level)| **level == Level::Recommended);
        for (name, _) in recommended {
            let excused = NOT_SENT.iter().any(|(excused, _)| excused == name);
            assert_ne!(sent[kind.as_str()].contains(name), excused, "{name} is recommended on {kind}");
        }
    }
}

#[test]
fn names_and_statuses_follow_the_conventions() {
    for (exchange, span) in spans() {
        let name = span.name().to_string();
        match &span.detail {
            Detail::Http(_) => {}
            Detail::Rpc(rpc) => {
                assert_eq!(name, if *rpc.method == *"_OTHER" { "grpc" } else { &*rpc.method });
                let errors = match (span.kind, rpc.status.map(obi::span::grpc::Code::name)) {
                    (_, None | Some("OK")) => false,
                    (SpanKind::Client | SpanKind::Internal, Some(_)) => true,
                    (SpanKind::Server, Some(name)) => {
                        ["DEADLINE_EXCEEDED", "UNIMPLEMENTED", "UNAVAILABLE"].contains(&name)
                    }
                };
                assert_eq!(span.status() == Status::Error, errors, "{exchange:?}");
                continue;
            }
            Detail::WebSocket(_) => {
                assert_eq!(name, "WEBSOCKET /users/{id}");
                continue;
            }
            Detail::Database(database) => {
                let expected = if database.summary.is_empty() { "GET" } else { "SELECT items" };
                assert_eq!(name, expected);
                let is_error = exchange.failure.is_some() || !database.code.is_empty();
                assert_eq!(span.status() == Status::Error, is_error, "{exchange:?}");
                continue;
            }
            Detail::Sdk(_) => unreachable!("no exchange becomes a span of an SDK"),
        }
        let method = if matches!(said(&exchange).request.method, "BREW" | "") {
            "HTTP"
        } else {
            said(&exchange).request.method
        };
        assert!(name == method || name.starts_with(&format!("{method} ")), "{name}");
        assert!(!name.contains("42"), "{name} has the path's number");
        let first_error = if span.kind == SpanKind::Server { 500 } else { 400 };
        let expected = exchange.failure.is_some()
            || said(&exchange)
                .response
                .is_some_and(|it| it.status.is_some_and(|status| status >= first_error));
        assert_eq!(span.status() == Status::Error, expected, "{exchange:?}");
    }
}

/// Why what an entity requires is not always there.
const CONDITIONAL: [(&str, &str); 1] = [(
    "process.executable.build_id.htlhash",
    "would read every executable; the executable's name and path tell it",
)];

/// What our resources are made of.
const ENTITIES: [&str; 9] = [
    "service.instance",
    "telemetry.sdk",
    "host",
    "os",
    "process",
    "process.runtime",
    "process.executable",
    "container",
    "container.runtime",
];

#[test]
fn resources_have_what_the_conventions_ask_for() {
    let conventions = conventions();
    let (service, instance) = described();
    let names = |resource: &Resource| {
        resource.iter().for_each(|(name, value)| conventions.check(name, value));
        resource.iter().map(|(name, _)| name.to_owned()).collect::<BTreeSet<_>>()
    };
    let (of_service, of_instance) = (names(&service.attributes), names(&instance.attributes));
    assert!(of_service.contains("service.instance.id") && of_instance.contains("service.instance.id"));
    assert!(
        !of_service.contains("service.name") && !of_service.contains("service.namespace"),
        "fields of their own"
    );
    let all: BTreeSet<_> = of_service.union(&of_instance).map(String::as_str).collect();
    for entity in ENTITIES {
        let required = conventions.entities[entity].iter().filter(|(_, level)| **level == Level::Required);
        for (name, _) in required.filter(|(name, _)| CONDITIONAL.iter().all(|(excused, _)| excused != name)) {
            assert!(all.contains(name.as_str()), "{name} is required of {entity}");
        }
        let known = conventions.entities[entity].keys().any(|name| all.contains(name.as_str()));
        assert!(known, "nothing of {entity}");
    }
}

/// A metric's name in Prometheus (OpenTelemetry's rules of compatibility), without what its type adds.
fn prometheus_name(name: &str, unit: &str) -> String {
    let suffix = match unit {
        "s" => "_seconds",
        "By" => "_bytes",
        // An annotation is no unit.
        annotation if annotation.starts_with('{') => "",
        other => panic!("no suffix is known for the unit {other}"),
    };
    name.replace('.', "_") + suffix
}

/// Labels that every series has beside the attributes of its metric: the resource, and the mark of an overflow.
const RESOURCE_LABELS: [&str; 4] = ["service_namespace", "service_name", "otel_metric_overflow", "le"];
/// Names under which metrics of the conventions appear.
const CONVENTIONAL: [&str; 2] = ["http_", "rpc_"];

#[test]
fn metrics_have_the_conventions_names_units_and_attributes() {
    let conventions = conventions();
    let mut registry = Registry::new(Limits::default());
    spans().iter().for_each(|(_, span)| registry.record(span));
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let text = Exposition::new(metrics, Format::OpenMetrics, None).flatten().collect();
    let text = String::from_utf8(text).expect("an exposition is text");
    let known: BTreeMap<String, &Metric> = conventions
        .metrics
        .iter()
        .map(|(name, metric)| (prometheus_name(name, &metric.unit), metric))
        .collect();
    let mut seen = BTreeSet::new();
    let families = text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '));
    for (family, kind) in
        families.filter(|(family, _)| CONVENTIONAL.iter().any(|begin| family.starts_with(begin)))
    {
        let metric = known.get(family).unwrap_or_else(|| panic!("no metric is called {family}"));
        let expected = match metric.instrument.as_str() {
            "histogram" => "histogram",
            "updowncounter" => "gauge",
            other => panic!("no type is known for {other}"),
        };
        assert_eq!(kind, expected, "{family}");
        let attribute_of =
            |label: &str| metric.attributes.keys().find(|name| name.replace('.', "_") == label);
        let samples = text.lines().filter(|line| line.starts_with(family));
        // An exemplar has braces of its own, and so has a route.
        let labels = |line| Some(str::split(line, " # ").next()?.split_once('{')?.1.rsplit_once('}')?.0);
        for labels in samples.filter_map(labels) {
            let labels: BTreeSet<&str> =
                labels.split("\",").filter_map(|pair| pair.split_once('=')).map(|(name, _)| name).collect();
            for label in labels.iter().filter(|label| !RESOURCE_LABELS.contains(label)) {
                assert!(attribute_of(label).is_some(), "{label} is no attribute of {family}");
            }
            for (name, level) in &metric.attributes {
                let is_there = labels.contains(name.replace('.', "_").as_str());
                assert!(is_there || *level != Level::Required, "{family} lacks {name}");
            }
        }
        seen.insert(family.to_owned());
    }
    for side in ["server", "client"] {
        assert!(seen.contains(&format!("http_{side}_request_duration_seconds")), "{seen:?}");
        assert!(seen.contains(&format!("rpc_{side}_call_duration_seconds")), "{seen:?}");
    }
}

#[test]
fn the_version_is_pinned_once() {
    let conventions = conventions();
    assert_eq!(conventions.schema_url, format!("https://opentelemetry.io/schemas/{}", conventions.version));
    assert_eq!(conventions.schema_url, obi::span::SCHEMA_URL);
}
