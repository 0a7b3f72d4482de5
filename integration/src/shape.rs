//! What one exchange looks like on the wire: the protocol between every workload client and server.
//!
//! The target carries it: `/e/<id>/<status>/<framing>/<response bytes>?<option>=<number>&…`, where framing is
//! `length`, `chunked` or `close`. Every server honours the path; the options that a server honours are in
//! [`crate::server::Features`]. In: targets. Out: shapes, and what both ends must have seen. Refuses to know
//! sockets and the agent.

use serde::{Deserialize, Serialize};

/// How the end of a response body is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Framing {
    /// `Content-Length`.
    Length,
    /// Chunked transfer coding.
    Chunked,
    /// The end of the connection.
    Close,
}

impl Framing {
    /// Its word in the target.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Length => "length",
            Self::Chunked => "chunked",
            Self::Close => "close",
        }
    }
}

/// How the end of a request body is marked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RequestFraming {
    /// No body, no framing header.
    None,
    /// `Content-Length`.
    Length,
    /// Chunked transfer coding.
    Chunked,
}

/// How an exchange ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    /// With the last byte of a whole response.
    Whole,
    /// The server closes after this many body bytes, which are fewer than it promised.
    ServerCloses(u64),
    /// The server resets after this many body bytes.
    ServerResets(u64),
    /// The client resets after it read at least this many bytes of the response, head included.
    ClientResets(u64),
    /// The client closes without waiting for any response.
    ClientLeaves,
    /// `101`: both ends then exchange bytes that are not HTTP.
    Upgrade,
}

/// One exchange. Sizes are bytes, times are microseconds.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shape {
    /// Method as sent.
    pub method: String,
    /// Final status.
    pub status: u16,
    /// How the response body ends.
    pub framing: Framing,
    /// Response body, without chunk framing; what a `HEAD` only promises.
    pub response_bytes: u64,
    /// How the request body ends.
    pub request_framing: RequestFraming,
    /// Request body, without chunk framing.
    pub request_bytes: u64,
    /// `d`: pause before the response head.
    pub delay: u32,
    /// `p`: pieces the response body is sent in, at least 1.
    pub pieces: u32,
    /// `g`: pause between pieces.
    pub gap: u32,
    /// `i`: interim responses (103) before the final one.
    pub interim: u32,
    /// `t`: trailers and chunk extensions, in both directions where chunked.
    pub trailers: bool,
    /// `h`: pieces the response head is sent in; 0 is byte by byte.
    pub head_pieces: u32,
    /// Bytes of filler header in the request, to push its head beyond limits.
    pub filler: u32,
    /// Sent as HTTP/1.0.
    pub old: bool,
    /// The target is in absolute form.
    pub absolute: bool,
    /// How it ends.
    pub ending: Ending,
}

impl Default for Shape {
    fn default() -> Self {
        Self {
            method: "GET".into(),
            status: 200,
            framing: Framing::Length,
            response_bytes: 17,
            request_framing: RequestFraming::None,
            request_bytes: 0,
            delay: 0,
            pieces: 1,
            gap: 0,
            interim: 0,
            trailers: false,
            head_pieces: 1,
            filler: 0,
            old: false,
            absolute: false,
            ending: Ending::Whole,
        }
    }
}

impl Shape {
    /// Bodies of many records, pieces and chunks, in both directions.
    #[must_use]
    pub fn large(framing: Framing, request_framing: RequestFraming) -> Self {
        Self {
            method: "POST".into(),
            framing,
            request_framing,
            request_bytes: 5_000_000,
            response_bytes: 7_000_000,
            pieces: 40,
            ..Self::default()
        }
    }

    /// Path and query that ask a server for this shape.
    #[must_use]
    pub fn target(&self, id: &str) -> String {
        let mut target = format!("/e/{id}/{}/{}/{}", self.status, self.framing.word(), self.response_bytes);
        let (cut, reset) = match self.ending {
            Ending::ServerCloses(after) => (after + 1, 0),
            Ending::ServerResets(after) => (0, after + 1),
            _ => (0, 0),
        };
        let options = [
            ("d", u64::from(self.delay), 0),
            ("p", u64::from(self.pieces), 1),
            ("g", u64::from(self.gap), 0),
            ("i", u64::from(self.interim), 0),
            ("t", u64::from(self.trailers), 0),
            ("h", u64::from(self.head_pieces), 1),
            ("c", cut, 0),
            ("r", reset, 0),
        ];
        let mut separator = '?';
        for (name, value, default) in options {
            if value != default {
                target.push_str(&format!("{separator}{name}={value}"));
                separator = '&';
            }
        }
        target
    }

    /// The response part of a shape and the id, from a target in origin or absolute form.
    #[must_use]
    pub fn parse(method: &str, target: &str) -> Option<(String, Self)> {
        let target =
            target.strip_prefix("http://").map_or(target, |rest| &rest[rest.find('/').unwrap_or(0)..]);
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let mut parts = path.strip_prefix("/e/")?.split('/');
        let id = parts.next()?.to_owned();
        let status = parts.next()?.parse().ok()?;
        let framing = match parts.next()? {
            "length" => Framing::Length,
            "chunked" => Framing::Chunked,
            "close" => Framing::Close,
            _ => return None,
        };
        let response_bytes = parts.next()?.parse().ok()?;
        let mut shape = Self { method: method.into(), status, framing, response_bytes, ..Self::default() };
        if status == 101 {
            shape.ending = Ending::Upgrade;
        }
        for (name, value) in query.split('&').filter_map(|pair| pair.split_once('=')) {
            let value: u64 = value.parse().ok()?;
            let small = u32::try_from(value).ok()?;
            match name {
                "d" => shape.delay = small,
                "p" => shape.pieces = small,
                "g" => shape.gap = small,
                "i" => shape.interim = small,
                "t" => shape.trailers = small != 0,
                "h" => shape.head_pieces = small,
                "c" => shape.ending = Ending::ServerCloses(value.checked_sub(1)?),
                "r" => shape.ending = Ending::ServerResets(value.checked_sub(1)?),
                _ => return None,
            }
        }
        Some((id, shape))
    }

    /// Whether a response to this shape has no body whatever its headers say.
    #[must_use]
    pub fn is_bodiless(&self) -> bool {
        self.method == "HEAD" || matches!(self.status, 101 | 204 | 304)
    }

    /// Body bytes that a whole response carries.
    #[must_use]
    pub fn body_bytes(&self) -> u64 {
        if self.is_bodiless() { 0 } else { self.response_bytes }
    }

    /// Whether the connection cannot carry a further exchange.
    #[must_use]
    pub fn ends_connection(&self) -> bool {
        self.old || self.ending != Ending::Whole || (self.framing == Framing::Close && !self.is_bodiless())
    }

    /// Short text for reports: the request line and what is special.
    #[must_use]
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.method, self.target("…"));
        if self.request_framing != RequestFraming::None {
            text.push_str(&format!(" request {:?} {}", self.request_framing, self.request_bytes));
        }
        for (set, word) in
            [(self.old, "HTTP/1.0"), (self.absolute, "absolute"), (self.filler > 0, "long head")]
        {
            if set {
                text.push_str(&format!(" {word}"));
            }
        }
        if self.ending != Ending::Whole {
            text.push_str(&format!(" {:?}", self.ending));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(shape: &Shape) {
        let (id, parsed) = Shape::parse(&shape.method, &shape.target("00ff")).expect("own target parses");
        assert_eq!(id, "00ff");
        assert_eq!(&parsed, shape);
    }

    #[test]
    fn targets_parse_back() {
        check(&Shape::default());
        check(&Shape { status: 503, framing: Framing::Chunked, trailers: true, ..Shape::default() });
        check(&Shape { delay: 5, pieces: 3, gap: 7, interim: 2, head_pieces: 0, ..Shape::default() });
        check(&Shape { ending: Ending::ServerCloses(0), ..Shape::default() });
        check(&Shape { ending: Ending::ServerResets(9), ..Shape::default() });
        check(&Shape { status: 101, ending: Ending::Upgrade, ..Shape::default() });
    }

    #[test]
    fn foreign_targets_are_refused() {
        for target in ["/", "/e/1", "/e/1/200/odd/5", "/e/1/200/length/5?z=1", "/e/1/200/length/5?c=0"] {
            assert_eq!(Shape::parse("GET", target), None, "{target}");
        }
        assert!(Shape::parse("GET", "http://host:80/e/1/200/length/5").is_some());
    }
}
