//! One stream: what has been seen of its request and its response.
//!
//! In: header blocks and ends of one stream. Out: an [`Exchange`] once it is over. Refuses to know other streams.

use super::connection::Connection;
use super::direction::Block;
use super::frame::DATA;
use super::hpack::{Head, Name};
use super::outcome::Reset;
use crate::protocol::grpc::{self, Content};
use crate::protocol::http1::{RequestParts, RequestText};
use crate::protocol::redact::{Target, host_of, split_target};
use crate::protocol::{
    Begun, Cause, Endpoints, Exchange, Failure, Http, Message, Request, Response, Rpc, Semantics, Side,
    UnderWay, Version,
};
use obi_ebpf::{BODY_UNKNOWN, MESSAGES_UNKNOWN, ORDINAL_BITS, frame_event};

/// What was seen of one direction of a stream.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Half {
    /// Time of its last byte.
    pub(super) ended: Option<u64>,
    /// Of its data, if none has passed unseen.
    body_bytes: Option<u64>,
    messages: Option<u32>,
    /// All that was seen of its data is in these two.
    is_counted: bool,
    /// When the latest of its header blocks, or the last byte of its data had passed, as far as is reported.
    latest: u64,
    /// A header block has come, interim ones included.
    is_begun: bool,
    /// [`super::direction::Direction::gaps`] when something was last seen of it.
    pub(super) gaps: u32,
}

#[derive(Debug, Default)]
pub(super) struct Stream {
    /// 0: this entry is free.
    pub(super) id: u32,
    /// Slot of its connection.
    pub(super) connection: u32,
    /// Neighbours among the streams of its connection.
    pub(super) previous: Option<u32>,
    pub(super) next: Option<u32>,
    /// Time of the latest record, ns.
    pub(super) touched: u64,
    pub(super) tgid: u32,
    tid: u32,
    cause: Cause,
    /// Who takes exchanges knows of it, and waits to hear more.
    pub(super) is_reported: bool,
    arrival: u64,
    started: u64,
    pub(super) text: RequestText,
    /// Of the request's header block not all was copied.
    is_truncated: bool,
    /// The request head has come.
    pub(super) is_asked: bool,
    is_connect: bool,
    /// Accounted for already: waits only for its end.
    pub(super) is_settled: bool,
    pub(super) request: Half,
    pub(super) response: Half,
    pub(super) answer: Option<Response>,
    answer_content: Content,
    /// Bytes of data that the head of the response promises.
    promised: Option<u64>,
    status: Option<u32>,
    message: String,
    pub(super) reset: Option<Reset>,
}

/// How an exchange is over.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    pub(super) ended: u64,
    pub(super) failure: Option<Failure>,
    pub(super) is_cancelled: bool,
}

impl Half {
    /// Takes what the record of a header block or of the last data says of the data up to it. `is_head`: it has fields
    /// that only the head of a message has.
    pub(super) fn note(&mut self, frame: &frame_event, is_end: bool, is_head: bool, gaps: u32) {
        // With the block that opens the stream and ends it there was no data, whatever the record says. The head may be
        // missing, and this be the trailers.
        let is_first = !self.is_begun && (is_head || self.gaps == gaps);
        let has_data = !is_first || frame.type_ == DATA;
        (self.gaps, self.is_begun) = (gaps, true);
        self.body_bytes = if has_data { bytes(frame) } else { Some(0) };
        self.messages = if has_data { messages(frame) } else { Some(0) };
        self.latest = last_data(frame).unwrap_or(frame.header.time);
        if is_end && self.ended.is_none() {
            self.ended = Some(frame.header.time);
            self.is_counted = true;
        }
    }

    /// Takes what a record says of the data before a stream that ends without a frame for it.
    pub(super) fn count(&mut self, frame: &frame_event) {
        if self.ended.is_none() {
            (self.body_bytes, self.messages, self.is_counted) = (bytes(frame), messages(frame), true);
            self.latest = last_data(frame).unwrap_or(self.latest);
        }
    }

    /// Nothing has passed; `gaps` are those of its direction now.
    fn is_empty(&self, gaps: u32) -> bool {
        !self.is_begun && self.gaps == gaps
    }

    /// Bytes of data, if all that have passed were counted.
    fn body_bytes(&self, gaps: u32) -> Option<u64> {
        if self.is_empty(gaps) { Some(0) } else { self.body_bytes.filter(|_| self.is_counted) }
    }

    /// Messages, if all that have passed were counted.
    fn messages(&self, gaps: u32) -> Option<u32> {
        if self.is_empty(gaps) { Some(0) } else { self.messages.filter(|_| self.is_counted) }
    }
}

fn bytes(frame: &frame_event) -> Option<u64> {
    Some(frame.body_bytes).filter(|bytes| *bytes != BODY_UNKNOWN)
}

fn messages(frame: &frame_event) -> Option<u32> {
    Some(frame.messages).filter(|messages| *messages != MESSAGES_UNKNOWN)
}

/// When the last byte of the stream's data had passed.
fn last_data(frame: &frame_event) -> Option<u64> {
    Some(frame.arrival).filter(|time| frame.type_ == DATA && *time != 0)
}

impl Stream {
    /// Starts over for another stream; keeps the memory.
    pub(super) fn reset(&mut self, connection: u32, id: u32) {
        let mut text = std::mem::take(&mut self.text);
        text.clear();
        *self = Self { id, connection, text, ..Self::default() };
    }

    /// Memory of the request's text, bytes.
    pub(super) fn capacity(&self) -> usize {
        self.text.capacity()
    }

    /// Takes the request head.
    pub(super) fn ask(&mut self, block: &Block, head: &Head, cause: Cause) {
        (self.tgid, self.tid, self.cause) = (block.tgid, block.tid, cause);
        (self.arrival, self.started) = (block.arrival, block.started);
        self.is_asked = true;
        self.is_truncated = block.is_cut;
        let method = head.get(Name::Method).unwrap_or_default();
        self.is_connect = method == b"CONNECT";
        self.text.write(&RequestParts {
            method,
            // The path of a CONNECT is that of its protocol (RFC 8441).
            target: head.get(Name::Path).map_or(Target::default(), |path| split_target(b"", path)),
            host: head.get(Name::Authority).or(head.get(Name::Host)).map_or(b"", host_of),
            user_agent: head.get(Name::UserAgent).unwrap_or_default(),
            traceparent: head.get(Name::Traceparent).unwrap_or_default(),
            tracestates: head.tracestates(),
            version: Version::Http2,
            content: head.get(Name::ContentType).map_or(Content::Other, Content::of),
            timeout: head.get(Name::GrpcTimeout).and_then(grpc::timeout),
        });
    }

    /// The request, as soon as its head is there; `None` when the records did not show the side.
    pub(super) fn begun(&self, connection: &Connection) -> Option<Begun<'_>> {
        Some(Begun {
            number: number(connection.number, self.id),
            side: connection.side?,
            tgid: self.tgid,
            tid: self.tid,
            started: self.started,
            traceparent: self.text.request().traceparent,
            cause: self.cause,
        })
    }

    /// Takes a request that came over HTTP/1 and was answered by an upgrade (RFC 7540 §3.2).
    pub(super) fn adopt(&mut self, request: Upgraded) {
        (self.tgid, self.tid) = (request.tgid, request.tid);
        (self.arrival, self.started) = (request.arrival, request.started);
        self.is_asked = true;
        self.text = request.text;
        let body_bytes = Some(request.body_bytes);
        self.request =
            Half { ended: Some(request.ended), body_bytes, is_begun: true, is_counted: true, ..self.request };
    }

    /// Takes a header block of the response: an interim head, the final one, or trailers.
    pub(super) fn answer(&mut self, head: &Head, is_end: bool) {
        let status = head.get(Name::Status).and_then(status);
        let is_interim = !is_end && status.is_some_and(|status| status < 200);
        let is_trailer = is_end && !head.has(Name::Status) && (self.answer.is_some() || head.unknown() == 0);
        if is_interim {
            return;
        }
        if !is_trailer {
            self.answer = Some(Response { status });
            self.promised = head.get(Name::ContentLength).and_then(length);
        }
        if let Some(content) = head.get(Name::ContentType) {
            self.answer_content = Content::of(content);
        }
        if let Some(status) = head.get(Name::GrpcStatus) {
            self.status = grpc::status(status);
        }
        if let Some(message) = head.get(Name::GrpcMessage) {
            self.message = grpc::message(message);
        }
    }

    /// When the response was whole: all promised bytes have passed, or else its last frame. Who knows how many bytes
    /// come may leave an empty last frame unread.
    pub(super) fn response_ended(&self) -> Option<u64> {
        let Half { ended, body_bytes, is_counted, latest, .. } = self.response;
        let is_all =
            is_counted && body_bytes.is_some() && self.promised == body_bytes && !self.content().is_rpc();
        if is_all { Some(latest) } else { ended }
    }

    /// The response turned the stream into a tunnel (RFC 9113 §8.5): the exchange is over, the stream is not.
    pub(super) fn is_tunnel(&self) -> bool {
        let status = self.answer.and_then(|answer| answer.status);
        self.is_connect && status.is_some_and(|status| (200..300).contains(&status))
    }

    /// The request, when its head has passed and its response has not ended.
    pub(super) fn under_way(&self, connection: &Connection) -> Option<UnderWay<'_>> {
        let is_open = self.id != 0 && self.is_asked && !self.is_settled && self.response.ended.is_none();
        let (side, endpoints) = (connection.side?, connection.endpoints);
        is_open.then(|| UnderWay {
            side,
            tgid: self.tgid,
            endpoints,
            encrypted: connection.encrypted,
            is_rpc: self.text.content().is_rpc(),
            request: self.request(),
        })
    }

    fn request(&self) -> Request<'_> {
        Request { is_truncated: self.is_truncated, ..self.text.request() }
    }

    /// The exchange. `None` when the response head was missed, without which its outcome is not known, or the records
    /// did not show the side.
    pub(super) fn exchange(&self, connection: &Connection, end: End) -> Option<Exchange<'_>> {
        let semantics = self.semantics(connection, end.is_cancelled);
        let is_known =
            end.failure.is_some() || matches!(semantics, Semantics::Rpc(Rpc { status: Some(_), .. }));
        let answer = match self.answer {
            None if !is_known => return None,
            None if end.failure.is_none() => Some(Response { status: None }),
            answer => answer,
        };
        let (request_gaps, response_gaps) = connection.gaps();
        Some(Exchange {
            number: number(connection.number, self.id),
            side: connection.side?,
            tgid: self.tgid,
            tid: self.tid,
            cause: self.cause,
            answerer: None,
            endpoints: connection.endpoints,
            encrypted: connection.encrypted,
            arrival: self.arrival,
            started: self.started,
            ended: end.ended.max(self.started),
            times: None,
            request_bytes: self.request.body_bytes(request_gaps),
            response_bytes: self.response.body_bytes(response_gaps),
            failure: end.failure,
            message: Message::Http(Http { request: self.request(), response: answer, semantics }),
        })
    }

    /// What the bodies are. A header table that was joined in the middle may hide the type from us in one of the two.
    fn content(&self) -> Content {
        Some(self.text.content()).filter(|content| content.is_rpc()).unwrap_or(self.answer_content)
    }

    fn semantics(&self, connection: &Connection, is_cancelled: bool) -> Semantics<'_> {
        let content = self.content();
        if !content.is_rpc() {
            return Semantics::Http;
        }
        let (request_gaps, response_gaps) = connection.gaps();
        let is_countable = content != Content::GrpcWebText;
        Semantics::Rpc(Rpc {
            status: self.status,
            message: &self.message,
            request_messages: self.request.messages(request_gaps).filter(|_| is_countable),
            // The trailers of gRPC-Web are framed like a message.
            response_messages: self.response.messages(response_gaps).filter(|_| !content.is_web()),
            timeout: self.text.timeout(),
            is_cancelled: is_cancelled && self.status.is_none(),
            is_web: content.is_web(),
        })
    }
}

/// A request that came over HTTP/1 and was answered by `101 Switching Protocols` to HTTP/2.
#[derive(Debug)]
pub(in crate::protocol) struct Upgraded {
    /// Its exchange number: that of any exchange of the connection.
    pub(in crate::protocol) number: u64,
    pub(in crate::protocol) side: Side,
    pub(in crate::protocol) endpoints: Endpoints,
    pub(in crate::protocol) encrypted: bool,
    pub(in crate::protocol) tgid: u32,
    pub(in crate::protocol) tid: u32,
    pub(in crate::protocol) arrival: u64,
    pub(in crate::protocol) started: u64,
    /// The end of the 101.
    pub(in crate::protocol) ended: u64,
    pub(in crate::protocol) body_bytes: u64,
    pub(in crate::protocol) text: RequestText,
}

/// The exchange number of a stream.
pub(super) fn number(connection: u64, stream: u32) -> u64 {
    let ordinal = u64::from(stream.wrapping_add(1) >> 1);
    connection << ORDINAL_BITS | ordinal & ((1 << ORDINAL_BITS) - 1)
}

/// The value of `content-length`.
fn length(value: &[u8]) -> Option<u64> {
    let is_number = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    std::str::from_utf8(value).ok().filter(|_| is_number)?.parse().ok()
}

fn status(value: &[u8]) -> Option<u16> {
    let [hundreds @ b'1'..=b'9', tens @ b'0'..=b'9', ones @ b'0'..=b'9'] = value else { return None };
    let digit = |byte: &u8| u16::from(byte - b'0');
    Some(digit(hundreds) * 100 + digit(tens) * 10 + digit(ones))
}
