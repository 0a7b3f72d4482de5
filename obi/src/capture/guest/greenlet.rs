//! greenlet, coroutines for CPython, by which gevent and eventlet run requests: the function that makes one.
//!
//! In: greenlet's extension module. Out: the address of that function, which has no name: the type `greenlet` refers to
//! it, and its own name leads to the type. Refuses to know what is done with it. Pure.

use std::collections::HashMap;

use memchr::memmem;

use super::relocation::{Pointer, pointers};
use crate::capture::executable::elf::Elf;
use crate::capture::guest::symbol;
use crate::capture::tls::elf::Source;

pub(super) const EXPORTED: &[u8] = b"PyInit__greenlet";
/// `tp_name` of the type, whole.
const NAME: &[u8] = b"\0greenlet.greenlet\0";
/// Of a type object: `tp_name`, `tp_new`.
const TYPE_NAME: u64 = 24;
const TYPE_NEW: u64 = 312;
/// Of constants; those of greenlet have some 10 KiB.
const TEXT_BYTES: u64 = 4 << 20;

/// As [`crate::capture::guest::greenlet`].
pub(in crate::capture::guest) fn makes(source: &dyn Source) -> Option<u64> {
    let [module] = symbol::addresses(source, [EXPORTED])?;
    module?;
    let elf = Elf::read(source).ok()?;
    let pointers: Vec<Pointer> = pointers(&elf, source);
    let written: HashMap<u64, u64> = pointers.iter().map(|pointer| (pointer.at, pointer.to)).collect();
    let names = names(&elf, source);
    let mut made = pointers.iter().filter(|pointer| names.contains(&pointer.to)).filter_map(|pointer| {
        let of_type = pointer.at.checked_sub(TYPE_NAME)?;
        written.get(&of_type.checked_add(TYPE_NEW)?).copied()
    });
    let only = made.next()?;
    made.all(|other| other == only).then_some(only)
}

/// Where the type's name stands.
fn names(elf: &Elf, source: &dyn Source) -> Vec<u64> {
    let constants = elf.sections.iter().filter(|section| section.name.starts_with(".rodata"));
    let mut found = Vec::new();
    for section in constants {
        let Ok(bytes) = section.bytes(source, TEXT_BYTES) else { continue };
        let at = memmem::find_iter(&bytes, NAME).map(|at| section.address.wrapping_add(at as u64 + 1));
        found.extend(at);
    }
    found
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Types as CPython has them: 24 bytes to the name, 312 to the function that makes one.
    const MODULE: &str = r#"
        static void *make_greenlet(void) { return 0; }
        static void *make_other(void) { return 0; }
        struct type { long head[3]; const char *name; long between[35]; void *(*make)(void); };
        struct type other = { .name = "greenlet.greenlet.other", .make = make_other };
        struct type greenlet = { .name = "greenlet.greenlet", .make = make_greenlet };
        #ifdef TWO
        struct type second = { .name = "greenlet.greenlet", .make = make_other };
        #endif
        void *INIT(void) { return &greenlet; }
        void *makes_greenlets(void) { return make_greenlet; }
    "#;

    /// A library of that, and where the function is.
    fn built(options: &[&str]) -> (Vec<u8>, Option<u64>) {
        let folder = tempfile::tempdir().unwrap();
        let [source, library] = ["module.c", "module.so"].map(|name| folder.path().join(name));
        fs::write(&source, MODULE).unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-O0", "-o"]).arg(&library).args(options).arg(&source);
        assert!(compiler.status().unwrap().success());
        let bytes = fs::read(library).unwrap();
        let elf = Elf::read(&bytes.as_slice()).unwrap();
        let mut at = None;
        symbol::all(&elf, &bytes.as_slice(), |name, symbol| {
            if name == b"make_greenlet" {
                at = Some(symbol.address);
            }
        });
        (bytes, at)
    }

    #[test]
    fn what_makes_greenlets_is_found_by_the_types_name() {
        let check = |options: &[&str], is_found: bool| {
            let (bytes, at) = built(options);
            assert!(at.is_some());
            assert_eq!(makes(&bytes.as_slice()), at.filter(|_| is_found), "{options:?}");
            for length in [100, bytes.len() / 2, bytes.len() - 1] {
                let _ = makes(&&bytes[..length]);
            }
        };
        check(&["-DINIT=PyInit__greenlet"], true);
        check(&["-DINIT=PyInit__other"], false);
        // Which one is meant is not known.
        check(&["-DINIT=PyInit__greenlet", "-DTWO"], false);
    }

    #[test]
    fn other_files_make_none() {
        let check = |path: &str| assert_eq!(makes(&fs::read(path).unwrap().as_slice()), None, "{path}");
        check("/bin/sh");
        check("/usr/bin/python3.11");
        check("/proc/self/exe");
        assert_eq!(makes(&&b"#!/bin/sh"[..]), None);
    }
}
