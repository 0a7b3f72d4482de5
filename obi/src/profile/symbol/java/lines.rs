//! Which line of a Java method a bytecode belongs to.
//!
//! In: where a method's compressed table is. Out: [`Lines`]. A byte says how far bytecode and line go on; one that is
//! 255 stands before two signed numbers, one that is 0 ends the table. Tables come from memory of a process and may be
//! anything: bytes and rows are bounded.

use super::number::Numbers;
use crate::capture::guest::Memory;

/// Lines from the bytecode on that stands before each, sorted by it.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lines(Box<[(u32, u32)]>);

/// Bytes that are read at once, and at most.
const PIECE: usize = 128;
const MOST: usize = 64 * 1024;

impl Lines {
    /// Reads the table at an address.
    #[must_use]
    pub fn read(memory: &dyn Memory, address: u64, excludes_zero: bool) -> Self {
        let mut bytes = Bytes { memory, next: address, left: MOST, piece: Vec::new().into_iter() };
        let (mut lines, mut at, mut line) = (Vec::new(), 0_i64, 0_i64);
        while let Some(byte) = bytes.next().filter(|byte| *byte != 0) {
            let (passed, on) = match byte {
                255 => {
                    let Some(passed) = bytes.signed(excludes_zero) else { break };
                    let Some(on) = bytes.signed(excludes_zero) else { break };
                    (passed, on)
                }
                _ => (i64::from(byte >> 3), i64::from(byte & 7)),
            };
            (at, line) = (at + passed, line + on);
            if let (Ok(at), Ok(line)) = (u32::try_from(at), u32::try_from(line)) {
                lines.push((at, line));
            }
        }
        lines.sort_by_key(|(at, _)| *at);
        Self(lines.into_boxed_slice())
    }

    /// That of a bytecode.
    #[must_use]
    pub fn at(&self, position: u32) -> Option<u32> {
        let after = self.0.partition_point(|(start, _)| *start <= position);
        self.0.get(after.checked_sub(1)?).map(|(_, line)| *line)
    }

    /// The first of all; 0: none. Class files do not record where a method is declared.
    #[must_use]
    pub fn first(&self) -> u32 {
        self.0.iter().map(|(_, line)| *line).min().unwrap_or_default()
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.0.len() * size_of::<(u32, u32)>()
    }
}

struct Bytes<'a> {
    memory: &'a dyn Memory,
    next: u64,
    left: usize,
    piece: std::vec::IntoIter<u8>,
}

impl Bytes<'_> {
    /// Its lowest bit is the sign.
    fn signed(&mut self, excludes_zero: bool) -> Option<i64> {
        let number = Numbers { bytes: self.by_ref(), excludes_zero }.next()?;
        Some(i64::from((number >> 1).cast_signed() ^ (number & 1).cast_signed().wrapping_neg()))
    }
}

impl Iterator for Bytes<'_> {
    type Item = u8;

    fn next(&mut self) -> Option<u8> {
        if let Some(byte) = self.piece.next() {
            return Some(byte);
        }
        // Not beyond a page: what follows may not be there.
        let length = PIECE.min(self.left).min(PIECE - (self.next % PIECE as u64) as usize);
        let mut piece = vec![0; length];
        if length == 0 || !self.memory.read(self.next, &mut piece) {
            return None;
        }
        self.next = self.next.wrapping_add(length as u64);
        self.left -= length;
        self.piece = piece.into_iter();
        self.piece.next()
    }
}
