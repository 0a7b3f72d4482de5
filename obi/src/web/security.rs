//! What browsers are allowed to do with answers.
//!
//! In: any response. Out: the same with the headers that it does not have yet. Refuses to know what is in it.

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;

/// Of pages: everything from here, nothing inline, nothing from elsewhere, and in no other page.
pub(super) const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                               connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; \
                               frame-ancestors 'none'";
/// Of flame graphs, which have their script and style with them, also as files: names of functions are text of other
/// programs, and nothing in the picture may load or send anything. Pages of this listener show it.
pub(super) const PICTURE: &str = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; \
                                  base-uri 'none'; form-action 'none'; frame-ancestors 'self'";
/// Of everything else, which is no document.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

/// What holds for every answer. Ids of traces are in addresses, so no address goes to any other site.
const ALWAYS: [(HeaderName, &str); 6] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
    (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    (CACHE_CONTROL, "no-store"),
    (CONTENT_SECURITY_POLICY, NOTHING),
];

/// Gives an answer the headers that it lacks.
pub(super) async fn harden(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    add(response.headers_mut());
    response
}

fn add(headers: &mut HeaderMap) {
    for (name, value) in ALWAYS {
        headers.entry(name).or_insert(HeaderValue::from_static(value));
    }
}
