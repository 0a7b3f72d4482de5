//! Which processes have an interpreter, and what the kernel's walk knows of it.
//!
//! In: what a process maps, what was found out of its memory. Out: elements of the maps `guest`, `jvm` and `v8`,
//! [`Examine`]s: processes that a thread which may wait should look into. One program of a process has one
//! interpreter, the first that it maps. Refuses to know how it is looked into, and what its frames are called.
#![forbid(unsafe_code)]

use std::fmt;
use std::sync::Arc;

use super::file::ExecutableFile;
use super::space::Mapping;
use crate::capture::guest::{Build, ForKernel, Kind, Unfit};
use crate::capture::program::profile::{Guest, Jvm, V8};
use aya::maps::{HashMap as KernelMap, MapData};
use foldhash::fast::RandomState;
use hashbrown::HashMap;

/// A process to be looked into.
#[derive(Debug, Clone)]
pub struct Examine {
    /// Which.
    pub tgid: u32,
    /// Since when it runs this program.
    pub since: u64,
    /// What its file says.
    pub build: Arc<Build>,
    /// What to add to the file's addresses.
    pub bias: u64,
}

/// How an interpreter fares.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fares {
    /// In which process.
    pub tgid: u32,
    /// Which kind; `None`: its file is not understood.
    pub kind: Option<Kind>,
    /// Which version; empty: that is not known.
    pub version: Arc<str>,
    /// Why its functions are not seen; `None`: they are.
    pub off: Option<Unfit>,
}

/// What was found of a process.
#[derive(Debug, Clone)]
pub struct Found {
    /// For the kernel's walk.
    pub for_kernel: ForKernel,
    /// Which version.
    pub version: Arc<str>,
}

/// What the kernel's walk knows of processes.
pub struct Maps {
    /// Those with CPython.
    pub guests: KernelMap<MapData, u32, Guest>,
    /// Those with HotSpot.
    pub jvms: KernelMap<MapData, u32, Jvm>,
    /// Those with V8.
    pub v8s: KernelMap<MapData, u32, V8>,
}

impl Maps {
    fn insert(&mut self, tgid: u32, reported: ForKernel) -> bool {
        match reported.of(tgid) {
            ForKernel::Cpython(guest) => self.guests.insert(tgid, Guest(guest), 0).is_ok(),
            ForKernel::HotSpot(jvm) => self.jvms.insert(tgid, Jvm(jvm), 0).is_ok(),
            ForKernel::V8(v8) => self.v8s.insert(tgid, V8(v8), 0).is_ok(),
        }
    }

    /// What is not there need not be removed.
    fn remove(&mut self, tgid: u32) {
        let _ = (self.guests.remove(&tgid), self.jvms.remove(&tgid), self.v8s.remove(&tgid));
    }
}

/// All of them.
pub struct Interpreters {
    maps: Maps,
    known: HashMap<u32, Interpreter, RandomState>,
    wants: Vec<Examine>,
}

struct Interpreter {
    since: u64,
    file: u64,
    bias: u64,
    build: Option<Arc<Build>>,
    version: Arc<str>,
    state: State,
}

enum State {
    Asked,
    /// Once more from this time on.
    Again(u64),
    On(ForKernel),
    Off(Unfit),
}

/// Processes with interpreters; those of the kernel's map.
pub const PROCESSES: usize = 1024;
/// An interpreter that has not begun yet is looked into again after this time, nanoseconds.
const AGAIN: u64 = 100_000_000;

impl Interpreters {
    /// None yet.
    #[must_use]
    pub fn new(maps: Maps) -> Self {
        Self { maps, known: HashMap::default(), wants: Vec::new() }
    }

    /// A process runs a program `since` this time and maps this now; `parent` is who it was forked from.
    pub(super) fn reported(&mut self, tgid: u32, since: u64, parent: u32, mappings: &[Arc<Mapping>]) {
        let found = mappings.iter().find_map(|mapping| of(mapping));
        let Some((file, bias)) = found else { return self.gone_if_other(tgid, since) };
        let is_same = |known: &Interpreter| (known.since, known.file, known.bias) == (since, file.id, bias);
        if self.known.get(&tgid).is_some_and(is_same) {
            return;
        }
        self.gone(tgid);
        let Some(said) = file.interpreter() else { return };
        let (build, state) = match &*said {
            _ if self.known.len() >= PROCESSES => (None, State::Off(Unfit::Full)),
            Ok(build) => (Some(Arc::new(build.clone())), State::Asked),
            Err(unfit) => (None, State::Off(unfit.clone())),
        };
        // A fork has its parent's memory, and samples come before anybody has looked.
        let inherited = self.known.get(&parent).filter(|known| (known.file, known.bias) == (file.id, bias));
        if let Some(State::On(reported)) = inherited.map(|known| &known.state) {
            self.maps.insert(tgid, *reported);
        }
        if let Some(build) = &build {
            self.wants.push(Examine { tgid, since, build: Arc::clone(build), bias });
        }
        let version = build.as_ref().map(|build| build.version()).unwrap_or_default().into();
        self.known.insert(tgid, Interpreter { since, file: file.id, bias, build, version, state });
    }

    /// What was found out.
    pub(super) fn examined(&mut self, tgid: u32, since: u64, found: Result<Found, Unfit>, now: u64) {
        let Some(known) = self.known.get_mut(&tgid).filter(|known| known.since == since) else { return };
        known.state = match found {
            Ok(Found { for_kernel, version }) => {
                known.version = version;
                if self.maps.insert(tgid, for_kernel) {
                    State::On(for_kernel)
                } else {
                    State::Off(Unfit::Full)
                }
            }
            Err(Unfit::NotBegun) => State::Again(now + AGAIN),
            Err(unfit) => {
                self.maps.remove(tgid);
                State::Off(unfit)
            }
        };
    }

    /// A sample of it was taken: what had not begun may have.
    pub(super) fn sampled(&mut self, tgid: u32, now: u64) {
        let Some(known) = self.known.get_mut(&tgid) else { return };
        if let (State::Again(time), Some(build)) = (&known.state, &known.build)
            && *time <= now
        {
            let build = Arc::clone(build);
            self.wants.push(Examine { tgid, since: known.since, build, bias: known.bias });
            known.state = State::Asked;
        }
    }

    /// It has ended.
    pub(super) fn gone(&mut self, tgid: u32) {
        if self.known.remove(&tgid).is_some() {
            self.maps.remove(tgid);
        }
    }

    /// It maps no interpreter: a former program's is over.
    fn gone_if_other(&mut self, tgid: u32, since: u64) {
        if self.known.get(&tgid).is_some_and(|known| known.since != since) {
            self.gone(tgid);
        }
    }

    pub(super) fn has(&self, tgid: u32) -> bool {
        self.known.contains_key(&tgid)
    }

    /// Those that are to be looked into.
    pub(super) fn take_wants(&mut self) -> Vec<Examine> {
        std::mem::take(&mut self.wants)
    }

    /// How each fares.
    pub(super) fn fares(&self) -> impl Iterator<Item = Fares> + '_ {
        self.known.iter().map(|(tgid, known)| {
            let kind = known.build.as_ref().map(|build| build.kind());
            let version = Arc::clone(&known.version);
            let off = match &known.state {
                State::On(_) => None,
                State::Off(unfit) => Some(unfit.clone()),
                State::Asked | State::Again(_) => Some(Unfit::NotBegun),
            };
            Fares { tgid: *tgid, kind, version, off }
        })
    }
}

/// The file of a mapping with an interpreter, and what to add to its addresses.
fn of(mapping: &Mapping) -> Option<(Arc<ExecutableFile>, u64)> {
    let file = mapping.backing.loaded().as_ref().filter(|file| file.interpreter().is_some()).cloned()?;
    let address = file.address(mapping.offset)?;
    Some((file, mapping.start.wrapping_sub(address)))
}

impl fmt::Debug for Maps {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("Maps")
    }
}

impl fmt::Debug for Interpreters {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Interpreters({})", self.known.len())
    }
}
