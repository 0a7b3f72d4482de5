//! The listener's routes: `/metrics`, health, the JSON API, and the [`page`] for people.
//!
//! In: HTTP requests. Out: responses made from what the pipeline thread answers (see [`handle`]).
//! Refuses to know sockets and how spans and metrics come about.
//!
//! Only GET (and HEAD) is served, and the form of the login, whose body is bounded; a query string is bounded by
//! [`MAX_QUERY_BYTES`], answers by [`spans::MAX_LIMIT`] and the store's own bounds, and
//! the number of answers in the making by [`State::new`].
#![forbid(unsafe_code)]

mod accept;
pub mod access;
mod cardinality;
mod error;
mod graph;
pub mod handle;
pub mod host;
pub mod listen;
mod metrics;
mod objectives;
mod page;
pub mod prefix;
mod profiles;
pub mod scraper;
mod security;
pub mod spans;
mod status;
mod suggestion;
mod traces;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::extract::{self, Request};
use axum::http::StatusCode;
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_service::Service as _;

pub use error::Error;
pub use handle::{Command, Handle, Sources};
use scraper::Scrapers;

use crate::{config, objective, profile};

/// A longer query string is refused.
pub const MAX_QUERY_BYTES: usize = 8_192;

/// Answers that are made at the same time; further requests wait. Each may hold a whole exposition.
const MAX_ANSWERS: usize = 4;
/// Profiles that are made at the same time, beside other answers: each may hold all samples, and looking names up for
/// it may take seconds, during which no scrape shall wait.
const MAX_PROFILES: usize = 2;

/// What the routes need.
#[derive(Debug, Clone)]
pub struct State {
    handle: Handle,
    ready: Arc<AtomicBool>,
    scrapers: Arc<Mutex<Scrapers>>,
    answers: Arc<Semaphore>,
    objectives: objective::Handle,
    profiles: profile::ask::Handle,
    profiles_made: Arc<Semaphore>,
    hosts: Arc<host::Hosts>,
    access: Arc<access::Access>,
    prefix: Arc<prefix::Prefix>,
    external_url: Arc<str>,
}

impl State {
    /// Routes over this handle, for every client. `ready` is set once the capture is attached.
    #[must_use]
    pub fn new(handle: Handle, ready: Arc<AtomicBool>) -> Self {
        let scrapers = Arc::new(Mutex::new(Scrapers::default()));
        let answers = Arc::new(Semaphore::new(MAX_ANSWERS));
        let profiles = profile::ask::Handle::off("nothing is sampled");
        let profiles_made = Arc::new(Semaphore::new(MAX_PROFILES));
        let objectives = objective::Handle::default();
        Self {
            handle,
            ready,
            scrapers,
            answers,
            objectives,
            profiles,
            profiles_made,
            hosts: Arc::default(),
            access: Arc::new(access::Access::everyone()),
            prefix: Arc::default(),
            external_url: Arc::default(),
        }
    }

    /// The same with objectives to show.
    #[must_use]
    pub fn with_objectives(self, objectives: objective::Handle) -> Self {
        Self { objectives, ..self }
    }

    /// The same for those, at the names and below the path that the configuration says.
    #[must_use]
    pub fn configured(self, config: &config::Web) -> Self {
        Self {
            hosts: Arc::new(host::Hosts::new(config)),
            access: Arc::new(access::Access::new(config)),
            prefix: Arc::new(prefix::Prefix::new(config)),
            external_url: config.external_url.as_str().into(),
            ..self
        }
    }

    /// The same with profiles to show, or a reason why there are none.
    #[must_use]
    pub fn with_profiles(self, profiles: profile::ask::Handle) -> Self {
        Self { profiles, ..self }
    }

    /// Asks the pipeline thread and makes the answer on a thread that may block.
    async fn answer<T: Send + 'static>(
        &self,
        command: impl FnOnce(tokio::sync::oneshot::Sender<T>) -> Command,
        make: impl FnOnce(T) -> Response + Send + 'static,
    ) -> Result<Response, Error> {
        let permit = Arc::clone(&self.answers).acquire_owned().await.map_err(|_| Error::Unanswered)?;
        let answer = self.handle.ask(command).await?;
        made(permit, move || make(answer)).await
    }
}

/// Makes an answer on a thread that may block. Its place among the answers is taken until it is made, also when the
/// client has gone: that thread cannot be stopped.
async fn made(
    permit: OwnedSemaphorePermit,
    make: impl FnOnce() -> Response + Send + 'static,
) -> Result<Response, Error> {
    let make = move || {
        let _permit = permit;
        make()
    };
    tokio::task::spawn_blocking(make).await.map_err(|_| Error::Unanswered)
}

/// All routes. Requests should have a [`Peer`](crate::listener::Peer) among their extensions: scrapers have counts of
/// their own by its address, and page and API are shown to this machine.
pub fn router(state: State) -> Router {
    let prefix = Arc::clone(&state.prefix);
    let routes = Router::new()
        .merge(page::routes())
        .route("/metrics", get(metrics::serve))
        .route("/healthz", get(async || "ok\n"))
        .route("/readyz", get(ready))
        .route("/api/v1/alerts", get(objectives::alerts))
        .route("/api/v1/slos", get(objectives::slos))
        .route("/api/v1/slos/suggested", get(suggestion::serve))
        .route("/api/v1/profiles", get(profiles::serve))
        .route("/api/v1/profiles/compare", get(profiles::compare))
        .route("/api/v1/spans", get(spans::serve))
        .route("/api/v1/traces", get(traces::search))
        .route("/api/v1/traces/{trace_id}", get(traces::one))
        .route("/api/v1/service-graph", get(graph::serve))
        .route("/api/v1/status", get(status::serve))
        .route("/api/v1/cardinality", get(cardinality::serve))
        .fallback(page::missing)
        .method_not_allowed_fallback(async |request: Request| Error::Method(request.method().to_string()))
        .layer(middleware::from_fn_with_state(state.clone(), access::check))
        .layer(middleware::from_fn(bound_query))
        .layer(middleware::from_fn_with_state(state.clone(), host::check))
        .layer(middleware::from_fn_with_state(state.clone(), prefix::add))
        .layer(middleware::from_fn(security::harden))
        .with_state(state);
    if prefix.as_str().is_empty() { routes } else { below(prefix, routes) }
}

/// The same routes, with a path in front of them and without.
fn below(prefix: Arc<prefix::Prefix>, routes: Router) -> Router {
    Router::new().fallback(async move |mut request: Request| {
        if let Some(uri) = prefix.strip(request.uri()) {
            *request.uri_mut() = uri;
        }
        let mut routes = routes.clone();
        routes.call(request).await
    })
}

async fn bound_query(request: Request, next: Next) -> Response {
    match request.uri().query().map_or(0, str::len) {
        length if length > MAX_QUERY_BYTES => Error::QueryTooLong(length).into_response(),
        _ => next.run(request).await,
    }
}

async fn ready(extract::State(state): extract::State<State>) -> (StatusCode, &'static str) {
    if state.ready.load(Ordering::Acquire) {
        (StatusCode::OK, "ready\n")
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, "not ready: capture is not attached\n")
    }
}

#[cfg(test)]
mod tests;
