//! Alerts to Alertmanagers and webhooks.
//!
//! In: messages that are due, beginnings and ends. Out: HTTP requests, each peer on its own, and what became of them.
//! Every Alertmanager gets every message, as the members of a cluster expect it; what they have in common they work out
//! among themselves. Refuses to know what makes an alert fire and when it is repeated ([`super::alert`]).

mod backlog;
mod body;
mod peer;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use reqwest::{Client, ClientBuilder, Url};
use serde::Serialize;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use self::peer::{Counts, Kind, Peer};
use super::alert::Alert;
use crate::config::Endpoint;

/// Messages in one request to an Alertmanager.
const BATCH: usize = 64;
/// Batches on the way to a peer that is busy.
const CHANNEL: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const TIMEOUT: Duration = Duration::from_secs(10);
/// How long what is waiting may take at the end.
const FLUSH: Duration = Duration::from_secs(2);

/// What became of the messages for one peer so far.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PeerStats {
    /// Its address, without user and password.
    pub peer: String,
    /// Messages taken.
    pub sent: u64,
    /// Messages not taken and tried again.
    pub failed: u64,
    /// Messages given up: no room, or refused for good.
    pub dropped: u64,
    /// Messages waiting.
    pub waiting: u64,
}

/// Sends alerts. Dropping it ends the delivery; [`Notifier::finish`] waits for what is on its way.
#[derive(Debug)]
pub struct Notifier {
    peers: Vec<PeerTask>,
}

#[derive(Debug)]
struct PeerTask {
    name: String,
    kind: Kind,
    sender: mpsc::Sender<Vec<Alert>>,
    counts: Arc<Counts>,
    task: JoinHandle<()>,
}

/// Reads the numbers of a [`Notifier`] from any thread.
#[derive(Debug, Clone, Default)]
pub struct Peers(Arc<[(String, Arc<Counts>)]>);

impl Peers {
    /// What became of the messages so far.
    #[must_use]
    pub fn stats(&self) -> Vec<PeerStats> {
        let of = |(name, counts): &(String, Arc<Counts>)| PeerStats {
            peer: name.clone(),
            sent: counts.sent.load(Ordering::Relaxed),
            failed: counts.failed.load(Ordering::Relaxed),
            dropped: counts.dropped.load(Ordering::Relaxed),
            waiting: counts.waiting.load(Ordering::Relaxed),
        };
        self.0.iter().map(of).collect()
    }
}

impl Notifier {
    /// Starts one task per peer on the current runtime. `generator_url` is where the agent itself can be asked.
    ///
    /// # Errors
    /// When the TLS roots of the system cannot be read.
    pub fn start(
        alertmanagers: &[Endpoint],
        webhooks: &[Endpoint],
        generator_url: &str,
    ) -> Result<Self, reqwest::Error> {
        if alertmanagers.is_empty() && webhooks.is_empty() {
            return Ok(Self { peers: Vec::new() });
        }
        let builder = || {
            Client::builder()
                .user_agent(concat!("obi/", env!("CARGO_PKG_VERSION")))
                .connect_timeout(CONNECT_TIMEOUT)
                .timeout(TIMEOUT)
                .redirect(reqwest::redirect::Policy::none())
                .no_proxy()
        };
        let is_tls = |peer: &Endpoint| peer.url().scheme() == "https";
        let client = client(builder, alertmanagers.iter().chain(webhooks).any(is_tls))?;
        let managers = alertmanagers.iter().map(|peer| (Kind::Alertmanager, alerts_url(peer.url())));
        let hooks = webhooks.iter().map(|peer| (Kind::Webhook, peer.url().clone()));
        let start = |(kind, url): (Kind, Url)| {
            let (sender, messages) = mpsc::channel(CHANNEL);
            let counts = Arc::new(Counts::default());
            let name = public(&url);
            let peer = Peer {
                kind,
                url,
                name: name.clone(),
                generator_url: generator_url.to_owned(),
                client: client.clone(),
                counts: Arc::clone(&counts),
                messages,
            };
            PeerTask { name, kind, sender, counts, task: tokio::spawn(peer.run()) }
        };
        Ok(Self { peers: managers.chain(hooks).map(start).collect() })
    }

    /// Hands out messages that are due, to Alertmanagers, and what has begun or ended, to webhooks. Never waits.
    pub fn send(&self, due: &[Alert], changed: &[Alert]) {
        for peer in &self.peers {
            let alerts = if peer.kind == Kind::Alertmanager { due } else { changed };
            if !alerts.is_empty() && peer.sender.try_send(alerts.to_vec()).is_err() {
                peer.counts.dropped.fetch_add(alerts.len() as u64, Ordering::Relaxed);
            }
        }
    }

    /// The numbers, for readers.
    #[must_use]
    pub fn peers(&self) -> Peers {
        Peers(self.peers.iter().map(|peer| (peer.name.clone(), Arc::clone(&peer.counts))).collect())
    }

    /// Delivers what is waiting, if that is possible soon, and ends.
    pub async fn finish(self) {
        let tasks: Vec<_> = self.peers.into_iter().map(|peer| peer.task).collect();
        let all = async {
            for task in tasks {
                // A task that panicked has said so.
                let _ = task.await;
            }
        };
        let _ = tokio::time::timeout(FLUSH, all).await;
    }
}

/// Chooses how TLS is computed, for the whole process; to be called before an HTTP client is made.
fn choose_tls() {
    // Fails when it has been chosen already, which is just as well.
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// A client that believes the authorities of the system. Not every system has some; where TLS is not needed, it
/// does without.
///
/// # Errors
/// When authorities are needed and cannot be had.
pub fn client(builder: impl Fn() -> ClientBuilder, is_tls: bool) -> Result<Client, reqwest::Error> {
    choose_tls();
    builder().build().or_else(|error| if is_tls { Err(error) } else { builder().tls_certs_only([]).build() })
}

/// Where an Alertmanager takes alerts, below the prefix it is served at.
fn alerts_url(base: &Url) -> Url {
    let mut url = base.clone();
    url.set_path(&format!("{}/api/v2/alerts", base.path().trim_end_matches('/')));
    url
}

/// An address as it may be shown.
fn public(url: &Url) -> String {
    let mut shown = url.clone();
    // Fails for addresses without a host, which the configuration refuses.
    let _ = shown.set_username("");
    let _ = shown.set_password(None);
    shown.set_query(None);
    shown.to_string()
}

#[cfg(test)]
mod tests;
