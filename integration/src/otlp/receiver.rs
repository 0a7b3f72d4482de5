//! An OTLP receiver that answers as its test says, over gRPC and HTTP.
//!
//! In: a list of answers, one per request with spans or profiles; after it, everything is accepted. Out: the spans,
//! metrics and profiles that it accepted, and the headers of every request with spans. Refuses to know who sends.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, State};
use axum::http::{HeaderMap, StatusCode};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use opentelemetry_proto::tonic::collector::metrics::v1::metrics_service_server::{
    MetricsService, MetricsServiceServer,
};
use opentelemetry_proto::tonic::collector::metrics::v1::{
    ExportMetricsServiceRequest, ExportMetricsServiceResponse,
};
use opentelemetry_proto::tonic::collector::profiles::v1development::profiles_service_server::{
    ProfilesService, ProfilesServiceServer,
};
use opentelemetry_proto::tonic::collector::profiles::v1development::{
    ExportProfilesPartialSuccess, ExportProfilesServiceRequest, ExportProfilesServiceResponse,
};
use opentelemetry_proto::tonic::collector::trace::v1::trace_service_server::{
    TraceService, TraceServiceServer,
};
use opentelemetry_proto::tonic::collector::trace::v1::{
    ExportTracePartialSuccess, ExportTraceServiceRequest, ExportTraceServiceResponse,
};
use opentelemetry_proto::tonic::metrics::v1::ResourceMetrics;
use opentelemetry_proto::tonic::trace::v1::{ResourceSpans, Span};
use prost::Message as _;
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tonic::codec::CompressionEncoding;
use tonic::{Code, Request, Status};
use tonic_types::{ErrorDetails, StatusExt as _};

/// Largest request, bytes: what servers take by default. tonic refuses larger ones of gRPC by itself.
const REQUEST_BYTES: usize = 4 << 20;

/// What happens to one request with spans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// Everything is taken.
    Accept,
    /// All but this many of the first spans are taken.
    Partial(usize),
    /// To be sent again: `RESOURCE_EXHAUSTED` or 429, with the time after which.
    Again(Duration),
    /// `RESOURCE_EXHAUSTED` without a time: not to be sent again. Over HTTP 429 without one, to be sent again.
    Exhausted,
    /// `UNAVAILABLE` or 503.
    Unavailable,
    /// `INVALID_ARGUMENT` or 400.
    Refuse,
    /// None at all.
    Silence,
}

/// A running receiver. Dropping it ends it.
#[derive(Debug)]
pub struct Receiver {
    /// Where gRPC is spoken.
    pub grpc: SocketAddr,
    /// Where HTTP is spoken.
    pub http: SocketAddr,
    book: Arc<Book>,
    runtime: Option<Runtime>,
}

#[derive(Debug, Default)]
struct Book {
    answers: Mutex<VecDeque<Answer>>,
    spans: Mutex<Vec<ResourceSpans>>,
    metrics: Mutex<Vec<ResourceMetrics>>,
    profiles: Mutex<Vec<ExportProfilesServiceRequest>>,
    requests: Mutex<Vec<Seen>>,
}

/// A request with spans, whatever was answered.
#[derive(Debug, Clone)]
pub struct Seen {
    /// When it had arrived.
    pub at: Instant,
    /// Headers, or gRPC metadata.
    pub headers: HeaderMap,
    /// Spans in it.
    pub n_spans: usize,
}

impl Receiver {
    /// Starts it on free ports.
    ///
    /// # Errors
    /// When it cannot listen.
    pub fn start(answers: impl IntoIterator<Item = Answer>) -> anyhow::Result<Self> {
        let book = Arc::new(Book { answers: Mutex::new(answers.into_iter().collect()), ..Book::default() });
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let (grpc, http) = runtime.block_on(async {
            anyhow::Ok((TcpListener::bind("127.0.0.1:0").await?, TcpListener::bind("127.0.0.1:0").await?))
        })?;
        let addresses = (grpc.local_addr()?, http.local_addr()?);
        let gzip = CompressionEncoding::Gzip;
        let service = tonic::service::Routes::new(
            TraceServiceServer::from_arc(Arc::clone(&book)).accept_compressed(gzip),
        )
        .add_service(MetricsServiceServer::from_arc(Arc::clone(&book)).accept_compressed(gzip))
        .add_service(ProfilesServiceServer::from_arc(Arc::clone(&book)).accept_compressed(gzip));
        runtime.spawn(async move { axum::serve(grpc, service.into_axum_router()).await });
        let router = Router::new()
            .route("/v1/traces", post(traces))
            .route("/v1/metrics", post(metrics))
            .route("/v1development/profiles", post(profiles))
            .layer(DefaultBodyLimit::max(REQUEST_BYTES))
            .with_state(Arc::clone(&book));
        runtime.spawn(async move { axum::serve(http, router).await });
        Ok(Self { grpc: addresses.0, http: addresses.1, book, runtime: Some(runtime) })
    }

    /// Spans accepted so far, with the service each belongs to.
    #[must_use]
    pub fn spans(&self) -> Vec<ResourceSpans> {
        held(&self.book.spans).clone()
    }

    /// Ids of the spans accepted so far, as often as they were.
    #[must_use]
    pub fn span_ids(&self) -> Vec<String> {
        held(&self.book.spans).iter().flat_map(spans_of).map(|span| hex(&span.span_id)).collect()
    }

    /// Metrics accepted so far.
    #[must_use]
    pub fn metrics(&self) -> Vec<ResourceMetrics> {
        held(&self.book.metrics).clone()
    }

    /// Requests with profiles accepted so far.
    #[must_use]
    pub fn profiles(&self) -> Vec<ExportProfilesServiceRequest> {
        held(&self.book.profiles).clone()
    }

    /// Requests with spans so far.
    #[must_use]
    pub fn requests(&self) -> Vec<Seen> {
        held(&self.book.requests).clone()
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// All spans of one resource.
pub fn spans_of(resource: &ResourceSpans) -> impl Iterator<Item = &Span> {
    resource.scope_spans.iter().flat_map(|scope| &scope.spans)
}

/// As ids are written.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Book {
    /// Enters a request with spans and says what is to be answered.
    fn enter(&self, headers: HeaderMap, mut request: ExportTraceServiceRequest) -> Answer {
        let mut answer = held(&self.answers).pop_front().unwrap_or(Answer::Accept);
        let n_spans = request.resource_spans.iter().flat_map(spans_of).count();
        if let Answer::Partial(n_rejected) = answer {
            let mut left = n_rejected;
            let scopes = request.resource_spans.iter_mut().flat_map(|resource| &mut resource.scope_spans);
            scopes.for_each(|scope| {
                let n = left.min(scope.spans.len());
                scope.spans.drain(..n);
                left -= n;
            });
            answer = Answer::Partial(n_rejected - left);
        }
        if matches!(answer, Answer::Accept | Answer::Partial(_)) {
            held(&self.spans).append(&mut request.resource_spans);
        }
        held(&self.requests).push(Seen { at: Instant::now(), headers, n_spans });
        answer
    }
}

impl Book {
    /// The same of a request with profiles, which is kept whole also when some of it is rejected.
    fn enter_profiles(&self, request: ExportProfilesServiceRequest) -> Answer {
        let answer = held(&self.answers).pop_front().unwrap_or(Answer::Accept);
        if matches!(answer, Answer::Accept | Answer::Partial(_)) {
            held(&self.profiles).push(request);
        }
        answer
    }
}

/// What is said of a request that is not taken over gRPC; nothing where it was.
fn grpc_refusal(answer: Answer) -> Option<Status> {
    match answer {
        Answer::Accept | Answer::Partial(_) | Answer::Silence => None,
        Answer::Again(after) => {
            let details = ErrorDetails::with_retry_info(Some(after));
            Some(Status::with_error_details(Code::ResourceExhausted, "later", details))
        }
        Answer::Exhausted => Some(Status::resource_exhausted("never")),
        Answer::Unavailable => Some(Status::unavailable("not now")),
        Answer::Refuse => Some(Status::invalid_argument("not like this")),
    }
}

fn profiles_response(answer: Answer) -> ExportProfilesServiceResponse {
    let Answer::Partial(n_rejected) = answer else { return ExportProfilesServiceResponse::default() };
    let rejected_profiles = i64::try_from(n_rejected).expect("a request has few profiles");
    let partial = ExportProfilesPartialSuccess { rejected_profiles, error_message: "not wanted".to_owned() };
    ExportProfilesServiceResponse { partial_success: Some(partial) }
}

#[tonic::async_trait]
impl ProfilesService for Book {
    async fn export(
        &self,
        request: Request<ExportProfilesServiceRequest>,
    ) -> Result<tonic::Response<ExportProfilesServiceResponse>, Status> {
        let answer = self.enter_profiles(request.into_inner());
        match grpc_refusal(answer) {
            Some(status) => Err(status),
            None if answer == Answer::Silence => std::future::pending().await,
            None => Ok(profiles_response(answer).into()),
        }
    }
}

fn response(n_rejected: usize) -> ExportTraceServiceResponse {
    let rejected_spans = i64::try_from(n_rejected).expect("a request has few spans");
    let partial = ExportTracePartialSuccess { rejected_spans, error_message: "not wanted".to_owned() };
    ExportTraceServiceResponse { partial_success: (n_rejected > 0).then_some(partial) }
}

#[tonic::async_trait]
impl TraceService for Book {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<tonic::Response<ExportTraceServiceResponse>, Status> {
        let (metadata, _, request) = request.into_parts();
        match self.enter(metadata.into_headers(), request) {
            Answer::Accept => Ok(response(0).into()),
            Answer::Partial(n_rejected) => Ok(response(n_rejected).into()),
            answer => match grpc_refusal(answer) {
                Some(status) => Err(status),
                None => std::future::pending().await,
            },
        }
    }
}

#[tonic::async_trait]
impl MetricsService for Book {
    async fn export(
        &self,
        request: Request<ExportMetricsServiceRequest>,
    ) -> Result<tonic::Response<ExportMetricsServiceResponse>, Status> {
        held(&self.metrics).append(&mut request.into_inner().resource_metrics);
        Ok(ExportMetricsServiceResponse::default().into())
    }
}

async fn traces(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(request) = decoded::<ExportTraceServiceRequest>(&headers, &body) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    match book.enter(headers, request) {
        Answer::Accept => response(0).encode_to_vec().into_response(),
        Answer::Partial(n_rejected) => response(n_rejected).encode_to_vec().into_response(),
        answer => http_refusal(answer).await,
    }
}

async fn http_refusal(answer: Answer) -> Response {
    match answer {
        Answer::Again(after) => {
            (StatusCode::TOO_MANY_REQUESTS, [("retry-after", after.as_secs().to_string())]).into_response()
        }
        Answer::Exhausted => StatusCode::TOO_MANY_REQUESTS.into_response(),
        Answer::Unavailable => StatusCode::SERVICE_UNAVAILABLE.into_response(),
        Answer::Refuse => StatusCode::BAD_REQUEST.into_response(),
        Answer::Accept | Answer::Partial(_) => StatusCode::OK.into_response(),
        Answer::Silence => std::future::pending().await,
    }
}

async fn profiles(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(request) = decoded::<ExportProfilesServiceRequest>(&headers, &body) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    match book.enter_profiles(request) {
        answer @ (Answer::Accept | Answer::Partial(_)) => {
            profiles_response(answer).encode_to_vec().into_response()
        }
        answer => http_refusal(answer).await,
    }
}

async fn metrics(State(book): State<Arc<Book>>, headers: HeaderMap, body: Bytes) -> Response {
    let Some(mut request) = decoded::<ExportMetricsServiceRequest>(&headers, &body) else {
        return StatusCode::UNPROCESSABLE_ENTITY.into_response();
    };
    held(&book.metrics).append(&mut request.resource_metrics);
    ExportMetricsServiceResponse::default().encode_to_vec().into_response()
}

/// The message of a request: its headers must name type and compression.
fn decoded<M: prost::Message + Default>(headers: &HeaderMap, body: &Bytes) -> Option<M> {
    let header = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
    if header("content-type") != Some("application/x-protobuf") {
        return None;
    }
    match header("content-encoding") {
        None => M::decode(&**body).ok(),
        Some("gzip") => {
            let mut plain = Vec::new();
            std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&**body), &mut plain).ok()?;
            M::decode(&*plain).ok()
        }
        Some(_) => None,
    }
}
