//! Prometheus's remote write: a packed message in a POST, version 2.0, or 1.0 where the receiver knows only that.
//!
//! In: a packed request of version 2. Out: an [`Answer`]. Which version is understood shows in the answers and is
//! remembered; now and then it is asked anew. Refuses to know what is in a request.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode};
use http_body_util::Full;
use prost::bytes::Bytes;
use tonic::body::Body;

use super::{Transport, explained, http as plain};
use crate::export::otlp::meter::Meter;
use crate::export::otlp::queue::Payload;
use crate::export::otlp::retry::{self, Answer};
use crate::export::prometheus::remote;

/// How long a receiver that knows only version 1.0 is not asked for the other one.
const ASK_AGAIN: Duration = Duration::from_secs(3_600);

const VERSION: HeaderName = HeaderName::from_static("x-prometheus-remote-write-version");
/// What a receiver of version 2.0 must say; the first one in any case.
const WRITTEN: [HeaderName; 2] = [
    HeaderName::from_static("x-prometheus-remote-write-samples-written"),
    HeaderName::from_static("x-prometheus-remote-write-histograms-written"),
];

/// What is known of the receiver.
#[derive(Debug, Default)]
pub(super) struct Versions(Mutex<Known>);

#[derive(Debug, Clone, Copy, Default)]
enum Known {
    #[default]
    Nothing,
    /// It has answered as one of version 2.0.
    Two,
    /// It takes version 1.0, since then.
    One(Instant),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Versions {
    /// What is known, and which version is to be sent next.
    fn now(&self) -> (Known, Version) {
        let known = *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_old = matches!(known, Known::One(since) if since.elapsed() < ASK_AGAIN);
        (known, if is_old { Version::One } else { Version::Two })
    }

    fn learn(&self, known: Known) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = known;
    }
}

pub(super) async fn send(transport: &Transport, batch: &[Payload], meter: &Meter) -> Answer {
    let [Payload { bytes, n_items, .. }] = batch else {
        return Answer::Refused("requests of remote write cannot be put together".to_owned());
    };
    let versions = &transport.versions;
    let (known, next) = versions.now();
    let mut why = None;
    if next == Version::Two {
        let response = match post(transport, Version::Two, bytes.clone()).await {
            Ok(response) => response,
            Err(answer) => return answer,
        };
        if let Some(answer) = judge(&response, known, *n_items) {
            if response.written().is_some() {
                versions.learn(Known::Two);
            }
            return answer;
        }
        why = Some(response.text);
    }
    let older = match remote::version1(bytes) {
        Ok(older) => older,
        Err(error) => return Answer::Refused(error.to_string()),
    };
    let _attempt = meter.attempt(older.len() as u64);
    let response = match post(transport, Version::One, older.into()).await {
        Ok(response) => response,
        Err(answer) => return answer,
    };
    if response.status.is_success() {
        if let Some(why) = why {
            if !matches!(known, Known::One(_)) {
                let (destination, _) = meter.name();
                tracing::info!(destination, "takes remote write 1.0 only: {why}");
            }
            versions.learn(Known::One(Instant::now()));
        }
        return Answer::Accepted { rejected: 0, message: String::new() };
    }
    response.failure()
}

/// What a response to version 2.0 means; `None` when the receiver has not understood it.
fn judge(response: &Response, known: Known, n_items: u64) -> Option<Answer> {
    let written = response.written();
    match (response.status, written) {
        (StatusCode::UNSUPPORTED_MEDIA_TYPE, _) => None,
        // One of version 1.0 finds nothing in the message, and may say that all is well.
        (status, None) if status.is_success() => None,
        (StatusCode::BAD_REQUEST, None) if !matches!(known, Known::Two) => None,
        (status, Some(written)) if status.is_success() || status.is_client_error() && written > 0 => {
            let message = if status.is_success() { String::new() } else { response.text.clone() };
            // One that says 429 has not taken the rest yet.
            if status == StatusCode::TOO_MANY_REQUESTS {
                return Some(response.failure());
            }
            Some(Answer::Accepted { rejected: n_items.saturating_sub(written), message })
        }
        _ => Some(response.failure()),
    }
}

/// An answer, read.
struct Response {
    status: StatusCode,
    headers: HeaderMap,
    /// Status and what the receiver says.
    text: String,
}

impl Response {
    /// Samples and histograms that the receiver says to have written, if it says so.
    fn written(&self) -> Option<u64> {
        let number = |name: &HeaderName| self.headers.get(name)?.to_str().ok()?.trim().parse::<u64>().ok();
        let [samples, histograms] = WRITTEN.each_ref().map(number);
        Some(samples?.saturating_add(histograms.unwrap_or(0)))
    }

    fn failure(&self) -> Answer {
        let after = self.headers.get(RETRY_AFTER).and_then(|value| value.to_str().ok());
        let after = after.and_then(|text| retry::retry_after(text, SystemTime::now()));
        retry::of_remote_write(self.status.as_u16(), after, self.text.clone())
    }
}

async fn post(transport: &Transport, version: Version, body: Bytes) -> Result<Response, Answer> {
    let (kind, number) = match version {
        Version::One => ("application/x-protobuf", "0.1.0"),
        Version::Two => ("application/x-protobuf;proto=io.prometheus.write.v2.Request", "2.0.0"),
    };
    let mut request = Request::new(Body::new(Full::new(body)));
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = transport.uri.clone();
    *request.headers_mut() = transport.headers.clone();
    let headers = request.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
    headers.insert(CONTENT_ENCODING, HeaderValue::from_static("snappy"));
    headers.insert(VERSION, HeaderValue::from_static(number));
    let failed = |error: &dyn std::error::Error| Answer::Again(None, explained(error));
    let response = transport.connections.request(request).await.map_err(|error| failed(&error))?;
    let (head, body) = plain::read(response).await.map_err(|error| failed(&*error))?;
    let text = format!("{}{}", head.status, plain::shown(&body));
    Ok(Response { status: head.status, headers: head.headers, text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_judged_as_the_specification_says() {
        let check = |status: u16, headers: &[(&'static str, &str)], known, expected: Option<&str>| {
            let named = |(name, value): &(&'static str, &str)| {
                (HeaderName::from_static(name), HeaderValue::try_from(*value).unwrap())
            };
            let headers = headers.iter().map(named).collect();
            let status = StatusCode::from_u16(status).unwrap();
            let response = Response { status, headers, text: "said".to_owned() };
            let found = judge(&response, known, 10).map(|answer| match answer {
                Answer::Accepted { rejected, .. } => format!("taken but for {rejected}"),
                Answer::Again(after, _) => format!("again after {after:?}"),
                Answer::Refused(_) => "refused".to_owned(),
                Answer::Unsupported(_) => "unsupported".to_owned(),
            });
            assert_eq!(found.as_deref(), expected, "{status} {:?}", response.headers);
        };
        let samples = "x-prometheus-remote-write-samples-written";
        let histograms = "x-prometheus-remote-write-histograms-written";
        check(204, &[(samples, "8"), (histograms, "2")], Known::Nothing, Some("taken but for 0"));
        check(200, &[(samples, "10")], Known::Nothing, Some("taken but for 0"));
        check(204, &[(samples, "7"), (histograms, "2")], Known::Two, Some("taken but for 1"));
        check(204, &[], Known::Nothing, None);
        check(204, &[], Known::Two, None);
        check(204, &[(samples, "many")], Known::Nothing, None);
        check(415, &[], Known::Two, None);
        check(415, &[(samples, "0")], Known::Nothing, None);
        check(400, &[], Known::Nothing, None);
        check(400, &[], Known::Two, Some("refused"));
        check(400, &[(samples, "0")], Known::Nothing, Some("refused"));
        check(400, &[(samples, "4")], Known::Two, Some("taken but for 6"));
        check(401, &[], Known::Nothing, Some("refused"));
        check(404, &[], Known::Nothing, Some("refused"));
        check(429, &[("retry-after", "7")], Known::Nothing, Some("again after Some(7s)"));
        check(429, &[(samples, "4")], Known::Two, Some("again after None"));
        for status in 500..600 {
            check(status, &[(samples, "4")], Known::Two, Some("again after None"));
            check(status, &[], Known::Nothing, Some("again after None"));
        }
    }
}
