//! Symbols of a file by name, functions and data alike.
//!
//! In: an ELF file, wanted names. Out: address and size of those that it has. Tables beyond a bound are not read. Never
//! panics. Refuses to know what they are for.

use crate::capture::executable::elf::{Elf, Section};
use crate::capture::tls::elf::Source;
use object::elf::{SHT_DYNSYM, SHT_SYMTAB};

/// Bytes of a table that are read: Python's own have some hundred KiB, those with all of its functions a few MiB.
const TABLE_BYTES: u64 = 16 * 1024 * 1024;
const ENTRY_BYTES: usize = 24;

/// A symbol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Symbol {
    /// In the file's own layout.
    pub(super) address: u64,
    /// Bytes.
    pub(super) size: u64,
}

/// Calls `visit` with each symbol that is defined in the tables for linking (`SHT_DYNSYM`).
pub(super) fn linked(elf: &Elf, source: &dyn Source, visit: impl FnMut(&[u8], Symbol)) {
    each(elf, source, SHT_DYNSYM, visit);
}

/// Likewise those for debuggers (`SHT_SYMTAB`).
pub(super) fn all(elf: &Elf, source: &dyn Source, visit: impl FnMut(&[u8], Symbol)) {
    each(elf, source, SHT_SYMTAB, visit);
}

fn each(elf: &Elf, source: &dyn Source, kind: u32, mut visit: impl FnMut(&[u8], Symbol)) {
    let tables = elf.sections.iter().filter(|section| section.kind == kind);
    for table in tables {
        let names = usize::try_from(table.link).ok().and_then(|link| elf.sections.get(link));
        let bytes = |section: &Section| section.bytes(source, TABLE_BYTES).ok();
        let (Some(names), Some(symbols)) = (names.and_then(bytes), bytes(table)) else { continue };
        for entry in symbols.chunks_exact(ENTRY_BYTES) {
            let word = |at: usize| {
                let mut bytes = [0; 8];
                bytes.copy_from_slice(&entry[at..at + 8]);
                u64::from_le_bytes(bytes)
            };
            // Name, kind, visibility and section share the first word.
            let (name, section) = (word(0) as u32 as usize, word(0) >> 48);
            let (address, size) = (word(8), word(16));
            let Some(name) = names.get(name..) else { continue };
            let end = name.iter().take(256).position(|byte| *byte == 0);
            if let Some(end) = end.filter(|_| section != 0 && address != 0) {
                visit(&name[..end], Symbol { address, size });
            }
        }
    }
}
