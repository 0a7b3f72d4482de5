//! The probe against this machine, and against invented ones.

use super::*;

fn support(checks: Vec<Check>) -> Support {
    let usable = !checks.iter().any(|check| matches!(check.outcome, Outcome::Missing(_)));
    Support {
        hook_set: usable.then_some(HookSet::Socket),
        checks,
        capabilities: Capabilities { bpf: true, perfmon: true, sys_ptrace: true, sys_admin: true },
        pid_namespace: PidNamespace { initial: true, own_pid: 1 },
    }
}

#[test]
fn the_hook_set_follows_from_the_checks() {
    let support = Support::probe();
    let missing = support.checks.iter().any(|check| matches!(check.outcome, Outcome::Missing(_)));
    assert_eq!(support.hook_set.is_none(), missing, "{support:#?}");
    assert_eq!(support.require().is_err(), missing);
    if !support.capabilities.bpf {
        assert!(missing, "programs cannot be loaded without CAP_BPF");
    }
    let names = support.checks.iter().map(|check| check.name.as_str()).collect::<Vec<_>>();
    for expected in
        ["CAP_BPF", "CAP_PERFMON", "host pid namespace", "ring buffer", "kernel type information (BTF)"]
    {
        assert!(names.contains(&expected), "{names:?}");
    }
}

#[test]
fn the_first_missing_thing_is_named_on_one_line() {
    let checks = vec![
        Check::new("a", Outcome::Available),
        Check::limited("b", "less", "add it"),
        Check::missing("c", "failed with 7", "get it"),
        Check::missing("d", "failed with 8", "get that"),
    ];
    let error = support(checks).require().unwrap_err().to_string();
    assert_eq!(error, "no hook set can be used: c: failed with 7; get it (`obi doctor` tells more)");
    assert_eq!(support(vec![Check::limited("b", "less", "add it")]).require(), Ok(HookSet::Socket));
}

#[test]
fn remedies_fit_the_error() {
    fn check(errno: i32, held: bool, expected: &str) {
        let capabilities = Capabilities { bpf: held, perfmon: held, sys_ptrace: held, sys_admin: held };
        let text = remedy(&std::io::Error::from_raw_os_error(errno), &capabilities);
        assert!(text.contains(expected), "{errno} {held}: {text}");
    }
    check(libc::EPERM, true, "seccomp");
    check(libc::EPERM, false, "run as root");
    check(libc::ENOSYS, true, "CONFIG_BPF_SYSCALL");
    check(libc::EINVAL, true, "newer kernel");
}

#[test]
fn a_program_for_no_tracepoint_is_refused() {
    assert!(create::program(Kind::BtfTracepoint(0)).is_err());
    assert!(create::ring(1).is_err(), "not a multiple of the page size");
}
