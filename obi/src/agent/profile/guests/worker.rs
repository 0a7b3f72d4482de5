//! A thread that looks into processes' memory, and may wait for it.
//!
//! In: [`Job`]s from a queue that several threads share. Out: [`Answer`]s, and functions that know their names. Says
//! since when it has been at a process, so that the thread that must not wait can give that process up.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, TrySendError};
use std::sync::{Arc, Mutex, PoisonError};

use crate::capture::guest::{Kind, Layout, ProcessMemory, Unfit};
use crate::capture::mapping::interpreter::{Examine, Found};
use crate::clock::monotonic_ns;
use crate::profile::symbol::function::{Code, Function, Object, Sources, Unnamed};

/// What is to be done.
pub(super) enum Job {
    /// Which structures a process has.
    Examine(Examine),
    /// Functions are to be read, or (not `is_first`) looked at again.
    Look { opened: Arc<Opened>, functions: Vec<Arc<Function>>, is_first: bool },
}

/// What is known of a process.
pub(super) struct Answer {
    pub(super) tgid: u32,
    pub(super) since: u64,
    pub(super) found: Result<(Found, Arc<Opened>), Unfit>,
}

/// A process that is understood.
#[derive(Debug)]
pub(super) struct Opened {
    tgid: u32,
    memory: ProcessMemory,
    layout: Layout,
    /// What was learnt of its texts.
    sources: Sources,
    /// Objects that were code, and that were not.
    pub(super) right: AtomicU64,
    pub(super) wrong: AtomicU64,
}

/// The queue.
#[derive(Clone)]
pub(super) struct Jobs(Arc<Mutex<Receiver<Job>>>);

impl Jobs {
    pub(super) fn new(jobs: Receiver<Job>) -> Self {
        Self(Arc::new(Mutex::new(jobs)))
    }

    fn next(&self) -> Option<Job> {
        // No thread panics while it waits for a job.
        self.0.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
    }
}

/// What others see of it.
#[derive(Debug, Default)]
pub(super) struct Worker {
    /// When it began; 0: it has nothing to do.
    begun: AtomicU64,
    tgid: AtomicU32,
}

impl Worker {
    /// Ends when no sender of jobs is left.
    pub(super) fn start(jobs: Jobs, answers: Sender<Answer>) -> io::Result<Arc<Self>> {
        let worker = Arc::new(Self::default());
        let own = Arc::clone(&worker);
        let work = move || {
            while let Some(job) = jobs.next() {
                own.tgid.store(job.tgid(), Ordering::Relaxed);
                own.begun.store(monotonic_ns().max(1), Ordering::Release);
                work(job, &answers);
                own.begun.store(0, Ordering::Release);
            }
        };
        std::thread::Builder::new().name("guests".into()).spawn(work)?;
        Ok(worker)
    }

    /// The process that it has been at for longer than this.
    pub(super) fn is_stuck(&self, now: u64, patience: u64) -> Option<u32> {
        let begun = self.begun.load(Ordering::Acquire);
        (begun > 0 && now.saturating_sub(begun) >= patience).then(|| self.tgid.load(Ordering::Relaxed))
    }
}

impl Job {
    fn tgid(&self) -> u32 {
        match self {
            Self::Examine(examine) => examine.tgid,
            Self::Look { opened, .. } => opened.tgid,
        }
    }
}

/// Gives back what could not be sent.
pub(super) trait IntoJob {
    fn into_job(self) -> Job;
}

impl IntoJob for TrySendError<Job> {
    fn into_job(self) -> Job {
        match self {
            Self::Full(job) | Self::Disconnected(job) => job,
        }
    }
}

fn work(job: Job, answers: &Sender<Answer>) {
    match job {
        Job::Examine(examine) => {
            let Examine { tgid, since, .. } = examine;
            let found = open(&examine);
            if let Err(unfit) = &found {
                tracing::debug!(tgid, %unfit, "an interpreter's functions are not seen");
            }
            // The send fails only when the receiver has ended.
            let _ = answers.send(Answer { tgid, since, found });
        }
        Job::Look { opened, functions, is_first: true } => {
            functions.iter().for_each(|function| function.tell(opened.read(&function.object)));
        }
        Job::Look { opened, functions, .. } => {
            let Opened { memory, layout, sources, .. } = &*opened;
            for function in functions {
                if let Some(Ok(code)) = function.code()
                    && !code.is_at(memory, layout, sources, &function.object)
                {
                    function.replace();
                }
            }
        }
    }
}

fn open(examine: &Examine) -> Result<(Found, Arc<Opened>), Unfit> {
    let Examine { tgid, build, bias, .. } = examine;
    let memory = ProcessMemory::open(*tgid).map_err(|error| Unfit::Memory(error.to_string()))?;
    let known = build.examine(&memory, *bias)?;
    let (right, wrong) = (AtomicU64::new(0), AtomicU64::new(0));
    let found = Found { for_kernel: known.for_kernel, version: known.version.into() };
    let (tgid, layout, sources) = (*tgid, known.layout, Sources::default());
    Ok((found, Arc::new(Opened { tgid, memory, layout, sources, right, wrong })))
}

impl Opened {
    /// Whose functions these are.
    pub(super) fn kind(&self) -> Kind {
        match self.layout {
            Layout::Cpython(_) => Kind::Cpython,
            Layout::HotSpot(_) => Kind::HotSpot,
            Layout::V8(_) => Kind::V8,
        }
    }

    fn read(&self, object: &Object) -> Result<Code, Unnamed> {
        let code = Code::read(&self.memory, &self.layout, &self.sources, object);
        match &code {
            Ok(_) => self.right.fetch_add(1, Ordering::Relaxed),
            Err(Unnamed::NoCode) => self.wrong.fetch_add(1, Ordering::Relaxed),
            Err(Unnamed::Gone | Unnamed::Full) => 0,
        };
        code
    }
}
