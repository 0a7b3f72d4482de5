//! Section `kubernetes`.
//!
//! In: what the user wrote. Out: who is asked for the names of pods. Refuses to know how.

use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::export::{period, write_period};
use super::value::{self, Metadata, PeerNames};

/// Section `kubernetes`. Control groups say which processes are in pods; what the pods are called is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Kubernetes {
    /// Who is asked: `kubelet` (its stream on a socket, from Kubernetes 1.37 on), `api` (the API server, for the pods
    /// of this node only), `logs` (names of log folders, without owners and labels), `off`, or `auto`, the first of
    /// these that answers. Default: `auto`, which asks no one outside of Kubernetes. Example: `kubelet`.
    pub metadata: Metadata,
    /// The name of this node, without which the API server is not asked; the downward API has it as `spec.nodeName`.
    /// Default: `""`. Example: `node-7`.
    #[serde(deserialize_with = "value::optional_name")]
    pub node: String,
    /// The cluster's name, for `k8s.cluster.name`; Kubernetes itself has none. Default: `""`. Example: `production-eu`.
    #[serde(deserialize_with = "value::optional_name")]
    pub cluster: String,
    /// Let the labels `app.kubernetes.io/instance`, else `app.kubernetes.io/name`, name services, and
    /// `app.kubernetes.io/version` their versions. With Helm, all components of a release have one instance. Default:
    /// `false`. Example: `true`.
    pub use_labels: bool,
    /// Who answers at addresses that are no pod of this node: `pods` (no name), or `services`, by the
    /// cluster's Services and EndpointSlices, which the API server is then asked for: more with each service
    /// of the cluster, and two more rights. Default: `pods`. Example: `services`.
    pub peers: PeerNames,
    /// The kubelet's socket on the node. Default: `/var/lib/kubelet/pods-api/pods-api.sock`. Example:
    /// `/data/kubelet/pods-api/pods-api.sock`.
    #[serde(deserialize_with = "value::node_path")]
    pub kubelet_socket: PathBuf,
    /// The API server, or empty for that of the cluster this runs in. Default: `""`. Example:
    /// `https://10.0.0.1:6443`.
    #[serde(deserialize_with = "value::optional_url")]
    pub api_server: String,
    /// The folder with `token` and `ca.crt` for the API server. Default:
    /// `/var/run/secrets/kubernetes.io/serviceaccount`. Example: `/etc/obi/kubernetes`.
    #[serde(deserialize_with = "value::node_path")]
    pub credentials: PathBuf,
    /// The node's folder of pods' logs. Default: `/var/log/pods`. Example: `/data/log/pods`.
    #[serde(deserialize_with = "value::node_path")]
    pub log_folder: PathBuf,
    /// The first request to the API server comes within this time, at random, 0s to 10m: the agents of a cluster may
    /// all begin at once. Default: `10s`. Example: `60s`, for thousands of nodes.
    #[serde(serialize_with = "write_period", deserialize_with = "period::<_, 0, 600_000>")]
    pub spread: Duration,
}

impl Default for Kubernetes {
    fn default() -> Self {
        Self {
            metadata: Metadata::Auto,
            node: String::new(),
            cluster: String::new(),
            use_labels: false,
            peers: PeerNames::Pods,
            kubelet_socket: PathBuf::from("/var/lib/kubelet/pods-api/pods-api.sock"),
            api_server: String::new(),
            credentials: PathBuf::from("/var/run/secrets/kubernetes.io/serviceaccount"),
            log_folder: PathBuf::from("/var/log/pods"),
            spread: Duration::from_secs(10),
        }
    }
}
