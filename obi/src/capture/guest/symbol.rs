//! Symbols of a file by name, functions and data alike.
//!
//! In: an ELF file, wanted names. Out: address and size of those that it has. Tables beyond a bound are not read. Never
//! panics. Refuses to know what they are for.

use std::collections::BTreeMap;

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

/// Addresses of these among them, of a file for x86-64.
pub(super) fn addresses<const N: usize>(source: &dyn Source, names: [&[u8]; N]) -> Option<[Option<u64>; N]> {
    let elf = Elf::read(source).ok().filter(|elf| elf.machine == object::elf::EM_X86_64)?;
    let mut found = [None; N];
    linked(&elf, source, |name, symbol| {
        if let Some(index) = names.iter().position(|wanted| *wanted == name) {
            found[index] = Some(symbol.address);
        }
    });
    Some(found)
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

/// Bytes that are read at once where a table is too large to be kept.
const PIECE: usize = 240 * 1024;
/// Of a table that is looked through piece by piece.
const LONGEST: u64 = 256 << 20;
/// Texts that end like a wanted name.
const ENDS: usize = 256;

/// The first symbols of these names in tables of a kind, which may be of any size: they are read piece by piece.
pub(super) fn find(elf: &Elf, source: &dyn Source, kind: u32, wanted: &[&str]) -> Vec<Option<Symbol>> {
    let mut found = vec![None; wanted.len()];
    for table in elf.sections.iter().filter(|section| section.kind == kind) {
        let names = usize::try_from(table.link).ok().and_then(|link| elf.sections.get(link));
        let Some(names) = names else { continue };
        let texts = ends(names, source, wanted);
        pieces(table, source, 0, |_, piece| {
            for entry in piece.chunks_exact(ENTRY_BYTES) {
                let index = entry.first_chunk().and_then(|name| texts.get(&u32::from_le_bytes(*name)));
                if let (Some(index), Some(symbol)) = (index, defined(entry)) {
                    found[*index].get_or_insert(symbol);
                }
            }
        });
    }
    found
}

/// Where in a section of names these are, which may be the ends of longer ones.
fn ends(names: &Section, source: &dyn Source, wanted: &[&str]) -> BTreeMap<u32, usize> {
    let mut texts = BTreeMap::new();
    let longest = wanted.iter().map(|name| name.len()).max().unwrap_or_default();
    pieces(names, source, longest, |start, piece| {
        for (index, name) in wanted.iter().enumerate() {
            for at in memchr::memmem::find_iter(piece, name) {
                let is_whole = piece.get(at + name.len()) == Some(&0);
                if is_whole
                    && texts.len() < ENDS
                    && let Ok(at) = u32::try_from(start + at as u64)
                {
                    texts.insert(at, index);
                }
            }
        }
    });
    texts
}

/// Calls `visit` with pieces of a section and where they begin, each with the last `overlap` bytes of the one before.
fn pieces(section: &Section, source: &dyn Source, overlap: usize, mut visit: impl FnMut(u64, &[u8])) {
    if section.is_packed || section.length > LONGEST {
        return;
    }
    let mut buffer = vec![0; PIECE];
    let mut at = 0;
    while at < section.length {
        let length = (section.length - at).min(PIECE as u64);
        let piece = &mut buffer[..usize::try_from(length).unwrap_or(PIECE)];
        if source.read_at(section.offset.saturating_add(at), piece).is_err() {
            return;
        }
        visit(at, piece);
        if at + length >= section.length {
            return;
        }
        at += length - overlap as u64;
    }
}

/// What a table's entry says of a symbol of the file's own.
fn defined(entry: &[u8]) -> Option<Symbol> {
    let word =
        |at: usize| entry.get(at..).and_then(|rest| rest.first_chunk().map(|word| u64::from_le_bytes(*word)));
    let (section, address, size) = (word(0)? >> 48, word(8)?, word(16)?);
    (section != 0 && address != 0).then_some(Symbol { address, size })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::tls::elf::OpenFile;

    #[test]
    fn our_own_symbols_are_found_piece_by_piece() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let source = OpenFile { length: file.metadata().unwrap().len(), file };
        let elf = Elf::read(&source).unwrap();
        // What a program begins at.
        let name = "_start";
        let found = find(&elf, &source, SHT_SYMTAB, &[name, "OBI_NO_SUCH_SYMBOL"]);
        let mut expected = None;
        all(&elf, &source, |known, symbol| {
            if known == name.as_bytes() {
                expected = Some(symbol);
            }
        });
        assert!(found[0].is_some() && found[1].is_none());
        // Tables of large files are not read whole.
        assert!(expected.is_none() || expected == found[0]);
    }
}
