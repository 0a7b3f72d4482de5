//! The API server: the pods of this node, listed and watched, in protobuf.
//!
//! In: a token, certificates and an address, as Kubernetes mounts them into a pod. Out: pods. Never asks for the pods
//! of other nodes: what an agent costs the API server must not grow with the cluster.

use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

use http::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, RETRY_AFTER};
use reqwest::{Certificate, Client, Response, Url};
use tokio::time::{Instant, sleep, timeout};

use super::{Broken, Told, live, take};
use crate::clock::monotonic_ns;
use crate::config::Kubernetes;
use crate::kubernetes::Pods;
use crate::kubernetes::frame::{Frames, Prefix};
use crate::kubernetes::message::{self, Watched};
use crate::kubernetes::view::Counts;

const CONNECT: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(30);
/// The server sends a bookmark once a minute: longer silence is a connection that is dead.
const SILENCE: Duration = Duration::from_secs(150);
/// How long a watch is asked for, seconds: a random time, so that agents do not fall into step.
const WATCH_SECONDS: std::ops::Range<u64> = 300..600;
/// Between two lists of everything.
const BETWEEN_LISTS: Duration = Duration::from_secs(30);
/// Longest list and longest refusal that are read. A node runs some hundred pods of 10 KiB.
const LIST_BYTES: usize = 64 << 20;
const REFUSAL_BYTES: usize = 4096;

const STREAM: &str = "application/vnd.kubernetes.protobuf;stream=watch";
const WHOLE: &str = "application/vnd.kubernetes.protobuf";

/// The API server as this pod may ask it.
#[derive(Debug)]
pub struct Api {
    url: Url,
    /// Where token and certificates are; they are replaced there before they run out.
    credentials: PathBuf,
    node: String,
    /// The first request comes within this time, at random.
    spread: Duration,
    /// Where the watch goes on; `None` before the first list, and when the server has forgotten it.
    version: Option<String>,
    /// The server cannot send what is there as the beginning of a watch.
    lists_apart: bool,
    listed: Option<Instant>,
    /// Between two lists of everything.
    pub(super) between_lists: Duration,
}

impl Api {
    /// The API server, from the configuration or from the variables that Kubernetes gives to every container. `None`
    /// when its address, the node's name or the token is not known.
    #[must_use]
    pub fn find(config: &Kubernetes) -> Option<Self> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let in_cluster = || {
            let (host, port) = (variable("KUBERNETES_SERVICE_HOST")?, variable("KUBERNETES_SERVICE_PORT")?);
            let host = if host.contains(':') { format!("[{host}]") } else { host };
            Some(format!("https://{host}:{port}"))
        };
        let address = Some(config.api_server.clone()).filter(|url| !url.is_empty()).or_else(in_cluster)?;
        let url = Url::parse(&address).ok()?.join("/api/v1/pods").ok()?;
        let node = Some(config.node.clone()).filter(|node| !node.is_empty())?;
        let credentials = config.credentials.clone();
        // A pod without a token is not meant to ask.
        std::fs::exists(credentials.join("token")).ok().filter(|is_there| *is_there)?;
        let (version, listed, lists_apart) = (None, None, false);
        let between_lists = BETWEEN_LISTS;
        let spread = config.spread;
        Some(Self { url, credentials, node, spread, version, lists_apart, listed, between_lists })
    }

    /// Whether the first request does not wait for those of other agents.
    #[must_use]
    pub fn begins_at_once(&self) -> bool {
        self.spread.is_zero()
    }

    /// Puts what the server tells until the watch ends: as agreed, or by an error.
    pub(super) async fn follow(&mut self, pods: &Pods) -> Result<(), Broken> {
        sleep(std::mem::take(&mut self.spread).mul_f64(fastrand::f64())).await;
        let client = self.client()?;
        let token = self.token()?;
        let asking = Asking { client, token };
        let result = self.watch(&asking, pods).await;
        if let Err(Broken::Refused { code: 410, .. }) = &result {
            // What came meanwhile is not known: everything is asked for again.
            self.version = None;
        }
        result
    }

    async fn watch(&mut self, asking: &Asking, pods: &Pods) -> Result<(), Broken> {
        if self.version.is_none() {
            if let Some(listed) = self.listed {
                sleep(self.between_lists.saturating_sub(listed.elapsed())).await;
            }
            self.listed = Some(Instant::now());
            if self.lists_apart {
                self.list(asking, pods).await?;
            } else {
                pods.begin();
            }
        }
        let response = match asking.get(self.watch_url(), STREAM).await {
            // Servers before 1.32 know no such beginning, and later ones may have it switched off.
            Err(Broken::Refused { code: 400 | 422, .. }) if self.version.is_none() && !self.lists_apart => {
                self.lists_apart = true;
                self.list(asking, pods).await?;
                asking.get(self.watch_url(), STREAM).await?
            }
            other => other?,
        };
        pods.counts().streams.fetch_add(1, Ordering::Relaxed);
        if self.version.is_some() {
            pods.resume();
        }
        self.read(response, pods).await
    }

    async fn read(&mut self, mut response: Response, pods: &Pods) -> Result<(), Broken> {
        let mut frames = Frames::new(Prefix::Length);
        loop {
            let chunk = timeout(SILENCE, response.chunk()).await.map_err(|_| Broken::Late("a bookmark"))?;
            let Some(chunk) =
                chunk.map_err(|error| Broken::connection("the watch of pods broke", explained(&error)))?
            else {
                return Ok(());
            };
            frames.push(&chunk);
            while let Some(bytes) = frames.message()? {
                match message::watched(bytes) {
                    Ok(event) => self.accept(event, pods)?,
                    Err(error) => {
                        Counts::add(&pods.counts().undecodable, 1);
                        tracing::debug!(%error, "a message of the API server is passed over");
                    }
                }
            }
        }
    }

    fn accept(&mut self, event: Watched, pods: &Pods) -> Result<(), Broken> {
        let mut note = |version: &str| {
            // Before the end of what was there at first, versions are in no order.
            if let Some(held) = &mut self.version {
                version.clone_into(held);
            }
        };
        match event {
            Watched::Put(sent) => {
                note(&sent.resource_version);
                take(pods, Told::Put(sent));
            }
            Watched::Gone(sent) => {
                note(&sent.resource_version);
                take(pods, Told::Gone(sent));
            }
            Watched::Bookmark { resource_version, is_initial_end } => {
                note(&resource_version);
                if is_initial_end {
                    self.version = Some(resource_version);
                    live(pods, "api");
                }
            }
            Watched::Refused { code, message } => return Err(refused("the watch of pods", code, message)),
            Watched::Other => {}
        }
        Ok(())
    }

    async fn list(&mut self, asking: &Asking, pods: &Pods) -> Result<(), Broken> {
        let mut url = self.of_node();
        url.query_pairs_mut().append_pair("resourceVersion", "0");
        let mut response = asking.get(url, WHOLE).await?;
        let bytes = timeout(ANSWER, whole(&mut response, LIST_BYTES)).await;
        let bytes = bytes.map_err(|_| Broken::Late("the list of pods"))??;
        pods.begin();
        let now = monotonic_ns();
        let version = message::list(&bytes, |pod| pods.put(pod, now))?;
        self.version = Some(version);
        live(pods, "api");
        Ok(())
    }

    fn watch_url(&self) -> Url {
        let mut url = self.of_node();
        let seconds = fastrand::u64(WATCH_SECONDS).to_string();
        let mut query = url.query_pairs_mut();
        query.append_pair("watch", "1").append_pair("allowWatchBookmarks", "true");
        query.append_pair("timeoutSeconds", &seconds);
        match &self.version {
            Some(version) => query.append_pair("resourceVersion", version),
            None => query
                .append_pair("sendInitialEvents", "true")
                .append_pair("resourceVersionMatch", "NotOlderThan"),
        };
        drop(query);
        url
    }

    /// Of this node and no other.
    fn of_node(&self) -> Url {
        let mut url = self.url.clone();
        url.query_pairs_mut().append_pair("fieldSelector", &format!("spec.nodeName={}", self.node));
        url
    }

    /// With the certificates as they are now.
    fn client(&self) -> Result<Client, Broken> {
        // Another part may have chosen the same.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let builder = Client::builder()
            .user_agent(format!("obi/{} ({})", env!("CARGO_PKG_VERSION"), self.node))
            .connect_timeout(CONNECT)
            .tcp_keepalive(Duration::from_secs(15))
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy();
        let what = "failed to read the API server's certificates";
        let builder = match std::fs::read(self.credentials.join("ca.crt")) {
            Ok(bundle) => {
                let roots = Certificate::from_pem_bundle(&bundle);
                builder.tls_certs_only(roots.map_err(|error| Broken::connection(what, error))?)
            }
            Err(_) if self.url.scheme() == "http" => builder,
            Err(error) => return Err(Broken::connection(what, error)),
        };
        builder.build().map_err(|error| Broken::connection("failed to prepare requests", explained(&error)))
    }

    fn token(&self) -> Result<String, Broken> {
        match std::fs::read_to_string(self.credentials.join("token")) {
            Ok(token) => Ok(token.trim().to_owned()),
            Err(error) => Err(Broken::connection("failed to read the service account's token", error)),
        }
    }
}

/// What a request needs.
struct Asking {
    client: Client,
    token: String,
}

impl Asking {
    /// The answer, if it is one.
    async fn get(&self, url: Url, accept: &str) -> Result<Response, Broken> {
        let mut request = self.client.get(url).header(ACCEPT, accept);
        if !self.token.is_empty() {
            request = request.header(AUTHORIZATION, format!("Bearer {}", self.token));
        }
        let answer = timeout(ANSWER, request.send()).await;
        let answer = answer.map_err(|_| Broken::Late("the API server's answer"))?;
        let mut response =
            answer.map_err(|error| Broken::connection("failed to ask the API server", explained(&error)))?;
        let text = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
        let status = response.status();
        if status.is_success() {
            let is_protobuf = text(CONTENT_TYPE).is_some_and(|kind| kind.starts_with(WHOLE));
            return if is_protobuf { Ok(response) } else { Err(super::Error::NotProtobuf.into()) };
        }
        let seconds = text(RETRY_AFTER).and_then(|seconds| seconds.parse().ok());
        let after = seconds.map(|seconds: u64| Duration::from_secs(seconds.min(300)));
        let bytes = timeout(CONNECT, whole(&mut response, REFUSAL_BYTES)).await;
        let message = bytes.ok().and_then(Result::ok).map(|bytes| shown(&bytes)).unwrap_or_default();
        Err(Broken::Refused { what: "the list of pods", code: status.as_u16(), message, after })
    }
}

fn refused(what: &'static str, code: u16, message: String) -> Broken {
    Broken::Refused { what, code, message, after: None }
}

/// The body, which may not be longer than this.
async fn whole(response: &mut Response, most: usize) -> Result<Vec<u8>, Broken> {
    let mut bytes = Vec::new();
    while let Some(chunk) =
        response.chunk().await.map_err(|error| Broken::connection("the answer broke", explained(&error)))?
    {
        if bytes.len() + chunk.len() > most {
            return Err(super::Error::TooLong { bytes: bytes.len() + chunk.len(), most }.into());
        }
        bytes.extend_from_slice(&chunk);
    }
    Ok(bytes)
}

/// What of a refusal is text.
fn shown(bytes: &[u8]) -> String {
    let text: String = String::from_utf8_lossy(bytes)
        .chars()
        .filter(|character| !character.is_control() && *character != '\u{fffd}')
        .take(200)
        .collect();
    text.trim().to_owned()
}

/// An error with its causes; none of them has the token.
fn explained(error: &reqwest::Error) -> String {
    let mut text = String::new();
    let mut cause = Some(error as &dyn std::error::Error);
    while let Some(error) = cause {
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}
