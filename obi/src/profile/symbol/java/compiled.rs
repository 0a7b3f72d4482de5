//! What HotSpot has inlined where it has compiled.
//!
//! In: an address of code, as a sample has it, and a process's memory. Out: [`Scopes`]: methods, the innermost first,
//! each with where in its bytecode it is. That the outermost is the method which the code itself names proves all.
//! Everything there may be anything: rows, depth and steps are bounded. Refuses to know names.

use super::number::Numbers;
use crate::capture::guest::Memory;
use crate::capture::guest::hotspot::{Compiled, Layout, Parts};

/// Where a frame of compiled code is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CompiledFrame {
    /// The next instruction.
    pub address: u64,
    /// The lowest bits of its compilation's number.
    pub compilation: u16,
    /// It runs there; else it waits for a call.
    pub is_exact: bool,
}

/// What is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scopes {
    /// The method that the code was compiled for.
    pub method: u64,
    /// Methods, the innermost first, with where in its bytecode each is.
    pub methods: Vec<(u64, Option<u32>)>,
}

/// Steps in the map of segments; rows; scopes in each other.
const STEPS: usize = 64;
const ROWS: u64 = 16_384;
const DEPTH: usize = 64;
/// Bytes of a scope that are looked at: three numbers.
const SCOPE: usize = 16;
const FREE: u8 = 0xff;
const WORD: u64 = 8;

impl CompiledFrame {
    /// What describes the code that it is in, and the method that this was compiled for.
    fn code(&self, memory: &dyn Memory, compiled: &Compiled) -> Option<(u64, u64)> {
        let address = self.address.wrapping_sub(u64::from(!self.is_exact));
        let blob = blob(memory, compiled, address)?;
        let at = |offset: u16| blob.wrapping_add(offset.into());
        let is_method =
            memory.integer(at(compiled.header_size))? & 0xffff == u32::from(compiled.method_header);
        let size = memory.integer(at(compiled.size))?;
        let compilation = memory.integer(at(compiled.compile_id))?;
        let method = memory.word(at(compiled.method))?;
        let is_same = compilation as u16 & COMPILATION == self.compilation;
        (is_method && is_same && address.wrapping_sub(blob) < size.into()).then_some((blob, method))
    }

    /// What is inlined there.
    #[must_use]
    pub fn scopes(&self, memory: &dyn Memory, layout: &Layout) -> Option<Scopes> {
        let compiled = layout.compiled.as_ref()?;
        let (blob, method) = self.code(memory, compiled)?;
        let parts = Found::of(memory, compiled, blob)?;
        let begin = compiled.begin(memory, blob)?;
        let scope = parts.row(memory, compiled, self, self.address.checked_sub(begin)?)?;
        let methods = parts.methods_of(memory, scope, layout.excludes_zero)?;
        let is_proven = methods.last().is_some_and(|(outermost, _)| *outermost == method);
        is_proven.then_some(Scopes { method, methods })
    }
}

/// Bits of a compilation's number that a sample has.
pub const COMPILATION: u16 = (1 << 10) - 1;

impl Compiled {
    fn begin(&self, memory: &dyn Memory, blob: u64) -> Option<u64> {
        let at = blob.wrapping_add(self.code_begin.into());
        match self.begin_is_offset {
            true => Some(blob.wrapping_add(memory.integer(at)?.into())),
            false => memory.word(at),
        }
    }
}

fn blob(memory: &dyn Memory, compiled: &Compiled, address: u64) -> Option<u64> {
    let (start, _, segments) =
        *compiled.heaps.iter().find(|(start, bytes, _)| address.wrapping_sub(*start) < *bytes)?;
    let mut segment = (address - start) >> compiled.segment_bits;
    for _ in 0..STEPS {
        let mut back = [0];
        if !memory.read(segments.wrapping_add(segment), &mut back) || back[0] == FREE {
            return None;
        }
        if back[0] == 0 {
            let first = start.wrapping_add(segment << compiled.segment_bits);
            return Some(first.wrapping_add(compiled.block.into()));
        }
        segment = segment.checked_sub(back[0].into())?;
    }
    None
}

/// Where the parts of one are.
struct Found {
    rows: u64,
    end: u64,
    scopes: u64,
    methods: u64,
}

impl Found {
    fn of(memory: &dyn Memory, compiled: &Compiled, blob: u64) -> Option<Self> {
        let at = |offset: u16| blob.wrapping_add(offset.into());
        let integer = |offset: u16| memory.integer(at(offset)).map(u64::from);
        Some(match compiled.parts {
            Parts::Behind { rows: [rows, end], scopes, methods } => Self {
                rows: blob.wrapping_add(integer(rows)?),
                end: blob.wrapping_add(integer(end)?),
                scopes: memory.word(at(scopes))?,
                methods: blob.wrapping_add(integer(methods)?),
            },
            Parts::Apart { fixed, rows, scopes, changing, methods } => {
                let (fixed, changing) = (memory.word(at(fixed))?, memory.word(at(changing))?);
                let scopes = fixed.wrapping_add(integer(scopes)?);
                let methods = changing.wrapping_add(integer(methods)?);
                Self { rows: fixed.wrapping_add(integer(rows)?), end: scopes, scopes, methods }
            }
        })
    }

    /// The scope of an instruction that is so far behind the first. Rows stand at places that can be stopped at; of one
    /// that runs, the next of these counts.
    fn row(&self, memory: &dyn Memory, compiled: &Compiled, place: &CompiledFrame, at: u64) -> Option<u64> {
        let row = u64::from(compiled.row);
        let n = self.end.checked_sub(self.rows)? / row;
        let n = Some(n).filter(|n| *n <= ROWS)?;
        let field = |index: u64, offset: u16| {
            memory.integer(self.rows.wrapping_add(index * row).wrapping_add(offset.into()))
        };
        let (mut low, mut high) = (0, n);
        while low < high {
            let middle = low.midpoint(high);
            // The first is before everything.
            let of_row = i64::from(field(middle, compiled.row_address)?.cast_signed());
            if of_row < i64::try_from(at).ok()? { low = middle + 1 } else { high = middle }
        }
        let is_there = low < n && (place.is_exact || u64::from(field(low, compiled.row_address)?) == at);
        let scope = is_there.then(|| field(low, compiled.row_scope))??;
        (scope > 0).then_some(scope.into())
    }

    fn methods_of(
        &self,
        memory: &dyn Memory,
        scope: u64,
        excludes_zero: bool,
    ) -> Option<Vec<(u64, Option<u32>)>> {
        let (mut scope, mut methods) = (scope, Vec::new());
        while scope > 0 && methods.len() < DEPTH {
            let mut bytes = [0; SCOPE];
            let at = self.scopes.wrapping_add(scope);
            if !memory.read(at, &mut bytes) {
                return None;
            }
            let mut numbers = Numbers { bytes: bytes.into_iter(), excludes_zero };
            let (sender, method, position) = (numbers.next()?, numbers.next()?, numbers.next()?);
            let index = u64::from(method).checked_sub(1)?;
            let method = memory.word(self.methods.wrapping_add(WORD.wrapping_mul(index)))?;
            // -1 is before the first.
            methods.push((method, position.checked_sub(1)));
            // Those around stand before those inside.
            if u64::from(sender) >= scope {
                return None;
            }
            scope = sender.into();
        }
        (scope == 0 && !methods.is_empty()).then_some(methods)
    }
}

#[cfg(test)]
#[path = "compiled_tests.rs"]
mod tests;
