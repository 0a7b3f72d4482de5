//! Requests of remote write, read back: they have what a scrape has, and say when series begin and end.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use prost::Message as _;

use super::super::tests::{decode, metrics};
use super::super::{Exposition, Format};
use super::message::{Count, Request, WriteRequest, ZeroCount};
use super::writer::STALE;
use super::*;
use crate::config::remote_write::Buckets;
use crate::red::tests::{START, span_with};
use crate::red::{Limits, Registry as Spans};
use crate::span::SpanKind;
use crate::stats::Stats;

/// A second behind the last span, milliseconds.
const NOW: i64 = (START / 1_000_000) as i64 + 1_000;

type Labels = BTreeMap<String, String>;
/// Schema, zero count, spans, deltas, count, sum.
type Bare = (i32, u64, Vec<(i32, u32)>, Vec<i64>, u64, f64);

fn remote(histograms: Buckets) -> Remote {
    // Without labels of its own.
    let labels = [("job", ""), ("instance", "")].map(|(name, value)| (name.to_owned(), value.to_owned()));
    let destination =
        RemoteWriteDestination { histograms, labels: labels.into(), ..RemoteWriteDestination::default() };
    Remote::new(&destination, "host", START)
}

fn unpacked(packed: &Packed) -> Request {
    let bytes = snap::raw::Decoder::new().decompress_vec(&packed.bytes).unwrap();
    Request::decode(&*bytes).unwrap()
}

/// One series as it came.
#[derive(Debug, Clone, Default)]
struct Series {
    /// Value's bits by time.
    samples: Vec<(i64, f64)>,
    natives: Vec<(i64, Bare)>,
    /// Trace and value by time.
    exemplars: Vec<(String, f64, i64)>,
    kind: i32,
    help: String,
}

/// All series, checked for form.
fn series(requests: &[Packed]) -> BTreeMap<Labels, Series> {
    let mut all = BTreeMap::<Labels, Series>::new();
    for packed in requests {
        let request = unpacked(packed);
        let text = |at: &u32| request.symbols[*at as usize].clone();
        assert_eq!(request.symbols[0], "");
        assert_eq!(request.symbols.iter().collect::<BTreeSet<_>>().len(), request.symbols.len());
        let mut n_samples = 0;
        for series in &request.timeseries {
            let pairs: Vec<(String, String)> = series
                .labels_refs
                .as_chunks()
                .0
                .iter()
                .map(|[name, value]| (text(name), text(value)))
                .collect();
            assert!(pairs.is_sorted_by(|one, other| one.0 < other.0), "{pairs:?}");
            assert!(pairs.iter().all(|(name, value)| is_name(name) && !value.is_empty()), "{pairs:?}");
            assert!(series.samples.is_empty() != series.histograms.is_empty(), "{pairs:?}");
            n_samples += series.samples.len() + series.histograms.len();
            let entry = all.entry(pairs.into_iter().collect()).or_default();
            entry.samples.extend(series.samples.iter().map(|sample| (sample.timestamp, sample.value)));
            entry.natives.extend(series.histograms.iter().map(|histogram| {
                let spans = histogram.positive_spans.iter().map(|span| (span.offset, span.length)).collect();
                let Some(Count::Int(count)) = histogram.count else { panic!("{histogram:?}") };
                let Some(ZeroCount::Int(zero)) = histogram.zero_count else { panic!("{histogram:?}") };
                let deltas = histogram.positive_deltas.clone();
                (histogram.timestamp, (histogram.schema, zero, spans, deltas, count, histogram.sum))
            }));
            for exemplar in &series.exemplars {
                assert_eq!(text(&exemplar.labels_refs[2]), "trace_id");
                entry.exemplars.push((text(&exemplar.labels_refs[3]), exemplar.value, exemplar.timestamp));
            }
            let metadata = series.metadata.unwrap();
            (entry.kind, entry.help) = (metadata.kind, text(&metadata.help_ref));
        }
        assert_eq!(packed.n_samples, n_samples as u64);
    }
    all
}

fn is_name(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        && !text.starts_with(|first: char| first.is_ascii_digit())
}

/// What a scrape of the same metrics gives, by the messages of another library.
fn scraped(metrics: &Arc<Metrics>) -> (BTreeMap<Labels, f64>, BTreeMap<Labels, Bare>) {
    let bytes: Vec<u8> = Exposition::new(Arc::clone(metrics), Format::Protobuf, None).flatten().collect();
    let (mut floats, mut natives) = (BTreeMap::new(), BTreeMap::new());
    for family in decode(&bytes) {
        for metric in &family.metric {
            let labels = |suffix: &str, le: Option<f64>| -> Labels {
                let own = metric.label.iter().filter(|label| !label.value.is_empty());
                let own = own.map(|label| (label.name.clone(), label.value.clone()));
                let bound = |le: f64| match le {
                    f64::INFINITY => "+Inf".to_owned(),
                    // As a Prometheus of version 3 has them.
                    4_194_304.0 => "4.194304e+06".to_owned(),
                    33_554_432.0 => "3.3554432e+07".to_owned(),
                    le => format!("{le:?}"),
                };
                let le = le.map(|le| ("le".to_owned(), bound(le)));
                own.chain(le).chain([("__name__".to_owned(), format!("{}{suffix}", family.name))]).collect()
            };
            let single = metric.counter.as_ref().map(|counter| counter.value);
            if let Some(value) = single.or(metric.gauge.as_ref().map(|gauge| gauge.value)) {
                floats.insert(labels("", None), value);
            }
            let Some(histogram) = &metric.histogram else { continue };
            floats.insert(labels("_count", None), histogram.sample_count as f64);
            floats.insert(labels("_sum", None), histogram.sample_sum);
            for bucket in &histogram.bucket {
                floats.insert(labels("_bucket", Some(bucket.upper_bound)), bucket.cumulative_count as f64);
            }
            if !histogram.positive_span.is_empty() {
                // There, one without buckets has an empty span.
                let spans = histogram.positive_span.iter().map(|span| (span.offset, span.length));
                let spans = spans.filter(|(_, length)| *length > 0).collect();
                let (count, sum) = (histogram.sample_count, histogram.sample_sum);
                let (zero, deltas) = (histogram.zero_count, histogram.positive_delta.clone());
                natives.insert(labels("", None), (histogram.schema, zero, spans, deltas, count, sum));
            }
        }
    }
    (floats, natives)
}

fn floats(found: &BTreeMap<Labels, Series>) -> BTreeMap<Labels, f64> {
    let last = |series: &Series| series.samples.last().map(|(_, value)| *value);
    found.iter().filter_map(|(labels, series)| Some((labels.clone(), last(series)?))).collect()
}

#[test]
fn a_write_has_what_a_scrape_has() {
    let metrics = metrics();
    let (expected, natives) = scraped(&metrics);
    assert!(expected.len() > 100 && natives.len() > 3, "{} {}", expected.len(), natives.len());
    let both = series(&remote(Buckets::Both).write(&metrics, NOW));
    assert_eq!(floats(&both), expected);
    let last = |series: &Series| series.natives.last().map(|(_, bare)| bare.clone());
    let found: BTreeMap<_, _> =
        both.iter().filter_map(|(labels, series)| Some((labels.clone(), last(series)?))).collect();
    assert_eq!(found, natives);
    assert_eq!(floats(&series(&remote(Buckets::Classic).write(&metrics, NOW))), expected);
    // Families without native buckets keep their classic ones.
    let native = series(&remote(Buckets::Native).write(&metrics, NOW));
    let has = |name: &str| native.keys().any(|labels| labels["__name__"] == name);
    assert!(has("http_server_request_duration_seconds") && has("obi_server_queue_wait_seconds_bucket"));
    assert!(!has("http_server_request_duration_seconds_bucket"));
    for series in both.values() {
        assert!(!series.help.is_empty() && series.kind > 0, "{series:?}");
    }
}

#[test]
fn exemplars_are_those_of_a_scrape_and_come_once() {
    let metrics = metrics();
    let text: Vec<u8> = Exposition::new(Arc::clone(&metrics), Format::OpenMetrics, None).flatten().collect();
    let n_shown = String::from_utf8(text).unwrap().lines().filter(|line| line.contains(" # ")).count();
    let mut remote = remote(Buckets::Classic);
    let count = |requests: &[Packed]| -> usize {
        series(requests).values().map(|series| series.exemplars.len()).sum()
    };
    assert_eq!(count(&remote.write(&metrics, NOW)), n_shown);
    assert_eq!(count(&remote.write(&metrics, NOW + 1_000)), 0);
    // With the time and the value of their span.
    let mut other = self::remote(Buckets::Native);
    let found = series(&other.write(&metrics, NOW));
    let exemplars: Vec<_> = found.values().flat_map(|series| series.exemplars.clone()).collect();
    assert!(exemplars.contains(&("ab".repeat(16), 0.012, NOW - 1_000 + 12)), "{exemplars:?}");
}

/// Metrics of spans of these methods only.
fn with(methods: &[&'static str]) -> Arc<Metrics> {
    let mut registry = Spans::new(Limits::default());
    for method in methods {
        registry.record(&span_with(SpanKind::Server, |span| span.http().method = method));
    }
    Arc::new(Metrics::take(&mut registry, &mut Stats::default()))
}

/// Counts of requests by method: time after `NOW` and value, `None` where the series has ended.
fn counts(requests: &[Packed]) -> Vec<(String, i64, Option<f64>)> {
    let of = |(labels, series): (Labels, Series)| {
        let method = labels.get("http_request_method").cloned().unwrap_or_default();
        let is_count = labels["__name__"] == "http_server_request_duration_seconds_count";
        let samples = if is_count { series.samples } else { Vec::new() };
        samples.into_iter().map(move |(time, value)| {
            (method.clone(), time - NOW, (value.to_bits() != STALE).then_some(value))
        })
    };
    series(requests).into_iter().flat_map(of).collect()
}

#[test]
fn series_begin_with_zero_and_end_once() {
    let get = |time: i64, value: Option<f64>| ("GET".to_owned(), time, value);
    let put = |time: i64, value: Option<f64>| ("PUT".to_owned(), time, value);
    let mut remote = remote(Buckets::Classic);
    // Both counted first at the end of their span, 12 ms after the start.
    let first = remote.write(&with(&["GET"]), NOW);
    assert_eq!(counts(&first), [get(-989, Some(0.0)), get(0, Some(1.0))]);
    // The zero of a new one is behind what was written before.
    let second = remote.write(&with(&["GET", "PUT"]), NOW + 1_000);
    assert_eq!(counts(&second), [get(1_000, Some(1.0)), put(1, Some(0.0)), put(1_000, Some(1.0))]);
    let third = remote.write(&with(&["PUT"]), NOW + 2_000);
    assert_eq!(counts(&third), [get(2_000, None), put(2_000, Some(1.0))]);
    assert_eq!(counts(&remote.write(&with(&["PUT"]), NOW + 3_000)), [put(3_000, Some(1.0))]);
    let last = remote.write_last(&with(&["PUT"]), NOW + 4_000);
    assert_eq!(counts(&last), [put(4_000, Some(1.0)), put(4_001, None)]);
    for (labels, series) in series(&last) {
        assert_eq!(series.samples.last().unwrap().1.to_bits(), STALE, "{labels:?}");
    }
    assert!(remote.end(NOW + 5_000).is_empty());
}

#[test]
fn a_successor_goes_on_and_a_destination_that_goes_is_reported() {
    let mut first = remote(Buckets::Both);
    let n_series = series(&first.write(&with(&["GET"]), NOW)).len();
    let mut next = remote(Buckets::Both);
    next.succeed(&mut first);
    assert!(first.end(NOW + 1).is_empty());
    let found = series(&next.write(&with(&["GET"]), NOW + 1_000));
    assert!(found.values().all(|series| series.samples.len() + series.natives.len() == 1), "{found:?}");
    // Other names of series: those under the old ones end.
    let mut other = remote(Buckets::Classic);
    other.succeed(&mut next);
    let ended = series(&next.end(NOW + 2_000));
    assert_eq!(ended.len(), n_series);
    for series in ended.values() {
        let values = series.samples.iter().map(|(time, value)| (*time, value.to_bits()));
        let natives = series.natives.iter().map(|(time, bare)| (*time, bare.5.to_bits()));
        assert_eq!(values.chain(natives).collect::<Vec<_>>(), [(NOW + 2_000, STALE)]);
    }
}

#[test]
fn version_1_says_the_same() {
    for packed in remote(Buckets::Both).write(&metrics(), NOW) {
        let request = unpacked(&packed);
        let bytes = snap::raw::Decoder::new().decompress_vec(&version1(&packed.bytes).unwrap()).unwrap();
        // Fields that version 1 has no names for would be lost in the types: so they are not there.
        assert_eq!(Request::decode(&*bytes).unwrap(), Request::default());
        let older = WriteRequest::decode(&*bytes).unwrap();
        let text = |at: u32| request.symbols[at as usize].as_str();
        let mut rest = older.timeseries.iter();
        for series in &request.timeseries {
            let mut older = rest.next().unwrap().clone();
            if !series.histograms.is_empty() && !series.exemplars.is_empty() {
                // Exemplars of native histograms come behind them.
                let behind = rest.next().unwrap();
                assert_eq!((&behind.labels, older.exemplars.len()), (&older.labels, 0));
                older.exemplars = behind.exemplars.clone();
            }
            let labels: Vec<&str> =
                older.labels.iter().flat_map(|label| [label.name.as_str(), &label.value]).collect();
            assert_eq!(labels, series.labels_refs.iter().map(|at| text(*at)).collect::<Vec<_>>());
            let samples = |samples: &[message::Sample]| -> Vec<(i64, u64)> {
                samples.iter().map(|sample| (sample.timestamp, sample.value.to_bits())).collect()
            };
            assert_eq!(samples(&older.samples), samples(&series.samples));
            assert!(older.samples.iter().all(|sample| sample.start_timestamp == 0));
            assert_eq!(
                (older.histograms.len(), older.exemplars.len()),
                (series.histograms.len(), series.exemplars.len())
            );
        }
        assert!(rest.next().is_none());
        let names: Vec<&str> = older.metadata.iter().map(|of| of.metric_family_name.as_str()).collect();
        assert!(names.iter().all(|name| !name.ends_with("_bucket")), "{names:?}");
    }
    assert!(version1(b"nothing of the kind").is_err());
    // A length of 4 GiB in front of nothing.
    let huge = version1(&[0xff, 0xff, 0xff, 0xff, 0x0f, 0]);
    assert!(matches!(huge, Err(UnreadableRequest::TooLarge(0xffff_ffff))), "{huge:?}");
}

proptest! {
    /// Whatever a file gives.
    #[test]
    fn any_bytes_are_version_1_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..300), at in 0usize..4_000) {
        let _ = version1(&writer::pack(&bytes));
        let mut remote = remote(Buckets::Both);
        let mut packed = remote.write(&with(&["GET"]), NOW).remove(0).bytes;
        let at = at % packed.len();
        packed.splice(at..at, bytes);
        let _ = version1(&packed);
    }
}

#[test]
fn requests_are_bounded() {
    let mut registry = Spans::new(Limits { series: 2_000, ..Limits::default() });
    for n in 0..1_000 {
        registry.record(&span_with(SpanKind::Client, |span| span.server.address = format!("host-{n}")));
    }
    let metrics = Arc::new(Metrics::take(&mut registry, &mut Stats::default()));
    let requests = remote(Buckets::Both).write(&metrics, NOW);
    assert!(requests.len() > 10, "{}", requests.len());
    assert!(requests.iter().all(|packed| packed.n_samples < 2_100), "{requests:?}");
    let most = requests.iter().map(|packed| packed.bytes.len()).max();
    assert!(most < Some(256 << 10), "{most:?}");
    assert_eq!(floats(&series(&requests)), scraped(&metrics).0);
}
