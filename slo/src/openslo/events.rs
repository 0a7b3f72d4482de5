//! `metricSource: {type: obi, spec: …}`: which of the agent's own events are meant.
//!
//! In: the sources of an SLI. Out: [`EventIndicator`]. Refuses other types of source.
//!
//! Keys of the spec, all optional:
//!
//! | key | value | means |
//! |---|---|---|
//! | `service`, `route`, `peer` | exact, or a glob with `*` and `?` | selectors |
//! | `method` | likewise | HTTP method; for RPC the method called: `shop.Cart/Add`, `shop.Cart/*` |
//! | `status` | likewise | HTTP status: `404`, `5*`; for RPC the name, or exactly the number: `UNAVAILABLE`, `14` |
//! | `kind` | `server` (default in `total`), `client` | side of the exchange |
//! | `attributes` | `{name: value}` | attributes that must be present and match |
//! | `outcome` | `good`, `bad` | not an error, an error |
//! | `faster_than` | `300ms` | duration up to and including this |
//! | `streaming` | `include` (default), `exclude`, `only` | exchanges that last as long as their ends like: calls of methods that stream. WebSockets count with `only` |
//! | `queue_wait` | `included` (default), `excluded` | whether the wait in the server's receive queue belongs to the duration |
//! | `bad_statuses`, `good_statuses` | list of statuses | errors, or none, for this objective |
//! | `ignore_statuses` | list of statuses | these events do not count |
//! | `unit` | `s` (default), `ms`, `us` | unit of an objective's `value`; threshold metrics only |
//!
//! A latency objective for the calls of a service leaves its streams out:
//!
//! ```yaml
//! good:  {metricSource: {type: obi, spec: {faster_than: 100ms}}}
//! total: {metricSource: {type: obi, spec: {service: cart, method: "shop.Cart/*", streaming: exclude}}}
//! ```
//!
//! An event whose status is not known (a connection of HTTP/2 was joined in the middle) does not count where the
//! verdict depends on the status: with `status`, with `outcome` unless it broke in any case, with lists of statuses.

use std::time::Duration;

use super::cursor::{Cursor, Findings};
use super::finding::Severity;
use super::node::Value;
use super::object::{MetricSource, Operator};
use crate::duration::parse_threshold;
use crate::indicator::{
    DurationCondition, ErrorDefinition, EventIndicator, Kind, Outcome, Pattern, QueueWait, Selector,
    Streaming,
};

const SELECTORS: [&str; 14] = [
    "service",
    "kind",
    "route",
    "method",
    "status",
    "peer",
    "attributes",
    "outcome",
    "faster_than",
    "streaming",
    "queue_wait",
    "bad_statuses",
    "good_statuses",
    "ignore_statuses",
];

/// Whether this is a source of ours.
pub(super) fn is_own(kind: &str) -> bool {
    kind.eq_ignore_ascii_case("obi")
}

/// A ratio of good or bad events to all.
pub(super) fn ratio(
    of: Outcome,
    counted: &MetricSource,
    total: &MetricSource,
    findings: &mut Findings,
) -> Option<EventIndicator> {
    let all = Spec::read(total, &[], findings);
    let some = Spec::read(counted, &[], findings);
    let (mut all, some) = (all?, some?);
    all.selector.kind.get_or_insert(Kind::Server);
    check_service(total, &all.selector, findings);
    let cursor = cursor(counted);
    let same =
        Selector { kind: some.selector.kind.or(all.selector.kind), ..some.selector.clone() } == all.selector;
    if some.selector == Selector::default() || same {
        let what = format!("selects every event that total selects, so every event is {}", of.as_str());
        findings.push(cursor.error(what, "write outcome: good, faster_than: 300ms or status: \"2*\""));
        return None;
    }
    if of == Outcome::Bad && some.selector.duration.is_some() {
        let instead = "write ratioMetric.good with faster_than";
        findings.push(cursor.warning("faster_than under bad makes fast events bad", instead));
    }
    Some(EventIndicator {
        total: all.selector,
        counted: some.selector,
        counted_is: of,
        errors: merge(all.errors, some.errors),
        queue_wait: if all.queue_wait == QueueWait::Excluded { all.queue_wait } else { some.queue_wait },
    })
}

/// Duration as a threshold metric: good while `duration operator value` holds.
pub(super) fn threshold(
    metric: &MetricSource,
    operator: Operator,
    value: f64,
    findings: &mut Findings,
) -> Option<EventIndicator> {
    let mut spec = Spec::read(metric, &["unit"], findings)?;
    let cursor = cursor(metric);
    let scale = match cursor.text("unit", findings).as_deref() {
        None | Some("s") => 1e9,
        Some("ms") => 1e6,
        Some("us") => 1e3,
        Some(other) => {
            findings.push(cursor.error(format!("has unit {other:?}"), "write one of s, ms, us"));
            return None;
        }
    };
    // Up to 2^53 ns, 104 days, every nanosecond is exact.
    let nanos = (value * scale).round();
    if !(0.0..=9e15).contains(&nanos) {
        findings
            .push(cursor.error(format!("is compared with {value}"), "write a value of seconds such as 0.3"));
        return None;
    }
    spec.selector.kind.get_or_insert(Kind::Server);
    check_service(metric, &spec.selector, findings);
    let limit = Duration::from_nanos(nanos as u64);
    let duration = Some(DurationCondition { operator, limit });
    Some(EventIndicator {
        total: spec.selector,
        counted: Selector { duration, ..Selector::default() },
        counted_is: Outcome::Good,
        errors: spec.errors,
        queue_wait: spec.queue_wait,
    })
}

fn check_service(source: &MetricSource, selector: &Selector, findings: &mut Findings) {
    if selector.service.is_none() {
        let instead = "write service: NAME unless that is meant";
        findings.push(cursor(source).finding(
            Severity::Note,
            "names no service, so events of every service count",
            instead,
        ));
    }
}

fn cursor(source: &MetricSource) -> Cursor<'_> {
    Cursor { node: &source.spec, place: source.place.clone() }
}

fn merge(mut one: ErrorDefinition, other: ErrorDefinition) -> ErrorDefinition {
    one.ignored.extend(other.ignored);
    one.bad.extend(other.bad);
    one.good.extend(other.good);
    one
}

/// One source's spec.
struct Spec {
    selector: Selector,
    errors: ErrorDefinition,
    queue_wait: QueueWait,
}

impl Spec {
    /// `None` after an error.
    fn read(source: &MetricSource, further: &[&str], findings: &mut Findings) -> Option<Self> {
        let cursor = cursor(source);
        let before = findings.len();
        let known: Vec<&str> = SELECTORS.iter().chain(further).copied().collect();
        only(&cursor, &known, findings);
        let pattern =
            |key: &str, findings: &mut Findings| cursor.text(key, findings).map(|text| Pattern::new(&text));
        let spec = Self {
            selector: Selector {
                service: pattern("service", findings),
                kind: word(&cursor, "kind", &[("server", Kind::Server), ("client", Kind::Client)], findings),
                route: pattern("route", findings),
                method: pattern("method", findings),
                status: pattern("status", findings),
                peer: pattern("peer", findings),
                attributes: attributes(&cursor, findings),
                outcome: word(
                    &cursor,
                    "outcome",
                    &[("good", Outcome::Good), ("bad", Outcome::Bad)],
                    findings,
                ),
                duration: faster_than(&cursor, findings),
                streaming: word(
                    &cursor,
                    "streaming",
                    &[
                        ("include", Streaming::Include),
                        ("exclude", Streaming::Exclude),
                        ("only", Streaming::Only),
                    ],
                    findings,
                )
                .unwrap_or_default(),
            },
            errors: ErrorDefinition {
                ignored: statuses(&cursor, "ignore_statuses", findings),
                bad: statuses(&cursor, "bad_statuses", findings),
                good: statuses(&cursor, "good_statuses", findings),
            },
            queue_wait: word(
                &cursor,
                "queue_wait",
                &[("included", QueueWait::Included), ("excluded", QueueWait::Excluded)],
                findings,
            )
            .unwrap_or_default(),
        };
        let sound = findings[before..].iter().all(|finding| finding.severity < Severity::Error);
        sound.then_some(spec)
    }
}

/// Unknown keys, distinguished from OpenSLO's own.
fn only(cursor: &Cursor<'_>, known: &[&str], findings: &mut Findings) {
    let before = findings.len();
    cursor.only(known, findings);
    for finding in &mut findings[before..] {
        finding.what = finding.what.replace("no key of OpenSLO", "no key of a metric source of type obi");
    }
}

/// One of some words.
fn word<T: Copy>(cursor: &Cursor<'_>, key: &str, known: &[(&str, T)], findings: &mut Findings) -> Option<T> {
    let child = cursor.child(key)?;
    let text = child.scalar(findings)?;
    let found = known.iter().find(|(word, _)| *word == text).map(|(_, value)| *value);
    if found.is_none() {
        let words: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        findings.push(child.error(format!("is {text:?}"), format!("write one of {}", words.join(", "))));
    }
    found
}

fn attributes(cursor: &Cursor<'_>, findings: &mut Findings) -> Vec<(String, Pattern)> {
    let Some(attributes) = cursor.child("attributes") else { return Vec::new() };
    if !matches!(attributes.node.value, Value::Map(_)) {
        let what = format!("is {}", attributes.node.describe());
        findings.push(attributes.error(what, "write {name: value}"));
    }
    let text = |key: &str, findings: &mut Findings| {
        let child = attributes.child(key);
        if child.is_none() {
            findings
                .push(attributes.error(format!("{key:?} has no value"), "write a value, or \"*\" for any"));
        }
        child?.scalar(findings)
    };
    let entries = attributes.node.entries().iter();
    entries
        .filter_map(|entry| Some((entry.key.clone(), Pattern::new(&text(&entry.key, findings)?))))
        .collect()
}

fn faster_than(cursor: &Cursor<'_>, findings: &mut Findings) -> Option<DurationCondition> {
    let child = cursor.child("faster_than")?;
    let text = child.scalar(findings)?;
    let limit = parse_threshold(&text).filter(|limit| !limit.is_zero());
    if limit.is_none() {
        findings.push(
            child.error(format!("is {}", child.node.describe()), "write a duration such as 300ms or 1.5s"),
        );
    }
    Some(DurationCondition { operator: Operator::Lte, limit: limit? })
}

/// A list of statuses, or one.
fn statuses(cursor: &Cursor<'_>, key: &str, findings: &mut Findings) -> Vec<Pattern> {
    let Some(child) = cursor.child(key) else { return Vec::new() };
    let items = match child.node.value {
        Value::List(_) => child.items(findings),
        _ => vec![child],
    };
    items.iter().filter_map(|item| item.scalar(findings)).map(|text| Pattern::new(&text)).collect()
}
