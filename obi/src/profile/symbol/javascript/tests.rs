//! What functions share, out of memory that the test has made, with the layouts of Node 20 and 24.

use proptest::prelude::*;

use super::*;
use crate::capture::guest::memory::Piece;

/// Of Node 20.
const OLD: Layout = Layout {
    instance_type: 12,
    shared_type: 260,
    name: 16,
    script: 32,
    scope_type: 261,
    n_locals: 2,
    first_local: 3,
    script_type: 262,
    script_name: 16,
    source: 8,
    line_ends: 48,
    array_type: 263,
    array_length: 8,
    array_first: 16,
    length: 12,
    characters: [16, 16],
    parts: [16, 24],
    offset: 24,
    actual: 16,
    resource: 16,
};
/// Of Node 24: a scope says where it begins before its names.
const NEW: Layout = Layout { name: 24, script: 40, first_local: 5, ..OLD };

const START: u64 = 0x1000;
const SHARED: u64 = 0x1100;
const SCOPE: u64 = 0x1200;
const SCRIPT: u64 = 0x1400;
const ENDS: u64 = 0x1500;
const MAPS: u64 = 0x1800;
const TEXTS: u64 = 0x2000;

/// Types of texts: narrow and plain, wide and plain, of two, outside, a piece, another.
const NARROW: u16 = 8;
const WIDE: u16 = 0;
const TWO: u16 = 9;
const OUTSIDE: u16 = 10;
const PART: u16 = 11;
const OTHER: u16 = 13;

struct Image(Piece);

impl Image {
    fn new() -> Self {
        Self(Piece { start: START, bytes: vec![0; 0x4000] })
    }

    fn put(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at - START).unwrap();
        self.0.bytes[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn word(&mut self, at: u64, word: u64) {
        self.put(at, &word.to_le_bytes());
    }

    fn number(&mut self, at: u64, number: u32) {
        self.word(at, u64::from(number) << 32);
    }

    /// An object of a type.
    fn object(&mut self, at: u64, kind: u16) -> u64 {
        let map = MAPS + 32 * u64::from(kind % 64);
        self.word(at, map + 1);
        self.put(map + 12, &kind.to_le_bytes());
        at + 1
    }

    fn text(&mut self, at: u64, text: &str) -> u64 {
        let reference = self.object(at, NARROW);
        self.put(at + 12, &u32::try_from(text.len()).unwrap().to_le_bytes());
        self.put(at + 16, text.as_bytes());
        reference
    }

    fn read(&self, layout: &Layout) -> Result<Code, Unnamed> {
        Code::read(&self.0, layout, &Sources::default(), SHARED)
    }
}

/// The function `pay` in `/srv/cart.js`, which begins at character 20, in the third line.
fn image(layout: &Layout, locals: u32) -> Image {
    let mut image = Image::new();
    let name = image.text(TEXTS, "pay");
    let inferred = image.text(TEXTS + 0x100, "Cart.pay");
    let file = image.text(TEXTS + 0x200, "file:///srv/cart.js");
    let source = image.text(TEXTS + 0x300, "first line\r\nnext\nfunction pay() {}\n");
    let shared = image.object(SHARED, layout.shared_type);
    assert_eq!(shared, SHARED + 1);
    let scope = image.object(SCOPE, layout.scope_type);
    let script = image.object(SCRIPT, layout.script_type);
    image.word(SHARED + u64::from(layout.name), scope);
    image.word(SHARED + u64::from(layout.script), script);
    image.word(SCRIPT + u64::from(layout.script_name), file);
    image.word(SCRIPT + u64::from(layout.source), source);
    let field = |index: u64| SCOPE + 8 + 8 * index;
    image.number(field(2), locals);
    let first = u64::from(layout.first_local) + 2 * u64::from(locals);
    image.word(field(first), name);
    // Most are kept nowhere, which is a number below zero.
    image.number(field(first + 1), if locals == 1 { 0 } else { u32::MAX });
    image.word(field(first + 2), inferred);
    let start = if layout.first_local < 5 { first + 3 } else { 3 };
    image.number(field(start), 20);
    image.number(field(start + 1), 33);
    image
}

fn reported(code: Result<Code, Unnamed>) -> (String, String, u32) {
    let code = code.unwrap();
    (code.name.to_string(), code.file.to_string(), code.line)
}

fn is(name: &str, file: &str, line: u32) -> (String, String, u32) {
    (name.into(), file.into(), line)
}

#[test]
fn a_function_has_its_name_its_file_and_the_line_where_it_begins() {
    for layout in [OLD, NEW] {
        for locals in [0, 1, 7] {
            let image = image(&layout, locals);
            assert_eq!(reported(image.read(&layout)), is("pay", "/srv/cart.js", 3), "{locals}");
            let symbol = image.read(&layout).unwrap().symbol();
            assert_eq!((symbol.lines.len(), symbol.runtime), (1, Runtime::V8));
            assert_eq!((symbol.lines[0].start_line, symbol.lines[0].line), (3, 0));
        }
    }
}

#[test]
fn lines_that_v8_has_counted_are_believed() {
    let mut image = image(&NEW, 0);
    let ends = image.object(ENDS, NEW.array_type);
    image.word(SCRIPT + 48, ends);
    image.number(ENDS + 8, 4);
    for (index, end) in [3, 9, 15, 40].into_iter().enumerate() {
        image.number(ENDS + 16 + 8 * index as u64, end);
    }
    assert_eq!(reported(image.read(&NEW)).2, 4);
    // Of another type: its text is counted.
    image.object(ENDS, NEW.scope_type);
    assert_eq!(reported(image.read(&NEW)).2, 3);
}

#[test]
fn every_kind_of_text_is_read() {
    let check = |kind: &str, change: &dyn Fn(&mut Image) -> u64, expected: &str| {
        let mut image = image(&OLD, 0);
        let name = change(&mut image);
        image.word(SCOPE + 8 + 8 * 3, name);
        assert_eq!(reported(image.read(&OLD)).0, expected, "{kind}");
    };
    let at = TEXTS + 0x800;
    let length = |image: &mut Image, length: u32| image.put(at + 12, &length.to_le_bytes());
    check(
        "wide",
        &|image| {
            let reference = image.object(at, WIDE);
            length(image, 3);
            let units: Vec<u8> = "zür".encode_utf16().flat_map(u16::to_le_bytes).collect();
            image.put(at + 16, &units);
            reference
        },
        "zür",
    );
    check(
        "of two",
        &|image| {
            let reference = image.object(at, TWO);
            length(image, 11);
            image.word(at + 16, TEXTS + 1);
            image.word(at + 24, TEXTS + 0x100 + 1);
            reference
        },
        "payCart.pay",
    );
    check(
        "outside",
        &|image| {
            let reference = image.object(at, OUTSIDE);
            length(image, 4);
            image.word(at + 24, TEXTS + 0x300 + 16);
            reference
        },
        "firs",
    );
    check(
        "a piece",
        &|image| {
            let reference = image.object(at, PART);
            length(image, 4);
            image.word(at + 16, TEXTS + 0x300 + 1);
            image.number(at + 24, 6);
            reference
        },
        "line",
    );
    check(
        "another",
        &|image| {
            let reference = image.object(at, OTHER);
            length(image, 3);
            image.word(at + 16, TEXTS + 1);
            reference
        },
        "pay",
    );
    // Without a name of its own it is called by what it was assigned to.
    check("none", &|image| image.text(at, ""), "Cart.pay");
    check(
        "itself",
        &|image| {
            let reference = image.object(at, OTHER);
            length(image, 3);
            image.word(at + 16, reference);
            reference
        },
        "Cart.pay",
    );
    check(
        "two of itself",
        &|image| {
            let reference = image.object(at, TWO);
            length(image, 3);
            image.word(at + 16, reference);
            image.word(at + 24, reference);
            reference
        },
        "Cart.pay",
    );
}

#[test]
fn what_is_not_as_expected_is_no_function() {
    let check = |what: &str, change: &dyn Fn(&mut Image)| {
        let mut image = image(&NEW, 0);
        change(&mut image);
        assert_eq!(image.read(&NEW), Err(Unnamed::NoCode), "{what}");
    };
    check("another type", &|image| {
        image.object(SHARED, NEW.script_type);
    });
    check("no map", &|image| image.word(SHARED, 2));
    check("a scope of another type", &|image| {
        image.object(SCOPE, NEW.array_type);
    });
    check("a scope that is nowhere", &|image| image.word(SHARED + 24, 0x7000_0000_0001));
    check("variables without end", &|image| image.number(SCOPE + 8 + 16, u32::MAX));
    check("an end before its start", &|image| image.number(SCOPE + 8 + 32, 1));
    let nowhere = Piece { start: START, bytes: Vec::new() };
    assert_eq!(Code::read(&nowhere, &NEW, &Sources::default(), SHARED), Err(Unnamed::Gone));
}

#[test]
fn functions_of_the_language_have_a_name_alone() {
    let mut image = image(&NEW, 0);
    let name = image.text(TEXTS + 0x900, "map");
    image.word(SHARED + 24, name);
    image.word(SHARED + 40, 0);
    assert_eq!(reported(image.read(&NEW)), is("map", "", 0));
    image.number(SHARED + 24, 9);
    assert_eq!(reported(image.read(&NEW)), is(ANONYMOUS, "", 0));
}

#[test]
fn a_function_that_has_moved_is_the_same_and_another_is_not() {
    let sources = Sources::default();
    let mut image = image(&NEW, 0);
    let code = image.read(&NEW).unwrap();
    assert!(code.is_at(&image.0, &NEW, &sources, SHARED));
    let moved = image.text(TEXTS + 0x900, "pay");
    image.word(SCOPE + 8 + 40, moved);
    assert!(code.is_at(&image.0, &NEW, &sources, SHARED));
    let other = image.text(TEXTS + 0xa00, "refund");
    image.object(0x1700, NEW.script_type);
    image.word(SHARED + 24, other);
    assert!(!code.is_at(&image.0, &NEW, &sources, SHARED));
}

#[test]
fn lines_end_in_every_way_that_the_language_knows() {
    let check = |text: &str, at: u32, expected: u32| {
        let units: Vec<u8> = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        let length = u32::try_from(units.len() / 2).unwrap();
        let memory = Piece { start: START, bytes: units };
        let lines = Lines::read(&memory, text::Characters { at: START, is_wide: true, length }).unwrap();
        assert_eq!(lines.line(at), expected, "{text:?} {at}");
    };
    check("", 0, 1);
    check("a\nb", 0, 1);
    check("a\nb", 1, 1);
    check("a\nb", 2, 2);
    check("a\r\nb", 3, 2);
    check("a\r\rb", 3, 3);
    check("a\u{2028}b\u{2029}c", 4, 3);
}

proptest! {
    #[test]
    fn any_memory_is_read_without_harm(
        bytes in prop::collection::vec(any::<u8>(), 0..0x400),
        at in 0_usize..0x1000,
        is_new in any::<bool>(),
    ) {
        let layout = if is_new { NEW } else { OLD };
        let mut image = image(&layout, 1);
        let end = (at + bytes.len()).min(image.0.bytes.len());
        image.0.bytes[at..end].copy_from_slice(&bytes[..end - at]);
        if let Ok(code) = image.read(&layout) {
            prop_assert!(code.name.len() <= 4 * NAME && code.file.len() <= 4 * PATH);
            prop_assert!(code.is_at(&image.0, &layout, &Sources::default(), SHARED));
        }
    }
}
