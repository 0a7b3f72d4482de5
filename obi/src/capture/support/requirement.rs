//! What every hook set needs of the kernel: a ring buffer, type information, programs at tracepoints.
//!
//! In: the running kernel. Out: [`Check`]s. What is created here goes at once.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd as _;

use super::{Capabilities, Check, capability};
use crate::capture::bpf::create::{self, Kind};
use crate::capture::bpf::{attach, info, uprobe};
use crate::capture::kernel_types::{KernelTypes, KernelTypesError};
use crate::capture::program::table::{Entry, LIFE};

const BTF: &str = "kernel type information (BTF)";
const BTF_REMEDY: &str = "use a kernel built with CONFIG_DEBUG_INFO_BTF=y (the stock kernels of Debian 11 and Ubuntu \
                          20.10 and everything newer are) and mount /sys, or name a file that fits this kernel in \
                          capture.btf; no hook set works without";

pub(super) fn checks(
    types: Result<&KernelTypes, &KernelTypesError>,
    capabilities: Capabilities,
) -> Vec<Check> {
    let mut checks = vec![ring_buffer(capabilities)];
    match types {
        Ok(types) => {
            checks.push(Check::available(BTF));
            checks.push(tracepoint_program(types, capabilities));
        }
        Err(error) => checks.push(Check::missing(BTF, error, BTF_REMEDY)),
    }
    checks.push(tls_probes());
    checks
}

fn ring_buffer(capabilities: Capabilities) -> Check {
    const NAME: &str = "ring buffer";
    match create::ring(u32::try_from(rustix::param::page_size()).unwrap_or(4096)) {
        Ok(_) => Check::available(NAME),
        Err(error) => {
            Check::missing(NAME, format!("failed to create a map: {error}"), remedy(&error, capabilities))
        }
    }
}

/// Programs in TLS libraries go to many places by one link.
fn tls_probes() -> Check {
    const NAME: &str = "many probes by one link (uprobe.multi)";
    if uprobe::is_multi_supported() {
        return Check::available(NAME);
    }
    Check::limited(
        NAME,
        "this kernel does not know it",
        "mode `events`: each probe in a TLS library is a performance event, 512 at most, and takes a while to end; \
         CAP_PERFMON is kept for those of libraries that come later, and where `kernel.perf_event_paranoid` is above 2, only \
         libraries in use at the start are probed; use kernel 6.6 or newer",
    )
}

/// Every set follows processes and connections at these; one is loaded and attached for a moment.
fn tracepoint_program(types: &KernelTypes, capabilities: Capabilities) -> Check {
    const NAME: &str = "programs at tracepoints";
    let mut first = None;
    for Entry { name, .. } in LIFE {
        let Some(signature) = types.tracepoint(name) else {
            let error = format!("type `btf_trace_{name}` is not in `{}`", types.path.display());
            return Check::missing(NAME, error, "use a kernel with tracepoints (CONFIG_TRACEPOINTS=y)");
        };
        first = first.or(Some(signature));
    }
    let tried = first.map_or(Ok(()), |signature| try_tracing(Kind::BtfTracepoint(signature)));
    match tried {
        Ok(()) => Check::available(NAME),
        Err(Refusal { step, error }) => {
            Check::missing(NAME, format!("failed to {step}: {error}"), remedy(&error, capabilities))
        }
    }
}

/// What was tried and how the kernel refused it.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) step: &'static str,
    pub(super) error: io::Error,
}

/// Loads a small program and attaches it for a moment; asks the kernel about it, as the agent does.
pub(super) fn try_tracing(kind: Kind) -> Result<(), Refusal> {
    let program = try_load(kind)?;
    attach::tracing(program.as_fd()).map_err(|error| Refusal { step: "attach a small program", error })?;
    info::program(program.as_fd()).map_err(|error| Refusal { step: "ask about a program", error })?;
    Ok(())
}

pub(super) fn try_load(kind: Kind) -> Result<std::os::fd::OwnedFd, Refusal> {
    create::program(kind).map_err(|error| Refusal { step: "load a small program", error })
}

/// What to do about an error of `bpf(2)`.
pub(super) fn remedy(error: &io::Error, capabilities: Capabilities) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) if capabilities.can_load() => {
            "a security policy forbids it: in a container, run privileged or allow bpf(2) in the seccomp profile; \
             elsewhere look at the kernel's lockdown mode and at AppArmor or SELinux"
        }
        Some(libc::EPERM | libc::EACCES) => capability::REMEDY,
        Some(libc::ENOSYS) => "use a kernel built with CONFIG_BPF_SYSCALL=y",
        Some(libc::ENOMEM) => "raise the memory limit of the control group",
        _ => "use a newer kernel (5.10 or later), not in lockdown mode `confidentiality`",
    }
}
