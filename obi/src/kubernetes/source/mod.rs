//! How the pods of this node are asked for: which source, in which order, how often again.
//!
//! In: a [`Plan`], made while files of others can be opened. Out: nothing but what is put into [`Pods`]. A source that
//! fails is asked again after a while that grows, and never by all agents of a cluster at once. Nothing waits for it.
//!
//! - [`kubelet`]: its stream on a unix socket. [`api`]: the API server's watch. [`names`]: names of log folders, while
//!   neither is heard. [`services`]: those of the cluster, at the API server.
//! - [`server`], [`watch`]: how the API server is asked for the objects of one kind.

pub mod api;
pub mod kubelet;
pub mod names;
mod server;
pub mod services;
mod watch;

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use self::api::Api;
use self::kubelet::Kubelet;
use self::names::Folders;
use self::services::Endpoints;
use super::view::Counts;
use super::{Error, Pod, Pods};
use crate::clock::monotonic_ns;
use crate::config::{Kubernetes, Metadata};

/// Between two looks at names of folders, while they are all there is.
const NAMES: Duration = Duration::from_secs(1);
/// Pods that ended are forgotten so often.
const SWEEP: Duration = Duration::from_secs(30);
/// Waits between attempts: from the first to the longest.
const WAIT_FIRST: Duration = Duration::from_secs(1);
const WAIT_MAX: Duration = Duration::from_secs(60);

/// Why a stream could not begin, or broke.
#[derive(Debug, thiserror::Error)]
pub enum Broken {
    /// No connection, or it broke.
    #[error("{what}: {error}")]
    Connection {
        /// What was tried.
        what: &'static str,
        /// What the system or the library said.
        error: String,
    },
    /// The other end refused.
    #[error("{what} was refused: {code} {message}")]
    Refused {
        /// What was asked for.
        what: &'static str,
        /// Of HTTP or gRPC.
        code: u16,
        /// In its own words, cut.
        message: String,
        /// It wants to be left alone for so long.
        after: Option<Duration>,
    },
    /// It did not answer in time.
    #[error("{0} took too long")]
    Late(&'static str),
    /// What it sent could not be read.
    #[error("what was sent cannot be read: {0}")]
    Unreadable(#[from] Error),
}

impl Broken {
    fn connection(what: &'static str, error: impl std::fmt::Display) -> Self {
        Self::Connection { what, error: error.to_string() }
    }
}

/// Where the pods can be asked for on this machine.
#[derive(Debug)]
pub struct Plan {
    kubelet: Option<Kubelet>,
    api: Option<Api>,
    names: Option<Folders>,
    endpoints: Option<Endpoints>,
}

impl Plan {
    /// Looks for what the configuration wants and this machine has. To be called while other users' folders can be
    /// opened. `None` where nothing has anything to do with Kubernetes.
    #[must_use]
    pub fn new(config: &Kubernetes) -> Option<Self> {
        let wants = |which: Metadata| [Metadata::Auto, which].contains(&config.metadata);
        let kubelet = if wants(Metadata::Kubelet) { Kubelet::find(&config.kubelet_socket) } else { None };
        let api = if wants(Metadata::Api) { Api::find(config) } else { None };
        let is_off = config.metadata == Metadata::Off;
        let names = if is_off { None } else { Folders::find(&config.log_folder, &config.node) };
        let endpoints = if is_off { None } else { Endpoints::find(config) };
        let plan = Self { kubelet, api, names, endpoints };
        plan.warn(config);
        (plan.kubelet.is_some() || plan.api.is_some() || plan.names.is_some()).then_some(plan)
    }

    fn warn(&self, config: &Kubernetes) {
        let lacks = match config.metadata {
            Metadata::Kubelet if self.kubelet.is_none() => "its folder cannot be opened",
            Metadata::Api if self.api.is_none() => {
                "it needs `kubernetes.node`, a token in `kubernetes.credentials`, and the address of the API server in \
                 KUBERNETES_SERVICE_HOST or `kubernetes.api_server`"
            }
            _ => return,
        };
        tracing::warn!("the source that `kubernetes.metadata` names is not used: {lacks}");
    }

    /// How long it is worth to wait for the first answer before processes are named.
    #[must_use]
    pub fn patience(&self) -> Duration {
        let is_soon = self.kubelet.is_some() || self.api.as_ref().is_some_and(Api::begins_at_once);
        if is_soon { Duration::from_secs(2) } else { Duration::ZERO }
    }

    /// Takes what names of folders show, before anything else is asked.
    pub fn look_at_names(&self, pods: &Pods) {
        if let Some(names) = &self.names {
            pods.set_state(|state| state.source = "logs");
            names.look(pods);
        }
    }

    /// Follows the sources for ever.
    pub async fn run(self, pods: &Pods) {
        let Self { kubelet, api, names, endpoints } = self;
        let housekeeping = async {
            let mut swept = Instant::now();
            loop {
                sleep(NAMES).await;
                if let Some(names) = names.as_ref().filter(|_| !pods.is_live()) {
                    names.look(pods);
                }
                if swept.elapsed() >= SWEEP {
                    pods.sweep(monotonic_ns());
                    swept = Instant::now();
                }
            }
        };
        let services = async {
            if let Some(endpoints) = endpoints {
                endpoints.run(pods).await;
            }
        };
        tokio::join!(housekeeping, services, follow(kubelet, api, pods));
    }
}

/// Asks one source after the other; the source that is heard is asked again first.
async fn follow(kubelet: Option<Kubelet>, mut api: Option<Api>, pods: &Pods) {
    let mut wait = Wait::default();
    // What was said last, so that it is said once.
    let mut said = [String::new(), String::new()];
    if kubelet.is_none() && api.is_none() {
        return std::future::pending().await;
    }
    loop {
        let mut was_live = false;
        let mut asked = None;
        if let Some(kubelet) = &kubelet {
            let broken = kubelet.follow(pods).await;
            was_live = ended(pods, "kubelet", &broken, &mut said[0]);
            asked = after(&broken);
        }
        if let Some(api) = api.as_mut().filter(|_| !was_live) {
            let result = api.follow(pods).await;
            was_live = match &result {
                // The server ends a watch after some minutes: it goes on from there.
                Ok(()) => {
                    pods.interrupt(monotonic_ns());
                    wait = Wait::default();
                    continue;
                }
                Err(broken) => ended(pods, "api", broken, &mut said[1]),
            };
            asked = result.err().and_then(|broken| after(&broken));
        }
        if was_live {
            wait = Wait::default();
        }
        sleep(asked.unwrap_or_default().max(wait.next())).await;
    }
}

/// Notes how a stream ended. Whether it was heard until then.
fn ended(pods: &Pods, source: &'static str, broken: &Broken, said: &mut String) -> bool {
    let was_live = pods.is_live();
    pods.interrupt(monotonic_ns());
    Counts::add(&pods.counts().failures, 1);
    let error = broken.to_string();
    if *said != error {
        tracing::warn!(source, %error, "pods are not reported; names that are known stay");
        said.clone_from(&error);
    }
    pods.set_state(|state| state.error = error);
    was_live
}

fn after(broken: &Broken) -> Option<Duration> {
    match broken {
        Broken::Refused { after, .. } => *after,
        _ => None,
    }
}

/// A stream has sent all that was there.
fn live(pods: &Pods, source: &'static str) {
    pods.complete(monotonic_ns());
    let n = pods.view().pods;
    pods.set_state(|state| {
        if state.source != source || !state.error.is_empty() {
            tracing::info!(source, pods = n, "pods of this node are known");
        }
        (state.source, state.error) = (source, String::new());
    });
}

/// A stream says that a pod is there, in this form.
fn put(pods: &Pods, pod: Pod) {
    pods.counts().events.fetch_add(1, Ordering::Relaxed);
    pods.put(pod, monotonic_ns());
}

/// A stream says that a pod is no more.
fn gone(pods: &Pods, pod: &Pod) {
    pods.counts().events.fetch_add(1, Ordering::Relaxed);
    pods.gone(pod, monotonic_ns());
}

/// Waits that double, each a random part of the whole, so that agents do not fall into step.
#[derive(Debug, Default)]
struct Wait {
    n: u32,
}

impl Wait {
    fn next(&mut self) -> Duration {
        let whole = WAIT_FIRST.saturating_mul(1 << self.n.min(10)).min(WAIT_MAX);
        self.n = self.n.saturating_add(1);
        WAIT_FIRST / 10 + whole.mul_f64(fastrand::f64())
    }
}

#[cfg(test)]
mod tests;
