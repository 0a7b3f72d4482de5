//! Tests of spans: exchanges in, name, status and attributes out.

use super::*;
use crate::protocol::{Failure, Request, Response, Semantics, WebSocket as Ended};
use crate::span::{Answer, AttributeValue, Status};

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn exchange() -> Exchange<'static> {
    Exchange {
        number: 1,
        side: Side::Server,
        tgid: 42,
        tid: 43,
        cause: crate::protocol::Cause::default(),
        answerer: None,
        endpoints: Endpoints::Ip {
            local: "192.0.2.1:8080".parse().unwrap(),
            remote: "[2001:db8::2]:5000".parse().unwrap(),
        },
        arrival: 10,
        started: 15,
        ended: 40,
        times: None,
        request_bytes: Some(0),
        response_bytes: Some(7),
        failure: None,
        encrypted: false,
        message: Message::Http(protocol::Http {
            request: Request { method: "GET", path: "/users/42", ..Request::default() },
            response: Some(Response { status: Some(200) }),
            semantics: Semantics::Http,
        }),
    }
}

/// What an exchange over HTTP said.
fn said<'a>(exchange: &Exchange<'a>) -> protocol::Http<'a> {
    let Message::Http(http) = exchange.message else { panic!("not HTTP") };
    http
}

/// The same exchange with another request.
fn asking<'a>(request: Request<'a>, exchange: Exchange<'a>) -> Exchange<'a> {
    Exchange { message: Message::Http(protocol::Http { request, ..said(&exchange) }), ..exchange }
}

/// The same exchange with another answer.
fn answering(response: Option<Response>, exchange: Exchange<'_>) -> Exchange<'_> {
    Exchange { message: Message::Http(protocol::Http { response, ..said(&exchange) }), ..exchange }
}

/// The same exchange with another meaning.
fn meaning<'a>(semantics: Semantics<'a>, exchange: Exchange<'a>) -> Exchange<'a> {
    Exchange { message: Message::Http(protocol::Http { semantics, ..said(&exchange) }), ..exchange }
}

/// A unary call that succeeded, over cleartext HTTP/2.
fn call() -> Exchange<'static> {
    let rpc = protocol::Rpc {
        status: Some(0),
        request_messages: Some(1),
        response_messages: Some(1),
        ..protocol::Rpc::default()
    };
    let request = Request {
        method: "POST",
        path: "/shop.Cart/Add",
        host: "cart:50051",
        user_agent: "grpc-go/1.76.0",
        version: Version::Http2,
        ..Request::default()
    };
    meaning(Semantics::Rpc(rpc), asking(request, exchange()))
}

fn with_rpc(change: impl FnOnce(&mut protocol::Rpc<'static>)) -> Exchange<'static> {
    let mut exchange = call();
    let Message::Http(http) = &mut exchange.message else { panic!("not HTTP") };
    if let Semantics::Rpc(rpc) = &mut http.semantics {
        change(rpc);
    }
    exchange
}

/// A chat of three messages that the client ended, and the request before it.
fn chat() -> (Exchange<'static>, Exchange<'static>) {
    let request = Request { path: "/chat/7", host: "shop.example", ..said(&exchange()).request };
    let upgrade = answering(Some(Response { status: Some(101) }), asking(request, exchange()));
    let ended = Ended {
        request_messages: 2,
        response_messages: 1,
        close_code: Some(1001),
        closed_by: Some(Side::Client),
    };
    let socket = Exchange {
        arrival: 40,
        started: 40,
        ended: 7_000,
        request_bytes: Some(11),
        failure: Some(Failure::Closed),
        ..meaning(Semantics::WebSocket(ended), upgrade)
    };
    (upgrade, socket)
}

fn assemble(exchange: &Exchange<'_>) -> Span {
    let mut assembler = Assembler::new(KnownMethods::default(), DEFAULT_ROUTES);
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
        ..said(exchange).request
    };
    let full = protocol::Rpc {
        status: Some(13),
        message: "used",
        request_messages: Some(9),
        response_messages: Some(9),
        timeout: Some(9),
        is_cancelled: true,
        is_web: true,
    };
    let (_, socket) = chat();
    for semantics in [Semantics::Rpc(full), said(&socket).semantics, said(exchange).semantics] {
        let (path, response) = ("/used/1", Some(Response { status: None }));
        let request = Request { path, ..used };
        let used = answering(response, asking(request, meaning(semantics, *exchange)));
        assembler.assemble(&used, &service, 5, &mut span);
    }
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
    let request = Request {
        query: "q=REDACTED",
        host: "shop.example:81",
        user_agent: "curl/8",
        ..said(&exchange()).request
    };
    let span = assemble(&asking(request, exchange()));
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
    let failed =
        Exchange { side: Side::Client, failure: Some(Failure::Reset), ..answering(None, exchange()) };
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
fn http2_and_encryption_show() {
    let request = Request { version: Version::Http2, host: "shop.example:443", ..said(&exchange()).request };
    let span = assemble(&Exchange { side: Side::Client, encrypted: true, ..asking(request, exchange()) });
    let attributes = attributes(&span);
    for expected in [
        "url.scheme=https",
        "network.protocol.version=2",
        "url.full=https://shop.example/users/42",
        "server.port=443",
    ] {
        assert!(attributes.iter().any(|attribute| attribute == expected), "{expected}: {attributes:?}");
    }
}

#[test]
fn what_could_not_be_read_is_left_out() {
    let request = Request { method: "", path: "", version: Version::Http2, ..said(&exchange()).request };
    let response = Some(Response { status: None });
    let span = assemble(&answering(response, asking(request, exchange())));
    assert_eq!((span.name().to_string().as_str(), span.status()), ("HTTP", Status::Unset));
    let expected = [
        "http.request.method=_OTHER",
        "url.scheme=http",
        "server.address=192.0.2.1",
        "network.protocol.version=2",
        "client.address=2001:db8::2",
        "server.port=8080",
        "client.port=5000",
        "http.request.body.size=0",
        "http.response.body.size=7",
        "obi.queue_wait_ns=5",
    ];
    assert_eq!(attributes(&span), expected);
    assert_eq!(span.detail.answer(), Answer::Unknown);
    // What broke is an error, whatever its status was.
    let span = assemble(&Exchange {
        failure: Some(Failure::Truncated),
        ..answering(response, asking(request, exchange()))
    });
    assert_eq!((span.status(), span.error_type), (Status::Error, "response_truncated"));
}

#[test]
fn a_call_at_the_server_says_all() {
    let exchange = with_rpc(|rpc| {
        (rpc.status, rpc.message, rpc.timeout) = (Some(14), "try%20later", Some(5_000_000_000));
    });
    let span = assemble(&exchange);
    assert_eq!(span.name().to_string(), "shop.Cart/Add");
    assert_eq!((span.status(), span.status_message()), (Status::Error, "try later"));
    let expected = [
        "rpc.system.name=grpc",
        "rpc.method=shop.Cart/Add",
        "rpc.response.status_code=UNAVAILABLE",
        "error.type=UNAVAILABLE",
        "server.address=cart",
        "url.scheme=http",
        "network.protocol.version=2",
        "client.address=2001:db8::2",
        "server.port=50051",
        "client.port=5000",
        "obi.rpc.request.messages=1",
        "obi.rpc.response.messages=1",
        "obi.rpc.timeout_ns=5000000000",
        "obi.queue_wait_ns=5",
    ];
    assert_eq!(attributes(&span), expected);
    assert_eq!((span.detail.is_streaming(), &*span.detail.carrier().unwrap().route), (false, ""));
}

#[test]
fn a_stream_at_the_client_says_all() {
    let exchange = with_rpc(|rpc| {
        (rpc.status, rpc.request_messages, rpc.response_messages) = (None, Some(1), Some(40));
        (rpc.is_cancelled, rpc.is_web) = (true, true);
    });
    let request = Request { version: Version::Http11, ..said(&exchange).request };
    let failure = Some(Failure::Aborted);
    let span =
        assemble(&Exchange { side: Side::Client, failure, encrypted: true, ..asking(request, exchange) });
    let expected = [
        "rpc.system.name=grpc",
        "rpc.method=shop.Cart/Add",
        "rpc.response.status_code=CANCELLED",
        "error.type=CANCELLED",
        "server.address=cart",
        "url.scheme=https",
        "network.protocol.version=1.1",
        "server.port=50051",
        "obi.rpc.request.messages=1",
        "obi.rpc.response.messages=40",
        "obi.rpc.streaming=true",
        "obi.rpc.cancelled=true",
        "obi.rpc.web=true",
    ];
    assert_eq!(attributes(&span), expected);
    assert!(span.detail.is_streaming());
}

#[test]
fn calls_without_a_method_of_their_own() {
    let check = |path: &'static str, status: Option<u32>, original: Option<&str>| {
        let exchange = with_rpc(|rpc| rpc.status = status);
        let request = Request { path, ..said(&exchange).request };
        let span = assemble(&asking(request, exchange));
        assert_eq!(span.name().to_string(), "grpc", "{path}");
        let attributes = attributes(&span);
        assert!(attributes.contains(&"rpc.method=_OTHER".to_owned()), "{attributes:?}");
        let found = attributes.iter().find_map(|attribute| attribute.strip_prefix("rpc.method_original="));
        assert_eq!(found, original, "{path}");
    };
    check("", Some(0), None);
    check("/nothing", Some(0), Some("/nothing"));
    check("/shop.Cart/Invented", Some(12), Some("shop.Cart/Invented"));
}

#[test]
fn a_websocket_is_one_long_span() {
    let (_, socket) = chat();
    let span = assemble(&socket);
    assert_eq!(span.name().to_string(), "WEBSOCKET /chat/{id}");
    assert_eq!((span.status(), span.start, span.end), (Status::Unset, 1040, 8000));
    let expected = [
        "network.protocol.name=websocket",
        "url.scheme=http",
        "url.path=/chat/7",
        "http.route=/chat/{id}",
        "server.address=shop.example",
        "client.address=2001:db8::2",
        "server.port=8080",
        "client.port=5000",
        "obi.websocket.client.messages=2",
        "obi.websocket.client.bytes=11",
        "obi.websocket.server.messages=1",
        "obi.websocket.server.bytes=7",
        "obi.websocket.close_code=1001",
        "obi.websocket.closed_by=client",
    ];
    assert_eq!(attributes(&span), expected);
}

#[test]
fn every_attribute_comes_once() {
    let (_, socket) = chat();
    for (side, semantics) in [Side::Server, Side::Client].into_iter().flat_map(|side| {
        [Semantics::Http, said(&with_rpc(|rpc| rpc.status = Some(12))).semantics, said(&socket).semantics]
            .map(|it| (side, it))
    }) {
        let request = Request { method: "BREW", ..said(&exchange()).request };
        let failure = Some(Failure::Timeout);
        let span = assemble(&Exchange { side, failure, ..meaning(semantics, asking(request, exchange())) });
        let mut names = Vec::new();
        span.attributes(|name, value| {
            assert!(!matches!(value, AttributeValue::Str("")), "{name} is empty");
            names.push(name);
        });
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        let original = match semantics {
            Semantics::Http => "http.request.method_original",
            Semantics::Rpc(_) => "rpc.method_original",
            Semantics::WebSocket(_) => "obi.websocket.closed_by",
        };
        assert!(names.contains(&original), "{names:?}");
    }
}

#[test]
fn errors_by_side() {
    let check = |side, status, failure, expected: &str| {
        let response = (status != 0).then_some(Response { status: Some(status) });
        let span = assemble(&Exchange { side, failure, ..answering(response, exchange()) });
        let status_of_span = if expected.is_empty() { Status::Unset } else { Status::Error };
        assert_eq!(
            (span.error_type, span.status()),
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
        let request = Request { method, path, ..said(&exchange()).request };
        assert_eq!(assemble(&asking(request, exchange())).name().to_string(), expected);
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
        let request = Request { host, ..said(&exchange()).request };
        let span = assemble(&Exchange { endpoints, ..asking(request, exchange()) });
        assert_eq!((span.server.address.as_str(), span.server.port), expected, "host `{host}`");
        assert_eq!(span.client.address.is_some(), matches!(endpoints, Endpoints::Ip { .. }));
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
    check(Endpoints::Unknown, "", ("", 0));
    check(Endpoints::Unknown, "a.example:81", ("a.example", 81));
}

#[test]
fn trace_state_comes_only_with_a_parent() {
    let check = |traceparent, tracestate, expected: &str| {
        let request = Request { traceparent, tracestate, ..said(&exchange()).request };
        let span = assemble(&asking(request, exchange()));
        assert_eq!(span.trace_state, expected);
    };
    check(PARENT, "a=1", "a=1");
    check(PARENT, "broken", "");
    check("", "a=1", "");
    check("00-bad", "a=1", "");
}
