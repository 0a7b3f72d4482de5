//! Kubernetes' protobuf messages to what the agent wants of them.
//!
//! In: bytes of objects, of events and statuses. Out: [`Pod`]s, what [`service`] knows, resource versions, refusals.
//! Only the fields that are wanted are declared; everything else of a message is passed over. Refuses to know how the
//! bytes came.

pub mod service;

use std::collections::HashMap;

use prost::Message;

use super::pod::{Owner, Pod, short};
use super::{Error, PodUid};

/// What begins every message of the API server.
const MAGIC: &[u8] = b"k8s\0";

/// An object as it was sent.
#[derive(Debug)]
pub struct Sent<T> {
    /// What is wanted of it.
    pub object: T,
    /// `metadata.resourceVersion`; empty at the kubelet's stream.
    pub resource_version: String,
}

/// A kind of object that the API server has.
pub trait Object: Sized {
    /// What is wanted of one.
    ///
    /// # Errors
    /// When the bytes are no such message.
    fn decode(bytes: &[u8]) -> Result<Sent<Self>, Error>;
}

/// An event of the API server's watch.
#[derive(Debug)]
pub enum Watched<T> {
    /// The object is there, in this form.
    Put(Box<Sent<T>>),
    /// It is no more.
    Gone(Box<Sent<T>>),
    /// Nothing but a newer version; `is_initial_end` when it ends what was there at first.
    Bookmark {
        /// To go on from.
        resource_version: String,
        /// All that was there has been sent.
        is_initial_end: bool,
    },
    /// The server ends the watch.
    Refused {
        /// As of HTTP; 410 when the version is too old.
        code: u16,
        /// Why, in the server's words.
        message: String,
    },
    /// A kind of event that is not known.
    Other,
}

/// An event of the kubelet's stream.
#[derive(Debug)]
pub enum PodEvent {
    /// The pod is there, in this form.
    Put(Box<Sent<Pod>>),
    /// It is no more.
    Gone(Box<Sent<Pod>>),
    /// All that was there has been sent.
    Complete,
    /// A kind of event that is not known.
    Other,
}

impl Object for Pod {
    fn decode(bytes: &[u8]) -> Result<Sent<Self>, Error> {
        pod(bytes)
    }
}

/// A pod out of `v1.Pod`.
///
/// # Errors
/// When the bytes are no such message.
pub fn pod(bytes: &[u8]) -> Result<Sent<Pod>, Error> {
    let RawPod { metadata, spec, status } = RawPod::decode(bytes)?;
    let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
    let status = status.unwrap_or_default();
    let mut pod = Pod {
        uid: short(&metadata.uid),
        name: short(&metadata.name),
        namespace: short(&metadata.namespace),
        node: short(&spec.node_name),
        is_whole: true,
        created: metadata.created.as_ref().map_or(0, |time| time.seconds),
        is_ending: metadata.deleted.is_some() || matches!(&*status.phase, "Succeeded" | "Failed"),
        ..Pod::default()
    };
    for (key, value) in &metadata.labels {
        pod.label(key, value);
    }
    pod.annotate(metadata.annotations.iter().map(|(key, value)| (&**key, &**value)));
    let controller = metadata.owners.iter().find(|owner| owner.controller);
    pod.owner = controller.map(|owner| Owner { kind: short(&owner.kind), name: short(&owner.name) });
    pod.manifest = manifest(&metadata);
    let debugging = spec.ephemeral.iter().filter_map(|container| container.common.as_ref());
    for container in spec.containers.iter().chain(&spec.init_containers).chain(debugging) {
        pod.add_container(&container.name, &container.image);
        let names = |variable: &RawVariable| {
            matches!(&*variable.name, "OTEL_SERVICE_NAME" | "OTEL_RESOURCE_ATTRIBUTES")
        };
        pod.may_name_itself |= !container.env_from.is_empty() || container.env.iter().any(names);
    }
    let states = [&status.containers, &status.init_containers, &status.ephemeral_containers];
    for state in states.into_iter().flatten().filter(|state| !state.container_id.is_empty()) {
        pod.identify(&state.name, &state.container_id);
    }
    if !spec.host_network {
        let further = status.pod_ips.iter().map(|address| &address.ip);
        std::iter::once(&status.pod_ip).chain(further).for_each(|address| pod.add_address(address));
    }
    Ok(Sent { object: pod, resource_version: metadata.resource_version })
}

/// The hash of a static pod's manifest, by which its control groups go. Its copy at the API server is made by the
/// kubelet and owned by the node: what other pods say of a hash is not believed.
fn manifest(metadata: &RawMetadata) -> Option<PodUid> {
    let is_of_node = metadata.owners.iter().any(|owner| owner.kind == "Node" && owner.controller);
    let hash = metadata.annotations.get("kubernetes.io/config.mirror").filter(|_| is_of_node)?;
    PodUid::parse(hash).filter(|hash| hash.is_hash())
}

/// An event of the API server's watch, without the length before it.
///
/// # Errors
/// When the bytes are no such message.
pub fn watched<T: Object>(bytes: &[u8]) -> Result<Watched<T>, Error> {
    let RawWatchEvent { kind, object } = RawWatchEvent::decode(bytes)?;
    let object = unwrapped(&object.unwrap_or_default().raw)?;
    Ok(match &*kind {
        "ADDED" | "MODIFIED" => Watched::Put(Box::new(T::decode(&object)?)),
        "DELETED" => Watched::Gone(Box::new(T::decode(&object)?)),
        "BOOKMARK" => {
            let metadata = RawObject::decode(&*object)?.metadata.unwrap_or_default();
            let is_initial_end =
                metadata.annotations.get("k8s.io/initial-events-end").is_some_and(|value| value == "true");
            Watched::Bookmark { resource_version: metadata.resource_version, is_initial_end }
        }
        "ERROR" => {
            let RawStatus { message, code } = RawStatus::decode(&*object)?;
            let code = u16::try_from(code).unwrap_or_default();
            Watched::Refused { code, message: short(&message).into() }
        }
        _ => Watched::Other,
    })
}

/// What stands behind the API server's mark, without its description.
fn unwrapped(bytes: &[u8]) -> Result<Vec<u8>, Error> {
    let bytes = bytes.strip_prefix(MAGIC).ok_or(Error::NotProtobuf)?;
    Ok(RawUnknown::decode(bytes)?.raw)
}

/// A list of objects, as the API server sends it whole: each item to `take`, one at a time.
///
/// # Errors
/// When the bytes are no such message, or an item is of another kind.
pub fn list<T: Object>(bytes: &[u8], mut take: impl FnMut(T)) -> Result<String, Error> {
    let RawList { metadata, items } = RawList::decode(&*unwrapped(bytes)?)?;
    for item in items {
        take(T::decode(&item)?.object);
    }
    Ok(metadata.unwrap_or_default().resource_version)
}

/// An event of the kubelet's stream, without gRPC's prefix.
///
/// # Errors
/// When the bytes are no such message.
pub fn pod_event(bytes: &[u8]) -> Result<PodEvent, Error> {
    let RawPodsEvent { kind, pod: bytes } = RawPodsEvent::decode(bytes)?;
    Ok(match kind {
        1 | 2 => PodEvent::Put(Box::new(pod(&bytes)?)),
        3 => PodEvent::Gone(Box::new(pod(&bytes)?)),
        4 => PodEvent::Complete,
        _ => PodEvent::Other,
    })
}

#[derive(Clone, PartialEq, Message)]
struct RawUnknown {
    #[prost(bytes = "vec", tag = "2")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RawWatchEvent {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(message, optional, tag = "2")]
    object: Option<RawExtension>,
}

#[derive(Clone, PartialEq, Message)]
struct RawExtension {
    #[prost(bytes = "vec", tag = "1")]
    raw: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct RawStatus {
    #[prost(string, tag = "3")]
    message: String,
    #[prost(int32, tag = "6")]
    code: i32,
}

/// Items stay bytes: a list decoded whole would take many times as much for a moment.
#[derive(Clone, PartialEq, Message)]
struct RawList {
    #[prost(message, optional, tag = "1")]
    metadata: Option<RawListMetadata>,
    #[prost(bytes = "vec", repeated, tag = "2")]
    items: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct RawListMetadata {
    #[prost(string, tag = "2")]
    resource_version: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawPodsEvent {
    #[prost(int32, tag = "1")]
    kind: i32,
    #[prost(bytes = "vec", tag = "2")]
    pod: Vec<u8>,
}

/// What all objects begin with.
#[derive(Clone, PartialEq, Message)]
struct RawObject {
    #[prost(message, optional, tag = "1")]
    metadata: Option<RawMetadata>,
}

#[derive(Clone, PartialEq, Message)]
struct RawPod {
    #[prost(message, optional, tag = "1")]
    metadata: Option<RawMetadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<RawSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<RawPodStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct RawMetadata {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "3")]
    namespace: String,
    #[prost(string, tag = "5")]
    uid: String,
    #[prost(string, tag = "6")]
    resource_version: String,
    #[prost(message, optional, tag = "8")]
    created: Option<RawTime>,
    #[prost(message, optional, tag = "9")]
    deleted: Option<RawTime>,
    #[prost(map = "string, string", tag = "11")]
    labels: HashMap<String, String>,
    #[prost(map = "string, string", tag = "12")]
    annotations: HashMap<String, String>,
    #[prost(message, repeated, tag = "13")]
    owners: Vec<RawOwner>,
}

#[derive(Clone, PartialEq, Message)]
struct RawTime {
    #[prost(int64, tag = "1")]
    seconds: i64,
}

#[derive(Clone, PartialEq, Message)]
struct RawOwner {
    #[prost(string, tag = "1")]
    kind: String,
    #[prost(string, tag = "3")]
    name: String,
    #[prost(bool, tag = "6")]
    controller: bool,
}

#[derive(Clone, PartialEq, Message)]
struct RawSpec {
    #[prost(message, repeated, tag = "2")]
    containers: Vec<RawContainer>,
    #[prost(string, tag = "10")]
    node_name: String,
    #[prost(bool, tag = "11")]
    host_network: bool,
    #[prost(message, repeated, tag = "20")]
    init_containers: Vec<RawContainer>,
    #[prost(message, repeated, tag = "34")]
    ephemeral: Vec<RawEphemeral>,
}

#[derive(Clone, PartialEq, Message)]
struct RawContainer {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    image: String,
    #[prost(message, repeated, tag = "7")]
    env: Vec<RawVariable>,
    #[prost(message, repeated, tag = "19")]
    env_from: Vec<()>,
}

/// Its value is not declared: it may be a secret.
#[derive(Clone, PartialEq, Message)]
struct RawVariable {
    #[prost(string, tag = "1")]
    name: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawEphemeral {
    #[prost(message, optional, tag = "1")]
    common: Option<RawContainer>,
}

#[derive(Clone, PartialEq, Message)]
struct RawPodStatus {
    #[prost(string, tag = "1")]
    phase: String,
    #[prost(string, tag = "6")]
    pod_ip: String,
    #[prost(message, repeated, tag = "8")]
    containers: Vec<RawContainerStatus>,
    #[prost(message, repeated, tag = "10")]
    init_containers: Vec<RawContainerStatus>,
    #[prost(message, repeated, tag = "12")]
    pod_ips: Vec<RawAddress>,
    #[prost(message, repeated, tag = "13")]
    ephemeral_containers: Vec<RawContainerStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct RawContainerStatus {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "8")]
    container_id: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawAddress {
    #[prost(string, tag = "1")]
    ip: String,
}

#[cfg(test)]
mod tests;
