//! A head to its raw fields, line by line.
//!
//! In: the bytes of a request head. Out: [`Fields`], borrowed. `httparse` reads the ordinary head; what it
//! refuses (more header lines than its table holds, folded lines, stray bytes that servers in the wild
//! accept) is read by a lenient line scan, because the server has answered it and so must we count it.
//! Refuses to know what may be shown.

use super::http1::Parsed;
use std::mem::MaybeUninit;

/// Header lines that the fast path reads; longer heads take the line scan.
const MAX_HEADERS: usize = 64;

/// `tracestate` may come in several header lines; more than this many are ignored.
pub(super) const MAX_TRACESTATES: usize = 4;

/// The parts of a request head that we read. All others, cookies and authorization first, are passed over.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Fields<'h> {
    pub(super) method: &'h [u8],
    pub(super) target: &'h [u8],
    pub(super) minor_version: u8,
    pub(super) host: Option<&'h [u8]>,
    pub(super) user_agent: Option<&'h [u8]>,
    pub(super) traceparent: Option<&'h [u8]>,
    pub(super) tracestates: [&'h [u8]; MAX_TRACESTATES],
    n_tracestates: usize,
    pub(super) content_type: Option<&'h [u8]>,
    pub(super) grpc_timeout: Option<&'h [u8]>,
}

impl<'h> Fields<'h> {
    pub(super) fn read(head: &'h [u8]) -> Parsed<Self> {
        let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut []);
        match request.parse_with_uninit_headers(head, &mut headers) {
            Ok(httparse::Status::Partial) => return Parsed::Incomplete,
            Ok(httparse::Status::Complete(_)) => {}
            Err(_) => return scan(head),
        }
        let (Some(method), Some(target), Some(minor_version)) =
            (request.method, request.path, request.version)
        else {
            return Parsed::Invalid;
        };
        let mut fields =
            Self { method: method.as_bytes(), target: target.as_bytes(), minor_version, ..Self::default() };
        for header in request.headers.iter() {
            fields.header(header.name.as_bytes(), header.value);
        }
        Parsed::Whole(fields)
    }

    fn header(&mut self, name: &[u8], value: &'h [u8]) {
        // Few names have these lengths: most lines cost one comparison of numbers.
        match name.len() {
            4 if name.eq_ignore_ascii_case(b"host") => self.host = self.host.or(Some(value)),
            10 if name.eq_ignore_ascii_case(b"user-agent") => {
                self.user_agent = self.user_agent.or(Some(value));
            }
            10 if name.eq_ignore_ascii_case(b"tracestate") => {
                if let Some(place) = self.tracestates.get_mut(self.n_tracestates) {
                    *place = value;
                    self.n_tracestates += 1;
                }
            }
            // Two parents are no parent (W3C Trace Context §3.2): an empty value is invalid downstream.
            11 if name.eq_ignore_ascii_case(b"traceparent") => {
                self.traceparent = Some(if self.traceparent.is_some() { &[] } else { value });
            }
            12 if name.eq_ignore_ascii_case(b"content-type") => {
                self.content_type = self.content_type.or(Some(value));
            }
            12 if name.eq_ignore_ascii_case(b"grpc-timeout") => self.grpc_timeout = Some(value),
            _ => {}
        }
    }
}

/// Reads any head that has a request line with a method, a target and an HTTP/1 version.
fn scan(head: &[u8]) -> Parsed<Fields<'_>> {
    // What follows the last line feed is no line yet.
    let lines = head.split_inclusive(|byte| *byte == b'\n').filter_map(|line| line.strip_suffix(b"\n"));
    let mut lines = lines.map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let Some(mut fields) = lines.by_ref().find(|line| !line.is_empty()).and_then(request_line) else {
        return Parsed::Invalid;
    };
    for line in lines {
        if line.is_empty() {
            return Parsed::Whole(fields);
        }
        // A folded line starts with white space: its name is empty or not a name, so it is passed over.
        if let Some(colon) = line.iter().position(|byte| *byte == b':') {
            fields.header(line[..colon].trim_ascii_end(), line[colon + 1..].trim_ascii());
        }
    }
    Parsed::Incomplete
}

fn request_line(line: &[u8]) -> Option<Fields<'_>> {
    let (method, rest) = split_once(line, line.iter().position(|byte| *byte == b' ')?);
    let (target, version) = split_once(rest, rest.iter().rposition(|byte| *byte == b' ')?);
    let [minor @ b'0'..=b'9'] = version.strip_prefix(b"HTTP/1.")? else { return None };
    let target = target.trim_ascii();
    let is_token = |byte: &u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte);
    if method.is_empty() || target.is_empty() || !method.iter().all(is_token) {
        return None;
    }
    Some(Fields { method, target, minor_version: (minor - b'0').min(1), ..Fields::default() })
}

fn split_once(bytes: &[u8], at: usize) -> (&[u8], &[u8]) {
    (&bytes[..at], &bytes[at + 1..])
}
