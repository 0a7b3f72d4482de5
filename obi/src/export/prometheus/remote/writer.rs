//! Families to requests of remote write, version 2.
//!
//! In: families and their series, one after the other. Out: packed requests of bounded size; which series there were.
//! Refuses to know where families come from, and where requests go.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher as _, Hasher as _};
use std::sync::Arc;

use foldhash::quality::RandomState;
use prost::Message as _;

use super::message::{
    BucketSpan, Count, Exemplar as Shown, Histogram, Metadata, Request, Sample, TimeSeries, ZeroCount,
};
use crate::config::remote_write::Buckets;
use crate::export::prometheus::family::{Distribution, Encoder, Family, Kind, LabelSink, NANOSECONDS, Point};
use crate::export::prometheus::native;
use crate::export::prometheus::text::write_hex;
use crate::red::{Exemplar, Native, ZERO_THRESHOLD};

/// Samples in a request, about: what Prometheus itself sends at most.
const REQUEST_SAMPLES: u64 = 2_000;

/// What says that a series has ended: a not-a-number of its own.
pub(super) const STALE: u64 = 0x7ff0_0000_0000_0002;

/// What is the same for all requests to a destination.
#[derive(Debug)]
pub(super) struct Form {
    /// Labels that every series gets unless it has them, sorted.
    pub(super) labels: Vec<(String, String)>,
    pub(super) buckets: Buckets,
    /// Makes one number of a series; keyed, as parts of it come from outside.
    pub(super) hasher: RandomState,
}

/// What was written, as numbers.
#[derive(Debug, Default)]
pub(super) struct Seen {
    pub(super) series: HashSet<u64>,
    pub(super) exemplars: HashSet<u64>,
}

/// What is written of the series that come.
#[derive(Debug, Clone, Copy)]
pub(super) enum What<'a> {
    /// Their values.
    Values,
    /// Their values, and that they end with them.
    LastValues,
    /// That they have ended, of those that are not here.
    EndedSince(&'a Seen),
    /// That all of them have ended.
    Ended,
}

/// A request that is ready to be sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Packed {
    /// In snappy's block format.
    pub(crate) bytes: Vec<u8>,
    /// Samples and histograms.
    pub(crate) n_samples: u64,
}

/// Everything about the moment.
#[derive(Debug)]
pub(super) struct Moment<'a> {
    /// Milliseconds since the Unix epoch.
    pub(super) now: i64,
    /// The same of the last time that values were written; 0 before the first.
    pub(super) before: i64,
    /// What was written then.
    pub(super) seen: &'a Seen,
    pub(super) what: What<'a>,
}

/// Writes families. What it has written is taken by [`Self::finish`].
#[derive(Debug)]
pub(super) struct Writer<'a> {
    form: &'a Form,
    moment: Moment<'a>,
    /// What is written now.
    pub(super) present: Seen,
    request: Request,
    places: HashMap<Arc<str>, u32, foldhash::fast::RandomState>,
    /// Names of the family by suffix, as far as they are in the request.
    names: Vec<(&'static str, u32)>,
    n_samples: u64,
    done: Vec<Packed>,
    family: Option<Described>,
}

/// A family as a request describes it.
#[derive(Debug, Clone)]
struct Described {
    name: String,
    help: String,
    unit: String,
    /// `Metadata.kind`.
    kind: i32,
}

/// Of one series: its labels, and what all its samples have.
struct Series {
    /// Places of names and values, sorted by name; without `__name__`.
    labels: Vec<[u32; 2]>,
    number: u64,
    metadata: Metadata,
    /// When it began to count; 0 where it does not.
    start: i64,
    /// When it was still zero, if the receiver has not seen it.
    zero: Option<i64>,
    /// Where among the labels `__name__` and `le` belong.
    name_at: usize,
    bound_at: usize,
}

impl<'a> Writer<'a> {
    pub(super) fn new(form: &'a Form, moment: Moment<'a>) -> Self {
        let mut writer = Self {
            form,
            moment,
            present: Seen::default(),
            request: Request::default(),
            places: HashMap::default(),
            names: Vec::new(),
            n_samples: 0,
            done: Vec::new(),
            family: None,
        };
        writer.begin_request();
        writer
    }

    /// What was written, and which series there are.
    pub(super) fn finish(mut self) -> (Vec<Packed>, Seen) {
        self.end_request();
        (self.done, self.present)
    }

    /// A family begins, by the name of its samples.
    pub(super) fn describe(&mut self, name: &str, (help, unit): (&str, &str), kind: i32) {
        self.names.clear();
        self.family =
            Some(Described { name: name.to_owned(), help: help.to_owned(), unit: unit.to_owned(), kind });
    }

    /// A series of one value. `start` is when it began to count, nanoseconds since the Unix epoch.
    pub(super) fn single(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), value: f64, start: Option<u64>) {
        let Some(series) = self.series(labels, start) else { return };
        self.push(&series, ("", None), value, Vec::new());
    }

    /// The series, unless nothing is to be written of it.
    fn series(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), start: Option<u64>) -> Option<Series> {
        if self.n_samples >= REQUEST_SAMPLES {
            self.end_request();
        }
        let family = self.family.clone()?;
        let mut pairs: Vec<(String, String)> = Vec::new();
        labels(&mut |name, value| {
            if !value.is_empty() {
                pairs.push((name.to_owned(), value.to_owned()));
            }
        });
        let own = self.form.labels.iter();
        let own: Vec<_> = own.filter(|(name, _)| pairs.iter().all(|(taken, _)| taken != name)).collect();
        pairs.extend(own.into_iter().cloned());
        pairs.sort_unstable();
        let number = self.number(&family, &pairs);
        match self.moment.what {
            What::EndedSince(present) if present.series.contains(&number) => return None,
            What::EndedSince(_) | What::Ended => {}
            What::Values | What::LastValues => {
                self.present.series.insert(number);
            }
        }
        let before = |label: &str| pairs.partition_point(|(name, _)| name.as_str() < label);
        let (name_at, bound_at) = (before("__name__"), before("le"));
        let labels = pairs.iter().map(|(name, value)| [self.place(name), self.place(value)]).collect();
        let metadata = Metadata {
            kind: family.kind,
            help_ref: self.place(&family.help),
            unit_ref: self.place(&family.unit),
        };
        let start = start.map_or(0, milliseconds);
        let zero = self.zero(number, start);
        Some(Series { labels, number, metadata, start, zero, name_at, bound_at })
    }

    /// `rate()` sees nothing of a value that comes from nowhere: so a series that is new to the receiver begins with
    /// the zero that it was, just before it began to count.
    fn zero(&self, number: u64, start: i64) -> Option<i64> {
        let Moment { now, before, seen, .. } = self.moment;
        let at = (start - 1).max(before + 1);
        let is_wanted = matches!(self.moment.what, What::Values | What::LastValues);
        (is_wanted && start > 0 && at < now && !seen.series.contains(&number)).then_some(at)
    }

    fn number(&self, family: &Described, pairs: &[(String, String)]) -> u64 {
        let mut hasher = self.form.hasher.build_hasher();
        let texts = pairs.iter().flat_map(|(name, value)| [name, value]);
        for text in std::iter::once(&family.name).chain(texts) {
            hasher.write_usize(text.len());
            hasher.write(text.as_bytes());
        }
        hasher.finish()
    }

    /// Where a text is in the request.
    fn place(&mut self, text: &str) -> u32 {
        if let Some(place) = self.places.get(text) {
            return *place;
        }
        let place = u32::try_from(self.request.symbols.len()).expect("a request has few texts");
        self.request.symbols.push(text.to_owned());
        self.places.insert(text.into(), place);
        place
    }

    /// Name and labels of a sample, sorted.
    fn labels(&mut self, series: &Series, (suffix, le): (&'static str, Option<&str>)) -> Vec<u32> {
        let mut pairs = Vec::with_capacity(series.labels.len() + 2);
        pairs.extend_from_slice(&series.labels);
        // `__name__` sorts before `le`: its place holds when that is there.
        if let Some(le) = le {
            pairs.insert(series.bound_at, [self.place("le"), self.place(le)]);
        }
        pairs.insert(series.name_at, [self.place("__name__"), self.name(suffix)]);
        pairs.into_flattened()
    }

    /// Where the family's name with this suffix is in the request.
    fn name(&mut self, suffix: &'static str) -> u32 {
        if let Some((_, place)) = self.names.iter().find(|(of, _)| *of == suffix) {
            return *place;
        }
        let name = self.family.as_ref().map_or_else(String::new, |family| format!("{}{suffix}", family.name));
        let place = self.place(&name);
        self.names.push((suffix, place));
        place
    }

    fn push(&mut self, series: &Series, of: (&'static str, Option<&str>), value: f64, exemplars: Vec<Shown>) {
        let (now, start_timestamp) = (self.moment.now, series.start);
        let sample = |value, timestamp| Sample { value, timestamp, start_timestamp };
        let stale = |timestamp| Sample { value: f64::from_bits(STALE), timestamp, start_timestamp: 0 };
        let samples = match self.moment.what {
            What::EndedSince(_) | What::Ended => vec![stale(now)],
            What::Values => {
                series.zero.map(|at| sample(0.0, at)).into_iter().chain([sample(value, now)]).collect()
            }
            What::LastValues => {
                let values = series.zero.map(|at| sample(0.0, at)).into_iter().chain([sample(value, now)]);
                values.chain([stale(now + 1)]).collect()
            }
        };
        let labels_refs = self.labels(series, of);
        self.n_samples += samples.len() as u64;
        let metadata = Some(series.metadata);
        self.request.timeseries.push(TimeSeries {
            labels_refs,
            samples,
            exemplars,
            metadata,
            ..TimeSeries::default()
        });
    }

    #[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
    fn classic(&mut self, series: &Series, histogram: &Distribution<'_>) {
        let per_unit = histogram.scale.per_unit as f64;
        let count: u64 = histogram.counts.iter().sum();
        self.push(series, ("_count", None), count as f64, Vec::new());
        self.push(series, ("_sum", None), histogram.sum as f64 / per_unit, Vec::new());
        let (mut cumulative, mut held) = (0_u64, histogram.exemplars.iter().peekable());
        for ((bucket, le), count) in (0_u8..).zip(histogram.scale.le).zip(histogram.counts) {
            cumulative += count;
            let exemplar = held.next_if(|(of, _)| *of == bucket);
            let exemplar =
                exemplar.and_then(|(_, exemplar)| self.exemplar(series, exemplar, ("le", per_unit)));
            self.push(
                series,
                ("_bucket", Some(&bound(le))),
                cumulative as f64,
                exemplar.into_iter().collect(),
            );
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
    fn native(&mut self, series: &Series, histogram: &Distribution<'_>, native: &Native) {
        let per_unit = histogram.scale.per_unit as f64;
        let (now, start_timestamp) = (self.moment.now, series.start);
        let whole = || {
            let (positive_spans, positive_deltas) = buckets(native);
            Histogram {
                count: Some(Count::Int(histogram.counts.iter().sum())),
                sum: histogram.sum as f64 / per_unit,
                zero_count: Some(ZeroCount::Int(native.zero_count())),
                positive_spans,
                positive_deltas,
                ..empty(native.schema(), (now, start_timestamp))
            }
        };
        let zero = series.zero.map(|at| empty(native.schema(), (at, start_timestamp)));
        let stale = |at| Histogram { sum: f64::from_bits(STALE), ..empty(native.schema(), (at, 0)) };
        let histograms: Vec<Histogram> = match self.moment.what {
            What::EndedSince(_) | What::Ended => vec![stale(now)],
            What::Values => zero.into_iter().chain([whole()]).collect(),
            What::LastValues => zero.into_iter().chain([whole(), stale(now + 1)]).collect(),
        };
        let mut chosen = native::exemplars(histogram.exemplars);
        // Receivers drop what is older than what they have of a series.
        chosen.sort_unstable_by_key(|exemplar| exemplar.time);
        let exemplars = chosen
            .into_iter()
            .filter_map(|exemplar| self.exemplar(series, exemplar, ("", per_unit)))
            .collect();
        let labels_refs = self.labels(series, ("", None));
        self.n_samples += histograms.len() as u64;
        let metadata = Some(series.metadata);
        self.request.timeseries.push(TimeSeries {
            labels_refs,
            histograms,
            exemplars,
            metadata,
            ..TimeSeries::default()
        });
    }

    /// An exemplar, the first time that it is seen: receivers want each once. `of`: whether a bucket's or a
    /// histogram's.
    #[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
    fn exemplar(
        &mut self,
        series: &Series,
        exemplar: &Exemplar,
        (of, per_unit): (&str, f64),
    ) -> Option<Shown> {
        if !matches!(self.moment.what, What::Values | What::LastValues) {
            return None;
        }
        let mut hasher = self.form.hasher.build_hasher();
        hasher.write_u64(series.number);
        hasher.write(of.as_bytes());
        hasher.write(&exemplar.trace_id);
        hasher.write(&exemplar.span_id);
        let number = hasher.finish();
        self.present.exemplars.insert(number);
        if self.moment.seen.exemplars.contains(&number) {
            return None;
        }
        // Sorted by name.
        let ids = [("span_id", &exemplar.span_id[..]), ("trace_id", &exemplar.trace_id[..])];
        let labels_refs = ids.into_iter().flat_map(|(name, id)| {
            let mut hex = Vec::with_capacity(32);
            write_hex(&mut hex, id);
            [self.place(name), self.place(&String::from_utf8_lossy(&hex))]
        });
        let labels_refs = labels_refs.collect();
        let timestamp = milliseconds(exemplar.time.get());
        Some(Shown { labels_refs, value: exemplar.value as f64 / per_unit, timestamp })
    }

    fn begin_request(&mut self) {
        self.places.clear();
        self.names.clear();
        self.request = Request::default();
        // The first text is the empty one.
        self.place("");
        self.n_samples = 0;
    }

    fn end_request(&mut self) {
        if self.n_samples > 0 {
            let bytes = pack(&self.request.encode_to_vec());
            self.done.push(Packed { bytes, n_samples: self.n_samples });
        }
        self.begin_request();
    }
}

impl Encoder for Writer<'_> {
    fn begin(&mut self, family: Family) {
        // The names of samples, as in the other formats; the numbers of the specification.
        let (suffix, kind) = match family.kind {
            Kind::Counter => ("_total", 1),
            Kind::Gauge => ("", 2),
            Kind::Histogram => ("", 3),
            Kind::Info => ("_info", 6),
        };
        self.describe(&[family.name, suffix].concat(), (family.help, family.unit), kind);
    }

    #[expect(clippy::cast_precision_loss, reason = "the format has doubles")]
    fn sample(&mut self, labels: &dyn Fn(&mut LabelSink<'_>), point: Point<'_>) {
        match point {
            Point::Gauge(value) => self.single(labels, value as f64, None),
            Point::Info => self.single(labels, 1.0, None),
            Point::Counter { value, created } => self.single(labels, value as f64, Some(created)),
            Point::Nanoseconds { value, created } => {
                self.single(labels, value as f64 / NANOSECONDS as f64, Some(created));
            }
            Point::Histogram(histogram) => {
                let Some(series) = self.series(labels, Some(histogram.created)) else { return };
                let native = histogram.native.filter(|_| self.form.buckets != Buckets::Classic);
                // What has no native buckets goes as it can.
                if native.is_none() || self.form.buckets != Buckets::Native {
                    self.classic(&series, &histogram);
                }
                if let Some(native) = native {
                    self.native(&series, &histogram, native);
                }
            }
        }
    }

    fn end(&mut self) {}

    /// Requests have their own bounds.
    fn ready(&self) -> usize {
        0
    }

    /// Requests are taken by [`Writer::finish`].
    fn take(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Bytes in snappy's block format.
pub(super) fn pack(bytes: &[u8]) -> Vec<u8> {
    snap::raw::Encoder::new().compress_vec(bytes).expect("a request is far below 4 GiB")
}

/// A bound as Prometheus 3 writes it, in whichever format it was scraped: from a million on with an exponent.
fn bound(le: &str) -> Cow<'_, str> {
    match le.parse::<f64>() {
        Ok(number) if number.is_finite() && number >= 1e6 => {
            let text = format!("{number:e}");
            let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
            format!("{mantissa}e+{exponent:0>2}").into()
        }
        _ => le.into(),
    }
}

fn milliseconds(nanoseconds: u64) -> i64 {
    i64::try_from(nanoseconds / 1_000_000).expect("a number divided by a million")
}

/// A histogram that has counted nothing.
fn empty(schema: i8, (timestamp, start_timestamp): (i64, i64)) -> Histogram {
    Histogram {
        count: Some(Count::Int(0)),
        schema: schema.into(),
        zero_threshold: ZERO_THRESHOLD,
        zero_count: Some(ZeroCount::Int(0)),
        timestamp,
        start_timestamp,
        ..Histogram::default()
    }
}

fn buckets(native: &Native) -> (Vec<BucketSpan>, Vec<i64>) {
    let (mut spans, mut deltas, mut before) = (Vec::new(), Vec::new(), 0_u64);
    native::spans(native, |offset, counts| {
        let length = u32::try_from(counts.len()).expect("histograms have few buckets");
        spans.push(BucketSpan { offset, length });
        for count in counts {
            deltas.push(count.wrapping_sub(before).cast_signed());
            before = *count;
        }
    });
    (spans, deltas)
}
