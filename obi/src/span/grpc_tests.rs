//! Tests of statuses: what an exchange says in, code and `error.type` by side out.

use proptest::prelude::*;

use super::*;
use crate::protocol::{Endpoints, Failure, Http, Message, Request, Semantics, Version};

const MS: u64 = 1_000_000;

/// A call that lasted 100 ms.
fn exchange(side: Side, failure: Option<Failure>) -> Exchange<'static> {
    Exchange {
        number: 1,
        side,
        tgid: 42,
        tid: 43,
        cause: crate::protocol::Cause::default(),
        answerer: None,
        endpoints: Endpoints::Unix,
        encrypted: false,
        arrival: 0,
        started: 0,
        ended: 100 * MS,
        times: None,
        request_bytes: Some(0),
        response_bytes: Some(0),
        failure,
        message: Message::Http(Http {
            request: Request {
                method: "POST",
                path: "/shop.Cart/Add",
                version: Version::Http2,
                ..Request::default()
            },
            response: None,
            semantics: Semantics::Http,
        }),
    }
}

/// Status and `error.type` at the server and at the client.
fn check(rpc: Rpc<'_>, http: Option<u16>, failure: Option<Failure>, expected: (&str, &str, &str)) {
    let found = [Side::Server, Side::Client].map(|side| {
        let exchange = exchange(side, failure);
        let status = status(&exchange, http, &rpc);
        (status.map_or("", Code::name), error_type(&exchange, status))
    });
    let (status, server, client) = expected;
    assert_eq!(found, [(status, server), (status, client)], "{rpc:?} {http:?} {failure:?}");
}

#[test]
fn statuses_that_were_sent() {
    for (number, name, is_servers_error) in [
        (0, "OK", false),
        (1, "CANCELLED", false),
        (2, "UNKNOWN", true),
        (3, "INVALID_ARGUMENT", false),
        (4, "DEADLINE_EXCEEDED", true),
        (5, "NOT_FOUND", false),
        (6, "ALREADY_EXISTS", false),
        (7, "PERMISSION_DENIED", false),
        (8, "RESOURCE_EXHAUSTED", false),
        (9, "FAILED_PRECONDITION", false),
        (10, "ABORTED", false),
        (11, "OUT_OF_RANGE", false),
        (12, "UNIMPLEMENTED", true),
        (13, "INTERNAL", true),
        (14, "UNAVAILABLE", true),
        (15, "DATA_LOSS", true),
        (16, "UNAUTHENTICATED", false),
    ] {
        let rpc = Rpc { status: Some(number), ..Rpc::default() };
        let server = if is_servers_error { name } else { "" };
        let client = if number == 0 { "" } else { name };
        check(rpc, Some(200), None, (name, server, client));
        // What was sent counts, whatever happened after it or beside it.
        check(rpc, Some(503), Some(Failure::Reset), (name, server, client));
        assert_eq!(Code::of_name(name).map(Code::number), Some(number as u16));
    }
    for number in [17, 99, 256, u32::MAX] {
        let rpc = Rpc { status: Some(number), ..Rpc::default() };
        check(rpc, Some(200), None, ("UNKNOWN", "UNKNOWN", "UNKNOWN"));
    }
    for name in ["", "ok", "17", "2", "CANCELED"] {
        assert_eq!(Code::of_name(name), None, "{name}");
    }
}

#[test]
fn statuses_that_were_not_sent() {
    let none = Rpc::default();
    for (http, name, server) in [
        (400, "INTERNAL", "INTERNAL"),
        (401, "UNAUTHENTICATED", ""),
        (403, "PERMISSION_DENIED", ""),
        (404, "UNIMPLEMENTED", "UNIMPLEMENTED"),
        (429, "UNAVAILABLE", "UNAVAILABLE"),
        (502, "UNAVAILABLE", "UNAVAILABLE"),
        (503, "UNAVAILABLE", "UNAVAILABLE"),
        (504, "UNAVAILABLE", "UNAVAILABLE"),
        (204, "UNKNOWN", "UNKNOWN"),
        (500, "UNKNOWN", "UNKNOWN"),
    ] {
        check(none, Some(http), None, (name, server, name));
    }
    // It is not known.
    check(none, Some(200), None, ("", "", ""));
    check(none, None, None, ("", "", ""));
    for http in [None, Some(200)] {
        check(none, http, Some(Failure::Reset), ("", "connection_reset", "connection_reset"));
        check(none, http, Some(Failure::Timeout), ("", "timeout", "timeout"));
    }
}

#[test]
fn clients_that_gave_up() {
    let cancelled = |timeout| Rpc { is_cancelled: true, timeout, ..Rpc::default() };
    let (early, late) = (("CANCELLED", "", "CANCELLED"), ["DEADLINE_EXCEEDED"; 3].into());
    for failure in [None, Some(Failure::Reset), Some(Failure::Aborted)] {
        check(cancelled(None), Some(200), failure, early);
        check(cancelled(Some(200 * MS)), Some(200), failure, early);
        check(cancelled(Some(112 * MS)), None, failure, early);
        check(cancelled(Some(100 * MS)), None, failure, late);
        // Rounded up by the client.
        check(cancelled(Some(110 * MS)), None, failure, late);
        check(cancelled(Some(0)), None, failure, late);
        check(cancelled(Some(u64::MAX)), None, failure, early);
    }
    // The server let go of it first.
    let reset = Some(Failure::Aborted);
    check(Rpc { timeout: Some(100 * MS), ..Rpc::default() }, Some(200), reset, late);
    let early = ("", "connection_aborted", "connection_aborted");
    check(Rpc { timeout: Some(200 * MS), ..Rpc::default() }, Some(200), reset, early);
    // It gave up, and the status came all the same.
    check(Rpc { status: Some(0), ..cancelled(None) }, Some(200), None, ("OK", "", ""));
}

#[test]
fn messages_are_decoded() {
    let check = |sent: &str, expected: &str| {
        let mut text = "used".to_owned();
        write_message(&mut text, sent);
        assert_eq!(text, expected, "{sent}");
    };
    check("", "");
    check("no such cart", "no such cart");
    check("100%25 %e2%82%ac", "100% €");
    check("a%0Ab%", "a\nb%");
    check("%ff%1b", "\u{fffd}\u{fffd}");
}

proptest! {
    #[test]
    fn any_message_can_be_shown(sent in "\\PC{0,100}") {
        let mut text = String::new();
        write_message(&mut text, &sent);
        prop_assert!(text.chars().all(|shown| !shown.is_control() || shown == '\n' || shown == '\t'));
        prop_assert!(text.len() <= 3 * sent.len());
    }
}
