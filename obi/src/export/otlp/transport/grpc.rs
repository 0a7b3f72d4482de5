//! OTLP over gRPC: unary calls of tonic whose messages are bytes already.
//!
//! In: payloads. Out: an [`Answer`]. Refuses to know what is in a message.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use http_body_util::BodyExt as _;
use http_body_util::combinators::MapErr;
use prost::bytes::{Buf as _, BufMut as _, Bytes};
use tonic::body::Body;
use tonic::client::{Grpc, GrpcService};
use tonic::codec::{Codec, CompressionEncoding, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::metadata::MetadataMap;
use tonic::{Code, Request, Status};
use tonic_types::StatusExt as _;

use super::{Connections, Transport, explained};
use crate::config::export::{Compression, Signal};
use crate::export::otlp::meter::Meter;
use crate::export::otlp::queue::Payload;
use crate::export::otlp::retry::{self, Answer};

/// Largest response that is read: a partial success with a long explanation.
const RESPONSE_BYTES: usize = 1 << 20;

pub(super) async fn send(transport: &Transport, batch: &[Payload], meter: &Meter) -> Answer {
    let path = match transport.signal {
        Signal::Traces => "/opentelemetry.proto.collector.trace.v1.TraceService/Export",
        Signal::Metrics => "/opentelemetry.proto.collector.metrics.v1.MetricsService/Export",
        Signal::Profiles => "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export",
        Signal::Logs => "/opentelemetry.proto.collector.logs.v1.LogsService/Export",
    };
    let channel = Channel(transport.connections.clone());
    let mut client =
        Grpc::with_origin(channel, transport.uri.clone()).max_decoding_message_size(RESPONSE_BYTES);
    if transport.compression == Compression::Gzip {
        client = client.send_compressed(CompressionEncoding::Gzip);
    }
    let metadata = MetadataMap::from_headers(transport.headers.clone());
    // The message is a copy, behind gRPC's prefix; compressed it is smaller.
    let n_bytes: usize = batch.iter().map(|payload| payload.bytes.len()).sum();
    let _attempt = meter.attempt(n_bytes as u64);
    let message = batch.iter().map(|payload| payload.bytes.clone()).collect();
    let request = Request::from_parts(metadata, tonic::Extensions::default(), message);
    let path = http::uri::PathAndQuery::from_static(path);
    match client.unary(request, path, Raw).await {
        Ok(response) => transport.accepted(response.into_inner()),
        Err(status) if status.code() == Code::Unimplemented && transport.may_be_unknown() => {
            Answer::Unsupported(format!("{:?}: {}", status.code(), status.message()))
        }
        Err(status) => refused(&status),
    }
}

fn refused(status: &Status) -> Answer {
    let retry_delay: Option<Duration> =
        status.get_details_retry_info().map(|info| info.retry_delay.unwrap_or_default());
    let message = format!("{:?}: {}", status.code(), status.message());
    retry::of_status(status.code(), retry_delay, message)
}

/// Messages that are bytes on both sides.
struct Raw;

impl Codec for Raw {
    type Encode = Vec<Bytes>;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Vec<Bytes>;
    type Error = Status;

    fn encode(&mut self, message: Vec<Bytes>, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.reserve(message.iter().map(Bytes::len).sum());
        message.into_iter().for_each(|part| out.put(part));
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, source: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(source.copy_to_bytes(source.remaining())))
    }
}

/// The pooled connections as tonic wants them. Whatever goes wrong below gRPC (no connection, a reset, an end in the
/// middle) is `UNAVAILABLE`, which is sent again; tonic alone would call some of it `UNKNOWN`.
struct Channel(Connections);

type Response = http::Response<MapErr<hyper::body::Incoming, fn(hyper::Error) -> Status>>;

impl GrpcService<Body> for Channel {
    type ResponseBody = MapErr<hyper::body::Incoming, fn(hyper::Error) -> Status>;
    type Error = Status;
    type Future = Pin<Box<dyn Future<Output = Result<Response, Status>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Status>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let answer = self.0.request(request);
        Box::pin(async move {
            let response = answer.await.map_err(|error| Status::unavailable(explained(&error)))?;
            Ok(response.map(|body| body.map_err(unavailable as fn(hyper::Error) -> Status)))
        })
    }
}

#[expect(clippy::needless_pass_by_value, reason = "the signature that `map_err` wants")]
fn unavailable(error: hyper::Error) -> Status {
    Status::unavailable(explained(&error))
}
