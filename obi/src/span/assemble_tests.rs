//! Tests of spans: exchanges in, name, status and attributes out.

use super::*;
use crate::protocol::{Failure, Request, Response, Semantics};
use crate::span::{AttributeValue, Status};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn exchange() -> Exchange<'static> {
    Exchange {
        number: 1,
        side: Side::Server,
        tgid: 42,
        tid: 43,
        endpoints: Endpoints::Ip {
            local: "192.0.2.1:8080".parse().unwrap(),
            remote: "[2001:db8::2]:5000".parse().unwrap(),
        },
        arrival: 10,
        started: 15,
        ended: 40,
        request: Request { method: "GET", path: "/users/42", ..Request::default() },
        response: Some(Response { status: Some(200) }),
        request_body_bytes: 0,
        response_body_bytes: 7,
        failure: None,
        encrypted: false,
        semantics: Semantics::Http,
    }
}

fn assemble(exchange: &Exchange<'_>) -> Span {
    let mut assembler = Assembler::new(Ids::from_seed(1), KnownMethods::default(), DEFAULT_ROUTES);
    let service = Arc::new(Service { name: "shop".into(), id: 3, ..Service::default() });
    let mut span = Span::blank();
    // Over a used span: nothing of it may remain.
    let used = Request {
        query: "used=REDACTED",
        user_agent: "used",
        tracestate: "used=1",
        host: "used:1",
        traceparent: PARENT,
        method: "USED",
        ..exchange.request
    };
    assembler.assemble(&Exchange { request: used, ..*exchange }, &service, 5, &mut span);
    assembler.assemble(exchange, &service, 1000, &mut span);
    span
}

fn attributes(span: &Span) -> Vec<String> {
    let mut seen = Vec::new();
    span.attributes(|name, value| seen.push(format!("{name}={value}")));
    seen
}

#[test]
fn a_server_span_says_all() {
    let request =
        Request { query: "q=REDACTED", host: "shop.example:81", user_agent: "curl/8", ..exchange().request };
    let span = assemble(&Exchange { request, ..exchange() });
    assert_eq!(span.name().to_string(), "GET /users/{id}");
    assert_eq!((span.status(), span.start, span.end, span.queue_wait), (Status::Unset, 1010, 1040, 5));
    assert_eq!((span.pid, span.exchange, span.service.name.as_str()), (42, 1, "shop"));
    let expected = [
        "http.request.method=GET",
        "url.scheme=http",
        "url.path=/users/42",
        "url.query=q=REDACTED",
        "http.route=/users/{id}",
        "server.address=shop.example",
        "user_agent.original=curl/8",
        "network.protocol.version=1.1",
        "client.address=2001:db8::2",
        "server.port=81",
        "client.port=5000",
        "http.response.status_code=200",
        "http.request.body.size=0",
        "http.response.body.size=7",
        "obi.queue_wait_ns=5",
    ];
    assert_eq!(attributes(&span), expected);
}

#[test]
fn a_client_span_says_all() {
    let failed = Exchange { side: Side::Client, response: None, failure: Some(Failure::Reset), ..exchange() };
    let span = assemble(&failed);
    let expected = [
        "http.request.method=GET",
        "url.scheme=http",
        "url.path=/users/42",
        "url.template=/users/{id}",
        "server.address=2001:db8::2",
        "network.protocol.version=1.1",
        "error.type=connection_reset",
        "url.full=http://[2001:db8::2]:5000/users/42",
        "server.port=5000",
        "http.request.body.size=0",
    ];
    assert_eq!((span.kind, attributes(&span)), (SpanKind::Client, expected.map(str::to_owned).to_vec()));
}

#[test]
fn every_attribute_comes_once() {
    for side in [Side::Server, Side::Client] {
        let request = Request { method: "BREW", ..exchange().request };
        let span = assemble(&Exchange { side, request, failure: Some(Failure::Timeout), ..exchange() });
        let mut names = Vec::new();
        span.attributes(|name, value| {
            assert!(!matches!(value, AttributeValue::Str("")), "{name} is empty");
            names.push(name);
        });
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        assert!(names.contains(&"http.request.method_original"));
    }
}

#[test]
fn errors_by_side() {
    let check = |side, status, failure, expected: &str| {
        let response = (status != 0).then_some(Response { status: Some(status) });
        let span = assemble(&Exchange { side, response, failure, ..exchange() });
        let http = span.detail.http();
        let status_of_span = if expected.is_empty() { Status::Unset } else { Status::Error };
        assert_eq!(
            (http.error_type, span.status()),
            (expected, status_of_span),
            "{side:?} {status} {failure:?}"
        );
    };
    for (status, server, client) in [
        (100, "", ""),
        (101, "", ""),
        (204, "", ""),
        (304, "", ""),
        (399, "", ""),
        (400, "", "400"),
        (404, "", "404"),
        (499, "", "499"),
        (500, "500", "500"),
        (503, "503", "503"),
        (999, "999", "999"),
    ] {
        check(Side::Server, status, None, server);
        check(Side::Client, status, None, client);
    }
    for side in [Side::Server, Side::Client] {
        check(side, 0, Some(Failure::Timeout), "timeout");
        check(side, 200, Some(Failure::Truncated), "response_truncated");
        check(side, 502, Some(Failure::Reset), "502");
    }
    check(Side::Server, 404, Some(Failure::Closed), "connection_closed");
    for status in 100..1000 {
        assert_eq!(status_text(status), status.to_string());
    }
    for status in [0, 99, 1000, u16::MAX] {
        assert_eq!(status_text(status), OTHER);
    }
}

#[test]
fn names() {
    let check = |method, path, expected: &str| {
        let request = Request { method, path, ..exchange().request };
        assert_eq!(assemble(&Exchange { request, ..exchange() }).name().to_string(), expected);
    };
    check("GET", "/", "GET /");
    check("OPTIONS", "*", "OPTIONS *");
    check("CONNECT", "", "CONNECT");
    check("BREW", "/pot/1", "HTTP /pot/{id}");
    check("get", "", "HTTP");
}

#[test]
fn server_addresses() {
    let check = |endpoints, host, expected: (&str, u16)| {
        let request = Request { host, ..exchange().request };
        let span = assemble(&Exchange { request, endpoints, ..exchange() });
        let http = span.detail.http();
        assert_eq!((http.server_address.as_str(), http.server_port), expected, "host `{host}`");
        assert_eq!(http.client_address.is_some(), endpoints != Endpoints::Unix);
    };
    let tcp = exchange().endpoints;
    check(tcp, "", ("192.0.2.1", 8080));
    check(tcp, "a.example", ("a.example", 8080));
    check(tcp, "a.example:81", ("a.example", 81));
    check(tcp, "a.example:", ("a.example", 8080));
    check(tcp, "a.example:99999", ("a.example", 8080));
    check(tcp, "[::1]:81", ("::1", 81));
    check(tcp, "[::1]", ("::1", 8080));
    check(tcp, "2001:db8::1", ("2001:db8::1", 8080));
    check(tcp, "[oops", ("[oops", 8080));
    check(Endpoints::Unix, "", (UNIX_ADDRESS, 0));
    check(Endpoints::Unix, "localhost", ("localhost", 0));
}

#[test]
fn trace_state_comes_only_with_a_parent() {
    let check = |traceparent, tracestate, expected: (bool, &str)| {
        let request = Request { traceparent, tracestate, ..exchange().request };
        let span = assemble(&Exchange { request, ..exchange() });
        assert_eq!((span.parent_span_id.is_some(), span.trace_state.as_str()), expected);
        assert!(span.trace_id != [0; 16] && span.span_id != [0; 8]);
    };
    check(PARENT, "a=1", (true, "a=1"));
    check(PARENT, "broken", (true, ""));
    check("", "a=1", (false, ""));
    check("00-bad", "a=1", (false, ""));
}
