//! Addresses in a file's variables, which the loader writes there.
//!
//! In: an ELF file for x86-64. Out: where an address is written, and which. What is another file's is left out. Tables
//! beyond a bound are not read. Refuses to know what the variables are.

use object::elf::{R_X86_64_RELATIVE, SHT_RELA};

use crate::capture::executable::elf::Elf;
use crate::capture::tls::elf::Source;

/// Bytes of a table; that of Python has some 500 KiB.
const TABLE_BYTES: u64 = 16 << 20;
const ENTRY_BYTES: usize = 24;

/// A variable that has the address of something in the same file. Both in the file's own layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Pointer {
    /// The variable.
    pub(super) at: u64,
    /// What it points to.
    pub(super) to: u64,
}

/// All of them, as their tables have them.
pub(super) fn pointers(elf: &Elf, source: &dyn Source) -> Vec<Pointer> {
    let tables = elf.sections.iter().filter(|section| section.kind == SHT_RELA);
    let mut found = Vec::new();
    for table in tables {
        let Ok(bytes) = table.bytes(source, TABLE_BYTES) else { continue };
        found.extend(bytes.chunks_exact(ENTRY_BYTES).filter_map(pointer));
    }
    found
}

fn pointer(entry: &[u8]) -> Option<Pointer> {
    let word = |at: usize| entry.get(at..at + 8)?.first_chunk().copied().map(u64::from_le_bytes);
    let is_relative = word(8)? == u64::from(R_X86_64_RELATIVE);
    is_relative.then_some(Pointer { at: word(0)?, to: word(16)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_of_the_same_file_is_a_pointer() {
        let check = |kind: u64, length: usize, expected: Option<Pointer>| {
            let words = [0x4000, kind, 0x1234_u64];
            let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
            assert_eq!(pointer(&bytes[..length]), expected, "{kind} {length}");
        };
        check(R_X86_64_RELATIVE.into(), 24, Some(Pointer { at: 0x4000, to: 0x1234 }));
        check(R_X86_64_RELATIVE.into(), 20, None);
        check(1 << 32 | 1, 24, None);
    }
}
