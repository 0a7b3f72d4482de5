//! Compiled code out of memory that the test has made, in both ways of having what is not code.

use proptest::prelude::*;

use super::super::tests::LAYOUT;
use super::*;
use crate::capture::guest::memory::Piece;

const START: u64 = 0x1000;
const SEGMENTS: u64 = 0x1000;
const CODE: u64 = 0x2000;
/// In the third segment of 128 bytes; its code; what is not code.
const BLOB: u64 = CODE + 0x110;
const BEGIN: u64 = CODE + 0x300;
const ROWS: u64 = BLOB + 0x400;
const SCOPES: u64 = BLOB + 0x480;
const METHODS: u64 = BLOB + 0x500;
const OUTER: u64 = 0x7000;
const INNER: u64 = 0x7100;

fn compiled(parts: Parts, begin_is_offset: bool) -> Compiled {
    Compiled {
        heaps: [(CODE, 0x1000, SEGMENTS), (0, 0, 0), (0, 0, 0)],
        segment_bits: 7,
        block: 16,
        size: 12,
        header_size: 16,
        method_header: 352,
        method: 112,
        compile_id: 304,
        code_begin: 32,
        begin_is_offset,
        row_address: 0,
        row_scope: 4,
        row: 16,
        parts,
    }
}

const BEHIND: Parts = Parts::Behind { rows: [268, 272], scopes: 120, methods: 260 };
const APART: Parts = Parts::Apart { fixed: 128, rows: 268, scopes: 272, changing: 136, methods: 260 };

fn put(memory: &mut Piece, at: u64, bytes: &[u8]) {
    let at = usize::try_from(at - memory.start).unwrap();
    memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(memory: &mut Piece, at: u64, word: u64) {
    put(memory, at, &word.to_le_bytes());
}

fn integer(memory: &mut Piece, at: u64, number: u64) {
    put(memory, at, &u32::try_from(number).unwrap().to_le_bytes());
}

/// Compilation 1,500 of the outer method: at 0x20 it calls, at 0x40 an inner one is inlined.
fn memory(parts: Parts, begin_is_offset: bool) -> Piece {
    let mut memory = Piece { start: START, bytes: vec![0; 0x2000] };
    let m = &mut memory;
    put(m, SEGMENTS, &[0, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]);
    integer(m, BLOB + 12, 0x600);
    integer(m, BLOB + 16, 352);
    word(m, BLOB + 112, OUTER);
    integer(m, BLOB + 304, 1_500);
    if begin_is_offset {
        integer(m, BLOB + 32, BEGIN - BLOB)
    } else {
        word(m, BLOB + 32, BEGIN)
    }
    match parts {
        Parts::Behind { .. } => {
            word(m, BLOB + 120, SCOPES);
            for (at, place) in [(268, ROWS), (272, ROWS + 64), (260, METHODS)] {
                integer(m, BLOB + at, place - BLOB);
            }
        }
        Parts::Apart { .. } => {
            word(m, BLOB + 128, ROWS);
            word(m, BLOB + 136, METHODS - 8);
            for (at, place) in [(268, 0), (272, SCOPES - ROWS), (260, 8)] {
                integer(m, BLOB + at, place);
            }
        }
    }
    let end = if matches!(parts, Parts::Behind { .. }) { 4 } else { (SCOPES - ROWS) / 16 };
    let rows = [(u64::from(u32::MAX), 0), (0x20, 1), (0x40, 5)];
    let rest = (3..end).map(|_| (0x1000, 0));
    for (index, (address, scope)) in (0..).zip(rows.into_iter().chain(rest)) {
        integer(m, ROWS + 16 * index, address);
        integer(m, ROWS + 16 * index + 4, scope);
    }
    // Around it, method, bytecode and one.
    put(m, SCOPES + 1, &[0, 1, 8]);
    put(m, SCOPES + 5, &[1, 2, 1]);
    word(m, METHODS, OUTER);
    word(m, METHODS + 8, INNER);
    memory
}

fn scopes(
    memory: &Piece,
    compiled: Compiled,
    address: u64,
    is_exact: bool,
) -> Option<Vec<(u64, Option<u32>)>> {
    let place = CompiledFrame { address, compilation: 1_500 & COMPILATION, is_exact };
    let layout = Layout { compiled: Some(compiled), ..LAYOUT };
    place.scopes(memory, &layout).map(|scopes| scopes.methods)
}

#[test]
fn what_is_inlined_has_methods() {
    for (parts, begin_is_offset) in [(BEHIND, false), (APART, true)] {
        let (memory, compiled) = (memory(parts, begin_is_offset), compiled(parts, begin_is_offset));
        let check = |at: u64, is_exact: bool, expected: Option<&[(u64, Option<u32>)]>| {
            let found = scopes(&memory, compiled, BEGIN + at, is_exact);
            assert_eq!(found.as_deref(), expected, "{at:#x} {parts:?}");
        };
        let (alone, both) = ([(OUTER, Some(7))], [(INNER, Some(0)), (OUTER, Some(7))]);
        check(0x20, false, Some(&alone));
        check(0x40, false, Some(&both));
        // Behind calls only what is recorded exactly; of what runs the next place that is.
        check(0x30, false, None);
        check(0x30, true, Some(&both));
        check(0x10, true, Some(&alone));
        check(0x50, true, None);
    }
}

#[test]
fn what_does_not_prove_itself_is_not_reported() {
    let check = |at: u64, bytes: &[u8]| {
        let mut memory = memory(BEHIND, false);
        put(&mut memory, at, bytes);
        assert_eq!(scopes(&memory, compiled(BEHIND, false), BEGIN + 0x40, false), None, "{at:#x}");
    };
    // Free, back beyond the beginning, another kind of code, another compilation, another method.
    check(SEGMENTS + 6, &[0xff]);
    check(SEGMENTS + 6, &[0xfe]);
    check(BLOB + 16, &[104, 0]);
    check(BLOB + 304, &[0]);
    check(METHODS, &[1]);
    // Rows without end; a scope in itself, one of no method.
    check(BLOB + 272, &[0xff, 0xff, 0xff, 0x7f]);
    check(SCOPES + 5, &[5]);
    check(SCOPES + 6, &[0]);
}

proptest! {
    #[test]
    fn any_memory_has_scopes_or_none(
        changes in proptest::collection::vec((0_usize..0x2000, any::<u8>()), 0..64),
        address in CODE..CODE + 0x1000,
        is_exact: bool,
        is_new: bool,
    ) {
        let parts = if is_new { APART } else { BEHIND };
        let mut memory = memory(parts, is_new);
        for (at, byte) in changes {
            memory.bytes[at] = byte;
        }
        for address in [BEGIN + 0x40, address] {
            let found = scopes(&memory, compiled(parts, is_new), address, is_exact);
            prop_assert!(found.is_none_or(|methods| methods.len() <= DEPTH));
        }
    }
}
