//! WebSockets: upgraded requests until their WebSocket ends.
//!
//! In: requests that were answered by an upgrade, and the kernel side's account of what followed. Out: one long
//! [`Exchange`] each, to a [`Sink`]. Refuses to know messages.

use super::exchange::close_failure;
use super::http2::Upgraded;
use super::loss::{self, Loss};
use super::{Cause, Exchange, Failure, Http, Limits, Message, Response, Semantics, Side, Sink, WebSocket};
use foldhash::fast::RandomState;
use hashbrown::HashMap;
use obi_ebpf::{CLOSE_ABANDONED, websocket_event};
use std::time::Duration;

/// WebSockets may be quiet for longer than exchanges: so many times the age of those.
const AGES: u32 = 7;
/// Status of the response that made it one.
const SWITCHING_PROTOCOLS: u16 = 101;

/// All WebSockets that have not ended.
#[derive(Debug)]
pub(super) struct WebSockets {
    limits: Limits,
    open: HashMap<u64, Box<Upgraded>, RandomState>,
    held_bytes: usize,
}

impl WebSockets {
    pub(super) fn new(limits: Limits) -> Self {
        Self { limits, open: HashMap::default(), held_bytes: 0 }
    }

    /// A request was answered by an upgrade.
    pub(super) fn begin(&mut self, request: Upgraded, sink: &mut impl Sink) {
        if self.open.len() >= self.limits.open || self.held_bytes > self.limits.held_bytes {
            return sink.lost(lost(loss::PENDING_FULL, &request));
        }
        self.held_bytes += held(&request);
        if let Some(before) = self.open.insert(request.number, Box::new(request)) {
            self.held_bytes -= held(&before);
            sink.lost(lost(loss::SUPERSEDED, &before));
        }
    }

    /// It has ended.
    pub(super) fn end(&mut self, end: &websocket_event, sink: &mut impl Sink) {
        // One without a request was refused or lost, and counted.
        let Some(request) = self.take(end.header.exchange) else { return };
        match u32::from(end.reason) {
            CLOSE_ABANDONED.. => sink.lost(lost(loss::NOT_FOLLOWED, &request)),
            _ => sink.exchange(&exchange(&request, end)),
        }
    }

    /// Gives up what has begun too long before `now`.
    pub(super) fn sweep(&mut self, now: u64, max_age: Duration, sink: &mut impl Sink) {
        let max_age = max_age.saturating_mul(AGES);
        let Self { open, held_bytes, .. } = self;
        open.retain(|_, request| {
            let is_kept = Duration::from_nanos(now.saturating_sub(request.ended)) < max_age;
            if !is_kept {
                *held_bytes -= held(request);
                sink.lost(lost(loss::EXPIRED, request));
            }
            is_kept
        });
    }

    /// Drops one that the kernel side has reported as lost. `false` when it is not open.
    pub(super) fn forget(&mut self, number: u64) -> bool {
        self.take(number).is_some()
    }

    /// WebSockets open now.
    pub(super) fn open(&self) -> usize {
        self.open.len()
    }

    /// Memory held for requests, bytes.
    pub(super) fn held_bytes(&self) -> usize {
        self.held_bytes
    }

    fn take(&mut self, number: u64) -> Option<Box<Upgraded>> {
        let request = self.open.remove(&number)?;
        self.held_bytes -= held(&request);
        Some(request)
    }
}

fn exchange<'a>(request: &'a Upgraded, end: &websocket_event) -> Exchange<'a> {
    let received = (end.received_bytes, end.received_messages);
    let sent = (end.sent_bytes, end.sent_messages);
    let (from_client, from_server, peer) = match request.side {
        Side::Server => (received, sent, Side::Client),
        Side::Client => (sent, received, Side::Server),
    };
    Exchange {
        number: request.number,
        side: request.side,
        tgid: request.tgid,
        tid: request.tid,
        cause: Cause::default(),
        answerer: None,
        endpoints: request.endpoints,
        encrypted: request.encrypted,
        arrival: request.ended,
        started: request.ended,
        ended: end.header.time.max(request.ended),
        times: None,
        request_bytes: Some(from_client.0),
        response_bytes: Some(from_server.0),
        failure: failure(request.side, end),
        message: Message::Http(Http {
            request: request.text.request(),
            response: Some(Response { status: Some(SWITCHING_PROTOCOLS) }),
            semantics: Semantics::WebSocket(WebSocket {
                request_messages: from_client.1,
                response_messages: from_server.1,
                close_code: (end.close_code != 0).then_some(end.close_code),
                closed_by: match end.closed {
                    1 => Some(peer),
                    2 => Some(request.side),
                    _ => None,
                },
            }),
        }),
    }
}

/// Closed by a Close frame it went well, whatever its code says: that is for objectives to judge. Without one it was
/// broken off (code 1006 of RFC 6455 §7.4.1).
fn failure(side: Side, end: &websocket_event) -> Option<Failure> {
    match end.closed {
        0 => close_failure(u32::from(end.reason), Some(side), false, false),
        _ => None,
    }
}

fn held(request: &Upgraded) -> usize {
    size_of::<Upgraded>() + request.text.capacity()
}

fn lost(reason: &'static str, request: &Upgraded) -> Loss {
    Loss { stage: loss::STAGE_PROTOCOL, reason, side: Some(request.side), tgid: request.tgid }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Endpoints;
    use crate::protocol::http1::{RequestText, parse_request};
    use obi_ebpf::{CLOSE_LOCAL, CLOSE_REMOTE, CLOSE_RESET, event_header};

    #[derive(Default)]
    struct Lines(Vec<String>);

    impl Sink for Lines {
        fn exchange(&mut self, exchange: &Exchange<'_>) {
            let Exchange { started, ended, request_bytes, response_bytes, failure, .. } = exchange;
            let Message::Http(http) = exchange.message else { panic!("not HTTP") };
            let Semantics::WebSocket(socket) = http.semantics else { panic!("{exchange:?}") };
            let WebSocket { request_messages, response_messages, close_code, closed_by } = socket;
            let [from_client, from_server] =
                [request_bytes, response_bytes].map(|bytes| bytes.expect("counted"));
            self.0.push(format!(
                "{} {started}-{ended} {from_client}/{from_server} \
                 {request_messages}/{response_messages} {close_code:?} {closed_by:?} {}",
                http.request.path,
                failure.map_or("", Failure::error_type),
            ));
        }

        fn lost(&mut self, loss: Loss) {
            self.0.push(format!("lost {}", loss.reason));
        }
    }

    fn request(number: u64, side: Side) -> Upgraded {
        let mut text = RequestText::default();
        parse_request(b"GET /chat HTTP/1.1\r\n\r\n", &mut text).whole().unwrap();
        let (endpoints, encrypted) = (Endpoints::Unix, false);
        let (tgid, tid, arrival, started, ended, body_bytes) = (1, 2, 10, 20, 30, 0);
        Upgraded { number, side, endpoints, encrypted, tgid, tid, arrival, started, ended, body_bytes, text }
    }

    fn end(number: u64, reason: u32, closed: u8, close_code: u16) -> websocket_event {
        websocket_event {
            header: event_header { time: 90, exchange: number, ..Default::default() },
            received_bytes: 5,
            sent_bytes: 6,
            received_messages: 1,
            sent_messages: 2,
            close_code,
            closed,
            reason: u8::try_from(reason).unwrap(),
            pad: [0; 4],
        }
    }

    #[test]
    fn a_websocket_is_one_long_exchange() {
        let check = |side, reason, closed, code, expected: &str| {
            let (mut sockets, mut lines) = (WebSockets::new(Limits::default()), Lines::default());
            sockets.begin(request(7, side), &mut lines);
            sockets.end(&end(8, reason, closed, code), &mut lines);
            sockets.end(&end(7, reason, closed, code), &mut lines);
            sockets.end(&end(7, reason, closed, code), &mut lines);
            assert_eq!(lines.0, [expected]);
            assert_eq!((sockets.open(), sockets.held_bytes()), (0, 0));
        };
        let (server, client) = (Side::Server, Side::Client);
        check(server, CLOSE_REMOTE, 1, 1000, "/chat 30-90 5/6 1/2 Some(1000) Some(Client) ");
        check(client, CLOSE_REMOTE, 2, 1001, "/chat 30-90 6/5 2/1 Some(1001) Some(Client) ");
        check(client, CLOSE_RESET, 1, 0, "/chat 30-90 6/5 2/1 None Some(Server) ");
        check(server, CLOSE_RESET, 0, 0, "/chat 30-90 5/6 1/2 None None connection_reset");
        check(server, CLOSE_REMOTE, 0, 0, "/chat 30-90 5/6 1/2 None None connection_closed");
        check(server, CLOSE_LOCAL, 0, 0, "/chat 30-90 5/6 1/2 None None connection_aborted");
        check(server, CLOSE_ABANDONED, 0, 0, "lost not_followed");
    }

    #[test]
    fn none_is_forgotten_uncounted() {
        let limits = Limits { open: 2, ..Limits::default() };
        let (mut sockets, mut lines) = (WebSockets::new(limits), Lines::default());
        for number in [1, 2, 3] {
            sockets.begin(request(number, Side::Server), &mut lines);
        }
        assert_eq!(lines.0, ["lost pending_full"]);
        assert!(sockets.forget(1) && !sockets.forget(1));
        sockets.begin(request(2, Side::Server), &mut lines);
        sockets.sweep(31, Duration::from_nanos(1), &mut lines);
        sockets.sweep(37, Duration::from_nanos(1), &mut lines);
        assert_eq!(lines.0[1..], ["lost superseded", "lost expired"]);
        assert_eq!((sockets.open(), sockets.held_bytes()), (0, 0));
    }
}
