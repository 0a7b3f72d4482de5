//! Exports beside the pipeline: a snapshot now and then while the agent runs, and everything at its end.
//!
//! In: an exporter, others that a reload puts in its place, the way to ask the pipeline, its last state. Out: nothing
//! but requests. Refuses to know how they are made.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Interval, MissedTickBehavior, interval_at};

use super::span_pipeline::SpanPipeline;
use crate::export::Metrics;
use crate::export::otlp::Exporter;
use crate::objective;
use crate::objective::view::View;
use crate::profile::Selection;
use crate::receive::{Kind, Passed};
use crate::stats::Process;
use crate::web::{Command, Handle};

/// How long the end may wait for destinations; so may an exporter that a reload replaced, when the next one goes, too.
const FLUSH: Duration = Duration::from_secs(5);

/// An exporter and the time between two snapshots.
#[derive(Debug)]
pub(super) struct Export {
    pub(super) exporter: Exporter,
    pub(super) period: Duration,
}

/// Takes the exporters of later configurations.
pub(super) type Replacements = mpsc::UnboundedSender<Export>;

/// The task that exports metrics.
pub(super) struct Exports {
    stop: oneshot::Sender<()>,
    task: JoinHandle<Running>,
}

/// What runs: an exporter, and former ones that still send what was queued.
struct Running {
    current: Export,
    former: JoinSet<()>,
    /// Gone when the last of the former ones has to come to an end.
    ending: watch::Sender<()>,
}

/// Where later exporters go in, and come out.
pub(super) fn replacements() -> (Replacements, mpsc::UnboundedReceiver<Export>) {
    mpsc::unbounded_channel()
}

/// Starts exporting snapshots.
pub(super) fn start(
    export: Export,
    replacements: mpsc::UnboundedReceiver<Export>,
    handle: Handle,
    Sources { profiles, passed, objectives }: Sources,
) -> Exports {
    let (stop, stopped) = oneshot::channel();
    let running = Running { current: export, former: JoinSet::new(), ending: watch::Sender::new(()) };
    Exports {
        stop,
        task: tokio::spawn(run(
            running,
            Inputs { replacements, profiles, passed },
            Asked { handle, objectives },
            stopped,
        )),
    }
}

/// Samples to be exported.
#[derive(Debug)]
pub(super) struct Profiles {
    pub(super) selections: mpsc::Receiver<Selection>,
    /// Whether a destination takes them; else they are not even named.
    pub(super) wanted: Arc<AtomicBool>,
}

impl Profiles {
    /// The next samples; never when no more come.
    async fn next(profiles: &mut Option<Self>) -> Selection {
        if let Some(open) = profiles {
            if let Some(selection) = open.selections.recv().await {
                return selection;
            }
            *profiles = None;
        }
        std::future::pending().await
    }
}

/// What comes to be exported beside metrics.
#[derive(Debug, Default)]
pub(super) struct Sources {
    pub(super) profiles: Option<Profiles>,
    pub(super) passed: Option<Passing>,
    /// For remote write, which has all that a scrape has.
    pub(super) objectives: objective::Handle,
}

/// Who is asked for metrics.
struct Asked {
    handle: Handle,
    objectives: objective::Handle,
}

impl Asked {
    /// What a scrape would show.
    async fn everything(&self) -> Option<Arc<Metrics>> {
        let metrics = match self.handle.ask(Command::Metrics).await {
            Ok(metrics) => metrics,
            Err(error) => {
                tracing::warn!(%error, "metrics not written this time");
                return None;
            }
        };
        let objectives = self.objectives.clone();
        // Both may wait: for `/proc`, for the thread of objectives.
        let whole = tokio::task::spawn_blocking(move || with_all(metrics, objectives.view()));
        whole.await.ok().map(Arc::new)
    }
}

/// With what the pipeline does not know.
fn with_all(metrics: Metrics, objectives: Option<View>) -> Metrics {
    Metrics { process: Process::read().ok(), objectives: objectives.map(Arc::new), ..metrics }
}

/// Metrics and logs of others, on their way.
#[derive(Debug)]
pub(super) struct Passing {
    pub(super) requests: mpsc::Receiver<Passed>,
    pub(super) wanted: Arc<Wanted>,
}

/// What of others' some destination takes.
#[derive(Debug, Default)]
pub(super) struct Wanted {
    metrics: AtomicBool,
    logs: AtomicBool,
}

impl Wanted {
    pub(super) fn by(&self, exporter: &Exporter) {
        self.metrics.store(exporter.takes(Kind::Metrics), Ordering::Relaxed);
        self.logs.store(exporter.takes(Kind::Logs), Ordering::Relaxed);
    }

    pub(super) fn has(&self, kind: Kind) -> bool {
        match kind {
            Kind::Traces => true,
            Kind::Metrics => self.metrics.load(Ordering::Relaxed),
            Kind::Logs => self.logs.load(Ordering::Relaxed),
        }
    }
}

impl Passing {
    /// The next request; never when no more come.
    async fn next(passing: &mut Option<Self>) -> Passed {
        if let Some(open) = passing {
            if let Some(passed) = open.requests.recv().await {
                return passed;
            }
            *passing = None;
        }
        std::future::pending().await
    }
}

/// What comes to be exported, and by whom.
struct Inputs {
    replacements: mpsc::UnboundedReceiver<Export>,
    profiles: Option<Profiles>,
    passed: Option<Passing>,
}

async fn run(
    mut running: Running,
    Inputs { mut replacements, mut profiles, mut passed }: Inputs,
    asked: Asked,
    mut stopped: oneshot::Receiver<()>,
) -> Running {
    let mut ticks = ticks(running.current.period);
    loop {
        tokio::select! {
            // Whichever way it ends, it is time.
            _ = &mut stopped => break,
            Some(next) = replacements.recv() => {
                if next.period != running.current.period {
                    ticks = self::ticks(next.period);
                }
                running.replace(next);
                if let Some(profiles) = &profiles {
                    profiles.wanted.store(running.current.exporter.wants_profiles(), Ordering::Relaxed);
                }
                if let Some(passed) = &passed {
                    passed.wanted.by(&running.current.exporter);
                }
            }
            selection = Profiles::next(&mut profiles) => running.current.exporter.export_profile(&selection),
            request = Passing::next(&mut passed) => running.current.exporter.pass_on(&request),
            _ = ticks.tick(), if running.current.exporter.wants_metrics() => match asked.handle.ask(Command::Metrics).await {
                Ok(metrics) => running.current.exporter.export(&metrics.red, unix_now()),
                Err(error) => tracing::warn!(%error, "metrics not exported this time"),
            },
            () = running.current.exporter.until_due() => {
                let metrics = asked.everything().await;
                running.current.exporter.write(metrics.as_ref(), unix_now());
            }
        }
    }
    while let Ok(next) = replacements.try_recv() {
        running.replace(next);
    }
    while let Some(selection) = profiles.as_mut().and_then(|open| open.selections.try_recv().ok()) {
        running.current.exporter.export_profile(&selection);
    }
    while let Some(request) = passed.as_mut().and_then(|open| open.requests.try_recv().ok()) {
        running.current.exporter.pass_on(&request);
    }
    running
}

/// The first one is not now: there is nothing yet.
fn ticks(period: Duration) -> Interval {
    let mut ticks = interval_at(tokio::time::Instant::now() + period, period);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    ticks
}

impl Running {
    /// The exporter so far sends what is queued beside the new one. One before it has had its time: so at most two
    /// queues per destination hold memory for long.
    fn replace(&mut self, next: Export) {
        let Export { mut exporter, .. } = std::mem::replace(&mut self.current, next);
        self.current.exporter.succeed(&mut exporter, unix_now());
        let (ending, reported) = watch::channel(());
        self.ending = ending;
        self.former.spawn(retire(exporter, reported));
        while self.former.try_join_next().is_some() {}
    }
}

/// Sends what is queued for as long as its destinations may be tried, or until `ending`'s other end is gone.
async fn retire(mut exporter: Exporter, mut ending: watch::Receiver<()>) {
    let limit = exporter.retry_for();
    let left = tokio::select! {
        () = exporter.drain(limit) => Duration::ZERO,
        _ = ending.changed() => FLUSH,
    };
    exporter.finish(left).await;
}

impl Exports {
    /// Exports the pipeline's last state, and that of objectives, and waits, not for long, until everything has been
    /// sent.
    pub(super) async fn finish(self, span_pipeline: &mut SpanPipeline, objectives: Option<View>) {
        // A task that has ended takes no message.
        let _ = self.stop.send(());
        let Ok(Running { current, mut former, ending }) = self.task.await else { return };
        let mut exporter = current.exporter;
        if exporter.wants_metrics() {
            exporter.export(&span_pipeline.registry.snapshot(), unix_now());
        }
        if exporter.writes() {
            let metrics = Metrics::take(&mut span_pipeline.registry, &mut span_pipeline.stats);
            exporter.write_last(&Arc::new(with_all(metrics, objectives)), unix_now());
        }
        // With it, the last way to queue spans is gone.
        drop(std::mem::take(&mut span_pipeline.span_export));
        drop(ending);
        let former = async { while former.join_next().await.is_some() {} };
        tokio::join!(exporter.finish(FLUSH), former);
    }
}

fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}
