//! CPython: from its file to what the kernel's walk needs of a process.
//!
//! In: the executable or `libpython`; a process's memory. Out: [`Build`], [`Known`]. Nothing of it needs debug
//! information: symbols for linking say where the runtime's state and the types are, a few instructions which key of
//! a thread has its state, the type of code objects where their fields are. From 3.13 on the runtime describes
//! itself.

mod code;
mod context;
mod layout;
mod unlinked;

use std::fmt;
use std::ops::Range;

use object::elf::EM_X86_64;

pub use self::context::Contexts;
pub(super) use self::context::{EXPORTED, contexts};
pub use self::layout::{Known, Layout};
use super::symbol::{self, Symbol};
use super::{Memory, Unfit};
use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::Source;

/// The second and third number of a version; the first is 3.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 3.*this*.
    pub minor: u8,
    /// 3.x.*this*.
    pub micro: u8,
}

impl fmt::Display for Version {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "3.{}.{}", self.minor, self.micro)
    }
}

/// The interpreter in a file; addresses are of the file's own layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// Which one.
    pub version: Version,
    /// The code that evaluates Python's functions, sorted.
    pub eval: Vec<Range<u64>>,
    /// `_PyRuntime`.
    runtime: u64,
    /// `PyCode_Type`.
    code_type: u64,
    /// Where the key of a thread's state may stand.
    keys: Vec<u64>,
    /// The evaluating function itself.
    entry: u64,
    /// Where in it frames are not linked yet.
    unlinked: Vec<Range<u32>>,
}

const EVAL: &str = "_PyEval_EvalFrameDefault";
const RUNTIME: &str = "_PyRuntime";
const CODE_TYPE: &str = "PyCode_Type";
const STATE: &str = "PyGILState_GetThisThreadState";
const VERSION: &str = "Py_Version";
const VERSION_TEXT: &str = "Py_GetVersion";
const NAMES: [&str; 6] = [EVAL, RUNTIME, CODE_TYPE, STATE, VERSION, VERSION_TEXT];
/// Instructions of a small function.
const CODE_BYTES: u64 = 128;
/// The largest evaluating function; that of 3.13 has some 60 KiB.
const EVAL_BYTES: u64 = 1 << 20;
/// Of functions by address.
const TABLE_BYTES: u64 = 4 << 20;

/// As [`super::recognise`].
pub(super) fn recognise(source: &dyn Source) -> Option<Result<Build, Unfit>> {
    let elf = Elf::read(source).ok()?;
    let mut found = [None; NAMES.len()];
    symbol::linked(&elf, source, |name, symbol| {
        if let Some(index) = NAMES.iter().position(|wanted| wanted.as_bytes() == name) {
            found[index].get_or_insert(symbol);
        }
    });
    let [eval, runtime, code_type, state, version, text] = found;
    // What has neither is no interpreter; extensions only refer to these.
    let (eval, runtime) = (eval?, runtime?);
    let file = File { elf: &elf, source };
    Some(file.build(eval, runtime, [code_type, state, version, text]))
}

struct File<'a> {
    elf: &'a Elf,
    source: &'a dyn Source,
}

impl File<'_> {
    fn build(&self, eval: Symbol, runtime: Symbol, others: [Option<Symbol>; 4]) -> Result<Build, Unfit> {
        let [code_type, state, version, text] = others;
        let version = self.version(version, text).ok_or(Unfit::NoVersion)?;
        if !layout::VERSIONS.contains(&version.minor) {
            return Err(Unfit::Version(version));
        }
        if self.elf.machine != EM_X86_64 {
            return Err(Unfit::Processor);
        }
        let code_type = code_type.ok_or(Unfit::NoSymbol(CODE_TYPE))?.address;
        let state = state.ok_or(Unfit::NoSymbol(STATE))?.address;
        let code = self.bytes(state, CODE_BYTES).ok_or(Unfit::NoThreadKey)?;
        let keys = code::keys(&code, state, runtime.address..runtime.address.saturating_add(runtime.size));
        if keys.is_empty() {
            return Err(Unfit::NoThreadKey);
        }
        let of = layout::listed(version.minor);
        let unlinked = of.and_then(|of| {
            Some(unlinked::pieces(&self.bytes(eval.address, eval.size.min(EVAL_BYTES))?, &of))
        });
        let (entry, runtime) = (eval.address, runtime.address);
        let (eval, unlinked) = (self.eval(eval), unlinked.unwrap_or_default());
        Ok(Build { version, eval, runtime, code_type, keys, entry, unlinked })
    }

    /// The function, and what compilers have put elsewhere of it.
    fn eval(&self, whole: Symbol) -> Vec<Range<u64>> {
        let range =
            |symbol: Symbol| symbol.address..symbol.address.saturating_add(symbol.size.min(EVAL_BYTES));
        let mut ranges = vec![range(whole)];
        symbol::all(self.elf, self.source, |name, symbol| {
            let rest = name.strip_prefix(EVAL.as_bytes());
            if rest.is_some_and(|rest| rest.starts_with(b".cold")) && ranges.len() < 4 {
                ranges.push(range(symbol));
            }
        });
        if let [hot] = &ranges[..]
            && let Some(cold) = self.cold(hot)
        {
            ranges.push(cold);
        }
        ranges.sort_by_key(|range| range.start);
        ranges.dedup();
        ranges.retain(|range| !range.is_empty());
        ranges
    }

    /// Without a name for it: the function, as unwinding has it, that a jump out of this one leads to.
    fn cold(&self, hot: &Range<u64>) -> Option<Range<u64>> {
        let bytes = self.bytes(hot.start, hot.end.checked_sub(hot.start)?)?;
        self.described(code::outside(&bytes, hot)?)
    }

    /// The function at an address, by the sorted table over the unwind information. Its usual shape only.
    fn described(&self, address: u64) -> Option<Range<u64>> {
        let section = self.elf.section(".eh_frame_hdr")?;
        let bytes = section.bytes(self.source, TABLE_BYTES).ok()?;
        let (head, entries) = bytes.split_at_checked(12)?;
        // Entries of two numbers of 32 bits, both relative to this section.
        if head[0] != 1 || head[2] != 3 || head[3] != 0x3b {
            return None;
        }
        let at = |distance: &[u8]| {
            let distance = i32::from_le_bytes(*distance.first_chunk()?);
            section.address.checked_add_signed(distance.into())
        };
        let begins_before = |entry: &&[u8]| at(entry).is_some_and(|start| start <= address);
        let entry = entries.chunks_exact(8).rev().find(begins_before)?;
        let (start, description) = (at(entry)?, at(&entry[4..])?);
        // Its length and its common part, where the function begins, how long it is.
        let length = u32::from_le_bytes(*self.bytes(description.checked_add(12)?, 4)?.first_chunk()?);
        let range = start..start.checked_add(length.into())?;
        (range.contains(&address) && u64::from(length) < EVAL_BYTES).then_some(range)
    }

    /// By the number, in newer ones, or by the text.
    fn version(&self, number: Option<Symbol>, text: Option<Symbol>) -> Option<Version> {
        let number = number.and_then(|symbol| self.number(symbol.address));
        number.or_else(|| self.text_version(text?.address))
    }

    /// `PY_VERSION_HEX`.
    fn number(&self, address: u64) -> Option<Version> {
        let bytes = self.bytes(address, 4)?;
        let [_, micro, minor, major] = *bytes.first_chunk::<4>()?;
        (major == 3).then_some(Version { minor, micro })
    }

    /// By the text that `Py_GetVersion` writes.
    fn text_version(&self, function: u64) -> Option<Version> {
        let code = self.bytes(function, CODE_BYTES)?;
        code::addresses(&code, function).find_map(|address| {
            let text = self.bytes(address, 16)?;
            let text = str::from_utf8(text.split(|byte| *byte == 0).next()?).ok()?;
            let mut numbers = text.split(|sign: char| !sign.is_ascii_digit());
            let mut number = || numbers.next()?.parse::<u8>().ok();
            let (major, minor, micro) = (number()?, number()?, number()?);
            (major == 3).then_some(Version { minor, micro })
        })
    }

    /// As many as there are of these bytes, in the file's own layout.
    fn bytes(&self, address: u64, most: u64) -> Option<Vec<u8>> {
        let offset = self.elf.offset(address)?;
        let length = most.min(self.source.length().checked_sub(offset)?);
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        self.source.read_at(offset, &mut bytes).ok()?;
        Some(bytes)
    }
}

/// As the file has it before anything runs.
impl Memory for File<'_> {
    fn read(&self, address: u64, buffer: &mut [u8]) -> bool {
        let offset = self.elf.offset(address);
        offset.is_some_and(|offset| self.source.read_at(offset, buffer).is_ok())
    }
}

impl Build {
    /// What the walk and the reader of names need of a process that has this file at `bias`: its addresses less those
    /// of the file's layout.
    ///
    /// # Errors
    /// When something does not prove itself, or has not begun.
    pub fn examine(&self, memory: &dyn Memory, bias: u64) -> Result<Known, Unfit> {
        layout::examine(self, memory, bias)
    }

    /// Where the kernel's walk has Python's frames beside native ones, in a process that has this file at `bias`.
    pub fn eval_at(&self, bias: u64) -> impl Iterator<Item = Range<u64>> + '_ {
        self.eval.iter().map(move |range| range.start.wrapping_add(bias)..range.end.wrapping_add(bias))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::tls::elf::OpenFile;

    /// Those of this machine that announce frames on their stack: all of them are written as it is known.
    #[test]
    fn where_frames_are_not_linked_yet_is_found_in_real_builds() {
        let homes = std::env::var("HOME").map(|home| home + "/.pyenv/versions");
        let versions = homes.map(std::fs::read_dir).into_iter().flatten().flatten();
        let versions: Vec<_> = versions.flatten().collect();
        let mut files: Vec<std::path::PathBuf> = vec!["/usr/bin/python3".into()];
        for minor in [11, 12] {
            let of =
                |version: &std::fs::DirEntry| version.path().join(format!("lib/libpython3.{minor}.so.1.0"));
            files.extend(versions.iter().map(of).filter(|file| file.exists()));
        }
        for path in files {
            let file = std::fs::File::open(&path).unwrap();
            let length = file.metadata().unwrap().len();
            let build = recognise(&OpenFile { file, length }).unwrap().unwrap();
            println!("{path:?} {} {:x?}", build.version, build.unlinked);
            let is_by_call = (11..=12).contains(&build.version.minor);
            assert_eq!((1..=7).contains(&build.unlinked.len()), is_by_call, "{path:?} {:x?}", build.unlinked);
            assert!(
                build.unlinked.iter().all(|piece| piece.start > 0 && piece.len() < 256),
                "{:x?}",
                build.unlinked
            );
        }
    }

    #[test]
    fn a_program_without_an_interpreter_has_none() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let length = file.metadata().unwrap().len();
        assert!(recognise(&OpenFile { file, length }).is_none());
        assert!(recognise(&&b"#!/bin/sh"[..]).is_none());
    }
}
