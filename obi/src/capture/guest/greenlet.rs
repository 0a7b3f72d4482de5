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

    #[test]
    fn other_files_make_none() {
        let check = |path: &str| assert_eq!(makes(&fs::read(path).unwrap().as_slice()), None, "{path}");
        check("/bin/sh");
        check("/usr/bin/python3.11");
        check("/proc/self/exe");
        assert_eq!(makes(&&b"#!/bin/sh"[..]), None);
    }
}
