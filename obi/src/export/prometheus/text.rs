//! The last step to text: prometheus-client's lines, with exemplars put in or made into format 0.0.4.
//!
//! In: OpenMetrics text in pieces, exemplars in the order of the bucket lines. Out: the exposition.
//! Refuses to know what the metrics mean.

use std::fmt::{self, Write};

use super::Format;
use crate::red::{Exemplar, seconds};

/// Collects lines. For every bucket line of the families in [`super::red::FAMILIES`] it takes one exemplar.
pub(super) struct Exposition<I> {
    format: Format,
    exemplars: I,
    out: String,
    /// Where the unfinished line starts in `out`.
    line: usize,
    /// Text of the last `# HELP` line, held back until the type is known (0.0.4 only).
    help: String,
}

impl<'a, I: Iterator<Item = Option<&'a Exemplar>>> Exposition<I> {
    pub(super) fn new(format: Format, exemplars: I, capacity: usize) -> Self {
        Self { format, exemplars, out: String::with_capacity(capacity), line: 0, help: String::new() }
    }

    pub(super) fn finish(self) -> String {
        self.out
    }

    fn end_line(&mut self) {
        match self.format {
            Format::OpenMetrics => self.attach_exemplar(),
            Format::Text => self.rewrite_comment(),
        }
        if self.out.len() > self.line {
            self.out.push('\n');
        }
        self.line = self.out.len();
    }

    fn attach_exemplar(&mut self) {
        let line = &self.out[self.line..];
        let is_bucket = super::red::FAMILIES.iter().any(|family| {
            line.strip_prefix(family.bucket_prefix).is_some_and(|rest| rest.starts_with("_bucket{"))
        });
        if let Some(exemplar) = is_bucket.then(|| self.exemplars.next().flatten()).flatten() {
            write_exemplar(&mut self.out, exemplar).expect("writing to a string cannot fail");
        }
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

/// ` # {labels} seconds time`. Names and values are 63 code points; 128 are allowed.
fn write_exemplar(out: &mut String, exemplar: &Exemplar) -> fmt::Result {
    let trace_id = u128::from_be_bytes(exemplar.trace_id);
    let span_id = u64::from_be_bytes(exemplar.span_id);
    let (second, millisecond) =
        (exemplar.time.get() / 1_000_000_000, exemplar.time.get() / 1_000_000 % 1_000);
    let value = seconds(exemplar.value);
    write!(
        out,
        " # {{trace_id=\"{trace_id:032x}\",span_id=\"{span_id:016x}\"}} {value} {second}.{millisecond:03}"
    )
}

impl<'a, I: Iterator<Item = Option<&'a Exemplar>>> Write for Exposition<I> {
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
