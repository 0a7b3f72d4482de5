//! What this kernel and these capabilities allow, found out by trying.
//!
//! In: the running kernel. Out: [`Support`], with the hook set to use and what is missing. Versions are never compared:
//! a backport or a locked-down machine makes them lie. Refuses to change anything: what it creates goes at once.

mod capability;
mod namespace;

use std::fmt;

use aya_obj::btf::{Btf, BtfKind};
use serde::Serialize;
use thiserror::Error;

pub use self::capability::Capabilities;
pub use self::namespace::PidNamespace;
use super::bpf::create::{self, Kind};
use super::hook_set::HookSet;

/// One thing that was tried.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was tried, in a few words.
    pub name: String,
    /// How it went.
    #[serde(flatten)]
    pub outcome: Outcome,
}

/// How a check went.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase", tag = "status")]
pub enum Outcome {
    /// It works.
    Available,
    /// It does not, and the hook set needs it.
    Missing(Reason),
    /// It does not, and something less important will not be seen or done.
    Limited(Reason),
}

/// Why something does not work, and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Reason {
    /// What was tried with which result.
    pub error: String,
    /// What follows, or how to get it.
    pub remedy: String,
}

/// What was found out.
#[derive(Debug, Clone, Serialize)]
pub struct Support {
    /// The set that will be used; `None` when there is none.
    pub hook_set: Option<HookSet>,
    /// Everything that was tried, in order.
    pub checks: Vec<Check>,
    /// Effective capabilities.
    pub capabilities: Capabilities,
    /// Which pids we see.
    pub pid_namespace: PidNamespace,
}

/// Why the agent cannot run here: the first thing that is missing, on one line.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("no hook set can be used: {name}: {error}; {remedy} (`obi doctor` tells more)")]
pub struct Unsupported {
    name: String,
    error: String,
    remedy: String,
}

/// Tracepoints that the `socket` set cannot do without.
const REQUIRED: [&str; 6] = [
    "sock_send_length",
    "sock_recv_length",
    "inet_sock_set_state",
    "sched_process_exec",
    "sched_process_fork",
    "sched_process_exit",
];

/// Tracepoints that it uses where they are, and what is missed without.
const OPTIONAL: [(&str, &str); 2] = [
    (
        "tcp_sendmsg_locked",
        "sends are found from the system call instead; those of io_uring are counted as lost",
    ),
    ("tcp_rcv_space_adjust", "exchanges whose bytes leave a socket by splice are counted as lost"),
];

impl Support {
    /// Tries everything once; takes some tens of milliseconds.
    #[must_use]
    pub fn probe() -> Self {
        let capabilities = Capabilities::effective();
        let pid_namespace = PidNamespace::probe();
        let mut checks = capabilities.checks();
        checks.push(pid_namespace.check());
        checks.extend(kernel_checks(&capabilities));
        let usable = !checks.iter().any(|check| matches!(check.outcome, Outcome::Missing(_)));
        Self { hook_set: usable.then_some(HookSet::Socket), checks, capabilities, pid_namespace }
    }

    /// The hook set to use.
    ///
    /// # Errors
    /// When there is none; the text names the first thing that is missing and how to get it.
    pub fn require(&self) -> Result<HookSet, Unsupported> {
        if let Some(set) = self.hook_set {
            return Ok(set);
        }
        let missing = self.checks.iter().find_map(|check| match &check.outcome {
            Outcome::Missing(reason) => Some((check.name.clone(), reason.clone())),
            _ => None,
        });
        let (name, Reason { error, remedy }) = missing.unwrap_or_else(|| {
            (
                "kernel".to_owned(),
                Reason { error: "nothing could be tried".to_owned(), remedy: String::new() },
            )
        });
        Err(Unsupported { name, error, remedy })
    }
}

impl Check {
    fn new(name: impl Into<String>, outcome: Outcome) -> Self {
        Self { name: name.into(), outcome }
    }

    fn missing(name: impl Into<String>, error: impl fmt::Display, remedy: &str) -> Self {
        Self::new(name, Outcome::Missing(Reason { error: error.to_string(), remedy: remedy.to_owned() }))
    }

    fn limited(name: impl Into<String>, error: impl fmt::Display, remedy: &str) -> Self {
        Self::new(name, Outcome::Limited(Reason { error: error.to_string(), remedy: remedy.to_owned() }))
    }
}

const BTF: &str = "/sys/kernel/btf/vmlinux";
const BTF_REMEDY: &str = "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (the stock kernels of Debian 12 and Ubuntu 22.04 are), and mount /sys";
const TRACEPOINT_REMEDY: &str = "use kernel 6.3 or newer, which has it";

fn kernel_checks(capabilities: &Capabilities) -> Vec<Check> {
    let mut checks = vec![ring_buffer(capabilities)];
    // Opened first: the parser's own error does not say which of its steps failed.
    let btf = std::fs::File::open(BTF)
        .map_err(|error| format!("failed to open `{BTF}`: {error}"))
        .and_then(|_| Btf::from_sys_fs().map_err(|error| format!("failed to read `{BTF}`: {error}")));
    let btf = match btf {
        Ok(btf) => btf,
        Err(error) => {
            checks.push(Check::missing("kernel type information (BTF)", error, BTF_REMEDY));
            return checks;
        }
    };
    checks.push(Check::new("kernel type information (BTF)", Outcome::Available));
    let mut loadable = None;
    for name in REQUIRED {
        let found = tracepoint(&btf, name);
        loadable = loadable.or(found);
        checks.push(match found {
            Some(_) => Check::new(format!("tracepoint {name}"), Outcome::Available),
            None => Check::missing(
                format!("tracepoint {name}"),
                format!("type `btf_trace_{name}` is not in `{BTF}`"),
                TRACEPOINT_REMEDY,
            ),
        });
    }
    for (name, without) in OPTIONAL {
        checks.push(match tracepoint(&btf, name) {
            Some(_) => Check::new(format!("tracepoint {name}"), Outcome::Available),
            None => Check::limited(
                format!("tracepoint {name}"),
                format!("type `btf_trace_{name}` is not in `{BTF}`"),
                without,
            ),
        });
    }
    if let Some(tracepoint) = loadable {
        checks.push(program(tracepoint, capabilities));
    }
    checks
}

/// Type of a tracepoint's signature: the kernel has the tracepoint exactly if it has the type.
fn tracepoint(btf: &Btf, name: &str) -> Option<u32> {
    btf.id_by_type_name_kind(&format!("btf_trace_{name}"), BtfKind::Typedef).ok()
}

fn ring_buffer(capabilities: &Capabilities) -> Check {
    const NAME: &str = "ring buffer";
    match create::ring(u32::try_from(rustix::param::page_size()).unwrap_or(4096)) {
        Ok(_) => Check::new(NAME, Outcome::Available),
        Err(error) => {
            Check::missing(NAME, format!("failed to create a map: {error}"), remedy(&error, capabilities))
        }
    }
}

fn program(tracepoint: u32, capabilities: &Capabilities) -> Check {
    const NAME: &str = "kernel program";
    match create::program(Kind::BtfTracepoint(tracepoint)) {
        Ok(_) => Check::new(NAME, Outcome::Available),
        Err(error) => Check::missing(
            NAME,
            format!("failed to load a tracepoint program: {error}"),
            remedy(&error, capabilities),
        ),
    }
}

/// What to do about an error of `bpf(2)`.
fn remedy(error: &std::io::Error, capabilities: &Capabilities) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if capabilities.can_load() => {
            "a security policy forbids it: in a container, run privileged or allow bpf(2) in the seccomp profile; \
             elsewhere look at the kernel's lockdown mode and at AppArmor or SELinux"
        }
        Some(libc::EPERM | libc::EACCES) => capability::REMEDY,
        Some(libc::ENOSYS) => "use a kernel built with CONFIG_BPF_SYSCALL=y",
        Some(libc::ENOMEM) => "raise the memory limit of the control group",
        _ => "use a newer kernel (6.3 or later), not in lockdown mode `confidentiality`",
    }
}

#[cfg(test)]
mod tests;
