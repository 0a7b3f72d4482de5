//! Prometheus's protobuf format: delimited `io.prometheus.client.MetricFamily` messages, with native histograms.
//!
//! In: families of spans as samples. Out: bytes. A histogram carries its classic buckets, each with its exemplar, and
//! its exponential ones with the exemplars of its slowest buckets, so that the reader takes what it likes. Refuses to
//! know what the metrics mean.

use super::family::{Distribution, Encoder, Family, Kind, LabelSink, NANOSECONDS, Point};
use super::native;
use super::text::write_hex;
use super::wire::{double, message, number, packed_signed, signed, text, varint};
use crate::red::{Exemplar, Native, ZERO_THRESHOLD};

/// Writes families of spans as protobuf. A message begins with its length, so a family is handed over as a whole.
#[derive(Debug, Default)]
pub(super) struct ProtobufEncoder {
    out: Vec<u8>,
    /// `None` before the first family.
    family: Option<Family>,
    /// The family's message so far; empty before its first sample.
    message: Vec<u8>,
}

impl Encoder for ProtobufEncoder {
    fn begin(&mut self, family: Family) {
        self.family = Some(family);
        self.message.clear();
    }

    fn sample(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), point: Point<'_>) {
        const METRIC: u32 = 4;
        if self.message.is_empty() {
            announce(&mut self.message, &self.family.expect("a family begins before its samples"));
        }
        message(&mut self.message, METRIC, |out| {
            labels(&mut |name, value| write_label(out, name, value));
            write_point(out, &point);
        });
    }

    fn end(&mut self) {
        if !self.message.is_empty() {
            varint(&mut self.out, self.message.len() as u64);
            self.out.append(&mut self.message);
        }
    }

    fn ready(&self) -> usize {
        self.out.len()
    }

    fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

fn announce(out: &mut Vec<u8>, family: &Family) {
    let (suffix, kind) = match family.kind {
        Kind::Counter => ("_total", 0),
        Kind::Gauge => ("", 1),
        Kind::Info => ("_info", 1),
        Kind::Histogram => ("", 4),
    };
    text(out, 1, [family.name, suffix].concat().as_bytes());
    text(out, 2, family.help.as_bytes());
    number(out, 3, kind);
    if !family.unit.is_empty() {
        text(out, 5, family.unit.as_bytes());
    }
}

/// An empty value means that there is no such label.
fn write_label(out: &mut Vec<u8>, name: &str, value: &str) {
    if !value.is_empty() {
        message(out, 1, |out| {
            text(out, 1, name.as_bytes());
            text(out, 2, value.as_bytes());
        });
    }
}

#[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
fn write_point(out: &mut Vec<u8>, point: &Point<'_>) {
    match point {
        Point::Gauge(value) => message(out, 2, |out| double(out, 1, *value as f64)),
        Point::Info => message(out, 2, |out| double(out, 1, 1.0)),
        Point::Counter { value, created } => message(out, 3, |out| {
            double(out, 1, *value as f64);
            write_time(out, 3, *created);
        }),
        Point::Nanoseconds { value, created } => message(out, 3, |out| {
            double(out, 1, *value as f64 / NANOSECONDS as f64);
            write_time(out, 3, *created);
        }),
        Point::Histogram(histogram) => message(out, 7, |out| write_histogram(out, histogram)),
    }
}

#[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
fn write_histogram(out: &mut Vec<u8>, histogram: &Distribution<'_>) {
    let Distribution { scale, counts, exemplars, .. } = *histogram;
    let per_unit = scale.per_unit as f64;
    number(out, 1, counts.iter().sum());
    double(out, 2, histogram.sum as f64 / per_unit);
    let (mut cumulative, mut held) = (0, exemplars.iter().peekable());
    for (bucket, count) in (0_u8..).zip(counts) {
        cumulative += count;
        let bound =
            scale.bounds.get(usize::from(bucket)).map_or(f64::INFINITY, |bound| *bound as f64 / per_unit);
        message(out, 3, |out| {
            number(out, 1, cumulative);
            double(out, 2, bound);
            if let Some((_, exemplar)) = held.next_if(|(of, _)| *of == bucket) {
                message(out, 3, |out| write_exemplar(out, exemplar, per_unit));
            }
        });
    }
    write_time(out, 15, histogram.created);
    if let Some(native) = histogram.native {
        write_native(out, native);
        let mut chosen = native::exemplars(exemplars);
        // All of them belong to one series: Prometheus drops what is older than what it has.
        chosen.sort_unstable_by_key(|exemplar| exemplar.time);
        for exemplar in chosen {
            message(out, 16, |out| write_exemplar(out, exemplar, per_unit));
        }
    }
}

fn write_native(out: &mut Vec<u8>, native: &Native) {
    signed(out, 5, native.schema().into());
    double(out, 6, ZERO_THRESHOLD);
    number(out, 7, native.zero_count());
    if native.counts().is_empty() {
        // A span without buckets marks the histogram as a native one.
        return write_span(out, 0, 0);
    }
    native::spans(native, |offset, counts| write_span(out, offset.into(), counts.len()));
    message(out, 13, |out| {
        let mut before = 0;
        native::spans(native, |_, counts| {
            for count in counts {
                packed_signed(out, count.wrapping_sub(before).cast_signed());
                before = *count;
            }
        });
    });
}

fn write_span(out: &mut Vec<u8>, offset: i64, length: usize) {
    message(out, 12, |out| {
        signed(out, 1, offset);
        number(out, 2, length as u64);
    });
}

#[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
fn write_exemplar(out: &mut Vec<u8>, exemplar: &Exemplar, per_unit: f64) {
    let mut hex = Vec::with_capacity(32);
    for (name, id) in [("trace_id", &exemplar.trace_id[..]), ("span_id", &exemplar.span_id[..])] {
        hex.clear();
        write_hex(&mut hex, id);
        message(out, 1, |out| {
            text(out, 1, name.as_bytes());
            text(out, 2, &hex);
        });
    }
    double(out, 2, exemplar.value as f64 / per_unit);
    write_time(out, 3, exemplar.time.get());
}

fn write_time(out: &mut Vec<u8>, field: u32, nanoseconds: u64) {
    const PER_SECOND: u64 = 1_000_000_000;
    message(out, field, |out| {
        number(out, 1, nanoseconds / PER_SECOND);
        number(out, 2, nanoseconds % PER_SECOND);
    });
}
