//! Machine code that a program made while running, by address.
//!
//! In: pieces of code as they are loaded, moved and replaced, with names and lines. Out: the one that an address is in.
//! What is loaded later takes the place of what was there. Bounded: beyond it, new pieces are counted and left out.
//! Refuses to know who says so.

use std::collections::BTreeMap;

use crate::profile::Runtime;

/// Of one process.
pub const MOST_BYTES: usize = 16 * 1024 * 1024;
const PIECE_BYTES: usize = 96;
const LINE_BYTES: usize = 16;

/// A function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Piece {
    /// As its runtime calls it.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Offset in it and line from there on, sorted; empty if not known.
    pub lines: Vec<(u32, u32)>,
    /// Source file of its lines.
    pub file: String,
}

/// What is in memory now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Code {
    pieces: BTreeMap<u64, Piece>,
    bytes: usize,
    left_out: u64,
    /// Changes with every change.
    changes: u64,
}

/// A line of a piece: where it begins, its number, its file.
pub type CodeLine = (u64, u32, String);

impl Code {
    /// New code, with its lines in order of their addresses.
    pub fn load(&mut self, start: u64, size: u64, name: &str, lines: &[CodeLine]) {
        self.clear(start, size);
        let file = lines.first().map(|(_, _, file)| file.clone()).unwrap_or_default();
        let lines: Vec<(u32, u32)> = { lines.iter() }
            .filter_map(|(at, line, _)| Some((u32::try_from(at.checked_sub(start)?).ok()?, *line)))
            .collect();
        let piece = Piece { name: name.to_owned(), size, lines, file };
        if self.bytes + bytes(&piece) > MOST_BYTES {
            self.left_out += 1;
            return;
        }
        self.bytes += bytes(&piece);
        self.changes += 1;
        self.pieces.insert(start, piece);
    }

    /// The same code elsewhere.
    pub fn shift(&mut self, from: u64, to: u64) {
        if let Some(piece) = self.remove(from) {
            self.clear(to, piece.size);
            self.bytes += bytes(&piece);
            self.pieces.insert(to, piece);
        }
    }

    /// The function at an address.
    #[must_use]
    pub fn find(&self, address: u64) -> Option<&Piece> {
        let (start, piece) = self.pieces.range(..=address).next_back()?;
        (address - start < piece.size).then_some(piece)
    }

    /// Source line at an address, 0 if not known.
    #[must_use]
    pub fn line(&self, address: u64) -> u32 {
        let Some((start, piece)) = self.pieces.range(..=address).next_back() else { return 0 };
        if address - start >= piece.size {
            return 0;
        }
        let offset = u32::try_from(address - start).unwrap_or(u32::MAX);
        let next = piece.lines.partition_point(|(at, _)| *at <= offset);
        next.checked_sub(1).map_or(0, |at| piece.lines[at].1)
    }

    /// A number that shows whether anything has changed.
    #[must_use]
    pub fn changes(&self) -> u64 {
        self.changes
    }

    /// Memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Pieces that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out
    }

    /// Whatever overlaps is gone.
    fn clear(&mut self, start: u64, size: u64) {
        let end = start.saturating_add(size);
        let before = self.pieces.range(..start).next_back();
        let before = before.filter(|(at, piece)| start - **at < piece.size).map(|(at, _)| *at);
        let gone: Vec<u64> =
            before.into_iter().chain(self.pieces.range(start..end).map(|(at, _)| *at)).collect();
        for start in gone {
            self.remove(start);
        }
    }

    fn remove(&mut self, start: u64) -> Option<Piece> {
        let piece = self.pieces.remove(&start)?;
        self.bytes -= bytes(&piece);
        self.changes += 1;
        Some(piece)
    }
}

impl Piece {
    /// Which runtime calls its functions so; `fallback` if none that we know.
    #[must_use]
    pub fn runtime(&self, fallback: Runtime) -> Runtime {
        let name = self.name.as_str();
        let starts = |words: &[&str]| words.iter().any(|word| name.starts_with(word));
        if starts(&["py::"]) {
            Runtime::Cpython
        } else if starts(&[
            "LazyCompile:",
            "Function:",
            "JS:",
            "Builtin:",
            "BytecodeHandler:",
            "Stub:",
            "RegExp:",
            "Script:",
            "Eval:",
            "Handler:",
            "LoadIC:",
            "StoreIC:",
            "KeyedLoadIC:",
            "KeyedStoreIC:",
            "wasm-",
        ]) {
            Runtime::V8
        } else if name.starts_with('L') && name.contains(";::")
            || [
                "[PreJIT]",
                "[OptimizedTier",
                "[QuickJitted",
                "[Optimized]",
                "[MinOptJitted",
                "[PreStub",
                "[Tier0",
                "[Tier1",
            ]
            .iter()
            .any(|word| name.contains(word))
        {
            if name.starts_with('L') && name.contains(";::") { Runtime::Jvm } else { Runtime::Dotnet }
        } else if starts(&["Interpreter", "call_stub", "StubRoutines", "vtable chunks", "Lambda$"])
            || name.contains("::") && name.contains('/')
        {
            Runtime::Jvm
        } else {
            fallback
        }
    }
}

fn bytes(piece: &Piece) -> usize {
    PIECE_BYTES + piece.name.len() + piece.file.len() + piece.lines.len() * LINE_BYTES
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn runtimes_are_known_by_their_words() {
        let check = |name: &str, expected: Runtime| {
            let piece = Piece { name: name.to_owned(), size: 1, lines: Vec::new(), file: String::new() };
            assert_eq!(piece.runtime(Runtime::Native), expected, "{name}");
        };
        check("LazyCompile:*hot /srv/app.js:12:3", Runtime::V8);
        check("JS:~load node:internal/modules:1:1", Runtime::V8);
        check("Builtin:ArrayMap", Runtime::V8);
        check("py::handle:/srv/app.py", Runtime::Cpython);
        check("Lorg/shop/Cart;::total", Runtime::Jvm);
        check("Interpreter", Runtime::Jvm);
        check("instance void [shop] Shop.Cart::Total()[OptimizedTier1]", Runtime::Dotnet);
        check("something", Runtime::Native);
    }

    #[test]
    fn what_does_not_fit_is_counted() {
        let mut code = Code::default();
        for at in 0..400_000_u64 {
            code.load(0x1000 + at * 16, 16, "a name of some length", &[]);
        }
        assert!(code.left_out() > 0 && code.bytes() <= MOST_BYTES);
    }

    proptest! {
        /// Against a byte by byte picture of memory.
        #[test]
        fn the_last_to_come_is_there(steps in proptest::collection::vec((0_u64..200, 1_u64..60, any::<bool>(), 0_u64..200), 1..60)) {
            let mut code = Code::default();
            // Who is where, and where its piece begins.
            let mut memory: Vec<Option<(u64, String)>> = vec![None; 600];
            let clear = |memory: &mut Vec<Option<(u64, String)>>, range: std::ops::Range<u64>| {
                let gone: Vec<u64> = memory[range.start as usize..range.end as usize].iter().flatten().map(|(start, _)| *start).collect();
                for byte in memory.iter_mut() {
                    if byte.as_ref().is_some_and(|(start, _)| gone.contains(start)) {
                        *byte = None;
                    }
                }
            };
            for (number, (start, size, is_move, to)) in steps.into_iter().enumerate() {
                let (begin, moved) = if is_move {
                    let piece: Vec<usize> = memory.iter().enumerate().filter(|(_, byte)| byte.as_ref().is_some_and(|(at, _)| *at == start)).map(|(at, _)| at).collect();
                    let Some(first) = piece.first() else { code.shift(start, to); continue };
                    let name = memory[*first].clone().unwrap().1;
                    clear(&mut memory, start..start + 1);
                    code.shift(start, to);
                    (to, Some((piece.len() as u64, name)))
                } else {
                    code.load(start, size, &number.to_string(), &[]);
                    (start, None)
                };
                let (length, name) = moved.unwrap_or((size, number.to_string()));
                clear(&mut memory, begin..begin + length);
                for byte in &mut memory[begin as usize..(begin + length) as usize] {
                    *byte = Some((begin, name.clone()));
                }
            }
            for (address, byte) in memory.iter().enumerate() {
                let found = code.find(address as u64).map(|piece| piece.name.as_str());
                prop_assert_eq!(found, byte.as_ref().map(|(_, name)| name.as_str()), "at {}", address);
            }
        }
    }
}
