//! The thread that owns samples: from the kernel's ring to the store, and out of it again.
//!
//! In: records of stacks, what processes map, the pipeline's notices. Out: samples with places in the store, links to
//! spans, jobs for the thread that names. Waits for no other thread.
//!
//! The order of a round matters: the pipeline's notices are taken before the ring is read, and used afterwards. A span
//! that has been reported has all its samples in the ring.

mod closing;
mod look;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, TrySendError};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use obi_ebpf::{
    GUEST_APART, GUEST_FAILURES, GUEST_NO_BLOB, GUEST_NO_CALLER, GUEST_NO_FUNCTION, GUEST_NO_METHOD,
    GUEST_NO_THREAD, SAMPLE_BY_RUNTIME, STACK_COMPLETE, STACK_ENDS,
};
use tokio::sync::mpsc;

use self::closing::addresses_in;
use super::find::find;
use super::frame_address::{FrameAddress, Within};
use super::guests::Guests;
use super::moment::{Moments, Reply};
use super::releases::{self, Releases};
use super::symbolizer::{Job, SymbolizerView};
use super::{Notice, Report};
use crate::agent::wait::Wait;
use crate::capture::mapping::backing::Kind;
use crate::capture::mapping::resolver::Resolver;
use crate::capture::program::Measured;
use crate::capture::program::profile::{AllCounts, ELEMENT_BYTES, Profiler, Stacks};
use crate::capture::stack::StackSample;
use crate::clock::{Clock, monotonic_ns};
use crate::profile::SampleKind;
use crate::profile::ask::Question;
use crate::profile::choose::Filter;
use crate::profile::join::Ended;
use crate::profile::store::{RawSample, Store};
use crate::profile::view::View;
use crate::red::CpuSamples;

/// How often the ring is read when no wake-up comes.
const POLL: Duration = Duration::from_millis(100);
/// The kernel wakes the thread with each program that begins and each sample of a process that it does not know: rounds
/// are at least this far apart.
const BREATH: Duration = Duration::from_millis(10);
const HOUSEKEEPING: u64 = 1_000_000_000;
/// Between two readings of what goes to destinations and is read from processes.
const BETWEEN_MOMENTS: Duration = Duration::from_secs(60);
/// A sample waits so long for a list of what its process maps.
const SETTLE: u64 = 1_000_000_000;
/// Samples that wait at most; the oldest go on without.
const UNSETTLED: usize = 4_096;
/// Processes that are remembered to make code.
const MAKERS: usize = 8_192;

/// The thread's state.
pub(super) struct Sampler {
    pub(super) profiler: Profiler,
    pub(super) stacks: Stacks,
    pub(super) wait: Wait,
    pub(super) resolver: Resolver,
    pub(super) guests: Guests,
    pub(super) store: Store<FrameAddress>,
    pub(super) notices: Receiver<Notice>,
    /// Spans that have been reported and not linked yet.
    pub(super) waiting: Arc<AtomicUsize>,
    pub(super) reports: SyncSender<Report>,
    pub(super) questions: mpsc::Receiver<Question>,
    pub(super) jobs: SyncSender<Job>,
    pub(super) named: Arc<ArcSwap<SymbolizerView>>,
    pub(super) view: Arc<ArcSwap<View>>,
    pub(super) programs: Arc<ArcSwap<Vec<Measured>>>,
    /// A destination wants exports.
    pub(super) wanted: Arc<AtomicBool>,
    /// Of the kernel's maps that are there from the start on.
    pub(super) fixed_bytes: u64,
    pub(super) rhythm: Rhythm,
    pub(super) releases: Releases,
    pub(super) moments: Moments,
    pub(super) state: State,
}

/// How often what is done.
#[derive(Debug, Clone)]
pub(super) struct Rhythm {
    /// What is sampled: each type, with `on` or why it is not.
    pub(super) types: Vec<(&'static str, Arc<str>)>,
    pub(super) hertz: u32,
    /// Between two exports.
    pub(super) interval: Duration,
    /// Memory in use of Go programs is exported.
    pub(super) heap: bool,
}

/// What changes from round to round.
#[derive(Debug, Default)]
pub(super) struct State {
    clock: Option<Clock>,
    /// Records whose addresses have no places yet, the oldest first.
    unsettled: VecDeque<Box<[u64]>>,
    /// Spans that were reported, with the time since when: they wait for samples taken before.
    reported: VecDeque<(u64, Vec<Ended>)>,
    seen: AllCounts,
    samples: u64,
    undecodable: u64,
    late: u64,
    jobs_refused: u64,
    unasked: Vec<u32>,
    ends: [u64; STACK_ENDS as usize],
    marks: [u64; GUEST_FAILURES as usize],
    /// Processes whose own code the symbolizer may know; whether the job to observe that code was sent.
    makers: HashMap<u32, bool, RandomState>,
    /// Of those, the ones that are others now, until that has been sent to the symbolizer.
    outdated: HashSet<u32, RandomState>,
    /// Of requests, by service and route; until they are reported.
    cpu: HashMap<(u32, Arc<str>), CpuSamples, RandomState>,
    next_house: u64,
}

impl Sampler {
    /// Works until the pipeline has gone, and then hands over what is left.
    pub(super) fn run(mut self) {
        let mut next_export = Instant::now() + self.rhythm.interval;
        let mut next_moment = next_export;
        loop {
            let begun = Instant::now();
            self.wait.sleep(POLL);
            std::thread::sleep(BREATH.saturating_sub(begun.elapsed()));
            let is_last = self.hear();
            self.read();
            self.settle(is_last);
            self.look_into_guests();
            self.link(is_last);
            self.report();
            self.answer();
            let now = monotonic_ns();
            if now >= self.state.next_house || is_last {
                self.keep_house(now);
                self.state.next_house = now + HOUSEKEEPING;
            }
            if is_last || Instant::now() >= next_export {
                next_export = Instant::now() + self.rhythm.interval;
                self.export(now, is_last);
            }
            if Instant::now() >= next_moment {
                next_moment = Instant::now() + BETWEEN_MOMENTS;
                self.export_moment();
            }
            if is_last {
                return;
            }
        }
    }

    /// Takes the pipeline's notices. True when no more can come.
    fn hear(&mut self) -> bool {
        let now = monotonic_ns();
        loop {
            match self.notices.try_recv() {
                Ok(Notice::Ended(spans)) => self.state.reported.push_back((now, spans)),
                Ok(Notice::Called(pid, origin)) => {
                    self.moments.is_called(pid, &origin);
                    self.store.is_called(pid, origin);
                }
                Ok(Notice::LeftOut(pid)) => self.moments.leave_out(pid),
                Ok(Notice::Kept(traces)) => self.store.keep_traces(&traces),
                Ok(Notice::Renewed(pid, time)) => {
                    if self.store.renews(pid, time) {
                        self.state.unasked.push(pid);
                    }
                    if self.state.makers.remove(&pid).is_some() {
                        self.state.outdated.insert(pid);
                    }
                }
                Err(TryRecvError::Empty) => return false,
                Err(TryRecvError::Disconnected) => return true,
            }
        }
    }

    /// Takes what is in the ring, then what is known of mappings: what made a sample's addresses valid came before.
    fn read(&mut self) {
        let state = &mut self.state;
        while let Some(record) = self.stacks.next() {
            state.samples += 1;
            match StackSample::decode(&record) {
                Ok(sample) => {
                    self.resolver.observe(&sample);
                    let end = usize::from(sample.event.end);
                    if let Some(count) = state.ends.get_mut(end) {
                        *count += 1;
                    }
                    // Aligned as the kernel had it.
                    let mut words = vec![0_u64; record.len().div_ceil(8)].into_boxed_slice();
                    for (word, bytes) in words.iter_mut().zip(record.chunks(8)) {
                        let mut whole = [0; 8];
                        whole[..bytes.len()].copy_from_slice(bytes);
                        *word = u64::from_ne_bytes(whole);
                    }
                    state.unsettled.push_back(words);
                }
                Err(error) => {
                    state.undecodable += 1;
                    tracing::debug!(%error, "record of a stack skipped");
                }
            }
        }
        let (store, jobs) = (&self.store, &self.jobs);
        let mut refused = 0;
        self.resolver.advance(&mut |files| {
            let mut addresses = addresses_in(files, store.stacks());
            for file in files {
                let Some(handle) = file.handle() else { continue };
                let addresses = addresses.remove(&file.id).unwrap_or_default();
                refused +=
                    u64::from(jobs.try_send(Job::Closing(Arc::clone(file), handle, addresses)).is_err());
            }
        });
        self.state.jobs_refused += refused;
        self.resolver.to_examine().into_iter().for_each(|examine| self.guests.examine(examine));
    }

    /// Has what was seen of interpreters looked at.
    fn look_into_guests(&mut self) {
        for (tgid, since, found) in self.guests.turn() {
            self.resolver.examined(tgid, since, found);
        }
    }

    /// Finds the places of addresses, and stores the samples. Those of a process that is being looked at wait a moment.
    fn settle(&mut self, all: bool) {
        let now = monotonic_ns();
        let mut places = Vec::new();
        for _ in 0..self.state.unsettled.len() {
            let Some(words) = self.state.unsettled.pop_front() else { break };
            let Ok(sample) = StackSample::decode(zerocopy::IntoBytes::as_bytes(&*words)) else { continue };
            let is_late = all
                || self.state.unsettled.len() >= UNSETTLED
                || now.saturating_sub(sample.event.header.time) >= SETTLE;
            let is_pending = find((&mut self.resolver, &mut self.guests), &sample, &mut places);
            if is_pending && !is_late {
                self.state.unsettled.push_back(words);
                continue;
            }
            self.state.late += u64::from(is_pending);
            self.keep(&sample, &places);
        }
    }

    fn keep(&mut self, sample: &StackSample<'_>, places: &[FrameAddress]) {
        let event = sample.event;
        let mut end = event.end;
        for place in places.iter().filter(|place| matches!(place.within, Within::Mark)) {
            let failure = (place.address >> 8) as u32;
            if let Some(count) = self.state.marks.get_mut(failure as usize) {
                *count += 1;
            }
            match failure {
                // The mark itself says what is missing, and the outermost frame is there.
                GUEST_APART => end = STACK_COMPLETE as u8,
                GUEST_NO_THREAD | GUEST_NO_FUNCTION => self.guests.lost(event.header.tgid),
                GUEST_NO_METHOD | GUEST_NO_BLOB | GUEST_NO_CALLER => {
                    end = STACK_COMPLETE as u8;
                    self.guests.lost(event.header.tgid);
                }
                _ => {}
            }
        }
        let header = &event.header;
        let Some(kind) = SampleKind::of_record(event.kind) else {
            self.state.undecodable += 1;
            return;
        };
        // Flags of others are reasons of waits.
        let is_of_clock = matches!(kind, SampleKind::Cpu | SampleKind::PageFaults);
        let wait = (kind == SampleKind::OffCpu).then(|| self.releases.wait_of(event));
        let taken = RawSample {
            kind,
            value: event.value,
            time: header.time,
            exchange: header.exchange,
            by_runtime: is_of_clock && header.flags & SAMPLE_BY_RUNTIME != 0,
            pid: header.tgid,
            tid: header.tid,
            cpu: event.cpu.into(),
            comm: event.comm,
            places,
            end,
            wait,
        };
        let (number, asks) = self.store.push(taken);
        if kind == SampleKind::Lock {
            self.releases.add(event, number);
        }
        if asks {
            self.state.unasked.push(header.tgid);
        }
        self.mind_code(header.tgid, places);
    }

    /// The symbolizer gets one job for a process that makes code: it looks at once, and not only when a caller asks.
    fn mind_code(&mut self, pid: u32, places: &[FrameAddress]) {
        let is_of_file = |place: &FrameAddress| match &place.within {
            Within::Kernel(_) | Within::Function(_) | Within::Runs | Within::Mark => true,
            Within::Mapped(mapping, _) => matches!(mapping.backing.kind, Kind::File | Kind::Vdso),
            Within::Nothing(_) => false,
        };
        let makes_code = |place: &FrameAddress| match &place.within {
            Within::Mapped(mapping, _) => mapping.backing.is_made_at_run_time(),
            _ => false,
        };
        if places.iter().all(is_of_file) {
            return;
        }
        let makes = places.iter().any(makes_code);
        match self.state.makers.get(&pid) {
            Some(is_reported) if *is_reported || !makes => return,
            Some(_) => {}
            None if self.state.makers.len() >= MAKERS => {
                // Each process gets a new job when it is seen again.
                self.state.outdated.extend(self.state.makers.drain().map(|(pid, _)| pid));
            }
            None => {}
        }
        self.forget_outdated();
        let is_reported = makes && self.ask(Job::Observe(pid));
        self.state.makers.insert(pid, is_reported);
    }

    /// Nothing is asked of code that was another process's: it is forgotten before.
    fn forget_outdated(&mut self) {
        let jobs = &self.jobs;
        self.state.outdated.retain(|pid| jobs.try_send(Job::Renewed(*pid)).is_err());
    }

    /// Links samples to spans that have ended. A span waits for the samples that were taken before it was reported.
    fn link(&mut self, all: bool) {
        let time_of = |words: &[u64]| {
            let sample = StackSample::decode(zerocopy::IntoBytes::as_bytes(words)).ok()?;
            Some(sample.event.header.time)
        };
        let oldest = self.state.unsettled.iter().filter_map(|words| time_of(words)).min().unwrap_or(u64::MAX);
        let clock = self.state.clock.get_or_insert_with(Clock::now);
        while let Some((since, _)) = self.state.reported.front()
            && (all || *since < oldest)
        {
            let Some((_, spans)) = self.state.reported.pop_front() else { break };
            self.waiting.fetch_sub(spans.len(), Ordering::Relaxed);
            for span in &spans {
                let (samples, nanoseconds) = self.store.ended(span).of(SampleKind::Cpu);
                if samples == 0 || !span.is_server || span.is_booked {
                    continue;
                }
                let ended = clock.unix(span.end);
                let key = (span.service.id, Arc::clone(&span.route));
                let sum = self.state.cpu.entry(key).or_insert_with(|| CpuSamples {
                    service: Arc::clone(&span.service),
                    route: Arc::clone(&span.route),
                    samples: 0,
                    nanoseconds: 0,
                    ended,
                });
                sum.samples += samples;
                sum.nanoseconds += nanoseconds;
                sum.ended = ended;
            }
        }
    }

    /// Sends the pipeline what it counts, and asks it who processes are. What finds no room is sent the next time.
    fn report(&mut self) {
        if !self.state.cpu.is_empty() {
            let list = std::mem::take(&mut self.state.cpu).into_values().collect();
            if let Err(TrySendError::Full(Report::Cpu(list))) = self.reports.try_send(Report::Cpu(list)) {
                self.state.cpu = list
                    .into_iter()
                    .map(|samples| ((samples.service.id, Arc::clone(&samples.route)), samples))
                    .collect();
            }
        }
        while let Some(pid) = self.state.unasked.pop() {
            if let Err(TrySendError::Full(_)) = self.reports.try_send(Report::Who(pid)) {
                self.state.unasked.push(pid);
                break;
            }
        }
    }

    fn answer(&mut self) {
        self.forget_outdated();
        while let Ok(Question { mut filter, reply }) = self.questions.try_recv() {
            if reply.is_closed() {
                continue;
            }
            if filter.kind.is_of_moment() {
                self.begin_moment(filter, Reply::Asker(reply));
                continue;
            }
            let clock = *self.state.clock.get_or_insert_with(Clock::now);
            filter.start = clock.monotonic(filter.start);
            filter.end = clock.monotonic(filter.end);
            let chosen = self.store.choose(&filter);
            // An answer that finds no room is not waited for: its asker sees the end of the channel.
            self.ask(Job::Answer(chosen, clock, reply));
        }
        let clock = *self.state.clock.get_or_insert_with(Clock::now);
        self.state.jobs_refused += self.moments.turn(&self.resolver, &clock, monotonic_ns());
    }

    fn begin_moment(&mut self, filter: Filter, reply: Reply) {
        let asked = self.moments.begin(filter, reply, &self.resolver, monotonic_ns());
        self.state.unasked.extend(asked);
    }

    /// Begins to read what goes to destinations now and then.
    fn export_moment(&mut self) {
        if self.rhythm.heap && self.wanted.load(Ordering::Relaxed) {
            self.begin_moment(Filter { kind: SampleKind::Heap, ..Filter::default() }, Reply::Export);
        }
    }

    fn export(&mut self, now: u64, all: bool) {
        let clock = *self.state.clock.get_or_insert_with(Clock::now);
        let chosen = self.store.export(now, all);
        // What no destination wants is over with, too.
        if chosen.samples.is_empty() || !self.wanted.load(Ordering::Relaxed) {
            return;
        }
        let job = Job::Export(chosen, clock);
        // At the end the symbolizer may take its time.
        let _ = match all {
            true => self.jobs.send(job).is_ok(),
            false => self.ask(job),
        };
    }

    fn ask(&mut self, job: Job) -> bool {
        let taken = self.jobs.try_send(job).is_ok();
        self.state.jobs_refused += u64::from(!taken);
        taken
    }

    fn keep_house(&mut self, now: u64) {
        self.state.clock.get_or_insert_with(Clock::now).tick();
        self.store.forget(now);
        if let Err(error) = self.profiler.attach_online() {
            tracing::debug!(%error, "no CPU is sampled");
        }
        if let Ok(counts) = self.profiler.counts() {
            let seen = self.state.seen;
            let lost = |now: u64, before: u64| now.saturating_sub(before);
            self.store.lose(SampleKind::Cpu, now, lost(counts.cpu.lost, seen.cpu.lost));
            self.store.lose(SampleKind::OffCpu, now, lost(counts.waits.lost, seen.waits.lost));
            let faults = lost(counts.page_faults.lost, seen.page_faults.lost);
            self.store.lose(SampleKind::PageFaults, now, faults);
            let walked = lost(counts.waits.reported, seen.waits.reported);
            releases::adapt(&mut self.profiler, walked);
            self.state.seen = counts;
        }
        self.releases.forget(now);
        let resolver = &self.resolver;
        for (tgid, since, unfit) in self.guests.keep_house(now, |tgid| resolver.has_interpreter(tgid)) {
            tracing::info!(tgid, reason = %unfit, "functions of an interpreter are not seen in profiles");
            self.resolver.examined(tgid, since, Err(unfit));
        }
        self.view.store(Arc::new(self.look()));
        self.programs.store(Arc::new(self.profiler.measure()));
    }
}

/// Elements for what processes map.
pub(super) const MAPPING_BLOCKS: u32 = (8 << 20) / ELEMENT_BYTES as u32;
