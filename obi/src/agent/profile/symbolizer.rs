//! The thread that names samples: for exports, for questions, and for files that are about to be closed.
//!
//! In: chosen samples. Out: selections, to the caller that asked. It reads files and may take seconds for the first
//! address of a large one; the sampler never waits for it.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use super::frame_address::{FrameAddress, Within};
use super::moment::Reply;
use crate::capture::mapping::ExecutableFile;
use crate::capture::mapping::space::Mapping as Mapped;
use crate::capture::program::return_memory;
use crate::clock::{Clock, monotonic_ns};
use crate::profile::ask::Answer;
use crate::profile::store::SelectedSamples;
use crate::profile::symbol::function::Function;
use crate::profile::symbol::{self, Symbols};
use crate::profile::{Fidelity, Frame, Mapping, Runtime, SampleType, Selection, Symbol, naming, waits};

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Job {
    /// A caller wants to see them.
    Answer(SelectedSamples<FrameAddress>, Clock, oneshot::Sender<Answer>),
    /// What was read from processes, of this type.
    Moment(SelectedSamples<FrameAddress>, SampleType, Clock, Reply),
    /// They are to be exported.
    Export(SelectedSamples<FrameAddress>, Clock),
    /// The file will be closed: these addresses of it are in held samples. The descriptor is held as long as that
    /// takes.
    Closing(Arc<ExecutableFile>, Arc<File>, Vec<u64>),
    /// A process runs code that it makes itself.
    Observe(u32),
    /// A process has ended, or runs another program.
    Renewed(u32),
}

/// What naming does and takes.
#[derive(Debug, Clone, Default)]
pub(super) struct SymbolizerView {
    pub(super) symbols: symbol::Statistics,
    /// Frames of samples by [`Fidelity`], as they were named.
    pub(super) frames: [u64; 4],
    /// Samples that the exporter could not take.
    pub(super) unexported: u64,
    /// Frames that were not named because it would have taken too long.
    pub(super) late: u64,
}

/// The thread's state.
pub(super) struct Symbolizer {
    pub(super) symbols: Symbols,
    pub(super) types: Vec<SampleType>,
    pub(super) exports: mpsc::Sender<Selection>,
    pub(super) view: Arc<ArcSwap<SymbolizerView>>,
    frames: [u64; 4],
    unexported: u64,
    late: u64,
    deadline: u64,
    /// Of the process whose frames are being named.
    process: Process,
    /// Frames in files that have no name yet, while they are only collected.
    missing: Option<Vec<Missing>>,
    /// By address, which the first keeps from being used again; the second is made of it.
    mappings: HashMap<usize, (Arc<Mapped>, Arc<Mapping>), RandomState>,
    /// Numbers of processes that make code: a pid may be used again.
    makers: HashMap<u32, u64, RandomState>,
    /// Of the selection in hand: interpreters' functions, by identity and position.
    functions: HashMap<(usize, Option<u32>), Arc<Symbol>, RandomState>,
    n_makers: u64,
}

/// Where the kernel shows a process.
#[derive(Debug, Default)]
struct Process {
    pid: u32,
    folder: PathBuf,
    root: PathBuf,
}

/// An address in a file that is not known yet.
struct Missing {
    file: u64,
    /// In its own layout.
    in_file: u64,
    /// In the process.
    address: u64,
    pid: u32,
    mapped: Arc<Mapped>,
}

/// When no job comes for so long, what large files take is given back.
const QUIET: Duration = Duration::from_secs(10);
/// Names of one selection may take so long, ns: less than who asks waits.
const TIME: u64 = 15_000_000_000;
/// Mappings that are remembered; then all are made anew.
const MAPPINGS: usize = 16_384;

impl Symbolizer {
    pub(super) fn new(
        symbols: Symbols,
        types: Vec<SampleType>,
        exports: mpsc::Sender<Selection>,
        view: Arc<ArcSwap<SymbolizerView>>,
    ) -> Self {
        let (mappings, makers, functions) = (HashMap::default(), HashMap::default(), HashMap::default());
        let (frames, unexported, late, deadline, n_makers) = ([0; 4], 0, 0, u64::MAX, 0);
        let (process, missing) = (Process::default(), None);
        Self {
            symbols,
            types,
            exports,
            view,
            frames,
            unexported,
            late,
            deadline,
            process,
            missing,
            mappings,
            makers,
            functions,
            n_makers,
        }
    }

    /// Works until no sender of jobs is left.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        loop {
            let job = match jobs.recv_timeout(QUIET) {
                Ok(job) => Some(job),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => return,
            };
            if self.symbols.advance(monotonic_ns()) {
                return_memory();
            }
            if let Some(job) = job {
                self.work(job);
            }
            self.view.store(Arc::new(SymbolizerView {
                symbols: self.symbols.statistics(),
                frames: self.frames,
                unexported: self.unexported,
                late: self.late,
            }));
        }
    }

    fn work(&mut self, job: Job) {
        match job {
            Job::Answer(chosen, clock, reply) => {
                if !reply.is_closed() {
                    let selection = self.name(&chosen, &clock, &self.types.clone());
                    let _ = reply.send(Ok(selection));
                }
            }
            Job::Moment(chosen, of, clock, reply) => {
                if !reply.is_over() {
                    let selection = self.name(&chosen, &clock, &[of]);
                    match reply {
                        Reply::Asker(asker) => drop(asker.send(Ok(selection))),
                        Reply::Export => self.export(selection),
                    }
                }
            }
            Job::Export(chosen, clock) => {
                let selection = self.name(&chosen, &clock, &self.types.clone());
                self.export(selection);
            }
            Job::Closing(file, handle, addresses) => self.close(&file, &handle, &addresses),
            Job::Observe(pid) => {
                let folder = PathBuf::from(format!("/proc/{pid}"));
                let id = self.maker(pid);
                self.symbols.observe(&symbol::Process { id, folder: &folder });
            }
            Job::Renewed(pid) => {
                if let Some(id) = self.makers.remove(&pid) {
                    self.symbols.forget_process(id);
                }
            }
        }
    }

    fn export(&mut self, selection: Selection) {
        let n = selection.samples.len() as u64;
        if self.exports.try_send(selection).is_err() {
            self.unexported += n;
        }
    }

    fn name(
        &mut self,
        chosen: &SelectedSamples<FrameAddress>,
        clock: &Clock,
        types: &[SampleType],
    ) -> Selection {
        self.deadline = monotonic_ns() + TIME;
        if self.mappings.len() > MAPPINGS {
            self.mappings.clear();
        }
        self.functions.clear();
        // The first time only what is known is named, most often everything.
        self.missing = Some(Vec::new());
        let mut selection = naming::selection(chosen, clock, types, |pid, place| self.frame(pid, place));
        let missing = self.missing.take().unwrap_or_default();
        if !missing.is_empty() {
            self.find(missing);
            selection = naming::selection(chosen, clock, types, |pid, place| self.frame(pid, place));
        }
        for sample in &selection.samples {
            for frame in &sample.stack.frames {
                self.frames[frame.symbol.fidelity as usize] += 1;
            }
        }
        selection
    }

    /// A file at a time: beside the tables of a large one there is no room for those of others.
    fn find(&mut self, mut missing: Vec<Missing>) {
        missing.sort_unstable_by_key(|missing| (missing.file, missing.in_file));
        missing.dedup_by_key(|missing| (missing.file, missing.in_file));
        for Missing { address, pid, mapped, .. } in missing {
            if monotonic_ns() >= self.deadline {
                return;
            }
            self.mapped(pid, &mapped, address);
        }
    }

    fn frame(&mut self, pid: u32, place: &FrameAddress) -> Frame {
        let is_return = place.is_return();
        let address = place.address.wrapping_sub(u64::from(is_return));
        let (symbol, mapping) = match &place.within {
            Within::Kernel(_) => (self.look_up(&symbol::CodeAddress::Kernel(address)), None),
            Within::Mapped(mapped, _) => {
                let symbol = self.mapped(pid, mapped, address);
                let shown = self.mapping(mapped);
                (symbol, (shown.end > 0).then_some(shown))
            }
            Within::Nothing(_) => (self.made(pid, address), None),
            Within::Runs => return waits::running(),
            Within::Function(function) => return self.function(function, place.address),
            Within::Mark => return naming::guest_marker((place.address >> 8) as u32, place.address as u8),
        };
        Frame { address: place.address, is_return, mapping, symbol }
    }

    /// Its address is that of the instruction, as far as the position shows it.
    fn function(&mut self, function: &Arc<Function>, position: u64) -> Frame {
        let position = u32::try_from(position).ok();
        let address = function.instruction(position);
        let key = (Arc::as_ptr(function).addr(), position);
        let symbol = self.functions.entry(key).or_insert_with(|| Arc::new(function.symbol(position)));
        Frame { address, is_return: false, mapping: None, symbol: Arc::clone(symbol) }
    }

    fn mapped(&mut self, pid: u32, mapped: &Arc<Mapped>, address: u64) -> Arc<Symbol> {
        let Some(file) = mapped.file().filter(|file| !file.segments().is_empty()) else {
            return self.made(pid, address);
        };
        let Some(in_file) = file.address(mapped.file_offset(address)) else {
            return self.made(pid, address);
        };
        let id = file.id;
        let known = symbol::File { id, handle: None, path: "", root: Path::new("") };
        if let Some(known) = self.symbols.known(&symbol::CodeAddress::File { file: known, address: in_file })
        {
            return known;
        }
        if let Some(missing) = &mut self.missing {
            missing.push(Missing { file: id, in_file, address, pid, mapped: Arc::clone(mapped) });
            return Arc::default();
        }
        let (held, process) = (file.handle(), self.process(pid));
        let file = symbol::File { id, handle: held.as_deref(), path: &file.path, root: &process.root };
        let symbol = self.look_up(&symbol::CodeAddress::File { file, address: in_file });
        self.process = process;
        symbol
    }

    fn made(&mut self, pid: u32, address: u64) -> Arc<Symbol> {
        let (id, process) = (self.maker(pid), self.process(pid));
        let place = symbol::Process { id, folder: &process.folder };
        let symbol = self.look_up(&symbol::CodeAddress::Process { process: place, address });
        self.process = process;
        symbol
    }

    /// To be put back: most often the next frame is of the same process.
    fn process(&mut self, pid: u32) -> Process {
        let process = std::mem::take(&mut self.process);
        if process.pid == pid && !process.folder.as_os_str().is_empty() {
            return process;
        }
        let folder = PathBuf::from(format!("/proc/{pid}"));
        Process { pid, root: folder.join("root"), folder }
    }

    /// Looks for names while there is time; then only what is known already has one. A later question gets more.
    fn look_up(&mut self, place: &symbol::CodeAddress<'_>) -> Arc<Symbol> {
        if let Some(known) = self.symbols.known(place) {
            return known;
        }
        if monotonic_ns() < self.deadline {
            return self.symbols.name(place);
        }
        self.late += 1;
        let runtime = match place {
            symbol::CodeAddress::Kernel(_) => Runtime::Kernel,
            symbol::CodeAddress::File { .. } | symbol::CodeAddress::Process { .. } => Runtime::Native,
        };
        Arc::new(Symbol { runtime, ..Symbol::default() })
    }

    fn maker(&mut self, pid: u32) -> u64 {
        if self.makers.len() > MAPPINGS {
            self.makers.drain().for_each(|(_, id)| self.symbols.forget_process(id));
        }
        *self.makers.entry(pid).or_insert_with(|| {
            self.n_makers += 1;
            self.n_makers
        })
    }

    /// Everything of a file that samples lie in is named while it is open; then it is let go here, too.
    fn close(&mut self, file: &ExecutableFile, handle: &File, addresses: &[u64]) {
        let root = PathBuf::from("/");
        for address in addresses {
            let file = symbol::File { id: file.id, handle: Some(handle), path: &file.path, root: &root };
            self.symbols.name(&symbol::CodeAddress::File { file, address: *address });
        }
        self.symbols.forget_file(file.id);
    }

    fn mapping(&mut self, mapped: &Arc<Mapped>) -> Arc<Mapping> {
        if let Some((_, known)) = self.mappings.get(&Arc::as_ptr(mapped).addr()) {
            return Arc::clone(known);
        }
        let file = mapped.file();
        let ids = file.as_ref().map(|file| file.build_ids.clone()).unwrap_or_default();
        let made = Arc::new(Mapping {
            start: mapped.start,
            end: mapped.end,
            offset: mapped.offset,
            path: Arc::clone(&mapped.backing.path),
            gnu_build_id: ids.gnu.into(),
            go_build_id: ids.go.into(),
            htlhash: ids.htlhash.into(),
        });
        // What is not open yet may be the next time.
        if file.is_some() || mapped.backing.is_made_at_run_time() {
            self.mappings.insert(Arc::as_ptr(mapped).addr(), (Arc::clone(mapped), Arc::clone(&made)));
        }
        made
    }
}

/// Words of [`SymbolizerView::frames`].
pub(super) const FIDELITIES: [(&str, Fidelity); 4] = [
    ("lines", Fidelity::Lines),
    ("function", Fidelity::Function),
    ("address", Fidelity::Address),
    ("marker", Fidelity::Marker),
];
