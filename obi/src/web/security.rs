//! What browsers are allowed to do with answers.
//!
//! In: any response. Out: the same with the headers that it does not have yet. Refuses to know what is in it.

use std::sync::LazyLock;

use axum::extract::Request;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, HeaderName, REFERRER_POLICY, X_CONTENT_TYPE_OPTIONS,
};
use axum::http::{HeaderMap, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sha2::{Digest as _, Sha256};

use crate::export::flame;

/// Of pages: everything from here, nothing inline, nothing from elsewhere, and in no other page.
pub(super) const PAGE: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
                               connect-src 'self'; frame-src 'self'; form-action 'self'; base-uri 'none'; \
                               frame-ancestors 'none'";
/// Of flame graphs, which have their script and style with them, also as files: names of functions are text of other
/// programs. Only the script that is known runs, as if it came from nowhere: it has no part in this listener's cookies,
/// and nothing in the picture may load or send anything. Pages of this listener show it.
static PICTURE: LazyLock<HeaderValue> = LazyLock::new(|| {
    let hash = STANDARD.encode(Sha256::digest(flame::SCRIPT));
    let policy = format!(
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{hash}'; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'self'; sandbox allow-scripts"
    );
    HeaderValue::from_str(&policy).expect("the policy is ASCII")
});
/// Of everything else, which is no document.
const NOTHING: &str = "default-src 'none'; frame-ancestors 'none'";

const OPENER: HeaderName = HeaderName::from_static("cross-origin-opener-policy");

/// The headers of flame graphs. HTML lets no browser open what is in a sandbox and wants to be apart from its opener as
/// well: the sandbox alone does that.
pub(super) fn of_pictures() -> [(HeaderName, HeaderValue); 2] {
    [(CONTENT_SECURITY_POLICY, PICTURE.clone()), (OPENER, HeaderValue::from_static("unsafe-none"))]
}

/// What holds for every answer. Ids of traces are in addresses, so no address goes to any other site.
const ALWAYS: [(HeaderName, &str); 6] = [
    (X_CONTENT_TYPE_OPTIONS, "nosniff"),
    (REFERRER_POLICY, "no-referrer"),
    (OPENER, "same-origin"),
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
