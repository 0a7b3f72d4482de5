//! Any memory as that of a CPython: what proves itself is within bounds, every function and every line of it is read.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::guest::memory::Piece;
use obi::capture::guest::python::Layout;
use obi::capture::guest::{Build, ForKernel, Version, recognise};
use obi::profile::symbol::python::Code;

fuzz_target!(|input: (u8, u16, &[u8])| {
    let (minor, address, bytes) = input;
    // As a file, and what it says of the same bytes as memory.
    if let Some(Ok(build @ Build::Cpython(_))) = recognise(&bytes) {
        let memory = Piece { start: 0, bytes: bytes.to_vec() };
        if let Ok(ForKernel::Cpython(guest)) = build.examine(&memory, 0).map(|known| known.for_kernel) {
            assert!(guest.slot < 0x310 + 32 * 16);
        }
    }
    let minor = 8 + minor % 7;
    let (ascii, compact) = if minor >= 12 { (40, 56) } else { (48, 72) };
    let layout = Layout {
        version: Version { minor, micro: 0 },
        code_type: 0,
        file: 112,
        name: 120,
        qualified: if minor >= 11 { 128 } else { 0 },
        first_line: 72,
        lines: 136,
        code: if minor >= 11 { 192 } else { 0 },
        ascii,
        compact,
        kind_shift: if minor >= 14 { 16 } else { 2 },
    };
    let memory = Piece { start: 0, bytes: bytes.to_vec() };
    let address = u64::from(address);
    let code = Code::read(&memory, &layout, address).ok();
    if let Some(code) = &code {
        assert!(code.is_at(&memory, &layout, address) && code.name.len() <= 1024 && code.file.len() <= 4096);
    }
    for position in [None, Some(0), Some(97), Some(4000)] {
        assert!(code.as_ref().is_none_or(|code| code.symbol(position).lines.len() <= 1));
    }
});
