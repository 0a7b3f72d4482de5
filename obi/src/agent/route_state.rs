//! The file in which learned routes outlive the agent.
//!
//! In: a path, and the routes as they grow. Out: the file, always whole: a new one is written beside it and takes its
//! place. Only a thread that lives for one writing waits for the disk. Refuses to know what is in it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::privilege;
use crate::span::route::{Routes, state::MAX_STATE_BYTES};

/// How often news are written, if there are any.
const INTERVAL: Duration = Duration::from_secs(60);

/// Keeps the file; the default one keeps nothing.
#[derive(Debug, Default)]
pub(super) struct RouteState {
    path: Option<PathBuf>,
    /// What the file holds.
    revision: u64,
    next: Option<Instant>,
    writing: Option<JoinHandle<()>>,
}

impl RouteState {
    /// Reads what an earlier run has learned. Without the file's directory, or a path at all, nothing is kept.
    pub(super) fn open(path: &Path, routes: &mut Routes) -> Self {
        if path.as_os_str().is_empty() {
            return Self::default();
        }
        let shown = path.display();
        if !path.parent().is_some_and(Path::is_dir) {
            tracing::info!(path = %shown, "learned routes end with this run: the directory does not exist");
            return Self::default();
        }
        match read(path) {
            Ok(text) => match routes.restore(&text) {
                Ok(services) => tracing::info!(path = %shown, services, "learned routes restored"),
                Err(error) => {
                    tracing::warn!(path = %shown, %error, "learned routes of an earlier run are not used")
                }
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %shown, %error, "failed to read the learned routes"),
        }
        Self { path: Some(path.to_owned()), revision: routes.revision(), ..Self::default() }
    }

    /// Begins to write what is new, if it is time. Never waits.
    pub(super) fn tick(&mut self, routes: &Routes, now: Instant) {
        let next = *self.next.get_or_insert(now + INTERVAL);
        if now < next || self.writing.as_ref().is_some_and(|writing| !writing.is_finished()) {
            return;
        }
        self.next = Some(now + INTERVAL);
        self.save(routes);
    }

    /// Writes what is new and waits for it: the end.
    pub(super) fn finish(&mut self, routes: &Routes) {
        self.wait();
        self.save(routes);
        self.wait();
    }

    fn save(&mut self, routes: &Routes) {
        let Some(path) = self.path.clone().filter(|_| routes.revision() != self.revision) else { return };
        self.revision = routes.revision();
        let text = routes.state();
        let write = move || {
            // A file of our own needs no privilege.
            if let Err(error) =
                privilege::give_up().map_err(io::Error::other).and_then(|()| replace(&path, &text))
            {
                tracing::warn!(path = %path.display(), %error, "failed to keep the learned routes");
            }
        };
        match std::thread::Builder::new().name("routes".to_owned()).spawn(write) {
            Ok(writing) => self.writing = Some(writing),
            Err(error) => tracing::warn!(%error, "failed to start a thread that keeps the learned routes"),
        }
    }

    fn wait(&mut self) {
        if self.writing.take().is_some_and(|writing| writing.join().is_err()) {
            tracing::error!("the thread that keeps the learned routes panicked");
        }
    }
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(MAX_STATE_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_STATE_BYTES {
        return Err(io::Error::other(format!("more than {MAX_STATE_BYTES} bytes")));
    }
    Ok(text)
}

/// A reader sees the old text or the new one, also after a crash.
fn replace(path: &Path, text: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(text)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::span::route::Request;
    use crate::span::{Service, SpanKind};

    fn ask(routes: &mut Routes, path: &str) -> Arc<str> {
        answered(routes, path, 200)
    }

    /// Teaches nothing.
    fn look(routes: &mut Routes, path: &str) -> Arc<str> {
        answered(routes, path, 404)
    }

    fn answered(routes: &mut Routes, path: &str, status: u16) -> Arc<str> {
        let service = Service { name: "shop".to_owned(), id: 1, ..Service::default() };
        let mut route = Arc::from("");
        let (side, status) = (SpanKind::Server, Some(status));
        routes.assign(Request { service: &service, side, method: "GET", path, status }, &mut route);
        route
    }

    #[test]
    fn what_is_learned_outlives_a_run() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("routes.json");
        let mut routes = Routes::new(10);
        let mut state = RouteState::open(&path, &mut routes);
        ask(&mut routes, "/probe/x/y");
        let now = Instant::now();
        state.tick(&routes, now);
        state.wait();
        assert!(!path.exists(), "it is not yet time");
        state.tick(&routes, now + INTERVAL);
        state.wait();
        let first = fs::read(&path).unwrap();
        assert_eq!(first, routes.state());
        fs::remove_file(&path).unwrap();
        state.finish(&routes);
        assert!(!path.exists(), "nothing is new");
        ask(&mut routes, "/other");
        state.finish(&routes);
        assert_ne!(fs::read(&path).unwrap(), first);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");

        let mut next = Routes::new(10);
        RouteState::open(&path, &mut next);
        assert_eq!(&*look(&mut next, "/other"), "/other");
        assert_eq!(&*look(&mut next, "/another"), "");
        assert_eq!(next.state(), routes.state());
    }

    #[test]
    fn what_cannot_be_kept_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("routes.json");
        fs::write(&path, "{\"version\":1,\"tre").unwrap();
        let mut routes = Routes::new(10);
        let mut state = RouteState::open(&path, &mut routes);
        ask(&mut routes, "/a");
        state.finish(&routes);
        assert_eq!(fs::read(&path).unwrap(), routes.state(), "a torn file is replaced");
        for nowhere in ["", "/nonexistent/obi/routes.json"] {
            let mut state = RouteState::open(Path::new(nowhere), &mut routes);
            ask(&mut routes, &format!("/{}", nowhere.len()));
            state.finish(&routes);
        }
    }
}
