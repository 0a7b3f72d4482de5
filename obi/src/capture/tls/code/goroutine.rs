//! Machine code of Go's runtime that makes goroutines (x86-64, the ABI of 1.17 and later): where one has been made, and
//! where in it are its number and that of its creator.
//!
//! In: a function, taken apart. Out: a call with a goroutine in its second argument; offsets. Proven from the code,
//! whatever version of Go has made it; what is not understood is no answer. Pure.

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::go::ARGUMENTS;
use super::{Function, direct_target, is_move, writes};

/// Where in a goroutine things are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Numbers {
    /// Its number.
    pub(in super::super) own: u64,
    /// Its creator's.
    pub(in super::super) creator: u64,
}

/// Instructions between a call and what is looked for behind it.
const BEHIND: usize = 10;

impl Function<'_> {
    /// The only call of `taker`, if it is emulated, comes straight behind the only one of `maker`, and has that one's
    /// result for its second argument.
    pub(in super::super) fn handed_on(&self, maker: u64, taker: u64) -> Option<u64> {
        let made = self.only_call(maker)?;
        let (first, second) = (ARGUMENTS[0], ARGUMENTS[1]);
        let (mut in_first, mut in_second) = (true, false);
        for instruction in self.behind(made) {
            match instruction.flow_control() {
                FlowControl::Call => {
                    let is_it = direct_target(instruction) == Some(taker)
                        && self.only_call(taker).is_some()
                        && self.is_emulated(instruction);
                    return (is_it && in_second).then(|| instruction.ip());
                }
                FlowControl::Next => {}
                _ => return None,
            }
            let moved = in_first && is_move(instruction, second, first);
            in_second = moved || in_second && !writes(instruction, second);
            in_first &= !writes(instruction, first);
        }
        None
    }

    /// Behind the only call of `started`, a word of the goroutine in the second argument is stored in another object:
    /// `newg.parentGoid = callergp.goid`, the first thing that Go does there since 1.21.
    pub(in super::super) fn numbers(&self, started: u64) -> Option<Numbers> {
        let home = self.home_of_second_argument()?;
        let call = self.only_call(started)?;
        let (mut creator, mut number): (Option<Register>, Option<(Register, u64)>) = (None, None);
        for instruction in self.behind(call) {
            if instruction.flow_control() != FlowControl::Next {
                return None;
            }
            if let (Some((register, own)), Some((object, at))) = (number, stored_word(instruction, number)) {
                let is_another = Some(object) != creator && object != register;
                let creator = at;
                return (is_another && own != creator && own != 0 && creator != 0)
                    .then_some(Numbers { own, creator });
            }
            let loaded = loaded_word(instruction);
            let read = loaded.filter(|(_, base, _)| Some(*base) == creator);
            let reload = loaded.filter(|(_, base, at)| (*base, *at) == (Register::RSP, home));
            creator = creator.filter(|register| !writes(instruction, *register));
            number = number.filter(|(register, _)| !writes(instruction, *register));
            if let Some((register, _, at)) = read {
                number = Some((register, at));
            } else if let Some((register, ..)) = reload {
                creator = Some(register);
            }
        }
        None
    }

    /// What every run executes behind this instruction, as far as nothing jumps there.
    fn behind(&self, index: usize) -> impl Iterator<Item = &Instruction> {
        let behind = self.instructions.iter().skip(index + 1).take(BEHIND);
        behind.take_while(|instruction| !self.targets.contains(&instruction.ip()))
    }
}

/// `mov at(base),register`, all of the register.
fn loaded_word(instruction: &Instruction) -> Option<(Register, Register, u64)> {
    let loads = instruction.mnemonic() == Mnemonic::Mov
        && [instruction.op0_kind(), instruction.op1_kind()] == [OpKind::Register, OpKind::Memory]
        && instruction.op0_register().is_gpr64();
    place(instruction).filter(|_| loads).map(|(base, at)| (instruction.op0_register(), base, at))
}

/// `mov register,at(base)`, of the register that holds the number.
fn stored_word(instruction: &Instruction, number: Option<(Register, u64)>) -> Option<(Register, u64)> {
    let stores = instruction.mnemonic() == Mnemonic::Mov
        && [instruction.op0_kind(), instruction.op1_kind()] == [OpKind::Memory, OpKind::Register]
        && number.is_some_and(|(register, _)| instruction.op1_register() == register);
    place(instruction).filter(|(base, _)| stores && *base != Register::RSP)
}

/// Base and displacement of an operand in memory that has nothing else.
fn place(instruction: &Instruction) -> Option<(Register, u64)> {
    let plain =
        instruction.memory_index() == Register::None && instruction.segment_prefix() == Register::None;
    plain.then(|| (instruction.memory_base(), instruction.memory_displacement64()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: u64 = 0x1000;
    const MAKER: u64 = 0x2000;
    const TAKER: u64 = 0x3000;
    const MOVE: &[u8] = &[0x48, 0x89, 0xc3]; // mov %rax,%rbx
    const CLEAR: &[u8] = &[0x31, 0xc0]; // xor %eax,%eax

    fn calling(parts: &[(&[u8], u64)]) -> Vec<u8> {
        let mut code = Vec::new();
        for (before, target) in parts {
            code.extend_from_slice(before);
            let next = HERE + code.len() as u64 + 5;
            code.push(0xe8);
            code.extend(u32::try_from(target.wrapping_sub(next) & 0xffff_ffff).unwrap().to_le_bytes());
        }
        code.push(0xc3);
        code
    }

    #[test]
    fn what_was_made_is_handed_on() {
        let check = |parts: &[(&[u8], u64)], expected: Option<u64>| {
            let code = calling(parts);
            assert_eq!(Function::whole(HERE, &code).handed_on(MAKER, TAKER), expected, "{code:02x?}");
        };
        check(&[(&[], MAKER), (MOVE, TAKER)], Some(HERE + 8));
        check(&[(&[], MAKER), (&[MOVE, CLEAR].concat(), TAKER)], Some(HERE + 10));
        // Not what was made; not any more; never; another function; twice; jumped to: `jmp` behind itself.
        check(&[(&[], MAKER), (&[CLEAR, MOVE].concat(), TAKER)], None);
        check(&[(&[], MAKER), (&[MOVE, &[0x31, 0xdb]].concat(), TAKER)], None);
        check(&[(&[], MAKER), (&[], TAKER)], None);
        check(&[(&[], MAKER), (MOVE, TAKER + 1)], None);
        check(&[(&[], MAKER), (MOVE, TAKER), (&[], TAKER)], None);
        check(&[(&[], MAKER), (MOVE, TAKER), (&[], MAKER)], None);
        check(&[(&[], MAKER), (&[MOVE, &[0xeb, 0]].concat(), TAKER)], None);
    }

    /// A function that keeps its second argument at 0x28(%rsp), and does this behind its call.
    fn making(keeps: &[u8], behind: &[u8]) -> Vec<u8> {
        // cmp 0x10(%r14),%rsp; jbe; push %rbp; mov %rsp,%rbp; sub $0x10,%rsp
        let start: &[u8] =
            &[0x49, 0x3b, 0x66, 0x10, 0x76, 0x7f, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x10];
        let mut code = calling(&[(&[start, keeps].concat(), MAKER)]);
        code.pop();
        code.extend_from_slice(behind);
        // add $0x10,%rsp; pop %rbp; ret
        code.extend([0x48, 0x83, 0xc4, 0x10, 0x5d, 0xc3]);
        code
    }

    #[test]
    fn numbers_are_found_where_the_creators_is_kept() {
        // mov %rbx,0x28(%rsp): above the frame, the frame pointer, the return address and the first argument's home.
        const KEEPS: &[u8] = &[0x48, 0x89, 0x5c, 0x24, 0x28];
        // mov 0x28(%rsp),%rax; mov 0x98(%rax),%rcx; mov 0x8(%rsp),%rdx; mov %rcx,0x118(%rdx)
        const LOAD: &[u8] = &[0x48, 0x8b, 0x44, 0x24, 0x28];
        const NUMBER: &[u8] = &[0x48, 0x8b, 0x88, 0x98, 0, 0, 0];
        const MADE: &[u8] = &[0x48, 0x8b, 0x54, 0x24, 0x08];
        const STORE: &[u8] = &[0x48, 0x89, 0x8a, 0x18, 1, 0, 0];
        let check = |keeps: &[u8], behind: &[&[u8]], expected: Option<(u64, u64)>| {
            let code = making(keeps, &behind.concat());
            let found = Function::whole(HERE, &code).numbers(MAKER);
            assert_eq!(found.map(|it| (it.own, it.creator)), expected, "{code:02x?}");
        };
        check(KEEPS, &[LOAD, NUMBER, MADE, STORE], Some((0x98, 0x118)));
        // Go before 1.21: `newg.gopc = callerpc`.
        check(KEEPS, &[&[0x48, 0x8b, 0x4c, 0x24, 0x30], MADE, STORE], None);
        // The argument is not kept; something else is put there; not from there; overwritten; of 32 bits; of itself.
        check(&[0x90], &[LOAD, NUMBER, MADE, STORE], None);
        check(KEEPS, &[LOAD, NUMBER, MADE, STORE, &[0x48, 0x89, 0x44, 0x24, 0x28]], None);
        check(KEEPS, &[&[0x48, 0x8b, 0x44, 0x24, 0x20], NUMBER, MADE, STORE], None);
        check(KEEPS, &[LOAD, NUMBER, MADE, &[0x31, 0xc9], STORE], None);
        check(KEEPS, &[LOAD, &NUMBER[1..], MADE, STORE], None);
        check(KEEPS, &[LOAD, NUMBER, &[0x48, 0x89, 0x88, 0x18, 1, 0, 0]], None);
        // A call in between.
        check(KEEPS, &[LOAD, NUMBER, &[0xe8, 0, 0, 0, 0], MADE, STORE], None);
    }

    proptest! {
        #[test]
        fn any_code_is_taken(code in prop::collection::vec(any::<u8>(), 0..200), target in 0_u64..200) {
            let code = [&making(&[0x48, 0x89, 0x5c, 0x24, 0x28], &[])[..24], &code].concat();
            let function = Function::whole(HERE, &code);
            let _ = function.numbers(HERE + target);
            let place = function.handed_on(MAKER, HERE + target);
            prop_assert!(place.is_none_or(|at| (HERE..HERE + code.len() as u64).contains(&at)));
        }
    }
}
