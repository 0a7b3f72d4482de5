//! What can go wrong with a request, as a JSON response.
//!
//! In: an [`Error`]. Out: status code and `{"error": …}`, with `parameter` and `value` where there is one, and
//! `Retry-After` where asking again helps.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};
use serde::Serialize;
use thiserror::Error as ThisError;

use super::access::Lack;
use crate::profile::ask::AskError;

/// Why a request is not served.
#[derive(Debug, Clone, PartialEq, Eq, ThisError)]
pub enum Error {
    /// 404.
    #[error("no such path: {0}")]
    NoRoute(String),
    /// 421: the request is meant for another server (RFC 9110, section 15.5.20).
    #[error("this agent does not answer for the host `{0}`: ask by address, or name it in web.hosts")]
    Host(String),
    /// 401.
    #[error("{}", match .0 {
        Lack::Token => "the token is missing or another one: send web.token as `Authorization: Bearer TOKEN`",
        Lack::Configuration => {
            "this is not shown to other machines: set web.token, or web.open: true to let everyone who reaches the \
             port read it"
        }
    })]
    Access(Lack),
    /// 403: a form of another page.
    #[error("this form was not on a page of this agent")]
    Foreign,
    /// 400: a form that cannot be read.
    #[error("the form cannot be read, expected the field token")]
    Form,
    /// 405.
    #[error("method {0} is not allowed, use GET")]
    Method(String),
    /// 414.
    #[error("query of {0} bytes is longer than {max}", max = super::MAX_QUERY_BYTES)]
    QueryTooLong(usize),
    /// 400.
    #[error("{parameter}={value}: {expected}")]
    Parameter {
        /// Its name.
        parameter: String,
        /// What was given.
        value: String,
        /// What would be right.
        expected: &'static str,
    },
    /// 400: the query string is no list of pairs.
    #[error("query cannot be read: {0}")]
    Query(String),
    /// 400.
    #[error(
        "nothing to compare with: give slow=true, or base_from and base_to, base_route, base_span or base_service"
    )]
    NothingToCompare,
    /// 404: a request that is asked for by its id.
    #[error(
        "no sample of {0} is held: no such request was seen, or it has not ended, or it took too little CPU time to be \
         sampled, or its samples have given way to newer ones"
    )]
    NotSampled(String),
    /// 404: a trace that is asked for by its id.
    #[error(
        "no span of trace {0} is held: it was not seen here, has not ended, or has given way to newer ones"
    )]
    NoTrace(String),
    /// 503: there are no samples, or they could not be named in time.
    #[error(transparent)]
    Profiles(#[from] AskError),
    /// 503.
    #[error("the pipeline did not answer in {max} s", max = super::handle::TIMEOUT.as_secs())]
    Unanswered,
}

#[derive(Serialize)]
struct Body<'a> {
    error: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    parameter: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a str>,
}

impl Error {
    /// Of the answer.
    pub(super) fn status(&self) -> StatusCode {
        match self {
            Self::NoRoute(_) | Self::NotSampled(_) | Self::NoTrace(_) => StatusCode::NOT_FOUND,
            Self::Host(_) => StatusCode::MISDIRECTED_REQUEST,
            Self::Access(_) => StatusCode::UNAUTHORIZED,
            Self::Foreign => StatusCode::FORBIDDEN,
            Self::Method(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::QueryTooLong(_) => StatusCode::URI_TOO_LONG,
            Self::Parameter { .. } | Self::Query(_) | Self::Form | Self::NothingToCompare => {
                StatusCode::BAD_REQUEST
            }
            Self::Unanswered | Self::Profiles(_) => StatusCode::SERVICE_UNAVAILABLE,
        }
    }
}

impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let status = self.status();
        let (parameter, value) = match &self {
            Self::Parameter { parameter, value, .. } => (Some(&**parameter), Some(&**value)),
            _ => (None, None),
        };
        let mut response = (status, Json(Body { error: self.to_string(), parameter, value })).into_response();
        if self == Self::Profiles(AskError::Unanswered) {
            response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
        }
        response
    }
}
