//! One request to one URL: gRPC, HTTP, what Pyroscope speaks or remote write, plain or TLS, compressed or not.
//!
//! In: payloads that make up a request. Out: an [`Answer`]. Refuses to know queues, time limits and whether a request
//! is a repetition.

mod connection;
mod grpc;
mod http;
mod pyroscope;
mod remote_write;

use std::sync::Arc;
use std::time::Duration;

use ::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use opentelemetry_proto::tonic::collector::logs::v1::ExportLogsServiceResponse;
use opentelemetry_proto::tonic::collector::metrics::v1::ExportMetricsServiceResponse;
use opentelemetry_proto::tonic::collector::profiles::v1development::ExportProfilesServiceResponse;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use prost::bytes::Bytes;
use rustls::ClientConfig;
use tonic::body::Body;

use self::connection::{Connector, Cutter};
use self::remote_write::Versions;
use super::meter::Meter;
use super::queue::Payload;
use super::retry::Answer;
use crate::config::export::{Compression, OtlpDestination, Protocol, Signal};

type Connections = Client<HttpsConnector<Connector>, Body>;

/// What is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Language {
    Otlp,
    /// What Pyroscope takes.
    Pyroscope,
    /// What Prometheus sends on.
    RemoteWrite,
}

/// Where one signal of a destination goes, and how.
#[derive(Debug)]
pub(super) struct Transport {
    uri: Uri,
    signal: Signal,
    protocol: Protocol,
    language: Language,
    /// Of remote write.
    versions: Versions,
    compression: Compression,
    headers: HeaderMap,
    tls: Arc<ClientConfig>,
    connections: Connections,
    cutter: Cutter,
    /// For a connection, a request, and bytes that the peer does not acknowledge.
    timeout: Duration,
}

impl Transport {
    /// Connects to no server yet.
    pub(super) fn new(
        destination: &OtlpDestination,
        signal: Signal,
        uri: Uri,
        tls: Arc<ClientConfig>,
    ) -> Self {
        let (cutter, timeout) = (Cutter::default(), destination.timeout);
        let connections = connections(&tls, destination.protocol, timeout, &cutter);
        Self {
            uri,
            signal,
            protocol: destination.protocol,
            language: Language::Otlp,
            versions: Versions::default(),
            compression: destination.compression,
            headers: headers(destination),
            tls,
            connections,
            cutter,
            timeout,
        }
    }

    /// The same connection, but another language.
    pub(super) fn speaking(self, language: Language) -> Self {
        Self { language, ..self }
    }

    /// Sends the payloads as one request and says what came of it. Its memory counts with `meter` while it is under
    /// way.
    ///
    /// One request at a time: a second one would end the connection of the first.
    pub(super) async fn send(&self, batch: &[Payload], meter: &Meter) -> Answer {
        match (self.language, self.protocol) {
            (Language::Pyroscope, _) => pyroscope::send(self, batch).await,
            (Language::RemoteWrite, _) => remote_write::send(self, batch, meter).await,
            (Language::Otlp, Protocol::Grpc) => grpc::send(self, batch, meter).await,
            (Language::Otlp, Protocol::Http) => http::send(self, batch, meter).await,
        }
    }

    /// What distinguishes the place where requests go from all others: what waits on the disk for one goes to no other.
    pub(super) fn address(&self) -> String {
        format!("{:?} {} {}", self.language, self.signal.name(), self.uri)
    }

    /// Whether requests are OTLP's, which nothing has compressed yet.
    pub(super) fn is_otlp(&self) -> bool {
        self.language == Language::Otlp
    }

    /// Ends its connection, which may lead nowhere: the socket is closed and the request's memory free.
    pub(super) fn reset(&mut self) {
        self.cutter.cut();
        self.connections = connections(&self.tls, self.protocol, self.timeout, &self.cutter);
    }

    /// Whether a refusal may mean that a destination does not know the signal. Profiles are young: Collectors want a
    /// feature gate for them, others have never heard of them.
    fn may_be_unknown(&self) -> bool {
        self.signal == Signal::Profiles && self.language == Language::Otlp
    }

    /// Reads a response message: all signals' have the same fields, of which these are all.
    fn accepted(&self, response: Bytes) -> Answer {
        let partial = match self.signal {
            Signal::Traces => ExportTraceServiceResponse::decode(response).map(|response| {
                response.partial_success.map(|partial| (partial.rejected_spans, partial.error_message))
            }),
            Signal::Metrics => ExportMetricsServiceResponse::decode(response).map(|response| {
                response.partial_success.map(|partial| (partial.rejected_data_points, partial.error_message))
            }),
            Signal::Logs => ExportLogsServiceResponse::decode(response).map(|response| {
                response.partial_success.map(|partial| (partial.rejected_log_records, partial.error_message))
            }),
            Signal::Profiles => ExportProfilesServiceResponse::decode(response).map(|response| {
                response.partial_success.map(|partial| (partial.rejected_profiles, partial.error_message))
            }),
        };
        // An unreadable message of success is a success: the specification lets us only not send it again.
        let (rejected, message) = partial.ok().flatten().unwrap_or_default();
        Answer::Accepted { rejected: u64::try_from(rejected).unwrap_or(0), message }
    }
}

fn connections(tls: &ClientConfig, protocol: Protocol, timeout: Duration, cutter: &Cutter) -> Connections {
    let mut tcp = HttpConnector::new();
    tcp.enforce_http(false);
    tcp.set_nodelay(true);
    tcp.set_connect_timeout(Some(timeout));
    // The kernel gives up on a peer that takes nothing, too, also for a socket that is closed already.
    tcp.set_tcp_user_timeout(Some(timeout));
    let tcp = Connector::new(tcp, cutter.clone());
    let schemes = HttpsConnectorBuilder::new().with_tls_config(tls.clone()).https_or_http();
    let connector = match protocol {
        Protocol::Grpc => schemes.enable_http2().wrap_connector(tcp),
        Protocol::Http => schemes.enable_all_versions().wrap_connector(tcp),
    };
    Client::builder(TokioExecutor::new())
        .timer(TokioTimer::new())
        .pool_timer(TokioTimer::new())
        .http2_only(protocol == Protocol::Grpc)
        .build(connector)
}

/// What every request carries.
fn headers(destination: &OtlpDestination) -> HeaderMap {
    let user_agent = HeaderValue::from_static(concat!("obi/", env!("CARGO_PKG_VERSION")));
    let mut headers = HeaderMap::from_iter([(::http::header::USER_AGENT, user_agent)]);
    for (name, value) in destination.headers.iter() {
        // The configuration has checked both.
        if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            value.set_sensitive(true);
            headers.insert(name, value);
        }
    }
    headers
}

/// An error and what caused it, on one line.
fn explained(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let part = error.to_string();
        if !text.contains(&part) {
            text.push_str(": ");
            text.push_str(&part);
        }
        cause = error.source();
    }
    text
}
