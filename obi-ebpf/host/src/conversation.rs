//! Random HTTP/1 conversations, written with no regard to how the kernel side reads them.
//!
//! In: a source of chance. Out: the two byte streams of one connection, and the truth about every message in
//! them: where its head is, which bytes are body. Refuses to know segments and records.
#![forbid(unsafe_code)]

use fastrand::Rng;
use std::ops::Range;

/// What a byte of a stream is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Has to be read: heads, chunk sizes, trailers.
    Framing,
    /// Body; may pass unseen.
    Body,
    /// The CRLF behind a chunk: no body, may pass unseen.
    Filler,
    /// Behind a tunnel's head: nothing that matters.
    Tunnel,
}

/// One direction of a connection.
#[derive(Debug, Clone, Default)]
pub struct Stream {
    /// What is sent.
    pub bytes: Vec<u8>,
    /// What each byte is.
    pub kinds: Vec<Kind>,
}

/// A message in its stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Empty lines before a request included.
    pub head: Range<usize>,
    /// Where the message ends.
    pub end: usize,
    /// Body bytes without chunk framing.
    pub body_bytes: u64,
}

/// One request and the answer to it.
#[derive(Debug, Clone)]
pub struct Exchange {
    /// In the request stream.
    pub request: Message,
    /// In the response stream, behind its interim responses.
    pub response: Message,
    /// Where the first interim response starts, or the response.
    pub first_answer: usize,
    /// The response's body ends with the connection.
    pub until_close: bool,
    /// 101, or a successful CONNECT.
    pub tunnel: bool,
}

/// A whole conversation.
#[derive(Debug, Clone, Default)]
pub struct Conversation {
    /// Client to server.
    pub requests: Stream,
    /// Server to client.
    pub responses: Stream,
    /// In order.
    pub exchanges: Vec<Exchange>,
}

impl Stream {
    fn put(&mut self, bytes: &[u8], kind: Kind) {
        self.bytes.extend_from_slice(bytes);
        self.kinds.resize(self.bytes.len(), kind);
    }

    /// Body bytes in a range.
    pub fn body_bytes(&self, range: Range<usize>) -> u64 {
        self.kinds[range].iter().filter(|kind| **kind == Kind::Body).count() as u64
    }
}

impl Conversation {
    /// `n` exchanges; only the last may take the connection with it (a tunnel, a body until the end).
    pub fn random(rng: &mut Rng, n: usize) -> Self {
        let mut all = Self::default();
        for nth in 0..n {
            all.exchange(rng, nth + 1 == n);
        }
        all
    }

    /// Bodies that do not look like HTTP: who looks for a head in the middle of a stream would find it in them.
    pub fn with_plain_bodies(mut self) -> Self {
        for stream in [&mut self.requests, &mut self.responses] {
            let bodies = stream.bytes.iter_mut().zip(&stream.kinds).filter(|(_, kind)| **kind == Kind::Body);
            bodies.for_each(|(byte, _)| *byte = b'x');
        }
        self
    }

    fn exchange(&mut self, rng: &mut Rng, last: bool) {
        let method = *rng.choice(METHODS).expect("methods");
        let upgrade = last && rng.u8(..8) == 0;
        let start = self.requests.bytes.len();
        // Some clients put an empty line between requests.
        for _ in 0..if rng.u8(..6) == 0 { rng.usize(1..3) } else { 0 } {
            self.requests.put(line_end(rng), Kind::Framing);
        }
        let target_bytes = if rng.u8(..8) == 0 { rng.usize(1..900) } else { rng.usize(1..40) };
        let target = random_text(rng, target_bytes);
        let line = format!("{method} /{target} HTTP/1.{}", rng.u8(..2));
        let body = if upgrade || method == "CONNECT" { Body::None } else { Body::random(rng) };
        let request = put_message(&mut self.requests, rng, start, &line, self.exchanges.len(), body, false);

        let first_answer = self.responses.bytes.len();
        let mut interim = *rng.choice(&[0, 0, 0, 1, 2]).expect("choices");
        while interim > 0 {
            interim -= 1;
            let line = *rng
                .choice(&["HTTP/1.1 100 Continue", "HTTP/1.1 103 Early Hints", "HTTP/1.1 102"])
                .expect("lines");
            let start = self.responses.bytes.len();
            let nth = self.exchanges.len();
            put_message(&mut self.responses, rng, start, line, nth, Body::None, true);
        }
        let until_close = last && !upgrade && method != "HEAD" && method != "CONNECT" && rng.u8(..4) == 0;
        let (status, body, silent) = match () {
            () if upgrade => (101, Body::None, true),
            () if until_close => (200, Body::UntilClose(random_bytes(rng)), true),
            () if method == "CONNECT" && last && rng.bool() => (200 + rng.u16(..2), Body::random(rng), true),
            () => match rng.u8(..10) {
                0 if method != "CONNECT" => (204, Body::None, true),
                0 | 1 => (304, Body::random(rng), true),
                _ if method == "HEAD" => (200, Body::random(rng), true),
                status => {
                    let any = [200, 201, 302, 404, 500, 599, 200, 200][usize::from(status - 2)];
                    // A successful CONNECT would be a tunnel.
                    (if method == "CONNECT" { 403 } else { any }, Body::random(rng), false)
                }
            },
        };
        let tunnel = upgrade || (method == "CONNECT" && (200..300).contains(&status));
        let line =
            format!("HTTP/1.{} {status}{}", rng.u8(..2), [" OK", "", " Not \u{fc}seful"][rng.usize(..3)]);
        let response = self.answer(rng, &line, body, silent);
        if tunnel {
            let noise: Vec<u8> = (0..rng.usize(..200)).map(|_| rng.u8(..)).collect();
            self.responses.put(&noise, Kind::Tunnel);
        }
        self.exchanges.push(Exchange { request, response, first_answer, until_close, tunnel });
    }

    /// A response; with `silent`, its head announces a body that does not come (HEAD, 304, a tunnel).
    fn answer(&mut self, rng: &mut Rng, line: &str, body: Body, silent: bool) -> Message {
        let start = self.responses.bytes.len();
        let nth = self.exchanges.len();
        let until_close = matches!(body, Body::UntilClose(_));
        // An answer without a length ends with the connection, unless the status says there is no body.
        let body = if matches!(body, Body::None) && !silent { Body::Length(Vec::new()) } else { body };
        put_message(&mut self.responses, rng, start, line, nth, body, silent && !until_close)
    }
}

enum Body {
    None,
    Length(Vec<u8>),
    Chunked(Vec<u8>),
    UntilClose(Vec<u8>),
}

impl Body {
    fn random(rng: &mut Rng) -> Self {
        match rng.u8(..5) {
            0 => Self::None,
            1 | 2 => Self::Length(random_bytes(rng)),
            _ => Self::Chunked(random_bytes(rng)),
        }
    }
}

const METHODS: &[&str] = &[
    "GET",
    "GET",
    "POST",
    "PUT",
    "HEAD",
    "HEAD",
    "DELETE",
    "OPTIONS",
    "CONNECT",
    "PROPFIND",
    "X-CUSTOM_VERB",
    "M-SEARCH",
    "A",
];

fn put_message(
    stream: &mut Stream,
    rng: &mut Rng,
    start: usize,
    line: &str,
    nth: usize,
    body: Body,
    silent: bool,
) -> Message {
    let mut lines = vec![line.as_bytes().to_vec()];
    let mut fields = vec![format!("X-Id: {nth}")];
    for _ in 0..rng.usize(..6) {
        fields.push(decoy(rng));
    }
    match &body {
        Body::Length(bytes) => {
            for _ in 0..if rng.u8(..8) == 0 { 2 } else { 1 } {
                let name = random_case(rng, "Content-Length");
                let space = ["", " ", "\t", "  "];
                let (before, behind) = (space[rng.usize(..4)], space[rng.usize(..3)]);
                fields.push(format!(
                    "{name}:{before}{:0width$}{behind}",
                    bytes.len(),
                    width = rng.usize(1..8)
                ));
            }
        }
        Body::Chunked(_) => {
            let name = random_case(rng, "Transfer-Encoding");
            let coding = ["chunked", "gzip, chunked", "gzip,chunked"][rng.usize(..3)];
            let coding = random_case(rng, coding);
            let space = ["", " ", "\t"];
            fields.push(format!("{name}:{}{coding}{}", space[rng.usize(..3)], space[rng.usize(..3)]));
            if rng.u8(..10) == 0 {
                fields.push("Content-Length: 3".to_owned()); // chunked wins
            }
        }
        Body::None | Body::UntilClose(_) => {}
    }
    rng.shuffle(&mut fields);
    lines.extend(fields.into_iter().map(String::into_bytes));
    lines.push(Vec::new());
    for line in &lines {
        stream.put(line, Kind::Framing);
        stream.put(line_end(rng), Kind::Framing);
    }
    let head = start..stream.bytes.len();
    let mut body_bytes = 0;
    if !silent {
        match body {
            Body::None => {}
            Body::Length(bytes) | Body::UntilClose(bytes) => {
                stream.put(&bytes, Kind::Body);
                body_bytes = bytes.len() as u64;
            }
            Body::Chunked(bytes) => {
                put_chunks(stream, rng, &bytes);
                body_bytes = bytes.len() as u64;
            }
        }
    }
    Message { head, end: stream.bytes.len(), body_bytes }
}

fn put_chunks(stream: &mut Stream, rng: &mut Rng, mut bytes: &[u8]) {
    let extension = ["", ";a=b", " ; name=\"a;\tvalue\"", "  "];
    while !bytes.is_empty() {
        let (chunk, rest) = bytes.split_at(rng.usize(1..=bytes.len()));
        bytes = rest;
        let size = match rng.u8(..3) {
            0 => format!("{:x}", chunk.len()),
            1 => format!("{:X}", chunk.len()),
            _ => format!("{:06x}", chunk.len()),
        };
        stream.put(format!("{size}{}\r\n", extension[rng.usize(..4)]).as_bytes(), Kind::Framing);
        stream.put(chunk, Kind::Body);
        stream.put(b"\r\n", Kind::Filler);
    }
    stream.put(["0\r\n", "000\r\n", "0;last\r\n", "0\n"][rng.usize(..4)].as_bytes(), Kind::Framing);
    for _ in 0..rng.usize(..3) * usize::from(rng.u8(..4) == 0) {
        let length = rng.usize(1..60);
        stream.put(format!("X-Trailer: {}\r\n", random_text(rng, length)).as_bytes(), Kind::Framing);
    }
    stream.put(line_end(rng), Kind::Framing);
}

fn line_end(rng: &mut Rng) -> &'static [u8] {
    if rng.u8(..12) == 0 { b"\n" } else { b"\r\n" }
}

/// A header that decides nothing, though it may look like one that does.
fn decoy(rng: &mut Rng) -> String {
    let names = [
        "Content-Type",
        "X-Content-Length",
        "Content-Lengthy",
        "Content-Length-Limit",
        "Transfer",
        "TE",
        "Transfer-Encodings",
        "Host",
        "User-Agent",
        "a",
        "Content-",
        "Content-Length2",
        "Cookie",
    ];
    let name = names[rng.usize(..names.len())];
    let length = match rng.u8(..12) {
        0 => rng.usize(200..3000),
        1..=3 => rng.usize(40..400),
        _ => rng.usize(..40),
    };
    format!("{name}: {}", random_text(rng, length))
}

fn random_text(rng: &mut Rng, length: usize) -> String {
    let words = ["Content-Length: 9", "HTTP/1.1 ", "chunked", "x", "\u{e9}", "/", "=", "%20", ";", "\"", "0"];
    let mut text = String::new();
    while text.len() < length {
        text.push_str(words[rng.usize(..words.len())]);
    }
    text
}

fn random_case(rng: &mut Rng, text: &str) -> String {
    text.chars().map(|c| if rng.bool() { c.to_ascii_uppercase() } else { c.to_ascii_lowercase() }).collect()
}

/// Bodies of all sizes, often such as would confuse a reader that looks into them.
fn random_bytes(rng: &mut Rng) -> Vec<u8> {
    let length = match rng.u8(..6) {
        0 => 0,
        1 => rng.usize(..4000),
        2 => rng.usize(..20),
        _ => rng.usize(..300),
    };
    let text: &[u8] = if rng.bool() {
        b"GET / HTTP/1.1\r\nContent-Length: 4\r\n\r\n"
    } else {
        b"\r\n0\r\n\r\nHTTP/1.1 200 OK\r\n\r\n"
    };
    (0..length).map(|at| text[at % text.len()]).collect()
}
