//! Spans as the agent's API gives them: a client's view of the contract, on purpose not the agent's own types.
//!
//! In: JSON of `/api/v1/spans`. Out: spans. Refuses to know how they are made.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// One page of `/api/v1/spans?after=SEQ`.
#[derive(Debug, Deserialize)]
pub struct Page {
    /// Spans in order of their sequence.
    pub spans: Vec<Span>,
    /// What to pass as `after` next.
    pub next: u64,
}

/// Span kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// The process received the request.
    Server,
    /// The process sent the request.
    Client,
}

/// Who served or called.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Service {
    /// `service.name`.
    pub name: String,
    /// `service.namespace`.
    #[serde(default)]
    pub namespace: String,
}

/// A span.
#[derive(Debug, Clone, Deserialize)]
pub struct Span {
    /// Place in the order of all spans.
    pub sequence: u64,
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// Caller, if any.
    #[serde(default)]
    pub parent_span_id: Option<String>,
    /// Name.
    pub name: String,
    /// Kind.
    pub kind: Kind,
    /// Start, Unix time in ns.
    pub start_unix_nano: Number,
    /// End, Unix time in ns.
    pub end_unix_nano: Number,
    /// Duration, s.
    pub duration_seconds: f64,
    /// Wait between arrival and first read, s.
    pub queue_wait_seconds: f64,
    /// `unset` or `error`.
    pub status: String,
    /// Service.
    pub service: Service,
    /// Process id.
    pub pid: u32,
    /// Attributes.
    pub attributes: Map<String, Value>,
    /// Attributes of its resource, without name and namespace of the service.
    #[serde(default)]
    pub resource: Map<String, Value>,
}

/// A 64-bit number, which JSON may carry as text.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(untagged)]
pub enum Number {
    /// As a number.
    Plain(u64),
    /// As text.
    Text(String),
}

impl Number {
    /// The number.
    #[must_use]
    pub fn get(&self) -> u64 {
        match self {
            Self::Plain(number) => *number,
            Self::Text(text) => text.parse().expect("the contract promises a number"),
        }
    }
}

impl Span {
    /// A text attribute.
    #[must_use]
    pub fn text(&self, name: &str) -> Option<&str> {
        self.attributes.get(name)?.as_str()
    }

    /// A numeric attribute.
    #[must_use]
    pub fn number(&self, name: &str) -> Option<u64> {
        self.attributes.get(name)?.as_u64()
    }

    /// The id of a workload's request, if it is one.
    #[must_use]
    pub fn request_id(&self) -> Option<&str> {
        self.text("url.path")?.strip_prefix("/e/")?.split('/').next()
    }
}
