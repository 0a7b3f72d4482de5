//! The processes of this machine: who is there, who is watched.
//!
//! In: `/proc` and the kernel's process events. Out: [`Process`]es by pid, and [`Change`]s of who is watched, for the
//! kernel's filter. Refuses to know how a service is named: whoever owns the table brings a [`Naming`]. Owned by one
//! thread; never waits for anything but `/proc`.
//!
//! Times are `CLOCK_MONOTONIC` nanoseconds, given by the caller. The kernel's events are taken at their word; since
//! one may be lost, [`Processes::sweep`] compares the table with `/proc`, by start time and executable, a few entries at a
//! time. Who is read in the middle of an exec has no arguments yet; the event that follows has it read again.

mod container;
mod facts;
mod given;
mod port;
pub(super) mod proc_text;
mod verdict;

use std::collections::VecDeque;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use self::facts::Reader;
use self::verdict::Candidate;
use crate::config::Discover;

pub use self::container::Container;
pub use self::facts::Facts;
pub use self::given::Given;
pub use self::verdict::Verdict;

/// Gives processes their service; the span stage does.
pub trait Naming {
    /// What a process is reported as.
    type Service: Clone;
    /// What is particular to one process of a service.
    type Instance: Clone;

    /// The service of a process. `parent` is that of the process which made it, when that runs the same executable:
    /// for a process that tells nothing of itself, such as an interpreter that was handed its program as text.
    fn service(&mut self, facts: &Facts, parent: Option<&Self::Service>) -> Self::Service;

    /// What is particular to the process `tgid`, which started at `start` (clock ticks since boot; `None` when it was gone
    /// before anybody looked). Asked when it is first needed, once.
    fn instance(&mut self, tgid: u32, start: Option<u64>, particulars: &Particulars) -> Self::Instance;

    /// The name of a service, which rules look at.
    fn name(service: &Self::Service) -> &str;
}

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
    particulars: Arc<Particulars>,
    /// Made when it is first asked for.
    instance: Option<I>,
    /// Identity together with the pid; `None` for a child that has not been looked at.
    start: Option<u64>,
    /// When it ended.
    ended: Option<u64>,
    /// Compared with `/proc` since it was told of or read.
    confirmed: bool,
}

impl<S, I> Process<S, I> {
    /// Whether `/proc` was read after it began its program; not of one that was gone before.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.start.is_some()
    }
}

/// Who is watched has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Process in the initial pid namespace.
    pub tgid: u32,
    /// The new verdict; `None` when the process is forgotten.
    pub verdict: Option<Verdict>,
}

/// How many there may be, and for how long.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Entries, ended ones included. At the limit the longest ended one gives way, else any; it is read again when
    /// asked for.
    pub processes: usize,
    /// How long an ended process keeps its entry for late exchanges, ns.
    pub grace: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Self { processes: 32_768, grace: 10_000_000_000 }
    }
}

/// The table of processes.
#[derive(Debug)]
pub struct Processes<N: Naming> {
    rules: Discover,
    looks_at_ports: bool,
    own: u32,
    limits: Limits,
    naming: N,
    reader: Reader,
    table: HashMap<u32, Process<N::Service, N::Instance>, RandomState>,
    /// (when, who) ended, in that order.
    ended: VecDeque<(u64, u32)>,
    changes: Vec<Change>,
    /// Who is still to be compared with `/proc` in this round.
    round: Vec<u32>,
}

impl<N: Naming> Processes<N> {
    /// An empty table. `own` is the agent's pid in the initial pid namespace.
    pub fn new(rules: Discover, own: u32, naming: N, limits: Limits) -> Self {
        Self {
            looks_at_ports: verdict::looks_at_ports(&rules),
            rules,
            own,
            limits,
            naming,
            reader: Reader::new(),
            table: HashMap::default(),
            ended: VecDeque::new(),
            changes: Vec::new(),
            round: Vec::new(),
        }
    }

    /// Reads every process of `/proc` that is not known yet. Returns how many were added.
    ///
    /// # Errors
    /// When `/proc` cannot be listed.
    pub fn scan(&mut self) -> std::io::Result<usize> {
        let mut pids = std::fs::read_dir("/proc")?
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|tgid| !self.table.contains_key(tgid))
            .collect::<Vec<u32>>();
        // Parents mostly have lower numbers, and children may take their name.
        pids.sort_unstable();
        Ok(pids.into_iter().take(self.limits.processes).filter(|tgid| self.read(*tgid)).count())
    }

    /// The process, read from `/proc` when it is not known. `None` when nothing can be known of it.
    pub fn lookup(&mut self, tgid: u32) -> Option<&Process<N::Service, N::Instance>> {
        if !self.table.contains_key(&tgid) {
            self.read(tgid);
        }
        self.table.get(&tgid)
    }

    /// The same of somebody whose exchanges are told: compared with `/proc` once, since the event of its program may be
    /// lost, and then it would have the name of the program before, or of its parent.
    pub fn confirmed(&mut self, tgid: u32) -> Option<&Process<N::Service, N::Instance>> {
        self.confirm(tgid);
        self.lookup(tgid)
    }

    /// What is particular to a known process.
    pub fn instance(&mut self, tgid: u32) -> Option<N::Instance> {
        if let Some(instance) = &self.table.get(&tgid)?.instance {
            return Some(instance.clone());
        }
        self.confirm(tgid);
        let process = self.table.get_mut(&tgid)?;
        process.instance = Some(self.naming.instance(tgid, process.start, &process.particulars));
        process.instance.clone()
    }

    /// The process runs another program. `comm` is the kernel's name for it; that and what it was `given` are used when
    /// it has ended before we look.
    pub fn exec(&mut self, tgid: u32, comm: &[u8], given: &Given) -> Option<Verdict> {
        let facts = self.reader.facts(tgid).filter(|facts| !given.shows_end_of(facts));
        let facts = facts.unwrap_or_else(|| self.remembered(tgid, comm));
        self.name(tgid, given.complete(facts));
        self.table.get(&tgid).map(|process| process.verdict)
    }

    /// `parent` has made `tgid`, which is the same program until it executes another.
    pub fn fork(&mut self, tgid: u32, parent: u32) -> Option<Verdict> {
        if let Some(parent) = self.lookup(parent) {
            let child =
                Process { start: None, ended: None, instance: None, confirmed: false, ..parent.clone() };
            // The agent's own children are other programs, or will be.
            let verdict = if child.verdict == Verdict::Ourselves { Verdict::Watch } else { child.verdict };
            self.insert(tgid, Process { verdict, ..child });
        } else {
            self.read(tgid);
        }
        self.table.get(&tgid).map(|process| process.verdict)
    }

    /// The process has ended; its entry stays for a while, for exchanges still under way through the pipeline.
    pub fn exit(&mut self, tgid: u32, now: u64) {
        if let Some(process) = self.table.get_mut(&tgid)
            && process.ended.is_none()
        {
            process.ended = Some(now);
            self.ended.push_back((now, tgid));
        }
        if self.ended.len() > self.limits.processes {
            self.forget_oldest();
        }
    }

    /// The process listens on other ports than before. Does nothing unless a rule looks at ports.
    pub fn ports_changed(&mut self, tgid: u32) -> Option<Verdict> {
        let before = self.lookup(tgid)?.verdict;
        if self.looks_at_ports { self.decide_again(tgid) } else { Some(before) }
    }

    /// Forgets who ended longer ago than the grace time, and compares a few others with `/proc`, so that a lost event
    /// or a pid used again does no lasting harm. Call it every second.
    pub fn sweep(&mut self, now: u64) {
        while let Some((ended, _)) = self.ended.front()
            && now.saturating_sub(*ended) >= self.limits.grace
        {
            self.forget_oldest();
        }
        if self.round.is_empty() {
            self.round.extend(
                self.table.iter().filter(|(_, process)| process.ended.is_none()).map(|(tgid, _)| *tgid),
            );
        }
        // Nothing else tells that ports have changed.
        let unhurried =
            if self.looks_at_ports { SWEEP_ENTRIES } else { self.table.len().div_ceil(ROUND_SWEEPS) };
        for _ in 0..unhurried.min(SWEEP_ENTRIES) {
            let Some(tgid) = self.round.pop() else { break };
            self.compare(tgid, now);
        }
    }

    /// Who is watched or not since the last call, in order.
    pub fn changes(&mut self) -> std::vec::Drain<'_, Change> {
        self.changes.drain(..)
    }

    /// Whether a known process has not ended.
    #[must_use]
    pub fn is_running(&self, tgid: u32) -> bool {
        self.table.get(&tgid).is_some_and(|process| process.ended.is_none())
    }

    /// Processes alive and watched.
    #[must_use]
    pub fn watched(&self) -> usize {
        self.watched_processes().count()
    }

    /// Their pids.
    pub fn watched_processes(&self) -> impl Iterator<Item = u32> {
        let watched = |process: &Process<_, _>| process.ended.is_none() && process.verdict.is_watched();
        self.table.iter().filter(move |(_, process)| watched(process)).map(|(tgid, _)| *tgid)
    }

    /// From now on these rules decide, also on the processes that are known. Looks at the ports of all of them when a
    /// rule does.
    pub fn set_rules(&mut self, rules: Discover) {
        self.looks_at_ports = verdict::looks_at_ports(&rules);
        self.rules = rules;
        let known: Vec<u32> = self.table.keys().copied().collect();
        for tgid in known {
            self.decide_again(tgid);
        }
    }

    /// Whoever names the processes.
    #[must_use]
    pub fn naming(&self) -> &N {
        &self.naming
    }

    // === inside ===

    /// Reads a process and (re)places its entry. False when it cannot be read.
    fn read(&mut self, tgid: u32) -> bool {
        let facts = self.reader.facts(tgid);
        let found = facts.is_some();
        if let Some(facts) = facts {
            self.name(tgid, facts);
        }
        found
    }

    /// What is known of a process that has ended: where the one ran that it was before, mostly a fork of its parent.
    fn remembered(&self, tgid: u32, comm: &[u8]) -> Facts {
        let facts = Facts { executable: proc_text::comm(comm), ..Facts::default() };
        let Some(before) = self.table.get(&tgid) else { return facts };
        let Particulars { container, pod_namespace, .. } = &*before.particulars;
        Facts {
            cgroup: before.cgroup.to_string(),
            container: container.clone(),
            pod_namespace: pod_namespace.clone(),
            ..facts
        }
    }

    fn name(&mut self, tgid: u32, facts: Facts) {
        let same_program = |parent: &&Process<_, _>| *parent.executable == *facts.executable;
        let parent = self.table.get(&facts.parent).filter(same_program).map(|parent| &parent.service);
        let service = self.naming.service(&facts, parent);
        let verdict = self.verdict(tgid, &facts.executable, &facts.cgroup, &service);
        let start = (facts.start > 0).then_some(facts.start);
        let executable: Arc<str> = facts.executable.into();
        let particulars = Arc::new(Particulars {
            executable: Arc::clone(&executable),
            container: facts.container,
            otel_resource_attributes: facts.otel_resource_attributes,
            host_name: facts.host_name,
            pod_namespace: facts.pod_namespace,
        });
        let cgroup = facts.cgroup.into();
        let (instance, ended, confirmed) = (None, None, false);
        self.insert(
            tgid,
            Process { executable, cgroup, service, verdict, particulars, instance, start, ended, confirmed },
        );
    }

    /// Decides on a known process, and notes when that changes anything.
    fn decide_again(&mut self, tgid: u32) -> Option<Verdict> {
        let process = self.table.get(&tgid)?;
        let (executable, cgroup) = (Arc::clone(&process.executable), Arc::clone(&process.cgroup));
        let (service, before) = (process.service.clone(), process.verdict);
        let verdict = self.verdict(tgid, &executable, &cgroup, &service);
        if verdict != before {
            self.table.get_mut(&tgid)?.verdict = verdict;
            self.changes.push(Change { tgid, verdict: Some(verdict) });
        }
        Some(verdict)
    }

    fn verdict(&mut self, tgid: u32, executable: &str, cgroup: &str, service: &N::Service) -> Verdict {
        if tgid == self.own {
            return Verdict::Ourselves;
        }
        let ports = if self.looks_at_ports { port::listening(&mut self.reader, tgid) } else { Vec::new() };
        let candidate = Candidate { executable, cgroup, service: N::name(service), ports: &ports };
        verdict::decide(&self.rules, candidate)
    }

    fn insert(&mut self, tgid: u32, process: Process<N::Service, N::Instance>) {
        if self.table.len() >= self.limits.processes && !self.table.contains_key(&tgid) {
            self.make_room();
        }
        let verdict = process.verdict;
        let before = self.table.insert(tgid, process);
        if before.is_none_or(|before| before.verdict != verdict) {
            self.changes.push(Change { tgid, verdict: Some(verdict) });
        }
    }

    fn make_room(&mut self) {
        while self.table.len() >= self.limits.processes {
            if self.ended.is_empty() {
                let Some(any) = self.table.keys().next().copied() else { return };
                self.forget(any);
            } else {
                self.forget_oldest();
            }
        }
    }

    /// Forgets who ended first, unless its pid has been taken over meanwhile.
    fn forget_oldest(&mut self) {
        if let Some((ended, tgid)) = self.ended.pop_front()
            && self.table.get(&tgid).is_some_and(|process| process.ended == Some(ended))
        {
            self.forget(tgid);
        }
    }

    fn forget(&mut self, tgid: u32) {
        if self.table.remove(&tgid).is_some() {
            self.changes.push(Change { tgid, verdict: None });
        }
    }

    fn confirm(&mut self, tgid: u32) {
        let is_due = |process: &Process<_, _>| !process.confirmed && process.ended.is_none();
        if !self.table.get(&tgid).is_some_and(is_due) {
            return;
        }
        if let Some(identity) = self.reader.identity(tgid) {
            self.compare_with(tgid, identity);
        }
        if let Some(process) = self.table.get_mut(&tgid) {
            process.confirmed = true;
        }
    }

    fn compare(&mut self, tgid: u32, now: u64) {
        if !self.is_running(tgid) {
            return;
        }
        let Some(identity) = self.reader.identity(tgid) else { return self.exit(tgid, now) };
        if self.compare_with(tgid, identity) && self.looks_at_ports {
            self.ports_changed(tgid);
        }
    }

    /// Whether a known process is still what it was; it is read again if not. `identity` is its start and executable.
    fn compare_with(&mut self, tgid: u32, (start, executable): (u64, Option<String>)) -> bool {
        let Some(process) = self.table.get_mut(&tgid) else { return false };
        let before = *process.start.get_or_insert(start);
        let is_same =
            before == start && executable.is_none_or(|executable| *executable == *process.executable);
        if !is_same {
            self.read(tgid);
        }
        is_same
    }
}

/// Entries compared with `/proc` per sweep at most: some 50 µs each, where caches are cold.
const SWEEP_ENTRIES: usize = 256;
/// Sweeps in which all of them are compared, unless they are very many.
const ROUND_SWEEPS: usize = 15;

#[cfg(test)]
mod tests;
