//! Each way to read and to write on its own: when one of them is wrong, this names it.

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::load;
use integration::plan::{Call, ConnectionPlan, Plan, Segmentation, ServerPlan};
use integration::seed::seeded;
use integration::server::Features;
use integration::server::shape::ShapeServer;
use integration::wire::{ReadMode, WriteMode};

use crate::gate;

/// Both ends read by `read` and write by `write`, one request at a time and pipelined.
fn run(agent: &mut Agent, rng: &mut fastrand::Rng, read: ReadMode, write: WriteMode) -> Option<String> {
    let (reads, writes) = (vec![read], vec![write]);
    let plan = ServerPlan {
        seed: rng.u64(..),
        reads: reads.clone(),
        writes: writes.clone(),
        batch: true,
        ..ServerPlan::default()
    };
    let server = ShapeServer::start("shape", plan).unwrap();
    let connections = [1, 5]
        .iter()
        .map(|depth| {
            let calls = (0..60).map(|_| Call::new(load::odd_shape(rng, &Features::full()))).collect();
            ConnectionPlan {
                depth: *depth,
                segmentation: Segmentation::Whole,
                reads: reads.clone(),
                writes: writes.clone(),
                ..ConnectionPlan::new(&server.server.address, calls)
            }
        })
        .collect();
    let mut ledger = Ledger::default();
    let plan = Plan { seed: rng.u64(..), concurrency: 2, rate: 0, connections };
    gate::follow(&mut ledger, &server.server, &plan);
    let report = gate::report(agent, &ledger);
    (!report.is_exact()).then(|| format!("{read:?} and {write:?}: {report}"))
}

/// Room for the thousands of tiny pieces that a head of some kilobytes becomes when it is read byte by byte.
fn config() -> Config {
    Config::default().set("capture", "ring_bytes", 16 << 20)
}

#[test]
fn every_way_to_read() {
    let mut rng = seeded("every way to read");
    let mut agent = Agent::start(config()).unwrap();
    let wrong: Vec<String> =
        ReadMode::ALL.iter().filter_map(|read| run(&mut agent, &mut rng, *read, WriteMode::Write)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_way_to_write() {
    let mut rng = seeded("every way to write");
    let mut agent = Agent::start(config()).unwrap();
    let wrong: Vec<String> =
        WriteMode::ALL.iter().filter_map(|write| run(&mut agent, &mut rng, ReadMode::Read, *write)).collect();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
