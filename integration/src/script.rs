//! Shapes as HTTP/1 bytes, and heads read back.
//!
//! In: a [`Shape`]. Out: the exact bytes of its request and response. Refuses to know sockets and time.

use std::io;

use crate::plan::Call;
use crate::shape::{Ending, Framing, RequestFraming, Shape};
use crate::wire::Outgoing;

/// What both ends send after a `101`: it looks like HTTP and is none.
pub const TUNNEL: &[u8] = b"GET /tunnel HTTP/1.1\r\nhost: tunnel\r\n\r\n";
/// Header fields that a workload's head may have.
const FIELDS: usize = 64;

/// How a received body ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BodyEnd {
    /// After this many bytes.
    Length(u64),
    /// After the last chunk.
    Chunked,
    /// With the connection.
    Close,
}

/// A request head, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RequestHead {
    /// Method.
    pub method: String,
    /// Target as sent.
    pub target: String,
    /// How the body ends.
    pub body: BodyEnd,
    /// The client wants a `100 Continue`.
    pub expects_continue: bool,
    /// The connection ends after this exchange: HTTP/1.0 or `Connection: close`.
    pub is_last: bool,
}

/// A response head, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResponseHead {
    /// Status.
    pub status: u16,
    /// How the body ends, the request's method considered.
    pub body: BodyEnd,
    /// `x-handler-ns`.
    pub handler_ns: Option<u64>,
    /// The server closes the connection after this response.
    pub is_last: bool,
}

fn plain(bytes: impl Into<Vec<u8>>) -> Outgoing {
    Outgoing { bytes: bytes.into(), is_body: false }
}

fn body(byte: u8, length: usize) -> Outgoing {
    Outgoing { bytes: vec![byte; length], is_body: true }
}

fn as_length(bytes: u64) -> usize {
    usize::try_from(bytes).expect("workload bodies fit into memory")
}

/// A chunk with its framing; nothing for an empty one, which would end the body.
fn chunk(byte: u8, length: usize, has_extension: bool) -> Vec<Outgoing> {
    if length == 0 {
        return Vec::new();
    }
    let extension = if has_extension { ";name=\"a;b\"" } else { "" };
    vec![plain(format!("{length:x}{extension}\r\n")), body(byte, length), plain("\r\n")]
}

fn last_chunk(has_trailers: bool) -> Outgoing {
    plain(if has_trailers { "0;last\r\nx-digest: 0\r\nx-more: GET / HTTP/1.1\r\n\r\n" } else { "0\r\n\r\n" })
}

/// The whole request of `call`, head first.
#[must_use]
pub fn request(call: &Call, host: &str) -> Vec<Outgoing> {
    let shape = &call.shape;
    let mut target = shape.target(&call.id);
    if shape.absolute {
        target = format!("http://{host}{target}");
    }
    let version = if shape.old { "1.0" } else { "1.1" };
    let mut head =
        format!("{} {target} HTTP/{version}\r\nhost: {host}\r\nuser-agent: shape\r\n", shape.method);
    if shape.filler > 0 {
        head.push_str(&format!("x-filler: {}\r\n", "f".repeat(shape.filler as usize)));
    }
    if shape.ending == Ending::Upgrade {
        head.push_str("connection: upgrade\r\nupgrade: echo\r\n");
    }
    let length = as_length(shape.request_bytes);
    match shape.request_framing {
        RequestFraming::None => vec![plain(head + "\r\n")],
        RequestFraming::Length => {
            vec![plain(format!("{head}content-length: {length}\r\n\r\n")), body(b'q', length)]
        }
        RequestFraming::Chunked => {
            let mut pieces = vec![plain(head + "transfer-encoding: chunked\r\n\r\n")];
            pieces.extend(chunk(b'q', length / 3, shape.trailers));
            pieces.extend(chunk(b'q', length - length / 3, shape.trailers));
            pieces.push(last_chunk(shape.trailers));
            pieces
        }
    }
}

/// Interim responses and the final head of `shape`, each head cut as the shape says.
#[must_use]
pub fn response_heads(shape: &Shape, handler_ns: u64) -> Vec<Outgoing> {
    let interim = "HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n".repeat(shape.interim as usize);
    let version = if shape.old { "1.0" } else { "1.1" };
    let mut head = format!("HTTP/{version} {} Status\r\nx-handler-ns: {handler_ns}\r\n", shape.status);
    match shape.framing {
        _ if shape.status == 101 => head.push_str("connection: upgrade\r\nupgrade: echo\r\n"),
        _ if shape.status == 204 => {}
        Framing::Length => head.push_str(&format!("content-length: {}\r\n", shape.response_bytes)),
        Framing::Chunked => head.push_str("transfer-encoding: chunked\r\n"),
        Framing::Close => head.push_str("connection: close\r\n"),
    }
    let bytes = (interim + &head + "\r\n").into_bytes();
    let pieces = if shape.head_pieces == 0 { bytes.len() } else { shape.head_pieces as usize };
    bytes.chunks(bytes.len().div_ceil(pieces)).map(plain).collect()
}

/// The body of `shape` in its pieces, each with its framing. A server that breaks off sends only so much.
#[must_use]
pub fn response_body(shape: &Shape) -> Vec<Vec<Outgoing>> {
    if shape.is_bodiless() {
        return Vec::new();
    }
    let whole = as_length(shape.response_bytes);
    let sent = match shape.ending {
        Ending::ServerCloses(after) | Ending::ServerResets(after) => as_length(after).min(whole),
        _ => whole,
    };
    let count = shape.pieces.max(1) as usize;
    let mut pieces: Vec<Vec<Outgoing>> = (0..count)
        .map(|index| {
            let length = sent * (index + 1) / count - sent * index / count;
            match shape.framing {
                Framing::Chunked => chunk(b'b', length, shape.trailers),
                _ => vec![body(b'b', length)],
            }
        })
        .collect();
    if shape.framing == Framing::Chunked && shape.ending == Ending::Whole {
        pieces.last_mut().expect("there is at least one piece").push(last_chunk(shape.trailers));
    }
    pieces
}

/// What matters of the fields of any head.
#[derive(Default)]
struct Fields {
    length: Option<u64>,
    is_chunked: bool,
    is_close: bool,
    expects_continue: bool,
    handler_ns: Option<u64>,
}

fn fields(headers: &[httparse::Header<'_>]) -> Fields {
    let mut found = Fields::default();
    for header in headers {
        let value = str::from_utf8(header.value).unwrap_or_default().trim().to_ascii_lowercase();
        match header.name.to_ascii_lowercase().as_str() {
            "content-length" => found.length = value.parse().ok(),
            "transfer-encoding" => found.is_chunked = value == "chunked",
            "connection" => found.is_close = value == "close",
            "expect" => found.expects_continue = value == "100-continue",
            "x-handler-ns" => found.handler_ns = value.parse().ok(),
            _ => {}
        }
    }
    found
}

fn malformed(head: &[u8]) -> io::Error {
    io::Error::other(format!("not a head: {}", head.escape_ascii()))
}

/// Reads a whole request head.
///
/// # Errors
/// When it is none.
pub fn parse_request(head: &[u8]) -> io::Result<RequestHead> {
    let mut headers = [httparse::EMPTY_HEADER; FIELDS];
    let mut request = httparse::Request::new(&mut headers);
    let complete = request.parse(head).is_ok_and(|status| status.is_complete());
    let (true, Some(method), Some(target), Some(version)) =
        (complete, request.method, request.path, request.version)
    else {
        return Err(malformed(head));
    };
    let (method, target) = (method.to_owned(), target.to_owned());
    let found = fields(request.headers);
    let body = if found.is_chunked { BodyEnd::Chunked } else { BodyEnd::Length(found.length.unwrap_or(0)) };
    let is_last = version == 0 || found.is_close;
    Ok(RequestHead { method, target, body, expects_continue: found.expects_continue, is_last })
}

/// Reads a whole response head to a request with `method`.
///
/// # Errors
/// When it is none.
pub fn parse_response(head: &[u8], method: &str) -> io::Result<ResponseHead> {
    let mut headers = [httparse::EMPTY_HEADER; FIELDS];
    let mut response = httparse::Response::new(&mut headers);
    let complete = response.parse(head).is_ok_and(|status| status.is_complete());
    let (true, Some(status)) = (complete, response.code) else {
        return Err(malformed(head));
    };
    let found = fields(response.headers);
    let body = match found {
        _ if method == "HEAD" || status < 200 || matches!(status, 204 | 304) => BodyEnd::Length(0),
        Fields { is_chunked: true, .. } => BodyEnd::Chunked,
        Fields { length: Some(length), .. } => BodyEnd::Length(length),
        _ => BodyEnd::Close,
    };
    Ok(ResponseHead { status, body, handler_ns: found.handler_ns, is_last: found.is_close })
}
