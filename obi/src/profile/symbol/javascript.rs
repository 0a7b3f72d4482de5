//! Functions of JavaScript, as V8 has them.
//!
//! In: where a process has what functions of the same text share. Out: [`Code`]: name, file, the line where the
//! function begins. That object leads to the function's scope, or to its name alone, and to its script. The types of
//! all of them prove the way. V8 moves objects, so what is read at once may be gone a moment later: another object
//! of the same type with other contents is another function. Everything there may be anything: lengths are bounded.
//! Refuses to know where such an address comes from.

mod lines;
mod text;

use std::sync::Arc;

pub use lines::{Lines, Sources};

use super::function::Unnamed;
use crate::capture::guest::Memory;
use crate::capture::guest::v8::Layout;
use crate::profile::{Fidelity, Line, Runtime, Symbol};

/// What is shared by functions of the same text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Code {
    /// As V8 calls it in a trace: its own, or that of what it was assigned to.
    pub name: Arc<str>,
    /// Of its script, as the program gave it to V8; empty for functions of the language.
    pub file: Arc<str>,
    /// Where it begins; 0: not known.
    pub line: u32,
    head: Head,
}

/// While these are the same, it is the same function; objects may move, so another may have the same contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    scope: u64,
    script: u64,
}

/// What a scope says of its function.
#[derive(Debug, Default)]
struct Scope {
    name: Option<String>,
    /// In the script's text, in characters.
    start: Option<u32>,
}

/// What functions without a name are called.
pub const ANONYMOUS: &str = "(anonymous)";
/// Characters of a name, and of a path.
const NAME: usize = 512;
const PATH: usize = 4096;
const WORD: u64 = 8;
/// Variables of a scope whose names stand in it; where there are more they stand elsewhere.
const LOCALS: u32 = 75;
const MOST_LOCALS: u32 = 1 << 16;
/// In a scope, counted in words, where it does not have it behind its names: since when there are so many before these.
const START: u64 = 3;
const HAS_START: u16 = 5;

impl Code {
    /// Reads what is at an address.
    ///
    /// # Errors
    /// When its memory has gone, or something else is there.
    pub fn read(
        memory: &dyn Memory,
        layout: &Layout,
        sources: &Sources,
        address: u64,
    ) -> Result<Self, Unnamed> {
        let head = Head::read(memory, layout, address)?;
        let scope = head.scope(memory, layout).ok_or(Unnamed::NoCode)?;
        let script = object(head.script);
        let script = script.filter(|script| kind(memory, layout, *script) == Some(layout.script_type));
        let of_script = |offset: u16| memory.word(script?.wrapping_add(offset.into()));
        let file = of_script(layout.script_name).and_then(|name| text::text(memory, layout, name, PATH));
        let line = script.zip(scope.start);
        let line = line.and_then(|(script, start)| sources.line(memory, layout, script, start));
        let name = scope.name.filter(|name| !name.is_empty()).unwrap_or_else(|| ANONYMOUS.into());
        let file = file.unwrap_or_default();
        Ok(Self { name: name.into(), file: path(&file).into(), line: line.unwrap_or_default(), head })
    }

    /// Whether it is still the one at the address.
    #[must_use]
    pub fn is_at(&self, memory: &dyn Memory, layout: &Layout, sources: &Sources, address: u64) -> bool {
        match Head::read(memory, layout, address) {
            Ok(head) if head == self.head => true,
            // All of it may have moved.
            Ok(_) => Self::read(memory, layout, sources, address)
                .is_ok_and(|now| (&now.name, &now.file, now.line) == (&self.name, &self.file, self.line)),
            // What cannot be read any more was it to the end.
            Err(error) => error == Unnamed::Gone,
        }
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.name.len() + self.file.len()
    }

    /// What a frame of it is called.
    #[must_use]
    pub fn symbol(&self) -> Symbol {
        let line = Line {
            function: Arc::clone(&self.name),
            file: Arc::clone(&self.file),
            start_line: self.line,
            ..Line::default()
        };
        Symbol { lines: vec![line], fidelity: Fidelity::Function, runtime: Runtime::V8 }
    }
}

impl Head {
    fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, Unnamed> {
        let word = |offset: u16| memory.word(address.wrapping_add(offset.into())).ok_or(Unnamed::Gone);
        word(0)?;
        if kind(memory, layout, address) != Some(layout.shared_type) {
            return Err(Unnamed::NoCode);
        }
        Ok(Self { scope: word(layout.name)?, script: word(layout.script)? })
    }

    /// `None`: there is something else.
    fn scope(self, memory: &dyn Memory, layout: &Layout) -> Option<Scope> {
        // A number: it has neither.
        let Some(scope) = object(self.scope) else { return (self.scope & 1 == 0).then(Scope::default) };
        let kind = kind(memory, layout, scope)?;
        if kind == layout.scope_type {
            return Scope::read(memory, layout, scope);
        }
        // One that was not compiled yet, or of the language's own, has a name only.
        let name = text::text(memory, layout, self.scope, NAME)?;
        Some(Scope { name: Some(name), start: None })
    }
}

impl Scope {
    /// Behind the names of variables stand two words for each, or one for all of them, then the function's own name,
    /// what is done with it, the name of what it was assigned to; where it begins stands before all names, or behind.
    fn read(memory: &dyn Memory, layout: &Layout, scope: u64) -> Option<Self> {
        let word = |index: u64| memory.word(scope.wrapping_add(WORD).wrapping_add(WORD.wrapping_mul(index)));
        let n_locals = number(word(layout.n_locals.into())?).filter(|n| *n < MOST_LOCALS)?;
        let locals = if n_locals < LOCALS { 2 * n_locals } else { n_locals + 1 };
        let first = u64::from(layout.first_local) + u64::from(locals);
        // Where the function itself is kept; negative: nowhere, as of most.
        (word(first + 1)? & 0xffff_ffff == 0).then_some(())?;
        let named = |index| text::text(memory, layout, word(index)?, NAME).filter(|name| !name.is_empty());
        let start = if layout.first_local < HAS_START { first + 3 } else { START };
        let (start, end) = (number(word(start)?)?, number(word(start + 1)?)?);
        let name = named(first).or_else(|| named(first + 2));
        (start <= end).then_some(Self { name, start: Some(start) })
    }
}

/// Where an object begins that this refers to.
fn object(reference: u64) -> Option<u64> {
    (reference & 3 == 1).then(|| reference - 1)
}

/// An integer that is not negative.
fn number(word: u64) -> Option<u32> {
    let number = (word >> 32) as u32;
    (word & 0xffff_ffff == 0 && number.cast_signed() >= 0).then_some(number)
}

/// The type of the object at an address.
fn kind(memory: &dyn Memory, layout: &Layout, object: u64) -> Option<u16> {
    let map = self::object(memory.word(object)?)?;
    let mut bytes = [0; 2];
    let is_read = memory.read(map.wrapping_add(layout.instance_type.into()), &mut bytes);
    is_read.then(|| u16::from_le_bytes(bytes))
}

/// Modules are called by addresses of files.
fn path(name: &str) -> &str {
    name.strip_prefix("file://").filter(|path| path.starts_with('/')).unwrap_or(name)
}

#[cfg(test)]
mod tests;
