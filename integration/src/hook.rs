//! Hook sets, and what each of them cannot see.
//!
//! In: `OBI_HOOKS`. Out: the set that the agents of this run have to use, and what a test may expect of it: the
//! suite is the same for every set, expectations that differ are in one table here. Refuses to know how a set works.

use std::fmt;
use std::sync::OnceLock;

/// A set of kernel hooks by its name in the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HookSet {
    /// Socket tracepoints.
    Socket,
    /// Trampolines on functions.
    Fentry,
    /// Kernel probes on the same functions.
    Kprobe,
    /// Tracepoints of system calls.
    Syscall,
}

/// How a set sees on the kernel at hand.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct View {
    /// Which.
    pub set: HookSet,
    /// The agent says that the kernel skips its programs while one of them is preempted.
    pub is_preempted: bool,
    /// The agent says that it follows one system call only so far.
    pub has_short_walks: bool,
}

/// A way for bytes to pass that some set cannot follow.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Passage {
    /// By ordinary calls: every set sees them.
    Call,
    /// By ordinary calls over a unix socket, which has no stream offsets that would show unseen bytes.
    UnixCall,
    /// By ordinary calls over Multipath TCP, whose sockets show no stream offsets either.
    Multipath,
    /// Received and sent by io_uring, without a system call of their own.
    IoUring,
    /// `splice` out of a TCP socket.
    SpliceFromTcp,
    /// `splice` out of a unix socket.
    SpliceFromUnix,
    /// Through a TLS library, where probes see them whatever the set.
    Library,
    /// By ordinary calls that move hundreds of pieces at once.
    LongCall,
}

/// What a test demands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sight {
    /// Every exchange is a span and says what happened.
    Exact,
    /// What is shown is true, and what is missing is counted as lost or its connection as uncovered.
    Counted,
    /// A limit that `docs/limits.md` states: exchanges may be missing or wrong without a number, but none is invented.
    Blind,
}

impl HookSet {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Socket, Self::Fentry, Self::Kprobe, Self::Syscall];

    /// Its name in the configuration and in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Socket => "socket",
            Self::Fentry => "fentry",
            Self::Kprobe => "kprobe",
            Self::Syscall => "syscall",
        }
    }

    /// The set of that name.
    #[must_use]
    pub fn by_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|set| set.name() == name)
    }
}

impl View {
    /// What to demand of exchanges whose bytes pass in this way.
    #[must_use]
    pub fn sight(self, passage: Passage) -> Sight {
        use HookSet::{Fentry, Kprobe, Socket, Syscall};
        match (self.set, passage) {
            // No tracepoint is on its way.
            (Socket, Passage::SpliceFromUnix) => Sight::Blind,
            // The registers of the thread are not those of the call that io_uring makes for it.
            (Socket | Syscall, Passage::IoUring) => Sight::Counted,
            // Its functions are not those of TCP.
            (Fentry | Kprobe, Passage::Multipath) => Sight::Blind,
            // Such probes are preempted, but never skipped.
            (_, Passage::Library) => Sight::Exact,
            (_, Passage::SpliceFromUnix) if self.is_preempted => Sight::Blind,
            _ if self.is_preempted => Sight::Counted,
            (_, Passage::LongCall) if self.has_short_walks => Sight::Counted,
            (_, Passage::Call | Passage::LongCall | Passage::UnixCall | Passage::SpliceFromTcp) => {
                Sight::Exact
            }
            (Socket | Syscall, Passage::Multipath) => Sight::Exact,
            (Fentry | Kprobe, Passage::IoUring) => Sight::Exact,
            (Fentry | Kprobe | Syscall, Passage::SpliceFromUnix) => Sight::Exact,
        }
    }
}

impl fmt::Display for HookSet {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The set that `OBI_HOOKS` forces; `None` leaves the choice to the agent.
///
/// # Panics
/// When it is no set's name.
#[must_use]
pub fn forced() -> Option<HookSet> {
    static FORCED: OnceLock<Option<HookSet>> = OnceLock::new();
    *FORCED.get_or_init(|| match std::env::var("OBI_HOOKS") {
        Err(_) => None,
        Ok(name) if name == "auto" => None,
        Ok(name) => {
            Some(HookSet::by_name(&name).unwrap_or_else(|| panic!("OBI_HOOKS is `{name}`, which is no set")))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_lead_back() {
        for set in HookSet::ALL {
            assert_eq!(HookSet::by_name(set.name()), Some(set));
            let view = View { set, is_preempted: false, has_short_walks: true };
            assert_eq!(view.sight(Passage::Call), Sight::Exact);
            assert_eq!(view.sight(Passage::LongCall), Sight::Counted);
            let view = View { set, is_preempted: true, has_short_walks: false };
            assert_eq!(view.sight(Passage::Call), Sight::Counted);
            assert_eq!(view.sight(Passage::Library), Sight::Exact);
        }
        assert_eq!(HookSet::by_name("auto"), None);
    }
}
