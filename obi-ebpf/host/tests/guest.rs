//! An interpreter's frames, by the very code of the kernel side: as they are, and with memory that is anything.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use obi_ebpf::{
    GUEST_BY_ADDRESS, GUEST_BY_BYTE, GUEST_BY_UNIT, GUEST_ENDS_ALWAYS, GUEST_ENDS_BY_MARK,
    GUEST_ENDS_BY_SHIM, GUEST_NO_CODE, GUEST_NO_FAILURE, GUEST_NO_POSITION, GUEST_NO_THREAD, GUEST_UNLINKED,
    GUEST_UNREADABLE, guest, guest_unlinked,
};
use obi_ebpf_host::guest::{MOST, Thread, Walked, World, walk};
use proptest::prelude::*;

const TGID: u32 = 7;
/// The thread's descriptor, its state, what knows its frame; frames, from the outermost on.
const THREAD: u64 = 0x1000;
const STATE: u64 = 0x1800;
const CALL: u64 = 0x1c00;
const FRAMES: u64 = 0x2000;
const END: u64 = 0x8000;
const AT: Thread = Thread { pointer: THREAD, pc: 0, tgid: TGID, rest: 0 };
/// A multiple of eight.
const FRAME_BYTES: u64 = 120;

struct Memory {
    guest: guest,
    bytes: Vec<u8>,
}

impl World for Memory {
    fn guest(&self, tgid: u32) -> Option<&guest> {
        (tgid == TGID).then_some(&self.guest)
    }

    fn read(&self, address: u64, bytes: &mut [u8]) -> bool {
        let at = usize::try_from(address.wrapping_sub(THREAD)).unwrap_or(usize::MAX);
        let end = at.checked_add(bytes.len());
        let found = end.and_then(|end| self.bytes.get(at..end));
        found.map(|found| bytes.copy_from_slice(found)).is_some()
    }
}

impl Memory {
    fn put(&mut self, at: u64, word: u64) {
        let at = usize::try_from(at - THREAD).unwrap();
        self.bytes[at..at + 8].copy_from_slice(&word.to_le_bytes());
    }

    fn walk(&self) -> Walked {
        walk(self, &AT)
    }
}

fn kind(minor: u32) -> guest {
    let narrow = |number: u32| u8::try_from(number).unwrap();
    let all = guest {
        tgid: TGID,
        slot: 0x318,
        thread_id: 152,
        frame: 56,
        code: 32,
        previous: 48,
        ..guest::default()
    };
    match minor {
        9 | 10 => guest {
            instruction: 96,
            ends: narrow(GUEST_ENDS_ALWAYS),
            position: narrow(if minor == 9 { GUEST_BY_BYTE } else { GUEST_BY_UNIT }),
            ..all
        },
        11 => guest {
            by_call: 1,
            current: 8,
            adjacent: 1,
            instruction: 56,
            owner: 68,
            ends: narrow(GUEST_ENDS_BY_MARK),
            position: narrow(GUEST_BY_ADDRESS),
            ..all
        },
        _ => guest {
            adjacent: 1,
            instruction: 56,
            owner: 70,
            ends: narrow(GUEST_ENDS_BY_SHIM),
            position: narrow(GUEST_BY_ADDRESS),
            ..all
        },
    }
}

/// Code objects of the calls of the evaluating function, leaf first, each with the position 20.
fn memory(minor: u32, calls: &[&[u64]]) -> Memory {
    let guest = kind(minor);
    let mut memory = Memory { guest, bytes: vec![0; usize::try_from(END - THREAD).unwrap()] };
    let (mut at, mut above) = (FRAMES, 0);
    let mut add = |memory: &mut Memory, code: u64, owner: u64| {
        memory.put(at + u64::from(guest.code), code | u64::from(minor == 14));
        memory.put(at + u64::from(guest.previous), above);
        let instruction = match minor {
            9 => 40,
            10 => 20,
            _ => code + 40,
        };
        memory.put(at + u64::from(guest.instruction), instruction);
        if minor > 10 {
            memory.put(at + u64::from(guest.owner & !7), owner << (8 * (guest.owner & 7)));
        }
        above = at;
        at += FRAME_BYTES;
    };
    for call in calls.iter().rev() {
        if minor > 11 {
            add(&mut memory, 0x5550, 3);
        }
        for (index, code) in call.iter().rev().enumerate() {
            add(&mut memory, *code, u64::from(minor == 11 && index == 0));
        }
    }
    memory.put(THREAD + u64::from(guest.slot), STATE);
    memory.put(STATE + u64::from(guest.thread_id), THREAD);
    memory.put(STATE + u64::from(guest.frame), if guest.by_call == 1 { CALL } else { above });
    memory.put(CALL + u64::from(guest.current), above);
    memory
}

#[test]
fn frames_come_apart_by_call() {
    let long: Vec<u64> = (1..100).map(|number| number * 0x100).collect();
    let check = |minor: u32, calls: &[&[u64]]| {
        let walked = memory(minor, calls).walk();
        let mut expected: Vec<Vec<(u64, u64)>> =
            calls.iter().map(|call| call.iter().map(|code| (*code, 20)).collect()).collect();
        if minor > 11 {
            // The outermost shim comes after the last function, and is none.
            expected.retain(|call| !call.is_empty());
        }
        assert_eq!((walked.calls, walked.failed), (expected, GUEST_NO_FAILURE), "3.{minor}");
    };
    for minor in [9, 10] {
        check(minor, &[&[0x100], &[0x200], &[0x100]]);
    }
    for minor in [11, 12, 14] {
        check(minor, &[&[0x100, 0x7fff_ffff_fff0, 0x300], &[0x400], &[0x500, 0x600]]);
        check(minor, &[&long, &[0x100]]);
    }
}

#[test]
fn what_is_left_is_one_call() {
    let memory = memory(12, &[&[0x100, 0x200], &[0x300]]);
    let walked = walk(&memory, &Thread { rest: 1, ..AT });
    assert_eq!(walked.calls, [[(0x100, 20), (0x200, 20), (0x300, 20)]]);
}

#[test]
fn what_does_not_prove_itself_is_not_reported() {
    let check = |change: &dyn Fn(&mut Memory), expected: (usize, u32)| {
        let mut memory = memory(11, &[&[0x100, 0x200], &[0x300]]);
        change(&mut memory);
        let walked = memory.walk();
        let frames = walked.calls.iter().map(Vec::len).sum::<usize>();
        assert_eq!((frames, walked.failed), expected, "{walked:?}");
    };
    check(&|_| {}, (3, GUEST_NO_FAILURE));
    // The kernel has given the element to another process.
    check(&|memory| memory.guest.tgid = 8, (0, GUEST_NO_FAILURE));
    check(&|memory| memory.put(THREAD + 0x318, 0), (0, GUEST_NO_THREAD));
    check(&|memory| memory.put(THREAD + 0x318, STATE + 8), (0, GUEST_NO_THREAD));
    check(&|memory| memory.put(THREAD + 0x318, 1 << 60), (0, GUEST_NO_THREAD));
    check(&|memory| memory.guest.slot = 1 << 30, (0, GUEST_UNREADABLE));
    check(&|memory| memory.put(STATE + 56, 0), (0, GUEST_UNREADABLE));
    // No frame at all is no failure: the thread runs nothing.
    check(&|memory| memory.put(CALL + 8, 0), (0, GUEST_NO_FAILURE));
    check(&|memory| memory.put(CALL + 8, FRAMES + 1), (0, GUEST_UNREADABLE));
    // The innermost lies third.
    let innermost = FRAMES + 2 * FRAME_BYTES;
    check(&|memory| memory.put(innermost + 32, 0), (0, GUEST_NO_CODE));
    check(&|memory| memory.put(innermost + 32, 1 << 50), (0, GUEST_NO_CODE));
    check(&|memory| memory.put(innermost + 48, 1 << 60), (1, GUEST_UNREADABLE));
}

#[test]
fn nothing_is_said_where_the_innermost_frame_has_no_caller_yet() {
    let mut memory = memory(11, &[&[0x100], &[0x200]]);
    memory.guest.eval = 0x5000;
    memory.guest.unlinked[0] = guest_unlinked { from: 0x10, bytes: 2 };
    memory.guest.unlinked[7] = guest_unlinked { from: 0x80, bytes: 1 };
    let check = |pc: u64, expected: u32| {
        let walked = walk(&memory, &Thread { pc, ..AT });
        assert_eq!(walked.failed, expected, "{pc:#x}");
        assert_eq!(walked.calls.len(), if expected == GUEST_NO_FAILURE { 2 } else { 1 });
    };
    for pc in [0x5010, 0x5011, 0x5080] {
        check(pc, GUEST_UNLINKED);
    }
    for pc in [0, 0x4fff, 0x5000, 0x500f, 0x5012, 0x507f, 0x5081, u64::MAX] {
        check(pc, GUEST_NO_FAILURE);
    }
}

#[test]
fn a_position_that_does_not_fit_is_none() {
    let check = |minor: u32, instruction: u64, expected: u64| {
        let mut memory = memory(minor, &[&[0x10000]]);
        let at = FRAMES + if minor > 11 { FRAME_BYTES } else { 0 };
        memory.put(at + u64::from(memory.guest.instruction), instruction);
        assert_eq!(memory.walk().calls[0], [(0x10000, expected)], "3.{minor} {instruction:#x}");
    };
    let none = u64::from(GUEST_NO_POSITION);
    check(11, 0x10004, 2);
    check(12, 0x20000, none);
    check(12, 0, none);
    check(9, 6, 3);
    check(9, u64::from(u32::MAX), 0);
    check(10, 6, 6);
    check(10, 1 << 20, none);
}

#[test]
fn a_list_that_leads_back_ends() {
    let mut memory = memory(12, &[&[0x100, 0x200]]);
    // The shim's caller is the innermost.
    memory.put(FRAMES + 48, FRAMES + 2 * FRAME_BYTES);
    let walked = memory.walk();
    assert!(walked.steps as usize <= MOST, "{}", walked.steps);
}

proptest! {
    #[test]
    fn any_memory_is_a_bounded_walk(
        minor in prop_oneof![Just(9_u32), Just(10), Just(11), Just(12), Just(14)],
        changes in proptest::collection::vec((0_u64..(END - THREAD) / 8, any::<u64>()), 0..40),
        offsets in proptest::collection::vec((0_usize..7, any::<u16>()), 0..3),
        rest: bool,
    ) {
        let mut memory = memory(minor, &[&[0x100, 0x200], &[0x300, 0x400]]);
        for (word, value) in changes {
            // Half of them lead somewhere.
            let value = if value & 1 == 0 { THREAD + value % (END - THREAD) } else { value };
            memory.put(THREAD + 8 * word, value);
        }
        let guest = &mut memory.guest;
        for (which, offset) in offsets {
            *[
                &mut guest.thread_id, &mut guest.frame, &mut guest.current, &mut guest.code,
                &mut guest.previous, &mut guest.instruction, &mut guest.owner,
            ][which] = offset;
        }
        let walked = walk(&memory, &Thread { rest: rest.into(), ..AT });
        prop_assert!(walked.steps as usize <= MOST);
        for (code, position) in walked.calls.iter().flatten() {
            prop_assert!(*code > 0 && code >> 47 == 0 && code % 8 == 0 && *position <= u64::from(GUEST_NO_POSITION));
        }
    }
}
