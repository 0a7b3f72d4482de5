//! Events to exchanges: one [`Exchange`] per request and its response.
//!
//! In: [`crate::capture::event::Event`]. Out: whole exchanges, borrowed from the table that assembled them.
//! Refuses to know services, routes, ids and metrics.
#![forbid(unsafe_code)]

use std::net::{IpAddr, SocketAddr};

/// Which end of the connection the observed process is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// It received the request.
    Server,
    /// It sent the request.
    Client,
}

/// The two ends of a connection as the observed process sees them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Endpoints {
    /// TCP over IPv4 or IPv6 (IPv4-mapped addresses are unmapped).
    Ip {
        /// Our end.
        local: SocketAddr,
        /// The peer.
        remote: SocketAddr,
    },
    /// A unix stream socket.
    Unix,
}

/// How a broken exchange ended. The text is the span's `error.type`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The connection was reset.
    Reset,
    /// The connection was closed before the response was complete.
    Closed,
    /// The transport timed out.
    Timeout,
}

/// One request and its response, whole or broken. Times are `CLOCK_MONOTONIC` nanoseconds.
#[derive(Debug, Clone, Copy)]
pub struct Exchange<'a> {
    /// The kernel's exchange number.
    pub number: u64,
    /// Server or client.
    pub side: Side,
    /// Observed process.
    pub tgid: u32,
    /// Thread that read (server) or sent (client) the request head.
    pub tid: u32,
    /// Addresses.
    pub endpoints: Endpoints,
    /// When the first data of the request arrived (server) or was sent (client).
    pub arrival: u64,
    /// When the process first read it; `started - arrival` is the queue wait.
    pub started: u64,
    /// Last byte of the response, or the moment it broke.
    pub ended: u64,
    /// The request head.
    pub request: Request<'a>,
    /// The response head, if one was seen whole.
    pub response: Option<Response>,
    /// Body bytes, without chunk framing.
    pub request_body_bytes: u64,
    /// Body bytes, without chunk framing.
    pub response_body_bytes: u64,
    /// Set when the exchange did not end with a whole response.
    pub failure: Option<Failure>,
}

/// What the request head tells. No query value, cookie or authorization gets this far.
#[derive(Debug, Clone, Copy, Default)]
pub struct Request<'a> {
    /// As sent, case kept.
    pub method: &'a str,
    /// Path of the target, without the query.
    pub path: &'a str,
    /// The query with every value replaced by `REDACTED`; empty without a query.
    pub query: &'a str,
    /// 0 or 1: the minor version of HTTP/1.
    pub minor_version: u8,
    /// `Host` header, or the authority of an absolute target.
    pub host: &'a str,
    /// `User-Agent` header.
    pub user_agent: &'a str,
    /// `traceparent` header.
    pub traceparent: &'a str,
    /// `tracestate` header.
    pub tracestate: &'a str,
}

/// What the response head tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Response {
    /// Status code, 100–999.
    pub status: u16,
    /// 0 or 1: the minor version of HTTP/1.
    pub minor_version: u8,
}

/// Unmaps IPv4-mapped addresses: the kernel sends sixteen bytes always.
#[must_use]
pub fn canonical_ip(bytes: [u8; 16]) -> IpAddr {
    IpAddr::from(bytes).to_canonical()
}
