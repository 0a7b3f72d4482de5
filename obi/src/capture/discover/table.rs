//! The table of processes, as every thread reads it.
//!
//! In: entries of the one thread that discovers. Out: what is known of a process now. Nobody holds a lock for longer
//! than it takes to copy an entry, and nobody waits for `/proc` here.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;
use foldhash::fast::RandomState;

use super::{Container, Verdict};

/// What a process and its forks have to themselves, as far as it was read.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Particulars {
    /// Path of the executable.
    pub executable: Arc<str>,
    /// The container it runs in.
    pub container: Container,
    /// `OTEL_RESOURCE_ATTRIBUTES`.
    pub otel_resource_attributes: String,
    /// Name of the pod, or of its node.
    pub host_name: String,
    /// Namespace of the pod.
    pub pod_namespace: String,
}

/// A process, alive or ended a moment ago.
#[derive(Debug, Clone)]
pub struct Process<S, I> {
    /// Path of the executable.
    pub executable: Arc<str>,
    /// Path of the control group.
    pub cgroup: Arc<str>,
    /// What it is reported as.
    pub service: S,
    /// Whether it is watched.
    pub verdict: Verdict,
    /// What is particular to it; `None` before it was first asked for.
    pub instance: Option<I>,
    pub(super) particulars: Arc<Particulars>,
    /// Identity together with the pid; `None` for a child that has not been looked at.
    pub(super) start: Option<u64>,
    /// When it ended.
    pub(super) ended: Option<u64>,
    /// Compared with `/proc` since an event or a read.
    pub(super) confirmed: bool,
}

impl<S, I> Process<S, I> {
    /// Whether `/proc` was read after it began its program; not of one that was gone before.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.start.is_some()
    }

    /// Whether it was compared with `/proc` and has its instance: nothing more can be learned of it.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.instance.is_some() && (self.confirmed || self.ended.is_some())
    }

    fn is_running(&self) -> bool {
        self.ended.is_none()
    }
}

/// Processes by pid; a clone is the same table.
#[derive(Debug)]
pub struct Table<S, I>(Arc<Shared<S, I>>);

#[derive(Debug)]
struct Shared<S, I> {
    processes: DashMap<u32, Process<S, I>, RandomState>,
    /// Counts changes.
    version: AtomicU64,
}

impl<S, I> Clone for Table<S, I> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<S, I> Default for Table<S, I> {
    fn default() -> Self {
        Self(Arc::new(Shared { processes: DashMap::default(), version: AtomicU64::new(0) }))
    }
}

impl<S, I> Table<S, I> {
    /// What `read` makes of an entry. It must not come back to the table.
    pub fn with<R>(&self, tgid: u32, read: impl FnOnce(&Process<S, I>) -> R) -> Option<R> {
        self.0.processes.get(&tgid).map(|process| read(&process))
    }

    /// A number that is another one once any entry has changed: what was read behind it holds for as long as it does.
    #[must_use]
    pub fn version(&self) -> u64 {
        self.0.version.load(Ordering::Acquire)
    }

    /// Whether a known process has not ended.
    #[must_use]
    pub fn is_running(&self, tgid: u32) -> bool {
        self.with(tgid, Process::is_running).unwrap_or(false)
    }

    /// Processes alive and watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.0.processes.iter().filter(|entry| entry.is_running() && entry.verdict.is_watched()).count()
    }

    /// Their pids.
    #[must_use]
    pub fn watched_processes(&self) -> Vec<u32> {
        let watched =
            self.0.processes.iter().filter(|entry| entry.is_running() && entry.verdict.is_watched());
        watched.map(|entry| *entry.key()).collect()
    }

    // === for the thread that discovers ===

    pub(super) fn len(&self) -> usize {
        self.0.processes.len()
    }

    pub(super) fn contains(&self, tgid: u32) -> bool {
        self.0.processes.contains_key(&tgid)
    }

    /// The entry's verdict before.
    pub(super) fn insert(&self, tgid: u32, process: Process<S, I>) -> Option<Verdict> {
        let before = self.0.processes.insert(tgid, process).map(|before| before.verdict);
        self.changed();
        before
    }

    pub(super) fn update<R>(&self, tgid: u32, change: impl FnOnce(&mut Process<S, I>) -> R) -> Option<R> {
        let changed = self.0.processes.get_mut(&tgid).map(|mut process| change(&mut process));
        self.changed();
        changed
    }

    pub(super) fn remove(&self, tgid: u32) -> bool {
        let was_there = self.0.processes.remove(&tgid).is_some();
        self.changed();
        was_there
    }

    fn changed(&self) {
        self.0.version.fetch_add(1, Ordering::Release);
    }

    pub(super) fn all(&self) -> Vec<u32> {
        self.0.processes.iter().map(|entry| *entry.key()).collect()
    }

    pub(super) fn running(&self) -> Vec<u32> {
        self.0.processes.iter().filter(|entry| entry.is_running()).map(|entry| *entry.key()).collect()
    }

    /// Those that run and whose container is such a one.
    pub(super) fn running_in(&self, is_it: impl Fn(&Container) -> bool) -> Vec<u32> {
        let is_it = |process: &Process<S, I>| process.is_running() && is_it(&process.particulars.container);
        self.0.processes.iter().filter(|entry| is_it(entry)).map(|entry| *entry.key()).collect()
    }

    pub(super) fn any(&self) -> Option<u32> {
        self.0.processes.iter().next().map(|entry| *entry.key())
    }
}

impl<S: Clone, I: Clone> Table<S, I> {
    /// A copy of what is known of a process.
    #[must_use]
    pub fn get(&self, tgid: u32) -> Option<Process<S, I>> {
        self.with(tgid, Clone::clone)
    }
}
