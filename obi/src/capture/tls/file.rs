//! A file: what it is known by, and its probe points.
//!
//! In: an ELF file, what `stat` says of one. Out: where the kernel programs go in it; none where it has no TLS
//! functions by name, and why not where it has some that are not understood.
#![forbid(unsafe_code)]

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt as _;

use obi_ebpf::TLS_COLLECTED_BIT;
use object::elf;

use super::code::CODE_BYTES;
use super::context;
use super::elf::{ElfError, Found, Image, Source};
use super::go;
use super::goroutine;
use super::nameless::{self, Nameless};
use super::nginx;
use super::node;
use super::point::{Machine, NAMES, ProbePoint, Returns, Symbol, Text, plan};
use super::rustls;
use crate::capture::guest::{self, Followed};

/// A file as `stat` distinguishes it from others, also after its inode was used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct FileKey {
    device: u64,
    pub(super) inode: u64,
    pub(super) length: u64,
    changed: (i64, i64),
}

impl FileKey {
    /// Of an open file.
    pub(super) fn of(metadata: &Metadata) -> Self {
        Self {
            device: metadata.dev(),
            inode: metadata.ino(),
            length: metadata.len(),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }
}

/// What was found out about a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Plan {
    /// The probe points.
    pub points: Vec<ProbePoint>,
    /// Why TLS that is in it is not probed.
    pub not_probed: Option<String>,
}

/// The probe points of a file.
///
/// # Errors
/// When it is no program, cannot be read, or is malformed.
pub fn probe_points(source: &dyn Source, returns: Returns) -> Result<Plan, ElfError> {
    let image = &Image::read(source)?;
    let mut found = Plan { points: by_symbols(source, image, returns)?, not_probed: None };
    let has_names = found.points.iter().any(|point| point.program.moves_bytes());
    let rust = rustls::plan(source, image, returns).map(|points| points.map_err(|why| why.to_string()));
    if !has_names {
        add_nameless(&mut found, &File { image, source }, returns, rust.is_none());
    }
    add(&mut found, rust);
    add(&mut found, go::plan(source, image).map(|points| points.map_err(|why| why.to_string())));
    if found.not_probed.is_none() {
        found.points.extend(goroutine::plan(source, image));
        let Followed { python, uvloop, greenlet, node, nginx } = guest::followed(source);
        if python || uvloop || greenlet {
            found.points.extend(context::plan(source, image, returns));
        }
        if node {
            found.points.extend(node::plan(source, image));
        }
        if nginx {
            found.points.extend(nginx::plan(source, image));
        }
    }
    found.points.sort_unstable();
    Ok(found)
}

/// What has no names, or lost them.
fn add_nameless(found: &mut Plan, look: &File<'_>, returns: Returns, may_be_rust: bool) {
    let File { image, source } = *look;
    let Nameless { symbols, has_rustls } = nameless::look(source, image);
    let points = symbols.map(|symbols| {
        let mut points = planned(source, image, &symbols.map_err(|why| why.to_string())?, returns);
        for point in points.iter_mut().filter(|point| point.program.enters()) {
            // The function that frees an object is not found.
            point.cookie |= 1 << TLS_COLLECTED_BIT;
        }
        Ok(points)
    });
    if points.is_none() && has_rustls && may_be_rust {
        found.not_probed = Some(rustls::Unproven::Stripped.to_string());
    }
    add(found, points);
}

/// What was found of one more library.
fn add(found: &mut Plan, more: Option<Result<Vec<ProbePoint>, String>>) {
    match more {
        Some(Ok(points)) => found.points.extend(points),
        Some(Err(why)) => found.not_probed = Some(why),
        None => {}
    }
}

/// Of the libraries whose functions are found by symbol.
fn by_symbols(source: &dyn Source, image: &Image, returns: Returns) -> Result<Vec<ProbePoint>, ElfError> {
    let symbols: Vec<Symbol> = image
        .functions(source, &NAMES)?
        .into_iter()
        .filter_map(|Found { name, address, size }| {
            let size = usize::try_from(size).unwrap_or(usize::MAX);
            // Hand-written assembly states no size; what follows it ends the look soon.
            let most = if size == 0 { CODE_BYTES } else { size.min(CODE_BYTES) };
            Some(Symbol { name, address, code: image.code(source, address, most)? })
        })
        .collect();
    Ok(planned(source, image, &symbols, returns))
}

fn planned(source: &dyn Source, image: &Image, symbols: &[Symbol], returns: Returns) -> Vec<ProbePoint> {
    let machine = match image.machine() {
        elf::EM_X86_64 => Machine::X86,
        elf::EM_AARCH64 => Machine::Arm64,
        _ => Machine::Other,
    };
    plan(symbols, machine, returns, &File { image, source })
}

struct File<'a> {
    image: &'a Image,
    source: &'a dyn Source,
}

impl Text for File<'_> {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        self.image.code(self.source, address, CODE_BYTES)
    }

    fn offset(&self, address: u64) -> Option<u64> {
        self.image.offset(address)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::fs;

    use proptest::prelude::*;

    use super::super::elf::OpenFile;
    use super::super::point::Cost;
    use super::super::program::Program;
    use super::*;

    /// The libraries of this machine, read as files.
    const LIBRARIES: [&str; 3] = [
        "/usr/lib/x86_64-linux-gnu/libssl.so.3",
        "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
        "/usr/lib/x86_64-linux-gnu/libgnutls.so.30",
    ];

    #[test]
    fn the_libraries_of_this_machine_have_cheap_points_for_every_program() {
        let mut costs = BTreeMap::new();
        for path in LIBRARIES {
            let file = fs::File::open(path).unwrap();
            let length = file.metadata().unwrap().len();
            let bytes = fs::read(path).unwrap();
            let plan = probe_points(&OpenFile { file, length }, Returns::Allowed).unwrap();
            assert_eq!(plan, probe_points(&bytes.as_slice(), Returns::Allowed).unwrap(), "{path}");
            costs.extend(plan.points.iter().map(|point| ((path, point.program), point.cost)));
        }
        assert!(costs.len() >= 12 && costs.values().all(|cost| *cost == Cost::Emulated), "{costs:?}");
    }

    /// This program has rustls, by whose means the agent exports.
    #[test]
    fn rustls_is_found_by_its_symbols() {
        let named = fs::read("/proc/self/exe").unwrap();
        let Plan { points, not_probed } = probe_points(&named.as_slice(), Returns::Allowed).unwrap();
        let of = |program| points.iter().filter(|point| point.program == program).count();
        let [made, begun, received] =
            [Program::RustlsEncrypted, Program::RustlsEncrypt, Program::RustlsReceive].map(of);
        // ring has one for TLS 1.3 and two for 1.2.
        assert_eq!((made, begun, received, not_probed), (3, 3, 1, None), "{points:?}");
        let forbidden = probe_points(&named.as_slice(), Returns::Forbidden).unwrap();
        let why = forbidden.not_probed.unwrap();
        assert!(why.contains("where functions return"), "{why}");
        let folder = tempfile::tempdir().unwrap();
        let stripped = folder.path().join("stripped");
        let mut strip = std::process::Command::new("strip");
        // Not by its link in /proc, which in that program is another one.
        strip.arg("-o").arg(&stripped).arg(std::env::current_exe().unwrap());
        assert!(strip.status().unwrap().success());
        let stripped = fs::read(stripped).unwrap();
        let Plan { points, not_probed } = probe_points(&stripped.as_slice(), Returns::Allowed).unwrap();
        let why = not_probed.unwrap();
        assert!(points.is_empty() && why.contains("without the program's symbols"), "{points:?} {why}");
    }

    #[test]
    fn other_files_have_none() {
        fn check(bytes: &[u8], expected: &str) {
            match probe_points(&bytes, Returns::Allowed) {
                Ok(plan) => assert_eq!((plan, expected), (Plan::default(), "")),
                Err(error) => {
                    assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}")
                }
            }
        }
        check(b"", "not a 64-bit");
        check(b"#!/bin/sh\n", "not a 64-bit");
        check(&[0x7f; 64], "not a 64-bit");
        check(&fs::read("/bin/true").unwrap(), "");
        let library = fs::read(LIBRARIES[0]).unwrap();
        check(&library[..1000], "beyond the end");
        check(&library[..library.len() - 1], "beyond the end");
        // More section headers than any program has.
        let mut many = library.clone();
        many[0x3c..0x3e].copy_from_slice(&u16::MAX.to_le_bytes());
        check(&many, "too many headers");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn a_damaged_file_is_taken(damage in prop::collection::vec((0_usize..2, 0_usize..0x1000, any::<u8>()), 1..20)) {
            // Headers are at the beginning and, those of sections, at the end.
            let mut bytes = fs::read(LIBRARIES[0]).unwrap();
            let end = bytes.len() - 0x1000;
            for (half, at, value) in damage {
                bytes[half * end + at] = value;
            }
            for point in probe_points(&bytes.as_slice(), Returns::Allowed).unwrap_or_default().points {
                prop_assert!(point.offset < bytes.len() as u64);
            }
        }
    }
}
