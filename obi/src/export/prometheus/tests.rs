//! Golden expositions in all formats, and what holds for any snapshot.

use prometheus_client::encoding::prometheus_protobuf::prometheus_data_model::{
    Metric, MetricFamily, MetricType,
};
use prost::Message;

use super::*;
use crate::protocol::Times;
use crate::red::tests::{START, call_ended, call_with, service, span, span_with, websocket};
use crate::red::{ActiveLabels, Limits, Registry as Spans};
use crate::span::grpc::Code;
use crate::span::{SpanKind, Spent};
use crate::stats::{Evidence, HookSetState, Loss, MapMemory, Process, Program, Stage, Stats};

/// A little of everything, without the process.
fn sources() -> (Spans, Stats) {
    let (mut registry, mut stats) = (Spans::new(Limits::default()), Stats::default());
    let blocked = std::array::from_fn(|reason| if reason == 1 { 3_000_000 } else { 0 });
    let times = Times { cpu: 5_000_000, runqueue: 2_000_000, blocked, switches: 3 };
    registry.record(&span_with(SpanKind::Server, |span| {
        span.spent = Some(Box::new(Spent { times: Some(times), downstream: 0, elsewhere: 0 }));
    }));
    registry.record(&span_with(SpanKind::Server, |span| {
        span.http().status = None;
        span.error_type = "reset";
    }));
    registry.record(&span(SpanKind::Client));
    registry.record(&span_with(SpanKind::Client, |span| span.server.address = "x".repeat(300)));
    registry.record(&call_ended(SpanKind::Server, Code::DEADLINE_EXCEEDED));
    registry.record(&call_with(SpanKind::Client, |span| span.rpc().status = None));
    registry.record(&websocket(SpanKind::Server));
    let active = |kind| ActiveLabels {
        service: service(1),
        kind,
        method: "GET",
        scheme: "http",
        server_address: if kind == SpanKind::Client { "shop.example".to_owned() } else { String::new() },
        server_port: if kind == SpanKind::Client { 8080 } else { 0 },
    };
    registry.set_active([SpanKind::Server, SpanKind::Server, SpanKind::Client].map(active));
    stats.receive(Stage::Capture, 8);
    stats.lose(
        Loss { stage: Stage::Kernel, reason: "ring_full", side: "server", service_name: "we\"ird\n\\" },
        3,
    );
    stats.uncover("tls", 2);
    stats.read_late("tls", 1);
    stats.lose_times("late", 2);
    stats.lost_process_events = 5;
    stats.late_processes = 2;
    stats.history_bytes = 20_000;
    stats.evidence = Some(Evidence { traces: 3, bytes: 4_000, refused: 5 });
    stats.watched_processes = 4;
    stats.hook_set = "socket";
    stats.hook_sets = vec![
        HookSetState { set: "socket", state: "used", reason: String::new() },
        HookSetState { set: "fentry", state: "unsupported", reason: "forbidden".to_owned() },
    ];
    stats.programs = vec![Program { name: "send", run: Some((1_500_000_000, 9)), misses: Some(2) }];
    stats.maps = vec![MapMemory { subsystem: "capture", bytes: 4_096 }];
    (registry, stats)
}

pub(super) fn metrics() -> Arc<Metrics> {
    let (mut registry, mut stats) = sources();
    let process = Process {
        cpu_seconds: 0.25,
        resident_bytes: 1,
        virtual_bytes: 2,
        open_fds: 3,
        max_fds: Some(4),
        start_time_seconds: 1_700_000_000.5,
    };
    Arc::new(Metrics { process: Some(process), ..Metrics::take(&mut registry, &mut stats) })
}

fn encode(metrics: &Arc<Metrics>, format: Format, previous: Option<Cursor>) -> String {
    String::from_utf8(bytes(metrics, format, previous)).expect("text")
}

fn bytes(metrics: &Arc<Metrics>, format: Format, previous: Option<Cursor>) -> Vec<u8> {
    Exposition::new(Arc::clone(metrics), format, previous).flatten().collect()
}

/// All messages, by prost and the schema that prometheus-client carries.
pub(super) fn decode(bytes: &[u8]) -> Vec<MetricFamily> {
    let mut rest = bytes;
    let mut families = Vec::new();
    while !rest.is_empty() {
        families.push(MetricFamily::decode_length_delimited(&mut rest).expect("a whole message"));
    }
    families
}

/// Compares with a file beside this one. `OBI_UPDATE_GOLDEN=1` writes it anew.
fn check_golden(text: &str, file: &str) {
    let version = concat!("version=\"", env!("CARGO_PKG_VERSION"), "\"");
    let text = text.replace(version, "version=\"VERSION\"");
    let path =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/export/prometheus/golden").join(file);
    if std::env::var_os("OBI_UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &text).expect("golden files are writable");
    }
    let expected = std::fs::read_to_string(&path).expect("golden file exists");
    for (number, (line, expected)) in text.lines().zip(expected.lines()).enumerate() {
        assert_eq!(line, expected, "{file} line {}", number + 1);
    }
    assert_eq!(text.len(), expected.len(), "{file}");
}

#[test]
fn openmetrics_is_golden() {
    check_golden(&encode(&metrics(), Format::OpenMetrics, None), "openmetrics.txt");
}

#[test]
fn text_is_golden() {
    check_golden(&encode(&metrics(), Format::Text, None), "text.txt");
}

#[test]
fn both_formats_have_the_same_samples() {
    let samples = |format| {
        let text = encode(&metrics(), format, None);
        text.lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(" # ").next().expect("a split has a first part").to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(samples(Format::OpenMetrics), samples(Format::Text));
}

#[test]
fn exemplars_stand_in_their_bucket_and_fit() {
    let text = encode(&metrics(), Format::OpenMetrics, None);
    let mut exemplars = 0;
    for (sample, exemplar) in text.lines().filter_map(|line| line.split_once(" # ")) {
        exemplars += 1;
        assert!(sample.contains("_bucket{le=\"0.025\""), "{sample}");
        let (labels, rest) = exemplar.split_once("} ").expect("labels end");
        assert!(labels.chars().filter(|char| char.is_alphanumeric() || *char == '_').count() <= 128);
        assert_eq!(rest, "0.012 1700000000.012");
    }
    assert_eq!(exemplars, 11, "four of requests, two of calls, five of spans");
    assert!(text.contains("\ntraces_span_metrics_calls_total{") && text.contains("span_name=\"WEBSOCKET"));
    let timed = text.lines().filter(|line| line.starts_with("traces_span_metrics_duration_seconds"));
    assert_eq!(timed.filter(|line| line.contains("WEBSOCKET")).count(), 0);
    assert!(text.ends_with("\n# EOF\n"));
}

#[test]
fn what_a_scraper_has_not_seen_is_zero_once() {
    let (mut registry, mut stats) = sources();
    let first = Arc::new(Metrics::take(&mut registry, &mut stats));
    registry.record(&span(SpanKind::Server));
    registry.record(&span_with(SpanKind::Server, |span| span.http().status = Some(500)));
    stats.uncover("tls", 1);
    stats.uncover("http2", 1);
    let second = Arc::new(Metrics::take(&mut registry, &mut stats));
    let third = Arc::new(Metrics::take(&mut registry, &mut stats));

    let check = |metrics: &Arc<Metrics>, previous: Option<&Metrics>, expected: [&str; 5]| {
        let text = encode(metrics, Format::OpenMetrics, previous.map(Metrics::cursor));
        let value = |start: &str, label: &str| {
            let line = text.lines().find(|line| line.starts_with(start) && line.contains(label));
            let line = line.unwrap_or_else(|| panic!("no {start} with {label}"));
            line.split_once("} ").expect("a sample has a value").1.to_owned()
        };
        let count = "http_server_request_duration_seconds_count";
        let bucket = "http_server_request_duration_seconds_bucket{le=\"+Inf\"";
        assert_eq!(
            [
                value(count, "code=\"200\""),
                value(count, "code=\"500\""),
                value(bucket, "code=\"500\""),
                value("obi_uncovered_connections_total", "tls"),
                value("obi_uncovered_connections_total", "http2"),
            ],
            expected.map(str::to_owned)
        );
        let exemplars =
            text.lines().filter(|line| line.contains("code=\"500\"") && line.contains(" # ")).count();
        assert_eq!(exemplars, usize::from(expected[1] != "0"));
    };
    check(&second, None, ["2", "1", "1", "3", "1"]);
    check(&second, Some(&first), ["2", "0", "0", "3", "0"]);
    check(&third, Some(&second), ["2", "1", "1", "3", "1"]);
    check(&third, Some(&first), ["2", "0", "0", "3", "0"]);
}

#[test]
fn an_agent_that_saw_nothing_still_exposes() {
    let text = encode(&Arc::default(), Format::OpenMetrics, None);
    assert!(text.contains("\nobi_watched_processes 0\n") && text.ends_with("\n# EOF\n"));
    assert!(!text.contains("obi_hook_info") && !text.contains("obi_bpf_program"));
}

#[test]
fn protobuf_says_what_text_says() {
    let families = decode(&bytes(&metrics(), Format::Protobuf, None));
    let mut lines = Vec::new();
    for family in &families {
        for metric in &family.metric {
            let labels = metric.label.iter().map(|label| format!("{}={:?}", label.name, label.value));
            let labels = labels.collect::<Vec<_>>().join(",");
            for (suffix, value) in samples(family, metric) {
                lines.push(format!("{}{suffix}{{{labels}}} {value}", family.name));
            }
        }
    }
    let text = encode(&metrics(), Format::OpenMetrics, None);
    let mut expected: Vec<_> = text
        .lines()
        .filter(|line| !line.starts_with('#') && !line.contains("_bucket{"))
        .map(|line| {
            let (series, value) = line.rsplit_once(' ').expect("a value");
            let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
            let labels = labels.trim_end_matches('}').split(',').filter(|label| !label.ends_with("=\"\""));
            let value: f64 = value.parse().expect("a number");
            format!("{name}{{{}}} {value}", labels.collect::<Vec<_>>().join(","))
        })
        .collect();
    lines.sort();
    expected.sort();
    assert_eq!(lines, expected);
}

/// Values of a metric by suffix.
fn samples(family: &MetricFamily, metric: &Metric) -> Vec<(&'static str, f64)> {
    match family.r#type() {
        MetricType::Counter => vec![("", metric.counter.as_ref().expect("a counter").value)],
        MetricType::Gauge => vec![("", metric.gauge.as_ref().expect("a gauge").value)],
        MetricType::Histogram => {
            let histogram = metric.histogram.as_ref().expect("a histogram");
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let count = histogram.sample_count as f64;
            vec![("_sum", histogram.sample_sum), ("_count", count)]
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn histograms_are_classic_and_native_in_one() {
    let mut registry = Spans::new(Limits::default());
    let mut slow = span(SpanKind::Server);
    let durations = [0, 1_000_000, 1_000_001, 4_000_000, 9_000_000_000];
    for (nth, duration) in (0..).zip(durations) {
        // The slowest came first: exemplars have to be put in order.
        slow.start = START - nth * 1_000_000_000;
        slow.end = slow.start + duration;
        registry.record(&slow);
    }
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let families = decode(&bytes(&metrics, Format::Protobuf, None));
    let family = &families[0];
    assert_eq!(
        (&*family.name, family.r#type()),
        ("http_server_request_duration_seconds", MetricType::Histogram)
    );
    assert_eq!(family.unit, "seconds");
    let histogram = family.metric[0].histogram.as_ref().expect("a histogram");
    let cumulative: Vec<_> = histogram.bucket.iter().map(|bucket| bucket.cumulative_count).collect();
    assert_eq!(cumulative, [4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 5, 5]);
    assert_eq!(histogram.bucket.last().map(|bucket| bucket.upper_bound), Some(f64::INFINITY));
    let with_exemplar: Vec<_> = histogram
        .bucket
        .iter()
        .filter(|bucket| bucket.exemplar.is_some())
        .map(|bucket| bucket.upper_bound)
        .collect();
    assert_eq!(with_exemplar, [0.005, 10.0]);
    assert_eq!((histogram.schema, histogram.zero_count, histogram.zero_threshold), (3, 1, 2f64.powi(-128)));
    // 2^(-79/8) s < 1 ms = 2^(-9.966) s, 4 ms two doublings and 9 s 105 buckets above.
    let spans: Vec<_> = histogram.positive_span.iter().map(|span| (span.offset, span.length)).collect();
    assert_eq!(spans, [(-79, 1), (15, 1), (88, 1)]);
    assert_eq!(histogram.positive_delta, [2, -1, 0]);
    let created = histogram.start_timestamp.as_ref().map(|created| (created.seconds, created.nanos));
    assert_eq!(created, Some((1_700_000_000, 0)));
    let times: Vec<_> = histogram.exemplars.iter().map(|exemplar| exemplar.value).collect();
    assert_eq!(times, [0.0, 9.0], "by time");
    let labels: usize = histogram.exemplars[0]
        .label
        .iter()
        .map(|label| label.name.chars().count() + label.value.chars().count())
        .sum();
    assert_eq!(labels, 63);
}

#[test]
fn a_native_histogram_that_is_shown_as_zero_is_native_all_the_same() {
    let (mut registry, mut stats) = (Spans::new(Limits::default()), Stats::default());
    let first = Metrics::take(&mut registry, &mut stats);
    registry.record(&span(SpanKind::Server));
    let second = Arc::new(Metrics::take(&mut registry, &mut stats));
    let families = decode(&bytes(&second, Format::Protobuf, Some(first.cursor())));
    let histogram = families[0].metric[0].histogram.as_ref().expect("a histogram");
    assert_eq!(
        (histogram.sample_count, histogram.exemplars.len(), histogram.positive_delta.len()),
        (0, 0, 0)
    );
    let spans: Vec<_> = histogram.positive_span.iter().map(|span| (span.offset, span.length)).collect();
    assert_eq!(spans, [(0, 0)]);
}

#[test]
fn target_info_follows_the_rules_for_resources() {
    let text = encode(&metrics(), Format::OpenMetrics, None);
    let expected = "# TYPE target info\ntarget_info{job=\"test/service-1\",instance=\"\",\
                    service_namespace=\"test\",service_name=\"service-1\",process_executable_name=\"server\"} 1\n";
    assert!(text.contains(expected), "{text}");
}
