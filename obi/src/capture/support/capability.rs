//! Effective capabilities of this process, and what follows from a missing one.

use caps::{CapSet, Capability, has_cap};
use serde::Serialize;

use super::{Check, Outcome};

/// The capabilities that matter to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Capabilities {
    /// `CAP_BPF`: load programs. Part of `CAP_SYS_ADMIN`.
    pub bpf: bool,
    /// `CAP_PERFMON`: attach them to tracing, read memory. Part of `CAP_SYS_ADMIN`.
    pub perfmon: bool,
    /// `CAP_SYS_PTRACE`: read `/proc` of other users' processes.
    pub sys_ptrace: bool,
    /// `CAP_SYS_ADMIN`: switch on run-time statistics.
    pub sys_admin: bool,
}

/// How to get what loading needs.
pub(super) const REMEDY: &str =
    "run as root, or give the binary `setcap cap_bpf,cap_perfmon,cap_sys_ptrace,cap_sys_admin+ep`";

impl Capabilities {
    pub(super) fn effective() -> Self {
        let has = |capability| has_cap(None, CapSet::Effective, capability).unwrap_or(false);
        let sys_admin = has(Capability::CAP_SYS_ADMIN);
        Self {
            bpf: sys_admin || has(Capability::CAP_BPF),
            perfmon: sys_admin || has(Capability::CAP_PERFMON),
            sys_ptrace: has(Capability::CAP_SYS_PTRACE),
            sys_admin,
        }
    }

    /// Nothing but a policy can forbid us to load programs.
    pub(super) fn can_load(self) -> bool {
        self.bpf && self.perfmon
    }

    pub(super) fn checks(self) -> Vec<Check> {
        let required = |held, name| match held {
            true => Check::new(name, Outcome::Available),
            false => Check::missing(name, "not among the effective capabilities", REMEDY),
        };
        let optional = |held, name, without| match held {
            true => Check::new(name, Outcome::Available),
            false => Check::limited(name, "not among the effective capabilities", without),
        };
        vec![
            required(self.bpf, "CAP_BPF"),
            required(self.perfmon, "CAP_PERFMON"),
            optional(
                self.sys_ptrace,
                "CAP_SYS_PTRACE",
                "other users' processes are named by their executable's short name only; run as root or add it",
            ),
            optional(
                self.sys_admin,
                "CAP_SYS_ADMIN",
                "no run-time metrics of kernel programs; run as root or add it, or set capture.statistics: false",
            ),
        ]
    }
}
