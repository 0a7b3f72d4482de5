//! A real Prometheus that the agent writes to holds what one that scrapes the same agent holds.
//!
//! The Prometheus of Debian 12 knows remote write 1.0 only: so this is the way back from 2.0 as well.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Debug;
use std::net::SocketAddr;
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::Kind;
use integration::exposition::Exposition;
use integration::fetch;
use integration::load;
use integration::otlp::proxy::{Fault, Proxy};
use integration::patience::patience;
use integration::seed::{note, seeded};
use integration::server::shape::{ShapeServer, every_way};
use serde_json::{Value, json};

use crate::gate;
use crate::prometheus::Prometheus;

/// What a scraper adds by itself.
const SCRAPERS_OWN: [&str; 6] = [
    "up",
    "scrape_duration_seconds",
    "scrape_samples_scraped",
    "scrape_samples_post_metric_relabeling",
    "scrape_series_added",
    "scrape_timeout_seconds",
];
/// Families that stand still when nothing happens. The others, of the agent about itself, never do.
const QUIET: &str = "{__name__=~\"http_.*|traces_.*|target_info|obi_spans_total|obi_parents_total|obi_series.*|\
                     obi_server_.*_count|obi_build_info|obi_hook.*|obi_bpf_map_bytes\"}";

/// Labels as JSON has them.
type Labels = BTreeMap<String, String>;

/// Bounds by their numbers: Prometheus 2 keeps those of a text as they are written there, version 3 does not.
fn labels(value: &Value) -> Labels {
    let text = |name: &str, value: &Value| {
        let text = value.as_str().unwrap_or_default();
        if name == "le" { text.parse::<f64>().unwrap().to_string() } else { text.to_owned() }
    };
    let pairs = value.as_object().into_iter().flatten();
    pairs.map(|(name, value)| (name.clone(), text(name, value))).collect()
}

/// Requests under way: such a series may begin and end between two scrapes, and be written all the same.
const BRIEF: &str = "http_server_active_requests";

/// All series that there are, but for those that may be too short for a scrape.
fn series(prometheus: &Prometheus) -> BTreeSet<Labels> {
    let path = format!("/api/v1/series?match[]={}", fetch::encode("{__name__=~\".+\"}"));
    let all = prometheus.ask(&path);
    let all: BTreeSet<Labels> = all.as_array().into_iter().flatten().map(labels).collect();
    let is_compared = |name: &str| name != BRIEF && !SCRAPERS_OWN.contains(&name);
    all.into_iter().filter(|labels| is_compared(&labels["__name__"])).collect()
}

/// Values now, histograms as a whole; without their time.
fn values(prometheus: &Prometheus, selector: &str) -> BTreeMap<Labels, Value> {
    let data = prometheus.ask(&format!("/api/v1/query?query={}", fetch::encode(selector)));
    let results = data["result"].as_array().into_iter().flatten();
    let value = |result: &Value| [&result["value"][1], &result["histogram"][1]].map(Value::clone);
    results.map(|result| (labels(&result["metric"]), value(result).into())).collect()
}

/// Time, trace and value of exemplars by series.
fn exemplars(prometheus: &Prometheus) -> BTreeMap<Labels, BTreeSet<(String, String, String)>> {
    let selector = fetch::encode("{__name__=~\"http_.*\"}");
    let data = prometheus.ask(&format!("/api/v1/query_exemplars?query={selector}&start=0&end=9999999999"));
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    let reported = |it: &Value| (text(&it["timestamp"]), text(&it["labels"]["trace_id"]), text(&it["value"]));
    let series = data.as_array().into_iter().flatten();
    let all = |series: &Value| series["exemplars"].as_array().into_iter().flatten().map(reported).collect();
    series.map(|series| (labels(&series["seriesLabels"]), all(series))).collect()
}

/// What the scraper has seen last of each series is in the receiver. Before that, each may have seen what the other has
/// not; and of a native histogram, a Prometheus of version 2 takes one exemplar from a scrape.
fn agree_on_exemplars(receiver: &Prometheus, scraper: &Prometheus) {
    let deadline = Instant::now() + patience(gate::PATIENCE);
    loop {
        let (written, scraped) = (exemplars(receiver), exemplars(scraper));
        let is_there = |(labels, seen): (&Labels, &BTreeSet<_>)| {
            // Of two in the same millisecond, a Prometheus keeps one; and none that is older than one it has.
            let time = |it: &(String, String, String)| it.0.parse::<f64>().unwrap();
            let newest = |all: &BTreeSet<_>| all.iter().map(time).fold(0.0, f64::max);
            written.get(labels).is_some_and(|all| newest(all) >= newest(seen))
        };
        if scraped.iter().all(is_there) && scraped.len() > 3 {
            return note(&format!("exemplars: those of {} series are there", scraped.len()));
        }
        assert!(Instant::now() < deadline, "exemplars, written: {written:#?}\nscraped: {scraped:#?}");
        thread::sleep(Duration::from_millis(200));
    }
}

/// Asks until both say the same, which is not nothing.
#[track_caller]
fn agree<T>(what: &str, ask: [&dyn Fn() -> T; 2])
where
    T: IntoIterator<Item: Debug>,
{
    let deadline = Instant::now() + patience(gate::PATIENCE);
    loop {
        let reported = |ask: &dyn Fn() -> T| -> BTreeSet<String> {
            ask().into_iter().map(|item| format!("{item:?}")).collect()
        };
        let [written, scraped] = ask.map(reported);
        if written == scraped && !scraped.is_empty() {
            return note(&format!("{what}: {} are the same", scraped.len()));
        }
        let n_written = written.len();
        let differ: Vec<_> = written.symmetric_difference(&scraped).take(20).collect();
        assert!(
            Instant::now() < deadline,
            "{what}: {n_written} written, {} scraped: {differ:#?}",
            scraped.len()
        );
        thread::sleep(Duration::from_millis(200));
    }
}

fn scrapes(target: SocketAddr, features: &str) -> Prometheus {
    let text = format!(
        "scrape_configs:\n- job_name: obi\n  honor_labels: true\n  scrape_interval: 1s\n  scrape_timeout: 1s\n  \
         static_configs:\n  - targets: ['{target}']\n    labels: {{instance: machine}}\n"
    );
    Prometheus::with_features(&text, features)
}

fn check(histograms: &str, features: &str) {
    let mut rng = seeded("remote write");
    let receiver = Prometheus::receiver(features);
    let url = format!("http://{}/api/v1/write", receiver.address);
    let destination = json!([{"url": url, "name": "prom", "interval": "1s", "histograms": histograms, "labels": {"instance": "machine"}}]);
    let server = ShapeServer::start("written", every_way(1)).unwrap();
    // Neither Prometheus is watched: then it is quiet once the calls are over.
    let config = Config::default()
        .set("discover", "include", json!([{"service": server.server.service}]))
        .set("export", "remote_write", destination);
    let agent = Agent::start(config).unwrap();
    let scraper = scrapes(agent.address(), features);
    let mut ledger = Ledger::default();
    let calls = load::calls(&mut rng, &server.server.features, Kind::Shape, 300);
    gate::call(&mut ledger, Kind::Shape, &server.server, &calls, 4);
    let counted = |metrics: &Exposition| metrics.sum("http_server_request_duration_seconds_count", &[]);
    let metrics = agent.metrics_until(gate::PATIENCE, |metrics| counted(metrics) == 300.0).unwrap();
    assert_eq!(counted(&metrics), 300.0);

    agree("series", [&|| series(&receiver), &|| series(&scraper)]);
    agree("values", [&|| values(&receiver, QUIET), &|| values(&scraper, QUIET)]);
    agree_on_exemplars(&receiver, &scraper);

    let lane = [("destination", "prom"), ("signal", "metrics")];
    let metrics = agent.metrics().unwrap();
    assert!(metrics.sum("obi_export_sent_total", &lane) > 0.0);
    assert_eq!(metrics.sum("obi_export_lost_total", &lane), 0.0, "nothing was refused");

    // At its end all series end: a value that stays would be taken for one that still holds.
    assert!(values(&receiver, "{job=\"obi\"}").len() > 100);
    agent.stop().unwrap();
    let deadline = Instant::now() + patience(gate::PATIENCE);
    while !values(&receiver, "{__name__=~\".+\"}").is_empty() {
        assert!(Instant::now() < deadline, "{:#?}", values(&receiver, "{__name__=~\".+\"}"));
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn classic_histograms_and_exemplars_are_those_of_a_scrape() {
    check("classic", "exemplar-storage");
}

#[test]
fn native_histograms_are_those_of_a_scrape() {
    check("native", "native-histograms,exemplar-storage");
}

/// What could not be written in time is there in the end, also what an agent had that was killed: no gap.
#[test]
fn a_gap_is_filled_from_the_disk() {
    let receiver = Prometheus::receiver("exemplar-storage");
    let away = Proxy::start(receiver.address, Fault::Stall).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let url = format!("http://{}/api/v1/write", away.address);
    let destination = json!([{"url": url, "name": "away", "interval": "1s", "timeout": "1s", "labels": {"instance": "machine"}}]);
    let config = Config::default()
        .set("discover", "include", json!([{"service": "nobody"}]))
        .set("export", "remote_write", destination)
        .set("export", "spool", json!({"bytes": "64 MiB", "directory": folder.path(), "mode": "always"}));
    let of = [("destination", "away")];
    let agent = Agent::start(config.clone()).unwrap();
    let is_kept = |metrics: &Exposition| metrics.sum("obi_export_spool_written_total", &of) > 1_000.0;
    assert!(is_kept(&agent.metrics_until(gate::PATIENCE * 2, is_kept).unwrap()));
    agent.kill().unwrap();
    // Nothing of the connections so far may pass later.
    away.set(Fault::Reset);
    let agent = Agent::start(config).unwrap();
    let restored = agent.metric_value("obi_export_spool_restored_total", &of).unwrap();
    assert!(restored > 1_000.0, "{restored}");
    away.set(Fault::None);
    let is_drained = |metrics: &Exposition| {
        metrics.sum("obi_export_sent_total", &of) > restored
            && metrics.sum("obi_export_spool_items", &of) == 0.0
    };
    let metrics = agent.metrics_until(gate::PATIENCE * 2, is_drained).unwrap();
    assert!(is_drained(&metrics), "{}", agent.stderr().unwrap());
    assert_eq!(metrics.sum("obi_export_lost_total", &of), 0.0, "{}", agent.stderr().unwrap());
    // A sample for each second of both.
    let counts = values(&receiver, "count_over_time(obi_build_info[5m])");
    let n_samples: f64 = counts.values().filter_map(|value| value[0].as_str()?.parse::<f64>().ok()).sum();
    let spans = values(
        &receiver,
        "max_over_time(timestamp(obi_build_info)[5m:1s]) - min_over_time(timestamp(obi_build_info)[5m:1s])",
    );
    let seconds: f64 = spans.values().filter_map(|value| value[0].as_str()?.parse::<f64>().ok()).sum();
    note(&format!("{n_samples} samples in {seconds} s, {restored} restored"));
    assert!(n_samples >= 4.0, "{counts:?}");
    agent.stop().unwrap();
}
