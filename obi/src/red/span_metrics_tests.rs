//! Cases that OpenTelemetry's span metrics connector tests itself with, for the semantics that we share, as a table.
//!
//! Not shared, on purpose: spans without `service.name` are skipped there, here every service has a name; exemplars are
//! dropped after each flush there, here they stay with their bucket; its overflow keeps no label, ours keeps service,
//! kind and status; it counts sampled traces by their weight, we count every span before sampling; delta temporality,
//! span events, self time and free dimensions are not offered.

use super::tests::{START, service, span_with};
use super::*;
use crate::span::Status;

const MILLISECOND: u64 = 1_000_000;

/// A span of the connector's fixture: service, kind, path, whether it failed, milliseconds (start after end if
/// negative).
type Row = (&'static str, SpanKind, &'static str, bool, i64);

/// Service, span name, kind, status, calls, sum of milliseconds.
type Expected = (&'static str, &'static str, SpanKind, Status, u64, u128);

fn span((name, kind, path, failed, milliseconds): Row) -> Span {
    let mut span = span_with(kind, |span| {
        span.http().route = Arc::from(path);
        (span.http().status, span.error_type) = if failed { (Some(500), "500") } else { (Some(200), "") };
    });
    // One number for each name, as the span stage gives them.
    let id = name.bytes().fold(7_u32, |id, byte| (id * 31 + u32::from(byte)) % 997);
    span.service = Arc::new(Service { name: name.to_owned(), ..(*service(id)).clone() });
    span.start = START;
    span.end = START.saturating_add_signed(milliseconds * MILLISECOND as i64);
    span
}

fn registry(rows: &[Row], consumptions: u32) -> Registry {
    let mut registry = Registry::new(Limits::default());
    for _ in 0..consumptions {
        rows.iter().for_each(|row| registry.record(&span(*row)));
    }
    registry
}

use SpanKind::{Client, Server};
use Status::{Error, Unset};

/// `buildSampleTrace`: each span 11 ms.
const SAMPLE: [Row; 3] = [
    ("service-a", Server, "/ping", false, 11),
    ("service-a", Client, "/ping", false, 11),
    ("service-b", Server, "/ping", true, 11),
];

#[test]
fn consumed_spans_are_counted_and_timed() {
    fn check(case: &str, rows: &[Row], consumptions: u32, expected: &[Expected]) {
        let snapshot = registry(rows, consumptions).snapshot();
        let found: Vec<_> = snapshot
            .spans
            .iter()
            .map(|series| {
                let SpanLabels { service, name, kind, status, .. } = &*series.labels;
                let sum = series.counts.buckets.sum() / u128::from(MILLISECOND);
                (&*service.name, &**name, *kind, *status, series.counts.buckets.count(), sum)
            })
            .collect();
        assert_eq!(found, expected, "{case}");
    }
    check(
        "single consumption",
        &SAMPLE,
        1,
        &[
            ("service-a", "GET /ping", Server, Unset, 1, 11),
            ("service-a", "GET /ping", Client, Unset, 1, 11),
            ("service-b", "GET /ping", Server, Error, 1, 11),
        ],
    );
    check(
        "two consumptions",
        &SAMPLE,
        2,
        &[
            ("service-a", "GET /ping", Server, Unset, 2, 22),
            ("service-a", "GET /ping", Client, Unset, 2, 22),
            ("service-b", "GET /ping", Server, Error, 2, 22),
        ],
    );
    check(
        "end before start is no time",
        &[("service-a", Server, "/ping", false, -5)],
        1,
        &[("service-a", "GET /ping", Server, Unset, 1, 0)],
    );
    check(
        "the same characters in service and name are another key",
        &[("ab", Server, "/c", false, 1), ("a", Server, "/bc", false, 1)],
        1,
        &[("ab", "GET /c", Server, Unset, 1, 1), ("a", "GET /bc", Server, Unset, 1, 1)],
    );
    check(
        "status is part of the key",
        &[("service-a", Server, "/ping", false, 1), ("service-a", Server, "/ping", true, 1)],
        3,
        &[("service-a", "GET /ping", Server, Unset, 3, 3), ("service-a", "GET /ping", Server, Error, 3, 3)],
    );
}

#[test]
fn all_in_exactly_one_bucket_explicit_and_exponential() {
    for consumptions in [1, 2] {
        for series in registry(&SAMPLE, consumptions).snapshot().spans {
            let histogram = &series.counts;
            let filled: Vec<_> = histogram.buckets.counts().iter().filter(|count| **count > 0).collect();
            assert_eq!(filled, [&u64::from(consumptions)]);
            assert_eq!(histogram.native.counts(), [u64::from(consumptions)]);
            let bound = DURATION_BOUNDS.iter().position(|bound| *bound >= 11 * MILLISECOND);
            assert_eq!(histogram.buckets.counts().iter().position(|count| *count > 0), bound);
        }
    }
}

#[test]
fn every_series_has_an_exemplar_of_its_own_span() {
    for series in registry(&SAMPLE, 1).snapshot().spans {
        let [(_, exemplar)] = series.counts.exemplars() else { panic!("one exemplar") };
        assert_eq!((exemplar.trace_id, exemplar.span_id), ([0xab; 16], [0xcd; 8]));
        assert_eq!((exemplar.value, exemplar.time.get()), (11 * MILLISECOND, START + 11 * MILLISECOND));
    }
}

#[test]
fn an_uninterrupted_stream_keeps_its_start_and_begins_a_new_one_after_expiry() {
    let mut registry = registry(&SAMPLE, 1);
    let starts = |snapshot: &Snapshot| snapshot.spans.iter().map(|series| series.created).collect::<Vec<_>>();
    let first = registry.snapshot();
    assert_eq!(starts(&first), [START + 11 * MILLISECOND; 3]);
    SAMPLE.iter().for_each(|row| registry.record(&span(*row)));
    assert_eq!(starts(&registry.snapshot()), starts(&first));
    let later = START + 2 * 3_600_000 * MILLISECOND;
    registry.advance(1);
    registry.advance(later - START);
    assert!(registry.snapshot().spans.is_empty(), "resource metrics expire");
    registry.record(&Span { start: later, end: later + 1, ..span(SAMPLE[0]) });
    assert_eq!(starts(&registry.snapshot()), [later + 1]);
}

#[test]
fn a_new_series_is_known_to_be_new_at_its_first_snapshot() {
    let mut registry = registry(&SAMPLE, 1);
    let first = registry.snapshot();
    SAMPLE.iter().for_each(|row| registry.record(&span(*row)));
    registry.record(&span(("service-c", Server, "/ping", false, 11)));
    let second = registry.snapshot();
    let new: Vec<_> = second.spans.iter().map(|series| series.born >= first.number).collect();
    assert_eq!(new, [false, false, false, true]);
}

#[test]
fn the_limit_below_at_and_above() {
    fn check(names: u64, folded: u64) {
        let mut registry = Registry::new(Limits { series: 2_000, ..Limits::default() });
        for name in 0..names {
            let mut span = span(("service-a", Client, "", false, 1));
            span.http().route = Arc::from(format!("/{name}"));
            registry.record(&span);
        }
        let snapshot = registry.snapshot();
        let count = |overflow: bool| -> u64 {
            let counted = snapshot.spans.iter().filter(|series| series.labels.overflow == overflow);
            counted.map(|series| series.counts.buckets.count()).sum()
        };
        assert_eq!((count(false), count(true)), (names - folded, folded), "{names}");
    }
    // Of 1,600 ordinary series one service may have 6 promised ones and 960 common ones; one is the requests'.
    check(964, 0);
    check(965, 0);
    check(966, 1);
    check(1_500, 535);
}
