//! Machine code of rustls (x86-64): where in a connection's state the pointer is to what encrypts its records.
//!
//! In: a function of that state, taken apart. Out: an offset. That pointer and its table are two words, and the table's
//! first function is called with the pointer: such a call is looked for, with words that provably come from the
//! state, which the function gets in a known register. The compiler chooses layouts anew for each build, so nothing
//! is looked up. What is not understood is no answer. Pure.

use std::collections::BTreeMap;

use iced_x86::{FlowControl, Instruction, Mnemonic, OpKind, Register};

use super::{Function, direct_target, jump_target, written};

/// What encrypts records, as seen from the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in super::super) struct Encrypter {
    /// Where the pointer is.
    pub(in super::super) at: u64,
    /// Where the number of records that it has made is.
    pub(in super::super) sequence: u64,
}

/// A function that gets a part of the state as its second argument and calls the encrypter.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Inner {
    /// Its address.
    pub(in super::super) function: u64,
    /// As seen from that part.
    pub(in super::super) encrypter: Encrypter,
}

/// What a register or a word of the stack holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    /// The address that is so far from the stack pointer at the beginning.
    Stack(i64),
    /// The address that is so far from the state's.
    State(i64),
    /// The word of the state there.
    Word(i64),
    /// The word at `slot` of what that word points to.
    Behind { word: i64, slot: i64 },
}

/// The first function of a table: size, alignment and what frees it go before.
const FIRST: i64 = 0x18;
/// States are smaller.
const STATE_BYTES: i64 = 0x8000;
/// Where a stack pointer goes that is rounded down: further than any frame reaches.
const ROUNDED: i64 = 1 << 24;
/// What a call leaves as it was.
const KEPT: [Register; 7] =
    [Register::RBX, Register::RBP, Register::RSP, Register::R12, Register::R13, Register::R14, Register::R15];

impl Function<'_> {
    /// Where the encrypter is, if all calls that can be one of it agree. `state`: the register of that argument.
    pub(in super::super) fn encrypter(&self, state: Register, inner: Option<Inner>) -> Option<Encrypter> {
        let mut found = None;
        let mut seen = vec![false; self.instructions.len()];
        let mut to_do = vec![(0, Known::new(state))];
        while let Some((index, mut known)) = to_do.pop() {
            let Some(instruction) = self.instructions.get(index) else { continue };
            if std::mem::replace(&mut seen[index], true) {
                continue;
            }
            match instruction.flow_control() {
                FlowControl::Call | FlowControl::IndirectCall => {
                    if let Some(encrypter) = known.called(instruction, inner) {
                        if found.is_some_and(|other| other != encrypter) {
                            return None;
                        }
                        found = Some(encrypter);
                    }
                    known.registers.retain(|register, _| KEPT.contains(register));
                    to_do.push((index + 1, known));
                }
                FlowControl::Next => {
                    known.step(instruction);
                    to_do.push((index + 1, known));
                }
                FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch => {
                    let target = jump_target(instruction)
                        .and_then(|ip| self.instructions.binary_search_by_key(&ip, Instruction::ip).ok());
                    if instruction.flow_control() == FlowControl::ConditionalBranch {
                        to_do.push((index + 1, known.clone()));
                    }
                    to_do.extend(target.map(|target| (target, known)));
                }
                _ => {}
            }
        }
        found
    }
}

/// Registers and words of the stack of which something is known.
#[derive(Debug, Clone)]
struct Known {
    registers: BTreeMap<Register, Value>,
    stack: BTreeMap<i64, Value>,
}

impl Known {
    fn new(state: Register) -> Self {
        let registers = BTreeMap::from([(state, Value::State(0)), (Register::RSP, Value::Stack(0))]);
        Self { registers, stack: BTreeMap::new() }
    }

    /// The encrypter, if this call is one of it, or of the function that calls it.
    fn called(&self, call: &Instruction, inner: Option<Inner>) -> Option<Encrypter> {
        let (object, count) = (self.get(Register::RSI)?, self.get(Register::RCX));
        if let (Some(inner), Value::State(plus)) = (inner, object)
            && direct_target(call) == Some(inner.function)
        {
            let Inner { encrypter: Encrypter { at, sequence }, .. } = inner;
            return encrypter_at(plus + signed(at)?, plus + signed(sequence)?);
        }
        let target = match call.op0_kind() {
            OpKind::Register => self.get(call.op0_register()),
            OpKind::Memory => self.loaded(call),
            _ => None,
        };
        let (Value::Word(at), Some(Value::Word(sequence))) = (object, count) else { return None };
        let is_first = target == Some(Value::Behind { word: at + 8, slot: FIRST });
        is_first.then(|| encrypter_at(at, sequence)).flatten()
    }

    fn get(&self, register: Register) -> Option<Value> {
        self.registers.get(&register).copied()
    }

    fn set(&mut self, register: Register, value: Option<Value>) {
        match value {
            Some(value) => self.registers.insert(register, value),
            None => self.registers.remove(&register),
        };
    }

    /// What the operand in memory is the address of.
    fn address(&self, instruction: &Instruction) -> Option<Value> {
        let plain = instruction.memory_index() == Register::None
            && instruction.segment_prefix() == Register::None
            && instruction.memory_base().is_gpr64();
        let plus = instruction.memory_displacement64().cast_signed();
        shifted(self.get(instruction.memory_base()).filter(|_| plain)?, plus)
    }

    /// What is there.
    fn loaded(&self, instruction: &Instruction) -> Option<Value> {
        match self.address(instruction) {
            Some(Value::Stack(at)) => self.stack.get(&at).copied(),
            Some(Value::State(at)) => Some(Value::Word(at)),
            _ => {
                let Value::Word(word) = self.get(instruction.memory_base())? else { return None };
                let is_plain = instruction.memory_index() == Register::None;
                let slot = instruction.memory_displacement64().cast_signed();
                is_plain.then_some(Value::Behind { word, slot })
            }
        }
    }

    /// A word of the stack is written.
    fn store(&mut self, at: i64, size: usize, value: Option<Value>) {
        let end = at.saturating_add(i64::try_from(size.max(1)).unwrap_or(i64::MAX));
        self.stack.retain(|known, _| known.saturating_add(8) <= at || *known >= end);
        if let Some(value) = value {
            self.stack.insert(at, value);
        }
    }

    fn move_stack(&mut self, by: i64) -> Option<i64> {
        let Value::Stack(at) = shifted(self.get(Register::RSP)?, by)? else { return None };
        self.set(Register::RSP, Some(Value::Stack(at)));
        Some(at)
    }

    fn step(&mut self, instruction: &Instruction) {
        let (to, from) = (instruction.op0_kind(), instruction.op1_kind());
        let register = instruction.op0_register();
        let is_whole = to == OpKind::Register && register.is_gpr64();
        match instruction.mnemonic() {
            Mnemonic::Push => {
                let value = (to == OpKind::Register).then(|| self.get(register)).flatten();
                if let Some(at) = self.move_stack(-8) {
                    self.store(at, 8, value);
                }
            }
            Mnemonic::Pop if is_whole => {
                let top = self.move_stack(8).and_then(|at| self.stack.get(&(at - 8)).copied());
                self.set(register, top);
            }
            Mnemonic::Mov if is_whole && from == OpKind::Register => {
                self.set(register, self.get(instruction.op1_register()));
            }
            Mnemonic::Mov if is_whole && from == OpKind::Memory => {
                self.set(register, self.loaded(instruction));
            }
            Mnemonic::Lea if is_whole => self.set(register, self.address(instruction)),
            Mnemonic::Add | Mnemonic::Sub if is_whole && instruction.try_immediate(1).is_ok() => {
                let plus = instruction.immediate(1).cast_signed();
                let plus = if instruction.mnemonic() == Mnemonic::Sub { plus.wrapping_neg() } else { plus };
                self.set(register, self.get(register).and_then(|value| shifted(value, plus)));
            }
            Mnemonic::And if register == Register::RSP => {
                self.move_stack(-ROUNDED);
            }
            _ => {
                if to == OpKind::Memory
                    && let Some(Value::Stack(at)) = self.address(instruction)
                {
                    let is_word = instruction.mnemonic() == Mnemonic::Mov && from == OpKind::Register;
                    let value = is_word.then(|| self.get(instruction.op1_register())).flatten();
                    self.store(at, instruction.memory_size().size(), value);
                }
                for register in written(instruction) {
                    self.registers.remove(&register);
                }
            }
        }
    }
}

fn shifted(value: Value, plus: i64) -> Option<Value> {
    match value {
        Value::Stack(at) => Some(Value::Stack(at.checked_add(plus)?)),
        Value::State(at) => Some(Value::State(at.checked_add(plus)?)),
        Value::Word(_) | Value::Behind { .. } => (plus == 0).then_some(value),
    }
}

fn signed(at: u64) -> Option<i64> {
    i64::try_from(at).ok()
}

fn encrypter_at(at: i64, sequence: i64) -> Option<Encrypter> {
    let is_place = |at: i64| (0..STATE_BYTES).contains(&at) && at % 8 == 0;
    let encrypter = Encrypter { at: at.cast_unsigned(), sequence: sequence.cast_unsigned() };
    (is_place(at) && is_place(sequence) && at != sequence).then_some(encrypter)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: u64 = 0x1000;
    const EXPECTED: Encrypter = Encrypter { at: 0x10, sequence: 0x38 };
    /// `mov 0x38(%r14),%rcx; mov 0x10(%r14),%rsi; mov 0x18(%r14),%rax; call *0x18(%rax)`
    const CALL: [u8; 15] =
        [0x49, 0x8b, 0x4e, 0x38, 0x49, 0x8b, 0x76, 0x10, 0x49, 0x8b, 0x46, 0x18, 0xff, 0x50, 0x18];

    #[test]
    fn the_encrypter_is_found_where_words_come_from_the_state() {
        fn check(code: &[u8], expected: Option<Encrypter>) {
            let found = Function::whole(HERE, code).encrypter(Register::RDI, None);
            assert_eq!(found, expected, "{code:02x?}");
        }
        let after = |before: &[u8]| [before, &CALL, &[0xc3]].concat();
        const STATE: &[u8] = &[0x49, 0x89, 0xfe]; // mov %rdi,%r14
        check(&after(STATE), Some(EXPECTED));
        // By the stack: push %rdi; push %rbx; pop %rbx; pop %r14.
        check(&after(&[0x57, 0x53, 0x5b, 0x41, 0x5e]), Some(EXPECTED));
        // sub $0x20,%rsp; mov %rdi,8(%rsp); mov 8(%rsp),%r14
        let kept = [0x48, 0x83, 0xec, 0x20, 0x48, 0x89, 0x7c, 0x24, 8, 0x4c, 0x8b, 0x74, 0x24, 8];
        check(&after(&kept), Some(EXPECTED));
        // That word is written meanwhile: movb $0,0xb(%rsp).
        let written = [&kept[..9], &[0xc6, 0x44, 0x24, 0xb, 0], &kept[9..]].concat();
        check(&after(&written), None);
        // A call lies between, and the state is in a register that it keeps, or not.
        check(&after(&[STATE, &[0xe8, 0, 1, 0, 0]].concat()), Some(EXPECTED));
        check(&after(&[0xe8, 0, 1, 0, 0, 0x49, 0x89, 0xfe]), None);
        // Another argument; another function of the table; the table of another word; a number from elsewhere.
        check(&after(&[0x49, 0x89, 0xf6]), None);
        let changed = |at: usize, byte: u8| {
            let mut code = after(STATE);
            code[STATE.len() + at] = byte;
            code
        };
        check(&changed(14, 0x20), None);
        check(&changed(11, 0x20), None);
        check(&changed(2, 0x4f), None);
        // Two calls that disagree: the second one's words lie 8 bytes further on.
        let second = [0x49, 0x83, 0xc6, 8];
        check(&[STATE, &CALL, &second, &CALL, &[0xc3]].concat(), None);
        check(&[STATE, &CALL, &CALL, &[0xc3]].concat(), Some(EXPECTED));
        check(&[], None);
    }

    #[test]
    fn a_part_of_the_state_is_handed_on() {
        // lea 0x40(%rdi),%rsi; call HERE + 0x100
        let code = [0x48, 0x8d, 0x77, 0x40, 0xe8, 0xf7, 0, 0, 0, 0xc3];
        let found = |function| {
            let inner = Inner { function, encrypter: EXPECTED };
            Function::whole(HERE, &code).encrypter(Register::RDI, Some(inner))
        };
        assert_eq!(found(HERE + 0x100), Some(Encrypter { at: 0x50, sequence: 0x78 }));
        assert_eq!(found(HERE + 0x101), None);
    }

    proptest! {
        #[test]
        fn any_code_is_taken(code in prop::collection::vec(any::<u8>(), 0..300)) {
            let code = [&[0x49, 0x89, 0xfe][..], &code, &CALL].concat();
            let _ = Function::whole(HERE, &code).encrypter(Register::RDI, None);
        }
    }
}
