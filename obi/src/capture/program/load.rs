//! One kernel object into the kernel: maps made, programs loaded and attached.
//!
//! In: a set, a flavour, settings. Out: [`Loaded`], not yet let loose, or what the kernel refused. Knows the loading
//! library's kinds of programs.

use std::borrow::Cow;

use aya::maps::ProgramArray;
use aya::programs::{Program, ProgramError};
use aya::{Btf, Ebpf, EbpfLoader};
use obi_ebpf::Flavour;

use super::table::{Entry, Hook, Need, programs};
use super::{LoadError, Settings, preallocate, refusal};
use crate::capture::hook_set::HookSet;
use crate::capture::kernel_types::KernelTypes;

/// A set in the kernel.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) ebpf: Ebpf,
    pub(super) attached: Vec<Entry>,
    /// Loaded, to be attached when wanted.
    pub(super) waiting: Vec<(Entry, u32)>,
    pub(super) skipped: Vec<(&'static str, String)>,
    /// Hash maps hold all their memory from the start.
    pub(super) preallocated: bool,
}

/// Connections in a hash map that allocates on demand; the object's own number is for one that does not.
const CONNECTIONS: u32 = 65_536;
/// `flags` of `tcp_recvmsg` in kernels that lost `nonblock` (5.18).
const RECVMSG_FLAGS_AT: u32 = 3;
/// Long walks go on in this program, by tail call.
const WALK: &str = "walk";
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
            true => Cow::Owned(
                preallocate::preallocated(object).ok_or_else(|| missing("readable map definitions"))?,
            ),
            false => Cow::Borrowed(object),
        };
        let wakeup_bytes = u64::from(settings.ring_bytes) / 8;
        let recvmsg_flags_at = types.parameter("tcp_recvmsg", "flags").unwrap_or(RECVMSG_FLAGS_AT);
        let mut loader = EbpfLoader::new();
        loader
            .btf(Some(&types.btf))
            .override_global("self_tgid", &settings.self_tgid, true)
            .override_global("head_limit", &settings.head_limit, true)
            .override_global("tick_ns", &settings.tick_ns, true)
            .override_global("wakeup_bytes", &wakeup_bytes, true)
            .override_global("recvmsg_flags_at", &recvmsg_flags_at, false)
            .map_max_entries("events", settings.ring_bytes);
        let storage = set == HookSet::Socket || (set == HookSet::Fentry && flavour == Flavour::Modern);
        if !storage && !preallocated {
            loader.map_max_entries("connection", CONNECTIONS);
        }
        let ebpf = loader.load(&object).map_err(LoadError::Object)?;
        let mut loaded =
            Self { ebpf, attached: Vec::new(), waiting: Vec::new(), skipped: Vec::new(), preallocated };
        loaded.load_programs(set, &types.btf)?;
        loaded.connect_walk(&types.btf)?;
        loaded.attach_programs()?;
        Ok(loaded)
    }

    fn load_programs(&mut self, set: HookSet, btf: &Btf) -> Result<(), LoadError> {
        for entry in programs(set) {
            match (load(program(&mut self.ebpf, entry.name)?, entry.hook.target(), btf), entry.need) {
                (Ok(()), Need::Wanted(wanted)) => self.waiting.push((entry, wanted)),
                (Ok(()), _) => self.attached.push(entry),
                (Err(source), Need::Required) => return Err(LoadError::Program { name: entry.name, source }),
                (Err(source), _) => self.skipped.push((entry.name, refusal(&source))),
            }
        }
        Ok(())
    }

    /// The target of tail calls, where the object has one: never attached itself.
    fn connect_walk(&mut self, btf: &Btf) -> Result<(), LoadError> {
        if self.ebpf.program(WALK).is_none() {
            return Ok(());
        }
        let refused = |source| LoadError::Program { name: WALK, source };
        let program = program(&mut self.ebpf, WALK)?;
        load(program, "release_sock", btf).map_err(refused)?;
        let walk = program.fd().and_then(|fd| Ok(fd.try_clone()?)).map_err(refused)?;
        let map = self.ebpf.map_mut(WALKS).ok_or_else(|| missing("map `walks`"))?;
        let mut walks =
            ProgramArray::try_from(map).map_err(|source| LoadError::Map { name: WALKS, source })?;
        walks.set(0, &walk, 0).map_err(|source| LoadError::Map { name: WALKS, source })
    }

    fn attach_programs(&mut self) -> Result<(), LoadError> {
        let mut attached = Vec::new();
        for entry in std::mem::take(&mut self.attached) {
            match (attach(program(&mut self.ebpf, entry.name)?, entry.hook), entry.need) {
                (Ok(()), _) => attached.push(entry),
                (Err(source), Need::Required) => return Err(LoadError::Program { name: entry.name, source }),
                (Err(source), _) => self.skipped.push((entry.name, refusal(&source))),
            }
        }
        self.attached = attached;
        Ok(())
    }
}

fn missing(what: &str) -> LoadError {
    LoadError::Missing(what.to_owned())
}

pub(super) fn program<'a>(ebpf: &'a mut Ebpf, name: &str) -> Result<&'a mut Program, LoadError> {
    ebpf.program_mut(name).ok_or_else(|| missing(&format!("program `{name}`")))
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

pub(super) fn attach(program: &mut Program, hook: Hook) -> Result<(), ProgramError> {
    match (program, hook) {
        (Program::BtfTracePoint(program), Hook::BtfTracepoint(_)) => program.attach().map(drop),
        (Program::FEntry(program), Hook::FunctionEntry(_)) => program.attach().map(drop),
        (Program::FExit(program), Hook::FunctionExit(_)) => program.attach().map(drop),
        (Program::KProbe(program), Hook::Kprobe(target) | Hook::Kretprobe(target)) => {
            program.attach(target, 0).map(drop)
        }
        (Program::TracePoint(program), Hook::SyscallTracepoint(target)) => {
            program.attach("syscalls", target).map(drop)
        }
        _ => Err(ProgramError::UnexpectedProgramType),
    }
}
