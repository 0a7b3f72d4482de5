//! Statuses of gRPC: their names, where they come from when none was sent, and which of them are errors.
//!
//! In: what the exchange says of a call. Out: a [`Code`], names, `error.type`. The rules are those of gRPC
//! (`doc/statuscodes.md`, `doc/http-grpc-status-mapping.md`, `doc/PROTOCOL-HTTP2.md`) and of the semantic conventions
//! for gRPC. Refuses to know methods.

use crate::protocol::{Exchange, Rpc, Side};

/// A status code of gRPC.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Code(u8);

/// By number.
const NAMES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

/// How many there are.
pub const CODES: usize = NAMES.len();

impl Code {
    /// Success.
    pub const OK: Self = Self(0);
    /// The client gave up.
    pub const CANCELLED: Self = Self(1);
    /// Any number that has no name.
    pub const UNKNOWN: Self = Self(2);
    /// The time that the client gave has passed.
    pub const DEADLINE_EXCEEDED: Self = Self(4);
    /// The server has no such method.
    pub const UNIMPLEMENTED: Self = Self(12);
    const PERMISSION_DENIED: Self = Self(7);
    const INTERNAL: Self = Self(13);
    const UNAVAILABLE: Self = Self(14);
    const DATA_LOSS: Self = Self(15);
    const UNAUTHENTICATED: Self = Self(16);

    /// The code of a number as sent; numbers without a name are `UNKNOWN` to every library, and here.
    #[must_use]
    pub fn of_number(number: u32) -> Self {
        u8::try_from(number).ok().filter(|number| usize::from(*number) < CODES).map_or(Self::UNKNOWN, Self)
    }

    /// The code that a name stands for.
    #[must_use]
    pub fn of_name(name: &str) -> Option<Self> {
        (0..).zip(NAMES).find(|(_, known)| *known == name).map(|(number, _)| Self(number))
    }

    /// What a client makes of an HTTP status that came without a status of gRPC.
    #[must_use]
    pub fn of_http(status: u16) -> Self {
        match status {
            400 => Self::INTERNAL,
            401 => Self::UNAUTHENTICATED,
            403 => Self::PERMISSION_DENIED,
            404 => Self::UNIMPLEMENTED,
            429 | 502 | 503 | 504 => Self::UNAVAILABLE,
            _ => Self::UNKNOWN,
        }
    }

    /// `rpc.response.status_code`.
    #[must_use]
    pub fn name(self) -> &'static str {
        NAMES[usize::from(self.0)]
    }

    /// 0 to 16.
    #[must_use]
    pub fn number(self) -> u16 {
        self.0.into()
    }

    /// Whether this side calls it an error: a client everything but `OK`, a server what is not the client's doing.
    #[must_use]
    pub fn is_error(self, side: Side) -> bool {
        const OF_SERVERS: [Code; 6] = [
            Code::UNKNOWN,
            Code::DEADLINE_EXCEEDED,
            Code::UNIMPLEMENTED,
            Code::INTERNAL,
            Code::UNAVAILABLE,
            Code::DATA_LOSS,
        ];
        match side {
            Side::Client => self != Self::OK,
            Side::Server => OF_SERVERS.contains(&self),
        }
    }
}

/// The status of a call, whose carrier was answered with `http`: the one that was sent; else the one that the protocol
/// gives to an HTTP status other than 200, to a call that broke when its time had passed (whichever end let go of it
/// first), or to a client that gave up before. `None` when none came or could be read.
#[must_use]
pub fn status(exchange: &Exchange<'_>, http: Option<u16>, rpc: &Rpc<'_>) -> Option<Code> {
    const HTTP_OK: u16 = 200;
    match (rpc.status, http) {
        (Some(number), _) => Some(Code::of_number(number)),
        (None, Some(status)) if status != HTTP_OK => Some(Code::of_http(status)),
        (None, _) if rpc.is_cancelled || exchange.failure.is_some() => {
            let late = is_over(exchange, rpc.timeout).then_some(Code::DEADLINE_EXCEEDED);
            late.or(rpc.is_cancelled.then_some(Code::CANCELLED))
        }
        (None, _) => None,
    }
}

/// `error.type`: the status when this side calls it an error; without a status what broke; else empty.
#[must_use]
pub fn error_type(exchange: &Exchange<'_>, status: Option<Code>) -> &'static str {
    match (status, exchange.failure) {
        (Some(code), _) if code.is_error(exchange.side) => code.name(),
        (Some(_), _) | (None, None) => "",
        (None, Some(failure)) => failure.error_type(),
    }
}

/// A client's clock runs before the request is on its way, and the time is rounded up when it is sent: who gives up in
/// the last tenth of it, or in the last few milliseconds, is taken for one whose time has passed.
fn is_over(exchange: &Exchange<'_>, timeout: Option<u64>) -> bool {
    const LEAST: u64 = 10_000_000;
    let lasted = exchange.ended.saturating_sub(exchange.arrival);
    timeout.is_some_and(|timeout| lasted.saturating_add((timeout / 10).max(LEAST)) >= timeout)
}

/// Writes `grpc-message` decoded: `%XX` stands for a byte; what is then no UTF-8 or a control character becomes
/// U+FFFD, so that it can be shown.
pub fn write_message(text: &mut String, sent: &str) {
    text.clear();
    for chunk in percent_encoding::percent_decode_str(sent).decode_utf8_lossy().chars() {
        text.push(if chunk.is_control() && chunk != '\n' && chunk != '\t' { '\u{fffd}' } else { chunk });
    }
}

#[cfg(test)]
#[path = "grpc_tests.rs"]
mod tests;
