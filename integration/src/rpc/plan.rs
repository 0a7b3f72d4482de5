//! One call over gRPC, and what both ends report of it.
//!
//! In and out: JSON. A client sends the call's id as trace id in `traceparent`, and in `shape` what the handler is to
//! do: `RESPONSES/BYTES/CODE/DELAY_US/HOLD`. Refuses to know languages.

use serde::{Deserialize, Serialize};

/// What a handler of `test.Shape` does with messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize)]
pub enum Method {
    /// One message, one answer.
    Unary,
    /// All messages, then one answer.
    Collect,
    /// One message, then all answers.
    Expand,
    /// An answer to each message.
    Chat,
    /// No server has it.
    Missing,
}

impl Method {
    /// `package.Service/Method`.
    #[must_use]
    pub fn full_name(self) -> String {
        format!("test.Shape/{self:?}")
    }
}

/// How a call ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// With the server's status.
    Status,
    /// The client cancels once it has all answers; the server would wait for ever.
    Cancel,
    /// The client's time passes; the server would wait for ever.
    Deadline,
    /// The client's process ends with it, having all answers; the server would wait for ever. Of tonic.
    Leave,
}

/// One call.
#[derive(Debug, Clone, Serialize)]
pub struct RpcCall {
    /// 32 hexadecimal digits: its trace id.
    pub id: String,
    /// Which handler.
    pub method: Method,
    /// Messages that the client sends.
    pub requests: u32,
    /// Messages that the server sends.
    pub responses: u32,
    /// Bytes of each message.
    pub bytes: u32,
    /// How it ends.
    pub end: End,
    /// With [`End::Deadline`].
    pub timeout_ms: u32,
    /// What the handler has to do.
    shape: String,
    /// Status that the server sends.
    #[serde(skip)]
    pub code: u32,
    #[serde(skip)]
    delay_us: u32,
}

impl RpcCall {
    /// A call with a fresh id, of small messages, which succeeds at once.
    #[must_use]
    pub fn new(method: Method, requests: u32, responses: u32) -> Self {
        let id = crate::seed::request_id();
        let (bytes, end, timeout_ms) = (20, End::Status, 0);
        let code = if method == Method::Missing { 12 } else { 0 };
        let shape = String::new();
        Self { id, method, requests, responses, bytes, end, timeout_ms, shape, code, delay_us: 0 }.reported()
    }

    /// The server ends it with this status.
    #[must_use]
    pub fn fails(self, code: u32) -> Self {
        Self { code, ..self }.reported()
    }

    /// The handler waits so long before it answers.
    #[must_use]
    pub fn takes(self, delay_us: u32) -> Self {
        Self { delay_us, ..self }.reported()
    }

    /// Messages have so many bytes.
    #[must_use]
    pub fn of_bytes(self, bytes: u32) -> Self {
        Self { bytes, ..self }.reported()
    }

    /// The client cancels it.
    #[must_use]
    pub fn is_cancelled(self) -> Self {
        Self { end: End::Cancel, ..self }.reported()
    }

    /// The client's process ends with it.
    #[must_use]
    pub fn is_left(self) -> Self {
        Self { end: End::Leave, ..self }.reported()
    }

    /// Its time passes.
    #[must_use]
    pub fn times_out(self, timeout_ms: u32) -> Self {
        Self { end: End::Deadline, timeout_ms, ..self }.reported()
    }

    fn reported(mut self) -> Self {
        let Self { responses, bytes, code, delay_us, end, .. } = self;
        self.shape = format!("{responses}/{bytes}/{code}/{delay_us}/{}", u8::from(end != End::Status));
        self
    }

    /// Short text for reports.
    #[must_use]
    pub fn describe(&self) -> String {
        format!("{:?} of {} messages, {} {:?}", self.method, self.requests, self.shape, self.end)
    }
}

/// What a client has to do.
#[derive(Debug, Serialize)]
pub struct RpcPlan {
    /// `ADDRESS:PORT`.
    pub target: String,
    /// Name in the server's certificate.
    pub authority: String,
    /// File of the authority to trust; empty for no TLS.
    pub certificate: String,
    /// Calls at a time, over one connection.
    pub concurrency: usize,
    /// Calls.
    pub calls: Vec<RpcCall>,
}

/// A call as its client saw it.
#[derive(Debug, Clone, Deserialize)]
pub struct Called {
    /// Id.
    pub id: String,
    /// Status that its library reports.
    pub code: u32,
    /// Messages that it sent.
    pub sent: u32,
    /// Messages that it received.
    pub received: u32,
    /// Before it was begun, ns by its own clock.
    pub started_ns: u64,
    /// After its status was known.
    pub ended_ns: u64,
}

/// A call as its handler saw it.
#[derive(Debug, Clone, Deserialize)]
pub struct Handled {
    /// Id.
    pub id: String,
    /// Messages that it received.
    pub received: u32,
    /// Messages that it sent.
    pub sent: u32,
    /// How long it ran.
    pub handler_ns: u64,
}
