//! The thread that names samples: for exports, for questions, and for files that are about to be closed.
//!
//! In: chosen samples. Out: selections, to whoever asked. It reads files and may take seconds for the first address of a
//! large one; who samples never waits for it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use arc_swap::ArcSwap;
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use tokio::sync::{mpsc, oneshot};

use super::place::{Place, Within};
use crate::capture::mapping::ExecutableFile;
use crate::capture::mapping::space::Mapping as Mapped;
use crate::clock::{Clock, monotonic_ns};
use crate::profile::store::Chosen;
use crate::profile::symbol::{self, Symbols};
use crate::profile::{Fidelity, Frame, Mapping, Runtime, Selection, Symbol, naming};

/// What the thread is asked for.
#[derive(Debug)]
pub(super) enum Job {
    /// Somebody wants to see them.
    Answer(Chosen<Place>, Clock, oneshot::Sender<Selection>),
    /// They are to be exported.
    Export(Chosen<Place>, Clock),
    /// The file will be closed: these addresses of it are in held samples. The descriptor is held as long as that takes.
    Closing(Arc<ExecutableFile>, Arc<File>, Vec<u64>),
    /// A process runs code that it makes itself.
    Observe(u32),
    /// A process has ended, or runs another program.
    Renewed(u32),
}

/// What naming does and takes.
#[derive(Debug, Clone, Default)]
pub(super) struct NamerView {
    pub(super) symbols: symbol::Statistics,
    /// Frames of samples by [`Fidelity`], as they were named.
    pub(super) frames: [u64; 4],
    /// Samples that nobody could take for export.
    pub(super) unexported: u64,
    /// Frames that were not named because it would have taken too long.
    pub(super) late: u64,
}

/// The thread's state.
pub(super) struct Namer {
    pub(super) symbols: Symbols,
    pub(super) period: u64,
    pub(super) exports: mpsc::Sender<Selection>,
    pub(super) view: Arc<ArcSwap<NamerView>>,
    frames: [u64; 4],
    unexported: u64,
    late: u64,
    deadline: u64,
    /// By address, which the first keeps from being used again; the second is made of it.
    mappings: HashMap<usize, (Arc<Mapped>, Arc<Mapping>), RandomState>,
    /// Numbers of processes that make code: a pid may be used again.
    makers: HashMap<u32, u64, RandomState>,
    n_makers: u64,
}

/// Names of one selection may take so long, ns: less than who asks waits.
const TIME: u64 = 15_000_000_000;
/// Mappings that are remembered; then all are made anew.
const MAPPINGS: usize = 16_384;

impl Namer {
    pub(super) fn new(
        symbols: Symbols,
        period: u64,
        exports: mpsc::Sender<Selection>,
        view: Arc<ArcSwap<NamerView>>,
    ) -> Self {
        let (mappings, makers) = (HashMap::default(), HashMap::default());
        let (frames, unexported, late, deadline, n_makers) = ([0; 4], 0, 0, u64::MAX, 0);
        Self {
            symbols,
            period,
            exports,
            view,
            frames,
            unexported,
            late,
            deadline,
            mappings,
            makers,
            n_makers,
        }
    }

    /// Works until nobody asks any more.
    pub(super) fn run(mut self, jobs: &Receiver<Job>) {
        while let Ok(job) = jobs.recv() {
            self.symbols.advance(monotonic_ns());
            match job {
                Job::Answer(chosen, clock, reply) => {
                    if !reply.is_closed() {
                        let selection = self.name(&chosen, &clock);
                        let _ = reply.send(selection);
                    }
                }
                Job::Export(chosen, clock) => {
                    let selection = self.name(&chosen, &clock);
                    let n = selection.samples.len() as u64;
                    if self.exports.try_send(selection).is_err() {
                        self.unexported += n;
                    }
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
            self.view.store(Arc::new(NamerView {
                symbols: self.symbols.statistics(),
                frames: self.frames,
                unexported: self.unexported,
                late: self.late,
            }));
        }
    }

    fn name(&mut self, chosen: &Chosen<Place>, clock: &Clock) -> Selection {
        self.deadline = monotonic_ns() + TIME;
        if self.mappings.len() > MAPPINGS {
            self.mappings.clear();
        }
        let period = self.period;
        let selection = naming::selection(chosen, clock, period, |pid, place| self.frame(pid, place));
        for sample in &selection.samples {
            for frame in &sample.stack.frames {
                self.frames[frame.symbol.fidelity as usize] += 1;
            }
        }
        selection
    }

    fn frame(&mut self, pid: u32, place: &Place) -> Frame {
        let is_return = place.is_return();
        let address = place.address.wrapping_sub(u64::from(is_return));
        let (symbol, mapping) = match &place.within {
            Within::Kernel(_) => (self.look_up(&symbol::Place::Kernel(address)), None),
            Within::Mapped(mapped, _) => {
                let symbol = self.mapped(pid, mapped, address);
                let shown = self.mapping(mapped);
                (symbol, (shown.end > 0).then_some(shown))
            }
            Within::Nothing(_) => (self.made(pid, address), None),
        };
        Frame { address: place.address, is_return, mapping, symbol }
    }

    fn mapped(&mut self, pid: u32, mapped: &Mapped, address: u64) -> Arc<Symbol> {
        let Some(file) = mapped.file().filter(|file| !file.segments().is_empty()) else {
            return self.made(pid, address);
        };
        let Some(address) = file.address(mapped.file_offset(address)) else { return self.made(pid, address) };
        let held = file.handle();
        let root = PathBuf::from(format!("/proc/{pid}/root"));
        let file = symbol::File { id: file.id, handle: held.as_deref(), path: &file.path, root: &root };
        self.look_up(&symbol::Place::File { file, address })
    }

    fn made(&mut self, pid: u32, address: u64) -> Arc<Symbol> {
        let folder = PathBuf::from(format!("/proc/{pid}"));
        let process = symbol::Process { id: self.maker(pid), folder: &folder };
        self.look_up(&symbol::Place::Process { process, address })
    }

    /// Looks for names while there is time; then only what is known already has one. Whoever asks again gets more.
    fn look_up(&mut self, place: &symbol::Place<'_>) -> Arc<Symbol> {
        if monotonic_ns() < self.deadline {
            return self.symbols.name(place);
        }
        self.symbols.known(place).unwrap_or_else(|| {
            self.late += 1;
            let runtime = match place {
                symbol::Place::Kernel(_) => Runtime::Kernel,
                symbol::Place::File { .. } | symbol::Place::Process { .. } => Runtime::Native,
            };
            Arc::new(Symbol { runtime, ..Symbol::default() })
        })
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
            self.symbols.name(&symbol::Place::File { file, address: *address });
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

/// Words of [`NamerView::frames`].
pub(super) const FIDELITIES: [(&str, Fidelity); 4] = [
    ("lines", Fidelity::Lines),
    ("function", Fidelity::Function),
    ("address", Fidelity::Address),
    ("marker", Fidelity::Marker),
];
