//! Go's own table of functions and lines, which the runtime needs and no `strip` takes away.
//!
//! In: the bytes of `.gopclntab`, versions 1.2, 1.16, 1.18 and 1.20, and an address. Out: the function there, those
//! inlined into it (from 1.18 on), their files and lines. Reads what a look-up needs; every step is bounded, whatever
//! the table says. Refuses to know where the table was found.
//!
//! Layouts: `debug/gosym` and `runtime/symtab.go` of the Go sources; <https://go.dev/s/go12symtab>.

mod named;

use std::cell::Cell;
use std::io;

pub use self::named::Named;

use crate::capture::tls::elf::Source;

/// Names longer than this are cut: generic functions of generic types can have any length.
const LONGEST: usize = 4096;
/// Steps along tables of values, for one address; a function of 64 KB has some thousand in each.
const STEPS: usize = 1 << 18;
/// Functions inlined into each other.
const DEPTH: usize = 64;
const FUNCTIONS: u64 = 1 << 24;
const INLINE_INDEX: u32 = 2;
const INLINE_TREE: u64 = 3;
const NONE: u32 = u32::MAX;

/// Which layout a table has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Version {
    /// Go 1.2 to 1.15.
    Go12,
    /// Go 1.16 and 1.17.
    Go116,
    /// Go 1.18 and 1.19.
    Go118,
    /// Go 1.20 and later.
    Go120,
}

/// One function at an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct GoLine {
    /// With its package path.
    pub function: String,
    /// Empty if not known.
    pub file: String,
    /// 0 if not known.
    pub line: u32,
    /// 0 if not known.
    pub start_line: u32,
}

/// The header of a table, its parts as offsets in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Table {
    version: Version,
    quantum: u64,
    n_functions: u64,
    /// What offsets of functions count from.
    text: u64,
    names: u64,
    units: u64,
    files: u64,
    values: u64,
    functions: u64,
}

/// Bytes at virtual addresses of the program, for the trees of inlined functions.
pub trait Memory {
    /// Fills `buffer` with what is at `offset` behind the beginning of `go:func.*`; `None` if it is not known.
    fn function_data(&self, offset: u64, buffer: &mut [u8]) -> Option<()>;
}

/// There is none.
#[derive(Debug, Clone, Copy)]
pub struct NoMemory;

impl Memory for NoMemory {
    fn function_data(&self, _: u64, _: &mut [u8]) -> Option<()> {
        None
    }
}

/// A function's fixed part.
struct Function {
    /// Where it is in the table.
    at: u64,
    entry: u64,
    unit: u32,
    /// That are left.
    steps: Cell<usize>,
}

impl Table {
    /// Reads the header. `text` is where Go's code begins, as the program's data says; 0 takes the header's word.
    pub fn read(source: &dyn Source, text: u64) -> Option<Self> {
        let mut head = [0; 72];
        let length = head.len().min(usize::try_from(source.length()).unwrap_or(usize::MAX));
        source.read_at(0, &mut head[..length]).ok()?;
        let version = match u32::from_le_bytes(*head.first_chunk()?) {
            0xffff_fffb => Version::Go12,
            0xffff_fffa => Version::Go116,
            0xffff_fff0 => Version::Go118,
            0xffff_fff1 => Version::Go120,
            _ => return None,
        };
        let quantum = head[6];
        let is_plain = head[4..6] == [0, 0] && matches!(quantum, 1 | 2 | 4) && head[7] == 8;
        if !is_plain {
            return None;
        }
        let word = |number: usize| {
            let bytes = head.get(8 + number * 8..)?.first_chunk()?;
            Some(u64::from_le_bytes(*bytes))
        };
        let n_functions = word(0).filter(|count| (1..FUNCTIONS).contains(count))?;
        let mut table = Self {
            version,
            quantum: quantum.into(),
            n_functions,
            text,
            names: 0,
            units: 0,
            files: 0,
            values: 0,
            functions: 0,
        };
        match version {
            Version::Go12 => {
                table.functions = 16;
                let files = 16 + (n_functions * 2 + 1) * 8;
                table.files = word32(source, files)?.into();
            }
            Version::Go116 => table.parts([word(2)?, word(3)?, word(4)?, word(5)?, word(6)?]),
            Version::Go118 | Version::Go120 => {
                table.parts([word(3)?, word(4)?, word(5)?, word(6)?, word(7)?]);
                if text == 0 {
                    table.text = word(2)?;
                }
            }
        }
        Some(table)
    }

    /// Its layout.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// Where its first function begins.
    pub fn first(&self, source: &dyn Source) -> Option<u64> {
        self.entry(source, 0)
    }

    /// Where the names begin, if the table does at `address`.
    #[must_use]
    pub fn names_at(&self, address: u64) -> u64 {
        address.wrapping_add(self.names)
    }

    fn parts(&mut self, [names, units, files, values, functions]: [u64; 5]) {
        (self.names, self.units, self.files, self.values) = (names, units, files, values);
        self.functions = functions;
    }

    /// What is at an address, the innermost function first; empty if none of Go's.
    pub fn lines(&self, source: &dyn Source, memory: &dyn Memory, address: u64) -> Vec<GoLine> {
        self.function(source, address)
            .and_then(|function| self.unfold(source, memory, &function, address))
            .unwrap_or_default()
    }

    /// The function that an address is in.
    fn function(&self, source: &dyn Source, address: u64) -> Option<Function> {
        if address < self.entry(source, 0)? || address >= self.entry(source, self.n_functions)? {
            return None;
        }
        let (mut low, mut high) = (0, self.n_functions);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if self.entry(source, middle)? <= address {
                low = middle;
            } else {
                high = middle;
            }
        }
        let at = self.record(source, low)?;
        let entry = match self.version {
            Version::Go12 | Version::Go116 => word64(source, at)?,
            _ => self.text.wrapping_add(word32(source, at)?.into()),
        };
        let unit = if self.version >= Version::Go116 { self.field(source, at, 8)? } else { 0 };
        Some(Function { at, entry, unit, steps: Cell::new(STEPS) })
    }

    /// Where the fixed part of a function is in the table.
    fn record(&self, source: &dyn Source, number: u64) -> Option<u64> {
        let offset = match self.version {
            Version::Go12 | Version::Go116 => word64(source, self.functions.checked_add(number * 16 + 8)?)?,
            _ => word32(source, self.functions.checked_add(number * 8 + 4)?)?.into(),
        };
        let base = if self.version == Version::Go12 { 0 } else { self.functions };
        base.checked_add(offset)
    }

    fn entry(&self, source: &dyn Source, number: u64) -> Option<u64> {
        match self.version {
            Version::Go12 | Version::Go116 => word64(source, self.functions.checked_add(number * 16)?),
            _ => {
                let offset = word32(source, self.functions.checked_add(number * 8)?)?;
                Some(self.text.wrapping_add(offset.into()))
            }
        }
    }

    /// Field of 32 bits behind the entry, from 1.
    fn field(&self, source: &dyn Source, at: u64, number: u64) -> Option<u32> {
        let first = if self.version <= Version::Go116 { 8 } else { 4 };
        word32(source, at.checked_add(first + (number - 1) * 4)?)
    }

    fn unfold(
        &self,
        source: &dyn Source,
        memory: &dyn Memory,
        function: &Function,
        address: u64,
    ) -> Option<Vec<GoLine>> {
        let mut lines = Vec::new();
        let mut at = address;
        while lines.len() < DEPTH {
            let Some(inlined) = self.inlined(source, memory, function, at) else { break };
            let (file, line) = self.place(source, function, at);
            let name = text(source, self.names.checked_add(inlined.name.into())?)?;
            lines.push(GoLine { function: name, file, line, start_line: inlined.start_line });
            let caller = function.entry.wrapping_add(inlined.caller.into());
            if caller == at {
                break;
            }
            at = caller;
        }
        let (file, line) = self.place(source, function, at);
        let name = self.field(source, function.at, 1)?;
        let start_line = match self.version {
            Version::Go120 => self.field(source, function.at, 9)?,
            _ => 0,
        };
        let name = text(source, self.names.checked_add(name.into())?)?;
        lines.push(GoLine { function: name, file, line, start_line });
        Some(lines)
    }

    fn place(&self, source: &dyn Source, function: &Function, address: u64) -> (String, u32) {
        let value = |field| self.value(source, self.field(source, function.at, field)?, function, address);
        let file = value(5).and_then(|number| self.file(source, function, number));
        let line = value(6).and_then(|line| u32::try_from(line).ok());
        match (file, line) {
            (Some(file), Some(line)) => (file, line),
            _ => (String::new(), 0),
        }
    }

    fn file(&self, source: &dyn Source, function: &Function, number: i32) -> Option<String> {
        let number = u64::try_from(number).ok()?;
        if self.version == Version::Go12 {
            let offset = word32(source, self.files.checked_add(number * 4)?)?;
            return text(source, offset.into());
        }
        let at = (u64::from(function.unit) + number) * 4;
        let offset = word32(source, self.units.checked_add(at)?)?;
        (offset != NONE).then(|| text(source, self.files.checked_add(offset.into())?))?
    }

    fn inlined(
        &self,
        source: &dyn Source,
        memory: &dyn Memory,
        function: &Function,
        address: u64,
    ) -> Option<Inlined> {
        let fixed = match self.version {
            Version::Go118 => 40,
            Version::Go120 => 44,
            _ => return None,
        };
        let n_values = self.field(source, function.at, 7)?;
        let mut n_data = [0];
        source.read_at(function.at.checked_add(fixed - 1)?, &mut n_data).ok()?;
        if n_values <= INLINE_INDEX || u64::from(n_data[0]) <= INLINE_TREE {
            return None;
        }
        let values = function.at.checked_add(fixed)?;
        let index = word32(source, values.checked_add(u64::from(INLINE_INDEX) * 4)?)?;
        let tree = word32(source, values.checked_add((u64::from(n_values) + INLINE_TREE) * 4)?)?;
        if index == 0 || tree == NONE {
            return None;
        }
        let index = u64::try_from(self.value(source, index, function, address)?).ok()?;
        let mut record = [0; 20];
        let size = if self.version == Version::Go118 { 20 } else { 16 };
        memory.function_data(u64::from(tree) + index * size as u64, &mut record[..size])?;
        let word =
            |at: usize| u32::from_le_bytes([record[at], record[at + 1], record[at + 2], record[at + 3]]);
        if self.version == Version::Go120 && record[1..4] != [0; 3] {
            return None;
        }
        Some(match self.version {
            Version::Go118 => Inlined { name: word(12), caller: word(16), start_line: 0 },
            _ => Inlined { name: word(4), caller: word(8), start_line: word(12) },
        })
    }

    /// The value of a table at an address: runs of (change of value, length in instructions).
    fn value(&self, source: &dyn Source, table: u32, function: &Function, address: u64) -> Option<i32> {
        if table == 0 {
            return None;
        }
        let mut at = self.values.checked_add(table.into())?;
        let (mut value, mut end) = (-1_i32, function.entry);
        let mut is_first = true;
        loop {
            function.steps.set(function.steps.get().checked_sub(1)?);
            let change = number(source, &mut at)?;
            if change == 0 && !is_first {
                return None;
            }
            is_first = false;
            // Zigzag: the lowest bit is the sign.
            value = value.wrapping_add((change >> 1).cast_signed() ^ -(change & 1).cast_signed());
            end = end.wrapping_add(u64::from(number(source, &mut at)?) * self.quantum);
            if address < end {
                return Some(value);
            }
        }
    }
}

struct Inlined {
    name: u32,
    /// Where it was called, from the entry of the function that it is in.
    caller: u32,
    start_line: u32,
}

fn word32(source: &dyn Source, at: u64) -> Option<u32> {
    let mut bytes = [0; 4];
    source.read_at(at, &mut bytes).ok()?;
    Some(u32::from_le_bytes(bytes))
}

fn word64(source: &dyn Source, at: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    source.read_at(at, &mut bytes).ok()?;
    Some(u64::from_le_bytes(bytes))
}

/// LEB128, 32 bits.
fn number(source: &dyn Source, at: &mut u64) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let mut byte = [0];
        source.read_at(*at, &mut byte).ok()?;
        *at += 1;
        value |= u32::from(byte[0] & 0x7f).checked_shl(shift).unwrap_or_default();
        if byte[0] & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Up to the next zero byte.
fn text(source: &dyn Source, at: u64) -> Option<String> {
    let mut out = Vec::new();
    let mut chunk = [0; 64];
    let mut at = at;
    while out.len() < LONGEST {
        let left = source.length().checked_sub(at).filter(|left| *left > 0)?;
        let length = chunk.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        read(source, at, &mut chunk[..length]).ok()?;
        let end = chunk[..length].iter().position(|byte| *byte == 0);
        out.extend_from_slice(&chunk[..end.unwrap_or(length)]);
        if end.is_some() {
            break;
        }
        at += length as u64;
    }
    Some(String::from_utf8_lossy(&out).into_owned())
}

fn read(source: &dyn Source, at: u64, buffer: &mut [u8]) -> io::Result<()> {
    source.read_at(at, buffer)
}

#[cfg(test)]
mod tests;
