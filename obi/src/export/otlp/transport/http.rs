//! OTLP over HTTP: protobuf in a POST.
//!
//! In: payloads. Out: an [`Answer`]. Refuses to know what is in a message, and to follow redirections: a destination's
//! headers are secrets.

use std::io::Write as _;
use std::time::SystemTime;

use flate2::write::GzEncoder;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Request};
use http_body_util::{BodyExt as _, Full, Limited};
use prost::bytes::Bytes;
use tonic::body::Body;

use super::{Transport, explained};
use crate::config::export::Compression;
use crate::export::otlp::meter::Meter;
use crate::export::otlp::queue::Payload;
use crate::export::otlp::retry::{self, Answer};

/// Largest response that is read.
const RESPONSE_BYTES: usize = 1 << 20;
/// How much of a refusal's text is shown.
const SHOWN_BYTES: usize = 200;

pub(super) async fn send(transport: &Transport, batch: &[Payload], meter: &Meter) -> Answer {
    let mut request = Request::new(());
    *request.method_mut() = http::Method::POST;
    *request.uri_mut() = transport.uri.clone();
    *request.headers_mut() = transport.headers.clone();
    request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
    let body = match transport.compression {
        Compression::None => whole(batch),
        Compression::Gzip => {
            request.headers_mut().insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            gzip(batch)
        }
    };
    let _attempt = meter.attempt(copied(batch, &body));
    let request = request.map(|()| Body::new(Full::new(body)));
    let response = match transport.connections.request(request).await {
        Ok(response) => response,
        Err(error) => return Answer::Again(None, explained(&error)),
    };
    answer(transport, response).await
}

/// Reads a response of HTTP.
pub(super) async fn answer(transport: &Transport, response: http::Response<hyper::body::Incoming>) -> Answer {
    let (head, body) = match read(response).await {
        Ok(read) => read,
        Err(error) => return Answer::Again(None, explained(&*error)),
    };
    if head.status.is_success() {
        return transport.accepted(body);
    }
    if matches!(head.status.as_u16(), 404 | 405 | 501) && transport.may_be_unknown() {
        return Answer::Unsupported(format!("{}{}", head.status, shown(&body)));
    }
    let text = |value: &HeaderValue| value.to_str().ok().map(str::to_owned);
    let after = head.headers.get(RETRY_AFTER).and_then(text);
    let after = after.and_then(|text| retry::retry_after(&text, SystemTime::now()));
    retry::of_http(head.status.as_u16(), after, format!("{}{}", head.status, shown(&body)))
}

/// The whole response. A refusal whose text cannot be read is one all the same.
pub(super) async fn read(
    response: http::Response<hyper::body::Incoming>,
) -> Result<(http::response::Parts, Bytes), Box<dyn std::error::Error + Send + Sync>> {
    let (head, body) = response.into_parts();
    match Limited::new(body, RESPONSE_BYTES).collect().await {
        Ok(body) => Ok((head, body.to_bytes())),
        Err(error) if head.status.is_success() => Err(error),
        Err(_) => Ok((head, Bytes::new())),
    }
}

fn whole(batch: &[Payload]) -> Bytes {
    if let [only] = batch {
        return only.bytes.clone();
    }
    let parts: Vec<&[u8]> = batch.iter().map(|payload| &*payload.bytes).collect();
    parts.concat().into()
}

/// Bytes of `body` that are not those in the queue.
fn copied(batch: &[Payload], body: &Bytes) -> u64 {
    let is_shared = batch.first().is_some_and(|payload| payload.bytes.as_ptr() == body.as_ptr());
    if is_shared { 0 } else { body.len() as u64 }
}

fn gzip(batch: &[Payload]) -> Bytes {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    for payload in batch {
        encoder.write_all(&payload.bytes).expect("writing to memory cannot fail");
    }
    encoder.finish().expect("writing to memory cannot fail").into()
}

/// The refusal in the destination's words, as far as they are text: a `google.rpc.Status` holds its message as such.
pub(super) fn shown(body: &[u8]) -> String {
    let text: String =
        String::from_utf8_lossy(body).chars().filter(|c| !c.is_control() && *c != '\u{fffd}').collect();
    let text = text.trim();
    let end = text.floor_char_boundary(SHOWN_BYTES);
    if text.is_empty() { String::new() } else { format!(": {}", &text[..end]) }
}
