//! Methods of HotSpot.
//!
//! In: the address of a method in a process's memory. Out: [`Method`]s: class and name, source file, lines. A method
//! leads to what of it never changes, that to its class's constants, these to the class and to texts. That the
//! constants it names are texts, and that its signature is one, proves all of it. Everything there may be anything:
//! lengths are bounded. Refuses to know where such an address comes from.

mod compiled;
mod lines;
mod number;

use std::sync::Arc;

pub use compiled::{COMPILATION, CompiledFrame, Scopes};
pub use lines::Lines;

use super::function::Unnamed;
use crate::capture::guest::Memory;
use crate::capture::guest::hotspot::Layout;
use crate::profile::{Fidelity, Line, Runtime, Symbol};

/// What a method says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Method {
    /// With its class: `shop.Cart.pay`.
    pub name: Arc<str>,
    /// As the compiler was given it, without its folder; empty if it did not say.
    pub file: Arc<str>,
    lines: Lines,
    head: Head,
}

/// Another method at the same address has another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Head {
    const_method: u64,
    constants: u64,
    holder: u64,
    code_size: u16,
    name: u16,
    signature: u16,
}

/// Bytes of a name.
const NAME: usize = 512;
/// Of a constant that is a text.
const TEXT: u8 = 1;
const WORD: u64 = 8;

impl Method {
    /// Reads the method at an address.
    ///
    /// # Errors
    /// When its memory has gone, or something else is there.
    pub fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, Unnamed> {
        let head = Head::read(memory, layout, address)?;
        let class = memory.word(head.holder.wrapping_add(layout.class_name.into())).ok_or(Unnamed::NoCode)?;
        let class = symbol(memory, layout, class).filter(|class| is_class(class)).ok_or(Unnamed::NoCode)?;
        let name = head.text(memory, layout, head.name).ok_or(Unnamed::NoCode)?;
        let signature = head.text(memory, layout, head.signature);
        signature.filter(|signature| signature.starts_with('(')).ok_or(Unnamed::NoCode)?;
        let file = head.source(memory, layout).unwrap_or_default();
        let lines = head.lines(memory, layout).unwrap_or_default();
        Ok(Self { name: shown(&class, &name).into(), file: file.into(), lines, head })
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

    /// What a frame of it is called, whose bytecode is at this position.
    #[must_use]
    pub fn symbol(&self, position: Option<u32>) -> Symbol {
        symbol_of(vec![self.line(position)])
    }

    fn line(&self, position: Option<u32>) -> Line {
        Line {
            function: Arc::clone(&self.name),
            file: Arc::clone(&self.file),
            line: position.and_then(|position| self.lines.at(position)).unwrap_or_default(),
            start_line: self.lines.first(),
            ..Line::default()
        }
    }
}

fn symbol_of(lines: Vec<Line>) -> Symbol {
    let has_line = lines.first().is_some_and(|line| line.line > 0);
    let fidelity = if has_line { Fidelity::Lines } else { Fidelity::Function };
    Symbol { lines, fidelity, runtime: Runtime::Jvm }
}

/// A place in compiled code, with all methods that are inlined there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Inlined {
    /// The innermost first.
    lines: Vec<Line>,
    outermost: Head,
}

impl Inlined {
    /// Reads what is inlined at a place of the code of a method. `None`: that is not known, or it is other code now.
    #[must_use]
    pub fn read(memory: &dyn Memory, layout: &Layout, place: CompiledFrame, method: u64) -> Option<Self> {
        let scopes = place.scopes(memory, layout).filter(|scopes| scopes.method == method)?;
        let mut lines = Vec::new();
        for (method, position) in scopes.methods {
            lines.push(Method::read(memory, layout, method).ok()?.line(position));
        }
        Some(Self { lines, outermost: Head::read(memory, layout, method).ok()? })
    }

    /// Whether its method is still the one at the address: a sample says which compilation of it is meant.
    #[must_use]
    pub fn is_at(&self, memory: &dyn Memory, layout: &Layout, address: u64) -> bool {
        Head::read(memory, layout, address)
            .map_or_else(|error| error == Unnamed::Gone, |head| head == self.outermost)
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        let of = |line: &Line| size_of::<Line>() + line.function.len() + line.file.len();
        size_of::<Self>() + self.lines.iter().map(of).sum::<usize>()
    }

    /// What its frame is called.
    #[must_use]
    pub fn symbol(&self) -> Symbol {
        symbol_of(self.lines.clone())
    }
}

impl Head {
    fn read(memory: &dyn Memory, layout: &Layout, address: u64) -> Result<Self, Unnamed> {
        let word = |address: u64, offset: u16| memory.word(address.wrapping_add(offset.into()));
        let const_method = word(address, layout.const_method).ok_or(Unnamed::Gone)?;
        let constants = word(const_method, layout.constants).ok_or(Unnamed::NoCode)?;
        let holder = word(constants, layout.holder).ok_or(Unnamed::NoCode)?;
        let short = |offset| short(memory, const_method, offset).ok_or(Unnamed::NoCode);
        let (code_size, name) = (short(layout.code_size)?, short(layout.name)?);
        Ok(Self { const_method, constants, holder, code_size, name, signature: short(layout.signature)? })
    }

    /// The constant of this number, if it is a text.
    fn text(&self, memory: &dyn Memory, layout: &Layout, index: u16) -> Option<String> {
        let at = |offset: u16| self.constants.wrapping_add(offset.into());
        let length = memory.integer(at(layout.length))?;
        let tags = memory.word(at(layout.tags))?.wrapping_add(layout.array_bytes.into());
        let mut tag = [0];
        if index == 0 || u32::from(index) >= length || !memory.read(tags.wrapping_add(index.into()), &mut tag)
        {
            return None;
        }
        let constant = at(layout.first).wrapping_add(WORD * u64::from(index));
        if tag[0] == TEXT { symbol(memory, layout, memory.word(constant)?) } else { None }
    }

    fn source(&self, memory: &dyn Memory, layout: &Layout) -> Option<String> {
        let object = if layout.source_is_of_class { self.holder } else { self.constants };
        let index = short(memory, object, layout.source)?;
        self.text(memory, layout, index)
    }

    fn lines(&self, memory: &dyn Memory, layout: &Layout) -> Option<Lines> {
        let flags = memory.integer(self.const_method.wrapping_add(layout.flags.into()))?;
        if flags & layout.has_lines == 0 {
            return None;
        }
        let code = self.const_method.wrapping_add(layout.bytecode.into());
        let at = code.wrapping_add(self.code_size.into());
        Some(Lines::read(memory, at, layout.excludes_zero))
    }
}

fn short(memory: &dyn Memory, address: u64, offset: u16) -> Option<u16> {
    let mut bytes = [0; 2];
    memory.read(address.wrapping_add(offset.into()), &mut bytes).then(|| u16::from_le_bytes(bytes))
}

/// A symbol's text. Java writes characters beyond the first 65,536 as two halves, and 0 as two bytes.
fn symbol(memory: &dyn Memory, layout: &Layout, address: u64) -> Option<String> {
    let length = usize::from(short(memory, address, layout.symbol_length)?);
    let mut bytes = vec![0; length.min(NAME)];
    if length == 0 || !memory.read(address.wrapping_add(layout.symbol_bytes.into()), &mut bytes) {
        return None;
    }
    let text = String::from_utf8_lossy(&bytes);
    Some(text.replace(char::is_control, "\u{fffd}"))
}

/// What a class is called inside: names with slashes between, none of them empty.
fn is_class(text: &str) -> bool {
    text.split('/').all(|part| !part.is_empty() && !part.contains([';', '[', '.']))
}

/// As people write it. A hidden class has an address in its name, which is another one in each run.
fn shown(class: &str, name: &str) -> String {
    let class = class.split("+0x").next().unwrap_or_default();
    let class = class.split("/0x").next().unwrap_or_default();
    format!("{}.{name}", class.replace('/', "."))
}

#[cfg(test)]
mod tests;
