//! Of an ELF file what unwinding needs: its machine, sections by name, what is mapped.
//!
//! In: a file, which anybody may have made. Out: [`Headers`]. Everything that it says about itself is checked against
//! the length it has; what is read at once has a limit. Never panics. Refuses to know what is in a section.
#![forbid(unsafe_code)]

use std::io;

use object::LittleEndian as Little;
use object::elf;
use object::pod::{self, Pod};
use thiserror::Error;

use crate::capture::tls::elf::{ElfError, Source, file_header};

/// Why a file has no tables.
#[derive(Debug, Error)]
pub enum Reason {
    /// It cannot be read.
    #[error("failed to read it: {0}")]
    Unreadable(#[from] io::Error),
    /// It is another kind of file, or for another machine.
    #[error("not a 64-bit little-endian ELF program for this machine")]
    Foreign,
    /// Its headers contradict themselves or the file.
    #[error("malformed: {0}")]
    Malformed(&'static str),
    /// There is more than anybody needs.
    #[error("too large: {0} of {1} bytes")]
    TooLarge(&'static str, u64),
    /// It says nothing about unwinding.
    #[error("no unwind information")]
    Silent,
}

impl From<ElfError> for Reason {
    fn from(error: ElfError) -> Self {
        match error {
            ElfError::Unreadable(error) => Self::Unreadable(error),
            ElfError::Foreign => Self::Foreign,
            ElfError::Malformed(what) => Self::Malformed(what),
        }
    }
}

/// Machines whose calling conventions are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Machine {
    /// x86-64
    X86,
    /// arm64
    Arm,
}

impl Machine {
    /// The one that this agent runs on.
    pub const OWN: Self = if cfg!(target_arch = "aarch64") { Self::Arm } else { Self::X86 };
}

/// Bytes of the file that are mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// In the file's own layout.
    pub address: u64,
    /// In the file.
    pub offset: u64,
    /// In the file.
    pub length: u64,
}

impl Part {
    /// From an address of it to its end.
    fn from(self, address: u64) -> Option<Self> {
        let skipped = address.checked_sub(self.address).filter(|skipped| *skipped < self.length)?;
        Some(Self { address, offset: self.offset.checked_add(skipped)?, length: self.length - skipped })
    }
}

/// What a file says of itself.
#[derive(Debug)]
pub struct Headers {
    /// What it is for.
    pub machine: Machine,
    /// `PT_LOAD`
    loaded: Vec<Part>,
    /// `PT_GNU_EH_FRAME`
    frame_header: Option<Part>,
    sections: Vec<(Part, Vec<u8>)>,
}

/// Headers that a program needs; more is a hostile file.
const SEGMENTS: u16 = 256;
const SECTIONS: u16 = 4096;
/// The names of so many sections.
const NAME_BYTES: u64 = 1 << 20;

impl Headers {
    /// Reads them.
    ///
    /// # Errors
    /// When it is no program for a known machine, or malformed.
    pub fn read(source: &dyn Source) -> Result<Self, Reason> {
        let header = file_header(source)?;
        let machine = match header.e_machine.get(Little) {
            elf::EM_X86_64 => Machine::X86,
            elf::EM_AARCH64 => Machine::Arm,
            _ => return Err(Reason::Foreign),
        };
        let (n_segments, n_sections) = (header.e_phnum.get(Little), header.e_shnum.get(Little));
        if n_segments > SEGMENTS || n_sections > SECTIONS {
            return Err(Reason::Malformed("too many headers"));
        }
        let segments =
            read_all::<elf::ProgramHeader64<Little>>(source, header.e_phoff.get(Little), n_segments)?;
        let part = |segment: &elf::ProgramHeader64<Little>| Part {
            address: segment.p_vaddr.get(Little),
            offset: segment.p_offset.get(Little),
            length: segment.p_filesz.get(Little),
        };
        let of_kind = |kind| segments.iter().filter(move |segment| segment.p_type.get(Little) == kind);
        let loaded = of_kind(elf::PT_LOAD).map(part).collect();
        let frame_header = of_kind(elf::PT_GNU_EH_FRAME).map(part).next();
        // A file may have been stripped of them: its segments say enough.
        let sections = sections(source, &header, n_sections).unwrap_or_default();
        Ok(Self { machine, loaded, frame_header, sections })
    }

    /// A section that is in the file as it is.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<Part> {
        self.sections.iter().find(|(_, own)| own == name.as_bytes()).map(|(part, _)| *part)
    }

    /// Where the header of the unwind information is mapped.
    #[must_use]
    pub fn frame_header(&self) -> Option<Part> {
        self.frame_header
    }

    /// From an address to the end of what is mapped there.
    #[must_use]
    pub fn mapped(&self, address: u64) -> Option<Part> {
        self.loaded.iter().find_map(|part| part.from(address))
    }
}

/// The bytes of a part of the file, `most` at the most.
///
/// # Errors
/// When they are more, or not there.
pub fn read(source: &dyn Source, part: Part, most: u64, what: &'static str) -> Result<Vec<u8>, Reason> {
    if part.length > most {
        return Err(Reason::TooLarge(what, part.length));
    }
    if part.offset.checked_add(part.length).is_none_or(|end| end > source.length()) {
        return Err(Reason::Malformed(what));
    }
    let mut bytes = vec![0; usize::try_from(part.length).map_err(|_| Reason::Malformed(what))?];
    source.read_at(part.offset, &mut bytes)?;
    Ok(bytes)
}

fn read_all<T: Pod + Clone>(source: &dyn Source, offset: u64, n: u16) -> Result<Vec<T>, Reason> {
    let length = u64::from(n) * size_of::<T>() as u64;
    let bytes = read(source, Part { address: 0, offset, length }, u64::MAX, "a table of headers")?;
    let (all, _) =
        pod::slice_from_bytes::<T>(&bytes, n.into()).map_err(|()| Reason::Malformed("a table of headers"))?;
    Ok(all.to_vec())
}

/// Those with bytes in the file that are not compressed, with their names.
fn sections(
    source: &dyn Source,
    header: &elf::FileHeader64<Little>,
    n: u16,
) -> Result<Vec<(Part, Vec<u8>)>, Reason> {
    let headers = read_all::<elf::SectionHeader64<Little>>(source, header.e_shoff.get(Little), n)?;
    let part = |section: &elf::SectionHeader64<Little>| Part {
        address: section.sh_addr.get(Little),
        offset: section.sh_offset.get(Little),
        length: section.sh_size.get(Little),
    };
    let names = headers.get(usize::from(header.e_shstrndx.get(Little)));
    let names = names.ok_or(Reason::Malformed("sections without names"))?;
    let names = read(source, part(names), NAME_BYTES, "names of sections")?;
    let is_plain = |section: &&elf::SectionHeader64<Little>| {
        section.sh_type.get(Little) != elf::SHT_NOBITS
            && section.sh_flags.get(Little) & u64::from(elf::SHF_COMPRESSED) == 0
    };
    let named = |section: &elf::SectionHeader64<Little>| {
        let start = usize::try_from(section.sh_name.get(Little)).unwrap_or(usize::MAX);
        let name = names.get(start..).unwrap_or_default().split(|byte| *byte == 0).next().unwrap_or_default();
        (part(section), name.get(..name.len().min(NAME_MOST)).unwrap_or_default().to_vec())
    };
    Ok(headers.iter().filter(is_plain).map(named).collect())
}

/// Of a name as much is kept: many may begin in one long text.
const NAME_MOST: usize = 64;
