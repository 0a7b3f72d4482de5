//! `/api/v1/service-graph`: who calls whom, as JSON.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use super::{Command, Error};
use crate::export::Metrics;
use crate::red::{Edge, Histogram};

#[derive(Serialize)]
struct GraphJson<'a> {
    edges: Vec<EdgeJson<'a>>,
    /// Requests in no edge: a header names their caller, which is elsewhere.
    unpaired: u64,
}

#[derive(Serialize)]
struct EdgeJson<'a> {
    client: NodeJson<'a>,
    server: NodeJson<'a>,
    connection_type: &'static str,
    requests: u64,
    failed: u64,
    server_seconds: Durations,
    client_seconds: Durations,
}

#[derive(Serialize)]
struct NodeJson<'a> {
    name: &'a str,
    namespace: &'a str,
}

#[derive(Serialize)]
struct Durations {
    count: u64,
    sum: f64,
}

impl Durations {
    fn of(histogram: &Histogram) -> Self {
        Self { count: histogram.buckets.count(), sum: histogram.buckets.sum_seconds() }
    }
}

impl<'a> EdgeJson<'a> {
    fn of(edge: &'a Edge) -> Self {
        let node = |[name, namespace]: &'a [std::sync::Arc<str>; 2]| NodeJson { name, namespace };
        Self {
            client: node(&edge.client),
            server: node(&edge.server),
            connection_type: edge.connection_type,
            requests: edge.total,
            failed: edge.failed,
            server_seconds: Durations::of(&edge.served),
            client_seconds: Durations::of(&edge.called),
        }
    }
}

pub(super) async fn serve(State(state): State<super::State>) -> Result<Response, Error> {
    let make = |metrics: Metrics| {
        let edges = metrics.red.edges.iter().map(|edge| EdgeJson::of(edge)).collect();
        Json(GraphJson { edges, unpaired: metrics.red.unpaired }).into_response()
    };
    state.answer(Command::Metrics, make).await
}
