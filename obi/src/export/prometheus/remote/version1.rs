//! Version 2 to version 1, for receivers that know only that.
//!
//! In: a [`Request`]. Out: the same content as a [`WriteRequest`], but for start times, which that version does not
//! have. Refuses to know which receivers these are.

use std::collections::BTreeMap;

use super::message::{
    Histogram, Label, Metadata, NamedExemplar, NamedMetadata, NamedSeries, Request, Sample, TimeSeries,
    WriteRequest,
};

/// `Metadata.kind` of histograms.
const HISTOGRAM: i32 = 3;

/// The same in version 1.
pub(super) fn of(request: &Request) -> WriteRequest {
    let (mut families, mut timeseries) = (BTreeMap::new(), Vec::with_capacity(request.timeseries.len()));
    for series in &request.timeseries {
        let mut of_series = named(series, request);
        if let Some(metadata) = series.metadata {
            let name = of_series.labels.iter().find(|label| label.name == "__name__");
            let name = name.map_or("", |label| family(&label.value, metadata));
            families.entry(name.to_owned()).or_insert(metadata);
        }
        // Receivers look at exemplars before histograms, and know no series then that is new: so they come behind.
        let are_apart = !of_series.histograms.is_empty() && !of_series.exemplars.is_empty();
        let exemplars = if are_apart { std::mem::take(&mut of_series.exemplars) } else { Vec::new() };
        let labels = of_series.labels.clone();
        timeseries.push(of_series);
        if are_apart {
            timeseries.push(NamedSeries { labels, exemplars, ..NamedSeries::default() });
        }
    }
    let text = |at: u32| symbol(request, at).to_owned();
    let metadata = families.into_iter().map(|(metric_family_name, Metadata { kind, help_ref, unit_ref })| {
        NamedMetadata { kind, metric_family_name, help: text(help_ref), unit: text(unit_ref) }
    });
    WriteRequest { timeseries, metadata: metadata.collect() }
}

fn named(series: &TimeSeries, request: &Request) -> NamedSeries {
    let exemplars = series.exemplars.iter().map(|exemplar| NamedExemplar {
        labels: labels(&exemplar.labels_refs, request),
        value: exemplar.value,
        timestamp: exemplar.timestamp,
    });
    let histograms = series.histograms.iter().cloned();
    NamedSeries {
        labels: labels(&series.labels_refs, request),
        samples: series.samples.iter().map(|sample| Sample { start_timestamp: 0, ..*sample }).collect(),
        exemplars: exemplars.collect(),
        histograms: histograms.map(|histogram| Histogram { start_timestamp: 0, ..histogram }).collect(),
    }
}

fn labels(pairs: &[u32], request: &Request) -> Vec<Label> {
    let text = |at: u32| symbol(request, at).to_owned();
    let pairs = pairs.as_chunks().0.iter();
    pairs.map(|[name, value]| Label { name: text(*name), value: text(*value) }).collect()
}

fn symbol(request: &Request, at: u32) -> &str {
    // A request comes back from a file now and then: a bad place in it is a text that is not there.
    usize::try_from(at).ok().and_then(|at| request.symbols.get(at)).map_or("", String::as_str)
}

/// The family that a series is of, by the names of classic histograms.
fn family(name: &str, metadata: Metadata) -> &str {
    const SUFFIXES: [&str; 3] = ["_bucket", "_count", "_sum"];
    let without = |suffix: &&str| name.strip_suffix(*suffix).filter(|_| metadata.kind == HISTOGRAM);
    SUFFIXES.iter().find_map(without).unwrap_or(name)
}
