//! What a hook set does not see, although it works.
//!
//! In: a set, the kernel's types, what the kernel preempts. Out: [`BlindSpot`]s. Those that hide whole programs, or
//! something of every program, decide which set is used.
#![forbid(unsafe_code)]

use serde::Serialize;

use crate::capture::hook_set::{HookSet, Preemption};
use crate::capture::kernel_types::KernelTypes;

/// A kind of traffic that a set does not see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum BlindSpot {
    /// Requests or responses that a program receives through `io_uring`.
    IoUringReceives,
    /// Requests or responses that a program sends through `io_uring`.
    IoUringSends,
    /// System calls of 32-bit programs on a 64-bit kernel.
    ForeignPrograms,
    /// Bytes that leave a TCP socket by `splice`.
    TcpSplice,
    /// Bytes that leave a unix socket by `splice`.
    UnixSplice,
    /// Sockets of Multipath TCP.
    MultipathTcp,
    /// What happens on a processor while one of the set's programs there is preempted: the kernel skips it then.
    Preemption,
    /// What happens on a processor while a call of bpf(2) on a map is preempted there: the kernel skips kprobes
    /// and performance events then.
    MapCalls,
    /// What lies behind some hundred messages or pieces of one system call: programs without loops go no further.
    LongCalls,
}

impl BlindSpot {
    /// It hides whole programs, or something of every program, not single connections: sets are chosen by it.
    #[must_use]
    pub fn decides(self) -> bool {
        matches!(self, Self::IoUringReceives | Self::IoUringSends | Self::ForeignPrograms | Self::Preemption)
    }

    /// In a user's words.
    #[must_use]
    pub fn what(self) -> &'static str {
        match self {
            Self::IoUringReceives => "receives by io_uring",
            Self::IoUringSends => "sends by io_uring",
            Self::ForeignPrograms => "32-bit programs",
            Self::TcpSplice => "splice out of a TCP socket",
            Self::UnixSplice => "splice out of a unix socket",
            Self::MultipathTcp => "Multipath TCP",
            Self::Preemption => "what happens while a kernel program is preempted",
            Self::MapCalls => "what happens while a call of bpf(2) on a map is preempted",
            Self::LongCalls => "what lies behind a hundred pieces of one system call",
        }
    }

    /// How it shows.
    #[must_use]
    pub fn consequence(self) -> &'static str {
        match self {
            Self::IoUringReceives | Self::IoUringSends => {
                "the bytes cannot be found from the system call; counted in obi_lost_total"
            }
            Self::ForeignPrograms => "the kernel hides their system calls; not counted",
            Self::TcpSplice => "counted in obi_lost_total as gaps",
            Self::UnixSplice => {
                "exchanges on such a connection can be lost, or end with a wrong body size; not counted"
            }
            Self::MultipathTcp => "such sockets use other functions of the kernel; not counted",
            Self::Preemption => {
                "this kernel preempts itself and skips programs then; counted in obi_bpf_program_misses_total, and \
                 in obi_lost_total"
            }
            Self::MapCalls => {
                "next to nothing, unless other software works BPF maps hard: the kernel skips programs then; counted in \
                 obi_bpf_program_misses_total, not always in obi_lost_total"
            }
            Self::LongCalls => {
                "before 5.17 programs have no loops that go further; counted in obi_lost_total as steps"
            }
        }
    }
}

/// What a set does not see on this kernel.
#[must_use]
pub fn blind_spots(set: HookSet, types: &KernelTypes, preemption: Preemption) -> Vec<BlindSpot> {
    let unless = |seen: bool, blind_spot: BlindSpot| (!seen).then_some(blind_spot);
    let found = match set {
        HookSet::Socket => vec![
            Some(BlindSpot::IoUringReceives),
            unless(types.tracepoint("tcp_sendmsg_locked").is_some(), BlindSpot::IoUringSends),
            unless(types.tracepoint("tcp_rcv_space_adjust").is_some(), BlindSpot::TcpSplice),
            Some(BlindSpot::UnixSplice),
        ],
        HookSet::Fentry | HookSet::Kprobe => vec![
            unless(types.function("unix_stream_splice_read").is_some(), BlindSpot::UnixSplice),
            unless(!types.has_structure("mptcp_sock"), BlindSpot::MultipathTcp),
        ],
        HookSet::Syscall => vec![
            Some(BlindSpot::IoUringReceives),
            Some(BlindSpot::IoUringSends),
            unless(!cfg!(target_pointer_width = "64"), BlindSpot::ForeignPrograms),
        ],
    };
    // `syscall` has other programs for such a kernel.
    let is_skipped = preemption == Preemption::Programs && set != HookSet::Syscall;
    let preempted = unless(!is_skipped, BlindSpot::Preemption);
    let has_loops = types.function("bpf_loop").is_some();
    // The portable object of `syscall` has only the usual programs.
    let is_event = set == HookSet::Kprobe || (set == HookSet::Syscall && !has_loops);
    let map_calls = unless(preemption == Preemption::None || !is_event, BlindSpot::MapCalls);
    let long_calls = unless(has_loops, BlindSpot::LongCalls);
    found.into_iter().chain([preempted, map_calls, long_calls]).flatten().collect()
}
