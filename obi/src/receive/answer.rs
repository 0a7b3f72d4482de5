//! One request: checked, read, decoded, handed over, answered.
//!
//! In: a request of either listener. Out: an answer as the OTLP specification has it. Never waits for the pipeline:
//! what it cannot take now is refused with the word to come again. Refuses to know connections.

use std::sync::Arc;
use std::time::Duration;

use ::http::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE};
use ::http::{HeaderMap, Method, Request, Response};
use hyper::body::Incoming;
use tokio::sync::mpsc;
use tonic::body::Body as Answered;

use super::body::{self, Held};
use super::decode::Body;
use super::view::{Counts, Refused, Rejected};
use super::{Batch, Format, Kind, Passed, grpc, http};
use crate::listener::{Answer, TurnedAway};

/// How long a request may take to come.
const DEADLINE: Duration = Duration::from_secs(10);

/// Who answers, shared by all connections of a listener.
#[derive(Clone)]
pub(super) struct Answerer {
    pub(super) is_grpc: bool,
    pub(super) shared: Arc<Shared>,
}

/// What all requests need.
pub(super) struct Shared {
    pub(super) token: Option<String>,
    /// The name of this machine.
    pub(super) host: String,
    /// Whether requests that spans report may count.
    pub(super) finds_requests: bool,
    pub(super) counts: Arc<Counts>,
    pub(super) batches: mpsc::Sender<Batch>,
    pub(super) passed: mpsc::Sender<Passed>,
    /// Whether some destination takes metrics, and logs.
    pub(super) takes: Arc<dyn Fn(Kind) -> bool + Send + Sync>,
    /// Wakes the pipeline.
    pub(super) waker: Arc<dyn Fn() + Send + Sync>,
}

/// Why a request is not taken: for counts, and in words.
#[derive(Debug)]
pub(super) struct Refusal {
    pub(super) reason: Refused,
    pub(super) status: u16,
    pub(super) message: &'static str,
}

/// What was taken of a request.
#[derive(Debug, Default)]
pub(super) struct Taken {
    pub(super) rejected: i64,
    pub(super) message: String,
}

impl Refusal {
    fn new(reason: Refused, status: u16, message: &'static str) -> Self {
        Self { reason, status, message }
    }
}

impl From<Refused> for Refusal {
    fn from(reason: Refused) -> Self {
        match reason {
            Refused::Busy | Refused::Connections => Self::new(reason, 429, "no room at the moment"),
            Refused::TooLarge => {
                Self::new(reason, 413, "the request, or what it inflates or decodes to, is too large")
            }
            Refused::Malformed => Self::new(reason, 400, "the body is no OTLP request of this kind"),
            Refused::Unauthorized => Self::new(reason, 401, "the token is missing or wrong"),
            Refused::Unsupported => Self::new(reason, 404, "nothing of the kind is taken here"),
            Refused::Slow => Self::new(reason, 408, "the request did not come in time"),
        }
    }
}

impl Answer for Answerer {
    type Body = Answered;

    async fn answer(&self, request: Request<Incoming>) -> Response<Answered> {
        let kind = Kind::at(request.uri(), self.is_grpc);
        let format = format_of(request.headers());
        let taken = match tokio::time::timeout(DEADLINE, self.take(request, kind, format)).await {
            Ok(taken) => taken,
            Err(_) => Err(Refused::Slow.into()),
        };
        if let Err(refusal) = &taken {
            self.shared.counts.refuse(refusal.reason);
        }
        let kind = kind.unwrap_or(Kind::Traces);
        match self.is_grpc {
            true => grpc::response(kind, taken),
            false => http::response(kind, format.unwrap_or(Format::Protobuf), taken),
        }
    }

    fn turned_away(&self, why: TurnedAway) {
        self.shared.counts.refuse(match why {
            TurnedAway::Full => Refused::Connections,
            TurnedAway::Slow => Refused::Slow,
        });
    }
}

impl Answerer {
    async fn take(
        &self,
        request: Request<Incoming>,
        kind: Option<Kind>,
        format: Option<Format>,
    ) -> Result<Taken, Refusal> {
        let kind = kind.ok_or(Refused::Unsupported)?;
        if request.method() != Method::POST {
            return Err(Refusal::new(Refused::Unsupported, 405, "only POST is taken"));
        }
        self.check_token(request.headers())?;
        let (format, is_packed) = self.encoding(request.headers(), format)?;
        if kind != Kind::Traces && !(self.shared.takes)(kind) {
            return Err(Refusal::new(Refused::Unsupported, 404, "no destination takes this signal"));
        }
        let held = body::read(request.into_body(), &self.shared.counts.budget).await?;
        let shared = Arc::clone(&self.shared);
        let is_grpc = self.is_grpc;
        let work = move || {
            let held = if is_grpc { grpc::message(held, is_packed, &shared.counts.budget)? } else { held };
            let is_packed = is_packed && !is_grpc;
            let held = if is_packed { held.inflated(&shared.counts.budget)? } else { held };
            shared.hand_over(kind, format, held)
        };
        // Inflating and decoding may take some milliseconds, during which others are answered.
        let taken = tokio::task::spawn_blocking(work).await;
        Ok(taken.unwrap_or(Err(Refused::Malformed))?)
    }

    fn check_token(&self, headers: &HeaderMap) -> Result<(), Refused> {
        let Some(token) = &self.shared.token else { return Ok(()) };
        let said = headers.get(AUTHORIZATION).map_or(&b""[..], |value| value.as_bytes());
        let said = said.split_at_checked(7).filter(|(scheme, _)| scheme.eq_ignore_ascii_case(b"bearer "));
        match said {
            Some((_, said)) if is_same(said, token.as_bytes()) => Ok(()),
            _ => Err(Refused::Unauthorized),
        }
    }

    fn encoding(&self, headers: &HeaderMap, format: Option<Format>) -> Result<(Format, bool), Refusal> {
        let unsupported = |message| Refusal::new(Refused::Unsupported, 415, message);
        if self.is_grpc {
            let encoding = headers.get("grpc-encoding").map_or(&b"identity"[..], |value| value.as_bytes());
            return match encoding {
                b"identity" => Ok((Format::Protobuf, false)),
                b"gzip" => Ok((Format::Protobuf, true)),
                _ => Err(unsupported("expected grpc-encoding gzip or none")),
            };
        }
        let format =
            format.ok_or(unsupported("expected content-type application/x-protobuf or application/json"))?;
        match headers.get(CONTENT_ENCODING).map_or(&b"identity"[..], |value| value.as_bytes()) {
            b"identity" | b"" => Ok((format, false)),
            b"gzip" => Ok((format, true)),
            _ => Err(unsupported("expected content-encoding gzip or none")),
        }
    }
}

impl Shared {
    /// Decodes it and gives it to whom it is for.
    fn hand_over(&self, kind: Kind, format: Format, held: Held) -> Result<Taken, Refused> {
        let Self { counts, host, finds_requests, .. } = self;
        let finds_requests = *finds_requests;
        // What is read of it counts with what it is decoded to, and from then on by that.
        let Held { bytes, share: _until_then } = held;
        let body = Body { bytes: bytes.into(), format, budget: &counts.budget, host, finds_requests };
        let taken = match kind {
            Kind::Traces => {
                let decoded = body.spans()?;
                if !decoded.batch.spans.is_empty() {
                    self.batches.try_send(decoded.batch).map_err(|_| Refused::Busy)?;
                    (self.waker)();
                }
                for (reason, _) in Rejected::ALL {
                    counts.reject(reason, decoded.rejected[reason as usize]);
                }
                taken(&decoded.rejected)
            }
            Kind::Metrics | Kind::Logs => {
                let (bytes, n_items, share) = body.passed(kind)?;
                let passed = Passed { kind, bytes, n_items, _share: share };
                self.passed.try_send(passed).map_err(|_| Refused::Busy)?;
                counts.pass(kind, n_items);
                Taken::default()
            }
        };
        counts.accept(kind);
        Ok(taken)
    }
}

fn taken(rejected: &[u64; Rejected::ALL.len()]) -> Taken {
    let reasons = Rejected::ALL.iter().filter(|(reason, _)| rejected[*reason as usize] > 0);
    let words: Vec<String> =
        reasons.map(|(reason, name)| format!("{name}: {}", rejected[*reason as usize])).collect();
    Taken {
        rejected: i64::try_from(rejected.iter().sum::<u64>()).unwrap_or(i64::MAX),
        message: words.join(", "),
    }
}

/// Takes the same time wherever the difference is.
fn is_same(said: &[u8], token: &[u8]) -> bool {
    said.len() == token.len() && said.iter().zip(token).fold(0, |all, (a, b)| all | (a ^ b)) == 0
}

fn format_of(headers: &HeaderMap) -> Option<Format> {
    let written = headers.get(CONTENT_TYPE)?.to_str().ok()?;
    match written.split(';').next().unwrap_or_default().trim() {
        "application/x-protobuf" => Some(Format::Protobuf),
        "application/json" => Some(Format::Json),
        _ => None,
    }
}
