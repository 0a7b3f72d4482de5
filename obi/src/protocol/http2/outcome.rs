//! How a stream ended before its response was whole.
//!
//! In: who ended it and why (RFC 9113 §7). Out: a [`Failure`]. Refuses to know streams.
//!
//! | RST_STREAM by | code | at the client | at the server |
//! |---|---|---|---|
//! | client | CANCEL, NO_ERROR, STREAM_CLOSED | aborted | closed |
//! | server | REFUSED_STREAM | refused | refused |
//! | server | CANCEL, NO_ERROR, STREAM_CLOSED, after the head | truncated | truncated |
//! | server | CANCEL, NO_ERROR, STREAM_CLOSED, before | closed | aborted |
//! | either | any other | stream reset | stream reset |
//!
//! Streams above the last one of the server's GOAWAY are refused.

use super::frame::code;
use crate::protocol::{Failure, Side};

/// A stream that was reset.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reset {
    pub(super) by_requester: bool,
    /// `None` when it could not be read.
    pub(super) code: Option<u32>,
    pub(super) time: u64,
}

impl Reset {
    /// How an exchange failed by it that the observed process takes part in as `side`.
    pub(super) fn failure(self, side: Side, response_started: bool) -> Failure {
        let by_us = self.by_requester == (side == Side::Client);
        match self.code {
            Some(code::REFUSED_STREAM) if !self.by_requester => Failure::Refused,
            Some(code::CANCEL | code::NO_ERROR | code::STREAM_CLOSED) => match (self.by_requester, by_us) {
                (false, _) if response_started => Failure::Truncated,
                (_, true) => Failure::Aborted,
                (_, false) => Failure::Closed,
            },
            _ => Failure::StreamReset,
        }
    }

    /// The client gave up.
    pub(super) fn is_cancelled(self) -> bool {
        self.by_requester && self.code == Some(code::CANCEL)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resets() {
        use Failure::{Aborted, Closed, Refused, StreamReset, Truncated};
        let check = |by_requester, code, started, at_client, at_server| {
            let reset = Reset { by_requester, code: Some(code), time: 0 };
            let found = [Side::Client, Side::Server].map(|side| reset.failure(side, started));
            assert_eq!(found, [at_client, at_server], "{reset:?} {started}");
        };
        for code in [code::CANCEL, code::NO_ERROR, code::STREAM_CLOSED] {
            check(true, code, false, Aborted, Closed);
            check(true, code, true, Aborted, Closed);
            check(false, code, false, Closed, Aborted);
            check(false, code, true, Truncated, Truncated);
        }
        for (by_requester, started) in [(false, false), (false, true), (true, false)] {
            check(by_requester, 1, started, StreamReset, StreamReset);
            check(by_requester, 0xdead, started, StreamReset, StreamReset);
        }
        check(false, code::REFUSED_STREAM, false, Refused, Refused);
        check(true, code::REFUSED_STREAM, false, StreamReset, StreamReset);
    }
}
