//! How much stack every program of an object takes, as kernels count it that have no stack for each program: those
//! before 6.13. Newer ones, this machine's among them, let more pass, so a program can be refused elsewhere only.
//!
//! In: an embedded object. Out: for each program, the chain of calls with the most bytes and the longest one.
//! Refuses to ask a kernel. Follows `check_max_stack_depth()` of kernel/bpf/verifier.c.

use std::collections::{BTreeMap, HashMap, HashSet};

use anyhow::Context as _;
use aya_obj::btf::BtfKind;
use aya_obj::generated::bpf_insn;
use aya_obj::{Function, Object};

use super::program::Embedded;

/// Bytes that a chain of calls may take together: `MAX_BPF_STACK`.
pub const BYTES: u32 = 512;
/// Functions that a chain may have: `MAX_CALL_FRAMES`.
pub const FRAMES: usize = 8;

/// What kernels round each function's bytes up to.
const UNIT: u32 = 32;
const FRAME_POINTER: u8 = 10;
const CALL: u8 = 0x85;
const PSEUDO_CALL: u8 = 1;
const LOAD_ADDRESS: u8 = 0x18;
const PSEUDO_FUNCTION: u8 = 4;
const MOVE: u8 = 0xbf;
const ADD: u8 = 0x07;
/// Classes of instructions that read or write memory.
const LOAD: u8 = 1;
const STORE: u8 = 2;
const STORE_REGISTER: u8 = 3;

/// What one program takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Depth {
    /// The program.
    pub program: String,
    /// The chain with the most bytes: functions, and what each takes.
    pub largest: Vec<(String, u32)>,
    /// The longest chain.
    pub longest: Vec<String>,
}

impl Depth {
    /// Bytes of the largest chain.
    #[must_use]
    pub fn bytes(&self) -> u32 {
        self.largest.iter().map(|(_, bytes)| rounded(*bytes)).sum()
    }
}

/// What each program of an object takes, by name.
///
/// # Errors
/// When the object is broken.
pub fn depths(embedded: &Embedded) -> anyhow::Result<Vec<Depth>> {
    let mut object = Object::parse(&embedded.bytes).with_context(|| format!("parse {}", embedded.name()))?;
    let btf = object.btf.as_ref().context("the object has no type information")?;
    let named = |function: &Function| {
        let id = btf.id_by_type_name_kind(&function.name, BtfKind::Func).ok()?;
        Some((id, function.name.clone()))
    };
    let names: HashMap<u32, String> = object.functions.values().filter_map(named).collect();
    let sections: HashSet<usize> = object.functions.keys().map(|(section, _)| *section).collect();
    object.relocate_calls(&sections)?;
    let mut depths = Vec::new();
    for (name, program) in &object.programs {
        let function = &object.functions[&program.function_key()];
        let graph = Graph::of(function, &names);
        let (mut largest, mut longest) = (HashMap::new(), HashMap::new());
        let of = |start: &usize| graph.functions[start].name.clone();
        let chain = graph.most(0, &mut largest, &|function| rounded(function.bytes)).1;
        let largest = chain.iter().map(|start| (of(start), graph.functions[start].bytes)).collect();
        let longest = graph.most(0, &mut longest, &|_| 1).1.iter().map(of).collect();
        depths.push(Depth { program: name.clone(), largest, longest });
    }
    depths.sort_by(|one, other| one.program.cmp(&other.program));
    Ok(depths)
}

/// A function of a program, and those that it calls by where they begin.
#[derive(Debug, Default)]
struct Called {
    name: String,
    bytes: u32,
    calls: HashSet<usize>,
}

/// The functions of a program by their first instruction.
#[derive(Debug)]
struct Graph {
    functions: BTreeMap<usize, Called>,
}

/// The best chain from a function on, and its weight.
type Best = HashMap<usize, (u32, Vec<usize>)>;

impl Graph {
    fn of(program: &Function, names: &HashMap<u32, String>) -> Self {
        let code = &program.instructions;
        let calls: Vec<(usize, usize)> =
            code.iter().enumerate().filter_map(|(at, one)| Some((at, target(one, at)?))).collect();
        let mut functions: BTreeMap<usize, Called> =
            calls.iter().map(|(_, to)| (*to, Called::default())).collect();
        functions.insert(0, Called::default());
        let ends: Vec<usize> = functions.keys().copied().skip(1).chain([code.len()]).collect();
        for ((start, function), end) in functions.iter_mut().zip(ends) {
            function.bytes = bytes(&code[*start..end]);
            function.calls =
                calls.iter().filter(|(at, _)| (*start..end).contains(at)).map(|(_, to)| *to).collect();
            let info = program.func_info.func_info.iter().find(|info| info.insn_off as usize == *start);
            let name = info.and_then(|info| names.get(&info.type_id));
            function.name = name.cloned().unwrap_or_else(|| format!("instruction {start}"));
        }
        Self { functions }
    }

    /// The chain of calls from `start` on whose weights add up to the most, and their sum. No function calls itself:
    /// every kernel refuses that, so this one has.
    fn most(&self, start: usize, known: &mut Best, weight: &dyn Fn(&Called) -> u32) -> (u32, Vec<usize>) {
        if let Some(best) = known.get(&start) {
            return best.clone();
        }
        known.insert(start, (0, Vec::new()));
        let function = &self.functions[&start];
        let below = function.calls.iter().map(|called| self.most(*called, known, weight));
        let (sum, chain) = below.max_by_key(|(sum, _)| *sum).unwrap_or_default();
        let best = (sum + weight(function), std::iter::once(start).chain(chain).collect());
        known.insert(start, best);
        known[&start].clone()
    }
}

/// Where the function begins that an instruction calls, or hands to a helper that calls it.
fn target(instruction: &bpf_insn, at: usize) -> Option<usize> {
    let is = |code, source| instruction.code == code && instruction.src_reg() == source;
    if !is(CALL, PSEUDO_CALL) && !is(LOAD_ADDRESS, PSEUDO_FUNCTION) {
        return None;
    }
    let target = i64::try_from(at).ok()? + 1 + i64::from(instruction.imm);
    usize::try_from(target).ok()
}

/// How far below the frame pointer a function reaches.
fn bytes(code: &[bpf_insn]) -> u32 {
    let mut deepest = 0;
    // Registers that hold the frame pointer until something is added.
    let mut frame = [false; 16];
    for one in code {
        let class = one.code & 7;
        let base = match class {
            LOAD => Some(one.src_reg()),
            STORE | STORE_REGISTER => Some(one.dst_reg()),
            _ => None,
        };
        if base == Some(FRAME_POINTER) {
            deepest = deepest.max(-i32::from(one.off));
        }
        let register = usize::from(one.dst_reg() & 15);
        if one.code == MOVE {
            frame[register] = one.src_reg() == FRAME_POINTER;
        } else if one.code == ADD && frame[register] {
            deepest = deepest.max(-one.imm);
            frame[register] = false;
        }
    }
    deepest.max(0).cast_unsigned()
}

fn rounded(bytes: u32) -> u32 {
    bytes.max(1).next_multiple_of(UNIT)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::program::embedded;

    fn instruction(code: u8, (destination, source): (u8, u8), off: i16, imm: i32) -> bpf_insn {
        let registers = bpf_insn::new_bitfield_1(destination, source);
        bpf_insn { code, _bitfield_align_1: [], _bitfield_1: registers, off, imm }
    }

    #[test]
    fn a_function_takes_what_it_reaches() {
        let check = |code: &[bpf_insn], expected: u32| assert_eq!(bytes(code), expected);
        check(&[], 0);
        check(&[instruction(0x7b, (10, 1), -24, 0)], 24);
        check(&[instruction(0x79, (1, 10), -40, 0), instruction(0x7a, (10, 0), -8, 0)], 40);
        check(&[instruction(0x79, (1, 2), -40, 0)], 0);
        check(&[instruction(MOVE, (1, 10), 0, 0), instruction(ADD, (1, 0), 0, -64)], 64);
        check(&[instruction(MOVE, (1, 2), 0, 0), instruction(ADD, (1, 0), 0, -64)], 0);
    }

    #[test]
    fn kernels_round_up() {
        let check = |bytes: u32, expected: u32| assert_eq!(rounded(bytes), expected, "{bytes}");
        check(0, 32);
        check(32, 32);
        check(33, 64);
    }

    /// What kernels before 6.13 refuse, and this machine's does not.
    #[test]
    fn every_program_has_room_on_every_kernel() {
        let mut refused = Vec::new();
        for object in embedded() {
            for depth in depths(&object).unwrap() {
                let (name, bytes, frames) = (object.name(), depth.bytes(), depth.longest.len());
                if bytes > BYTES {
                    refused.push(format!("{name}: {}: {bytes} bytes: {:?}", depth.program, depth.largest));
                }
                if frames > FRAMES {
                    refused.push(format!("{name}: {}: {frames} frames: {:?}", depth.program, depth.longest));
                }
            }
        }
        assert!(refused.is_empty(), "{}", refused.join("\n"));
    }
}
