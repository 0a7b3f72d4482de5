//! OTLP in: what SDKs and Collectors send us.
//!
//! In: requests over gRPC and HTTP. Out: spans for the pipeline ([`Batch`]), metrics and logs to be passed on
//! ([`Passed`]); which span of an SDK is the same event as a captured exchange ([`join`]). Refuses to know who counts,
//! keeps and exports them.
//!
//! ```text
//! connections ─▶ listener ─▶ answer ─▶ weigh ─▶ decode ─▶ Batch ──▶ pipeline thread: join
//! (bounded)      (TLS)       (token, limits,   (bytes to spans)
//!                             one budget)  ─────────────▶ Passed ─▶ exports
//! ```
//!
//! Memory is one [`budget`], of which every byte is taken before it is used: bodies as they come, what they inflate to,
//! and what they decode to. When it is used up, senders are asked to come again.
#![forbid(unsafe_code)]

mod answer;
mod body;
pub mod budget;
pub mod decode;
pub mod ends;
mod grpc;
mod http;
pub mod join;
mod listener;
mod view;
mod weigh;

use std::sync::Arc;

use ::http::Uri;
use prost::bytes::Bytes;
use tokio::sync::mpsc;

use self::budget::Share;
use crate::span::Span;
use crate::span::foreign::Request;

pub use self::listener::{Inlets, Listeners, Plan, ReceiveError};
pub use self::view::{Counted, Counts, Refused, Rejected, View};
pub use self::weigh::{Weight, weigh};

/// What OTLP carries, as far as it is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Spans.
    Traces,
    /// Points of metrics.
    Metrics,
    /// Records of logs.
    Logs,
}

impl Kind {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Traces, Self::Metrics, Self::Logs];

    /// As destinations call it.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Traces => "traces",
            Self::Metrics => "metrics",
            Self::Logs => "logs",
        }
    }

    /// The kind that a path asks for, over HTTP or over gRPC.
    fn at(uri: &Uri, is_grpc: bool) -> Option<Self> {
        const HTTP: [&str; 3] = ["/v1/traces", "/v1/metrics", "/v1/logs"];
        const GRPC: [&str; 3] = [
            "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
            "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
            "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
        ];
        let paths = if is_grpc { GRPC } else { HTTP };
        let nth = paths.iter().position(|path| *path == uri.path())?;
        Some(Self::ALL[nth])
    }
}

/// How a body is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Protobuf.
    Protobuf,
    /// JSON, by the mapping of the OTLP specification.
    Json,
}

/// Spans of one request.
#[derive(Debug)]
pub struct Batch {
    /// Each of them.
    pub spans: Vec<Received>,
}

/// A span that was sent to us.
#[derive(Debug)]
pub struct Received {
    /// As it is shown.
    pub span: Box<Span>,
    /// What it is, in the sender's words.
    pub role: Role,
    /// The request that it reports, if it is the end of one and such requests may count.
    pub request: Option<Box<Request>>,
    /// The whole `Span` message, to be passed on.
    pub message: Bytes,
    /// Who sent it.
    pub origin: Arc<Origin>,
    /// Its memory counts for as long as it is here.
    _share: Arc<Share>,
}

/// Kind of a received span, as far as it matters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// It may be a captured request.
    Server,
    /// It may be a captured call.
    Client,
    /// Work within a process.
    Internal,
    /// It sends or takes a message of a queue, which is not captured.
    Message,
}

/// Resource and scope of received spans, as they came.
#[derive(Debug, Default)]
pub struct Origin {
    /// Fields of `Resource`.
    pub resource: Vec<u8>,
    /// The resource's schema URL.
    pub resource_schema: String,
    /// Fields of `InstrumentationScope`.
    pub scope: Vec<u8>,
    /// The scope's schema URL.
    pub scope_schema: String,
}

/// A request that goes on to destinations as it came.
#[derive(Debug)]
pub struct Passed {
    /// Metrics or logs.
    pub kind: Kind,
    /// The request, as protobuf.
    pub bytes: Bytes,
    /// Points or records in it.
    pub n_items: u64,
    _share: Share,
}

/// Spans for the pipeline.
pub type Batches = mpsc::Receiver<Batch>;

#[cfg(test)]
mod tests;
