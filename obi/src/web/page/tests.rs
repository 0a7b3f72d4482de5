//! Pages over a registry, a store and objectives that are filled by hand.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::header::{ACCEPT, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE};
use axum::http::{HeaderMap, Request, StatusCode};
use proptest::prelude::*;
use tokio::sync::mpsc;
use tower_service::Service as _;

use super::parameter::Wanted;
use super::{figures, link, map};
use crate::objective;
use crate::objective::view::{AlertView, View, tests::objective};
use crate::profile::ask::Handle as Profiles;
use crate::red::tests::{call_with, span_with};
use crate::red::{Limits, Registry, Snapshot};
use crate::span::{Instance, Service, Span, SpanKind};
use crate::span_store::{Limits as StoreLimits, Store};
use crate::stats::{HookSetState, Lane, Loss, MapMemory, Stage, Stats};
use crate::web::{Command, Handle, Sources, State, router};

const TRACE: &str = "0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b0b";

/// A shop: a frontend that calls a cart, which fails; everything is called `name` followed by what it is.
fn shop(name: &str) -> Vec<Span> {
    let service = |id: u32, what: &str| {
        Arc::new(Service {
            name: format!("{name}{what}"),
            namespace: name.to_owned(),
            id,
            ..Service::default()
        })
    };
    let span = |kind, id: u8, parent: Option<u8>, service: Arc<Service>, error: &'static str| {
        span_with(kind, |span| {
            (span.trace_id, span.span_id) = ([11; 16], [id; 8]);
            (span.parent_span_id, span.service) = (parent.map(|parent| [parent; 8]), service);
            (span.error_type, span.exchange) = (error, id.into());
            (span.start, span.end) = (span.start + u64::from(id) * 1_000_000, span.end + 50_000_000);
            let http = span.http();
            http.route = format!("/{name}").into();
            (http.path, http.user_agent) = (format!("/{name}"), name.to_owned());
            http.status = Some(if error.is_empty() { 200 } else { 500 });
            span.server.address = format!("{name}host");
        })
    };
    let (front, cart) = (service(1, "frontend"), service(2, "cart"));
    let rpc = call_with(SpanKind::Client, |span| {
        (span.trace_id, span.span_id, span.parent_span_id) = ([11; 16], [4; 8], Some([3; 8]));
        span.service = Arc::clone(&cart);
    });
    vec![
        span(SpanKind::Server, 1, Some(9), Arc::clone(&front), "500"),
        span(SpanKind::Client, 2, Some(1), front, "500"),
        span(SpanKind::Server, 3, Some(2), cart, "500"),
        rpc,
    ]
}

fn registry(spans: &[Span]) -> Registry {
    let mut registry = Registry::new(Limits::default());
    for span in spans {
        registry.record(span);
    }
    let (front, cart) = (&spans[0].service, &spans[2].service);
    registry.served(&spans[0], None);
    registry.called(&spans[1], Some(cart));
    registry.served(&spans[2], Some((2, front)));
    registry
}

fn view(name: &str) -> View {
    let mut slo = objective(&format!("{name}slo"));
    slo.service = format!("{name}cart");
    slo.evidence.trace_ids = vec![TRACE.to_owned()];
    slo.evidence.worst_route = format!("GET /{name}");
    slo.description = name.to_owned();
    let labels = [("slo", slo.name.clone()), ("severity", "page".to_owned())];
    let alert = AlertView {
        state: "firing".to_owned(),
        labels: labels.map(|(name, value)| (name.to_owned(), value)).into(),
        annotations: [("summary".to_owned(), format!("{name} burns"))].into(),
        starts_at: "2026-11-24T22:00:00Z".to_owned(),
        resolved_at: None,
    };
    View { objectives: vec![slo], alerts: vec![alert], ..View::default() }
}

fn stats() -> Stats {
    let mut stats = Stats::default();
    (stats.hook_set, stats.watched_processes) = ("socket", 7);
    stats.hook_sets = vec![HookSetState { set: "socket", state: "used", reason: String::new() }];
    stats.not_seen = vec!["receives by io_uring"];
    stats.lose(Loss { stage: Stage::Kernel, reason: "ring_full", side: "server", service_name: "shop" }, 3);
    stats.uncover("tls", 2);
    stats.maps = vec![MapMemory { subsystem: "capture", bytes: 1 << 20 }];
    stats.lanes = vec![Lane {
        destination: "<collector>".into(),
        signal: "traces",
        queued_items: 1,
        queued_bytes: 100,
        attempt_bytes: 0,
        sent: 1_234,
        retries: 5,
        lost: vec![("queue_full", 6), ("refused", 0)],
        spooled: None,
    }];
    stats
}

/// The router over these spans and objectives; a thread answers as the pipeline would.
fn app(spans: Vec<Span>, view: Option<View>) -> Router {
    router(state(spans, view))
}

fn state(spans: Vec<Span>, view: Option<View>) -> State {
    let (sender, mut receiver) = mpsc::channel::<Command>(4);
    std::thread::spawn(move || {
        let (mut stats, mut store) = (stats(), Store::new(StoreLimits::default()));
        let mut registry = if spans.is_empty() { Registry::new(Limits::default()) } else { registry(&spans) };
        spans.into_iter().for_each(|span| drop(store.push(span)));
        while let Some(command) = receiver.blocking_recv() {
            command.answer(&mut Sources { registry: &mut registry, stats: &mut stats, store: &store });
        }
    });
    let state = State::new(Handle::new(sender, Arc::new(|| ())), Arc::new(AtomicBool::new(true)));
    let objectives = view.map_or_else(objective::Handle::default, objective::Handle::answering);
    state.with_objectives(objectives)
}

struct Answer {
    status: StatusCode,
    headers: HeaderMap,
    body: String,
}

impl Answer {
    fn header(&self, name: impl axum::http::header::AsHeaderName) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().unwrap())
    }
}

async fn get(app: &Router, path: &str) -> Answer {
    let request = Request::get(path).header(ACCEPT, "text/html,*/*;q=0.8").body(Body::empty());
    let response = app.clone().call(request.unwrap()).await.unwrap();
    let (status, headers) = (response.status(), response.headers().clone());
    let body = to_bytes(response.into_body(), 1 << 24).await.unwrap();
    Answer { status, headers, body: String::from_utf8(body.to_vec()).unwrap() }
}

/// Values of an attribute, unescaped.
fn values(html: &str, attribute: &str) -> Vec<String> {
    let begin = format!(" {attribute}=\"");
    let parts = html.split(&begin).skip(1);
    parts.map(|part| part.split('"').next().unwrap().replace("&amp;", "&")).collect()
}

/// Text of the elements that say what they are.
fn reported(html: &str, what: &str) -> Vec<String> {
    let begin = format!("data-is=\"{what}\">");
    let parts = html.split(&begin).skip(1);
    parts.map(|part| part.split('<').next().unwrap().to_owned()).collect()
}

/// Every page there is, beginning with `/`: whatever links lead to, within this listener.
async fn pages(app: &Router) -> Vec<(String, Answer)> {
    let mut open = vec!["/".to_owned(), "/spans?error=true".to_owned(), "/agent".to_owned()];
    let (mut seen, mut found) = (HashSet::new(), Vec::new());
    while let Some(path) = open.pop() {
        let whole = path.split('#').next().unwrap().to_owned();
        if whole.starts_with("/api/") || !seen.insert(whole.clone()) {
            continue;
        }
        let answer = get(app, &whole).await;
        open.extend(values(&answer.body, "href").into_iter().filter(|link| link.starts_with('/')));
        found.push((whole, answer));
    }
    found
}

#[tokio::test]
async fn every_link_leads_somewhere_and_ids_are_unique() {
    let app = app(shop("shop "), Some(view("shop ")));
    let pages = pages(&app).await;
    let html = |answer: &Answer| answer.header(CONTENT_TYPE).starts_with("text/html");
    let paths: HashSet<&str> = pages.iter().map(|(path, _)| path.as_str()).collect();
    for expected in [
        "/",
        "/slos",
        "/slos/shop%20slo",
        "/map",
        "/agent",
        "/services/shop%20/shop%20cart",
        &format!("/traces/{TRACE}/0303030303030303"),
    ] {
        assert!(paths.contains(expected), "{expected} is not to be had: {paths:?}");
    }
    for (path, answer) in &pages {
        assert_eq!(answer.status, StatusCode::OK, "{path}: {}", answer.body);
        if !html(answer) {
            continue;
        }
        let ids = values(&answer.body, "id");
        let distinct: HashSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len(), "{path}: {ids:?}");
        assert_eq!(answer.body.matches("<h1").count(), 1, "{path}");
        for link in values(&answer.body, "href").into_iter().chain(values(&answer.body, "src")) {
            assert!(link.starts_with('/') && !link.starts_with("//") || link == "#main", "{path}: {link}");
            if let Some((page, id)) = link.split_once('#').filter(|(page, _)| !page.is_empty()) {
                let (_, target) = pages.iter().find(|(path, _)| path == page).unwrap();
                assert!(values(&target.body, "id").iter().any(|held| held == id), "{link}");
            }
            if link == "#main"
                || link.starts_with("/api/v1/profiles")
                || link.starts_with("/api/v1/slos/suggested")
            {
                continue; // Nothing is sampled here, and what failed always is promised nothing.
            }
            let status = get(&app, link.split('#').next().unwrap()).await.status;
            assert_eq!(status, StatusCode::OK, "{path}: {link}");
        }
        assert!(!answer.body.contains(" style=\"") && !answer.body.contains(" onclick"), "{path}");
        let scripts = answer.body.matches("<script").count();
        assert_eq!((scripts, answer.body.matches("<script src=\"/assets/").count()), (1, 1), "{path}");
    }
}

#[tokio::test]
async fn pages_say_what_browsers_may_do() {
    let app = app(shop("shop"), Some(view("shop")));
    for path in ["/", "/spans", "/nothing", "/slos/none"] {
        let answer = get(&app, path).await;
        let policy = answer.header(CONTENT_SECURITY_POLICY);
        assert!(policy.starts_with("default-src 'none'; script-src 'self';"), "{path}: {policy}");
        assert!(!policy.contains("unsafe") && policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert_eq!(answer.header("x-content-type-options"), "nosniff");
        assert_eq!(answer.header("referrer-policy"), "no-referrer");
        assert_eq!(answer.header(CACHE_CONTROL), "no-store");
    }
    let page = get(&app, "/").await;
    for asset in values(&page.body, "src")
        .into_iter()
        .chain(values(&page.body, "href"))
        .filter(|it| it.starts_with("/assets/"))
    {
        let answer = get(&app, &asset).await;
        assert_eq!(answer.header(CACHE_CONTROL), "public, max-age=31536000, immutable", "{asset}");
    }
    for path in ["/metrics", "/api/v1/status", "/healthz"] {
        let answer = get(&app, path).await;
        assert_eq!(answer.header("x-content-type-options"), "nosniff", "{path}");
        assert_eq!(answer.header(CONTENT_SECURITY_POLICY), "default-src 'none'; frame-ancestors 'none'");
    }
}

#[tokio::test]
async fn what_is_not_there_is_said_in_a_sentence() {
    let app = app(shop("shop"), Some(view("shop")));
    let check = async |path: &str, status: u16, sentence: &str, way: &str| {
        let answer = get(&app, path).await;
        assert_eq!(answer.status.as_u16(), status, "{path}");
        assert!(answer.header(CONTENT_TYPE).starts_with("text/html"), "{path}");
        assert!(answer.body.contains(sentence), "{path}: {}", answer.body);
        assert!(answer.body.contains(&format!("<a href=\"{way}\">")), "{path}: {}", answer.body);
    };
    check("/services/-/none", 404, "called “none” was seen", "/").await;
    check("/services/-/shopcart", 404, "called “shopcart” was seen", "/").await;
    check("/slos/none", 404, "no objective called “none”", "/slos").await;
    check("/slos/%3Cb%3E%E2%80%AE", 404, "called “&lt;b&gt;\\u{202e}”", "/slos").await;
    check(&format!("/traces/{}", "12".repeat(16)), 404, "is held", "/spans").await;
    check(
        &format!("/traces/{TRACE}/1212121212121212"),
        404,
        "Span 1212121212121212",
        &format!("/traces/{TRACE}"),
    )
    .await;
    check("/traces/12", 400, "trace_id=12: expected 32", "/").await;
    check("/spans?kind=both", 400, "expected server, client or internal", "/").await;
    check("/?x=1", 400, "x=1: unknown parameter", "/").await;
    check("/map?range=1h", 400, "unknown parameter", "/").await;
    check("/slos?x=1", 400, "unknown parameter", "/").await;
    check(&format!("/traces/{TRACE}?all=no"), 400, "expected all=true", "/").await;
    check("/services/%ff/x", 404, "Not found", "/").await;
    check("/nothing", 404, "No such path: /nothing.", "/").await;
    let plain = app.clone().call(Request::get("/nothing").body(Body::empty()).unwrap()).await.unwrap();
    assert_eq!(plain.headers()[CONTENT_TYPE], "application/json", "who reads no pages gets none");
}

#[tokio::test]
async fn what_is_not_seen_is_on_the_screen() {
    let app = app(shop("shop"), Some(view("shop")));
    for path in ["/", "/agent"] {
        let page = get(&app, path).await.body;
        let (_, section) = page.split_once("id=\"blind\"").unwrap_or_else(|| panic!("{path}: {page}"));
        assert!(section.contains("<b>2 connections</b> not read"), "{path}: {section}");
        assert!(section.contains("obi doctor --pid"), "{path}: {section}");
    }
}

#[test]
fn lines_of_the_map_are_chosen_by_name_and_errors() {
    let spans = shop("shop");
    let mut well = spans[2].clone();
    (well.error_type, well.span_id, well.http().status) = ("", [30; 8], Some(200));
    let mut registry = registry(&spans);
    registry.served(&well, None);
    let red = registry.snapshot();
    let page = |q: &str, errors: bool| {
        let wanted = Wanted { text: q.to_owned(), errors, ..Wanted::default() };
        map::page(&red, &wanted).body.into_string()
    };
    let calls = |html: &str| reported(html, "calls").len();
    // The shopper calls both; the cart answered it well.
    for (name, errors, expected) in [("", false, 3), ("", true, 2), ("CART", false, 2), ("cart", true, 1)] {
        let page = page(name, errors);
        assert_eq!(calls(&page), expected, "{name} {errors}: {page}");
    }
    assert!(page("stock", false).contains("No call fits."));
}

#[tokio::test]
async fn two_versions_of_a_service_can_be_compared() {
    let mut spans = shop("shop");
    let served = |version: &str, id: u8| {
        let mut span = spans[0].clone();
        let mut instance = Instance::default();
        instance.attributes.text("service.version", version);
        (span.instance, span.span_id) = (Arc::new(instance), [id; 8]);
        span
    };
    let more = [served("1.9", 20), served("2 beta", 21)];
    spans.extend(more);
    let (asked, _questions) = mpsc::channel(1);
    let app = router(state(spans, None).with_profiles(Profiles::new(asked, Arc::new(|| ()), Vec::new())));
    let links =
        |page: &str| values(page, "href").into_iter().filter(|link| link.contains("base_version")).collect();
    let found: Vec<String> = links(&get(&app, "/services/shop/shopfrontend").await.body);
    assert_eq!(found, ["/profiles/compare?service=shopfrontend&version=2%20beta&base_version=1.9"]);
    let found: Vec<String> = links(&get(&app, "/services/shop/shopcart").await.body);
    assert!(found.is_empty(), "{found:?}");
}

#[tokio::test]
async fn empty_states_say_what_to_do() {
    let app = app(Vec::new(), None);
    for (path, sentence) in [
        ("/", "Nothing was served or called yet."),
        ("/spans", "No span is held."),
        ("/slos", "No objective is watched."),
        ("/map", "No calls yet."),
    ] {
        let answer = get(&app, path).await;
        assert_eq!(answer.status, StatusCode::OK, "{path}");
        assert!(answer.body.contains(sentence), "{path}: {}", answer.body);
    }
}

fn shown(red: &Snapshot) -> Vec<String> {
    let mut rows: Vec<_> = figures::rows(red).iter().map(|row| row.figures.requests.to_string()).collect();
    rows.sort();
    rows
}

#[tokio::test]
async fn numbers_are_the_snapshots_own() {
    let mut spans = shop("shop");
    for _ in 0..6 {
        spans.extend(shop("shop"));
    }
    let mut registry = registry(&spans);
    let red = registry.snapshot();
    let app = app(spans.clone(), Some(view("shop")));
    let overview = get(&app, "/").await.body;
    let mut requests = reported(&overview, "requests");
    requests.sort();
    assert_eq!(requests, shown(&red));
    assert_eq!(requests, ["7", "7", "7", "7"]);
    let counted: usize = red.requests.iter().map(|it| it.counts.duration.buckets.count() as usize).sum();
    assert_eq!(counted, 21);
    assert!(
        overview.contains("<b>28</b> exchanges seen") && overview.contains("▲ 3 lost (9.68 %)"),
        "{overview}"
    );
    let service = get(&app, "/services/shop/shopcart").await.body;
    assert_eq!(reported(&service, "requests"), ["7", "7", "7", "7"], "tiles and operations of both sides");
    let agent = get(&app, "/agent").await.body;
    assert_eq!(
        (reported(&agent, "seen"), reported(&agent, "lost")),
        (vec!["28".to_owned()], vec!["3".to_owned()])
    );
    assert_eq!(reported(&agent, "series"), [red.series().to_string()]);
    assert!(agent.contains("1,234") && agent.contains("ring_full") && agent.contains("1.00 MiB"), "{agent}");
    let map = get(&app, "/map").await.body;
    let mut calls: Vec<_> = red.edges.iter().map(|edge| edge.total.to_string()).collect();
    calls.sort();
    let mut drawn = reported(&map, "calls");
    drawn.sort();
    assert_eq!(drawn, calls);
    let slo = get(&app, "/slos/shopslo").await.body;
    assert_eq!(reported(&slo, "bad"), ["10"]);
    assert!(slo.contains("of 100 allowed in 100,000 events") && slo.contains("14.4"), "{slo}");
}

/// Alert, objective, trace, span: each is one link from the one before.
#[tokio::test]
async fn four_clicks() {
    let app = app(shop("shop"), Some(view("shop")));
    let mut page = get(&app, "/").await.body;
    for link in ["/slos/shopslo", &format!("/traces/{TRACE}"), &format!("/traces/{TRACE}/0303030303030303")] {
        assert!(values(&page, "href").iter().any(|held| held == link), "{link}: {page}");
        page = get(&app, link).await.body;
    }
    assert!(page.contains("Where its CPU time went"), "{page}");
}

#[tokio::test]
async fn what_is_wanted_is_listed() {
    let app = app(shop("shop"), None);
    let check = async |path: &str, rows: usize| {
        let page = get(&app, path).await.body;
        assert_eq!(page.matches("<th scope=\"row\"").count(), rows, "{path}: {page}");
    };
    check("/?q=cart", 2).await;
    check("/?q=CART&errors=true", 1).await;
    check("/?q=none&sort=slow", 0).await;
    check("/?errors=&sort=name", 4).await;
    check("/spans?service=shopcart&kind=&error=", 2).await;
    check("/spans?error=true", 3).await;
    check("/spans?limit=1", 1).await;
    check(&format!("/traces/{TRACE}"), 4).await;
}

/// Rows in the order that a link asks for, and a head that says so.
#[tokio::test]
async fn tables_are_sorted_by_links() {
    let mut spans = shop("shop");
    // Another route, called more often, slower, and without a failure.
    for nth in 0..3 {
        let mut more = shop("shop");
        for span in &mut more {
            if span.kind == SpanKind::Server {
                span.error_type = "";
                span.end += 1_000_000_000 + nth;
                span.http().route = "/a".into();
            }
        }
        spans.extend(more);
    }
    let mut view = view("shop");
    let mut other = objective("another");
    (other.bad, other.error_budget_remaining_ratio) = (500, 0.1);
    view.objectives.push(other);
    let app = app(spans, Some(view));
    let check = async |path: &str, expected: &[&str], head: &str| {
        let page = get(&app, path).await;
        assert_eq!(page.status, StatusCode::OK, "{path}: {}", page.body);
        let places: Vec<_> = expected.iter().map(|text| page.body.find(text).unwrap_or(0)).collect();
        assert!(places[0] > 0 && places.is_sorted(), "{path}: {expected:?} at {places:?}: {}", page.body);
        let sorted = page.body.split("aria-sort=\"").nth(1).unwrap_or_default();
        let text = sorted.split_once("\">").map_or("", |(_, rest)| rest);
        assert!(text.split_once("\">").unwrap_or(("", text)).1.starts_with(head), "{path}: {sorted}");
    };
    let cart = "/services/shop/shopcart";
    let [common, failing] = [">/a</bdi>", ">/shop</bdi>"];
    check(cart, &[common, failing], "Requests").await;
    check(&format!("{cart}?sort=errors"), &[failing, common], "Errors").await;
    for (word, head) in [("p50", "p50"), ("slow", "p95"), ("p99", "p99")] {
        check(&format!("{cart}?sort={word}&range=all"), &[common, failing], head).await;
        check(&format!("/?sort={word}&range=all"), &["<tbody>"], head).await;
    }
    check(&format!("{cart}?sort=cpu"), &[common, failing], "CPU").await;
    check("/?sort=queue", &["<tbody>"], "Queue p95").await;
    check(&format!("{cart}?sort=name"), &[common, failing], "Route").await;
    check("/slos?sort=name", &[">another</bdi>", ">shopslo</bdi>"], "Objective").await;
    check("/slos?sort=bad", &[">another</bdi>", ">shopslo</bdi>"], "Bad").await;
    check("/map?sort=slow", &["p95", "shopcart"], "p95").await;
    check("/spans?sort=slowest", &["1.06 s", "60.0 ms"], "Took").await;
    check("/spans?sort=slowest&error=true", &["Spans, slowest first"], "Took").await;
    for wrong in [
        "/map?range=1h",
        "/map?sort=up",
        "/map?sort=cpu",
        "/slos?sort=slow",
        "/spans?sort=up",
        &format!("{cart}?sort=bad"),
        &format!("{cart}?sort=queue"),
    ] {
        assert_eq!(get(&app, wrong).await.status, StatusCode::BAD_REQUEST, "{wrong}");
    }
}

#[tokio::test]
async fn long_traces_are_folded() {
    let mut spans = shop("shop");
    for id in 0..1_000_u64 {
        spans.push(span_with(SpanKind::Client, |span| {
            (span.trace_id, span.span_id) = ([11; 16], (id + (1 << 32)).to_be_bytes());
            span.parent_span_id = Some([1; 8]);
        }));
    }
    let app = app(spans, None);
    let page = get(&app, &format!("/traces/{TRACE}")).await.body;
    assert!(page.contains("1,004 spans of 2 services") && page.contains(">704 more."), "{page}");
    assert_eq!(page.matches("<th scope=\"row\"").count(), 300);
    let page = get(&app, &format!("/traces/{TRACE}?all=true")).await.body;
    assert_eq!(page.matches("<th scope=\"row\"").count(), 1_004);
    // As many as the API has, each under its id.
    let listed: serde_json::Value =
        serde_json::from_str(&get(&app, &format!("/api/v1/traces/{TRACE}")).await.body).unwrap();
    let ids: std::collections::BTreeSet<&str> =
        listed["spans"].as_array().unwrap().iter().map(|span| span["span_id"].as_str().unwrap()).collect();
    assert_eq!(ids.len(), 1_004);
    assert!(ids.iter().all(|id| page.contains(&format!("/traces/{TRACE}/{id}\""))), "{ids:?}");
}

/// Markup that every page has, whatever names are in it.
fn skeleton(html: &str) -> Vec<String> {
    let tags = html.split('<').skip(1);
    tags.map(|tag| tag.chars().take_while(|it| it.is_ascii_alphanumeric() || *it == '/').collect()).collect()
}

fn hostile() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("\"><script>alert(1)</script>".to_owned()),
        Just("</title></td><iframe src=javascript:alert(1)>".to_owned()),
        Just("' onmouseover='x".to_owned()),
        Just("\u{202e}gpj.exe\u{2066}\u{200f}".to_owned()),
        Just("<![CDATA[".to_owned()),
        Just("javascript:alert(1)".to_owned()),
        Just("x".repeat(65_536)),
        Just("<".repeat(65_536)),
        Just("../..//?#%2e%00&amp;".to_owned()),
        "(?s).{1,100}",
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn nothing_that_programs_say_becomes_markup(name in hostile()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        runtime.block_on(async {
            let (tame, wild) = (app(shop("x"), Some(view("x"))), app(shop(&name), Some(view(&name))));
            let span = format!("/traces/{TRACE}/0303030303030303");
            let mut paths: Vec<[String; 2]> =
                ["/", "/spans", "/slos", "/map", "/agent", &format!("/traces/{TRACE}"), &span]
                    .map(|path| [path.to_owned(), path.to_owned()])
                    .into();
            // What is called so, and what is not there; names that are too long have no address.
            let named = |name: &str| {
                let service = |what: &str| link::service(name, &format!("{name}{what}"));
                let objective = |what: &str| link::slo(&format!("{name}{what}"));
                let profile = link::with("/profiles", &[("service", name)]);
                let nothing = link::with("/nothing", &[("x", name)]);
                Some([service("cart")?, service("none")?, objective("slo")?, objective("none")?, profile, nothing])
            };
            let given = named("x").unwrap().into_iter().zip(named(&name).into_iter().flatten());
            paths.extend(given.map(|(tame, wild)| [tame, wild]));
            for [path, same] in &paths {
                let (one, other) = (get(&tame, path).await, get(&wild, same).await);
                assert_eq!(other.status, one.status, "{same}");
                assert!(path != same || other.status == StatusCode::OK, "{path}");
                let body = &other.body;
                // Names that are too long for addresses are no links, and names decide what comes first; everything
                // else is the same markup.
                let plain = |html: &str| {
                    let tags = skeleton(html).into_iter();
                    let mut tags: Vec<_> = tags.filter(|tag| !["a", "/a", "g", "/g"].contains(&&**tag)).collect();
                    tags.sort();
                    tags
                };
                assert_eq!(plain(&one.body), plain(body), "{path}");
                let is_hidden = |letter: char| matches!(letter, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{200e}' | '\u{200f}');
                assert!(!body.contains(is_hidden), "{path}");
                for link in values(body, "href").into_iter().chain(values(body, "src")) {
                    assert!(link.starts_with('/') && !link.starts_with("//") || link == "#main", "{path}: {link}");
                }
            }
        });
    }
}
