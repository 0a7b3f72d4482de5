//! Where a Go program's runtime keeps its memory profile and its goroutines.
//!
//! In: a file with Go's table. Out: addresses of variables, in the file's own layout: those that functions of the
//! runtime load, which are known by what they are there for. Refuses to know processes.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

use super::Unread;
use crate::capture::executable::elf::Elf;
use crate::capture::executable::go;
use crate::capture::executable::go::pclntab::Named;
use crate::capture::tls::elf::Source;

/// Goes along all buckets: loads `runtime.mbuckets` first.
const FLUSH: &str = "runtime.mProf_FlushLocked";
/// Draws the next allocation to be noted: loads the thread's cache, then `runtime.MemProfileRate`.
const DRAW: &str = "runtime.profilealloc";
/// Goes along all goroutines: loads `runtime.allglen`, then `runtime.allgptr`.
const EACH: &str = "runtime.forEachGRace";
/// What the first frame of each goroutine returns to.
const END: &str = "runtime.goexit";
/// Bytes of a function that are looked at.
const CODE_BYTES: u64 = 1024;

/// Addresses of variables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Places {
    /// Head of the list of buckets, and the mean of bytes between two noted allocations. Programs that note none lack
    /// the functions as well.
    pub(super) heap: Result<(u64, u64), Unread>,
    /// Number of goroutines, and the list of their addresses.
    pub(super) goroutines: Result<(u64, u64), Unread>,
    /// First address, and the one behind the last, of what goroutines end in.
    pub(super) end: (u64, u64),
}

impl Places {
    pub(super) fn find<S: Source + Clone>(
        source: &S,
        elf: &Elf,
        table: &go::Program<S>,
    ) -> Result<Self, Unread> {
        let functions = table.named(&[FLUSH, DRAW, EACH, END]);
        let of = |name: &'static str| functions.iter().find(|function| function.name == name);
        let loads = |name: &'static str| -> Result<Vec<u64>, Unread> {
            let function = of(name).ok_or(Unread::Code(name))?;
            let code = code(source, elf, function).ok_or(Unread::Code(name))?;
            Ok(loaded(function.start, &code))
        };
        let nth =
            |name: &'static str, index: usize| loads(name)?.get(index).copied().ok_or(Unread::Code(name));
        let both = |first: Result<u64, Unread>, second: Result<u64, Unread>| -> Result<(u64, u64), Unread> {
            Ok((first?, second?))
        };
        let heap = match (of(FLUSH), of(DRAW)) {
            (Some(_), Some(_)) => both(nth(FLUSH, 0), nth(DRAW, 1)),
            _ => Err(Unread::NoProfile),
        };
        let goroutines = both(nth(EACH, 0), nth(EACH, 1));
        let end = of(END).map_or((0, 0), |function| (function.start, function.end));
        Ok(Self { heap, goroutines, end })
    }
}

fn code(source: &dyn Source, elf: &Elf, function: &Named) -> Option<Vec<u8>> {
    let length = (function.end - function.start).min(CODE_BYTES);
    let mut code = vec![0; usize::try_from(length).ok()?];
    source.read_at(elf.offset(function.start)?, &mut code).ok()?;
    Some(code)
}

/// Variables of 64 bits that code loads into registers by their distance, each once, in the order of the code.
fn loaded(address: u64, code: &[u8]) -> Vec<u64> {
    let mut found = Vec::new();
    let mut decoder = Decoder::with_ip(64, code, address, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    while decoder.can_decode() {
        decoder.decode_out(&mut instruction);
        if instruction.is_invalid() {
            break;
        }
        let loads = instruction.mnemonic() == Mnemonic::Mov
            && instruction.op0_kind() == OpKind::Register
            && instruction.op0_register().is_gpr64()
            && instruction.is_ip_rel_memory_operand();
        let target = instruction.ip_rel_memory_address();
        if loads && !found.contains(&target) {
            found.push(target);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_those_that_code_loads() {
        let check = |code: &[u8], expected: &[u64]| assert_eq!(loaded(0x1000, code), expected, "{code:02x?}");
        check(&[], &[]);
        // mov 0x10(%rip),%rcx; mov 0x10(%rip),%rbx
        check(&[0x48, 0x8b, 0x0d, 0x10, 0, 0, 0, 0x48, 0x8b, 0x1d, 0x10, 0, 0, 0], &[0x1017, 0x101e]);
        // The same one twice.
        check(&[0x48, 0x8b, 0x0d, 0x10, 0, 0, 0, 0x48, 0x8b, 0x1d, 9, 0, 0, 0], &[0x1017]);
        // 32 bits; an address; a store.
        check(&[0x8b, 0x0d, 0x10, 0, 0, 0], &[]);
        check(&[0x48, 0x8d, 0x05, 0x10, 0, 0, 0], &[]);
        check(&[0x48, 0x89, 0x0d, 0x10, 0, 0, 0], &[]);
        // Cut off.
        check(&[0x48, 0x8b, 0x0d, 0x10], &[]);
    }
}
