//! The agent's own page: from what burns to the line of code.
//!
//! In: requests of people's browsers. Out: complete HTML, made from the snapshots that `/metrics` and the API show; a
//! script only adds to it. Refuses to count, and to believe a name: what programs put on the wire is only ever text.
//!
//! - [`frame`]: what all pages have in common. [`failure`]: errors as pages. [`asset`]: style and script.
//! - [`overview`], [`service`]: rate, errors, durations, from [`figures`].
//! - [`lately`]: the same of the last minutes, with lines; [`heat`]: durations along time, with traces to open.
//! - [`spans`], [`trace`] (drawn by [`waterfall`]), [`span`]: what happened in a request; [`breakdown`]: where its time
//!   went.
//! - [`profile`]: where the CPU time of a selection went, by the API's pictures.
//! - [`slos`]: objectives and alerts; [`state`]: how one is doing in a word; [`burn_down`]: its budget along the period.
//! - [`map`]: who calls whom, placed by [`layers`]. [`agent`]: how the agent itself is doing; [`remedy`]: what helps.
//! - [`login`]: a form for the token of the page.
//! - [`text`], [`link`], [`table`], [`parameter`]: numbers, addresses, cells, what is asked for.

mod agent;
mod asset;
mod blind;
mod breakdown;
mod burn_down;
mod failure;
mod figures;
mod frame;
mod heat;
mod lately;
mod layers;
mod link;
pub(super) mod login;
mod map;
mod overview;
mod parameter;
mod profile;
mod remedy;
mod service;
mod slos;
mod span;
mod spans;
mod state;
mod table;
mod text;
mod trace;
mod traces;
mod waterfall;

use axum::Router;
use axum::extract::Request;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use self::failure::Failure;
pub(super) use self::failure::wants_page;
use super::{Error, State as Web};

/// All pages.
pub(super) fn routes() -> Router<Web> {
    Router::new()
        .route("/", get(overview::serve))
        .route("/services/{namespace}/{name}", get(service::serve))
        .route("/spans", get(spans::serve))
        .route("/traces/{trace_id}", get(trace::serve))
        .route("/traces/{trace_id}/{span_id}", get(span::serve))
        .route("/profiles", get(profile::serve))
        .route("/profiles/compare", get(profile::compare))
        .route("/slos", get(slos::serve))
        .route("/slos/{name}", get(slos::one))
        .route("/map", get(map::serve))
        .route("/agent", get(agent::serve))
        .route("/login", get(login::form).post(login::serve))
        .route("/assets/{name}", get(asset::serve))
}

/// Nothing is there: a page for those who read pages.
pub(super) async fn missing(request: Request) -> Response {
    let error = Error::NoRoute(request.uri().path().to_owned());
    match wants_page(request.headers()) {
        true => Failure::from(error).into_response(),
        false => error.into_response(),
    }
}

#[cfg(test)]
mod tests;
