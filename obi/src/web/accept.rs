//! Which format a scraper wants.
//!
//! In: an `Accept` header (RFC 9110, section 12.5.1). Out: a [`Choice`]. Refuses to know requests.

use crate::export::prometheus::Format;

/// A format and the media type that announces it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) format: Format,
    pub(super) content_type: &'static str,
}

const OPENMETRICS_1: Choice = Choice {
    format: Format::OpenMetrics,
    content_type: "application/openmetrics-text; version=1.0.0; charset=utf-8",
};
const OPENMETRICS_0: Choice = Choice {
    format: Format::OpenMetrics,
    content_type: "application/openmetrics-text; version=0.0.1; charset=utf-8",
};
const PROTOBUF: Choice = Choice {
    format: Format::Protobuf,
    content_type: "application/vnd.google.protobuf; proto=io.prometheus.client.MetricFamily; encoding=delimited",
};
const TEXT: Choice =
    Choice { format: Format::Text, content_type: "text/plain; version=0.0.4; charset=utf-8" };

/// The wanted format of the highest quality; among equals the richest. Wildcards mean text 0.0.4, which a
/// person with curl can read, and so does a header that asks for nothing we have.
pub(super) fn negotiate(accept: &str) -> Choice {
    let mut best = (0, TEXT);
    for (quality, choice) in accept.split(',').filter_map(parse_range) {
        let richer = quality == best.0 && rank(choice) > rank(best.1);
        if quality > best.0 || (richer && quality > 0) {
            best = (quality, choice);
        }
    }
    best.1
}

fn rank(choice: Choice) -> u8 {
    [TEXT, OPENMETRICS_0, OPENMETRICS_1, PROTOBUF]
        .iter()
        .position(|known| *known == choice)
        .map_or(0, |at| at as u8)
}

/// One media range: its quality in thousandths, and what it stands for here.
fn parse_range(range: &str) -> Option<(u32, Choice)> {
    let mut parts = range.split(';').map(str::trim);
    let media = parts.next()?.to_ascii_lowercase();
    let (mut quality, mut version, mut proto, mut encoding) = (1_000, None, None, None);
    for part in parts {
        let (name, value) = part.split_once('=')?;
        let value = value.trim().trim_matches('"');
        match name.trim().to_ascii_lowercase().as_str() {
            "q" => quality = parse_quality(value)?,
            "version" => version = Some(value.to_owned()),
            "proto" => proto = Some(value.to_owned()),
            "encoding" => encoding = Some(value.to_owned()),
            _ => {}
        }
    }
    let choice = match (media.as_str(), version.as_deref()) {
        ("application/openmetrics-text", None | Some("1.0.0")) => OPENMETRICS_1,
        ("application/openmetrics-text", Some("0.0.1")) => OPENMETRICS_0,
        // Both parameters are part of the type: other messages and other framings exist.
        ("application/vnd.google.protobuf", _)
            if proto.as_deref() == Some("io.prometheus.client.MetricFamily")
                && encoding.as_deref() == Some("delimited") =>
        {
            PROTOBUF
        }
        ("text/plain", None | Some("0.0.4" | "1.0.0")) | ("text/*" | "*/*", _) => TEXT,
        _ => return None,
    };
    Some((quality, choice))
}

fn parse_quality(value: &str) -> Option<u32> {
    let quality = value.parse::<f32>().ok().filter(|quality| (0.0..=1.0).contains(quality))?;
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and 1000")]
    Some((quality * 1_000.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn negotiation() {
        fn check(accept: &str, expected: Choice) {
            assert_eq!(negotiate(accept), expected, "{accept}");
        }
        check("", TEXT);
        check("*/*", TEXT);
        check("text/html,application/xhtml+xml,*/*;q=0.8", TEXT);
        check("application/json", TEXT);
        check("application/openmetrics-text", OPENMETRICS_1);
        check("application/openmetrics-text; version=\"1.0.0\"", OPENMETRICS_1);
        check("application/openmetrics-text; version=0.0.1,text/plain;version=0.0.4;q=0.3", OPENMETRICS_0);
        check("application/openmetrics-text;version=2.0.0,text/plain;q=0.1", TEXT);
        check("application/openmetrics-text;q=0.2,text/plain;q=0.9", TEXT);
        check("text/plain,application/openmetrics-text", OPENMETRICS_1);
        check("application/openmetrics-text;q=0", TEXT);
        check("application/openmetrics-text;q=nonsense", TEXT);
        check("application/openmetrics-text;q=NaN;;=", TEXT);
        let protobuf =
            "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited";
        check(protobuf, PROTOBUF);
        check(&format!("{protobuf};q=0.4,application/openmetrics-text;q=0.5"), OPENMETRICS_1);
        check(&format!("application/openmetrics-text;version=1.0.0,{protobuf}"), PROTOBUF);
        check("application/vnd.google.protobuf", TEXT);
        check(&protobuf.replace("delimited", "text"), TEXT);
        check(&protobuf.replace("io.prometheus.client", "openmetrics"), TEXT);
        // Prometheus 2.42 with native histograms
        let accept = format!(
            "{protobuf},application/openmetrics-text;version=1.0.0;q=0.8,\
             application/openmetrics-text;version=0.0.1;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
        );
        check(&accept, PROTOBUF);
        // Prometheus 2.42
        let accept = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;\
                      q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        check(accept, OPENMETRICS_1);
        // Prometheus 3
        let accept = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
                      application/openmetrics-text;version=0.0.1;q=0.5,\
                      text/plain;version=1.0.0;escaping=allow-utf-8;q=0.4,text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        check(accept, OPENMETRICS_1);
    }

    proptest::proptest! {
        #[test]
        fn any_header_gets_a_choice(accept in "\\PC{0,200}") {
            let choice = negotiate(&accept);
            assert!([TEXT, OPENMETRICS_0, OPENMETRICS_1, PROTOBUF].contains(&choice));
        }
    }
}
