//! One row of DWARF's call frame information as the kernel side reads it.
//!
//! In: how a function's caller is found, as the parser understands it. Out: a packed rule (`enum unwind_rule`), or
//! `UNWIND_NONE` for what only a debugger can follow. Refuses to know addresses.
#![forbid(unsafe_code)]

use gimli::{
    CfaRule, EndianSlice, Expression, LittleEndian, Operation, Register, RegisterRule, UnwindExpression,
    UnwindSection, UnwindTableRow,
};
use obi_ebpf::{
    UNWIND_AT_BITS, UNWIND_AT_SHIFT, UNWIND_END, UNWIND_FRAME, UNWIND_FRAME_AT, UNWIND_INDEXED_AT,
    UNWIND_LINK_ALONE, UNWIND_LINK_SAVED, UNWIND_NONE, UNWIND_OFFSET_BITS, UNWIND_OFFSET_SHIFT, UNWIND_PLT,
    UNWIND_REGISTER, UNWIND_REGISTER_BITS, UNWIND_REGISTER_SHIFT, UNWIND_SAVED_AT_FRAME, UNWIND_SAVED_LOST,
    UNWIND_SAVED_SHIFT, UNWIND_SHORT_BITS, UNWIND_SIGNAL, UNWIND_STACK, UNWIND_STACK_AT,
};

use super::file::Machine;

/// What the parser reads from.
pub type Bytes<'a> = EndianSlice<'a, LittleEndian>;

const WORD: i64 = 8;

/// Numbers of registers in DWARF.
struct Registers {
    stack: Register,
    frame: Register,
    link: Register,
}

fn registers(machine: Machine) -> Registers {
    match machine {
        Machine::X86 => Registers { stack: Register(7), frame: Register(6), link: Register(16) },
        Machine::Arm => Registers { stack: Register(31), frame: Register(29), link: Register(30) },
    }
}

/// The rule of a row.
pub fn pack<'a, S: UnwindSection<Bytes<'a>>>(
    machine: Machine,
    section: &S,
    is_signal: bool,
    row: &UnwindTableRow<usize>,
) -> u32 {
    if is_signal {
        return signal(machine);
    }
    let names = registers(machine);
    if matches!(row.register(names.link), Some(RegisterRule::Undefined)) {
        return UNWIND_END;
    }
    let packed = frame_address(&names, section, row).and_then(|frame| match machine {
        Machine::X86 => x86(frame, &names, section, row),
        Machine::Arm => arm(frame, &names, row),
    });
    packed.unwrap_or(UNWIND_NONE)
}

/// A signal's trampoline: words from the stack pointer to the registers in the kernel's frame.
#[must_use]
pub fn signal(machine: Machine) -> u32 {
    let words = match machine {
        // flags, link and the description of the stack
        Machine::X86 => 5,
        // siginfo, the same, a mask of 1024 bits, an address
        Machine::Arm => 39,
    };
    UNWIND_SIGNAL | words << UNWIND_OFFSET_SHIFT
}

/// CFA = stack pointer + `words`, the caller's frame pointer `saved` words below, if any.
#[must_use]
pub fn from_stack_pointer(words: u32, saved: u32) -> Option<u32> {
    let word = i64::from(words);
    Some(UNWIND_STACK | unsigned(word * WORD, UNWIND_OFFSET_BITS)? << UNWIND_OFFSET_SHIFT)
        .map(|rule| rule | saved << UNWIND_SAVED_SHIFT)
}

/// The return address stands below the CFA, the frame pointer may be saved anywhere below.
fn x86<'a, S: UnwindSection<Bytes<'a>>>(
    frame: u32,
    names: &Registers,
    section: &S,
    row: &UnwindTableRow<usize>,
) -> Option<u32> {
    if !matches!(row.register(names.link), Some(RegisterRule::Offset(-8))) {
        return None;
    }
    let saved = match row.register(names.frame) {
        None | Some(RegisterRule::SameValue) => 0,
        Some(RegisterRule::Offset(offset)) => below(offset).unwrap_or(UNWIND_SAVED_LOST),
        Some(RegisterRule::Expression(place)) => match operations(section, place).as_deref() {
            Some([Operation::RegisterOffset { register, offset: 0, .. }]) if *register == names.frame => {
                UNWIND_SAVED_AT_FRAME
            }
            _ => UNWIND_SAVED_LOST,
        },
        Some(_) => UNWIND_SAVED_LOST,
    };
    Some(frame | saved << UNWIND_SAVED_SHIFT)
}

/// Return address and frame pointer stand side by side, or only the former is saved, or none.
fn arm(frame: u32, names: &Registers, row: &UnwindTableRow<usize>) -> Option<u32> {
    match (row.register(names.frame), row.register(names.link)) {
        (None | Some(RegisterRule::SameValue), None | Some(RegisterRule::SameValue)) => Some(frame),
        (Some(RegisterRule::Offset(pointer)), Some(RegisterRule::Offset(link))) if link == pointer + WORD => {
            Some(frame | UNWIND_LINK_SAVED | below(pointer)? << UNWIND_SAVED_SHIFT)
        }
        (None | Some(RegisterRule::SameValue), Some(RegisterRule::Offset(link))) => {
            Some(frame | UNWIND_LINK_ALONE | below(link)? << UNWIND_SAVED_SHIFT)
        }
        _ => None,
    }
}

/// Words below the CFA, as far as they are known.
fn below(offset: i64) -> Option<u32> {
    if offset % WORD != 0 {
        return None;
    }
    let words = u32::try_from((-offset) / WORD).ok()?;
    (UNWIND_SAVED_AT_FRAME + 1..UNWIND_SAVED_LOST).contains(&words).then_some(words)
}

fn frame_address<'a, S: UnwindSection<Bytes<'a>>>(
    names: &Registers,
    section: &S,
    row: &UnwindTableRow<usize>,
) -> Option<u32> {
    match *row.cfa() {
        CfaRule::RegisterAndOffset { register, offset } if register == names.stack => {
            Some(UNWIND_STACK | unsigned(offset, UNWIND_OFFSET_BITS)? << UNWIND_OFFSET_SHIFT)
        }
        CfaRule::RegisterAndOffset { register, offset } if register == names.frame => {
            Some(UNWIND_FRAME | unsigned(offset, UNWIND_OFFSET_BITS)? << UNWIND_OFFSET_SHIFT)
        }
        CfaRule::RegisterAndOffset { register, offset } => {
            let offset = signed(offset, UNWIND_SHORT_BITS + UNWIND_AT_BITS)?;
            Some(UNWIND_REGISTER | number(register)? | offset << UNWIND_OFFSET_SHIFT)
        }
        CfaRule::Expression(expression) => by_expression(names, &operations(section, expression)?),
    }
}

/// The few that compilers and hand-written assembly use.
fn by_expression(names: &Registers, operations: &[Operation<Bytes<'_>>]) -> Option<u32> {
    use Operation::{And, Deref, Ge, Mul, Plus, PlusConstant, RegisterOffset, Shl, UnsignedConstant};
    let at = |kind: u32, at: i64, offset: u64| {
        let offset = unsigned(i64::try_from(offset).ok()?, UNWIND_SHORT_BITS)?;
        Some(kind | offset << UNWIND_OFFSET_SHIFT | signed(at, UNWIND_AT_BITS)? << UNWIND_AT_SHIFT)
    };
    let base = |register: &Register| match *register {
        register if register == names.stack => Some(UNWIND_STACK_AT),
        register if register == names.frame => Some(UNWIND_FRAME_AT),
        _ => None,
    };
    match operations {
        // A stack that was aligned: where it began is kept in the frame.
        [RegisterOffset { register, offset, .. }, Deref { .. }] => at(base(register)?, *offset, 0),
        [RegisterOffset { register, offset, .. }, Deref { .. }, PlusConstant { value }] => {
            at(base(register)?, *offset, *value)
        }
        // Where a stub has pushed its number: behind so many bytes of the stub's sixteen.
        [
            RegisterOffset { register, offset: 8, .. },
            RegisterOffset { register: Register(16), offset: 0, .. },
            UnsignedConstant { value: 15 },
            And,
            UnsignedConstant { value },
            Ge,
            UnsignedConstant { value: 3 },
            Shl,
            Plus,
        ] if *register == names.stack && *value < 16 => {
            Some(UNWIND_PLT | u32::try_from(*value).ok()? << UNWIND_OFFSET_SHIFT)
        }
        // As that, and as many words further as a register says.
        [
            RegisterOffset { register, offset, .. },
            RegisterOffset { register: index, offset: 0, .. },
            UnsignedConstant { value: 8 },
            Mul,
            Plus,
            Deref { .. },
            PlusConstant { value },
        ] if *register == names.stack => Some(at(UNWIND_INDEXED_AT, *offset, *value)? | number(*index)?),
        _ => None,
    }
}

/// More than any expression above.
const OPERATIONS: usize = 16;

fn operations<'a, S: UnwindSection<Bytes<'a>>>(
    section: &S,
    expression: UnwindExpression<usize>,
) -> Option<Vec<Operation<Bytes<'a>>>> {
    let Expression(bytes) = expression.get(section).ok()?;
    let encoding = gimli::Encoding { address_size: 8, format: gimli::Format::Dwarf32, version: 4 };
    let mut parsed = Vec::new();
    let mut all = Expression(bytes).operations(encoding);
    while let Some(operation) = all.next().ok()? {
        if parsed.len() == OPERATIONS {
            return None;
        }
        parsed.push(operation);
    }
    Some(parsed)
}

fn number(register: Register) -> Option<u32> {
    let number = u32::from(register.0);
    (number < 1 << UNWIND_REGISTER_BITS).then_some(number << UNWIND_REGISTER_SHIFT)
}

/// Words, if so many bits can hold them.
fn unsigned(offset: i64, bits: u32) -> Option<u32> {
    if offset % WORD != 0 {
        return None;
    }
    u32::try_from(offset / WORD).ok().filter(|words| *words < 1 << bits)
}

/// Likewise, with a sign.
fn signed(offset: i64, bits: u32) -> Option<u32> {
    let words = offset / WORD;
    let half = 1_i64 << (bits - 1);
    if offset % WORD != 0 || !(-half..half).contains(&words) {
        return None;
    }
    u32::try_from(words & ((1 << bits) - 1)).ok()
}
