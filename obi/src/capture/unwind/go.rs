//! Go's own tables to rows: how far each instruction's stack pointer is from its caller's.
//!
//! In: the bytes of `.gopclntab` (Go 1.18 and later, stripped or not), which anybody may have made. Out: functions with
//! their rows. Go keeps frame pointers as well, but not at a function's first instructions, nor in those without a
//! frame, where they would hide the caller; so the tables go first, and the pointers serve where Go changes stacks.
//! Time and memory are bounded by the tables' length and by a limit of rows. Never panics. Refuses to know names but
//! one.
#![forbid(unsafe_code)]

use obi_ebpf::{UNWIND_END, UNWIND_NONE, UNWIND_POINTER, UNWIND_STACK};

use super::file::Machine;
use super::frame::Functions;
use super::rule;

/// Since 1.18, and since 1.20.
const MAGIC: [u32; 2] = [0xffff_fff0, 0xffff_fff1];
/// Where the first code of the module is, in words from the start of its description (`runtime.moduledata`).
pub(super) const TEXT_WORD: usize = 22;
/// What a signal's handler returns to.
const SIGNAL_RETURN: &[u8] = b"runtime.sigreturn__sigaction";

/// `_func.flag`: at the end of every stack; writes the stack pointer as it likes.
const TOP_FRAME: u8 = 1;
const WRITES_STACK_POINTER: u8 = 2;

/// The tables of a module.
#[derive(Debug, Clone, Copy)]
pub(super) struct Module<'a> {
    bytes: &'a [u8],
    quantum: u64,
    n_functions: usize,
    names: &'a [u8],
    distances: &'a [u8],
    functions: &'a [u8],
    /// Where the functions' flags stand.
    flag_at: usize,
}

impl<'a> Module<'a> {
    /// Reads the head of the tables.
    pub(super) fn read(bytes: &'a [u8]) -> Option<Self> {
        let magic = u32_at(bytes, 0)?;
        let [0, 0, quantum, 8] = *bytes.get(4..8)? else { return None };
        if !MAGIC.contains(&magic) || quantum == 0 {
            return None;
        }
        let word = |index: usize| usize::try_from(u64_at(bytes, 8 + index * 8)?).ok();
        let from = |index: usize| bytes.get(word(index)?..);
        Some(Self {
            bytes,
            quantum: quantum.into(),
            n_functions: word(0)?,
            names: from(3)?,
            distances: from(6)?,
            functions: from(7)?,
            flag_at: if magic == MAGIC[0] { 37 } else { 41 },
        })
    }

    /// The address of the first code, where the tables say it (until 1.25, and not in position-independent files).
    pub(super) fn text(&self) -> Option<u64> {
        u64_at(self.bytes, 24).filter(|address| *address != 0)
    }

    /// Bytes from the first code to the end of the last.
    pub(super) fn code_bytes(&self) -> Option<u64> {
        u32_at(self.functions, self.n_functions.checked_mul(8)?).map(u64::from)
    }

    /// The rows of all functions; `text` is the address of the first.
    pub(super) fn rows(&self, machine: Machine, text: u64, into: &mut Functions) {
        let mut entry = u32_at(self.functions, 0);
        let mut early = 0;
        for index in 0..self.n_functions.min(self.functions.len() / 8) {
            let (Some(start), Some(at)) = (entry, u32_at(self.functions, index * 8 + 4)) else { return };
            let Some(end) = u32_at(self.functions, index * 8 + 8) else { return };
            entry = Some(end);
            let Some(function) = self.functions.get(at as usize..) else { continue };
            let next =
                u32_at(self.functions, index * 8 + 12).and_then(|at| self.functions.get(at as usize..));
            // The address that a handler returns to is the trampoline's first, and looked for one byte before.
            let gives_way = u32::from(next.is_some_and(|next| self.is_signal_return(next)));
            let (first, last) = (u64::from(start) - early, u64::from(end.saturating_sub(gives_way)));
            early = gives_way.into();
            if first >= last || into.is_full() {
                continue;
            }
            let (first, last) = (text.saturating_add(first), text.saturating_add(last));
            self.function(machine, function, first..last, into);
        }
    }

    fn function(&self, machine: Machine, function: &[u8], range: std::ops::Range<u64>, into: &mut Functions) {
        let flag = function.get(self.flag_at).copied().unwrap_or_default();
        into.begin();
        if self.is_signal_return(function) {
            into.push(range.start, rule::signal(machine));
        } else if flag & TOP_FRAME != 0 {
            into.push(range.start, UNWIND_END);
        } else if flag & WRITES_STACK_POINTER != 0 {
            into.push(range.start, UNWIND_POINTER);
        } else {
            self.distances(machine, function, &range, into);
        }
        into.end(range.end);
    }

    /// How far the stack pointer is from where it was at the function's beginning, instruction by instruction.
    fn distances(
        &self,
        machine: Machine,
        function: &[u8],
        range: &std::ops::Range<u64>,
        into: &mut Functions,
    ) {
        let table = u32_at(function, 16).filter(|at| *at != 0);
        let mut table = table.and_then(|at| self.distances.get(at as usize..)).unwrap_or_default();
        let (mut pc, mut distance, mut is_first) = (range.start, -1_i32, true);
        while pc < range.end {
            let Some(step) = varint(&mut table).filter(|step| *step != 0 || is_first) else { break };
            let Some(length) = varint(&mut table).filter(|length| *length != 0) else { break };
            if into.is_full() {
                break;
            }
            is_first = false;
            // A number with its sign in the lowest bit.
            distance = distance.wrapping_add((step >> 1).cast_signed() ^ -(step & 1).cast_signed());
            into.push(pc, frame(machine, distance));
            pc = pc.saturating_add(u64::from(length).saturating_mul(self.quantum));
        }
        if is_first {
            into.push(pc, frame(machine, 0));
        }
    }

    fn is_signal_return(&self, function: &[u8]) -> bool {
        let name = u32_at(function, 4).and_then(|at| self.names.get(at as usize..));
        name.is_some_and(|name| name.starts_with(SIGNAL_RETURN))
    }
}

fn frame(machine: Machine, distance: i32) -> u32 {
    let Some(words) = u32::try_from(distance).ok().filter(|bytes| bytes % 8 == 0).map(|bytes| bytes / 8)
    else {
        return UNWIND_NONE;
    };
    match (machine, words) {
        // The frame pointer is saved first, directly below the return address.
        (Machine::X86, _) => {
            rule::from_stack_pointer(words + 1, if words == 0 { 0 } else { 2 }).unwrap_or(UNWIND_NONE)
        }
        // Nothing is saved, and the return address is in its register.
        (Machine::Arm, 0) => UNWIND_STACK,
        (Machine::Arm, _) => UNWIND_POINTER,
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..)?.first_chunk().map(|bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    bytes.get(at..)?.first_chunk().map(|bytes| u64::from_le_bytes(*bytes))
}

/// Seven bits a byte, the lowest first.
fn varint(bytes: &mut &[u8]) -> Option<u32> {
    let mut value = 0;
    for shift in (0..35).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u32::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_of_any_length_are_read() {
        let check = |mut bytes: &[u8], expected: Option<u32>, left: usize| {
            assert_eq!((varint(&mut bytes), bytes.len()), (expected, left));
        };
        check(&[5, 9], Some(5), 1);
        check(&[0xac, 0x02], Some(300), 0);
        check(&[0xff, 0xff, 0xff, 0xff, 0x0f], Some(u32::MAX), 0);
        check(&[0x80], None, 0);
        check(&[0x80, 0x80, 0x80, 0x80, 0x80, 0x80], None, 1);
    }

    #[test]
    fn what_is_no_table_is_refused() {
        assert!(Module::read(&[]).is_none());
        assert!(Module::read(&[0xfb, 0xff, 0xff, 0xff, 0, 0, 1, 8]).is_none());
        assert!(Module::read(&[0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8]).is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_rows_or_none(bytes in proptest::collection::vec(any::<u8>(), 64..600), n in 0_u64..40) {
            let mut table = vec![0xf1, 0xff, 0xff, 0xff, 0, 0, 1, 8];
            for word in [n, 0, 0, 72, 72, 72, 72, 72] {
                table.extend_from_slice(&u64::to_le_bytes(word));
            }
            table.extend(bytes);
            let module = Module::read(&table).unwrap();
            for machine in [Machine::X86, Machine::Arm] {
                let mut functions = Functions::default();
                module.rows(machine, u64::MAX - 4096, &mut functions);
                let rows = functions.join();
                prop_assert!(rows.windows(2).all(|pair| pair[0].address < pair[1].address));
            }
        }
    }
}
