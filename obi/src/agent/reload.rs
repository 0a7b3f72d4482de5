//! SIGHUP: the configuration is read again while the agent runs.
//!
//! In: the signal. Out: new rules for discovery, new routes and new destinations, handed to the pipeline and to the
//! task that exports; or a refusal, logged and counted, after which everything goes on as before. Keys that only a
//! start can apply are named in the log and otherwise left alone. Refuses to know what the pipeline does with it.

use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;

use super::exports::{Export, Replacements};
use super::span_pipeline::SpanPipeline;
use super::systemd;
use super::wait::Bell;
use crate::config::{Config, Discover, Source};
use crate::export::otlp::{Accounts, Plan, SpanExport};
use crate::span::route::Patterns;

/// What a reload sends to the pipeline.
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
    /// `None` when the destinations are as before; then they are left alone.
    span_export: Option<SpanExport>,
}

/// Reloads that may wait for the pipeline.
const WAITING: usize = 4;

/// Keys, or whole sections, that a reload applies.
const APPLIED: [&str; 4] = ["discover", "trace.routes", "metrics.route_limit", "export"];

/// Waits for the signal and reads the configuration again.
pub(super) struct Reloader {
    hangups: Signal,
    source: Arc<Source>,
    current: Config,
    sender: mpsc::Sender<Reload>,
    exported: Exported,
}

/// Where exports stand: what has been counted, and where later exporters go.
pub(super) struct Exported {
    pub(super) accounts: Accounts,
    pub(super) replacements: Replacements,
}

/// From now on SIGHUP no longer ends the process. Must be called inside a tokio runtime.
///
/// # Errors
/// When the signal handler cannot be installed.
pub(super) fn on_hangup(
    source: Source,
    current: Config,
    exported: Exported,
) -> io::Result<(Reloader, mpsc::Receiver<Reload>)> {
    let hangups = signal(SignalKind::hangup())?;
    let (sender, receiver) = mpsc::channel(WAITING);
    let source = Arc::new(source);
    Ok((Reloader { hangups, source, current, sender, exported }, receiver))
}

impl Reloader {
    /// Runs until the pipeline is gone. `bell` wakes it.
    pub(super) async fn run(mut self, bell: Bell) {
        while self.hangups.recv().await.is_some() {
            systemd::reloading();
            let reload = self.reload().await;
            systemd::reloaded();
            if self.sender.send(reload).await.is_err() {
                return;
            }
            bell.ring();
        }
    }

    async fn reload(&mut self) -> Reload {
        let (source, export) = (Arc::clone(&self.source), self.current.export.clone());
        let accounts = self.exported.accounts.clone();
        let read = tokio::task::spawn_blocking(move || {
            let loaded = source.load()?;
            let patterns = Patterns::new(&loaded.trace.routes)?;
            // Reads certificates and keys; what was read at the start may be out of reach by now.
            let plan =
                (loaded.export != export).then(|| Plan::after(accounts, &loaded.export)).transpose()?;
            anyhow::Ok((loaded, patterns, plan))
        });
        let (loaded, patterns, plan) = match read.await {
            Ok(Ok(read)) => read,
            Ok(Err(error)) => return refuse(&error),
            Err(error) => return refuse(&error),
        };
        let changed = self.current.changed_keys(&loaded);
        let (applied, later): (Vec<_>, Vec<_>) = changed.into_iter().partition(|key| is_applied(key));
        if !later.is_empty() {
            tracing::warn!(keys = later.join(", "), "SIGHUP: these keys have changed and need a restart");
        }
        tracing::info!(changed = applied.join(", "), "SIGHUP: configuration reloaded");
        let span_export = plan.map(|plan| self.exported.replace(plan, loaded.export.metric_interval));
        let discover = loaded.discover.clone();
        let route_limit = loaded.metrics.route_limit as usize;
        self.current.discover = loaded.discover;
        self.current.trace.routes = loaded.trace.routes;
        self.current.metrics.route_limit = loaded.metrics.route_limit;
        self.current.export = loaded.export;
        Reload::Apply(Box::new(Applied { discover, patterns, route_limit, span_export }))
    }
}

impl Exported {
    /// Starts new lanes; the [`SpanExport`] is for the pipeline.
    fn replace(&mut self, plan: Plan, period: Duration) -> SpanExport {
        self.accounts = plan.accounts().clone();
        let (span_export, exporter) = plan.start();
        // Its receiver is gone when the agent ends: then nothing is exported any more.
        let _ = self.replacements.send(Export { exporter, period });
        span_export
    }
}

fn refuse(error: &dyn Display) -> Reload {
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
    pub(super) fn take_effect(self, span_pipeline: &mut SpanPipeline) {
        let Self::Apply(applied) = self else {
            return span_pipeline.stats.reload(false);
        };
        let Applied { discover, patterns, route_limit, span_export } = *applied;
        if let Some(span_export) = span_export {
            span_pipeline.span_export.replace(span_export);
        }
        span_pipeline.processes.set_rules(discover);
        span_pipeline.assembler.routes_mut().configure(patterns, route_limit);
        span_pipeline.stats.reload(true);
    }
}

#[cfg(test)]
mod tests {
    use super::super::exports;
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
        check("export.otlp", true);
    }

    fn exported() -> (Exported, mpsc::UnboundedReceiver<Export>) {
        let (replacements, received) = exports::replacements();
        (Exported { accounts: Accounts::new(1), replacements }, received)
    }

    #[tokio::test]
    async fn a_bad_file_is_refused_and_a_good_one_applied() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "trace: {routes: [/a/*]}").unwrap();
        let source = Source { file: Some(file.path().to_owned()) };
        let config = source.load().unwrap();
        let (mut reloader, _receiver) = on_hangup(source, config, exported().0).unwrap();
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

    #[tokio::test]
    async fn destinations_change_when_all_of_them_can_be_used() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let write = |text: &str| std::fs::write(file.path(), text).unwrap();
        write("trace: {routes: [/a]}");
        let source = Source { file: Some(file.path().to_owned()) };
        let config = source.load().unwrap();
        let (exported, mut received) = exported();
        let (mut reloader, _receiver) = on_hangup(source, config, exported).unwrap();

        // As before: nothing of exports is touched.
        write("trace: {routes: [/b]}");
        assert!(matches!(reloader.reload().await, Reload::Apply(applied) if applied.span_export.is_none()));
        assert!(received.try_recv().is_err());

        // A certificate that cannot be read: the old ones stay, and the routes beside them.
        write(
            "trace: {routes: [/c]}\nexport: {otlp: [{endpoint: \"https://c:1\", ca_file: /nowhere/ca.pem}]}",
        );
        assert!(matches!(reloader.reload().await, Reload::Refused));
        assert!(reloader.current.export.otlp.is_empty() && reloader.current.trace.routes == ["/b"]);
        assert!(received.try_recv().is_err() && reloader.exported.accounts.is_empty());

        write("export: {otlp: [{endpoint: \"http://127.0.0.1:1\"}], metric_interval: 2s}");
        let Reload::Apply(applied) = reloader.reload().await else { panic!("refused") };
        assert_eq!(applied.span_export.map(|span_export| span_export.lanes().len()), Some(3));
        assert_eq!(received.try_recv().unwrap().period, Duration::from_secs(2));
        assert_eq!(reloader.current.export.otlp.len(), 1);
    }
}
