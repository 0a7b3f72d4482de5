//! HTTP/1 heads to [`Request`] and [`Response`] (RFC 9112).
//!
//! In: the bytes of one head. Out: what the span needs of it, redacted and bounded; "not enough bytes" is a
//! value. Pure: no clock, no I/O, no panic, and no allocation once the text buffer has grown.
//! Refuses to know bodies: the kernel side has framed them.

use super::grpc::{self, Content};
use super::http1_lines::{Fields, MAX_TRACESTATES};
use super::redact::{Target, host_of, split_target, write_path, write_query};
use super::{Request, Response, Version};

/// Outcome of a parser.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parsed<T> {
    /// The head was read.
    Whole(T),
    /// The head has no end yet.
    Incomplete,
    /// No further bytes will make this an HTTP/1 head.
    Invalid,
}

impl<T> Parsed<T> {
    /// The value of a whole head.
    pub fn whole(self) -> Option<T> {
        match self {
            Self::Whole(value) => Some(value),
            Self::Incomplete | Self::Invalid => None,
        }
    }
}

/// Longest text kept of each field, bytes; the rest is cut at a character boundary.
mod limit {
    pub(super) const METHOD: usize = 64;
    pub(super) const PATH: usize = 2048;
    pub(super) const QUERY: usize = 2048;
    pub(super) const HOST: usize = 255;
    pub(super) const USER_AGENT: usize = 512;
    pub(super) const TRACEPARENT: usize = 256;
    pub(super) const TRACESTATE: usize = 2048;
}

const N_FIELDS: usize = 7;

/// The texts of one request in one buffer, which keeps its memory from request to request.
#[derive(Debug, Default, Clone)]
pub struct RequestText {
    text: String,
    /// Where each field ends; it starts where the one before ends. Order as in [`RequestText::request`].
    ends: [u16; N_FIELDS],
    n_fields: usize,
    version: Version,
    content: Content,
    timeout: Option<u64>,
}

/// What a request consists of, still as sent.
pub(super) struct RequestParts<'a> {
    pub(super) method: &'a [u8],
    pub(super) target: Target<'a>,
    /// Without user information.
    pub(super) host: &'a [u8],
    pub(super) user_agent: &'a [u8],
    pub(super) traceparent: &'a [u8],
    pub(super) tracestates: [&'a [u8]; MAX_TRACESTATES],
    pub(super) version: Version,
    pub(super) content: Content,
    /// `grpc-timeout`, ns.
    pub(super) timeout: Option<u64>,
}

/// Reads a request head. Values that may be secret are replaced before they reach `text`; bytes that are
/// not UTF-8 become U+FFFD.
pub fn parse_request<'a>(head: &[u8], text: &'a mut RequestText) -> Parsed<Request<'a>> {
    text.clear();
    let fields = match Fields::read(head) {
        Parsed::Whole(fields) => fields,
        Parsed::Incomplete => return Parsed::Incomplete,
        Parsed::Invalid => return Parsed::Invalid,
    };
    let target = split_target(fields.method, fields.target);
    text.write(&RequestParts {
        method: fields.method,
        target,
        host: target.authority.or(fields.host.map(host_of)).unwrap_or_default(),
        user_agent: fields.user_agent.unwrap_or_default(),
        traceparent: fields.traceparent.unwrap_or_default(),
        tracestates: fields.tracestates,
        version: Version::http1(fields.minor_version),
        content: fields.content_type.map_or(Content::Other, Content::of),
        timeout: fields.grpc_timeout.and_then(grpc::timeout),
    });
    Parsed::Whole(text.request())
}

/// Reads the status line of a response head; its header lines are framing, which the kernel side has done.
/// The first [`STATUS_LINE_BYTES`] bytes suffice.
#[must_use]
pub fn parse_response(head: &[u8]) -> Parsed<Response> {
    let mut response = httparse::Response::new(&mut []);
    // Without room for headers the parser stops behind the status line, with whatever verdict.
    let outcome = httparse::ParserConfig::default()
        .allow_multiple_spaces_in_response_status_delimiters(true)
        .parse_response(&mut response, head);
    match (response.version, response.code) {
        (Some(_), Some(status @ 100..=999)) => Parsed::Whole(Response { status: Some(status) }),
        _ if matches!(outcome, Ok(httparse::Status::Partial)) => Parsed::Incomplete,
        _ => Parsed::Invalid,
    }
}

/// Enough of a response head for [`parse_response`]: `HTTP/1.1 200` and some spaces.
pub const STATUS_LINE_BYTES: usize = 24;

/// Makes a head of which only the first bytes were copied parse: cuts it after its last whole line and ends
/// it there. A cut request line loses its unfinished version and counts as HTTP/1.1.
pub fn terminate_truncated(head: &mut Vec<u8>) {
    let start = head.iter().position(|byte| !matches!(byte, b'\r' | b'\n')).unwrap_or(head.len());
    match head[start..].iter().rposition(|byte| *byte == b'\n') {
        Some(newline) => {
            head.truncate(start + newline + 1);
            head.extend_from_slice(b"\r\n");
        }
        None => {
            let mut spaces = head[start..].iter().enumerate().filter(|(_, byte)| **byte == b' ');
            if let Some((second, _)) = spaces.nth(1) {
                head.truncate(start + second);
            }
            head.extend_from_slice(b" HTTP/1.1\r\n\r\n");
        }
    }
}

impl RequestText {
    /// The request last parsed into this buffer; empty fields before that.
    #[must_use]
    pub fn request(&self) -> Request<'_> {
        let mut start = 0;
        let [method, path, query, host, user_agent, traceparent, tracestate] = self.ends.map(|end| {
            let field = self.text.get(start..usize::from(end)).unwrap_or_default();
            start = usize::from(end);
            field
        });
        Request {
            method,
            path,
            query,
            version: self.version,
            host,
            user_agent,
            traceparent,
            tracestate,
            is_truncated: false,
        }
    }

    /// What the request's body is.
    pub(super) fn content(&self) -> Content {
        self.content
    }

    /// `grpc-timeout`, ns.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.timeout
    }

    /// Another request takes the place of the one before. Values that may be secret are replaced.
    pub(super) fn write(&mut self, parts: &RequestParts<'_>) {
        self.clear();
        (self.version, self.content, self.timeout) = (parts.version, parts.content, parts.timeout);
        self.field(limit::METHOD, |field| field.push(parts.method));
        self.field(limit::PATH, |field| write_path(parts.target.path, |bytes| field.push(bytes)));
        self.field(limit::QUERY, |field| write_query(parts.target.query, |bytes| field.push(bytes)));
        self.field(limit::HOST, |field| field.push(parts.host));
        self.field(limit::USER_AGENT, |field| field.push(parts.user_agent));
        self.field(limit::TRACEPARENT, |field| field.push(parts.traceparent));
        self.field(limit::TRACESTATE, |field| {
            let stated = parts.tracestates.into_iter().filter(|state| !state.is_empty());
            for (index, state) in stated.enumerate() {
                field.push(if index > 0 { b"," } else { b"" });
                field.push(state);
            }
        });
    }

    /// Forgets the request and keeps the memory.
    pub fn clear(&mut self) {
        self.text.clear();
        self.ends = [0; N_FIELDS];
        self.n_fields = 0;
    }

    /// Bytes of memory held.
    #[must_use]
    pub fn capacity(&self) -> usize {
        self.text.capacity()
    }

    fn field(&mut self, limit: usize, fill: impl FnOnce(&mut Field<'_>)) {
        let end = self.text.len() + limit;
        fill(&mut Field { text: &mut self.text, end });
        self.text.truncate(self.text.floor_char_boundary(end));
        self.ends[self.n_fields] = u16::try_from(self.text.len()).unwrap_or(u16::MAX);
        self.n_fields += 1;
    }
}

/// One field while it is written.
struct Field<'a> {
    text: &'a mut String,
    /// Length of `text` at which this field is full.
    end: usize,
}

impl Field<'_> {
    fn push(&mut self, bytes: &[u8]) {
        // One byte more than fits, so that the cut sees whether a character straddles it.
        let room = (self.end + 1).saturating_sub(self.text.len());
        let bytes = &bytes[..bytes.len().min(room)];
        if let Ok(valid) = str::from_utf8(bytes) {
            return self.text.push_str(valid);
        }
        for chunk in bytes.utf8_chunks() {
            self.text.push_str(chunk.valid());
            if !chunk.invalid().is_empty() {
                self.text.push(char::REPLACEMENT_CHARACTER);
            }
        }
    }
}

#[cfg(test)]
#[path = "http1_tests.rs"]
mod tests;
