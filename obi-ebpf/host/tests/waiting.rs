//! Accounts of threads: whatever the scheduler does, the parts are the time that has passed.

use obi_ebpf::{
    WAIT_CHILD, WAIT_CONDITION, WAIT_FILE, WAIT_LOCK, WAIT_NETWORK, WAIT_OTHER, WAIT_PAGE_FAULT, WAIT_POLL,
    WAIT_REASONS, WAIT_SLEEP,
};
use obi_ebpf_host::waiting::{Account, Leaves, Parts, draw, reason_of_call};
use proptest::prelude::*;

const BLOCKED: usize = 2;

proptest! {
    /// What is expected of a sample is the wait's length, whatever the threshold.
    #[test]
    fn samples_of_waits_sum_to_their_lengths(threshold in 1_u64..1 << 32, part in 0.0_f64..2.0) {
        const CHANCES: u32 = 4096;
        let length = (threshold as f64 * part) as u64;
        let chances = (0..CHANCES).map(|nth| nth * (u32::MAX / CHANCES + 1));
        let drawn: Vec<u64> = chances.map(|chance| draw(length, threshold, chance)).collect();
        prop_assert!(drawn.iter().all(|value| [0, length.max(threshold)].contains(value)));
        let mean = drawn.iter().map(|value| *value as f64).sum::<f64>() / f64::from(CHANCES);
        let step = threshold as f64 / f64::from(CHANCES);
        prop_assert!((mean - length as f64).abs() <= step + 1.0, "{mean} of {length}, threshold {threshold}");
    }
}

#[test]
fn long_waits_and_those_beside_a_threshold_that_is_none_are_always_sampled() {
    for chance in [0, 1, u32::MAX] {
        assert_eq!(draw(8_000_000, 8_000_000, chance), 8_000_000);
        assert_eq!(draw(9, 1 << 32, chance), 9);
    }
    assert_eq!((draw(0, 8, 0), draw(1, 8, 0), draw(1, 8, u32::MAX)), (0, 8, 0));
}

#[test]
fn each_phase_is_booked_where_it_belongs() {
    let mut account = Account::begin(100);
    account.leave(110, Leaves::Blocked(WAIT_SLEEP)); // 10 on the CPU
    account.wake(150); // 40 asleep
    account.wake(152); // and awake already
    account.enter(155); // 5 in the queue
    account.leave(156, Leaves::Ready); // 1 on the CPU
    account.wake(157); // is no wait that could end
    account.enter(166); // 10 in the queue
    account.leave(170, Leaves::Blocked(WAIT_LOCK)); // 4 on the CPU
    account.enter(200); // 30 for the lock: no program saw it being woken
    let mut expected = Parts::default();
    (expected[0], expected[1]) = (10 + 1 + 4 + 5, 5 + 10);
    expected[BLOCKED + WAIT_SLEEP as usize] = 40;
    expected[BLOCKED + WAIT_LOCK as usize] = 30;
    assert_eq!(account.end(205), Some(expected));
}

/// The end of an answer may be seen a while after it, when the thread has left the CPU in between.
#[test]
fn what_came_behind_the_end_is_taken_back() {
    let reported = |end: u64| {
        let mut account = Account::begin(0);
        account.leave(10, Leaves::Blocked(WAIT_POLL));
        account.wake(30);
        account.enter(40);
        account.end(end).map(|parts| [parts[0], parts[1], parts[BLOCKED + WAIT_POLL as usize]])
    };
    let check = |end, expected| assert_eq!(reported(end), expected, "{end}");
    check(45, Some([15, 10, 20]));
    check(40, Some([10, 10, 20]));
    check(35, Some([10, 5, 20]));
    check(30, Some([10, 0, 20]));
    check(12, Some([10, 0, 2]));
    check(4, Some([4, 0, 0]));
    check(0, Some([0, 0, 0]));
}

#[test]
fn further_back_than_the_newest_phases_nothing_is_reported() {
    let mut account = Account::begin(0);
    account.leave(10, Leaves::Ready);
    account.enter(20);
    account.leave(30, Leaves::Ready);
    account.enter(40);
    assert_eq!(account.end(15), None);
}

/// An answer without a length ends with its last byte, however long its thread works on before it closes.
#[test]
fn an_end_that_was_marked_is_known_however_far_back_it_lies() {
    let parts_of = |marks: &[u64], end: u64| {
        let mut account = Account::begin(0);
        account.leave(10, Leaves::Blocked(WAIT_SLEEP));
        account.enter(20);
        marks.iter().for_each(|at| account.mark(*at));
        account.leave(30, Leaves::Ready);
        account.enter(40);
        account.leave(50, Leaves::Blocked(WAIT_LOCK));
        account.enter(60);
        let parts = account.end(end)?;
        Some([parts[0], parts[1], parts[BLOCKED + WAIT_SLEEP as usize], parts[BLOCKED + WAIT_LOCK as usize]])
    };
    let check = |marks: &[u64], end, expected| assert_eq!(parts_of(marks, end), expected, "{marks:?} {end}");
    check(&[25], 25, Some([15, 0, 10, 0]));
    check(&[22, 25], 25, Some([15, 0, 10, 0]));
    // The time of what was sent last is a little before it was seen.
    check(&[15], 15, Some([10, 0, 5, 0]));
    // Another end is not the marked one.
    check(&[22], 25, None);
    check(&[25], 55, Some([30, 10, 10, 5]));
    check(&[], 25, None);
}

/// What the scheduler does next, and how long after what it did before.
#[derive(Debug, Clone, Copy)]
struct Step {
    kind: u8,
    after: u64,
    reason: u32,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = (0..3_u8, 0..1_000_000_u64, 0..WAIT_REASONS);
    prop::collection::vec(step.prop_map(|(kind, after, reason)| Step { kind, after, reason }), 0..60)
}

proptest! {
    #[test]
    fn parts_are_the_time_that_has_passed(steps in steps(), start in any::<u32>(), rest in 0..1_000_u64) {
        let (start, mut on_cpu) = (u64::from(start), true);
        let (mut account, mut now) = (Account::begin(start), start);
        for Step { kind, after, reason } in steps {
            now += after;
            match (on_cpu, kind) {
                (true, 0) => account.leave(now, Leaves::Ready),
                (true, _) => account.leave(now, Leaves::Blocked(reason)),
                (false, 0) => account.wake(now),
                (false, _) => account.enter(now),
            }
            on_cpu = if on_cpu { false } else { kind != 0 };
        }
        if !on_cpu {
            account.enter(now);
        }
        let parts = account.end(now + rest);
        prop_assert_eq!(parts.map(|parts| parts.iter().sum::<u64>()), Some(now + rest - start));
    }
}

#[cfg(target_arch = "x86_64")]
#[test]
fn reasons_follow_from_calls() {
    const FUTEX: u32 = 202;
    const PRIVATE: u64 = 128;
    let check = |number: u32, arguments: [u64; 3], expected: u32| {
        assert_eq!(reason_of_call(number, arguments), expected, "{number} {arguments:x?}");
    };
    check(FUTEX, [0x1000, PRIVATE, 2], WAIT_LOCK); // glibc
    check(FUTEX, [0x1000, 9 | PRIVATE, 2], WAIT_LOCK); // Rust
    check(FUTEX, [0x1000, PRIVATE, 0x8000_1234], WAIT_LOCK); // musl
    check(FUTEX, [0x1000, 6, 0], WAIT_LOCK); // with priority inheritance
    check(FUTEX, [0x1000, PRIVATE, 0], WAIT_CONDITION); // semaphores, condition variables
    check(FUTEX, [0x1000, 9 | PRIVATE, 0xffff_ffff], WAIT_CONDITION); // a parked thread of Rust
    check(FUTEX, [0x1000, 11, 2], WAIT_CONDITION); // FUTEX_WAIT_REQUEUE_PI
    check(449, [0x1000, 2, 2], WAIT_CONDITION); // futex_waitv
    check(7, [0x1000, 1, 100], WAIT_POLL);
    check(7, [0, 0, 100], WAIT_SLEEP); // poll() without descriptors
    check(23, [0, 0, 0], WAIT_SLEEP); // select() likewise
    check(23, [5, 0x1000, 0], WAIT_POLL);
    check(45, [3, 0, 0], WAIT_NETWORK); // recvfrom
    check(74, [3, 0, 0], WAIT_FILE); // fsync
    check(61, [0, 0, 0], WAIT_CHILD); // wait4
    check(230, [0, 0, 0], WAIT_SLEEP); // clock_nanosleep
    check(u32::MAX, [0, 0, 0], WAIT_PAGE_FAULT); // in no call
    check(186, [0, 0, 0], WAIT_OTHER); // gettid
    check(511, [0, 0, 0], WAIT_OTHER);
    check(512, [0, 0, 0], WAIT_OTHER);
    assert!(reason_of_call(0, [3, 0, 0]) >= WAIT_REASONS, "read: it depends on what is read");
}
