//! The accuracy gate: waits for the agent to have seen everything, then compares by identity.

use std::collections::BTreeSet;
use std::time::Duration;

use integration::accuracy::{Ledger, Report};
use integration::agent::Agent;
use integration::client::{self, Kind};
use integration::exposition::Exposition;
use integration::patience::slowness;
use integration::plan::{Address, Call, ConnectionPlan, Plan, ServerPlan};
use integration::seed::note;
use integration::server::Server;
use integration::server::shape::ShapeServer;
use integration::shape::Shape;
use integration::span::{Kind as Side, Span};

/// How long the agent may take to show what has happened. Its bar is 1 s; a busy machine is slower.
pub(crate) const PATIENCE: Duration = Duration::from_secs(15);

/// A request of our own whose span shows that all earlier ones have been through the agent.
pub(crate) struct Barrier(ShapeServer);

impl Barrier {
    pub(crate) fn start() -> Self {
        Self(ShapeServer::start("barrier", ServerPlan::default()).unwrap())
    }

    /// Whether the request is seen in time.
    pub(crate) fn pass(&self, agent: &mut Agent) -> bool {
        let call = Call::new(Shape::default());
        client::call(Kind::Shape, &self.0.server.address, std::slice::from_ref(&call), 1).unwrap();
        let is_seen =
            |span: &Span| span.request_id() == Some(&call.id) && span.service.name == self.0.server.service;
        let is_there =
            agent.spans_until(PATIENCE, |spans| spans.iter().any(is_seen)).unwrap().iter().any(is_seen);
        // A scrape waits for spans that wait for the other end of their connection.
        agent.metrics().unwrap();
        is_there
    }
}

/// Compares after everything expected is there (or patience is over) and a later request has been seen.
#[track_caller]
pub(crate) fn report(agent: &mut Agent, ledger: &Ledger) -> Report {
    let is_alive = settle(agent, &[ledger]);
    let report = ledger.compare(agent.spans().unwrap());
    assert!(is_alive, "the agent does not show a request {PATIENCE:?} after it ended; {report}");
    if !report.is_exact() {
        let metrics = agent.metrics().unwrap();
        note(&losses(&metrics, ledger.roles()));
        note(&elsewhere(agent.spans().unwrap(), &metrics, &report));
    }
    report
}

/// Where requests of which a span is missing were seen instead, and what else the agent says of itself that may have
/// to do with it.
fn elsewhere(spans: &[Span], metrics: &Exposition, report: &Report) -> String {
    let is_missing = |span: &&Span| {
        span.request_id().is_some_and(|id| report.missing.iter().any(|line| line.contains(id)))
    };
    let of_span = |span: &Span| {
        let Span { kind, service, pid, status, .. } = span;
        format!("{kind:?} {} {pid} {status} {:?}\n", service.name, span.request_id())
    };
    let telling = |name: &str| {
        ["lost", "late_processes", "active_requests", "misses"].iter().any(|word| name.contains(word))
    };
    let reported = metrics.samples.iter().filter(|sample| telling(&sample.name) && sample.value > 0.0);
    let reported = reported.map(|sample| format!("{} {:?} {}\n", sample.name, sample.labels, sample.value));
    spans.iter().filter(is_missing).map(of_span).chain(reported).collect()
}

/// Waits until everything expected is there (or patience is over) and a later request has been seen; whether it was.
#[track_caller]
pub(crate) fn settle(agent: &mut Agent, ledgers: &[&Ledger]) -> bool {
    let barrier = Barrier::start();
    agent.spans_until(PATIENCE, |spans| ledgers.iter().all(|ledger| ledger.is_complete(spans))).unwrap();
    barrier.pass(agent)
}

/// What the agent itself says it did not see of the ledger's services, for the message of a failed test.
pub(crate) fn losses(metrics: &Exposition, roles: impl IntoIterator<Item = (Side, String)>) -> String {
    let services: BTreeSet<String> = roles.into_iter().map(|(_, service)| service).collect();
    let is_ours = |service: &str| services.contains(service);
    let counted = metrics.samples.iter().filter(|sample| {
        let is_loss = sample.labels.get("service_name").is_some_and(|service| is_ours(service));
        sample.value > 0.0
            && (sample.name == "obi_lost_total" && is_loss || sample.name.contains("uncovered"))
    });
    counted.map(|sample| format!("{} {:?} {}\n", sample.name, sample.labels, sample.value)).collect()
}

/// What the agent says it did not see of these sides of services.
pub(crate) fn lost<'a>(metrics: &Exposition, roles: impl IntoIterator<Item = &'a (Side, String)>) -> f64 {
    let of = |(kind, service): &(Side, String)| {
        metrics.sum("obi_lost_total", &[("service_name", service), ("side", side(*kind))])
    };
    roles.into_iter().map(of).sum()
}

/// The sides of services of which spans and losses together are fewer than the `count` of what was sent.
pub(crate) fn unaccounted<'a>(
    metrics: &Exposition,
    roles: impl IntoIterator<Item = &'a (Side, String)>,
    count: impl Fn(Side, &str) -> usize,
) -> Vec<String> {
    let mut found = Vec::new();
    for role in roles {
        let (kind, service) = role;
        let labels = [("service_name", service.as_str()), ("side", side(*kind))];
        let (seen, lost) = (metrics.sum("obi_spans_total", &labels), lost(metrics, [role]));
        let sent = count(*kind, service) as f64;
        if seen + lost < sent {
            found.push(format!("{service} ({}): {sent} sent, {seen} seen, {lost} lost", side(*kind)));
        }
    }
    found
}

fn side(kind: Side) -> &'static str {
    match kind {
        Side::Server => "server",
        Side::Client => "client",
    }
}

/// One line of what came of it, which the matrix of kernels reads.
pub(crate) fn tell(what: &str, report: &Report, lost: f64) {
    let wrong = report.phantom.len() + report.duplicate.len() + report.wrong.len();
    let (missing, expected) = (report.missing.len(), report.expected);
    note(&format!("{what}: {missing} missing, {lost} lost, {wrong} wrong, {expected} spans expected"));
}

/// Connections of the whole machine that are not covered, for reasons that start with `reason`.
pub(crate) fn uncovered(metrics: &Exposition, reason: &str) -> f64 {
    metrics
        .matching("obi_uncovered_connections_total", &[])
        .filter(|sample| sample.labels.get("reason").is_some_and(|text| text.starts_with(reason)))
        .fold(0.0, |sum, sample| sum + sample.value)
}

/// The gate itself: spans and RED counts are exactly what happened.
#[track_caller]
pub(crate) fn assert_exact(agent: &mut Agent, ledger: &Ledger) {
    report(agent, ledger).assert_exact();
    let metrics = agent.metrics().unwrap();
    let wrong = miscounted(&metrics, ledger);
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), losses(&metrics, ledger.roles()));
}

/// RED counts that are not what happened, and losses although every span is there.
pub(crate) fn miscounted(metrics: &Exposition, ledger: &Ledger) -> Vec<String> {
    let mut wrong = Vec::new();
    for (kind, service) in ledger.roles() {
        let side = side(kind);
        let name = format!("http_{side}_request_duration_seconds_count");
        let expected = ledger.count(kind, &service) as f64;
        for (name, labels, expected) in [
            (name.as_str(), &[("service_name", service.as_str())][..], expected),
            ("obi_spans_total", &[("service_name", &service), ("side", side)], expected),
            ("obi_lost_total", &[("service_name", &service), ("side", side)], 0.0),
        ] {
            let counted = metrics.sum(name, labels);
            if counted != expected {
                wrong.push(format!("{name} of {service} is {counted} instead of {expected}"));
            }
        }
    }
    wrong
}

/// Whether what is missing of the ledger's exchanges is counted: spans and losses together are no less than what was
/// sent, or connections since `before` are uncovered because they could not be read.
pub(crate) fn is_counted(before: &Exposition, metrics: &Exposition, ledger: &Ledger) -> bool {
    let is_uncovered = uncovered(metrics, "unreadable") > uncovered(before, "unreadable");
    is_uncovered
        || unaccounted(metrics, &ledger.roles(), |kind, service| ledger.count(kind, service)).is_empty()
}

/// Runs a client of `kind` and enters what it did.
#[track_caller]
pub(crate) fn call(ledger: &mut Ledger, kind: Kind, server: &Server, calls: &[Call], concurrency: usize) {
    let done = client::call(kind, &server.address, calls, concurrency)
        .unwrap_or_else(|error| panic!("{} by {}: {error:#}", server.name, kind.name()));
    ledger.enter(calls, &done, &server.roles());
}

/// A connection that keeps the client alive for a while: the agent reads its name meanwhile, later on a slow machine.
pub(crate) fn lasting(address: &Address) -> ConnectionPlan {
    let delay = 300_000 * slowness().min(10);
    ConnectionPlan::new(address, vec![Call::new(Shape { delay, ..Shape::default() })])
}

/// Runs the raw client by `plan` against `server` and enters what it did.
#[track_caller]
pub(crate) fn follow(ledger: &mut Ledger, server: &Server, plan: &Plan) {
    let done = client::follow(plan).unwrap();
    let calls: Vec<Call> = plan.connections.iter().flat_map(|connection| connection.calls.clone()).collect();
    ledger.enter(&calls, &done, &server.roles());
}
