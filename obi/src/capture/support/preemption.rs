//! Whether this kernel takes the processor away from a thread in the middle of a BPF program.
//!
//! In: the kernel's types, its scheduler's file in debugfs, its command line, its build configuration. Out: whose
//! programs. The kernel skips a BPF program of kind tracing that is already running on the processor; under preemption
//! that happens not only to programs that interrupt themselves, but to every thread that comes by meanwhile.
#![forbid(unsafe_code)]

use std::io::Read as _;
use std::path::Path;

use flate2::read::GzDecoder;

use crate::capture::hook_set::{HookSet, Preemption};
use crate::capture::kernel_types::KernelTypes;
use crate::capture::tracefs::debugfs_file;

/// Bytes of a build configuration, which has some 300,000.
const CONFIGURATION_LIMIT: u64 = 4 << 20;

/// What can be found out, each from another source: a locked-down kernel hides some of them.
#[derive(Debug, Default)]
struct Facts {
    /// It was built to be preemptible (`kernel/sched/core.c` has `preempt_schedule`).
    built_in: bool,
    /// It can choose when it boots (`CONFIG_PREEMPT_DYNAMIC`).
    dynamic: bool,
    /// `sched/preempt` of debugfs: all models, the one in force in parentheses.
    scheduler: Option<String>,
    /// `/proc/cmdline`.
    command_line: Option<String>,
    /// `CONFIG_…=y` by line.
    configuration: Option<String>,
}

/// What a kernel that preempts itself does to the programs of a set.
///
/// Trampolines only keep a program on its processor (`__bpf_prog_enter_recur()`). The caller of a tracepoint holds
/// preemption off, until 7.0, which protects the callers by an SRCU of their own instead. So do system calls, until
/// their tracepoints may fault (`trace_call_bpf_faultable()`). Kprobes run with preemption off everywhere.
pub(super) fn of(set: HookSet, types: &KernelTypes) -> Preemption {
    // The variable without the structure is that of kernels before 6.13, for calls from idle processors.
    let by_srcu = || types.has_variable("tracepoint_srcu_srcu_data") && types.has_structure("tracepoint_ext");
    let is_preempted = match set {
        HookSet::Socket => by_srcu(),
        HookSet::Fentry => true,
        HookSet::Kprobe => false,
        HookSet::Syscall => types.function("trace_call_bpf_faultable").is_some(),
    };
    if is_preempted { Preemption::Programs } else { Preemption::Kernel }
}

/// Whether this kernel, the running one, preempts itself.
pub(super) fn preempts(types: &KernelTypes) -> bool {
    let built_in = types.function("preempt_schedule").is_some();
    let dynamic = types.function("sched_dynamic_mode").is_some();
    let mut facts = Facts { built_in, dynamic, ..Facts::default() };
    if built_in && dynamic {
        facts.scheduler = debugfs_file("sched/preempt").ok();
        facts.command_line = std::fs::read_to_string("/proc/cmdline").ok();
        facts.configuration = configuration();
    }
    facts.preempts()
}

impl Facts {
    /// What is unknown counts as yes: the cost is a dearer hook set, not lost exchanges.
    fn preempts(&self) -> bool {
        if !self.built_in || !self.dynamic {
            return self.built_in;
        }
        let model = self.in_force().or_else(|| self.asked_for()).or_else(|| self.built_for());
        !matches!(model, Some("none" | "voluntary"))
    }

    fn in_force(&self) -> Option<&str> {
        let (_, rest) = self.scheduler.as_deref()?.split_once('(')?;
        rest.split_once(')').map(|(model, _)| model)
    }

    /// The last one wins, as in the kernel.
    fn asked_for(&self) -> Option<&str> {
        let words = self.command_line.as_deref()?.split_ascii_whitespace();
        words.filter_map(|word| word.strip_prefix("preempt=")).next_back()
    }

    fn built_for(&self) -> Option<&'static str> {
        const MODELS: [(&str, &str); 4] = [
            ("CONFIG_PREEMPT_NONE=y", "none"),
            ("CONFIG_PREEMPT_VOLUNTARY=y", "voluntary"),
            ("CONFIG_PREEMPT_LAZY=y", "lazy"),
            ("CONFIG_PREEMPT=y", "full"),
        ];
        let configuration = self.configuration.as_deref()?;
        let is_set = |(line, _): &&(&str, _)| configuration.lines().any(|found| found == *line);
        MODELS.iter().find(is_set).map(|(_, model)| *model)
    }
}

/// Of the running kernel, where it or its package keeps it.
fn configuration() -> Option<String> {
    let release = rustix::system::uname().release().to_str().ok()?.to_owned();
    let packed = std::fs::File::open("/proc/config.gz").map(GzDecoder::new);
    let files = [format!("/boot/config-{release}"), format!("/lib/modules/{release}/config")];
    packed
        .ok()
        .and_then(text)
        .or_else(|| files.iter().find_map(|path| text(std::fs::File::open(Path::new(path)).ok()?)))
}

fn text(source: impl std::io::Read) -> Option<String> {
    let mut text = String::new();
    source.take(CONFIGURATION_LIMIT).read_to_string(&mut text).ok()?;
    Some(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_closest_to_the_truth_decides() {
        let check = |sources: [&str; 3], expected: bool| {
            let [scheduler, command_line, configuration] =
                sources.map(|text| (!text.is_empty()).then(|| text.to_owned()));
            let facts = Facts { built_in: true, dynamic: true, scheduler, command_line, configuration };
            assert_eq!(facts.preempts(), expected, "{facts:?}");
        };
        let (voluntary, lazy) = ("CONFIG_X=m\nCONFIG_PREEMPT_VOLUNTARY=y\n", "CONFIG_PREEMPT_LAZY=y\n");
        check(["none (voluntary) full \n", "", ""], false);
        check(["(none) voluntary full \n", "preempt=full", lazy], false);
        check(["full (lazy) \n", "", voluntary], true);
        check(["none voluntary (full) \n", "", ""], true);
        check(["", "quiet preempt=full", voluntary], true);
        check(["", "preempt=full preempt=none quiet", lazy], false);
        check(["", "quiet", voluntary], false);
        check(["", "quiet", lazy], true);
        check(["", "", "CONFIG_PREEMPT=y"], true);
        check(["", "", "# CONFIG_PREEMPT_NONE is not set\nCONFIG_PREEMPT_NONE_X=y"], true);
        // Nothing says it.
        check(["", "", ""], true);
        check(["no parentheses", "preempt", ""], true);
    }

    #[test]
    fn what_is_built_in_needs_no_source() {
        let check = |built_in, expected| {
            assert_eq!(Facts { built_in, ..Facts::default() }.preempts(), expected);
        };
        check(false, false);
        check(true, true);
    }
}
