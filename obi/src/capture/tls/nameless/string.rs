//! Strings in the constants of a file.
//!
//! In: an ELF file, what is wanted. Out: virtual addresses. Reads pieces, so a file of any size costs bounded memory.
//! Refuses to know what the strings are for.

use memchr::memmem::Finder;
use object::elf::SHT_PROGBITS;

use super::super::elf::Source;
use crate::capture::executable::elf::{Elf, Section};

/// What is looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wanted {
    /// A whole string.
    Whole(&'static str),
    /// A path that ends with this name of a file.
    File(&'static str),
}

/// Bytes of constants that are searched: a browser has 100 MB.
const SEARCHED: u64 = 256 << 20;
const PIECE: usize = 1 << 20;
/// A longer path is none.
const PATH: usize = 512;
/// Places that are kept of each; a name of a function may be a constant of others as well.
const PLACES: usize = 64;

/// Whether the constants have these bytes somewhere, each for itself.
pub(super) fn has<const N: usize>(source: &dyn Source, elf: &Elf, wanted: [&[u8]; N]) -> [bool; N] {
    let finders = wanted.map(Finder::new);
    let mut found = [false; N];
    pieces(source, elf, |_, piece| {
        for (found, finder) in found.iter_mut().zip(&finders) {
            *found = *found || finder.find(piece).is_some();
        }
        !found.iter().all(|found| *found)
    });
    found
}

/// Where each of the wanted ones begins.
pub(super) fn places(source: &dyn Source, elf: &Elf, wanted: &[Wanted]) -> Vec<Vec<u64>> {
    let ends: Vec<Vec<u8>> = wanted.iter().map(|wanted| wanted.end()).collect();
    let finders: Vec<Finder<'_>> = ends.iter().map(Finder::new).collect();
    let mut places = vec![Vec::new(); wanted.len()];
    pieces(source, elf, |address, piece| {
        for ((wanted, finder), places) in wanted.iter().zip(&finders).zip(&mut places) {
            for at in finder.find_iter(piece) {
                let Some(begin) = wanted.begin(piece, at) else { continue };
                let place = address + begin as u64;
                if places.len() < PLACES && !places.contains(&place) {
                    places.push(place);
                }
            }
        }
        true
    });
    places
}

impl Wanted {
    /// What ends it, with the zero behind; of a whole string the one before as well.
    fn end(self) -> Vec<u8> {
        match self {
            Self::Whole(name) => [b"\0", name.as_bytes(), b"\0"].concat(),
            Self::File(name) => [name.as_bytes(), b"\0"].concat(),
        }
    }

    /// Where the string begins whose end was found here.
    fn begin(self, piece: &[u8], at: usize) -> Option<usize> {
        let Self::File(_) = self else { return Some(at + 1) };
        let before = &piece[at.saturating_sub(PATH)..at];
        let path = before.iter().rev().take_while(|byte| **byte != 0).count();
        let is_name = path == 0 || piece[at - 1] == b'/';
        (path < before.len() && is_name).then(|| at - path)
    }
}

/// Constants piece by piece with their address, until that is enough. What may have begun at the end of a piece is in
/// the next one again.
fn pieces(source: &dyn Source, elf: &Elf, mut goes_on: impl FnMut(u64, &[u8]) -> bool) {
    let mut left = SEARCHED;
    for section in elf.sections.iter().filter(|section| is_constant(section)) {
        let mut offset = 0;
        while offset < section.length && left > 0 {
            let length = usize::try_from(section.length - offset).unwrap_or(PIECE).min(PIECE);
            let mut piece = vec![0; length];
            let Some(at) = section.offset.checked_add(offset) else { break };
            let Some(address) =
                section.address.checked_add(offset + PIECE as u64).map(|end| end - PIECE as u64)
            else {
                break;
            };
            if source.read_at(at, &mut piece).is_err() {
                break;
            }
            if !goes_on(address, &piece) {
                return;
            }
            left = left.saturating_sub(length as u64);
            offset += if length < PIECE { length } else { PIECE - PATH } as u64;
        }
    }
}

fn is_constant(section: &Section) -> bool {
    section.kind == SHT_PROGBITS
        && section.address != 0
        && !section.is_executable
        && !section.is_packed
        && section.name.starts_with(".rodata")
}
