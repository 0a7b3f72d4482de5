//! Counts to points of OTLP metrics.
//!
//! In: histograms, counts, attributes, times. Out: `Data` with one point in it, which can be joined. Refuses to know
//! names.

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::metrics::v1::exponential_histogram_data_point::Buckets as Exponents;
use opentelemetry_proto::tonic::metrics::v1::metric::Data;
use opentelemetry_proto::tonic::metrics::v1::{
    AggregationTemporality, Exemplar, ExponentialHistogram, ExponentialHistogramDataPoint, Histogram,
    HistogramDataPoint, NumberDataPoint, Sum, exemplar, number_data_point,
};

use crate::config::export::Histograms;
use crate::red::{self, Buckets, seconds};

const CUMULATIVE: i32 = AggregationTemporality::Cumulative as i32;

/// Since when and when, ns since the Unix epoch; a clock that was set back makes no point end before it starts.
#[derive(Debug, Clone, Copy)]
pub(super) struct Time {
    start: u64,
    now: u64,
}

impl Time {
    pub(super) fn new(start: u64, now: u64) -> Self {
        Self { start, now: now.max(start) }
    }
}

/// A histogram with explicit bounds, without attributes and times.
#[derive(Debug)]
pub(super) struct Explicit(HistogramDataPoint);

/// `bounds` and `sum` in the metric's unit.
pub(super) fn buckets<const N: usize>(buckets: &Buckets<N>, bounds: &[f64], sum: f64) -> Explicit {
    Explicit(HistogramDataPoint {
        count: buckets.count(),
        sum: Some(sum),
        bucket_counts: buckets.counts().to_vec(),
        explicit_bounds: bounds.to_vec(),
        ..HistogramDataPoint::default()
    })
}

impl Explicit {
    pub(super) fn of(self, attributes: Vec<KeyValue>, time: Time) -> Data {
        let point = HistogramDataPoint {
            attributes,
            start_time_unix_nano: time.start,
            time_unix_nano: time.now,
            ..self.0
        };
        Data::Histogram(Histogram { data_points: vec![point], aggregation_temporality: CUMULATIVE })
    }
}

/// Durations of spans in the kind of buckets that is wanted, with exemplars.
pub(super) fn durations(
    (histogram, bounds): (&red::Histogram, &red::Bounds),
    attributes: Vec<KeyValue>,
    time: Time,
    histograms: Histograms,
) -> Data {
    let exemplars = histogram.exemplars().iter().map(|(_, exemplar)| self::exemplar(exemplar)).collect();
    let sum = histogram.buckets.sum_seconds();
    match histograms {
        Histograms::Explicit => {
            let Explicit(point) = buckets(&histogram.buckets, &bounds.map(seconds), sum);
            Explicit(HistogramDataPoint { exemplars, ..point }).of(attributes, time)
        }
        Histograms::Exponential => {
            let native = &histogram.native;
            let point = ExponentialHistogramDataPoint {
                attributes,
                start_time_unix_nano: time.start,
                time_unix_nano: time.now,
                count: histogram.buckets.count(),
                sum: Some(sum),
                scale: native.schema().into(),
                zero_count: native.zero_count(),
                // An index names the lower bound here, the upper one there.
                positive: Some(Exponents {
                    offset: native.first_index() - 1,
                    bucket_counts: native.counts().to_vec(),
                }),
                exemplars,
                ..ExponentialHistogramDataPoint::default()
            };
            Data::ExponentialHistogram(ExponentialHistogram {
                data_points: vec![point],
                aggregation_temporality: CUMULATIVE,
            })
        }
    }
}

/// A count that only grows.
pub(super) fn calls(n: u64, attributes: Vec<KeyValue>, time: Time) -> Data {
    sum(n, attributes, time, true)
}

/// A time that only grows.
pub(super) fn time_spent(nanoseconds: u64, attributes: Vec<KeyValue>, time: Time) -> Data {
    sum_of(number_data_point::Value::AsDouble(seconds(nanoseconds)), attributes, time, true)
}

/// A count that goes up and down.
pub(super) fn gauge(n: u64, attributes: Vec<KeyValue>, time: Time) -> Data {
    sum(n, attributes, time, false)
}

fn sum(n: u64, attributes: Vec<KeyValue>, time: Time, is_monotonic: bool) -> Data {
    let value = number_data_point::Value::AsInt(i64::try_from(n).unwrap_or(i64::MAX));
    sum_of(value, attributes, time, is_monotonic)
}

fn sum_of(
    value: number_data_point::Value,
    attributes: Vec<KeyValue>,
    time: Time,
    is_monotonic: bool,
) -> Data {
    let point = NumberDataPoint {
        attributes,
        start_time_unix_nano: time.start,
        time_unix_nano: time.now,
        value: Some(value),
        ..NumberDataPoint::default()
    };
    Data::Sum(Sum { data_points: vec![point], aggregation_temporality: CUMULATIVE, is_monotonic })
}

/// Adds the points of `more` to `held`; gives them back where they are of another kind.
pub(super) fn join(held: &mut Data, more: Data) -> Option<Data> {
    match (held, more) {
        (Data::Histogram(held), Data::Histogram(more)) => held.data_points.extend(more.data_points),
        (Data::ExponentialHistogram(held), Data::ExponentialHistogram(more)) => {
            held.data_points.extend(more.data_points);
        }
        (Data::Sum(held), Data::Sum(more)) => held.data_points.extend(more.data_points),
        (_, more) => return Some(more),
    }
    None
}

fn exemplar(exemplar: &red::Exemplar) -> Exemplar {
    Exemplar {
        time_unix_nano: exemplar.time.get(),
        span_id: exemplar.span_id.to_vec(),
        trace_id: exemplar.trace_id.to_vec(),
        value: Some(exemplar::Value::AsDouble(seconds(exemplar.value))),
        ..Exemplar::default()
    }
}

/// A size as a double.
#[expect(clippy::cast_precision_loss, reason = "sizes of bodies stay far below 2^53 bytes")]
pub(super) fn rounded(bytes: u64) -> f64 {
    bytes as f64
}

/// A sum of sizes as a double.
#[expect(
    clippy::cast_precision_loss,
    reason = "the sum itself stays exact; the protocol has the nearest double"
)]
pub(super) fn rounded_sum(bytes: u128) -> f64 {
    bytes as f64
}

pub(super) fn text(key: &str, value: &str) -> KeyValue {
    attribute(key, Value::StringValue(value.to_owned()))
}

pub(super) fn attribute(key: &str, value: Value) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { value: Some(value) }), ..KeyValue::default() }
}
