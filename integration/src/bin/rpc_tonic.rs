//! gRPC on tonic, in cleartext: `rpc_tonic server LOG` and `rpc_tonic client PLAN`. The server speaks gRPC-Web too.
//!
//! In and out: as `rpc/plan.rs` has it. Prints `ready PORT`, or one line per call. Knows nothing of the agent.

use std::convert::Infallible;
use std::fs::File;
use std::io::Write as _;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use prost::bytes::{Buf as _, BufMut as _};
use serde::Deserialize;
use serde_json::json;
use tokio::net::TcpListener;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder, Streaming};
use tonic::codegen::http::uri::PathAndQuery;
use tonic::codegen::tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream};
use tonic::codegen::{BoxFuture, Context, Poll, Service, http};
use tonic::metadata::{MetadataMap, MetadataValue};
use tonic::server::NamedService;
use tonic::transport::{Channel, Endpoint, Server};
use tonic::{Code, Request, Response, Status};

type Message = Vec<u8>;
type Messages = UnboundedReceiverStream<Result<Message, Status>>;

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["server", log] => serve(File::create(log)?).await,
        ["client", plan] => call(serde_json::from_reader(File::open(plan)?)?).await,
        _ => bail!("usage: rpc_tonic server LOG | client PLAN"),
    }
}

/// Messages as they are.
#[derive(Debug, Clone, Copy)]
struct Raw;

impl Codec for Raw {
    type Encode = Message;
    type Decode = Message;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Message;
    type Error = Status;

    fn encode(&mut self, item: Message, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put_slice(&item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Message;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Message>, Status> {
        let message = from.copy_to_bytes(from.remaining());
        Ok(Some(message.to_vec()))
    }
}

// === the server ===

async fn serve(log: File) -> anyhow::Result<()> {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await?;
    println!("ready {}", listener.local_addr()?.port());
    let shapes = Shapes { log: Arc::new(Mutex::new(log)) };
    let server = Server::builder().accept_http1(true).max_concurrent_streams(4096);
    let mut server = server.layer(tonic_web::GrpcWebLayer::new());
    server.add_service(shapes).serve_with_incoming(TcpListenerStream::new(listener)).await?;
    Ok(())
}

/// The service.
#[derive(Debug, Clone)]
struct Shapes {
    log: Arc<Mutex<File>>,
}

impl NamedService for Shapes {
    const NAME: &'static str = "test.Shape";
}

impl Service<http::Request<Body>> for Shapes {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Infallible>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let kind = match request.uri().path().rsplit('/').next() {
            Some("Unary") => Kind::Unary,
            Some("Collect") => Kind::Collect,
            Some("Expand") => Kind::Expand,
            Some("Chat") => Kind::Chat,
            _ => return Box::pin(async { Ok(Status::unimplemented("").into_http()) }),
        };
        let handler = Handler { kind, log: Arc::clone(&self.log) };
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).streaming(handler, request).await) })
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Unary,
    Collect,
    Expand,
    Chat,
}

#[derive(Debug)]
struct Handler {
    kind: Kind,
    log: Arc<Mutex<File>>,
}

impl Service<Request<Streaming<Message>>> for Handler {
    type Response = Response<Messages>;
    type Error = Status;
    type Future = BoxFuture<Self::Response, Status>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<Streaming<Message>>) -> Self::Future {
        let (kind, log) = (self.kind, Arc::clone(&self.log));
        let shape = Shape::of(request.metadata());
        Box::pin(async move {
            let shape = shape.ok_or_else(|| Status::invalid_argument("no shape"))?;
            let (to_client, messages) = unbounded_channel();
            tokio::spawn(async move {
                let begun = Instant::now();
                let (received, sent) = handle(kind, &shape, request.into_inner(), to_client).await;
                let took = begun.elapsed().as_nanos() as u64;
                let done = json!({"id": shape.id, "received": received, "sent": sent, "handler_ns": took});
                let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
                writeln!(log, "{done}").expect("the log is writable");
            });
            Ok(Response::new(UnboundedReceiverStream::new(messages)))
        })
    }
}

/// What a handler has to do.
#[derive(Debug)]
struct Shape {
    id: String,
    responses: u32,
    bytes: usize,
    code: i32,
    delay: Duration,
    holds: bool,
}

impl Shape {
    fn of(metadata: &MetadataMap) -> Option<Self> {
        let text = |name: &str| metadata.get(name)?.to_str().ok();
        let numbers: Vec<u32> = text("shape")?.split('/').filter_map(|part| part.parse().ok()).collect();
        let [responses, bytes, code, delay, hold] = numbers[..] else { return None };
        Some(Self {
            id: text("traceparent")?.split('-').nth(1)?.to_owned(),
            responses,
            bytes: bytes as usize,
            code: code.cast_signed(),
            delay: Duration::from_micros(delay.into()),
            holds: hold == 1,
        })
    }
}

/// Does what its plan says; how many messages it received and sent.
async fn handle(
    kind: Kind,
    shape: &Shape,
    mut requests: Streaming<Message>,
    to_client: UnboundedSender<Result<Message, Status>>,
) -> (u32, u32) {
    let (mut received, mut sent) = (0, 0);
    // What has no waiting client any more is dropped.
    let send = |sent: &mut u32| {
        *sent += 1;
        let _ = to_client.send(Ok(vec![0; shape.bytes]));
    };
    while let Ok(Some(_)) = requests.message().await {
        received += 1;
        match kind {
            Kind::Chat => send(&mut sent),
            Kind::Unary | Kind::Expand => break,
            Kind::Collect => {}
        }
    }
    tokio::time::sleep(shape.delay).await;
    while kind == Kind::Expand && sent < shape.responses {
        send(&mut sent);
    }
    if shape.holds {
        to_client.closed().await;
    } else if shape.code != 0 {
        // A client may lose messages that a failure follows closely; one that does ends its side when it has them.
        while kind == Kind::Expand && matches!(requests.message().await, Ok(Some(_))) {}
        let _ = to_client.send(Err(Status::new(Code::from_i32(shape.code), "as asked: 100% \u{fc}")));
    } else if matches!(kind, Kind::Unary | Kind::Collect) {
        send(&mut sent);
    }
    (received, sent)
}

// === the client ===

#[derive(Debug, Deserialize)]
struct Plan {
    target: String,
    concurrency: usize,
    calls: Vec<Call>,
}

#[derive(Debug, Clone, Deserialize)]
struct Call {
    id: String,
    method: String,
    requests: u32,
    responses: u32,
    bytes: usize,
    end: String,
    timeout_ms: u64,
    shape: String,
}

async fn call(plan: Plan) -> anyhow::Result<()> {
    let channel = Endpoint::from_shared(format!("http://{}", plan.target))?.connect().await?;
    let calls = Arc::new(Mutex::new(plan.calls.into_iter()));
    let mut workers = Vec::new();
    for _ in 0..plan.concurrency {
        let (channel, calls) = (channel.clone(), Arc::clone(&calls));
        workers.push(tokio::spawn(async move {
            loop {
                let next = calls.lock().unwrap_or_else(PoisonError::into_inner).next();
                let Some(call) = next else { return anyhow::Ok(()) };
                println!("{}", run(channel.clone(), &call).await?);
            }
        }));
    }
    for worker in workers {
        worker.await??;
    }
    Ok(())
}

/// Makes a call; the line about it.
async fn run(channel: Channel, call: &Call) -> anyhow::Result<String> {
    let started = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock is behind 1970")?;
    let begun = Instant::now();
    let mut seen = Seen::default();
    let code = match call.end.as_str() {
        "deadline" => {
            let time = Duration::from_millis(call.timeout_ms);
            let late = tokio::time::timeout(time, exchange(channel, call, Some(time), &mut seen)).await;
            late.unwrap_or(Ok(Code::DeadlineExceeded))?
        }
        _ => exchange(channel, call, None, &mut seen).await?,
    };
    let ended = started + begun.elapsed();
    let line = json!({
        "id": call.id, "code": code as i32, "sent": seen.sent, "received": seen.received,
        "started_ns": started.as_nanos() as u64, "ended_ns": ended.as_nanos() as u64,
    });
    Ok(line.to_string())
}

/// Messages that have gone either way.
#[derive(Debug, Default)]
struct Seen {
    sent: u32,
    received: u32,
}

/// What the client sends.
#[derive(Debug)]
struct Outgoing {
    to_server: Option<UnboundedSender<Message>>,
    message: Message,
}

impl Outgoing {
    fn send(&self, seen: &mut Seen) {
        if let Some(to_server) = &self.to_server {
            seen.sent += 1;
            // A server that has ended the call reads no more.
            let _ = to_server.send(self.message.clone());
        }
    }
}

async fn exchange(
    channel: Channel,
    call: &Call,
    timeout: Option<Duration>,
    seen: &mut Seen,
) -> anyhow::Result<Code> {
    let is_chat = call.method == "Chat";
    let (to_server, requests) = unbounded_channel();
    let mut outgoing = Outgoing { to_server: Some(to_server), message: vec![0; call.bytes] };
    for _ in 0..if is_chat { call.requests.min(1) } else { call.requests } {
        outgoing.send(seen);
    }
    // A cancelled exchange ends with neither side's end, one that is left does not end at all.
    let is_given_up = matches!(call.end.as_str(), "cancel" | "leave");
    let stays_open = is_chat && (call.requests > 0 || is_given_up);
    if !stays_open {
        outgoing.to_server = None;
    }
    let mut responses = match begin(channel, call, timeout, requests).await? {
        Ok(responses) => responses.into_inner(),
        Err(status) => return Ok(status.code()),
    };
    loop {
        match responses.message().await {
            Ok(Some(_)) => seen.received += 1,
            Ok(None) => return Ok(Code::Ok),
            Err(status) => return Ok(status.code()),
        }
        if is_given_up && seen.received == call.responses {
            if call.end == "leave" {
                std::mem::forget((outgoing, responses));
            }
            return Ok(Code::Cancelled);
        }
        if is_chat && seen.sent < call.requests {
            outgoing.send(seen);
        } else if !is_given_up {
            outgoing.to_server = None;
        }
    }
}

async fn begin(
    channel: Channel,
    call: &Call,
    timeout: Option<Duration>,
    requests: UnboundedReceiver<Message>,
) -> anyhow::Result<Result<Response<Streaming<Message>>, Status>> {
    let mut request = Request::new(UnboundedReceiverStream::new(requests));
    let parent = format!("00-{}-{}-01", call.id, &call.id[..16]);
    request.metadata_mut().insert("traceparent", MetadataValue::try_from(parent)?);
    request.metadata_mut().insert("shape", MetadataValue::try_from(call.shape.as_str())?);
    if let Some(timeout) = timeout {
        request.set_timeout(timeout);
    }
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let path = PathAndQuery::try_from(format!("/test.Shape/{}", call.method))?;
    Ok(client.streaming(request, path, Raw).await)
}
