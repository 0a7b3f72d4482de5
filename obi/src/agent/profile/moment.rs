//! What processes are at one moment, read when a caller asks, or when it is to be exported: memory in use and
//! goroutines of Go programs.
//!
//! In: questions, who processes are, what they map. Out: samples for the thread that names, or a sentence that says why
//! there are none. The sampler's thread begins a question ([`Moments`]) and waits for nothing; a thread of its own
//! reads processes' memory ([`Reader`]): one that does not answer holds back only other questions of this kind.
//! Refuses to know names of functions.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::STACK_COMPLETE;
use tokio::sync::oneshot;

use super::frame_address::{FrameAddress, Within};
use super::symbolizer::Job;
use crate::capture::go_runtime::goroutine::Goroutines;
use crate::capture::go_runtime::heap::{Heap, Site};
use crate::capture::go_runtime::{Program, Unread};
use crate::capture::guest::ProcessMemory;
use crate::capture::mapping::ExecutableFile;
use crate::capture::mapping::resolver::Resolver;
use crate::capture::mapping::space::{Mapping, at};
use crate::capture::tls::elf::SharedFile;
use crate::clock::{Clock, monotonic_ns};
use crate::profile::ask::Answer;
use crate::profile::choose::Filter;
use crate::profile::store::{Places, SelectedSample, SelectedSamples};
use crate::profile::{Origin, SampleKind, SampleType};

/// How long the pipeline may take to say who processes are, ns.
const PATIENCE: u64 = 1_000_000_000;
/// Questions that wait for that.
const QUESTIONS: usize = 4;
/// Processes that are looked at for one question, and what is found of them: no other is read beyond.
const PROCESSES: usize = 2_048;
const SAMPLES: usize = 1 << 18;
/// Programs that are remembered.
const PROGRAMS: usize = 64;

/// Questions that have been begun. Belongs to the sampler's thread.
#[derive(Debug)]
pub(super) struct Moments {
    reader: Reader,
    begun: Vec<Begun>,
}

/// Who gets what was found.
#[derive(Debug)]
pub(super) enum Reply {
    /// Who has asked.
    Asker(oneshot::Sender<Answer>),
    /// The destinations that take profiles.
    Export,
}

impl Reply {
    /// No one waits for it any more.
    pub(super) fn is_over(&self) -> bool {
        matches!(self, Self::Asker(asker) if asker.is_closed())
    }
}

#[derive(Debug)]
struct Begun {
    filter: Filter,
    reply: Reply,
    since: u64,
    /// Who each process is, once that is known.
    processes: HashMap<u32, Option<Arc<Origin>>, RandomState>,
}

impl Moments {
    pub(super) fn new(reader: Reader) -> Self {
        Self { reader, begun: Vec::new() }
    }

    /// Begins a question. Returns the processes of which the pipeline is to say who they are; a question that finds no
    /// room is dropped: its asker sees the end of the channel.
    pub(super) fn begin(&mut self, filter: Filter, reply: Reply, resolver: &Resolver, now: u64) -> Vec<u32> {
        if self.begun.len() >= QUESTIONS {
            return Vec::new();
        }
        let wanted = |pid: &u32| filter.pid.is_none_or(|only| only == *pid);
        let pids: Vec<u32> = resolver.go_processes().filter(wanted).take(PROCESSES).collect();
        let processes = pids.iter().map(|pid| (*pid, None)).collect();
        self.begun.push(Begun { filter, reply, since: now, processes });
        pids
    }

    /// Who a process is.
    pub(super) fn is_called(&mut self, pid: u32, origin: &Arc<Origin>) {
        for begun in &mut self.begun {
            if let Some(known) = begun.processes.get_mut(&pid) {
                *known = Some(Arc::clone(origin));
            }
        }
    }

    /// A process is not watched: nothing of it is read.
    pub(super) fn leave_out(&mut self, pid: u32) {
        for begun in &mut self.begun {
            begun.processes.remove(&pid);
        }
    }

    /// Hands on those of which everything is known, or that have waited long enough. Returns how many found no room.
    pub(super) fn turn(&mut self, resolver: &Resolver, clock: &Clock, now: u64) -> u64 {
        let mut refused = 0;
        let is_ready = |begun: &mut Begun| {
            now.saturating_sub(begun.since) >= PATIENCE || begun.processes.values().all(Option::is_some)
        };
        for Begun { filter, reply, processes, .. } in self.begun.extract_if(.., is_ready) {
            let runs = processes.len();
            // Of what is not known by now, it is not known either that it is watched.
            let wanted = processes.into_iter().filter_map(|(pid, origin)| {
                let origin = origin?;
                let mappings = Arc::clone(resolver.mappings(pid)?);
                is_wanted(&filter, &origin).then_some(Running { pid, origin, mappings })
            });
            let processes: Vec<Running> = wanted.collect();
            let nothing = nothing(&filter, runs);
            let question = Question { kind: filter.kind, nothing, processes, clock: *clock, reply };
            refused += u64::from(self.reader.0.try_send(question).is_err());
        }
        refused
    }
}

fn is_wanted(filter: &Filter, origin: &Origin) -> bool {
    filter.service.as_ref().is_none_or(|name| origin.service.name == *name)
        && filter.version.as_ref().is_none_or(|version| origin.version() == Some(version))
}

/// Why there is nothing, where so many Go programs run.
fn nothing(filter: &Filter, runs: usize) -> String {
    match (&filter.service, filter.pid) {
        (Some(service), None) => {
            format!("no process of {service} runs a program made by Go; so many of other services do: {runs}")
        }
        (_, Some(pid)) => format!("process {pid} runs no program made by Go, or is not watched"),
        (None, None) => "no process runs a program made by Go".to_owned(),
    }
}

/// A process to be read.
#[derive(Debug)]
struct Running {
    pid: u32,
    origin: Arc<Origin>,
    mappings: Arc<Vec<Arc<Mapping>>>,
}

/// What the thread is asked for.
#[derive(Debug)]
struct Question {
    kind: SampleKind,
    /// What to say where there is no process.
    nothing: String,
    processes: Vec<Running>,
    clock: Clock,
    reply: Reply,
}

/// The asking end of the thread that reads processes.
#[derive(Debug)]
pub(super) struct Reader(SyncSender<Question>);

impl Reader {
    /// Starts it, with the capabilities that the calling thread has now. It ends when this is dropped.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(super) fn start(jobs: SyncSender<Job>) -> std::io::Result<Self> {
        let (asker, questions) = sync_channel(QUESTIONS);
        let work = move || work(&questions, &jobs);
        std::thread::Builder::new().name("moment".into()).spawn(work)?;
        Ok(Self(asker))
    }
}

type Programs = HashMap<u64, Result<Program<SharedFile>, Unread>, RandomState>;

fn work(questions: &Receiver<Question>, jobs: &SyncSender<Job>) {
    let mut programs = Programs::default();
    for Question { kind, nothing, processes, clock, reply } in questions {
        if reply.is_over() {
            continue;
        }
        let now = monotonic_ns();
        let mut found = Found { kind, now, period: 0, samples: Vec::new() };
        let mut reason = None;
        for process in &processes {
            if found.samples.len() >= SAMPLES {
                reason
                    .get_or_insert("there is more than fits into one answer: ask for one service".to_owned());
                found.samples.clear();
                break;
            }
            if let Err(unread) = found.read(&mut programs, process) {
                let name = &process.origin.executable;
                reason.get_or_insert(format!("{name} (process {}): {unread}", process.pid));
            }
        }
        let Found { period, samples, .. } = found;
        if samples.is_empty() {
            if let Reply::Asker(asker) = reply {
                let _ = asker.send(Err(reason.unwrap_or(nothing).into()));
            }
            continue;
        }
        let (start, end, thresholds) = (now, now + 1, Default::default());
        let chosen = SelectedSamples { start, end, kind: Some(kind), samples, lost: 0, thresholds };
        let of = SampleType { kind, period: period.max(1) };
        if jobs.send(Job::Moment(chosen, of, clock, reply)).is_err() {
            return;
        }
    }
}

/// What has been read for a question.
struct Found {
    kind: SampleKind,
    now: u64,
    /// What one sample stands for, the largest.
    period: u64,
    samples: Vec<SelectedSample<FrameAddress>>,
}

impl Found {
    fn read(&mut self, programs: &mut Programs, process: &Running) -> Result<(), Unread> {
        let is_go = |file: &Arc<ExecutableFile>| !file.build_ids.go.is_empty();
        let of_go = |mapping: &Arc<Mapping>| {
            let file = mapping.file().filter(is_go)?;
            let address = file.address(mapping.offset)?;
            Some((file, mapping.start.wrapping_sub(address)))
        };
        let (file, bias) = process.mappings.iter().find_map(of_go).ok_or(Unread::Table)?;
        if programs.len() > PROGRAMS {
            programs.clear();
        }
        let program =
            programs.entry(file.id).or_insert_with(|| program(&file)).as_ref().map_err(Unread::clone)?;
        let memory = ProcessMemory::open(process.pid).map_err(|error| Unread::Memory(error.to_string()))?;
        match self.kind {
            SampleKind::Heap | SampleKind::Alloc => {
                return self.add_heap(process, program.heap(&memory, bias)?);
            }
            _ => {
                let is_code = |address| at(&process.mappings, address).is_some();
                for Goroutines { stack, is_complete, n } in program.goroutines(&memory, bias, is_code)? {
                    let runs = FrameAddress { address: 0, within: Within::Runs };
                    let leaf = Some(runs).filter(|_| !is_complete);
                    let frames = stack.iter().map(|frame| place(process, frame.address, frame.is_return));
                    self.add(process, leaf.into_iter().chain(frames).collect(), n);
                }
            }
        }
        Ok(())
    }

    fn add_heap(&mut self, process: &Running, Heap { sites, rate }: Heap) -> Result<(), Unread> {
        self.period = self.period.max(rate);
        let is_heap = self.kind == SampleKind::Heap;
        let sites = sites.into_iter().map(|site| (if is_heap { site.in_use } else { site.allocated }, site));
        let sites: Vec<(u64, Site)> = sites.filter(|(bytes, _)| *bytes > 0).collect();
        if sites.is_empty() {
            return Err(Unread::Nothing);
        }
        for (bytes, site) in sites {
            let frames = site.stack.iter().map(|address| place(process, *address, true));
            self.add(process, frames.collect(), bytes);
        }
        Ok(())
    }

    fn add(&mut self, process: &Running, places: Box<[FrameAddress]>, value: u64) {
        let end = u8::try_from(STACK_COMPLETE).unwrap_or_default();
        self.samples.push(SelectedSample {
            kind: self.kind,
            value,
            time: self.now,
            origin: Arc::clone(&process.origin),
            stack: Arc::new(Places { pid: process.pid, end, places }),
            tid: process.pid,
            comm: [0; 16],
            cpu: 0,
            served: None,
            wait: None,
            release: None,
        });
    }
}

/// Where a frame lies.
fn place(process: &Running, address: u64, is_return: bool) -> FrameAddress {
    let within = match at(&process.mappings, address.wrapping_sub(u64::from(is_return))) {
        Some(mapping) => Within::Mapped(Arc::clone(mapping), is_return),
        None => Within::Nothing(is_return),
    };
    FrameAddress { address, within }
}

fn program(file: &ExecutableFile) -> Result<Program<SharedFile>, Unread> {
    Program::read(&file.source().ok_or(Unread::Table)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_site_counts_what_is_asked_for() {
        let process = Running { pid: 7, origin: Arc::default(), mappings: Arc::default() };
        let check = |kind, sites: &[(u64, u64)], expected: Result<&[u64], Unread>| {
            let site = |(in_use, allocated): &(u64, u64)| Site {
                stack: vec![9],
                in_use: *in_use,
                allocated: *allocated,
            };
            let heap = Heap { sites: sites.iter().map(site).collect(), rate: 512 };
            let mut found = Found { kind, now: 1, period: 0, samples: Vec::new() };
            let added = found.add_heap(&process, heap);
            let values: Vec<u64> = found.samples.iter().map(|sample| sample.value).collect();
            assert_eq!(added.map(|()| &values[..]), expected, "{kind:?} {sites:?}");
            assert_eq!(found.period, 512);
        };
        check(SampleKind::Heap, &[(5, 50), (0, 60), (7, 7)], Ok(&[5, 7]));
        check(SampleKind::Alloc, &[(5, 50), (0, 60), (7, 7)], Ok(&[50, 60, 7]));
        // Not that no program in Go runs.
        check(SampleKind::Heap, &[(0, 60)], Err(Unread::Nothing));
        check(SampleKind::Alloc, &[], Err(Unread::Nothing));
    }

    #[test]
    fn nothing_is_explained() {
        let check = |service: Option<&str>, pid: Option<u32>, expected: &str| {
            let filter = Filter { service: service.map(str::to_owned), pid, ..Filter::default() };
            assert_eq!(nothing(&filter, 3), expected);
        };
        check(None, None, "no process runs a program made by Go");
        check(None, Some(7), "process 7 runs no program made by Go, or is not watched");
        check(
            Some("shop"),
            None,
            "no process of shop runs a program made by Go; so many of other services do: 3",
        );
    }
}
