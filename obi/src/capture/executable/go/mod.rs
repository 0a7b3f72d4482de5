//! Names in Go programs, stripped ones too.
//!
//! In: an ELF file of Go's linker. Out: functions, files and lines of an address, addresses of functions, by
//! [`pclntab`]; Go's build id. What
//! the table counts from is in the runtime's own description of the program, `runtime.firstmoduledata`, which no
//! section or symbol shows: it is found by its first word, the address of the table, or by the relocation that makes
//! this word in a program that can lie anywhere. Refuses to know functions in C that are linked in.

pub mod pclntab;

use object::LittleEndian as Little;
use object::elf;
use object::pod;

use super::elf::{Elf, Section};
use super::pages::Pages;
use crate::capture::tls::elf::Source;
use pclntab::{GoLine, Memory, Named, Table, Version};

/// Variables and relocations that are searched for the module's description.
const SEARCH_BYTES: u64 = 256 * 1024 * 1024;
/// Words that look like the address of the table; each is looked at closely.
const CANDIDATES: usize = 64;
const CHUNK: usize = 64 * 1024;
const RELOCATION: usize = size_of::<elf::Rela64<Little>>();
/// Sections of relocations that are searched.
const RELOCATED: usize = 8;
/// Words of the description, by their number.
const NAMES: usize = 1;
const FIRST_FUNCTION: usize = 20;
const TEXT: usize = 22;
const WORDS: usize = 44;
const NOTE_BYTES: u64 = 4096;

/// A Go program's tables.
#[derive(Debug)]
pub struct Program<S> {
    table: Table,
    pages: Pages<S>,
    data: FunctionData<S>,
}

#[derive(Debug)]
struct FunctionData<S> {
    pages: Pages<S>,
    /// Where `go:func.*` begins in the file.
    start: Option<u64>,
}

impl<S: Source> Memory for FunctionData<S> {
    fn function_data(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.pages.read_at(self.start?.checked_add(offset)?, buffer).ok()
    }
}

impl<S: Source + Clone> Program<S> {
    /// `None` if it is no Go program, or one whose table is not understood.
    pub fn read(source: &S, elf: &Elf) -> Option<Self> {
        let section = elf.section(".gopclntab").or_else(|| elf.section(".data.rel.ro.gopclntab"))?;
        let pages = Pages::new(source.clone(), section.offset, section.length);
        let table = Table::read(&pages, 0)?;
        let module = Module::find(source, elf, section.address, |module| {
            let table = Table::read(&pages, module.text()?)?;
            (table.first(&pages)? == module.word(FIRST_FUNCTION)?
                && table.names_at(section.address) == module.word(NAMES)?)
            .then_some(table)
        });
        let (table, start) = match module {
            Some((module, table)) => {
                let start = module.function_data(table.version(), elf);
                (table, start)
            }
            // The linker puts Go's code first, unless C is linked in.
            None if table.version() >= Version::Go118 => {
                (Table::read(&pages, elf.section(".text")?.address)?, None)
            }
            None => (table, None),
        };
        let data = FunctionData { pages: Pages::new(source.clone(), 0, u64::MAX), start };
        Some(Self { table, pages, data })
    }

    /// What is at an address, the innermost function first; empty if none of Go's.
    pub fn lines(&self, address: u64) -> Vec<GoLine> {
        self.table.lines(&self.pages, &self.data, address)
    }

    /// The functions whose names end with one of `wanted`.
    #[must_use]
    pub fn named(&self, wanted: &[&str]) -> Vec<Named> {
        self.table.named(&self.pages, wanted)
    }

    /// The layout of its table.
    pub fn version(&self) -> Version {
        self.table.version()
    }
}

/// Go's own build id.
#[must_use]
pub fn build_id(source: &dyn Source, elf: &Elf) -> Option<String> {
    let bytes = elf.section(".note.go.buildid")?.bytes(source, NOTE_BYTES).ok()?;
    let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
    let (name, length) = (usize::try_from(word(0)?).ok()?, usize::try_from(word(4)?).ok()?);
    let start = name.checked_next_multiple_of(4)?.checked_add(12)?;
    let id = bytes.get(start..start.checked_add(length)?)?;
    let is_go = word(8)? == 4 && bytes.get(12..)?.starts_with(b"Go\0");
    let id = str::from_utf8(id).ok().filter(|_| is_go)?;
    Some(id.trim_end_matches('\0').to_owned())
}

/// `runtime.firstmoduledata`.
#[derive(Debug)]
struct Module {
    words: [u64; WORDS],
}

impl Module {
    fn find<T>(
        source: &dyn Source,
        elf: &Elf,
        table: u64,
        fits: impl Fn(&Self) -> Option<T>,
    ) -> Option<(Self, T)> {
        let check = |module: Self| {
            let found = fits(&module)?;
            Some((module, found))
        };
        // Go's own linker calls the section `.rela`, others `.rela.dyn`.
        for section in elf.sections.iter().filter(|section| section.kind == elf::SHT_RELA).take(RELOCATED) {
            if let Some(found) = Self::relocated(source, elf, section, table).and_then(check) {
                return Some(found);
            }
        }
        let (mut left, mut candidates) = (SEARCH_BYTES, CANDIDATES);
        for segment in elf.segments.iter().filter(|segment| segment.is_writable) {
            let length = segment.length.min(left).min(source.length().saturating_sub(segment.offset));
            left -= length;
            let mut at = segment.offset;
            let end = segment.offset + length;
            let mut chunk = vec![0; CHUNK];
            while at < end {
                let bytes = &mut chunk[..usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK)];
                source.read_at(at, bytes).ok()?;
                let words = bytes.as_chunks::<8>().0;
                let places = (0_u64..).step_by(8).zip(words);
                for (offset, _) in places.filter(|(_, word)| u64::from_le_bytes(**word) == table) {
                    candidates = candidates.checked_sub(1)?;
                    if let Some(found) = Self::read(source, at + offset).and_then(check) {
                        return Some(found);
                    }
                }
                at += bytes.len() as u64;
            }
        }
        None
    }

    fn read(source: &dyn Source, offset: u64) -> Option<Self> {
        let mut bytes = [0; WORDS * 8];
        source.read_at(offset, &mut bytes).ok()?;
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_le_bytes(*bytes);
        }
        Some(Self { words })
    }

    /// Of a program that can lie anywhere: its addresses are in the relocations.
    fn relocated(source: &dyn Source, elf: &Elf, section: &Section, table: u64) -> Option<Self> {
        let mut place = None;
        relocations(source, elf.machine, section, |at, address| {
            place = (address == table).then_some(at);
            place.is_none()
        })?;
        let place = place?;
        let mut module = Self::read(source, elf.offset(place)?)?;
        relocations(source, elf.machine, section, |at, address| {
            let word = usize::try_from(at.wrapping_sub(place) / 8).unwrap_or(usize::MAX);
            if let Some(word) = module.words.get_mut(word) {
                *word = address;
            }
            true
        })?;
        Some(module)
    }

    fn word(&self, number: usize) -> Option<u64> {
        self.words.get(number).copied()
    }

    fn text(&self) -> Option<u64> {
        self.word(TEXT).filter(|text| *text != 0)
    }

    /// Where `go:func.*` begins in the file; Go 1.20 has put two words before it.
    fn function_data(&self, version: Version, elf: &Elf) -> Option<u64> {
        let number = match version {
            Version::Go118 => 38,
            Version::Go120 => 40,
            _ => return None,
        };
        elf.offset(self.word(number)?)
    }
}

/// Place and address of each relocation that only adds where the program lies; `false` ends it.
fn relocations(
    source: &dyn Source,
    machine: u16,
    section: &Section,
    mut each: impl FnMut(u64, u64) -> bool,
) -> Option<()> {
    let kind = match machine {
        elf::EM_X86_64 => elf::R_X86_64_RELATIVE,
        elf::EM_AARCH64 => elf::R_AARCH64_RELATIVE,
        _ => return None,
    };
    let end = section.offset.checked_add(section.length.min(SEARCH_BYTES))?.min(source.length());
    let mut chunk = vec![0; CHUNK / RELOCATION * RELOCATION];
    let mut at = section.offset;
    while at < end {
        let length = usize::try_from(end - at).unwrap_or(CHUNK).min(chunk.len());
        let bytes = &mut chunk[..length / RELOCATION * RELOCATION];
        if bytes.is_empty() {
            break;
        }
        source.read_at(at, bytes).ok()?;
        let all = pod::slice_from_all_bytes::<elf::Rela64<Little>>(bytes).ok()?;
        for relocation in all.iter().filter(|relocation| relocation.r_type(Little, false) == kind) {
            if !each(relocation.r_offset.get(Little), relocation.r_addend.get(Little).cast_unsigned()) {
                return Some(());
            }
        }
        at += bytes.len() as u64;
    }
    Some(())
}
