//! A table for people from what the agent serves to Prometheus.
//!
//! In: the text of `/metrics` (format 0.0.4 or OpenMetrics). Out: per service the requests, errors and 95th
//! percentile since the agent started, and how many exchanges it lost. A line that cannot be read is passed over:
//! this is a display, not a check.

use std::collections::BTreeMap;
use std::fmt::Write as _;

const SERVER: &str = "http_server_request_duration_seconds";
const CLIENT: &str = "http_client_request_duration_seconds";
const LOST: &str = "obi_lost_total";

/// The table, newline at its end.
pub(super) fn summarize(metrics: &str) -> String {
    let mut rows: BTreeMap<(String, &'static str), Row> = BTreeMap::new();
    let mut lost = 0.0;
    for sample in metrics.lines().filter_map(Sample::parse) {
        if sample.name == LOST {
            lost += sample.value;
            continue;
        }
        let Some((side, part)) = duration_part(sample.name) else { continue };
        let key = (sample.label("service_name").unwrap_or_default(), side);
        rows.entry(key).or_default().add(part, &sample);
    }
    render(&rows, lost)
}

fn render(rows: &BTreeMap<(String, &'static str), Row>, lost: f64) -> String {
    if rows.values().all(|row| row.requests == 0.0) {
        return "  no request seen yet\n".to_owned();
    }
    let mut out =
        format!("  {:<16} {:<6} {:>9} {:>7} {:>9}\n", "service", "side", "requests", "errors", "p95");
    for ((service, side), row) in rows {
        let p95 = row.quantile(0.95).map_or_else(|| "-".to_owned(), |limit| format!("{:.0} ms", limit * 1e3));
        let Row { requests, errors, .. } = row;
        // Writing to a string cannot fail.
        let _ = writeln!(out, "  {service:<16} {side:<6} {requests:>9} {errors:>7} {p95:>9}");
    }
    let _ = writeln!(out, "  exchanges lost: {lost}");
    out
}

fn duration_part(name: &str) -> Option<(&'static str, &str)> {
    let server = name.strip_prefix(SERVER).map(|part| ("server", part));
    server.or_else(|| name.strip_prefix(CLIENT).map(|part| ("client", part)))
}

#[derive(Debug, Default)]
struct Row {
    requests: f64,
    errors: f64,
    /// Cumulative counts by upper limit in seconds; kept sorted by limit.
    buckets: Vec<(f64, f64)>,
}

impl Row {
    fn add(&mut self, part: &str, sample: &Sample<'_>) {
        match part {
            "_count" => {
                self.requests += sample.value;
                if sample.label("error_type").is_some_and(|error| !error.is_empty()) {
                    self.errors += sample.value;
                }
            }
            "_bucket" => {
                let Some(limit) = sample.label("le").and_then(|limit| limit.parse::<f64>().ok()) else {
                    return;
                };
                match self.buckets.binary_search_by(|(known, _)| known.total_cmp(&limit)) {
                    Ok(index) => self.buckets[index].1 += sample.value,
                    Err(index) => self.buckets.insert(index, (limit, sample.value)),
                }
            }
            _ => {}
        }
    }

    /// Interpolated within its bucket, as Prometheus does; the last bucket answers with its lower limit.
    fn quantile(&self, quantile: f64) -> Option<f64> {
        let rank = quantile * self.buckets.last()?.1;
        let index = self.buckets.iter().position(|(_, count)| *count >= rank && *count > 0.0)?;
        let (limit, count) = self.buckets[index];
        let (below, before) = index.checked_sub(1).map_or((0.0, 0.0), |before| self.buckets[before]);
        if limit.is_infinite() {
            return Some(below);
        }
        Some(below + (limit - below) * (rank - before) / (count - before))
    }
}

/// One line of the exposition: `name{labels} value …`.
#[derive(Debug)]
struct Sample<'a> {
    name: &'a str,
    labels: &'a str,
    value: f64,
}

impl<'a> Sample<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        if line.starts_with('#') {
            return None;
        }
        let (name, labels, rest) = match line.split_once('{') {
            Some((name, rest)) => {
                let end = labels_end(rest)?;
                (name, &rest[..end], &rest[end + 1..])
            }
            None => {
                let (name, rest) = line.split_once(' ')?;
                (name, "", rest)
            }
        };
        let value = rest.split_whitespace().next()?.parse().ok()?;
        Some(Self { name, labels, value })
    }

    /// The value of a label, escapes undone.
    fn label(&self, wanted: &str) -> Option<String> {
        let mut rest = self.labels;
        while let Some((name, after)) = rest.split_once("=\"") {
            let end = quote_end(after)?;
            if name == wanted {
                return Some(unescape(&after[..end]));
            }
            rest = after[end + 1..].trim_start_matches(',');
        }
        None
    }
}

/// Index of the brace that closes the labels: not one inside quotes.
fn labels_end(labels: &str) -> Option<usize> {
    let mut at = 0;
    loop {
        let next = at + labels[at..].find(['"', '}'])?;
        if labels[next..].starts_with('}') {
            return Some(next);
        }
        at = next + 1 + quote_end(&labels[next + 1..])? + 1;
    }
}

/// Index of the quote that ends a label value: not an escaped one.
fn quote_end(value: &str) -> Option<usize> {
    let mut escaped = false;
    value.bytes().position(|byte| {
        let ends = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        ends
    })
}

fn unescape(value: &str) -> String {
    let mut out = String::with_capacity(value.len());
    let mut rest = value.chars();
    while let Some(next) = rest.next() {
        match next {
            '\\' => out.extend(rest.next().map(|escaped| if escaped == 'n' { '\n' } else { escaped })),
            plain => out.push(plain),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check_label(line: &str, label: &str, expected: Option<&str>) {
        let sample = Sample::parse(line).expect("a sample");
        assert_eq!(sample.label(label).as_deref(), expected, "{line}");
        assert_eq!(sample.value, 3.0, "{line}");
    }

    #[test]
    fn labels_are_read_whatever_they_hold() {
        check_label("up 3", "job", None);
        check_label(r#"up{} 3"#, "job", None);
        check_label(r#"up{job="a"} 3"#, "job", Some("a"));
        check_label(r#"up{a="}",job="b"} 3 1700000000"#, "job", Some("b"));
        check_label(r#"up{a="x\"} 9",job="b\\"} 3 # {trace_id="1"} 0.1"#, "job", Some("b\\"));
        check_label(r#"up{job="one\ntwo"} 3"#, "job", Some("one\ntwo"));
    }

    #[test]
    fn comments_and_nonsense_are_no_samples() {
        for line in ["", "# TYPE up gauge", "up", "up{job=\"a\" 3", "up{job=\"a} 3", "up three"] {
            assert!(Sample::parse(line).is_none(), "{line}");
        }
    }

    fn check_quantile(buckets: &[(f64, f64)], expected: Option<f64>) {
        let row = Row { buckets: buckets.to_vec(), ..Row::default() };
        assert_eq!(row.quantile(0.95), expected, "{buckets:?}");
    }

    #[test]
    fn quantiles_interpolate_in_their_bucket() {
        check_quantile(&[], None);
        check_quantile(&[(1.0, 0.0), (f64::INFINITY, 0.0)], None);
        check_quantile(&[(1.0, 100.0), (f64::INFINITY, 100.0)], Some(0.95));
        check_quantile(&[(1.0, 90.0), (2.0, 100.0), (f64::INFINITY, 100.0)], Some(1.5));
        check_quantile(&[(1.0, 90.0), (f64::INFINITY, 100.0)], Some(1.0));
    }

    #[test]
    fn series_of_a_service_are_added_up() {
        let metrics = r#"
# TYPE http_server_request_duration_seconds histogram
http_server_request_duration_seconds_bucket{service_name="cart",http_route="/a",le="1.0"} 2
http_server_request_duration_seconds_bucket{service_name="cart",http_route="/a",le="+Inf"} 2
http_server_request_duration_seconds_count{service_name="cart",http_route="/a",error_type=""} 2
http_server_request_duration_seconds_sum{service_name="cart",http_route="/a",error_type=""} 0.5
http_server_request_duration_seconds_bucket{service_name="cart",http_route="/b",error_type="500",le="1"} 2
http_server_request_duration_seconds_bucket{service_name="cart",http_route="/b",error_type="500",le="+Inf"} 2
http_server_request_duration_seconds_count{service_name="cart",http_route="/b",error_type="500"} 2
obi_lost_total{stage="kernel",reason="ring_full"} 1
obi_lost_total{stage="kernel",reason="gap"} 2
"#;
        let table = summarize(metrics);
        let row: Vec<_> = table.lines().nth(1).unwrap().split_whitespace().collect();
        assert_eq!(row, ["cart", "server", "4", "2", "950", "ms"], "{table}");
        assert_eq!(table.lines().last(), Some("  exchanges lost: 3"));
    }

    #[test]
    fn silence_is_said() {
        assert_eq!(summarize(""), "  no request seen yet\n");
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "(http_server_request_duration_seconds_count|[\\PC\n])*[{}\"\\\\= ,\n0-9é]*") {
            summarize(&text);
        }
    }
}
