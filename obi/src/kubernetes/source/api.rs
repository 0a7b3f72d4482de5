//! The pods of this node, from the API server.
//!
//! In: answers of the API server. Out: pods. Never asks for the pods of other nodes: what an agent costs the API server
//! must not grow with the cluster.

use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::time::sleep;

use super::server::Server;
use super::watch::{Collection, Watch};
use super::{Broken, gone, live, put};
use crate::clock::monotonic_ns;
use crate::config::Kubernetes;
use crate::kubernetes::view::Counts;
use crate::kubernetes::{Error, Pod, Pods};

/// The pods of this node at the API server.
#[derive(Debug)]
pub struct Api {
    pub(super) watch: Watch,
    /// The first request comes within this time, at random.
    spread: Duration,
}

impl Api {
    /// `None` when the API server's address, the node's name or the token is not known.
    #[must_use]
    pub fn find(config: &Kubernetes) -> Option<Self> {
        let server = Server::find(config)?;
        let mut url = server.url("/api/v1/pods");
        // Of this node and no other.
        url.query_pairs_mut().append_pair("fieldSelector", &format!("spec.nodeName={}", server.node));
        Some(Self { watch: Watch::new(server, url), spread: config.spread })
    }

    /// Whether the first request does not wait for those of other agents.
    #[must_use]
    pub fn begins_at_once(&self) -> bool {
        self.spread.is_zero()
    }

    /// Puts what the server sends until the watch ends: as agreed, or by an error.
    pub(super) async fn follow(&mut self, pods: &Pods) -> Result<(), Broken> {
        sleep(std::mem::take(&mut self.spread).mul_f64(fastrand::f64())).await;
        self.watch.follow(pods).await
    }
}

impl Collection for Pods {
    type Object = Pod;
    const WHAT: &'static str = "the list of pods";

    fn begin(&self) {
        Self::begin(self);
    }

    fn complete(&self) {
        live(self, "api");
    }

    fn answered(&self) {
        self.counts().streams.fetch_add(1, Ordering::Relaxed);
    }

    fn resume(&self) {
        Self::resume(self);
    }

    fn listed(&self, pod: Pod) {
        Self::put(self, pod, monotonic_ns());
    }

    fn put(&self, pod: Pod) {
        put(self, pod);
    }

    fn gone(&self, pod: &Pod) {
        gone(self, pod);
    }

    fn undecodable(&self, error: &Error) {
        Counts::add(&self.counts().undecodable, 1);
        tracing::debug!(%error, "a message of the API server is passed over");
    }
}
