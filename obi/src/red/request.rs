//! What is counted of requests: how long they took, how large their bodies were.
//!
//! In: spans of HTTP. Out: histograms. Refuses to know which series they stand in.

use std::sync::Arc;

use super::histogram::{Histogram, SIZE_BOUNDS, Sizes};
use crate::span::{Http, Span};

/// What is counted of requests.
#[derive(Debug, Clone, Default)]
pub struct Requests {
    /// How long they took.
    pub duration: Histogram,
    /// Bodies of requests; absent until there is one with a byte in it.
    pub request_body: Option<Box<Bodies>>,
    /// Bodies of responses, likewise.
    pub response_body: Option<Box<Bodies>>,
}

/// Body sizes, counted from the first body on.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bodies {
    /// Number of the last snapshot taken before there was one.
    pub born: u64,
    /// The end of the first span with a body, nanoseconds since the Unix epoch.
    pub created: u64,
    /// Bytes, with [`SIZE_BOUNDS`].
    pub sizes: Sizes,
}

impl Requests {
    /// Makes of counts the same with nothing counted: bodies are there where they were, memory is shared.
    pub(super) fn outlines() -> impl FnMut(&Self) -> Arc<Self> {
        let mut made: [Option<Arc<Self>>; 4] = Default::default();
        move |of| {
            let has = [&of.request_body, &of.response_body].map(Option::is_some);
            let outline = || {
                let [request_body, response_body] = has.map(|has| has.then(Box::default));
                Arc::new(Self { duration: Histogram::default(), request_body, response_body })
            };
            let place = usize::from(has[0]) + 2 * usize::from(has[1]);
            Arc::clone(made[place].get_or_insert_with(outline))
        }
    }

    pub(super) fn observe_bodies(&mut self, span: &Span, http: &Http, born: u64) {
        let created = span.end;
        let has_response = http.status.is_some() || http.status_unknown;
        for (bodies, bytes) in [
            (&mut self.request_body, span.request_bytes),
            (&mut self.response_body, span.response_bytes.filter(|_| has_response)),
        ] {
            let Some(bytes) = bytes.filter(|bytes| *bytes != 0 || bodies.is_some()) else { continue };
            let new = || Box::new(Bodies { born, created, sizes: Sizes::default() });
            bodies.get_or_insert_with(new).sizes.observe(&SIZE_BOUNDS, bytes);
        }
    }
}
