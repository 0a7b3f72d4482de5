//! A private copy of what names a file's functions.
//!
//! In: a program, and the files of debug information that belong to it. Out: [`Copied`]: a small ELF file in memory
//! that only we can change, of tables of symbols and debug information, unpacked, and nothing else: no links to other
//! files, no relocations. A reader that maps it cannot be hurt by what its owner does to the original, and its size is
//! known. Refuses to know what is in these tables, but for how long a program of lines may be.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

use object::LittleEndian as Little;
use object::elf;
use object::pod;
use rustix::fs::{MemfdFlags, SealFlags};
use thiserror::Error;

use crate::capture::executable::elf::{Elf, Section};
use crate::capture::tls::elf::{ElfError, Source};

/// What functions, lines and inlined calls are in.
const DEBUG: [&str; 10] = [
    ".debug_info",
    ".debug_abbrev",
    ".debug_line",
    ".debug_str",
    ".debug_line_str",
    ".debug_ranges",
    ".debug_rnglists",
    ".debug_addr",
    ".debug_str_offsets",
    ".debug_aranges",
];
const SYMBOLS: [&str; 2] = [".symtab", ".dynsym"];
const SYMBOL: usize = size_of::<elf::Sym64<Little>>();
const CHUNK: usize = 64 * 1024;
/// Rows take some 24 times the bytes of the program that makes them, if it is out to do harm.
const LONGEST_PROGRAM: u64 = 8 * 1024 * 1024;
const ALIGNMENT: u64 = 16;

/// An ELF file of ours.
#[derive(Debug)]
pub struct Copied {
    /// In memory, sealed.
    pub file: File,
    /// Of tables of symbols.
    pub symbol_bytes: u64,
    /// Of debug information; 0 if there is none, or too much of it.
    pub debug_bytes: u64,
    /// Debug information was left out: beyond the limit, packed in a way that we do not know, or malformed.
    pub is_partial: bool,
}

/// Why there is no copy.
#[derive(Debug, Error)]
pub enum CopyError {
    /// Memory, or the file.
    #[error("failed to copy the tables of symbols: {0}")]
    Io(#[from] io::Error),
    /// The file.
    #[error("failed to read the tables of symbols: {0}")]
    Elf(#[from] ElfError),
    /// It has neither symbols nor debug information.
    #[error("no symbols")]
    Nothing,
}

/// A file to take from.
#[expect(missing_debug_implementations, reason = "a source may be anything")]
#[derive(Clone, Copy)]
pub struct Part<'a> {
    /// Its headers.
    pub elf: &'a Elf,
    /// Its bytes.
    pub source: &'a dyn Source,
}

/// Copies tables of symbols and, as far as they are at most `limit` bytes altogether, debug information. Each table
/// comes from the first part that has it.
///
/// # Errors
/// When nothing of it is there, or memory runs out.
pub fn copy(parts: &[Part<'_>], limit: u64) -> Result<Copied, CopyError> {
    let machine = parts.first().ok_or(CopyError::Nothing)?.elf.machine;
    let mut writer = Writer::new(machine)?;
    let mut is_partial = false;
    for name in SYMBOLS {
        for part in parts {
            let Some(section) = part.elf.section(name) else { continue };
            let names = part.elf.sections.get(usize::try_from(section.link).unwrap_or(usize::MAX));
            let Some(names) = names.filter(|names| names.kind == elf::SHT_STRTAB) else { continue };
            let room = limit.saturating_sub(writer.at);
            if section.length.saturating_add(names.length) > room {
                is_partial = true;
                continue;
            }
            if writer.symbols(part, name, section, names)? {
                break;
            }
        }
    }
    let symbol_bytes = writer.at;
    let has_debug =
        |part: &&Part<'_>| [".debug_info", ".debug_line"].iter().all(|name| part.elf.section(name).is_some());
    let mut debug_bytes = 0;
    if let Some(part) = parts.iter().find(has_debug) {
        match writer.debug(part, limit.saturating_sub(symbol_bytes)) {
            Ok(()) => debug_bytes = writer.at - symbol_bytes,
            Err(_) => {
                writer.forget_debug()?;
                writer.at = symbol_bytes;
                is_partial = true;
            }
        }
    }
    if writer.sections.len() == 1 {
        return Err(CopyError::Nothing);
    }
    Ok(Copied { file: writer.finish()?, symbol_bytes, debug_bytes, is_partial })
}

/// What is written so far.
struct Writer {
    file: File,
    machine: u16,
    at: u64,
    names: Vec<u8>,
    sections: Vec<elf::SectionHeader64<Little>>,
}

impl Writer {
    fn new(machine: u16) -> Result<Self, CopyError> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("obi-symbols", flags).map_err(io::Error::from)?);
        let at = size_of::<elf::FileHeader64<Little>>() as u64;
        let mut writer = Self { file, machine, at, names: vec![0], sections: Vec::new() };
        writer.sections.push(header(&Header::default()));
        Ok(writer)
    }

    /// Whether there were any functions.
    fn symbols(
        &mut self,
        part: &Part<'_>,
        name: &str,
        table: &Section,
        names: &Section,
    ) -> Result<bool, CopyError> {
        let mut bytes = table.bytes(part.source, table.length)?;
        let whole = bytes.len() / SYMBOL * SYMBOL;
        let symbols = pod::slice_from_all_bytes_mut::<elf::Sym64<Little>>(&mut bytes[..whole]);
        let symbols = symbols.map_err(|()| ElfError::Malformed("a table of symbols"))?;
        let functions = functions(part.elf, symbols);
        if functions.is_empty() {
            return Ok(false);
        }
        let link = u32::try_from(self.sections.len() + 1).unwrap_or_default();
        let kind = if name == ".symtab" { elf::SHT_SYMTAB } else { elf::SHT_DYNSYM };
        let (start, written) = (self.at.next_multiple_of(ALIGNMENT), pod::bytes_of_slice(&functions));
        self.file.write_all_at(written, start)?;
        let described = Header { kind, link, entry: SYMBOL as u64, ..Header::default() };
        self.described(name, described, start, written.len() as u64);
        let name = if name == ".symtab" { ".strtab" } else { ".dynstr" };
        let described = Header { kind: elf::SHT_STRTAB, ..Header::default() };
        self.section(name, described, names, part.source, names.length)?;
        Ok(true)
    }

    fn debug(&mut self, part: &Part<'_>, limit: u64) -> Result<(), CopyError> {
        let start = self.at;
        for name in DEBUG {
            let Some(section) = part.elf.section(name) else { continue };
            let room = limit.saturating_sub(self.at - start);
            let header = Header { kind: elf::SHT_PROGBITS, ..Header::default() };
            let begin = self.at.next_multiple_of(ALIGNMENT);
            self.section(name, header, section, part.source, room)?;
            if name == ".debug_line" {
                self.check_programs(begin, self.at)?;
            }
        }
        Ok(())
    }

    fn forget_debug(&mut self) -> io::Result<()> {
        let is_debug =
            |section: &elf::SectionHeader64<Little>| section.sh_type.get(Little) == elf::SHT_PROGBITS;
        self.sections.retain(|section| !is_debug(section));
        let end = self.sections.iter().map(|s| s.sh_offset.get(Little) + s.sh_size.get(Little)).max();
        self.file.set_len(end.unwrap_or_default())
    }

    /// Each program of lines begins with its length.
    fn check_programs(&self, start: u64, end: u64) -> Result<(), CopyError> {
        let mut at = start;
        while at + 4 <= end {
            let mut word = [0; 4];
            self.file.read_exact_at(&mut word, at)?;
            let length = u64::from(u32::from_le_bytes(word));
            if length > LONGEST_PROGRAM {
                return Err(ElfError::Malformed("a program of lines beyond all bounds").into());
            }
            at += 4 + length;
        }
        Ok(())
    }

    fn section(
        &mut self,
        name: &str,
        described: Header,
        from: &Section,
        source: &dyn Source,
        limit: u64,
    ) -> Result<(), CopyError> {
        let start = self.at.next_multiple_of(ALIGNMENT);
        let length = if from.is_packed {
            let bytes = from.bytes(source, limit)?;
            self.file.write_all_at(&bytes, start)?;
            bytes.len() as u64
        } else {
            if from.length > limit {
                return Err(ElfError::Malformed("a section beyond all bounds").into());
            }
            self.stream(from, source, start)?;
            from.length
        };
        self.described(name, described, start, length);
        Ok(())
    }

    fn described(&mut self, name: &str, mut described: Header, start: u64, length: u64) {
        (described.offset, described.length) = (start, length);
        described.name = u32::try_from(self.names.len()).unwrap_or_default();
        self.names.extend_from_slice(name.as_bytes());
        self.names.push(0);
        self.sections.push(header(&described));
        self.at = start + length;
    }

    fn stream(&self, from: &Section, source: &dyn Source, start: u64) -> Result<(), CopyError> {
        let mut chunk = vec![0; CHUNK.min(usize::try_from(from.length).unwrap_or(CHUNK))];
        let mut done = 0;
        while done < from.length {
            let length = usize::try_from(from.length - done).unwrap_or(CHUNK).min(CHUNK);
            let offset = from.offset.checked_add(done).ok_or(ElfError::Malformed("a section"))?;
            source.read_at(offset, &mut chunk[..length])?;
            self.file.write_all_at(&chunk[..length], start + done)?;
            done += length as u64;
        }
        Ok(())
    }

    fn finish(mut self) -> Result<File, CopyError> {
        let name = u32::try_from(self.names.len()).unwrap_or_default();
        self.names.extend_from_slice(b".shstrtab\0");
        let (offset, length) = (self.at, self.names.len() as u64);
        self.file.write_all_at(&self.names, offset)?;
        self.sections.push(header(&Header {
            kind: elf::SHT_STRTAB,
            name,
            offset,
            length,
            ..Header::default()
        }));
        let table = (offset + length).next_multiple_of(ALIGNMENT);
        self.file.write_all_at(pod::bytes_of_slice(&self.sections), table)?;
        let sections = u16::try_from(self.sections.len()).unwrap_or_default();
        self.file.write_all_at(pod::bytes_of(&file_header(self.machine, sections, table)), 0)?;
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::WRITE | SealFlags::SEAL;
        rustix::fs::fcntl_add_seals(&self.file, seals).map_err(io::Error::from)?;
        Ok(self.file)
    }
}

/// Those that say where code is, by address, each with a size: one without reaches to the next, or to the end of its
/// section. In assembly some are not marked as functions; they count where no function is.
fn functions(elf: &Elf, symbols: &mut [elf::Sym64<Little>]) -> Vec<elf::Sym64<Little>> {
    let section = |symbol: &elf::Sym64<Little>| {
        let section = elf.sections.get(usize::from(symbol.st_shndx.get(Little)))?;
        let is_inside = symbol.st_value.get(Little).wrapping_sub(section.address) < section.length;
        (section.is_executable && is_inside).then_some(section)
    };
    let is_function =
        |symbol: &elf::Sym64<Little>| matches!(symbol.st_info & 0xf, elf::STT_FUNC | elf::STT_GNU_IFUNC);
    let is_label = |symbol: &elf::Sym64<Little>| symbol.st_info & 0xf == elf::STT_NOTYPE;
    symbols.sort_by_key(|symbol| (symbol.st_value.get(Little), !is_function(symbol)));
    let mut found: Vec<elf::Sym64<Little>> = Vec::new();
    // The first symbol at a higher address: there may be any number at the same.
    let (mut end, mut next) = (0, 0);
    for at in 0..symbols.len() {
        let mut symbol = symbols[at];
        let start = symbol.st_value.get(Little);
        let Some(section) = section(&symbol) else { continue };
        if !(is_function(&symbol) || is_label(&symbol) && start >= end) {
            continue;
        }
        while symbols.get(next).is_some_and(|next| next.st_value.get(Little) <= start) {
            next += 1;
        }
        if symbol.st_size.get(Little) == 0 {
            let limit = section.address.saturating_add(section.length);
            let next = symbols.get(next).map_or(limit, |next| next.st_value.get(Little));
            symbol.st_size.set(Little, next.min(limit) - start);
        }
        symbol.st_info = symbol.st_info & 0xf0 | elf::STT_FUNC;
        end = end.max(start.saturating_add(symbol.st_size.get(Little)));
        found.push(symbol);
    }
    found
}

#[derive(Default)]
struct Header {
    kind: u32,
    name: u32,
    link: u32,
    entry: u64,
    offset: u64,
    length: u64,
}

fn header(of: &Header) -> elf::SectionHeader64<Little> {
    use object::{U32, U64};
    elf::SectionHeader64 {
        sh_name: U32::new(Little, of.name),
        sh_type: U32::new(Little, of.kind),
        sh_flags: U64::new(Little, 0),
        sh_addr: U64::new(Little, 0),
        sh_offset: U64::new(Little, of.offset),
        sh_size: U64::new(Little, of.length),
        sh_link: U32::new(Little, of.link),
        sh_info: U32::new(Little, 0),
        sh_addralign: U64::new(Little, ALIGNMENT),
        sh_entsize: U64::new(Little, of.entry),
    }
}

fn file_header(machine: u16, sections: u16, table: u64) -> elf::FileHeader64<Little> {
    use object::{U16, U32, U64};
    let size = |bytes: usize| U16::new(Little, u16::try_from(bytes).unwrap_or_default());
    elf::FileHeader64 {
        e_ident: elf::Ident {
            magic: elf::ELFMAG,
            class: elf::ELFCLASS64,
            data: elf::ELFDATA2LSB,
            version: elf::EV_CURRENT,
            os_abi: 0,
            abi_version: 0,
            padding: [0; 7],
        },
        e_type: U16::new(Little, elf::ET_DYN),
        e_machine: U16::new(Little, machine),
        e_version: U32::new(Little, elf::EV_CURRENT.into()),
        e_entry: U64::new(Little, 0),
        e_phoff: U64::new(Little, 0),
        e_shoff: U64::new(Little, table),
        e_flags: U32::new(Little, 0),
        e_ehsize: size(size_of::<elf::FileHeader64<Little>>()),
        e_phentsize: size(size_of::<elf::ProgramHeader64<Little>>()),
        e_phnum: size(0),
        e_shentsize: size(size_of::<elf::SectionHeader64<Little>>()),
        e_shnum: U16::new(Little, sections),
        e_shstrndx: U16::new(Little, sections - 1),
    }
}
