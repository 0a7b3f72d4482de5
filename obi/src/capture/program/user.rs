//! The programs for places in TLS libraries, loaded but attached nowhere yet.
//!
//! In: a hook set's object once more, and the maps that its other programs have made. Out: [`UserPrograms`]. The
//! loading library cannot load them for `uprobe.multi`, so it parses and relocates, and we load.

use std::collections::HashSet;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};

use aya::maps::{Map, MapData};
use aya::{Btf, Ebpf};
use aya_obj::Object;
use obi_ebpf::{WALK_DATABASE, WALK_FRAMES, WALK_HEADS, WALK_PROGRAMS};

use super::parallel::in_parallel;
use super::{chain, telling_line};
use crate::capture::bpf::{create, load, uprobe};
use crate::capture::tls::program::{BYTES, Program};

/// Long walks go on in these programs, by tail call; with their elements of the map.
const WALK: [(u32, &str); WALK_PROGRAMS as usize] =
    [(WALK_HEADS, "tls_walk"), (WALK_FRAMES, "tls_walk_frames"), (WALK_DATABASE, "tls_walk_database")];
const WALKS: &str = "tls_walks";

/// The programs, and how they are attached.
#[derive(Debug)]
pub struct UserPrograms {
    /// By their names in the object.
    codes: Vec<(&'static str, OwnedFd)>,
    /// The object has one for several that see plain bytes.
    merged: bool,
    skipped: Vec<(&'static str, String)>,
    multi: bool,
}

impl UserPrograms {
    /// Loads what the object has of them. What the kernel refuses is skipped with its reason.
    pub(super) fn load(object: &[u8], ebpf: &Ebpf, btf: &Btf) -> Self {
        let multi = uprobe::is_multi_supported();
        let mut programs = Self { codes: Vec::new(), merged: false, skipped: Vec::new(), multi };
        if let Err(error) = programs.fill(object, ebpf, btf) {
            programs.codes.clear();
            programs.skipped = Program::ALL.map(|program| (program.name(), error.clone())).to_vec();
        }
        programs
    }

    fn fill(&mut self, object: &[u8], ebpf: &Ebpf, btf: &Btf) -> Result<(), String> {
        let mut object = Object::parse(object).map_err(|error| chain(&error))?;
        object.programs.retain(|name, _| {
            name == BYTES
                || WALK.iter().any(|(_, walk)| walk == name)
                || Program::ALL.iter().any(|program| program.name() == name)
        });
        if object.programs.is_empty() {
            return Err("not part of this build".to_owned());
        }
        let types = match aya::features().btf() {
            Some(features) => object.fixup_and_sanitize_btf(features).map_err(|error| chain(&error))?,
            None => None,
        };
        let types = types.and_then(|types| load::types(&types.to_bytes()).ok());
        object.relocate_btf(btf).map_err(|error| chain(&error))?;
        let maps = std::mem::take(&mut object.maps);
        let opened = maps
            .iter()
            .filter_map(|(name, map)| Some((name.as_str(), open(ebpf.map(name)?)?.as_raw_fd(), map)));
        let text: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
        object.relocate_maps(opened, &text).map_err(|error| chain(&error))?;
        object.relocate_calls(&text).map_err(|error| chain(&error))?;
        object.sanitize_functions(aya::features());
        let types = types.as_ref().map(OwnedFd::as_fd);
        self.merged = object.programs.contains_key(BYTES);
        let is_there = |name: &str| object.programs.contains_key(name);
        let wanted =
            Program::ALL.into_iter().filter(|program| !program.is_modern() || is_there(self.code(*program)));
        let mut names: Vec<&'static str> = wanted.map(|program| self.code(program)).collect();
        let mut seen = HashSet::new();
        names.retain(|name| seen.insert(*name));
        for (name, result) in in_parallel(names, |name| (name, self.load_one(&object, types, name))) {
            match result {
                Ok(descriptor) => self.codes.push((name, descriptor)),
                Err(reason) => self.skipped.push((name, reason)),
            }
        }
        for (index, name) in WALK.into_iter().filter(|(_, name)| object.programs.contains_key(*name)) {
            let walk = self.load_one(&object, types, name)?;
            let map = ebpf.map(WALKS).and_then(open).ok_or("no map for the walk")?;
            create::set_program(map, index, walk.as_fd())
                .map_err(|error| format!("failed to connect `{name}`: {error}"))?;
        }
        Ok(())
    }

    fn load_one(
        &self,
        object: &Object,
        types: Option<BorrowedFd<'_>>,
        name: &str,
    ) -> Result<OwnedFd, String> {
        let program = object.programs.get(name).ok_or("not part of this object")?;
        let function = object.functions.get(&program.function_key()).ok_or("a program without code")?;
        let code = load::Code { name, function, license: &object.license, types };
        load::uprobe(code, self.multi).map_err(|refusal| telling_line(&refusal.error, &refusal.log))
    }

    /// What does the work of a program, by its name in the object.
    fn code(&self, program: Program) -> &'static str {
        if self.merged && program.place().is_some() { BYTES } else { program.name() }
    }

    /// The program, if the kernel took it.
    #[must_use]
    pub fn get(&self, program: Program) -> Option<BorrowedFd<'_>> {
        let code = self.code(program);
        self.codes.iter().find(|(name, _)| *name == code).map(|(_, descriptor)| descriptor.as_fd())
    }

    /// Whether one stands for all that have a [`Program::place`], which it must be given.
    #[must_use]
    pub fn is_merged(&self) -> bool {
        self.merged
    }

    /// What the kernel took, by its name in the object.
    pub fn loaded(&self) -> impl Iterator<Item = (&'static str, BorrowedFd<'_>)> {
        self.codes.iter().map(|(name, descriptor)| (*name, descriptor.as_fd()))
    }

    /// Those that are not used, and why.
    #[must_use]
    pub fn skipped(&self) -> &[(&'static str, String)] {
        &self.skipped
    }

    /// One link holds many places (6.6); else each is a performance event of its own.
    #[must_use]
    pub fn is_multi(&self) -> bool {
        self.multi
    }
}

/// Of the kinds of maps that ours are.
fn open(map: &Map) -> Option<BorrowedFd<'_>> {
    let map: &MapData = match map {
        Map::Array(map)
        | Map::HashMap(map)
        | Map::LruHashMap(map)
        | Map::PerCpuArray(map)
        | Map::PerCpuHashMap(map)
        | Map::ProgramArray(map)
        | Map::Queue(map)
        | Map::RingBuf(map)
        | Map::SkStorage(map)
        // Storage of threads, which the library has no name for.
        | Map::Unsupported(map) => map,
        _ => return None,
    };
    Some(map.fd().as_fd())
}
