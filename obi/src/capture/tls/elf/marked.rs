//! Functions whose names contain something.
//!
//! In: an ELF file, what is looked for. Out: names, addresses and lengths, a bounded number. As all of [`super`], of a
//! file of any size only pieces are read. Refuses to know what the names mean.

use std::collections::BTreeMap;

use memchr::memmem::Finder;
use object::LittleEndian as Little;
use object::{elf, pod};

use super::{CHUNK_BYTES, ElfError, Image, SYMBOL_BYTES, Section, Source, chunks, is_function};

/// A function, as the file says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Located {
    /// Its name.
    pub name: String,
    /// Virtual address in the file's own layout.
    pub address: u64,
    /// Its length in bytes.
    pub size: u64,
}

/// Names that are kept of a file.
const NAMES: usize = 4096;
/// A longer name is none; those of closures in generic functions are long.
const NAME_BYTES: usize = 4096;

impl Image {
    /// Functions whose names contain one of the marks, from the table for debuggers.
    ///
    /// # Errors
    /// When the tables cannot be read or are malformed.
    pub fn functions_with(&self, source: &dyn Source, marks: &[&str]) -> Result<Vec<Located>, ElfError> {
        let mut found = Vec::new();
        for table in self.sections.iter().filter(|section| section.kind == elf::SHT_SYMTAB) {
            let strings = usize::try_from(table.link).ok().and_then(|link| self.sections.get(link));
            let strings = strings.ok_or(ElfError::Malformed("a symbol table without names"))?;
            let names = names_with(source, strings, marks)?;
            if !names.is_empty() {
                locate(source, table, &names, &mut found)?;
            }
        }
        Ok(found)
    }
}

/// The functions of a table with these names, by the places of names among all names.
fn locate(
    source: &dyn Source,
    table: &Section,
    names: &BTreeMap<u64, String>,
    found: &mut Vec<Located>,
) -> Result<(), ElfError> {
    let mut chunk = vec![0; CHUNK_BYTES / SYMBOL_BYTES * SYMBOL_BYTES];
    for (offset, length) in chunks(source, table, chunk.len())? {
        let bytes = &mut chunk[..length / SYMBOL_BYTES * SYMBOL_BYTES];
        source.read_at(offset, bytes)?;
        let symbols = pod::slice_from_all_bytes::<elf::Sym64<Little>>(bytes)
            .map_err(|()| ElfError::Malformed("a symbol table"))?;
        for symbol in symbols.iter().filter(|symbol| is_function(symbol)) {
            let Some(name) = names.get(&u64::from(symbol.st_name.get(Little))) else { continue };
            if found.len() < NAMES {
                let (address, size) = (symbol.st_value.get(Little), symbol.st_size.get(Little));
                found.push(Located { name: name.clone(), address, size });
            }
        }
    }
    Ok(())
}

/// Where names with one of the marks begin, from the start of a table of strings.
fn names_with(
    source: &dyn Source,
    table: &Section,
    marks: &[&str],
) -> Result<BTreeMap<u64, String>, ElfError> {
    let finders: Vec<Finder<'_>> = marks.iter().map(|mark| Finder::new(mark.as_bytes())).collect();
    let mut names = BTreeMap::new();
    let mut buffer = vec![0; CHUNK_BYTES + NAME_BYTES];
    let mut kept = 0;
    for (offset, length) in chunks(source, table, CHUNK_BYTES)? {
        source.read_at(offset, &mut buffer[kept..kept + length])?;
        let bytes = &buffer[..kept + length];
        let start = offset - table.offset - kept as u64;
        for at in finders.iter().flat_map(|finder| finder.find_iter(bytes)) {
            let begin = memchr::memrchr(0, &bytes[..at]).map_or(0, |zero| zero + 1);
            // The rest of a name that is cut comes with the next piece.
            let Some(end) = memchr::memchr(0, &bytes[at..]).map(|zero| at + zero) else { continue };
            let Ok(name) = std::str::from_utf8(&bytes[begin..end]) else { continue };
            if names.len() < NAMES {
                names.entry(start + begin as u64).or_insert_with(|| name.to_owned());
            }
        }
        // The name that the piece ends in, if it is one.
        let last = memchr::memrchr(0, bytes).map_or(0, |zero| zero + 1);
        let keep = bytes.len().saturating_sub(last).min(NAME_BYTES);
        let end = bytes.len();
        buffer.copy_within(end - keep..end, 0);
        kept = keep;
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_across_pieces() {
        // A table of strings alone; the second name lies across the end of a piece.
        let mut bytes = b"\0one_marked\0other\0".to_vec();
        bytes.resize(CHUNK_BYTES - 4, b'x');
        let begin = bytes.len() as u64 + 1;
        bytes.extend(b"\0two_marked_too\0marked\0unmarke\0marked");
        let table =
            Section { kind: elf::SHT_STRTAB, name: 0, offset: 0, length: bytes.len() as u64, link: 0 };
        let names = names_with(&bytes.as_slice(), &table, &["marked"]).unwrap();
        let expected = [(1, "one_marked"), (begin, "two_marked_too"), (begin + 15, "marked")];
        assert_eq!(names, expected.map(|(at, name)| (at, name.to_owned())).into());
    }
}
