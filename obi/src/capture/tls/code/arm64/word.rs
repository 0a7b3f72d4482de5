//! One instruction of arm64, as far as the proofs about Go's functions need it.
//!
//! In: a word. Out: which registers it may write, what it does with memory. Whatever is not known writes more, never
//! less. Encodings: Arm Architecture Reference Manual, C4.1. Pure.

/// The number of the stack pointer where a base or the result of an addition is meant.
pub(super) const STACK: u32 = 31;
/// That of the frame pointer.
pub(super) const POINTER: u32 = 29;

/// What a word does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Memory {
    /// Nothing.
    None,
    /// It reads one register, or two.
    Load {
        /// Two.
        is_pair: bool,
    },
    /// So many bytes at this distance from the base.
    Store {
        /// Bytes from the base.
        at: i64,
        /// How many.
        bytes: i64,
    },
    /// It may store anywhere.
    Unknown,
}

/// `add` and `sub` of an immediate, 64 bits.
pub(super) const ADD: u32 = 0x9100_0000;
pub(super) const SUB: u32 = 0xd100_0000;
/// Together with them: `adds`, `subs`.
pub(super) const SETS_FLAGS: u32 = 0x2000_0000;
/// Conditions of jumps, unsigned.
pub(super) const LOWER: u32 = 3;
pub(super) const LOWER_OR_SAME: u32 = 9;

/// Whether it is this `operation` of an immediate, with these registers.
pub(super) fn is_immediate(word: u32, operation: u32, base: u32, to: u32) -> bool {
    word & 0xff80_03ff == operation | base << 5 | to
}

/// The immediate of an addition or subtraction.
pub(super) fn immediate(word: u32) -> Option<u64> {
    let value = u64::from(word >> 10 & 0xfff) << if word >> 22 & 1 == 1 { 12 } else { 0 };
    (word & 0x1f00_0000 == 0x1100_0000).then_some(value)
}

/// `b.CONDITION`.
pub(super) fn is_conditional(word: u32, condition: u32) -> bool {
    word & 0xff00_001f == 0x5400_0000 | condition
}

/// `adr`, `adrp`, and loads relative to the instruction: simulated, although nothing is jumped to.
pub(super) fn is_relative(word: u32) -> bool {
    word & 0x1f00_0000 == 0x1000_0000
        || word & 0xbf00_0000 == 0x1800_0000
        || word & 0xff00_0000 == 0x9800_0000
}

/// `str x30,[sp,#-n]!`: n.
pub(super) fn pushed_link(word: u32) -> Option<u64> {
    let distance = field(word, 12, 9);
    (word & 0xffe0_0fff == 0xf800_0ffe && distance < 0).then_some(distance.unsigned_abs())
}

/// `ldr x,[base,#at]`: the registers, and `at`.
pub(super) fn loaded_word(word: u32) -> Option<(u32, u32, u64)> {
    (word & 0xffc0_0000 == 0xf940_0000).then(|| (word & 31, base(word), u64::from(word >> 10 & 0xfff) * 8))
}

/// Where the whole of this register is stored: the base and the distance from it, by `str`, or `stp` of two.
pub(super) fn stored_at(word: u32, register: u32) -> Option<(u32, i64)> {
    let (is_first, is_second) = (word & 31 == register, word >> 10 & 31 == register);
    let at = match (word & 0xffc0_0000, is_first, is_second) {
        (0xf900_0000, true, _) => i64::from(word >> 10 & 0xfff) * 8,
        (0xa900_0000, true, false) => field(word, 15, 7) * 8,
        (0xa900_0000, false, true) => field(word, 15, 7) * 8 + 8,
        _ => return None,
    };
    Some((base(word), at))
}

/// Loads of the frame pointer or the return address from the stack, and additions to the stack pointer.
pub(super) fn brings_back(word: u32) -> bool {
    let is_ours = matches!(word & 31, 29 | 30) && base(word) == STACK;
    // ldp x29,x30,[sp,#n]; ldr x30,[sp],#n; ldur x29,[sp,#n]; ldr x30,[sp,#n]
    let is_pair = word & 0xffc0_0000 == 0xa940_0000 && word >> 10 & 31 == 30;
    let is_single = word & 0xffe0_0400 == 0xf840_0400 || word & 0xffe0_0c00 == 0xf840_0000;
    let is_plain = word & 0xffc0_0000 == 0xf940_0000;
    is_ours && (is_pair || is_single || is_plain) || is_immediate(word, ADD, STACK, STACK)
}

/// Whether the stack pointer may be another one behind it.
pub(super) fn writes_stack(word: u32) -> bool {
    // add, sub without flags; and, orr, eor of an immediate; add, sub of an extended register
    let arithmetic = word & 0x3f80_0000 == 0x1100_0000
        || word & 0x1f80_0000 == 0x1200_0000 && word >> 29 & 3 != 3
        || word & 0x3fe0_0000 == 0x0b20_0000;
    is_memory(word) && is_indexed(word) && base(word) == STACK || word & 31 == STACK && arithmetic
}

/// Whether the register, which is neither the stack pointer nor the link, may be another one behind it.
pub(super) fn may_write(word: u32, register: u32) -> bool {
    let names = |at: u32| word >> at & 31 == register;
    if word >> 26 & 7 == 5 {
        // Jumps and calls write none that is asked for here; of the others only what reads the system's registers.
        return word & 0xffe0_0000 == 0xd520_0000 && names(0);
    }
    if !is_memory(word) {
        return names(0);
    }
    let by_index = is_indexed(word) && names(5);
    let is_vector = word >> 26 & 1 == 1;
    match memory(word) {
        Memory::Store { .. } => by_index,
        Memory::Load { .. } if is_vector => by_index,
        Memory::Load { is_pair } => by_index || names(0) || is_pair && names(10),
        // Exclusive and atomic instructions write what memory held, and whether they succeeded.
        Memory::None | Memory::Unknown => by_index || names(0) || names(10) || names(16),
    }
}

/// What it does with memory; distances of plain loads and stores with an immediate.
pub(super) fn memory(word: u32) -> Memory {
    if !is_memory(word) {
        return Memory::None;
    }
    match word >> 27 & 7 {
        5 => of_pair(word),
        7 => of_one(word),
        // A load of a literal; all others are exclusive, of structures, or tagged.
        _ if word & 0x3b00_0000 == 0x1800_0000 => Memory::Load { is_pair: false },
        _ => Memory::Unknown,
    }
}

/// 4 or 8 bytes each, of vectors 4, 8 or 16.
fn of_pair(word: u32) -> Memory {
    let is_load = word >> 22 & 1 == 1;
    let each = match (word >> 26 & 1, word >> 30) {
        (0, 0) => 4,
        (0, 2) => 8,
        (1, scale @ 0..=2) => 4 << scale,
        // Two signed words; what stores tags is of the same kind.
        (0, 1) if is_load => 4,
        _ => return Memory::Unknown,
    };
    // A post-indexed one adds the distance to the base only afterwards.
    let at = if word >> 23 & 3 == 1 { 0 } else { field(word, 15, 7) * each };
    if is_load { Memory::Load { is_pair: true } } else { Memory::Store { at, bytes: 2 * each } }
}

fn of_one(word: u32) -> Memory {
    let (bytes, is_load) = match (word >> 26 & 1, word >> 30, word >> 22 & 3) {
        (0, size, opcode) => (1_i64 << size, opcode != 0),
        (_, 0, opcode @ (2 | 3)) => (16, opcode == 3),
        (_, size, opcode @ (0 | 1)) => (1_i64 << size, opcode == 1),
        _ => return Memory::Unknown,
    };
    let at = match (word >> 24 & 1, word >> 21 & 1, word >> 10 & 3) {
        (1, ..) => i64::from(word >> 10 & 0xfff) * bytes,
        // Post-indexed; unscaled, unprivileged, pre-indexed.
        (_, 0, 1) => 0,
        (_, 0, _) => field(word, 12, 9),
        // A register for the distance. Of atomic ones nothing is known.
        (_, _, 2) if is_load => 0,
        _ => return Memory::Unknown,
    };
    if is_load { Memory::Load { is_pair: false } } else { Memory::Store { at, bytes } }
}

fn is_memory(word: u32) -> bool {
    word >> 25 & 5 == 4
}

/// Whether it writes its base, too: pre- and post-indexed, of pairs, of single registers, of structures.
fn is_indexed(word: u32) -> bool {
    word & 0x3a80_0000 == 0x2880_0000
        || word & 0x3b20_0400 == 0x3800_0400
        || word & 0xbe80_0000 == 0x0c80_0000
}

fn base(word: u32) -> u32 {
    word >> 5 & 31
}

/// So many bits from `at` on, with their sign.
pub(super) fn field(word: u32, at: u32, bits: u32) -> i64 {
    i64::from((word << (32 - at - bits)).cast_signed() >> (32 - bits))
}
