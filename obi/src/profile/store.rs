//! The samples of the last minutes, in bounded memory.
//!
//! In: samples whose addresses have places (whatever `P` is), the spans they were taken in, who processes are. Out:
//! [`SelectedSamples`]. Refuses to know names of functions and what a place is.
//!
//! Times are `CLOCK_MONOTONIC` nanoseconds. A stack that is sampled a thousand times is held once. What finds no room
//! any more is the oldest, and counted. Of links see [`super::join`].

use std::collections::VecDeque;
use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::continued::Continued;
use super::join::{Served, Waiting};
use super::kept::Kept;
use super::origins::{OriginId, Origins, UNDER_WAY};
use super::rank::Ranks;
use super::sample::Origin;
use super::sample_type::SampleKind;
use crate::red::RouteKey;

/// A sample that is to be kept; borrows what may be held already.
#[derive(Debug, Clone, Copy)]
pub struct RawSample<'a, P> {
    /// What was measured.
    pub kind: SampleKind,
    /// How much.
    pub value: u64,
    /// When.
    pub time: u64,
    /// What it was taken for, 0: no exchange.
    pub exchange: u64,
    /// The program's runtime says so; else the thread has read or sent it last.
    pub by_runtime: bool,
    /// Process.
    pub pid: u32,
    /// Thread.
    pub tid: u32,
    /// CPU.
    pub cpu: u32,
    /// The thread's name, padded with zeros.
    pub comm: [u8; 16],
    /// Places, leaf first.
    pub places: &'a [P],
    /// How the walk ended: `enum stack_end`.
    pub end: u8,
    /// Of a wait: what for.
    pub wait: Option<Wait>,
}

/// What a thread has waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Wait {
    /// `enum wait_reason`.
    pub reason: u32,
    /// Address of what it shares with the threads that it has waited for; 0: not known.
    pub object: u64,
    /// Number of the sample that shows who has ended the wait, see [`Store::push`].
    pub release: Option<u64>,
}

/// A stack of places; of one process, since places may be.
#[derive(Debug, PartialEq, Eq, Hash)]
pub struct Places<P> {
    /// Process.
    pub pid: u32,
    /// How the walk ended: `enum stack_end`.
    pub end: u8,
    /// Leaf first.
    pub places: Box<[P]>,
}

/// A sample as it is held.
#[derive(Debug)]
pub(super) struct StoredSample<P> {
    pub(super) kind: SampleKind,
    pub(super) value: u64,
    pub(super) time: u64,
    /// The exchange whose span has not been reported yet; 0: there is none, or it is decided.
    pub(super) exchange: u64,
    pub(super) by_runtime: bool,
    pub(super) served: Option<Arc<Served>>,
    pub(super) stack: Arc<Places<P>>,
    pub(super) origin: OriginId,
    pub(super) tid: u32,
    pub(super) cpu: u32,
    pub(super) comm: [u8; 16],
    pub(super) exported: bool,
    pub(super) wait: Option<Box<Wait>>,
}

/// What became of samples; running totals, in samples.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Put in.
    pub kept: u64,
    /// Gave way to newer ones.
    pub evicted: u64,
    /// Of those: had not been exported.
    pub unexported: u64,
    /// Linked to their span.
    pub linked: u64,
    /// Carried an exchange whose span does not cover them: no link.
    pub outside: u64,
    /// Of an event loop that had other requests open: for which of them is not known, so no link.
    pub ambiguous: u64,
}

/// All samples. Owned by one thread.
#[derive(Debug)]
pub struct Store<P> {
    limit: usize,
    /// Nanoseconds after which samples go, whether there is room or not.
    retention: u64,
    pub(super) samples: VecDeque<StoredSample<P>>,
    /// Number of the first of them; numbers are never used twice.
    pub(super) first: u64,
    /// With how many samples each has.
    stacks: HashMap<Arc<Places<P>>, u32, RandomState>,
    pub(super) waiting: Waiting,
    pub(super) origins: Origins,
    pub(super) ranks: Ranks,
    bytes: usize,
    pub(super) counts: Counts,
    /// No sample before this one is to be exported any more.
    pub(super) unexported: u64,
    /// Until when losses have been reported with exported samples.
    pub(super) exported_at: u64,
    /// Samples that never came here.
    lost: VecDeque<Loss>,
    /// Of traces that are kept beyond their time.
    pub(super) kept: Kept<P>,
    pub(super) continued: Continued,
}

/// Samples that never came here.
#[derive(Debug)]
struct Loss {
    /// When that was noticed.
    time: u64,
    kind: SampleKind,
    n: u64,
}

/// A selected sample, without names.
#[derive(Debug, Clone)]
pub struct SelectedSample<P> {
    /// What was measured.
    pub kind: SampleKind,
    /// How much.
    pub value: u64,
    /// When.
    pub time: u64,
    /// Whose.
    pub origin: Arc<Origin>,
    /// Where.
    pub stack: Arc<Places<P>>,
    /// Thread.
    pub tid: u32,
    /// Its name, padded with zeros.
    pub comm: [u8; 16],
    /// CPU.
    pub cpu: u32,
    /// The span.
    pub served: Option<Arc<Served>>,
    /// Of a wait: what for.
    pub wait: Option<Wait>,
    /// Of one that another thread has ended: that thread.
    pub release: Option<Box<Release<P>>>,
}

/// Who has ended a wait.
#[derive(Debug, Clone)]
pub struct Release<P> {
    /// Where.
    pub stack: Arc<Places<P>>,
    /// The name of the thread, padded with zeros.
    pub comm: [u8; 16],
    /// The request that it served.
    pub served: Option<Arc<Served>>,
}

/// Selected samples in the order of time.
#[derive(Debug, Clone)]
pub struct SelectedSamples<P> {
    /// First moment looked at.
    pub start: u64,
    /// First moment behind it.
    pub end: u64,
    /// What they are; `None` if of any kind.
    pub kind: Option<SampleKind>,
    /// The samples.
    pub samples: Vec<SelectedSample<P>>,
    /// Samples of that time that were lost.
    pub lost: u64,
    /// Durations by which slow spans are distinguished from the others, by service and route; empty if not asked for.
    pub thresholds: HashMap<RouteKey, u64, RandomState>,
}

/// Notes of losses that are held; one a second at most is made.
const LOSSES: usize = 4096;
const SECOND: u64 = 1_000_000_000;
/// Entries of hash tables have room for more.
const TABLE_SLACK: usize = 2;

impl<P: Clone + Eq + Hash> Store<P> {
    /// An empty store that takes `limit` bytes at most.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            retention: u64::MAX,
            samples: VecDeque::new(),
            first: 0,
            stacks: HashMap::default(),
            waiting: Waiting::default(),
            origins: Origins::default(),
            ranks: Ranks::default(),
            bytes: 0,
            counts: Counts::default(),
            unexported: 0,
            exported_at: 0,
            lost: VecDeque::new(),
            kept: Kept::default(),
            continued: Continued::default(),
        }
    }

    /// The same, without samples that are older than `retention`. Without this bound memory grows for as long as it
    /// takes to fill: hours on a quiet machine.
    #[must_use]
    pub fn keeping(self, retention: Duration) -> Self {
        Self { retention: u64::try_from(retention.as_nanos()).unwrap_or(u64::MAX), ..self }
    }

    /// Keeps a sample; the oldest give way for it. Returns its number, and whether the caller is to ask who the process
    /// is: then [`Self::is_called`] is to be called once that is known.
    pub fn push(&mut self, taken: RawSample<'_, P>) -> (u64, bool) {
        let stack = self.intern(&taken);
        let (origin, asks) = self.origins.of(taken.pid, taken.time);
        self.bytes += size_of::<StoredSample<P>>();
        self.counts.kept += 1;
        let number = self.first + self.samples.len() as u64;
        let RawSample { kind, value, time, by_runtime, tid, cpu, comm, wait, .. } = taken;
        let exchange = if by_runtime { self.continued.request_of(taken.exchange) } else { taken.exchange };
        if exchange != 0 {
            self.bytes += self.waiting.add(exchange, number);
        }
        self.bytes += wait_bytes(wait.is_some());
        self.samples.push_back(StoredSample {
            kind,
            value,
            time,
            exchange,
            by_runtime,
            served: None,
            stack,
            origin,
            tid,
            cpu,
            comm,
            // Who has ended waits goes with them.
            exported: kind == SampleKind::Lock,
            wait: wait.map(Box::new),
        });
        self.fit();
        (number, asks)
    }

    /// Who the process is from now on, and was if that was not known.
    pub fn is_called(&mut self, pid: u32, origin: Arc<Origin>) {
        self.origins.is_called(pid, origin);
        self.fit();
    }

    /// The process is another program since `time`, or another process: what it was called holds for older samples
    /// only. Returns, as [`Self::push`] does, whether the caller is to ask who it is.
    pub fn renews(&mut self, pid: u32, time: u64) -> bool {
        let Some(old) = self.origins.renews(pid, time) else { return false };
        // Samples may have been here sooner than the news, and wait for their places in any order.
        let recent =
            self.samples.iter_mut().rev().take_while(|held| held.time.saturating_add(UNDER_WAY) >= time);
        let mut asks = false;
        for held in recent.filter(|held| held.time >= time && held.origin == old) {
            let (origin, is_first) = self.origins.of(pid, held.time);
            self.origins.release(std::mem::replace(&mut held.origin, origin));
            asks |= is_first;
        }
        self.fit();
        asks
    }

    /// To be called now and then: old samples go, and what has become of processes long ago is forgotten.
    pub fn forget(&mut self, now: u64) {
        while self.oldest().is_some_and(|oldest| oldest.saturating_add(self.retention) < now) {
            self.evict();
        }
        self.origins.forget(now);
    }

    /// `n` samples were lost before they came here, noticed at `time`.
    pub fn lose(&mut self, kind: SampleKind, time: u64, n: u64) {
        match self.lost.back_mut() {
            Some(last) if last.kind == kind && time < last.time + SECOND => last.n += n,
            _ if n > 0 => self.lost.push_back(Loss { time, kind, n }),
            _ => {}
        }
        if self.lost.len() > LOSSES {
            self.lost.pop_front();
        }
    }

    /// Every distinct stack that is held.
    pub fn stacks(&self) -> impl Iterator<Item = &Places<P>> {
        self.stacks.keys().map(AsRef::as_ref)
    }

    /// Samples held, and the bytes that they take.
    #[must_use]
    pub fn size(&self) -> (usize, usize) {
        (self.samples.len(), self.bytes + self.origins.bytes() + self.ranks.bytes())
    }

    /// What became of samples so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// When the oldest sample was taken.
    #[must_use]
    pub fn oldest(&self) -> Option<u64> {
        self.samples.front().map(|held| held.time)
    }

    /// Samples lost in `start..end`, of one kind or all.
    pub(super) fn lost_in(&self, start: u64, end: u64, kind: Option<SampleKind>) -> u64 {
        let lost = self.lost.iter().filter(|lost| (start..end).contains(&lost.time));
        lost.filter(|lost| kind.is_none_or(|kind| kind.is_made_of(lost.kind))).map(|lost| lost.n).sum()
    }

    /// A held sample as a selected one.
    pub(super) fn chosen(&self, held: &StoredSample<P>) -> SelectedSample<P> {
        SelectedSample {
            kind: held.kind,
            value: held.value,
            time: held.time,
            origin: self.origins.get(held.origin),
            stack: Arc::clone(&held.stack),
            tid: held.tid,
            comm: held.comm,
            cpu: held.cpu,
            served: held.served.clone(),
            wait: held.wait.as_deref().copied(),
            release: None,
        }
    }

    /// Who has ended a held wait, while that is held.
    pub(super) fn release(&self, held: &StoredSample<P>) -> Option<Release<P>> {
        let number = held.wait.as_ref()?.release?;
        let index = usize::try_from(number.checked_sub(self.first)?).ok()?;
        let by = self.samples.get(index).filter(|by| by.kind == SampleKind::Lock)?;
        Some(Release { stack: Arc::clone(&by.stack), comm: by.comm, served: by.served.clone() })
    }

    fn intern(&mut self, taken: &RawSample<'_, P>) -> Arc<Places<P>> {
        let RawSample { pid, end, places, .. } = *taken;
        if let Some((known, _)) = self.stacks.get_key_value(&Wanted { pid, end, places }) {
            let known = Arc::clone(known);
            if let Some(users) = self.stacks.get_mut(&known) {
                *users += 1;
            }
            return known;
        }
        let stack = Arc::new(Places { pid, end, places: places.into() });
        self.bytes += stack_bytes(&stack);
        self.stacks.insert(Arc::clone(&stack), 1);
        stack
    }

    fn evict(&mut self) {
        let Some(held) = self.samples.pop_front() else { return };
        let number = self.first;
        self.first += 1;
        self.bytes -= size_of::<StoredSample<P>>() + wait_bytes(held.wait.is_some());
        self.counts.evicted += 1;
        self.counts.unexported += u64::from(!held.exported);
        if held.exchange != 0 {
            self.bytes -= self.waiting.remove(held.exchange, number);
        }
        if let Some(held) = self.kept.take(held) {
            self.let_go(&held);
        }
    }

    /// What a sample shares with others has one user less.
    pub(super) fn let_go(&mut self, held: &StoredSample<P>) {
        if held.served.as_ref().is_some_and(|served| served.release()) {
            self.bytes -= Served::BYTES;
        }
        self.origins.release(held.origin);
        if let Some(users) = self.stacks.get_mut(&held.stack) {
            *users -= 1;
            if *users == 0 {
                self.stacks.remove(&held.stack);
                self.bytes -= stack_bytes(&held.stack);
            }
        }
    }

    fn fit(&mut self) {
        while self.bytes + self.origins.bytes() > self.limit && !self.samples.is_empty() {
            self.evict();
        }
    }

    pub(super) fn grow(&mut self, bytes: usize) {
        self.bytes += bytes;
        self.fit();
    }

    pub(super) fn shrink(&mut self, bytes: usize) {
        self.bytes -= bytes;
    }
}

/// What a wait adds to its sample, with what an allocation takes.
pub(super) fn wait_bytes(is_wait: bool) -> usize {
    if is_wait { size_of::<Wait>() + 8 } else { 0 }
}

pub(super) fn stack_bytes<P>(stack: &Places<P>) -> usize {
    // Two counts of an `Arc`; the slot of the table.
    size_of::<Places<P>>() + 16 + size_of_val(&*stack.places) + TABLE_SLACK * size_of::<usize>()
}

/// A stack to be looked up, with the hash of [`Places`].
#[derive(Hash)]
struct Wanted<'a, P> {
    pid: u32,
    end: u8,
    places: &'a [P],
}

impl<P: Eq + Hash> hashbrown::Equivalent<Arc<Places<P>>> for Wanted<'_, P> {
    fn equivalent(&self, held: &Arc<Places<P>>) -> bool {
        (self.pid, self.end) == (held.pid, held.end) && *self.places == *held.places
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
