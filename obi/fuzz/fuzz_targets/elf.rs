//! Untrusted files, as ELF programs with TLS functions: nothing panics, every probe point lies in the
//! file, and the machine code behind a symbol may be anything; so may that which refers to what libraries without names
//! are found by.
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

/// What OpenSSL and BoringSSL are found by.
const STRINGS: &[u8] = b"\0ssl/ssl_lib.c\0ssl/ssl_lib.cc\0ssl/ssl_buffer.cc\0crypto/bio/bio.cc\0crypto/bio/bio_lib.c\0\
    SSL_read\0ssl_read_internal\0SSL_write\0ssl_write_internal\0SSL_do_handshake\0SSL_sendfile\0bio_write_intern\0";
const NAMES_OF_SECTIONS: &[u8] = b"\0.text\0.rodata\0.eh_frame_hdr\0.shstrtab\0";
const HEADER: usize = 64;

/// A program with those strings and this code, a function of which begins every sixteen bytes. Addresses are offsets.
fn program(code: &[u8]) -> Vec<u8> {
    let (strings_at, code_at) = (HEADER, HEADER + STRINGS.len());
    let table_at = code_at + code.len();
    let starts: Vec<usize> = (code_at..table_at).step_by(16).collect();
    let mut table = [&[1, 0x1b, 0x03, 0x3b, 0, 0, 0, 0][..], &(starts.len() as u32).to_le_bytes()].concat();
    for start in starts {
        table.extend((start as i32 - table_at as i32).to_le_bytes());
        table.extend([0; 4]);
    }
    let names_at = table_at + table.len();
    let segments_at = names_at + NAMES_OF_SECTIONS.len();
    let sections_at = segments_at + 56;
    let mut file = b"\x7fELF\x02\x01\x01".to_vec();
    file.resize(16, 0);
    file.extend([2, 0, 62, 0, 1, 0, 0, 0]);
    for word in [0, segments_at as u64, sections_at as u64] {
        file.extend(word.to_le_bytes());
    }
    file.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 5, 0, 4, 0]);
    for part in [STRINGS, code, &table, NAMES_OF_SECTIONS] {
        file.extend(part);
    }
    // One segment, loaded to be executed: everything.
    file.extend([1, 0, 0, 0, 5, 0, 0, 0]);
    for word in [0, 0, 0, sections_at as u64, sections_at as u64, 1] {
        file.extend(word.to_le_bytes());
    }
    let sections = [
        (0_u32, 0_u32, 0_u64, 0, 0),
        (1, 1, 6, code_at, code.len()),
        (7, 1, 2, strings_at, STRINGS.len()),
        (15, 1, 2, table_at, table.len()),
        (29, 3, 0, names_at, NAMES_OF_SECTIONS.len()),
    ];
    for (name, kind, flags, at, length) in sections {
        file.extend([name.to_le_bytes(), kind.to_le_bytes()].concat());
        for word in [flags, at as u64, at as u64, length as u64, 0, 1, 0] {
            file.extend(word.to_le_bytes());
        }
    }
    file
}

fuzz_target!(|input: &[u8]| {
    let made = program(input);
    for point in probe_points(&made.as_slice(), Returns::Allowed).unwrap_or_default().points {
        assert!(point.offset < made.len() as u64);
    }
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
