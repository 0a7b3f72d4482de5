//! A server that reads and writes through io_uring: exact, or counted as not readable; never a phantom.

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::Kind;
use integration::load;
use integration::seed::seeded;
use integration::server::io_uring::io_uring;
use integration::span;

use crate::gate;

#[test]
fn exact_or_counted() {
    let mut rng = seeded("io_uring");
    let server = io_uring().unwrap();
    let mut agent = Agent::start(Config::default()).unwrap();
    let (mut clients, mut all) = (Ledger::default(), Ledger::default());
    for kind in Kind::ALL {
        let calls = load::calls(&mut rng, &server.features, kind, 60);
        let done = integration::client::call(kind, &server.address, &calls, 4).unwrap();
        clients.enter(&calls, &done, &[]);
        all.enter(&calls, &done, &server.roles());
    }
    // Its clients use ordinary calls: no excuse.
    gate::assert_exact(&mut agent, &clients);
    let mut report = all.compare(agent.spans().unwrap());
    let metrics = agent.metrics().unwrap();
    let lost = metrics.sum("obi_lost_total", &[("side", "server"), ("service_name", &server.service)]);
    let uncovered = gate::uncovered(&metrics, "unreadable");
    let missing = report.missing.len();
    let sent = all.count(span::Kind::Server, &server.service);
    assert!(
        missing == 0 || lost >= missing as f64 || uncovered > 0.0,
        "{missing} of {sent} are silently missing"
    );
    report.missing.clear();
    report.assert_exact();
}
