//! Files that anybody may have made, as ELF programs with TLS functions: nothing panics, every probe point lies in the
//! file, and the machine code behind a symbol may be anything.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::tls::blind::by_content;
use obi::capture::tls::file::probe_points;
use obi::capture::tls::mapping::mappings;
use obi::capture::tls::point::{Machine, NAMES, Returns, Symbol, Text, plan};

/// Addresses are offsets.
struct Flat<'a>(&'a [u8]);

impl Text for Flat<'_> {
    fn code(&self, address: u64) -> Option<Vec<u8>> {
        Some(self.0.get(usize::try_from(address).ok()?..)?.to_vec())
    }

    fn offset(&self, address: u64) -> Option<u64> {
        (address < self.0.len() as u64).then_some(address)
    }
}

fuzz_target!(|input: &[u8]| {
    for point in probe_points(&input, Returns::Allowed).unwrap_or_default().points {
        assert!(point.offset < input.len() as u64);
    }
    let _ = (by_content(&input), mappings(input));
    // The same bytes as code: the first says where each function begins.
    let Some((start, code)) = input.split_first() else { return };
    let begins = |index: usize| usize::from(*start) * index % code.len().max(1);
    let symbols: Vec<Symbol> = NAMES
        .iter()
        .enumerate()
        .filter_map(|(index, name)| {
            let code = code.get(begins(index)..)?.to_vec();
            Some(Symbol { name, address: begins(index) as u64, code })
        })
        .collect();
    for (machine, returns) in [
        (Machine::X86, Returns::Allowed),
        (Machine::X86, Returns::Forbidden),
        (Machine::Other, Returns::Allowed),
    ] {
        for point in plan(&symbols, machine, returns, &Flat(code)) {
            assert!(point.offset < code.len() as u64);
        }
    }
});
