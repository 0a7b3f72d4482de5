//! What one hook set needs beyond what all need: its places in the kernel, and the mechanism to get there.
//!
//! In: the running kernel, a set. Out: [`Check`]s. Whatever is attached here is an empty program, for a moment.
#![forbid(unsafe_code)]

use std::io;
use std::os::fd::AsFd as _;

use super::Check;
use super::requirement::{Refusal, try_load, try_tracing};
use crate::capture::bpf::attach;
use crate::capture::bpf::create::Kind;
use crate::capture::hook_set::{HookSet, Preemption};
use crate::capture::kernel_types::KernelTypes;
use crate::capture::program::table::{Entry, Hook, Need, own};
use crate::capture::tracefs::Tracefs;

/// Rarely called, and there is harm in none of these: where mechanisms are tried.
const QUIET_FUNCTION: &str = "unix_release";
const QUIET_SYSCALL: &str = "sys_exit_sendfile64";

pub(super) fn checks(set: HookSet, types: &KernelTypes, preemption: Preemption) -> Vec<Check> {
    let tracefs = (set == HookSet::Syscall).then(Tracefs::open);
    let mut checks = Vec::new();
    if let Some(Err(error)) = &tracefs {
        checks.push(Check::missing(
            "tracing file system",
            error,
            "mount it (`mount -t tracefs tracefs /sys/kernel/tracing`) and run with CAP_DAC_READ_SEARCH, since it is \
             open to root only; or add CAP_SYS_ADMIN, which mounts it for the agent alone",
        ));
        return checks;
    }
    let tracefs = tracefs.and_then(Result::ok);
    checks.extend(places(set, own(set, preemption), types, tracefs.as_ref()));
    match set {
        HookSet::Socket => {}
        HookSet::Fentry => checks.push(trampolines(types)),
        HookSet::Kprobe => checks.push(breakpoints()),
        HookSet::Syscall => checks.extend(tracefs.as_ref().map(tracepoints)),
    }
    checks
}

/// Whether the kernel has the functions and tracepoints.
fn places(
    set: HookSet,
    entries: impl Iterator<Item = Entry>,
    types: &KernelTypes,
    tracefs: Option<&Tracefs>,
) -> Vec<Check> {
    let mut checks = Vec::new();
    let (mut n_found, mut n) = (0, 0);
    for Entry { hook, need, .. } in entries {
        let target = hook.target();
        n += 1;
        match (find(hook, types, tracefs), need) {
            (Ok(()), _) => n_found += 1,
            (Err(error), Need::Required) => checks.push(Check::missing(target, error, newer(set))),
            (Err(error), _) => checks.push(Check::limited(target, error, without(target))),
        }
    }
    checks.insert(0, Check::available(format!("{n_found} of {n} places in the kernel")));
    checks
}

fn find(hook: Hook, types: &KernelTypes, tracefs: Option<&Tracefs>) -> Result<(), String> {
    let absent = |what: String| Err(format!("{what} is not in `{}`", types.path.display()));
    match hook {
        Hook::BtfTracepoint(name) if types.tracepoint(name).is_none() => {
            absent(format!("type `btf_trace_{name}`"))
        }
        Hook::FunctionEntry(name) | Hook::FunctionExit(name) | Hook::Kprobe(name) | Hook::Kretprobe(name)
            if types.function(name).is_none() =>
        {
            absent(format!("function `{name}`"))
        }
        Hook::SyscallTracepoint(name) => number(tracefs.map(|tracefs| tracefs.syscall(name))),
        Hook::RawSyscallTracepoint(name) => number(tracefs.map(|tracefs| tracefs.raw_syscall(name))),
        _ => Ok(()),
    }
}

fn number(looked_up: Option<io::Result<u64>>) -> Result<(), String> {
    match looked_up {
        Some(Err(error)) => Err(error.to_string()),
        _ => Ok(()),
    }
}

fn newer(set: HookSet) -> &'static str {
    match set {
        HookSet::Socket => "use kernel 6.3 or newer, which has it, or another hook set",
        HookSet::Fentry | HookSet::Kprobe => "use another hook set",
        HookSet::Syscall => "use a kernel built with CONFIG_FTRACE_SYSCALLS=y, or another hook set",
    }
}

/// What an optional place is for.
fn without(target: &str) -> &'static str {
    match target {
        "tcp_sendmsg_locked" => {
            "sends are found from the system call instead; those of io_uring are counted as lost"
        }
        "tcp_rcv_space_adjust" => "exchanges whose bytes leave a socket by splice are counted as lost",
        "tcp_bpf_sendmsg" | "tcp_bpf_recvmsg" => {
            "the kernel has no sockmaps that could hide a socket: nothing is missed"
        }
        "tcp_sendpage" | "unix_stream_sendpage" => {
            "the kernel sends files as messages (6.5): nothing is missed"
        }
        "unix_stream_splice_read" | "unix_stream_splice_actor" => "splice out of a unix socket is not seen",
        _ => "the kernel has no such system call: nothing is missed",
    }
}

/// Debian and Ubuntu set 3 and 4, and let `CAP_PERFMON` do nothing about it.
const FORBIDDEN_EVENTS: &str = "where `kernel.perf_event_paranoid` is above 2, performance events are open to \
                                CAP_SYS_ADMIN only: add it, or `sysctl kernel.perf_event_paranoid=2`, or use another \
                                hook set";
const FORBIDDEN: &str = "this kernel or a security policy forbids it: look at lockdown mode, AppArmor, SELinux and \
                         seccomp, or use another hook set";

const TRAMPOLINES: &str = "trampolines (fentry, fexit)";

fn trampolines(types: &KernelTypes) -> Check {
    const REMEDY: &str = "use a kernel built with CONFIG_FUNCTION_TRACER=y and CONFIG_DYNAMIC_FTRACE_WITH_DIRECT_CALLS=y \
                          (x86-64 from 5.5, arm64 from 6.4), or another hook set";
    let Some(function) = types.function(QUIET_FUNCTION) else {
        return Check::missing(
            TRAMPOLINES,
            format!("there is no function `{QUIET_FUNCTION}` to try it on"),
            REMEDY,
        );
    };
    let tried =
        try_tracing(Kind::FunctionEntry(function)).and_then(|()| try_tracing(Kind::FunctionExit(function)));
    outcome(TRAMPOLINES, QUIET_FUNCTION, tried, REMEDY)
}

fn breakpoints() -> Check {
    const NAME: &str = "breakpoints (kprobe, kretprobe)";
    const REMEDY: &str = "use a kernel built with CONFIG_KPROBE_EVENTS=y and mount /sys, or another hook set";
    let attach = |at_return| {
        let program = try_load(Kind::Kprobe)?;
        let attached = attach::kprobe(program.as_fd(), QUIET_FUNCTION, at_return);
        attached.map(drop).map_err(|error| Refusal { step: "attach a small program", error })
    };
    outcome(NAME, QUIET_FUNCTION, attach(false).and_then(|()| attach(true)), REMEDY)
}

fn tracepoints(tracefs: &Tracefs) -> Check {
    const NAME: &str = "programs at system calls";
    let attach = |program: std::os::fd::OwnedFd| -> io::Result<()> {
        attach::tracepoint(program.as_fd(), tracefs.syscall(QUIET_SYSCALL)?).map(drop)
    };
    let tried = try_load(Kind::Tracepoint).and_then(|program| {
        attach(program).map_err(|error| Refusal { step: "attach a small program", error })
    });
    outcome(
        NAME,
        QUIET_SYSCALL,
        tried,
        "use a kernel built with CONFIG_FTRACE_SYSCALLS=y, or another hook set",
    )
}

fn outcome(name: &str, place: &str, tried: Result<(), Refusal>, remedy: &str) -> Check {
    match tried {
        Ok(()) => Check::available(name),
        Err(Refusal { step, error }) => {
            let remedy = match error.kind() {
                io::ErrorKind::PermissionDenied if name != TRAMPOLINES && is_open_to_admin_only() => {
                    FORBIDDEN_EVENTS
                }
                io::ErrorKind::PermissionDenied => FORBIDDEN,
                _ => remedy,
            };
            Check::missing(name, format!("failed to {step} (`{place}`): {error}"), remedy)
        }
    }
}

/// Whether opening performance events can fail for a setting that only some distributions know.
fn is_open_to_admin_only() -> bool {
    let setting = std::fs::read_to_string("/proc/sys/kernel/perf_event_paranoid").unwrap_or_default();
    setting.trim().parse().is_ok_and(|level: i32| level > 2)
}
