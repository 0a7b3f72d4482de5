//! Processes and what they map, by the kernel's side-band and by lists from `/proc`.
//!
//! In: [`Record`]s in order of time, lists, samples' addresses. Out: the mapping that an address was in at a time, also
//! shortly after its process has ended or runs another program; and [`Want`]s: what is to be looked at. Bounded.
//! Waits for nothing. Refuses to know how files are opened, and the kernel's maps.
#![forbid(unsafe_code)]

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::backing::{Backing, Backings, Kind, State};
use super::listing;
use super::side_band::{Event, Mapped, Record};
use super::space::{Mapping, Outcome, Space};
use super::want::{Opening, Want};

/// How often something happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Records that did not fit into the kernel's rings.
    pub records_lost: u64,
    /// Mappings that were not taken because their process has too many.
    pub mappings_full: u64,
    /// Processes that were forgotten because there are too many.
    pub processes_full: u64,
}

/// One process.
#[derive(Debug)]
pub struct Process {
    /// Programs that it has run, the last at the end. Never empty.
    programs: Vec<Program>,
    parent: u32,
    /// All that it maps is known.
    complete: bool,
    /// When its list was asked for last.
    asked: u64,
    /// Its list is being read.
    awaited: bool,
    /// When it was sampled last; 0: never.
    pub sampled: u64,
    /// When its first thread ended.
    pub ended: Option<u64>,
    /// A sample has come from behind that: when it was taken. Either another thread goes on, or its end was seen.
    sampled_behind: Option<u64>,
    /// It is in the list of those whose mappings have changed.
    changed: bool,
    /// Elements that it has in the kernel's map.
    pub blocks: u32,
}

#[derive(Debug)]
struct Program {
    since: u64,
    space: Space,
}

/// Processes that are remembered.
const PROCESSES: usize = 32_768;
/// Programs of one process that are remembered.
const PROGRAMS: usize = 4;
/// A process's list is read no more often than this, nanoseconds.
const BETWEEN_LISTS: u64 = 1_000_000_000;
/// Samples may come this much later than what they are of, nanoseconds.
pub const GRACE: u64 = 5_000_000_000;
/// A file that is mapped again is looked at again after this time, nanoseconds.
const CONFIRMED_FOR: u64 = 1_000_000_000;

/// All of them.
#[derive(Debug, Default)]
pub struct Processes {
    table: HashMap<u32, Process, RandomState>,
    backings: Backings,
    wants: Vec<Want>,
    /// Those that can wait for the next sweep.
    later: Vec<Want>,
    /// Whose mappings have changed.
    changed: Vec<u32>,
    counts: Counts,
}

impl Processes {
    /// Something happened. Records come in order of time.
    pub fn apply(&mut self, record: Record<'_>) {
        let time = record.time;
        match record.event {
            Event::Mapped { tgid, mapped } => self.mapped(tgid, &mapped, time),
            Event::Exec { tgid } => {
                let process = self.entry(tgid);
                process.begin(Program { since: time, space: Space::default() });
                (process.complete, process.ended, process.sampled_behind) = (true, None, None);
                self.changed(tgid);
            }
            Event::Fork { parent, tgid } => self.fork(parent, tgid, time),
            Event::Exit { tgid } => {
                if let Some(process) = self.table.get_mut(&tgid) {
                    process.ended = Some(time);
                    self.changed(tgid);
                }
            }
            Event::Lost { n } => {
                self.counts.records_lost += n;
                self.table.values_mut().for_each(|process| process.complete = false);
            }
            Event::Other => {}
        }
    }

    /// What a process maps, as `/proc/PID/maps` had it; its reading began at `time`.
    pub fn listed(&mut self, tgid: u32, text: &[u8], time: u64) {
        let process = self.entry(tgid);
        process.awaited = false;
        // The list is of another program, or empty because the process has gone meanwhile.
        if process.program().since > time || text.is_empty() && process.ended.is_some() {
            return;
        }
        let since = process.program().since;
        let mut listed = Vec::new();
        for mapped in listing::executed(text) {
            let backing = self.backing(tgid, &mapped, time);
            listed.push(Mapping {
                start: mapped.start,
                end: mapped.end,
                offset: mapped.offset,
                backing,
                since,
            });
        }
        let process = self.entry(tgid);
        let program = process.programs.last_mut().expect("a process has a program");
        // The list does not say which of several files of one inode it is; what is known from its mapping does.
        for mapping in &mut listed {
            let known = program.space.at(mapping.start).filter(|known| {
                (known.start, known.end, known.offset) == (mapping.start, mapping.end, mapping.offset)
                    && known.backing.is_like(&mapping.backing)
            });
            if let Some(known) = known {
                *mapping = known.as_ref().clone();
            }
        }
        process.complete = true;
        if program.space.replace(listed, time) {
            self.changed(tgid);
        }
    }

    /// A process is not there any more, at `time`; the side-band may have lost its end.
    pub fn gone(&mut self, tgid: u32, time: u64) {
        let Some(process) = self.table.get_mut(&tgid) else { return };
        process.awaited = false;
        // Another may have its number since.
        if process.ended.is_none() && process.program().since <= time {
            process.ended = Some(time);
            self.changed(tgid);
        }
    }

    /// A sample was taken of this process. Asks for its list when it is not known, or when `missed`: an address was in
    /// nothing known. False when the process itself was not known.
    pub fn sampled(&mut self, tgid: u32, time: u64, missed: bool) -> bool {
        let known = self.table.contains_key(&tgid);
        let process = self.entry(tgid);
        let is_first = process.sampled == 0;
        process.sampled = process.sampled.max(time).max(1);
        let goes_on = process.ended.is_some_and(|ended| ended < time);
        if goes_on {
            // Only its first thread has ended, or that was caught on its way out: the next sweep knows.
            (process.ended, process.sampled_behind) = (None, Some(time));
        }
        let is_due = process.asked == 0 || time.saturating_sub(process.asked) >= BETWEEN_LISTS;
        if (!process.complete || missed) && is_due {
            process.asked = time.max(1);
            process.awaited = true;
            self.wants.push(Want::List(tgid));
        }
        if is_first || goes_on {
            self.changed(tgid);
        }
        known
    }

    /// Whether a process's list is under way: what is not found may be soon.
    #[must_use]
    pub fn is_awaited(&self, tgid: u32) -> bool {
        self.table.get(&tgid).is_some_and(|process| process.awaited)
    }

    /// Its list will not come now.
    pub fn not_awaited(&mut self, tgid: u32) {
        if let Some(process) = self.table.get_mut(&tgid) {
            process.awaited = false;
        }
    }

    /// The list of a process that runs is to be read, whatever is known of it.
    pub fn ask(&mut self, tgid: u32, time: u64) {
        if let Some(process) = self.table.get_mut(&tgid).filter(|process| process.ended.is_none()) {
            process.asked = time.max(1);
            self.wants.push(Want::List(tgid));
        }
    }

    /// The mapping that an address was in at a time.
    #[must_use]
    pub fn find(&self, tgid: u32, address: u64, time: u64) -> Option<&Arc<Mapping>> {
        self.table.get(&tgid)?.at(time).space.find(address, time)
    }

    /// What a process maps now, sorted by address.
    #[must_use]
    pub fn mappings(&self, tgid: u32) -> Option<&Arc<Vec<Arc<Mapping>>>> {
        self.table.get(&tgid).map(|process| process.program().space.now())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Process)> {
        self.table.iter().map(|(tgid, process)| (*tgid, process))
    }

    /// One of them.
    pub fn get_mut(&mut self, tgid: u32) -> Option<&mut Process> {
        self.table.get_mut(&tgid)
    }

    /// Every mapping that samples may still ask for, those shared between forks once.
    pub fn each_mapping(&self, mut look: impl FnMut(&Arc<Mapping>)) {
        let mut seen = hashbrown::HashSet::<*const Vec<Arc<Mapping>>, RandomState>::default();
        for program in self.table.values().flat_map(|process| &process.programs) {
            if seen.insert(Arc::as_ptr(program.space.now())) {
                program.space.now().iter().for_each(&mut look);
            }
            program.space.former().for_each(&mut look);
        }
    }

    /// The file behind a name is another one now: what has been mapped since it was last confirmed is the new one, and
    /// is asked for.
    pub fn replaced(&mut self, old: &Arc<Backing>) {
        self.backings.forget(old);
        let confirmed = old.confirmed();
        let maps_new = |process: &Process| {
            let mut mappings = process.program().space.now().iter();
            mappings.any(|mapping| Arc::ptr_eq(&mapping.backing, old) && mapping.since > confirmed)
        };
        let affected: Vec<u32> =
            self.table.iter().filter(|(_, process)| maps_new(process)).map(|(tgid, _)| *tgid).collect();
        for tgid in affected {
            let Some(process) = self.table.get_mut(&tgid) else { continue };
            let new: Vec<Mapping> = process
                .program()
                .space
                .now()
                .iter()
                .filter(|mapping| Arc::ptr_eq(&mapping.backing, old) && mapping.since > confirmed)
                .map(|mapping| mapping.as_ref().clone())
                .collect();
            for mapping in new {
                let mapped = Mapped {
                    start: mapping.start,
                    end: mapping.end,
                    offset: mapping.offset,
                    device: old.device,
                    inode: old.inode,
                    generation: old.generation(),
                    path: &old.path,
                };
                self.mapped(tgid, &mapped, mapping.since);
            }
        }
    }

    /// The next mapping of this name is another file.
    pub fn forget(&mut self, backing: &Arc<Backing>) {
        self.backings.forget(backing);
    }

    /// Forgets who ended long ago. `runs` says whether a process whose first thread has ended goes on. Returns those
    /// that are gone and have elements in the kernel's map.
    pub fn sweep(&mut self, now: u64, runs: impl Fn(u32) -> bool) -> Vec<(u32, u32)> {
        let old = now.saturating_sub(GRACE);
        let mut gone = Vec::new();
        self.table.retain(|tgid, process| {
            let last = process.programs.len().saturating_sub(1);
            let mut index = 0;
            // A program that another has followed since long ago.
            let followed: Vec<u64> = process.programs.iter().skip(1).map(|program| program.since).collect();
            process.programs.retain(|_| {
                index += 1;
                index > last || followed[index - 1] >= old
            });
            process.programs.iter_mut().for_each(|program| program.space.forget_former(old));
            match process.ended.or(process.sampled_behind) {
                Some(ended) if ended < old => {
                    if runs(*tgid) {
                        (process.ended, process.sampled_behind) = (None, None);
                        return true;
                    }
                    if process.blocks > 0 {
                        gone.push((*tgid, process.blocks));
                    }
                    false
                }
                _ => true,
            }
        });
        self.wants.append(&mut self.later);
        self.backings.sweep();
        gone
    }

    /// What the kernel side knows of a process is not what it maps any more.
    pub fn changed(&mut self, tgid: u32) {
        if let Some(process) = self.table.get_mut(&tgid)
            && !std::mem::replace(&mut process.changed, true)
        {
            self.changed.push(tgid);
        }
    }

    /// Whose mappings have changed since the last call.
    pub fn take_changed(&mut self) -> Vec<u32> {
        let changed = std::mem::take(&mut self.changed);
        for tgid in &changed {
            if let Some(process) = self.table.get_mut(tgid) {
                process.changed = false;
            }
        }
        changed
    }

    /// Their numbers.
    #[must_use]
    pub fn tgids(&self) -> Vec<u32> {
        self.table.keys().copied().collect()
    }

    /// What should be looked at, since the last call.
    pub fn take_wants(&mut self) -> Vec<Want> {
        std::mem::take(&mut self.wants)
    }

    /// How many processes, and how many files by the kernel's names.
    #[must_use]
    pub fn len(&self) -> (usize, usize) {
        (self.table.len(), self.backings.len())
    }

    /// How often what happened.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.counts
    }

    // === inside ===

    fn mapped(&mut self, tgid: u32, mapped: &Mapped<'_>, time: u64) {
        let backing = self.backing(tgid, mapped, time);
        let process = self.entry(tgid);
        let program = process.programs.last_mut().expect("a process has a program");
        let (start, end, offset) = (mapped.start, mapped.end, mapped.offset);
        match program.space.map(Mapping { start, end, offset, backing, since: time }) {
            Outcome::Known => {}
            Outcome::Changed => self.changed(tgid),
            Outcome::Full => self.counts.mappings_full += 1,
        }
    }

    fn backing(&mut self, tgid: u32, mapped: &Mapped<'_>, time: u64) -> Arc<Backing> {
        let backing = self.backings.of(mapped);
        let is_file = matches!(backing.kind, Kind::File | Kind::Vdso);
        let opening = |processes: &Self| {
            let parent = processes.table.get(&tgid).map_or(0, |process| process.parent);
            Opening { backing: Arc::clone(&backing), tgid, parent, range: (mapped.start, mapped.end) }
        };
        match backing.state() {
            // It may have been opened for a process that was gone by then.
            state @ (State::New | State::Unavailable)
                if is_file && (state == State::New || backing.is_confirmable(time, CONFIRMED_FOR)) =>
            {
                backing.set_state(State::Asked);
                self.wants.push(Want::Open(opening(self)));
            }
            State::Open if backing.kind == Kind::File && time > backing.confirmed() => {
                let is_due = time - backing.confirmed() >= CONFIRMED_FOR;
                if backing.begin_confirming() {
                    let want = Want::Confirm(opening(self));
                    if is_due { self.wants.push(want) } else { self.later.push(want) }
                }
            }
            _ => {}
        }
        backing
    }

    fn fork(&mut self, parent: u32, tgid: u32, time: u64) {
        let (space, complete) = match self.table.get(&parent) {
            Some(process) => (process.program().space.fork(), process.complete),
            None => (Space::default(), false),
        };
        let process = self.entry(tgid);
        process.begin(Program { since: time, space });
        (process.complete, process.ended, process.sampled_behind) = (complete, None, None);
        process.parent = parent;
        (process.sampled, process.asked) = (0, 0);
        self.changed(tgid);
    }

    fn entry(&mut self, tgid: u32) -> &mut Process {
        if self.table.len() >= PROCESSES && !self.table.contains_key(&tgid) {
            self.make_room();
        }
        self.table.entry(tgid).or_insert_with(Process::unknown)
    }

    /// Forgets those that have ended, or else one that was not sampled for the longest.
    fn make_room(&mut self) {
        self.counts.processes_full += 1;
        let before = self.table.len();
        self.table.retain(|_, process| process.ended.is_none() || process.blocks > 0);
        if self.table.len() == before {
            let unused = self.table.iter().filter(|(_, process)| process.blocks == 0);
            let oldest = unused.min_by_key(|(_, process)| process.sampled).map(|(tgid, _)| *tgid);
            let any = oldest.or_else(|| self.table.keys().next().copied());
            any.map(|tgid| self.table.remove(&tgid));
        }
    }
}

impl Process {
    fn unknown() -> Self {
        let program = Program { since: 0, space: Space::default() };
        Self {
            programs: vec![program],
            parent: 0,
            complete: false,
            asked: 0,
            awaited: false,
            sampled: 0,
            ended: None,
            sampled_behind: None,
            changed: false,
            blocks: 0,
        }
    }

    /// What it maps now, sorted by address.
    #[must_use]
    pub fn mappings(&self) -> &Arc<Vec<Arc<Mapping>>> {
        self.program().space.now()
    }

    /// Since when it runs its program.
    #[must_use]
    pub fn since(&self) -> u64 {
        self.program().since
    }

    /// Who it was forked from; 0: not known.
    #[must_use]
    pub fn parent(&self) -> u32 {
        self.parent
    }

    fn program(&self) -> &Program {
        self.programs.last().expect("a process has a program")
    }

    /// The program that it ran at a time.
    fn at(&self, time: u64) -> &Program {
        self.programs.iter().rev().find(|program| program.since <= time).unwrap_or(&self.programs[0])
    }

    fn begin(&mut self, program: Program) {
        if self.programs.len() >= PROGRAMS {
            self.programs.remove(0);
        }
        self.programs.push(program);
    }
}

#[cfg(test)]
mod tests;
