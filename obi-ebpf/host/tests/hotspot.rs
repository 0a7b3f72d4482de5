//! Frames of HotSpot, by the very code of the kernel side: as they are, and with memory that is anything.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use obi_ebpf::{
    FRAME_JAVA, GUEST_NO_BLOB, GUEST_NO_CALLER, GUEST_NO_FAILURE, GUEST_NO_METHOD, GUEST_NO_POSITION,
    GUEST_POSITION_BITS, STACK_ADDRESS_BITS, jvm, jvm_heap,
};
use obi_ebpf_host::hotspot::{Frame, World, leave};
use proptest::prelude::*;

const TGID: u32 = 7;
const START: u64 = 0x1000;
const END: u64 = 0x2_0000;
/// A method, what of it never changes, and its bytecode there.
const METHOD: u64 = 0x1100;
const CONST_METHOD: u64 = 0x1200;
const BYTECODE: u64 = CONST_METHOD + 48;
/// A frame pointer, below it the frame; a caller's.
const FP: u64 = 0x2000;
const CALLER: u64 = 0x2100;
/// The map of segments; the code, whose first part is the interpreter.
const SEGMENTS: u64 = 0x4000;
const CODE: u64 = 0x1_0000;
const INTERPRETER: u64 = CODE;
const RETURN: u64 = INTERPRETER + 0x123;
/// A compiled method in its segments; what calls methods from outside, in others.
const BLOB: u64 = CODE + 0x4000 + 16;
const BEGIN: u64 = BLOB + 0x100;
const STUBS: u64 = CODE + 0x6000 + 16;
const CALL_STUB: u64 = STUBS + 0x80;

fn jvm() -> jvm {
    let mut heap = [jvm_heap::default(); 3];
    heap[0] = jvm_heap { start: CODE, bytes: 0x1_0000, segments: SEGMENTS };
    jvm {
        tgid: TGID,
        const_method: 8,
        bytecode: 48,
        code: CODE,
        code_bytes: 0x1_0000,
        interpreter: INTERPRETER,
        interpreter_bytes: 0x2000,
        call_stub: CALL_STUB,
        heap,
        access: 40,
        block: 16,
        blob_size: 12,
        header_size: 16,
        method_header: 352,
        method: 112,
        frame_size: 28,
        frame_complete: 20,
        code_begin: 32,
        segment_bits: 7,
        ..jvm::default()
    }
}

struct Memory(Vec<u8>);

impl World for Memory {
    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let at = usize::try_from(address.wrapping_sub(START)).unwrap_or(usize::MAX);
        let found = at.checked_add(bytes.len()).and_then(|end| self.0.get(at..end));
        found.map(|found| bytes.copy_from_slice(found)).is_some()
    }
}

impl Memory {
    /// A frame of the interpreter that is at the bytecode `at`.
    fn new(at: u64) -> Self {
        let mut memory = Self(vec![0; usize::try_from(END - START).unwrap()]);
        memory.put(METHOD + 8, CONST_METHOD);
        for (below, word) in [(64, BYTECODE + at), (24, METHOD), (8, FP + 48)] {
            memory.put(FP - below, word);
        }
        memory.put(FP, CALLER);
        memory.put(FP + 8, RETURN);
        // Each blob takes 32 segments here: one byte of 8 says that it begins there.
        for (blob, words, header) in [(BLOB, 8_u64, 352_u64), (STUBS, 0, 104)] {
            for segment in (0..32_u64).map(|segment| (segment, (blob - CODE) / 128 + segment)) {
                memory.put_bytes(SEGMENTS + segment.1, &[u8::try_from(segment.0.min(20)).unwrap()]);
            }
            memory.put(blob + 8, 0x1000 << 32);
            memory.put(blob + 16, 12 << 32 | header);
            memory.put(blob + 24, words << 32);
            memory.put(blob + 32, blob + 0x100);
            memory.put(blob + 112, METHOD);
        }
        memory
    }

    fn put_bytes(&mut self, at: u64, bytes: &[u8]) {
        let at = usize::try_from(at - START).unwrap();
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }

    fn put(&mut self, at: u64, word: u64) {
        let at = usize::try_from(at - START).unwrap();
        self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn leave(&self, frame: Frame) -> Frame {
        let mut frame = frame;
        leave(self, &jvm(), &mut frame);
        frame
    }
}

/// Behind a call.
const FRAME: Frame = Frame {
    pc: INTERPRETER + 0x800,
    sp: FP - 96,
    fp: FP,
    r13: 0,
    word: 0,
    tgid: TGID,
    exact: 0,
    all: 0,
    ended: 0,
    failed: 0,
};

fn word(position: u64) -> u64 {
    u64::from(FRAME_JAVA) << STACK_ADDRESS_BITS | (METHOD / 8) << GUEST_POSITION_BITS | position
}

#[test]
fn an_interpreted_frame_is_reported_and_left() {
    let check = |memory: &Memory, frame: Frame, position: u64, sp: u64| {
        let left = memory.leave(frame);
        assert_eq!(
            (left.word, left.failed, left.ended),
            (word(position), GUEST_NO_FAILURE as u8, 0),
            "{frame:x?}"
        );
        assert_eq!((left.pc, left.sp, left.fp, left.exact, left.all), (RETURN, sp, CALLER, 0, 0));
    };
    let none = u64::from(GUEST_NO_POSITION);
    check(&Memory::new(5), FRAME, 5, FP + 48);
    check(&Memory::new(60_000), FRAME, none, FP + 48);
    // Where it runs, a register is newer than what is saved, unless it is used for something else.
    let leaf = Frame { exact: 1, all: 1, ..FRAME };
    check(&Memory::new(5), Frame { r13: BYTECODE + 9, ..leaf }, 9, FP + 48);
    check(&Memory::new(5), Frame { r13: BYTECODE - 1, ..leaf }, 5, FP + 48);
    // The caller's stack pointer is no such; a native method has no bytecode.
    let mut memory = Memory::new(0);
    memory.put(FP - 8, 3);
    check(&memory, FRAME, 0, FP + 16);
    memory.put(FP - 64, 0);
    memory.put(METHOD + 40, 0x109);
    check(&memory, FRAME, none, FP + 16);
}

#[test]
fn what_does_not_prove_itself_ends_the_walk() {
    let check = |change: &dyn Fn(&mut Memory), frame: Frame, expected: u32| {
        let mut memory = Memory::new(5);
        change(&mut memory);
        let left = memory.leave(frame);
        assert_eq!((left.word, left.ended, u32::from(left.failed)), (0, 1, expected), "{frame:x?}");
    };
    let leaf = Frame { exact: 1, all: 1, ..FRAME };
    // No method, one that is not aligned, one that is not there.
    for method in [0, METHOD + 4, END - 8, 1 << 50] {
        check(&|memory| memory.put(FP - 24, method), FRAME, GUEST_NO_METHOD);
        check(&|memory| memory.put(FP - 24, method), leaf, GUEST_NO_METHOD);
    }
    // Bytecode of another one; none, of a method that should have some; a caller that is none of HotSpot's.
    check(&|memory| memory.put(FP - 64, BYTECODE + 65_536), FRAME, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP - 64, BYTECODE - 1), FRAME, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP - 64, 0), FRAME, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP + 8, 0x5000), FRAME, GUEST_NO_METHOD);
    // The frame is below the stack, far above it, no pointer, not there.
    check(&|_| {}, Frame { sp: FP + 8 + 8, ..leaf }, GUEST_NO_METHOD);
    check(&|_| {}, Frame { sp: FP.wrapping_sub(1 << 20), ..FRAME }, GUEST_NO_METHOD);
    check(&|_| {}, Frame { fp: FP + 4, ..FRAME }, GUEST_NO_METHOD);
    check(&|_| {}, Frame { fp: END, sp: END - 96, ..FRAME }, GUEST_NO_METHOD);
}

#[test]
fn other_code_is_not_touched() {
    let check = |frame: Frame| assert_eq!(Memory::new(5).leave(frame), frame);
    check(Frame { pc: CODE - 8, ..FRAME });
    check(Frame { pc: CODE + 0x1_0001, ..FRAME });
    check(Frame { tgid: 8, ..FRAME });
}

#[test]
fn a_method_that_is_entered_or_left_shows_its_caller() {
    let leaf = Frame { exact: 1, all: 1, ..FRAME };
    let check = |frame: Frame, expected: (u64, u64, u64)| {
        let mut memory = Memory::new(5);
        memory.put(0x1f00, RETURN + 1);
        let left = memory.leave(frame);
        assert_eq!((left.word, left.failed), (0, GUEST_NO_FAILURE as u8), "{frame:x?}");
        assert_eq!((left.pc, left.sp, left.fp), expected);
    };
    // Its frame pointer is there, and no more; the caller's is none of an interpreted frame.
    check(Frame { sp: FP - 16, ..leaf }, (RETURN, FP + 16, CALLER));
    check(Frame { sp: 0x1f00, fp: 0x1234_5678, ..leaf }, (RETURN + 1, 0x1f08, 0x1234_5678));
}

/// Behind a call in the compiled method, whose frame has eight words.
const COMPILED: Frame = Frame { pc: BEGIN + 0x40, sp: FP - 48, fp: 3, ..FRAME };

#[test]
fn a_compiled_frame_is_left_by_its_size() {
    let none = u64::from(GUEST_NO_POSITION);
    let check = |change: &dyn Fn(&mut Memory), frame: Frame, expected: (u64, u64, u64)| {
        let mut memory = Memory::new(5);
        memory.put(frame.sp, RETURN + 1);
        memory.put(frame.sp + 8, RETURN + 2);
        memory.put(FP + 8, RETURN);
        change(&mut memory);
        let left = memory.leave(frame);
        assert_eq!((left.word, left.failed), (word(none), GUEST_NO_FAILURE as u8), "{frame:x?}");
        assert_eq!((left.pc, left.sp, left.fp), expected);
    };
    let (usual, top) = ((RETURN, FP + 16, CALLER), (RETURN + 1, FP - 40, 3));
    let second = (RETURN + 2, FP - 32, RETURN + 1);
    check(&|_| {}, COMPILED, usual);
    let leaf = Frame { exact: 1, all: 1, ..COMPILED };
    let at = |code: &'static [u8], back: u64| {
        move |memory: &mut Memory| memory.put_bytes(COMPILED.pc - back, code)
    };
    check(&|_| {}, leaf, usual);
    // add rsp; pop rbp; cmp rsp, [r15 + …]; ja behind it; ret.
    check(&at(&[0x48, 0x83, 0xc4, 0x30], 0), leaf, usual);
    check(&at(&[0x5d], 0), leaf, second);
    check(&at(&[0x49, 0x3b, 0xa7, 0x40, 3, 0, 0], 0), leaf, top);
    check(&at(&[0x49, 0x3b, 0xa7, 0x40, 3, 0, 0, 0x0f, 0x87], 7), leaf, top);
    check(&at(&[0xc3], 0), leaf, top);
    // While the frame is made: 12 bytes from the beginning on.
    let early = Frame { pc: BEGIN + 8, ..leaf };
    let at =
        |code: &'static [u8], back: u64| move |memory: &mut Memory| memory.put_bytes(early.pc - back, code);
    check(&at(&[0x55], 0), early, top);
    check(&at(&[0x89, 0x84, 0x24, 0, 0xc0, 0xfe, 0xff], 0), early, top);
    check(&at(&[0x55, 0x48, 0x83, 0xec, 0x30], 1), early, second);
    check(&at(&[0, 0x48, 0x83, 0xec, 0x30], 1), early, top);
    check(&at(&[0x48, 0x89, 0x6c, 0x24, 0x30], 0), early, (RETURN, FP + 16, 3));
    // What is not known has to be one or the other.
    check(&|memory| memory.put(early.sp, 5), early, usual);
    check(&|memory| memory.put(FP + 8, 5), early, top);
}

#[test]
fn compiled_code_that_does_not_prove_itself_ends_the_walk() {
    let check = |change: &dyn Fn(&mut Memory), frame: Frame, expected: u32| {
        let mut memory = Memory::new(5);
        change(&mut memory);
        let left = memory.leave(frame);
        assert_eq!((left.word, left.ended, u32::from(left.failed)), (0, 1, expected), "{frame:x?}");
    };
    let segment = SEGMENTS + (COMPILED.pc - 1 - CODE) / 128;
    check(&|memory| memory.put_bytes(segment, &[0xff]), COMPILED, GUEST_NO_BLOB);
    check(&|memory| memory.put_bytes(SEGMENTS + 128, &[1; 32]), COMPILED, GUEST_NO_BLOB);
    check(&|memory| memory.put(BLOB + 8, 0x80 << 32), COMPILED, GUEST_NO_BLOB);
    check(&|memory| memory.put(BLOB + 112, 3), COMPILED, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP + 8, 0x5000), COMPILED, GUEST_NO_CALLER);
    check(&|_| {}, Frame { sp: FP - 44, ..COMPILED }, GUEST_NO_CALLER);
    // Both may be what it returns to.
    let early = Frame { pc: BEGIN + 8, exact: 1, all: 1, ..COMPILED };
    check(&|memory| memory.put(FP - 48, RETURN), early, GUEST_NO_CALLER);
}

#[test]
fn stubs_are_left_by_pointer_or_have_no_frame() {
    let check = |change: &dyn Fn(&mut Memory), frame: Frame, expected: Option<(u64, u64, u64)>| {
        let mut memory = Memory::new(5);
        change(&mut memory);
        let left = memory.leave(frame);
        let failure = if expected.is_some() { GUEST_NO_FAILURE } else { GUEST_NO_CALLER };
        assert_eq!((left.word, u32::from(left.failed)), (0, failure), "{frame:x?}");
        assert!(expected.is_none_or(|expected| (left.pc, left.sp, left.fp) == expected), "{left:x?}");
    };
    // What calls methods is called by others.
    let entry = Frame { pc: CALL_STUB, ..FRAME };
    check(&|memory| memory.put(FP + 8, 0x7777), entry, Some((0x7777, FP + 16, CALLER)));
    let stub = Frame { pc: STUBS + 0x200, ..FRAME };
    check(&|_| {}, stub, Some((RETURN, FP + 16, CALLER)));
    check(&|memory| memory.put(FP + 8, 0x7777), stub, None);
    let leaf = Frame { exact: 1, all: 1, ..stub };
    check(&|_| {}, leaf, Some((RETURN, FP + 16, CALLER)));
    let top = |memory: &mut Memory| memory.put(FRAME.sp, RETURN + 1);
    check(&top, Frame { fp: 5, ..leaf }, Some((RETURN + 1, FRAME.sp + 8, 5)));
    // Both: not known, unless it ends here.
    check(&top, leaf, None);
    let ends = |memory: &mut Memory| {
        top(memory);
        memory.put_bytes(leaf.pc, &[0xc3]);
    };
    check(&ends, leaf, Some((RETURN + 1, FRAME.sp + 8, FP)));
    check(&|_| {}, Frame { fp: 5, ..leaf }, None);
}

proptest! {
    /// Every frame that is left lies above the one before, so a walk ends.
    #[test]
    fn any_memory_gives_a_step_upwards(
        changes in proptest::collection::vec((0_usize..0x1_f000, any::<u8>()), 0..64),
        fp in START..END,
        below in 0_u64..256,
        at in 0_u64..70_000,
        pc in CODE..CODE + 0x1_0000,
        leaf: bool,
    ) {
        let mut memory = Memory::new(at);
        for (at, byte) in changes {
            memory.0[at] = byte;
        }
        for (fp, pc) in [(FP, FRAME.pc), (fp & !7, FRAME.pc), (FP, COMPILED.pc), (fp, pc)] {
            let frame = Frame { pc, sp: fp.saturating_sub(below), fp, exact: leaf.into(), all: leaf.into(), ..FRAME };
            let left = memory.leave(frame);
            prop_assert!(left.ended == 1 || left.sp > frame.sp);
            prop_assert!(left.word == 0 || left.word >> STACK_ADDRESS_BITS == u64::from(FRAME_JAVA));
            prop_assert!(left.word == 0 || left.failed == 0);
        }
    }
}
