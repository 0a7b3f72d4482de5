//! An executable or library file, as far as probing needs it: functions by name, file offsets, build id.
//!
//! In: an ELF file, which anybody may have made. Out: [`Image`]: where its wanted functions are and what machine it is
//! for. Reads a few pages of headers and streams symbol tables, so a file of any size costs bounded memory; everything
//! said about itself is checked against the length it has. Never panics. Refuses to know what the functions are for.
#![forbid(unsafe_code)]

mod marked;

use std::io;
use std::sync::Arc;

pub use self::marked::Located;
use object::LittleEndian as Little;
use object::elf;
use object::pod;
use thiserror::Error;

/// What a file is read through.
pub trait Source {
    /// Length in bytes.
    fn length(&self) -> u64;
    /// Fills `buffer` with the bytes at `offset`.
    ///
    /// # Errors
    /// When they are not all there.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()>;
}

/// Why a file says nothing.
#[derive(Debug, Error)]
pub enum ElfError {
    /// It cannot be read.
    #[error("failed to read it: {0}")]
    Unreadable(#[from] io::Error),
    /// It is another kind of file.
    #[error("not a 64-bit little-endian ELF program")]
    Foreign,
    /// Its headers contradict themselves or the file.
    #[error("malformed: {0}")]
    Malformed(&'static str),
}

/// A function that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Which of the wanted names.
    pub name: &'static str,
    /// Virtual address in the file's own layout.
    pub address: u64,
    /// Its length in bytes, as the file says.
    pub size: u64,
}

/// The headers of a file.
#[derive(Debug)]
pub struct Image {
    machine: u16,
    segments: Vec<Segment>,
    sections: Vec<Section>,
}

/// Bytes that are mapped to be executed.
#[derive(Debug, Clone, Copy)]
struct Segment {
    address: u64,
    offset: u64,
    length: u64,
}

#[derive(Debug, Clone, Copy)]
struct Section {
    kind: u32,
    name: u32,
    offset: u64,
    length: u64,
    link: u32,
}

/// The header of a program or library.
///
/// # Errors
/// When it cannot be read, or is of another kind of file.
pub fn file_header(source: &dyn Source) -> Result<elf::FileHeader64<Little>, ElfError> {
    let mut bytes = [0; size_of::<elf::FileHeader64<Little>>()];
    if source.length() < bytes.len() as u64 {
        return Err(ElfError::Foreign);
    }
    source.read_at(0, &mut bytes)?;
    let (header, _) = pod::from_bytes::<elf::FileHeader64<Little>>(&bytes).map_err(|()| ElfError::Foreign)?;
    let ident = &header.e_ident;
    let is_ours = ident.magic == elf::ELFMAG
        && ident.class == elf::ELFCLASS64
        && ident.data == elf::ELFDATA2LSB
        && matches!(header.e_type.get(Little), elf::ET_EXEC | elf::ET_DYN);
    if is_ours { Ok(*header) } else { Err(ElfError::Foreign) }
}

/// Headers that a program needs; more is a hostile file.
const SEGMENTS: usize = 256;
const SECTIONS: usize = 4096;
/// The largest tables of symbols and of their names that are read: those of a browser with debug symbols.
const TABLE_BYTES: u64 = 256 * 1024 * 1024;
const CHUNK_BYTES: usize = 64 * 1024;
const SYMBOL_BYTES: usize = size_of::<elf::Sym64<Little>>();
/// A name may begin in several places of the names: at the end of longer ones.
const NAME_PLACES: usize = 64;

impl Image {
    /// Reads the headers.
    ///
    /// # Errors
    /// When it is no program for this kind of machine, or malformed.
    pub fn read(source: &dyn Source) -> Result<Self, ElfError> {
        let header = file_header(source)?;
        let segments = Table {
            offset: header.e_phoff.get(Little),
            count: header.e_phnum.get(Little).into(),
            limit: SEGMENTS,
        };
        let sections = Table {
            offset: header.e_shoff.get(Little),
            count: header.e_shnum.get(Little).into(),
            limit: SECTIONS,
        };
        Ok(Self {
            machine: header.e_machine.get(Little),
            segments: segments
                .read::<elf::ProgramHeader64<Little>>(source)?
                .iter()
                .filter_map(executable)
                .collect(),
            sections: sections.read::<elf::SectionHeader64<Little>>(source)?.iter().map(section).collect(),
        })
    }

    /// `e_machine`.
    #[must_use]
    pub fn machine(&self) -> u16 {
        self.machine
    }

    /// Offset in the file of a virtual address that is mapped to be executed.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        let segment =
            self.segments.iter().find(|segment| address.wrapping_sub(segment.address) < segment.length)?;
        (address - segment.address).checked_add(segment.offset)
    }

    /// The machine code at an address, `most` bytes of it at the most; cut at the end of its segment.
    pub fn code(&self, source: &dyn Source, address: u64, most: usize) -> Option<Vec<u8>> {
        let segment =
            self.segments.iter().find(|segment| address.wrapping_sub(segment.address) < segment.length)?;
        let offset = self.offset(address)?;
        let left = (segment.length - (address - segment.address)).min(source.length().checked_sub(offset)?);
        let mut code = vec![0; usize::try_from(left).unwrap_or(usize::MAX).min(most)];
        source.read_at(offset, &mut code).ok()?;
        Some(code)
    }

    /// Functions with these names: from the table for linking, and where that has none, from the one for debuggers.
    ///
    /// # Errors
    /// When the tables cannot be read or are malformed.
    pub fn functions(&self, source: &dyn Source, names: &[&'static str]) -> Result<Vec<Found>, ElfError> {
        for kind in [elf::SHT_DYNSYM, elf::SHT_SYMTAB] {
            let mut found = Vec::new();
            for table in self.sections.iter().filter(|section| section.kind == kind) {
                self.search(source, table, names, &mut found)?;
            }
            if !found.is_empty() {
                return Ok(found);
            }
        }
        Ok(Vec::new())
    }

    /// Whether there is a section of this name.
    #[must_use]
    pub fn has_section(&self, source: &dyn Source, wanted: &str) -> bool {
        // The names are in a table of strings; which one does not matter to a program that has the section.
        let mut tables = self.sections.iter().filter(|section| section.kind == elf::SHT_STRTAB);
        tables.any(|table| {
            let places = places(source, table, &[wanted]).unwrap_or_default();
            places
                .iter()
                .any(|(place, _)| self.sections.iter().any(|section| u64::from(section.name) == *place))
        })
    }

    fn search(
        &self,
        source: &dyn Source,
        table: &Section,
        names: &[&'static str],
        found: &mut Vec<Found>,
    ) -> Result<(), ElfError> {
        let strings = usize::try_from(table.link).ok().and_then(|link| self.sections.get(link));
        let strings = strings.ok_or(ElfError::Malformed("a symbol table without names"))?;
        let places = places(source, strings, names)?;
        if places.is_empty() {
            return Ok(());
        }
        let mut chunk = vec![0; CHUNK_BYTES / SYMBOL_BYTES * SYMBOL_BYTES];
        for (offset, length) in chunks(source, table, chunk.len())? {
            let bytes = &mut chunk[..length / SYMBOL_BYTES * SYMBOL_BYTES];
            source.read_at(offset, bytes)?;
            let symbols = pod::slice_from_all_bytes::<elf::Sym64<Little>>(bytes)
                .map_err(|()| ElfError::Malformed("a symbol table"))?;
            for symbol in symbols.iter().filter(|symbol| is_function(symbol)) {
                let place = u64::from(symbol.st_name.get(Little));
                let Some((_, name)) = places.iter().find(|(at, _)| *at == place) else { continue };
                if found.iter().all(|known| known.name != names[*name]) {
                    let (address, size) = (symbol.st_value.get(Little), symbol.st_size.get(Little));
                    found.push(Found { name: names[*name], address, size });
                }
            }
        }
        Ok(())
    }
}

/// Where, from the start of a table of strings, these begin; a string may be the end of a longer one.
fn places(source: &dyn Source, table: &Section, wanted: &[&str]) -> Result<Vec<(u64, usize)>, ElfError> {
    let mut places = Vec::new();
    let longest = wanted.iter().map(|name| name.len() + 1).max().unwrap_or(1);
    let mut endings = vec![false; 1 << 16];
    for ending in wanted.iter().filter_map(|name| ending(name.as_bytes())) {
        endings[ending] = true;
    }
    let mut buffer = vec![0; CHUNK_BYTES + longest];
    let mut kept = 0;
    for (offset, length) in chunks(source, table, CHUNK_BYTES)? {
        source.read_at(offset, &mut buffer[kept..kept + length])?;
        let bytes = &buffer[..kept + length];
        let start = offset - table.offset - kept as u64;
        for end in memchr::memchr_iter(0, &bytes[kept..]).map(|end| kept + end) {
            // Most names are others, and end in another way.
            if !ending(&bytes[..end]).is_some_and(|ending| endings[ending]) {
                continue;
            }
            let ending =
                wanted.iter().enumerate().filter(|(_, name)| bytes[..end].ends_with(name.as_bytes()));
            for (index, name) in ending {
                if places.len() < NAME_PLACES {
                    places.push((start + (end - name.len()) as u64, index));
                }
            }
        }
        let end = kept + length;
        let keep = end.min(longest);
        buffer.copy_within(end - keep..end, 0);
        kept = keep;
    }
    Ok(places)
}

/// The last two bytes of a name, as a number.
fn ending(name: &[u8]) -> Option<usize> {
    name.last_chunk().map(|last| usize::from(u16::from_le_bytes(*last)))
}

/// A section in pieces: offset and length of each.
fn chunks(
    source: &dyn Source,
    section: &Section,
    size: usize,
) -> Result<impl Iterator<Item = (u64, usize)>, ElfError> {
    let end = section.offset.checked_add(section.length).filter(|end| *end <= source.length());
    let end = end.ok_or(ElfError::Malformed("a section beyond the end"))?;
    if section.length > TABLE_BYTES {
        return Err(ElfError::Malformed("a table beyond all bounds"));
    }
    let starts = (section.offset..end).step_by(size);
    Ok(starts.map(move |start| (start, usize::try_from(end - start).unwrap_or(size).min(size))))
}

fn is_function(symbol: &elf::Sym64<Little>) -> bool {
    let kind = symbol.st_info & 0xf;
    kind == elf::STT_FUNC && symbol.st_shndx.get(Little) != elf::SHN_UNDEF && symbol.st_value.get(Little) != 0
}

fn executable(header: &elf::ProgramHeader64<Little>) -> Option<Segment> {
    let loaded = header.p_type.get(Little) == elf::PT_LOAD && header.p_flags.get(Little) & elf::PF_X != 0;
    loaded.then(|| Segment {
        address: header.p_vaddr.get(Little),
        offset: header.p_offset.get(Little),
        length: header.p_filesz.get(Little),
    })
}

fn section(header: &elf::SectionHeader64<Little>) -> Section {
    Section {
        kind: header.sh_type.get(Little),
        name: header.sh_name.get(Little),
        offset: header.sh_offset.get(Little),
        length: header.sh_size.get(Little),
        link: header.sh_link.get(Little),
    }
}

/// A table of headers.
struct Table {
    offset: u64,
    count: usize,
    limit: usize,
}

impl Table {
    fn read<T: pod::Pod + Clone>(&self, source: &dyn Source) -> Result<Vec<T>, ElfError> {
        if self.count > self.limit {
            return Err(ElfError::Malformed("too many headers"));
        }
        let length = self.count * size_of::<T>();
        let end = self.offset.checked_add(length as u64);
        if end.is_none_or(|end| end > source.length()) {
            return Err(ElfError::Malformed("headers beyond the end"));
        }
        let mut bytes = vec![0; length];
        source.read_at(self.offset, &mut bytes)?;
        let headers = pod::slice_from_all_bytes::<T>(&bytes);
        headers.map(<[T]>::to_vec).map_err(|()| ElfError::Malformed("headers"))
    }
}

impl<S: Source + ?Sized> Source for &S {
    fn length(&self) -> u64 {
        (**self).length()
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        (**self).read_at(offset, buffer)
    }
}

impl Source for [u8] {
    fn length(&self) -> u64 {
        self.len() as u64
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        let bytes = self.get(start..).and_then(|rest| rest.get(..buffer.len()));
        buffer.copy_from_slice(bytes.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// A file that others read, too.
#[derive(Debug, Clone)]
pub struct SharedFile {
    /// The file.
    pub file: Arc<std::fs::File>,
    /// Its length in bytes.
    pub length: u64,
}

impl Source for SharedFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&*self.file, buffer, offset)
    }
}

/// An open file and its length when it was opened.
#[derive(Debug)]
pub struct OpenFile {
    /// The file.
    pub file: std::fs::File,
    /// Its length in bytes.
    pub length: u64,
}

impl Source for OpenFile {
    fn length(&self) -> u64 {
        self.length
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> io::Result<()> {
        std::os::unix::fs::FileExt::read_exact_at(&self.file, buffer, offset)
    }
}
