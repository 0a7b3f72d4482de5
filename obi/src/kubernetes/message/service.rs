//! What answers at an address: services by their own addresses, and the endpoints behind them.
//!
//! In: bytes of `v1.Service` and `discovery.k8s.io/v1` `EndpointSlice`. Out: [`Service`] and [`Slice`], bounded.
//! Refuses to know whether anything listens there.

use std::net::IpAddr;
use std::sync::Arc;

use prost::Message;

use super::{Object, RawMetadata, Sent, short};
use crate::kubernetes::Error;

/// Addresses of one object that are kept: a slice has 1,000 endpoints at most.
const ADDRESSES_MAX: usize = 1024;
/// Ports of a slice that are kept; the API server takes no more.
const PORTS_MAX: usize = 100;

/// Namespace and name of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceName {
    /// `metadata.namespace`.
    pub namespace: Arc<str>,
    /// `metadata.name`.
    pub name: Arc<str>,
}

/// A service and the addresses that are its own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Service {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// What it is called.
    pub name: ServiceName,
    /// Cluster addresses, external addresses and those of its load balancer. None of a headless service.
    pub addresses: Vec<IpAddr>,
}

/// A part of the endpoints of a service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Slice {
    /// `metadata.uid`.
    pub uid: Box<str>,
    /// The service that they belong to; `None` of a slice that belongs to none.
    pub name: Option<ServiceName>,
    /// Addresses of pods or other machines.
    pub addresses: Vec<IpAddr>,
    /// Where they listen; `None` for any port.
    pub ports: Option<Vec<u16>>,
}

impl Object for Service {
    fn decode(bytes: &[u8]) -> Result<Sent<Self>, Error> {
        let RawService { metadata, spec, status } = RawService::decode(bytes)?;
        let (metadata, spec) = (metadata.unwrap_or_default(), spec.unwrap_or_default());
        let balancer = status.and_then(|status| status.load_balancer).unwrap_or_default();
        let balanced = balancer.ingress.iter().map(|ingress| &ingress.ip);
        let texts = std::iter::once(&spec.cluster_ip).chain(&spec.cluster_ips).chain(&spec.external_ips);
        let object = Self {
            uid: short(&metadata.uid),
            name: name(&metadata.namespace, &metadata.name),
            addresses: addresses(texts.chain(balanced)),
        };
        Ok(Sent { object, resource_version: metadata.resource_version })
    }
}

impl Object for Slice {
    fn decode(bytes: &[u8]) -> Result<Sent<Self>, Error> {
        let RawSlice { metadata, endpoints, ports } = RawSlice::decode(bytes)?;
        let RawMetadata { namespace, uid, resource_version, labels, .. } = metadata.unwrap_or_default();
        let service = labels.get("kubernetes.io/service-name").filter(|name| !name.is_empty());
        // One without a number stands for all of them.
        let numbers = ports.iter().take(PORTS_MAX).map(|port| port.port).collect::<Option<Vec<i32>>>();
        let numbers =
            numbers.map(|all| all.into_iter().filter_map(|port| u16::try_from(port).ok()).collect());
        let object = Self {
            uid: short(&uid),
            name: service.map(|service| name(&namespace, service)),
            addresses: addresses(endpoints.iter().flat_map(|endpoint| &endpoint.addresses)),
            ports: numbers,
        };
        Ok(Sent { object, resource_version })
    }
}

fn name(namespace: &str, name: &str) -> ServiceName {
    ServiceName { namespace: short(namespace).into(), name: short(name).into() }
}

/// Those that are addresses, once each: `None` of a headless service and host names are passed over.
fn addresses<'a>(texts: impl Iterator<Item = &'a String>) -> Vec<IpAddr> {
    let mut found: Vec<IpAddr> = texts.take(ADDRESSES_MAX).filter_map(|text| text.parse().ok()).collect();
    found.sort_unstable();
    found.dedup();
    found
}

#[derive(Clone, PartialEq, Message)]
struct RawService {
    #[prost(message, optional, tag = "1")]
    metadata: Option<RawMetadata>,
    #[prost(message, optional, tag = "2")]
    spec: Option<RawServiceSpec>,
    #[prost(message, optional, tag = "3")]
    status: Option<RawServiceStatus>,
}

#[derive(Clone, PartialEq, Message)]
struct RawServiceSpec {
    #[prost(string, tag = "3")]
    cluster_ip: String,
    #[prost(string, repeated, tag = "5")]
    external_ips: Vec<String>,
    #[prost(string, repeated, tag = "18")]
    cluster_ips: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RawServiceStatus {
    #[prost(message, optional, tag = "1")]
    load_balancer: Option<RawLoadBalancer>,
}

#[derive(Clone, PartialEq, Message)]
struct RawLoadBalancer {
    #[prost(message, repeated, tag = "1")]
    ingress: Vec<RawIngress>,
}

#[derive(Clone, PartialEq, Message)]
struct RawIngress {
    #[prost(string, tag = "1")]
    ip: String,
}

#[derive(Clone, PartialEq, Message)]
struct RawSlice {
    #[prost(message, optional, tag = "1")]
    metadata: Option<RawMetadata>,
    #[prost(message, repeated, tag = "2")]
    endpoints: Vec<RawEndpoint>,
    #[prost(message, repeated, tag = "3")]
    ports: Vec<RawPort>,
}

#[derive(Clone, PartialEq, Message)]
struct RawEndpoint {
    #[prost(string, repeated, tag = "1")]
    addresses: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
struct RawPort {
    #[prost(int32, optional, tag = "3")]
    port: Option<i32>,
}
