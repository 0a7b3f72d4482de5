//! One open exchange: what has been seen of it so far.
//!
//! In: the records of one exchange number. Out: an [`Exchange`] once it is whole or broken.
//! Refuses to know the other exchanges and their number.

use super::http1::{Parsed, RequestText, STATUS_LINE_BYTES, parse_response};
use super::http2::Upgraded;
use super::{
    Answerer, Begun, Cause, Endpoints, Exchange, Failure, Http, Message, Request, Response, Rpc, Semantics,
    Side, Times, UnderWay, grpc,
};
use obi_ebpf::{
    FLAG_CLOSE_DELIMITED, FLAG_HTTP2, FLAG_INTERIM, FLAG_LAST_PIECE, FLAG_MESSAGE_END, FLAG_TIMES,
    FLAG_TUNNEL, FLAG_WEBSOCKET, head_event,
};

/// How much of the request head has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum RequestHead {
    #[default]
    Unseen,
    Partial,
    Whole,
}

#[derive(Debug, Default)]
pub(super) struct Entry {
    /// 0: this entry is free.
    pub(super) number: u64,
    /// Time of the latest record, ns.
    pub(super) touched: u64,
    pub(super) tgid: u32,
    tid: u32,
    cause: Cause,
    answerer: Option<Answerer>,
    /// Who takes exchanges knows of it, and waits to hear more.
    pub(super) is_reported: bool,
    pub(super) side: Option<Side>,
    endpoints: Option<Endpoints>,
    encrypted: bool,
    arrival: u64,
    started: u64,
    /// Accounted for already, or given up: waits only for its end, so that later records do not revive it.
    pub(super) given_up: bool,
    pub(super) request_head: RequestHead,
    /// Bytes of the request head so far, while it comes in several pieces.
    pub(super) partial: Vec<u8>,
    pub(super) partial_truncated: bool,
    pub(super) text: RequestText,
    pub(super) request_ended: bool,
    /// `None` until its end has passed: an answer may come before.
    pub(super) request_body_bytes: Option<u64>,
    status_line: [u8; STATUS_LINE_BYTES],
    status_line_length: usize,
    pub(super) response: Option<Response>,
    pub(super) response_body_bytes: u64,
    /// Time of the response's last byte.
    pub(super) response_ended: Option<u64>,
    /// Where the time of the serving thread went.
    times: Option<Times>,
    /// Its record is the next of this exchange.
    awaits_times: bool,
    pub(super) close_delimited: bool,
    pub(super) upgrade: Option<Upgrade>,
    /// `grpc-status` and `grpc-message` of a response to gRPC-Web.
    rpc_status: Option<u32>,
    rpc_message: String,
}

/// What the connection speaks after this exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Upgrade {
    /// The answer to this request comes over HTTP/2.
    Http2,
    WebSocket,
}

/// What a piece of a response head came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ResponseStep {
    Taken,
    Unparsable,
}

impl Entry {
    /// Starts over for another exchange; keeps the memory.
    pub(super) fn reset(&mut self, number: u64) {
        let (mut text, mut partial) = (std::mem::take(&mut self.text), std::mem::take(&mut self.partial));
        text.clear();
        partial.clear();
        *self = Self { number, text, partial, ..Self::default() };
    }

    /// Who and where: from any head. The request's own head has the last word.
    pub(super) fn identify(&mut self, head: &head_event) {
        self.tgid = head.header.tgid;
        self.side = Side::from_wire(head.side).or(self.side);
        self.endpoints = Some(endpoints(head));
        self.encrypted = head.encrypted != 0;
    }

    /// Where, when the request's head did not show it: at a TLS library the socket may show later.
    pub(super) fn place(&mut self, head: &head_event) {
        if self.endpoints == Some(Endpoints::Unknown) {
            self.endpoints = Some(endpoints(head));
        }
    }

    pub(super) fn begin_request(&mut self, head: &head_event) {
        self.identify(head);
        self.tid = head.header.tid;
        self.cause = Cause::of_head(head, self.side);
        self.started = head.started;
        let known_and_earlier = head.arrival != 0 && head.arrival < self.started;
        self.arrival = if known_and_earlier { head.arrival } else { self.started };
        self.request_head = RequestHead::Partial;
    }

    pub(super) fn end_request(&mut self, body_bytes: u64) {
        self.request_ended = true;
        self.request_body_bytes = Some(body_bytes);
    }

    /// Takes a piece of a response head; the status line is all that is kept of it.
    pub(super) fn response_piece(&mut self, head: &head_event, payload: &[u8]) -> ResponseStep {
        self.keep_status_line(payload);
        let flags = head.header.flags;
        if self.text.content().is_web()
            && let Some((status, message)) = grpc::head_status(payload)
        {
            self.rpc_status = Some(status);
            self.rpc_message = grpc::message(message);
        }
        if flags & FLAG_LAST_PIECE == 0 {
            return ResponseStep::Taken;
        }
        let length = std::mem::take(&mut self.status_line_length);
        if flags & FLAG_INTERIM != 0 {
            return ResponseStep::Taken;
        }
        let Parsed::Whole(response) = parse_response(&self.status_line[..length]) else {
            return ResponseStep::Unparsable;
        };
        self.response = Some(response);
        self.close_delimited = flags & FLAG_CLOSE_DELIMITED != 0;
        self.awaits_times = flags & FLAG_TIMES != 0 && self.times.is_none();
        self.upgrade = match flags & (FLAG_TUNNEL | FLAG_HTTP2 | FLAG_WEBSOCKET) {
            TO_HTTP2 => Some(Upgrade::Http2),
            TO_WEBSOCKET => Some(Upgrade::WebSocket),
            _ => None,
        };
        if flags & FLAG_MESSAGE_END != 0 {
            self.end_response(head.header.time, head.header.flags, head.body_bytes);
        }
        ResponseStep::Taken
    }

    fn keep_status_line(&mut self, payload: &[u8]) {
        let blank = |byte: &u8| matches!(byte, b'\r' | b'\n');
        let leading = if self.status_line_length == 0 {
            payload.iter().take_while(|byte| blank(byte)).count()
        } else {
            0
        };
        let place = &mut self.status_line[self.status_line_length..];
        let length = place.len().min(payload.len() - leading);
        place[..length].copy_from_slice(&payload[leading..leading + length]);
        self.status_line_length += length;
    }

    pub(super) fn end_response(&mut self, time: u64, flags: u32, body_bytes: u64) {
        self.response_ended = Some(time);
        self.response_body_bytes = body_bytes;
        // A head that is not whole yet will not be: nothing to wait for. The end of a body may still pass.
        if flags & obi_ebpf::FLAG_REQUEST_INCOMPLETE != 0 && self.request_head != RequestHead::Whole {
            self.request_ended = true;
        }
    }

    /// The kernel's books of the serving thread.
    pub(super) fn take_times(&mut self, times: Times) {
        self.times = Some(times);
        self.awaits_times = false;
    }

    /// A response head begins: a record of an earlier attempt at one (1xx) is forgotten.
    pub(super) fn begin_response(&mut self, head: &head_event) {
        self.status_line_length = 0;
        self.answerer = Answerer::of_head(head);
    }

    /// The request, as soon as its head is there; `None` when the records did not show the side.
    pub(super) fn begun(&self) -> Option<Begun<'_>> {
        Some(Begun {
            number: self.number,
            side: self.side?,
            tgid: self.tgid,
            tid: self.tid,
            started: self.started,
            traceparent: self.text.request().traceparent,
            cause: self.cause,
        })
    }

    /// Both messages are complete.
    pub(super) fn is_whole(&self) -> bool {
        let is_ended = self.request_ended && self.response_ended.is_some();
        self.request_head == RequestHead::Whole && is_ended && !self.awaits_times
    }

    /// The request, when its head has passed and its response has not ended.
    pub(super) fn under_way(&self) -> Option<UnderWay<'_>> {
        let open = self.number != 0 && !self.given_up && self.response_ended.is_none();
        let (side, endpoints) = (self.side?, self.endpoints?);
        (open && self.request_head == RequestHead::Whole).then(|| UnderWay {
            side,
            tgid: self.tgid,
            endpoints,
            encrypted: self.encrypted,
            is_rpc: self.text.content().is_web(),
            request: self.request(),
        })
    }

    /// `None` when the records did not show the side or the endpoints.
    fn request(&self) -> Request<'_> {
        Request { is_truncated: self.partial_truncated, ..self.text.request() }
    }

    pub(super) fn exchange(&self, ended: u64, failure: Option<Failure>) -> Option<Exchange<'_>> {
        Some(Exchange {
            number: self.number,
            side: self.side?,
            tgid: self.tgid,
            tid: self.tid,
            cause: self.cause,
            answerer: self.answerer,
            endpoints: self.endpoints?,
            encrypted: self.encrypted,
            arrival: self.arrival,
            started: self.started,
            ended: ended.max(self.started),
            times: self.times.as_ref(),
            request_bytes: self.request_body_bytes,
            response_bytes: Some(self.response_body_bytes),
            failure,
            message: Message::Http(Http {
                request: self.request(),
                response: self.response,
                semantics: self.semantics(failure),
            }),
        })
    }

    fn semantics(&self, failure: Option<Failure>) -> Semantics<'_> {
        if !self.text.content().is_web() {
            return Semantics::Http;
        }
        let by_client = match self.side {
            Some(Side::Client) => Failure::Aborted,
            _ => Failure::Closed,
        };
        Semantics::Rpc(Rpc {
            status: self.rpc_status,
            message: &self.rpc_message,
            timeout: self.text.timeout(),
            is_cancelled: failure == Some(by_client) && self.rpc_status.is_none(),
            is_web: true,
            // Bodies are not looked into.
            request_messages: None,
            response_messages: None,
        })
    }

    /// What goes on over HTTP/2: the answer will come there. `None` when the records did not show the side.
    pub(super) fn upgraded(&self, ended: u64, text: RequestText) -> Option<Upgraded> {
        Some(Upgraded {
            number: self.number,
            side: self.side?,
            endpoints: self.endpoints?,
            encrypted: self.encrypted,
            tgid: self.tgid,
            tid: self.tid,
            arrival: self.arrival,
            started: self.started,
            ended,
            body_bytes: self.request_body_bytes.unwrap_or(0),
            text,
        })
    }
}

const TO_HTTP2: u32 = FLAG_TUNNEL | FLAG_HTTP2;
const TO_WEBSOCKET: u32 = FLAG_TUNNEL | FLAG_WEBSOCKET;

fn endpoints(head: &head_event) -> Endpoints {
    let (local, remote) = ((head.local_address, head.local_port), (head.remote_address, head.remote_port));
    Endpoints::from_wire(head.family, local, remote)
}
