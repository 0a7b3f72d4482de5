//! Who is at the other end of a call, by its address.
//!
//! In: an address and the time of the call. Out: the service of the pod that had it all that time, else the Kubernetes
//! Service that answered there. Refuses to guess: an address that may have moved has no name, and neither has a pod
//! whose containers may name themselves.

use std::net::SocketAddr;
use std::sync::Arc;

use super::kubernetes::Cluster;
use super::{Service, clean, config};
use crate::kubernetes::Pods;

/// The other end of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Peer {
    /// A service whose process is known.
    Service(Arc<Service>),
    /// A pod or a Kubernetes Service by its names.
    Named {
        /// As `service.name` would be.
        name: Arc<str>,
        /// As `service.namespace` would be.
        namespace: Arc<str>,
    },
}

impl Peer {
    /// `service.peer.name`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Service(service) => &service.name,
            Self::Named { name, .. } => name,
        }
    }

    /// `service.peer.namespace`.
    #[must_use]
    pub fn namespace(&self) -> &str {
        match self {
            Self::Service(service) => &service.namespace,
            Self::Named { namespace, .. } => namespace,
        }
    }
}

/// The pods of this node, and the services of the cluster, by address.
#[derive(Debug)]
pub struct Peers {
    pods: Pods,
    cluster: Cluster,
}

impl Peers {
    /// Names as [`super::Services`] gives them to the pods' own processes.
    #[must_use]
    pub fn new(pods: Pods, config: &config::Kubernetes) -> Self {
        Self { cluster: Cluster::new(pods.clone(), config), pods }
    }

    /// The pods.
    #[must_use]
    pub fn pods(&self) -> &Pods {
        &self.pods
    }

    /// Who had the address from one time to the other, by `CLOCK_MONOTONIC`.
    #[must_use]
    pub fn at(&self, address: SocketAddr, times: (u64, u64)) -> Option<Peer> {
        self.pod(address, times).or_else(|| self.service(address, times))
    }

    fn service(&self, address: SocketAddr, (begun, ended): (u64, u64)) -> Option<Peer> {
        let services = self.pods.services();
        let found = services.at(address, begun)?;
        let is_same = services.at(address, ended).is_some_and(|then| then == found);
        let has_names = !found.name.is_empty() && !found.namespace.is_empty();
        (is_same && has_names).then_some(Peer::Named { name: found.name, namespace: found.namespace })
    }

    fn pod(&self, address: SocketAddr, (begun, ended): (u64, u64)) -> Option<Peer> {
        let pod = self.pods.at(address.ip(), begun)?;
        let is_same = self.pods.at(address.ip(), ended).is_some_and(|then| then.uid == pod.uid);
        if !is_same || pod.may_name_itself {
            return None;
        }
        let names = self.cluster.names(&pod);
        let name = names.iter().map(|(_, name)| clean(name)).find(|name| !name.is_empty())?;
        let namespace = [pod.annotation("service.namespace"), &pod.namespace].map(clean);
        let namespace = namespace.into_iter().find(|namespace| !namespace.is_empty())?;
        Some(Peer::Named { name: name.into(), namespace: namespace.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kubernetes::message::service::ServiceName;
    use crate::kubernetes::pod::Owner;
    use crate::kubernetes::services::Kind;
    use crate::kubernetes::{Pod, message};

    fn pod(nth: u8, name: &str) -> Pod {
        Pod {
            uid: format!("00000000-0000-0000-0000-0000000000{nth:02x}").into(),
            name: format!("{name}-0").into(),
            namespace: "shop".into(),
            owner: Some(Owner { kind: "StatefulSet".into(), name: name.into() }),
            is_whole: true,
            addresses: vec!["10.0.0.1".parse().unwrap()],
            ..Pod::default()
        }
    }

    /// What a pod says of itself holds at its own address only.
    #[test]
    fn a_pod_that_claims_the_name_of_another_takes_no_address_from_it() {
        let pods = Pods::default();
        pods.complete(0);
        pods.put(pod(1, "cart"), 10);
        let claims = [("service.name", "cart"), ("service.namespace", "shop")];
        let impostor = Pod {
            namespace: "attic".into(),
            addresses: vec!["10.0.0.2".parse().unwrap()],
            annotations: claims.map(|(key, value)| (key.into(), value.into())).to_vec(),
            ..pod(2, "miner")
        };
        let peers = Peers::new(pods.clone(), &config::Kubernetes::default());
        let check = |address: &str, time, expected: Option<(&str, &str)>| {
            let peer = peers.at(address.parse().unwrap(), (time, time));
            let names = peer.as_ref().map(|peer| (peer.name(), peer.namespace()));
            assert_eq!(names, expected, "{address} at {time}");
        };
        pods.put(impostor.clone(), 20);
        check("10.0.0.1:80", 15, Some(("cart", "shop")));
        check("10.0.0.1:80", 25, Some(("cart", "shop")));
        check("10.0.0.2:80", 25, Some(("cart", "shop")));
        // Another claim changes the name of who claims, and of no other.
        let annotations = vec![("service.name".into(), "user".into())];
        pods.put(Pod { annotations, ..impostor.clone() }, 30);
        check("10.0.0.1:80", 35, Some(("cart", "shop")));
        check("10.0.0.2:80", 35, Some(("user", "attic")));
        pods.gone(&impostor, 40);
        check("10.0.0.1:80", 45, Some(("cart", "shop")));
        check("10.0.0.2:80", 45, None);
    }

    #[test]
    fn exact_or_absent() {
        let pods = Pods::default();
        pods.complete(0);
        pods.put(pod(1, "cart"), 10);
        pods.gone(&pod(1, "cart"), 20);
        pods.put(pod(2, "user"), 30);
        let peers = Peers::new(pods.clone(), &config::Kubernetes::default());
        let check = |begun, ended, expected: Option<&str>| {
            let peer = peers.at("10.0.0.1:80".parse().unwrap(), (begun, ended));
            assert_eq!(peer.as_ref().map(Peer::name), expected, "{begun} to {ended}");
            assert!(peer.is_none_or(|peer| peer.namespace() == "shop"));
        };
        check(5, 15, None);
        check(12, 18, Some("cart"));
        check(12, 22, None);
        check(12, 35, None);
        check(31, 35, Some("user"));
        pods.put(Pod { may_name_itself: true, ..pod(2, "user") }, 40);
        check(41, 42, None);
        // A service's own address is that of no pod.
        let (uid, name) = ("1".into(), ServiceName { namespace: "shop".into(), name: "cart".into() });
        let addresses = vec!["10.96.0.1".parse().unwrap()];
        pods.services().complete(Kind::Service, 0);
        pods.services().put_service(message::service::Service { uid, name, addresses }, 50);
        let at = |begun, ended| peers.at("10.96.0.1:80".parse().unwrap(), (begun, ended));
        assert_eq!((at(49, 52), at(51, 52).as_ref().map(Peer::name)), (None, Some("cart")));
    }
}
