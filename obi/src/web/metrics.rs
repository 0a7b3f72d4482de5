//! `/metrics`.
//!
//! In: a scrape. Out: the exposition in the format the scraper prefers. Refuses to know what is in it.

use std::net::SocketAddr;
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use axum::Extension;
use axum::extract::{ConnectInfo, State};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use axum::response::{IntoResponse, Response};

use super::{Command, Error, accept};
use crate::export::{Cursor, Metrics, prometheus};
use crate::stats::Process;

const SCRAPE_HEADER: &str = "x-prometheus-scrape-timeout-seconds";

pub(super) async fn serve(
    State(state): State<super::State>,
    peer: Option<Extension<ConnectInfo<SocketAddr>>>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let accepts: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let choice = accept::negotiate(&accepts.join(","));
    let scraper = peer
        .filter(|_| headers.contains_key(SCRAPE_HEADER))
        .map(|Extension(ConnectInfo(peer))| (peer.ip().to_canonical(), text(USER_AGENT)));
    let scrapers = Arc::clone(&state.scrapers);
    let objectives = state.objectives.clone();

    let encode = move |mut metrics: Metrics| {
        let previous = scraper.and_then(|(address, user_agent)| -> Option<Cursor> {
            // A panic while it was held cannot have left it half-written in a way that matters.
            let mut scrapers = scrapers.lock().unwrap_or_else(PoisonError::into_inner);
            scrapers.see(address, &user_agent, Instant::now(), metrics.cursor())
        });
        metrics.process = Process::read().ok();
        // The pipeline has handed over all counts before it answered: these are of the same moment.
        metrics.objectives = objectives.view().map(Arc::new);
        let body = prometheus::encode(&Arc::new(metrics), choice.format, previous);
        ([(CONTENT_TYPE, choice.content_type)], body).into_response()
    };
    state.answer(Command::Metrics, encode).await
}
