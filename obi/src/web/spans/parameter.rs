//! Query parameters to a [`Query`]. Anything unknown, repeated or malformed is an error that names it.

use super::{DEFAULT_LIMIT_AFTER, DEFAULT_LIMIT_NEWEST, MAX_LIMIT};
use crate::cause::context::parse_id;
use crate::span::SpanKind;
use crate::span::grpc::Code;
use crate::span_store::{Filter, Order, Query, StatusFilter};
use crate::web::Error;
use crate::web::profiles::parameter::parse_time;

const UNKNOWN: &str = "unknown parameter, expected one of service, kind, method, route, path, status, error, \
                       trace_id, min_duration_ms, from, to, sort, after, limit";
/// Spans after a sequence come in the order of their arrival.
const SORT_OR_AFTER: &str = "expected either sort or after";

/// Reads all parameters.
pub(in crate::web) fn parse(pairs: Vec<(String, String)>) -> Result<Query, Error> {
    let mut filter = Filter::default();
    let (mut sort, mut after, mut limit) = (None, None, None);
    for (parameter, value) in pairs {
        let result = match parameter.as_str() {
            "service" => set(&mut filter.service, Ok(value.clone())),
            "kind" => set(&mut filter.kind, parse_kind(&value)),
            "method" => set(&mut filter.method, Ok(value.clone())),
            "route" => set(&mut filter.route, Ok(value.clone())),
            "path" => set(&mut filter.path, Ok(value.clone())),
            "status" => set(&mut filter.status, parse_status(&value)),
            "error" => set(&mut filter.error, value.parse().map_err(|_| "expected true or false")),
            "trace_id" => set(&mut filter.trace_id, parse_trace_id(&value)),
            "min_duration_ms" => set(&mut filter.min_duration, parse_milliseconds(&value)),
            "from" => set(&mut filter.from, parse_time(&value)),
            "to" => set(&mut filter.to, parse_time(&value)),
            "sort" if after.is_some() => Err(SORT_OR_AFTER),
            "sort" => set(&mut sort, parse_sort(&value)),
            "after" if sort.is_some() => Err(SORT_OR_AFTER),
            "after" => set(&mut after, parse_after(&value)),
            "limit" => set(&mut limit, parse_limit(&value)),
            _ => Err(UNKNOWN),
        };
        result.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    let default_limit = if after.is_some() { DEFAULT_LIMIT_AFTER } else { DEFAULT_LIMIT_NEWEST };
    let order = after.map(Order::After).or(sort).unwrap_or(Order::Newest);
    Ok(Query { filter, order, limit: limit.unwrap_or(default_limit) })
}

pub(in crate::web) fn set<T>(
    field: &mut Option<T>,
    value: Result<T, &'static str>,
) -> Result<(), &'static str> {
    match field.replace(value?) {
        None => Ok(()),
        Some(_) => Err("given more than once"),
    }
}

fn parse_kind(value: &str) -> Result<SpanKind, &'static str> {
    match value {
        "server" => Ok(SpanKind::Server),
        "client" => Ok(SpanKind::Client),
        "internal" => Ok(SpanKind::Internal),
        _ => Err("expected server, client or internal"),
    }
}

fn parse_status(value: &str) -> Result<StatusFilter, &'static str> {
    let expected =
        "expected a status from 100 to 999, a class such as 5xx, or a status of gRPC such as UNAVAILABLE";
    if let Some(code) = Code::of_name(value) {
        return Ok(StatusFilter::Rpc(code));
    }
    match value.as_bytes() {
        [digit @ b'1'..=b'9', b'x', b'x'] => Ok(StatusFilter::Class(digit - b'0')),
        [b'1'..=b'9', _, _] => value.parse().map(StatusFilter::Code).map_err(|_| expected),
        _ => Err(expected),
    }
}

fn parse_trace_id(value: &str) -> Result<[u8; 16], &'static str> {
    parse_id(value).ok_or("expected 32 hexadecimal digits")
}

pub(in crate::web) fn parse_milliseconds(value: &str) -> Result<u64, &'static str> {
    let milliseconds = value.parse::<f64>().ok().filter(|value| (0.0..=1e12).contains(value));
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1e18")]
    milliseconds.map(|value| (value * 1e6).round() as u64).ok_or("expected a number of milliseconds from 0")
}

pub(in crate::web) fn parse_after(value: &str) -> Result<u64, &'static str> {
    let sequence = value.parse().ok().filter(|sequence| *sequence < u64::MAX);
    sequence.ok_or("expected a sequence number, 0 for the oldest")
}

fn parse_sort(value: &str) -> Result<Order, &'static str> {
    match value {
        "newest" => Ok(Order::Newest),
        "slowest" => Ok(Order::Slowest),
        _ => Err("expected newest or slowest"),
    }
}

fn parse_limit(value: &str) -> Result<usize, &'static str> {
    value
        .parse()
        .ok()
        .filter(|limit| (1..=MAX_LIMIT).contains(limit))
        .ok_or("expected a number from 1 to 10000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_text(query: &str) -> Result<Query, Error> {
        let pairs = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').expect("test queries have pairs");
            (name.to_owned(), value.to_owned())
        });
        parse(pairs.collect())
    }

    #[test]
    fn every_parameter_is_read() {
        fn check(query: &str, filter: Filter, order: Order, limit: usize) {
            assert_eq!(parse_text(query), Ok(Query { filter, order, limit }), "{query}");
        }
        let none = Filter::default;
        let text = |text: &str| Some(text.to_owned());
        check("", none(), Order::Newest, 100);
        check("after=0", none(), Order::After(0), 1_000);
        check("after=17&limit=10000", none(), Order::After(17), 10_000);
        check("sort=slowest&limit=7", none(), Order::Slowest, 7);
        check("sort=newest", none(), Order::Newest, 100);
        check("service=shop", Filter { service: text("shop"), ..none() }, Order::Newest, 100);
        check("kind=client", Filter { kind: Some(SpanKind::Client), ..none() }, Order::Newest, 100);
        check("method=GET", Filter { method: text("GET"), ..none() }, Order::Newest, 100);
        check("route=/a/{id}", Filter { route: text("/a/{id}"), ..none() }, Order::Newest, 100);
        check("path=/a", Filter { path: text("/a"), ..none() }, Order::Newest, 100);
        check("status=404", Filter { status: Some(StatusFilter::Code(404)), ..none() }, Order::Newest, 100);
        check("status=5xx", Filter { status: Some(StatusFilter::Class(5)), ..none() }, Order::Newest, 100);
        let unavailable = Code::of_name("UNAVAILABLE").map(StatusFilter::Rpc);
        check("status=UNAVAILABLE", Filter { status: unavailable, ..none() }, Order::Newest, 100);
        check("error=false", Filter { error: Some(false), ..none() }, Order::Newest, 100);
        let id = "000102030405060708090a0b0c0d0e0F";
        let bytes = std::array::from_fn(|index| index as u8);
        check(&format!("trace_id={id}"), Filter { trace_id: Some(bytes), ..none() }, Order::Newest, 100);
        check("from=1.5", Filter { from: Some(1_500_000_000), ..none() }, Order::Newest, 100);
        check("to=1970-01-01T00:00:02Z", Filter { to: Some(2_000_000_000), ..none() }, Order::Newest, 100);
        check("min_duration_ms=1.5", Filter { min_duration: Some(1_500_000), ..none() }, Order::Newest, 100);
    }

    #[test]
    fn errors_name_parameter_and_value() {
        fn check(query: &str, expected: &str) {
            let error = parse_text(query).expect_err(query).to_string();
            assert!(error.starts_with(query.rsplit('&').next().unwrap()), "{query}: {error}");
            assert!(error.contains(expected), "{query}: {error}");
        }
        check("knd=server", "unknown parameter");
        check("kind=both", "expected server, client or internal");
        check("status=99", "expected a status");
        check("status=5xX", "expected a status");
        check("status=1+2", "expected a status");
        check("status=unavailable", "expected a status");
        check("error=yes", "expected true or false");
        check("trace_id=+0102030405060708090a0b0c0d0e0f1", "32 hexadecimal digits");
        check("trace_id=12", "32 hexadecimal digits");
        check("min_duration_ms=-1", "milliseconds");
        check("from=yesterday", "seconds since the Unix epoch");
        check("to=1&to=2", "more than once");
        check("min_duration_ms=NaN", "milliseconds");
        check("after=-1", "sequence number");
        check("sort=slow", "newest or slowest");
        check("after=1&sort=slowest", "either sort or after");
        check("sort=newest&after=1", "either sort or after");
        check("after=18446744073709551615", "sequence number");
        check("limit=0", "from 1 to 10000");
        check("limit=10001", "from 1 to 10000");
        check("limit=5&limit=6", "given more than once");
    }

    proptest::proptest! {
        #[test]
        fn any_pair_is_read_or_refused(name in "[a-z_]{0,16}|status|trace_id|min_duration_ms", value in "\\PC{0,40}") {
            if let Err(error) = parse(vec![(name.clone(), value.clone())]) {
                assert!(matches!(error, Error::Parameter { parameter, value: given, .. }
                    if parameter == name && given == value));
            }
        }
    }
}
