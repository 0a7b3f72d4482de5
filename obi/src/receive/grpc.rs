//! gRPC as far as OTLP needs it: one message in, one message out.
//!
//! In: the body of a call. Out: its message; the answer with its trailers. The body has been read within the budget,
//! which is why no server of gRPC reads it.

use ::http::header::CONTENT_TYPE;
use ::http::{HeaderMap, HeaderValue, Response};
use http_body_util::{BodyExt as _, Full};
use prost::bytes::Bytes;
use tonic::body::Body;

use super::answer::{Refusal, Taken};
use super::body::Held;
use super::budget::Budget;
use super::view::Refused;
use super::{Format, Kind, http};

/// A flag and a length before each message.
const PREFIX: usize = 5;

/// The message of a unary call. `is_packed`: a message that says it is compressed is so with gzip.
pub(super) fn message(mut held: Held, is_packed: bool, budget: &Budget) -> Result<Held, Refused> {
    let Some((prefix, _)) = held.bytes.split_first_chunk::<PREFIX>() else { return Err(Refused::Malformed) };
    let [flag, length @ ..] = *prefix;
    if u32::from_be_bytes(length) as usize != held.bytes.len() - PREFIX {
        return Err(Refused::Malformed);
    }
    held.bytes.drain(..PREFIX);
    match flag {
        0 => Ok(held),
        1 if is_packed => held.inflated(budget),
        _ => Err(Refused::Malformed),
    }
}

pub(super) fn response(kind: Kind, taken: Result<Taken, Refusal>) -> Response<Body> {
    let taken = match taken {
        Ok(taken) => taken,
        Err(refusal) => return http::status_of(&refusal).into_http(),
    };
    let message = http::success(kind, Format::Protobuf, taken);
    let mut body = vec![0];
    body.extend_from_slice(&u32::try_from(message.len()).unwrap_or(u32::MAX).to_be_bytes());
    body.extend_from_slice(&message);
    let trailers = HeaderMap::from_iter([(GRPC_STATUS, HeaderValue::from_static("0"))]);
    let body = Full::new(Bytes::from(body)).with_trailers(async move { Some(Ok(trailers)) });
    let mut response = Response::new(Body::new(body));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    response
}

const GRPC_STATUS: ::http::HeaderName = ::http::HeaderName::from_static("grpc-status");
