//! Objectives in the pipeline: spans to counts and evidence, handed over now and then.
//!
//! In: every span, before and after it went into the store. Out: batches for the thread that evaluates. Never waits:
//! when that thread is busy, counts go on adding up here, and nothing is lost. Refuses to know budgets and burn rates.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{SyncSender, TrySendError};

use slo::{Objective, Outcome};

use super::Message;
use super::classify::{Classes, Verdict};
use super::evidence::{Bad, Evidence, Exhibit};
use crate::span::Span;
use crate::span_store::Store;

/// Events are added up by time slots of this length, the finest that the ledgers have; nanoseconds.
const SLOT: u64 = 10_000_000_000;

/// Events of one part of an objective that ended in one slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count {
    /// Index of the objective.
    pub objective: u32,
    /// Index of its part.
    pub part: u32,
    /// Begin of the slot, Unix nanoseconds.
    pub at: u64,
    /// Good events.
    pub good: u64,
    /// Bad events.
    pub bad: u64,
}

/// What has happened since the last batch.
#[derive(Debug, Default)]
pub struct Batch {
    /// Events.
    pub counts: Vec<Count>,
    /// Evidence that has changed, by objective.
    pub exhibits: Vec<(u32, Exhibit)>,
}

/// The pipeline's end.
#[derive(Debug)]
pub struct Recorder {
    classes: Classes,
    pending: Batch,
    /// For each indicator the index of its newest count in `pending`.
    newest: Vec<Option<usize>>,
    evidence: Vec<Evidence>,
    /// Objectives with new evidence.
    noted: Vec<u32>,
    /// The span that was recorded last, if it was bad for anyone.
    bad: Option<BadSpan>,
    /// Objectives that it was bad for.
    bad_for: Vec<u32>,
    sender: SyncSender<Message>,
    firing: Arc<[AtomicBool]>,
}

#[derive(Debug)]
struct BadSpan {
    trace_id: [u8; 16],
    at: u64,
    verb: &'static str,
    place: Arc<str>,
}

impl Recorder {
    /// Records for these objectives; `firing` says of each whether an alert of it fires.
    #[must_use]
    pub(super) fn new(
        objectives: &[Objective],
        sender: SyncSender<Message>,
        firing: Arc<[AtomicBool]>,
    ) -> Self {
        let classes = Classes::new(objectives);
        Self {
            pending: Batch::default(),
            newest: vec![None; classes.len()],
            classes,
            evidence: objectives.iter().map(|_| Evidence::default()).collect(),
            noted: Vec::new(),
            bad: None,
            bad_for: Vec::new(),
            sender,
            firing,
        }
    }

    /// Counts a span for every objective that it concerns.
    pub fn record(&mut self, span: &Span) {
        let at = span.end - span.end % SLOT;
        let Self { classes, pending, newest, bad_for, .. } = self;
        bad_for.clear();
        classes.classify(span, |verdict| {
            let counts = &mut pending.counts;
            let index = slot_of(counts, &mut newest[verdict.indicator as usize], verdict, at);
            match verdict.outcome {
                Outcome::Good => counts[index].good += 1,
                Outcome::Bad => {
                    counts[index].bad += 1;
                    if bad_for.last() != Some(&verdict.objective) {
                        bad_for.push(verdict.objective);
                    }
                }
            }
        });
        let operation = span.detail.operation();
        self.bad = (!self.bad_for.is_empty()).then(|| BadSpan {
            trace_id: span.trace_id,
            at: span.end,
            verb: operation.verb,
            place: Arc::clone(operation.place),
        });
    }

    /// The span recorded last is the newest one in this store: what was bad about it can be shown.
    pub fn stored(&mut self, store: &mut Store) {
        let Some(BadSpan { trace_id, at, verb, place }) = &self.bad else { return };
        let bad = Bad { sequence: store.last(), trace_id: *trace_id, at: *at, method: verb, route: place };
        for objective in &self.bad_for {
            let index = *objective as usize;
            let evidence = &mut self.evidence[index];
            evidence.freeze(self.firing[index].load(Ordering::Relaxed));
            evidence.note(&bad, store);
            if !self.noted.contains(objective) {
                self.noted.push(*objective);
            }
        }
        self.bad = None;
    }

    /// To be called now and then, with the time in Unix nanoseconds: lets go of evidence that is no longer needed.
    pub fn tick(&mut self, now: u64, store: &mut Store) {
        for (evidence, is_firing) in self.evidence.iter_mut().zip(&*self.firing) {
            evidence.tick(is_firing.load(Ordering::Relaxed), now, store);
        }
    }

    /// Hands over what there is, if the other side can take it.
    pub fn flush(&mut self) {
        for objective in self.noted.drain(..) {
            if let Some(exhibit) = self.evidence[objective as usize].take_changed() {
                self.pending.exhibits.retain(|(known, _)| *known != objective);
                self.pending.exhibits.push((objective, exhibit));
            }
        }
        if self.pending.counts.is_empty() && self.pending.exhibits.is_empty() {
            return;
        }
        match self.sender.try_send(Message::Batch(std::mem::take(&mut self.pending))) {
            Ok(()) => self.newest.fill(None),
            Err(TrySendError::Full(Message::Batch(batch))) => self.pending = batch,
            // Only at the end, when nothing is evaluated any more.
            Err(_) => self.newest.fill(None),
        }
    }
}

/// Index of the count for this verdict and slot; made when there is none.
fn slot_of(counts: &mut Vec<Count>, newest: &mut Option<usize>, verdict: Verdict, at: u64) -> usize {
    let Verdict { objective, part, .. } = verdict;
    let is_same = |count: &Count| (count.objective, count.part, count.at) == (objective, part, at);
    if let Some(index) = newest.filter(|index| is_same(&counts[*index])) {
        return index;
    }
    // A late event, or the first of a new slot; there are few of either.
    if newest.is_some()
        && let Some(index) = counts.iter().rposition(is_same)
    {
        return index;
    }
    counts.push(Count { objective, part, at, good: 0, bad: 0 });
    let index = counts.len() - 1;
    // What is newest is met again.
    if newest.is_none_or(|newest| counts[newest].at < at) {
        *newest = Some(index);
    }
    index
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::super::classify::tests::{objectives, slo};
    use super::*;
    use crate::red::tests::{service, span_with};
    use crate::span::SpanKind;
    use crate::span_store::Limits;

    fn recorder(room: usize) -> (Recorder, Receiver<Message>, Store) {
        let total = "{service: service-1}";
        let objectives = objectives(&[
            slo("errors", total, "{outcome: good}"),
            slo("speed", total, "{faster_than: 1ms}"),
            slo("other", "{service: service-2}", "{outcome: good}"),
        ]);
        let (sender, receiver) = sync_channel(room);
        let firing = objectives.iter().map(|_| AtomicBool::new(false)).collect();
        (Recorder::new(&objectives, sender, firing), receiver, Store::new(Limits::default()))
    }

    /// A span that took 12 ms and ended at this second.
    fn record(recorder: &mut Recorder, store: &mut Store, second: u64, is_error: bool) {
        let mut span = span_with(SpanKind::Server, |span| {
            span.error_type = if is_error { "500" } else { "" };
        });
        span.service = service(1);
        span.end = second * 1_000_000_000;
        span.start = span.end - 12_000_000;
        recorder.record(&span);
        store.push(span);
        recorder.stored(store);
    }

    fn batch(receiver: &Receiver<Message>) -> Option<Batch> {
        match receiver.try_recv() {
            Ok(Message::Batch(batch)) => Some(batch),
            _ => None,
        }
    }

    #[test]
    fn events_add_up_by_slot_of_their_end() {
        let (mut recorder, receiver, mut store) = recorder(1);
        recorder.flush();
        assert!(batch(&receiver).is_none(), "nothing has happened");
        for (second, is_error) in
            [(100, false), (109, true), (110, false), (105, false), (111, true), (99, false)]
        {
            record(&mut recorder, &mut store, second, is_error);
        }
        recorder.flush();
        let batch = batch(&receiver).unwrap();
        let mut counts: Vec<_> = batch
            .counts
            .iter()
            .map(|count| (count.objective, count.at / 1_000_000_000, count.good, count.bad))
            .collect();
        counts.sort_unstable();
        let expected =
            [(0, 90, 1, 0), (0, 100, 2, 1), (0, 110, 1, 1), (1, 90, 0, 1), (1, 100, 0, 3), (1, 110, 0, 2)];
        assert_eq!(counts, expected);
        let shown: Vec<_> = batch.exhibits.iter().map(|(objective, _)| *objective).collect();
        assert_eq!(shown.len(), 2);
        assert_eq!(batch.exhibits[0].1.worst_route, "GET /item/{id}");
    }

    #[test]
    fn a_busy_reader_costs_nothing_but_time() {
        let (mut recorder, receiver, mut store) = recorder(1);
        for second in 0..1_000 {
            record(&mut recorder, &mut store, 1_000 + second, second % 2 == 0);
            recorder.flush();
        }
        let mut total = (0, 0);
        while let Some(batch) = batch(&receiver) {
            for count in batch.counts.iter().filter(|count| count.objective == 0) {
                total = (total.0 + count.good, total.1 + count.bad);
            }
            recorder.flush();
        }
        assert_eq!(total, (500, 500));
        drop(receiver);
        record(&mut recorder, &mut store, 1, true);
        recorder.flush();
        record(&mut recorder, &mut store, 1, true);
    }
}
