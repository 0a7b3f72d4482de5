//! Which kernel programs each hook set has, and how far it depends on them.
//!
//! In: a [`HookSet`], what the kernel preempts. Out: its programs. Refuses to know how one is loaded.
#![forbid(unsafe_code)]

use obi_ebpf::{Flavour, WANT_SEND_MESSAGES};

use crate::capture::hook_set::{HookSet, Preemption};

/// One kernel program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Its name in the object, and in metrics.
    pub name: &'static str,
    /// What it is attached to.
    pub hook: Hook,
    /// Whether the set can do without.
    pub need: Need,
}

/// A place in the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hook {
    /// A tracepoint with type information.
    BtfTracepoint(&'static str),
    /// A trampoline at a function's entry.
    FunctionEntry(&'static str),
    /// A trampoline at a function's exit.
    FunctionExit(&'static str),
    /// A breakpoint at a function's entry.
    Kprobe(&'static str),
    /// A breakpoint at a function's return.
    Kretprobe(&'static str),
    /// A tracepoint of the category `syscalls`: one system call's.
    SyscallTracepoint(&'static str),
    /// A tracepoint of the category `raw_syscalls`, every system call's, as a performance event: its programs are never
    /// preempted.
    RawSyscallTracepoint(&'static str),
}

/// Whether a set can do without a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// It cannot.
    Required,
    /// It can: the kernel may lack the place, and what is missed without it is known.
    Optional,
    /// As `Optional`, and loaded only where the kernel can preempt the set's programs: of several instances at one
    /// place each does what others, which were skipped, have not done.
    Again,
    /// As `Again`, the last to come by: nothing else shows what it was skipped for, as all before it were too.
    Last,
    /// As `Optional`, and attached only when the kernel side first asks for it (`enum wanted`).
    Wanted(u32),
}

impl Hook {
    /// Name of the function or tracepoint.
    #[must_use]
    pub fn target(self) -> &'static str {
        match self {
            Self::BtfTracepoint(target)
            | Self::FunctionEntry(target)
            | Self::FunctionExit(target)
            | Self::Kprobe(target)
            | Self::Kretprobe(target)
            | Self::SyscallTracepoint(target)
            | Self::RawSyscallTracepoint(target) => target,
        }
    }
}

impl Entry {
    /// A run that the kernel skipped goes unnoticed: of bytes on unix sockets, which carry no stream offsets. On TCP
    /// the next run finds the gap and counts the exchanges, so a skipped run must not count as well. Of several
    /// instances only the last counts: what all have missed may be all there was of a connection.
    #[must_use]
    pub fn is_silent_when_missed(self, attached: impl IntoIterator<Item = Self>) -> bool {
        let target = self.hook.target();
        let is_unix = target.starts_with("unix_stream_") || target == "skb_copy_datagram_from_iter";
        match self.need {
            Need::Last => true,
            Need::Again => false,
            _ => is_unix && !attached.into_iter().any(|other| other.hook == self.hook && other.is_again()),
        }
    }

    /// Exchanges can be missing when the kernel skipped a run: it sees bytes, and no other program does what it has not
    /// done.
    #[must_use]
    pub fn is_missed(self, attached: impl IntoIterator<Item = Self>) -> bool {
        let is_other = |it: &Self| it.name != self.name && it.hook.target() == self.hook.target();
        let has_others =
            || attached.into_iter().any(|it| is_other(&it) && (it.is_again() || self.is_again()));
        let is_life =
            LIFE.iter().chain(&WAITS).chain(&ACCEPTS).chain(&SCHEDULE).any(|it| it.name == self.name);
        self.need == Need::Last || !(is_life || has_others())
    }

    fn is_again(self) -> bool {
        matches!(self.need, Need::Again | Need::Last)
    }
}

/// The programs of a set, in the order in which they are attached.
pub fn programs(set: HookSet, preemption: Preemption) -> impl Iterator<Item = Entry> {
    LIFE.into_iter().chain(WAITS).chain(own(set, preemption))
}

/// What an object is to know of preemption: the portable one of `syscall` has only the usual programs. No kernel that
/// needs it preempts them (7.2 is the first); what 5.11 to 5.16 skip of them when they preempt themselves is missed.
#[must_use]
pub fn reported(set: HookSet, flavour: Flavour, preemption: Preemption) -> Preemption {
    match (set, flavour) {
        (HookSet::Syscall, Flavour::Portable) => Preemption::None,
        _ => preemption,
    }
}

/// The programs that a set has beyond [`LIFE`].
pub fn own(set: HookSet, preemption: Preemption) -> impl Iterator<Item = Entry> {
    let all: &[Entry] = match set {
        HookSet::Socket => &SOCKET,
        HookSet::Fentry => &FENTRY,
        HookSet::Kprobe => &KPROBE,
        HookSet::Syscall if preemption == Preemption::None => &SYSCALL,
        HookSet::Syscall => &SYSCALL_UNDER_PREEMPTION,
    };
    all.iter().copied().filter(move |entry| preemption == Preemption::Programs || !entry.is_again())
}

const fn required(name: &'static str, hook: Hook) -> Entry {
    Entry { name, hook, need: Need::Required }
}

const fn optional(name: &'static str, hook: Hook) -> Entry {
    Entry { name, hook, need: Need::Optional }
}

const fn tracepoint(name: &'static str) -> Entry {
    required(name, Hook::BtfTracepoint(name))
}

const fn again(name: &'static str, hook: Hook) -> Entry {
    Entry { name, hook, need: Need::Again }
}

const fn last(name: &'static str, hook: Hook) -> Entry {
    Entry { name, hook, need: Need::Last }
}

const fn entry(name: &'static str) -> Entry {
    required(name, Hook::FunctionEntry(name))
}

const fn kprobe(name: &'static str) -> Entry {
    required(name, Hook::Kprobe(name))
}

const fn syscall(name: &'static str) -> Entry {
    required(name, Hook::SyscallTracepoint(name))
}

/// Processes and connections come and go: every set needs to know.
pub const LIFE: [Entry; 5] = [
    tracepoint("sched_process_fork"),
    tracepoint("sched_process_exec"),
    tracepoint("sched_process_exit"),
    tracepoint("inet_sock_set_state"),
    tracepoint("tcp_destroy_sock"),
];

const fn wait(name: &'static str) -> Entry {
    optional(name, Hook::SyscallTracepoint(name))
}

/// Which threads wait for many things at once: without them, on a kernel that lacks one, who waits that way is taken
/// for a thread that waits for what it reads. Not every architecture has all of them, nor every kernel
/// (`epoll_pwait2`: 5.11).
pub const WAITS: [Entry; 8] = [
    wait("sys_enter_epoll_wait"),
    wait("sys_enter_epoll_pwait"),
    wait("sys_enter_epoll_pwait2"),
    wait("sys_enter_io_uring_enter"),
    wait("sys_enter_poll"),
    wait("sys_enter_ppoll"),
    wait("sys_enter_select"),
    wait("sys_enter_pselect6"),
];

/// Which connection a server's loop is about to make a task for: without them, calls of such tasks have no parents.
const ACCEPTS: [Entry; 3] =
    [wait("sys_exit_accept"), wait("sys_exit_accept4"), wait("sys_enter_getpeername")];

/// [`ACCEPTS`], where an object has them.
#[must_use]
pub fn accepts(flavour: Flavour) -> &'static [Entry] {
    match (flavour, cfg!(target_arch = "x86_64")) {
        (Flavour::Modern, true) => &ACCEPTS,
        _ => &[],
    }
}

/// The scheduler's hooks that book where the time of serving threads goes; without both, nothing is booked.
pub const SCHEDULE: [Entry; 2] = [
    optional("sched_switch", Hook::BtfTracepoint("sched_switch")),
    optional("sched_waking", Hook::BtfTracepoint("sched_waking")),
];

/// [`SCHEDULE`], where an object has them.
#[must_use]
pub fn schedule(flavour: Flavour) -> &'static [Entry] {
    match flavour {
        Flavour::Modern => &SCHEDULE,
        Flavour::Portable => &[],
    }
}

/// `tcp_rcv_space_adjust` shows splice from a socket: without it, from the start, bytes that passed would look like
/// bytes that never came. `tcp_sendmsg_locked` shows sends of io_uring: what is missed before it is attached counts
/// as lost, no more.
const SOCKET: [Entry; 8] = [
    tracepoint("sock_send_length"),
    tracepoint("sock_recv_length"),
    again("sock_send_length_2", Hook::BtfTracepoint("sock_send_length")),
    again("sock_recv_length_2", Hook::BtfTracepoint("sock_recv_length")),
    last("sock_send_length_3", Hook::BtfTracepoint("sock_send_length")),
    last("sock_recv_length_3", Hook::BtfTracepoint("sock_recv_length")),
    optional("tcp_rcv_space_adjust", Hook::BtfTracepoint("tcp_rcv_space_adjust")),
    Entry {
        name: "tcp_sendmsg_locked",
        hook: Hook::BtfTracepoint("tcp_sendmsg_locked"),
        need: Need::Wanted(WANT_SEND_MESSAGES),
    },
];

/// `tcp_bpf_*` serve sockets that are in a sockmap, `*_sendpage` serve sendfile before 6.5, `*_splice_*` splice from a
/// unix socket. Of the programs at one place the newest comes first (`bpf_trampoline_get_progs()`). That a beginning
/// was missed shows when the bytes move.
const FENTRY: [Entry; 29] = [
    last("release_sock_3", Hook::FunctionEntry("release_sock")),
    last("unix_stream_sendmsg_exit_3", Hook::FunctionExit("unix_stream_sendmsg")),
    last("unix_stream_recvmsg_exit_3", Hook::FunctionExit("unix_stream_recvmsg")),
    again("tcp_sendmsg_3", Hook::FunctionEntry("tcp_sendmsg")),
    again("tcp_recvmsg_3", Hook::FunctionEntry("tcp_recvmsg")),
    again("unix_stream_sendmsg_3", Hook::FunctionEntry("unix_stream_sendmsg")),
    again("unix_stream_recvmsg_3", Hook::FunctionEntry("unix_stream_recvmsg")),
    again("unix_release_3", Hook::FunctionEntry("unix_release")),
    again("tcp_sendmsg_2", Hook::FunctionEntry("tcp_sendmsg")),
    again("tcp_recvmsg_2", Hook::FunctionEntry("tcp_recvmsg")),
    again("release_sock_2", Hook::FunctionEntry("release_sock")),
    again("unix_stream_sendmsg_2", Hook::FunctionEntry("unix_stream_sendmsg")),
    again("unix_stream_recvmsg_2", Hook::FunctionEntry("unix_stream_recvmsg")),
    again("unix_release_2", Hook::FunctionEntry("unix_release")),
    again("unix_stream_sendmsg_exit_2", Hook::FunctionExit("unix_stream_sendmsg")),
    again("unix_stream_recvmsg_exit_2", Hook::FunctionExit("unix_stream_recvmsg")),
    entry("tcp_sendmsg"),
    entry("tcp_recvmsg"),
    entry("release_sock"),
    entry("unix_stream_sendmsg"),
    entry("unix_stream_recvmsg"),
    entry("unix_release"),
    required("unix_stream_sendmsg_exit", Hook::FunctionExit("unix_stream_sendmsg")),
    required("unix_stream_recvmsg_exit", Hook::FunctionExit("unix_stream_recvmsg")),
    optional("tcp_bpf_sendmsg", Hook::FunctionEntry("tcp_bpf_sendmsg")),
    optional("tcp_bpf_recvmsg", Hook::FunctionEntry("tcp_bpf_recvmsg")),
    optional("tcp_sendpage", Hook::FunctionEntry("tcp_sendpage")),
    optional("unix_stream_sendpage", Hook::FunctionExit("unix_stream_sendpage")),
    optional("unix_stream_splice_read", Hook::FunctionExit("unix_stream_splice_read")),
];

const KPROBE: [Entry; 14] = [
    kprobe("tcp_sendmsg"),
    kprobe("tcp_recvmsg"),
    kprobe("release_sock"),
    kprobe("unix_stream_sendmsg"),
    kprobe("unix_stream_recvmsg"),
    kprobe("unix_release"),
    kprobe("skb_copy_datagram_from_iter"),
    required("unix_stream_read_actor", Hook::Kretprobe("unix_stream_read_actor")),
    optional("tcp_bpf_sendmsg", Hook::Kprobe("tcp_bpf_sendmsg")),
    optional("tcp_bpf_recvmsg", Hook::Kprobe("tcp_bpf_recvmsg")),
    optional("tcp_sendpage", Hook::Kprobe("tcp_sendpage")),
    optional("unix_stream_sendpage", Hook::Kprobe("unix_stream_sendpage")),
    optional("unix_stream_splice_read", Hook::Kprobe("unix_stream_splice_read")),
    optional("unix_stream_splice_actor", Hook::Kretprobe("unix_stream_splice_actor")),
];

const SYSCALL: [Entry; 16] = [
    syscall("sys_exit_read"),
    syscall("sys_exit_readv"),
    syscall("sys_exit_recvfrom"),
    syscall("sys_exit_recvmsg"),
    syscall("sys_exit_recvmmsg"),
    syscall("sys_exit_write"),
    syscall("sys_exit_writev"),
    syscall("sys_exit_sendto"),
    syscall("sys_exit_sendmsg"),
    syscall("sys_exit_sendmmsg"),
    syscall("sys_exit_sendfile64"),
    syscall("sys_exit_splice"),
    syscall("sys_enter_close"),
    syscall("sys_enter_sendmmsg"),
    optional("sys_exit_preadv2", Hook::SyscallTracepoint("sys_exit_preadv2")),
    optional("sys_exit_pwritev2", Hook::SyscallTracepoint("sys_exit_pwritev2")),
];

/// In the place of [`SYSCALL`] where the kernel preempts itself: at every call of the machine, hence only there. The
/// ones that are attached first are called first.
const SYSCALL_UNDER_PREEMPTION: [Entry; 6] = [
    again("sys_exit_receive_event", Hook::RawSyscallTracepoint("sys_exit")),
    again("sys_exit_send_event", Hook::RawSyscallTracepoint("sys_exit")),
    again("sys_enter_event", Hook::RawSyscallTracepoint("sys_enter")),
    required("sys_exit_receive", Hook::BtfTracepoint("sys_exit")),
    required("sys_exit_send", Hook::BtfTracepoint("sys_exit")),
    tracepoint("sys_enter"),
];

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use aya_obj::ProgramSection;
    use obi_ebpf::OBJECTS;

    use super::*;
    use crate::capture::tls::program::{BYTES, Program};

    /// How an object says that a program belongs here.
    fn fits(hook: Hook, section: &ProgramSection) -> bool {
        match hook {
            Hook::BtfTracepoint(_) => matches!(section, ProgramSection::BtfTracePoint),
            Hook::FunctionEntry(_) => matches!(section, ProgramSection::FEntry { sleepable: false }),
            Hook::FunctionExit(_) => matches!(section, ProgramSection::FExit { sleepable: false }),
            Hook::Kprobe(_) => matches!(section, ProgramSection::KProbe),
            Hook::Kretprobe(_) => matches!(section, ProgramSection::KRetProbe),
            Hook::SyscallTracepoint(_) | Hook::RawSyscallTracepoint(_) => {
                matches!(section, ProgramSection::TracePoint)
            }
        }
    }

    /// `obi-ebpf/src/bpf/core/own_stack.h`: without a tail call the kernel gives them stacks that two runs may share.
    #[test]
    fn what_may_be_preempted_stays_on_its_own_stack() {
        /// `BPF_JMP | BPF_CALL` of `BPF_FUNC_tail_call`.
        const TAIL_CALL: (u8, u8, i32) = (0x85, 0, 12);
        for embedded in OBJECTS.iter().filter(|object| object.flavour == Flavour::Modern) {
            let name = embedded.set;
            let object = aya_obj::Object::parse(&embedded.elf()).unwrap();
            let preempted = object.programs.iter().filter(|(_, program)| {
                matches!(program.section, ProgramSection::UProbe { .. } | ProgramSection::TracePoint)
            });
            for (program, described) in preempted {
                let instructions = &object.functions[&described.function_key()].instructions;
                let has_one = instructions.iter().any(|it| (it.code, it.src_reg(), it.imm) == TAIL_CALL);
                assert!(has_one, "{name}: {program} has no tail call");
            }
        }
    }

    #[test]
    fn the_tables_and_the_objects_agree() {
        const BESIDE: [&str; 3] = ["profile", "faults", "waits"];
        for embedded in OBJECTS.iter().filter(|object| !BESIDE.contains(&object.set)) {
            let flavour = embedded.flavour;
            let set = HookSet::ALL.into_iter().find(|set| set.name() == embedded.set).unwrap();
            let object = aya_obj::Object::parse(&embedded.elf()).unwrap();
            let mut there: BTreeMap<&str, _> =
                object.programs.iter().map(|(name, program)| (name.as_str(), &program.section)).collect();
            let preemptions = [Preemption::None, Preemption::Kernel, Preemption::Programs];
            let known = preemptions.into_iter().filter(|it| *it == reported(set, flavour, *it));
            let entries = known.flat_map(|preemption| programs(set, preemption));
            let entries = entries.chain(accepts(flavour).iter().chain(schedule(flavour)).copied());
            let entries: BTreeMap<&str, Entry> = entries.map(|entry| (entry.name, entry)).collect();
            for entry in entries.values() {
                let section = there.remove(entry.name);
                assert!(
                    section.is_some_and(|section| fits(entry.hook, section)),
                    "{set}: {entry:?} {section:?}"
                );
            }
            let is_uprobe = |section| matches!(section, Some(&ProgramSection::UProbe { sleepable: false }));
            if flavour == Flavour::Modern {
                assert!(is_uprobe(there.remove(BYTES)), "{set}");
            }
            for program in Program::ALL {
                let section = there.remove(program.name());
                let is_absent = match flavour {
                    Flavour::Modern => program.place().is_some(),
                    Flavour::Portable => program.is_modern(),
                };
                if is_absent {
                    assert!(section.is_none(), "{set}: {program:?}");
                    continue;
                }
                assert!(is_uprobe(section), "{set}: {program:?}");
            }
            // Reached by tail call, attached nowhere.
            let walks =
                ["walk", "walk_frames", "walk_database", "tls_walk", "tls_walk_frames", "tls_walk_database"];
            for walk in walks {
                assert!(there.remove(walk).is_none() || flavour == Flavour::Portable, "{set}");
            }
            assert!(there.is_empty(), "{set}: not in the table: {there:?}");
        }
    }

    #[test]
    fn what_nothing_else_tells_of_is_silent() {
        let check = |set, preemption, expected: &[&str]| {
            let attached: Vec<Entry> = programs(set, preemption).collect();
            let silent =
                attached.iter().filter(|entry| entry.is_silent_when_missed(attached.iter().copied()));
            let names: Vec<_> = silent.map(|entry| entry.name).collect();
            assert_eq!(names, expected, "{set}, {preemption:?}");
        };
        check(HookSet::Socket, Preemption::None, &[]);
        check(HookSet::Socket, Preemption::Kernel, &[]);
        check(HookSet::Socket, Preemption::Programs, &["sock_send_length_3", "sock_recv_length_3"]);
        check(HookSet::Syscall, Preemption::Programs, &[]);
        let unix = [
            "unix_stream_sendmsg",
            "unix_stream_recvmsg",
            "unix_stream_sendmsg_exit",
            "unix_stream_recvmsg_exit",
            "unix_stream_sendpage",
            "unix_stream_splice_read",
        ];
        check(HookSet::Fentry, Preemption::None, &unix);
        let last = [
            "release_sock_3",
            "unix_stream_sendmsg_exit_3",
            "unix_stream_recvmsg_exit_3",
            "unix_stream_sendpage",
            "unix_stream_splice_read",
        ];
        check(HookSet::Fentry, Preemption::Programs, &last);
    }

    #[test]
    fn what_no_other_program_makes_good_is_missed() {
        let check = |set, preemption, expected: &[&str]| {
            let attached: Vec<Entry> = programs(set, preemption).collect();
            let missed = attached.iter().filter(|entry| entry.is_missed(attached.iter().copied()));
            let names: Vec<_> = missed.map(|entry| entry.name).collect();
            assert_eq!(names, expected, "{set}, {preemption:?}");
        };
        let names = |entries: &[Entry]| entries.iter().map(|entry| entry.name).collect::<Vec<_>>();
        check(HookSet::Kprobe, Preemption::None, &names(&KPROBE));
        check(HookSet::Kprobe, Preemption::Kernel, &names(&KPROBE));
        check(HookSet::Syscall, Preemption::None, &names(&SYSCALL));
        check(HookSet::Syscall, Preemption::Kernel, &["sys_exit_receive", "sys_exit_send", "sys_enter"]);
        check(HookSet::Syscall, Preemption::Programs, &[]);
        let last = ["sock_send_length_3", "sock_recv_length_3"];
        let optional = ["tcp_rcv_space_adjust", "tcp_sendmsg_locked"];
        check(HookSet::Socket, Preemption::Programs, &[last, optional].concat());
    }

    #[test]
    fn names_are_unique_within_a_set() {
        let each = |set| [Preemption::None, Preemption::Kernel, Preemption::Programs].map(|it| (set, it));
        for (set, preemption) in HookSet::ALL.into_iter().flat_map(each) {
            let names: Vec<_> = programs(set, preemption).map(|entry| entry.name).collect();
            let unique: HashSet<_> = names.iter().collect();
            assert_eq!(unique.len(), names.len(), "{set}: {names:?}");
            assert!(own(set, preemption).any(|entry| entry.need == Need::Required), "{set}");
        }
    }
}
