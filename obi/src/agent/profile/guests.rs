//! Interpreters' functions: looked into by threads that may wait, known to the one that must not.
//!
//! In: processes to be looked into, functions as samples show them. Out: what the kernel's walk needs, [`Function`]s
//! that get their names a moment later. A name is read when its function is first seen, since processes end and
//! memory is used again; who is seen later is looked at again once in a while. A process whose memory does not answer
//! loses only its own names. Queues are bounded, what does not fit is counted.

mod worker;

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use self::worker::{Answer, IntoJob as _, Job, Jobs, Opened, Worker};
use crate::capture::guest::{Kind, Unfit};
use crate::capture::mapping::interpreter::{Examine, Found};
use crate::profile::symbol::function::{Function, Object, Unnamed};

/// All that is known of interpreters' functions.
pub(super) struct Guests {
    jobs: SyncSender<Job>,
    to_do: Jobs,
    answers: Receiver<Answer>,
    answer: Sender<Answer>,
    workers: Vec<Arc<Worker>>,
    processes: HashMap<u32, Process, RandomState>,
    n_functions: usize,
    pub(super) counts: Counts,
}

/// What came of functions.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Something else was at their address later.
    pub(super) replaced: u64,
    /// Too many were known, or waited.
    pub(super) refused: u64,
    /// Bytes that names take, about.
    pub(super) bytes: u64,
}

struct Process {
    since: u64,
    opened: Option<Arc<Opened>>,
    functions: HashMap<Object, Seen, RandomState>,
    /// To be read, and to be looked at again.
    unread: Vec<Arc<Function>>,
    unchecked: Vec<Arc<Function>>,
    /// Samples with functions, and those that the kernel found no thread for.
    reported: u64,
    lost: u64,
    /// Functions whose memory was used again have been seen: it is looked at more often.
    is_fickle: bool,
}

struct Seen {
    function: Arc<Function>,
    checked: u64,
    used: u64,
}

/// Functions of all processes.
const FUNCTIONS: usize = 262_144;
/// Of one process that wait to be read.
const UNREAD: usize = 16_384;
const JOBS: usize = 256;
/// A function is looked at again after this time, nanoseconds; in a process that uses memory again, after the other.
const CHECKED_FOR: u64 = 1_000_000_000;
const FICKLE_FOR: u64 = 50_000_000;
/// Unseen for so long, it is forgotten.
const KEPT: u64 = 600_000_000_000;
/// Threads that look; another is started when one does not return in this time.
const WORKERS: usize = 4;
const PATIENCE: u64 = 2_000_000_000;
/// Samples without a thread, or with a frame that is not understood, none that are right, until an interpreter counts
/// as not understood.
const LOST: u64 = 20;
/// Likewise objects that are no code.
const WRONG: u64 = 8;

impl Guests {
    /// Starts a thread, with the capabilities that the calling one has now.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub(super) fn start() -> io::Result<Self> {
        let (jobs, to_do) = sync_channel(JOBS);
        let (answer, answers) = channel();
        let mut guests = Self {
            jobs,
            to_do: Jobs::new(to_do),
            answers,
            answer,
            workers: Vec::new(),
            processes: HashMap::default(),
            n_functions: 0,
            counts: Counts::default(),
        };
        guests.hire()?;
        Ok(guests)
    }

    fn hire(&mut self) -> io::Result<()> {
        self.workers.push(Worker::start(self.to_do.clone(), self.answer.clone())?);
        Ok(())
    }

    /// A process is to be looked into.
    pub(super) fn examine(&mut self, examine: Examine) {
        let Examine { tgid, since, .. } = examine;
        self.forget(tgid);
        self.processes.insert(tgid, Process::new(since));
        if let Err(error) = self.jobs.try_send(Job::Examine(examine)) {
            tracing::debug!(tgid, %error, "an interpreter was not looked into");
            let _ = self.answer.send(Answer { tgid, since, found: Err(Unfit::NotBegun) });
        }
    }

    /// A frame of a function was sampled.
    pub(super) fn see(&mut self, tgid: u32, object: Object, now: u64) -> Arc<Function> {
        let process = self.processes.entry(tgid).or_insert_with(|| Process::new(0));
        process.reported += 1;
        let lease = if process.is_fickle { FICKLE_FOR } else { CHECKED_FOR };
        if let Some(seen) = process.functions.get_mut(&object) {
            let is_old = now.saturating_sub(seen.checked) >= lease;
            let is_over =
                seen.function.is_replaced() || is_old && matches!(seen.function.code(), Some(Err(_)));
            if !is_over {
                seen.used = now;
                if is_old && process.unchecked.len() < UNREAD {
                    seen.checked = now;
                    process.unchecked.push(Arc::clone(&seen.function));
                }
                return Arc::clone(&seen.function);
            }
            if seen.function.is_replaced() {
                process.is_fickle = true;
                self.counts.replaced += 1;
            }
        } else {
            self.n_functions += 1;
        }
        let function = Arc::new(Function::new(object));
        if self.n_functions > FUNCTIONS || process.unread.len() >= UNREAD {
            function.tell(Err(Unnamed::Full));
            self.counts.refused += 1;
        } else {
            process.unread.push(Arc::clone(&function));
        }
        process.functions.insert(object, Seen { function: Arc::clone(&function), checked: now, used: now });
        function
    }

    /// The kernel found no thread, or no method, where there are frames of an interpreter.
    pub(super) fn lost(&mut self, tgid: u32) {
        if let Some(process) = self.processes.get_mut(&tgid) {
            process.lost += 1;
        }
    }

    /// Has what was seen since the last time looked at. Returns what was found out of processes, with the time since
    /// when each runs its program.
    pub(super) fn turn(&mut self) -> Vec<(u32, u64, Result<Found, Unfit>)> {
        let mut found = Vec::new();
        for Answer { tgid, since, found: answer } in self.answers.try_iter() {
            let process = self.processes.get_mut(&tgid).filter(|process| process.since == since);
            let Some(process) = process else { continue };
            found.push((
                tgid,
                since,
                answer.map(|(found, opened)| {
                    process.opened = Some(opened);
                    found
                }),
            ));
        }
        for process in self.processes.values_mut() {
            let Some(opened) = &process.opened else { continue };
            let lists = [(&mut process.unread, true), (&mut process.unchecked, false)];
            for (functions, is_first) in lists {
                if functions.is_empty() {
                    continue;
                }
                let job =
                    Job::Look { opened: Arc::clone(opened), functions: std::mem::take(functions), is_first };
                if let Err(error) = self.jobs.try_send(job)
                    && let Job::Look { functions: back, .. } = error.into_job()
                {
                    *functions = back;
                }
            }
        }
        found
    }

    fn forget(&mut self, tgid: u32) {
        if let Some(process) = self.processes.remove(&tgid) {
            self.n_functions -= process.functions.len();
        }
    }

    /// Forgets what was not seen for long, and processes without an interpreter by now; returns which interpreters are
    /// to be switched off.
    pub(super) fn keep_house(
        &mut self,
        now: u64,
        has_interpreter: impl Fn(u32) -> bool,
    ) -> Vec<(u32, u64, Unfit)> {
        let mut off: Vec<(u32, u64, Unfit)> = Vec::new();
        let busy: Vec<u32> =
            self.workers.iter().filter_map(|worker| worker.is_stuck(now, PATIENCE)).collect();
        if !busy.is_empty()
            && busy.len() == self.workers.len()
            && self.workers.len() < WORKERS
            && let Err(error) = self.hire()
        {
            tracing::warn!(%error, "there can be no other thread that reads names of interpreters' functions");
        }
        self.counts.bytes = 0;
        self.processes.retain(|tgid, process| {
            if !has_interpreter(*tgid) {
                return false;
            }
            process.functions.retain(|_, seen| now.saturating_sub(seen.used) < KEPT);
            self.counts.bytes += process.bytes();
            let is_stuck = busy.contains(tgid);
            if let Some(unfit) = process.unfit().or_else(|| is_stuck.then_some(Unfit::Stuck)) {
                off.push((*tgid, process.since, unfit));
                return false;
            }
            true
        });
        self.n_functions = self.processes.values().map(|process| process.functions.len()).sum();
        off
    }
}

impl Process {
    fn new(since: u64) -> Self {
        Self {
            since,
            opened: None,
            functions: HashMap::default(),
            unread: Vec::new(),
            unchecked: Vec::new(),
            reported: 0,
            lost: 0,
            is_fickle: false,
        }
    }

    /// Nothing of it was ever right.
    fn unfit(&self) -> Option<Unfit> {
        if self.lost >= LOST && self.reported == 0 {
            let kind = self.opened.as_ref().map(|opened| opened.kind());
            return Some(if kind == Some(Kind::Cpython) { Unfit::NoThread } else { Unfit::NoFrame });
        }
        let opened = self.opened.as_ref()?;
        let (right, wrong) = (opened.right.load(Ordering::Relaxed), opened.wrong.load(Ordering::Relaxed));
        (wrong >= WRONG && right == 0).then_some(Unfit::NoCode)
    }

    fn bytes(&self) -> u64 {
        let of = |seen: &Seen| match seen.function.code() {
            Some(Ok(code)) => code.bytes(),
            _ => 0,
        };
        let each = size_of::<(Object, Seen)>() + size_of::<Function>() + 16;
        self.functions.values().map(|seen| (each + of(seen)) as u64).sum()
    }
}
