//! Sources against servers that replay recorded streams a few bytes at a time, refuse, break off and come back.

use std::convert::Infallible;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, channel};

use hyper::body::Frame;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::bytes::Bytes;
use tempfile::TempDir;

use super::*;
use crate::config::PeerNames;
use crate::kubernetes::PodUid;
use crate::kubernetes::message::service::{Service, Slice};
use crate::kubernetes::services::Kind;

const INITIAL: &[u8] = include_bytes!("../../../tests/kubernetes/api_initial.bin");
const CHANGES: &[u8] = include_bytes!("../../../tests/kubernetes/api_changes.bin");
/// What an API server says whose etcd reports no progress, instead of the first pod.
const REFUSED: &[u8] = include_bytes!("../../../tests/kubernetes/api_refused.bin");
const GONE: &[u8] = include_bytes!("../../../tests/kubernetes/api_gone.bin");
const LIST: &[u8] = include_bytes!("../../../tests/kubernetes/api_list.bin");
const SERVICES: &[u8] = include_bytes!("../../../tests/kubernetes/api_services.bin");
const SLICES: &[u8] = include_bytes!("../../../tests/kubernetes/api_slices.bin");
const REPORTED: &[u8] = include_bytes!("../../../tests/kubernetes/kubelet_initial.bin");
const REPORTED_CHANGES: &[u8] = include_bytes!("../../../tests/kubernetes/kubelet_changes.bin");

const CART: &str = "4f4f5e6e-02ab-4c1d-9a0b-0123456789ab";
const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";

#[test]
fn waits_grow_and_have_an_end() {
    for _ in 0..100 {
        let mut wait = Wait::default();
        let waits: Vec<Duration> = (0..40).map(|_| wait.next()).collect();
        let most = |nth: usize| WAIT_FIRST.saturating_mul(1 << nth.min(10)).min(WAIT_MAX) + WAIT_FIRST / 10;
        assert!(waits.iter().enumerate().all(|(nth, wait)| *wait <= most(nth)), "{waits:?}");
        assert!(waits.iter().all(|wait| *wait >= WAIT_FIRST / 10));
    }
}

/// What the server answers to one request: a status, further headers, a body in chunks of so many bytes.
struct Answer {
    status: &'static str,
    headers: &'static str,
    body: Vec<u8>,
    chunk: usize,
    /// The body is not ended, but the connection.
    is_broken: bool,
}

fn stream(body: &[u8], chunk: usize) -> Answer {
    let headers = "content-type: application/vnd.kubernetes.protobuf;stream=watch\r\n";
    Answer { status: "200 OK", headers, body: body.to_vec(), chunk, is_broken: false }
}

fn refusal(status: &'static str, headers: &'static str) -> Answer {
    Answer { status, headers, body: b"{\"reason\":\"no\"}".to_vec(), chunk: 100, is_broken: false }
}

/// Answers one request after the other, and hands over what was asked.
fn serve(answers: Vec<Answer>) -> (String, Receiver<String>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let (asked, requests) = channel();
    std::thread::spawn(move || {
        for answer in answers {
            let (socket, _) = listener.accept().unwrap();
            // Who has gone does not want the rest.
            let _ = reply(socket, &answer, |head| asked.send(head).unwrap());
        }
    });
    (address, requests)
}

fn reply(socket: TcpStream, answer: &Answer, asked: impl FnOnce(String)) -> std::io::Result<()> {
    let mut head = String::new();
    let mut reader = BufReader::new(socket.try_clone()?);
    while !head.ends_with("\r\n\r\n") {
        reader.read_line(&mut head)?;
    }
    asked(head);
    let mut socket = socket;
    let Answer { status, headers, body, chunk, is_broken } = answer;
    let fixed = "transfer-encoding: chunked\r\nconnection: close\r\n\r\n";
    socket.write_all(format!("HTTP/1.1 {status}\r\n{headers}{fixed}").as_bytes())?;
    for piece in body.chunks(*chunk) {
        socket.write_all(format!("{:x}\r\n", piece.len()).as_bytes())?;
        socket.write_all(piece)?;
        socket.write_all(b"\r\n")?;
    }
    if *is_broken { Ok(()) } else { socket.write_all(b"0\r\n\r\n") }
}

fn asked(address: &str) -> (Kubernetes, TempDir) {
    let credentials = tempfile::tempdir().unwrap();
    std::fs::write(credentials.path().join("token"), "the-token\n").unwrap();
    let config = Kubernetes {
        api_server: address.to_owned(),
        node: "node-a".to_owned(),
        credentials: credentials.path().to_owned(),
        spread: Duration::ZERO,
        ..Kubernetes::default()
    };
    (config, credentials)
}

fn api(address: &str) -> (Api, TempDir) {
    let (config, credentials) = asked(address);
    let mut api = Api::find(&config).unwrap();
    api.watch.between_lists = Duration::ZERO;
    (api, credentials)
}

/// The services of the cluster, and what is behind them, from both collections.
#[tokio::test]
async fn services_are_followed_where_that_is_wanted() {
    let (address, requests) =
        serve(vec![stream(SERVICES, 3), stream(SLICES, 5), refusal("403 Forbidden", "")]);
    let (config, _folder) = asked(&address);
    assert!(Endpoints::find(&config).is_none());
    let config = Kubernetes { peers: PeerNames::Services, ..config };
    let (mut endpoints, pods) = (Endpoints::find(&config).unwrap(), Pods::default());

    endpoints.services.follow(&services::Addresses::<Service>::new(&pods, Kind::Service)).await.unwrap();
    let head = requests.recv().unwrap();
    assert!(head.starts_with("GET /api/v1/services?watch=1&allowWatchBookmarks=true&"), "{head}");
    endpoints.slices.follow(&services::Addresses::<Slice>::new(&pods, Kind::Slice)).await.unwrap();
    let head = requests.recv().unwrap();
    assert!(head.starts_with("GET /apis/discovery.k8s.io/v1/endpointslices?watch=1&"), "{head}");

    let at = |address: &str| {
        let found = pods.services().at(address.parse().unwrap(), monotonic_ns());
        found.map(|found| format!("{}/{}", found.namespace, found.name))
    };
    assert!(pods.services().is_live());
    for address in ["10.96.0.7:80", "[fd00:96::7]:80", "192.0.2.7:1", "10.244.3.7:8080", "10.244.4.8:9090"] {
        assert_eq!(at(address).as_deref(), Some("shop/cart"), "{address}");
    }
    assert_eq!(at("[fd00::9]:1").as_deref(), Some("shop/any"));
    assert_eq!((at("10.244.3.7:22"), at("10.244.9.9:80")), (None, None));
    let view = pods.view();
    assert_eq!((view.services, view.slices, view.streams, view.undecodable), (3, 3, 2, 0));
    let refused = endpoints.slices.follow(&services::Addresses::<Slice>::new(&pods, Kind::Slice)).await;
    assert!(refused.unwrap_err().to_string().starts_with("the list of endpoint slices was refused: 403"));
}

fn cart(pods: &Pods) -> Option<std::sync::Arc<super::super::Pod>> {
    pods.get(PodUid::parse(CART).unwrap())
}

#[tokio::test]
async fn a_watch_begins_goes_on_and_begins_anew() {
    let listed = Answer { is_broken: true, ..stream(INITIAL, 7) };
    let answers = vec![stream(INITIAL, 1), stream(CHANGES, 3), stream(GONE, 5), stream(INITIAL, 64), listed];
    let (address, requests) = serve(answers);
    let ((mut api, _folder), pods) = (api(&address), Pods::default());

    api.follow(&pods).await.unwrap();
    assert!(pods.is_live() && cart(&pods).unwrap().addresses.is_empty());
    let head = requests.recv().unwrap();
    let begins = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a&watch=1&allowWatchBookmarks=true&";
    assert!(head.starts_with(begins), "{head}");
    assert!(head.contains("&sendInitialEvents=true&resourceVersionMatch=NotOlderThan "), "{head}");
    assert!(head.contains("authorization: Bearer the-token\r\n") && head.contains(STREAM), "{head}");
    assert!(head.contains(&format!("user-agent: obi/{} (node-a)\r\n", env!("CARGO_PKG_VERSION"))), "{head}");

    api.follow(&pods).await.unwrap();
    let head = requests.recv().unwrap();
    assert!(head.contains("&resourceVersion=102 ") && !head.contains("sendInitialEvents"), "{head}");
    assert_eq!((pods.view().pods, pods.view().ended), (1, 1), "the cart has ended");
    assert_eq!(cart(&pods).unwrap().containers.len(), 4, "and is known a while longer");

    // It goes on from the last version; that is too old, so everything is asked for again.
    let expired = api.follow(&pods).await.unwrap_err();
    assert!(matches!(expired, Broken::Refused { code: 410, .. }), "{expired}");
    assert!(requests.recv().unwrap().contains("&resourceVersion=104 "));
    api.follow(&pods).await.unwrap();
    assert!(requests.recv().unwrap().contains("sendInitialEvents"));
    assert_eq!((pods.view().pods, pods.view().ended), (2, 0));
    let view = pods.view();
    assert_eq!((view.source, view.streams, view.undecodable), ("api", 4, 0));
}

#[tokio::test]
async fn a_stream_that_breaks_names_nobody_wrongly() {
    // Broken in many places: what came whole before is known, and the list is not taken for complete.
    for end in (0..INITIAL.len()).step_by(41) {
        let broken = Answer { is_broken: true, ..stream(&INITIAL[..end], 16) };
        let (address, _requests) = serve(vec![broken]);
        let pods = Pods::default();
        let (mut api, _folder) = api(&address);
        let error = api.follow(&pods).await.unwrap_err();
        assert!(matches!(error, Broken::Connection { .. }), "{error}");
        assert!(!pods.is_live(), "broken at {end}");
        assert!(pods.view().pods <= 2);
    }
}

#[tokio::test]
async fn a_server_that_cannot_begin_a_watch_with_what_is_there_is_asked_for_a_list() {
    for refused in [refusal("422 Unprocessable Entity", ""), stream(REFUSED, 9)] {
        let list =
            Answer { headers: "content-type: application/vnd.kubernetes.protobuf\r\n", ..stream(LIST, 11) };
        let (address, requests) = serve(vec![refused, list, stream(CHANGES, 9)]);
        let ((mut api, _folder), pods) = (api(&address), Pods::default());
        api.follow(&pods).await.unwrap();
        assert!(requests.recv().unwrap().contains("sendInitialEvents"));
        let list = requests.recv().unwrap();
        let asked = "GET /api/v1/pods?fieldSelector=spec.nodeName%3Dnode-a&resourceVersion=0 ";
        assert!(list.starts_with(asked), "{list}");
        assert!(requests.recv().unwrap().contains("&resourceVersion=100 "));
        assert_eq!((pods.view().pods, pods.view().ended), (1, 1));
    }
}

#[tokio::test]
async fn refusals_are_reported_and_never_the_token() {
    async fn check(answer: Answer, expected: &str, wait: Option<u64>) {
        let (address, _requests) = serve(vec![answer]);
        let (mut api, _folder) = api(&address);
        let broken = api.follow(&Pods::default()).await.unwrap_err();
        let text = broken.to_string();
        assert!(text.contains(expected) && !text.contains("the-token"), "{text}");
        assert_eq!(after(&broken), wait.map(Duration::from_secs));
    }
    check(refusal("403 Forbidden", ""), "403", None).await;
    check(refusal("401 Unauthorized", ""), "401", None).await;
    check(refusal("429 Too Many Requests", "retry-after: 7\r\n"), "429", Some(7)).await;
    check(refusal("200 OK", "content-type: application/json\r\n"), "protobuf", None).await;
    check(stream(&[255; 64], 8), "4294967295", None).await;
    let (address, _) = serve(Vec::new());
    let (mut api, _folder) = api(&address);
    let broken = api.follow(&Pods::default()).await.unwrap_err();
    assert!(broken.to_string().contains("failed to ask"), "{broken}");
}

#[test]
fn without_a_nodes_name_the_api_server_is_not_asked() {
    let config = Kubernetes { api_server: "http://127.0.0.1:1".to_owned(), ..Kubernetes::default() };
    assert!(Api::find(&config).is_none());
}

/// A kubelet's socket that answers each stream with these bytes, so many at a time, and a status of gRPC behind them.
fn kubelet(answers: Vec<(Vec<u8>, usize, &'static str)>) -> (Kubelet, TempDir) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pods-api.sock");
    let listener = tokio::net::UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        for (bytes, chunk, status) in answers {
            let (socket, _) = listener.accept().await.unwrap();
            let service =
                hyper::service::service_fn(move |request: hyper::Request<hyper::body::Incoming>| {
                    assert_eq!(request.uri().path(), "/v1alpha1.Pods/WatchPods");
                    let chunks = bytes.chunks(chunk).map(|bytes| Frame::data(Bytes::copy_from_slice(bytes)));
                    let mut trailers = http::HeaderMap::new();
                    trailers.insert("grpc-status", status.parse().unwrap());
                    let frames: Vec<_> = chunks.chain([Frame::trailers(trailers)]).collect();
                    let body = Frames(frames.into());
                    async move {
                        let answer = http::Response::builder().header("content-type", "application/grpc");
                        Ok::<_, Infallible>(answer.body(body).unwrap())
                    }
                });
            let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(server.serve_connection(TokioIo::new(socket), service));
        }
    });
    (Kubelet::find(&path).unwrap(), folder)
}

struct Frames(std::collections::VecDeque<Frame<Bytes>>);

impl hyper::body::Body for Frames {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        std::task::Poll::Ready(self.0.pop_front().map(Ok))
    }
}

#[tokio::test]
async fn the_kubelet_tells_its_pods() {
    let whole = [REPORTED, REPORTED_CHANGES].concat();
    let answers = vec![(REPORTED.to_vec(), 1, "0"), (whole, 7, "0"), (Vec::new(), 1, "9")];
    let (kubelet, folder) = kubelet(answers);
    let pods = Pods::default();
    let broken = kubelet.follow(&pods).await;
    assert!(broken.to_string().contains("ended"), "{broken}");
    assert!(pods.is_live() && cart(&pods).is_some());
    assert_eq!((pods.view().source, pods.view().pods), ("kubelet", 2));
    pods.interrupt(monotonic_ns());
    // The kubelet is back; the cart ends, of which it sends no more than the UID.
    kubelet.follow(&pods).await;
    assert_eq!((pods.view().pods, pods.view().ended), (1, 1));
    assert_eq!(cart(&pods).unwrap().addresses.len(), 2);
    // Not ready yet: its sources are not all there (FAILED_PRECONDITION).
    let broken = kubelet.follow(&pods).await;
    assert!(matches!(broken, Broken::Refused { code: 9, .. }), "{broken}");
    folder.close().unwrap();
    let broken = kubelet.follow(&pods).await;
    assert!(broken.to_string().contains("socket"), "{broken}");
}
