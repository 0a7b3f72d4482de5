//! Text: OpenMetrics 1.0 with exemplars, or Prometheus's format 0.0.4.
//!
//! In: families of spans as samples, the agent's own as prometheus-client's text. Out: the exposition, byte by byte.
//! Refuses to know what the metrics mean.

use std::fmt;

use super::Format;
use super::family::{Distribution, Encoder, Family, Kind, LabelSink, NANOSECONDS, Point};
use crate::red::Exemplar;

/// Writes families of spans as text. The labels of a series are made once and copied to each of its lines.
#[derive(Debug)]
pub(super) struct TextEncoder {
    format: Format,
    out: Vec<u8>,
    /// `None` before the first family.
    family: Option<Family>,
    /// The family's header is written.
    announced: bool,
    /// Of the series that is written: `a="b",c="d"`.
    labels: Vec<u8>,
}

impl TextEncoder {
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: Vec::new(), family: None, announced: false, labels: Vec::new() }
    }

    fn announce(&mut self, family: &Family) {
        let Family { name, unit, help, kind } = family;
        // Format 0.0.4 names the sample, and its types are fewer.
        let (suffix, kind) = match (self.format, kind) {
            (_, Kind::Histogram) => ("", "histogram"),
            (_, Kind::Gauge) => ("", "gauge"),
            (Format::OpenMetrics, Kind::Counter) => ("", "counter"),
            (Format::OpenMetrics, Kind::Info) => ("", "info"),
            (_, Kind::Counter) => ("_total", "counter"),
            (_, Kind::Info) => ("_info", "gauge"),
        };
        let mut header = format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}\n");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            header.push_str(&format!("# UNIT {name} {unit}\n"));
        }
        self.out.extend_from_slice(header.as_bytes());
    }

    /// Everything of a line before its value.
    fn start(&mut self, name: &str, suffix: &str, le: Option<&str>) {
        let out = &mut self.out;
        out.extend_from_slice(name.as_bytes());
        out.extend_from_slice(suffix.as_bytes());
        out.push(b'{');
        if let Some(le) = le {
            out.extend_from_slice(b"le=\"");
            out.extend_from_slice(le.as_bytes());
            out.extend_from_slice(b"\",");
        }
        out.extend_from_slice(&self.labels);
        out.extend_from_slice(b"} ");
    }

    fn line(&mut self, name: &str, suffix: &str, value: u64) {
        self.start(name, suffix, None);
        write_number(&mut self.out, value);
        self.out.push(b'\n');
    }

    fn histogram(&mut self, name: &str, histogram: &Distribution<'_>) {
        self.start(name, "_sum", None);
        write_decimal(&mut self.out, histogram.sum, histogram.scale.per_unit);
        self.out.push(b'\n');
        self.line(name, "_count", histogram.counts.iter().sum());
        let (mut cumulative, mut exemplars) = (0, histogram.exemplars.iter().peekable());
        for ((bucket, le), count) in (0_u8..).zip(histogram.scale.le).zip(histogram.counts) {
            cumulative += count;
            self.start(name, "_bucket", Some(le));
            write_number(&mut self.out, cumulative);
            if let Some((_, exemplar)) = exemplars.next_if(|(of, _)| *of == bucket)
                && self.format == Format::OpenMetrics
            {
                write_exemplar(&mut self.out, exemplar, histogram.scale.per_unit);
            }
            self.out.push(b'\n');
        }
    }
}

impl Encoder for TextEncoder {
    fn begin(&mut self, family: Family) {
        (self.family, self.announced) = (Some(family), false);
    }

    fn sample(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), point: Point<'_>) {
        let family = self.family.expect("a family begins before its samples");
        if !std::mem::replace(&mut self.announced, true) {
            self.announce(&family);
        }
        self.labels.clear();
        labels(&mut |name, value| write_label(&mut self.labels, name, value));
        match point {
            Point::Counter { value, .. } => self.line(family.name, "_total", value),
            Point::Nanoseconds { value, .. } => {
                self.start(family.name, "_total", None);
                write_decimal(&mut self.out, value.into(), NANOSECONDS);
                self.out.push(b'\n');
            }
            Point::Gauge(value) => self.line(family.name, "", value),
            Point::Info => self.line(family.name, "_info", 1),
            Point::Histogram(histogram) => self.histogram(family.name, &histogram),
        }
    }

    fn end(&mut self) {}

    fn ready(&self) -> usize {
        self.out.len()
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

fn write_label(out: &mut Vec<u8>, name: &str, value: &str) {
    if !out.is_empty() {
        out.push(b',');
    }
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b"=\"");
    let mut plain = value.as_bytes();
    while let Some(at) = plain.iter().position(|byte| matches!(byte, b'"' | b'\\' | b'\n')) {
        let (before, rest) = plain.split_at(at);
        out.extend_from_slice(before);
        out.push(b'\\');
        out.push(if rest[0] == b'\n' { b'n' } else { rest[0] });
        plain = &rest[1..];
    }
    out.extend_from_slice(plain);
    out.push(b'"');
}

fn write_number(out: &mut Vec<u8>, number: u64) {
    out.extend_from_slice(itoa::Buffer::new().format(number).as_bytes());
}

/// `number / per_unit`, exactly; `per_unit` is a power of ten.
fn write_decimal(out: &mut Vec<u8>, number: u128, per_unit: u64) {
    let (whole, rest) = (number / u128::from(per_unit), number % u128::from(per_unit));
    out.extend_from_slice(itoa::Buffer::new().format(whole).as_bytes());
    if rest == 0 {
        return;
    }
    out.push(b'.');
    let digits = per_unit.ilog10() as usize;
    let mut rest = u64::try_from(rest).expect("a remainder is less than its divisor");
    let end = out.len() + digits;
    out.resize(end, b'0');
    for place in out[end - digits..].iter_mut().rev() {
        *place += u8::try_from(rest % 10).expect("a digit");
        rest /= 10;
    }
    let zeros = out.iter().rev().take_while(|byte| **byte == b'0').count();
    out.truncate(end - zeros);
}

/// ` # {labels} value time`. Names and values are 63 code points; 128 are allowed.
fn write_exemplar(out: &mut Vec<u8>, exemplar: &Exemplar, per_unit: u64) {
    const NANOSECONDS_PER_MILLISECOND: u64 = 1_000_000;
    out.extend_from_slice(b" # {trace_id=\"");
    write_hex(out, &exemplar.trace_id);
    out.extend_from_slice(b"\",span_id=\"");
    write_hex(out, &exemplar.span_id);
    out.extend_from_slice(b"\"} ");
    write_decimal(out, exemplar.value.into(), per_unit);
    out.push(b' ');
    let milliseconds = exemplar.time.get() / NANOSECONDS_PER_MILLISECOND;
    write_number(out, milliseconds / 1_000);
    out.push(b'.');
    let fraction = milliseconds % 1_000;
    out.extend([fraction / 100, fraction / 10 % 10, fraction % 10].map(|digit| b'0' + (digit as u8)));
}

pub(super) fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        out.push(DIGITS[usize::from(byte >> 4)]);
        out.push(DIGITS[usize::from(byte & 15)]);
    }
}

/// Takes prometheus-client's text and rewrites its comments for format 0.0.4.
#[derive(Debug)]
pub(super) struct AgentText {
    format: Format,
    out: String,
    /// Where the unfinished line starts in `out`.
    line: usize,
    /// Text of the last `# HELP` line, held back until the type is known (0.0.4 only).
    help: String,
}

impl AgentText {
    pub(super) fn new(format: Format) -> Self {
        Self { format, out: String::new(), line: 0, help: String::new() }
    }

    pub(super) fn finish(self) -> Vec<u8> {
        self.out.into_bytes()
    }

    fn end_line(&mut self) {
        if self.format == Format::Text {
            self.rewrite_comment();
        }
        if self.out.len() > self.line {
            self.out.push('\n');
        }
        self.line = self.out.len();
    }

    /// `# HELP` and `# TYPE` of format 0.0.4 carry the sample's name, and its types are fewer; no `# UNIT`.
    fn rewrite_comment(&mut self) {
        let Some(comment) = self.out[self.line..].strip_prefix("# ") else { return };
        let (keyword, rest) = comment.split_once(' ').unwrap_or((comment, ""));
        let rewritten = match (keyword, rest.split_once(' ')) {
            ("HELP", Some((_, help))) => {
                self.help.clear();
                self.help.push_str(help);
                String::new()
            }
            ("TYPE", Some((name, kind))) => {
                let (suffix, kind) = match kind {
                    "counter" => ("_total", "counter"),
                    "info" => ("_info", "gauge"),
                    "unknown" => ("", "untyped"),
                    other => ("", other),
                };
                let help = &self.help;
                format!("# HELP {name}{suffix} {help}\n# TYPE {name}{suffix} {kind}")
            }
            _ => String::new(),
        };
        self.out.truncate(self.line);
        self.out.push_str(&rewritten);
    }
}

impl fmt::Write for AgentText {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for piece in text.split_inclusive('\n') {
            match piece.strip_suffix('\n') {
                Some(rest) => {
                    self.out.push_str(rest);
                    self.end_line();
                }
                None => self.out.push_str(piece),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimals_are_exact() {
        fn check(number: u128, per_unit: u64, expected: &str) {
            let mut out = Vec::new();
            write_decimal(&mut out, number, per_unit);
            assert_eq!(String::from_utf8(out).expect("digits"), expected);
        }
        check(0, 1_000_000_000, "0");
        check(12_000_000, 1_000_000_000, "0.012");
        check(1, 1_000_000_000, "0.000000001");
        check(10_000_000_000, 1_000_000_000, "10");
        check(u128::from(u64::MAX) + 1, 1_000_000_000, "18446744073.709551616");
        check(700, 1, "700");
    }

    #[test]
    fn label_values_are_escaped() {
        let mut out = Vec::new();
        write_label(&mut out, "a", "we\"ird\n\\");
        write_label(&mut out, "b", "");
        assert_eq!(String::from_utf8(out).expect("text"), r#"a="we\"ird\n\\",b="""#);
    }
}
