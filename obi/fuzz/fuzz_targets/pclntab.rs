//! Any bytes as Go's table of functions and lines: nothing panics, loops or grows, wherever an address points.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::executable::go::pclntab::{Memory, Table};
use obi::capture::tls::elf::Source;

/// The trees of inlined functions, from the same bytes.
struct Flat<'a>(&'a [u8]);

impl Memory for Flat<'_> {
    fn function_data(&self, offset: u64, buffer: &mut [u8]) -> Option<()> {
        self.0.read_at(offset % (self.0.len() as u64 + 1), buffer).ok()
    }
}

fuzz_target!(|input: (u64, Vec<u64>, &[u8])| {
    let (text, addresses, bytes) = input;
    let Some(table) = Table::read(&bytes, text) else { return };
    for named in table.named(&bytes, &["", "write", "read"]) {
        assert!(named.name.len() < 16_384 && named.start < named.end);
    }
    let first = table.first(&bytes).unwrap_or_default();
    for address in addresses.iter().take(16).copied().chain((0..64).map(|offset| first.wrapping_add(offset)))
    {
        for line in table.lines(&bytes, &Flat(bytes), address) {
            assert!(line.function.len() < 16_384 && line.file.len() < 16_384);
        }
    }
});
