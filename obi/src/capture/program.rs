//! Loads and attaches the kernel programs: the one place that knows the BPF library.
//!
//! In: settings and the embedded object. Out: the ring buffer, the maps the agent reads, run-time
//! statistics. Dropping [`Programs`] detaches everything; so does the death of the process.

use std::os::fd::{AsFd, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError, Queue, RingBuf};
use aya::programs::{BtfTracePoint, ProgramError};
use aya::{Btf, BtfError, Ebpf, EbpfError, EbpfLoader};
use obi_ebpf::{WANT_SEND_MESSAGES, global_state, tally_key, thread_state};
use thiserror::Error;

use super::run_time::{self, RunTime};

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
}

/// Why the programs could not be loaded.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The kernel's own type information could not be read.
    #[error("failed to read kernel type information from `/sys/kernel/btf/vmlinux`: {0}")]
    Btf(#[source] BtfError),
    /// Maps or relocations failed.
    #[error("failed to create the maps of hook set `socket`: {}", chain(.0))]
    Object(#[source] EbpfError),
    /// A program that the hook set cannot do without was refused.
    #[error("failed to load and attach kernel program `{name}`: {}", chain(.source))]
    Program {
        /// Its name, that of the tracepoint.
        name: &'static str,
        /// What the kernel said.
        source: ProgramError,
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

/// An error and its causes on one line.
fn chain(error: &dyn std::error::Error) -> String {
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

/// Programs without which nothing is captured.
const REQUIRED: [&str; 6] = [
    "sched_process_fork",
    "sched_process_exec",
    "sched_process_exit",
    "inet_sock_set_state",
    "sock_send_length",
    "sock_recv_length",
];

/// A program for what the required ones cannot see, on kernels that have the tracepoint.
#[derive(Debug, Clone, Copy)]
struct Optional {
    name: &'static str,
    /// Attached when the kernel side first wants it (`enum wanted`); `None`: at the start.
    wanted: Option<u32>,
}

/// Splice from a socket (4.16): without it, from the start, bytes that passed would look like bytes that
/// never came. Sends of io_uring (6.16): what is missed before it is attached counts as lost, no more.
const OPTIONAL: [Optional; 2] = [
    Optional { name: "tcp_rcv_space_adjust", wanted: None },
    Optional { name: "tcp_sendmsg_locked", wanted: Some(WANT_SEND_MESSAGES) },
];

/// The loaded hook set.
#[derive(Debug)]
pub struct Programs {
    ebpf: Ebpf,
    attached: Vec<&'static str>,
    /// Loaded, to be attached when wanted.
    waiting: Vec<(&'static str, u32)>,
    skipped: Vec<(&'static str, String)>,
    ring_bytes: u32,
    // Statistics are on as long as this is open.
    _statistics: Option<OwnedFd>,
}

/// Maps that the agent reads and writes while running.
#[expect(missing_debug_implementations, reason = "the library's map types have none")]
pub struct Maps {
    /// Records from the kernel.
    pub events: RingBuf<MapData>,
    /// Process verdicts, `enum process_verdict` by tgid.
    pub process: HashMap<MapData, u32, u32>,
    /// How many of them are to be ignored; must never be less than there are.
    pub n_ignored: Array<MapData, u32>,
    /// Losses and uncovered connections by process.
    pub tally: HashMap<MapData, TallyKey, u64>,
    /// Tallies of processes that had no room above: index kind × 16 + reason.
    pub tally_rest: Array<MapData, u64>,
    /// Exchanges whose end was lost.
    pub forgotten: Queue<MapData, u64>,
    /// Current exchange by thread.
    pub thread: HashMap<MapData, u32, ThreadState>,
    /// The programs' global variables.
    pub global: Array<MapData, GlobalState>,
}

/// [`global_state`] as a map value.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct GlobalState(pub global_state);

/// [`tally_key`] as a map key.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct TallyKey(pub tally_key);

/// [`thread_state`] as a map value.
#[repr(transparent)]
#[derive(Debug, Clone, Copy)]
pub struct ThreadState(pub thread_state);

// SAFETY: all three are transparent over C structures of integers without padding (their zerocopy derives
// refuse padding at compile time), so every bit pattern is valid.
unsafe impl aya::Pod for TallyKey {}
// SAFETY: as above.
unsafe impl aya::Pod for ThreadState {}
// SAFETY: as above.
unsafe impl aya::Pod for GlobalState {}

impl Programs {
    /// Creates the maps, loads the programs, attaches them.
    ///
    /// # Errors
    /// When the kernel refuses a required part; the error names it and repeats what the kernel said.
    pub fn load(settings: &Settings) -> Result<Self, LoadError> {
        let btf = Btf::from_sys_fs().map_err(LoadError::Btf)?;
        let wakeup_bytes = u64::from(settings.ring_bytes) / 8;
        let mut ebpf = EbpfLoader::new()
            .btf(Some(&btf))
            .override_global("self_tgid", &settings.self_tgid, true)
            .override_global("head_limit", &settings.head_limit, true)
            .override_global("tick_ns", &settings.tick_ns, true)
            .override_global("wakeup_bytes", &wakeup_bytes, true)
            .map_max_entries("events", settings.ring_bytes)
            .load(obi_ebpf::socket_object())
            .map_err(LoadError::Object)?;
        for name in REQUIRED {
            program(&mut ebpf, name)?
                .load(name, &btf)
                .map_err(|source| LoadError::Program { name, source })?;
        }
        let mut attached = REQUIRED.to_vec();
        let (mut waiting, mut skipped) = (Vec::new(), Vec::new());
        for Optional { name, wanted } in OPTIONAL {
            match (program(&mut ebpf, name)?.load(name, &btf), wanted) {
                (Ok(()), Some(wanted)) => waiting.push((name, wanted)),
                (Ok(()), None) => attached.push(name),
                (Err(error), _) => skipped.push((name, chain(&error))),
            }
        }
        for name in &attached {
            program(&mut ebpf, name)?.attach().map_err(|source| LoadError::Program { name, source })?;
        }
        drop(btf);
        return_memory();
        let statistics =
            if settings.statistics { aya::sys::enable_stats(aya::sys::Stats::RunTime).ok() } else { None };
        Ok(Self {
            ebpf,
            attached,
            waiting,
            skipped,
            ring_bytes: settings.ring_bytes,
            _statistics: statistics,
        })
    }

    /// Takes the maps out of the loader and lets the programs begin: all at once, since a view of
    /// sends without receives would make broken exchanges of whole ones.
    ///
    /// # Errors
    /// When called twice, or when the object was built wrongly.
    pub fn start(&mut self) -> Result<Maps, LoadError> {
        let mut maps = Maps {
            events: self.take("events")?,
            process: self.take("process")?,
            n_ignored: self.take("n_ignored")?,
            tally: self.take("tally")?,
            tally_rest: self.take("tally_rest")?,
            forgotten: self.take("forgotten")?,
            thread: self.take("thread")?,
            global: self.take(".bss")?,
        };
        let begin = GlobalState(global_state { active: 1, ..global_state::default() });
        maps.global.set(0, begin, 0).map_err(|source| LoadError::Map { name: ".bss", source })?;
        Ok(maps)
    }

    fn take<T: TryFrom<Map, Error = MapError>>(&mut self, name: &'static str) -> Result<T, LoadError> {
        let map = self.ebpf.take_map(name).ok_or_else(|| LoadError::Missing(format!("map `{name}`")))?;
        T::try_from(map).map_err(|source| LoadError::Map { name, source })
    }

    /// Attaches what the kernel side has wanted (`global_state.wanted`) and does not have yet. Returns
    /// their names.
    ///
    /// # Errors
    /// When the kernel refuses; the program is not tried again.
    pub fn attach_wanted(&mut self, wanted: u32) -> Result<Vec<&'static str>, LoadError> {
        let mut attached = Vec::new();
        while let Some(position) = self.waiting.iter().position(|(_, bit)| wanted & bit != 0) {
            let (name, _) = self.waiting.swap_remove(position);
            program(&mut self.ebpf, name)?.attach().map_err(|source| LoadError::Program { name, source })?;
            attached.push(name);
        }
        self.attached.extend(&attached);
        Ok(attached)
    }

    /// Optional programs that this kernel does not take, and why.
    #[must_use]
    pub fn skipped(&self) -> &[(&'static str, String)] {
        &self.skipped
    }

    /// Size of the ring buffer in bytes.
    #[must_use]
    pub fn ring_bytes(&self) -> u32 {
        self.ring_bytes
    }

    /// Run time and number of runs of each attached program since it was loaded; empty while the
    /// kernel keeps no statistics.
    #[must_use]
    pub fn run_times(&self) -> Vec<(&'static str, RunTime)> {
        self.attached
            .iter()
            .filter_map(|name| {
                let fd = self.ebpf.program(name)?.fd().ok()?;
                run_time::of(fd.as_fd()).ok().map(|time| (*name, time))
            })
            .collect()
    }
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &'static str) -> Result<&'a mut BtfTracePoint, LoadError> {
    let missing = || LoadError::Missing(format!("program `{name}`"));
    ebpf.program_mut(name).ok_or_else(missing)?.try_into().map_err(|_| missing())
}

/// Gives the allocator's free memory back to the kernel: the type information of the kernel takes some
/// 20 MB while programs load and nothing afterwards.
fn return_memory() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` takes no pointer and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}
