//! What a reason of a loss means, and what helps against it.
//!
//! In: the words of `obi_lost_total`, `obi_uncovered_connections_total` and `obi_export_lost_total`. Out: sentences.

/// Of a reason that has no sentence yet.
const UNKNOWN: &str = "See docs/telemetry.md, Reasons of losses.";

/// What was lost, by reason of `obi_lost_total`.
pub(super) fn lost(reason: &str) -> &'static str {
    match reason {
        "ring_full" => {
            "The agent did not read as fast as the kernel wrote. Raise capture.ring_bytes, or give the agent more CPU."
        }
        "unreadable" => {
            "The program's buffer cannot be found: io_uring, or a 32-bit system call. Another hook set may see it: capture.hooks."
        }
        "fault" => "The program's memory was not there to be read at that moment. Nothing to be done.",
        "gap" => {
            "Bytes passed unseen, by a way that the hook set does not watch or in a run that the kernel skipped."
        }
        "framing" => "The bytes were no HTTP after all, or beyond a fixed limit.",
        "no_state" | "note_full" => {
            "The kernel had no memory for one more connection. Its maps are bounded: fewer watched processes help (discover.exclude)."
        }
        "steps" => "One system call had more pieces than the kernel programs may walk.",
        "request_unseen" => {
            "An answer was seen whose request was not, such as one that had begun before the agent."
        }
        "pending_full" => {
            "More exchanges were under way than protocol.pending_limit (raise it), or calls on one connection than are followed."
        }
        "unparsable" => "The head of a message was not HTTP.",
        "superseded" | "records_missing" => "Records of it had been lost before; see ring_full.",
        "expired" => "Nothing was heard of it for so long that it is not waited for any more.",
        "not_followed" => {
            "A WebSocket, or the calls of a database's connection, could not be followed to the end."
        }
        "hook_missed" => "The kernel skipped a run of a program. An upper bound.",
        _ => UNKNOWN,
    }
}

/// Connections that are seen and not read.
pub(super) fn uncovered(reason: &str) -> &'static str {
    match reason {
        "tls" => {
            "Encrypted by a library that is not probed; obi doctor --pid PID says which it is, docs/tls.md which are."
        }
        "http2" => {
            "HTTP/2 that had begun before the agent, and whose frames were not found again. The client's next connection is read."
        }
        "joined_mid_stream" => {
            "They had begun before the agent, and no head was found again. The client's next connection is read."
        }
        "unreadable_buffer" => {
            "Their buffers cannot be seen (io_uring). Another hook set may see them: capture.hooks."
        }
        _ => "For a reason without a name.",
    }
}

/// Why a stack lacks its outermost frames.
pub(super) fn truncated(reason: &str) -> &'static str {
    match reason {
        "too_deep" => "more frames than are walked",
        "no_process" => "the process had not been read yet, or is one too many for the map",
        "no_mapping" => "code without a file, compiled at run time by a runtime that is not read",
        "no_table" => {
            "a file without unwind tables: build it with .eh_frame (-fasynchronous-unwind-tables) or frame pointers"
        }
        "no_rule" => "a place that the file's tables do not describe, or not in a way that is followed",
        "unreadable" => "the stack's memory was not there to be read at that moment",
        "no_progress" => "a frame that leads to itself",
        "foreign_mode" => "32-bit code, which is not walked",
        _ => UNKNOWN,
    }
}

/// What did not reach a destination.
pub(super) fn export(reason: &str) -> &'static str {
    match reason {
        "queue_full" => "the destination is slower than what comes",
        "rejected" => "the destination took the request and refused these",
        "refused" => "the destination refused the request",
        "retries_exhausted" => "the destination was away for too long",
        "too_large" => "larger than the destination takes",
        "shutdown" => "the agent ended",
        "unsupported" => "the destination does not take this signal",
        "spool_full" => "the disk had no more room for them: export.spool.bytes",
        "spool_expired" => "they had waited on the disk for longer than export.spool.max_age",
        "spool_corrupt" => "what was on the disk could not be read again",
        "spool_unwritable" => "the disk could not be written to; the log says why",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::export::otlp::lost_reasons;
    use crate::profile::naming::truncation;
    use crate::protocol::loss::{self, kernel_reason, uncovered_reason};

    #[test]
    fn every_connection_that_is_not_read_has_a_sentence() {
        for reason in (1..obi_ebpf::UNCOVERED_REASONS).map(uncovered_reason) {
            assert_ne!(uncovered(reason), uncovered("new"), "{reason}");
        }
    }

    #[test]
    fn every_stack_that_is_cut_short_has_a_sentence() {
        for reason in (0..=u8::MAX).filter_map(truncation).filter(|reason| *reason != "unknown") {
            assert_ne!(truncated(reason), UNKNOWN, "{reason}");
        }
    }

    #[test]
    fn every_loss_on_the_way_has_a_sentence() {
        for reason in lost_reasons() {
            assert_ne!(export(reason), export("new"), "{reason}");
        }
    }

    #[test]
    fn every_loss_has_a_sentence() {
        let kernel = (1..obi_ebpf::LOSS_REASONS).map(kernel_reason);
        for reason in kernel.chain(loss::OF_PROTOCOL.iter().copied()).chain(["hook_missed"]) {
            assert_ne!(lost(reason), UNKNOWN, "{reason}");
        }
        assert_eq!(lost("new"), UNKNOWN);
    }
}
