//! Which request made which call: the truth of handlers against parents of spans.
//!
//! In: logs of handlers, written by those who call, with ids drawn when they did; spans. Out: a [`Score`]. Ids are in
//! paths, and in no trace header, so the agent can connect spans only by what happened. Refuses to know how the agent
//! finds parents.

use std::collections::HashMap;
use std::fmt;

use anyhow::{Context as _, bail};

use crate::span::{Kind, Span};

/// Who made a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cause {
    /// The request of this id, before it was answered.
    Request(String),
    /// The request of this id, after that.
    Late(String),
    /// No request.
    None,
}

/// What handlers wrote: causes by the id of the call.
pub type Truth = HashMap<String, Cause>;

/// How many calls have the right parent. One that is tried again is a call each time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Score {
    /// As logged.
    pub right: usize,
    /// Without a parent, although a request made them.
    pub unknown: usize,
    /// With another's.
    pub wrong: usize,
    /// Without a span.
    pub missing: usize,
}

/// What shows that a request was sent by a call: parents of server spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pairs {
    /// Server spans whose parent is the client span of the same path, in its trace.
    pub right: usize,
    /// Server spans without a parent.
    pub unknown: usize,
    /// With another one.
    pub wrong: usize,
}

impl fmt::Display for Score {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { right, unknown, wrong, missing } = self;
        write!(out, "{right} right, {unknown} unknown, {wrong} wrong, {missing} missing")
    }
}

impl Score {
    /// Calls.
    #[must_use]
    pub fn calls(&self) -> usize {
        self.right + self.unknown + self.wrong + self.missing
    }

    fn add(&mut self, cause: &Cause, call: &Span, request: Option<&Span>) {
        let is_child = request.is_some_and(|request| is_child(call, request));
        match (cause, &call.parent_span_id) {
            (Cause::None | Cause::Late(_), None) => self.right += 1,
            (Cause::Request(_), None) => self.unknown += 1,
            _ if is_child => self.right += 1,
            _ => self.wrong += 1,
        }
    }
}

/// Reads a log.
///
/// # Errors
/// When a line is none of the three kinds, or a call is there twice.
pub fn read(log: &str) -> anyhow::Result<Truth> {
    let mut truth = Truth::new();
    for line in log.lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let (cause, call) = match words[..] {
            ["-", call] => (Cause::None, call),
            ["late", request, call] => (Cause::Late(request.to_owned()), call),
            [request, call] => (Cause::Request(request.to_owned()), call),
            _ => bail!("`{line}` is no line of a log"),
        };
        if truth.insert(call.to_owned(), cause).is_some() {
            bail!("call {call} is logged twice");
        }
    }
    Ok(truth)
}

/// The id at the end of a path, or of the name of a method.
fn id_of(span: &Span) -> Option<&str> {
    let names = ["url.path", "rpc.method_original", "rpc.method"];
    names.iter().find_map(|name| span.text(name))?.rsplit('/').next()
}

/// Spans of requests and calls by the id at the end of their path.
fn by_id(spans: &[Span], kind: Kind) -> HashMap<&str, &Span> {
    let of_kind = spans.iter().filter(|span| span.kind == kind);
    of_kind.filter_map(|span| Some((id_of(span)?, span))).collect()
}

/// Compares the parents of all logged calls with the truth.
#[must_use]
pub fn score(truth: &Truth, spans: &[Span]) -> Score {
    let requests = by_id(spans, Kind::Server);
    let mut calls: HashMap<&str, Vec<&Span>> = HashMap::new();
    for span in spans.iter().filter(|span| span.kind == Kind::Client) {
        if let Some(id) = id_of(span) {
            calls.entry(id).or_default().push(span);
        }
    }
    let mut score = Score::default();
    for (call, cause) in truth {
        let request = match cause {
            Cause::Request(id) | Cause::Late(id) => requests.get(id.as_str()).copied(),
            Cause::None => None,
        };
        match calls.get(call.as_str()) {
            Some(tries) => tries.iter().for_each(|call| score.add(cause, call, request)),
            None => score.missing += 1,
        }
    }
    score
}

/// Compares the parents of the requests of these ids with the calls of the same ids.
#[must_use]
pub fn pairs<'a>(ids: impl IntoIterator<Item = &'a str>, spans: &[Span]) -> Pairs {
    let (calls, requests) = (by_id(spans, Kind::Client), by_id(spans, Kind::Server));
    let mut pairs = Pairs::default();
    for id in ids {
        match (calls.get(id), requests.get(id)) {
            (Some(call), Some(request)) if is_child(request, call) => pairs.right += 1,
            (_, Some(request)) if request.parent_span_id.is_some() => pairs.wrong += 1,
            _ => pairs.unknown += 1,
        }
    }
    pairs
}

fn is_child(span: &Span, parent: &Span) -> bool {
    span.parent_span_id.as_ref() == Some(&parent.span_id) && span.trace_id == parent.trace_id
}

/// Reads the log in a file.
///
/// # Errors
/// As [`read`], or when there is none.
pub fn read_file(path: &std::path::Path) -> anyhow::Result<Truth> {
    read(&std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn span(kind: &str, path: &str, id: &str, parent: Option<&str>, trace: &str) -> Span {
        serde_json::from_value(json!({
            "sequence": 1, "trace_id": trace, "span_id": id, "parent_span_id": parent, "name": "GET", "kind": kind,
            "start_unix_nano": 1, "end_unix_nano": 2, "duration_seconds": 0.0, "queue_wait_seconds": 0.0,
            "status": "unset", "service": {"name": "s"}, "pid": 1, "attributes": {"url.path": path},
        }))
        .expect("a span")
    }

    #[test]
    fn every_call_counts_once() {
        let truth = read("a x\n- y\nlate a z\nb w\na v\n").expect("a log");
        let spans = [
            span("server", "/in/a", "1", None, "t"),
            span("server", "/in/b", "2", None, "u"),
            span("client", "/out/x", "3", Some("1"), "t"),
            span("client", "/out/y", "4", None, "v"),
            span("client", "/out/z", "5", Some("1"), "t"),
            span("client", "/out/w", "6", Some("1"), "t"),
        ];
        assert_eq!(score(&truth, &spans), Score { right: 3, unknown: 0, wrong: 1, missing: 1 });
        // Two tries.
        let tries = ["7", "8"].map(|id| span("client", "/out/x", id, Some("1"), "t"));
        let spans = [span("server", "/in/a", "1", None, "t")].into_iter().chain(tries).collect::<Vec<_>>();
        assert_eq!(score(&read("a x").expect("a log"), &spans).right, 2);
        // The right parent in another trace is wrong.
        let spans = [span("server", "/in/a", "1", None, "t"), span("client", "/out/x", "3", Some("1"), "u")];
        assert_eq!(score(&read("a x").expect("a log"), &spans).wrong, 1);
        let spans = [span("server", "/in/a", "1", None, "t"), span("client", "/out/x", "3", None, "u")];
        assert_eq!(score(&read("a x").expect("a log"), &spans).unknown, 1);
        let spans = [span("server", "/in/a", "1", None, "t"), span("client", "/out/x", "3", Some("1"), "t")];
        assert_eq!(score(&read("- x").expect("a log"), &spans).wrong, 1);
    }

    #[test]
    fn pairs_are_spans_of_one_path() {
        let spans = [
            span("client", "/out/x", "1", None, "t"),
            span("server", "/out/x", "2", Some("1"), "t"),
            span("client", "/out/y", "3", None, "u"),
            span("server", "/out/y", "4", Some("1"), "t"),
            span("server", "/out/z", "5", None, "v"),
        ];
        assert_eq!(pairs(["x", "y", "z"], &spans), Pairs { right: 1, unknown: 1, wrong: 1 });
    }

    #[test]
    fn bad_logs_are_refused() {
        for log in ["a", "a b c d", "a x\nb x"] {
            assert!(read(log).is_err(), "{log}");
        }
    }
}
