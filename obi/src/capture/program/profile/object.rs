//! One object of a sampler into the kernel.
//!
//! In: an embedded object, maps that others lend it, which of its programs are wanted. Out: [`Made`]: its own maps and
//! the programs, loaded and not attached. Refuses to know what they do.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData, MapError};
use aya_obj::Object;
use aya_obj::generated::bpf_map_type;
use obi_ebpf::Flavour;

use super::online_cpus;
use crate::capture::bpf::load;
use crate::capture::kernel_types::KernelTypes;
use crate::capture::program::{LoadError, chain, telling_line};

/// Maps by name.
pub(super) type Maps = HashMap<String, MapData>;

/// Programs, by their names.
pub(super) type Programs = Vec<(&'static str, OwnedFd)>;

/// How a program is loaded.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// For performance events.
    PerfEvent,
    /// For a tracepoint, the kernel's type of which has this number.
    TypedTracepoint(u32),
    /// For the entry of a function.
    Kprobe,
}

/// A program to be loaded.
#[derive(Debug, Clone, Copy)]
pub(super) struct Wanted {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
}

/// What is to be loaded, and with what.
pub(super) struct Source<'a> {
    pub(super) set: &'static str,
    pub(super) flavour: Flavour,
    /// Maps that are not made, because they are there.
    pub(super) lent: HashMap<&'a str, BorrowedFd<'a>>,
    pub(super) types: &'a KernelTypes,
    /// Hash maps have all their memory from the start.
    pub(super) preallocated: bool,
    /// Of maps whose size is not that of the object.
    pub(super) max_entries: &'a dyn Fn(&str) -> Option<u32>,
}

/// In the kernel.
pub(super) struct Made {
    /// Those that nobody lent.
    pub(super) maps: Maps,
    /// Those that were wanted and that the object has, in that order.
    pub(super) programs: Programs,
    /// Of the maps with an element for each CPU.
    pub(super) by_cpu_bytes: u64,
}

impl Source<'_> {
    /// Creates the maps and loads the programs.
    pub(super) fn load(&self, wanted: &[Wanted]) -> Result<Made, LoadError> {
        let bytes = obi_ebpf::object(self.set, self.flavour).ok_or(LoadError::NotBuilt)?;
        let name = wanted.first().map_or(self.set, |first| first.name);
        let refused = |reason| LoadError::Load { name, reason };
        let mut object = Object::parse(&bytes).map_err(|error| refused(chain(&error)))?;
        let maps = self.create_maps(&object)?;
        let by_cpu_bytes = bytes_by_cpu(&object, &maps)?;
        let programs = self.load_programs(&mut object, &maps, wanted).map_err(refused)?;
        Ok(Made { maps, programs, by_cpu_bytes })
    }

    fn create_maps(&self, object: &Object) -> Result<Maps, LoadError> {
        let own = object.maps.iter().filter(|(name, _)| !self.lent.contains_key(name.as_str()));
        own.map(|(name, map)| {
            let max_entries = (self.max_entries)(name).unwrap_or_else(|| map.max_entries());
            let is_hash = map.map_type() == bpf_map_type::BPF_MAP_TYPE_HASH as u32;
            let flags = if self.preallocated && is_hash { 0 } else { map.map_flags() };
            let (key, value) = (map.key_size(), map.value_size());
            let map = aya_obj::Map::new_from_params(map.map_type(), key, value, max_entries, flags);
            let map = MapData::create(map, name, None)
                .map_err(|source| LoadError::Map { name: "of the profiler", source })?;
            Ok((name.clone(), map))
        })
        .collect()
    }

    fn load_programs(&self, object: &mut Object, made: &Maps, wanted: &[Wanted]) -> Result<Programs, String> {
        let types = match aya::features().btf() {
            Some(features) => object.fixup_and_sanitize_btf(features).map_err(|error| chain(&error))?,
            None => None,
        };
        let types = types.and_then(|types| load::types(&types.to_bytes()).ok());
        object.relocate_btf(&self.types.btf).map_err(|error| chain(&error))?;
        let all = std::mem::take(&mut object.maps);
        let descriptor = |name: &str| match self.lent.get(name) {
            Some(lent) => Some(lent.as_raw_fd()),
            None => made.get(name).map(|map| map.fd().as_fd().as_raw_fd()),
        };
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        let opened = all.iter().filter_map(|(name, map)| Some((name.as_str(), descriptor(name)?, map)));
        object.relocate_maps(opened, &text).map_err(|error| chain(&error))?;
        object.relocate_calls(&text).map_err(|error| chain(&error))?;
        object.sanitize_functions(aya::features());
        let types = types.as_ref().map(OwnedFd::as_fd);
        let there = wanted.iter().filter(|wanted| object.programs.contains_key(wanted.name));
        there
            .map(|Wanted { name, kind }| {
                let program = object.programs.get(*name).ok_or("not part of this object")?;
                let function =
                    object.functions.get(&program.function_key()).ok_or("a program without code")?;
                let code = load::Code { name, function, license: &object.license, types };
                let loaded = match kind {
                    Kind::PerfEvent => load::perf_event(code),
                    Kind::TypedTracepoint(of) => load::typed_tracepoint(code, *of),
                    Kind::Kprobe => load::kprobe(code),
                };
                Ok((*name, loaded.map_err(|refusal| telling_line(&refusal.error, &refusal.log))?))
            })
            .collect()
    }
}

/// Of the maps that were made with an element for each CPU.
fn bytes_by_cpu(object: &Object, made: &Maps) -> Result<u64, LoadError> {
    let online = online_cpus().map_err(|source| LoadError::Attach {
        name: super::PROGRAM,
        target: "CPU clock",
        source,
    })?;
    let by_cpu = |map: &&aya_obj::Map| map.map_type() == bpf_map_type::BPF_MAP_TYPE_PERCPU_ARRAY as u32;
    let of_map = |map: &aya_obj::Map| u64::from(map.max_entries()) * u64::from(map.value_size());
    let own = object.maps.iter().filter(|(name, _)| made.contains_key(*name)).map(|(_, map)| map);
    Ok(own.filter(by_cpu).map(of_map).sum::<u64>() * online.len() as u64)
}

/// Takes a map out.
pub(super) fn take<T: TryFrom<Map, Error = MapError>>(
    maps: &mut Maps,
    name: &'static str,
    kind: fn(MapData) -> Map,
) -> Result<T, LoadError> {
    let map = maps.remove(name).ok_or_else(|| LoadError::Missing(format!("map `{name}`")))?;
    T::try_from(kind(map)).map_err(|source| LoadError::Map { name, source })
}
