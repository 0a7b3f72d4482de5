//! Answers over HTTP (OTLP specification, "OTLP/HTTP Response").
//!
//! In: what became of a request. Out: a response in the request's own format.

use ::http::header::{CONTENT_TYPE, RETRY_AFTER};
use ::http::{HeaderValue, Response, StatusCode};
use http_body_util::Full;
use opentelemetry_proto::tonic::collector::logs::v1::{ExportLogsPartialSuccess, ExportLogsServiceResponse};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsPartialSuccess, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceResponse,
};
use prost::Message;
use prost::bytes::Bytes;
use tonic::body::Body;
use tonic::{Code, Status};

use super::answer::{Refusal, Taken};
use super::view::Refused;
use super::{Format, Kind};

/// Seconds after which room is likely.
pub(super) const AGAIN_AFTER: u64 = 1;

pub(super) fn response(kind: Kind, format: Format, taken: Result<Taken, Refusal>) -> Response<Body> {
    let status = taken.as_ref().map_or_else(|refusal| refusal.status, |_| 200);
    let is_busy = taken.as_ref().is_err_and(|refusal| refusal.reason == Refused::Busy);
    let body = match taken {
        Ok(taken) => success(kind, format, taken),
        Err(refusal) => failure(format, &refusal),
    };
    let mut response = Response::new(Body::new(Full::new(Bytes::from(body))));
    *response.status_mut() = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    let content = match format {
        Format::Protobuf => "application/x-protobuf",
        Format::Json => "application/json",
    };
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static(content));
    if is_busy {
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(AGAIN_AFTER));
    }
    response
}

/// The message of a success, as protobuf or as JSON.
pub(super) fn success(kind: Kind, format: Format, taken: Taken) -> Vec<u8> {
    let Taken { rejected, message: error_message } = taken;
    let is_partial = rejected > 0;
    match kind {
        Kind::Traces => {
            let partial = ExportTracePartialSuccess { rejected_spans: rejected, error_message };
            written(format, &ExportTraceServiceResponse { partial_success: is_partial.then_some(partial) })
        }
        Kind::Metrics => {
            let partial = ExportMetricsPartialSuccess { rejected_data_points: rejected, error_message };
            written(format, &ExportMetricsServiceResponse { partial_success: is_partial.then_some(partial) })
        }
        Kind::Logs => {
            let partial = ExportLogsPartialSuccess { rejected_log_records: rejected, error_message };
            written(format, &ExportLogsServiceResponse { partial_success: is_partial.then_some(partial) })
        }
    }
}

fn written<M: Message + serde::Serialize>(format: Format, message: &M) -> Vec<u8> {
    match format {
        Format::Protobuf => message.encode_to_vec(),
        Format::Json => serde_json::to_vec(message).expect("the response has nothing that JSON cannot say"),
    }
}

/// A `google.rpc.Status`.
fn failure(format: Format, refusal: &Refusal) -> Vec<u8> {
    let code = code_of(refusal) as i32;
    match format {
        Format::Protobuf => {
            let message = refusal.message.to_owned();
            tonic_types::pb::Status { code, message, details: Vec::new() }.encode_to_vec()
        }
        Format::Json => serde_json::json!({"code": code, "message": refusal.message}).to_string().into(),
    }
}

/// The refusal as a code of gRPC: those that are no fault of the request's are sent again by their senders.
pub(super) fn code_of(refusal: &Refusal) -> Code {
    match refusal.reason {
        Refused::Busy | Refused::Connections | Refused::TooLarge => Code::ResourceExhausted,
        Refused::Malformed => Code::InvalidArgument,
        Refused::Unauthorized => Code::Unauthenticated,
        Refused::Unsupported => Code::Unimplemented,
        Refused::Slow => Code::DeadlineExceeded,
    }
}

/// The refusal as a status of gRPC.
pub(super) fn status_of(refusal: &Refusal) -> Status {
    use tonic_types::{ErrorDetails, StatusExt as _};
    let code = code_of(refusal);
    match refusal.reason {
        Refused::Busy => {
            let mut details = ErrorDetails::new();
            details.set_retry_info(Some(std::time::Duration::from_secs(AGAIN_AFTER)));
            Status::with_error_details(code, refusal.message, details)
        }
        _ => Status::new(code, refusal.message),
    }
}
