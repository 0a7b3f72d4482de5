//! Golden expositions in both formats, and what holds for any snapshot.

use super::*;
use crate::red::tests::{span, span_with};
use crate::red::{Limits, Registry as Spans};
use crate::span::SpanKind;
use crate::stats::{HookSetState, Loss, MapMemory, Process, Program, Stage, Stats};

/// A little of everything, without the process.
fn sources() -> (Spans, Stats) {
    let (mut registry, mut stats) = (Spans::new(Limits::default()), Stats::default());
    registry.record(&span(SpanKind::Server));
    registry.record(&span_with(SpanKind::Server, |http| {
        http.status = None;
        http.error_type = "reset";
    }));
    registry.record(&span(SpanKind::Client));
    registry.record(&span_with(SpanKind::Client, |http| http.server_address = "x".repeat(300)));
    stats.receive(Stage::Capture, 8);
    stats.lose(
        Loss { stage: Stage::Kernel, reason: "ring_full", side: "server", service_name: "we\"ird\n\\" },
        3,
    );
    stats.uncover("tls", 2);
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

fn metrics() -> Arc<Metrics> {
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
    assert_eq!(exemplars, 4);
    assert!(text.ends_with("\n# EOF\n"));
}

#[test]
fn what_a_scraper_has_not_seen_is_zero_once() {
    let (mut registry, mut stats) = sources();
    let first = Arc::new(Metrics::take(&mut registry, &mut stats));
    registry.record(&span(SpanKind::Server));
    registry.record(&span_with(SpanKind::Server, |http| http.status = Some(500)));
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
