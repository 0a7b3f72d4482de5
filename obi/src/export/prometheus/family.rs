//! What the families of spans are made of, for whichever format.
//!
//! In: nothing. Out: [`Family`], [`Point`] and the [`Encoder`] that takes them. Refuses to know formats and spans.

use crate::red::{
    BUCKETS, DATABASE_BOUNDS, DURATION_BOUNDS, Exemplar, Histogram, Native, QUEUE_WAIT_BOUNDS, SIZE_BOUNDS,
    SIZE_BUCKETS, Sizes,
};

/// Metric type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
    Info,
}

/// A metric family.
#[derive(Debug, Clone, Copy)]
pub(super) struct Family {
    /// With the unit, without `_total`, `_info` and the like.
    pub(super) name: &'static str,
    /// Empty when it has none.
    pub(super) unit: &'static str,
    pub(super) help: &'static str,
    pub(super) kind: Kind,
}

/// Bucket bounds as all formats need them.
#[derive(Debug)]
pub(super) struct Scale {
    /// Upper bounds without `+Inf`, whole numbers.
    pub(super) bounds: &'static [u64],
    /// The same as values of `le`, with `+Inf`.
    pub(super) le: &'static [&'static str],
    /// How many of the whole numbers make one of the metric's unit.
    pub(super) per_unit: u64,
}

pub(super) const NANOSECONDS: u64 = 1_000_000_000;

pub(super) static DURATIONS: Scale = Scale {
    bounds: &DURATION_BOUNDS,
    le: &[
        "0.005", "0.01", "0.025", "0.05", "0.075", "0.1", "0.25", "0.5", "0.75", "1.0", "2.5", "5.0", "7.5",
        "10.0", "+Inf",
    ],
    per_unit: NANOSECONDS,
};

pub(super) static DATABASE_DURATIONS: Scale = Scale {
    bounds: &DATABASE_BOUNDS,
    le: &[
        "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.5",
        "1.0", "5.0", "10.0", "+Inf",
    ],
    per_unit: NANOSECONDS,
};

pub(super) static QUEUE_WAITS: Scale = Scale {
    bounds: &QUEUE_WAIT_BOUNDS,
    le: &[
        "0.0001", "0.00025", "0.0005", "0.001", "0.0025", "0.005", "0.01", "0.025", "0.05", "0.1", "0.25",
        "0.5", "1.0", "2.5", "+Inf",
    ],
    per_unit: NANOSECONDS,
};

pub(super) static BODY_SIZES: Scale = Scale {
    bounds: &SIZE_BOUNDS,
    le: &["0.0", "128.0", "1024.0", "8192.0", "65536.0", "524288.0", "4194304.0", "33554432.0", "+Inf"],
    per_unit: 1,
};

/// One histogram.
#[derive(Debug, Clone, Copy)]
pub(super) struct Distribution<'a> {
    pub(super) scale: &'static Scale,
    /// Not cumulative.
    pub(super) counts: &'a [u64],
    /// In whole numbers of the scale.
    pub(super) sum: u128,
    /// By bucket.
    pub(super) exemplars: &'a [(u8, Exemplar)],
    pub(super) native: Option<&'a Native>,
    /// When it began, nanoseconds since the Unix epoch.
    pub(super) created: u64,
}

impl<'a> Distribution<'a> {
    /// Durations, with everything.
    pub(super) fn of(histogram: &'a Histogram, created: u64) -> Self {
        let Histogram { buckets, native, .. } = histogram;
        let (scale, counts, sum) = (&DURATIONS, buckets.counts(), buckets.sum());
        Self { scale, counts, sum, exemplars: histogram.exemplars(), native: Some(native), created }
    }

    /// Body sizes.
    pub(super) fn of_sizes(sizes: &'a Sizes, created: u64) -> Self {
        let (counts, sum): (&[u64; SIZE_BUCKETS], _) = (sizes.counts(), sizes.sum());
        Self { scale: &BODY_SIZES, counts, sum, exemplars: &[], native: None, created }
    }

    /// Queue waits.
    pub(super) fn of_waits(waits: &'a crate::red::Buckets, created: u64) -> Self {
        let (counts, sum): (&[u64; BUCKETS], _) = (waits.counts(), waits.sum());
        Self { scale: &QUEUE_WAITS, counts, sum, exemplars: &[], native: None, created }
    }
}

/// The value of one series.
#[derive(Debug, Clone, Copy)]
pub(super) enum Point<'a> {
    Counter {
        value: u64,
        /// When it began, nanoseconds since the Unix epoch.
        created: u64,
    },
    /// A counter of time.
    Nanoseconds {
        value: u64,
        /// When it began, nanoseconds since the Unix epoch.
        created: u64,
    },
    Gauge(u64),
    Info,
    Histogram(Distribution<'a>),
}

/// Takes one label.
pub(super) type LabelSink<'a> = dyn FnMut(&str, &str) + 'a;

/// Writes families in some format.
pub(super) trait Encoder {
    /// A family begins. Nothing is written for one without samples.
    fn begin(&mut self, family: Family);
    /// A series of the family: `labels` calls its argument with each label.
    fn sample(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), point: Point<'_>);
    /// The family is complete.
    fn end(&mut self);
    /// Bytes that [`Self::take`] would give now.
    fn ready(&self) -> usize;
    /// Hands over what is written so far.
    fn take(&mut self) -> Vec<u8>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_written_as_the_numbers_they_are() {
        for scale in [&DURATIONS, &QUEUE_WAITS, &BODY_SIZES] {
            let (last, rest) = scale.le.split_last().expect("+Inf");
            #[expect(clippy::cast_precision_loss, reason = "small numbers")]
            let bounds: Vec<_> = scale
                .bounds
                .iter()
                .map(|bound| format!("{:?}", *bound as f64 / scale.per_unit as f64))
                .collect();
            assert_eq!((rest, *last), (&*bounds.iter().map(String::as_str).collect::<Vec<_>>(), "+Inf"));
        }
    }
}
