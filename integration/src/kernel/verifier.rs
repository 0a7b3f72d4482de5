//! What the running kernel's verifier says of every program.
//!
//! In: an embedded object. Out: a verdict for each of its programs, with the number of instructions that the verifier
//! went through; older kernels report that in their log only, so the log is read. Refuses to attach anything.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::path::Path;

use anyhow::Context as _;
use aya_obj::btf::{Btf, BtfKind};
use aya_obj::generated::{BPF_F_NO_PREALLOC, bpf_attach_type, bpf_map_type, bpf_prog_type};
use aya_obj::{EbpfSectionKind, Function, Map, Object};
use serde::{Deserialize, Serialize};

use super::program::{Attachment, Embedded, Kind};
use super::system_call::{self, NewMap, NewProgram};

/// Values that the agent specialises the programs with, as far as they bound a loop or choose a path.
const SETTINGS: [(&str, &[u8]); 7] = [
    ("self_tgid", &1_u32.to_ne_bytes()),
    ("head_limit", &8192_u32.to_ne_bytes()),
    ("tick_ns", &4_000_000_u64.to_ne_bytes()),
    ("wakeup_bytes", &(1_u64 << 20).to_ne_bytes()),
    ("tells_given", &1_u32.to_ne_bytes()),
    // Every kernel's `tcp_recvmsg` has an argument 3; which one it is makes no difference to the verifier.
    ("recvmsg_flags_at", &3_u32.to_ne_bytes()),
    ("is_preempted", &1_u32.to_ne_bytes()),
];
const TOTALS: u32 = 4;
const EVERY_STEP: u32 = 1;
/// A log with every step of a large program.
const LOG_BYTES: usize = 64 << 20;
/// Of a refused program's log.
const KEPT_LINES: usize = 25;

/// What became of one program.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Hook set, or what samples stacks.
    pub set: String,
    /// Flavour of the object.
    pub flavour: String,
    /// Name.
    pub program: String,
    /// How it went.
    pub fate: Fate,
}

/// How it went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// The verifier accepts it after so many instructions.
    Loaded {
        /// Instructions that the verifier went through.
        instructions: u64,
    },
    /// The kernel has not what it attaches to.
    Absent,
    /// Refused, and why.
    Refused {
        /// The kernel's words.
        reason: String,
    },
}

/// Gives each program of `embedded` to the kernel; ordered by name. An object that cannot even be prepared is a
/// refusal of each of its programs.
///
/// # Errors
/// When the object itself is broken.
pub fn verify(embedded: &Embedded, kernel: &Btf) -> anyhow::Result<Vec<Verdict>> {
    let object = Object::parse(&embedded.bytes).with_context(|| format!("parse {}", embedded.name()))?;
    let mut names: Vec<&String> = object.programs.keys().collect();
    names.sort();
    let loader = Loader::prepare(object.clone(), kernel);
    names
        .into_iter()
        .map(|name| {
            let attachment = embedded.attachment(object.programs[name].section_index)?;
            let fate = match &loader {
                _ if !exists(&attachment, kernel) => Fate::Absent,
                Ok(loader) => loader.load(name, &attachment, kernel)?,
                Err(error) => Fate::Refused { reason: format!("{error:#}") },
            };
            Ok(Verdict {
                set: embedded.set.to_owned(),
                flavour: embedded.flavour.to_string(),
                program: name.clone(),
                fate,
            })
        })
        .collect()
}

/// An object with its maps made and its code joined.
#[derive(Debug)]
struct Loader {
    object: Object,
    types: OwnedFd,
    _maps: HashMap<String, OwnedFd>,
}

impl Loader {
    fn prepare(mut object: Object, kernel: &Btf) -> anyhow::Result<Self> {
        let settings = SETTINGS.map(|(name, value)| (name, (value, false)));
        object.patch_map_data(HashMap::from(settings))?;
        let features = aya::features();
        let btf_features = features.btf().context("the kernel knows no type information")?;
        let types =
            object.fixup_and_sanitize_btf(btf_features)?.context("the object has no type information")?;
        let types = system_call::load_types(&types.to_bytes()).context("load type information")?;
        object.relocate_btf(kernel).context("find the kernel's types")?;
        let on_demand = kernel.id_by_type_name_kind("bpf_mem_alloc", BtfKind::Struct).is_ok();
        let maps: HashMap<String, Map> = object.maps.drain().collect();
        let mut descriptors = HashMap::new();
        for (name, map) in &maps {
            let made = make_map(map, &types, on_demand).with_context(|| format!("make map {name}"))?;
            descriptors.insert(name.clone(), made);
        }
        let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let known = maps.iter().map(|(name, map)| (name.as_str(), descriptors[name].as_raw_fd(), map));
        object.relocate_maps(known, &sections)?;
        object.relocate_calls(&sections)?;
        object.sanitize_functions(features);
        Ok(Self { object, types, _maps: descriptors })
    }

    fn load(&self, name: &str, attachment: &Attachment, kernel: &Btf) -> anyhow::Result<Fate> {
        let program = &self.object.programs[name];
        let function = &self.object.functions[&program.function_key()];
        let (program_type, attach_type) = types(attachment.kind);
        let (functions, lines) = (function.func_info.func_info_bytes(), function.line_info.line_info_bytes());
        let new = NewProgram {
            program_type: program_type as u32,
            attach_type: attach_type.map_or(0, |attach_type| attach_type as u32),
            attach_to: target_type(attachment, kernel).unwrap_or(0),
            instructions: &function.instructions,
            license: &program.license,
            types: Some(self.types.as_fd()),
            functions: &functions,
            function_size: record_size(function.func_info_rec_size)?,
            lines: &lines,
            line_size: record_size(function.line_info_rec_size)?,
        };
        verdict(&new, function)
    }
}

fn record_size(size: usize) -> anyhow::Result<u32> {
    u32::try_from(size).context("size of a record")
}

fn verdict(new: &NewProgram<'_>, function: &Function) -> anyhow::Result<Fate> {
    let mut log = vec![0; 1 << 16];
    let result = system_call::load_program(new, TOTALS, &mut log);
    let error = match result {
        Ok(_program) => {
            let instructions = processed(&text(&log)).with_context(|| {
                format!("the verifier's log of {} has no total: {}", function.name, text(&log))
            })?;
            return Ok(Fate::Loaded { instructions });
        }
        Err(error) => error,
    };
    let mut log = vec![0; LOG_BYTES];
    // The second try fails like the first one, or for want of room in the log; what it says is all we want.
    let _ = system_call::load_program(new, EVERY_STEP | TOTALS, &mut log);
    Ok(Fate::Refused { reason: format!("{error}{}", last_lines(&text(&log))) })
}

fn make_map(map: &Map, types: &OwnedFd, on_demand: bool) -> io::Result<OwnedFd> {
    let mut new = NewMap {
        map_type: map.map_type(),
        key_size: map.key_size(),
        value_size: map.value_size(),
        max_entries: map.max_entries(),
        flags: map.map_flags(),
        types: (0, 0, 0),
    };
    let is = |kind: bpf_map_type| new.map_type == kind as u32;
    // As the agent does: before the kernel's own allocator, allocating on demand is not safe everywhere.
    if is(bpf_map_type::BPF_MAP_TYPE_HASH) && !on_demand {
        new.flags &= !BPF_F_NO_PREALLOC;
    }
    // Storage of sockets and tasks is made only of types that the kernel knows.
    let stored = [bpf_map_type::BPF_MAP_TYPE_SK_STORAGE, bpf_map_type::BPF_MAP_TYPE_TASK_STORAGE];
    if let Map::Btf(map) = map
        && stored.into_iter().any(is)
    {
        new.types = (types.as_raw_fd().cast_unsigned(), map.def.btf_key_type_id, map.def.btf_value_type_id);
    }
    let descriptor = system_call::create_map(&new)?;
    if map.section_kind() == EbpfSectionKind::Rodata {
        system_call::freeze(descriptor.as_fd(), map.data())?;
    }
    Ok(descriptor)
}

fn types(kind: Kind) -> (bpf_prog_type, Option<bpf_attach_type>) {
    use {bpf_attach_type as attach, bpf_prog_type as program};
    match kind {
        Kind::TypedTracepoint => (program::BPF_PROG_TYPE_TRACING, Some(attach::BPF_TRACE_RAW_TP)),
        Kind::Entry => (program::BPF_PROG_TYPE_TRACING, Some(attach::BPF_TRACE_FENTRY)),
        Kind::Exit => (program::BPF_PROG_TYPE_TRACING, Some(attach::BPF_TRACE_FEXIT)),
        Kind::Probe | Kind::UserProbe => (program::BPF_PROG_TYPE_KPROBE, None),
        Kind::Tracepoint => (program::BPF_PROG_TYPE_TRACEPOINT, None),
        Kind::PerformanceEvent => (program::BPF_PROG_TYPE_PERF_EVENT, None),
    }
}

/// The kernel's type of what a program attaches to by type.
fn target_type(attachment: &Attachment, kernel: &Btf) -> Option<u32> {
    let target = &attachment.target;
    match attachment.kind {
        Kind::TypedTracepoint => {
            kernel.id_by_type_name_kind(&format!("btf_trace_{target}"), BtfKind::Typedef).ok()
        }
        Kind::Entry | Kind::Exit => kernel.id_by_type_name_kind(target, BtfKind::Func).ok(),
        Kind::Probe | Kind::UserProbe | Kind::Tracepoint | Kind::PerformanceEvent => None,
    }
}

/// Whether the kernel has what a program attaches to.
fn exists(attachment: &Attachment, kernel: &Btf) -> bool {
    match attachment.kind {
        Kind::TypedTracepoint | Kind::Entry | Kind::Exit => target_type(attachment, kernel).is_some(),
        Kind::UserProbe | Kind::PerformanceEvent => true,
        Kind::Probe => {
            let symbols = std::fs::read_to_string("/proc/kallsyms").unwrap_or_default();
            // Compilers give a function that they have changed another name, too: `….isra.0`.
            let is_it = |name: &str| {
                name.strip_prefix(&attachment.target)
                    .is_some_and(|rest| rest.is_empty() || (rest.starts_with('.') && !rest.contains("cold")))
            };
            symbols.lines().any(|line| line.split_whitespace().nth(2).is_some_and(is_it))
        }
        Kind::Tracepoint => {
            let roots = ["/sys/kernel/tracing/events", "/sys/kernel/debug/tracing/events"];
            roots.iter().any(|root| Path::new(root).join(&attachment.target).exists())
        }
    }
}

fn text(log: &[u8]) -> String {
    let end = log.iter().position(|byte| *byte == 0).unwrap_or(log.len());
    String::from_utf8_lossy(&log[..end]).into_owned()
}

/// The number in `processed N insns (limit …) …`.
fn processed(log: &str) -> Option<u64> {
    log.lines()
        .filter_map(|line| line.strip_prefix("processed ")?.split(' ').next()?.parse().ok())
        .next_back()
}

fn last_lines(log: &str) -> String {
    let lines: Vec<&str> = log.lines().collect();
    let begin = lines.len().saturating_sub(KEPT_LINES);
    lines[begin..].iter().map(|line| format!("\n  {line}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_read_from_the_log() {
        let check = |log: &str, expected: Option<u64>| assert_eq!(processed(log), expected, "{log}");
        check(
            "verification time 79 usec\nstack depth 0+0\n\
             processed 1234 insns (limit 1000000) max_states_per_insn 0 total_states 1 peak_states 1 mark_read 1\n",
            Some(1234),
        );
        check("processed 9 insns (limit 1000000)", Some(9));
        check("BPF program is too large. Processed 1000001 insn\n", None);
        check("", None);
    }

    #[test]
    fn a_log_ends_with_its_text() {
        let check = |log: &[u8], expected: &str| assert_eq!(text(log), expected);
        check(b"abc\0\0\0", "abc");
        check(b"abc", "abc");
        check(b"", "");
    }
}
