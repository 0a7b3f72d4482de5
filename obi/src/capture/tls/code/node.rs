//! Machine code of Node that returns a number of what runs, or takes those of an object (x86-64): where they are.
//!
//! In: a function, taken apart. Out: an offset. Proven from the code, whatever version of Node has made it; what is not
//! understood is no answer. Pure.

use iced_x86::{Instruction, Mnemonic, OpKind, Register};

use super::{ARGUMENTS, Function, is_move, writes};

/// Instructions between the two that are looked for.
const BEHIND: usize = 3;

impl Function<'_> {
    /// Where in an object the address of a double is that the function returns: `mov at(object),%r; movsd (%r),%xmm0`.
    /// `None` unless it does so for one place only.
    pub(in super::super) fn double_of(&self) -> Option<u64> {
        let mut places = self.instructions.iter().enumerate().filter_map(|(index, instruction)| {
            let address = loaded_by(instruction)?;
            let before = &self.instructions[index.saturating_sub(BEHIND)..index];
            let load = before.iter().rev().find(|before| writes(before, address))?;
            word_of_object(load, address)
        });
        let first = places.next()?;
        places.all(|place| place == first).then_some(first)
    }

    /// Where in its second argument two doubles are, one behind the other: the first that it loads, together or each.
    pub(in super::super) fn doubles_of_second_argument(&self) -> Option<u64> {
        let mut objects = vec![ARGUMENTS[1]];
        let mut loads = Vec::new();
        for instruction in &self.instructions {
            if let Some((at, bytes)) = doubles_at(instruction, &objects) {
                loads.push((at, bytes));
            }
            let copy = objects.iter().any(|object| is_move(instruction, instruction.op0_register(), *object));
            objects.retain(|object| !writes(instruction, *object));
            if copy {
                objects.push(instruction.op0_register());
            }
        }
        let (at, bytes) = *loads.first()?;
        (bytes == 16 || loads.contains(&(at + 8, 8))).then_some(at)
    }
}

/// A load of one double, or of two: where in one of these objects, and how many bytes.
fn doubles_at(instruction: &Instruction, objects: &[Register]) -> Option<(u64, u64)> {
    let bytes = match instruction.mnemonic() {
        Mnemonic::Movsd => 8,
        Mnemonic::Movups | Mnemonic::Movupd | Mnemonic::Movdqu => 16,
        _ => return None,
    };
    let is_load = instruction.op0_kind() == OpKind::Register
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && objects.contains(&instruction.memory_base());
    is_load.then(|| (instruction.memory_displacement64(), bytes))
}

/// `movsd (%r),%xmm0`: the register.
fn loaded_by(instruction: &Instruction) -> Option<Register> {
    let is_load = instruction.mnemonic() == Mnemonic::Movsd
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == Register::XMM0
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == 0;
    is_load.then(|| instruction.memory_base()).filter(|base| base.is_gpr64())
}

/// `mov at(object),%register`: where.
fn word_of_object(instruction: &Instruction, register: Register) -> Option<u64> {
    let base = instruction.memory_base();
    let is_word = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register() == register
        && instruction.op1_kind() == OpKind::Memory
        && instruction.memory_index() == Register::None
        && base.is_gpr64()
        && ![Register::RSP, Register::RBP].contains(&base);
    is_word.then(|| instruction.memory_displacement64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_returned_double() {
        let check = |code: &[u8], expected: Option<u64>| {
            assert_eq!(Function::whole(0x1000, code).double_of(), expected, "{code:x?}");
        };
        const LOAD: [u8; 7] = [0x48, 0x8b, 0x83, 0x88, 0x04, 0x00, 0x00]; // mov 0x488(%rbx),%rax
        const OTHER: [u8; 7] = [0x48, 0x8b, 0x83, 0x90, 0x04, 0x00, 0x00]; // mov 0x490(%rbx),%rax
        const DOUBLE: [u8; 4] = [0xf2, 0x0f, 0x10, 0x00]; // movsd (%rax),%xmm0
        const PLAIN: [u8; 3] = [0x48, 0x89, 0xd8]; // mov %rbx,%rax
        const RESTORE: [u8; 4] = [0x48, 0x8b, 0x5d, 0xf8]; // mov -8(%rbp),%rbx
        check(&[&LOAD[..], &DOUBLE].concat(), Some(0x488));
        check(&[&LOAD[..], &RESTORE, &DOUBLE].concat(), Some(0x488));
        check(&[&LOAD[..], &DOUBLE, &LOAD, &DOUBLE].concat(), Some(0x488));
        check(&[&LOAD[..], &DOUBLE, &OTHER, &DOUBLE].concat(), None);
        check(&[&LOAD[..], &PLAIN, &DOUBLE].concat(), None);
        check(&DOUBLE, None);
        check(&[0xf2, 0x0f, 0x10, 0x05, 0, 0, 0, 0], None); // movsd 0(%rip),%xmm0
        check(&LOAD, None);
        check(&[], None);
    }

    #[test]
    fn the_place_of_two_doubles() {
        let check = |code: &[u8], expected: Option<u64>| {
            let found = Function::whole(0x1000, code).doubles_of_second_argument();
            assert_eq!(found, expected, "{code:x?}");
        };
        const OWN: [u8; 5] = [0xf2, 0x0f, 0x10, 0x56, 0x28]; // movsd 0x28(%rsi),%xmm2
        const TRIGGER: [u8; 5] = [0xf2, 0x0f, 0x10, 0x4e, 0x30]; // movsd 0x30(%rsi),%xmm1
        const COPY: [u8; 3] = [0x48, 0x89, 0xf3]; // mov %rsi,%rbx
        const BOTH: [u8; 5] = [0x66, 0x0f, 0x10, 0x43, 0x38]; // movupd 0x38(%rbx),%xmm0
        const OVERWRITE: [u8; 3] = [0x48, 0x89, 0xc3]; // mov %rax,%rbx
        check(&[OWN, TRIGGER].concat(), Some(0x28));
        check(&OWN, None);
        check(&[&COPY[..], &BOTH].concat(), Some(0x38));
        check(&[&COPY[..], &OVERWRITE, &BOTH].concat(), None);
        check(&BOTH, None);
        check(&[], None);
    }
}
