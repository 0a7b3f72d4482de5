//! The sections of an executable, a library or a file of debug information.
//!
//! In: an ELF file, which anybody may have made, and who may change it while it is read. Out: [`Elf`]: what kind of
//! machine it is for, where its sections and segments are, their bytes (unpacked), notes and links to debug
//! information. Reads only what is asked for, and never more than the limit given; whatever the file says about itself
//! is checked against its length. Never panics. Refuses to know what sections mean.

use std::io::Read as _;

use object::LittleEndian as Little;
use object::elf;
use object::pod;

use crate::capture::tls::elf::{ElfError, Source, file_header};

/// Headers of a program; more is a hostile file.
const SECTIONS: usize = 8192;
const SEGMENTS: usize = 512;
/// The names of its sections.
const NAME_BYTES: u64 = 512 * 1024;
const LONGEST_NAME: usize = 64;
const NOTE_BYTES: u64 = 64 * 1024;
const LONGEST_LINK: u64 = 4096;

/// The headers of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Elf {
    /// `e_machine`.
    pub machine: u16,
    /// All sections, by their number.
    pub sections: Vec<Section>,
    /// What is mapped, and which of it may be written.
    pub segments: Vec<Segment>,
}

/// Where a section is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Cut at 64 bytes.
    pub name: String,
    /// `sh_type`.
    pub kind: u32,
    /// Virtual address, 0 if it is not mapped.
    pub address: u64,
    /// In the file, bytes.
    pub offset: u64,
    /// In the file, bytes.
    pub length: u64,
    /// `sh_link`: of a table of symbols, the section with their names.
    pub link: u32,
    /// `sh_entsize`.
    pub entry: u64,
    /// Packed by zlib or zstd.
    pub is_packed: bool,
    /// It holds machine code.
    pub is_executable: bool,
}

/// A part of the file that is mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// First virtual address.
    pub address: u64,
    /// In the file, bytes.
    pub offset: u64,
    /// In the file, bytes.
    pub length: u64,
    /// It holds variables.
    pub is_writable: bool,
}

/// A file of debug information that belongs to this one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DebugLink {
    /// Its name, without a folder.
    pub name: String,
    /// CRC-32 of its content.
    pub checksum: u32,
}

impl Elf {
    /// Reads the headers.
    ///
    /// # Errors
    /// When it is no 64-bit little-endian program, or malformed.
    pub fn read(source: &dyn Source) -> Result<Self, ElfError> {
        let header = file_header(source)?;
        let segments: Vec<elf::ProgramHeader64<Little>> =
            headers(source, header.e_phoff.get(Little), header.e_phnum.get(Little), SEGMENTS)?;
        let sections: Vec<elf::SectionHeader64<Little>> =
            headers(source, header.e_shoff.get(Little), header.e_shnum.get(Little), SECTIONS)?;
        let names = names(source, sections.get(usize::from(header.e_shstrndx.get(Little))));
        Ok(Self {
            machine: header.e_machine.get(Little),
            segments: segments.iter().filter_map(segment).collect(),
            sections: sections.iter().map(|header| section(header, &names)).collect(),
        })
    }

    /// The first section of this name that has bytes in the file.
    #[must_use]
    pub fn section(&self, name: &str) -> Option<&Section> {
        let has_bytes = |section: &&Section| section.kind != elf::SHT_NOBITS && section.length > 0;
        self.sections.iter().filter(has_bytes).find(|section| section.name == name)
    }

    /// Offset in the file of a virtual address.
    #[must_use]
    pub fn offset(&self, address: u64) -> Option<u64> {
        let segment =
            self.segments.iter().find(|segment| address.wrapping_sub(segment.address) < segment.length)?;
        (address - segment.address).checked_add(segment.offset)
    }

    /// `NT_GNU_BUILD_ID`.
    #[must_use]
    pub fn build_id(&self, source: &dyn Source) -> Option<Vec<u8>> {
        let section = self.section(".note.gnu.build-id")?;
        let bytes = section.bytes(source, NOTE_BYTES).ok()?;
        let words = bytes.first_chunk::<12>()?;
        let word = |at: usize| u32::from_le_bytes([words[at], words[at + 1], words[at + 2], words[at + 3]]);
        let start = 12 + usize::try_from(word(0)).ok()?.checked_next_multiple_of(4)?;
        let id = bytes.get(start..start.checked_add(usize::try_from(word(4)).ok()?)?)?;
        (word(8) == elf::NT_GNU_BUILD_ID && (2..=64).contains(&id.len())).then(|| id.to_vec())
    }

    /// `.gnu_debuglink`.
    #[must_use]
    pub fn debug_link(&self, source: &dyn Source) -> Option<DebugLink> {
        let bytes = self.section(".gnu_debuglink")?.bytes(source, LONGEST_LINK).ok()?;
        let end = bytes.iter().position(|byte| *byte == 0)?;
        let name = str::from_utf8(&bytes[..end]).ok()?;
        let checksum = bytes.get((end + 1).next_multiple_of(4)..)?.first_chunk::<4>()?;
        let is_plain = !name.is_empty() && !name.contains('/') && name != "..";
        is_plain.then(|| DebugLink { name: name.to_owned(), checksum: u32::from_le_bytes(*checksum) })
    }
}

impl Section {
    /// Its bytes, unpacked.
    ///
    /// # Errors
    /// When they are more than `limit`, not all there, or packed in a way that is not known.
    pub fn bytes(&self, source: &dyn Source, limit: u64) -> Result<Vec<u8>, ElfError> {
        let end = self.offset.checked_add(self.length).filter(|end| *end <= source.length());
        end.ok_or(ElfError::Malformed("a section beyond the end"))?;
        if self.length > limit {
            return Err(ElfError::Malformed("a section beyond all bounds"));
        }
        let mut bytes = vec![0; usize::try_from(self.length).unwrap_or(usize::MAX)];
        source.read_at(self.offset, &mut bytes)?;
        if self.is_packed { unpacked(&bytes, limit) } else { Ok(bytes) }
    }
}

/// What a packed section says about itself is only a limit: memory grows with what comes out, not with what it says.
fn unpacked(bytes: &[u8], limit: u64) -> Result<Vec<u8>, ElfError> {
    let (header, packed) = pod::from_bytes::<elf::CompressionHeader64<Little>>(bytes)
        .map_err(|()| ElfError::Malformed("a packed section"))?;
    let length = header.ch_size.get(Little);
    if header.ch_type.get(Little) != elf::ELFCOMPRESS_ZLIB {
        return Err(ElfError::Malformed("a section packed in an unknown way"));
    }
    if length > limit {
        return Err(ElfError::Malformed("a section beyond all bounds"));
    }
    let mut out = Vec::new();
    flate2::bufread::ZlibDecoder::new(packed).take(length).read_to_end(&mut out)?;
    if out.len() as u64 == length { Ok(out) } else { Err(ElfError::Malformed("a packed section")) }
}

fn headers<T: pod::Pod + Clone>(
    source: &dyn Source,
    offset: u64,
    count: u16,
    most: usize,
) -> Result<Vec<T>, ElfError> {
    let count = usize::from(count);
    if count > most {
        return Err(ElfError::Malformed("too many headers"));
    }
    let length = count * size_of::<T>();
    if offset.checked_add(length as u64).is_none_or(|end| end > source.length()) {
        return Err(ElfError::Malformed("headers beyond the end"));
    }
    let mut bytes = vec![0; length];
    source.read_at(offset, &mut bytes)?;
    let headers = pod::slice_from_all_bytes::<T>(&bytes);
    headers.map(<[T]>::to_vec).map_err(|()| ElfError::Malformed("headers"))
}

fn names(source: &dyn Source, header: Option<&elf::SectionHeader64<Little>>) -> Vec<u8> {
    let Some(header) = header else { return Vec::new() };
    section(header, &[]).bytes(source, NAME_BYTES).unwrap_or_default()
}

fn section(header: &elf::SectionHeader64<Little>, names: &[u8]) -> Section {
    let start = usize::try_from(header.sh_name.get(Little)).unwrap_or(usize::MAX);
    let name = names.get(start..).unwrap_or_default();
    let end = name.iter().take(LONGEST_NAME).position(|byte| *byte == 0).unwrap_or_default();
    Section {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        kind: header.sh_type.get(Little),
        address: header.sh_addr.get(Little),
        offset: header.sh_offset.get(Little),
        length: header.sh_size.get(Little),
        link: header.sh_link.get(Little),
        entry: header.sh_entsize.get(Little),
        is_packed: header.sh_flags.get(Little) & u64::from(elf::SHF_COMPRESSED) != 0,
        is_executable: header.sh_flags.get(Little) & u64::from(elf::SHF_EXECINSTR) != 0,
    }
}

fn segment(header: &elf::ProgramHeader64<Little>) -> Option<Segment> {
    (header.p_type.get(Little) == elf::PT_LOAD).then(|| Segment {
        address: header.p_vaddr.get(Little),
        offset: header.p_offset.get(Little),
        length: header.p_filesz.get(Little),
        is_writable: header.p_flags.get(Little) & elf::PF_W != 0,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn own() -> Vec<u8> {
        // The beginning of this very test, with all headers pointing beyond it.
        let mut bytes = Vec::new();
        std::fs::File::open("/proc/self/exe").unwrap().take(64 * 1024).read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn this_test_has_what_programs_have() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let length = file.metadata().unwrap().len();
        let source = crate::capture::tls::elf::OpenFile { file, length };
        let elf = Elf::read(&source).unwrap();
        let text = elf.section(".text").unwrap();
        assert!(text.is_executable && !text.is_packed);
        assert_eq!(elf.offset(text.address), Some(text.offset));
        assert!(elf.segments.iter().any(|segment| segment.is_writable));
        assert!(elf.section(".nothing").is_none() && elf.section(".bss").is_none());
    }

    #[test]
    fn what_is_cut_is_an_error() {
        let bytes = own();
        assert!(matches!(Elf::read(&bytes.as_slice()), Err(ElfError::Malformed(_))));
        assert!(matches!(Elf::read(&&bytes[..10]), Err(ElfError::Foreign)));
        assert!(matches!(
            Elf::read(&&b"#!/bin/sh and more than sixty-four bytes, so that a header would fit"[..]),
            Err(ElfError::Foreign)
        ));
    }

    #[test]
    fn a_packed_section_takes_no_more_than_allowed() {
        use std::io::Write as _;
        let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
        packed.write_all(&vec![0; 10 << 20]).unwrap();
        let packed = packed.finish().unwrap();
        let check = |says: u64, limit: u64, expected: Option<usize>| {
            let header: Vec<u8> = [1_u64, says, 1].iter().flat_map(|word| word.to_le_bytes()).collect();
            let bytes = [header, packed.clone()].concat();
            assert_eq!(unpacked(&bytes, limit).ok().map(|bytes| bytes.len()), expected, "{says} {limit}");
        };
        check(10 << 20, 10 << 20, Some(10 << 20));
        check(10 << 20, 1 << 20, None);
        check(u64::MAX, u64::MAX, None);
        // It says less than it holds: only that comes out.
        check(1 << 10, 1 << 20, Some(1 << 10));
    }

    proptest! {
        #[test]
        fn any_headers_are_read_or_refused(changes in proptest::collection::vec((0_usize..64, any::<u8>()), 0..12), cut in 0_usize..65_536) {
            let mut bytes = own();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            let bytes = &bytes[..cut.min(bytes.len())];
            if let Ok(elf) = Elf::read(&bytes) {
                let _ = (elf.build_id(&bytes), elf.debug_link(&bytes));
                for section in &elf.sections {
                    let _ = section.bytes(&bytes, 1 << 16);
                }
            }
        }
    }
}
