//! Where CPython 3.11 and 3.12 (x86-64) announce a frame before they link it to its caller.
//!
//! In: bytes of the evaluating function. Out: pieces of it, in which a thread's innermost frame, or its caller, is
//! what an earlier call has left there. Compilers order these writes as they like, so each build is read. Pure, never
//! panics.
//!
//! The function keeps an object on its stack that says which frame is the innermost. At its beginning it announces this
//! object, then writes the frame into it. Later it writes other frames there: of functions that it calls without a call
//! in C, of generators, of callers.

use std::ops::Range;

use iced_x86::{FlowControl, Instruction, OpKind, Register};
use obi_ebpf::{GUEST_UNLINKED_PIECES, guest, guest_unlinked};

use super::code::instructions;

/// Instructions at the function's beginning.
const BEGINNING: usize = 96;
/// Instructions from one write to the other.
const NEAR: usize = 32;
/// Instructions from where a generator forgets its caller to where that is the innermost frame.
const FORGOTTEN: usize = 6;
/// Bytes that are taken for the beginning of a function that is written in another way.
const UNPROVEN: u32 = 192;

/// From the beginning of the function on, as many as the kernel side has room for; the function's own beginning first.
pub(super) fn pieces(code: &[u8], of: &guest) -> Vec<Range<u32>> {
    if of.by_call == 0 {
        return Vec::new();
    }
    let all: Vec<Instruction> = instructions(code, 0).collect();
    let beginning = 0..UNPROVEN;
    let found = find(&all, of).unwrap_or_else(|| Vec::from([beginning]));
    found.into_iter().take(GUEST_UNLINKED_PIECES as usize).collect()
}

/// As the kernel side has them.
pub(super) fn for_kernel(pieces: &[Range<u32>]) -> [guest_unlinked; GUEST_UNLINKED_PIECES as usize] {
    let mut written = [guest_unlinked::default(); GUEST_UNLINKED_PIECES as usize];
    for (one, piece) in written.iter_mut().zip(pieces) {
        *one = guest_unlinked { from: piece.start, bytes: piece.end.saturating_sub(piece.start) };
    }
    written
}

/// A word of memory that a register and a distance lead to.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Word {
    base: Register,
    distance: u64,
}

/// `None` when the beginning is not written as it is known.
fn find(all: &[Instruction], of: &guest) -> Option<Vec<Range<u32>>> {
    let (announced, object) = announcement(all, of)?;
    let current = Word { distance: object.distance.wrapping_add(u64::from(of.current)), ..object };
    let beginning = all.get(announced + 1..)?.iter().take(BEGINNING);
    let first = announced + 1 + beginning.clone().position(|one| writes(one, current))?;
    let linked = link(all, first, of).unwrap_or(first);
    let mut pieces = vec![piece(all, announced, linked)?];
    for index in (first + 1..all.len()).filter(|index| writes(&all[*index], current)) {
        if let Some(linked) = link(all, index, of) {
            pieces.extend(piece(all, index, linked));
        } else if let Some(forgotten) = forgotten(all, index, of) {
            pieces.extend(piece(all, forgotten, index));
        }
    }
    Some(pieces)
}

/// Where the object's address is written into the thread's state, and where the object is.
fn announcement(all: &[Instruction], of: &guest) -> Option<(usize, Word)> {
    let mut addresses: Vec<(Register, Word)> = Vec::new();
    for (index, one) in all.iter().take(BEGINNING).enumerate() {
        let target = (one.op0_kind() == OpKind::Register).then(|| one.op0_register().full_register());
        if one.mnemonic() == iced_x86::Mnemonic::Lea && one.memory_index() == Register::None {
            let word = Word { base: one.memory_base(), distance: one.memory_displacement64() };
            addresses.retain(|(register, _)| Some(*register) != target);
            if matches!(word.base, Register::RSP | Register::RBP) {
                addresses.extend(target.map(|target| (target, word)));
            }
            continue;
        }
        let Some((word, Some(value))) = written(one) else { continue };
        let address = addresses.iter().find(|(register, _)| *register == value);
        if let Some((_, object)) = address
            && word.distance == u64::from(of.frame)
            && !matches!(word.base, Register::RSP | Register::RBP)
        {
            return Some((index, *object));
        }
    }
    None
}

/// From a write of a frame on, where that frame's caller is written.
fn link(all: &[Instruction], index: usize, of: &guest) -> Option<usize> {
    let (_, frame) = written(&all[index])?;
    let caller = Word { base: frame?, distance: of.previous.into() };
    let following = all.get(index + 1..)?.iter().take(NEAR);
    let straight = following.take_while(|one| !leaves(one));
    straight.into_iter().position(|one| writes(one, caller)).map(|after| index + 1 + after)
}

/// Before a write of a frame, where another one's caller is written.
fn forgotten(all: &[Instruction], index: usize, of: &guest) -> Option<usize> {
    let (current, frame) = written(&all[index])?;
    let before = all[..index].iter().enumerate().rev().take(FORGOTTEN);
    let mut straight = before.take_while(|(_, one)| !leaves(one));
    let found = straight.find(|(_, one)| {
        let of_another = |(word, _): (Word, _)| {
            word.distance == u64::from(of.previous) && word.base != current.base && Some(word.base) != frame
        };
        written(one).is_some_and(of_another)
    });
    found.map(|(index, _)| index)
}

/// From behind an instruction to another one, which has not run where it is the next.
fn piece(all: &[Instruction], after: usize, up_to: usize) -> Option<Range<u32>> {
    let (after, up_to) = (all.get(after)?.next_ip(), all.get(up_to)?.ip());
    Some(u32::try_from(after).ok()?..u32::try_from(up_to).ok()?.checked_add(1)?)
}

/// The word that an instruction moves something into, eight bytes at least, and the register that has it.
fn written(one: &Instruction) -> Option<(Word, Option<Register>)> {
    let is_move = one.op_count() == 2 && one.op0_kind() == OpKind::Memory;
    if !is_move || one.memory_index() != Register::None || one.memory_size().size() < 8 {
        return None;
    }
    let word = Word { base: one.memory_base(), distance: one.memory_displacement64() };
    let value = (one.op1_kind() == OpKind::Register).then(|| one.op1_register().full_register());
    Some((word, value))
}

fn writes(one: &Instruction, wanted: Word) -> bool {
    written(one).is_some_and(|(word, _)| word == wanted)
}

fn leaves(one: &Instruction) -> bool {
    !matches!(one.flow_control(), FlowControl::Next | FlowControl::ConditionalBranch)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn by_call() -> guest {
        guest { by_call: 1, frame: 0x38, current: 8, previous: 0x30, ..guest::default() }
    }

    fn found(code: &[u8]) -> Vec<(u32, u32)> {
        let written = for_kernel(&pieces(code, &by_call()));
        written.iter().map(|piece| (piece.from, piece.bytes)).take_while(|(_, bytes)| *bytes > 0).collect()
    }

    /// lea 0x20(%rsp), %rcx; mov %rcx, 0x38(%rdi)
    const ANNOUNCES: [u8; 9] = [0x48, 0x8d, 0x4c, 0x24, 0x20, 0x48, 0x89, 0x4f, 0x38];
    /// mov %rsi, 0x28(%rsp)
    const SETS: [u8; 5] = [0x48, 0x89, 0x74, 0x24, 0x28];
    /// mov %rbx, 0x30(%rsi)
    const LINKS: [u8; 4] = [0x48, 0x89, 0x5e, 0x30];
    /// movq $0, 0x30(%rbp)
    const FORGETS: [u8; 8] = [0x48, 0xc7, 0x45, 0x30, 0, 0, 0, 0];
    const NOTHING: [u8; 1] = [0x90];
    const CALLS: [u8; 5] = [0xe8, 0, 0, 0, 0];
    const RETURNS: [u8; 1] = [0xc3];

    #[test]
    fn what_is_announced_too_early_is_found() {
        let check = |code: &[&[u8]], expected: &[(u32, u32)]| {
            assert_eq!(found(&code.concat()), expected, "{code:x?}");
        };
        check(&[&ANNOUNCES, &SETS], &[(9, 1)]);
        check(&[&LINKS, &ANNOUNCES, &NOTHING, &SETS, &RETURNS], &[(13, 2)]);
        check(&[&ANNOUNCES, &SETS, &NOTHING, &LINKS], &[(9, 7)]);
        // A frame that is linked first, one that is linked afterwards, one where a call stands between.
        check(&[&ANNOUNCES, &SETS, &RETURNS, &LINKS, &SETS], &[(9, 1)]);
        check(&[&ANNOUNCES, &SETS, &RETURNS, &SETS, &NOTHING, &LINKS], &[(9, 1), (20, 2)]);
        check(&[&ANNOUNCES, &SETS, &RETURNS, &SETS, &CALLS, &LINKS], &[(9, 1)]);
        check(&[&ANNOUNCES, &SETS, &RETURNS, &FORGETS, &SETS], &[(9, 1), (23, 1)]);
        // Another way.
        check(&[&SETS, &LINKS], &[(0, UNPROVEN)]);
        check(&[], &[(0, UNPROVEN)]);
    }

    #[test]
    fn other_versions_have_none() {
        let of = guest { by_call: 0, ..by_call() };
        assert!(pieces(&[ANNOUNCES.as_slice(), &SETS].concat(), &of).is_empty());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(code in proptest::collection::vec(any::<u8>(), 0..512)) {
            for (from, bytes) in found(&[&ANNOUNCES[..], &code].concat()) {
                prop_assert!(from + bytes <= UNPROVEN.max(code.len() as u32 + 9));
            }
        }
    }
}
