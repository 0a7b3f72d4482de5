//! `/api/v1/slos/suggested`: objectives to begin with, for a service that is watched.
//!
//! In: a service's name, a snapshot of its series. Out: OpenSLO text. Refuses to choose targets: that is the crate `slo`.

use axum::extract::rejection::QueryRejection;
use axum::extract::{Query, State};
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use slo::{Measured, suggest};

use super::{Command, Error};
use crate::export::Metrics;
use crate::red::{Native, Snapshot};
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
    let (mut requests, mut errors, mut durations) = (0, 0, Vec::new());
    let own = |labels: &crate::red::Labels| labels.service.name == service && labels.kind == SpanKind::Server;
    for series in red.requests.iter().filter(|series| own(&series.labels)) {
        let duration = &series.counts.duration;
        requests += duration.buckets.count();
        if series.labels.error_type.is_empty() {
            durations.extend(upper_bounds(&duration.native));
        } else {
            errors += duration.buckets.count();
        }
    }
    Measured { service: service.to_owned(), requests, errors, p99_ns: quantile(durations, 0.99) }
}

/// The upper bound in nanoseconds of each bucket, and how many are in it.
fn upper_bounds(native: &Native) -> impl Iterator<Item = (u64, u64)> {
    let step = (-f64::from(native.schema())).exp2();
    let bound = move |index: i32| ((f64::from(index) * step).exp2() * 1e9).ceil();
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "`as` saturates, as is meant"
    )]
    let counted =
        (native.first_index()..).zip(native.counts()).map(move |(index, n)| (bound(index) as u64, *n));
    counted.chain([(0, native.zero_count())])
}

/// What at least a share of `ratio` stayed at or below; 0 when there is nothing.
fn quantile(mut counted: Vec<(u64, u64)>, ratio: f64) -> u64 {
    counted.sort_unstable();
    let all: u64 = counted.iter().map(|(_, n)| n).sum();
    #[expect(clippy::cast_precision_loss, reason = "counts beyond 2^53 do not come up")]
    let wanted = all as f64 * ratio;
    let mut below = 0;
    #[expect(clippy::cast_precision_loss, reason = "as above")]
    let reached = counted.iter().find(|(_, n)| {
        below += n;
        *n > 0 && below as f64 >= wanted
    });
    reached.map_or(0, |(bound, _)| *bound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let check = |counted: &[(u64, u64)], expected: u64| {
            assert_eq!(quantile(counted.to_vec(), 0.99), expected, "{counted:?}");
        };
        check(&[], 0);
        check(&[(0, 0)], 0);
        check(&[(7, 1)], 7);
        check(&[(20, 1), (10, 99)], 10);
        check(&[(20, 2), (10, 98)], 20);
        check(&[(30, 0), (20, 2), (10, 98)], 20);
    }

    #[test]
    fn a_bucket_is_named_by_its_upper_bound() {
        let mut native = Native::default();
        [0, 1_000_000_000, 1_500_000_000].into_iter().for_each(|value| native.observe(value));
        let bounds: Vec<_> = upper_bounds(&native).filter(|(_, n)| *n > 0).collect();
        assert_eq!(bounds, [(1_000_000_000, 1), (1_542_210_826, 1), (0, 1)]);
    }
}
