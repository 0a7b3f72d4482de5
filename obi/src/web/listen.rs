//! The routes, as the listener asks them.
//!
//! In: requests of connections. Out: answers, whose bytes have a bound for all connections together: a client that
//! reads slowly holds what it has not read. Refuses to know sockets and what is answered.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes, HttpBody};
use axum::http::{Request, Response, StatusCode};
use axum::response::IntoResponse as _;
use http_body::{Frame, SizeHint};
use hyper::body::Incoming;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;
use tower_service::Service as _;

use crate::listener::{Answer, Bounds, TurnedAway};

/// What the listener takes.
pub const BOUNDS: Bounds = Bounds { connections: 256, head_bytes: 64 << 10 };
/// Bytes of answers that are still to be read, of all connections.
const UNREAD: usize = 64 << 20;
/// Smaller answers need no room: connections bound them.
const SMALL: usize = 64 << 10;
/// How long an answer waits for room.
const WAIT: Duration = Duration::from_secs(10);
/// Between two lines about connections that were closed.
const PAUSE: Duration = Duration::from_secs(60);

/// All routes, for all connections.
#[derive(Debug, Clone)]
pub struct Routes {
    router: Router,
    unread: Arc<Semaphore>,
    turned_away: Arc<Away>,
}

/// Connections that were closed before they could ask.
#[derive(Debug, Default)]
struct Away {
    n: AtomicU64,
    said: Mutex<Option<Instant>>,
}

impl Routes {
    /// These routes.
    #[must_use]
    pub fn new(router: Router) -> Self {
        Self { router, unread: Arc::new(Semaphore::new(UNREAD)), turned_away: Arc::default() }
    }

    /// The answer once there is room for its bytes, until they are read; 503 when there is none in time.
    async fn bounded(&self, response: Response<Body>) -> Response<Body> {
        let length = response.body().size_hint().exact().unwrap_or_default();
        let length = usize::try_from(length).unwrap_or(UNREAD).min(UNREAD);
        if length <= SMALL {
            return response;
        }
        let room = u32::try_from(length).unwrap_or(u32::MAX);
        match timeout(WAIT, Arc::clone(&self.unread).acquire_many_owned(room)).await {
            Ok(Ok(room)) => response.map(|body| Body::new(Unread { body, left: Bytes::new(), _room: room })),
            _ => {
                let text = "too many answers are still to be read by others; ask again\n";
                (StatusCode::SERVICE_UNAVAILABLE, [("retry-after", "10")], text).into_response()
            }
        }
    }
}

impl Answer for Routes {
    type Body = Body;

    async fn answer(&self, request: Request<Incoming>) -> Response<Body> {
        let answered: Result<_, Infallible> = self.router.clone().call(request.map(Body::new)).await;
        match answered {
            Ok(response) => self.bounded(response).await,
            Err(never) => match never {},
        }
    }

    fn turned_away(&self, why: TurnedAway) {
        let n = self.turned_away.n.fetch_add(1, Relaxed) + 1;
        let mut said = self.turned_away.said.lock().unwrap_or_else(PoisonError::into_inner);
        if said.is_none_or(|said| said.elapsed() >= PAUSE) {
            *said = Some(Instant::now());
            tracing::warn!(
                n,
                ?why,
                at_once = BOUNDS.connections,
                "connections to web.listen were closed unanswered"
            );
        }
    }
}

/// A body that is handed on in small pieces: its room is taken until its last one is wanted.
struct Unread {
    body: Body,
    left: Bytes,
    _room: OwnedSemaphorePermit,
}

impl HttpBody for Unread {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        while self.left.is_empty() {
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => match frame.into_data() {
                    Ok(bytes) => self.left = bytes,
                    Err(trailers) => return Poll::Ready(Some(Ok(trailers))),
                },
                other => return Poll::Ready(other),
            }
        }
        let piece = self.left.len().min(SMALL);
        Poll::Ready(Some(Ok(Frame::data(self.left.split_to(piece)))))
    }

    fn is_end_stream(&self) -> bool {
        self.left.is_empty() && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        let left = self.left.len() as u64;
        let hint = self.body.size_hint();
        let mut whole = SizeHint::new();
        whole.set_lower(hint.lower().saturating_add(left));
        if let Some(upper) = hint.upper() {
            whole.set_upper(upper.saturating_add(left));
        }
        whole
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    fn routes() -> Routes {
        Routes::new(Router::new())
    }

    #[tokio::test(start_paused = true)]
    async fn unread_answers_have_a_bound() {
        let routes = routes();
        let large = || Response::new(Body::from(vec![7; UNREAD / 2]));
        let (one, other) = (routes.bounded(large()).await, routes.bounded(large()).await);
        assert_eq!((one.status(), other.status()), (StatusCode::OK, StatusCode::OK));
        let refused = routes.bounded(large()).await;
        assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
        assert_eq!(refused.headers()["retry-after"], "10");
        // Small ones are served all the same.
        let small = routes.bounded(Response::new(Body::from(vec![7; SMALL]))).await;
        assert_eq!(small.status(), StatusCode::OK);

        let mut reading = one.into_body();
        let mut read = 0;
        while let Some(frame) = reading.frame().await {
            let bytes = frame.unwrap().into_data().unwrap();
            assert!(bytes.len() <= SMALL && bytes.iter().all(|byte| *byte == 7));
            read += bytes.len();
            assert_eq!(reading.size_hint().exact(), Some((UNREAD / 2 - read) as u64));
        }
        assert_eq!((read, reading.is_end_stream()), (UNREAD / 2, true));
        drop(reading);
        assert_eq!(routes.bounded(large()).await.status(), StatusCode::OK);
        drop(other);
        // One that is larger than everything takes everything.
        let whole = routes.bounded(Response::new(Body::from(vec![7; 2 * UNREAD]))).await;
        assert_eq!(whole.status(), StatusCode::OK);
        assert_eq!(routes.bounded(large()).await.status(), StatusCode::SERVICE_UNAVAILABLE);
    }
}
