//! Pyroscope's `/ingest`: a compressed pprof profile in a POST, all about it in the query.
//!
//! In: a payload with its query. Out: an [`Answer`]. Refuses to know what is in a profile.

use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Uri};
use http_body_util::Full;
use tonic::body::Body;

use super::{Transport, explained, http as plain};
use crate::export::otlp::queue::Payload;
use crate::export::otlp::retry::Answer;

pub(super) async fn send(transport: &Transport, batch: &[Payload]) -> Answer {
    // One at a time: the query is that of a single profile.
    let [Payload { bytes, query: Some(query), .. }] = batch else {
        return Answer::Refused("a request of Pyroscope has one profile and a query".to_owned());
    };
    let uri = match format!("{}?{query}", transport.uri).parse::<Uri>() {
        Ok(uri) => uri,
        Err(error) => return Answer::Refused(format!("`{query}` is no query: {error}")),
    };
    let mut request = Request::new(Body::new(Full::new(bytes.clone())));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = uri;
    *request.headers_mut() = transport.headers.clone();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("binary/octet-stream"));
    match transport.connections.request(request).await {
        Ok(response) => match plain::answer(transport, response).await {
            // The body of success is no message of OTLP.
            Answer::Accepted { .. } => Answer::Accepted { rejected: 0, message: String::new() },
            other => other,
        },
        Err(error) => Answer::Again(None, explained(&error)),
    }
}
