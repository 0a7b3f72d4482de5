//! Loads and attaches the kernel programs: the one place that knows the BPF library.
//!
//! In: a hook set, settings and the embedded objects. Out: the ring buffer, the maps the agent reads, run-time
//! statistics. Dropping [`Programs`] detaches everything; so does the death of the process.

mod load;
mod maps;
mod memory;
mod parallel;
mod preallocate;
pub mod profile;
pub mod table;
mod user;

use std::error::Error;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use obi_ebpf::Flavour;
use thiserror::Error as ThisError;

use self::load::{Attached, Loaded};
pub use self::maps::{
    ELEMENT_OVERHEAD, GlobalState, IgnoredProgram, Maps, SharedMaps, StreamData, StreamKey, TallyKey,
    ThreadState,
};
use self::maps::{connection_bytes, whole_bytes};
pub use self::memory::HeldMaps;
use self::table::{Entry, Hook};
pub use self::user::UserPrograms;
use super::bpf::info::{self, ProgramInfo};
use super::hook_set::{HookSet, Preemption};
use super::kernel_types::KernelTypes;

/// Values that the programs are specialised with.
#[derive(Debug, Clone, Copy)]
pub struct Settings {
    /// This process, never watched.
    pub self_tgid: u32,
    /// Ring buffer size: a power of two and a multiple of the page size.
    pub ring_bytes: u32,
    /// Bytes copied of one head.
    pub head_limit: u32,
    /// Length of a jiffy in nanoseconds.
    pub tick_ns: u64,
    /// Let the kernel measure the programs' run time (needs `CAP_SYS_ADMIN`).
    pub statistics: bool,
    /// Load the programs for TLS libraries.
    pub tls: bool,
    /// Book where the time of serving threads goes.
    pub waiting: bool,
    /// Tell what programs are given when they begin.
    pub tells_given: bool,
    /// Follow databases' own processes, too.
    pub follows_databases: bool,
    /// What the kernel preempts. Set by the one who chooses a set.
    pub preemption: Preemption,
}

/// Why an object could not be loaded.
#[derive(Debug, ThisError)]
pub enum LoadError {
    /// The set has no object of this flavour.
    #[error("not part of this build")]
    NotBuilt,
    /// Maps or relocations failed.
    #[error("failed to create the maps: {}", chain(.0))]
    Object(#[source] EbpfError),
    /// The kernel makes the map for connections and then has no memory for any.
    #[error("failed to keep a connection with its socket: {0}")]
    Storage(#[source] io::Error),
    /// A program that the hook set cannot do without was refused.
    #[error("failed to load kernel program `{name}`: {reason}")]
    Load {
        /// Its name.
        name: &'static str,
        /// What the kernel said, on one line.
        reason: String,
    },
    /// It was taken, but not to its place.
    #[error("failed to attach kernel program `{name}` to `{target}`: {source}")]
    Attach {
        /// Its name.
        name: &'static str,
        /// The function or tracepoint.
        target: &'static str,
        /// What the kernel said.
        source: io::Error,
    },
    /// The embedded object lacks something: a broken build.
    #[error("the embedded kernel object has no {0}")]
    Missing(String),
    /// A map is not of the expected kind: a broken build.
    #[error("failed to open kernel map `{name}`: {source}")]
    Map {
        /// Its name.
        name: &'static str,
        /// What the library said.
        source: MapError,
    },
}

/// Why a hook set could not be loaded: what was said of each object that was tried.
#[derive(Debug, ThisError)]
#[error("failed to load hook set `{set}`: {}", refusals(.tried))]
pub struct SetError {
    /// Which.
    pub set: HookSet,
    /// In the order tried; the last is the last resort.
    pub tried: Vec<(Flavour, LoadError)>,
}

fn refusals(tried: &[(Flavour, LoadError)]) -> String {
    let text = |(flavour, error): &(Flavour, LoadError)| match tried.len() {
        1 => error.to_string(),
        _ => format!("{} object: {error}", flavour_name(*flavour)),
    };
    tried.iter().map(text).collect::<Vec<_>>().join("; ")
}

/// A flavour in a log line or report.
#[must_use]
pub fn flavour_name(flavour: Flavour) -> &'static str {
    match flavour {
        Flavour::Modern => "modern",
        Flavour::Portable => "portable",
    }
}

/// What a kernel said of a program, on one line: the verifier's log is pages long, its last words say why.
fn refusal(error: &ProgramError) -> String {
    let ProgramError::LoadError { io_error, verifier_log } = error else { return chain(error) };
    telling_line(io_error, &verifier_log.to_string())
}

/// The last words of the verifier that say why.
fn telling_line(io_error: &io::Error, log: &str) -> String {
    let figures = ["processed ", "insns processed ", "stack depth ", "verification time ", "max_states"];
    let telling =
        |line: &&str| !line.trim().is_empty() && !figures.iter().any(|start| line.starts_with(start));
    let last: Vec<&str> = log.lines().filter(telling).collect();
    match last.last() {
        Some(last) => format!("the kernel refused it: {io_error}: {}", last.trim()),
        None => format!("the kernel refused it: {io_error}"),
    }
}

/// An error and its causes on one line.
fn chain(error: &dyn Error) -> String {
    let mut text = error.to_string().replace('\n', " ");
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_text = cause.to_string().replace('\n', " ");
        if !text.contains(&cause_text) {
            text = format!("{text}: {cause_text}");
        }
        source = cause.source();
    }
    text
}

/// Whether a set keeps connections with their sockets.
fn is_in_storage(set: HookSet, flavour: Flavour) -> bool {
    set == HookSet::Socket || (set == HookSet::Fentry && flavour == Flavour::Modern)
}

/// Bytes of hash maps that hold all their memory from the start, elements × size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preallocated {
    /// Connections; 0 where they are kept with their sockets.
    pub connections: u64,
    /// Threads, notes, tallies.
    pub capture: u64,
    /// Process verdicts.
    pub discover: u64,
}

/// A hook set, loaded and attached.
#[derive(Debug)]
pub struct Programs {
    set: HookSet,
    flavour: Flavour,
    loaded: Loaded,
    ring_bytes: u32,
    connection_bytes: u64,
    preallocated: Option<Preallocated>,
    /// Where the kernel counts what they take.
    held: Option<HeldMaps>,
    // Statistics are on as long as this is open.
    statistics: Option<OwnedFd>,
    /// The scheduler's hooks were asked for.
    is_waiting_wanted: bool,
    /// Programs for TLS libraries, by name.
    user: Vec<(&'static str, OwnedFd)>,
}

impl Programs {
    /// Creates the maps of a set, loads its programs, attaches them: the modern object, else the portable one.
    ///
    /// # Errors
    /// When the kernel refuses a required part of both; the error names it and repeats what the kernel said.
    pub fn load(set: HookSet, settings: &Settings, types: &KernelTypes) -> Result<Self, SetError> {
        let mut tried = Vec::new();
        let before = HeldMaps::now();
        for flavour in [Flavour::Modern, Flavour::Portable] {
            match Loaded::new(set, flavour, settings, types) {
                Ok(loaded) => {
                    for (flavour, error) in tried {
                        tracing::debug!(%set, object = flavour_name(flavour), %error, "another object is used");
                    }
                    // Since 6.4 the kernel counts what maps hold; before it says what they could.
                    let is_counted = types.function("htab_map_mem_usage").is_some();
                    let held = is_counted.then(|| HeldMaps::now().without(&before));
                    return Ok(Self { held, ..Self::new(set, flavour, settings, loaded) });
                }
                Err(LoadError::NotBuilt) if !tried.is_empty() => {}
                Err(error) => tried.push((flavour, error)),
            }
        }
        Err(SetError { set, tried })
    }

    fn new(set: HookSet, flavour: Flavour, settings: &Settings, loaded: Loaded) -> Self {
        let statistics = match settings.statistics {
            true => aya::sys::enable_stats(aya::sys::Stats::RunTime).ok(),
            false => None,
        };
        let preallocated = loaded.preallocated.then(|| Preallocated {
            connections: whole_bytes(&loaded.maps, &["connection", "spare"]),
            capture: whole_bytes(
                &loaded.maps,
                &["thread", "note", "tally", "tls_connection", "tls_call", "tls_process"],
            ),
            discover: whole_bytes(&loaded.maps, &["process"]),
        });
        let connection_bytes = connection_bytes(&loaded.maps);
        let ring_bytes = settings.ring_bytes;
        Self {
            set,
            flavour,
            loaded,
            ring_bytes,
            connection_bytes,
            preallocated,
            held: None,
            statistics,
            is_waiting_wanted: settings.waiting,
            user: Vec::new(),
        }
    }

    /// Hands out the maps and lets the programs begin: all at once, since a view of
    /// sends without receives would make broken exchanges of whole ones.
    ///
    /// # Errors
    /// When called twice, or when the object was built wrongly.
    pub fn start(&mut self) -> Result<Maps, LoadError> {
        let mut maps = Maps::take(&mut self.loaded.maps)?;
        maps.activate(self.keeps_accounts().is_ok())?;
        Ok(maps)
    }

    /// What the sampler of stacks reads of this set; to be asked before [`Self::start`].
    ///
    /// # Errors
    /// When asked later, or when the object was built wrongly.
    pub fn shared_maps(&self) -> Result<SharedMaps, LoadError> {
        SharedMaps::of(&self.loaded.maps, self.keeps_accounts())
    }

    /// The programs for TLS libraries, once: their new owner attaches them. What they cost is still reported here.
    pub fn take_user_programs(&mut self) -> Option<UserPrograms> {
        let user = self.loaded.user.take()?;
        let keep = |(name, descriptor): (&'static str, BorrowedFd<'_>)| {
            Some((name, descriptor.try_clone_to_owned().ok()?))
        };
        self.user = user.loaded().filter_map(keep).collect();
        Some(user)
    }

    /// Attaches what the kernel side has wanted (`global_state.wanted`) and does not have yet. Returns
    /// their names.
    ///
    /// # Errors
    /// When the kernel refuses; the program is not tried again.
    pub fn attach_wanted(&mut self, wanted: u32) -> Result<Vec<&'static str>, LoadError> {
        let mut names = Vec::new();
        while let Some(position) = self.loaded.waiting.iter().position(|(_, bit)| wanted & bit != 0) {
            let (entry, _) = self.loaded.waiting.swap_remove(position);
            self.loaded.attach_program(entry)?;
            names.push(entry.name);
        }
        Ok(names)
    }

    /// Whether the kernel programs mark threads that wait for many things at once.
    #[must_use]
    pub fn sees_waits(&self) -> bool {
        let is_attached = |name: &&str| self.loaded.attached.iter().any(|it| it.entry.name == *name);
        // Every architecture has these two, in whose place some have others besides.
        ["sys_enter_epoll_pwait", "sys_enter_ppoll"].iter().all(is_attached)
    }

    /// Whether the time of serving threads is booked.
    ///
    /// # Errors
    /// Why not.
    pub fn keeps_accounts(&self) -> Result<(), String> {
        const PORTABLE: &str = "this kernel takes only the kernel programs for older ones, which book no time: threads \
                                hold no accounts before 5.11, and before 5.17 the verifier has no room for them";
        if !self.is_waiting_wanted {
            return Err("profile.waiting is off".to_owned());
        }
        let entries = table::schedule(self.flavour);
        let attached = |entry: &Entry| self.loaded.attached.iter().any(|it| it.entry.name == entry.name);
        match entries.iter().find(|entry| !attached(entry)) {
            _ if entries.is_empty() => Err(PORTABLE.to_owned()),
            None => Ok(()),
            Some(entry) => {
                let reason = self.loaded.skipped.iter().find(|(name, _)| *name == entry.name);
                let reason = reason.map_or("not attached", |(_, reason)| reason);
                Err(format!("kernel program `{}`: {reason}", entry.name))
            }
        }
    }

    /// The set in use.
    #[must_use]
    pub fn set(&self) -> HookSet {
        self.set
    }

    /// Which of its objects.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// Optional programs that this kernel does not take, and why.
    #[must_use]
    pub fn skipped(&self) -> &[(&'static str, String)] {
        &self.loaded.skipped
    }

    /// Size of the ring buffer in bytes.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Estimated kernel memory of one connection in bytes.
    #[must_use]
    pub fn connection_bytes(&self) -> u64 {
        self.connection_bytes
    }

    /// All maps of the set, which the kernel can count, without connections that are kept with their sockets; `None`
    /// before Linux 6.4.
    #[must_use]
    pub fn held_maps(&self) -> Option<HeldMaps> {
        self.held.clone()
    }

    /// Connections are kept with their sockets, in no map that is counted.
    #[must_use]
    pub fn is_in_storage(&self) -> bool {
        is_in_storage(self.set, self.flavour)
    }

    /// What the hash maps take, in use or not; `None` where they allocate on demand.
    #[must_use]
    pub fn preallocated(&self) -> Option<Preallocated> {
        self.preallocated
    }

    /// What the kernel knows of each attached program.
    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        let attached = self.loaded.attached.iter().filter_map(|attached| self.measure_one(attached));
        attached
            .chain(self.user.iter().filter_map(|(name, program)| self.measure_user(name, program)))
            .collect()
    }

    /// What a skipped run has not seen is missing between the calls of a thread, and counted there.
    fn measure_user(&self, name: &'static str, program: &OwnedFd) -> Option<Measured> {
        let info = info::program(program.as_fd()).ok()?;
        let (misses, statistics) = (info.recursion_misses, self.statistics.is_some());
        Some(Measured { name, info, misses, silent: false, missed: false, statistics })
    }

    fn measure_one(&self, Attached { entry, attachment }: &Attached) -> Option<Measured> {
        let info = info::program(self.loaded.program(entry.name)?).ok()?;
        let is_kprobe = matches!(entry.hook, Hook::Kprobe(_) | Hook::Kretprobe(_));
        let link = attachment.link().filter(|_| is_kprobe);
        let undelivered = link.and_then(|link| info::kprobe_misses(link).ok().flatten());
        let misses = match (info.recursion_misses, undelivered) {
            (None, None) => None,
            (skipped, undelivered) => Some(skipped.unwrap_or(0) + undelivered.unwrap_or(0)),
        };
        let statistics = self.statistics.is_some();
        let attached = || self.loaded.attached.iter().map(|it| it.entry);
        let (silent, missed) = (entry.is_silent_when_missed(attached()), entry.is_missed(attached()));
        Some(Measured { name: entry.name, info, misses, silent, missed, statistics })
    }
}

/// What the kernel knows of an attached program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Measured {
    /// Its name.
    pub name: &'static str,
    /// The kernel's own figures.
    pub info: ProgramInfo,
    /// Runs that never happened, as far as this kernel says (5.12; kprobes wholly from 6.7).
    pub misses: Option<u64>,
    /// Nothing else shows a run that never happened.
    pub silent: bool,
    /// Exchanges can be missing where it was skipped.
    pub missed: bool,
    /// We have switched statistics on: run time and runs are meant.
    pub statistics: bool,
}

/// Gives the allocator's free memory back to the kernel: the type information of the kernel takes some
/// 20 MB while programs load and nothing afterwards.
pub fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes no pointer and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
