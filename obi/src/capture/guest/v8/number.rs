//! The numbers that V8 is built with for debuggers.
//!
//! In: symbols, a file. Out: [`Numbers`] by name. Those that all known versions have in common must be the same here:
//! the ways of reading that follow from them are written down in code. Never panics. Refuses to know what the others
//! are for.

use crate::capture::executable::elf::Elf;
use crate::capture::guest::Unfit;
use crate::capture::guest::symbol::Symbol;
use crate::capture::tls::elf::Source;

const PREFIX: &[u8] = b"v8dbg_";
/// Part of the name of V8's version, in four numbers.
const VERSION: [&[u8]; 4] = [
    b"_ZN2v88internal7Version6major_E",
    b"_ZN2v88internal7Version6minor_E",
    b"_ZN2v88internal7Version6build_E",
    b"_ZN2v88internal7Version6patch_E",
];
/// Beyond any field of what is looked at.
const LARGEST: i32 = 1024;

/// What is wanted. A name that ends in `__` is followed by another: what a field holds, or a type's whole name.
const NAMES: [&str; 30] = [
    "class_JSFunction__shared__",
    "class_Map__instance_type__",
    "type_JSFunction__",
    "FirstJSFunctionType",
    "LastJSFunctionType",
    "frametype_EntryFrame",
    "frametype_ConstructEntryFrame",
    "frametype_CWasmEntryFrame",
    "class_SharedFunctionInfo__name_or_scope_info__",
    "class_SharedFunctionInfo__script_or_debug_info__",
    "class_SharedFunctionInfo__script__",
    "class_SharedFunctionInfo__raw_script__",
    "type_SharedFunctionInfo__",
    "type_ScopeInfo__",
    "type_Script__",
    "type_FixedArray__",
    "scopeinfo_idx_ncontextlocals",
    "scopeinfo_idx_first_vars",
    "class_Script__name__",
    "class_Script__source__",
    "class_Script__line_ends__",
    "class_FixedArrayBase__length__",
    "class_FixedArray__data__",
    "class_String__length__",
    "class_SeqOneByteString__chars__",
    "class_SeqTwoByteString__chars__",
    "class_ConsString__first__",
    "class_ConsString__second__",
    "class_SlicedString__offset__",
    "class_ThinString__actual__",
];
/// Likewise, one that stands for itself.
const RESOURCE: &str = "class_ExternalString__resource__";
/// What all versions have in common: references are odd and of eight bytes, integers of 32 bits stand in the upper half
/// of a word, which way a text is kept, where a frame has its function.
const SAME: [(&str, i32); 15] = [
    ("TaggedSize", 8),
    ("SmiShiftSize", 31),
    ("SmiValueShift", 1),
    ("HeapObjectTag", 1),
    ("class_HeapObject__map__", 0),
    ("off_fp_context", -8),
    ("off_fp_function", -16),
    ("FirstNonstringType", 128),
    ("StringRepresentationMask", 7),
    ("SeqStringTag", 0),
    ("ConsStringTag", 1),
    ("ExternalStringTag", 2),
    ("SlicedStringTag", 3),
    ("ThinStringTag", 5),
    ("OneByteStringTag", 8),
];
const WANTED: usize = NAMES.len() + 1 + SAME.len();

fn wanted() -> impl Iterator<Item = &'static str> {
    NAMES.into_iter().chain([RESOURCE]).chain(SAME.into_iter().map(|(name, _)| name))
}

/// Symbols that are looked for.
#[derive(Debug, Clone)]
pub(super) struct Wanted {
    found: [Option<u64>; WANTED],
    version: [Option<u64>; 4],
    /// Symbols that say where V8's own code is.
    pub(super) blob: super::blob::Symbols,
}

impl Default for Wanted {
    fn default() -> Self {
        Self { found: [None; WANTED], version: [None; 4], blob: super::blob::Symbols::default() }
    }
}

impl Wanted {
    /// A symbol of the file.
    pub(super) fn offer(&mut self, name: &[u8], symbol: Symbol) {
        if let Some(name) = name.strip_prefix(PREFIX) {
            let fits = |wanted: &str| {
                let wanted = wanted.as_bytes();
                if wanted.ends_with(b"__") { name.starts_with(wanted) } else { name == wanted }
            };
            if let Some(index) = wanted().position(fits) {
                self.found[index].get_or_insert(symbol.address);
            }
        } else if let Some(index) = VERSION.iter().position(|wanted| *wanted == name) {
            self.version[index].get_or_insert(symbol.address);
        } else {
            self.blob.offer(name, symbol);
        }
    }

    /// No number for debuggers is among them.
    pub(super) fn is_empty(&self) -> bool {
        self.found.iter().all(Option::is_none)
    }

    /// What they say; the version's, and what some versions lack, may be missing.
    pub(super) fn read(&self, elf: &Elf, source: &dyn Source) -> Result<Numbers, Unfit> {
        if self.is_empty() {
            return Err(Unfit::NoSymbol("v8dbg_class_JSFunction__shared__SharedFunctionInfo"));
        }
        let read = |address: Option<u64>| number(elf, source, address?);
        let numbers = Numbers { found: self.found.map(read), version: self.version.map(read) };
        match SAME.into_iter().find(|(name, value)| numbers.get(name) != Some(*value)) {
            Some((name, _)) => Err(Unfit::Proof(name)),
            None => Ok(numbers),
        }
    }
}

/// An integer of 32 bits of the file. One that is 0 may have no place in it.
pub(super) fn number(elf: &Elf, source: &dyn Source, address: u64) -> Option<i32> {
    let mut bytes = [0; 4];
    if let Some(offset) = elf.offset(address) {
        source.read_at(offset, &mut bytes).ok()?;
    }
    Some(i32::from_le_bytes(bytes))
}

/// All that is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Numbers {
    found: [Option<i32>; WANTED],
    version: [Option<i32>; 4],
}

impl Numbers {
    fn get(&self, name: &str) -> Option<i32> {
        self.found[wanted().position(|wanted| wanted == name)?]
    }

    /// Of a field.
    pub(super) fn offset(&self, name: &'static str) -> Result<u16, Unfit> {
        let offset = self.get(name).ok_or(Unfit::NoField(name))?;
        let offset = Some(offset).filter(|offset| (0..LARGEST).contains(offset));
        offset.and_then(|offset| u16::try_from(offset).ok()).ok_or(Unfit::Proof(name))
    }

    /// Of a kind of frames or objects.
    pub(super) fn kind(&self, name: &'static str) -> Result<u16, Unfit> {
        u16::try_from(self.get(name).ok_or(Unfit::NoField(name))?).map_err(|_| Unfit::Proof(name))
    }

    /// As people write it: `11.3.244.8`.
    pub(super) fn version(&self) -> String {
        let numbers: Option<Vec<String>> =
            self.version.iter().map(|number| number.map(|number| number.to_string())).collect();
        numbers.map(|numbers| numbers.join(".")).unwrap_or_default()
    }
}
