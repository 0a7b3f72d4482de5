//! Profiles over HTTP, answered from a real store of samples; and the way from a metric to the profile of a request.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::extract;
use axum::http::StatusCode;
use axum::http::header::CONTENT_SECURITY_POLICY;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::mpsc;
use tower_service::Service as _;

use super::*;
use crate::profile::ask::{Handle as Profiles, Question};
use crate::profile::choose::Filter;
use crate::profile::join::Ended;
use crate::profile::naming;
use crate::profile::store::{RawSample, Store};
use crate::profile::{Fidelity, Frame, Line, Mapping, Origin, Runtime, SampleKind, SampleType, Symbol};
use crate::red::tests::span_with;
use crate::red::{CpuSamples, Limits, Registry};
use crate::span::{Span, SpanKind};
use crate::span_store::{Limits as StoreLimits, Store as Spans};
use crate::stats::Stats;
use crate::web::{self, Command, Handle, Sources};

const PERIOD: u64 = 10_000_000;

/// Two requests of one route: the first half as long as it says, the second slow; a clock that shows Unix time.
fn requests() -> [Span; 2] {
    let start = now() - 5_000_000_000;
    [(1_u8, 50_000_000), (2, 2_000_000_000)].map(|(id, duration)| {
        let mut span = span_with(SpanKind::Server, |_| {});
        (span.trace_id, span.span_id, span.exchange) = ([id; 16], [id; 8], id.into());
        (span.start, span.end, span.sampled) = (start, start + duration, true);
        span
    })
}

fn name(_: u32, place: &u64) -> Frame {
    let names = ["main", "parse", "sort_all", "evaluate"];
    let function = names[usize::try_from(*place).unwrap()];
    let lines = vec![Line { function: function.into(), ..Line::default() }];
    let runtime = if function == "main" { Runtime::Cpython } else { Runtime::Native };
    let symbol = Arc::new(Symbol { lines, fidelity: Fidelity::Function, runtime });
    let python = Mapping { path: "/usr/bin/python3".into(), ..Mapping::default() };
    let mapping = (function == "evaluate").then(|| Arc::new(python));
    Frame { address: *place, is_return: true, mapping, symbol }
}

/// What the profile threads do.
fn profiles(spans: &[Span]) -> Profiles {
    let (sender, mut questions) = mpsc::channel::<Question>(4);
    let mut store = Store::new(1 << 20);
    let service = Arc::clone(&spans[0].service);
    for (span, hot) in spans.iter().zip([1, 2]) {
        for look in 0..5 {
            let taken = RawSample {
                kind: SampleKind::Cpu,
                value: PERIOD,
                time: span.start + look * PERIOD,
                exchange: span.exchange,
                by_runtime: false,
                pid: 7,
                tid: 7,
                cpu: 0,
                comm: *b"worker\0\0\0\0\0\0\0\0\0\0",
                places: &[hot, 0, 3],
                end: 0,
                wait: None,
            };
            store.push(taken);
        }
        store.ended(&Ended {
            exchange: span.exchange,
            start: span.start,
            end: span.end,
            trace_id: span.trace_id,
            span_id: span.span_id,
            route: Arc::clone(span.detail.operation().place),
            service: Arc::clone(&span.service),
            is_server: true,
            is_booked: false,
            is_shared: false,
            continues: None,
        });
    }
    // As many others as it takes for one of them to be slow.
    for exchange in 10..28 {
        let (trace_id, span_id) = ([9; 16], [9; 8]);
        let (start, end) = (spans[0].start, spans[0].end);
        let route = Arc::clone(spans[0].detail.operation().place);
        let service = Arc::clone(&service);
        store.ended(&Ended {
            exchange,
            start,
            end,
            trace_id,
            span_id,
            route,
            service,
            is_server: true,
            is_booked: false,
            is_shared: false,
            continues: None,
        });
    }
    store.is_called(7, Arc::new(Origin { pid: 7, service, executable: "shop".into(), ..Origin::default() }));
    std::thread::spawn(move || {
        while let Some(question) = questions.blocking_recv() {
            let chosen = store.choose(&question.filter);
            let unmoved = Clock::anchored(&[]);
            let cpu = SampleType { kind: SampleKind::Cpu, period: PERIOD };
            let _ = question.reply.send(Ok(naming::selection(&chosen, &unmoved, &[cpu], name)));
        }
    });
    Profiles::new(sender, Arc::new(|| ()), Vec::new())
}

fn app() -> Router {
    let spans = requests();
    let (sender, mut receiver) = mpsc::channel::<Command>(4);
    let held = spans.clone();
    std::thread::spawn(move || {
        let mut registry = Registry::new(Limits::default());
        let (mut stats, mut store) = (Stats::default(), Spans::new(StoreLimits::default()));
        for span in held {
            registry.record(&span);
            registry.add_cpu(&CpuSamples {
                service: Arc::clone(&span.service),
                route: Arc::clone(span.detail.operation().place),
                samples: 5,
                nanoseconds: 5 * PERIOD,
                ended: span.end,
            });
            store.push(span);
        }
        while let Some(command) = receiver.blocking_recv() {
            command.answer(&mut Sources { registry: &mut registry, stats: &mut stats, store: &store });
        }
    });
    let handle = Handle::new(sender, Arc::new(|| ()));
    let state = web::State::new(handle, Arc::new(AtomicBool::new(true)));
    web::router(state.with_profiles(profiles(&spans)))
}

async fn get(app: &Router, uri: &str, accept: &str) -> (StatusCode, String, Vec<u8>) {
    let request = extract::Request::get(uri).header(ACCEPT, accept).body(Body::empty()).unwrap();
    let response = app.clone().call(request).await.unwrap();
    let media = response.headers().get(CONTENT_TYPE).map(|value| value.to_str().unwrap().to_owned());
    let status = response.status();
    (status, media.unwrap_or_default(), to_bytes(response.into_body(), 1 << 22).await.unwrap().to_vec())
}

async fn json(app: &Router, uri: &str) -> Value {
    let (status, _, body) = get(app, uri, "application/json").await;
    let text = String::from_utf8_lossy(&body);
    assert_eq!(status, 200, "{uri}: {text}");
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{uri}: {error}: {text}"))
}

async fn text(app: &Router, uri: &str, accept: &str) -> String {
    let (status, _, body) = get(app, uri, accept).await;
    assert_eq!(status, 200, "{uri}");
    String::from_utf8(body).unwrap()
}

#[tokio::test]
async fn a_metric_leads_to_the_profile_of_its_request() {
    let app = app();
    // A bucket of the histogram has an exemplar…
    let metrics = text(&app, "/metrics", "application/openmetrics-text").await;
    let slow = metrics
        .lines()
        .find(|line| {
            line.starts_with("http_server_request_duration_seconds_bucket{le=\"2.5\"")
                && line.contains(" # {")
        })
        .unwrap_or_else(|| panic!("no exemplar: {metrics}"));
    let trace_id = slow.split_once("trace_id=\"").unwrap().1.split('"').next().unwrap();
    assert_eq!(trace_id, "02".repeat(16));
    // …whose trace can be looked up…
    let spans = json(&app, &format!("/api/v1/spans?trace_id={trace_id}")).await;
    let span = &spans["spans"][0];
    assert_eq!(span["span_id"], "02".repeat(8));
    // …and its span says where its profile is.
    let profile = span["profile"].as_str().unwrap();
    let summary = json(&app, &format!("{profile}&format=json")).await;
    assert_eq!((&summary["samples"], &summary["functions"][0]["function"]), (&5.into(), &"sort_all".into()));
    assert!(text(&app, profile, "text/html,*/*").await.contains("<title>sort_all\n"));
    // From a profile the same way leads back.
    let all = json(&app, "/api/v1/profiles?format=json").await;
    let listed = all["spans"].as_array().unwrap();
    let back = listed.iter().find(|listed| listed["span_id"] == span["span_id"]).unwrap();
    assert_eq!(json(&app, back["trace"].as_str().unwrap()).await["spans"][0]["span_id"], span["span_id"]);
    assert_eq!(back["profile"], span["profile"]);
}

#[tokio::test]
async fn cpu_time_by_route_is_reported_with_its_error() {
    let app = app();
    let metrics = text(&app, "/metrics", "text/plain").await;
    let value = |name: &str| {
        let line = metrics.lines().find(|line| line.starts_with(&format!("{name}{{"))).unwrap();
        assert!(line.contains("service_name=\"service-1\",http_route="), "{line}");
        line.rsplit(' ').next().unwrap().to_owned()
    };
    assert_eq!(value("obi_server_request_cpu_seconds_total"), "0.1");
    assert_eq!(value("obi_server_request_cpu_samples_total"), "10");
    let summary = json(&app, "/api/v1/profiles?format=json").await;
    let route = &summary["routes"][0];
    assert_eq!((&route["samples"], &route["cpu_seconds"]), (&10.into(), &0.1.into()));
    let error = route["standard_error_seconds"].as_f64().unwrap();
    assert!((error - 0.1 / 10_f64.sqrt()).abs() < 1e-9, "{error}");
}

#[tokio::test]
async fn selections_and_formats_are_as_asked_for() {
    let app = app();
    let samples = async |query: &str| {
        json(&app, &format!("/api/v1/profiles?format=json&{query}")).await["samples"].as_u64().unwrap()
    };
    assert_eq!(samples("service=service-1").await, 10);
    assert_eq!(samples("service=nobody").await, 0);
    assert_eq!(samples("route=/nowhere").await, 0);
    assert_eq!(samples("pid=7&slow=true").await, 5);
    assert_eq!(samples("slow=false").await, 5);
    assert_eq!(samples("trace=01010101010101010101010101010101").await, 5);
    assert_eq!(samples("to=1000").await, 0);
    for (query, accept, media) in [
        ("", "*/*", "application/octet-stream"),
        ("", "application/x-protobuf", "application/x-protobuf"),
        ("format=otlp", "*/*", "application/x-protobuf"),
        ("", "text/html;q=0.9, application/json", "image/svg+xml; charset=utf-8"),
        ("", "image/svg+xml;q=0, application/json", "application/json"),
        ("format=svg", "application/json", "image/svg+xml; charset=utf-8"),
    ] {
        let found = get(&app, &format!("/api/v1/profiles?{query}"), accept).await;
        assert_eq!((found.0.as_u16(), &*found.1), (200, media), "{query} {accept}");
    }
    let (_, _, bytes) = get(&app, "/api/v1/profiles?pid=7", "*/*").await;
    assert_eq!(pprof::decode(&bytes).unwrap().samples.len(), 10);
    let (_, _, bytes) = get(&app, "/api/v1/profiles?pid=7&format=otlp", "*/*").await;
    let read = otlp::profile::decode(&bytes).unwrap();
    assert!(read.samples.len() == 10 && read.samples.iter().all(|sample| sample.link.is_some()));
}

#[tokio::test]
async fn slow_requests_are_compared_with_the_rest() {
    let app = app();
    let svg = text(&app, "/api/v1/profiles/compare?service=service-1&slow=true", "*/*").await;
    assert!(svg.contains("0.00 % of the others, 100.00 % of slow ones (+100.00)"), "{svg}");
    assert!(svg.contains("<title>sort_all\n") && svg.contains("<title>parse\n"), "{svg}");
    for query in ["", "service=service-1", "base_form=1"] {
        let (status, _, body) = get(&app, &format!("/api/v1/profiles/compare?{query}"), "*/*").await;
        assert_eq!(status, 400, "{query}: {}", String::from_utf8_lossy(&body));
    }
}

#[tokio::test]
async fn pictures_leave_out_a_runtime_that_leads_to_the_program() {
    let app = app();
    for (uri, is_there) in [
        ("/api/v1/profiles?format=svg", false),
        ("/api/v1/profiles?format=html&frames=all", true),
        ("/api/v1/profiles?format=folded", true),
        ("/api/v1/profiles/compare?slow=true", false),
        ("/api/v1/profiles/compare?slow=true&frames=all", true),
    ] {
        let text = text(&app, uri, "*/*").await;
        assert_eq!((text.contains("main"), text.contains("evaluate")), (true, is_there), "{uri}: {text}");
    }
    for (uri, link) in [("/profiles", Some("frames=all")), ("/profiles?frames=all", None)] {
        let page = text(&app, uri, "text/html").await;
        let other = page.split("<a href=\"").find(|link| link.contains("frames of interpreters")).unwrap();
        let address = other.split('"').next().unwrap();
        assert_eq!(address.contains("frames="), link.is_some(), "{uri}: {address}");
    }
}

#[tokio::test]
async fn every_view_has_the_same_total_and_a_link_on_the_page() {
    let app = app();
    let total = "100.00 %, 100.0 ms of CPU time";
    // The row of the function that takes the time, counted from the root's.
    for (view, rows) in [("", 4), ("view=flame&", 4), ("view=icicle&", 4), ("view=callers&", 1)] {
        for format in ["svg", "html"] {
            let uri = format!("/api/v1/profiles?{view}format={format}");
            let svg = text(&app, &uri, "*/*").await;
            assert!(svg.contains(&format!("<title>all\nall\n{total}")), "{uri}: {svg}");
            let y = |name: &str| -> i32 {
                let bar = svg.split_once(&format!("<title>{name}\n")).unwrap().1;
                bar.split_once(" y=\"").unwrap().1.split('"').next().unwrap().parse().unwrap()
            };
            let down = if view.contains("icicle") || view.contains("callers") { 17 } else { -17 };
            assert_eq!(y("sort_all") - y("all"), rows * down, "{uri}");
        }
    }
    let compared = text(&app, "/api/v1/profiles/compare?slow=true&view=callers", "*/*").await;
    assert!(compared.contains("below it what called it"), "{compared}");
    for (uri, expected, current) in [
        ("/profiles?pid=7", ["", "icicle", "callers"], "flame graph"),
        ("/profiles?pid=7&view=flame", ["", "icicle", "callers"], "flame graph"),
        ("/profiles?view=icicle&pid=7", ["", "icicle", "callers"], "root on top"),
        ("/profiles/compare?pid=7&slow=true&view=callers", ["", "icicle", "callers"], "callers of"),
    ] {
        let page = text(&app, uri, "text/html").await;
        let line = page.split_once("View: ").unwrap().1.split_once("</p>").unwrap().0;
        let links: Vec<_> = line.split("<a href=\"").skip(1).collect();
        let view = |link: &&str| {
            let address = link.split('"').next().unwrap();
            assert!(address.contains("pid=7"), "{uri}: {address}");
            address.split_once("view=").map_or("", |(_, rest)| rest.split('&').next().unwrap()).to_owned()
        };
        assert_eq!(links.iter().map(view).collect::<Vec<_>>(), expected, "{uri}");
        let shown: Vec<_> = links.iter().filter(|link| link.contains("aria-current=\"true\"")).collect();
        assert!(shown.len() == 1 && shown[0].contains(&format!(">{current}")), "{uri}: {line}");
        // The picture is in the view that the page says.
        let picture = page.split_once("<iframe class=\"flame\" src=\"").unwrap().1.split('"').next().unwrap();
        assert_eq!(picture.contains("view="), uri.contains("view="), "{picture}");
    }
    let (trace, span) = ("02".repeat(16), "02".repeat(8));
    let page = text(&app, &format!("/traces/{trace}/{span}"), "text/html").await;
    let own = format!("/profiles?trace={trace}&amp;span={span}");
    for view in ["\"", "&amp;view=icicle\"", "&amp;view=callers\""] {
        assert!(page.contains(&format!("<a href=\"{own}{view}")), "{view}: {page}");
    }
    let (status, _, body) = get(&app, "/profiles?view=up", "text/html").await;
    let body = String::from_utf8_lossy(&body);
    assert!(status == 400 && body.contains("expected flame, icicle or callers"), "{body}");
}

/// Nothing but the script that is in the picture may run, and that in a sandbox.
#[tokio::test]
async fn the_policy_of_a_picture_has_the_hash_of_its_script() {
    let app = app();
    for uri in [
        "/api/v1/profiles?format=svg",
        "/api/v1/profiles?format=html&view=icicle",
        "/api/v1/profiles/compare?slow=true",
        "/api/v1/profiles/compare?slow=true&format=html",
    ] {
        let request = extract::Request::get(uri).body(Body::empty()).unwrap();
        let response = app.clone().call(request).await.unwrap();
        let headers = response.headers().clone();
        let header = |name: &str| headers.get(name).unwrap().to_str().unwrap();
        let body = to_bytes(response.into_body(), 1 << 22).await.unwrap();
        let body = String::from_utf8(body.to_vec()).unwrap();
        assert_eq!(body.matches("<script").count(), 1, "{uri}");
        let script = body.split_once("<script>").unwrap().1.split_once("</script>").unwrap().0;
        let script = script.strip_prefix("<![CDATA[").unwrap().strip_suffix("]]>").unwrap();
        let policy = header(CONTENT_SECURITY_POLICY.as_str());
        let directive = |name: &str| {
            let mut directives = policy.split(';').map(str::trim);
            directives.find_map(|it| it.strip_prefix(name)).map(|it| it.trim().to_owned())
        };
        let hash = format!("'sha256-{}'", STANDARD.encode(Sha256::digest(script)));
        assert_eq!(directive("script-src"), Some(hash), "{uri}");
        assert_eq!(directive("sandbox").as_deref(), Some("allow-scripts"), "{uri}");
        assert_eq!(directive("frame-ancestors").as_deref(), Some("'self'"), "{uri}");
        assert_eq!(directive("default-src").as_deref(), Some("'none'"), "{uri}");
        // HTML forbids any other value beside a sandbox.
        assert_eq!(header("cross-origin-opener-policy"), "unsafe-none", "{uri}");
        assert_eq!(header("x-content-type-options"), "nosniff", "{uri}");
        // What a sandbox and the policy forbid is not used.
        for forbidden in ["prompt(", "alert(", "localStorage", " onclick", " style=\"", "javascript:"] {
            assert!(!body.contains(forbidden), "{uri}: {forbidden}");
        }
    }
    let page = text(&app, "/profiles", "text/html").await;
    assert!(page.contains("sandbox=\"allow-scripts\""), "{page}");
}

/// Its picture, its files and its numbers are of the same samples; the way back leads to what it is a picture of.
#[tokio::test]
async fn a_page_has_the_picture_and_a_way_back() {
    let app = app();
    let check = async |uri: &str, samples: Option<u64>, back: &str| {
        let page = text(&app, uri, "text/html").await;
        let links = |attribute: &str| {
            let begin = format!(" {attribute}=\"");
            let parts = page.split(&begin).skip(1).map(|part| part.split('"').next().unwrap());
            parts
                .map(|link| link.replace("&amp;", "&"))
                .filter(|link| link.starts_with('/'))
                .collect::<Vec<_>>()
        };
        assert!(links("href").iter().any(|link| link == back), "{uri}: no {back}: {page}");
        let framed = links("src").into_iter().find(|link| link.contains("format=html"));
        assert!(text(&app, &framed.unwrap(), "*/*").await.starts_with("<!doctype html>"), "{uri}");
        for link in links("href").iter().filter(|link| link.contains("profiles")) {
            let (status, _, body) = get(&app, link, "text/html").await;
            // Only running was sampled here.
            let is_other = ["off_cpu", "lock", "page_faults"].iter().any(|kind| link.ends_with(kind));
            let expected = if link.contains("&span=") && is_other { 404 } else { 200 };
            let body = String::from_utf8_lossy(&body);
            assert_eq!(status, expected, "{uri}: {link}: {body}");
            assert!(status == 200 || body.contains("No sample of span") && body.contains(back), "{body}");
            if link.contains("format=json") {
                let numbers = json(&app, link).await;
                assert_eq!(numbers["samples"].as_u64(), samples, "{uri}: {link}");
            }
        }
    };
    check("/profiles", Some(10), "/").await;
    check("/profiles?service=service-1&format=svg", Some(10), "/services/test/service-1").await;
    check("/profiles?service=no%22%3Ebody", Some(0), "/?q=no%22%3Ebody").await;
    check("/profiles?route=/a&from=0&to=9999999999", Some(0), "/").await;
    let (trace, span) = ("02".repeat(16), "02".repeat(8));
    check(&format!("/profiles?trace={trace}&span={span}"), Some(5), &format!("/traces/{trace}/{span}")).await;
    check("/profiles/compare?service=service-1&slow=true", None, "/services/test/service-1").await;
    for (uri, status) in [
        ("/profiles?span=00000000000000ff", 404),
        ("/profiles?format=no", 400),
        ("/profiles?x=1", 400),
        ("/profiles/compare?service=service-1", 400),
    ] {
        let (found, media, body) = get(&app, uri, "text/html").await;
        let body = String::from_utf8_lossy(&body);
        assert_eq!((found.as_u16(), &*media), (status, "text/html; charset=utf-8"), "{uri}: {body}");
    }
}

#[tokio::test]
async fn without_samples_there_is_a_reason() {
    let (sender, _receiver) = mpsc::channel::<Command>(4);
    let handle = Handle::new(sender, Arc::new(|| ()));
    let state = web::State::new(handle, Arc::new(AtomicBool::new(true)));
    let app = web::router(state.with_profiles(Profiles::off("profile.enabled is false")));
    let (status, media, body) = get(&app, "/api/v1/profiles", "*/*").await;
    assert_eq!((status.as_u16(), &*media), (503, "application/json"));
    assert_eq!(body, br#"{"error":"no profiles: profile.enabled is false"}"#);
    let filter = Filter { end: 1, ..Filter::default() };
    assert!(Profiles::off("x").ask(filter).await.is_err());
}

#[tokio::test]
async fn what_is_not_there_is_reported_from_what_is_idle() {
    let app = app();
    for query in
        ["span=00000000000000ff", "trace=000000000000000000000000000000ff", "pid=9&span=0202020202020202"]
    {
        let (status, media, body) = get(&app, &format!("/api/v1/profiles?{query}&format=svg"), "*/*").await;
        let text = String::from_utf8_lossy(&body);
        assert_eq!((status.as_u16(), &*media), (404, "application/json"), "{query}: {text}");
        assert!(
            text.contains("no sample of ") && text.contains("00000000ff") != query.starts_with("pid"),
            "{text}"
        );
    }
    let (status, _, _) =
        get(&app, "/api/v1/profiles/compare?span=0202020202020202&base_span=00000000000000ff", "").await;
    assert_eq!(status, 404);
    for format in ["svg", "pprof", "otlp", "json"] {
        let (status, _, _) =
            get(&app, &format!("/api/v1/profiles?service=nobody&format={format}"), "*/*").await;
        assert_eq!(status, 200, "{format}");
    }
    // All of time is no more than what is held.
    let all = "/api/v1/profiles?from=0&to=9999999999&format=json";
    assert_eq!(json(&app, all).await["samples"], 10);
}

#[tokio::test]
async fn only_reading_is_served() {
    let app = app();
    let status = async |method: &str, uri: &str| {
        let request = extract::Request::builder().method(method).uri(uri).body(Body::empty()).unwrap();
        let response = app.clone().call(request).await.unwrap();
        let status = response.status().as_u16();
        (status, to_bytes(response.into_body(), 1 << 22).await.unwrap().len())
    };
    assert_eq!(status("HEAD", "/api/v1/profiles?format=svg").await, (200, 0));
    assert_eq!(status("HEAD", "/api/v1/profiles?span=00000000000000ff").await, (404, 0));
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(status(method, "/api/v1/profiles").await.0, 405, "{method}");
        assert_eq!(status(method, "/api/v1/profiles/compare").await.0, 405, "{method}");
    }
}

/// Answers wait for a place before samples are taken out for them, and those who gave up leave none behind.
#[tokio::test]
async fn few_profiles_are_made_at_a_time_and_scrapes_do_not_wait_for_them() {
    let (asked, mut questions) = mpsc::channel::<Question>(64);
    let (sender, mut commands) = mpsc::channel::<Command>(4);
    std::thread::spawn(move || {
        let (mut registry, mut stats) = (Registry::new(Limits::default()), Stats::default());
        let store = Spans::new(StoreLimits::default());
        while let Some(command) = commands.blocking_recv() {
            command.answer(&mut Sources { registry: &mut registry, stats: &mut stats, store: &store });
        }
    });
    let state = web::State::new(Handle::new(sender, Arc::new(|| ())), Arc::new(AtomicBool::new(true)));
    let app = web::router(state.with_profiles(Profiles::new(asked, Arc::new(|| ()), Vec::new())));
    let asking: Vec<_> = (0..16)
        .map(|_| {
            let app = app.clone();
            tokio::spawn(async move { get(&app, "/api/v1/profiles", "*/*").await.0 })
        })
        .collect();
    let first = questions.recv().await.unwrap();
    let second = questions.recv().await.unwrap();
    assert!(text(&app, "/metrics", "*/*").await.contains("obi_"));
    // No other request has come this far.
    assert!(questions.try_recv().is_err());
    for question in [first, second] {
        question.reply.send(Ok(Selection::default())).unwrap();
    }
    for _ in 2..16 {
        questions.recv().await.unwrap().reply.send(Ok(Selection::default())).unwrap();
    }
    for asked in asking {
        assert_eq!(asked.await.unwrap(), 200);
    }
}
