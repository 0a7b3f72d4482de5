//! What happened against what the agent says: by identity, never by count alone.
//!
//! In: calls with what their client reports, and spans. Out: what is missing, invented, double or wrong.
//! Refuses to know how spans come to be.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::client::Done;
use crate::plan::{Call, Truth};
use crate::shape::{Ending, Shape};
use crate::span::{Kind, Span};

/// Findings that a report prints of each sort.
const PRINTED: usize = 40;

/// Methods that keep their name in `http.request.method`.
const KNOWN_METHODS: [&str; 10] =
    ["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"];

/// Which span: one per request, kind and service.
type Key = (String, Kind, String);

/// A span that must exist, and what it must say. `None` is not checked.
#[derive(Debug, Clone)]
struct Expected {
    shape: String,
    method: String,
    status: Status,
    request_bytes: Option<u64>,
    response_bytes: Option<u64>,
    is_error: Option<bool>,
}

/// What `http.response.status_code` may say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Status {
    /// Exactly this.
    Is(u16),
    /// This, or nothing: a reset may overtake the head on its way through the kernel, but must not invent one.
    AtMost(u16),
}

impl Status {
    fn allows(self, seen: Option<u64>) -> bool {
        match self {
            Self::Is(status) => seen == Some(status.into()),
            Self::AtMost(status) => seen.is_none_or(|seen| seen == u64::from(status)),
        }
    }
}

/// All that a set of services did.
#[derive(Debug, Default)]
pub struct Ledger {
    expected: BTreeMap<Key, Expected>,
    services: BTreeSet<String>,
}

/// The result of a comparison. Empty lists are success.
#[derive(Debug, Default)]
pub struct Report {
    /// Spans that should be there.
    pub missing: Vec<String>,
    /// Spans of our services that belong to no request.
    pub phantom: Vec<String>,
    /// Spans that are there more than once.
    pub duplicate: Vec<String>,
    /// Spans that say something else than what happened.
    pub wrong: Vec<String>,
    /// Spans expected.
    pub expected: usize,
}

impl Ledger {
    /// Enters the calls of one client process, each seen by the client itself and by every role of the server.
    ///
    /// # Panics
    /// When the client reports a call that was not asked for: the workload itself is broken then.
    pub fn enter(&mut self, calls: &[Call], done: &Done, roles: &[(Kind, String)]) {
        let calls: BTreeMap<&str, &Shape> =
            calls.iter().map(|call| (call.id.as_str(), &call.shape)).collect();
        for truth in &done.truths {
            let shape = calls.get(truth.id.as_str()).expect("clients report only what they were asked to do");
            self.expect(shape, truth, Kind::Client, &done.service);
            self.expect_roles(shape, truth, roles);
        }
    }

    /// The same without the client's own spans.
    ///
    /// # Panics
    /// As [`Self::enter`].
    pub fn enter_server(&mut self, calls: &[Call], done: &Done, roles: &[(Kind, String)]) {
        let calls: BTreeMap<&str, &Shape> =
            calls.iter().map(|call| (call.id.as_str(), &call.shape)).collect();
        for truth in &done.truths {
            let shape = calls.get(truth.id.as_str()).expect("clients report only what they were asked to do");
            self.expect_roles(shape, truth, roles);
        }
    }

    fn expect_roles(&mut self, shape: &Shape, truth: &Truth, roles: &[(Kind, String)]) {
        for (kind, service) in roles {
            self.expect(shape, truth, *kind, service);
        }
    }

    /// Enters all of `other`.
    pub fn add(&mut self, other: &Self) {
        self.services.extend(other.services.iter().cloned());
        self.expected.extend(other.expected.iter().map(|(key, expected)| (key.clone(), expected.clone())));
    }

    /// Spans expected.
    #[must_use]
    pub fn len(&self) -> usize {
        self.expected.len()
    }

    /// Whether nothing is expected.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.expected.is_empty()
    }

    /// Enters a single span.
    pub fn expect(&mut self, shape: &Shape, truth: &Truth, kind: Kind, service: &str) {
        self.services.insert(service.to_owned());
        let expected = expectation(shape, kind);
        self.expected.insert((truth.id.clone(), kind, service.to_owned()), expected);
    }

    /// How many spans of `kind` the services made.
    #[must_use]
    pub fn count(&self, kind: Kind, service: &str) -> usize {
        self.expected.keys().filter(|key| key.1 == kind && key.2 == service).count()
    }

    /// Kinds and services, each once.
    #[must_use]
    pub fn roles(&self) -> BTreeSet<(Kind, String)> {
        self.expected.keys().map(|key| (key.1, key.2.clone())).collect()
    }

    /// Whether a span belongs to one of the services.
    #[must_use]
    pub fn is_ours(&self, span: &Span) -> bool {
        self.services.contains(&span.service.name)
    }

    /// Whether every expected span is there (others may be too many).
    #[must_use]
    pub fn is_complete(&self, spans: &[Span]) -> bool {
        // Cheap first: this is asked many times.
        if spans.len() < self.expected.len() {
            return false;
        }
        let found: BTreeSet<Key> = spans.iter().filter_map(key).collect();
        self.expected.keys().all(|key| found.contains(key))
    }

    /// Compares.
    #[must_use]
    pub fn compare(&self, spans: &[Span]) -> Report {
        self.compare_by(spans, differences)
    }

    /// The same where bytes of HTTP/2 may have passed unseen: header blocks refer to those before them, so a span may
    /// not know its method or status, or a size. What it reports must be true.
    #[must_use]
    pub fn compare_damaged(&self, spans: &[Span]) -> Report {
        self.compare_by(spans, untruths)
    }

    fn compare_by(&self, spans: &[Span], wrong: fn(&Expected, &Span) -> Option<String>) -> Report {
        let mut report = Report { expected: self.expected.len(), ..Report::default() };
        let mut found: BTreeMap<Key, u32> = BTreeMap::new();
        for span in spans.iter().filter(|span| self.is_ours(span)) {
            match key(span).and_then(|key| self.expected.get(&key).map(|expected| (key, expected))) {
                None => report.phantom.push(describe(span)),
                Some((key, expected)) => {
                    report.wrong.extend(wrong(expected, span));
                    *found.entry(key).or_default() += 1;
                }
            }
        }
        for (key, expected) in &self.expected {
            let line = || format!("{:?} {} {}: {}", key.1, key.2, key.0, expected.shape);
            match found.get(key) {
                None => report.missing.push(line() + &self.elsewhere(key, spans)),
                Some(1) => {}
                Some(times) => report.duplicate.push(format!("{times}× {}", line())),
            }
        }
        report
    }
}

impl Ledger {
    /// Where a span that is missing went: to a service that is none of ours, because its process was gone before its
    /// name could be read.
    fn elsewhere(&self, missing: &Key, spans: &[Span]) -> String {
        let is_it = |span: &&Span| {
            span.request_id() == Some(&missing.0) && span.kind == missing.1 && !self.is_ours(span)
        };
        spans.iter().find(is_it).map_or_else(String::new, |span| {
            format!(" (seen as service {} of pid {})", span.service.name, span.pid)
        })
    }
}

impl Report {
    /// Adds the findings of another comparison.
    pub fn add(&mut self, other: &Self) {
        self.missing.extend(other.missing.iter().cloned());
        self.phantom.extend(other.phantom.iter().cloned());
        self.duplicate.extend(other.duplicate.iter().cloned());
        self.wrong.extend(other.wrong.iter().cloned());
        self.expected += other.expected;
    }

    /// Whether spans and truth agree.
    #[must_use]
    pub fn is_exact(&self) -> bool {
        [&self.missing, &self.phantom, &self.duplicate, &self.wrong].iter().all(|list| list.is_empty())
    }

    /// Fails the test with everything that is not exact.
    ///
    /// # Panics
    /// When [`Self::is_exact`] is false, or nothing was expected at all.
    #[track_caller]
    pub fn assert_exact(&self) {
        assert!(self.expected > 0, "nothing was expected: the workload did not run");
        assert!(self.is_exact(), "{self}");
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{} spans expected", self.expected)?;
        let lists = [
            ("missing", &self.missing),
            ("phantom", &self.phantom),
            ("duplicate", &self.duplicate),
            ("wrong", &self.wrong),
        ];
        for (name, list) in lists {
            write!(formatter, "\n{} {name}", list.len())?;
            for line in list.iter().take(PRINTED) {
                write!(formatter, "\n  {line}")?;
            }
        }
        Ok(())
    }
}

fn key(span: &Span) -> Option<Key> {
    Some((span.request_id()?.to_owned(), span.kind, span.service.name.clone()))
}

fn expectation(shape: &Shape, kind: Kind) -> Expected {
    let mut expected = Expected {
        shape: shape.describe(),
        method: if KNOWN_METHODS.contains(&shape.method.as_str()) {
            shape.method.clone()
        } else {
            "_OTHER".into()
        },
        status: Status::Is(shape.status),
        request_bytes: Some(shape.request_bytes),
        response_bytes: Some(shape.body_bytes()),
        is_error: Some(shape.status >= if kind == Kind::Server { 500 } else { 400 }),
    };
    match shape.ending {
        Ending::Whole => {}
        // What is in the tunnel is not HTTP; whether it counts is not promised.
        Ending::Upgrade => expected.response_bytes = None,
        // How far a broken exchange came is the timing's business. What the client did see is certain.
        Ending::ServerCloses(after) => {
            expected.response_bytes = Some(after);
            expected.is_error = Some(true);
        }
        Ending::ServerResets(_) => {
            (expected.status, expected.response_bytes) = (Status::AtMost(shape.status), None);
            expected.is_error = Some(true);
        }
        Ending::ClientResets(_) => {
            (expected.status, expected.response_bytes) = (Status::AtMost(shape.status), None);
            expected.is_error = (kind == Kind::Server).then_some(true);
        }
        Ending::ClientLeaves => {
            (expected.status, expected.response_bytes) = (Status::AtMost(shape.status), None);
            expected.is_error = None;
        }
    }
    expected
}

fn describe(span: &Span) -> String {
    format!(
        "{:?} {} pid {} {} {:?} {} error {:?} {} ms",
        span.kind,
        span.service.name,
        span.pid,
        span.text("http.request.method").unwrap_or("-"),
        span.text("url.path").unwrap_or("-"),
        span.number("http.response.status_code").map_or("-".into(), |status| status.to_string()),
        span.text("error.type").unwrap_or(""),
        span.duration_seconds * 1e3,
    )
}

/// One line if `span` says something else than what happened.
fn differences(expected: &Expected, span: &Span) -> Option<String> {
    let mut found = String::new();
    let mut compare = |what: &str, expected: String, seen: String| {
        if expected != seen {
            let _ = write!(found, " {what} {seen} instead of {expected};");
        }
    };
    compare("method", expected.method.clone(), span.text("http.request.method").unwrap_or("-").into());
    let status = span.number("http.response.status_code");
    if !expected.status.allows(status) {
        compare("status", format!("{:?}", expected.status), format!("{status:?}"));
    }
    // The conventions leave an absent body out.
    let sizes = [
        ("request body", "http.request.body.size", expected.request_bytes),
        ("response body", "http.response.body.size", expected.response_bytes),
    ];
    for (what, name, expected) in sizes {
        if let Some(expected) = expected {
            compare(what, expected.to_string(), span.number(name).unwrap_or(0).to_string());
        }
    }
    if let Some(is_error) = expected.is_error {
        compare("span error", is_error.to_string(), (span.status == "error").to_string());
        compare("error.type set", is_error.to_string(), span.text("error.type").is_some().to_string());
    }
    if span.end_unix_nano.get() < span.start_unix_nano.get() {
        compare("end", "after start".into(), "before start".into());
    }
    (!found.is_empty()).then(|| format!("{} [{}]:{found}", describe(span), expected.shape))
}

/// One line if `span` reports what did not happen.
fn untruths(expected: &Expected, span: &Span) -> Option<String> {
    let method = span.text("http.request.method").unwrap_or("_OTHER");
    let status = span.number("http.response.status_code");
    let is_size = |name: &str, expected: Option<u64>| {
        span.number(name).is_none_or(|seen| expected.is_none_or(|expected| seen == expected))
    };
    let is_error = span.status == "error";
    let is_true = (method == "_OTHER" || method == expected.method)
        && (status.is_none() || expected.status.allows(status))
        && (status.is_none() || expected.is_error.is_none_or(|expected| expected == is_error))
        && is_size("http.request.body.size", expected.request_bytes)
        && is_size("http.response.body.size", expected.response_bytes);
    (!is_true).then(|| format!("{} [{}]", describe(span), expected.shape))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn truth(id: &str) -> Truth {
        serde_json::from_value(json!({"id": id, "status": 200, "request_bytes": 0, "response_bytes": 17,
            "handler_ns": null, "started_ns": 0, "ended_ns": 1}))
        .expect("a truth")
    }

    fn span(path: &str, service: &str, status: u16) -> Span {
        serde_json::from_value(json!({"sequence": 1, "trace_id": "", "span_id": "", "name": "GET", "kind": "server",
            "start_unix_nano": 1, "end_unix_nano": "2", "duration_seconds": 0.1, "queue_wait_seconds": 0,
            "status": "unset", "service": {"name": service}, "pid": 1, "attributes": {"http.request.method": "GET",
            "url.path": path, "http.response.status_code": status, "http.response.body.size": 17}}))
        .expect("a span")
    }

    /// One request `aa` to service `s`; how many spans are missing, phantom, duplicate, wrong?
    #[track_caller]
    fn check(spans: &[Span], expected: [usize; 4]) {
        let mut ledger = Ledger::default();
        ledger.expect(&Shape::default(), &truth("aa"), Kind::Server, "s");
        let report = ledger.compare(spans);
        let lists = [&report.missing, &report.phantom, &report.duplicate, &report.wrong];
        assert_eq!(lists.map(Vec::len), expected, "{report}");
        assert_eq!(report.is_exact(), expected == [0; 4]);
    }

    #[test]
    fn findings() {
        let good = || span("/e/aa/200/length/17", "s", 200);
        check(&[good()], [0, 0, 0, 0]);
        check(&[good(), span("/e/aa/200/length/17", "other", 200)], [0, 0, 0, 0]);
        check(&[], [1, 0, 0, 0]);
        check(&[good(), good()], [0, 0, 1, 0]);
        check(&[good(), span("/e/bb/200/length/17", "s", 200)], [0, 1, 0, 0]);
        check(&[good(), span("/invented", "s", 200)], [0, 1, 0, 0]);
        check(&[span("/e/aa/200/length/17", "s", 404)], [0, 0, 0, 1]);
    }

    #[test]
    fn what_is_not_known_is_not_wrong() {
        let check = |change: fn(&mut Span), n_wrong: usize| {
            let mut ledger = Ledger::default();
            ledger.expect(&Shape::default(), &truth("aa"), Kind::Server, "s");
            let mut seen = span("/e/aa/200/length/17", "s", 200);
            change(&mut seen);
            assert_eq!(ledger.compare_damaged(&[seen]).wrong.len(), n_wrong);
        };
        check(|_| {}, 0);
        check(|span| drop(span.attributes.remove("http.response.status_code")), 0);
        check(|span| drop(span.attributes.insert("http.request.method".into(), json!("_OTHER"))), 0);
        check(|span| drop(span.attributes.insert("http.request.method".into(), json!("PUT"))), 1);
        check(|span| drop(span.attributes.insert("http.response.status_code".into(), json!(404))), 1);
        check(|span| drop(span.attributes.insert("http.response.body.size".into(), json!(16))), 1);
        check(|span| drop(span.attributes.remove("http.response.body.size")), 0);
        check(|span| span.status = "error".into(), 1);
        check(|span| drop(span.attributes.insert("http.response.body.size".into(), json!(18))), 1);
    }
}
