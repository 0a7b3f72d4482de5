//! Every kernel program of ours: which objects there are, what each program attaches to, which ones may be absent.
//!
//! In: the embedded objects. Out: their programs by name, kind and target. Refuses to load anything.

use std::fmt;

use anyhow::{Context as _, bail};
use object::{Object as _, ObjectSection as _};

use super::architecture::Architecture;

/// One embedded object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Embedded {
    /// Its hook set, or [`PROFILE`].
    pub set: &'static str,
    /// For which kernels it is built.
    pub flavour: Flavour,
    /// ELF.
    pub bytes: Vec<u8>,
}

/// For which kernels an object is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Flavour {
    /// From 5.17 on.
    Modern,
    /// From 5.10 on.
    Portable,
}

/// All hook sets, cheapest first.
pub const SETS: [&str; 4] = ["socket", "fentry", "kprobe", "syscall"];

/// What samples stacks, beside any hook set.
pub const PROFILE: &str = "profile";

/// Programs that a hook set can do without, where the kernel has not what they attach to.
const OPTIONAL: [(&str, &str); 23] = [
    ("socket", "sock_send_length_2"),
    ("socket", "sock_recv_length_2"),
    ("socket", "sock_send_length_3"),
    ("socket", "sock_recv_length_3"),
    ("socket", "tcp_rcv_space_adjust"),
    ("socket", "tcp_sendmsg_locked"),
    ("fentry", "tcp_bpf_sendmsg"),
    ("fentry", "tcp_bpf_recvmsg"),
    ("fentry", "tcp_sendpage"),
    ("kprobe", "tcp_bpf_sendmsg"),
    ("kprobe", "tcp_bpf_recvmsg"),
    ("kprobe", "tcp_sendpage"),
    ("fentry", "unix_stream_sendpage"),
    ("fentry", "unix_stream_splice_read"),
    ("kprobe", "unix_stream_sendpage"),
    ("kprobe", "unix_stream_splice_read"),
    ("kprobe", "unix_stream_splice_actor"),
    ("syscall", "sys_exit_preadv2"),
    ("syscall", "sys_exit_pwritev2"),
    // The system call came with 5.11.
    ("socket", "sys_enter_epoll_pwait2"),
    ("fentry", "sys_enter_epoll_pwait2"),
    ("kprobe", "sys_enter_epoll_pwait2"),
    ("syscall", "sys_enter_epoll_pwait2"),
];

/// Programs at system calls that newer architectures do not have: others are called in their place.
const ONLY_ON_AMD64: [&str; 3] = ["sys_enter_epoll_wait", "sys_enter_poll", "sys_enter_select"];

/// Whether hook set `set` can do without `program` on kernels for `architecture`.
#[must_use]
pub fn is_optional(set: &str, program: &str, architecture: Architecture) -> bool {
    OPTIONAL.contains(&(set, program))
        || architecture != Architecture::Amd64 && ONLY_ON_AMD64.contains(&program)
}

/// All embedded objects.
#[must_use]
pub fn embedded() -> Vec<Embedded> {
    let flavour = |of| match of {
        obi_ebpf::Flavour::Modern => Flavour::Modern,
        obi_ebpf::Flavour::Portable => Flavour::Portable,
    };
    let objects = obi_ebpf::OBJECTS.iter();
    objects
        .map(|object| Embedded { set: object.set, flavour: flavour(object.flavour), bytes: object.elf() })
        .collect()
}

impl Flavour {
    /// As in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Modern => "modern",
            Self::Portable => "portable",
        }
    }

    /// The flavour of this name.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        [Self::Modern, Self::Portable].into_iter().find(|flavour| flavour.name() == name)
    }
}

impl fmt::Display for Flavour {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// How a program is attached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A tracepoint with type information.
    TypedTracepoint,
    /// The entry of a kernel function, by trampoline.
    Entry,
    /// Its return, likewise.
    Exit,
    /// A breakpoint on a kernel function or its return.
    Probe,
    /// A breakpoint in a program's own code.
    UserProbe,
    /// A plain tracepoint.
    Tracepoint,
    /// A performance event.
    PerformanceEvent,
}

/// What a program attaches to, from its section's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attachment {
    /// How.
    pub kind: Kind,
    /// To what: a function, or a tracepoint (`category/name` for plain ones).
    pub target: String,
}

impl Attachment {
    /// Reads a section name such as `fentry/tcp_sendmsg`; those of programs at user code and at performance events name
    /// no target.
    #[must_use]
    pub fn parse(section: &str) -> Option<Self> {
        let (kind, target) = section.split_once('/').unwrap_or((section, ""));
        let kind = match kind {
            "tp_btf" => Kind::TypedTracepoint,
            "fentry" => Kind::Entry,
            "fexit" => Kind::Exit,
            "kprobe" | "kretprobe" => Kind::Probe,
            "uprobe" => return Some(Self { kind: Kind::UserProbe, target: String::new() }),
            "perf_event" => return Some(Self { kind: Kind::PerformanceEvent, target: String::new() }),
            "tracepoint" => Kind::Tracepoint,
            _ => return None,
        };
        if target.is_empty() {
            return None;
        }
        Some(Self { kind, target: target.to_owned() })
    }
}

impl Embedded {
    /// As in reports.
    #[must_use]
    pub fn name(&self) -> String {
        format!("{}/{}", self.set, self.flavour)
    }

    /// What the programs in section `index` attach to.
    ///
    /// # Errors
    /// When the section is not there or its name says nothing.
    pub fn attachment(&self, index: usize) -> anyhow::Result<Attachment> {
        let file = object::File::parse(&*self.bytes).with_context(|| format!("parse {}", self.name()))?;
        let section = file.section_by_index(object::SectionIndex(index))?;
        let name = section.name()?;
        match Attachment::parse(name) {
            Some(attachment) => Ok(attachment),
            None => bail!("{} has programs in section {name}, which attach to nothing known", self.name()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_section_says_what_its_programs_attach_to() {
        let check = |section: &str, expected: Option<(Kind, &str)>| {
            let expected = expected.map(|(kind, target)| Attachment { kind, target: target.to_owned() });
            assert_eq!(Attachment::parse(section), expected, "{section}");
        };
        check("tp_btf/sched_process_exit", Some((Kind::TypedTracepoint, "sched_process_exit")));
        check("fentry/tcp_sendmsg", Some((Kind::Entry, "tcp_sendmsg")));
        check("fexit/unix_stream_sendmsg", Some((Kind::Exit, "unix_stream_sendmsg")));
        check("kretprobe/unix_stream_read_actor", Some((Kind::Probe, "unix_stream_read_actor")));
        check("uprobe", Some((Kind::UserProbe, "")));
        check("perf_event", Some((Kind::PerformanceEvent, "")));
        check("tracepoint/syscalls/sys_exit_read", Some((Kind::Tracepoint, "syscalls/sys_exit_read")));
        check(".text", None);
        check("xdp", None);
    }

    #[test]
    fn every_program_attaches_to_something() {
        for embedded in embedded() {
            let parsed = aya_obj::Object::parse(&embedded.bytes).unwrap();
            let least = if SETS.contains(&embedded.set) { 6 } else { 1 };
            assert!(parsed.programs.len() >= least, "{} has programs", embedded.name());
            for program in parsed.programs.values() {
                embedded.attachment(program.section_index).unwrap();
            }
        }
    }

    #[test]
    fn optional_programs_exist() {
        for embedded in embedded() {
            let parsed = aya_obj::Object::parse(&embedded.bytes).unwrap();
            for (set, program) in OPTIONAL {
                let is_there = set != embedded.set || parsed.programs.contains_key(program);
                assert!(is_there, "{} has no program {program}", embedded.name());
            }
        }
    }
}
