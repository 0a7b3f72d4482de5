//! Header names to what we know them as, and the static table (RFC 7541 Appendix A).
//!
//! In: names, static indices. Out: [`Name`]. A value is kept only of the names listed here; of all others, cookies and
//! authorization among them, only the size is. Refuses to know values.

/// A header name, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
#[allow(missing_docs, reason = "each is the header of that name")]
pub enum Name {
    Authority,
    Method,
    Path,
    Status,
    Host,
    ContentType,
    ContentLength,
    UserAgent,
    Traceparent,
    Tracestate,
    GrpcStatus,
    GrpcMessage,
    GrpcTimeout,
    /// Known, and of no interest.
    Other,
    /// The name is in a part of the table that was not seen.
    Unknown,
}

impl Name {
    /// How many names have a value that is kept.
    pub const KEPT: usize = Self::Other as usize;

    /// Whose name this is. Names in HTTP/2 are in lower case.
    #[must_use]
    pub const fn of(name: &[u8]) -> Self {
        match name {
            b":authority" => Self::Authority,
            b":method" => Self::Method,
            b":path" => Self::Path,
            b":status" => Self::Status,
            b"host" => Self::Host,
            b"content-type" => Self::ContentType,
            b"content-length" => Self::ContentLength,
            b"user-agent" => Self::UserAgent,
            b"traceparent" => Self::Traceparent,
            b"tracestate" => Self::Tracestate,
            b"grpc-status" => Self::GrpcStatus,
            b"grpc-message" => Self::GrpcMessage,
            b"grpc-timeout" => Self::GrpcTimeout,
            _ => Self::Other,
        }
    }

    /// Whether its value is kept.
    #[must_use]
    pub const fn is_kept(self) -> bool {
        (self as usize) < Self::KEPT
    }
}

/// One line of the static table.
#[derive(Debug, Clone, Copy)]
pub(super) struct StaticEntry {
    pub(super) name: Name,
    /// Bytes of the name.
    pub(super) name_length: u16,
    pub(super) value: &'static [u8],
}

/// Lines of the static table.
pub(super) const N_STATIC: u32 = 61;

/// The static entry of an index from 1 to [`N_STATIC`].
pub(super) fn static_entry(index: u32) -> Option<&'static StaticEntry> {
    STATIC.get(index.checked_sub(1)? as usize)
}

static STATIC: [StaticEntry; N_STATIC as usize] = {
    let mut made = [StaticEntry { name: Name::Other, name_length: 0, value: b"" }; N_STATIC as usize];
    let mut index = 0;
    while index < made.len() {
        let (name, value) = TEXTS[index];
        made[index] = StaticEntry {
            name: Name::of(name.as_bytes()),
            name_length: name.len() as u16,
            value: value.as_bytes(),
        };
        index += 1;
    }
    made
};

const TEXTS: [(&str, &str); N_STATIC as usize] = [
    (":authority", ""),
    (":method", "GET"),
    (":method", "POST"),
    (":path", "/"),
    (":path", "/index.html"),
    (":scheme", "http"),
    (":scheme", "https"),
    (":status", "200"),
    (":status", "204"),
    (":status", "206"),
    (":status", "304"),
    (":status", "400"),
    (":status", "404"),
    (":status", "500"),
    ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"),
    ("accept-language", ""),
    ("accept-ranges", ""),
    ("accept", ""),
    ("access-control-allow-origin", ""),
    ("age", ""),
    ("allow", ""),
    ("authorization", ""),
    ("cache-control", ""),
    ("content-disposition", ""),
    ("content-encoding", ""),
    ("content-language", ""),
    ("content-length", ""),
    ("content-location", ""),
    ("content-range", ""),
    ("content-type", ""),
    ("cookie", ""),
    ("date", ""),
    ("etag", ""),
    ("expect", ""),
    ("expires", ""),
    ("from", ""),
    ("host", ""),
    ("if-match", ""),
    ("if-modified-since", ""),
    ("if-none-match", ""),
    ("if-range", ""),
    ("if-unmodified-since", ""),
    ("last-modified", ""),
    ("link", ""),
    ("location", ""),
    ("max-forwards", ""),
    ("proxy-authenticate", ""),
    ("proxy-authorization", ""),
    ("range", ""),
    ("referer", ""),
    ("refresh", ""),
    ("retry-after", ""),
    ("server", ""),
    ("set-cookie", ""),
    ("strict-transport-security", ""),
    ("transfer-encoding", ""),
    ("user-agent", ""),
    ("vary", ""),
    ("via", ""),
    ("www-authenticate", ""),
];
