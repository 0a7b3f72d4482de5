//! A small HTTP/1.1 client with a keep-alive pool, as ordinary services have one.
//!
//! In: a [`Call`]. Out: a [`Reply`] or why there is none. The only header it knows to pass on is `traceparent`,
//! as it came in.

use std::net::SocketAddr;
use std::time::Duration;

use axum::body::{Body, Bytes, to_bytes};
use axum::http::{HeaderMap, HeaderValue, Method, Request, StatusCode, header};
use axum::response::{IntoResponse, Response};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use thiserror::Error;

/// Longer than any slow answer in the demo.
const TIMEOUT: Duration = Duration::from_secs(5);
/// More than any page of `/metrics` of the demo.
const BODY_LIMIT: usize = 32 << 20;
pub(super) const TRACEPARENT: &str = "traceparent";

/// One request to make.
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) address: SocketAddr,
    /// Path and query.
    pub(super) path: String,
    pub(super) traceparent: Option<HeaderValue>,
    /// JSON, or empty.
    pub(super) body: Bytes,
}

impl Call {
    /// A request without a body and without a trace.
    pub(super) fn get(address: SocketAddr, path: String) -> Self {
        Self { method: Method::GET, address, path, traceparent: None, body: Bytes::new() }
    }

    /// As [`Call::get`], with a body.
    pub(super) fn post(address: SocketAddr, path: String, body: Bytes) -> Self {
        Self { method: Method::POST, body, ..Self::get(address, path) }
    }

    /// Passes on the trace of the request that is being served.
    pub(super) fn in_trace_of(mut self, incoming: &HeaderMap) -> Self {
        self.traceparent = incoming.get(TRACEPARENT).cloned();
        self
    }
}

/// A whole response.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) status: StatusCode,
    pub(super) body: Bytes,
}

/// Services hand on what the next one said.
impl IntoResponse for Reply {
    fn into_response(self) -> Response {
        (self.status, [(header::CONTENT_TYPE, "application/json")], self.body).into_response()
    }
}

/// Why there is no reply.
#[derive(Debug, Error)]
pub(super) enum CallError {
    #[error("no answer from {0} within {seconds} s", seconds = TIMEOUT.as_secs())]
    Timeout(SocketAddr),
    #[error("request to {address} failed: {reason}")]
    Broken { address: SocketAddr, reason: String },
}

/// What a gateway answers then.
impl IntoResponse for CallError {
    fn into_response(self) -> Response {
        let status = match self {
            Self::Timeout(_) => StatusCode::GATEWAY_TIMEOUT,
            Self::Broken { .. } => StatusCode::BAD_GATEWAY,
        };
        (status, self.to_string()).into_response()
    }
}

/// The client; clones share the pool.
#[derive(Clone)]
pub(super) struct Caller(Client<HttpConnector, Body>);

impl Caller {
    pub(super) fn new() -> Self {
        Self(Client::builder(TokioExecutor::new()).build_http())
    }

    pub(super) async fn call(&self, call: Call) -> Result<Reply, CallError> {
        let address = call.address;
        tokio::time::timeout(TIMEOUT, self.exchange(call))
            .await
            .map_err(|_| CallError::Timeout(address))?
            .map_err(|reason| CallError::Broken { address, reason })
    }

    async fn exchange(&self, call: Call) -> Result<Reply, String> {
        let mut request = Request::builder()
            .method(call.method)
            .uri(format!("http://{}{}", call.address, call.path))
            .header(header::USER_AGENT, "demo/1.0");
        if let Some(traceparent) = call.traceparent {
            request = request.header(TRACEPARENT, traceparent);
        }
        if !call.body.is_empty() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Body::from(call.body)).map_err(|error| error.to_string())?;
        let response = self.0.request(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        let body =
            to_bytes(Body::new(response.into_body()), BODY_LIMIT).await.map_err(|error| error.to_string())?;
        Ok(Reply { status, body })
    }
}
