//! What the errors say that a function of BoringSSL gives (x86-64), and what else distinguishes functions.
//!
//! In: a function, taken apart. Out: numbers of reasons, functions that it calls. Pure.

use std::collections::{BTreeMap, BTreeSet};

use iced_x86::{FlowControl, Instruction, Mnemonic, Register};

use super::{Function, constant_of, direct_target, jump_target, written};

/// What is known to be in registers.
type Known = BTreeMap<Register, u64>;

/// Arguments of `ERR_put_error(library, function, reason, file, line)`.
const LIBRARY: Register = Register::RDI;
const REASON: Register = Register::RDX;
const FILE: Register = Register::RCX;
/// Instructions of a shared call.
const SHARED: usize = 8;

impl Function<'_> {
    /// The reasons of the errors of this library that name one of these files. Compilers let several errors share one
    /// call, which the others jump to.
    pub(in super::super) fn error_reasons(&self, files: &[u64], library: u32) -> BTreeSet<u32> {
        let mut known = Known::new();
        let mut reasons = BTreeSet::new();
        for instruction in &self.instructions {
            match instruction.flow_control() {
                FlowControl::Next => note(&mut known, instruction),
                FlowControl::ConditionalBranch => {}
                FlowControl::Call => reasons.extend(reason(&std::mem::take(&mut known), files, library)),
                FlowControl::UnconditionalBranch => {
                    let shared = self.up_to_call(std::mem::take(&mut known), instruction);
                    reasons.extend(shared.and_then(|known| reason(&known, files, library)));
                }
                _ => known.clear(),
            }
        }
        reasons
    }

    /// What is in the registers at the call that this jump goes to the beginning of.
    fn up_to_call(&self, mut known: Known, jump: &Instruction) -> Option<Known> {
        let start = self.instructions.binary_search_by_key(&jump_target(jump)?, Instruction::ip).ok()?;
        for instruction in self.instructions.iter().skip(start).take(SHARED) {
            match instruction.flow_control() {
                FlowControl::Next => note(&mut known, instruction),
                FlowControl::Call => return Some(known),
                _ => return None,
            }
        }
        None
    }

    /// The functions that it calls.
    pub(in super::super) fn called(&self) -> BTreeSet<u64> {
        let calls = self.instructions.iter().filter(|it| it.flow_control() == FlowControl::Call);
        calls.filter_map(direct_target).collect()
    }

    /// It takes something out of a structure at this place, other than one on the stack.
    pub(in super::super) fn loads_at(&self, displacement: u64) -> bool {
        self.instructions.iter().any(|it| {
            it.mnemonic() == Mnemonic::Mov
                && it.op0_register().is_gpr64()
                && it.memory_displacement64() == displacement
                && it.memory_base().is_gpr64()
                && it.memory_index() == Register::None
                && !matches!(it.memory_base(), Register::RSP | Register::RBP)
        })
    }
}

/// Of the error that is given by a call with these arguments.
fn reason(known: &Known, files: &[u64], library: u32) -> Option<u32> {
    let names_file = known.get(&FILE).is_some_and(|file| files.contains(file));
    let is_of = names_file && known.get(&LIBRARY) == Some(&library.into());
    known.get(&REASON).filter(|_| is_of).and_then(|reason| u32::try_from(*reason).ok())
}

/// What is in which register behind this instruction.
fn note(known: &mut Known, instruction: &Instruction) {
    for register in written(instruction) {
        known.remove(&register);
    }
    known.extend(constant_of(instruction));
    if instruction.mnemonic() == Mnemonic::Lea && instruction.is_ip_rel_memory_operand() {
        known.insert(instruction.op0_register().full_register(), instruction.ip_rel_memory_address());
    }
}
