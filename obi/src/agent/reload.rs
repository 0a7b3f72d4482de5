//! SIGHUP: the configuration is read again while the agent runs.
//!
//! In: the signal. Out: new rules for discovery and new routes, handed to the pipeline; or a refusal, logged and counted,
//! after which everything goes on as before. Keys that only a start can apply are named in the log and otherwise left
//! alone. Refuses to know what the pipeline does with it.

use std::io;
use std::sync::Arc;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::outlet::Outlet;
use super::wait::Bell;
use crate::config::{Config, Discover, Source};
use crate::span::route::Patterns;

/// What the pipeline is told.
#[derive(Debug)]
pub(super) enum Reload {
    /// From now on this holds.
    Apply(Box<Applied>),
    /// A configuration was refused; it is only counted.
    Refused,
}

/// What can change while the agent runs.
#[derive(Debug)]
pub(super) struct Applied {
    discover: Discover,
    patterns: Patterns,
    route_limit: usize,
}

/// Reloads that may wait for the pipeline.
const WAITING: usize = 4;

/// Keys, or whole sections, that a reload applies.
const APPLIED: [&str; 3] = ["discover", "trace.routes", "metrics.route_limit"];

/// Waits for the signal and reads the configuration again.
pub(super) struct Reloader {
    hangups: Signal,
    source: Arc<Source>,
    current: Config,
    sender: mpsc::Sender<Reload>,
}

/// From now on SIGHUP no longer ends the process. Must be called inside a tokio runtime.
///
/// # Errors
/// When the signal handler cannot be installed.
pub(super) fn on_hangup(source: Source, current: Config) -> io::Result<(Reloader, mpsc::Receiver<Reload>)> {
    let hangups = signal(SignalKind::hangup())?;
    let (sender, receiver) = mpsc::channel(WAITING);
    Ok((Reloader { hangups, source: Arc::new(source), current, sender }, receiver))
}

impl Reloader {
    /// Runs until the pipeline is gone. `bell` wakes it.
    pub(super) async fn run(mut self, bell: Bell) {
        while self.hangups.recv().await.is_some() {
            let reload = self.reload().await;
            if self.sender.send(reload).await.is_err() {
                return;
            }
            bell.ring();
        }
    }

    async fn reload(&mut self) -> Reload {
        let source = Arc::clone(&self.source);
        let loaded = match tokio::task::spawn_blocking(move || source.load()).await {
            Ok(Ok(loaded)) => loaded,
            Ok(Err(error)) => return refuse(&error),
            Err(error) => return refuse(&error),
        };
        let patterns = match Patterns::new(&loaded.trace.routes) {
            Ok(patterns) => patterns,
            Err(error) => return refuse(&error),
        };
        let changed = self.current.changed_keys(&loaded);
        let (applied, later): (Vec<_>, Vec<_>) = changed.into_iter().partition(|key| is_applied(key));
        if !later.is_empty() {
            tracing::warn!(keys = later.join(", "), "SIGHUP: these keys have changed and need a restart");
        }
        tracing::info!(changed = applied.join(", "), "SIGHUP: configuration reloaded");
        let discover = loaded.discover.clone();
        let route_limit = loaded.metrics.route_limit as usize;
        self.current.discover = loaded.discover;
        self.current.trace.routes = loaded.trace.routes;
        self.current.metrics.route_limit = loaded.metrics.route_limit;
        Reload::Apply(Box::new(Applied { discover, patterns, route_limit }))
    }
}

fn refuse(error: &dyn std::error::Error) -> Reload {
    tracing::error!("SIGHUP: configuration refused, the old one stays: {error}");
    Reload::Refused
}

fn is_applied(key: &str) -> bool {
    APPLIED
        .iter()
        .any(|applied| key.strip_prefix(applied).is_some_and(|rest| rest.is_empty() || rest.starts_with('.')))
}

impl Reload {
    /// In the pipeline thread, between two events.
    pub(super) fn take_effect(self, outlet: &mut Outlet) {
        let Self::Apply(applied) = self else {
            return outlet.stats.reload(false);
        };
        let Applied { discover, patterns, route_limit } = *applied;
        outlet.processes.set_rules(discover);
        outlet.assembler.routes_mut().configure(patterns, route_limit);
        outlet.stats.reload(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_applied() {
        fn check(key: &str, expected: bool) {
            assert_eq!(is_applied(key), expected, "{key}");
        }
        check("discover.include", true);
        check("discover", true);
        check("trace.routes", true);
        check("trace.routes_of_others", false);
        check("trace.route_state", false);
        check("metrics.route_limit", true);
        check("metrics.series_limit", false);
        check("web.listen", false);
    }

    #[tokio::test]
    async fn a_bad_file_is_refused_and_a_good_one_applied() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "trace: {routes: [/a/*]}").unwrap();
        let source = Source { file: Some(file.path().to_owned()) };
        let config = source.load().unwrap();
        let (mut reloader, _receiver) = on_hangup(source, config).unwrap();
        for bad in ["trace: {routes: [a]}", "web: [", "discover: {include: [{}]}"] {
            std::fs::write(file.path(), bad).unwrap();
            assert!(matches!(reloader.reload().await, Reload::Refused), "{bad}");
            assert_eq!(reloader.current.trace.routes, ["/a/*"]);
        }
        std::fs::write(file.path(), "trace: {routes: [/b]}\nweb: {spans: 7}\nmetrics: {route_limit: 3}")
            .unwrap();
        let Reload::Apply(applied) = reloader.reload().await else { panic!("refused") };
        assert_eq!((applied.route_limit, applied.patterns.find("/b").is_some()), (3, true));
        assert_eq!((reloader.current.metrics.route_limit, reloader.current.web.spans), (3, 10_000));
    }
}
