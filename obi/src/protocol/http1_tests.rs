//! Tests of the head parsers.

use super::*;
use proptest::prelude::*;

/// `expected`: method, path, query, version, host, user agent, traceparent, tracestate, joined by `|`.
fn check(head: &[u8], expected: &str) {
    let mut text = RequestText::default();
    let shown = match parse_request(head, &mut text) {
        Parsed::Incomplete => "incomplete".to_owned(),
        Parsed::Invalid => "invalid".to_owned(),
        Parsed::Whole(Request {
            method,
            path,
            query,
            version,
            host,
            user_agent,
            traceparent,
            tracestate,
            ..
        }) => [method, path, query, minor(version), host, user_agent, traceparent, tracestate].join("|"),
    };
    assert_eq!(shown, expected, "{}", String::from_utf8_lossy(head));
}

fn minor(version: Version) -> &'static str {
    match version {
        Version::Http10 => "0",
        Version::Http11 => "1",
        Version::Http2 => "none",
    }
}

#[test]
fn requests() {
    check(b"GET / HTTP/1.1\r\nHost: h:81\r\n\r\n", "GET|/||1|h:81|||");
    check(b"GET / HTTP/1.0\r\n\r\n", "GET|/||0||||");
    check(b"GET / HTTP/1.1\nHost: h\n\n", "GET|/||1|h|||");
    check(b"\r\n\r\nGET / HTTP/1.1\r\n\r\n", "GET|/||1||||");
    check(
        b"POST /a?x=1 HTTP/1.1\r\nhOST: h\r\nUSER-AGENT: ua/1 (x)\r\nCookie: s=1\r\nAuthorization: Basic x\r\n\
          traceparent: tp\r\nTraceState: a=1\r\ntracestate: b=2\r\n\r\n",
        "POST|/a|x=REDACTED|1|h|ua/1 (x)|tp|a=1,b=2",
    );
    check(b"GET http://u:p@h:1/a HTTP/1.1\r\nHost: other\r\n\r\n", "GET|/a||1|h:1|||");
    check(b"OPTIONS * HTTP/1.1\r\nHost: h\r\n\r\n", "OPTIONS|*||1|h|||");
    check(b"CONNECT h:443 HTTP/1.1\r\nHost: h:443\r\n\r\n", "CONNECT|||1|h:443|||");
    check(b"GET / HTTP/1.1\r\nHost: u:p@h\r\nHost: second\r\n\r\n", "GET|/||1|h|||");
    check(b"GET / HTTP/1.1\r\ntraceparent: a\r\ntraceparent: b\r\n\r\n", "GET|/||1||||");
    check(
        b"GET /caf\xc3\xa9?\xff=1 HTTP/1.1\r\nUser-Agent: \xff!\r\n\r\n",
        "GET|/café|\u{fffd}=REDACTED|1||\u{fffd}!||",
    );
}

#[test]
fn heads_that_the_fast_path_refuses() {
    let many: String = (0..200).map(|nth| format!("X-{nth}: v\r\n")).collect();
    check(format!("GET / HTTP/1.1\r\n{many}Host: h\r\n\r\n").as_bytes(), "GET|/||1|h|||");
    check(b"GET / HTTP/1.1\r\nX-Folded: a\r\n  host: b\r\nHost: h\r\n\r\n", "GET|/||1|h|||");
    check(b"GET / HTTP/1.1\r\nBad Name : x\r\nHost : h\r\n\r\n", "GET|/||1|h|||");
    check(b"GET / HTTP/1.1\r\nX: \x01\x02\r\nHost: h\r\n\r\n", "GET|/||1|h|||");
    check(b"GET /a b HTTP/1.1\r\nHost: h\r\n\r\n", "GET|/a b||1|h|||");
    check(b"GET /\x01 HTTP/1.1\r\nHost: h\r\n\r\n", "GET|/\u{1}||1|h|||");
}

#[test]
fn what_is_no_head() {
    check(b"", "incomplete");
    check(b"GET / HTT", "incomplete");
    check(b"GET / HTTP/1.1\r\nHost: h\r\n", "incomplete");
    check(b"GET / HTTP/1.1\r\nBad Name: h\r\n", "incomplete");
    check(b"GET / HTTP/2.0\r\n\r\n", "invalid");
    check(b"G(T / HTTP/1.1\r\n\r\n", "invalid");
    check(b"\x16\x03\x01\x02\x00\r\n\r\n", "invalid");
    check(b"GET  HTTP/1.1\r\n\r\n", "invalid");
}

#[test]
fn fields_are_bounded_at_character_boundaries() {
    for (character, kept) in [("x", 2047), ("é", 2046), ("\u{10ffff}", 2044)] {
        let head = format!("GET /{} HTTP/1.1\r\n\r\n", character.repeat(3000));
        let mut text = RequestText::default();
        let request = parse_request(head.as_bytes(), &mut text).whole().unwrap();
        assert_eq!(request.path, format!("/{}", character.repeat(kept / character.len())));
    }
    let long = "y".repeat(9000);
    let head = format!(
        "{long} /{long}?{long}={long} HTTP/1.1\r\nHost: {long}\r\nUser-Agent: {long}\r\n\
                        traceparent: {long}\r\ntracestate: {long}\r\n\r\n"
    );
    let mut text = RequestText::default();
    let request = parse_request(head.as_bytes(), &mut text).whole().unwrap();
    let lengths = [
        request.method,
        request.path,
        request.query,
        request.host,
        request.user_agent,
        request.traceparent,
        request.tracestate,
    ]
    .map(str::len);
    assert_eq!(lengths, [64, 2048, 2048, 255, 512, 256, 2048]);
}

#[test]
fn truncated_heads_parse() {
    for (head, expected) in [
        ("GET /a HTTP/1.1\r\nHost: h\r\nUser-Ag", "GET|/a||1|h|||"),
        ("GET /a HTTP/1.1\r\nHost: h\r\n", "GET|/a||1|h|||"),
        ("GET /a HTTP/1.0\r", "GET|/a||1||||"),
        ("GET /a HTTP/1.", "GET|/a||1||||"),
        ("GET /a?x=12", "GET|/a|x=REDACTED|1||||"),
        ("\r\nGET /a", "GET|/a||1||||"),
        ("GET", "invalid"),
        ("", "invalid"),
    ] {
        let mut head = head.as_bytes().to_vec();
        terminate_truncated(&mut head);
        check(&head, expected);
    }
}

#[test]
fn responses() {
    let check = |head: &[u8], expected| {
        assert_eq!(parse_response(head), expected, "{}", String::from_utf8_lossy(head))
    };
    let whole = |status| Parsed::Whole(Response { status: Some(status) });
    check(b"HTTP/1.1 200 OK\r\nA: b\r\n\r\n", whole(200));
    check(b"HTTP/1.0 404 \r\n\r\n", whole(404));
    check(b"HTTP/1.1 204\r\n\r\n", whole(204));
    check(b"HTTP/1.1   503 No\r\n\r\n", whole(503));
    check(b"HTTP/1.1 200 A reason cut he", whole(200));
    check(b"HTTP/1.1 200 \xff\x01\r\n\r\n", whole(200));
    check(b"HTTP/1.1 999 x\r\n\r\n", whole(999));
    check(b"HTTP/1.1 20", Parsed::Incomplete);
    check(b"", Parsed::Incomplete);
    check(b"HTTP/1.1 099 x\r\n\r\n", Parsed::Invalid);
    check(b"HTTP/2 200\r\n\r\n", Parsed::Invalid);
    check(b"ICY 200 OK\r\n\r\n", Parsed::Invalid);
}

proptest! {
    /// Any bytes, cut or not: no panic, bounded, and a second look sees the same.
    #[test]
    fn any_bytes(head in prop::collection::vec(any::<u8>(), 0..400), line in "[A-Z]{1,4} [ -~]{0,60} HTTP/1\\.[0-9]\r\n") {
        for mut head in [head.clone(), [line.as_bytes(), &head, b"\r\n\r\n"].concat()] {
            let (mut text, mut again) = (RequestText::default(), RequestText::default());
            let parsed = parse_request(&head, &mut text);
            prop_assert_eq!(parsed, parse_request(&head, &mut again));
            let _ = parse_response(&head);
            terminate_truncated(&mut head);
            prop_assert_ne!(parse_request(&head, &mut text), Parsed::Incomplete);
        }
    }
}
