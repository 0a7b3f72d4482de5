//! Services and slices of endpoints of the cluster, from the API server.
//!
//! In: answers of the API server. Out: addresses with the services that answer there. Both collections grow with the
//! cluster, which is why they are only asked for when the configuration says so.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::server::Server;
use super::watch::{Collection, Watch};
use super::{Wait, after};
use crate::clock::monotonic_ns;
use crate::config::{Kubernetes, PeerNames};
use crate::kubernetes::message::Object;
use crate::kubernetes::message::service::{Service, Slice};
use crate::kubernetes::services::{Kind, Services};
use crate::kubernetes::view::Counts;
use crate::kubernetes::{Error, Pods};

/// Addresses that ended are forgotten so often.
const SWEEP: Duration = Duration::from_secs(30);

/// The services at the API server.
#[derive(Debug)]
pub struct Endpoints {
    pub(super) services: Watch,
    pub(super) slices: Watch,
    /// The first request comes within this time, at random.
    spread: Duration,
}

impl Endpoints {
    /// `None` when no one wants them, or the API server cannot be asked.
    #[must_use]
    pub fn find(config: &Kubernetes) -> Option<Self> {
        if config.peers != PeerNames::Services {
            return None;
        }
        let Some(server) = Server::find(config) else {
            tracing::warn!(
                "`kubernetes.peers: services` needs `kubernetes.node`, a token in `kubernetes.credentials`, and the \
                 address of the API server: only pods of this node have names as peers"
            );
            return None;
        };
        let watch = |path| Watch::new(server.clone(), server.url(path));
        Some(Self {
            services: watch("/api/v1/services"),
            slices: watch("/apis/discovery.k8s.io/v1/endpointslices"),
            spread: config.spread,
        })
    }

    /// Follows both for ever.
    pub(super) async fn run(self, pods: &Pods) {
        sleep(self.spread.mul_f64(fastrand::f64())).await;
        let housekeeping = async {
            loop {
                sleep(SWEEP).await;
                pods.services().sweep(monotonic_ns());
            }
        };
        let services = Addresses::<Service>::new(pods, Kind::Service);
        let slices = Addresses::<Slice>::new(pods, Kind::Slice);
        tokio::join!(housekeeping, follow(self.services, &services), follow(self.slices, &slices));
    }
}

/// Asks again and again, after waits that grow while there is no answer.
async fn follow<T: Object + Put>(mut watch: Watch, addresses: &Addresses<'_, T>) {
    let mut wait = Wait::default();
    let mut said = String::new();
    loop {
        let began = Instant::now();
        let result = watch.follow(addresses).await;
        addresses.services.interrupt(addresses.kind, monotonic_ns());
        let Err(broken) = result else {
            // The server ends a watch after some minutes: it goes on from there.
            wait = Wait::default();
            continue;
        };
        Counts::add(&addresses.counts.failures, 1);
        let error = broken.to_string();
        if error != said {
            tracing::warn!(%error, "services are not followed; calls of now have no names by them");
            said = error;
        }
        // A stream that was heard for a while is no server in trouble.
        if began.elapsed() > Duration::from_secs(60) {
            wait = Wait::default();
        }
        sleep(after(&broken).unwrap_or_default().max(wait.next())).await;
    }
}

/// One kind of objects in the table.
pub(super) struct Addresses<'a, T> {
    services: &'a Services,
    counts: &'a Counts,
    kind: Kind,
    objects: std::marker::PhantomData<T>,
}

impl<'a, T> Addresses<'a, T> {
    pub(super) fn new(pods: &'a Pods, kind: Kind) -> Self {
        Self { services: pods.services(), counts: pods.counts(), kind, objects: std::marker::PhantomData }
    }
}

/// How an object comes into the table.
pub(super) trait Put {
    const WHAT: &'static str;

    fn put(self, services: &Services, now: u64);
    fn uid(&self) -> &str;
}

impl Put for Service {
    const WHAT: &'static str = "the list of services";

    fn put(self, services: &Services, now: u64) {
        services.put_service(self, now);
    }

    fn uid(&self) -> &str {
        &self.uid
    }
}

impl Put for Slice {
    const WHAT: &'static str = "the list of endpoint slices";

    fn put(self, services: &Services, now: u64) {
        services.put_slice(self, now);
    }

    fn uid(&self) -> &str {
        &self.uid
    }
}

impl<T: Object + Put> Collection for Addresses<'_, T> {
    type Object = T;
    const WHAT: &'static str = T::WHAT;

    fn begin(&self) {
        self.services.begin(self.kind);
    }

    fn complete(&self) {
        self.services.complete(self.kind, monotonic_ns());
        let (services, slices, _) = self.services.counts();
        tracing::info!(services, slices, "{} is known", T::WHAT);
    }

    fn answered(&self) {
        Counts::add(&self.counts.streams, 1);
    }

    fn resume(&self) {
        self.services.resume(self.kind);
    }

    fn listed(&self, object: T) {
        object.put(self.services, monotonic_ns());
    }

    fn put(&self, object: T) {
        Counts::add(&self.counts.events, 1);
        object.put(self.services, monotonic_ns());
    }

    fn gone(&self, object: &T) {
        Counts::add(&self.counts.events, 1);
        self.services.gone(self.kind, object.uid(), monotonic_ns());
    }

    fn undecodable(&self, error: &Error) {
        Counts::add(&self.counts.undecodable, 1);
        tracing::debug!(%error, "a message of the API server is passed over");
    }
}
