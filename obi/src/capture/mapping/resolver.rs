//! From an address of a sample to the file and the place in it: the owner of all that is known of mappings.
//!
//! In: the side-band, answers of the threads that look at files and make tables, samples. Out: [`MappedAddress`]s, and
//! what the kernel side learns. Owned by the thread that reads the samples, and never waits: what takes time is asked
//! of [`Reader`] and [`Builder`].
//!
//! Who samples reads the ring of stacks first and calls [`Resolver::advance`] then: what made a sample's addresses
//! valid was written before the sample was taken.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashSet};
use obi_ebpf::{STACK_NO_MAPPING, STACK_NO_PROCESS, STACK_NO_TABLE};

use super::backing::Backing;
use super::file::ExecutableFile;
use super::interpreter::{Examine, Fares, Found, Interpreters};
use super::kernel::{Blocks, entries};
use super::process::Processes;
use super::reader::{Answer, Failures, Reader, monotonic};
use super::rings::Rings;
use super::space::Mapping;
use super::survey::Survey;
use super::tables::{Builder, Request, TableCounts, Tables};
use super::want::{Opening, Want};
use crate::capture::guest::Unfit;
use crate::capture::stack::StackSample;

/// Where an address was.
#[derive(Debug, Clone)]
pub struct MappedAddress {
    /// What was mapped there.
    pub mapping: Arc<Mapping>,
    /// The address, in the process, of the instruction that is meant: of a caller, one within its call.
    pub address: u64,
}

impl MappedAddress {
    /// Where that is in the file.
    #[must_use]
    pub fn file_offset(&self) -> u64 {
        self.mapping.file_offset(self.address)
    }

    /// Where that is in the file's own layout (`p_vaddr`); `None` while the file is not known, and when it is no
    /// program.
    #[must_use]
    pub fn elf_address(&self) -> Option<u64> {
        self.mapping.file()?.address(self.file_offset())
    }
}

/// What came of an address.
#[derive(Debug, Clone)]
pub enum Resolved {
    /// It was here.
    Mapped(MappedAddress),
    /// Not known yet: what the process maps is being read.
    Pending,
    /// In nothing that is known.
    Nowhere,
}

/// An address of a sample.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampled {
    /// Process.
    pub tgid: u32,
    /// As in the sample.
    pub address: u64,
    /// It is behind a call.
    pub is_return: bool,
    /// The thread served a request.
    pub serves: bool,
    /// Of the sample, `CLOCK_MONOTONIC` nanoseconds.
    pub time: u64,
}

/// A file that nobody maps any more is let go after this time, nanoseconds.
const HELD: u64 = 20_000_000_000;
const SECOND: u64 = 1_000_000_000;
/// Between looks at which files are in use.
const BETWEEN_MARKS: u64 = 5 * SECOND;
/// Tables that no sample has missed are asked for again after this time; those that one has, after this.
const ASK_AGAIN: u64 = 60 * SECOND;
const ASK_NEEDED_AGAIN: u64 = SECOND;
/// A program that was sampled this recently is given to the kernel side as soon as it begins again.
const FAMILIAR: u64 = 60 * SECOND;

/// What is done with files before they are closed.
type BeforeRelease<'a> = &'a mut dyn FnMut(&[Arc<ExecutableFile>]);

/// Everything that is known of mappings.
#[derive(Debug)]
pub struct Resolver {
    rings: Rings,
    processes: Processes,
    failures: Arc<Failures>,
    reader: Reader,
    builder: Builder,
    tables: Arc<TableCounts>,
    blocks: Blocks,
    interpreters: Interpreters,
    /// Files that are held, and when a process was last seen to map them.
    files: HashMap<u64, (Arc<ExecutableFile>, u64), RandomState>,
    next_sweep: u64,
    next_mark: u64,
    /// Processes whose lists are still to be read in this round: the side-band does not report what is unmapped.
    round: Vec<u32>,
    counts: ReportedCounts,
}

/// How telling the kernel side goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct ReportedCounts {
    blocks: u64,
    full: u64,
    refused: u64,
}

/// What is known, and what could not be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MappingCounts {
    /// Processes.
    pub processes: u64,
    /// Files that are held open.
    pub files: u64,
    /// Files that have tables in the kernel.
    pub table_files: u64,
    /// Tables in the kernel.
    pub tables: u64,
    /// Bytes of kernel memory: tables.
    pub table_bytes: u64,
    /// Bytes of kernel memory: what processes map.
    pub mapping_bytes: u64,
    /// Bytes of kernel memory: the side-band.
    pub ring_bytes: u64,
    /// Files whose tables made room for others.
    pub evicted: u64,
    /// Times that tables had no room.
    pub tables_full: u64,
    /// Files of which no tables can be made.
    pub tables_refused: u64,
    /// Side-band records that were lost, in the kernel or for being none.
    pub records_lost: u64,
    /// Mappings for which their process has too many.
    pub mappings_full: u64,
    /// Processes that were forgotten for others.
    pub processes_full: u64,
    /// Times that a process's mappings had no room in the kernel.
    pub blocks_full: u64,
    /// Things that could not be looked at, since too many wait for it.
    pub not_asked: u64,
}

impl Resolver {
    /// Starts the threads, with the capabilities that the calling thread has now, and gives the kernel side what the
    /// survey has found as samples come.
    ///
    /// # Errors
    /// When there can be no more threads.
    pub fn start(
        survey: Survey,
        tables: Tables,
        blocks: Blocks,
        interpreters: Interpreters,
    ) -> io::Result<Self> {
        let Survey { rings, processes, looker, files, .. } = survey;
        let now = monotonic();
        let (failures, table_counts) = (looker.failures(), tables.counts());
        Ok(Self {
            rings,
            processes,
            failures,
            reader: Reader::start(looker)?,
            builder: Builder::start(tables)?,
            tables: table_counts,
            blocks,
            interpreters,
            files: files.into_iter().map(|file| (file.id, (file, now))).collect(),
            next_sweep: now + SECOND,
            next_mark: now + BETWEEN_MARKS,
            round: Vec::new(),
            counts: ReportedCounts::default(),
        })
    }

    /// Takes in what has happened, and updates the kernel side. To be called some ten times a second, and when one of
    /// [`Self::descriptors`] is readable. `before_release` is called with the files that are about to be closed, since
    /// nobody has mapped them for a while: what of them is to be named must be named now.
    pub fn advance(&mut self, before_release: BeforeRelease<'_>) {
        let now = monotonic();
        let processes = &mut self.processes;
        self.rings.drain(now, |record| processes.apply(record));
        self.take_answers(now);
        if now >= self.next_sweep {
            self.next_sweep = now + SECOND;
            self.sweep(now, before_release);
        }
        self.tell(now);
        self.ask();
    }

    /// A sample was taken: its process is given to the kernel side, and what it lacked is asked for.
    pub fn observe(&mut self, sample: &StackSample<'_>) {
        let (tgid, time) = (sample.event.header.tgid, sample.event.header.time);
        let end = u32::from(sample.event.end);
        if sample.n_user() == 0 && end != STACK_NO_PROCESS {
            return;
        }
        self.processes.sampled(tgid, time, end == STACK_NO_MAPPING);
        self.interpreters.sampled(tgid, time);
        match end {
            STACK_NO_PROCESS => self.processes.changed(tgid),
            STACK_NO_TABLE => {
                if let Some(last) = sample.native().last() {
                    let address = last.address.wrapping_sub(u64::from(!last.is_exact));
                    self.lacks_table(tgid, address, time, sample.event.header.exchange != 0);
                }
            }
            _ => {}
        }
    }

    /// Where an address was at the time of its sample.
    pub fn resolve(&mut self, sampled: Sampled) -> Resolved {
        let Sampled { tgid, address, is_return, serves, time } = sampled;
        let address = address.wrapping_sub(u64::from(is_return));
        if let Some(mapping) = self.processes.find(tgid, address, time) {
            if let Some(file) = mapping.backing.loaded().as_ref() {
                file.touch(time, serves);
            }
            return Resolved::Mapped(MappedAddress { mapping: Arc::clone(mapping), address });
        }
        self.processes.sampled(tgid, time, true);
        if self.processes.is_awaited(tgid) { Resolved::Pending } else { Resolved::Nowhere }
    }

    /// What a process maps now, sorted by address.
    #[must_use]
    pub fn mappings(&self, tgid: u32) -> Option<&Arc<Vec<Arc<Mapping>>>> {
        self.processes.mappings(tgid)
    }

    /// Processes that run a program which Go has made.
    pub fn go_processes(&self) -> impl Iterator<Item = u32> + '_ {
        let is_go = |mapping: &Arc<Mapping>| {
            mapping.backing.loaded().as_ref().is_some_and(|file| !file.build_ids.go.is_empty())
        };
        let running = self.processes.iter().filter(|(_, process)| process.ended.is_none());
        running.filter(move |(_, process)| process.mappings().iter().any(is_go)).map(|(tgid, _)| tgid)
    }

    /// Readable when it is time to call [`Self::advance`].
    pub fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.rings.descriptors()
    }

    /// Processes whose interpreters are to be looked into by a thread that may wait.
    pub fn to_examine(&mut self) -> Vec<Examine> {
        self.interpreters.take_wants()
    }

    /// What was found in one of them, that has run its program `since` this time; or what has become of it later.
    pub fn examined(&mut self, tgid: u32, since: u64, found: Result<Found, Unfit>) {
        self.interpreters.examined(tgid, since, found, monotonic());
    }

    /// Whether a process has an interpreter now.
    #[must_use]
    pub fn has_interpreter(&self, tgid: u32) -> bool {
        self.interpreters.has(tgid)
    }

    /// How the interpreters of processes fare.
    pub fn interpreters(&self) -> impl Iterator<Item = Fares> + '_ {
        self.interpreters.fares()
    }

    /// How often files could not be opened, by reason.
    #[must_use]
    pub fn failures(&self) -> &Failures {
        &self.failures
    }

    /// What is known, and what could not be.
    #[must_use]
    pub fn counts(&self) -> MappingCounts {
        let (processes, tables) = (self.processes.counts(), self.tables.load());
        MappingCounts {
            processes: self.processes.len().0 as u64,
            files: self.files.len() as u64,
            mapping_bytes: self.counts.blocks * crate::capture::program::profile::ELEMENT_BYTES,
            ring_bytes: self.rings.bytes(),
            records_lost: processes.records_lost + self.rings.malformed(),
            mappings_full: processes.mappings_full,
            processes_full: processes.processes_full,
            blocks_full: self.counts.full,
            not_asked: self.counts.refused,
            ..tables
        }
    }

    /// What the kernel knows of a process.
    #[must_use]
    pub fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    // === inside ===

    fn take_answers(&mut self, now: u64) {
        let mut opened = HashSet::<*const Backing, RandomState>::default();
        let mut added = HashSet::<u64, RandomState>::default();
        for answer in self.reader.answers() {
            match answer {
                Answer::Listed(tgid, text, began) => self.processes.listed(tgid, &text, began),
                Answer::Gone(tgid, time) => self.processes.gone(tgid, time),
                Answer::Hidden(tgid) => self.processes.not_awaited(tgid),
                Answer::Opened(backing, file) => {
                    self.files.insert(file.id, (file, now));
                    opened.insert(Arc::as_ptr(&backing));
                }
                Answer::Replaced(backing) => self.processes.replaced(&backing),
                Answer::Deleted(backing) => self.processes.forget(&backing),
            }
        }
        added.extend(self.builder.added().map(|file| file.id));
        if opened.is_empty() && added.is_empty() {
            return;
        }
        // Also of processes that the kernel side does not know: their program may turn out to be a familiar one.
        let is_opened = |mapping: &Arc<Mapping>| opened.contains(&Arc::as_ptr(&mapping.backing));
        let is_added = |mapping: &Arc<Mapping>| {
            mapping.backing.loaded().as_ref().is_some_and(|file| added.contains(&file.id))
        };
        let concerned = self.processes.iter().filter(|(_, process)| {
            let mappings = process.mappings();
            !opened.is_empty() && mappings.iter().any(is_opened)
                || process.blocks > 0 && mappings.iter().any(is_added)
        });
        let concerned: Vec<u32> = concerned.map(|(tgid, _)| tgid).collect();
        concerned.into_iter().for_each(|tgid| self.processes.changed(tgid));
    }

    fn ask(&mut self) {
        for want in self.processes.take_wants() {
            if self.reader.ask(want.clone()) {
                continue;
            }
            self.counts.refused += 1;
            match want {
                Want::Open(opening) => opening.backing.not_asked(),
                Want::Confirm(Opening { backing, .. }) => backing.confirm(backing.confirmed()),
                Want::List(tgid) => self.processes.not_awaited(tgid),
            }
        }
    }

    /// Tells the kernel side what has changed.
    fn tell(&mut self, now: u64) {
        for tgid in self.processes.take_changed() {
            let Some(process) = self.processes.get_mut(tgid) else { continue };
            let before = process.blocks;
            if process.ended.is_some() {
                process.blocks = 0;
                self.interpreters.gone(tgid);
                self.blocks.remove(tgid, before);
                self.counts.blocks -= u64::from(before);
                continue;
            }
            if before == 0 && process.sampled == 0 && !is_familiar(process.mappings(), now) {
                continue;
            }
            self.interpreters.reported(tgid, process.since(), process.parent(), process.mappings());
            let builder = &self.builder;
            let entries = entries(process.mappings(), |file| {
                if file.is_due(now, ASK_AGAIN) {
                    builder.add(Request { file, is_needed: false });
                }
            });
            let put = self.blocks.put(tgid, &entries, before);
            let reported = put.unwrap_or_else(|error| {
                tracing::debug!(tgid, %error, "mappings did not go into the kernel");
                self.counts.full += 1;
                0
            });
            process.blocks = reported;
            self.counts.blocks = self.counts.blocks + u64::from(reported) - u64::from(before);
            if reported == 0 {
                self.make_room();
            }
        }
    }

    /// The process that was not sampled for the longest is given no more, until it is sampled again.
    fn make_room(&mut self) {
        let reported = self.processes.iter().filter(|(_, process)| process.blocks > 0);
        let Some(tgid) = reported.min_by_key(|(_, process)| process.sampled).map(|(tgid, _)| tgid) else {
            return;
        };
        let Some(process) = self.processes.get_mut(tgid) else { return };
        let blocks = std::mem::take(&mut process.blocks);
        self.blocks.remove(tgid, blocks);
        self.counts.blocks -= u64::from(blocks);
    }

    fn lacks_table(&mut self, tgid: u32, address: u64, time: u64, serves: bool) {
        let Some(mapping) = self.processes.find(tgid, address, time) else { return };
        let Some(file) = mapping.file() else { return };
        file.touch(time, serves);
        match file.tables() {
            None if file.is_due(time, ASK_NEEDED_AGAIN) => {
                self.builder.add(Request { file, is_needed: true })
            }
            None => {}
            // The kernel side has not heard of them, or has an old number.
            Some(tables) if !tables.is_empty() => self.processes.changed(tgid),
            Some(_) => {}
        }
    }

    fn sweep(&mut self, now: u64, before_release: BeforeRelease<'_>) {
        for (tgid, blocks) in self.processes.sweep(now, super::survey::runs) {
            self.interpreters.gone(tgid);
            self.blocks.remove(tgid, blocks);
            self.counts.blocks -= u64::from(blocks);
        }
        if self.round.is_empty() {
            self.round = self.processes.tgids();
        }
        if let Some(tgid) = self.round.pop() {
            self.processes.ask(tgid, now);
        }
        if now < self.next_mark {
            return;
        }
        self.next_mark = now + BETWEEN_MARKS;
        let files = &mut self.files;
        self.processes.each_mapping(|mapping| {
            if let Some(file) = mapping.backing.loaded().as_ref()
                && let Some((_, mapped)) = files.get_mut(&file.id)
            {
                *mapped = now;
            }
        });
        let is_over =
            |_: &u64, (_, mapped): &mut (Arc<ExecutableFile>, u64)| now.saturating_sub(*mapped) >= HELD;
        let over: Vec<Arc<ExecutableFile>> = files.extract_if(is_over).map(|(_, (file, _))| file).collect();
        if over.is_empty() {
            return;
        }
        before_release(&over);
        for file in over {
            self.builder.remove(file.id);
            file.let_go();
        }
    }
}

/// The program, the lowest mapping mostly, has been sampled in other processes lately.
fn is_familiar(mappings: &[Arc<Mapping>], now: u64) -> bool {
    let file = mappings.first().and_then(|mapping| mapping.file());
    file.is_some_and(|file| file.tables().is_some() && file.sampled().saturating_add(FAMILIAR) > now)
}
