//! The samplers of stacks in the kernel.
//!
//! In: settings, and the maps of a hook set that say what each thread serves. Out: [`Profiler`], attached to every CPU,
//! and [`ProfileMaps`]: the ring of samples, and the maps that say how to walk a stack. Dropping the profiler ends
//! the sampling; the maps go with their own end. Refuses to know what is in a table.
//!
//! - `object`: an object's maps and programs into the kernel. `beside`: those who sample waits and page faults.

mod beside;
mod object;

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray};
use obi_ebpf::{
    Flavour, PROFILE_BUSY, PROFILE_COUNTS, PROFILE_IDLE, PROFILE_IGNORED, PROFILE_LOST, PROFILE_REPORTED,
    PROFILE_SELF, guest, jvm, mapping_block, mapping_key, profile_setting, unwind_chunk, unwind_key, v8,
    wait_setting,
};

use self::beside::Lender;
pub use self::beside::{PAGE_FAULT_PERIOD, PageFaults, THRESHOLD, Waits};
use self::object::{Kind, Made, Source, Wanted, take};
use super::{LoadError, Measured, SharedMaps};
use crate::capture::bpf::attach::{self, Attachment};
use crate::capture::bpf::ring::Ring;
use crate::capture::bpf::{create, info};
use crate::capture::kernel_types::KernelTypes;

/// How the profiler is to be.
#[derive(Debug, Clone, Copy)]
pub struct ProfilerSettings {
    /// This process, never sampled.
    pub self_tgid: u32,
    /// Samples a second of each CPU that is busy.
    pub hertz: u32,
    /// Ring buffer size: a power of two and a multiple of the page size. See [`ring_bytes`].
    pub ring_bytes: u32,
    /// The most memory that tables may take in the kernel. Below 6.1 it is taken at once, a quarter of this.
    pub table_bytes: u64,
    /// The most elements of `mappings`: most processes take one.
    pub mapping_blocks: u32,
    /// Run-time statistics are on.
    pub statistics: bool,
    /// Sample waits of threads that serve requests, too.
    pub off_cpu: bool,
    /// Sample page faults, too.
    pub page_faults: bool,
}

/// Bytes of kernel memory that an element of either map takes.
pub const ELEMENT_BYTES: u64 = 2048;

/// Of a usual sample: some 60 frames.
const SAMPLE_BYTES: u64 = 640;
/// A few stacks of hundreds of frames from each CPU; beyond, samples are lost and counted.
const RING_BYTES: [u64; 2] = [1 << 20, 16 << 20];

/// A ring for what all CPUs sample in a second, so many times each: the agent reads it ten times in that time.
#[must_use]
pub fn ring_bytes(n_cpus: usize, hertz: u32) -> u32 {
    let second = (n_cpus as u64).saturating_mul(u64::from(hertz)).saturating_mul(SAMPLE_BYTES);
    let [least, most] = RING_BYTES;
    u32::try_from(second.clamp(least, most).next_power_of_two()).unwrap_or(u32::MAX)
}

macro_rules! map_types {
    ($($(#[$doc:meta])* $name:ident($inner:ident)),* $(,)?) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name(pub $inner);

        // SAFETY: transparent over a C structure of integers without padding (its zerocopy derives refuse padding at
        // compile time), so every bit pattern is valid.
        unsafe impl aya::Pod for $name {}
    )*};
}

map_types! {
    /// [`unwind_key`] as a map key.
    UnwindKey(unwind_key),
    /// [`unwind_chunk`] as a map value.
    UnwindChunk(unwind_chunk),
    /// [`mapping_key`] as a map key.
    MappingKey(mapping_key),
    /// [`mapping_block`] as a map value.
    MappingBlock(mapping_block),
    /// [`guest`] as a map value.
    Guest(guest),
    /// [`jvm`] as a map value.
    Jvm(jvm),
    /// [`v8`] as a map value.
    V8(v8),
    /// [`profile_setting`] as a map value.
    Setting(profile_setting),
    /// [`wait_setting`] as a map value.
    WaitSetting(wait_setting),
}

/// Where a thread's stack in the kernel ends and the registers saved there begin to count, for the flavour that needs
/// to be found. A kernel built for FRED's event frames leaves sixteen bytes above them, whatever the processor has
/// (`TOP_OF_KERNEL_STACK_PADDING`).
fn stack_bytes(types: &KernelTypes) -> u32 {
    16384 - if types.has_structure("fred_frame") { 16 } else { 0 }
}

/// The ring of samples.
pub type Stacks = Ring;

/// What the agent reads and writes of it.
#[expect(missing_debug_implementations, reason = "the library's map types have none")]
pub struct ProfileMaps {
    /// Records of samples.
    pub stacks: Stacks,
    /// Tables, in pieces.
    pub chunks: HashMap<MapData, UnwindKey, UnwindChunk>,
    /// What processes map, in pieces.
    pub mappings: HashMap<MapData, MappingKey, MappingBlock>,
    /// CPython in processes.
    pub guests: HashMap<MapData, u32, Guest>,
    /// HotSpot in processes.
    pub jvms: HashMap<MapData, u32, Jvm>,
    /// V8 in processes.
    pub v8s: HashMap<MapData, u32, V8>,
    /// The most that `chunks` takes, bytes: all that was allowed, or below 6.1 a part of it.
    pub table_bytes: u64,
    /// Of the ring, and what each CPU has for itself; taken at once.
    pub fixed_bytes: u64,
}

/// What became of the times that a CPU was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfileCounts {
    /// Records in the ring.
    pub reported: u64,
    /// No room in the ring; their value is in the CPU's next record.
    pub lost: u64,
    /// Nothing ran.
    pub idle: u64,
    /// The agent ran.
    pub own: u64,
    /// An ignored process ran.
    pub ignored: u64,
    /// Another walk was under way.
    pub busy: u64,
}

/// What became of samples of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AllCounts {
    /// Of what runs.
    pub cpu: ProfileCounts,
    /// Of waits.
    pub waits: ProfileCounts,
    /// Of page faults.
    pub page_faults: ProfileCounts,
}

/// Loaded and attached.
pub struct Profiler {
    flavour: Flavour,
    hertz: u32,
    programs: Vec<(&'static str, OwnedFd)>,
    clocks: Vec<(u32, Attachment)>,
    counts: Counts,
    statistics: bool,
    /// Those who sample waits, or why there is none.
    pub waits: Result<Waits, String>,
    /// Those who sample page faults, or why there is none.
    pub page_faults: Result<PageFaults, String>,
    // The kernel empties a map of programs when nobody in user space holds it.
    _walks: Option<MapData>,
}

impl std::fmt::Debug for Profiler {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { flavour, hertz, clocks, .. } = self;
        f.debug_struct("Profiler")
            .field("flavour", flavour)
            .field("hertz", hertz)
            .field("clocks", clocks)
            .finish()
    }
}

const SET: &str = "profile";
/// Attached; reached by tail call, where the object has it.
const PROGRAM: &str = "profile";
const WALK: &str = "profile_walk";
const WALKS: &str = "profile_walks";

impl Profiler {
    /// Creates the maps, loads the program, the modern object else the portable one, and attaches it to every CPU that
    /// is online.
    ///
    /// # Errors
    /// When the kernel refuses; the error repeats what it said of the last object.
    pub fn load(
        settings: &ProfilerSettings,
        shared: &SharedMaps,
        types: &KernelTypes,
    ) -> Result<(Self, ProfileMaps), LoadError> {
        Self::load_flavour(Flavour::Modern, settings, shared, types).or_else(|error| {
            tracing::debug!(%error, "another object of the profiler is used");
            Self::load_flavour(Flavour::Portable, settings, shared, types)
        })
    }

    /// As [`Self::load`], one object.
    ///
    /// # Errors
    /// When the kernel refuses it.
    pub fn load_flavour(
        flavour: Flavour,
        settings: &ProfilerSettings,
        shared: &SharedMaps,
        types: &KernelTypes,
    ) -> Result<(Self, ProfileMaps), LoadError> {
        let Room { preallocated, table_bytes, mapping_blocks } = Room::of(settings, types);
        let max_entries = |name: &str| match name {
            "stacks" => Some(settings.ring_bytes),
            "unwind_chunk" => Some(u32::try_from(table_bytes / ELEMENT_BYTES).unwrap_or(u32::MAX).max(1)),
            "mappings" => Some(mapping_blocks.max(1)),
            _ => None,
        };
        let lent = shared.maps.iter().map(|(name, map)| (*name, map.as_fd())).collect();
        let source = Source { set: SET, flavour, lent, types, preallocated, max_entries: &max_entries };
        let wanted = [PROGRAM, WALK].map(|name| Wanted { name, kind: Kind::PerfEvent });
        let Made { mut maps, programs, by_cpu_bytes } = source.load(&wanted)?;
        if let [_, (_, walk)] = &programs[..] {
            connect(&maps, walk)?;
        }
        let lender = Lender::new(&maps, shared, types)?;
        let mut setting: Array<_, Setting> = take(&mut maps, "profile_setting", Map::Array)?;
        let value = profile_setting {
            self_tgid: settings.self_tgid,
            wakeup_bytes: settings.ring_bytes / 8,
            stack_bytes: stack_bytes(types),
            ..profile_setting::default()
        };
        setting
            .set(0, Setting(value), 0)
            .map_err(|source| LoadError::Map { name: "profile_setting", source })?;
        let own = ProfileMaps {
            table_bytes,
            fixed_bytes: u64::from(settings.ring_bytes) + by_cpu_bytes,
            stacks: take(&mut maps, "stacks", Map::RingBuf)?,
            chunks: take(&mut maps, "unwind_chunk", Map::HashMap)?,
            mappings: take(&mut maps, "mappings", Map::HashMap)?,
            guests: take(&mut maps, "guest", Map::HashMap)?,
            jvms: take(&mut maps, "jvm", Map::HashMap)?,
            v8s: take(&mut maps, "v8", Map::HashMap)?,
        };
        let counts = Counts(take(&mut maps, "profile_count", Map::PerCpuArray)?);
        let (hertz, statistics) = (settings.hertz, settings.statistics);
        let (clocks, walks) = (Vec::new(), maps.remove(WALKS));
        let waits = match settings.off_cpu {
            true => lender.waits(flavour),
            false => Err("profile.off_cpu is off".to_owned()),
        };
        let page_faults = match settings.page_faults {
            true => lender.page_faults(flavour),
            false => Err("profile.page_faults is off".to_owned()),
        };
        let mut profiler =
            Self { flavour, hertz, programs, clocks, counts, statistics, waits, page_faults, _walks: walks };
        profiler.attach_online().map_err(|source| LoadError::Attach {
            name: PROGRAM,
            target: "CPU clock",
            source,
        })?;
        Ok((profiler, own))
    }

    /// Attaches to the CPUs that have come online since; an event ends when its CPU goes offline, and is not revived by
    /// the kernel. Returns how many CPUs are online and not sampled, because the kernel refuses: without
    /// `CAP_PERFMON`, which is given up after the start, those that come later stay unseen.
    ///
    /// # Errors
    /// When the list of CPUs cannot be read, or none at all can be sampled.
    pub fn attach_online(&mut self) -> io::Result<usize> {
        let online = online_cpus()?;
        if let Ok(page_faults) = &mut self.page_faults {
            let _ = page_faults.attach(&online);
        }
        let program = self.programs[0].1.as_fd();
        attach_to(&mut self.clocks, &online, |cpu| attach::clock(program, cpu, self.hertz))
    }

    /// Which object is in use.
    #[must_use]
    pub fn flavour(&self) -> Flavour {
        self.flavour
    }

    /// CPUs that are sampled.
    #[must_use]
    pub fn n_cpus(&self) -> usize {
        self.clocks.len()
    }

    /// What became of the samples so far, over all CPUs.
    ///
    /// # Errors
    /// When the kernel refuses.
    pub fn counts(&self) -> Result<AllCounts, MapError> {
        let of = |counts: Option<&Counts>| counts.map_or(Ok(ProfileCounts::default()), Counts::read);
        Ok(AllCounts {
            cpu: self.counts.read()?,
            waits: of(self.waits.as_ref().ok().map(Waits::counts))?,
            page_faults: of(self.page_faults.as_ref().ok().map(PageFaults::counts))?,
        })
    }

    /// What the kernel knows of the programs.
    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        let measure = |(name, program): &(&'static str, OwnedFd)| {
            let info = info::program(program.as_fd()).ok()?;
            let (misses, statistics) = (info.recursion_misses, self.statistics);
            Some(Measured { name, info, misses, silent: false, missed: false, statistics })
        };
        let waits = self.waits.iter().flat_map(Waits::programs);
        let page_faults = self.page_faults.iter().flat_map(PageFaults::programs);
        self.programs.iter().chain(waits).chain(page_faults).filter_map(measure).collect()
    }
}

/// What became of samples, by CPU.
pub(super) struct Counts(PerCpuArray<MapData, u64>);

impl Counts {
    fn read(&self) -> Result<ProfileCounts, MapError> {
        let mut sums = [0_u64; PROFILE_COUNTS as usize];
        for (index, sum) in (0..).zip(&mut sums) {
            *sum = self.0.get(&index, 0)?.iter().sum();
        }
        let sum = |index: u32| sums[index as usize];
        Ok(ProfileCounts {
            reported: sum(PROFILE_REPORTED),
            lost: sum(PROFILE_LOST),
            idle: sum(PROFILE_IDLE),
            own: sum(PROFILE_SELF),
            ignored: sum(PROFILE_IGNORED),
            busy: sum(PROFILE_BUSY),
        })
    }
}

/// Where walks of an object go on, by tail call.
fn connect(maps: &object::Maps, walk: &OwnedFd) -> Result<(), LoadError> {
    let walks = maps.get(WALKS).ok_or_else(|| LoadError::Missing(format!("map `{WALKS}`")))?;
    create::set_program(walks.fd().as_fd(), 0, walk.as_fd())
        .map_err(|error| LoadError::Load { name: WALK, reason: format!("failed to connect it: {error}") })
}

/// Attaches to the CPUs that are online and not attached yet. Returns how many are left, because the kernel refuses.
fn attach_to(
    attached: &mut Vec<(u32, Attachment)>,
    online: &[u32],
    attach: impl Fn(u32) -> io::Result<Attachment>,
) -> io::Result<usize> {
    attached.retain(|(cpu, _)| online.contains(cpu));
    let mut refused = None;
    for cpu in online {
        if attached.iter().any(|(known, _)| known == cpu) {
            continue;
        }
        match attach(*cpu) {
            Ok(clock) => attached.push((*cpu, clock)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) if attached.is_empty() => Err(error),
        _ => Ok(online.len() - attached.len()),
    }
}

/// How large the maps are.
struct Room {
    preallocated: bool,
    table_bytes: u64,
    mapping_blocks: u32,
}

impl Room {
    fn of(settings: &ProfilerSettings, types: &KernelTypes) -> Self {
        let ProfilerSettings { table_bytes, mapping_blocks, .. } = *settings;
        // Safe on-demand allocation came with this structure (6.1); before, these programs may use no such maps.
        match types.has_structure("bpf_mem_alloc") {
            true => Self { preallocated: false, table_bytes, mapping_blocks },
            false => {
                Self { preallocated: true, table_bytes: table_bytes / 4, mapping_blocks: mapping_blocks / 4 }
            }
        }
    }
}

/// CPUs that are online.
///
/// # Errors
/// When the kernel does not say.
pub fn online_cpus() -> io::Result<Vec<u32>> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online")?;
    parse_cpus(&text).ok_or_else(|| io::Error::other(format!("`{}` is no list of CPUs", text.trim())))
}

/// `0-3,8`
fn parse_cpus(text: &str) -> Option<Vec<u32>> {
    let mut cpus = Vec::new();
    for range in text.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last): (u32, u32) = (first.parse().ok()?, last.parse().ok()?);
        // More than any kernel has.
        if last < first || last - first > 65_536 {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_cpus_are_understood() {
        let check = |text: &str, expected: Option<&[u32]>| {
            assert_eq!(parse_cpus(text).as_deref(), expected, "{text:?}");
        };
        check("0\n", Some(&[0]));
        check("0-3,8", Some(&[0, 1, 2, 3, 8]));
        check("3-0", None);
        check("", None);
        check("0-4294967295", None);
    }

    #[test]
    fn rings_hold_a_second() {
        let check = |n_cpus, hertz, expected| assert_eq!(ring_bytes(n_cpus, hertz), expected);
        check(1, 1, 1 << 20);
        check(2, 99, 1 << 20);
        check(64, 99, 4 << 20);
        check(usize::MAX, 1000, 16 << 20);
    }

    #[test]
    fn elements_fit_what_the_kernel_allocates() {
        // What the kernel adds to an element of a hash map that allocates on demand.
        const KERNEL_BYTES: usize = 56;
        assert!(KERNEL_BYTES + size_of::<unwind_key>() + size_of::<unwind_chunk>() <= ELEMENT_BYTES as usize);
        assert!(
            KERNEL_BYTES + size_of::<mapping_key>() + size_of::<mapping_block>() <= ELEMENT_BYTES as usize
        );
    }
}
