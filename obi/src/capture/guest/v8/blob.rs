//! Where V8 has its own code in its file.
//!
//! In: symbols, a file. Out: a range of addresses of the file's own layout. Nothing of unwinding information covers it.
//! Two symbols say it, which stripped files lack; two functions, which some files do not export, say the same. Never
//! panics. Refuses to know what the code does.

use std::ops::Range;

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind, Register};
use object::elf::SHT_SYMTAB;

use super::number::{Wanted, number};
use crate::capture::executable::elf::Elf;
use crate::capture::guest::Unfit;
use crate::capture::guest::symbol::{self, Symbol};
use crate::capture::tls::elf::Source;

const CODE: &str = "v8_Default_embedded_blob_code_";
const SIZE: &str = "v8_Default_embedded_blob_code_size_";
const TELLS_CODE: &[u8] = b"_ZN2v88internal23DefaultEmbeddedBlobCodeEv";
const TELLS_SIZE: &[u8] = b"_ZN2v88internal27DefaultEmbeddedBlobCodeSizeEv";
/// Bytes that it may have; there are one or two million.
const BYTES: Range<u64> = 0x1_0000..0x100_0000;
/// Of a function that returns a value.
const FUNCTION_BYTES: usize = 32;
/// Of an entry of the table that the loader changes addresses by; how many bytes of these are read.
const RELOCATION: usize = 24;
const RELOCATIONS: u64 = 8 << 20;

/// Symbols that say where it is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Symbols {
    code: Option<u64>,
    size: Option<u64>,
}

impl Symbols {
    pub(super) fn offer(&mut self, name: &[u8], symbol: Symbol) {
        if name == TELLS_CODE {
            self.code = Some(symbol.address);
        } else if name == TELLS_SIZE {
            self.size = Some(symbol.address);
        }
    }
}

/// The code of a file with V8.
pub(super) fn find(elf: &Elf, source: &dyn Source, wanted: &Wanted) -> Result<Range<u64>, Unfit> {
    let file = File { elf, source };
    let reported = |function: Option<u64>, bytes| file.returned(function?, bytes);
    let reported = reported(wanted.blob.code, 8).zip(reported(wanted.blob.size, 4));
    let named = || {
        let found = symbol::find(elf, source, SHT_SYMTAB, &[CODE, SIZE]);
        file.code(found[0]?.address).zip(found[1].map(|symbol| symbol.address))
    };
    let (code, size) = reported.or_else(named).ok_or(Unfit::NoSymbol(CODE))?;
    let size = number(elf, source, size).and_then(|size| u64::try_from(size).ok()).unwrap_or_default();
    let end = code.checked_add(size).filter(|_| BYTES.contains(&size) && file.is_code(code));
    end.map(|end| code..end).ok_or(Unfit::Proof(SIZE))
}

struct File<'a> {
    elf: &'a Elf,
    source: &'a dyn Source,
}

impl File<'_> {
    fn is_code(&self, address: u64) -> bool {
        let holds = |start: u64, length: u64| address.wrapping_sub(start) < length;
        self.elf
            .sections
            .iter()
            .any(|section| section.is_executable && holds(section.address, section.length))
    }

    /// The symbol is the code itself, or stands where its address is kept.
    fn code(&self, address: u64) -> Option<u64> {
        if self.is_code(address) { Some(address) } else { self.address(address) }
    }

    /// Where what a function returns stands: the function returns an address that it knows, or, of so many bytes, what
    /// stands at one.
    fn returned(&self, function: u64, bytes: usize) -> Option<u64> {
        let mut code = [0; FUNCTION_BYTES];
        self.source.read_at(self.elf.offset(function)?, &mut code).ok()?;
        let mut known = None;
        for instruction in &mut Decoder::with_ip(64, &code, function, DecoderOptions::NONE) {
            match (instruction.mnemonic(), instruction.op0_register().full_register()) {
                (Mnemonic::Endbr64, _) => {}
                (Mnemonic::Lea, Register::RAX) => known = relative(&instruction),
                (Mnemonic::Mov, Register::RAX) if bytes == 8 && is_value(&instruction) => {
                    known = Some(instruction.immediate(1));
                }
                (Mnemonic::Mov, Register::RAX) if instruction.op1_kind() == OpKind::Memory => {
                    let place = relative(&instruction).or(known)?;
                    known = if bytes == 8 { self.address(place) } else { Some(place) };
                }
                (Mnemonic::Ret, _) => return known,
                _ => return None,
            }
        }
        None
    }

    /// The address that is kept at another one. In a library it stands in a table of what the loader writes.
    fn address(&self, at: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.source.read_at(self.elf.offset(at)?, &mut bytes).ok()?;
        let stored = u64::from_le_bytes(bytes);
        if stored != 0 {
            return Some(stored);
        }
        let table = self.elf.section(".rela.dyn")?.bytes(self.source, RELOCATIONS).ok()?;
        let word = |entry: &[u8], at: usize| {
            let bytes = entry.get(at..).and_then(|rest| rest.first_chunk());
            bytes.map(|bytes| u64::from_le_bytes(*bytes))
        };
        let entry = table.chunks_exact(RELOCATION).find(|entry| word(entry, 0) == Some(at))?;
        word(entry, 16)
    }
}

fn relative(instruction: &Instruction) -> Option<u64> {
    instruction.is_ip_rel_memory_operand().then(|| instruction.ip_rel_memory_address())
}

fn is_value(instruction: &Instruction) -> bool {
    matches!(instruction.op1_kind(), OpKind::Immediate32 | OpKind::Immediate32to64 | OpKind::Immediate64)
}
