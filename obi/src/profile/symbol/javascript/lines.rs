//! Lines of scripts.
//!
//! In: a script, a place in its text. Out: the line, from 1 on. V8 knows where lines end only once something has asked
//! for it; otherwise they are counted here, once for each text, which may be long. What is remembered is bounded.
//! Refuses to know functions.

use std::sync::{Arc, Mutex, PoisonError};

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use super::text::{Characters, characters};
use super::{kind, number, object};
use crate::capture::guest::Memory;
use crate::capture::guest::v8::Layout;

/// Lines of a process's texts.
#[derive(Debug, Default)]
pub struct Sources(Mutex<Known>);

#[derive(Debug, Default)]
struct Known {
    lines: HashMap<Characters, Arc<Lines>, RandomState>,
    n_lines: usize,
}

/// Where lines begin, but for the first one; sorted.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lines(Vec<u32>);

/// Lines of all texts of a process that are remembered.
const LINES: usize = 1 << 18;
/// Characters of a text: larger ones were made by programs, and are no files that people read.
const CHARACTERS: u32 = 16 << 20;
/// Of these, those that are read at once.
const PIECE: u32 = 64 * 1024;
/// Line feed, carriage return, and what else ends a line.
const LF: u16 = 10;
const CR: u16 = 13;
const OTHERS: [u16; 2] = [0x2028, 0x2029];
/// Lines that V8 has counted.
const ENDS: u32 = 1 << 24;
const WORD: u64 = 8;

impl Sources {
    /// The line of a script that a character is in. `None`: its text cannot be read.
    #[must_use]
    pub fn line(&self, memory: &dyn Memory, layout: &Layout, script: u64, at: u32) -> Option<u32> {
        if let Some(line) = counted(memory, layout, script, at) {
            return Some(line);
        }
        let source = memory.word(script.wrapping_add(layout.source.into()))?;
        let characters = characters(memory, layout, source)?;
        Some(self.lines(memory, characters)?.line(at))
    }

    fn lines(&self, memory: &dyn Memory, characters: Characters) -> Option<Arc<Lines>> {
        // No thread panics while holding it.
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lines) = known.lines.get(&characters) {
            return Some(Arc::clone(lines));
        }
        let lines = Arc::new(Lines::read(memory, characters)?);
        if known.n_lines + lines.0.len() > LINES {
            *known = Known::default();
        }
        known.n_lines += lines.0.len() + 1;
        known.lines.insert(characters, Arc::clone(&lines));
        Some(lines)
    }
}

impl Lines {
    /// Counts those of a text.
    pub(super) fn read(memory: &dyn Memory, characters: Characters) -> Option<Self> {
        if characters.length > CHARACTERS {
            return None;
        }
        let (mut starts, mut units, mut first, mut before) = (Vec::new(), Vec::new(), 0, 0);
        while first < characters.length && starts.len() < LINES {
            units.clear();
            characters.read(memory, first, PIECE as usize, &mut units)?;
            for (at, unit) in (first..).zip(&units) {
                // Both together end one line.
                if *unit == LF && before == CR {
                    starts.pop();
                }
                if matches!(*unit, LF | CR) || OTHERS.contains(unit) {
                    starts.push(at + 1);
                }
                before = *unit;
            }
            first += PIECE;
        }
        Some(Self(starts))
    }

    /// The line that a character is in, from 1 on.
    #[must_use]
    pub fn line(&self, at: u32) -> u32 {
        1 + u32::try_from(self.0.partition_point(|start| *start <= at)).unwrap_or(u32::MAX - 1)
    }
}

/// As V8 has counted it: an array says where each line ends.
fn counted(memory: &dyn Memory, layout: &Layout, script: u64, at: u32) -> Option<u32> {
    let array = object(memory.word(script.wrapping_add(layout.line_ends.into()))?)?;
    kind(memory, layout, array).filter(|kind| *kind == layout.array_type)?;
    let length = memory.word(array.wrapping_add(layout.array_length.into())).and_then(number)?;
    let (mut low, mut high) = (0, Some(length).filter(|length| (1..ENDS).contains(length))?);
    while low < high {
        let middle = u32::midpoint(low, high);
        let place = u64::from(layout.array_first) + WORD * u64::from(middle);
        let end = memory.word(array.wrapping_add(place)).and_then(number)?;
        if end < at {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Some(low + 1)
}
