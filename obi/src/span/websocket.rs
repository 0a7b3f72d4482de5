//! How a WebSocket ended: `error.type` from its close code.
//!
//! In: the close code, who closed, what became of the connection (RFC 6455 §7.4, the IANA registry). Out: `error.type`.
//! Refuses to know what was said.

use crate::protocol::{Failure, Side, WebSocket};

use super::method::OTHER;

/// Codes from here on belong to libraries and applications; what they mean is theirs.
const PRIVATE: u16 = 3000;

/// `error.type` at `side`; empty when it ended in order. A code that complains of a message is an error of the one who
/// sent that message, and, as with HTTP's statuses, of the client in any case. A connection that went away without a
/// Close frame is an error by what happened to it.
#[must_use]
pub fn error_type(socket: &WebSocket, failure: Option<Failure>, side: Side) -> &'static str {
    match (socket.closed_by, socket.close_code) {
        (None, _) => failure.map_or("", Failure::error_type),
        (Some(_), None) => "",
        (Some(closed_by), Some(code)) => match (abnormal(code), side) {
            (None, _) => "",
            (Some((text, _)), Side::Client) => text,
            (Some((text, is_complaint)), Side::Server) => {
                let is_ours =
                    if is_complaint { closed_by == Side::Client } else { closed_by == Side::Server };
                if is_ours { text } else { "" }
            }
        },
    }
}

/// A code that means an error, as text, and whether it complains of what the other end sent.
fn abnormal(code: u16) -> Option<(&'static str, bool)> {
    Some(match code {
        1000 | 1001 | PRIVATE.. => return None,
        1002 => ("1002", true),
        1003 => ("1003", true),
        1007 => ("1007", true),
        1008 => ("1008", true),
        1009 => ("1009", true),
        1010 => ("1010", true),
        1011 => ("1011", false),
        1012 => ("1012", false),
        1013 => ("1013", false),
        1014 => ("1014", false),
        _ => (OTHER, true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_by_side_and_code() {
        use Side::{Client, Server};
        let check = |closed_by, close_code, failure, server: &str, client: &str| {
            let socket = WebSocket { request_messages: 1, response_messages: 1, close_code, closed_by };
            let found = [Server, Client].map(|side| error_type(&socket, failure, side));
            assert_eq!(found, [server, client], "{closed_by:?} {close_code:?} {failure:?}");
        };
        for code in [1000, 1001, 3000, 3999, 4000, 4999, u16::MAX] {
            check(Some(Client), Some(code), None, "", "");
            check(Some(Server), Some(code), Some(Failure::Closed), "", "");
        }
        check(Some(Server), None, Some(Failure::Closed), "", "");
        check(Some(Server), Some(1002), None, "", "1002");
        check(Some(Client), Some(1002), None, "1002", "1002");
        check(Some(Client), Some(1009), None, "1009", "1009");
        check(Some(Server), Some(1008), None, "", "1008");
        check(Some(Server), Some(1011), None, "1011", "1011");
        check(Some(Client), Some(1011), None, "", "1011");
        check(Some(Server), Some(1013), None, "1013", "1013");
        check(Some(Client), Some(1006), None, "_OTHER", "_OTHER");
        check(Some(Client), Some(0), None, "_OTHER", "_OTHER");
        check(None, None, Some(Failure::Reset), "connection_reset", "connection_reset");
        check(None, None, Some(Failure::Closed), "connection_closed", "connection_closed");
        check(None, None, None, "", "");
    }
}
