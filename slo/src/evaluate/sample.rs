//! Series as a PromQL backend answers with them.
//!
//! In: the JSON of `/api/v1/query` for a range selector. Out: labels and raw samples. Refuses to fetch.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _};
use thiserror::Error;

use crate::time::Time;

/// Labels by name.
pub type Labels = BTreeMap<String, String>;

/// A series and its samples, oldest first.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Series {
    /// All its labels.
    #[serde(rename = "metric")]
    pub labels: Labels,
    /// As they were scraped.
    #[serde(rename = "values")]
    pub samples: Vec<Sample>,
}

/// A scraped value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// When it was scraped.
    pub time: Time,
    /// What it was.
    pub value: f64,
}

/// An answer that cannot be used.
#[derive(Debug, Error)]
pub enum AnswerError {
    /// No JSON of this shape.
    #[error("answer is no Prometheus query result")]
    Shape(#[from] serde_json::Error),
    /// The backend says so.
    #[error("query failed: {kind}: {message}")]
    Refused {
        /// `errorType`, for example `bad_data`.
        kind: String,
        /// `error`
        message: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "status", rename_all = "lowercase")]
enum Answer {
    Success {
        data: Data,
        #[serde(default)]
        warnings: Vec<String>,
    },
    Error {
        #[serde(rename = "errorType", default)]
        kind: String,
        #[serde(default)]
        error: String,
    },
}

#[derive(Deserialize)]
#[serde(tag = "resultType", content = "result", rename_all = "lowercase")]
enum Data {
    Matrix(Vec<Series>),
}

/// Reads an answer: its series, and what the backend warns of, such as a store that did not answer.
///
/// # Errors
/// When it is no matrix, or an error.
pub fn read(body: &[u8]) -> Result<(Vec<Series>, Vec<String>), AnswerError> {
    match serde_json::from_slice(body)? {
        Answer::Success { data: Data::Matrix(series), warnings } => Ok((series, warnings)),
        Answer::Error { kind, error } => Err(AnswerError::Refused { kind, message: error }),
    }
}

/// `[seconds, "value"]`
impl<'de> Deserialize<'de> for Sample {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (seconds, value): (f64, String) = Deserialize::deserialize(deserializer)?;
        let value =
            value.parse().map_err(|_| D::Error::custom(format!("sample value `{value}` is no number")))?;
        // Timestamps are whole milliseconds.
        #[expect(clippy::cast_possible_truncation, reason = "what does not fit saturates")]
        let millis = (seconds * 1000.0).round() as i64;
        Ok(Self { time: Time::from_nanos(millis.saturating_mul(1_000_000)), value })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        let body =
            br#"{"status":"success","warnings":["store b is down"],"data":{"resultType":"matrix","result":[
            {"metric":{"instance":"one"},"values":[[1700000000.015,"7"],[1700000015,"8"]]}]}}"#;
        let (series, warnings) = read(body).expect("an answer");
        assert_eq!(warnings, ["store b is down"]);
        assert_eq!(series[0].labels["instance"], "one");
        let samples: Vec<(i64, f64)> =
            series[0].samples.iter().map(|sample| (sample.time.nanos() / 1_000_000, sample.value)).collect();
        assert_eq!(samples, [(1_700_000_000_015, 7.0), (1_700_000_015_000, 8.0)]);
    }

    #[test]
    fn other_answers_are_refused() {
        let check = |body: &str, expected: &str| {
            let error = read(body.as_bytes()).expect_err(body);
            let source = std::error::Error::source(&error).map_or_else(String::new, ToString::to_string);
            let text = format!("{error}: {source}");
            assert!(text.contains(expected), "{text}");
        };
        check(
            r#"{"status":"error","errorType":"bad_data","error":"parse error"}"#,
            "query failed: bad_data: parse error",
        );
        check("<html>", "answer is no Prometheus query result");
        check(
            r#"{"status":"success","data":{"resultType":"vector","result":[]}}"#,
            "no Prometheus query result",
        );
        check(
            r#"{"status":"success","data":{"resultType":"matrix","result":[{"metric":{},"values":[[1,"x"]]}]}}"#,
            "`x` is no number",
        );
    }
}
