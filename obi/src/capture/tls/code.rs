//! Machine code of one function, as far as the choice of probe points needs it (x86-64; that of arm64 is in [`arm64`]).
//!
//! In: bytes and their address. Out: which instructions the kernel emulates at a probe, how far the arguments are still
//! in their registers, where a result is final. Whatever is not understood ends the look: an answer is proven or
//! absent. Refuses to know what the function does. Pure.
#![forbid(unsafe_code)]

pub(super) mod arm64;
mod error;
mod go;
mod goroutine;
mod node;
mod of_go;
mod rustls;

pub(super) use arm64::Received;
pub(super) use goroutine::Numbers;
pub(super) use of_go::GoFunction;
pub(super) use rustls::{Encrypter, Inner};

use std::collections::BTreeSet;

use iced_x86::{
    Decoder, DecoderOptions, FlowControl, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, OpKind,
    Register,
};

/// Bytes of a function that are looked at; those of TLS libraries have some hundred.
pub(super) const CODE_BYTES: usize = 8 * 1024;

/// The arguments of the ABI, in order.
const ARGUMENTS: [Register; 5] = [Register::RDI, Register::RSI, Register::RDX, Register::RCX, Register::R8];

/// A function, taken apart.
#[derive(Debug)]
pub(super) struct Function<'a> {
    address: u64,
    bytes: &'a [u8],
    instructions: Vec<Instruction>,
    /// Targets of all its direct jumps.
    targets: BTreeSet<u64>,
}

/// A place near a function's beginning that is cheap to probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Entry {
    /// Its address.
    pub(super) address: u64,
    /// The stack pointer is where it was: a return probe finds the return address there.
    pub(super) can_return: bool,
}

/// Where the arguments of an inner function are that is called with those of the outer one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct InnerCall {
    /// The inner function.
    pub(super) target: u64,
    /// The fourth argument has become the fifth.
    pub(super) fifth: bool,
}

impl<'a> Function<'a> {
    pub(super) fn new(address: u64, bytes: &'a [u8]) -> Self {
        Self::whole(address, &bytes[..bytes.len().min(CODE_BYTES)])
    }

    /// Of any length.
    pub(super) fn whole(address: u64, bytes: &'a [u8]) -> Self {
        let mut instructions = Vec::new();
        let mut decoder = Decoder::with_ip(64, bytes, address, DecoderOptions::NONE);
        while decoder.can_decode() {
            let instruction = decoder.decode();
            if instruction.is_invalid() {
                break;
            }
            instructions.push(instruction);
        }
        let targets = instructions.iter().filter_map(jump_target).collect();
        Self { address, bytes, instructions, targets }
    }

    /// The first emulated instruction, if every call passes it with its first `n_arguments` arguments in their
    /// registers.
    pub(super) fn entry(&self, n_arguments: usize) -> Option<Entry> {
        let mut clobbered = Clobbered::default();
        for instruction in self.straight_line() {
            if self.is_emulated(instruction) {
                let can_return = !clobbered.contains(Register::RSP);
                return Some(Entry { address: instruction.ip(), can_return });
            }
            clobbered.add(instruction);
            if ARGUMENTS[..n_arguments].iter().any(|argument| clobbered.contains(*argument)) {
                return None;
            }
        }
        None
    }

    /// The call of another function with exactly these four arguments, on the way that every call takes. `fifth`: the
    /// last of them is the fifth argument here already, behind one that is its own.
    pub(super) fn inner_call(&self, fifth: bool) -> Option<InnerCall> {
        let [object, buffer, length, count, fifth_argument] = ARGUMENTS;
        let (mut in_fourth, mut in_fifth) = (!fifth, fifth);
        let mut clobbered = Clobbered::default();
        for instruction in self.straight_line() {
            if matches!(instruction.flow_control(), FlowControl::Call | FlowControl::UnconditionalBranch) {
                let target = direct_target(instruction)?;
                let live = [object, buffer, length].iter().all(|argument| !clobbered.contains(*argument));
                return (live && (in_fourth || in_fifth)).then_some(InnerCall { target, fifth: !in_fourth });
            }
            let moved = in_fourth && is_move(instruction, fifth_argument, count);
            // Code that keeps a copy needs it after the call: then the call is of something on the way.
            if !moved && [buffer, length, count, fifth_argument].iter().any(|kept| reads(instruction, *kept))
            {
                return None;
            }
            in_fifth = moved || in_fifth && !writes(instruction, fifth_argument);
            in_fourth &= !writes(instruction, count);
            clobbered.add(instruction);
        }
        None
    }

    /// The function that it ends in on the way that every call takes: with the object, this type, buffer and size.
    pub(super) fn typed_call(&self, wanted: u64) -> Option<u64> {
        let [object, second, third, fourth, _] = ARGUMENTS;
        let (mut buffer, mut size) = (second, third);
        let mut kind = None;
        let mut clobbered = Clobbered::default();
        for instruction in self.straight_line() {
            if instruction.flow_control() == FlowControl::UnconditionalBranch {
                let fits =
                    !clobbered.contains(object) && kind == Some(wanted) && (buffer, size) == (third, fourth);
                return direct_target(instruction).filter(|_| fits);
            }
            if is_move(instruction, third, second) && buffer == second && size != third {
                buffer = third;
            } else if is_move(instruction, fourth, third) && size == third {
                size = fourth;
            } else if buffer != second && constant_of(instruction) == Some((second, wanted)) {
                kind = Some(wanted);
            } else if written(instruction).any(|it| [second, third, fourth].contains(&it)) {
                return None;
            }
            clobbered.add(instruction);
        }
        None
    }

    pub(super) fn address(&self) -> u64 {
        self.address
    }

    /// Whether it calls this function, or ends in it.
    pub(super) fn calls(&self, target: u64) -> bool {
        self.instructions.iter().any(|instruction| direct_target(instruction) == Some(target))
    }

    /// The emulated jumps that every return passes, with the result in `rax` for good: those behind the check of the
    /// stack's canary. `None` when some way out passes none of them.
    pub(super) fn result_points(&self) -> Option<Vec<u64>> {
        let checks: BTreeSet<usize> =
            (1..self.instructions.len()).filter(|index| self.is_canary_check(*index)).collect();
        let all_final = checks.iter().all(|index| self.is_result_final(index + 1));
        (!checks.is_empty() && all_final && self.always_passes(&checks))
            .then(|| checks.iter().map(|index| self.instructions[*index].ip()).collect())
    }

    /// What every call executes first, in order: up to the first jump, call or place that is jumped to. The first of
    /// it may be jumped to: that is a call, too.
    fn straight_line(&self) -> impl Iterator<Item = &Instruction> {
        let mut goes_on = true;
        self.instructions.iter().take_while(move |instruction| {
            let merges = instruction.ip() != self.address && self.targets.contains(&instruction.ip());
            let here = goes_on && !merges;
            goes_on = here && instruction.flow_control() == FlowControl::Next;
            here
        })
    }

    /// As `arch/x86/kernel/uprobes.c` decides: relative jumps and calls without prefix, `push` of a register, `nop`.
    fn is_emulated(&self, instruction: &Instruction) -> bool {
        let start = usize::try_from(instruction.ip() - self.address).unwrap_or(usize::MAX);
        let bytes = self.bytes.get(start..start.saturating_add(instruction.len())).unwrap_or_default();
        matches!(
            bytes,
            [0x50..=0x57 | 0x90]
                | [0x41, 0x50..=0x57]
                | [0x66, 0x90]
                | [0x70..=0x7f | 0xeb, _]
                | [0xe8 | 0xe9, _, _, _, _]
                | [0x0f, 0x80..=0x8f, _, _, _, _]
        )
    }

    /// A conditional jump right behind the comparison with the canary, `fs:0x28`.
    fn is_canary_check(&self, index: usize) -> bool {
        let (before, jump) = (&self.instructions[index - 1], &self.instructions[index]);
        jump.flow_control() == FlowControl::ConditionalBranch
            && self.is_emulated(jump)
            && matches!(before.mnemonic(), Mnemonic::Sub | Mnemonic::Xor | Mnemonic::Cmp)
            && before.memory_segment() == Register::FS
            && before.memory_displacement64() == 0x28
    }

    /// From here on, straight to a return, `rax` is not written.
    fn is_result_final(&self, from: usize) -> bool {
        for instruction in self.instructions.get(from..).unwrap_or_default() {
            match instruction.flow_control() {
                FlowControl::Return => return true,
                FlowControl::Next if !writes(instruction, Register::RAX) => {}
                _ => return false,
            }
        }
        false
    }

    /// No way from the entry out of the function avoids the `checks`.
    fn always_passes(&self, checks: &BTreeSet<usize>) -> bool {
        let at = |ip| self.instructions.binary_search_by_key(&ip, Instruction::ip).ok();
        let mut seen = vec![false; self.instructions.len()];
        let mut to_do = vec![0];
        while let Some(index) = to_do.pop() {
            // Running off the end, or past what was understood, is a way out.
            let Some(instruction) = self.instructions.get(index) else { return false };
            if checks.contains(&index) || std::mem::replace(&mut seen[index], true) {
                continue;
            }
            match (instruction.flow_control(), jump_target(instruction)) {
                (FlowControl::Next | FlowControl::Call | FlowControl::IndirectCall, _) => {
                    to_do.push(index + 1)
                }
                (FlowControl::ConditionalBranch, Some(target)) => {
                    let Some(target) = at(target) else { return false };
                    to_do.extend([index + 1, target]);
                }
                (FlowControl::UnconditionalBranch, Some(target)) => {
                    let Some(target) = at(target) else { return false };
                    to_do.push(target);
                }
                _ => return false,
            }
        }
        true
    }
}

/// Registers that may no longer hold what they held, as whole registers.
#[derive(Debug, Default)]
struct Clobbered(BTreeSet<Register>);

impl Clobbered {
    fn add(&mut self, instruction: &Instruction) {
        self.0.extend(written(instruction));
    }

    fn contains(&self, register: Register) -> bool {
        self.0.contains(&register)
    }
}

/// `mov $constant,%register`: the whole register, and what it holds then.
fn constant_of(instruction: &Instruction) -> Option<(Register, u64)> {
    let is_constant = instruction.mnemonic() == Mnemonic::Mov
        && instruction.op0_kind() == OpKind::Register
        && instruction.op0_register().is_gpr32()
        && instruction.op1_kind() == OpKind::Immediate32;
    is_constant.then(|| (instruction.op0_register().full_register(), instruction.immediate32().into()))
}

fn is_move(instruction: &Instruction, to: Register, from: Register) -> bool {
    let registers = [instruction.op0_kind(), instruction.op1_kind()] == [OpKind::Register; 2];
    let (op0, op1) = (instruction.op0_register(), instruction.op1_register());
    instruction.mnemonic() == Mnemonic::Mov && registers && (op0, op1) == (to, from)
}

fn reads(instruction: &Instruction, register: Register) -> bool {
    used(instruction).any(|(used, access)| {
        used == register
            && !matches!(
                access,
                OpAccess::None | OpAccess::Write | OpAccess::CondWrite | OpAccess::NoMemAccess
            )
    })
}

fn writes(instruction: &Instruction, register: Register) -> bool {
    written(instruction).any(|written| written == register)
}

fn written(instruction: &Instruction) -> impl Iterator<Item = Register> {
    let is_write = |access| {
        !matches!(access, OpAccess::None | OpAccess::Read | OpAccess::CondRead | OpAccess::NoMemAccess)
    };
    used(instruction).filter(move |(_, access)| is_write(*access)).map(|(register, _)| register)
}

/// Whole registers.
fn used(instruction: &Instruction) -> impl Iterator<Item = (Register, OpAccess)> {
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(instruction).used_registers().to_vec();
    used.into_iter().map(|used| (used.register().full_register(), used.access()))
}

/// Where a direct jump goes.
fn jump_target(instruction: &Instruction) -> Option<u64> {
    let jumps = matches!(
        instruction.flow_control(),
        FlowControl::ConditionalBranch | FlowControl::UnconditionalBranch
    );
    jumps.then(|| direct_target(instruction)).flatten()
}

/// Where a direct jump or call goes.
fn direct_target(instruction: &Instruction) -> Option<u64> {
    (instruction.op0_kind() == OpKind::NearBranch64).then(|| instruction.near_branch_target())
}
