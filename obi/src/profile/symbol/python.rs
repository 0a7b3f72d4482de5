//! Functions of CPython.
//!
//! In: the address of a code object in a process's memory. Out: [`Code`]: name, file, lines. Everything there may be
//! anything: lengths are bounded, and what is no code object is refused. Refuses to know where such an address comes
//! from.

mod lines;

use std::sync::Arc;

pub use lines::Lines;

use super::function::Unnamed;
use crate::capture::guest::Memory;
use crate::capture::guest::python::Layout;
use crate::profile::{Fidelity, Line, Runtime, Symbol};

/// What a code object says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// With its class and the functions around it, where the version has that.
    pub name: Arc<str>,
    /// As the interpreter was given it.
    pub file: Arc<str>,
    /// Where the function begins.
    pub first_line: u32,
    lines: Lines,
    head: Head,
    /// Of its first instruction, in units.
    start: u32,
}

/// Another function at the same address has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    name: u64,
    file: u64,
    lines: u64,
    first_line: u32,
}

/// Characters of a name, of a path.
const NAME: usize = 256;
const PATH: usize = 1024;
/// Bytes of a table of lines.
const TABLE: usize = 64 * 1024;
/// Of any object: its type; of one with a length, that.
const TYPE: u64 = 8;
const LENGTH: u64 = 16;
/// Of `bytes`: the first of them.
const BYTES: u64 = 32;
/// Of a string: its state.
const STATE: u64 = 32;

impl Code {
    /// Reads the code object at an address.
    ///
    /// # Errors
    /// When its memory has gone, or something else is there.
    pub fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, Unnamed> {
        let head = Head::read(memory, layout, address)?;
        let minor = layout.version.minor;
        let name = text(memory, layout, head.name, NAME).ok_or(Unnamed::NoCode)?;
        let file = text(memory, layout, head.file, PATH).ok_or(Unnamed::NoCode)?;
        let lines = Lines::read(minor, &table(memory, head.lines).unwrap_or_default(), head.first_line);
        let (name, file) = (name.into(), file.into());
        Ok(Self { name, file, first_line: head.first_line, lines, head, start: u32::from(layout.code) / 2 })
    }

    /// Whether it is still the one at the address.
    #[must_use]
    pub fn is_at(&self, memory: &dyn Memory, layout: &Layout, address: u64) -> bool {
        // What cannot be read any more was it to the end.
        Head::read(memory, layout, address)
            .map_or_else(|error| error == Unnamed::Gone, |head| head == self.head)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len() + self.lines.bytes()
    }

    /// What a frame of it is called, whose instruction is at this position.
    #[must_use]
    pub fn symbol(&self, position: Option<u32>) -> Symbol {
        // Before its first instruction it is being entered.
        let line = position.and_then(|position| match position.checked_sub(self.start) {
            Some(unit) => self.lines.at(unit),
            None => Some(self.first_line),
        });
        let line = line.unwrap_or_default();
        let function = Line {
            function: Arc::clone(&self.name),
            file: Arc::clone(&self.file),
            line,
            start_line: self.first_line,
            ..Line::default()
        };
        let fidelity = if line > 0 { Fidelity::Lines } else { Fidelity::Function };
        Symbol { lines: vec![function], fidelity, runtime: Runtime::Cpython }
    }
}

impl Head {
    fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, Unnamed> {
        let kind = memory.word(address.wrapping_add(TYPE)).ok_or(Unnamed::Gone)?;
        if kind != layout.code_type {
            return Err(Unnamed::NoCode);
        }
        let word = |offset: u16| memory.word(address.wrapping_add(offset.into())).ok_or(Unnamed::Gone);
        let name = word(if layout.qualified > 0 { layout.qualified } else { layout.name })?;
        let first_line =
            memory.integer(address.wrapping_add(layout.first_line.into())).ok_or(Unnamed::Gone)?;
        Ok(Self { name, file: word(layout.file)?, lines: word(layout.lines)?, first_line })
    }
}

/// A string object's characters, `most` of them. References to it may be tagged.
fn text(memory: &dyn Memory, layout: &Layout, address: u64, most: usize) -> Option<String> {
    let address = address & !7;
    let length = memory.word(address.wrapping_add(LENGTH))?;
    let state = memory.integer(address.wrapping_add(STATE))? >> layout.kind_shift;
    let (width, is_compact, is_ascii) = ((state & 7) as usize, state & 8 != 0, state & 16 != 0);
    if !is_compact || ![1, 2, 4].contains(&width) || (is_ascii && width != 1) {
        return None;
    }
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let start = if is_ascii { layout.ascii } else { layout.compact };
    let mut bytes = vec![0; length.min(most) * width];
    if !memory.read(address.wrapping_add(start.into()), &mut bytes) {
        return None;
    }
    let character = |bytes: &[u8]| {
        let number = bytes.iter().rev().fold(0, |number, byte| number << 8 | u32::from(*byte));
        char::from_u32(number)
            .filter(|character| !character.is_control())
            .unwrap_or(char::REPLACEMENT_CHARACTER)
    };
    let text: String = bytes.chunks_exact(width).map(character).collect();
    (!text.is_empty()).then_some(text)
}

/// A `bytes` object's bytes; none where there are more than a function has.
fn table(memory: &dyn Memory, address: u64) -> Option<Vec<u8>> {
    let length = usize::try_from(memory.word(address.wrapping_add(LENGTH))?).ok()?;
    let mut bytes = vec![0; Some(length).filter(|length| *length <= TABLE)?];
    memory.read(address.wrapping_add(BYTES), &mut bytes).then_some(bytes)
}

#[cfg(test)]
mod tests;
