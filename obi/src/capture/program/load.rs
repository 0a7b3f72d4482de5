//! One kernel object into the kernel: maps made, programs loaded and attached.
//!
//! In: a set, a flavour, settings. Out: [`Loaded`], not yet let loose, or what the kernel refused. Knows the loading
//! library's kinds of programs.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};

use aya::maps::{Map, ProgramArray};
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use obi_ebpf::{Flavour, WALK_DATABASE, WALK_FRAMES, WALK_HEADS, WALK_PROGRAMS};

use super::maps::try_storage;
use super::parallel::in_parallel;
use super::table::{Entry, Hook, Need, accepts, programs, reported, schedule};
use super::user::UserPrograms;
use super::{LoadError, Settings, is_in_storage, preallocate, refusal};
use crate::capture::bpf::attach::{self, Attachment};
use crate::capture::hook_set::{HookSet, Preemption};
use crate::capture::kernel_types::KernelTypes;
use crate::capture::tracefs::Tracefs;

/// Maps by name.
pub(super) type ObjectMaps = HashMap<String, Map>;

/// A set in the kernel. The library's own account of it is gone: it keeps the code of each program, 3 MB in all.
#[derive(Debug)]
pub(super) struct Loaded {
    /// Those that are attached or will be, by name.
    programs: HashMap<&'static str, OwnedFd>,
    /// All of the object: some have no other holder, and what the kernel counts is of those that are open.
    pub(super) maps: ObjectMaps,
    pub(super) attached: Vec<Attached>,
    /// Loaded, to be attached when wanted.
    pub(super) waiting: Vec<(Entry, u32)>,
    pub(super) skipped: Vec<(&'static str, String)>,
    /// For TLS libraries, to be attached when one is found.
    pub(super) user: Option<UserPrograms>,
    /// Hash maps hold all their memory from the start.
    pub(super) preallocated: bool,
}

/// A program in its place.
#[derive(Debug)]
pub(super) struct Attached {
    pub(super) entry: Entry,
    pub(super) attachment: Attachment,
}

/// Connections in a hash map that allocates on demand.
const CONNECTIONS: u32 = 65_536;
/// Threads that call a TLS library, in one.
const THREADS: u32 = 32_768;
/// `flags` of `tcp_recvmsg` in kernels that lost `nonblock` (5.18).
const RECVMSG_FLAGS_AT: u32 = 3;
/// Long walks go on in these programs, by tail call; with their elements of the map.
const WALK: [(u32, &str); WALK_PROGRAMS as usize] =
    [(WALK_HEADS, "walk"), (WALK_FRAMES, "walk_frames"), (WALK_DATABASE, "walk_database")];
const WALKS: &str = "walks";

impl Loaded {
    pub(super) fn new(
        set: HookSet,
        flavour: Flavour,
        settings: &Settings,
        types: &KernelTypes,
    ) -> Result<Self, LoadError> {
        let object = obi_ebpf::object(set.name(), flavour).ok_or(LoadError::NotBuilt)?;
        // Safe on-demand allocation in any context came together with this structure (6.1).
        let preallocated = !types.has_structure("bpf_mem_alloc");
        let object = match preallocated {
            true => preallocate::preallocated(object).ok_or_else(|| missing("readable map definitions"))?,
            false => object,
        };
        let wakeup_bytes = u64::from(settings.ring_bytes) / 8;
        let preemption = reported(set, flavour, settings.preemption);
        let [tells_given, follows_databases, is_preempted] =
            [settings.tells_given, settings.follows_databases, preemption == Preemption::Programs]
                .map(u32::from);
        let recvmsg_flags_at = types.parameter("tcp_recvmsg", "flags").unwrap_or(RECVMSG_FLAGS_AT);
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&types.btf))
            // Storage of threads: created, and used by the programs alone.
            .allow_unsupported_maps()
            .override_global("self_tgid", &settings.self_tgid, true)
            .override_global("head_limit", &settings.head_limit, true)
            .override_global("tick_ns", &settings.tick_ns, true)
            .override_global("wakeup_bytes", &wakeup_bytes, true)
            .override_global("tells_given", &tells_given, true)
            .override_global("follows_databases", &follows_databases, true)
            .override_global("recvmsg_flags_at", &recvmsg_flags_at, false)
            .override_global("is_preempted", &is_preempted, true)
            .map_max_entries("events", settings.ring_bytes);
        let in_storage = is_in_storage(set, flavour);
        if preallocated && !in_storage {
            for (map, most) in preallocate::MAX_ENTRIES {
                loader.map_max_entries(map, most);
            }
        } else if !in_storage {
            loader.map_max_entries("connection", CONNECTIONS);
        }
        if !preallocated {
            loader.map_max_entries("tls_connection", CONNECTIONS).map_max_entries("tls_call", THREADS);
        }
        let ebpf = loader.load(&object).map_err(LoadError::Object)?;
        try_storage(&ebpf).map_err(LoadError::Storage)?;
        let mut loading = Loading { ebpf, entries: Vec::new(), waiting: Vec::new(), skipped: Vec::new() };
        let wanted = schedule(flavour).iter().filter(|_| settings.waiting);
        let wanted = accepts(flavour).iter().filter(|_| settings.tls).chain(wanted).copied();
        loading.load_programs(programs(set, preemption).chain(wanted), &types.btf)?;
        loading.connect_walk(&types.btf)?;
        let user = settings.tls.then(|| UserPrograms::load(&object, &loading.ebpf, &types.btf));
        let (programs, maps) = (loading.programs()?, loading.maps());
        let Loading { entries, waiting, skipped, .. } = loading;
        let mut loaded = Self { programs, maps, attached: Vec::new(), waiting, skipped, user, preallocated };
        for entry in entries {
            loaded.attach_program(entry)?;
        }
        Ok(loaded)
    }

    /// A program that is attached or waits for that.
    pub(super) fn program(&self, name: &str) -> Option<BorrowedFd<'_>> {
        self.programs.get(name).map(OwnedFd::as_fd)
    }

    /// Attaches a loaded program; one that can be done without may be skipped.
    pub(super) fn attach_program(&mut self, entry: Entry) -> Result<(), LoadError> {
        let program = self.program(entry.name).ok_or_else(|| no_program(entry.name))?;
        match (attach(program, entry.hook), entry.need) {
            (Ok(attachment), _) => self.attached.push(Attached { entry, attachment }),
            (Err(error), Need::Optional | Need::Again | Need::Last) => {
                self.skipped.push((entry.name, format!("failed to attach it: {error}")))
            }
            (Err(source), _) => {
                return Err(LoadError::Attach { name: entry.name, target: entry.hook.target(), source });
            }
        }
        Ok(())
    }
}

/// A set on its way into the kernel.
#[derive(Debug)]
struct Loading {
    ebpf: Ebpf,
    /// Loaded, to be attached.
    entries: Vec<Entry>,
    /// Loaded, to be attached when wanted.
    waiting: Vec<(Entry, u32)>,
    skipped: Vec<(&'static str, String)>,
}

impl Loading {
    fn load_programs(&mut self, wanted: impl Iterator<Item = Entry>, btf: &Btf) -> Result<(), LoadError> {
        let wanted: Vec<Entry> = wanted.collect();
        let mut there: HashMap<&str, &mut Program> = self.ebpf.programs_mut().collect();
        let programs = wanted.into_iter().map(|entry| {
            let program = there.remove(entry.name).ok_or_else(|| no_program(entry.name))?;
            Ok((entry, program))
        });
        let programs: Vec<_> = programs.collect::<Result<_, LoadError>>()?;
        let results = in_parallel(programs, |(entry, program)| {
            let result = load(program, entry.hook.target(), btf).map_err(|error| refusal(&error));
            (entry, result)
        });
        for (entry, result) in results {
            match (result, entry.need) {
                (Ok(()), Need::Wanted(wanted)) => self.waiting.push((entry, wanted)),
                (Ok(()), _) => self.entries.push(entry),
                (Err(reason), Need::Required) => return Err(LoadError::Load { name: entry.name, reason }),
                (Err(reason), _) => self.skipped.push((entry.name, reason)),
            }
        }
        Ok(())
    }

    /// The targets of tail calls, where the object has them: never attached themselves.
    fn connect_walk(&mut self, btf: &Btf) -> Result<(), LoadError> {
        for (index, name) in WALK {
            if self.ebpf.program(name).is_none() {
                return Ok(());
            }
            let refused = |error| LoadError::Load { name, reason: refusal(&error) };
            let program = program(&mut self.ebpf, name)?;
            load(program, "release_sock", btf).map_err(refused)?;
            let walk = program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(refused)?;
            let map = self.ebpf.map_mut(WALKS).ok_or_else(|| missing("map `walks`"))?;
            let mut walks =
                ProgramArray::try_from(map).map_err(|source| LoadError::Map { name: WALKS, source })?;
            walks.set(index, &walk, 0).map_err(|source| LoadError::Map { name: WALKS, source })?;
        }
        Ok(())
    }

    /// Descriptors of the programs that are attached now or later.
    fn programs(&self) -> Result<HashMap<&'static str, OwnedFd>, LoadError> {
        let waiting = self.waiting.iter().map(|(entry, _)| entry);
        let named = self.entries.iter().chain(waiting).map(|entry| entry.name);
        let opened = named.map(|name| {
            let program = self.ebpf.program(name).ok_or_else(|| no_program(name))?;
            let opened = program.fd().and_then(|program| Ok(program.as_fd().try_clone_to_owned()?));
            Ok((name, opened.map_err(|error| LoadError::Load { name, reason: refusal(&error) })?))
        });
        opened.collect()
    }

    /// All maps of the object.
    fn maps(&mut self) -> ObjectMaps {
        let names: Vec<String> = self.ebpf.maps().map(|(name, _)| name.to_owned()).collect();
        names.into_iter().filter_map(|name| self.ebpf.take_map(&name).map(|map| (name, map))).collect()
    }
}

fn missing(what: &str) -> LoadError {
    LoadError::Missing(what.to_owned())
}

fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, LoadError> {
    ebpf.program_mut(name).ok_or_else(|| no_program(name))
}

fn no_program(name: &str) -> LoadError {
    missing(&format!("program `{name}`"))
}

fn load(program: &mut Program, target: &str, btf: &Btf) -> Result<(), ProgramError> {
    match program {
        Program::BtfTracePoint(program) => program.load(target, btf),
        Program::FEntry(program) => program.load(target, btf),
        Program::FExit(program) => program.load(target, btf),
        Program::KProbe(program) => program.load(),
        Program::TracePoint(program) => program.load(),
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}

/// The library attaches the same way, but keeps the links to itself: they know what was missed.
fn attach(program: BorrowedFd<'_>, hook: Hook) -> io::Result<Attachment> {
    match hook {
        Hook::BtfTracepoint(_) | Hook::FunctionEntry(_) | Hook::FunctionExit(_) => attach::tracing(program),
        Hook::Kprobe(target) => attach::kprobe(program, target, false),
        Hook::Kretprobe(target) => attach::kprobe(program, target, true),
        Hook::SyscallTracepoint(target) => attach::tracepoint(program, Tracefs::open()?.syscall(target)?),
        Hook::RawSyscallTracepoint(target) => {
            attach::tracepoint(program, Tracefs::open()?.raw_syscall(target)?)
        }
    }
}
