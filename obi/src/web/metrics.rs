//! `/metrics`.
//!
//! In: a scrape. Out: the exposition in the format the scraper prefers, made a piece at a time as fast as the scraper
//! reads it: a slow one holds a snapshot and a piece, never the whole text. Refuses to know what is in it.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;

use axum::Extension;
use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT, CONTENT_TYPE, USER_AGENT};
use axum::response::{IntoResponse, Response};
use http_body::{Frame, SizeHint};

use super::scraper::Scrapers;
use super::{Command, Error, accept};
use crate::export::prometheus::Exposition;
use crate::export::{Cursor, Metrics};
use crate::listener::Peer;
use crate::stats::Process;

const SCRAPE_HEADER: &str = "x-prometheus-scrape-timeout-seconds";

pub(super) async fn serve(
    State(state): State<super::State>,
    peer: Option<Extension<Peer>>,
    headers: HeaderMap,
) -> Result<Response, Error> {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned();
    let accepts: Vec<_> = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok()).collect();
    let choice = accept::negotiate(&accepts.join(","));
    let scraper = peer
        .filter(|_| headers.contains_key(SCRAPE_HEADER))
        .map(|Extension(peer)| (peer.address.ip().to_canonical(), text(USER_AGENT)));
    let scrapers = Arc::clone(&state.scrapers);
    let objectives = state.objectives.clone();

    let encode = move |mut metrics: Metrics| {
        let cursor = metrics.cursor();
        let previous = scraper.as_ref().and_then(|(address, user_agent)| -> Option<Cursor> {
            lock(&scrapers).last_seen(*address, user_agent, Instant::now())
        });
        let delivered = move || {
            if let Some((address, user_agent)) = scraper {
                lock(&scrapers).see(address, &user_agent, Instant::now(), cursor);
            }
        };
        metrics.process = Process::read().ok();
        // The pipeline has handed over all counts before it answered: these are of the same moment.
        metrics.objectives = objectives.view().map(Arc::new);
        let exposition = Exposition::new(Arc::new(metrics), choice.format, previous);
        ([(CONTENT_TYPE, choice.content_type)], body(exposition, delivered)).into_response()
    };
    state.answer(Command::Metrics, encode).await
}

/// A panic while they were held cannot have left them half-written in a way that matters.
fn lock(scrapers: &Mutex<Scrapers>) -> MutexGuard<'_, Scrapers> {
    scrapers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The first piece is made here; often it is the only one. `delivered` is called with the last: a scraper that went
/// away has not seen what it was not given.
fn body(mut exposition: Exposition, delivered: impl FnOnce() + Send + 'static) -> Body {
    let first = exposition.next();
    Body::new(Pieces { first, exposition, delivered: Some(Box::new(delivered)) })
}

struct Pieces {
    first: Option<Vec<u8>>,
    exposition: Exposition,
    delivered: Option<Box<dyn FnOnce() + Send>>,
}

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let first = self.first.take();
        let piece = first.or_else(|| self.exposition.next());
        if self.exposition.is_over()
            && let Some(delivered) = self.delivered.take()
        {
            delivered();
        }
        Poll::Ready(piece.map(|piece| Ok(Frame::data(Bytes::from(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.first.is_none() && self.exposition.is_over()
    }

    fn size_hint(&self) -> SizeHint {
        match (&self.first, self.exposition.is_over()) {
            (Some(whole), true) => SizeHint::with_exact(whole.len() as u64),
            _ => SizeHint::default(),
        }
    }
}
