//! `/api/v1/profiles`: what CPUs did, as flame graph, pprof, OTLP or numbers; and what differs between two selections.
//!
//! In: query parameters, `Accept`. Out: a selection in some format. Refuses to know how samples come about.

pub(super) mod parameter;

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_DISPOSITION, CONTENT_TYPE};
use axum::response::{IntoResponse, Response};
use tokio::sync::OwnedSemaphorePermit;

use self::parameter::Format;
pub(super) use self::parameter::Request;
use super::{Error, security};
use crate::clock::{Clock, monotonic_ns};
use crate::export::{flame, folded, otlp, pprof, summary::Summary};
use crate::profile::Selection;
use crate::profile::ask::{AskError, TIMEOUT};
use crate::profile::choose::Pace;

type Pairs = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// Parameters: `type`, `service`, `version`, `from`, `to`, `route`, `span`, `trace`, `pid`, `slow=true|false`,
/// `frames=program|all` and `view=flame|icicle|callers` of pictures, `format=svg|html|pprof|otlp|json|folded`.
pub(super) async fn serve(
    State(state): State<super::State>,
    headers: HeaderMap,
    pairs: Pairs,
) -> Result<Response, Error> {
    let Query(pairs) = pairs.map_err(|rejection| Error::Query(rejection.body_text()))?;
    let request = Request::parse(pairs, now())?;
    let format = request.format.unwrap_or_else(|| negotiate(&headers));
    let permit = permit(&state).await?;
    let selection = ask(&state, &request).await?;
    super::made(permit, move || answer(format, &request, &selection)).await
}

/// The same parameters for what is compared; `base_service`, `base_from`, … say with what. Or `slow=true`: slow
/// requests with the rest of their routes. SVG, or the same in a document (`format=html`).
pub(super) async fn compare(State(state): State<super::State>, pairs: Pairs) -> Result<Response, Error> {
    let Query(pairs) = pairs.map_err(|rejection| Error::Query(rejection.body_text()))?;
    let Some((request, base)) = Request::parse_both(pairs, now())? else {
        return Err(Error::NothingToCompare);
    };
    let permit = permit(&state).await?;
    let before = ask(&state, &base).await?;
    let selection = ask(&state, &request).await?;
    let make = move || {
        let is_slow = (request.filter.pace, base.filter.pace) == (Some(Pace::Slow), Some(Pace::Rest));
        let (title, sides) = match is_slow {
            true => {
                (format!("{}, compared with the others", request.title), ["of the others", "of slow ones"])
            }
            false => (format!("{}, compared with {}", request.title, base.title), ["before", "now"]),
        };
        let versions =
            [&base, &request].map(|it| it.filter.version.as_ref().map(|it| format!("in version {it}")));
        let sides = match &versions {
            [Some(old), Some(new)] if old != new => [old.as_str(), new.as_str()],
            _ => sides,
        };
        let svg = flame::difference(&title, (sides[0], &before), (sides[1], &selection), request.look);
        if request.format == Some(Format::Html) { framed(&svg) } else { picture(svg) }
    };
    super::made(permit, make).await
}

/// A place among the profiles that are made: taken before samples are asked for, since those of one answer may be all.
async fn permit(state: &super::State) -> Result<OwnedSemaphorePermit, Error> {
    let places = Arc::clone(&state.profiles_made).acquire_owned();
    let permit = tokio::time::timeout(TIMEOUT, places).await.map_err(|_| AskError::Unanswered)?;
    permit.map_err(|_| Error::Unanswered)
}

/// The samples. A span or trace of which there are none is not found; other selections may be empty.
pub(super) async fn ask(state: &super::State, request: &Request) -> Result<Selection, Error> {
    let selection = state.profiles.ask(request.filter.clone()).await?;
    let is_one = request.filter.span_id.is_some() || request.filter.trace_id.is_some();
    match is_one && selection.samples.is_empty() {
        true => Err(Error::NotSampled(request.title.clone())),
        false => Ok(selection),
    }
}

pub(super) fn now() -> u64 {
    Clock::now().unix(monotonic_ns())
}

fn answer(format: Format, request: &Request, selection: &Selection) -> Response {
    let graph = || flame::graph(&request.title, selection, request.look);
    match format {
        Format::Svg => picture(graph()),
        Format::Html => framed(&graph()),
        Format::Folded => folded::encode(selection).into_response(),
        Format::Json => Json(Summary::new(selection)).into_response(),
        Format::Pprof => file("application/octet-stream", "profile.pb.gz", pprof::encode(selection)),
        Format::Otlp => file("application/x-protobuf", "profile.otlp", whole(selection)),
    }
}

/// One message, however large; without samples it is an empty one.
fn whole(selection: &Selection) -> Vec<u8> {
    otlp::profile::encode_within(selection, usize::MAX)
        .into_iter()
        .flat_map(|request| request.bytes)
        .collect()
}

fn file(media: &'static str, name: &str, bytes: Vec<u8>) -> Response {
    let disposition = format!("attachment; filename=\"{name}\"");
    ([(CONTENT_TYPE, media.to_owned()), (CONTENT_DISPOSITION, disposition)], bytes).into_response()
}

fn picture(svg: String) -> Response {
    ([(CONTENT_TYPE, "image/svg+xml; charset=utf-8")], security::of_pictures(), svg).into_response()
}

/// The same as a document that is as large as it is, and scrolls.
fn framed(svg: &str) -> Response {
    let style = "body{margin:0;background:#fdfdfb}svg{display:block;width:100%;min-width:700px;height:auto}";
    let page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Flame graph</title><style>{style}</style>{svg}</html>"
    );
    ([(CONTENT_TYPE, "text/html; charset=utf-8")], security::of_pictures(), page).into_response()
}

/// What is accepted by name, in the order in which it is named; a browser gets a picture. Who does not say, as
/// `go tool pprof`, gets pprof.
fn negotiate(headers: &HeaderMap) -> Format {
    let accepts: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let accepts = accepts.join(",").to_ascii_lowercase();
    let named = accepts.split(',').find_map(|range| {
        let mut parts = range.split(';').map(str::trim);
        let media = parts.next()?;
        let refused = parts.any(|part| matches!(part, "q=0" | "q=0.0"));
        Format::of_media_type(media).filter(|_| !refused)
    });
    named.unwrap_or(Format::Pprof)
}

#[cfg(test)]
mod tests;
