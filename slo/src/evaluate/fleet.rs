//! Raw samples of every machine's counters → what the fleet counted, and when it was looked at.
//!
//! In: series in pieces, each piece later than the one before. Out: whole numbers of events with their times, and the
//! times in which no machine was seen. Refuses to extrapolate: an event is counted when a sample shows it, at the time
//! of that sample.
//!
//! Births, restarts and gaps are judged as the generated rules do (see [`crate::rules`]), but on every sample instead
//! of every step.

use std::collections::{BTreeMap, HashMap};

use super::sample::{Labels, Sample, Series};
use crate::indicator::Outcome;
use crate::rules::GAP;
use crate::time::Time;

/// Starts of a process that differ by less are the same start: the clock that they are read from moves.
const SAME_START: f64 = 1.0;

/// What a counter counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// Events of one outcome.
    Outcome(Outcome),
    /// Events of both.
    Total,
}

/// Events that a sample showed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gain {
    /// Time of the sample.
    pub time: Time,
    /// What they are.
    pub role: Role,
    /// How many; never zero.
    pub count: u64,
}

/// All machines seen so far.
#[derive(Debug, Default)]
pub struct Fleet {
    counters: HashMap<(Role, Labels), Sample>,
    /// Newest start of each target's process, and when it was seen.
    starts: BTreeMap<Target, Sample>,
    /// From → until, disjoint, in order.
    seen: Vec<(Time, Time)>,
    machines: BTreeMap<Target, Time>,
}

/// What Prometheus calls a target: job and instance.
type Target = (String, String);

/// Starts of one piece, by target.
type Starts = BTreeMap<Target, Vec<Sample>>;

impl Fleet {
    /// Takes the next piece: counters with their role, and the `process_start_time_seconds` of the same time.
    pub fn add(&mut self, counters: Vec<(Role, Series)>, starts: Vec<Series>) -> Vec<Gain> {
        let starts = self.starts_of(starts);
        let mut gains = Vec::new();
        let mut seen = Vec::new();
        for (role, series) in counters {
            let target = target(&series.labels);
            let known = starts.get(&target).map_or(&[][..], Vec::as_slice);
            let mut last = self.counters.remove(&(role, series.labels.clone()));
            for sample in series.samples {
                if last.is_some_and(|last| sample.time <= last.time) {
                    continue;
                }
                if let Some(last) = last.filter(|last| sample.time.since(last.time) <= GAP) {
                    seen.push((last.time, sample.time));
                }
                let count = count(known, last, sample);
                if count > 0 {
                    gains.push(Gain { time: sample.time, role, count });
                }
                last = Some(sample);
            }
            if let Some(last) = last {
                let newest = self.machines.entry(target).or_insert(last.time);
                *newest = last.time.max(*newest);
                self.counters.insert((role, series.labels), last);
            }
        }
        self.see(seen);
        for (target, samples) in starts {
            self.starts.extend(samples.last().map(|last| (target, *last)));
        }
        gains.sort_by_key(|gain| gain.time);
        gains
    }

    /// How many machines were seen at all.
    pub fn machines(&self) -> usize {
        self.machines.len()
    }

    /// How many of them were seen since `time`.
    pub fn machines_since(&self, time: Time) -> usize {
        self.machines.values().filter(|newest| **newest >= time).count()
    }

    /// The times between `from` and `until` in which no machine was seen.
    pub fn gaps(&self, from: Time, until: Time) -> Vec<(Time, Time)> {
        let mut gaps = Vec::new();
        let mut at = from;
        for (start, end) in &self.seen {
            if *start > at && at < until {
                gaps.push((at, until.min(*start)));
            }
            at = at.max(*end);
        }
        if at < until {
            gaps.push((at, until));
        }
        gaps
    }

    /// Starts of this piece behind the last of the one before.
    fn starts_of(&self, series: Vec<Series>) -> Starts {
        let mut starts = Starts::new();
        for (target, last) in &self.starts {
            starts.insert(target.clone(), vec![*last]);
        }
        for series in series {
            starts.entry(target(&series.labels)).or_default().extend(series.samples);
        }
        for samples in starts.values_mut() {
            samples.sort_by_key(|sample| sample.time);
        }
        starts
    }

    /// Adds what was seen to what was seen before; both stay disjoint and in order.
    fn see(&mut self, mut seen: Vec<(Time, Time)>) {
        seen.append(&mut self.seen);
        seen.sort_unstable();
        for (start, end) in seen {
            match self.seen.last_mut() {
                Some(last) if start <= last.1 => last.1 = last.1.max(end),
                _ => self.seen.push((start, end)),
            }
        }
    }
}

/// What a sample shows that the one before did not.
fn count(starts: &[Sample], last: Option<Sample>, sample: Sample) -> u64 {
    let start = at(starts, sample.time);
    let born_lately = start.is_some_and(|start| start.value >= seconds(sample.time.minus(GAP)));
    let Some(last) = last else {
        // Its target was there without it: it is new. Otherwise only a young process has nothing older.
        let seen_before = start.is_some_and(|start| is_seen_before(starts, start, sample.time));
        return if seen_before || born_lately { whole(sample.value) } else { 0 };
    };
    let old_start = at(starts, last.time);
    let restarted = start.zip(old_start).is_some_and(|(new, old)| new.value - old.value > SAME_START);
    let is_gap = sample.time.since(last.time) > GAP;
    match (restarted || sample.value < last.value, is_gap) {
        (false, false) => whole(sample.value - last.value),
        (true, false) => whole(sample.value),
        (true, true) if born_lately => whole(sample.value),
        (_, true) => 0,
    }
}

/// Whether the target was scraped before `time`, but not long before.
fn is_seen_before(starts: &[Sample], newest: Sample, time: Time) -> bool {
    let before =
        if newest.time < time { Some(newest) } else { at(starts, Time::from_nanos(time.nanos() - 1)) };
    before.is_some_and(|before| time.since(before.time) <= GAP)
}

/// The newest sample that is not after `time`.
fn at(samples: &[Sample], time: Time) -> Option<Sample> {
    let after = samples.partition_point(|sample| sample.time <= time);
    after.checked_sub(1).map(|index| samples[index])
}

fn target(labels: &Labels) -> Target {
    let label = |name: &str| labels.get(name).cloned().unwrap_or_default();
    (label("job"), label("instance"))
}

fn seconds(time: Time) -> f64 {
    time.nanos() as f64 / 1e9
}

#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "counts are whole and not negative"
)]
fn whole(value: f64) -> u64 {
    value.round() as u64
}

#[cfg(test)]
mod tests;
