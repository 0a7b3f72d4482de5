//! A few instructions of CPython (x86-64).
//!
//! In: bytes of a function. Out: addresses that it refers to. What it does with them is not understood: the caller
//! checks what stands there. Pure, never panics.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, FlowControl, Instruction, OpKind, Register};

/// As many as are instructions.
pub(super) fn instructions(code: &[u8], address: u64) -> impl Iterator<Item = Instruction> + '_ {
    let decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    decoder.into_iter().take_while(|instruction| !instruction.is_invalid())
}

/// An address relative to the instruction.
fn relative(instruction: &Instruction) -> Option<u64> {
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}

/// Those that the function refers to, relative to its own.
pub(super) fn addresses(code: &[u8], address: u64) -> impl Iterator<Item = u64> + '_ {
    instructions(code, address).filter_map(|instruction| relative(&instruction))
}

/// Where a thread's key may stand: what the function refers to in the runtime's state, directly or through a register
/// that has been given its address, and the word before, since of a key only its second half may be read.
pub(super) fn keys(code: &[u8], address: u64, runtime: Range<u64>) -> Vec<u64> {
    let mut base = Register::None;
    let mut keys = Vec::new();
    for instruction in instructions(code, address) {
        let found = match relative(&instruction) {
            Some(found) if runtime.contains(&found) => Some(found),
            // From the table of addresses: that of the state, since the function needs no other.
            Some(_) if base == Register::None && instruction.op0_kind() == OpKind::Register => {
                base = instruction.op0_register().full_register();
                None
            }
            Some(_) => None,
            None if base != Register::None && instruction.memory_base() == base => {
                runtime.start.checked_add(instruction.memory_displacement64())
            }
            None => None,
        };
        let found = found.filter(|found| runtime.contains(found));
        keys.extend(found.into_iter().flat_map(|found| [found, found.saturating_sub(4)]));
        if instruction.flow_control() == FlowControl::Return {
            break;
        }
    }
    keys
}

/// The first address outside of the function that one of its conditional jumps leads to: compilers put the part that is
/// seldom run elsewhere. What is taken for it by mistake would only be a native frame that counts for the function.
pub(super) fn outside(code: &[u8], function: &Range<u64>) -> Option<u64> {
    let is_conditional =
        |instruction: &Instruction| instruction.flow_control() == FlowControl::ConditionalBranch;
    let jumps = instructions(code, function.start).filter(is_conditional);
    jumps.map(|jump| jump.near_branch_target()).find(|target| !function.contains(target))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn keys_are_found_directly_and_through_a_register() {
        let runtime = 0x1000..0x2000;
        let check = |code: &[u8], expected: &[u64]| {
            assert_eq!(keys(code, 0x800, runtime.clone()), expected, "{code:x?}");
        };
        // An executable: cmpq $0, 0x7f8(%rip); mov 0x7fe(%rip), %edi; ret
        let direct = [0x48, 0x83, 0x3d, 0xf8, 7, 0, 0, 0, 0x8b, 0x3d, 0xfe, 7, 0, 0, 0xc3];
        check(&direct, &[0x1000, 0xffc, 0x100c, 0x1008]);
        // A library: mov 0x10(%rip), %rax; push %rbx; lea 0x608(%rax), %rbx; ret
        let library = [0x48, 0x8b, 5, 0x10, 0, 0, 0, 0x53, 0x48, 0x8d, 0x98, 8, 6, 0, 0, 0xc3];
        check(&library, &[0x1608, 0x1604]);
        check(&[0xc3], &[]);
    }

    #[test]
    fn the_part_that_is_seldom_run_is_where_a_jump_leads() {
        // jne +2; jne -0x100; ret
        let code = [0x75, 2, 0x0f, 0x85, 0xf8, 0xfe, 0xff, 0xff, 0xc3];
        assert_eq!(outside(&code, &(0x1000..0x1009)), Some(0xf00));
        assert_eq!(outside(&code[..2], &(0x1000..0x1009)), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(code in proptest::collection::vec(any::<u8>(), 0..256), address: u64, start: u64) {
            let runtime = start..start.saturating_add(4096);
            prop_assert!(keys(&code, address, runtime.clone()).len() <= 2 * code.len());
            let _ = (addresses(&code, address).count(), outside(&code, &runtime));
        }
    }
}
