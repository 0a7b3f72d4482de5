//! The kubelet's stream of pods: gRPC on a unix socket of the node (`PodsAPI`, Kubernetes 1.37).
//!
//! In: the folder of the socket, held open; the kubelet's messages. Out: pods. It needs neither token nor network, and
//! works while the API server is away.

use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::{HeaderMap, Request};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::bytes::Bytes;
use tokio::net::UnixStream;
use tokio::time::timeout;

use super::{Broken, gone, live, names, put};
use crate::kubernetes::Pods;
use crate::kubernetes::frame::{Frames, Prefix};
use crate::kubernetes::message::{self, PodEvent};

/// Until the connection stands, and until all pods that are there have been sent.
const CONNECT: Duration = Duration::from_secs(5);
const SYNC: Duration = Duration::from_secs(30);

/// A request without fields, behind gRPC's prefix.
const REQUEST: [u8; 5] = [0; 5];
const WATCH: &str = "http://kubelet/v1alpha1.Pods/WatchPods";

/// Where the kubelet's socket is.
#[derive(Debug)]
pub struct Kubelet {
    /// Its folder: the socket itself is another one after each start of the kubelet.
    folder: OwnedFd,
    name: PathBuf,
}

impl Kubelet {
    /// The socket at `path`, in the root of the machine's first process where ours does not show its folder.
    #[must_use]
    pub fn find(path: &Path) -> Option<Self> {
        Some(Self { folder: names::open(path.parent()?)?, name: path.file_name()?.into() })
    }

    /// Puts what the stream sends until it ends, and says why it did.
    pub(super) async fn follow(&self, pods: &Pods) -> Broken {
        match self.stream(pods).await {
            Ok(never) => match never {},
            Err(broken) => broken,
        }
    }

    async fn stream(&self, pods: &Pods) -> Result<std::convert::Infallible, Broken> {
        // By the descriptor: the folder may lie where only the start could look.
        let path = Path::new("/proc/self/fd").join(self.folder.as_raw_fd().to_string()).join(&self.name);
        let connecting = timeout(CONNECT, UnixStream::connect(path)).await;
        let socket = connecting
            .map_err(|_| Broken::Late("connecting to the kubelet"))?
            .map_err(|error| Broken::connection("failed to connect to the kubelet's socket", error))?;
        let lost = |error: hyper::Error| Broken::connection("the kubelet's stream broke", error);
        let (mut sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(socket)).await.map_err(lost)?;
        // Ends with the sender, which this function drops.
        let _connection = AbortOnDrop(tokio::spawn(async move { drop(connection.await) }));
        let request = Request::post(WATCH)
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .header("user-agent", concat!("obi/", env!("CARGO_PKG_VERSION")))
            .body(Full::new(Bytes::from_static(&REQUEST)))
            .expect("a fixed request is valid");
        let answer = timeout(SYNC, sender.send_request(request)).await;
        let response = answer.map_err(|_| Broken::Late("the kubelet's answer"))?.map_err(lost)?;
        if !response.status().is_success() {
            return Err(refused(response.status().as_u16(), String::new()));
        }
        check(response.headers())?;
        pods.begin();
        pods.counts().streams.fetch_add(1, Ordering::Relaxed);
        self.read(response.into_body(), pods).await
    }

    async fn read(
        &self,
        mut body: hyper::body::Incoming,
        pods: &Pods,
    ) -> Result<std::convert::Infallible, Broken> {
        let mut frames = Frames::new(Prefix::Grpc);
        let mut is_live = false;
        loop {
            let frame = if is_live {
                body.frame().await
            } else {
                timeout(SYNC, body.frame()).await.map_err(|_| Broken::Late("the kubelet's list of pods"))?
            };
            let frame = frame.ok_or(Broken::connection("the kubelet's stream ended", "without a status"))?;
            let frame = frame.map_err(|error| Broken::connection("the kubelet's stream broke", error))?;
            match frame.into_data() {
                Ok(bytes) => {
                    frames.push(&bytes);
                    while let Some(bytes) = frames.message()? {
                        is_live |= accept(bytes, pods);
                    }
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    check(&trailers)?;
                    return Err(Broken::connection("the kubelet's stream ended", "it said that all is well"));
                }
            }
        }
    }
}

/// Whether the message says that all has been sent. One that cannot be read is counted: the next one may be well.
fn accept(bytes: &[u8], pods: &Pods) -> bool {
    match message::pod_event(bytes) {
        Ok(PodEvent::Put(sent)) => put(pods, sent.object),
        Ok(PodEvent::Gone(sent)) => gone(pods, &sent.object),
        Ok(PodEvent::Complete) => {
            live(pods, "kubelet");
            return true;
        }
        Ok(PodEvent::Other) => {}
        Err(error) => {
            pods.counts().undecodable.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%error, "a message of the kubelet is passed over");
        }
    }
    false
}

/// The status of gRPC, in headers where there is nothing else.
fn check(headers: &HeaderMap) -> Result<(), Broken> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    match text("grpc-status").map(str::parse::<u16>) {
        None | Some(Ok(0)) => Ok(()),
        Some(code) => {
            let message = text("grpc-message").unwrap_or_default();
            Err(refused(code.unwrap_or(u16::MAX), super::super::pod::short(message).into()))
        }
    }
}

fn refused(code: u16, message: String) -> Broken {
    Broken::Refused { what: "the kubelet's stream of pods", code, message, after: None }
}

/// A task that ends with its owner.
struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}
