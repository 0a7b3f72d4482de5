//! At saturation nothing is silently lost: spans and counted losses together are what was sent.

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::exposition::Exposition;
use integration::plan::{Call, ConnectionPlan, Plan, Segmentation, ServerPlan};
use integration::server::shape::ShapeServer;
use integration::shape::Shape;
use integration::span::Kind;

use crate::gate;

const CONNECTIONS: usize = 40;
const CALLS: usize = 500;

/// Spans and losses of one side of one service.
fn accounted(metrics: &Exposition, kind: Kind, service: &str) -> (f64, f64) {
    let side = if kind == Kind::Server { "server" } else { "client" };
    let labels = [("side", side), ("service_name", service)];
    (metrics.sum("obi_spans_total", &labels), metrics.sum("obi_lost_total", &labels))
}

#[test]
fn spans_and_losses_are_what_was_sent() {
    let mut agent = Agent::start(Config::default().set("capture", "ring_bytes", 8192)).unwrap();
    let server = ShapeServer::start("overload", ServerPlan { batch: true, ..ServerPlan::default() }).unwrap();
    let connections: Vec<ConnectionPlan> = (0..CONNECTIONS)
        .map(|_| ConnectionPlan {
            depth: 100,
            segmentation: Segmentation::Whole,
            ..ConnectionPlan::new(
                &server.server.address,
                (0..CALLS).map(|_| Call::new(Shape::default())).collect(),
            )
        })
        .collect();
    let mut ledger = Ledger::default();
    let plan = Plan { seed: 0, concurrency: 8, rate: 0, connections };
    gate::follow(&mut ledger, &server.server, &plan);
    let sent = (CONNECTIONS * CALLS) as f64;
    let settled = |metrics: &Exposition| {
        ledger.roles().iter().all(|(kind, service)| {
            let (spans, lost) = accounted(metrics, *kind, service);
            spans + lost >= sent
        })
    };
    let metrics = agent.metrics_until(gate::PATIENCE, settled).unwrap();
    let mut lost_in_all = 0.0;
    for (kind, service) in ledger.roles() {
        let (spans, lost) = accounted(&metrics, kind, &service);
        assert_eq!(spans + lost, sent, "{kind:?} of {service}: {spans} spans and {lost} lost");
        lost_in_all += lost;
    }
    assert!(lost_in_all > 0.0, "the ring was never full: this test proves nothing");
    // What is shown is true even so.
    let mut report = ledger.compare(agent.spans().unwrap());
    report.missing.clear();
    report.assert_exact();
}
