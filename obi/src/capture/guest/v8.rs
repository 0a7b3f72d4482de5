//! V8: from its file to what the kernel's walk and the thread that reads names need of a process.
//!
//! In: `node`, `libnode`, or another program with V8. Out: [`Build`], [`Known`]. V8 is built with numbers for
//! debuggers: a symbol for each field, type and constant, whose value stands in the file. So one way holds for all
//! versions whose frames look alike. What is missing there, or is another than those versions have in common,
//! switches JavaScript's functions off. Nothing of it needs a process's memory. Refuses to know what functions are
//! called.

mod blob;
mod number;

use std::ops::Range;

use obi_ebpf::v8;
use object::elf::EM_X86_64;

use self::number::{Numbers, Wanted};
use super::{Unfit, symbol};
use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::Source;

/// V8 in a file; addresses are of the file's own layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Build {
    /// As V8 calls itself; empty if it does not say.
    pub version: String,
    /// The code that was made when V8 was built: what runs bytecode, and most functions of the language.
    builtins: Range<u64>,
    layout: Layout,
    frame: Frame,
}

/// What is needed of a process.
#[derive(Debug, Clone)]
pub struct Known {
    /// For the kernel's walk; `tgid` is to be set.
    pub v8: v8,
    /// For the thread that reads names.
    pub layout: Layout,
}

/// How what functions are made of lies in memory. Offsets in bytes, from where an object begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Layout {
    /// In a map: the type of its objects, 16 bits.
    pub instance_type: u16,
    /// The type of what functions of the same text share.
    pub shared_type: u16,
    /// There: its name, or its scope.
    pub name: u16,
    /// There: its script.
    pub script: u16,
    /// The type of scopes, which are made of words.
    pub scope_type: u16,
    /// There: how many variables stand in a context, counted in words.
    pub n_locals: u16,
    /// There: names of these, counted in words.
    pub first_local: u16,
    /// The type of scripts.
    pub script_type: u16,
    /// There: its name, its text, where its lines end.
    pub script_name: u16,
    /// Likewise.
    pub source: u16,
    /// Likewise.
    pub line_ends: u16,
    /// The type of arrays.
    pub array_type: u16,
    /// There: its length, its elements.
    pub array_length: u16,
    /// Likewise.
    pub array_first: u16,
    /// In a text: how many characters.
    pub length: u16,
    /// In a plain text: the characters, of a byte each, or of two.
    pub characters: [u16; 2],
    /// In one that is put together: both parts.
    pub parts: [u16; 2],
    /// In one that is a piece of another: from where on. The other stands before it.
    pub offset: u16,
    /// In one that stands for another: the other.
    pub actual: u16,
    /// In one that lies outside of V8's memory: whose it is. Behind it stands where the characters are.
    pub resource: u16,
}

/// How the kernel's walk recognises functions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Frame {
    shared: u16,
    first_function: u16,
    last_function: u16,
    entries: u64,
}

/// Types of functions, where it is not said which is the last one: as many as later versions have.
const FUNCTION_TYPES: u16 = 16;

/// As [`super::recognise`].
pub(super) fn recognise(source: &dyn Source) -> Option<Result<Build, Unfit>> {
    let elf = Elf::read(source).ok()?;
    let mut wanted = Wanted::default();
    let mut is_v8 = false;
    symbol::linked(&elf, source, |name, symbol| {
        is_v8 |= name.starts_with(b"_ZN2v87Isolate");
        wanted.offer(name, symbol);
    });
    if wanted.is_empty() {
        if !is_v8 {
            return None;
        }
        symbol::all(&elf, source, |name, symbol| wanted.offer(name, symbol));
    }
    if elf.machine != EM_X86_64 {
        return Some(Err(Unfit::Processor));
    }
    Some(build(&elf, source, &wanted))
}

fn build(elf: &Elf, source: &dyn Source, wanted: &Wanted) -> Result<Build, Unfit> {
    let numbers = wanted.read(elf, source)?;
    let builtins = blob::find(elf, source, wanted)?;
    let (layout, frame) = (layout(&numbers)?, frame(&numbers)?);
    Ok(Build { version: numbers.version(), builtins, layout, frame })
}

fn layout(numbers: &Numbers) -> Result<Layout, Unfit> {
    // By the name of the version.
    let script = [
        "class_SharedFunctionInfo__script_or_debug_info__",
        "class_SharedFunctionInfo__script__",
        "class_SharedFunctionInfo__raw_script__",
    ];
    let script = script.into_iter().find_map(|name| numbers.offset(name).ok());
    Ok(Layout {
        instance_type: numbers.offset("class_Map__instance_type__")?,
        shared_type: numbers.kind("type_SharedFunctionInfo__")?,
        name: numbers.offset("class_SharedFunctionInfo__name_or_scope_info__")?,
        script: script.ok_or(Unfit::NoField("class_SharedFunctionInfo__script__"))?,
        scope_type: numbers.kind("type_ScopeInfo__")?,
        n_locals: numbers.offset("scopeinfo_idx_ncontextlocals")?,
        first_local: numbers.offset("scopeinfo_idx_first_vars")?,
        script_type: numbers.kind("type_Script__")?,
        script_name: numbers.offset("class_Script__name__")?,
        source: numbers.offset("class_Script__source__")?,
        line_ends: numbers.offset("class_Script__line_ends__")?,
        array_type: numbers.kind("type_FixedArray__")?,
        array_length: numbers.offset("class_FixedArrayBase__length__")?,
        array_first: numbers.offset("class_FixedArray__data__")?,
        length: numbers.offset("class_String__length__")?,
        characters: [
            numbers.offset("class_SeqOneByteString__chars__")?,
            numbers.offset("class_SeqTwoByteString__chars__")?,
        ],
        parts: [numbers.offset("class_ConsString__first__")?, numbers.offset("class_ConsString__second__")?],
        offset: numbers.offset("class_SlicedString__offset__")?,
        actual: numbers.offset("class_ThinString__actual__")?,
        resource: numbers.offset("class_ExternalString__resource__")?,
    })
}

fn frame(numbers: &Numbers) -> Result<Frame, Unfit> {
    let function = numbers.kind("type_JSFunction__")?;
    let first = numbers.kind("FirstJSFunctionType").unwrap_or(function);
    let last = numbers.kind("LastJSFunctionType").unwrap_or(function.saturating_add(FUNCTION_TYPES));
    if !(first..=last).contains(&function) {
        return Err(Unfit::Proof("FirstJSFunctionType"));
    }
    let shared = numbers.offset("class_JSFunction__shared__")?;
    // What the walk looks at of a function.
    if !(8..48).contains(&shared) || shared % 8 != 0 {
        return Err(Unfit::Proof("class_JSFunction__shared__"));
    }
    let entry = |name: &'static str| match numbers.kind(name)? {
        kind @ 1..64 => Ok(1_u64 << kind),
        _ => Err(Unfit::Proof(name)),
    };
    let entries = entry("frametype_EntryFrame")? | entry("frametype_ConstructEntryFrame")?;
    // Not every V8 runs WebAssembly.
    let entries = entries | entry("frametype_CWasmEntryFrame").unwrap_or_default();
    Ok(Frame { shared, first_function: first, last_function: last, entries })
}

impl Build {
    /// As [`super::Build::examine`]: the file alone has all of it.
    #[must_use]
    pub fn examine(&self) -> Known {
        let Frame { shared, first_function, last_function, entries } = self.frame;
        let instance_type = self.layout.instance_type;
        let v8 = v8 { shared, instance_type, first_function, last_function, entries, ..v8::default() };
        Known { v8, layout: self.layout }
    }

    /// Where its own code is, in a process that has this file, or a copy of this part of it, at `bias`.
    #[must_use]
    pub fn builtins_at(&self, bias: u64) -> Range<u64> {
        self.builtins.start.wrapping_add(bias)..self.builtins.end.wrapping_add(bias)
    }
}
