//! The processes of this machine: who is there, who is watched.
//!
//! In: `/proc` and the kernel's process events. Out: [`Process`]es by pid, and [`Change`]s of who is watched, for the
//! kernel's filter. Refuses to know how a service is named: the owner brings a [`Naming`]. One thread owns it and may
//! wait for `/proc`; the others read its [`Table`].
//!
//! Times are `CLOCK_MONOTONIC` nanoseconds, given by the caller. The kernel's events are taken at their word; since
//! one may be lost, [`Processes::sweep`] compares the table with `/proc`, by start time and executable, a few entries
//! at a time. Who is read in the middle of an exec has no arguments yet; the event that follows has it read again.

mod container;
mod exec_arguments;
mod facts;
mod memory;
mod port;
pub(super) mod proc_text;
mod table;
mod verdict;

use std::collections::VecDeque;
use std::sync::Arc;

use self::facts::Reader;
use self::verdict::Candidate;
use crate::config::Discover;

pub use self::container::{Container, container};
pub use self::exec_arguments::ExecArguments;
pub use self::facts::Facts;
pub use self::table::{Particulars, Process, Table};
pub use self::verdict::Verdict;

/// Gives processes their service; the span stage does.
pub trait Naming {
    /// What a process is reported as.
    type Service: Clone;
    /// What is particular to one process of a service.
    type Instance: Clone;

    /// The service of a process. `parent` is that of the process which made it, when that runs the same executable:
    /// for a process that says nothing of itself, such as an interpreter that was handed its program as text.
    fn service(&mut self, facts: &Facts, parent: Option<&Self::Service>) -> Self::Service;

    /// What is particular to the process `tgid`, which started at `start` (clock ticks since boot; `None` when it was
    /// gone before the agent looked). Asked when it is first needed, once.
    fn instance(&mut self, tgid: u32, start: Option<u64>, particulars: &Particulars) -> Self::Instance;

    /// The name of a service, which rules look at.
    fn name(service: &Self::Service) -> &str;
}

/// Who is watched has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// Process in the initial pid namespace.
    pub tgid: u32,
    /// The new verdict; `None` when the process is forgotten.
    pub verdict: Option<Verdict>,
}

impl Change {
    /// Whether the kernel is to leave the process alone. The agent itself is filtered by number, at no cost.
    #[must_use]
    pub fn is_ignored(self) -> bool {
        self.verdict.is_some_and(|verdict| !verdict.is_watched() && verdict != Verdict::Ourselves)
    }
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

/// The processes and their rules.
#[derive(Debug)]
pub struct Processes<N: Naming> {
    rules: Discover,
    looks_at_ports: bool,
    own: u32,
    limits: Limits,
    naming: N,
    reader: Reader,
    table: Table<N::Service, N::Instance>,
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
            looks_at_ports: rules.looks_at_ports(),
            rules,
            own,
            limits,
            naming,
            reader: Reader::new(),
            table: Table::default(),
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
            .filter(|tgid| !self.table.contains(*tgid))
            .collect::<Vec<u32>>();
        // Parents mostly have lower numbers, and children may take their name.
        pids.sort_unstable();
        Ok(pids.into_iter().take(self.limits.processes).filter(|tgid| self.read(*tgid)).count())
    }

    /// The process, read from `/proc` when it is not known. `None` when nothing can be known of it.
    pub fn lookup(&mut self, tgid: u32) -> Option<Process<N::Service, N::Instance>> {
        if !self.table.contains(tgid) {
            self.read(tgid);
        }
        self.table.get(tgid)
    }

    /// The same of a process that has exchanges: compared with `/proc` once, since the event of its program may be
    /// lost, and then it would have the name of the program before, or of its parent.
    pub fn confirmed(&mut self, tgid: u32) -> Option<Process<N::Service, N::Instance>> {
        self.confirm(tgid);
        self.lookup(tgid)
    }

    /// What is particular to a known process.
    pub fn instance(&mut self, tgid: u32) -> Option<N::Instance> {
        if let Some(instance) = self.table.with(tgid, |process| process.instance.clone())? {
            return Some(instance);
        }
        self.confirm(tgid);
        let naming = &mut self.naming;
        self.table.update(tgid, |process| {
            process.instance = Some(naming.instance(tgid, process.start, &process.particulars));
            process.instance.clone()
        })?
    }

    /// The process runs another program. `comm` is the kernel's name for it; that and what it was `given` are used when
    /// it has ended before we look. The kernel watches it from there on; so that it is not to be is always a change.
    pub fn exec(&mut self, tgid: u32, comm: &[u8], given: &ExecArguments) -> Option<Verdict> {
        let facts = self.reader.facts(tgid).filter(|facts| !given.shows_end_of(facts));
        let facts = facts.unwrap_or_else(|| self.remembered(tgid, comm, given));
        self.name(tgid, given.complete(facts));
        let change = Change { tgid, verdict: self.verdict_of(tgid) };
        if change.is_ignored() && self.changes.last() != Some(&change) {
            self.changes.push(change);
        }
        change.verdict
    }

    /// `parent` has made `tgid`, which is the same program until it executes another.
    pub fn fork(&mut self, tgid: u32, parent: u32) -> Option<Verdict> {
        if let Some(parent) = self.lookup(parent) {
            let child = Process { start: None, ended: None, instance: None, confirmed: false, ..parent };
            // The agent's own children are other programs, or will be.
            let verdict = if child.verdict == Verdict::Ourselves { Verdict::Watch } else { child.verdict };
            self.insert(tgid, Process { verdict, ..child });
        } else {
            self.read(tgid);
        }
        self.verdict_of(tgid)
    }

    /// The process has ended; its entry stays for a while, for exchanges still under way through the pipeline.
    pub fn exit(&mut self, tgid: u32, now: u64) {
        let ends = |process: &mut Process<_, _>| {
            let is_first = process.ended.is_none();
            process.ended.get_or_insert(now);
            is_first
        };
        if self.table.update(tgid, ends) == Some(true) {
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
            self.round = self.table.running();
        }
        // Nothing else shows that ports have changed.
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

    /// Whether some rule depends on listening ports.
    #[must_use]
    pub fn looks_at_ports(&self) -> bool {
        self.looks_at_ports
    }

    /// The table, for other threads.
    #[must_use]
    pub fn table(&self) -> &Table<N::Service, N::Instance> {
        &self.table
    }

    /// From now on these rules decide, also on the processes that are known. Looks at the ports of all of them when a
    /// rule does.
    pub fn set_rules(&mut self, rules: Discover) {
        self.looks_at_ports = rules.looks_at_ports();
        self.rules = rules;
        for tgid in self.table.all() {
            self.decide_again(tgid);
        }
    }

    /// What the names of these containers' processes follow from has changed: they are named again, as they are now.
    /// Returns who was.
    pub fn rename(&mut self, is_it: impl Fn(&Container) -> bool) -> Vec<u32> {
        let mut affected = self.table.running_in(is_it);
        affected.retain(|tgid| self.read(*tgid));
        affected
    }

    /// Names the processes.
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
    fn remembered(&self, tgid: u32, comm: &[u8], given: &ExecArguments) -> Facts {
        let comm = proc_text::comm(comm);
        let executable = given.executable(&comm).map_or_else(|| comm.clone(), str::to_owned);
        let facts = Facts { executable, ..Facts::default() };
        let before =
            self.table.with(tgid, |before| (Arc::clone(&before.cgroup), Arc::clone(&before.particulars)));
        let Some((cgroup, particulars)) = before else { return facts };
        let Particulars { container, pod_namespace, .. } = &*particulars;
        Facts {
            cgroup: cgroup.to_string(),
            container: container.clone(),
            pod_namespace: pod_namespace.clone(),
            ..facts
        }
    }

    fn name(&mut self, tgid: u32, facts: Facts) {
        let of_same_program = |parent: &Process<N::Service, N::Instance>| {
            (*parent.executable == *facts.executable).then(|| parent.service.clone())
        };
        let parent = self.table.with(facts.parent, of_same_program).flatten();
        let service = self.naming.service(&facts, parent.as_ref());
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
        let Process { executable, cgroup, service, verdict: before, .. } = self.table.get(tgid)?;
        let verdict = self.verdict(tgid, &executable, &cgroup, &service);
        if verdict != before {
            self.table.update(tgid, |process| process.verdict = verdict)?;
            self.changes.push(Change { tgid, verdict: Some(verdict) });
        }
        Some(verdict)
    }

    fn verdict_of(&self, tgid: u32) -> Option<Verdict> {
        self.table.with(tgid, |process| process.verdict)
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
        if self.table.len() >= self.limits.processes && !self.table.contains(tgid) {
            self.make_room();
        }
        let verdict = process.verdict;
        let before = self.table.insert(tgid, process);
        if before != Some(verdict) {
            self.changes.push(Change { tgid, verdict: Some(verdict) });
        }
    }

    fn make_room(&mut self) {
        while self.table.len() >= self.limits.processes {
            if self.ended.is_empty() {
                let Some(any) = self.table.any() else { return };
                self.forget(any);
            } else {
                self.forget_oldest();
            }
        }
    }

    /// Forgets who ended first, unless its pid has been taken over meanwhile.
    fn forget_oldest(&mut self) {
        if let Some((ended, tgid)) = self.ended.pop_front()
            && self.table.with(tgid, |process| process.ended) == Some(Some(ended))
        {
            self.forget(tgid);
        }
    }

    fn forget(&mut self, tgid: u32) {
        if self.table.remove(tgid) {
            self.changes.push(Change { tgid, verdict: None });
        }
    }

    fn confirm(&mut self, tgid: u32) {
        let is_due = |process: &Process<_, _>| !process.confirmed && process.ended.is_none();
        if self.table.with(tgid, is_due) != Some(true) {
            return;
        }
        if let Some(identity) = self.reader.identity(tgid) {
            self.compare_with(tgid, identity);
        }
        self.table.update(tgid, |process| process.confirmed = true);
    }

    fn compare(&mut self, tgid: u32, now: u64) {
        if !self.table.is_running(tgid) {
            return;
        }
        let Some(identity) = self.reader.identity(tgid) else { return self.exit(tgid, now) };
        if self.compare_with(tgid, identity) && self.looks_at_ports {
            self.ports_changed(tgid);
        }
    }

    /// Whether a known process is still what it was; it is read again if not. `identity` is its start and executable.
    fn compare_with(&mut self, tgid: u32, (start, executable): (u64, Option<String>)) -> bool {
        let compare = |process: &mut Process<_, _>| {
            *process.start.get_or_insert(start) == start
                && executable.is_none_or(|executable| *executable == *process.executable)
        };
        let Some(is_same) = self.table.update(tgid, compare) else { return false };
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
