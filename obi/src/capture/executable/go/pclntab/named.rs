//! Functions of Go's table by the ends of their names, whatever their packages are.
//!
//! In: the bytes of the table, ends of names. Out: [`Named`], each with the addresses that it takes. Goes along all
//! names once and, if there are any of those, along all functions; bounded, whatever the table says.

use std::collections::HashMap;

use super::{LONGEST, Table, Version};
use crate::capture::tls::elf::Source;

/// Names that are looked through: those of a cluster's control plane in one file have 10 MB.
const NAME_BYTES: u64 = 64 << 20;
const CHUNK: usize = 64 * 1024;
/// What is longer is no name.
const NAME_MOST: usize = 4 * CHUNK;
/// Functions that are looked at; those of that file are 200,000.
const LOOKED_AT: u64 = 1 << 21;
/// Functions that are reported.
const MOST: usize = 256;

/// A function that was looked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    /// With its package path.
    pub name: String,
    /// The wanted end, by its number.
    pub wanted: usize,
    /// Its first address.
    pub start: u64,
    /// Where the next function begins.
    pub end: u64,
}

impl Table {
    /// The functions whose names end with one of `wanted`. Of tables before Go 1.16 there are none.
    #[must_use]
    pub fn named(&self, source: &dyn Source, wanted: &[&str]) -> Vec<Named> {
        let names = self.names_with(source, wanted).unwrap_or_default();
        let mut found = Vec::new();
        if names.is_empty() {
            return found;
        }
        for number in 0..self.n_functions.min(LOOKED_AT) {
            if found.len() >= MOST {
                break;
            }
            let Some(at) = self.record(source, number) else { break };
            let named = self.field(source, at, 1).and_then(|name| names.get(&u64::from(name)));
            let Some((name, wanted)) = named else { continue };
            let range = self.entry(source, number).zip(self.entry(source, number + 1));
            let Some((start, end)) = range.filter(|(start, end)| start < end) else { continue };
            found.push(Named { name: name.clone(), wanted: *wanted, start, end });
        }
        found
    }

    /// Names that end with one of `wanted`, and which, by their places among the names.
    fn names_with(&self, source: &dyn Source, wanted: &[&str]) -> Option<HashMap<u64, (String, usize)>> {
        let mut found = HashMap::new();
        if self.version == Version::Go12 {
            return Some(found);
        }
        let end = self.units.min(self.names.saturating_add(NAME_BYTES)).min(source.length());
        let (mut chunk, mut begun) = (vec![0; CHUNK], Vec::new());
        let (mut at, mut start) = (self.names, self.names);
        while at < end && found.len() < MOST {
            let bytes = &mut chunk[..usize::try_from(end - at).unwrap_or(CHUNK).min(CHUNK)];
            source.read_at(at, bytes).ok()?;
            for piece in bytes.split_inclusive(|byte| *byte == 0) {
                at += piece.len() as u64;
                let Some((0, piece)) = piece.split_last() else {
                    begun.extend_from_slice(piece);
                    continue;
                };
                begun.extend_from_slice(piece);
                let which = wanted.iter().position(|wanted| begun.ends_with(wanted.as_bytes()));
                if let Some(which) = which.filter(|_| begun.len() <= LONGEST) {
                    let name = String::from_utf8_lossy(&begun).into_owned();
                    found.insert(start - self.names, (name, which));
                }
                begun.clear();
                start = at;
            }
            if begun.len() > NAME_MOST {
                return Some(found);
            }
        }
        Some(found)
    }
}
