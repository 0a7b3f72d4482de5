//! Untrusted files, as programs with names: headers, notes, links, stubs, Go's tables, packed symbols,
//! and the private copy that debug information is read from.
#![no_main]

use libfuzzer_sys::fuzz_target;
use obi::capture::executable::elf::Elf;
use obi::capture::executable::go;
use obi::profile::symbol::compose::{Part, copy};
use obi::profile::symbol::{debug_file, demangle::demangle, plt};

const LIMIT: u64 = 1 << 20;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(name) = str::from_utf8(bytes) {
        let readable = demangle(name).readable;
        assert!(readable.is_none_or(|readable| readable.len() < 16_384));
    }
    let Ok(elf) = Elf::read(&bytes) else { return };
    let _ = (elf.build_id(&bytes), elf.debug_link(&bytes), go::build_id(&bytes, &elf));
    for section in &elf.sections {
        let unpacked = section.bytes(&bytes, LIMIT).unwrap_or_default();
        assert!(unpacked.len() as u64 <= LIMIT);
        let _ = (plt::name(&bytes, &elf, section.address), elf.offset(section.address));
    }
    if let Some(program) = go::Program::read(&bytes, &elf) {
        for section in elf.sections.iter().take(32) {
            let _ = program.lines(section.address);
        }
    }
    let packed = debug_file::packed(&bytes, &elf, LIMIT);
    assert!(packed.is_none_or(|packed| packed.len() as u64 <= LIMIT));
    if let Ok(copied) = copy(&[Part { elf: &elf, source: &bytes }], LIMIT) {
        // The copy holds no more than the limit and its own headers, and is a file like any other.
        let length = copied.file.metadata().expect("a file of ours").len();
        assert!(copied.symbol_bytes + copied.debug_bytes <= length && length <= LIMIT + (1 << 16));
        let source = obi::capture::tls::elf::OpenFile { file: copied.file, length };
        Elf::read(&source).expect("what we write we can read");
    }
});
