//! Profiles on their way: through a real Collector unchanged, to destinations that refuse, to Pyroscope.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{RawQuery, State};
use axum::http::StatusCode;
use axum::routing::post;
use integration::otlp::collector::Collector;
use integration::otlp::profile_rules;
use integration::otlp::receiver::{Answer, Receiver};
use integration::patience::patience;
use obi::config::export::{Compression, Export, OtlpDestination, Protocol, Signal};
use obi::config::pyroscope::PyroscopeDestination;
use obi::export::otlp::{Exporter, Plan, SpanExport};
use obi::export::{otlp::profile, pprof};
use obi::profile::Selection;
use obi::stats::Lane;
use percent_encoding::percent_decode_str;
use prost::Message as _;

use super::otlp::data;
use super::selection::{content, counted, random};

const PATIENCE: Duration = Duration::from_secs(60);

fn destination(name: &str, endpoint: String, protocol: Protocol) -> OtlpDestination {
    OtlpDestination {
        name: name.to_owned(),
        endpoint: Some(endpoint),
        protocol,
        signals: vec![Signal::Profiles],
        ..OtlpDestination::default()
    }
}

fn started(export: &Export) -> (SpanExport, Exporter) {
    Plan::new(export, 1).unwrap().start()
}

fn lane(span_export: &SpanExport, destination: &str) -> Lane {
    span_export.lanes().into_iter().find(|lane| &*lane.destination == destination).unwrap()
}

fn lost(lane: &Lane) -> BTreeMap<&str, u64> {
    lane.lost.iter().copied().filter(|(_, n)| *n > 0).collect()
}

/// Waits, not for ever, until `found` has something.
async fn awaited<T>(mut found: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + patience(PATIENCE);
    loop {
        if let Some(found) = found() {
            return found;
        }
        assert!(Instant::now() < deadline, "nothing came in time");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_collector_passes_profiles_through_unchanged() {
    let collector = Collector::with_profiles().unwrap();
    let ways = [(Protocol::Grpc, collector.grpc), (Protocol::Http, collector.http)];
    for (number, (protocol, address)) in ways.into_iter().enumerate() {
        let selection = random(40 + number as u64, 400);
        let otlp = vec![destination("collector", format!("http://{address}"), protocol)];
        let (span_export, mut exporter) = started(&Export { otlp, ..Export::default() });
        exporter.export_profile(&selection);
        let n_profiles: u64 = profile::encode(&selection).iter().map(|request| request.n_profiles).sum();
        exporter.finish(patience(PATIENCE)).await;
        let lane = lane(&span_export, "collector");
        assert_eq!((lane.sent, lost(&lane)), (n_profiles, BTreeMap::new()), "{}", collector.log().unwrap());
        let passed = awaited(|| collector.profiles().unwrap().get(number).cloned()).await;
        assert_eq!(content(&profile::decode(&passed).unwrap()), content(&selection));
        assert_eq!(profile_rules::violations(&data(&passed)), Vec::<String>::new());
    }
}

/// Without its gate a Collector knows no profiles: that is said once, and nothing is tried again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_does_not_know_profiles_is_left_alone() {
    let collector = Collector::start(None).unwrap();
    let otlp = vec![
        destination("grpc", format!("http://{}", collector.grpc), Protocol::Grpc),
        destination("http", format!("http://{}", collector.http), Protocol::Http),
    ];
    let (span_export, mut exporter) = started(&Export { otlp, ..Export::default() });
    let mut n_profiles = 0;
    for seed in 0..3 {
        let selection = random(seed, 30);
        n_profiles += profile::encode(&selection)[0].n_profiles;
        exporter.export_profile(&selection);
    }
    exporter.finish(patience(PATIENCE)).await;
    for name in ["grpc", "http"] {
        let lane = lane(&span_export, name);
        assert_eq!((lane.sent, lane.retries, lane.queued_items), (0, 0, 0), "{name}");
        assert_eq!(lost(&lane), BTreeMap::from([("unsupported", n_profiles)]), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_profile_is_accounted_for() {
    for (protocol, compression) in [
        (Protocol::Grpc, Compression::Gzip),
        (Protocol::Http, Compression::None),
        (Protocol::Http, Compression::Gzip),
    ] {
        let answers = [Answer::Partial(1), Answer::Unavailable, Answer::Accept, Answer::Refuse];
        let receiver = tokio::task::spawn_blocking(move || Receiver::start(answers).unwrap()).await.unwrap();
        let address = if protocol == Protocol::Grpc { receiver.grpc } else { receiver.http };
        let base = destination("receiver", format!("http://{address}"), protocol);
        let otlp = vec![OtlpDestination { compression, ..base }];
        let (span_export, mut exporter) = started(&Export { otlp, ..Export::default() });
        let selections: Vec<Selection> = (0..4).map(|seed| random(70 + seed, 50)).collect();
        let sizes: Vec<u64> =
            selections.iter().map(|selection| profile::encode(selection)[0].n_profiles).collect();
        selections.iter().for_each(|selection| exporter.export_profile(selection));
        exporter.finish(patience(PATIENCE)).await;
        // One of the first is rejected; the second is sent again; the third is refused.
        let lane = lane(&span_export, "receiver");
        assert_eq!(lost(&lane), BTreeMap::from([("refused", sizes[2]), ("rejected", 1)]), "{protocol:?}");
        assert_eq!((lane.sent, lane.retries), (sizes[0] - 1 + sizes[1] + sizes[3], 1), "{protocol:?}");
        let came = receiver.profiles();
        assert_eq!(came.len(), 3, "{protocol:?}");
        for (request, selection) in came.iter().zip([0, 1, 3].map(|nth| &selections[nth])) {
            let read = profile::decode(&request.encode_to_vec()).unwrap();
            assert_eq!(content(&read), content(selection), "{protocol:?}");
        }
        tokio::task::spawn_blocking(move || drop(receiver)).await.unwrap();
    }
}

/// What Pyroscope's handler of `/ingest` reads.
#[derive(Debug, Clone)]
struct Ingested {
    query: BTreeMap<String, String>,
    profile: Selection,
}

type Inbox = Arc<Mutex<(Vec<u16>, Vec<Ingested>)>>;

async fn ingest(State(inbox): State<Inbox>, RawQuery(query): RawQuery, body: Bytes) -> StatusCode {
    let mut inbox = inbox.lock().unwrap();
    if let Some(status) = inbox.0.pop() {
        return StatusCode::from_u16(status).unwrap();
    }
    let pairs = query.as_deref().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
    let decoded = |text: &str| percent_decode_str(text).decode_utf8().unwrap().into_owned();
    let query: BTreeMap<String, String> =
        pairs.map(|(key, value)| (key.to_owned(), decoded(value))).collect();
    let Ok(profile) = pprof::decode(&body) else { return StatusCode::UNPROCESSABLE_ENTITY };
    // The name's grammar: a service of few characters, then labels of fewer.
    let allowed = |more: &'static str| move |c: char| c.is_ascii_alphanumeric() || more.contains(c);
    let name =
        query.get("name").and_then(|name| name.strip_suffix('}')).and_then(|name| name.split_once('{'));
    let is_name = name.is_some_and(|(service, labels)| {
        !service.is_empty()
            && service.chars().all(allowed("-./_"))
            && labels
                .split(',')
                .filter_map(|label| label.split_once('='))
                .all(|(key, value)| !key.is_empty() && key.chars().all(allowed("_.")) && !value.contains('}'))
    });
    if !is_name || query.get("format").map(String::as_str) != Some("pprof") {
        return StatusCode::BAD_REQUEST;
    }
    inbox.1.push(Ingested { query, profile });
    StatusCode::OK
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pyroscope_gets_profiles_by_service() {
    // The first request is asked for again, the second refused.
    let inbox: Inbox = Arc::new(Mutex::new((vec![422, 503], Vec::new())));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/base/", listener.local_addr().unwrap());
    let router = Router::new().route("/base/ingest", post(ingest)).with_state(Arc::clone(&inbox));
    let server = tokio::spawn(async move { axum::serve(listener, router).await });
    let pyroscope = PyroscopeDestination {
        name: "pyroscope".to_owned(),
        url: Some(url),
        ..PyroscopeDestination::default()
    };
    let (span_export, mut exporter) = started(&Export { pyroscope: vec![pyroscope], ..Export::default() });
    assert!(exporter.wants_profiles());
    let selection = random(21, 300);
    let mut refused = selection.clone();
    refused.samples.truncate(1);
    exporter.export_profile(&refused);
    exporter.export_profile(&selection);
    exporter.finish(patience(PATIENCE)).await;

    let lane = lane(&span_export, "pyroscope");
    let (_, came) = &*inbox.lock().unwrap();
    assert_eq!((lane.signal, lane.sent, lane.retries), ("profiles", came.len() as u64, 1));
    assert_eq!(lost(&lane), BTreeMap::from([("refused", 1)]));
    let periods = |samples: &[obi::profile::Sample], service: Option<&str>| -> u64 {
        let of =
            samples.iter().filter(|sample| service.is_none_or(|name| sample.origin.service.name == name));
        counted(of)
    };
    assert_eq!(
        came.iter().map(|one| periods(&one.profile.samples, None)).sum::<u64>(),
        periods(&selection.samples, None)
    );
    for Ingested { query, profile } in came {
        let (service, labels) = query["name"].split_once('{').unwrap();
        assert_eq!(periods(&profile.samples, None), periods(&selection.samples, Some(service)));
        assert_eq!(labels, "host_name=machine}");
        assert_eq!(
            (profile.start, profile.end, &profile.types),
            (selection.start, selection.end, &selection.types)
        );
        let rest = ["from", "until", "spyName", "sampleRate"].map(|key| query[key].as_str());
        assert_eq!(rest, ["1700000000", "1700000010", "ebpfspy", "99"]);
    }
    server.abort();
}
