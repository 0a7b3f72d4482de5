//! Random streams of events against a model that counts by hand.
//!
//! In: bursts, silence, late events, restarts, kills, steps of the clock, changes of the clocks. Out: every count,
//! slice and share of observed time compared. Refuses to share code with the crate: the model is a list of events.

use jiff::ToSpan;
use jiff::civil::DateTime;
use slo::{
    BudgetingMethod, Counts, Engine, LONGEST_BEAT, Objective, Page, PageKey, Recorded, Target, Time, Window,
};

/// Streams in one run.
const STREAMS: u64 = 1000;
const DAY: i64 = 86_400;
/// Parts of a slice in the engine's fixed point.
const UNIT: u128 = 1 << 32;

#[test]
fn random_streams_are_counted_as_by_hand() {
    let first = match std::env::var("SLO_SEED") {
        Ok(seed) => seed.parse().expect("SLO_SEED is a number"),
        Err(_) => fastrand::u64(..),
    };
    let streams = if std::env::var_os("SLO_SEED").is_some() { 1 } else { STREAMS };
    for stream in 0..streams {
        let seed = first.wrapping_add(stream);
        let result = std::panic::catch_unwind(|| Stream::new(seed).run());
        assert!(result.is_ok(), "run again with SLO_SEED={seed}");
    }
}

#[test]
fn a_restart_with_a_clock_that_went_back_loses_no_counts() {
    let start = 1_800_000_000;
    let mut random = fastrand::Rng::with_seed(1);
    let objective = std::iter::repeat_with(|| objective(&mut random))
        .find(|objective| objective.budgeting.slice().is_some() && objective.parts.len() == 1)
        .expect("some have slices");
    let target = Target { objective: 0, part: 0 };
    let counts = Counts { good: 7, bad: 3 };
    let mut engine = Engine::new(vec![objective.clone()], Time::from_seconds(start));
    // The clock goes back: these are too late for slots of 10 s.
    engine.record_n(target, Time::from_seconds(start - 3600), counts);
    let mut pages = Vec::new();
    engine.drain(|_, page| pages.push(page));
    let now = Time::from_seconds(start - 3540);
    let mut again = Engine::new(vec![objective], now);
    again.restore(0, &pages);
    let account = again.account(0).expect("there is one");
    assert_eq!(account.burn(std::time::Duration::from_secs(120), now, again.coverage()).counts, counts);
}

/// Good events alone burn nothing by themselves, but what was kept of their slice burns less with them.
#[test]
fn what_came_before_the_store_was_read_changes_kept_slices() {
    let start = 1_800_000_000;
    let mut random = fastrand::Rng::with_seed(1);
    let objective = std::iter::repeat_with(|| objective(&mut random))
        .find(|it| {
            let is_ratio = matches!(it.budgeting, BudgetingMethod::RatioTimeslices { .. });
            is_ratio && it.parts.len() == 1 && it.window.duration().as_secs() as i64 > 7 * DAY
        })
        .expect("some have ratios and a long period");
    let target = Target { objective: 0, part: 0 };
    let process = |now: i64, counts: Option<Counts>, pages: &mut Vec<Page>| {
        let mut engine = Engine::new(vec![objective.clone()], Time::from_seconds(now));
        if let Some(counts) = counts {
            engine.record_n(target, Time::from_seconds(now), counts);
        }
        engine.restore(0, pages);
        engine.drain(|_, page| {
            pages.retain(|known| known.key != page.key);
            pages.push(page);
        });
        engine
    };
    let mut pages = Vec::new();
    process(start, Some(Counts { good: 11, bad: 1 }), &mut pages);
    process(start, Some(Counts { good: 2, bad: 0 }), &mut pages);
    // The minutes of that slice are not held any more.
    let now = start + 5 * DAY;
    let engine = process(now, None, &mut pages);
    let account = engine.account(0).expect("there is one");
    let burn = account.burn_between(Time::from_seconds(start), Time::from_seconds(now), engine.coverage());
    let (burnt, _) = burn.slices.expect("it has slices");
    assert_eq!(burnt, (UNIT / 14) as f64 / UNIT as f64);
}

/// An event, or several of one second and part.
#[derive(Clone, Copy, Debug)]
struct Event {
    at: i64,
    part: usize,
    counts: Counts,
}

struct Stream {
    random: fastrand::Rng,
    objective: Objective,
    engine: Engine,
    now: i64,
    /// The model: what happened, what was kept, and when it was observed.
    events: Vec<Event>,
    kept: usize,
    /// Moments at which slots and slices may end: the newest that was reported.
    newest: i64,
    beats: Vec<(i64, i64)>,
    kept_beats: Vec<(i64, i64)>,
    last_beat: i64,
    pages: Vec<Page>,
}

impl Stream {
    fn new(seed: u64) -> Self {
        let mut random = fastrand::Rng::with_seed(seed);
        // Two years, so that clocks change in every zone.
        let now = 1_767_225_600 + random.i64(0..2 * 365 * DAY);
        let objective = objective(&mut random);
        Self {
            engine: Engine::new(vec![objective.clone()], Time::from_seconds(now)),
            objective,
            now,
            events: Vec::new(),
            kept: 0,
            newest: now,
            beats: Vec::new(),
            kept_beats: Vec::new(),
            last_beat: now,
            pages: Vec::new(),
            random,
        }
    }

    fn run(mut self) {
        for _ in 0..self.random.usize(5..30) {
            match self.random.u8(0..13) {
                0..4 => self.burst(),
                4..6 => self.silence(),
                6..8 => self.late(),
                8 => self.keep(),
                9 => self.restart(false),
                10 => self.restart(true),
                11 => self.step_of_the_clock(),
                _ => self.wrong_clocks(),
            }
            if self.random.bool() {
                self.compare();
            }
        }
        self.compare();
    }

    fn counts(&mut self) -> Counts {
        let many = if self.random.u8(0..10) == 0 { 1_000_000 } else { 50 };
        Counts {
            good: self.random.u64(0..many),
            bad: if self.random.bool() { self.random.u64(0..many / 5) } else { 0 },
        }
    }

    fn record(&mut self, at: i64) {
        let part = self.random.usize(0..self.objective.parts.len());
        let counts = self.counts();
        // Somewhere within the second.
        let time = Time::from_nanos(at * 1_000_000_000 + self.random.i64(0..1_000_000_000));
        let recorded = self.engine.record_n(Target { objective: 0, part }, time, counts);
        assert_eq!(recorded, Recorded::Counted, "{at} at {}", self.now);
        self.events.push(Event { at, part, counts });
        self.newest = self.newest.max(at);
    }

    /// A heart beat, as the model sees it.
    fn beat(&mut self) {
        assert!(self.engine.evaluate(Time::from_seconds(self.now)).is_empty());
        let limit = i64::try_from(LONGEST_BEAT.as_secs()).expect("a few seconds");
        if self.now >= self.last_beat && self.now - self.last_beat <= limit {
            self.beats.push((self.last_beat, self.now));
        }
        self.last_beat = self.now;
    }

    fn burst(&mut self) {
        for _ in 0..self.random.usize(1..40) {
            self.record(self.now);
            self.now += self.random.i64(0..20);
            self.beat();
        }
    }

    /// The model is observed, or it is not.
    fn silence(&mut self) {
        let seconds = match self.random.u8(0..4) {
            0 => self.random.i64(0..600),
            1 => self.random.i64(0..4 * 3600),
            2 => self.random.i64(0..2 * DAY),
            _ => self.random.i64(0..40 * DAY),
        };
        if self.random.bool() || seconds > DAY / 2 {
            self.now += seconds;
        } else {
            let end = self.now + seconds;
            while self.now < end {
                self.now = (self.now + 30).min(end);
                self.beat();
            }
        }
        self.beat();
    }

    /// Events that ended a while ago.
    fn late(&mut self) {
        let longest = self.longest_lateness();
        for _ in 0..self.random.usize(1..8) {
            let most = *self.random.choice(&[20, 120, 4000, 30_000, longest]).expect("not empty");
            let at = self.now - self.random.i64(0..most.min(longest));
            if at > self.newest - longest {
                self.record(at);
            }
        }
    }

    fn longest_lateness(&self) -> i64 {
        let period = self.objective.window.duration().as_secs() as i64 - 3600;
        match self.objective.budgeting.slice() {
            // The minutes of the slice must be held.
            Some(slice) => period.min(3 * DAY - slice.as_secs() as i64 - 120),
            None => period,
        }
    }

    fn keep(&mut self) {
        let pages = &mut self.pages;
        self.engine.drain(|_, page| {
            pages.retain(|known| known.key != page.key);
            pages.push(through_bytes(page.key, &page));
        });
        self.kept = self.events.len();
        self.kept_beats = self.beats.clone();
    }

    /// A new process; killed, the old one keeps nothing any more.
    fn restart(&mut self, killed: bool) {
        if !killed {
            self.keep();
        }
        self.events.truncate(self.kept);
        self.beats = self.kept_beats.clone();
        self.now += self.random.i64(0..2 * DAY) * i64::from(self.random.bool());
        // A clock that is behind what was counted costs resolution after a restart (see the next test), not counts.
        self.now = self.now.max(self.newest);
        self.engine = Engine::new(vec![self.objective.clone()], Time::from_seconds(self.now));
        self.last_beat = self.now;
        self.newest = self.now;
        let late = self.random.u8(0..4) == 0;
        if late {
            // The store was not readable at first.
            self.record(self.now);
        }
        let intervals: Vec<(Time, Time)> = self
            .beats
            .iter()
            .map(|(start, end)| (Time::from_seconds(*start), Time::from_seconds(*end)))
            .collect();
        self.engine.restore_coverage(intervals);
        self.engine.restore(0, &self.pages);
        let latest = self.events.iter().filter(|event| event.counts.total() > 0).map(|event| event.at).max();
        self.newest = self.newest.max(latest.unwrap_or(self.now));
        // What was restored is in the next pages, with what came since.
    }

    fn step_of_the_clock(&mut self) {
        let step = *self.random.choice(&[-3700, -60, -3, 5, 90, 3700]).expect("not empty");
        self.now += step;
        self.beat();
    }

    fn wrong_clocks(&mut self) {
        let target = Target { objective: 0, part: 0 };
        let one = Counts { good: 1, bad: 0 };
        let mut check = |at: i64, expected: Recorded| {
            assert_eq!(self.engine.record_n(target, Time::from_seconds(at), one), expected, "{at}");
        };
        check(self.last_beat.max(self.now) + 4000, Recorded::TooEarly);
        check(self.newest - 500 * DAY, Recorded::TooLate);
    }

    /// Everything that can be asked.
    fn compare(&mut self) {
        let account = self.engine.account(0).expect("there is one").clone();
        let now = Time::from_seconds(self.now);
        let coverage = self.engine.coverage().clone();
        let mut starts = vec![self.period_start()];
        for window in [60, 300, 1800, 3600, 6 * 3600 - 10, DAY, 3 * DAY - 3600] {
            if window < self.objective.window.duration().as_secs() as i64 {
                starts.push(self.now - window);
            }
        }
        assert_eq!(account.budget(now, &coverage).period.start, Time::from_seconds(starts[0]));
        for start in starts {
            let burn = account.burn_between(Time::from_seconds(start), now, &coverage);
            let from = self.slot_start(start);
            let expected = self.sum(from, self.slot_end());
            assert_eq!(burn.counts, expected, "from {start} ({from}) to {}", self.now);
            let observed = self.observed(start, self.now);
            let share = if self.now > start { observed as f64 / (self.now - start) as f64 } else { 1.0 };
            assert!(
                (burn.coverage - share).abs() < 1e-9,
                "from {start} to {}: {} {share}",
                self.now,
                burn.coverage
            );
            if let Some((burnt, slices)) = burn.slices {
                let (expected, all) = self.slices(start);
                assert_eq!(burnt, expected as f64 / UNIT as f64, "from {start} to {}", self.now);
                assert!(
                    (slices - all as f64 * share).abs() < 1e-6,
                    "from {start} to {}: {slices}, {all} * {share}, {:?}",
                    self.now,
                    self.objective
                );
            } else {
                self.compare_rate(burn.rate, from);
            }
        }
        self.compare_burn_down();
    }

    /// What is left never rises, and every moment is within the hour that counts are held by.
    fn compare_burn_down(&self) {
        let (account, coverage) = (self.engine.account(0).expect("there is one"), self.engine.coverage());
        let budget = account.budget(Time::from_seconds(self.now), coverage);
        let moments = account.burn_down(&budget, coverage, 12);
        let last = moments.last().expect("twelve");
        assert!((last.remaining - budget.remaining).abs() < 1e-9, "{last:?} {budget:?}");
        assert_eq!(last.at, budget.burn.period.end);
        assert!(moments.is_sorted_by(|one, next| one.remaining >= next.remaining && one.at <= next.at));
        let start = self.period_start();
        let from = self.slot_start(start);
        let mut before = start;
        for moment in &moments {
            // They lie between seconds; observation begins and ends at whole ones.
            let at = moment.at.seconds();
            let share =
                if at > before { self.observed(before, at) as f64 / (at - before) as f64 } else { 1.0 };
            let slack = 2.0 / (at - before).max(2) as f64;
            assert!((moment.coverage - share).abs() <= slack, "{moment:?} {share}");
            before = at;
            if budget.burn.slices.is_none() {
                let least = self.spent(from, at);
                let most =
                    self.spent(from, (self.hour_start(at) + 3600).max(self.oldest_hour()).max(at + 60));
                let spent = 1.0 - moment.remaining;
                assert!(spent >= least - 1e-9 && spent <= most + 1e-9, "{least} {spent} {most}, {moment:?}");
            }
        }
    }

    /// The part of the budget of all events from a moment on that was spent before another.
    fn spent(&self, from: i64, to: i64) -> f64 {
        let parts = self.objective.parts.iter().enumerate();
        let spent = parts.map(|(at, part)| {
            let own = self.events.iter().filter(|event| event.part == at && event.at >= from);
            let (mut bad, mut total) = (0, 0);
            for event in own.filter(|event| event.at < self.slot_end()) {
                total += event.counts.total();
                bad += if event.at < to { event.counts.bad } else { 0 };
            }
            let allowed = 1.0 - part.target.numerator() as f64 / part.target.denominator() as f64;
            if total == 0 { 0.0 } else { part.weight * (bad as f64 / total as f64) / allowed }
        });
        spent.sum()
    }

    fn compare_rate(&self, rate: Option<f64>, from: i64) {
        let mut expected = None;
        for (at, part) in self.objective.parts.iter().enumerate() {
            let own = self.events.iter().filter(|event| event.part == at);
            let own = own.filter(|event| event.at >= from && event.at < self.slot_end());
            let (bad, total) = own
                .fold((0, 0), |(bad, total), event| (bad + event.counts.bad, total + event.counts.total()));
            if total > 0 {
                let budget = 1.0 - part.target.numerator() as f64 / part.target.denominator() as f64;
                *expected.get_or_insert(0.0) += part.weight * (bad as f64 / total as f64) / budget;
            }
        }
        match (rate, expected) {
            (Some(rate), Some(expected)) => {
                assert!((rate - expected).abs() <= 1e-9 * expected.max(1.0), "{rate} {expected}");
            }
            (rate, expected) => assert_eq!(rate, expected),
        }
    }

    fn sum(&self, from: i64, to: i64) -> Counts {
        let within = self.events.iter().filter(|event| event.at >= from && event.at < to);
        within.fold(Counts::default(), |sum, event| Counts {
            good: sum.good + event.counts.good,
            bad: sum.bad + event.counts.bad,
        })
    }

    /// Seconds of the finest slots are held for; few where slices are counted.
    fn fine(&self) -> i64 {
        if self.objective.budgeting.slice().is_some() { 590 } else { 6 * 3600 }
    }

    /// Where a window begins that reaches back to `start`: at the start of the finest slot that is still held.
    fn slot_start(&self, start: i64) -> i64 {
        let hour_start = self.hour_start(start);
        if hour_start == start {
            start.max(self.oldest_hour())
        } else if floor(start, 10) >= floor(self.newest, 10) - self.fine() {
            floor(start, 10)
        } else if floor(start, 60) >= floor(self.newest, 60) - 3 * DAY {
            floor(start, 60)
        } else {
            hour_start.max(self.oldest_hour())
        }
    }

    fn hour_start(&self, at: i64) -> i64 {
        floor(at - self.offset(), 3600) + self.offset()
    }

    /// Hours are held for the period and two more, back from the newest event: a clock that went back by more costs the
    /// beginning of the period. For a calendar's period two more, and a day for each month, which may have 31.
    fn oldest_hour(&self) -> i64 {
        let longer = match &self.objective.window {
            Window::Rolling(_) => 0,
            Window::Calendar(calendar) if calendar.unit == slo::Unit::Month => {
                2 * 3600 + DAY * i64::from(calendar.count)
            }
            Window::Calendar(_) => 2 * 3600,
        };
        let period = self.objective.window.duration().as_secs() as i64;
        self.hour_start(self.newest) - period - longer - 2 * 3600
    }

    /// Up to the end of the slot that is being filled.
    fn slot_end(&self) -> i64 {
        if floor(self.now, 10) + 10 >= floor(self.newest, 10) - self.fine() {
            floor(self.now, 10) + 10
        } else {
            floor(self.now, 60) + 60
        }
    }

    /// Hours begin with calendar periods.
    fn offset(&self) -> i64 {
        match &self.objective.window {
            Window::Rolling(_) => 0,
            Window::Calendar(calendar) => {
                calendar.zone.to_timestamp(calendar.start).expect("a valid time").as_second().rem_euclid(3600)
            }
        }
    }

    fn observed(&self, start: i64, end: i64) -> i64 {
        let mut marks: Vec<(i64, i64)> = self
            .beats
            .iter()
            .map(|(from, to)| ((*from).max(start), (*to).min(end)))
            .filter(|(from, to)| from < to)
            .collect();
        marks.sort_unstable();
        let mut seconds = 0;
        let mut reached = i64::MIN;
        for (from, to) in marks {
            seconds += (to - from.max(reached)).max(0);
            reached = reached.max(to);
        }
        seconds
    }

    /// Burnt slices in fixed point and all slices, from `start` on.
    fn slices(&self, start: i64) -> (u128, i64) {
        let slice = self.objective.budgeting.slice().expect("asked with slices only").as_secs() as i64;
        let mut first = floor(start, slice);
        if floor(first, 60) < floor(self.newest, 60) - 3 * DAY {
            first = self.hour_start(start).max(self.oldest_hour());
        }
        let end = floor(self.now, slice) + slice;
        let mut burnt = 0;
        let mut known: Vec<i64> = self.events.iter().map(|event| floor(event.at, slice)).collect();
        known.sort_unstable();
        known.dedup();
        for at in known.into_iter().filter(|at| *at >= first && *at < end) {
            burnt += self.slice_burn(at, slice);
        }
        (burnt, ((end - first) / slice).max(0))
    }

    fn slice_burn(&self, at: i64, slice: i64) -> u128 {
        let mut burnt: u128 = 0;
        for (number, part) in self.objective.parts.iter().enumerate() {
            let own = self.events.iter().filter(|event| event.part == number && floor(event.at, slice) == at);
            let (good, bad) = own.fold((0_u128, 0_u128), |(good, bad), event| {
                (good + u128::from(event.counts.good), bad + u128::from(event.counts.bad))
            });
            if good + bad == 0 {
                continue;
            }
            let (numerator, denominator) =
                (u128::from(part.slice_target.numerator()), u128::from(part.slice_target.denominator()));
            burnt += match self.objective.budgeting {
                BudgetingMethod::Timeslices { .. } if good * denominator < (good + bad) * numerator => UNIT,
                BudgetingMethod::Timeslices { .. } => 0,
                _ => ((bad * UNIT / (good + bad)) as f64 * part.weight) as u128,
            };
        }
        burnt.min(UNIT)
    }

    /// By counting periods from the first.
    fn period_start(&self) -> i64 {
        match &self.objective.window {
            Window::Rolling(duration) => self.now - duration.as_secs() as i64,
            Window::Calendar(calendar) => {
                // Hours are exact; days and months keep the wall clock's time, also where it does not exist at first.
                let zoned = |civil: DateTime| civil.to_zoned(calendar.zone.clone()).expect("a valid time");
                let first = zoned(calendar.start);
                let mut reached = first.timestamp().as_second();
                for n in 1.. {
                    let count = i64::from(calendar.count) * n;
                    let next = match calendar.unit {
                        slo::Unit::Hour => first.checked_add(count.hours()).expect("in this century"),
                        slo::Unit::Day => zoned(calendar.start + count.days()),
                        slo::Unit::Week => zoned(calendar.start + (count * 7).days()),
                        slo::Unit::Month => zoned(calendar.start + count.months()),
                        other => panic!("{other:?} is not tried"),
                    };
                    let next = next.timestamp().as_second();
                    if next > self.now {
                        break;
                    }
                    reached = next;
                }
                reached
            }
        }
    }
}

fn floor(at: i64, length: i64) -> i64 {
    at.div_euclid(length) * length
}

fn through_bytes(key: PageKey, page: &Page) -> Page {
    let read = Page::decode(key, &page.encode()).expect("what was encoded can be decoded");
    assert_eq!(read, *page);
    read
}

/// A random definition, written as OpenSLO.
fn objective(random: &mut fastrand::Rng) -> Objective {
    const ZONES: [&str; 7] = [
        "UTC",
        "America/New_York",
        "Europe/Berlin",
        "Australia/Lord_Howe",
        "Asia/Kolkata",
        "America/Sao_Paulo",
        "Pacific/Chatham",
    ];
    let method =
        *random.choice(&["Occurrences", "Occurrences", "Timeslices", "RatioTimeslices"]).expect("not empty");
    let window = if random.bool() {
        let duration = random.choice(&["1d", "7d", "28d", "30d"]).expect("not empty");
        format!("{{duration: {duration}, isRolling: true}}")
    } else {
        let duration = random.choice(&["1d", "1w", "1M", "2w", "24h"]).expect("not empty");
        let zone = random.choice(&ZONES).expect("not empty");
        let start = *random
            .choice(&["2025-01-01 00:00:00", "2025-10-31 02:30:00", "2025-03-30 02:30:00"])
            .expect("not empty");
        format!("{{duration: {duration}, calendar: {{startTime: {start}, timeZone: {zone}}}}}")
    };
    let slice = *random.choice(&["1m", "5m", "1h"]).expect("not empty");
    let slices = match method {
        "Timeslices" => format!(", timeSliceTarget: 0.9, timeSliceWindow: {slice}"),
        "RatioTimeslices" => format!(", timeSliceWindow: {slice}"),
        _ => String::new(),
    };
    let indicator = "{metadata: {name: success}, spec: {ratioMetric: {counter: true, \
                     good: {metricSource: {type: obi, spec: {outcome: good}}}, \
                     total: {metricSource: {type: obi, spec: {service: shop}}}}}}";
    let composite = random.u8(0..3) == 0;
    let (own, objectives) = if composite {
        let item = |target: &str, weight: &str| {
            format!("{{target: {target}, compositeWeight: {weight}, indicator: {indicator}{slices}}}")
        };
        (String::new(), format!("[{}, {}]", item("0.99", "1"), item("0.9", "0.5")))
    } else {
        (format!("  indicator: {indicator}\n"), format!("[{{target: 0.999{slices}}}]"))
    };
    let text = format!(
        "apiVersion: openslo/v1\nkind: SLO\nmetadata: {{name: tried}}\nspec:\n  service: shop\n{own}  \
         timeWindow: [{window}]\n  budgetingMethod: {method}\n  objectives: {objectives}\n  alertPolicies: []\n"
    );
    let mut reading = slo::openslo::read([("random.yaml", text.as_str())]);
    assert_eq!(reading.objectives.len(), 1, "{text}\n{:?}", reading.findings);
    reading.objectives.remove(0)
}
