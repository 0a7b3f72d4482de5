//! Query parameters to a [`TraceQuery`]. Anything unknown, repeated or malformed is an error that names it.

use crate::span_store::TraceQuery;
use crate::web::Error;
use crate::web::spans::parameter::{parse_after, parse_milliseconds, set};

const UNKNOWN: &str = "unknown parameter, expected one of service, error, min_duration_ms, after, limit";
/// The highest `limit`, and the one without.
const MAX_LIMIT: usize = 1_000;
const DEFAULT_LIMIT: usize = 50;

/// Reads all parameters.
pub(super) fn parse(pairs: Vec<(String, String)>) -> Result<TraceQuery, Error> {
    let mut query = TraceQuery::default();
    let mut limit = None;
    for (parameter, value) in pairs {
        let result = match parameter.as_str() {
            "service" => set(&mut query.service, Ok(value.clone())),
            "error" => set(&mut query.error, value.parse().map_err(|_| "expected true or false")),
            "min_duration_ms" => set(&mut query.min_duration, parse_milliseconds(&value)),
            "after" => set(&mut query.after, parse_after(&value)),
            "limit" => set(&mut limit, parse_limit(&value)),
            _ => Err(UNKNOWN),
        };
        result.map_err(|expected| Error::Parameter { parameter, value, expected })?;
    }
    Ok(TraceQuery { limit: limit.unwrap_or(DEFAULT_LIMIT), ..query })
}

fn parse_limit(value: &str) -> Result<usize, &'static str> {
    let limit = value.parse().ok().filter(|limit| (1..=MAX_LIMIT).contains(limit));
    limit.ok_or("expected a number from 1 to 1000")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_pairs(pairs: &[(&str, &str)]) -> Result<TraceQuery, Error> {
        parse(pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    #[test]
    fn every_parameter_is_read() {
        let check =
            |pairs: &[(&str, &str)], expected: TraceQuery| assert_eq!(parse_pairs(pairs), Ok(expected));
        let none = || TraceQuery { limit: DEFAULT_LIMIT, ..TraceQuery::default() };
        check(&[], none());
        check(&[("service", "shop")], TraceQuery { service: Some("shop".to_owned()), ..none() });
        check(&[("error", "true"), ("limit", "7")], TraceQuery { error: Some(true), limit: 7, ..none() });
        check(&[("min_duration_ms", "1.5")], TraceQuery { min_duration: Some(1_500_000), ..none() });
        check(&[("after", "9")], TraceQuery { after: Some(9), ..none() });
    }

    #[test]
    fn errors_name_parameter_and_value() {
        let check = |name: &str, value: &str| {
            let error = parse_pairs(&[(name, value)]).expect_err(name).to_string();
            assert!(error.starts_with(&format!("{name}={value}: ")), "{error}");
        };
        check("limit", "0");
        check("limit", "1001");
        check("error", "yes");
        check("min_duration_ms", "-1");
        check("after", "x");
        check("route", "/a");
        assert!(parse_pairs(&[("limit", "1"), ("limit", "2")]).is_err());
    }
}
