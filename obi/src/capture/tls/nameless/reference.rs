//! Which functions refer to an address.
//!
//! In: machine code (x86-64), addresses. Out: functions by their range. Reads pieces, so a file of any size costs
//! bounded memory. Bytes that only look like an instruction are harmless: what is found is looked into again. Refuses
//! to know what the functions do.

use std::collections::BTreeSet;
use std::ops::Range;

use object::LittleEndian as Little;
use object::elf::{ET_EXEC, SHT_PROGBITS};

use super::super::code::{CODE_BYTES, Function};
use super::super::elf::{Image, Source, file_header};
use super::super::point::Symbol;
use super::string::{Wanted, places};
use crate::capture::executable::elf::{Elf, Section};

/// Bytes of machine code that are searched: a browser has 200 MB.
const SEARCHED: u64 = 512 << 20;
const PIECE: usize = 1 << 20;
/// An instruction that refers to something is no longer than this.
const LONGEST: usize = 7;
/// References that are kept.
const REFERENCES: usize = 4096;
/// The table of functions' beginnings that is read: half a million of them.
const TABLE_BYTES: u64 = 4 << 20;
/// The first bytes of instructions that refer to something.
const FIRST: [bool; 256] = {
    let (mut first, mut byte) = ([false; 256], 0);
    while byte < 256 {
        first[byte] = matches!(byte, 0x48 | 0x4c | 0xb8..=0xbf | 0xe8 | 0xe9);
        byte += 1;
    }
    first
};
/// `version`, then the encodings of what follows: all that linkers write.
const KNOWN: [u8; 4] = [1, 0x1b, 0x03, 0x3b];
const HEADER: usize = 12;
const ROW: usize = 8;

/// A file with machine code.
pub(super) struct Code<'a> {
    pub(super) source: &'a dyn Source,
    pub(super) image: &'a Image,
    pub(super) elf: &'a Elf,
}

/// Where a function is.
pub(super) type Extent = Range<u64>;

/// The functions that refer to each of some strings.
pub(super) struct Referring {
    functions: Vec<u64>,
    /// Of each wanted string: the instruction and the function around it.
    places: Vec<Vec<u64>>,
    strings: Vec<Vec<u64>>,
}

impl Code<'_> {
    /// Which functions refer to the wanted strings; `None` when the file does not say where functions begin.
    pub(super) fn referring(&self, wanted: &[Wanted]) -> Option<Referring> {
        let strings = places(self.source, self.elf, wanted);
        let all: BTreeSet<u64> = strings.iter().flatten().copied().collect();
        let functions = self.function_starts()?;
        let absolute = file_header(self.source).ok()?.e_type.get(Little) == ET_EXEC;
        let found = self.references(|bytes, address| {
            let target = relative(bytes, address).or_else(|| absolute.then(|| constant(bytes)).flatten())?;
            all.contains(&target).then_some(target)
        });
        let places = strings
            .iter()
            .map(|strings| {
                found.iter().filter(|(_, to)| strings.contains(to)).map(|(from, _)| *from).collect()
            })
            .collect();
        Some(Referring { functions, places, strings })
    }

    /// The instructions that call this function, or jump to it.
    pub(super) fn calls_of(&self, function: u64) -> Vec<u64> {
        let found = self.references(|bytes, address| called(bytes, address).filter(|to| *to == function));
        found.into_iter().map(|(from, _)| from).collect()
    }

    /// The machine code of a function.
    pub(super) fn bytes(&self, function: &Extent) -> Option<Vec<u8>> {
        let length = usize::try_from(function.end - function.start).unwrap_or(CODE_BYTES).min(CODE_BYTES);
        self.image.code(self.source, function.start, length)
    }

    /// A function under the name that it had.
    pub(super) fn symbol(&self, name: &'static str, function: &Extent) -> Option<Symbol> {
        Some(Symbol { name, address: function.start, code: self.bytes(function)? })
    }

    /// Looks at the function, taken apart.
    pub(super) fn look<T>(&self, function: &Extent, look: impl FnOnce(&Function<'_>) -> T) -> Option<T> {
        let bytes = self.bytes(function)?;
        Some(look(&Function::new(function.start, &bytes)))
    }

    /// Every place in the code where `look` finds a reference, and to what.
    fn references(&self, look: impl Fn(&[u8], u64) -> Option<u64>) -> Vec<(u64, u64)> {
        let mut found = Vec::new();
        let mut left = SEARCHED;
        for section in self.elf.sections.iter().filter(|section| is_code(section)) {
            let mut offset = 0;
            while offset < section.length && left > 0 && found.len() < REFERENCES {
                let length = usize::try_from(section.length - offset).unwrap_or(PIECE).min(PIECE);
                let (Some(at), Some(address)) =
                    (section.offset.checked_add(offset), section.address.checked_add(offset))
                else {
                    break;
                };
                let mut piece = vec![0; length];
                if self.source.read_at(at, &mut piece).is_err() {
                    break;
                }
                let step = if length < PIECE { length } else { PIECE - LONGEST };
                for (start, _) in
                    piece[..step].iter().enumerate().filter(|(_, byte)| FIRST[usize::from(**byte)])
                {
                    let from = address.wrapping_add(start as u64);
                    found.extend(look(&piece[start..], from).map(|to| (from, to)));
                }
                left = left.saturating_sub(length as u64);
                offset += step as u64;
            }
        }
        found.truncate(REFERENCES);
        found
    }

    /// Where functions begin, in order: the sorted table that exception handling searches (LSB Core 4.1 §10.6.2).
    fn function_starts(&self) -> Option<Vec<u64>> {
        let table = self.elf.section(".eh_frame_hdr")?;
        let bytes = table.bytes(self.source, TABLE_BYTES).ok()?;
        let (header, rows) = bytes.split_at_checked(HEADER)?;
        if header.get(..4)? != KNOWN {
            return None;
        }
        let start = |row: &[u8]| {
            let offset = i32::from_le_bytes(*row.first_chunk()?);
            Some(table.address.wrapping_add_signed(offset.into()))
        };
        let mut starts: Vec<u64> = rows.chunks_exact(ROW).filter_map(start).collect();
        starts.sort_unstable();
        starts.dedup();
        Some(starts)
    }
}

impl Referring {
    /// The functions that refer to a string, each once.
    pub(super) fn functions(&self, wanted: usize) -> Vec<Extent> {
        let mut functions: Vec<Extent> =
            self.places.get(wanted).into_iter().flatten().filter_map(|place| self.around(*place)).collect();
        functions.sort_unstable_by_key(|function| function.start);
        functions.dedup();
        functions
    }

    /// Where that string is.
    pub(super) fn strings(&self, wanted: usize) -> &[u64] {
        self.strings.get(wanted).map(Vec::as_slice).unwrap_or_default()
    }

    /// The function around an instruction. Its end is where the next one begins; the last one has none.
    pub(super) fn around(&self, place: u64) -> Option<Extent> {
        let next = self.functions.partition_point(|start| *start <= place);
        Some(*self.functions.get(next.checked_sub(1)?)?..*self.functions.get(next)?)
    }
}

fn is_code(section: &Section) -> bool {
    section.kind == SHT_PROGBITS && section.is_executable && !section.is_packed
}

/// Of `lea distance(%rip),%register`, here, the address.
fn relative(bytes: &[u8], address: u64) -> Option<u64> {
    let [0x48 | 0x4c, 0x8d, register, distance @ ..] = bytes else { return None };
    let distance = i32::from_le_bytes(*distance.first_chunk()?);
    (register & 0xc7 == 5).then(|| address.wrapping_add(7).wrapping_add_signed(distance.into()))
}

/// Of `mov $address,%register`, as programs have it that are at a fixed place.
fn constant(bytes: &[u8]) -> Option<u64> {
    let [0xb8..=0xbf, value @ ..] = bytes else { return None };
    Some(u32::from_le_bytes(*value.first_chunk()?).into())
}

/// Of `call` and `jmp`, where it goes.
fn called(bytes: &[u8], address: u64) -> Option<u64> {
    let [0xe8 | 0xe9, distance @ ..] = bytes else { return None };
    let distance = i32::from_le_bytes(*distance.first_chunk()?);
    Some(address.wrapping_add(5).wrapping_add_signed(distance.into()))
}
