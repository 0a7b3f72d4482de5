//! What HotSpot says of itself: its types, their fields, its constants, by name.
//!
//! In: where the exported variables are, a process's memory. Out: [`Vm`], which answers for names. Numbers of entries
//! and lengths of names are bounded; an entry that cannot be read ends a table. Refuses to know what a name is for.

use foldhash::fast::RandomState;
use hashbrown::HashMap;

use crate::capture::guest::{Memory, Unfit};

/// The exported variables: of each table where it begins, how far its entries are apart, and where in one what is.
pub(super) const NAMES: [&str; 15] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
    "gHotSpotVMTypes",
    "gHotSpotVMTypeEntryArrayStride",
    "gHotSpotVMTypeEntryTypeNameOffset",
    "gHotSpotVMTypeEntrySizeOffset",
    "gHotSpotVMIntConstants",
    "gHotSpotVMIntConstantEntryArrayStride",
    "gHotSpotVMIntConstantEntryNameOffset",
    "gHotSpotVMIntConstantEntryValueOffset",
];
const NEEDED: usize = NAMES.len();

/// Where they are, in the file's own layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tables([u64; NEEDED]);

/// Entries of a table; there are some hundred.
const ENTRIES: u64 = 4096;
/// Bytes from one to the next.
const STRIDE: u64 = 256;
const NAME: usize = 128;
/// Beyond any field of what is looked at.
const LARGEST: u64 = 8192;

/// What a process's JVM says of itself.
pub(super) struct Vm<'a> {
    memory: &'a dyn Memory,
    fields: HashMap<String, Field, RandomState>,
    sizes: HashMap<String, u64, RandomState>,
    constants: HashMap<String, u32, RandomState>,
}

enum Field {
    /// In each object of its type.
    Offset(u64),
    /// There is one: where.
    Static(u64),
}

impl Tables {
    /// All that is needed, in the order of [`NAMES`].
    pub(super) fn of(found: &[Option<u64>; NEEDED]) -> Result<Self, Unfit> {
        let mut addresses = [0; NEEDED];
        for ((address, found), name) in addresses.iter_mut().zip(found).zip(NAMES) {
            *address = found.ok_or(Unfit::NoSymbol(name))?;
        }
        Ok(Self(addresses))
    }
}

impl<'a> Vm<'a> {
    /// Reads all tables of a process that has the file at `bias`.
    pub(super) fn read(tables: &Tables, memory: &'a dyn Memory, bias: u64) -> Result<Self, Unfit> {
        let mut values = [0; NEEDED];
        for (value, address) in values.iter_mut().zip(tables.0) {
            let word = memory.word(address.wrapping_add(bias));
            *value = word.ok_or_else(|| Unfit::Memory("its variables are not there".into()))?;
        }
        let [structs, stride, owner, field, is_static, offset, address, rest @ ..] = values;
        let [types, type_stride, type_name, size, constants, constant_stride, constant, value] = rest;
        let mut vm = Self {
            memory,
            fields: HashMap::default(),
            sizes: HashMap::default(),
            constants: HashMap::default(),
        };
        for entry in Entries::new(memory, structs, stride, owner)? {
            let Some(owner) = vm.name(entry, owner) else { continue };
            let Some(name) = vm.name(entry, field) else { continue };
            let of_all = memory.integer(entry.wrapping_add(is_static)) == Some(0);
            let at = memory.word(entry.wrapping_add(if of_all { offset } else { address }));
            let Some(at) = at else { continue };
            let place = if of_all { Field::Offset(at) } else { Field::Static(at) };
            vm.fields.insert(format!("{owner}.{name}"), place);
        }
        for entry in Entries::new(memory, types, type_stride, type_name)? {
            if let (Some(name), Some(size)) =
                (vm.name(entry, type_name), memory.word(entry.wrapping_add(size)))
            {
                vm.sizes.insert(name, size);
            }
        }
        for entry in Entries::new(memory, constants, constant_stride, constant)? {
            if let (Some(name), Some(value)) =
                (vm.name(entry, constant), memory.integer(entry.wrapping_add(value)))
            {
                vm.constants.insert(name, value);
            }
        }
        Ok(vm)
    }

    /// Of a field in each object.
    pub(super) fn offset(&self, name: &'static str) -> Result<u16, Unfit> {
        match self.fields.get(name) {
            Some(Field::Offset(offset)) if *offset < LARGEST => {
                u16::try_from(*offset).map_err(|_| Unfit::Proof(name))
            }
            Some(_) => Err(Unfit::Proof(name)),
            None => Err(Unfit::NoField(name)),
        }
    }

    /// Likewise, where the field is a word.
    pub(super) fn word_offset(&self, name: &'static str) -> Result<u16, Unfit> {
        self.offset(name).and_then(|at| if at % 8 == 0 { Ok(at) } else { Err(Unfit::Proof(name)) })
    }

    /// The word in a field that there is one of.
    pub(super) fn value(&self, name: &'static str) -> Result<u64, Unfit> {
        match self.fields.get(name) {
            Some(Field::Static(address)) => self.word(*address).ok_or(Unfit::Proof(name)),
            Some(Field::Offset(_)) => Err(Unfit::Proof(name)),
            None => Err(Unfit::NoField(name)),
        }
    }

    /// Of a type, in whole words.
    pub(super) fn size(&self, name: &'static str) -> Result<u16, Unfit> {
        let size = self.sizes.get(name).ok_or(Unfit::NoField(name))?;
        let size = u16::try_from(*size).ok().filter(|size| u64::from(*size) < LARGEST && *size > 0);
        size.map(|size| size.next_multiple_of(8)).ok_or(Unfit::Proof(name))
    }

    /// An integer that it has a name for.
    pub(super) fn constant(&self, name: &'static str) -> Result<i32, Unfit> {
        self.constants.get(name).map(|value| value.cast_signed()).ok_or(Unfit::NoField(name))
    }

    /// Memory of the process.
    pub(super) fn word(&self, address: u64) -> Option<u64> {
        self.memory.word(address)
    }

    /// Likewise.
    pub(super) fn integer(&self, address: u64) -> Option<u32> {
        self.memory.integer(address)
    }

    /// A text of the language C, of so many bytes at most.
    pub(super) fn text(&self, address: u64, most: usize) -> Option<String> {
        text(self.memory, address, most)
    }

    fn name(&self, entry: u64, offset: u64) -> Option<String> {
        let address = self.memory.word(entry.wrapping_add(offset)).filter(|address| *address != 0)?;
        text(self.memory, address, NAME)
    }
}

fn text(memory: &dyn Memory, address: u64, most: usize) -> Option<String> {
    let mut bytes = Vec::new();
    // The text may end just before memory does.
    while bytes.len() < most {
        let mut piece = [0; 32];
        let at = address.wrapping_add(bytes.len() as u64);
        let length = 32 - (at % 32) as usize;
        if !memory.read(at, &mut piece[..length]) {
            return None;
        }
        let end = piece[..length].iter().position(|byte| *byte == 0);
        bytes.extend_from_slice(&piece[..end.unwrap_or(length)]);
        if end.is_some() {
            return String::from_utf8(bytes).ok();
        }
    }
    None
}

/// Addresses of a table's entries, up to the one without a name.
struct Entries<'a> {
    memory: &'a dyn Memory,
    next: u64,
    stride: u64,
    name: u64,
    left: u64,
}

impl<'a> Entries<'a> {
    fn new(memory: &'a dyn Memory, first: u64, stride: u64, name: u64) -> Result<Self, Unfit> {
        // The variables are set when the library is loaded.
        if first == 0 || stride == 0 {
            return Err(Unfit::NotBegun);
        }
        if stride > STRIDE || name >= stride {
            return Err(Unfit::Proof("gHotSpotVMStructs"));
        }
        Ok(Self { memory, next: first, stride, name, left: ENTRIES })
    }
}

impl Iterator for Entries<'_> {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        let entry = self.next;
        self.left = self.left.checked_sub(1)?;
        self.memory.word(entry.wrapping_add(self.name)).filter(|name| *name != 0)?;
        self.next = entry.wrapping_add(self.stride);
        Some(entry)
    }
}
