//! Frames of HotSpot, by the very code of the kernel side: as they are, and with memory that is anything.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use obi_ebpf::{
    FRAME_JAVA, GUEST_NO_FAILURE, GUEST_NO_METHOD, GUEST_NO_POSITION, GUEST_POSITION_BITS,
    STACK_ADDRESS_BITS, jvm,
};
use obi_ebpf_host::hotspot::{Frame, World, leave};
use proptest::prelude::*;

const TGID: u32 = 7;
const START: u64 = 0x1000;
const END: u64 = 0x8000;
/// A method, what of it never changes, and its bytecode there.
const METHOD: u64 = 0x1100;
const CONST_METHOD: u64 = 0x1200;
const BYTECODE: u64 = CONST_METHOD + 48;
/// A frame pointer, below it the frame; a caller's.
const FP: u64 = 0x2000;
const CALLER: u64 = 0x2100;
const INTERPRETER: u64 = 0x7f01_0000;
const RETURN: u64 = INTERPRETER + 0x123;

const JVM: jvm = jvm {
    tgid: TGID,
    const_method: 8,
    bytecode: 48,
    code: 0x7f00_0000,
    code_bytes: 0x10_0000,
    interpreter: INTERPRETER,
    interpreter_bytes: 0x2000,
    access: 40,
    pad: [0; 6],
};

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
        memory
    }

    fn put(&mut self, at: u64, word: u64) {
        let at = usize::try_from(at - START).unwrap();
        self.0[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn leave(&self, frame: Frame) -> Frame {
        let mut frame = frame;
        leave(self, &JVM, &mut frame);
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
    u64::from(FRAME_JAVA) << STACK_ADDRESS_BITS | METHOD / 8 << GUEST_POSITION_BITS | position
}

#[test]
fn an_interpreted_frame_is_told_and_left() {
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
fn the_thread_ends_where_there_is_no_caller() {
    let mut memory = Memory::new(5);
    memory.put(FP + 8, 0);
    let left = memory.leave(FRAME);
    assert_eq!((left.word, left.ended), (word(5), 1));
}

#[test]
fn what_does_not_prove_itself_is_not_told() {
    let check = |change: &dyn Fn(&mut Memory), frame: Frame, expected: u32| {
        let mut memory = Memory::new(5);
        change(&mut memory);
        let left = memory.leave(frame);
        let same = Frame { failed: left.failed, ..frame };
        assert_eq!((left, u32::from(left.failed)), (same, expected), "{frame:x?}");
    };
    let leaf = Frame { exact: 1, all: 1, ..FRAME };
    // No method, one that is not aligned, one that is not there.
    for method in [0, METHOD + 4, END - 8, 1 << 50] {
        check(&|memory| memory.put(FP - 24, method), FRAME, GUEST_NO_METHOD);
        check(&|memory| memory.put(FP - 24, method), leaf, GUEST_NO_FAILURE);
    }
    // Bytecode of another one; none, of a method that should have some.
    check(&|memory| memory.put(FP - 64, BYTECODE + 65_536), FRAME, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP - 64, BYTECODE - 1), FRAME, GUEST_NO_METHOD);
    check(&|memory| memory.put(FP - 64, 0), FRAME, GUEST_NO_METHOD);
    // The frame is not made yet, is below the stack, far above it, no pointer.
    check(&|_| {}, Frame { sp: FP - 16, ..leaf }, GUEST_NO_FAILURE);
    check(&|_| {}, Frame { sp: FP + 8, ..leaf }, GUEST_NO_FAILURE);
    check(&|_| {}, Frame { sp: FP.wrapping_sub(1 << 20), ..FRAME }, GUEST_NO_METHOD);
    check(&|_| {}, Frame { fp: FP + 4, ..FRAME }, GUEST_NO_METHOD);
    check(&|_| {}, Frame { fp: END, sp: END - 96, ..FRAME }, GUEST_NO_METHOD);
    // Other code; another process.
    check(&|_| {}, Frame { pc: INTERPRETER - 8, ..FRAME }, GUEST_NO_FAILURE);
    check(&|_| {}, Frame { pc: 0x1000, ..FRAME }, GUEST_NO_FAILURE);
    check(&|_| {}, Frame { tgid: 8, ..FRAME }, GUEST_NO_FAILURE);
}

proptest! {
    /// Every frame that is left lies above the one before, so a walk ends.
    #[test]
    fn any_memory_gives_a_step_upwards(
        changes in proptest::collection::vec((0_usize..0x7000, any::<u8>()), 0..64),
        fp in START..END,
        below in 0_u64..256,
        at in 0_u64..70_000,
        leaf: bool,
    ) {
        let mut memory = Memory::new(at);
        for (at, byte) in changes {
            memory.0[at] = byte;
        }
        for fp in [FP, fp & !7] {
            let frame = Frame { sp: fp - below, fp, exact: leaf.into(), all: leaf.into(), ..FRAME };
            let left = memory.leave(frame);
            if left.word == 0 {
                prop_assert_eq!((left.pc, left.sp, left.fp), (frame.pc, frame.sp, frame.fp));
            } else {
                prop_assert_eq!(left.word >> STACK_ADDRESS_BITS, u64::from(FRAME_JAVA));
                prop_assert!(left.ended == 1 || left.sp > frame.sp);
            }
        }
    }
}
