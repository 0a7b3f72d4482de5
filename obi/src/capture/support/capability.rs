//! Effective capabilities of this process, what each is for, and what follows from a missing one.

use caps::{CapSet, Capability, has_cap};
use serde::Serialize;

use super::{Check, Outcome, Reason};

/// The capabilities that matter to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// `CAP_BPF`: load programs. Part of `CAP_SYS_ADMIN`.
    pub bpf: bool,
    /// `CAP_PERFMON`: attach them to tracing, read memory. Part of `CAP_SYS_ADMIN`.
    pub perfmon: bool,
    /// `CAP_SYS_PTRACE`: read `/proc` of other users' processes.
    pub sys_ptrace: bool,
    /// `CAP_DAC_READ_SEARCH`: open files of other users there, and those of tracepoints.
    pub dac_read_search: bool,
    /// `CAP_CHECKPOINT_RESTORE`: open files that processes have mapped and deleted.
    pub checkpoint_restore: bool,
    /// `CAP_SYSLOG`: see where the kernel's functions are.
    pub syslog: bool,
    /// `CAP_SYS_ADMIN`: switch on run-time statistics.
    pub sys_admin: bool,
}

/// How to get what loading needs.
pub(super) const REMEDY: &str = "run as root, or give the binary `setcap \
                                 cap_bpf,cap_perfmon,cap_sys_ptrace,cap_dac_read_search,\
                                 cap_checkpoint_restore,cap_syslog+ep`";

/// What one capability is for.
struct Feature {
    capability: &'static str,
    held: fn(&Capabilities) -> bool,
    /// What becomes of the agent without; `None`: it cannot run.
    degraded: Option<&'static str>,
}

/// Found by running without each; the integration tests do so.
const FEATURES: [Feature; 7] = [
    Feature { capability: "CAP_BPF", held: |held| held.bpf, degraded: None },
    Feature { capability: "CAP_PERFMON", held: |held| held.perfmon, degraded: None },
    Feature {
        capability: "CAP_SYS_PTRACE",
        held: |held| held.sys_ptrace,
        degraded: Some(
            "mode `short names`: executables of other users' processes are known by 15 letters and without their \
             path, which discovery rules do not match; most kernels do not show their OTEL_SERVICE_NAME either; run \
             as root or add it",
        ),
    },
    Feature {
        capability: "CAP_DAC_READ_SEARCH",
        held: |held| held.dac_read_search,
        degraded: Some(
            "mode `no environment`: OTEL_SERVICE_NAME, OTEL_RESOURCE_ATTRIBUTES and pod names of other users' \
             processes are not read, they are named by unit, script or executable; the syscall set cannot read where \
             its tracepoints are; run as root or add it",
        ),
    },
    Feature {
        capability: "CAP_CHECKPOINT_RESTORE",
        held: |held| held.checkpoint_restore,
        degraded: Some(
            "mode `no deleted files`: TLS of libraries that are deleted once they are loaded, such as Netty's, is not \
             read; run as root or add it",
        ),
    },
    Feature {
        capability: "CAP_SYSLOG",
        held: |held| held.syslog,
        degraded: Some(
            "mode `no kernel names`: functions of the kernel are addresses in profiles where kernel.kptr_restrict is 1 \
             or kernel.perf_event_paranoid above 1; run as root or add it",
        ),
    },
    Feature {
        capability: "CAP_SYS_ADMIN",
        held: |held| held.sys_admin,
        degraded: Some(
            "mode `no statistics`: capture.statistics: true gives no obi_bpf_program_run_seconds_total and \
             obi_bpf_program_runs_total; run as root or add it where those are wanted",
        ),
    },
];

impl Capabilities {
    pub(super) fn effective() -> Self {
        let has = |capability| has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        let sys_admin = has(Capability::CAP_SYS_ADMIN);
        Self {
            bpf: sys_admin || has(Capability::CAP_BPF),
            perfmon: sys_admin || has(Capability::CAP_PERFMON),
            sys_ptrace: has(Capability::CAP_SYS_PTRACE),
            // Either opens what belongs to others.
            dac_read_search: has(Capability::CAP_DAC_READ_SEARCH) || has(Capability::CAP_DAC_OVERRIDE),
            // CAP_SYS_ADMIN stands for it, and is not kept.
            checkpoint_restore: has(Capability::CAP_CHECKPOINT_RESTORE),
            syslog: has(Capability::CAP_SYSLOG),
            sys_admin,
        }
    }

    /// Nothing but a policy can forbid us to load programs.
    pub(super) fn can_load(self) -> bool {
        self.bpf && self.perfmon
    }

    /// Arguments and environment of any process are ours to read.
    pub(crate) fn can_read_processes(self) -> bool {
        self.sys_ptrace && self.dac_read_search
    }

    pub(super) fn checks(self) -> Vec<Check> {
        let check = |Feature { capability, held, degraded }: &Feature| {
            let reason = |remedy: &str| Reason {
                error: "not among the effective capabilities".to_owned(),
                remedy: remedy.to_owned(),
            };
            Check::new(
                *capability,
                match degraded {
                    _ if held(&self) => Outcome::Available,
                    Some(degraded) => Outcome::Limited(reason(degraded)),
                    None => Outcome::Missing(reason(REMEDY)),
                },
            )
        };
        FEATURES.iter().map(check).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Capabilities = Capabilities {
        bpf: false,
        perfmon: false,
        sys_ptrace: false,
        dac_read_search: false,
        checkpoint_restore: false,
        syslog: false,
        sys_admin: false,
    };

    const ALL: Capabilities = Capabilities::ALL;

    #[test]
    fn each_capability_has_a_consequence() {
        fn check(held: Capabilities, expected: [&str; 7]) {
            let words = held.checks().into_iter().map(|check| match check.outcome {
                Outcome::Available => "held",
                Outcome::Missing(_) => "missing",
                Outcome::Limited(_) => "limited",
            });
            assert_eq!(words.collect::<Vec<_>>(), expected, "{held:?}");
        }
        check(NONE, ["missing", "missing", "limited", "limited", "limited", "limited", "limited"]);
        check(
            Capabilities { bpf: true, ..NONE },
            ["held", "missing", "limited", "limited", "limited", "limited", "limited"],
        );
        let documented = Capabilities { sys_admin: false, ..ALL };
        check(documented, ["held", "held", "held", "held", "held", "held", "limited"]);
    }
}
