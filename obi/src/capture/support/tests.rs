//! The probe against this machine, and invented machines for other tests.

use super::*;
use crate::capture::bpf::create::{self, Kind};
use crate::capture::kernel_types::KERNEL_BTF;

impl Capabilities {
    pub(crate) const ALL: Self = Self {
        bpf: true,
        perfmon: true,
        sys_ptrace: true,
        dac_read_search: true,
        checkpoint_restore: true,
        syslog: true,
        sys_admin: true,
    };
}

impl Support {
    /// A machine that has all that every set needs.
    pub(crate) fn invented(sets: Vec<SetSupport>) -> Self {
        Self {
            checks: vec![Check::available("a"), Check::limited("b", "less", "add it")],
            sets,
            capabilities: Capabilities::ALL,
            pid_namespace: PidNamespace { initial: true, own_pid: 1 },
            types: None,
        }
    }

    /// Takes something away.
    pub(crate) fn lack(&mut self, name: &str, error: &str) {
        self.checks.push(Check::missing(name, error, "get it"));
    }
}

impl SetSupport {
    /// A set that has all it needs.
    pub(crate) fn invented(set: HookSet, not_seen: &[BlindSpot]) -> Self {
        Self {
            set,
            checks: vec![Check::available("places")],
            not_seen: not_seen.to_vec(),
            preemption: Preemption::None,
        }
    }

    /// Takes something away.
    pub(crate) fn lack(&mut self, name: &str, error: &str) {
        self.checks.push(Check::missing(name, error, "get it"));
    }
}

#[test]
fn this_machine_is_examined_whole() {
    let support = Support::probe(Path::new(KERNEL_BTF));
    let missing = support.checks.iter().any(|check| matches!(check.outcome, Outcome::Missing(_)));
    assert_eq!(support.require_common().is_err(), missing, "{:#?}", support.checks);
    if !support.capabilities.bpf {
        assert!(missing, "programs cannot be loaded without CAP_BPF");
    }
    let names = support.checks.iter().map(|check| check.name.as_str()).collect::<Vec<_>>();
    for expected in
        ["CAP_BPF", "CAP_PERFMON", "host pid namespace", "ring buffer", "kernel type information (BTF)"]
    {
        assert!(names.contains(&expected), "{names:?}");
    }
    let sets: Vec<_> = support.sets.iter().map(|set| set.set).collect();
    assert!(sets == HookSet::ALL || support.types.is_none(), "{sets:?}");
    for set in support.sets.iter().filter(|set| [HookSet::Socket, HookSet::Syscall].contains(&set.set)) {
        assert!(set.not_seen.contains(&BlindSpot::IoUringReceives), "{set:?}");
    }
}

#[test]
fn without_type_information_nothing_works_and_the_file_is_named() {
    let support = Support::probe(Path::new("/nonexistent/vmlinux"));
    assert!(support.sets.is_empty());
    let error = support.require_common().unwrap_err().to_string();
    // As root it is the first thing missing; else the capabilities are.
    assert!(error.contains("/nonexistent/vmlinux") || !support.capabilities.bpf, "{error}");
}

#[test]
fn the_first_missing_thing_is_named_on_one_line() {
    let mut support = Support::invented(vec![SetSupport::invented(HookSet::Socket, &[])]);
    assert_eq!(support.require(), Ok(()));
    support.lack("c", "failed with 7");
    support.lack("d", "failed with 8");
    let error = support.require().unwrap_err().to_string();
    assert_eq!(error, "no hook set can be used: c: failed with 7; get it (`obi doctor` tells more)");
}

#[test]
fn remedies_fit_the_error() {
    fn check(errno: i32, held: bool, expected: &str) {
        let capabilities = Capabilities {
            bpf: held,
            perfmon: held,
            sys_ptrace: held,
            dac_read_search: held,
            checkpoint_restore: held,
            syslog: held,
            sys_admin: held,
        };
        let text = requirement::remedy(&std::io::Error::from_raw_os_error(errno), capabilities);
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

#[test]
fn what_is_skipped_under_preemption_is_no_secret() {
    use Preemption::{Kernel, None, Programs};
    let types = KernelTypes::read(Some(Path::new(KERNEL_BTF))).unwrap();
    let check = |set, preemption, expected: &[BlindSpot]| {
        let mut found = blind_spots(set, &types, preemption);
        found.retain(|spot| matches!(spot, BlindSpot::Preemption | BlindSpot::MapCalls));
        assert_eq!(found, expected, "{set}, {preemption:?}");
    };
    for set in HookSet::ALL {
        check(set, None, &[]);
    }
    check(HookSet::Socket, Kernel, &[]);
    check(HookSet::Socket, Programs, &[BlindSpot::Preemption]);
    check(HookSet::Fentry, Programs, &[BlindSpot::Preemption]);
    check(HookSet::Kprobe, Kernel, &[BlindSpot::MapCalls]);
    // Where programs have loops it has others for such a kernel.
    let usual = if types.function("bpf_loop").is_some() { &[][..] } else { &[BlindSpot::MapCalls] };
    check(HookSet::Syscall, Kernel, usual);
}
