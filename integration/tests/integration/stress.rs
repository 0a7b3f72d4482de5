//! Hundreds of threads that wait for each other's processor, TLS objects that end and begin at the same addresses, a
//! hundred streams at a time over one connection: all at once, for as long as the machine's slowness makes of some
//! seconds. Nothing is lost uncounted, and nothing is mixed: no span has another's method, status or size.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::threads::{self, Load};
use integration::client::{self, Kind};
use integration::exposition::Exposition;
use integration::hook::{Passage, Sight};
use integration::load;
use integration::otlp::certificate::Certificates;
use integration::patience::{patience, slowness};
use integration::seed::{note, seeded};
use integration::server::{Server, encrypted, language};
use integration::span::{self, Span};

use crate::gate;

/// On a machine of ordinary speed.
const LASTS: Duration = Duration::from_secs(9);
/// Of the client, which are as many connections, and so as many threads of the server.
const THREADS: usize = 250;
/// Exchanges of each of them, on a machine of ordinary speed.
const EXCHANGES: usize = 24;
/// Streams at a time of each connection of HTTP/2.
const STREAMS: usize = 100;
/// Calls of each of its clients: afterwards the next one begins, with a connection of its own.
const CALLS: usize = 300;

/// One kind of load: what must have been seen of it.
struct Part {
    server: Server,
    ledger: Ledger,
    sight: Sight,
}

/// One more client's calls, each a stream of its own.
fn multiplex(ledger: &mut Ledger, server: &Server, (kind, tls): (Kind, bool), rng: &mut fastrand::Rng) {
    let calls = load::calls(rng, &server.features, kind, CALLS);
    let done = match tls {
        // Node's server ends streams that wait too long for it ("enhance your calm"): here, too, when others compile.
        true => client::call_encrypted(kind, &server.address, &calls, STREAMS / 10),
        false => client::call(kind, &server.address, &calls, STREAMS),
    };
    // A client that is over in a moment may have gone before the agent, which has no more of the processors than
    // hundreds of threads, looks at who it was: what the server did says enough.
    ledger.enter_server(&calls, &done.unwrap(), &server.roles());
}

/// Services of which spans and losses together are fewer than what was sent.
fn unaccounted(metrics: &Exposition, ledger: &Ledger) -> Vec<String> {
    gate::unaccounted(metrics, &ledger.roles(), |kind, service| ledger.count(kind, service))
}

/// What is wrong with a part; prints what came of it.
fn verdict(part: &Part, spans: &[Span], metrics: &Exposition) -> Option<String> {
    let lost = gate::lost(metrics, &part.ledger.roles());
    // A header block that is lost takes names with it that later ones refer to.
    let mut report = match lost {
        0.0 => part.ledger.compare(spans),
        _ => part.ledger.compare_damaged(spans),
    };
    gate::tell(&part.server.name, &report, lost);
    let mut wrong = unaccounted(metrics, &part.ledger);
    // What is seen everywhere may be lost for want of room, but then it is exactly what is missing.
    if part.sight == Sight::Exact && report.missing.len() as f64 != lost {
        wrong.push(format!("{} are missing, {lost} are lost", report.missing.len()));
    }
    if wrong.is_empty() {
        report.missing.clear();
    }
    if !report.is_exact() {
        wrong.push(report.to_string());
    }
    let losses = gate::losses(metrics, part.ledger.roles());
    (!wrong.is_empty())
        .then(|| format!("{} ({:?}): {}\n{losses}", part.server.name, part.sight, wrong.join("\n")))
}

/// More of the same kinds, for `make test-wide`.
mod wide {
    use super::*;

    #[test]
    fn many_threads() {
        let mut rng = seeded("many threads");
        let certificates = Certificates::new().unwrap();
        let threads = encrypted::threads(&certificates).unwrap();
        let encrypted = encrypted::http2_node(&certificates).unwrap();
        let clear = language::http2_go().unwrap();
        let mut agent =
            Agent::start(Config::default().alone().set("capture", "ring_bytes", 32 << 20)).unwrap();
        agent.await_probes(&["/libssl.so", "/node"], gate::PATIENCE).unwrap();
        let view = agent.view().unwrap();
        let lasts = patience(LASTS);
        let begun = Instant::now();
        let is_over = AtomicBool::new(false);
        let most = EXCHANGES * usize::try_from(slowness()).unwrap();
        let load = Load { threads: THREADS, lasts, most, seed: rng.u64(..) };
        let (first, second) = (rng.fork(), rng.fork());
        let is_over = &is_over;
        let parts = thread::scope(|scope| {
            let many = scope.spawn(move || {
                let made = threads::call(&threads.address, load);
                is_over.store(true, Ordering::Relaxed);
                let made = made.unwrap();
                let mut ledger = Ledger::default();
                for (shape, truth) in &made.exchanges {
                    ledger.expect(shape, truth, span::Kind::Client, &made.service);
                    ledger.expect(shape, truth, span::Kind::Server, &threads.service);
                }
                Part { server: threads, ledger, sight: view.sight(Passage::Library) }
            });
            let many_streams = |server: Server, how: (Kind, bool), mut rng: fastrand::Rng, sight: Sight| {
                scope.spawn(move || {
                    let mut ledger = Ledger::default();
                    loop {
                        multiplex(&mut ledger, &server, how, &mut rng);
                        if is_over.load(Ordering::Relaxed) {
                            return Part { server, ledger, sight };
                        }
                    }
                })
            };
            let over_tls =
                many_streams(encrypted, (Kind::Http2Node, true), first, view.sight(Passage::Library));
            let in_clear = many_streams(clear, (Kind::Http2Go, false), second, view.sight(Passage::Call));
            // The store of spans has room for so many: they are read as they come. An agent that finds no processor for
            // seconds says so, and is asked again.
            while !is_over.load(Ordering::Relaxed) {
                if let Err(error) = agent.spans() {
                    note(&format!("{error:#}"));
                }
                thread::sleep(Duration::from_millis(500));
            }
            [many, over_tls, in_clear].map(|part| part.join().unwrap())
        });
        let lasted = begun.elapsed();
        note(&format!("{}: {THREADS} threads at each end for {:.0} s", view.set, lasted.as_secs_f64()));
        let ledgers: Vec<&Ledger> = parts.iter().map(|part| &part.ledger).collect();
        let is_over =
            |metrics: &Exposition| ledgers.iter().all(|ledger| unaccounted(metrics, ledger).is_empty());
        let metrics = agent.metrics_until(gate::PATIENCE, is_over).unwrap();
        assert!(gate::Barrier::start().pass(&mut agent), "the agent does not show a request in time");
        let spans = agent.spans().unwrap();
        let failed: Vec<String> = parts.iter().filter_map(|part| verdict(part, spans, &metrics)).collect();
        assert!(failed.is_empty(), "hook set {}:\n{}", view.set, failed.join("\n"));
    }
}
