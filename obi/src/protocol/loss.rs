//! Exchanges that could not be followed to their end, and the words for why.
//!
//! In: a reason number of the kernel, or a decision of this stage. Out: label values of `obi_lost_total`.
//! Refuses to know counters.

use super::Side;

/// One lost exchange. Each is reported once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Loss {
    /// Label `stage`: `kernel` or `protocol`.
    pub stage: &'static str,
    /// Label `reason`.
    pub reason: &'static str,
    /// Label `side`; `None` when the record did not show it.
    pub side: Option<Side>,
    /// The process, for the label `service_name`.
    pub tgid: u32,
}

impl Loss {
    /// The same exchange, lost for a `loss_reason` of the wire contract.
    pub(super) fn of_kernel(self, reason: u32) -> Self {
        Self { stage: STAGE_KERNEL, reason: kernel_reason(reason), ..self }
    }
}

/// Losses that the kernel side saw, by `loss_reason`.
pub const STAGE_KERNEL: &str = "kernel";
/// Losses of this stage.
pub const STAGE_PROTOCOL: &str = "protocol";

/// The reasons of this stage, each a constant and in the list: the page has a sentence for all of these.
macro_rules! reasons {
    ($($(#[$doc:meta])* $name:ident = $word:literal;)+) => {
        $($(#[$doc])* pub const $name: &str = $word;)+
        /// All reasons of this stage.
        pub const OF_PROTOCOL: &[&str] = &[$($name),+];
    };
}

reasons! {
    /// The table of open exchanges, or its memory, is full.
    PENDING_FULL = "pending_full";
    /// The head is no HTTP/1 head.
    UNPARSABLE = "unparsable";
    /// The number of an open exchange was given to another one.
    SUPERSEDED = "superseded";
    /// Records of an HTTP/2 connection are missing, so that the request, the head or the end of a stream was not seen.
    RECORDS_MISSING = "records_missing";
    /// Nothing was heard of a stream for so long that it is not waited for any more.
    EXPIRED = "expired";
    /// A WebSocket, or a database's connection, could not be followed to its end.
    NOT_FOLLOWED = "not_followed";
}

/// The word for a `loss_reason` of the wire contract, as used in `obi_lost_total{stage="kernel"}`.
#[must_use]
pub fn kernel_reason(reason: u32) -> &'static str {
    match reason {
        obi_ebpf::LOSS_RING_FULL => "ring_full",
        obi_ebpf::LOSS_UNREADABLE => "unreadable",
        obi_ebpf::LOSS_FAULT => "fault",
        obi_ebpf::LOSS_GAP => "gap",
        obi_ebpf::LOSS_FRAMING => "framing",
        obi_ebpf::LOSS_NO_STATE => "no_state",
        obi_ebpf::LOSS_NOTE_FULL => "note_full",
        obi_ebpf::LOSS_STEPS => "steps",
        obi_ebpf::LOSS_REQUEST_UNSEEN => "request_unseen",
        _ => "unknown",
    }
}

/// The word for an `uncovered_reason` of the wire contract, as used in `obi_uncovered_connections_total`.
#[must_use]
pub fn uncovered_reason(reason: u32) -> &'static str {
    match reason {
        obi_ebpf::UNCOVERED_TLS => "tls",
        obi_ebpf::UNCOVERED_HTTP2 => "http2",
        obi_ebpf::UNCOVERED_JOINED => "joined_mid_stream",
        obi_ebpf::UNCOVERED_UNREADABLE => "unreadable_buffer",
        _ => "unknown",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_kernel_reason_has_a_word_of_its_own() {
        let words: HashSet<_> = (1..obi_ebpf::LOSS_REASONS).map(kernel_reason).collect();
        assert_eq!(words.len(), obi_ebpf::LOSS_REASONS as usize - 1);
        assert!(!words.contains("unknown"), "a reason of event.h has no word here: {words:?}");
    }
}
