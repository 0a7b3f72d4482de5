//! A server that reads and writes through io_uring: exact, or counted as not readable; never a phantom.

use integration::accuracy::Ledger;
use integration::agent::{Agent, Config};
use integration::client::{self, Kind};
use integration::hook::Passage;
use integration::load;
use integration::patience::slowness;
use integration::seed::seeded;
use integration::server::io_uring::io_uring;

use super::{Row, calls, check};

#[test]
fn exact_or_counted() {
    let mut rng = seeded("io_uring");
    let server = io_uring().unwrap();
    let mut agent = Agent::start(Config::default().alone()).unwrap();
    let view = agent.view().unwrap();
    let before = agent.metrics().unwrap();
    let (mut clients, mut servers) = (Ledger::default(), Ledger::default());
    let kinds = if slowness() > 1 { &[Kind::Shape, Kind::Curl][..] } else { &Kind::ALL };
    for kind in kinds {
        let calls = load::calls(&mut rng, &server.features, *kind, calls(60));
        let done = client::call(*kind, &server.address, &calls, 4).unwrap();
        clients.enter(&calls, &done, &[]);
        servers.enter_server(&calls, &done, &server.roles());
    }
    let rows = vec![
        // They use ordinary calls: no excuse.
        Row {
            name: "its clients".to_owned(),
            ledger: clients,
            sight: view.sight(Passage::Call),
            has_frames: false,
        },
        Row {
            name: "io_uring".to_owned(),
            ledger: servers,
            sight: view.sight(Passage::IoUring),
            has_frames: false,
        },
    ];
    check(&mut agent, &before, rows, view);
}
