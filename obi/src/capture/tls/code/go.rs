//! Machine code of Go's functions (x86-64, the ABI of 1.17 and later), as far as the choice of probe points needs it.
//!
//! In: a function, taken apart. Out: the jump of its check of the stack, with all arguments still in their registers;
//! the jump behind a call, with the results still in theirs; whether the function's first argument is in its home
//! above the return address. Proven from the code, whatever version of Go has made it; what is not understood is no
//! answer. Pure.
//!
//! Go's functions begin with such a check, and its jump is emulated by the kernel. Return probes are out of the
//! question: a stack that grows is copied, and its unwinder must not meet an address that it does not know.

use std::collections::BTreeSet;

use iced_x86::{FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind, Register};

use super::{Function, direct_target, jump_target, writes, written};

/// Where the runtime keeps what is running, and in it the lowest address that the stack may come down to.
const GOROUTINE: Register = Register::R14;
const STACK_GUARD: u64 = 0x10;
/// The registers of arguments and results, in order.
pub(in super::super) const ARGUMENTS: [Register; 4] =
    [Register::RAX, Register::RBX, Register::RCX, Register::RDI];
/// The results of `decrypt(record) ([]byte, recordType, error)`; of the error the first word.
const RESULTS: [Register; 5] = [Register::RAX, Register::RBX, Register::RCX, Register::RDI, Register::RSI];
/// Instructions until the jump of the check.
const CHECK: usize = 4;
/// Instructions between a call and the jump that looks at its error.
const BEHIND: usize = 8;

impl Function<'_> {
    /// The jump of the check of the stack, if every call passes it with its first `n_arguments` arguments in their
    /// registers. Where it is taken, the function begins again later.
    pub(in super::super) fn stack_check(&self, n_arguments: usize) -> Option<u64> {
        let index = self.check_index()?;
        let before = &self.instructions[..index];
        let clobbers = |argument: &Register| before.iter().any(|instruction| writes(instruction, *argument));
        let kept = ARGUMENTS.get(..n_arguments)?.iter().all(|argument| !clobbers(argument));
        kept.then(|| self.instructions[index].ip())
    }

    /// The jump behind the only call of `target`, taken by whether its error is none; all results are in their
    /// registers.
    pub(in super::super) fn error_check(&self, target: u64) -> Option<u64> {
        let call = self.only_call(target)?;
        let mut tested = false;
        for instruction in self.instructions.iter().skip(call + 1).take(BEHIND) {
            if self.targets.contains(&instruction.ip()) {
                return None;
            }
            match instruction.flow_control() {
                FlowControl::ConditionalBranch if tested && self.is_emulated(instruction) => {
                    return Some(instruction.ip());
                }
                FlowControl::Next if RESULTS.iter().all(|result| !writes(instruction, *result)) => {
                    tested = is_test_of_error(instruction) || tested && !writes_flags(instruction);
                }
                _ => return None,
            }
        }
        None
    }

    /// Whether at the only call of `target` the function's first argument is in its home, at 16 bytes from the frame
    /// pointer: every way there stores it, and nothing else is ever put there.
    pub(in super::super) fn keeps_first_argument(&self, target: u64) -> bool {
        self.only_call(target).and_then(|call| self.stores_of_first_argument(call)).is_some()
    }

    fn check_index(&self) -> Option<usize> {
        let is_jump = |instruction: &Instruction| instruction.mnemonic() == Mnemonic::Jbe;
        let index = self.instructions.iter().take(CHECK).position(is_jump)?;
        let (before, jump) = (self.instructions.get(index.checked_sub(1)?)?, &self.instructions[index]);
        let compares = before.mnemonic() == Mnemonic::Cmp
            && matches!(before.op0_register(), Register::RSP | Register::R12)
            && before.op1_kind() == OpKind::Memory
            && before.memory_base() == GOROUTINE
            && before.memory_index() == Register::None
            && before.memory_displacement64() == STACK_GUARD;
        let straight = self.instructions[..index].iter().all(|it| it.flow_control() == FlowControl::Next);
        let merges = self.instructions[1..=index].iter().any(|it| self.targets.contains(&it.ip()));
        (compares && straight && !merges && self.is_emulated(jump)).then_some(index)
    }

    pub(super) fn only_call(&self, target: u64) -> Option<usize> {
        let calls = |instruction: &Instruction| direct_target(instruction) == Some(target);
        let mut found = self.instructions.iter().enumerate().filter(|(_, instruction)| calls(instruction));
        let (index, call) = found.next()?;
        (found.next().is_none() && call.flow_control() == FlowControl::Call).then_some(index)
    }

    /// From the stack pointer to the home of the second argument, if it is stored there before anything is called, and
    /// nothing else ever is.
    pub(super) fn home_of_second_argument(&self) -> Option<u64> {
        let frame = self.frame(self.check_index()? + 1)?;
        let home = Frame { home: frame.home.checked_add(8)?, ..frame };
        let body = || self.instructions.iter().enumerate().skip(home.body);
        let mut stores = body().filter(|(_, it)| home.is_second_in(it) && writes_memory(it));
        let (index, store) = stores.next().filter(|_| stores.next().is_none())?;
        let is_whole = store.mnemonic() == Mnemonic::Mov
            && store.op1_kind() == OpKind::Register
            && store.op1_register() == ARGUMENTS[1];
        let before = self.instructions.get(home.body..index)?;
        let is_first =
            before.iter().all(|it| it.flow_control() == FlowControl::Next && !writes(it, ARGUMENTS[1]));
        let merges =
            self.instructions.get(home.body..=index)?.iter().any(|it| self.targets.contains(&it.ip()));
        (is_whole && is_first && !merges).then_some(home.home)
    }

    /// The instructions that put the first argument into its home, if every way to `goal` passes one of them.
    fn stores_of_first_argument(&self, goal: usize) -> Option<BTreeSet<usize>> {
        let check = self.check_index()?;
        let frame = self.frame(check + 1)?;
        let stores = self.writes_to_home(&frame)?;
        let mut passed = BTreeSet::new();
        let mut seen = BTreeSet::new();
        // The argument is in its register until something else is.
        let mut to_do = vec![(frame.body, true)];
        while let Some((index, holds)) = to_do.pop() {
            if !seen.insert((index, holds)) {
                continue;
            }
            let instruction = self.instructions.get(index).filter(|_| index != goal)?;
            if stores.contains(&index) {
                if !holds {
                    return None;
                }
                passed.insert(index);
                continue;
            }
            let holds = holds && !is_call(instruction) && !writes(instruction, ARGUMENTS[0]);
            let jumps = || self.index_of(jump_target(instruction)?);
            match instruction.flow_control() {
                FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall => {
                    to_do.push((index + 1, holds));
                }
                FlowControl::ConditionalBranch => to_do.extend([(index + 1, holds), (jumps()?, holds)]),
                FlowControl::UnconditionalBranch => to_do.push((jumps()?, holds)),
                FlowControl::Return | FlowControl::Exception => {}
                _ => return None,
            }
        }
        (passed == stores).then_some(passed)
    }

    /// How the function makes its frame, if it does so in a known way right behind the check of the stack: as Go does
    /// since 1.21, by pushing the frame pointer, or as before, by storing it.
    fn frame(&self, from: usize) -> Option<Frame> {
        let at = |offset: usize| self.instructions.get(from + offset);
        let (first, second, third) = (at(0)?, at(1)?, at(2)?);
        let frame = if first.mnemonic() == Mnemonic::Push && first.op0_register() == Register::RBP {
            let points = super::is_move(second, Register::RBP, Register::RSP);
            Frame { home: lowered(third).filter(|_| points)?.checked_add(16)?, body: from + 3 }
        } else {
            let size = lowered(first)?;
            let saved = size.checked_sub(8)?;
            let stores = second.mnemonic() == Mnemonic::Mov
                && second.op1_register() == Register::RBP
                && is_on_stack(second, saved);
            let points = third.mnemonic() == Mnemonic::Lea
                && third.op0_register() == Register::RBP
                && is_on_stack(third, saved);
            Frame { home: size.checked_add(8).filter(|_| stores && points)?, body: from + 3 }
        };
        self.leaves_frame_alone(&frame).then_some(frame)
    }

    /// Behind the beginning, stack and frame pointer change only where the function ends, and in calls, which bring
    /// them back. (Some copies of Go's have a frame for themselves: those give the frame pointer back right behind
    /// their call.)
    fn leaves_frame_alone(&self, frame: &Frame) -> bool {
        let is_moved = |instruction: &Instruction| {
            !is_call(instruction)
                && (writes(instruction, Register::RSP) || writes(instruction, Register::RBP))
        };
        let body = self.instructions.iter().enumerate().skip(frame.body);
        body.filter(|(_, instruction)| is_moved(instruction))
            .all(|(index, _)| self.ends_from(index) || self.is_of_copy(index))
    }

    /// From here on only pointers of the stack are brought back, and the function returns.
    fn ends_from(&self, index: usize) -> bool {
        for instruction in self.instructions.iter().skip(index).take(CHECK) {
            if instruction.flow_control() == FlowControl::Return {
                return true;
            }
            let others = |register: Register| !matches!(register, Register::RSP | Register::RBP);
            let flags_only = written(instruction).all(|register| !others(register));
            if instruction.flow_control() != FlowControl::Next || !flags_only {
                return false;
            }
        }
        false
    }

    /// `mov %rbp,-16(%rsp); lea -16(%rsp),%rbp; call; mov 0(%rbp),%rbp`: around the call of a routine that copies or
    /// clears.
    fn is_of_copy(&self, index: usize) -> bool {
        let is_lea = |at: usize| {
            self.instructions.get(at).is_some_and(|it| {
                it.mnemonic() == Mnemonic::Lea
                    && it.op0_register() == Register::RBP
                    && it.memory_base() == Register::RSP
                    && it.memory_displacement64() == 16_u64.wrapping_neg()
            })
        };
        let is_back = |at: usize| {
            self.instructions.get(at).is_some_and(|it| {
                it.mnemonic() == Mnemonic::Mov
                    && it.op0_register() == Register::RBP
                    && it.memory_base() == Register::RBP
                    && it.memory_index() == Register::None
                    && it.memory_displacement64() == 0
            })
        };
        let calls = |at: usize| self.instructions.get(at).is_some_and(is_call);
        is_lea(index) && calls(index + 1) && is_back(index + 2)
            || index >= 2 && is_back(index) && calls(index - 1) && is_lea(index - 2)
    }

    /// What writes to the home, if all of it stores the whole first register, and nothing hands out its address.
    fn writes_to_home(&self, frame: &Frame) -> Option<BTreeSet<usize>> {
        let mut stores = BTreeSet::new();
        for (index, instruction) in self.instructions.iter().enumerate().skip(frame.body) {
            if !frame.is_home_in(instruction) || !writes_memory(instruction) {
                continue;
            }
            let whole = instruction.mnemonic() == Mnemonic::Mov
                && instruction.op1_kind() == OpKind::Register
                && instruction.op1_register() == ARGUMENTS[0];
            if !whole || instruction.memory_index() != Register::None {
                return None;
            }
            stores.insert(index);
        }
        Some(stores)
    }

    fn index_of(&self, ip: u64) -> Option<usize> {
        self.instructions.binary_search_by_key(&ip, Instruction::ip).ok()
    }
}

/// A function's frame, once it is made.
struct Frame {
    /// From the stack pointer to the home of the first argument.
    home: u64,
    /// The first instruction behind the making.
    body: usize,
}

impl Frame {
    /// Whether its operand in memory, or what its `lea` makes the address of, is or overlaps the home.
    fn is_home_in(&self, instruction: &Instruction) -> bool {
        self.overlaps(instruction, 16)
    }

    /// As [`Self::is_home_in`], where the home is that of the second argument.
    fn is_second_in(&self, instruction: &Instruction) -> bool {
        self.overlaps(instruction, 24)
    }

    /// `behind`: from the frame pointer to the home.
    fn overlaps(&self, instruction: &Instruction, behind: u64) -> bool {
        if instruction.memory_index() != Register::None {
            return false;
        }
        let home = match instruction.memory_base() {
            Register::RSP => self.home,
            Register::RBP => behind,
            _ => return false,
        };
        let at = instruction.memory_displacement64();
        let size = instruction.memory_size().size().max(1) as u64;
        at < home + 8 && at.checked_add(size).is_some_and(|end| end > home)
    }
}

/// By how much the instruction lowers the stack pointer.
fn lowered(instruction: &Instruction) -> Option<u64> {
    let immediate = || instruction.try_immediate(1).ok();
    if instruction.op0_register() != Register::RSP {
        return None;
    }
    let bytes = match instruction.mnemonic() {
        Mnemonic::Sub => immediate()?,
        Mnemonic::Add => immediate()?.wrapping_neg(),
        _ => return None,
    };
    (8..1 << 20).contains(&bytes).then_some(bytes)
}

fn is_on_stack(instruction: &Instruction, at: u64) -> bool {
    instruction.memory_base() == Register::RSP
        && instruction.memory_index() == Register::None
        && instruction.memory_displacement64() == at
}

fn is_call(instruction: &Instruction) -> bool {
    matches!(instruction.flow_control(), FlowControl::Call | FlowControl::IndirectCall)
}

/// `test %rsi,%rsi`: is the error's first word 0?
fn is_test_of_error(instruction: &Instruction) -> bool {
    instruction.mnemonic() == Mnemonic::Test
        && [instruction.op0_register(), instruction.op1_register()] == [Register::RSI; 2]
}

fn writes_flags(instruction: &Instruction) -> bool {
    instruction.rflags_modified() != 0
}

/// It may write to its operand in memory, or hands out its address.
fn writes_memory(instruction: &Instruction) -> bool {
    let mut factory = InstructionInfoFactory::new();
    let writes = |access| {
        matches!(
            access,
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    };
    instruction.mnemonic() == Mnemonic::Lea
        || factory.info(instruction).used_memory().iter().any(|used| writes(used.access()))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const HERE: u64 = 0x1000;
    /// `lea -0xb0(%rsp),%r12; cmp 0x10(%r14),%r12; jbe +0x10`
    const CHECKED: [u8; 14] =
        [0x4c, 0x8d, 0x64, 0x24, 0x80, 0x4d, 0x3b, 0x66, 0x10, 0x76, 0x10, 0x90, 0x90, 0xc3];

    #[test]
    fn the_jump_of_the_check_is_found_where_arguments_live() {
        let check = |code: &[u8], expected: Option<u64>| {
            assert_eq!(Function::whole(HERE, code).stack_check(4), expected, "{code:02x?}");
        };
        let changed = |at: usize, bytes: &[u8]| {
            let mut code = CHECKED.to_vec();
            code.splice(at..at + bytes.len(), bytes.iter().copied());
            code
        };
        check(&CHECKED, Some(HERE + 9));
        // A frame that is small: `cmp 0x10(%r14),%rsp; jbe`.
        check(&[0x49, 0x3b, 0x66, 0x10, 0x0f, 0x86, 0, 1, 0, 0, 0xc3], Some(HERE + 4));
        // Another jump; another register; another word of the goroutine; the old ABI's `cmp 0x10(%rcx),%rsp`.
        check(&changed(9, &[0x74]), None);
        check(&changed(7, &[0x67]), None);
        check(&changed(8, &[0x18]), None);
        check(&[0x48, 0x3b, 0x61, 0x10, 0x76, 0x10, 0xc3], None);
        // An argument is overwritten before: `xor %edi,%edi`.
        check(&[&[0x31, 0xff], &CHECKED[..]].concat(), None);
        check(&[0xc3], None);
        check(&[], None);
    }

    /// A function with a frame of 0x20 bytes that keeps its argument, calls `HERE + 0x100` and looks at the error.
    fn reading(store: &[u8], behind: &[u8]) -> Vec<u8> {
        // cmp 0x10(%r14),%rsp; jbe to the end; push %rbp; mov %rsp,%rbp; sub $0x20,%rsp
        let mut code = vec![0x49, 0x3b, 0x66, 0x10, 0x76, 0, 0x55, 0x48, 0x89, 0xe5, 0x48, 0x83, 0xec, 0x20];
        code.extend(store);
        let distance = 0x100 - i32::try_from(code.len()).unwrap() - 5;
        code.push(0xe8);
        code.extend(distance.to_le_bytes());
        code.extend(behind);
        // add $0x20,%rsp; pop %rbp; ret
        code.extend([0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3]);
        let end = u8::try_from(code.len() - 6).unwrap();
        code[5] = end;
        // call of what makes room; jmp to the beginning
        code.extend([0xe8, 0, 2, 0, 0, 0xeb]);
        code.push(u8::MAX - u8::try_from(code.len()).unwrap());
        code
    }

    #[test]
    fn a_record_is_reported_where_its_object_is_known() {
        // mov %rax,0x30(%rsp): the home is above the frame, the frame pointer and the return address.
        const STORE: &[u8] = &[0x48, 0x89, 0x44, 0x24, 0x30];
        // test %rsi,%rsi; jne +1; nop
        const LOOK: &[u8] = &[0x48, 0x85, 0xf6, 0x75, 0x01, 0x90];
        fn check(store: &[u8], behind: &[u8], expected: (bool, bool)) {
            let code = reading(store, behind);
            let function = Function::whole(HERE, &code);
            let target = HERE + 0x100;
            let jump = HERE + 14 + store.len() as u64 + 5 + 3;
            let found = function.error_check(target).map(|at| at >= jump);
            assert_eq!((function.keeps_first_argument(target), found == Some(true)), expected, "{code:02x?}");
        }
        check(STORE, LOOK, (true, true));
        // It is never stored, elsewhere, from another register, or overwritten before or behind.
        check(&[0x90], LOOK, (false, true));
        check(&[0x48, 0x89, 0x44, 0x24, 0x28], LOOK, (false, true));
        check(&[0x48, 0x89, 0x5c, 0x24, 0x30], LOOK, (false, true));
        check(&[&[0x31, 0xc0], STORE].concat(), LOOK, (false, true));
        check(&[STORE, &[0x48, 0x89, 0x5c, 0x24, 0x30]].concat(), LOOK, (false, true));
        check(&[STORE, &[0xc6, 0x44, 0x24, 0x33, 0]].concat(), LOOK, (false, true));
        // Its address is handed out: lea 0x30(%rsp),%rcx.
        check(&[STORE, &[0x48, 0x8d, 0x4c, 0x24, 0x30]].concat(), LOOK, (false, true));
        // One way passes the store by: test %al,%al; je over it.
        check(&[&[0x84, 0xc0, 0x74, 0x05], STORE].concat(), LOOK, (false, true));
        // One way that ends does no harm: test %al,%al; je to a return, which is behind the store.
        check(
            &[&[0x84, 0xc0, 0x75, 0x06, 0x48, 0x83, 0xc4, 0x20, 0x5d, 0xc3], STORE].concat(),
            LOOK,
            (true, true),
        );
        // The stack pointer moves meanwhile: push %rbx.
        check(&[STORE, &[0x53]].concat(), LOOK, (false, true));
        // The error is not looked at; a result is overwritten first; something else is looked at.
        check(STORE, &[0x90, 0x90, 0x90, 0x90], (true, false));
        check(STORE, &[&[0x31, 0xdb], LOOK].concat(), (true, false));
        check(STORE, &[0x48, 0x85, 0xff, 0x75, 0x01, 0x90], (true, false));
    }

    proptest! {
        #[test]
        fn any_code_is_taken(code in prop::collection::vec(any::<u8>(), 0..300), target in 0_u64..300) {
            let code = [&CHECKED[..11], &code].concat();
            let function = Function::whole(HERE, &code);
            let places = [function.stack_check(4), function.error_check(HERE + target)];
            prop_assert!(places.iter().flatten().all(|at| (HERE..HERE + code.len() as u64).contains(at)));
            let _ = function.keeps_first_argument(HERE + target);
        }
    }
}
