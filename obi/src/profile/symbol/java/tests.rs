//! Methods out of memory that the test has made, with the layout of 17.

use proptest::prelude::*;

use super::*;
use crate::capture::guest::memory::Piece;

pub(super) const LAYOUT: Layout = Layout {
    const_method: 8,
    constants: 8,
    flags: 28,
    has_lines: 1,
    code_size: 32,
    name: 34,
    signature: 36,
    bytecode: 48,
    tags: 8,
    holder: 24,
    length: 60,
    source: 54,
    source_is_of_class: false,
    first: 72,
    class_name: 24,
    symbol_length: 4,
    symbol_bytes: 6,
    array_bytes: 4,
    excludes_zero: false,
    compiled: None,
};
const METHOD: u64 = 0x1000;
const CONST_METHOD: u64 = 0x1100;
const CONSTANTS: u64 = 0x1400;
const TAGS: u64 = 0x1600;
const CLASS: u64 = 0x1700;
const TEXTS: [u64; 4] = [0x1800, 0x1880, 0x1900, 0x1980];

fn put(memory: &mut Piece, at: u64, bytes: &[u8]) {
    let at = usize::try_from(at - memory.start).unwrap();
    memory.bytes[at..at + bytes.len()].copy_from_slice(bytes);
}

fn word(memory: &mut Piece, at: u64, word: u64) {
    put(memory, at, &word.to_le_bytes());
}

fn text(memory: &mut Piece, at: u64, text: &[u8]) {
    put(memory, at + 4, &u16::try_from(text.len()).unwrap().to_le_bytes());
    put(memory, at + 6, text);
}

/// `shop.Cart.pay(I)I` of Cart.java, with six bytes of bytecode.
fn memory(class: &[u8]) -> Piece {
    let mut memory = Piece { start: METHOD, bytes: vec![0; 0x1000] };
    let m = &mut memory;
    word(m, METHOD + 8, CONST_METHOD);
    word(m, CONST_METHOD + 8, CONSTANTS);
    put(m, CONST_METHOD + 28, &[1]);
    put(m, CONST_METHOD + 32, &[6, 0, 3, 0, 4, 0]);
    // Line 70 from 0, 71 from 2, 60 from 5.
    put(m, CONST_METHOD + 48 + 6, &[255, 0, 140, 2 << 3 | 1, 255, 6, 21, 0]);
    word(m, CONSTANTS + 8, TAGS);
    word(m, CONSTANTS + 24, CLASS);
    put(m, CONSTANTS + 54, &[5, 0]);
    put(m, CONSTANTS + 60, &[6]);
    word(m, CLASS + 24, TEXTS[0]);
    put(m, TAGS + 4, &[0, 7, 7, 1, 1, 1]);
    for (index, (place, of)) in (3_u64..).zip(TEXTS[1..].iter().zip([&b"pay"[..], b"(I)I", b"Cart.java"])) {
        word(m, CONSTANTS + 72 + 8 * index, *place);
        text(m, *place, of);
    }
    text(m, TEXTS[0], class);
    memory
}

fn read(memory: &Piece) -> Result<Method, Unnamed> {
    Method::read(memory, &LAYOUT, METHOD)
}

#[test]
fn a_method_says_class_name_file_and_lines() {
    let check = |class: &str, expected: &str| {
        let method = read(&memory(class.as_bytes())).unwrap();
        assert_eq!((&*method.name, &*method.file), (expected, "Cart.java"));
    };
    check("shop/Cart", "shop.Cart.pay");
    check("Cart$Item", "Cart$Item.pay");
    check("shop/Cart$$Lambda$7+0x0000000800c03000", "shop.Cart$$Lambda$7.pay");
    check("shop/Cart$$Lambda/0x0000000800c03000", "shop.Cart$$Lambda.pay");
    let method = read(&memory(b"shop/Cart")).unwrap();
    let at = |position: Option<u32>| {
        let symbol = method.symbol(position);
        assert_eq!(symbol.runtime, Runtime::Jvm);
        (symbol.lines[0].line, symbol.lines[0].start_line, symbol.fidelity)
    };
    assert_eq!(at(Some(0)), (70, 60, Fidelity::Lines));
    assert_eq!(at(Some(4)), (71, 60, Fidelity::Lines));
    assert_eq!(at(Some(900)), (60, 60, Fidelity::Lines));
    assert_eq!(at(None), (0, 60, Fidelity::Function));
}

#[test]
fn numbers_exclude_zero_since_20() {
    let check = |bytes: &[u8], excludes_zero: bool, expected: Option<u32>| {
        let mut memory = Piece { start: 0x7000, bytes: bytes.to_vec() };
        memory.bytes.resize(128, 0);
        assert_eq!(Lines::read(&memory, 0x7000, excludes_zero).at(3), expected, "{bytes:?}");
    };
    check(&[255, 0, 140, 0], false, Some(70));
    check(&[255, 1, 141, 0], true, Some(70));
    // 200 + 3 * 64 is 392, which is 196 on.
    check(&[255, 0, 200, 3, 0], false, Some(196));
    check(&[255, 1, 201, 4, 0], true, Some(196));
    check(&[255, 0, 1, 0], true, None);
    check(&[], false, None);
}

#[test]
fn what_is_no_method_is_refused() {
    let check = |at: u64, bytes: &[u8], expected: Unnamed| {
        let mut memory = memory(b"shop/Cart");
        put(&mut memory, at, bytes);
        assert_eq!(read(&memory).err(), Some(expected), "{at:#x}");
    };
    check(METHOD + 8, &[0; 8], Unnamed::NoCode);
    check(CONST_METHOD + 34, &[9, 0], Unnamed::NoCode);
    check(CONST_METHOD + 34, &[0, 0], Unnamed::NoCode);
    // Its name is no text; its signature is a name.
    check(TAGS + 4 + 3, &[7], Unnamed::NoCode);
    check(CONST_METHOD + 36, &[3, 0], Unnamed::NoCode);
    check(TEXTS[0] + 6, b"[", Unnamed::NoCode);
    assert_eq!(Method::read(&memory(b"a"), &LAYOUT, 1).err(), Some(Unnamed::Gone));
}

#[test]
fn what_is_not_reported_is_left_out() {
    let mut silent = memory(b"shop/Cart");
    put(&mut silent, CONST_METHOD + 28, &[0]);
    put(&mut silent, CONSTANTS + 54, &[0, 0]);
    let method = read(&silent).unwrap();
    assert_eq!((&*method.name, &*method.file, method.lines.first()), ("shop.Cart.pay", "", 0));
}

#[test]
fn a_class_may_name_its_file_itself() {
    let mut memory = memory(b"shop/Cart");
    put(&mut memory, CONSTANTS + 54, &[0, 0]);
    put(&mut memory, CLASS + 64, &[5, 0]);
    let layout = Layout { source: 64, source_is_of_class: true, ..LAYOUT };
    assert_eq!(&*Method::read(&memory, &layout, METHOD).unwrap().file, "Cart.java");
}

#[test]
fn memory_that_is_used_again_is_noticed() {
    let mut memory = memory(b"shop/Cart");
    let method = read(&memory).unwrap();
    assert!(method.is_at(&memory, &LAYOUT, METHOD));
    assert!(method.is_at(&Piece::default(), &LAYOUT, METHOD), "its process has ended");
    put(&mut memory, CONST_METHOD + 32, &[7, 0]);
    assert!(!method.is_at(&memory, &LAYOUT, METHOD));
}

proptest! {
    #[test]
    fn any_memory_is_a_method_or_none(
        changes in proptest::collection::vec((0_usize..0x1000, any::<u8>()), 0..64),
        address in 0x0f00_u64..0x2100,
        excludes_zero: bool,
    ) {
        let mut memory = memory(b"shop/Cart");
        for (at, byte) in changes {
            memory.bytes[at] = byte;
        }
        let layout = Layout { excludes_zero, ..LAYOUT };
        for address in [METHOD, address] {
            if let Ok(method) = Method::read(&memory, &layout, address) {
                prop_assert!(method.name.len() <= 6 * NAME + 1 && method.file.len() <= 3 * NAME);
                prop_assert!(method.is_at(&memory, &layout, address));
                prop_assert!(method.symbol(Some(7)).lines.len() == 1);
            }
        }
    }
}
