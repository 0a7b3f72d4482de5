//! What one peer has not been sent yet: bounded, in order.
//!
//! In: messages; whether the peer took them. Out: the next ones to send. Time is an argument. Refuses to know HTTP.

use std::collections::{HashMap, VecDeque};

use crate::objective::alert::{Alert, Labels, RESEND, nanos};

/// Messages kept for one peer; beyond them the oldest give way, counted.
pub(super) const CAPACITY: usize = 4_000;

/// Messages for one peer.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    queue: VecDeque<Alert>,
    /// How many of the front are on their way.
    under_way: usize,
    /// Incidents that the peer learned of only after they were over, and until when their end is held back: with both
    /// at once, Alertmanager would send no notification.
    held: HashMap<(Labels, u64), u64>,
}

impl Backlog {
    /// Adds messages. One that only repeats what is still waiting takes its place. Returns how many found no room.
    pub(super) fn push(&mut self, alerts: Vec<Alert>) -> usize {
        let mut dropped = 0;
        for alert in alerts {
            let waiting = self.queue.iter_mut().skip(self.under_way).find(|waiting| same(waiting, &alert));
            if let Some(waiting) = waiting {
                *waiting = alert;
                continue;
            }
            if self.queue.len() >= CAPACITY {
                // What is on its way cannot be taken back.
                self.queue.remove(self.under_way);
                dropped += 1;
            }
            self.queue.push_back(alert);
        }
        dropped
    }

    /// The next messages to send, oldest first, at most `limit`; none while there is nothing that may be sent now.
    pub(super) fn next(&mut self, now: u64, limit: usize) -> Vec<Alert> {
        self.held.retain(|_, until| *until > now);
        let held = &self.held;
        let is_held = |alert: &Alert| !alert.is_firing() && held.contains_key(&incident(alert));
        // The ends that are held back stand aside, in their order.
        let (ready, aside): (VecDeque<_>, VecDeque<_>) =
            self.queue.drain(..).partition(|alert| !is_held(alert));
        self.queue = ready;
        let mut batch: Vec<Alert> = Vec::new();
        for alert in self.queue.iter().take(limit) {
            // Beginning and end of one incident are two requests.
            if batch.iter().any(|earlier| earlier.labels == alert.labels) {
                break;
            }
            batch.push(alert.clone());
        }
        self.under_way = batch.len();
        self.queue.extend(aside);
        batch
    }

    /// The peer took what [`Self::next`] gave, or will never take it.
    pub(super) fn done(&mut self, now: u64) {
        for alert in self.queue.drain(..std::mem::take(&mut self.under_way)).collect::<Vec<_>>() {
            let over =
                self.queue.iter().any(|later| !later.is_firing() && incident(later) == incident(&alert));
            if alert.is_firing() && over && self.held.len() < CAPACITY {
                self.held.insert(incident(&alert), now.saturating_add(nanos(RESEND)));
            }
        }
    }

    /// The peer did not take what [`Self::next`] gave; it comes again.
    pub(super) fn failed(&mut self) {
        self.under_way = 0;
    }

    /// Messages waiting.
    pub(super) fn len(&self) -> usize {
        self.queue.len()
    }
}

fn incident(alert: &Alert) -> (Labels, u64) {
    (alert.labels.clone(), alert.starts_at)
}

fn same(a: &Alert, b: &Alert) -> bool {
    a.starts_at == b.starts_at && a.is_firing() == b.is_firing() && a.labels == b.labels
}

#[cfg(test)]
mod tests {
    use super::super::BATCH;
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn alert(name: &str, starts_at: u64, resolved_at: Option<u64>) -> Alert {
        let labels = Labels::from([("slo".to_owned(), name.to_owned())]);
        Alert { labels, annotations: Labels::new(), starts_at, resolved_at }
    }

    fn shown(batch: &[Alert]) -> Vec<String> {
        let state = |alert: &Alert| if alert.is_firing() { "fires" } else { "over" };
        batch.iter().map(|alert| format!("{} {}", alert.labels["slo"], state(alert))).collect()
    }

    #[test]
    fn what_failed_comes_again_and_repetitions_take_no_room() {
        let mut backlog = Backlog::default();
        for _ in 0..3 {
            assert_eq!(backlog.push(vec![alert("a", 1, None), alert("b", 1, None)]), 0);
            assert_eq!(shown(&backlog.next(0, BATCH)), ["a fires", "b fires"]);
            backlog.failed();
        }
        assert_eq!(shown(&backlog.next(0, BATCH)), ["a fires", "b fires"]);
        // What arrives meanwhile is not confused with what is on its way.
        backlog.push(vec![alert("a", 1, None)]);
        backlog.done(0);
        assert_eq!((shown(&backlog.next(0, BATCH)), backlog.len()), (vec!["a fires".to_owned()], 1));
        backlog.done(0);
        assert_eq!((shown(&backlog.next(0, BATCH)), backlog.len()), (Vec::new(), 0));
    }

    #[test]
    fn an_incident_that_was_over_before_it_could_be_reported_is_reported_all_the_same() {
        let mut backlog = Backlog::default();
        backlog.push(vec![alert("a", 1, None)]);
        backlog.next(0, BATCH);
        backlog.failed();
        backlog.push(vec![alert("a", 1, Some(2)), alert("b", 1, None)]);
        let mut reported = Vec::new();
        for second in 0..100 {
            for line in shown(&backlog.next(second * SECOND, BATCH)) {
                reported.push(format!("{second}: {line}"));
            }
            backlog.done(second * SECOND);
        }
        assert_eq!(reported, ["0: a fires", "1: b fires", "60: a over"]);
    }

    #[test]
    fn an_end_that_follows_a_reported_beginning_is_reported_at_once() {
        let mut backlog = Backlog::default();
        backlog.push(vec![alert("a", 1, None)]);
        backlog.next(0, BATCH);
        backlog.done(0);
        backlog.push(vec![alert("a", 1, Some(2))]);
        assert_eq!(shown(&backlog.next(1, BATCH)), ["a over"]);
    }

    #[test]
    fn the_oldest_give_way() {
        let mut backlog = Backlog::default();
        let many =
            |names: std::ops::Range<usize>| names.map(|name| alert(&name.to_string(), 1, None)).collect();
        assert_eq!(backlog.push(many(0..CAPACITY)), 0);
        assert_eq!(backlog.next(0, BATCH).len(), BATCH);
        assert_eq!(backlog.push(many(CAPACITY..CAPACITY + 10)), 10);
        assert_eq!(backlog.len(), CAPACITY);
        backlog.done(0);
        assert_eq!(shown(&backlog.next(0, BATCH))[0], format!("{} fires", BATCH + 10));
    }
}
