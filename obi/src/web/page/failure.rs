//! Errors as pages: what is wrong, in a sentence, and where to go on.
//!
//! In: an [`Error`]. Out: an HTML answer of the same status. Refuses to know who asked for what.

use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::http::header::{ACCEPT, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse, Response};

use super::frame::Notice;
use super::link;
use crate::web::Error;

/// Why there is no page.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Failure {
    /// The same as of the API.
    Of(Error),
    /// 404: nothing was seen of a service of this name.
    NoService(String),
    /// 404: an objective.
    NoSlo(String),
    /// 404: a span of a trace that is held.
    NoSpan([u8; 16], String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Of(error)
    }
}

impl From<QueryRejection> for Failure {
    fn from(rejection: QueryRejection) -> Self {
        Self::Of(Error::Query(rejection.body_text()))
    }
}

impl From<PathRejection> for Failure {
    fn from(rejection: PathRejection) -> Self {
        Self::Of(Error::NoRoute(rejection.body_text()))
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let services = ("All services", "/".to_owned());
        let (heading, sentence, ways) = match &self {
            Self::NoService(name) => (
                "No such service",
                format!(
                    "No request from or to a service called “{}” was seen since this agent started.",
                    shown(name)
                ),
                vec![services],
            ),
            Self::NoSlo(name) => (
                "No such objective",
                format!("This agent watches no objective called “{}”.", shown(name)),
                vec![("All objectives", "/slos".to_owned())],
            ),
            Self::NoSpan(trace_id, id) => (
                "No such span",
                format!(
                    "Span {} of this trace is not held: it was not seen here, or has given way to newer ones.",
                    shown(id)
                ),
                vec![("The trace", link::trace(trace_id)), ("Recent spans", "/spans".to_owned())],
            ),
            Self::Of(error) => {
                let ways = match error {
                    Error::NoTrace(_) => vec![("Recent spans", "/spans".to_owned()), services],
                    _ => vec![services],
                };
                (heading(error), sentence(error), ways)
            }
        };
        let status = match &self {
            Self::Of(error) => error.status(),
            _ => StatusCode::NOT_FOUND,
        };
        let mut response = Notice { status, heading, sentence, ways }.into_response();
        if status == StatusCode::SERVICE_UNAVAILABLE {
            response.headers_mut().insert(RETRY_AFTER, 1.into());
        }
        response
    }
}

fn heading(error: &Error) -> &'static str {
    match error.status() {
        StatusCode::NOT_FOUND => "Not found",
        StatusCode::BAD_REQUEST => "Not understood",
        StatusCode::SERVICE_UNAVAILABLE => "No answer",
        _ => "Not possible",
    }
}

/// With a capital letter and a full stop.
pub(super) fn sentence(error: &Error) -> String {
    let text = super::text::short_to(&error.to_string(), 400);
    if matches!(error, Error::Parameter { .. }) {
        return format!("{text}.");
    }
    let mut letters = text.chars();
    letters.next().map_or_else(String::new, |first| format!("{}{}.", first.to_uppercase(), letters.as_str()))
}

fn shown(name: &str) -> String {
    super::text::short(name)
}

/// Whether who asks wants to read a page: browsers say so.
pub(in crate::web) fn wants_page(headers: &HeaderMap) -> bool {
    let accepts = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    accepts.flat_map(|value| value.split(',')).any(|range| range.trim().starts_with("text/html"))
}
