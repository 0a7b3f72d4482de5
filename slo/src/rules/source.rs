//! Which counters an objective's events are in.
//!
//! In: an [`Objective`]. Out: selectors of Prometheus counters, or what is in the way. Refuses queries that are no
//! plain selector: what `rate()` or `sum()` have computed cannot be counted exactly any more.

use crate::indicator::{Indicator, Outcome, Queries};
use crate::objective::Objective;
use crate::openslo::{Finding, MetricSource, Place, Severity};

/// Counters of an objective's events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Counters {
    /// `slo_events_total` of the agents, which has both outcomes.
    Agents,
    /// Counters that other programs expose.
    Queries {
        /// Selects those of the good or the bad events.
        counted: String,
        /// Which of both.
        counted_is: Outcome,
        /// Selects those of all events.
        total: String,
    },
}

impl Counters {
    /// Finds the counters of an objective.
    ///
    /// # Errors
    /// When its events are in none that could be summed over machines, with what to write instead.
    pub fn of(objective: &Objective) -> Result<Self, Finding> {
        let [part] = objective.parts.as_slice() else {
            return Err(refuse(
                &objective.place,
                format!("{} is a composite, whose parts no counter keeps apart", objective.name),
                "write an SLO of its own for each part".to_owned(),
            ));
        };
        match &part.indicator {
            Indicator::Events(_) => Ok(Self::Agents),
            Indicator::Queries(queries) => Self::of_queries(queries),
        }
    }

    fn of_queries(queries: &Queries) -> Result<Self, Finding> {
        let (source, what) = match queries {
            Queries::Ratio { of, counted, total, counter: true } => {
                return Ok(Self::Queries { counted: plain(counted)?, counted_is: *of, total: plain(total)? });
            }
            Queries::Ratio { counted, .. } => (counted, "gauges"),
            Queries::Raw { raw, .. } => (raw, "a ratio that is computed already"),
            Queries::Threshold { metric, .. } => (metric, "a threshold metric"),
        };
        Err(refuse(
            &source.place,
            format!("{what} cannot be summed over machines"),
            "write a `ratioMetric` with `counter: true` and counters as `good` or `bad` and `total`"
                .to_owned(),
        ))
    }
}

/// The query of a source, when it is a selector.
fn plain(source: &MetricSource) -> Result<String, Finding> {
    let query = source.spec.get("query").and_then(crate::openslo::Node::scalar);
    match query.as_deref().map(str::trim) {
        Some(query) if is_selector(query) => Ok(query.to_owned()),
        Some(query) => Err(refuse(
            &source.place,
            format!("query `{query}` is more than a counter"),
            "write the counter alone, such as `http_requests_total{job=\"shop\",code=~\"5..\"}`: rules count its increase and sum it".to_owned(),
        )),
        None => Err(refuse(
            &source.place,
            "no key `query`".to_owned(),
            "write `query: <counter>`, such as `http_requests_total{job=\"shop\"}`".to_owned(),
        )),
    }
}

/// `name`, `name{…}` or `{…}`, and nothing after.
fn is_selector(query: &str) -> bool {
    let name = |character: char| character.is_ascii_alphanumeric() || character == '_' || character == ':';
    let matchers = query.trim_start_matches(name).trim_start();
    let starts = query.starts_with(|first: char| !first.is_ascii_digit());
    starts && !query.is_empty() && (matchers.is_empty() || closes_at_end(matchers))
}

/// Whether the text opens with a brace that its last character closes; quotes hide braces.
fn closes_at_end(text: &str) -> bool {
    let mut quote = None;
    let mut characters = text.char_indices();
    if characters.next().is_none_or(|(_, first)| first != '{') {
        return false;
    }
    while let Some((at, character)) = characters.next() {
        match (quote, character) {
            (Some(open), _) if character == open => quote = None,
            (Some('"' | '\''), '\\') => drop(characters.next()),
            (None, '"' | '\'' | '`') => quote = Some(character),
            (None, '}') => return at + 1 == text.len(),
            _ => {}
        }
    }
    false
}

fn refuse(place: &Place, what: String, instead: String) -> Finding {
    let place = place.clone();
    Finding { place, severity: Severity::Warning, what: format!("no fleet rules: {what}"), instead }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn selectors_are_reported_from_queries() {
        let check = |query: &str, expected: bool| assert_eq!(is_selector(query), expected, "{query}");
        check("http_requests_total", true);
        check("job:requests:total", true);
        check("http_requests_total{code=~\"5..\"}", true);
        check("http_requests_total {a=\"}\\\"{\", b='}'}", true);
        check("{__name__=\"x\"}", true);
        check("sum(http_requests_total)", false);
        check("rate(x[5m])", false);
        check("x[5m]", false);
        check("x{a=\"b\"}[5m]", false);
        check("x{a=\"b\"} + y", false);
        check("x{a=\"b\"} + y{}", false);
        check("x + y", false);
        check("5", false);
        check("", false);
        check("x{", false);
    }
}
