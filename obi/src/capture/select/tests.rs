//! Choices on invented kernels.

use super::*;
use crate::capture::support::blind_spot::BlindSpot::{
    ForeignPrograms, IoUringReceives, IoUringSends, MultipathTcp, Preemption, UnixSplice,
};

/// Every set usable, with these blind spots; then changed by a test.
fn kernel(changes: impl Fn(&mut SetSupport)) -> Support {
    let mut sets = [
        SetSupport::invented(HookSet::Socket, &[IoUringReceives, UnixSplice]),
        SetSupport::invented(HookSet::Fentry, &[MultipathTcp]),
        SetSupport::invented(HookSet::Kprobe, &[MultipathTcp]),
        SetSupport::invented(HookSet::Syscall, &[IoUringReceives, IoUringSends]),
    ];
    sets.iter_mut().for_each(changes);
    Support::invented(sets.to_vec())
}

fn without(missing: &'static [HookSet]) -> Support {
    kernel(move |set| {
        if missing.contains(&set.set) {
            set.lack("trampolines", "failed with 524");
        }
    })
}

fn choose(support: &Support, refused: &[HookSet]) -> Result<Selection<HookSet>, SelectError> {
    select(
        support,
        None,
        |set| if refused.contains(&set) { Err(format!("{set}: too complex")) } else { Ok(set) },
    )
}

#[test]
fn the_cheapest_of_those_that_see_the_most() {
    use HookSet::{Fentry, Kprobe, Socket, Syscall};
    fn check(support: &Support, refused: &[HookSet], expected: HookSet, why: &str) {
        let selection = choose(support, refused).unwrap();
        assert_eq!((selection.set, selection.loaded), (expected, expected), "{why}");
        assert_eq!(selection.why, why);
        let used = selection.verdicts.iter().filter(|verdict| verdict.state == State::Used);
        assert_eq!(used.map(|verdict| verdict.set).collect::<Vec<_>>(), [expected]);
        for verdict in &selection.verdicts {
            assert_eq!(verdict.reason.is_empty(), verdict.set == expected, "{verdict:?}");
            assert_eq!(verdict.state == State::Refused, refused.contains(&verdict.set), "{verdict:?}");
        }
    }
    let least = "none here sees every program; this one misses the least";
    check(&without(&[]), &[], Fentry, "the cheapest that sees every program");
    check(&without(&[Fentry]), &[], Kprobe, "the cheapest that sees every program");
    check(&without(&[Fentry, Kprobe]), &[], Socket, &format!("{least} (receives by io_uring)"));
    check(
        &without(&[Fentry, Kprobe, Socket]),
        &[],
        Syscall,
        &format!("{least} (receives by io_uring, sends by io_uring)"),
    );
    check(&without(&[]), &[Fentry], Kprobe, "the cheapest that sees every program; fentry failed to load");
    check(
        &without(&[]),
        &[Fentry, Kprobe],
        Socket,
        &format!("{least} (receives by io_uring); fentry, kprobe failed to load"),
    );
    // Before 6.16 `socket` sees no sends of io_uring either: as little as `syscall`, for less.
    let older = kernel(|set| match set.set {
        Socket => set.not_seen.push(IoUringSends),
        Fentry | Kprobe => set.lack("breakpoints", "no such device"),
        Syscall => {}
    });
    check(&older, &[], Socket, &format!("{least} (receives by io_uring, sends by io_uring)"));
}

#[test]
fn a_kernel_that_preempts_itself() {
    use HookSet::{Fentry, Kprobe, Socket, Syscall};
    let check = |missing: &[HookSet], expected: HookSet| {
        let support = kernel(|set| {
            match set.set {
                Socket => set.not_seen.extend([IoUringSends, Preemption]),
                Fentry => set.not_seen.push(Preemption),
                Kprobe => {}
                Syscall => set.not_seen.push(ForeignPrograms),
            }
            if missing.contains(&set.set) {
                set.lack("places", "failed with 2");
            }
        });
        assert_eq!(choose(&support, &[]).unwrap().set, expected, "without {missing:?}");
    };
    // Neither probes nor system calls are preempted; to lose something of every program is worse than to miss few.
    check(&[], Kprobe);
    check(&[Kprobe], Syscall);
    // What `socket` misses of io_uring is less than what `fentry` misses of everybody.
    check(&[Kprobe, Syscall], Socket);
    check(&[Kprobe, Syscall, Socket], Fentry);
}

#[test]
fn a_forced_set_is_used_or_nothing() {
    let support = without(&[HookSet::Fentry]);
    for forced in HookSet::ALL {
        let selection = select(&support, Some(forced), Ok::<_, String>).unwrap();
        assert_eq!((selection.set, selection.why.as_str()), (forced, "capture.hooks asks for it"));
        let not_seen = support.sets.iter().find(|set| set.set == forced).map(|set| &set.not_seen);
        assert_eq!(Some(&selection.not_seen), not_seen);
        let spare = selection.verdicts.iter().filter(|verdict| verdict.state == State::Spare);
        assert!(spare.clone().all(|verdict| verdict.reason == format!("capture.hooks asks for {forced}")));
        assert!(spare.count() >= 2);
        let error = select(&support, Some(forced), |_| Err::<(), _>("too complex")).unwrap_err();
        assert_eq!(error.to_string(), format!("capture.hooks: `{forced}` cannot be used: too complex"));
    }
}

#[test]
fn when_none_is_left_the_reasons_are_reported() {
    let check = |support: &Support, refused: &[HookSet], expected: &str| {
        assert_eq!(choose(support, refused).unwrap_err().to_string(), expected);
    };
    check(
        &without(&[HookSet::Fentry, HookSet::Kprobe]),
        &HookSet::ALL,
        "no hook set could be loaded: socket: too complex; syscall: too complex",
    );
    check(
        &without(&HookSet::ALL),
        &[],
        "no hook set can be used: trampolines: failed with 524; get it (`obi doctor` tells more)",
    );
    let mut support = without(&[]);
    support.lack("kernel type information (BTF)", "failed to read");
    let expected = "no hook set can be used: kernel type information (BTF): failed to read; get it (`obi doctor` tells more)";
    check(&support, &[], expected);
    let forced = select(&support, Some(HookSet::Syscall), Ok::<_, String>).unwrap_err();
    assert_eq!(forced.to_string(), expected);
}
