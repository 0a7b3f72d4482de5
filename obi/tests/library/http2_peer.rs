//! The crate `h2` as peer and oracle: what its client and its server have said to each other is what the kernel side's
//! own code and the agent read from the same bytes, at either end.
//!
//! In: random requests, over memory, with DATA and HEADERS padded on their way, which the crate itself does not do.
//! Out: a failure where method, path, trace, status, sizes, calls of gRPC or ends differ.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; functions beside `#[test]` functions are not exempt"
)]

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use h2::Reason;
use h2::client::{ResponseFuture, SendRequest};
use h2::server::SendResponse;
use h2::{RecvStream, SendStream};
use http::{HeaderMap, Method, Request, Response};
use hyper::body::Bytes;
use obi::capture::event::decode;
use obi::protocol::{Exchange, Exchanges, Failure, Limits, Loss, Message, Semantics, Sink};
use obi_ebpf::CLOSE_LOCAL;
use obi_ebpf_host::{Entry, Faults, Kernel, Segment};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf, duplex, split};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use zerocopy::IntoBytes as _;

const CONNECTIONS: u64 = 60;
const PREFACE_BYTES: usize = 24;
const HEADER_BYTES: usize = 9;
/// Longest payload of a frame unless the peer has asked for longer ones.
const FRAME_MOST: usize = 16_384;
const WINDOW: u32 = 1 << 24;
const HEADERS_MOST: u32 = 1 << 20;
const HEAD_LIMIT: u32 = 8_192;
/// Longest field by connection: in one frame; in CONTINUATION, too; more than is copied of a block, four times
/// [`HEAD_LIMIT`]. A letter takes six bits.
const FILLERS: [usize; 3] = [200, 36_000, 60_000];

/// What becomes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Answered,
    /// The client gives up before an answer.
    Cancelled,
    /// The server does not take it.
    Refused,
    /// The server breaks off in the middle of its answer.
    Broken,
}

#[derive(Debug, Clone)]
struct Plan {
    nth: usize,
    fate: Fate,
    method: Method,
    traceparent: String,
    status: u16,
    /// The status of gRPC that is in the trailers.
    rpc_status: Option<u32>,
    bodies: [Vec<Vec<u8>>; 2],
    /// Fields behind the bodies.
    trailers: [bool; 2],
    /// Bytes of a field that is as long as it likes to be.
    filler: [usize; 2],
}

impl Plan {
    fn random(rng: &mut fastrand::Rng, nth: usize, filler_most: usize) -> Self {
        let is_rpc = rng.u8(..4) == 0;
        let fates = [Fate::Answered, Fate::Cancelled, Fate::Refused, Fate::Broken];
        let fate = fates[if rng.bool() { 0 } else { rng.usize(..4) }];
        let methods = [Method::GET, Method::POST, Method::PUT, Method::DELETE, Method::PATCH];
        let body = |rng: &mut fastrand::Rng| -> Vec<Vec<u8>> {
            let n = rng.usize(..4);
            let chunk = |rng: &mut fastrand::Rng| {
                let length = if rng.u8(..4) == 0 { rng.usize(..40_000) } else { rng.usize(..300) };
                let mut bytes = vec![b'x'; length];
                if is_rpc {
                    bytes.splice(..0, [&[0], &u32::try_from(length).unwrap().to_be_bytes()[..]].concat());
                }
                bytes
            };
            (0..n).map(|_| chunk(rng)).collect()
        };
        let filler = |rng: &mut fastrand::Rng| {
            let most = if rng.u8(..4) == 0 { filler_most } else { 200 };
            rng.usize(..most)
        };
        Self {
            nth,
            fate,
            method: if is_rpc { Method::POST } else { methods[rng.usize(..5)].clone() },
            traceparent: format!("00-{:032x}-{:016x}-01", rng.u128(1..), rng.u64(1..)),
            status: if is_rpc { 200 } else { rng.u16(200..600) },
            rpc_status: is_rpc.then(|| rng.u32(..17)),
            bodies: [body(rng), body(rng)],
            trailers: [rng.bool(), is_rpc || rng.bool()],
            filler: [filler(rng), filler(rng)],
        }
    }

    fn path(&self) -> String {
        format!("/service.Name/{}", self.nth)
    }

    fn fields(&self, side: usize) -> HeaderMap {
        let mut fields = HeaderMap::new();
        if self.rpc_status.is_some() {
            fields.insert("content-type", "application/grpc".parse().unwrap());
        }
        if side == 0 {
            fields.insert("traceparent", self.traceparent.parse().unwrap());
            fields.insert("te", "trailers".parse().unwrap());
        }
        fields.insert("x-filler", "f".repeat(self.filler[side]).parse().unwrap());
        fields
    }

    fn last_fields(&self, side: usize) -> HeaderMap {
        let mut fields = HeaderMap::new();
        fields.insert("x-trailer", format!("{side}").parse().unwrap());
        if let Some(status) = self.rpc_status.filter(|_| side == 1) {
            fields.insert("grpc-status", status.to_string().parse().unwrap());
        }
        fields
    }

    /// Sends the body, and the trailers if there are any.
    fn send(&self, side: usize, stream: &mut SendStream<Bytes>) -> Result<(), h2::Error> {
        let chunks = &self.bodies[side];
        for (nth, chunk) in chunks.iter().enumerate() {
            let is_last = nth + 1 == chunks.len() && !self.trailers[side];
            stream.send_data(Bytes::from(chunk.clone()), is_last)?;
        }
        if self.trailers[side] { stream.send_trailers(self.last_fields(side)) } else { Ok(()) }
    }

    fn is_empty(&self, side: usize) -> bool {
        self.bodies[side].is_empty() && !self.trailers[side]
    }
}

/// What the peers have found out about a request.
#[derive(Debug, Clone, Default)]
struct Truth {
    method: String,
    path: String,
    traceparent: String,
    request_bytes: u64,
    status: Option<u16>,
    response_bytes: u64,
    rpc_status: Option<u32>,
    is_whole: bool,
}

/// Both peers, one request.
#[derive(Debug, Default)]
struct Meeting {
    /// The server has the request's head.
    accepted: Notify,
    /// The client has the response's head and something of its body.
    answered: Notify,
    truth: Mutex<Truth>,
}

type Meetings = Arc<Vec<Meeting>>;

/// The body to its end: its bytes, and its trailers.
async fn read(body: &mut RecvStream) -> Result<(u64, Option<HeaderMap>), h2::Error> {
    let mut n = 0;
    while let Some(chunk) = body.data().await {
        let chunk = chunk?;
        n += chunk.len() as u64;
        body.flow_control().release_capacity(chunk.len())?;
    }
    Ok((n, body.trailers().await?))
}

async fn ask(sender: SendRequest<Bytes>, plan: Plan, meetings: Meetings) {
    let meeting = &meetings[plan.nth];
    let mut request = Request::new(());
    *request.method_mut() = plan.method.clone();
    *request.uri_mut() = format!("http://shop.example{}?key=value", plan.path()).parse().unwrap();
    *request.headers_mut() = plan.fields(0);
    let mut sender = sender.ready().await.unwrap();
    let is_end = plan.is_empty(0) && plan.fate != Fate::Cancelled;
    let (response, mut stream) = sender.send_request(request, is_end).unwrap();
    if plan.fate == Fate::Cancelled {
        meeting.accepted.notified().await;
        return stream.send_reset(Reason::CANCEL);
    }
    if !is_end {
        // The server may have refused it meanwhile.
        let sent = plan.send(0, &mut stream);
        assert!(sent.is_ok() || plan.fate == Fate::Refused, "{sent:?}");
    }
    let ended = hear(response, meeting).await;
    assert_eq!(ended.is_ok(), plan.fate == Fate::Answered, "{ended:?} {plan:?}");
}

/// The client's end of an answer.
async fn hear(response: ResponseFuture, meeting: &Meeting) -> Result<(), h2::Error> {
    let mut response = response.await?;
    meeting.truth.lock().unwrap().status = Some(response.status().as_u16());
    meeting.answered.notify_one();
    let (n, trailers) = read(response.body_mut()).await?;
    let mut truth = meeting.truth.lock().unwrap();
    let status = trailers.and_then(|fields| fields.get("grpc-status")?.to_str().ok()?.parse().ok());
    (truth.response_bytes, truth.rpc_status, truth.is_whole) = (n, status, true);
    Ok(())
}

async fn answer(
    request: Request<RecvStream>,
    mut respond: SendResponse<Bytes>,
    plan: Plan,
    meetings: Meetings,
) {
    let meeting = &meetings[plan.nth];
    let (head, mut body) = request.into_parts();
    {
        let mut truth = meeting.truth.lock().unwrap();
        truth.method = head.method.to_string();
        truth.path = head.uri.path().to_owned();
        truth.traceparent = head.headers["traceparent"].to_str().unwrap().to_owned();
    }
    meeting.accepted.notify_one();
    if plan.fate == Fate::Refused {
        return respond.send_reset(Reason::REFUSED_STREAM);
    }
    let Ok((n, _)) = read(&mut body).await else { return };
    meeting.truth.lock().unwrap().request_bytes = n;
    let mut response = Response::new(());
    *response.status_mut() = plan.status.try_into().unwrap();
    *response.headers_mut() = plan.fields(1);
    let is_broken = plan.fate == Fate::Broken;
    let is_end = plan.is_empty(1) && !is_broken;
    let mut stream = respond.send_response(response, is_end).unwrap();
    if is_broken {
        meeting.answered.notified().await;
        stream.send_reset(Reason::INTERNAL_ERROR);
    } else if !is_end {
        plan.send(1, &mut stream).unwrap();
    }
}

/// Bytes as they passed, and whether the client sent them.
type Log = Arc<Mutex<Vec<(bool, Vec<u8>)>>>;

/// Passes frames on, some of them padded.
async fn relay(
    mut from: ReadHalf<DuplexStream>,
    mut to: WriteHalf<DuplexStream>,
    by_client: bool,
    log: Log,
    mut rng: fastrand::Rng,
) {
    let mut held = Vec::new();
    let mut preface = if by_client { PREFACE_BYTES } else { 0 };
    while from.read_buf(&mut held).await.is_ok_and(|n| n > 0) {
        loop {
            let whole = match &held[..] {
                _ if preface > 0 => preface,
                [a, b, c, ..] => {
                    HEADER_BYTES + (usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c))
                }
                _ => break,
            };
            if held.len() < whole {
                break;
            }
            let mut frame: Vec<u8> = held.drain(..whole).collect();
            if std::mem::take(&mut preface) == 0 {
                pad(&mut frame, &mut rng);
            }
            log.lock().unwrap().push((by_client, frame.clone()));
            if to.write_all(&frame).await.is_err() {
                return;
            }
        }
    }
    let _ = to.shutdown().await;
}

fn pad(frame: &mut Vec<u8>, rng: &mut fastrand::Rng) {
    const PADDED: u8 = 8;
    let n = rng.u8(..);
    let length = frame.len() - HEADER_BYTES + 1 + usize::from(n);
    if frame[3] > 1 || frame[4] & PADDED != 0 || length > FRAME_MOST || rng.bool() {
        return; // neither DATA nor HEADERS, or no room
    }
    frame[4] |= PADDED;
    frame.insert(HEADER_BYTES, n);
    frame.extend(vec![0; usize::from(n)]);
    frame[..3].copy_from_slice(&u32::try_from(length).unwrap().to_be_bytes()[1..]);
}

/// Has both peers talk; what passed between them, and what they made of it.
async fn talk(rng: &mut fastrand::Rng, plans: &[Plan]) -> (Vec<(bool, Vec<u8>)>, Vec<Truth>) {
    let log = Log::default();
    let meetings: Meetings = Arc::new(plans.iter().map(|_| Meeting::default()).collect());
    let [(client, near), (far, server)] = [duplex(1 << 16), duplex(1 << 16)];
    let ((from_client, to_client), (from_server, to_server)) = (split(near), split(far));
    let relays = [
        tokio::spawn(relay(from_client, to_server, true, Arc::clone(&log), rng.fork())),
        tokio::spawn(relay(from_server, to_client, false, Arc::clone(&log), rng.fork())),
    ];
    let serving = tokio::spawn(serve(server, plans.to_vec(), Arc::clone(&meetings)));
    let (sender, connection) = h2::client::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS_MOST)
        .enable_push(false)
        .header_table_size(rng.u32(..9_000))
        .handshake(client)
        .await
        .unwrap();
    let driving = tokio::spawn(connection);
    let mut asking = JoinSet::new();
    for plan in plans {
        if asking.len() >= 8 {
            asking.join_next().await.unwrap().unwrap();
        }
        asking.spawn(ask(sender.clone(), plan.clone(), Arc::clone(&meetings)));
    }
    while let Some(asked) = asking.join_next().await {
        asked.unwrap();
    }
    drop(sender);
    driving.await.unwrap().unwrap();
    serving.await.unwrap();
    for relay in relays {
        relay.await.unwrap();
    }
    let truths = meetings.iter().map(|meeting| meeting.truth.lock().unwrap().clone()).collect();
    let log = std::mem::take(&mut *log.lock().unwrap());
    (log, truths)
}

async fn serve(transport: DuplexStream, plans: Vec<Plan>, meetings: Meetings) {
    let mut connection = h2::server::Builder::new()
        .initial_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(HEADERS_MOST)
        .handshake(transport)
        .await
        .unwrap();
    let mut answering = JoinSet::new();
    while let Some(accepted) = connection.accept().await {
        let Ok((request, respond)) = accepted else { break };
        let nth: usize = request.uri().path().rsplit('/').next().unwrap().parse().unwrap();
        answering.spawn(answer(request, respond, plans[nth].clone(), Arc::clone(&meetings)));
    }
    answering.shutdown().await;
}

/// What the agent hands over of a request.
#[derive(Debug, Clone, Default)]
struct Seen {
    method: String,
    traceparent: String,
    status: Option<u16>,
    bytes: [Option<u64>; 2],
    failure: Option<Failure>,
    rpc_status: Option<u32>,
    /// Messages asked and answered, of gRPC.
    messages: Option<[Option<u32>; 2]>,
}

#[derive(Debug, Default)]
struct Agent {
    /// By path.
    seen: BTreeMap<String, Vec<Seen>>,
    n_lost: usize,
}

impl Sink for Agent {
    fn exchange(&mut self, exchange: &Exchange<'_>) {
        let Message::Http(http) = exchange.message else { panic!("not HTTP") };
        let rpc = match http.semantics {
            Semantics::Rpc(rpc) => Some(rpc),
            _ => None,
        };
        let seen = Seen {
            method: http.request.method.to_owned(),
            traceparent: http.request.traceparent.to_owned(),
            status: http.response.and_then(|response| response.status),
            bytes: [exchange.request_bytes, exchange.response_bytes],
            failure: exchange.failure,
            rpc_status: rpc.and_then(|rpc| rpc.status),
            messages: rpc.map(|rpc| [rpc.request_messages, rpc.response_messages]),
        };
        self.seen.entry(http.request.path.to_owned()).or_default().push(seen);
    }

    fn lost(&mut self, _: Loss) {
        self.n_lost += 1;
    }
}

/// The same bytes at one of the ends, cut anywhere.
fn observe(log: &[(bool, Vec<u8>)], is_server: bool, rng: &mut fastrand::Rng) -> Agent {
    let mut kernel =
        Kernel::boot(rng.u64(..), HEAD_LIMIT, Faults { ring: 0, user: 0, note: 0, spare: 0, steps: 0 });
    let (mut connection, mut exchanges, mut agent) =
        (kernel.connect(false), Exchanges::new(Limits::default()), Agent::default());
    let (mut time, mut n_read) = (1_000, 0);
    for (by_client, bytes) in log {
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let most = if rng.bool() { rest.len() } else { rng.usize(1..=rest.len()) };
            let (piece, behind) = rest.split_at(most);
            time += 1_000;
            kernel.segment(&mut connection, *by_client != is_server, 0, Segment::Buffer(piece), time);
            rest = behind;
        }
        n_read = hand_over(&kernel, n_read, &mut exchanges, &mut agent);
    }
    kernel.end(&mut connection, CLOSE_LOCAL, time + 1_000);
    hand_over(&kernel, n_read, &mut exchanges, &mut agent);
    assert_eq!((kernel.lost(), kernel.uncovered()), (0, 0));
    agent
}

/// What the kernel side has reported since, to the agent; how many records that makes.
fn hand_over(kernel: &Kernel, mut n_read: usize, exchanges: &mut Exchanges, agent: &mut Agent) -> usize {
    for entry in kernel.journal(n_read) {
        n_read += 1;
        let Entry::Record(words) = entry else { panic!("nothing is to be forgotten") };
        exchanges.accept(&decode(words.as_bytes()).unwrap(), agent);
    }
    n_read
}

/// Behind a block that was not copied whole, what it may have put into the table is not known, and empty.
fn compare(plan: &Plan, truth: &Truth, seen: &[Seen], may_be_unknown: bool) {
    let context = || format!("{plan:.300?}\n{truth:?}\n{seen:?}");
    let [seen] = seen else { panic!("{} times: {}", seen.len(), context()) };
    for (seen, said) in [(&seen.method, &truth.method), (&seen.traceparent, &truth.traceparent)] {
        assert!(seen == said || (may_be_unknown && seen.is_empty()), "{}", context());
    }
    assert_eq!(truth.path, plan.path());
    assert!(seen.status == truth.status || (may_be_unknown && seen.status.is_none()), "{}", context());
    assert_eq!(seen.failure.is_none(), truth.is_whole, "{}", context());
    match plan.fate {
        Fate::Answered => {
            assert_eq!(seen.bytes, [truth.request_bytes, truth.response_bytes].map(Some), "{}", context());
            let is_unknown = may_be_unknown && seen.rpc_status.is_none();
            assert!(seen.rpc_status == truth.rpc_status || is_unknown, "{}", context());
            let is_unknown = may_be_unknown && seen.messages.is_none();
            assert!(seen.messages.is_some() == plan.rpc_status.is_some() || is_unknown, "{}", context());
            if let Some(messages) = seen.messages {
                let sent = plan.bodies.each_ref().map(|chunks| u32::try_from(chunks.len()).ok());
                assert_eq!(messages, sent, "{}", context());
            }
        }
        Fate::Refused => assert_eq!(seen.failure, Some(Failure::Refused), "{}", context()),
        Fate::Broken => assert_eq!(seen.failure, Some(Failure::StreamReset), "{}", context()),
        Fate::Cancelled => {
            assert!(matches!(seen.failure, Some(Failure::Closed | Failure::Aborted)), "{}", context());
        }
    }
}

#[test]
fn what_h2_says_is_what_is_seen() {
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for seed in 0..CONNECTIONS {
        let mut rng = fastrand::Rng::with_seed(seed);
        let filler_most = FILLERS[usize::try_from(seed).unwrap() % FILLERS.len()];
        let plans: Vec<Plan> =
            (0..rng.usize(1..40)).map(|nth| Plan::random(&mut rng, nth, filler_most)).collect();
        let (log, truths) = runtime.block_on(talk(&mut rng, &plans));
        let kind = |frame: &[u8], kind: u8, flag: u8| frame[3] == kind && frame[4] & flag == flag;
        for (name, wanted, flag) in
            [("padded DATA", 0, 8), ("padded HEADERS", 1, 8), ("RST_STREAM", 3, 0), ("CONTINUATION", 9, 0)]
        {
            let frames =
                log.iter().filter(|(_, frame)| frame.len() != PREFACE_BYTES && kind(frame, wanted, flag));
            *counts.entry(name).or_default() += frames.count();
        }
        for is_server in [false, true] {
            let agent = observe(&log, is_server, &mut rng);
            assert_eq!(agent.n_lost, 0, "seed {seed}");
            assert_eq!(agent.seen.values().map(Vec::len).sum::<usize>(), plans.len(), "seed {seed}");
            for (plan, truth) in plans.iter().zip(&truths) {
                compare(
                    plan,
                    truth,
                    agent.seen.get(&plan.path()).map_or(&[], Vec::as_slice),
                    filler_most == FILLERS[2],
                );
            }
        }
    }
    assert!(counts.values().all(|n| *n > 20), "{counts:?}");
}
