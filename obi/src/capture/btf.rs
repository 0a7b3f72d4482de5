//! Type information in BTF, as far as the library does not have it: parameters by name, map definitions.
//!
//! In: the bytes of a kernel's or an object's BTF. Out: types by number, with the places of their parts.
//! Refuses what runs out of the bytes. The format: Documentation/bpf/btf.rst of the kernel.
#![forbid(unsafe_code)]

use thiserror::Error;

/// Not BTF of this machine's byte order, or cut short.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Error)]
#[error("not type information (BTF) of this machine's byte order: bad {0}")]
pub struct BtfFormat(&'static str);

const MAGIC: u16 = 0xeb9f;
const HEADER_BYTES: usize = 24;
const TYPE_BYTES: usize = 12;

/// Kinds of types (`BTF_KIND_*`).
const INTEGER: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNCTION: u32 = 12;
const FUNCTION_PROTOTYPE: u32 = 13;
const VARIABLE: u32 = 14;
const SECTION: u32 = 15;
const DECLARATION_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// All types of one BTF.
#[derive(Debug)]
pub struct Types<'a> {
    bytes: &'a [u8],
    strings: usize,
    /// Where each type begins; the type's number is its place here plus one.
    places: Vec<usize>,
}

/// One type.
#[derive(Debug, Clone, Copy)]
struct Type {
    at: usize,
    name: u32,
    kind: u32,
    n_parts: usize,
    /// Size or another type, as the kind says.
    of: u32,
}

impl<'a> Types<'a> {
    /// Finds the types.
    ///
    /// # Errors
    /// When the bytes are not BTF of this machine's byte order, or are cut short.
    pub fn parse(bytes: &'a [u8]) -> Result<Self, BtfFormat> {
        let header = |index: usize| word(bytes, 4 + 4 * index).ok_or(BtfFormat("header"));
        if bytes.first_chunk().copied().map(u16::from_ne_bytes) != Some(MAGIC) {
            return Err(BtfFormat("magic number"));
        }
        let begin = header(0)?.max(HEADER_BYTES);
        let mut types = Self { bytes, strings: begin + header(3)?, places: Vec::new() };
        let mut at = begin + header(1)?;
        let end = at + header(2)?;
        while at < end {
            let found = types.read(at).ok_or(BtfFormat("type"))?;
            types.places.push(at);
            at += TYPE_BYTES + found.parts_bytes();
        }
        Ok(types)
    }

    /// Which parameter of a function has this name, from 0.
    #[must_use]
    pub fn parameter(&self, function: &str, parameter: &str) -> Option<u32> {
        let function = self.all().find(|found| found.kind == FUNCTION && self.is_named(found, function))?;
        let prototype = self.get(function.of).filter(|found| found.kind == FUNCTION_PROTOTYPE)?;
        let index = (0..prototype.n_parts).find(|index| {
            word(self.bytes, prototype.part(*index))
                .is_some_and(|name| self.string(name) == parameter.as_bytes())
        })?;
        u32::try_from(index).ok()
    }

    /// Where the maps of an object that are of kind `map_type` name their member `map_flags`: the places, in the
    /// bytes, of the members' name offsets.
    #[must_use]
    pub fn flag_names(&self, map_type: u32) -> Vec<usize> {
        let Some(maps) = self.all().find(|found| found.kind == SECTION && self.is_named(found, ".maps"))
        else {
            return Vec::new();
        };
        let definitions = (0..maps.n_parts).filter_map(|index| {
            let variable = self.get(u32::try_from(word(self.bytes, maps.part(index))?).ok()?)?;
            self.get(variable.of).filter(|found| found.kind == STRUCT)
        });
        definitions
            .filter(|definition| {
                let kind = self.member(definition, "type");
                kind.and_then(|at| self.number_at(at)) == Some(map_type as usize)
            })
            .filter_map(|definition| self.member(&definition, "map_flags"))
            .collect()
    }

    /// Where a structure's member of this name is described.
    fn member(&self, structure: &Type, name: &str) -> Option<usize> {
        (0..structure.n_parts)
            .map(|index| structure.part(index))
            .find(|at| word(self.bytes, *at).is_some_and(|offset| self.string(offset) == name.as_bytes()))
    }

    /// `int (*member)[N]`: the N.
    fn number_at(&self, member: usize) -> Option<usize> {
        let pointer = self.get(u32::try_from(word(self.bytes, member + 4)?).ok()?)?;
        let array = self.get(pointer.of).filter(|found| found.kind == ARRAY)?;
        word(self.bytes, array.at + TYPE_BYTES + 8)
    }

    fn all(&self) -> impl Iterator<Item = Type> {
        self.places.iter().filter_map(|at| self.read(*at))
    }

    fn get(&self, number: u32) -> Option<Type> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.read(*self.places.get(index)?)
    }

    fn read(&self, at: usize) -> Option<Type> {
        let number = |offset| u32::try_from(word(self.bytes, at + offset)?).ok();
        let (name, info, of) = (number(0)?, number(4)?, number(8)?);
        let found = Type { at, name, kind: info >> 24 & 0x1f, n_parts: (info & 0xffff) as usize, of };
        (at + TYPE_BYTES + found.parts_bytes() <= self.bytes.len()).then_some(found)
    }

    fn is_named(&self, found: &Type, name: &str) -> bool {
        self.string(found.name as usize) == name.as_bytes()
    }

    fn string(&self, offset: usize) -> &[u8] {
        let text = self.bytes.get(self.strings.saturating_add(offset)..).unwrap_or_default();
        text.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

impl Type {
    fn part_bytes(&self) -> usize {
        match self.kind {
            STRUCT | UNION | SECTION | ENUM64 => 12,
            ENUM | FUNCTION_PROTOTYPE => 8,
            _ => 0,
        }
    }

    fn parts_bytes(&self) -> usize {
        match self.kind {
            INTEGER | VARIABLE | DECLARATION_TAG => 4,
            ARRAY => 12,
            _ => self.n_parts * self.part_bytes(),
        }
    }

    fn part(&self, index: usize) -> usize {
        self.at + TYPE_BYTES + index * self.part_bytes()
    }
}

fn word(bytes: &[u8], at: usize) -> Option<usize> {
    let word = bytes.get(at..)?.first_chunk().copied()?;
    usize::try_from(u32::from_ne_bytes(word)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `int take(int sk, int flags)` as BTF: an int, a prototype with two parameters, the function.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0take\0sk\0flags\0";
        let types: Vec<u32> = [
            [1, INTEGER << 24, 4, 0x0100_0020].as_slice(),
            &[0, FUNCTION_PROTOTYPE << 24 | 2, 1, 10, 1, 13, 1],
            &[5, FUNCTION << 24, 2],
        ]
        .concat();
        let types_bytes = u32::try_from(4 * types.len()).unwrap();
        let strings_bytes = u32::try_from(strings.len()).unwrap();
        let header = [24, 0, types_bytes, types_bytes, strings_bytes];
        let mut bytes = MAGIC.to_ne_bytes().to_vec();
        bytes.extend([1, 0]);
        bytes.extend(header.iter().chain(&types).flat_map(|word| word.to_ne_bytes()));
        bytes.extend(strings);
        bytes
    }

    #[test]
    fn parameters_are_found_by_name() {
        let bytes = sample();
        let types = Types::parse(&bytes).unwrap();
        let check = |function, parameter, expected| {
            assert_eq!(types.parameter(function, parameter), expected, "{function} {parameter}");
        };
        check("take", "sk", Some(0));
        check("take", "flags", Some(1));
        check("take", "nonblock", None);
        check("give", "flags", None);
        check("int", "sk", None);
    }

    #[test]
    fn what_is_cut_short_or_foreign_is_refused() {
        let bytes = sample();
        let types_end = bytes.len() - b"\0int\0take\0sk\0flags\0".len();
        for length in 0..types_end {
            assert!(Types::parse(&bytes[..length]).is_err(), "{length} bytes");
        }
        let mut foreign = bytes;
        foreign.swap(0, 1);
        assert!(Types::parse(&foreign).is_err());
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_are_too_strange(mut bytes: Vec<u8>, at in 0..80_usize, with: u8) {
            let _ = Types::parse(&bytes);
            bytes = sample();
            if let Some(byte) = bytes.get_mut(at) {
                *byte = with;
            }
            if let Ok(types) = Types::parse(&bytes) {
                let _ = (types.parameter("take", "flags"), types.flag_names(1));
            }
        }
    }
}
