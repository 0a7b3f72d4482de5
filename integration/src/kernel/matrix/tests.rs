//! Verdicts, outputs and tables as they come out of a guest.

use super::*;

fn verdict(flavour: &str, program: &str, fate: Fate) -> Verdict {
    Verdict { set: "fentry".into(), flavour: flavour.into(), program: program.into(), fate }
}

#[test]
fn the_first_flavour_that_loads_counts() {
    let loaded = |instructions| Fate::Loaded { instructions };
    let refused = || Fate::Refused { reason: "too large".into() };
    let check = |verdicts: &[Verdict], expected: Result<&str, &str>| {
        let found = verification("fentry", &Release::of_series("5.10").unwrap(), verdicts);
        assert_eq!(found.as_deref().map_err(String::as_str), expected);
    };
    check(
        &[verdict("modern", "a", loaded(7)), verdict("modern", "b", loaded(9))],
        Ok("modern, 2 programs, at most 9 instructions"),
    );
    check(
        &[verdict("modern", "a", refused()), verdict("portable", "a", loaded(3))],
        Ok("portable, 1 programs, at most 3 instructions"),
    );
    check(
        &[verdict("modern", "a", loaded(3)), verdict("modern", "tcp_sendpage", Fate::Absent)],
        Ok("modern, 1 programs, at most 3 instructions"),
    );
    check(
        &[verdict("modern", "a", loaded(3)), verdict("modern", "tcp_sendpage", refused())],
        Err("modern: tcp_sendpage refused: too large"),
    );
    check(
        &[verdict("modern", "a", refused()), verdict("portable", "a", Fate::Absent)],
        Err("modern: a refused: too large; portable: no a"),
    );
    check(&[], Err(""));
    let refused = [verdict("modern", "a", refused()), verdict("portable", "a", loaded(3))];
    let found = verification("fentry", &Release::of_series("6.12").unwrap(), &refused);
    assert_eq!(
        found,
        Err("modern: a refused: too large".to_owned()),
        "newer kernels must take the modern ones"
    );
}

#[test]
fn absence_needs_a_known_reason() {
    let check = |series: &str, set: &'static str, known: bool| {
        let release = Release::of_series(series).unwrap();
        let cell = absent(Target { release, preempt: false }, set, "no x".into());
        assert_eq!(cell.truth.is_ok(), known, "{series} {set}");
    };
    check("5.10", "socket", true);
    check("6.12", "socket", false);
    check("5.10", "kprobe", false);
}

#[test]
fn passed_tests_are_counted() {
    let check = |output: &str, expected: u32| assert_eq!(passed(output), expected, "{output:?}");
    check("running 2 tests\n\ntest result: ok. 2 passed; 0 failed; 0 ignored\n", 2);
    check("test result: FAILED. 1 passed; 1 failed\n", 0);
    check("", 0);
}

#[test]
fn a_kernel_at_fault_is_heard() {
    let check = |console: &str, expected: bool| assert_eq!(complaint(console).is_ok(), expected, "{console}");
    check("", true);
    check("[    1.0] virtio-fs: warning of its own\n", true);
    check("[    1.0] fine\n[    2.0] WARNING: CPU: 0 PID: 1 at kernel/x.c:1\n[    2.0] more\n", false);
    check("[    2.0] BUG: sleeping function called from invalid context\n", false);
}

#[test]
fn costs_are_averaged() {
    let check = |output: &str, expected: Option<u64>| assert_eq!(cost(output), expected, "{output:?}");
    check(
        "socket: 100 ns of kernel programs per span\nx\nsocket: 300 ns of kernel programs per span\n",
        Some(200),
    );
    check("nothing\n", None);
}

#[test]
fn findings_are_added_up() {
    let output = "test accuracy::a ... a: 1 of 2 rows failed: 1 missing, 2 lost, 0 wrong, 600 spans expected\nx\n\
        b: 3 missing, 4 lost, 5 wrong, 974 spans expected\ntest stress::c ... seed\n\
        c: 0 missing, 0 lost, 0 wrong, 7 spans expected\nd: 8 spans expected\n";
    let found = |expected, missing, lost, wrong| Found { expected, missing, lost, wrong };
    let expected = [("accuracy", found(1574, 4, 6, 5)), ("stress", found(7, 0, 0, 0))];
    assert_eq!(findings(output), expected.map(|(name, found)| (name.to_owned(), found)).into());
    assert_eq!(found(7, 0, 1, 2).to_string(), "7 spans, 0 missing, 1 lost, 2 wrong");
}
