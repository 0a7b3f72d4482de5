//! `/api/v1/slos/suggested`: objectives to begin with, for a service that is watched.
//!
//! In: a service's name, a snapshot of its series. Out: OpenSLO text. Refuses to choose targets: that is the crate
//! `slo`.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use slo::{Measured, suggest};

use super::{Command, Error};
use crate::export::Metrics;
use crate::red::{Snapshot, Took};
use crate::span::SpanKind;

const EXPECTED: &str = "the name of a service that has answered requests (`services` of /api/v1/status)";
const MOST_FAILED: &str = "a service that has kept 90 %, the lowest target: more than one of ten requests of this one \
                           failed, so that any objective would be broken at once";

/// Parameter: `service`.
pub(super) async fn serve(
    State(state): State<super::State>,
    pairs: Result<Query<Vec<(String, String)>>, QueryRejection>,
) -> Result<Response, Error> {
    let Query(pairs) = pairs.map_err(|rejection| Error::Query(rejection.body_text()))?;
    let service = match pairs.as_slice() {
        [(name, service)] if name == "service" => service.clone(),
        _ => return Err(refusal(String::new(), EXPECTED)),
    };
    let make = move |metrics: Metrics| {
        let measured = measured(&metrics.red, &service);
        let expected = if measured.requests > 0 { MOST_FAILED } else { EXPECTED };
        suggest(&measured).map_or_else(
            || refusal(service, expected).into_response(),
            |text| ([(CONTENT_TYPE, "application/yaml")], text).into_response(),
        )
    };
    state.answer(Command::Metrics, make).await
}

fn refusal(service: String, expected: &'static str) -> Error {
    Error::Parameter { parameter: "service".to_owned(), value: service, expected }
}

/// What was counted of a service's requests since their series began.
fn measured(red: &Snapshot, service: &str) -> Measured {
    let (mut requests, mut errors) = (0, 0);
    let own = |labels: &crate::red::Labels| labels.service.name == service && labels.kind == SpanKind::Server;
    for series in red.requests.iter().filter(|series| own(&series.labels)) {
        let n = series.counts.duration.buckets.count();
        requests += n;
        errors += if series.labels.error_type.is_empty() { 0 } else { n };
    }
    // Services of one name in several namespaces are measured together.
    let mut took = Took::default();
    let own = red.services.iter().filter(|totals| totals.service.name == service);
    own.filter_map(|totals| totals.took.as_ref()).for_each(|other| took.add(other));
    Measured { service: service.to_owned(), requests, errors, p99_ns: took.quantile(0.99) }
}
