//! What an ELF file says of itself: where its code lies, and which build it is.
//!
//! In: an ELF file, which anybody may have made. Out: [`Image`]. Reads a few pages of headers and notes, whatever the
//! file's size; everything said is checked against its length. Never panics.
#![forbid(unsafe_code)]

use std::fmt::Write as _;
use std::io;

use object::LittleEndian as Little;
use object::elf;
use object::pod;
use sha2::{Digest as _, Sha256};

use crate::capture::tls::elf::{ElfError, Source, file_header};

/// A part of the file that is loaded into memory (`PT_LOAD`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// In the file's own layout.
    pub address: u64,
    /// In the file.
    pub offset: u64,
    /// Bytes of it in the file.
    pub length: u64,
    /// It may be executed.
    pub is_code: bool,
}

/// What a file is known by, wherever it lies; texts are empty where it has none.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub struct BuildIds {
    /// `NT_GNU_BUILD_ID`, in hexadecimal.
    pub gnu: String,
    /// Go's own, as its note has it.
    pub go: String,
    /// Of the file's ends and length, in hexadecimal: `process.executable.build_id.htlhash` of the conventions.
    pub htlhash: String,
}

/// The headers of a file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Image {
    /// `e_machine`.
    pub machine: u16,
    /// What is loaded.
    pub segments: Vec<Segment>,
    /// Which build it is.
    pub build_ids: BuildIds,
}

/// Headers that a program needs; more is a hostile file.
const SEGMENTS: usize = 256;
/// Bytes of notes that are looked through.
const NOTE_BYTES: u64 = 64 * 1024;
/// Longest build id that is believed, bytes.
const ID_BYTES: usize = 256;
/// Bytes at each end of a file that its hash is of.
const HASHED_BYTES: u64 = 4096;
/// `ELF_NOTE_GOBUILDID_TAG` of Go's linker.
const NT_GO_BUILD_ID: u32 = 4;
/// Pages may be larger, but no linker lays out for less.
const PAGE: u64 = 4096;

impl Image {
    /// Reads headers, notes and both ends.
    ///
    /// # Errors
    /// When it is no program for this kind of machine, or malformed.
    pub fn read(source: &dyn Source) -> Result<Self, ElfError> {
        let header = file_header(source)?;
        let headers = program_headers(source, &header)?;
        let mut image =
            Self { machine: header.e_machine.get(Little), segments: segments(&headers), ..Self::default() };
        for note in headers.iter().filter(|header| header.p_type.get(Little) == elf::PT_NOTE) {
            image.build_ids.look_in(source, note);
        }
        image.build_ids.htlhash = htlhash(source)?;
        Ok(image)
    }

    /// Of a file that is no ELF program: only its hash.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn foreign(source: &dyn Source) -> io::Result<Self> {
        let build_ids = BuildIds { htlhash: htlhash(source)?, ..BuildIds::default() };
        Ok(Self { build_ids, ..Self::default() })
    }

    /// The address, in the file's own layout, of a byte of the file that is mapped to be executed.
    #[must_use]
    pub fn address(&self, offset: u64) -> Option<u64> {
        let holds = |segment: &&Segment| {
            let start = segment.offset & !(PAGE - 1);
            // Whole pages are mapped: what stands in a page before and behind a segment has an address as well.
            let end = segment.offset.saturating_add(segment.length).div_ceil(PAGE).saturating_mul(PAGE);
            (start..end).contains(&offset)
        };
        let code = self.segments.iter().filter(|segment| segment.is_code).find(holds);
        let exactly = |segment: &&Segment| offset.wrapping_sub(segment.offset) < segment.length;
        let any = || self.segments.iter().find(exactly).or_else(|| self.segments.iter().find(holds));
        let segment = code.or_else(any)?;
        Some(offset.wrapping_sub(segment.offset).wrapping_add(segment.address))
    }
}

impl BuildIds {
    /// Two files with the same one and the same length are the same; without, only the same file is.
    #[must_use]
    pub fn is_telling(&self) -> bool {
        !(self.gnu.is_empty() && self.go.is_empty())
    }

    fn look_in(&mut self, source: &dyn Source, header: &elf::ProgramHeader64<Little>) {
        let (offset, length) = (header.p_offset.get(Little), header.p_filesz.get(Little).min(NOTE_BYTES));
        if offset.checked_add(length).is_none_or(|end| end > source.length()) {
            return;
        }
        let mut bytes = vec![0; usize::try_from(length).unwrap_or(0)];
        if source.read_at(offset, &mut bytes).is_err() {
            return;
        }
        let align = if header.p_align.get(Little) == 8 { 8 } else { 4 };
        for note in notes(&bytes, align) {
            match (note.name, note.kind) {
                (b"GNU\0", elf::NT_GNU_BUILD_ID) if self.gnu.is_empty() => self.gnu = hexadecimal(note.value),
                (b"Go\0\0", NT_GO_BUILD_ID) if self.go.is_empty() => {
                    let text = String::from_utf8_lossy(note.value);
                    text.trim_end_matches('\0').replace(char::is_control, "").clone_into(&mut self.go);
                }
                _ => {}
            }
        }
    }
}

/// Hash of a file by its ends and its length, as the conventions' "htlhash" wants it.
///
/// # Errors
/// When it cannot be read.
pub fn htlhash(source: &dyn Source) -> io::Result<String> {
    let length = source.length();
    let end = length.min(HASHED_BYTES);
    let mut buffer = vec![0; usize::try_from(end).unwrap_or(0)];
    let mut hash = Sha256::new();
    source.read_at(0, &mut buffer)?;
    hash.update(&buffer);
    source.read_at(length - end, &mut buffer)?;
    hash.update(&buffer);
    hash.update(length.to_be_bytes());
    Ok(hexadecimal(&hash.finalize()[..16]))
}

struct Note<'a> {
    name: &'a [u8],
    kind: u32,
    value: &'a [u8],
}

/// The notes in these bytes, up to the first that is cut.
fn notes(mut bytes: &[u8], align: usize) -> impl Iterator<Item = Note<'_>> {
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (n_name, n_value, kind) = (word(0)? as usize, word(4)? as usize, word(8)?);
        let name = bytes.get(12..12_usize.checked_add(n_name)?)?;
        let start = (12 + n_name).next_multiple_of(align);
        let value = bytes.get(start..start.checked_add(n_value)?)?;
        bytes = bytes.get((start + n_value).next_multiple_of(align)..).unwrap_or_default();
        Some(Note { name, kind, value: &value[..value.len().min(ID_BYTES)] })
    })
}

fn program_headers(
    source: &dyn Source,
    header: &elf::FileHeader64<Little>,
) -> Result<Vec<elf::ProgramHeader64<Little>>, ElfError> {
    let count = usize::from(header.e_phnum.get(Little));
    if count > SEGMENTS {
        return Err(ElfError::Malformed("too many headers"));
    }
    let length = count * size_of::<elf::ProgramHeader64<Little>>();
    let offset = header.e_phoff.get(Little);
    if offset.checked_add(length as u64).is_none_or(|end| end > source.length()) {
        return Err(ElfError::Malformed("headers beyond the end"));
    }
    let mut bytes = vec![0; length];
    source.read_at(offset, &mut bytes)?;
    let headers = pod::slice_from_all_bytes(&bytes);
    headers.map(<[_]>::to_vec).map_err(|()| ElfError::Malformed("headers"))
}

fn segments(headers: &[elf::ProgramHeader64<Little>]) -> Vec<Segment> {
    let loaded = headers.iter().filter(|header| header.p_type.get(Little) == elf::PT_LOAD);
    let segment = |header: &elf::ProgramHeader64<Little>| Segment {
        address: header.p_vaddr.get(Little),
        offset: header.p_offset.get(Little),
        length: header.p_filesz.get(Little),
        is_code: header.p_flags.get(Little) & elf::PF_X != 0,
    };
    loaded.map(segment).collect()
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
