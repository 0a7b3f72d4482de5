//! What happened: processes, and the events that they served.
//!
//! In: bursts of events. Out: events by second for an engine, and counters as two kinds of exporters show them at a
//! scrape.

/// Good or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Good,
    Bad,
}

/// Events at equal distances.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Burst {
    pub(crate) outcome: Outcome,
    /// Milliseconds since the beginning of the story.
    pub(crate) from: i64,
    /// Milliseconds between them.
    pub(crate) every: i64,
    pub(crate) count: i64,
}

/// From its start to its end.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) machine: &'static str,
    /// Seconds since the beginning of the story.
    pub(crate) start: i64,
    /// Exclusive.
    pub(crate) end: i64,
    pub(crate) bursts: Vec<Burst>,
}

/// A series in the notation of promtool.
pub(crate) struct Series {
    pub(crate) name: String,
    pub(crate) values: Vec<Option<i64>>,
}

impl Burst {
    /// How many of them there were until `time`.
    fn until(&self, time: i64) -> i64 {
        if time < self.from { 0 } else { ((time - self.from) / self.every + 1).min(self.count) }
    }
}

impl Process {
    /// Events of an outcome that it has served until `seconds`; `None` while it does not run.
    fn counter(&self, outcome: Outcome, seconds: i64) -> Option<i64> {
        let of_outcome = self.bursts.iter().filter(|burst| burst.outcome == outcome);
        (self.start..self.end)
            .contains(&seconds)
            .then(|| of_outcome.map(|burst| burst.until(seconds * 1000)).sum())
    }
}

/// Good and bad events within a second.
pub(crate) fn within(story: &[Process], second: i64) -> (u64, u64) {
    let of = |outcome: Outcome| -> u64 {
        let bursts = story.iter().flat_map(|process| &process.bursts);
        let n: i64 = bursts
            .filter(|burst| burst.outcome == outcome)
            .map(|burst| burst.until(second * 1000 + 999) - burst.until(second * 1000 - 1))
            .sum();
        n.unsigned_abs()
    };
    (of(Outcome::Good), of(Outcome::Bad))
}

/// What a Prometheus that scrapes every `scrape` seconds until `end` has: the application's own counters, which are
/// born with their first event when they are `label_born`, and the agent's, which are born with the process.
pub(crate) fn series(story: &[Process], scrape: i64, end: i64, label_born: bool) -> Vec<Series> {
    let mut machines: Vec<&str> = story.iter().map(|process| process.machine).collect();
    machines.dedup();
    let mut all = Vec::new();
    for machine in machines {
        let lives: Vec<&Process> = story.iter().filter(|process| process.machine == machine).collect();
        let sampled = |value: &dyn Fn(&Process, i64) -> Option<i64>| -> Vec<Option<i64>> {
            (0..=end / scrape)
                .map(|index| lives.iter().find_map(|life| value(life, index * scrape)))
                .collect()
        };
        let target = format!("job=\"shop\",instance=\"{machine}\"");
        for (outcome, code, name) in [(Outcome::Good, "200", "good"), (Outcome::Bad, "500", "bad")] {
            let agents = sampled(&|life, time| life.counter(outcome, time));
            let own = agents.iter().map(|value| value.filter(|value| *value > 0 || !label_born)).collect();
            all.push(Series {
                name: format!("http_requests_total{{{target},code=\"{code}\"}}"),
                values: own,
            });
            let labels = format!("{target},slo=\"shop\",service=\"shop\",outcome=\"{name}\"");
            all.push(Series { name: format!("slo_events_total{{{labels}}}"), values: agents });
        }
        let starts = sampled(&|life, time| (life.start..life.end).contains(&time).then_some(life.start));
        all.push(Series { name: format!("process_start_time_seconds{{{target}}}"), values: starts });
    }
    all
}

impl Series {
    /// Runs of equal steps are written as such. What was there and is gone is stale, as Prometheus marks it.
    pub(crate) fn notation(&self) -> String {
        let mut words = Vec::new();
        let mut index = 0;
        while index < self.values.len() {
            let run = self.run(index);
            words.push(match (self.values[index], run) {
                (Some(value), (step, length)) => format!("{value}{step:+}x{}", length - 1),
                (None, _) if index > 0 && self.values[index - 1].is_some() => "stale".to_owned(),
                (None, _) => "_".to_owned(),
            });
            index += run.1;
        }
        words.join(" ")
    }

    /// Step and number of values from here on that follow each other by it.
    fn run(&self, from: usize) -> (i64, usize) {
        let value = |index: usize| self.values.get(index).copied().flatten();
        let (Some(first), Some(second)) = (value(from), value(from + 1)) else { return (0, 1) };
        let step = second - first;
        let mut length = 2;
        while value(from + length).is_some_and(|next| Some(next - step) == value(from + length - 1)) {
            length += 1;
        }
        (step, length)
    }
}
