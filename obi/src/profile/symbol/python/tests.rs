//! Functions out of memory that the test has made.

use proptest::prelude::*;

use super::*;
use crate::capture::guest::Version;
use crate::capture::guest::memory::Piece;

const CODE_TYPE: u64 = 0xc0de;

fn layout(minor: u8) -> Layout {
    let (ascii, compact) = if minor >= 12 { (40, 56) } else { (48, 72) };
    Layout {
        version: Version { minor, micro: 1 },
        code_type: CODE_TYPE,
        file: 112,
        name: 120,
        qualified: if minor >= 11 { 128 } else { 0 },
        first_line: 72,
        lines: 136,
        code: if minor >= 11 { 192 } else { 0 },
        ascii,
        compact,
        kind_shift: if minor >= 14 { 16 } else { 2 },
    }
}

/// A code object at 0x1000, its name at 0x2000, its file at 0x3000, its lines at 0x4000.
fn memory(layout: &Layout) -> Piece {
    let mut memory = Piece { start: 0x1000, bytes: vec![0; 0x4000] };
    put(&mut memory, 0x1008, CODE_TYPE);
    for (offset, target) in [(layout.name, 0x2000), (layout.file, 0x3000), (layout.lines, 0x4000)] {
        put(&mut memory, 0x1000 + u64::from(offset), target);
    }
    put(&mut memory, 0x1000 + u64::from(layout.qualified.max(120)), 0x2000);
    put(&mut memory, 0x1048, 7);
    string(&mut memory, layout, 0x2000, &"Shop.pay".bytes().map(u32::from).collect::<Vec<_>>());
    string(&mut memory, layout, 0x3000, &[0x6f, 0xe4, 0x142]);
    // The same line for eight units, then one on.
    let table: &[u8] = if layout.version.minor >= 11 { &[0xd7, 0, 5, 0xd8, 0, 5] } else { &[16, 1, 2, 1] };
    put(&mut memory, 0x4010, table.len() as u64);
    write(&mut memory, 0x4020, table);
    memory
}

fn write(memory: &mut Piece, at: u64, bytes: &[u8]) {
    let at = usize::try_from(at - memory.start).unwrap();
    memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

fn put(memory: &mut Piece, at: u64, word: u64) {
    write(memory, at, &word.to_le_bytes());
}

fn string(memory: &mut Piece, layout: &Layout, at: u64, characters: &[u32]) {
    let most = characters.iter().max().copied().unwrap_or_default();
    let width = if most < 256 { 1 } else { 2 };
    let is_ascii = most < 128;
    put(memory, at + 16, characters.len() as u64);
    put(memory, at + 32, (u64::from(is_ascii) << 4 | 8 | width as u64) << layout.kind_shift);
    let start = at + u64::from(if is_ascii { layout.ascii } else { layout.compact });
    for (place, character) in (start..).step_by(width).zip(characters) {
        write(memory, place, &character.to_le_bytes()[..width]);
    }
}

#[test]
fn a_code_object_says_name_file_and_lines() {
    for minor in [9, 10, 11, 12, 13, 14] {
        let layout = layout(minor);
        let code = Code::read(&memory(&layout), &layout, 0x1000).unwrap();
        assert_eq!((&*code.name, &*code.file, code.first_line), ("Shop.pay", "o\u{e4}\u{142}", 7), "{minor}");
        let at = |position: Option<u32>| {
            let symbol = code.symbol(position);
            (symbol.lines[0].line, symbol.lines[0].start_line, symbol.fidelity, symbol.runtime)
        };
        // Eight units on; line 9 is what the table of 3.10 has there.
        let start = u32::from(layout.code) / 2;
        let line = if minor == 10 { 9 } else { 8 };
        assert_eq!(at(Some(start + 8)), (line, 7, Fidelity::Lines, Runtime::Cpython), "{minor}");
        assert_eq!(at(None), (0, 7, Fidelity::Function, Runtime::Cpython));
    }
}

#[test]
fn what_is_no_code_object_is_refused() {
    let layout = layout(11);
    let check = |at: u64, word: u64, expected: Unnamed| {
        let mut memory = memory(&layout);
        put(&mut memory, at, word);
        assert_eq!(Code::read(&memory, &layout, 0x1000).map(|_| ()), Err(expected), "{at:#x}");
    };
    check(0x1008, 1, Unnamed::NoCode);
    check(0x1080, 0xffff_0000, Unnamed::NoCode);
    check(0x2010, 0, Unnamed::NoCode);
    check(0x2020, 0, Unnamed::NoCode);
    assert_eq!(Code::read(&memory(&layout), &layout, 0x1).map(|_| ()), Err(Unnamed::Gone));
    // A table that is too long costs the lines only.
    let mut long = memory(&layout);
    put(&mut long, 0x4010, 1 << 40);
    assert_eq!(Code::read(&long, &layout, 0x1000).unwrap().symbol(Some(100)).fidelity, Fidelity::Function);
}

#[test]
fn memory_that_is_used_again_is_noticed() {
    let layout = layout(12);
    let mut memory = memory(&layout);
    let code = Code::read(&memory, &layout, 0x1000).unwrap();
    assert!(code.is_at(&memory, &layout, 0x1000));
    assert!(code.is_at(&Piece::default(), &layout, 0x1000), "its process has ended");
    put(&mut memory, 0x1048, 8);
    assert!(!code.is_at(&memory, &layout, 0x1000));
    put(&mut memory, 0x1048, 7);
    put(&mut memory, 0x1008, 9);
    assert!(!code.is_at(&memory, &layout, 0x1000));
}

proptest! {
    #[test]
    fn any_memory_is_a_function_or_none(
        minor in 8_u8..15,
        changes in proptest::collection::vec((0_usize..0x4000, any::<u8>()), 0..64),
        address in 0x0f00_u64..0x5100,
    ) {
        let layout = layout(minor);
        let mut memory = memory(&layout);
        for (at, byte) in changes {
            memory.bytes[at] = byte;
        }
        for address in [0x1000, address] {
            if let Ok(code) = Code::read(&memory, &layout, address) {
                prop_assert!(code.name.chars().count() <= NAME && code.file.chars().count() <= PATH);
                prop_assert!(code.bytes() < TABLE * 8 + 8 * (NAME + PATH) + 4096);
            }
        }
    }
}
