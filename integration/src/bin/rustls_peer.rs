//! Server and clients over rustls: axum and hyper, reqwest, ureq.
//!
//! `serve` answers the protocol of `integration::shape` over HTTP/1.1 and HTTP/2 with TLS_CERTIFICATE and TLS_KEY, and
//! prints `ready PORT`. `call http1|http2|ureq|pieces PLAN` makes the calls of a plan (`integration::plan`) and prints
//! a JSON line for each; `pieces` sends each head in several records, by rustls alone. TLS_VERSION is `1.2` or `1.3`;
//! TICKETS the number of tickets that a server sends; LEAVES=1 lets reqwest go when the answer begins; IDLE the number
//! of connections that reqwest and ureq keep, by default all. Without arguments it says `ready` and waits. Knows
//! nothing of the agent.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context as _, bail};
use axum::Router;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::Response;
use http_body::Frame;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    ClientConfig, ClientConnection, DigitallySignedStruct, RootCertStore, ServerConfig, SignatureScheme,
    StreamOwned, SupportedProtocolVersion, version,
};
use serde::{Deserialize, Serialize};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc::{Receiver, channel};
use tokio::time::{Sleep, sleep};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

fn main() -> anyhow::Result<()> {
    let provider = provider()?;
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_all().build()?;
    match arguments[..] {
        [] => {
            println!("ready");
            std::thread::sleep(Duration::from_secs(3600));
            Ok(())
        }
        ["serve"] => runtime.block_on(serve()),
        ["call", "ureq", plan] => call_by_ureq(&Plan::read(plan)?, provider),
        ["call", "pieces", plan] => call_in_pieces(&Plan::read(plan)?),
        ["call", how @ ("http1" | "http2"), plan] => {
            runtime.block_on(call_by_reqwest(Plan::read(plan)?, how == "http2"))
        }
        _ => bail!("serve, or call http1|http2|ureq|pieces PLAN"),
    }
}

/// The library of ciphers that this was compiled with, which the first use makes the one of the process.
fn provider() -> anyhow::Result<Arc<CryptoProvider>> {
    drop(ServerConfig::builder());
    CryptoProvider::get_default().cloned().context("no library of ciphers")
}

static ONLY_1_2: [&SupportedProtocolVersion; 1] = [&version::TLS12];
static ONLY_1_3: [&SupportedProtocolVersion; 1] = [&version::TLS13];

fn versions() -> &'static [&'static SupportedProtocolVersion] {
    match std::env::var("TLS_VERSION").as_deref() {
        Ok("1.2") => &ONLY_1_2,
        Ok("1.3") => &ONLY_1_3,
        _ => rustls::ALL_VERSIONS,
    }
}

/// Connections whose handshake is over. Each was made by a task of its own.
struct Handshaken(Receiver<TlsStream<TcpStream>>);

impl axum::serve::Listener for Handshaken {
    type Io = TlsStream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.0.recv().await {
            Some(stream) => (stream, ()),
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<()> {
        Ok(())
    }
}

async fn serve() -> anyhow::Result<()> {
    let file = |name: &str| std::env::var(name).with_context(|| format!("{name} is not set"));
    let certificates = CertificateDer::pem_file_iter(file("TLS_CERTIFICATE")?)?.collect::<Result<_, _>>()?;
    let key = PrivateKeyDer::from_pem_file(file("TLS_KEY")?)?;
    let builder = ServerConfig::builder_with_protocol_versions(versions());
    let mut config = builder.with_no_client_auth().with_single_cert(certificates, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    if let Some(tickets) = std::env::var("TICKETS").ok().and_then(|tickets| tickets.parse().ok()) {
        config.send_tls13_tickets = tickets;
    }
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.context("listen")?;
    println!("ready {}", listener.local_addr()?.port());
    let (ended, received) = channel(64);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, ended) = (acceptor.clone(), ended.clone());
            tokio::spawn(async move {
                let _ = stream.set_nodelay(true);
                if let Ok(stream) = acceptor.accept(stream).await {
                    let _ = ended.send(stream).await;
                }
            });
        }
    });
    axum::serve(Handshaken(received), Router::new().fallback(answer)).await?;
    Ok(())
}

/// `/e/<id>/<status>/<framing>/<bytes>?d=&p=&g=&c=`
async fn answer(request: Request) -> Response {
    let begun = Instant::now();
    let (head, body) = request.into_parts();
    let parts: Vec<&str> = head.uri.path().split('/').collect();
    let part = |at: usize| parts.get(at).copied().unwrap_or_default();
    let options: HashMap<&str, u64> = head
        .uri
        .query()
        .unwrap_or_default()
        .split('&')
        .filter_map(|option| option.split_once('='))
        .filter_map(|(name, value)| Some((name, value.parse().ok()?)))
        .collect();
    let size: usize = part(5).parse().unwrap_or(0);
    let status = part(3).parse().unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let _ = to_bytes(body, usize::MAX).await;
    sleep(Duration::from_micros(options.get("d").copied().unwrap_or(0))).await;
    let has_body = !matches!(status, StatusCode::NO_CONTENT | StatusCode::NOT_MODIFIED);
    let is_sent = has_body && head.method != "HEAD";
    let pieces = usize::try_from(options.get("p").copied().unwrap_or(1)).unwrap_or(1).max(1);
    let size_sent = if is_sent { size } else { 0 };
    let option = |name: &str| options.get(name).copied().unwrap_or(0);
    let cut = usize::try_from(option("c")).ok().and_then(|cut| cut.checked_sub(1));
    let gap = Duration::from_micros(option("g"));
    let body = Pieces { gap, cut, ..Pieces::new(size_sent, pieces) };
    let mut response = Response::new(Body::new(body));
    *response.status_mut() = status;
    if has_body && part(4) == "length" {
        response.headers_mut().insert(header::CONTENT_LENGTH, HeaderValue::from(size));
    }
    let handled = u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    response.headers_mut().insert("x-handler-ns", HeaderValue::from(handled));
    if let Ok(id) = HeaderValue::from_str(part(2)) {
        response.headers_mut().insert("x-id", id);
    }
    response
}

/// A body in pieces.
struct Pieces {
    size: usize,
    pieces: usize,
    next: usize,
    /// Between two of them.
    gap: Duration,
    /// What goes before it breaks off, if it does.
    cut: Option<usize>,
    pause: Option<Pin<Box<Sleep>>>,
}

/// Long enough for what was handed over to leave.
const BEFORE_CUT: Duration = Duration::from_millis(30);

impl Pieces {
    fn new(size: usize, pieces: usize) -> Self {
        Self { size, pieces, next: 0, gap: Duration::ZERO, cut: None, pause: None }
    }

    fn is_over(&self) -> bool {
        self.cut.is_none() && (self.next >= self.pieces || self.size == 0)
    }
}

impl HttpBody for Pieces {
    type Data = Bytes;
    type Error = std::io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.is_over() {
            return Poll::Ready(None);
        }
        if let Some(pause) = &mut self.pause {
            if pause.as_mut().poll(context).is_pending() {
                return Poll::Pending;
            }
            self.pause = None;
        }
        self.next += 1;
        let length = match self.cut {
            Some(_) if self.next > 1 => return Poll::Ready(Some(Err(ErrorKind::ConnectionAborted.into()))),
            Some(cut) => cut,
            None => self.size * self.next / self.pieces - self.size * (self.next - 1) / self.pieces,
        };
        let gap = if self.cut.is_some() { BEFORE_CUT } else { self.gap };
        self.pause = (!gap.is_zero()).then(|| Box::pin(sleep(gap)));
        Poll::Ready(Some(Ok(Frame::data(vec![b'b'; length].into()))))
    }

    fn is_end_stream(&self) -> bool {
        self.is_over()
    }
}

#[derive(Deserialize)]
struct Plan {
    host: String,
    port: u16,
    concurrency: usize,
    calls: Vec<Call>,
}

#[derive(Clone, Deserialize)]
struct Call {
    id: String,
    method: String,
    target: String,
    request_framing: String,
    request_bytes: usize,
}

#[derive(Serialize)]
struct Truth {
    id: String,
    status: u16,
    request_bytes: usize,
    response_bytes: usize,
    handler_ns: Option<u64>,
    started_ns: u64,
    ended_ns: u64,
    broken: Option<String>,
}

/// What came of a call.
struct Answer<'a> {
    status: u16,
    handler: Option<&'a HeaderValue>,
    bytes: usize,
    broken: Option<String>,
}

impl Plan {
    fn read(path: &str) -> anyhow::Result<Self> {
        let text = std::fs::read(path).with_context(|| format!("read {path}"))?;
        Ok(serde_json::from_slice(&text)?)
    }

    fn url(&self, call: &Call) -> String {
        format!("https://{}:{}{}", self.host, self.port, call.target)
    }
}

impl Call {
    fn body(&self) -> Vec<u8> {
        vec![b'q'; self.request_bytes]
    }

    /// Prints what came of it, begun `started_ns` after 1970.
    fn report(&self, started_ns: u64, answer: Answer<'_>) {
        let truth = Truth {
            id: self.id.clone(),
            status: answer.status,
            request_bytes: self.request_bytes,
            response_bytes: answer.bytes,
            broken: answer.broken,
            handler_ns: answer.handler.and_then(|value| value.to_str().ok()?.parse().ok()),
            started_ns,
            ended_ns: now_ns(),
        };
        println!("{}", serde_json::to_string(&truth).expect("plain fields can be written"));
    }
}

fn now_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
}

/// As many calls at a time as there are to be connections. A client for each of those; over HTTP/2 one for all, whose
/// first call goes ahead of the others: so no connection is opened that is not used.
async fn call_by_reqwest(plan: Plan, is_http2: bool) -> anyhow::Result<()> {
    let plan = Arc::new(plan);
    let calls = Arc::new(Mutex::new(plan.calls.clone()));
    let next = |calls: &Mutex<Vec<Call>>| calls.lock().unwrap_or_else(PoisonError::into_inner).pop();
    let shared = is_http2.then(|| client(&plan, true)).transpose()?;
    if let Some(client) = &shared
        && let Some(call) = next(&calls)
    {
        call_one(client, &plan, &call).await.with_context(|| call.target.clone())?;
    }
    let mut tasks = Vec::new();
    for _ in 0..plan.concurrency {
        let client = shared.clone().map_or_else(|| client(&plan, false), Ok)?;
        let (plan, calls) = (Arc::clone(&plan), Arc::clone(&calls));
        tasks.push(tokio::spawn(async move {
            loop {
                let Some(call) = next(&calls) else { return anyhow::Ok(()) };
                call_one(&client, &plan, &call).await.with_context(|| call.target.clone())?;
            }
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(())
}

fn client(plan: &Plan, is_http2: bool) -> anyhow::Result<reqwest::Client> {
    let builder = reqwest::Client::builder()
        .tls_danger_accept_invalid_certs(true)
        .redirect(reqwest::redirect::Policy::none())
        .pool_max_idle_per_host(idle(plan.concurrency));
    Ok(if is_http2 { builder } else { builder.http1_only() }.build()?)
}

async fn call_one(client: &reqwest::Client, plan: &Plan, call: &Call) -> anyhow::Result<()> {
    let started = now_ns();
    let mut request = client.request(call.method.parse()?, plan.url(call));
    let size = call.request_bytes;
    request = match call.request_framing.as_str() {
        "length" => request.body(call.body()),
        "chunked" => request.body(reqwest::Body::wrap(Pieces::new(size, 1))),
        _ => request,
    };
    let mut response = request.send().await?;
    let (status, handler) = (response.status().as_u16(), response.headers().get("x-handler-ns").cloned());
    let (mut bytes, mut broken) = (0, None);
    if std::env::var_os("LEAVES").is_some() {
        drop(response);
        broken = Some("left".to_owned());
    } else {
        loop {
            match response.chunk().await {
                Ok(Some(chunk)) => bytes += chunk.len(),
                Ok(None) => break,
                Err(error) => {
                    broken = Some(error.to_string());
                    break;
                }
            }
        }
    }
    call.report(started, Answer { status, handler: handler.as_ref(), bytes, broken });
    Ok(())
}

/// One thread for each connection.
fn call_by_ureq(plan: &Plan, provider: Arc<CryptoProvider>) -> anyhow::Result<()> {
    let tls = ureq::tls::TlsConfig::builder().disable_verification(true);
    let tls = tls.unversioned_rustls_crypto_provider(provider).build();
    let config = ureq::Agent::config_builder().tls_config(tls).http_status_as_error(false).max_redirects(0);
    let config = config.max_idle_connections_per_host(idle(plan.concurrency));
    let agent = ureq::Agent::new_with_config(config.allow_non_standard_methods(true).build());
    in_threads(plan, |call| call_one_by_ureq(&agent, plan, call))
}

/// Connections that are kept.
fn idle(most: usize) -> usize {
    std::env::var("IDLE").ok().and_then(|idle| idle.parse().ok()).unwrap_or(most)
}

/// As many threads as there are to be connections.
fn in_threads(plan: &Plan, make: impl Fn(&Call) -> anyhow::Result<()> + Sync) -> anyhow::Result<()> {
    let calls = Mutex::new(plan.calls.clone());
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..plan.concurrency)
            .map(|_| {
                scope.spawn(|| {
                    loop {
                        let call = calls.lock().unwrap_or_else(PoisonError::into_inner).pop();
                        let Some(call) = call else { return anyhow::Ok(()) };
                        make(&call).with_context(|| call.target.clone())?;
                    }
                })
            })
            .collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no thread of ours panics"))
    })
}

/// Each call over a connection of its own, its head in several records. What makes records ends before the socket does.
fn call_in_pieces(plan: &Plan) -> anyhow::Result<()> {
    let config = ClientConfig::builder_with_protocol_versions(versions());
    let mut config = config.with_root_certificates(RootCertStore::empty()).with_no_client_auth();
    let provider = Arc::clone(config.crypto_provider());
    config.dangerous().set_certificate_verifier(Arc::new(Unverified(provider)));
    let config = Arc::new(config);
    in_threads(plan, |call| call_one_in_pieces(&config, plan, call))
}

fn call_one_in_pieces(config: &Arc<ClientConfig>, plan: &Plan, call: &Call) -> anyhow::Result<()> {
    const PIECES: usize = 4;
    let started = now_ns();
    let socket = std::net::TcpStream::connect((plan.host.as_str(), plan.port))?;
    socket.set_nodelay(true)?;
    let connection = ClientConnection::new(Arc::clone(config), ServerName::try_from(plan.host.clone())?)?;
    let mut stream = StreamOwned::new(connection, socket);
    let length = if call.request_framing == "none" {
        String::new()
    } else {
        format!("content-length: {}\r\n", call.request_bytes)
    };
    let host = &plan.host;
    let Call { method, target, .. } = call;
    let head = format!("{method} {target} HTTP/1.1\r\nhost: {host}\r\n{length}connection: close\r\n\r\n");
    for piece in head.as_bytes().chunks(head.len().div_ceil(PIECES)) {
        stream.write_all(piece)?;
        stream.flush()?;
    }
    stream.write_all(&call.body())?;
    stream.flush()?;
    let mut answer = Vec::new();
    let ended = stream.read_to_end(&mut answer);
    let over = answer.windows(4).position(|bytes| bytes == b"\r\n\r\n");
    let over = over.with_context(|| format!("{} bytes without a whole head: {ended:?}", answer.len()))?;
    let head = std::str::from_utf8(&answer[..over])?;
    let status = head.get(9..12).context("a head without a status")?.parse()?;
    let handler = head.lines().find_map(|line| line.strip_prefix("x-handler-ns: "));
    let handler = handler.map(HeaderValue::from_str).transpose()?;
    let bytes = answer.len() - over - 4;
    call.report(started, Answer { status, handler: handler.as_ref(), bytes, broken: None });
    Ok(())
}

/// Takes every certificate.
#[derive(Debug)]
struct Unverified(Arc<CryptoProvider>);

impl ServerCertVerifier for Unverified {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

fn call_one_by_ureq(agent: &ureq::Agent, plan: &Plan, call: &Call) -> anyhow::Result<()> {
    let started = now_ns();
    let request = axum::http::Request::builder().method(call.method.as_str()).uri(plan.url(call));
    let mut response = match call.request_framing.as_str() {
        "length" => agent.run(request.body(call.body())?)?,
        "chunked" => {
            let bytes = call.body();
            let mut reader = bytes.as_slice();
            agent.run(request.body(ureq::SendBody::from_reader(&mut reader))?)?
        }
        _ => agent.run(request.body(())?)?,
    };
    let (status, handler) = (response.status().as_u16(), response.headers().get("x-handler-ns").cloned());
    let bytes = response.body_mut().with_config().limit(u64::MAX).read_to_vec()?.len();
    call.report(started, Answer { status, handler: handler.as_ref(), bytes, broken: None });
    Ok(())
}
