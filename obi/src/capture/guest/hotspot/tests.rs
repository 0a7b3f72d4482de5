//! A JVM that the test has made: tables by name, and what they lead to.

use proptest::prelude::*;

use super::*;
use crate::capture::guest::memory::Piece;

const STRUCTS: u64 = 0x1000;
const TYPES: u64 = 0x3000;
const CONSTANTS: u64 = 0x4000;
const TEXTS: u64 = 0x5000;
const STATIC: u64 = 0x8000;
const QUEUE: u64 = 0x8800;
const RELEASE: u64 = 0x8900;
/// The array of heaps, which has one; the heap.
const HEAPS: u64 = 0x8a00;
const HEAP: u64 = 0x8b00;
const CODE: u64 = 0x7f00_0000;
/// Of an entry of structures: type, field, whether it is static, offset, address.
const STRIDE: u64 = 40;

const FIELDS: [(&str, &str, u64); 40] = [
    ("Method", "_constMethod", 8),
    ("Method", "_access_flags", 40),
    ("ConstMethod", "_constants", 8),
    ("ConstMethod", "_flags", 28),
    ("ConstMethod", "_code_size", 32),
    ("ConstMethod", "_name_index", 34),
    ("ConstMethod", "_signature_index", 36),
    ("ConstantPool", "_tags", 8),
    ("ConstantPool", "_pool_holder", 24),
    ("ConstantPool", "_length", 60),
    ("ConstantPool", "_source_file_name_index", 54),
    ("Klass", "_name", 24),
    ("Symbol", "_length", 4),
    ("Symbol", "_body", 6),
    ("Array<u1>", "_data", 4),
    ("StubQueue", "_stub_buffer", 8),
    ("StubQueue", "_buffer_limit", 20),
    ("StubQueue", "_queue_end", 28),
    ("StubQueue", "_number_of_stubs", 32),
    ("InstanceKlass", "_methods", 408),
    ("CodeHeap", "_memory", 8),
    ("CodeHeap", "_segmap", 120),
    ("CodeHeap", "_log2_segment_size", 256),
    ("VirtualSpace", "_low_boundary", 0),
    ("VirtualSpace", "_high_boundary", 8),
    ("GrowableArrayBase", "_len", 0),
    ("GrowableArray<int>", "_data", 8),
    ("CodeBlob", "_size", 12),
    ("CodeBlob", "_header_size", 16),
    ("CodeBlob", "_frame_complete_offset", 20),
    ("CodeBlob", "_frame_size", 28),
    ("CodeBlob", "_code_begin", 32),
    ("CompiledMethod", "_method", 112),
    ("CompiledMethod", "_scopes_data_begin", 120),
    ("nmethod", "_compile_id", 304),
    ("nmethod", "_scopes_pcs_offset", 268),
    ("nmethod", "_dependencies_offset", 272),
    ("nmethod", "_metadata_offset", 260),
    ("PcDesc", "_pc_offset", 0),
    ("PcDesc", "_scope_decode_offset", 4),
];
const STATICS: [(&str, &str, u64); 6] = [
    ("CodeCache", "_low_bound", CODE),
    ("CodeCache", "_high_bound", CODE + 0x10_0000),
    ("AbstractInterpreter", "_code", QUEUE),
    ("CodeCache", "_heaps", HEAPS),
    ("StubRoutines", "_call_stub_return_address", CODE + 0x80),
    ("Abstract_VM_Version", "_s_vm_release", RELEASE),
];

struct Writer {
    memory: Piece,
    text: u64,
}

impl Writer {
    fn word(&mut self, at: u64, word: u64) {
        self.memory.bytes[usize::try_from(at).unwrap()..][..8].copy_from_slice(&word.to_le_bytes());
    }

    fn text(&mut self, text: &str) -> u64 {
        let at = self.text;
        self.memory.bytes[usize::try_from(at).unwrap()..][..text.len()].copy_from_slice(text.as_bytes());
        self.text += text.len() as u64 + 1;
        at
    }

    fn field(&mut self, entry: u64, (owner, name): (&str, &str), is_static: u64, at: u64) {
        let (owner, name) = (self.text(owner), self.text(name));
        let address = if is_static == 1 { at } else { 0 };
        let offset = if is_static == 1 { 0 } else { at };
        for (index, word) in (0..).zip([owner, name, is_static, offset, address]) {
            self.word(entry + 8 * index, word);
        }
    }
}

/// The exported variables at 0, in the order of [`table::NAMES`].
fn jvm(release: &str) -> (Build, Piece) {
    let mut w = Writer { memory: Piece { start: 0, bytes: vec![0; 0x9000] }, text: TEXTS };
    let values = [STRUCTS, STRIDE, 0, 8, 16, 24, 32, TYPES, 24, 0, 8, CONSTANTS, 16, 0, 8];
    for (index, value) in (0..).zip(values) {
        w.word(8 * index, value);
    }
    let mut entry = STRUCTS;
    for (owner, name, offset) in FIELDS {
        w.field(entry, (owner, name), 0, offset);
        entry += STRIDE;
    }
    for (place, (owner, name, value)) in (STATIC..).step_by(8).zip(STATICS) {
        w.word(place, value);
        w.field(entry, (owner, name), 1, place);
        entry += STRIDE;
    }
    let sizes =
        [("ConstMethod", 44), ("ConstantPool", 72), ("HeapBlock", 16), ("nmethod", 352), ("PcDesc", 16)];
    for (index, (name, size)) in (0..).zip(sizes) {
        let name = w.text(name);
        w.word(TYPES + 24 * index, name);
        w.word(TYPES + 24 * index + 8, size);
    }
    let name = w.text("ConstMethod::_has_linenumber_table");
    w.word(CONSTANTS, name);
    w.word(CONSTANTS + 8, 1);
    w.word(QUEUE + 8, CODE + 0x1000);
    w.word(QUEUE + 16, 0x2000 << 32);
    w.word(QUEUE + 24, 0x2000 << 32);
    for (at, word) in [(HEAPS, 1), (HEAPS + 8, HEAPS + 16), (HEAPS + 16, HEAP), (HEAP + 256, 7)] {
        w.word(at, word);
    }
    for (at, word) in [(8, CODE), (16, CODE + 0x10_0000), (120, 0x6000)] {
        w.word(HEAP + at, word);
    }
    w.text = RELEASE;
    w.text(release);
    let found: Vec<Option<u64>> = (0..15).map(|index| Some(8 * index)).collect();
    let tables = Tables::of(found[..].try_into().unwrap()).unwrap();
    (Build { tables }, w.memory)
}

#[test]
fn what_describes_itself_is_known() {
    let (build, memory) = jvm("17.0.9+9");
    let known = build.examine(&memory, 0).unwrap();
    assert_eq!(known.version, "17.0.9+9");
    let reported = known.jvm;
    assert_eq!((reported.code, reported.code_bytes), (CODE, 0x10_0000));
    assert_eq!((reported.interpreter, reported.interpreter_bytes), (CODE + 0x1000, 0x2000));
    assert_eq!((reported.const_method, reported.bytecode, reported.access), (8, 48, 40));
    let heap = reported.heap[0];
    assert_eq!((heap.start, heap.bytes, heap.segments), (CODE, 0x10_0000, 0x6000));
    assert_eq!((reported.call_stub, reported.segment_bits, reported.block), (CODE + 0x80, 7, 16));
    assert_eq!(
        (reported.method, reported.method_header, reported.frame_size, reported.code_begin),
        (112, 352, 28, 32)
    );
    let compiled = known.layout.compiled.unwrap();
    assert_eq!((compiled.heaps[0], compiled.row), ((CODE, 0x10_0000, 0x6000), 16));
    assert_eq!(compiled.parts, Parts::Behind { rows: [268, 272], scopes: 120, methods: 260 });
    assert_eq!((known.layout.source, known.layout.first, known.layout.excludes_zero), (54, 72, false));
    let (build, memory) = jvm("25+36-LTS");
    assert!(build.examine(&memory, 0).unwrap().layout.excludes_zero);
}

#[test]
fn what_does_not_is_refused() {
    let check = |release: &str, change: &[(u64, u64)], expected: Unfit| {
        let (build, memory) = jvm(release);
        let mut w = Writer { memory, text: 0 };
        change.iter().for_each(|(at, word)| w.word(*at, *word));
        assert_eq!(build.examine(&w.memory, 0).err(), Some(expected));
    };
    check("8.0.392", &[], Unfit::OldJava("8.0.392".into()));
    check("new", &[], Unfit::Proof("Abstract_VM_Version._s_vm_release"));
    // The library is not loaded, the code cache is not there, the interpreter is being made.
    check("17", &[(0, 0)], Unfit::NotBegun);
    check("17", &[(STATIC, 0)], Unfit::NotBegun);
    check("17", &[(QUEUE + 24, 0x1fff << 32)], Unfit::NotBegun);
    check("17", &[(8, 1 << 20)], Unfit::Proof("gHotSpotVMStructs"));
    check("17", &[(STATIC + 8, CODE - 1)], Unfit::Proof("CodeCache._low_bound"));
    check("17", &[(QUEUE + 8, CODE - 8)], Unfit::Proof("AbstractInterpreter._code"));
    check("17", &[(HEAPS, 4)], Unfit::Proof("CodeCache._heaps"));
    check("17", &[(HEAP + 256, 40)], Unfit::Proof("CodeCache._heaps"));
    check("17", &[(HEAP + 8, CODE - 8)], Unfit::Proof("CodeCache._heaps"));
    // A field without a name ends the table; one that is no word; one beyond a method.
    check("17", &[(STRUCTS + 2 * STRIDE, 0)], Unfit::NoField("Abstract_VM_Version._s_vm_release"));
    check("17", &[(STRUCTS + 24, 12)], Unfit::Proof("Method._constMethod"));
    check("17", &[(STRUCTS + STRIDE + 24, 400)], Unfit::Proof("Method._access_flags"));
    let (build, _) = jvm("17");
    assert_eq!(
        build.examine(&Piece::default(), 0).err(),
        Some(Unfit::Memory("its variables are not there".into()))
    );
}

proptest! {
    #[test]
    fn any_memory_is_known_or_refused(
        changes in proptest::collection::vec((0_usize..0x9000, any::<u8>()), 0..64),
    ) {
        let (build, mut memory) = jvm("17.0.9");
        for (at, byte) in changes {
            memory.bytes[at] = byte;
        }
        if let Ok(known) = build.examine(&memory, 0) {
            prop_assert!(known.jvm.interpreter_bytes <= known.jvm.code_bytes);
            prop_assert!(known.version.len() <= 64);
        }
    }
}
