//! The messages of remote write: `io.prometheus.write.v2.Request`, and `prometheus.WriteRequest` of version 1.
//!
//! In: nothing. Out: types that prost reads and writes, with the fields that we use and the numbers that the
//! specification gives them. Refuses to know what is sent.

use prost::{Message, Oneof};

/// What is sent, version 2. Fields 1 to 3 are those of version 1: a receiver of that version sees nothing.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Request {
    /// All texts, each once; the first one is empty.
    #[prost(string, repeated, tag = "4")]
    pub(crate) symbols: Vec<String>,
    #[prost(message, repeated, tag = "5")]
    pub(crate) timeseries: Vec<TimeSeries>,
}

/// A series with samples or histograms, never both.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TimeSeries {
    /// Name and value in turn, sorted by name.
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) labels_refs: Vec<u32>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) histograms: Vec<Histogram>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) exemplars: Vec<Exemplar>,
    #[prost(message, optional, tag = "5")]
    pub(crate) metadata: Option<Metadata>,
}

/// A value at a time; times are milliseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct Sample {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
    #[prost(int64, tag = "2")]
    pub(crate) timestamp: i64,
    /// When it began to count; 0 where that is not known or nothing is counted. Version 1 does not know it.
    #[prost(int64, tag = "3")]
    pub(crate) start_timestamp: i64,
}

/// A span that shows what was counted.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Exemplar {
    #[prost(uint32, repeated, tag = "1")]
    pub(crate) labels_refs: Vec<u32>,
    #[prost(double, tag = "2")]
    pub(crate) value: f64,
    #[prost(int64, tag = "3")]
    pub(crate) timestamp: i64,
}

/// What a series is. Types have the same numbers in both versions.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct Metadata {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(uint32, tag = "3")]
    pub(crate) help_ref: u32,
    #[prost(uint32, tag = "4")]
    pub(crate) unit_ref: u32,
}

/// A native histogram of whole counts without negative buckets; the same in both versions but for its start.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Histogram {
    #[prost(oneof = "Count", tags = "1")]
    pub(crate) count: Option<Count>,
    #[prost(double, tag = "3")]
    pub(crate) sum: f64,
    #[prost(sint32, tag = "4")]
    pub(crate) schema: i32,
    #[prost(double, tag = "5")]
    pub(crate) zero_threshold: f64,
    #[prost(oneof = "ZeroCount", tags = "6")]
    pub(crate) zero_count: Option<ZeroCount>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) positive_spans: Vec<BucketSpan>,
    #[prost(sint64, repeated, tag = "12")]
    pub(crate) positive_deltas: Vec<i64>,
    #[prost(int64, tag = "15")]
    pub(crate) timestamp: i64,
    #[prost(int64, tag = "17")]
    pub(crate) start_timestamp: i64,
}

/// Whole numbers, so that the receiver knows which kind of histogram it is even when nothing was counted.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum Count {
    #[prost(uint64, tag = "1")]
    Int(u64),
}

/// The same of the zero bucket.
#[derive(Clone, Copy, PartialEq, Eq, Oneof)]
pub(crate) enum ZeroCount {
    #[prost(uint64, tag = "6")]
    Int(u64),
}

/// Neighbouring buckets.
#[derive(Clone, Copy, PartialEq, Eq, Message)]
pub(crate) struct BucketSpan {
    /// Buckets between the span before and this one; of the first, its index.
    #[prost(sint32, tag = "1")]
    pub(crate) offset: i32,
    #[prost(uint32, tag = "2")]
    pub(crate) length: u32,
}

/// What is sent, version 1.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WriteRequest {
    #[prost(message, repeated, tag = "1")]
    pub(crate) timeseries: Vec<NamedSeries>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) metadata: Vec<NamedMetadata>,
}

/// A series of version 1.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamedSeries {
    #[prost(message, repeated, tag = "1")]
    pub(crate) labels: Vec<Label>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) samples: Vec<Sample>,
    #[prost(message, repeated, tag = "3")]
    pub(crate) exemplars: Vec<NamedExemplar>,
    #[prost(message, repeated, tag = "4")]
    pub(crate) histograms: Vec<Histogram>,
}

/// A label of version 1.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct Label {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

/// An exemplar of version 1.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct NamedExemplar {
    #[prost(message, repeated, tag = "1")]
    pub(crate) labels: Vec<Label>,
    #[prost(double, tag = "2")]
    pub(crate) value: f64,
    #[prost(int64, tag = "3")]
    pub(crate) timestamp: i64,
}

/// What a family is, version 1.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct NamedMetadata {
    #[prost(int32, tag = "1")]
    pub(crate) kind: i32,
    #[prost(string, tag = "2")]
    pub(crate) metric_family_name: String,
    #[prost(string, tag = "4")]
    pub(crate) help: String,
    #[prost(string, tag = "5")]
    pub(crate) unit: String,
}
