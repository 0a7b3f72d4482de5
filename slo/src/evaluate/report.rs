//! One objective over the whole fleet.
//!
//! In: an [`Objective`], and the answers to the queries that this asks for, oldest piece first. Out: a [`Report`].
//! Refuses to know how queries are sent.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::fleet::{Fleet, Gain, Role};
use super::sample::Series;
use crate::account::{Account, Budget, Burn};
use crate::coverage::Coverage;
use crate::indicator::Outcome;
use crate::ledger::Counts;
use crate::objective::Objective;
use crate::openslo::Finding;
use crate::rules::{Counters, GAP, escape};
use crate::time::Time;

/// Length of a piece: what one query reads.
pub const PIECE: Duration = Duration::from_hours(6);
/// A machine without a sample for so long is not there any more.
const GONE: Duration = Duration::from_mins(5);
/// Events are kept in slots of this length.
const SLOT: i64 = 10_000_000_000;

/// A query for raw samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Query {
    /// PromQL: a range selector.
    pub text: String,
    /// When it is evaluated: the end of its range.
    pub at: Time,
}

/// The counts of one objective so far.
#[derive(Debug)]
pub struct Evaluation {
    account: Account,
    counters: Counters,
    fleet: Fleet,
    /// Counted more than there are in total, until the total has been scraped, too.
    ahead: u64,
    start: Time,
    now: Time,
}

/// What is known of an objective.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Budget of the period that `now` is in.
    pub budget: Budget,
    /// Burn over each alert window, shortest first.
    pub windows: Vec<(Duration, Burn)>,
    /// When nothing is left, at the burn rate of the last hour; `None` for never.
    pub exhausted_in: Option<Duration>,
    /// Machines that were seen in the period.
    pub machines: usize,
    /// Those that were seen in the last five minutes.
    pub machines_now: usize,
    /// Times of the period in which no machine was seen.
    pub gaps: Vec<(Time, Time)>,
}

impl Evaluation {
    /// Begins with nothing known at `now`.
    ///
    /// # Errors
    /// When no counters have its events, with what to write instead.
    pub fn new(objective: Objective, now: Time) -> Result<Self, Finding> {
        let counters = Counters::of(&objective)?;
        let longest = objective.arms.iter().map(|arm| arm.long().window).max().unwrap_or_default();
        let start = objective.window.period(now).start.min(now.minus(longest));
        let account = Account::new(objective, now);
        Ok(Self { account, counters, fleet: Fleet::default(), ahead: 0, start, now })
    }

    /// What it is about.
    pub fn objective(&self) -> &Objective {
        self.account.objective()
    }

    /// Ends of all pieces, oldest first. The first begins a little early: what was before shows births.
    pub fn pieces(&self) -> Vec<Time> {
        let mut ends = vec![self.now];
        while let Some(end) =
            ends.last().map(|end| end.minus(PIECE)).filter(|end| *end > self.start.minus(GAP))
        {
            ends.push(end);
        }
        ends.reverse();
        ends
    }

    /// The queries for a piece's counters, each with what the answer is.
    pub fn queries(&self, end: Time) -> Vec<(Option<Role>, Query)> {
        let range = format!("[{}s]", PIECE.as_secs());
        let query = |selector: &str| Query { text: format!("{selector}{range}"), at: end };
        match &self.counters {
            Counters::Agents => {
                let selector = format!("slo_events_total{{slo=\"{}\"}}", escape(&self.objective().name));
                vec![(None, query(&selector))]
            }
            Counters::Queries { counted, counted_is, total } => {
                vec![(Some(Role::Outcome(*counted_is)), query(counted)), (Some(Role::Total), query(total))]
            }
        }
    }

    /// The query for the starts of the processes that these counters are of; `None` for none.
    pub fn starts(&self, counters: &[(Role, Series)], end: Time) -> Option<Query> {
        let jobs: BTreeSet<&str> =
            counters.iter().filter_map(|(_, series)| series.labels.get("job")).map(String::as_str).collect();
        let jobs: Vec<String> = jobs.into_iter().map(|job| escape(&literal(job))).collect();
        let text = format!("process_start_time_seconds{{job=~\"{}\"}}[{}s]", jobs.join("|"), PIECE.as_secs());
        (!counters.is_empty()).then_some(Query { text, at: end })
    }

    /// Takes the answers for a piece.
    pub fn add(&mut self, counters: Vec<(Role, Series)>, starts: Vec<Series>) {
        let gains = self.fleet.add(counters, starts);
        for (slot, counts) in self.counts(&gains) {
            self.account.record(0, Time::from_nanos(slot * SLOT), counts);
        }
    }

    /// What is known after the last piece.
    pub fn report(&self) -> Report {
        const HOUR: Duration = Duration::from_hours(1);
        let now = self.now;
        let mut coverage = Coverage::default();
        let gaps = self.fleet.gaps(self.start, now);
        let edges = gaps.iter().map(|gap| gap.1).chain([now]);
        let mut seen = self.start;
        for ((start, _), end) in gaps.iter().copied().chain([(now, now)]).zip(edges) {
            coverage.observe(seen, start);
            seen = end;
        }
        let budget = self.account.budget(now, &coverage);
        let burn = |window: Duration| self.account.burn(window, now, &coverage);
        let arms = self.objective().arms.iter();
        let mut windows: BTreeSet<Duration> =
            arms.flat_map(|arm| arm.conditions.iter().map(|condition| condition.window)).collect();
        let recent = HOUR.min(self.objective().window.duration());
        windows.insert(recent);
        let rate = burn(recent).rate.unwrap_or(0.0);
        Report {
            exhausted_in: self.account.exhausted_in(&budget, rate),
            budget,
            windows: windows.into_iter().map(|window| (window, burn(window))).collect(),
            machines: self.fleet.machines(),
            machines_now: self.fleet.machines_since(now.minus(GONE)),
            gaps: gaps.into_iter().filter(|gap| gap.1 > budget.period.start).collect(),
        }
    }

    /// Gains by slot, as good and bad.
    fn counts(&mut self, gains: &[Gain]) -> BTreeMap<i64, Counts> {
        let mut slots: BTreeMap<i64, [u64; 3]> = BTreeMap::new();
        for gain in gains {
            let sums = slots.entry(gain.time.nanos().div_euclid(SLOT)).or_default();
            let which = match gain.role {
                Role::Outcome(Outcome::Good) => 0,
                Role::Outcome(Outcome::Bad) => 1,
                Role::Total => 2,
            };
            sums[which] += gain.count;
        }
        let Counters::Queries { counted_is, .. } = &self.counters else {
            return slots.into_iter().map(|(slot, [good, bad, _])| (slot, Counts { good, bad })).collect();
        };
        let of_total = |(slot, [good, bad, total]): (i64, [u64; 3])| {
            let known = good + bad;
            let owed = known + self.ahead;
            self.ahead = owed.saturating_sub(total);
            let rest = total.saturating_sub(owed);
            let counts = match counted_is {
                Outcome::Good => Counts { good: known, bad: rest },
                Outcome::Bad => Counts { good: rest, bad: known },
            };
            (slot, counts)
        };
        slots.into_iter().map(of_total).collect()
    }
}

/// The role of an answer's series: that of its query, or what its `outcome` says.
pub fn with_roles(role: Option<Role>, answer: Vec<Series>) -> Vec<(Role, Series)> {
    let outcome = |series: &Series| match series.labels.get("outcome").map(String::as_str) {
        Some("good") => Some(Role::Outcome(Outcome::Good)),
        Some("bad") => Some(Role::Outcome(Outcome::Bad)),
        _ => None,
    };
    answer.into_iter().filter_map(|series| Some((role.or_else(|| outcome(&series))?, series))).collect()
}

/// A regular expression for exactly this text.
fn literal(text: &str) -> String {
    text.chars().fold(String::new(), |mut escaped, character| {
        if !character.is_alphanumeric() && character != '_' {
            escaped.push('\\');
        }
        escaped.push(character);
        escaped
    })
}
