//! `/api/v1/spans`: recent spans as JSON.
//!
//! In: query parameters. Out: a page of spans with all their attributes. Refuses to know the store's inside.

pub(super) mod json;
pub(super) mod parameter;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::response::{IntoResponse, Response};

use super::{Command, Error};

/// The highest `limit`.
pub const MAX_LIMIT: usize = 10_000;
/// `limit` of a request with `after`.
const DEFAULT_LIMIT_AFTER: usize = 1_000;
/// `limit` of a request without.
const DEFAULT_LIMIT_NEWEST: usize = 100;

/// Parameters: `service`, `kind=server|client`, `method`, `route`, `path` (prefix), `status=404|5xx|UNAVAILABLE`,
/// `error=true|false`, `trace_id`, `min_duration_ms`, `sort=newest|slowest`,
/// `after=SEQUENCE`, `limit`.
pub(super) async fn serve(
    State(state): State<super::State>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let Query(pairs) = pairs.map_err(|rejection| Error::Query(rejection.body_text()))?;
    let query = parameter::parse(pairs)?;
    let has_profiles = state.profiles.is_on();
    let page = move |page| Json(json::PageJson { page: &page, has_profiles }).into_response();
    state.answer(|reply| Command::Spans(query, reply), page).await
}
