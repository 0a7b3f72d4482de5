//! The thread that owns the engine: counts come in, once a second everything is evaluated.
//!
//! In: batches of the pipeline, questions, the time. Out: alerts, views, chunks for the disk. Never waits for the disk
//! or the network. Refuses to know how a burn rate is computed and how a request is made.

mod annotate;
mod restore;
mod show;

pub(super) use self::restore::add_up;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slo::alert::{Change, Transition};
use slo::ledger::Series;
use slo::{Counts, Engine, Page, Target, Time};

use super::alert::Lifecycle;
use super::evidence::Exhibit;
use super::notify::Notifier;
use super::record::{self, Count};
use super::state::{Batch, Key, SavedAlerts};
use super::view::View;
use super::writer::Writer;
use super::{Message, identity};

/// Between two evaluations.
const ROUND: Duration = Duration::from_secs(1);
/// Old chunks are looked for this often.
const PRUNE: Duration = Duration::from_secs(3600);
/// Coverage is kept for so long: longer than any period.
const MEMORY: Duration = Duration::from_secs(400 * 86_400);
/// Chunks of these series are needed for so long; those of the longest series as long as the period, and a bit.
const SECONDS_FOR: Duration = Duration::from_secs(7 * 3600);
const MINUTES_FOR: Duration = Duration::from_secs(4 * 86_400);

/// Everything about the objectives of this agent.
#[derive(Debug)]
pub(super) struct Evaluator {
    engine: Engine,
    tracked: Vec<Tracked>,
    lifecycle: Lifecycle,
    notifier: Notifier,
    writer: Writer,
    /// Of each objective, for the pipeline: whether an alert of it fires.
    firing: Arc<[AtomicBool]>,
    /// Distinguishes the alerts of this machine from those of others.
    instance: String,
    messages: Receiver<Message>,
    /// Alerts have changed since they were handed to the writer.
    are_alerts_new: bool,
    pruned: Instant,
}

/// What there is of an objective beside the engine.
#[derive(Debug)]
struct Tracked {
    identity: u64,
    exhibit: Exhibit,
    /// The label `slo` of each part.
    labels: Vec<String>,
}

/// What an evaluator is made of.
#[derive(Debug)]
pub(super) struct Ingredients {
    pub(super) engine: Engine,
    pub(super) notifier: Notifier,
    pub(super) writer: Writer,
    pub(super) firing: Arc<[AtomicBool]>,
    pub(super) instance: String,
    pub(super) messages: Receiver<Message>,
}

impl Evaluator {
    pub(super) fn new(ingredients: Ingredients) -> Self {
        let Ingredients { engine, notifier, writer, firing, instance, messages } = ingredients;
        let tracked = engine.accounts().map(|account| {
            let objective = account.objective();
            let label = |part: &slo::Part| match objective.is_composite() {
                true => format!("{}/{}", objective.name, part.name),
                false => objective.name.clone(),
            };
            Tracked {
                identity: identity::of(account),
                exhibit: Exhibit::default(),
                labels: objective.parts.iter().map(label).collect(),
            }
        });
        Self {
            tracked: tracked.collect(),
            lifecycle: Lifecycle::default(),
            are_alerts_new: false,
            pruned: Instant::now(),
            engine,
            notifier,
            writer,
            firing,
            instance,
            messages,
        }
    }

    /// Until the end is asked for; then everything is on disk, if that is possible.
    pub(super) fn run(mut self) -> Notifier {
        let mut next = Instant::now() + ROUND;
        loop {
            match self.messages.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(Message::Batch(batch)) => self.take(batch),
                Ok(Message::Left(left)) => self.restore_late(*left),
                Ok(Message::Ask(reply)) => {
                    // Who asked may have gone.
                    let _ = reply.try_send(self.view());
                }
                Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if Instant::now() >= next {
                self.round();
                next = Instant::now() + ROUND;
            }
        }
        self.finish()
    }

    fn take(&mut self, batch: record::Batch) {
        for Count { objective, part, at, good, bad } in batch.counts {
            let target = Target { objective: objective as usize, part: part as usize };
            // An event that is too old for every window, or of a clock far ahead, belongs to no slot.
            let _ = self.engine.record_n(target, time(at), Counts { good, bad });
        }
        for (objective, exhibit) in batch.exhibits {
            self.tracked[objective as usize].exhibit = exhibit;
        }
    }

    fn round(&mut self) {
        let now = unix_now();
        let transitions = self.engine.evaluate(time(now));
        transitions.iter().for_each(report);
        self.send(now, !transitions.is_empty());
        self.save();
    }

    /// Messages that are due go out.
    fn send(&mut self, now: u64, is_changed: bool) {
        let firing = self.firing_alerts(now);
        let changed = self.lifecycle.observe(firing, now);
        let due = self.lifecycle.due(now);
        self.are_alerts_new |= is_changed || !changed.is_empty();
        self.notifier.send(&due, &changed);
    }

    /// Hands what has changed to the writer, when that has time.
    fn save(&mut self) {
        if !self.writer.is_idle() {
            return;
        }
        if self.pruned.elapsed() >= PRUNE {
            self.pruned = Instant::now();
            self.prune();
            return;
        }
        let batch = self.batch();
        self.writer.write(batch);
    }

    fn batch(&mut self) -> Batch {
        let mut chunks = Vec::new();
        let tracked = &self.tracked;
        self.engine
            .drain(|objective, page| chunks.push((key(tracked[objective].identity, &page), page.encode())));
        // What was observed grows at its end; after a step of the clock, before that.
        let intervals = self.engine.coverage().intervals();
        let newest = intervals.iter().rev().take(2).map(|(begin, end)| (begin.nanos(), end.nanos()));
        let alerts = std::mem::take(&mut self.are_alerts_new).then(|| SavedAlerts {
            alerts: self.lifecycle.alerts().cloned().collect(),
            arms: self.engine.save_arms().into_iter().map(Into::into).collect(),
        });
        Batch { chunks, coverage: newest.collect(), alerts }
    }

    fn prune(&self) {
        let now = time(unix_now());
        let periods = self.engine.accounts().zip(&self.tracked).map(|(account, tracked)| {
            let period = account.objective().window.duration();
            (tracked.identity, period + period / 10 + MINUTES_FOR)
        });
        let periods: std::collections::HashMap<u64, Duration> = periods.collect();
        let is_needed = move |(identity, _, series, index): Key| {
            let Some(period) = periods.get(&identity) else {
                // Of an objective that may come back; the page's own time is not known without it.
                return true;
            };
            let slots = |length: Duration, keep: Duration| {
                let page = length.as_secs().saturating_mul(slo::ledger::PAGE as u64);
                let end = index.saturating_add(1).saturating_mul(i64::try_from(page).unwrap_or(i64::MAX));
                end >= now.minus(keep).seconds()
            };
            match Series::from_number(series) {
                Some(Series::Seconds) => slots(Duration::from_secs(10), SECONDS_FOR),
                Some(Series::Minutes) => slots(Duration::from_secs(60), MINUTES_FOR),
                // Slots may be longer than an hour: then this keeps more than is needed.
                Some(Series::Hours | Series::Burn) => slots(Duration::from_secs(3600), *period),
                None => true,
            }
        };
        self.writer.prune(now.minus(MEMORY).nanos(), Box::new(is_needed));
    }

    fn finish(mut self) -> Notifier {
        while let Ok(message) = self.messages.try_recv() {
            if let Message::Batch(batch) = message {
                self.take(batch);
            }
        }
        self.are_alerts_new = true;
        let batch = self.batch();
        if self.writer.finish(batch) {
            tracing::debug!("all counts of objectives are written");
        }
        self.notifier
    }

    /// What a counter shows: the events of this process. Who adds counters up takes a new process for a reset, and
    /// would count again what a counter brought along.
    fn total(&self, objective: usize, part: usize) -> Counts {
        let counted = self.engine.account(objective).and_then(|account| account.ledgers().get(part));
        counted.map(slo::ledger::Ledger::counted).unwrap_or_default()
    }

    fn view(&mut self) -> View {
        self.show(unix_now())
    }

    /// Shows the pipeline whose evidence is to stay.
    fn mark_firing(&self, alerts: &[slo::alert::Alert]) {
        for (objective, is_firing) in self.firing.iter().enumerate() {
            let fires = alerts.iter().any(|alert| alert.objective == objective);
            is_firing.store(fires, Ordering::Relaxed);
        }
    }
}

/// One line per beginning and end.
fn report(transition: &Transition) {
    let alert = &transition.alert;
    let (slo, service, severity) = (&alert.name, &alert.service, &alert.severity);
    match transition.change {
        Change::Fired => tracing::warn!(slo, service, severity, "error budget burns too fast"),
        Change::Resolved(end) => {
            tracing::info!(slo, service, severity, reason = ?end, "error budget no longer burns too fast")
        }
    }
}

fn key(identity: u64, page: &Page) -> Key {
    (identity, page.key.part, page.key.series as u8, page.key.index)
}

/// From Unix nanoseconds.
fn time(unix_nanoseconds: u64) -> Time {
    Time::from_nanos(i64::try_from(unix_nanoseconds).unwrap_or(i64::MAX))
}

fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, super::alert::nanos)
}

#[cfg(test)]
mod tests;
