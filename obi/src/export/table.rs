//! What a selection's samples have in common, as tables of distinct entries: what both profile formats are made of.
//!
//! In: stacks of a [`crate::profile::Selection`]. Out: indices into tables, in the order of first use, so that the same
//! selection always makes the same tables. Entry 0 of each is the empty one and means "none". Refuses to know formats.

use std::borrow::{Borrow, Cow};
use std::hash::{BuildHasher as _, Hash};
use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::{HashMap, HashTable, hash_table::Entry};

use crate::profile::{Fidelity, Frame, Line, Mapping, Runtime, Stack, Symbol};

/// Distinct values and their indices.
#[derive(Debug)]
pub(super) struct Interned<T> {
    entries: Vec<T>,
    places: HashTable<u32>,
    hasher: RandomState,
}

impl<T: Default + Hash + Eq> Default for Interned<T> {
    /// Holds the empty value, at 0.
    fn default() -> Self {
        let mut interned =
            Self { entries: Vec::new(), places: HashTable::new(), hasher: RandomState::default() };
        interned.insert(T::default());
        interned
    }
}

impl<T: Hash + Eq> Interned<T> {
    /// The value's index.
    pub(super) fn insert(&mut self, value: T) -> u32 {
        let Self { entries, places, hasher } = self;
        let held = |index: &u32| &entries[*index as usize];
        let hash = hasher.hash_one(&value);
        match places.entry(hash, |index| *held(index) == value, |index| hasher.hash_one(held(index))) {
            Entry::Occupied(place) => *place.get(),
            Entry::Vacant(place) => {
                let index = u32::try_from(entries.len()).expect("memory ends before 2^32 entries");
                place.insert(index);
                entries.push(value);
                index
            }
        }
    }

    /// The index of a value that is only made when it is new.
    pub(super) fn borrowed<Q: ?Sized + Hash + Eq>(&mut self, value: &Q) -> u32
    where
        T: Borrow<Q>,
        for<'q> T: From<&'q Q>,
    {
        let held = |index: &u32| self.entries[*index as usize].borrow() == value;
        match self.places.find(self.hasher.hash_one(value), held) {
            Some(index) => *index,
            None => self.insert(T::from(value)),
        }
    }

    /// All values, the empty one first.
    pub(super) fn entries(&self) -> &[T] {
        &self.entries
    }

    /// The same, to keep.
    pub(super) fn into_entries(self) -> Vec<T> {
        self.entries
    }
}

/// A function, as lines refer to it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Function<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) system_name: &'a str,
    pub(super) file: &'a str,
    pub(super) start_line: u32,
}

/// A place in a function.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct FunctionLine {
    pub(super) function: u32,
    pub(super) line: u32,
    pub(super) column: u32,
}

/// A frame.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub(super) struct Location {
    pub(super) mapping: u32,
    /// The instruction, or the call: what is looked up.
    pub(super) address: u64,
    /// Innermost first; of a frame without name one whose function says file and offset.
    pub(super) lines: Vec<FunctionLine>,
    pub(super) mark: Mark,
}

/// What formats have no field for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Mark {
    pub(super) runtime: Runtime,
    pub(super) fidelity: Fidelity,
    /// The frame's address is one behind the location's.
    pub(super) is_return: bool,
}

/// The tables.
#[derive(Debug, Default)]
pub(super) struct Tables<'a> {
    pub(super) mappings: Interned<Option<&'a Mapping>>,
    pub(super) functions: Interned<Function<'a>>,
    pub(super) locations: Interned<Location>,
    /// Indices of locations, leaf first.
    pub(super) stacks: Interned<Vec<u32>>,
    /// What was looked at before, by where it lies: most samples share stacks, most stacks share frames.
    seen_stacks: HashMap<*const Stack, u32, RandomState>,
    seen_frames: HashMap<FramePlace, u32, RandomState>,
}

type FramePlace = (u64, bool, *const Mapping, *const Symbol);

impl<'a> Tables<'a> {
    /// The stack's index.
    pub(super) fn stack(&mut self, stack: &'a Stack) -> u32 {
        if let Some(index) = self.seen_stacks.get(&std::ptr::from_ref(stack)) {
            return *index;
        }
        let locations = stack.frames.iter().map(|frame| self.frame(frame)).collect();
        let index = self.stacks.insert(locations);
        self.seen_stacks.insert(stack, index);
        index
    }

    fn frame(&mut self, frame: &'a Frame) -> u32 {
        let mapping = frame.mapping.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        let place = (frame.address, frame.is_return, mapping, Arc::as_ptr(&frame.symbol));
        if let Some(index) = self.seen_frames.get(&place) {
            return *index;
        }
        let address = looked_up(frame);
        let Symbol { lines, fidelity, runtime } = &*frame.symbol;
        let mut lines: Vec<FunctionLine> = lines.iter().map(|line| self.line(line)).collect();
        if lines.is_empty() {
            let function = Function { name: placeholder(frame).into(), ..Function::default() };
            let function = self.functions.insert(function);
            lines.push(FunctionLine { function, line: 0, column: 0 });
        }
        let is_return = frame.is_return && frame.address > 0;
        let mark = Mark { runtime: *runtime, fidelity: *fidelity, is_return };
        let mapping = self.mappings.insert(frame.mapping.as_deref());
        let index = self.locations.insert(Location { mapping, address, lines, mark });
        self.seen_frames.insert(place, index);
        index
    }

    fn line(&mut self, line: &'a Line) -> FunctionLine {
        let Line { function, system_name, file, line, column, start_line } = line;
        let function = Function { name: (&**function).into(), system_name, file, start_line: *start_line };
        FunctionLine { function: self.functions.insert(function), line: *line, column: *column }
    }
}

/// The address that has the frame's name: of a caller, the call's last byte.
fn looked_up(frame: &Frame) -> u64 {
    if frame.is_return { frame.address.saturating_sub(1) } else { frame.address }
}

/// What a frame without a name is shown as: `libfoo.so+0x1234`, the offset in the file. Receivers that see a single
/// location without lines take all of its mapping for nameless.
fn placeholder(frame: &Frame) -> String {
    let address = looked_up(frame);
    match &frame.mapping {
        Some(mapping) => {
            let file = mapping.path.rsplit('/').next().unwrap_or_default();
            let file = if file.is_empty() { "[anonymous]" } else { file };
            format!("{file}+{:#x}", address.wrapping_sub(mapping.start).wrapping_add(mapping.offset))
        }
        None if frame.symbol.runtime == Runtime::Kernel => format!("[kernel]+{address:#x}"),
        None => format!("[unknown]+{address:#x}"),
    }
}

impl Mark {
    /// The frame that stood in the tables at this place.
    pub(super) fn frame(self, address: u64, mapping: Option<Arc<Mapping>>, mut lines: Vec<Line>) -> Frame {
        let Self { runtime, fidelity, is_return } = self;
        let address = address.saturating_add(is_return.into());
        let symbol = Arc::new(Symbol { lines: Vec::new(), fidelity, runtime });
        let nameless = Frame { address, is_return, mapping, symbol };
        // What stands for no name at all is none; the beginning of a function stays.
        if fidelity == Fidelity::Address {
            let placeholder = placeholder(&nameless);
            lines.retain(|line| *line.function != *placeholder);
        }
        Frame { symbol: Arc::new(Symbol { lines, fidelity, runtime }), ..nameless }
    }
}

/// How well lines from elsewhere name a frame.
pub(super) fn fidelity_of(lines: &[Line]) -> Fidelity {
    match lines {
        [] => Fidelity::Address,
        [only] if only.line == 0 => Fidelity::Function,
        _ => Fidelity::Lines,
    }
}
