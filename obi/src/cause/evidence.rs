//! How sure a parent is, and why one is not known: the words of spans and metrics.

/// What shows that a span's parent caused it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Evidence {
    /// It cannot be otherwise: both ends of one connection, or an id that the application itself has passed on.
    Certain,
    /// A rule whose conditions all held, each of them seen.
    Strong,
}

/// Why the parent of a call is not known, although something was being served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// More than one request may have caused it.
    Ambiguous,
    /// The request had been answered before.
    Late,
    /// The program goes on with many things in turns, in a runtime whose own ids are not read.
    RuntimeUnproven,
    /// The request that its thread had read last was lost.
    Lost,
    /// The runtime's own ids do not say which request it is made for.
    NoContext,
    /// Its thread serves nothing: another one has read the request, or answers it.
    OtherThread,
    /// Too many spans waited for their parents, or one for too long.
    PendingRoom,
}

/// How a span came to its parent, or to none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Nothing that is known of could have caused it, or the answer lies outside of this machine.
    Root,
    /// The parent is the one that a header names: what this agent does not see is the caller's word.
    Header,
    /// The parent was found.
    Found(Evidence),
    /// It has one, and it was not found.
    Unknown(Reason),
}

impl Evidence {
    /// `obi.parent.evidence`, label `evidence`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Certain => "certain",
            Self::Strong => "strong",
        }
    }
}

impl Reason {
    /// `obi.parent.reason`, label `reason`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ambiguous => "ambiguous",
            Self::Late => "late",
            Self::RuntimeUnproven => "runtime_unproven",
            Self::Lost => "lost",
            Self::NoContext => "no_context",
            Self::OtherThread => "other_thread",
            Self::PendingRoom => "pending_room",
        }
    }
}

/// `obi.parent.evidence` of a span whose parent is not known.
pub const UNKNOWN: &str = "unknown";

impl Origin {
    /// `obi.parent.evidence`; `None` where there is nothing to be known.
    #[must_use]
    pub fn evidence(self) -> Option<&'static str> {
        match self {
            Self::Root | Self::Header => None,
            Self::Found(evidence) => Some(evidence.name()),
            Self::Unknown(_) => Some(UNKNOWN),
        }
    }

    /// `obi.parent.reason`.
    #[must_use]
    pub fn reason(self) -> Option<&'static str> {
        match self {
            Self::Unknown(reason) => Some(reason.name()),
            _ => None,
        }
    }
}
