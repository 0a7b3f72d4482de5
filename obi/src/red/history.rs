//! The last two hours, by service and side: how many requests, how many failed, how long they took.
//!
//! In: what all series have counted so far, now and then. Out: [`Past`], differences per slot of ten seconds. Refuses
//! to count spans: it only ever subtracts.
//!
//! Durations are in buckets of schema 1 (√2 apart), as varints of gap and count: a quantile is at most 19 % off. A busy
//! service takes some 20 KB an hour and has room for as much again, an idle one nothing. What is held is bounded by
//! [`Limits::history`] bytes, whatever the number of services: the oldest slots go first, of all of them. A service
//! has two buffers, not one for each slot: what is small and lives for hours keeps a page each from being given back.
//!
//! [`Limits::history`]: super::Limits::history

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;

use super::histogram::Histogram;
use super::native::coarser_index;
use super::{Registry, Series, Spread, seconds};
use crate::span::{Service, SpanKind};

/// Length of a slot, ns.
pub const SLOT: u64 = 10_000_000_000;
/// Slots of an hour.
pub const HOUR: u64 = 360;
/// Slots that are held: those of the last hour, and what they are compared with.
const SLOTS: u64 = 2 * HOUR;
/// Schema of buckets.
pub const SCHEMA: i8 = 1;
/// Bucket of durations of zero.
const ZERO: i8 = i8::MIN;
/// A buffer that grows has room for as much again.
const ROOM: usize = 2;

type Key = (u32, bool);

/// Sums over series, or a difference between two of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Tally {
    /// Requests.
    pub requests: u64,
    /// Of them, failed ones.
    pub errors: u64,
    /// By bucket.
    cells: BTreeMap<i8, u64>,
}

impl Tally {
    /// Adds what a series has counted.
    pub(super) fn add(&mut self, histogram: &Histogram, is_error: bool) {
        let n = histogram.buckets.count();
        self.requests += n;
        self.errors += if is_error { n } else { 0 };
        let native = &histogram.native;
        let steps = native.schema() - SCHEMA;
        for (index, count) in (native.first_index()..).zip(native.counts()).filter(|(_, count)| **count > 0) {
            let cell = i8::try_from(coarser_index(index, steps)).unwrap_or(i8::MAX);
            *self.cells.entry(cell).or_default() += count;
        }
        if native.zero_count() > 0 {
            *self.cells.entry(ZERO).or_default() += native.zero_count();
        }
    }

    /// Adds another.
    pub fn join(&mut self, other: &Self) {
        self.requests += other.requests;
        self.errors += other.errors;
        for (cell, count) in &other.cells {
            *self.cells.entry(*cell).or_default() += count;
        }
    }

    /// How long they took.
    #[must_use]
    pub fn spread(&self) -> Spread {
        let zeros = self.cells.get(&ZERO).copied().unwrap_or(0);
        let counts = self.cells.iter().filter(|(cell, _)| **cell != ZERO);
        Spread::of(SCHEMA, zeros, counts.map(|(cell, count)| (i32::from(*cell), *count)))
    }

    /// Counts by bucket; bucket `i` ends at `2^(i/2)` seconds.
    pub fn cells(&self) -> impl Iterator<Item = (i8, u64)> + '_ {
        self.cells.iter().map(|(cell, count)| (*cell, *count))
    }

    fn less(&self, before: &Self) -> Self {
        let cells = self
            .cells
            .iter()
            .map(|(cell, n)| (*cell, n.saturating_sub(before.cells.get(cell).copied().unwrap_or(0))));
        Self {
            requests: self.requests.saturating_sub(before.requests),
            errors: self.errors.saturating_sub(before.errors),
            cells: cells.filter(|(_, n)| *n > 0).collect(),
        }
    }
}

/// A [`Tally`], without its cells.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Which ten seconds, of the registry's clock.
    nth: u64,
    requests: u32,
    errors: u32,
    /// Bytes of its cells.
    length: u32,
}

impl Slot {
    fn bytes(self) -> usize {
        ROOM * (size_of::<Self>() + self.length as usize)
    }
}

/// Appends gaps and counts.
fn pack(cells: &BTreeMap<i8, u64>, out: &mut VecDeque<u8>) {
    let mut before = i16::from(i8::MIN);
    for (cell, count) in cells {
        write(out, u64::from((i16::from(*cell) - before).unsigned_abs()));
        write(out, *count);
        before = i16::from(*cell);
    }
}

/// The cells that [`pack`] has made these bytes of.
fn unpack<'a>(mut bytes: impl Iterator<Item = &'a u8>) -> BTreeMap<i8, u64> {
    let (mut cell, mut cells) = (i64::from(i8::MIN), BTreeMap::new());
    while let (Some(gap), Some(count)) = (read(&mut bytes), read(&mut bytes)) {
        cell = cell.saturating_add_unsigned(gap);
        *cells.entry(i8::try_from(cell).unwrap_or(i8::MAX)).or_default() += count;
    }
    cells
}

/// As LEB128.
fn write(out: &mut VecDeque<u8>, mut value: u64) {
    while value > 0x7f {
        out.push_back(value as u8 | 0x80);
        value >>= 7;
    }
    out.push_back(value as u8);
}

fn read<'a>(bytes: &mut impl Iterator<Item = &'a u8>) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = bytes.next()?;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// A service on one side.
#[derive(Debug, Clone)]
struct Line {
    service: Arc<Service>,
    slots: VecDeque<Slot>,
    /// Of all slots, one behind the other.
    cells: VecDeque<u8>,
}

impl Line {
    fn new(service: Arc<Service>) -> Self {
        Self { service, slots: VecDeque::new(), cells: VecDeque::new() }
    }

    /// Returns the bytes that it takes.
    fn push(&mut self, nth: u64, tally: &Tally) -> usize {
        let before = self.cells.len();
        pack(&tally.cells, &mut self.cells);
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        // 256 cells of 12 bytes at the most.
        let length = small((self.cells.len() - before) as u64);
        let slot = Slot { nth, requests: small(tally.requests), errors: small(tally.errors), length };
        self.slots.push_back(slot);
        slot.bytes()
    }

    /// Drops slots before this one; returns the bytes that they took.
    fn forget(&mut self, first: u64) -> usize {
        let mut bytes = 0;
        while let Some(slot) = self.slots.pop_front_if(|slot| slot.nth < first) {
            self.cells.drain(..slot.length as usize);
            bytes += slot.bytes();
        }
        if self.slots.capacity() > 2 * ROOM * self.slots.len() {
            self.slots.shrink_to(ROOM * self.slots.len());
            self.cells.shrink_to(ROOM * self.cells.len());
        }
        bytes
    }

    /// What was counted in slots from this one on, each with its number.
    fn since(&self, first: u64) -> impl Iterator<Item = (u64, Tally)> + '_ {
        let mut end = 0;
        let placed = self.slots.iter().map(move |slot| {
            let start = end;
            end += slot.length as usize;
            (slot, start..end)
        });
        placed.filter(move |(slot, _)| slot.nth >= first).map(|(slot, place)| {
            let cells = unpack(self.cells.range(place));
            (slot.nth, Tally { requests: slot.requests.into(), errors: slot.errors.into(), cells })
        })
    }
}

/// All of it; one owner.
#[derive(Debug)]
pub(super) struct History {
    limit: usize,
    bytes: usize,
    lines: HashMap<Key, Arc<Line>>,
    /// What all series had counted when they were looked at last.
    before: HashMap<Key, Tally>,
    /// Of the slot that goes on.
    open: HashMap<Key, Tally>,
    nth: u64,
    begun: Option<u64>,
    /// Slots before this one found no room.
    forgotten: u64,
}

/// What all series have counted, by service and side.
pub(super) type Sums = HashMap<Key, (Arc<Service>, Tally)>;

impl History {
    pub(super) fn new(limit: usize) -> Self {
        let (lines, before, open) = Default::default();
        Self { limit, bytes: 0, lines, before, open, nth: 0, begun: None, forgotten: 0 }
    }

    pub(super) fn is_on(&self) -> bool {
        self.limit > 0
    }

    /// Whether the slot of `now` is another one than that which goes on.
    pub(super) fn is_due(&self, now: u64) -> bool {
        self.is_on() && (self.begun.is_none() || now / SLOT != self.nth)
    }

    /// Takes what was counted since the last time into the slot that goes on, and ends it if it is over. What was
    /// counted before the first time belongs to the first slot.
    pub(super) fn look(&mut self, sums: Sums, now: u64) {
        self.begun.get_or_insert(now);
        for (key, (service, tally)) in sums {
            let grown = self.before.get(&key).map_or_else(|| tally.clone(), |before| tally.less(before));
            if grown.requests > 0 {
                self.open.entry(key).or_default().join(&grown);
                self.lines.entry(key).or_insert_with(|| Arc::new(Line::new(service)));
            }
            self.before.insert(key, tally);
        }
        let nth = now / SLOT;
        if self.nth != nth {
            let ended = if self.nth == 0 { nth.saturating_sub(1) } else { self.nth };
            self.end(ended);
            self.nth = nth;
        }
    }

    /// Says what all series have counted after some have been dropped.
    pub(super) fn rebase(&mut self, sums: Sums) {
        self.before = sums.into_iter().map(|(key, (_, tally))| (key, tally)).collect();
    }

    fn end(&mut self, nth: u64) {
        for (key, tally) in self.open.drain() {
            let Some(line) = self.lines.get_mut(&key) else { continue };
            self.bytes += Arc::make_mut(line).push(nth, &tally);
        }
        self.forget((nth + 1).saturating_sub(SLOTS));
        while self.bytes > self.limit {
            let fronts = self.lines.values().filter_map(|line| line.slots.front());
            let Some(oldest) = fronts.map(|slot| slot.nth).min() else { break };
            self.forget(oldest + 1);
            self.forgotten = oldest + 1;
        }
    }

    /// Drops slots before this one.
    fn forget(&mut self, first: u64) {
        let bytes = &mut self.bytes;
        self.lines.retain(|key, line| {
            if line.slots.front().is_some_and(|slot| slot.nth < first) {
                *bytes -= Arc::make_mut(line).forget(first);
            }
            !line.slots.is_empty() || self.open.contains_key(key)
        });
    }

    /// All that is held; `now` is the time of the last look.
    pub(super) fn past(&self, now: u64) -> Past {
        let lines = self.lines.iter().map(|((id, is_client), line)| {
            let open = self.open.get(&(*id, *is_client)).cloned();
            let kind = if *is_client { SpanKind::Client } else { SpanKind::Server };
            Course { kind, line: Arc::clone(line), open, nth: self.nth }
        });
        let first =
            self.lines.values().filter_map(|line| line.slots.front()).map(|slot| slot.nth * SLOT).min();
        let begun = self.begun.unwrap_or(now);
        let held = (self.nth + 1).saturating_sub(SLOTS).max(self.forgotten) * SLOT;
        Past {
            now,
            begun,
            known: held.max(begun),
            first: first.unwrap_or(now).max(begun),
            bytes: self.bytes,
            lines: lines.collect(),
        }
    }
}

impl Registry {
    /// The last hour until now.
    pub fn past(&mut self) -> Past {
        // Before the clock is known, nothing can be said of when it began.
        if self.history.is_on() && self.now > 0 {
            self.history.look(self.sums(), self.now);
        }
        self.history.past(self.now)
    }

    /// What the last two hours take, bytes.
    #[must_use]
    pub fn history_bytes(&self) -> usize {
        self.history.bytes
    }

    /// What all series have counted, by service and side. Each request is in one of them.
    pub(super) fn sums(&self) -> Sums {
        let mut sums = Sums::new();
        let mut add = |service: &Arc<Service>, kind, histogram: &Histogram, is_error| {
            let sum = sums.entry((service.id, kind == SpanKind::Client));
            sum.or_insert_with(|| (Arc::clone(service), Default::default())).1.add(histogram, is_error);
        };
        for Series { labels, counts, .. } in self.requests.series() {
            add(&labels.service, labels.kind, &counts.duration, !labels.error_type.is_empty());
        }
        for Series { labels, counts, .. } in self.calls.series() {
            add(&labels.service, labels.kind, counts, !labels.error_type.is_empty());
        }
        for Series { labels, counts, .. } in self.databases.series() {
            add(&labels.service, SpanKind::Client, counts, !labels.error_type.is_empty());
        }
        sums
    }
}

/// The last hour at one moment. Times are by the registry's clock.
#[derive(Debug, Clone, Default)]
pub struct Past {
    /// When it was taken.
    pub now: u64,
    /// Since when the agent counts.
    pub begun: u64,
    /// Since when everything that was counted is held.
    pub known: u64,
    /// The oldest that is held.
    pub first: u64,
    /// What it takes.
    pub bytes: usize,
    /// Services by side, in no order.
    pub lines: Vec<Course>,
}

/// How it went with a service on one side.
#[derive(Debug, Clone)]
pub struct Course {
    /// Side.
    pub kind: SpanKind,
    line: Arc<Line>,
    open: Option<Tally>,
    nth: u64,
}

impl Course {
    /// Whose.
    #[must_use]
    pub fn service(&self) -> &Arc<Service> {
        &self.line.service
    }

    /// What was counted in slots from this one on, each with its number.
    pub fn since(&self, first: u64) -> impl Iterator<Item = (u64, Tally)> + '_ {
        let open = self.open.iter().filter(move |_| self.nth >= first).map(|tally| (self.nth, tally.clone()));
        self.line.since(first).chain(open)
    }
}

impl Past {
    /// The first slot of the last `slots`, and how long it is since it began, or since the agent did, seconds.
    #[must_use]
    pub fn window(&self, slots: u64) -> (u64, f64) {
        let first = (self.now / SLOT + 1).saturating_sub(slots);
        let from = (first * SLOT).max(self.begun.min(self.now));
        (first, seconds(self.now.saturating_sub(from)).max(1.0))
    }

    /// How many of the spans of `each` slots from `first` on are over before anything is known, of `n`.
    #[must_use]
    pub fn unknown(&self, first: u64, each: u64, n: usize) -> usize {
        let slots = (self.known / SLOT).saturating_sub(first);
        usize::try_from(slots / each.max(1)).unwrap_or(usize::MAX).min(n)
    }

    /// The same slots an hour before: the first one, and how many seconds of them are known. `None`: nothing is.
    #[must_use]
    pub fn window_before(&self, slots: u64) -> Option<(u64, f64)> {
        let first = (self.now / SLOT + 1).checked_sub(slots + HOUR)?;
        let from = (first * SLOT).max(self.known);
        let known = ((first + slots) * SLOT).checked_sub(from).filter(|known| *known > 0)?;
        Some((first, seconds(known)))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::red::tests::span_with;
    use crate::red::{Limits, Registry};

    const SECOND: u64 = 1_000_000_000;

    fn record(registry: &mut Registry, service: u32, milliseconds: u64, failed: bool) {
        registry.record(&span_with(SpanKind::Server, |span| {
            span.service = crate::red::tests::service(service);
            span.end = span.start + milliseconds * 1_000_000;
            span.error_type = if failed { "500" } else { "" };
        }));
    }

    fn sum(past: &Past, first: u64) -> Tally {
        let mut sum = Tally::default();
        let all = past.lines.iter().flat_map(|course| course.since(first));
        all.for_each(|(_, tally)| sum.join(&tally));
        sum
    }

    #[test]
    fn slots_are_differences() {
        let mut registry = Registry::new(Limits::default());
        assert_eq!(registry.past().now, 0, "asked before it knows what time it is");
        registry.advance(100 * SECOND);
        record(&mut registry, 1, 10, false);
        registry.advance(105 * SECOND);
        record(&mut registry, 1, 20, true);
        registry.advance(111 * SECOND);
        record(&mut registry, 1, 40, false);
        let past = registry.past();
        let slots: Vec<_> = past.lines[0].since(0).map(|(nth, it)| (nth, it.requests, it.errors)).collect();
        assert_eq!(slots, [(10, 2, 1), (11, 1, 0)]);
        let p99 = sum(&past, 11).spread().quantile(0.99).unwrap();
        assert!((p99 / 0.04).log2().abs() <= 0.25 + 1e-9, "{p99}");
        assert_eq!(past.window(2), (10, 11.0));
        assert_eq!(past.window(1), (11, 1.0));
        assert_eq!(past.window(30).1, 11.0, "no longer than it counts");
        assert_eq!(past.window_before(30), None);
        for (now, expected) in
            [(3_930, Some((4, 240.0))), (4_000, Some((11, 300.0))), (7_600, Some((371, 300.0)))]
        {
            registry.advance(now * SECOND);
            assert_eq!(registry.past().window_before(30), expected, "{now}");
        }
    }

    #[test]
    fn it_forgets_by_time_and_by_bytes() {
        let mut registry = Registry::new(Limits { history: 4_000, ..Limits::default() });
        for slot in 1..3_000_u64 {
            record(&mut registry, (slot % 7) as u32, slot, false);
            registry.advance(slot * 10 * SECOND);
            let past = registry.past();
            assert!(past.bytes <= 4_000, "{}", past.bytes);
        }
        let past = registry.past();
        assert!(past.window_before(30).is_none(), "it knows since {} of {}", past.known, past.now);
        let past = registry.past();
        let held: usize = past.lines.iter().map(|it| it.since(0).count()).sum();
        assert!((50..90).contains(&held), "{held}");
        for minute in 0..130 {
            registry.advance((30_000 + minute * 60) * SECOND);
        }
        let past = registry.past();
        assert_eq!((past.lines.len(), past.bytes), (0, 0));
        assert!(!History::new(0).is_due(1 << 40));
    }

    proptest! {
        #[test]
        fn quantiles_are_at_most_19_percent_off(mut values in prop::collection::vec(1_u64..20_000, 1..100), percent in 1_u32..=100) {
            let mut registry = Registry::new(Limits::default());
            registry.advance(100 * SECOND);
            values.iter().for_each(|milliseconds| record(&mut registry, 1, *milliseconds, false));
            registry.advance(101 * SECOND);
            let found = sum(&registry.past(), 0).spread().quantile(f64::from(percent) / 100.0).unwrap();
            values.sort_unstable();
            let exact = values[(values.len() * percent as usize).div_ceil(100) - 1] as f64 / 1e3;
            prop_assert!((found / exact).log2().abs() <= 0.25 + 1e-9, "{found} for {exact}");
        }

        #[test]
        fn nothing_is_lost_when_series_expire(steps in prop::collection::vec((0_u32..5, 0_u64..300, any::<bool>(), 0_u64..200), 1..80)) {
            let mut registry = Registry::new(Limits { idle: Duration::from_secs(90), ..Limits::default() });
            let (mut now, mut counted) = (1_000 * SECOND, Vec::new());
            registry.advance(now);
            for (service, milliseconds, failed, wait) in steps {
                record(&mut registry, service, milliseconds, failed);
                counted.push((now / SLOT, failed));
                now += wait * SECOND;
                registry.advance(now);
            }
            let past = registry.past();
            let first = (now / SLOT + 1).saturating_sub(SLOTS) + 1;
            let expected = counted.iter().filter(|(nth, _)| *nth >= first).count() as u64;
            let sum = sum(&past, first);
            prop_assert_eq!(sum.requests, expected);
            prop_assert_eq!(sum.spread().count(), expected);
        }

        #[test]
        fn slots_are_packed_without_loss(tallies in prop::collection::vec(tally(), 1..6), forgotten in 0_u64..6) {
            let mut line = Line::new(crate::red::tests::service(1));
            let taken: usize = (0..).zip(&tallies).map(|(nth, tally)| line.push(nth, tally)).sum();
            let given_back = line.forget(forgotten);
            let expected: Vec<(u64, Tally)> = (0..).zip(tallies).skip(forgotten as usize).collect();
            prop_assert_eq!(line.since(0).collect::<Vec<_>>(), expected);
            prop_assert_eq!(line.forget(u64::MAX) + given_back, taken);
            prop_assert!(line.cells.is_empty());
        }
    }

    fn tally() -> impl Strategy<Value = Tally> {
        let cells = prop::collection::btree_map(any::<i8>(), 1..u64::MAX, 0..40);
        (cells, any::<u32>(), any::<u32>()).prop_map(|(cells, requests, errors)| Tally {
            requests: requests.into(),
            errors: errors.into(),
            cells,
        })
    }
}
