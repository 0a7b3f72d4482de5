//! Requests to pods, and what spans say of them. A request's path names its pod: that is the truth.
//!
//! In: addresses of containers; spans. Out: counts of spans that name the right pod, another one, or none.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail};
use integration::span::{Kind, Span};

use crate::pod::{Container, NAMESPACE, PORT, Pod};

const LIMIT: Duration = Duration::from_secs(20);

/// A request that was answered.
#[derive(Debug, Clone)]
pub(crate) struct Call {
    pod: Pod,
    path: String,
    /// When the API server knew the pod's address and container for a while.
    is_known: bool,
    /// The agent sees the server, too.
    is_seen: bool,
}

impl Call {
    /// One of the client, and one of the server where that is seen.
    pub(crate) fn n_spans(&self) -> usize {
        1 + usize::from(self.is_seen)
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }
}

/// All requests to one container so far.
#[derive(Debug)]
pub(crate) struct Caller<'a> {
    pod: &'a Pod,
    container: &'a Container,
    is_seen: bool,
    pub(crate) calls: Vec<Call>,
}

impl<'a> Caller<'a> {
    pub(crate) fn new(pod: &'a Pod, container: &'a Container, is_seen: bool) -> Self {
        Self { pod, container, is_seen, calls: Vec::new() }
    }

    /// Asks as soon as the container takes connections, and then again, `n` times in all.
    pub(crate) fn ask(&mut self, n: usize, is_known: bool) -> anyhow::Result<()> {
        for _ in 0..n {
            let path = format!("/p/{}/{}", self.pod.uid, self.calls.len());
            answered(SocketAddr::from((self.container.address, PORT)), &path)?;
            let Self { pod, is_seen, .. } = *self;
            self.calls.push(Call { pod: pod.clone(), path, is_known, is_seen });
        }
        Ok(())
    }
}

/// In one piece: both ends of a request are matched by where its head begins.
fn answered(address: SocketAddr, path: &str) -> anyhow::Result<()> {
    let begun = Instant::now();
    let mut socket = loop {
        match TcpStream::connect_timeout(&address, LIMIT) {
            Ok(socket) => break socket,
            Err(error) if begun.elapsed() > LIMIT => return Err(error).context("connect to a container"),
            Err(_) => thread::sleep(Duration::from_millis(2)),
        }
    };
    socket.set_read_timeout(Some(LIMIT))?;
    socket.write_all(
        format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n").as_bytes(),
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    if !answer.starts_with("HTTP/1.1 404 ") {
        bail!("{address}{path} answered {answer:?}");
    }
    Ok(())
}

/// What spans say.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Server spans that have the pod's names.
    pub(crate) named: usize,
    /// Server spans without a pod's name.
    pub(crate) unnamed: usize,
    /// Server spans with the name of another pod or service.
    pub(crate) misnamed: usize,
    /// Requests without exactly one server span, where the server is seen.
    pub(crate) missing: usize,
    /// Client spans that say which service answered, of calls to servers that are seen.
    pub(crate) peers: usize,
    /// The same, of calls to servers that are not: by the address.
    pub(crate) peers_by_address: usize,
    /// Client spans that do not say who answered, after the API server had known it for a while.
    pub(crate) late_peers: usize,
    /// Client spans that name another one.
    pub(crate) wrong_peers: usize,
}

/// The one span of each path and kind; `None` where there are several.
pub(crate) fn by_path(spans: &[Span]) -> HashMap<(Kind, &str), Option<&Span>> {
    let mut found = HashMap::new();
    for span in spans {
        // A client's path stands in its URL.
        let path = span.text("url.path").or_else(|| span.text("url.full"));
        if let Some((url, at)) = path.and_then(|path| Some((path, path.find("/p/")?))) {
            found.entry((span.kind, &url[at..])).and_modify(|span| *span = None).or_insert(Some(span));
        }
    }
    found
}

/// Holds spans against calls.
pub(crate) fn judge(calls: &[Call], spans: &[Span]) -> Verdict {
    let found = by_path(spans);
    let mut verdict = Verdict::default();
    for call in calls {
        if call.is_seen {
            match found.get(&(Kind::Server, &*call.path)) {
                Some(Some(span)) => judge_server(call, span, &mut verdict),
                _ => verdict.missing += 1,
            }
        }
        match found.get(&(Kind::Client, &*call.path)) {
            Some(Some(span)) => judge_client(call, span, &mut verdict),
            _ => verdict.missing += 1,
        }
    }
    verdict
}

fn judge_server(call: &Call, span: &Span, verdict: &mut Verdict) {
    let text = |name: &str| span.resource.get(name).and_then(|value| value.as_str()).unwrap_or_default();
    let found = [
        text("k8s.pod.uid"),
        text("k8s.pod.name"),
        text("k8s.namespace.name"),
        text("k8s.deployment.name"),
        &span.service.name,
        &span.service.namespace,
    ];
    let Pod { uid, name, owner } = &call.pod;
    if found == [uid, name, NAMESPACE, owner, owner, NAMESPACE] {
        verdict.named += 1;
    } else if found[1].is_empty() {
        verdict.unnamed += 1;
    } else {
        eprintln!("{} was called {found:?}", call.pod.name);
        verdict.misnamed += 1;
    }
}

fn judge_client(call: &Call, span: &Span, verdict: &mut Verdict) {
    match span.text("service.peer.name") {
        Some(name) if name == call.pod.owner => match call.is_seen {
            true => verdict.peers += 1,
            false => verdict.peers_by_address += 1,
        },
        Some(name) => {
            eprintln!("{}, {}, answered as {name}", call.pod.owner, call.path);
            verdict.wrong_peers += 1;
        }
        None if call.is_known || call.is_seen => verdict.late_peers += 1,
        None => {}
    }
}
