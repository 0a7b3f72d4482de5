//! What the agent reports to systemd, as a socket in the place of systemd's hears it.

use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use integration::agent::{Agent, Config};
use integration::patience::patience;
use tempfile::TempDir;

const LIMIT: Duration = Duration::from_secs(20);

/// `$NOTIFY_SOCKET`.
struct Ear {
    socket: UnixDatagram,
    folder: TempDir,
}

impl Ear {
    fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_read_timeout(Some(patience(LIMIT))).unwrap();
        Self { socket, folder }
    }

    /// The next message with this line; what comes before is passed over.
    #[track_caller]
    fn hear(&self, line: &str) -> String {
        let begun = Instant::now();
        loop {
            let mut bytes = [0; 4096];
            let n = self.socket.recv(&mut bytes).unwrap_or_else(|error| panic!("no {line:?}: {error}"));
            let text = String::from_utf8_lossy(&bytes[..n]).into_owned();
            if text.lines().any(|found| found == line) {
                return text;
            }
            assert!(begun.elapsed() < patience(LIMIT), "no {line:?}, but {text:?}");
        }
    }
}

#[test]
fn it_hears_of_everything() {
    let ear = Ear::open();
    let socket = ear.folder.path().join("notify");
    let config = Config::default();
    let agent = Agent::start_in(config.clone(), |mut command| {
        command.env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "4000000");
        command
    })
    .unwrap();
    let ready = ear.hear("READY=1");
    let address = agent.address();
    assert!(
        ready.contains("STATUS=watching by hook set ") && ready.contains(&address.to_string()),
        "{ready}"
    );
    // Twice within the limit that systemd would have.
    ear.hear("WATCHDOG=1");
    let begun = Instant::now();
    ear.hear("WATCHDOG=1");
    assert!(begun.elapsed() < patience(Duration::from_secs(4)), "{:?}", begun.elapsed());

    let text = agent.placed(config);
    assert_eq!(agent.reload(&text).unwrap(), "applied");
    let reloading = ear.hear("RELOADING=1");
    assert!(reloading.contains("MONOTONIC_USEC="), "{reloading}");
    ear.hear("READY=1");
    assert_eq!(agent.stop().unwrap().code, 0);
    ear.hear("STOPPING=1");
}
