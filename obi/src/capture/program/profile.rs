//! The sampler of stacks in the kernel.
//!
//! In: settings, and the maps of a hook set that say what each thread serves. Out: [`Profiler`], attached to every CPU,
//! and [`ProfileMaps`]: the ring of samples, and the maps that tell it how to walk a stack. Dropping the profiler ends
//! the sampling; the maps go with their own end. Refuses to know what is in a table.

use std::collections::{HashMap as Positions, HashSet};
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};

use aya::maps::{Array, HashMap, Map, MapData, MapError, PerCpuArray, RingBuf};
use aya_obj::Object;
use aya_obj::generated::bpf_map_type;
use obi_ebpf::{
    Flavour, PROFILE_COUNTS, PROFILE_IDLE, PROFILE_IGNORED, PROFILE_LOST, PROFILE_SELF, PROFILE_TOLD, guest,
    jvm, mapping_block, mapping_key, profile_setting, unwind_chunk, unwind_key,
};

use super::{LoadError, Measured, SharedMaps, chain, telling_line};
use crate::capture::bpf::attach::{self, Attachment};
use crate::capture::bpf::{create, info, load};
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
}

/// Bytes of kernel memory that an element of either map takes.
pub const ELEMENT_BYTES: u64 = 2048;

/// Of a usual sample: some 60 frames.
const SAMPLE_BYTES: u64 = 640;
/// A few stacks of hundreds of frames from each CPU; beyond, a sample that finds no room makes the next weigh more.
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
    /// [`profile_setting`] as a map value.
    Setting(profile_setting),
}

/// Where a thread's stack in the kernel ends and the registers saved there begin to count, for the flavour that needs to
/// be told. A kernel built for FRED's event frames leaves sixteen bytes above them, whatever the processor has
/// (`TOP_OF_KERNEL_STACK_PADDING`).
fn stack_bytes(types: &KernelTypes) -> u32 {
    16384 - if types.has_structure("fred_frame") { 16 } else { 0 }
}

/// The ring of samples.
pub type Stacks = RingBuf<MapData>;

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
    /// The most that `chunks` takes, bytes: all that was allowed, or below 6.1 a part of it.
    pub table_bytes: u64,
    /// Of the ring, and what each CPU has for itself; taken at once.
    pub fixed_bytes: u64,
}

/// What became of the times that a CPU was looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfileCounts {
    /// Records in the ring.
    pub told: u64,
    /// No room in the ring; their value is in the CPU's next record.
    pub lost: u64,
    /// Nothing ran.
    pub idle: u64,
    /// The agent ran.
    pub own: u64,
    /// An ignored process ran.
    pub ignored: u64,
}

/// Loaded and attached.
pub struct Profiler {
    flavour: Flavour,
    hertz: u32,
    programs: Vec<(&'static str, OwnedFd)>,
    clocks: Vec<(u32, Attachment)>,
    counts: PerCpuArray<MapData, u64>,
    statistics: bool,
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
        let bytes = obi_ebpf::object(SET, flavour).ok_or(LoadError::NotBuilt)?;
        let refused = |reason| LoadError::Load { name: PROGRAM, reason };
        let mut object = Object::parse(bytes).map_err(|error| refused(chain(&error)))?;
        let mut maps = create_maps(&object, settings, shared, types)?;
        let by_cpu = bytes_by_cpu(&object)?;
        let descriptors: Descriptors = maps
            .iter()
            .map(|(name, map)| (name.as_str(), map.fd().as_fd().as_raw_fd()))
            .chain(shared.maps.iter().map(|(name, map)| (*name, map.as_raw_fd())))
            .collect();
        let programs = load_programs(&mut object, &descriptors, types).map_err(refused)?;
        drop(descriptors);
        if let [_, (_, walk)] = &programs[..] {
            let walks = maps.get(WALKS).ok_or_else(|| LoadError::Missing(format!("map `{WALKS}`")))?;
            create::set_program(walks.fd().as_fd(), 0, walk.as_fd())
                .map_err(|error| refused(format!("failed to connect `{WALK}`: {error}")))?;
        }
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
            table_bytes: Room::of(settings, types).table_bytes,
            fixed_bytes: u64::from(settings.ring_bytes) + by_cpu,
            stacks: take(&mut maps, "stacks", Map::RingBuf)?,
            chunks: take(&mut maps, "unwind_chunk", Map::HashMap)?,
            mappings: take(&mut maps, "mappings", Map::HashMap)?,
            guests: take(&mut maps, "guest", Map::HashMap)?,
            jvms: take(&mut maps, "jvm", Map::HashMap)?,
        };
        let counts = take(&mut maps, "profile_count", Map::PerCpuArray)?;
        let (hertz, statistics) = (settings.hertz, settings.statistics);
        let (clocks, walks) = (Vec::new(), maps.remove(WALKS));
        let mut profiler = Self { flavour, hertz, programs, clocks, counts, statistics, _walks: walks };
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
        self.clocks.retain(|(cpu, _)| online.contains(cpu));
        let program = self.programs[0].1.as_fd();
        let mut refused = None;
        for cpu in &online {
            if self.clocks.iter().any(|(attached, _)| attached == cpu) {
                continue;
            }
            match attach::clock(program, *cpu, self.hertz) {
                Ok(clock) => self.clocks.push((*cpu, clock)),
                Err(error) => refused = Some(error),
            }
        }
        match refused {
            Some(error) if self.clocks.is_empty() => Err(error),
            _ => Ok(online.len() - self.clocks.len()),
        }
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
    pub fn counts(&self) -> Result<ProfileCounts, MapError> {
        let mut sums = [0_u64; PROFILE_COUNTS as usize];
        for (index, sum) in (0..).zip(&mut sums) {
            *sum = self.counts.get(&index, 0)?.iter().sum();
        }
        let sum = |index: u32| sums[index as usize];
        Ok(ProfileCounts {
            told: sum(PROFILE_TOLD),
            lost: sum(PROFILE_LOST),
            idle: sum(PROFILE_IDLE),
            own: sum(PROFILE_SELF),
            ignored: sum(PROFILE_IGNORED),
        })
    }

    /// What the kernel knows of the program.
    #[must_use]
    pub fn measure(&self) -> Vec<Measured> {
        let measure = |(name, program): &(&'static str, OwnedFd)| {
            let info = info::program(program.as_fd()).ok()?;
            let (misses, statistics) = (info.recursion_misses, self.statistics);
            Some(Measured { name, info, misses, silent: false, missed: false, statistics })
        };
        self.programs.iter().filter_map(measure).collect()
    }
}

type Descriptors<'a> = Positions<&'a str, i32>;

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

/// All that the object has, but for those that the hook set lends.
fn create_maps(
    object: &Object,
    settings: &ProfilerSettings,
    shared: &SharedMaps,
    types: &KernelTypes,
) -> Result<Positions<String, MapData>, LoadError> {
    let Room { preallocated, table_bytes, mapping_blocks } = Room::of(settings, types);
    let own = object.maps.iter().filter(|(name, _)| shared.maps.iter().all(|(lent, _)| lent != name));
    own.map(|(name, map)| {
        let max_entries = match name.as_str() {
            "stacks" => settings.ring_bytes,
            "unwind_chunk" => u32::try_from(table_bytes / ELEMENT_BYTES).unwrap_or(u32::MAX).max(1),
            "mappings" => mapping_blocks.max(1),
            _ => map.max_entries(),
        };
        let is_hash = map.map_type() == bpf_map_type::BPF_MAP_TYPE_HASH as u32;
        let flags = if preallocated && is_hash { 0 } else { map.map_flags() };
        let (key, value) = (map.key_size(), map.value_size());
        let map = aya_obj::Map::new_from_params(map.map_type(), key, value, max_entries, flags);
        let map = MapData::create(map, name, None)
            .map_err(|source| LoadError::Map { name: "of the profiler", source })?;
        Ok((name.clone(), map))
    })
    .collect()
}

/// Of all maps with an element for each CPU.
fn bytes_by_cpu(object: &Object) -> Result<u64, LoadError> {
    let online =
        online_cpus().map_err(|source| LoadError::Attach { name: PROGRAM, target: "CPU clock", source })?;
    let by_cpu = |map: &&aya_obj::Map| map.map_type() == bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY as u32;
    let of_map = |map: &aya_obj::Map| u64::from(map.max_entries()) * u64::from(map.value_size());
    Ok(object.maps.values().filter(by_cpu).map(of_map).sum::<u64>() * online.len() as u64)
}

/// The attached program first.
fn load_programs(
    object: &mut Object,
    maps: &Descriptors<'_>,
    kernel: &KernelTypes,
) -> Result<Vec<(&'static str, OwnedFd)>, String> {
    let types = match aya::features().btf() {
        Some(features) => object.fixup_and_sanitize_btf(features).map_err(|error| chain(&error))?,
        None => None,
    };
    let types = types.and_then(|types| load::types(&types.to_bytes()).ok());
    object.relocate_btf(&kernel.btf).map_err(|error| chain(&error))?;
    let own = std::mem::take(&mut object.maps);
    let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    let opened = own.iter().filter_map(|(name, map)| Some((name.as_str(), *maps.get(name.as_str())?, map)));
    object.relocate_maps(opened, &text).map_err(|error| chain(&error))?;
    object.relocate_calls(&text).map_err(|error| chain(&error))?;
    object.sanitize_functions(aya::features());
    let types = types.as_ref().map(OwnedFd::as_fd);
    let names = [PROGRAM, WALK].into_iter().filter(|name| object.programs.contains_key(*name));
    names
        .map(|name| {
            let program = object.programs.get(name).ok_or("not part of this object")?;
            let function = object.functions.get(&program.function_key()).ok_or("a program without code")?;
            let code = load::Code { name, function, license: &object.license, types };
            let loaded = load::perf_event(code);
            Ok((name, loaded.map_err(|refusal| telling_line(&refusal.error, &refusal.log))?))
        })
        .collect()
}

fn take<T: TryFrom<Map, Error = MapError>>(
    maps: &mut Positions<String, MapData>,
    name: &'static str,
    kind: fn(MapData) -> Map,
) -> Result<T, LoadError> {
    let map = maps.remove(name).ok_or_else(|| LoadError::Missing(format!("map `{name}`")))?;
    T::try_from(kind(map)).map_err(|source| LoadError::Map { name, source })
}

/// CPUs that are online.
///
/// # Errors
/// When the kernel does not tell.
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
