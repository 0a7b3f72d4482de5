//! `/api/v1/traces` and `/api/v1/traces/{trace_id}`: recent traces as JSON.
//!
//! In: query parameters, or an id. Out: summaries of traces; the spans of one, as a tree. Refuses to know the store's
//! inside.

mod parameter;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::response::{IntoResponse, Response};
use serde::ser::SerializeMap;
use serde::{Serialize, Serializer};

use super::spans::json::{ServiceJson, SpanJson, hex};
use super::{Command, Error, spans};
use crate::cause::context::parse_id;
use crate::red::seconds;
use crate::span_store::{Filter, Order, Placed, Query as SpanQuery, Trace, tree};

/// Parameters: `service`, `error=true|false`, `min_duration_ms`, `after=SEQUENCE`, `limit`.
pub(super) async fn search(
    State(state): State<super::State>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let Query(pairs) = pairs.map_err(|rejection| Error::Query(rejection.body_text()))?;
    let query = parameter::parse(pairs)?;
    let page = |(traces, next)| Json(TracesJson { traces, next }).into_response();
    state.answer(|reply| Command::Traces(query, reply), page).await
}

/// All spans of one trace that are held here.
pub(super) async fn one(
    State(state): State<super::State>,
    Path(id): Path<String>,
) -> Result<Response, Error> {
    let Some(trace_id) = parse_id(&id) else {
        let expected = "expected 32 hexadecimal digits";
        return Err(Error::Parameter { parameter: "trace_id".to_owned(), value: id, expected });
    };
    let filter = Filter { trace_id: Some(trace_id), ..Filter::default() };
    let query = SpanQuery { filter, order: Order::Newest, limit: spans::MAX_LIMIT };
    let has_profiles = state.profiles.is_on();
    let page = move |page: crate::span_store::Page| match page.spans.is_empty() {
        true => Error::NoTrace(id).into_response(),
        false => {
            Json(TreeJson { trace_id: hex(&trace_id), spans: tree(page.spans), has_profiles }).into_response()
        }
    };
    state.answer(|reply| Command::Spans(query, reply), page).await
}

/// `{"traces": […], "next": …}`.
#[derive(Serialize)]
struct TracesJson {
    traces: Vec<Trace>,
    next: u64,
}

/// `{"trace_id": …, "spans": […]}`, each span behind its parent.
struct TreeJson {
    trace_id: String,
    spans: Vec<Placed>,
    has_profiles: bool,
}

impl Serialize for Trace {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        struct Services<'a>(&'a Trace);
        impl Serialize for Services<'_> {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_seq(self.0.services.iter().map(|service| ServiceJson(service)))
            }
        }
        let mut out = out.serialize_map(None)?;
        out.serialize_entry("trace_id", &hex(&self.trace_id))?;
        out.serialize_entry("name", &self.first.name)?;
        let kind = self.first.kind.name();
        out.serialize_entry("kind", kind)?;
        out.serialize_entry("service", &ServiceJson(&self.first.service))?;
        // What is above its first span is not held.
        out.serialize_entry("is_cut", &!self.first.is_root)?;
        out.serialize_entry("start_unix_nano", &self.start)?;
        out.serialize_entry("duration_seconds", &seconds(self.end.saturating_sub(self.start)))?;
        out.serialize_entry("spans", &self.spans)?;
        out.serialize_entry("errors", &self.errors)?;
        out.serialize_entry("services", &Services(self))?;
        out.serialize_entry("last", &self.last)?;
        out.end()
    }
}

impl Serialize for TreeJson {
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        struct Spans<'a>(&'a TreeJson);
        impl Serialize for Spans<'_> {
            fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
                out.collect_seq(self.0.spans.iter().map(|placed| SpanJson {
                    stored: &placed.stored,
                    has_profiles: self.0.has_profiles,
                    place: Some((placed.depth, placed.is_cut)),
                }))
            }
        }
        let mut out = out.serialize_map(Some(2))?;
        out.serialize_entry("trace_id", &self.trace_id)?;
        out.serialize_entry("spans", &Spans(self))?;
        out.end()
    }
}
