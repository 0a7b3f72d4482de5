//! What happened to calls against what the agent says: by trace id, side and service.
//!
//! In: what clients and handlers report, and spans. Out: what is missing, invented, double or wrong. Durations are
//! compared with the clocks of both ends: a span lies between its handler's time and its client's. Refuses to know how
//! spans come to be.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::peer::{RpcDone, RpcServer};
use super::plan::{End, Method, RpcCall};
use crate::accuracy::Report;
use crate::patience::patience;
use crate::span::{Kind, Span};

/// Names of statuses by number.
pub const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];
/// What a server calls an error.
const SERVER_ERRORS: [&str; 6] =
    ["UNKNOWN", "DEADLINE_EXCEEDED", "UNIMPLEMENTED", "INTERNAL", "UNAVAILABLE", "DATA_LOSS"];

/// The kernel stamps arrivals in ticks of up to 10 ms, and clocks are read a moment apart.
const CLOCKS: Duration = Duration::from_millis(11);
/// A client that gives up informs its program first and the server then.
const LETTING_GO: Duration = Duration::from_secs(2);

type Key = (String, Kind, String);

#[derive(Debug)]
struct Expected {
    call: RpcCall,
    /// Sent by client and by server; `None` is not checked.
    messages: Option<(u32, u32)>,
    /// The handler's time, and the client's.
    duration: (Duration, Duration),
    /// gRPC-Web over HTTP/1: its status and its messages are in bodies.
    is_web: bool,
}

/// All that a set of services did.
#[derive(Debug, Default)]
pub struct RpcLedger {
    expected: BTreeMap<Key, Expected>,
    services: BTreeSet<String>,
    is_web: bool,
}

impl RpcLedger {
    /// One for calls over gRPC-Web.
    #[must_use]
    pub fn of_web() -> Self {
        Self { is_web: true, ..Self::default() }
    }

    /// Enters the calls of one client to `server`, seen by the client itself, by the server, and by `between`.
    ///
    /// # Errors
    /// When the workload itself is broken: the ends do not report what the plan asks of them.
    pub fn enter(
        &mut self,
        calls: &[RpcCall],
        done: &RpcDone,
        server: &RpcServer,
        between: &[(Kind, String)],
    ) -> anyhow::Result<()> {
        let handled: BTreeMap<String, _> =
            server.handled(calls)?.into_iter().map(|handled| (handled.id.clone(), handled)).collect();
        let called: BTreeMap<&str, _> =
            done.called.iter().map(|called| (called.id.as_str(), called)).collect();
        let mut roles = vec![(Kind::Client, done.service.clone())];
        roles.extend(between.iter().cloned());
        roles.extend(server.roles());
        for call in calls {
            let (called, handled) = (called[call.id.as_str()], handled.get(&call.id));
            let code = match call.end {
                End::Status => vec![call.code],
                End::Cancel | End::Leave => vec![1],
                // A server whose own clock is faster resets the stream.
                End::Deadline => vec![4, 1],
            };
            anyhow::ensure!(code.contains(&called.code), "{}: {called:?}", call.describe());
            let client = (called.sent, called.received);
            let server = handled.map(|handled| (handled.received, handled.sent));
            anyhow::ensure!(
                server.is_none_or(|server| server == client),
                "{}: {called:?} {handled:?}",
                call.describe()
            );
            let took = Duration::from_nanos(called.ended_ns - called.started_ns);
            let handler = Duration::from_nanos(handled.map_or(0, |handled| handled.handler_ns));
            for (kind, service) in &roles {
                self.services.insert(service.clone());
                let duration = match call.end {
                    End::Status => (handler.saturating_sub(CLOCKS), took + CLOCKS),
                    // The handler learns last that no client waits for it.
                    End::Cancel | End::Leave | End::Deadline => (Duration::ZERO, took + patience(LETTING_GO)),
                };
                let messages = server.filter(|_| !self.is_web);
                let expected = Expected { call: call.clone(), messages, duration, is_web: self.is_web };
                self.expected.insert((call.id.clone(), *kind, service.clone()), expected);
            }
        }
        Ok(())
    }

    /// How many spans of `kind` the service made.
    #[must_use]
    pub fn count(&self, kind: Kind, service: &str) -> usize {
        self.expected.keys().filter(|key| key.1 == kind && key.2 == service).count()
    }

    /// Kinds and services, each once.
    #[must_use]
    pub fn roles(&self) -> BTreeSet<(Kind, String)> {
        self.expected.keys().map(|key| (key.1, key.2.clone())).collect()
    }

    /// Whether every expected span is there.
    #[must_use]
    pub fn is_complete(&self, spans: &[Span]) -> bool {
        let found: BTreeSet<Key> = spans.iter().map(key).collect();
        self.expected.keys().all(|key| found.contains(key))
    }

    /// Compares.
    #[must_use]
    pub fn compare(&self, spans: &[Span]) -> Report {
        let mut report = Report { expected: self.expected.len(), ..Report::default() };
        let mut found: BTreeMap<Key, u32> = BTreeMap::new();
        for span in spans.iter().filter(|span| self.services.contains(&span.service.name)) {
            match self.expected.get(&key(span)) {
                None => report.phantom.push(describe(span)),
                Some(expected) => {
                    let wrong = differences(expected, span);
                    if !wrong.is_empty() {
                        let call = expected.call.describe();
                        report.wrong.push(format!("{} [{call}]: {}", describe(span), wrong.join("; ")));
                    }
                    *found.entry(key(span)).or_default() += 1;
                }
            }
        }
        for (key, expected) in &self.expected {
            let line = || format!("{:?} {} {}: {}", key.1, key.2, key.0, expected.call.describe());
            match found.get(key) {
                None => report.missing.push(line()),
                Some(1) => {}
                Some(times) => report.duplicate.push(format!("{times}× {}", line())),
            }
        }
        report
    }
}

fn key(span: &Span) -> Key {
    (span.trace_id.clone(), span.kind, span.service.name.clone())
}

fn describe(span: &Span) -> String {
    format!(
        "{:?} {} pid {} {} {} error {:?} {} ms of {}",
        span.kind,
        span.service.name,
        span.pid,
        span.name,
        span.text("rpc.response.status_code").unwrap_or("-"),
        span.text("error.type").unwrap_or(""),
        span.duration_seconds * 1e3,
        span.trace_id,
    )
}

fn differences(expected: &Expected, span: &Span) -> Vec<String> {
    let Expected { call, messages, duration: (shortest, longest), is_web } = expected;
    let mut found = Vec::new();
    let mut compare = |what: &str, expected: &str, seen: &str| {
        if expected != seen {
            found.push(format!("{what} {seen} instead of {expected}"));
        }
    };
    let method = if call.method == Method::Missing { "_OTHER".to_owned() } else { call.method.full_name() };
    compare("system", "grpc", span.text("rpc.system.name").unwrap_or("-"));
    compare("method", &method, span.text("rpc.method").unwrap_or("-"));
    if call.method == Method::Missing {
        compare("original", &call.method.full_name(), span.text("rpc.method_original").unwrap_or("-"));
    }
    let status = span.text("rpc.response.status_code").unwrap_or("-");
    compare("web", &is_web.to_string(), &span.attributes.contains_key("obi.rpc.web").to_string());
    match call.end {
        // But for an answer without a body, no end sees it.
        End::Status if *is_web && call.method != Method::Missing => compare("status", "-", status),
        End::Status => compare("status", NAMES[call.code as usize], status),
        End::Cancel | End::Leave => compare("status", "CANCELLED", status),
        End::Deadline if status == "CANCELLED" => {}
        End::Deadline => compare("status", "DEADLINE_EXCEEDED", status),
    }
    let is_error = match span.kind {
        _ if status == "-" => false,
        Kind::Client => status != "OK",
        Kind::Server => SERVER_ERRORS.contains(&status),
    };
    compare("span status", if is_error { "error" } else { "unset" }, &span.status);
    compare("error.type", if is_error { status } else { "-" }, span.text("error.type").unwrap_or("-"));
    if let Some((requests, responses)) = messages {
        for (what, name, expected) in [
            ("request messages", "obi.rpc.request.messages", requests),
            ("response messages", "obi.rpc.response.messages", responses),
        ] {
            match span.number(name) {
                None => compare(what, &expected.to_string(), "-"),
                Some(seen) => compare(what, &expected.to_string(), &seen.to_string()),
            }
        }
    }
    let marked = span.attributes.get("obi.rpc.streaming").is_some();
    let shows = call.end == End::Status
        && messages.is_some_and(|(requests, responses)| requests > 1 || responses > 1);
    if (shows && !marked) || (marked && matches!(call.method, Method::Unary | Method::Missing)) {
        compare("streaming", &shows.to_string(), &marked.to_string());
    }
    let took = Duration::from_nanos(span.end_unix_nano.get().saturating_sub(span.start_unix_nano.get()));
    if took < *shortest || took > *longest {
        found.push(format!("duration {took:?} not between {shortest:?} and {longest:?}"));
    }
    found
}
