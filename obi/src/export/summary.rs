//! A selection in numbers: whose time it was, in which requests, in which functions.
//!
//! In: a [`Selection`]. Out: a [`Summary`], to be written as JSON. Refuses to know HTTP.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;

use serde::ser::SerializeMap as _;
use serde::{Serialize, Serializer};

use super::flame::Total;
use crate::profile::sample_type::SampleUnit;
use crate::profile::unnamed::shown;
use crate::profile::waits::{Said, own_frames, said};
use crate::profile::{Fidelity, Link, Runtime, Sample, SampleType, Selection};

/// Entries of each list.
const TOP: usize = 100;

/// Everything.
#[derive(Debug, Serialize)]
pub struct Summary {
    /// First moment looked at, nanoseconds since the Unix epoch.
    pub start_unix_nano: u64,
    /// First moment behind it.
    pub end_unix_nano: u64,
    /// What one sample of a clock stands for.
    pub period_nanoseconds: u64,
    /// Samples of that time that were lost.
    pub lost: u64,
    /// All samples.
    #[serde(flatten)]
    pub total: Time,
    /// Why nothing should be concluded from so few samples, and what would help.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub warning: Option<String>,
    /// Of those: taken in a request whose span is known.
    pub linked: Time,
    /// Samples whose callers are not all known, by what their last frame says.
    pub truncated: BTreeMap<String, u64>,
    /// Frames by how they are named: `lines`, `function`, `address`.
    pub frames: BTreeMap<&'static str, u64>,
    /// Of waits: by reason, the most first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub reasons: Vec<ReasonTime>,
    /// By service, the most first.
    pub services: Vec<ServiceTime>,
    /// By service and route, the most first.
    pub routes: Vec<RouteTime>,
    /// By span, the most first.
    pub spans: Vec<SpanTime>,
    /// By function, the most in itself first; code without a name goes by its file. The time in themselves of all that
    /// are listed is all time, unless there are more than are listed.
    pub functions: Vec<FunctionTime>,
}

/// What some samples come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Time {
    /// What they are.
    pub of: SampleType,
    /// How many, what they stand for, and how far that may be off.
    pub total: Total,
}

impl Serialize for Time {
    /// The sum's name is that of its kind: `cpu_seconds`.
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let mut fields = out.serialize_map(Some(3))?;
        fields.serialize_entry("samples", &self.total.samples)?;
        fields.serialize_entry(self.of.row().field, &self.total.sum)?;
        let error = format!("standard_error{}", self.of.row().unit.suffix());
        fields.serialize_entry(&error, &self.total.error)?;
        fields.end()
    }
}

/// Of a reason to wait.
#[derive(Debug, Serialize)]
pub struct ReasonTime {
    /// As in the attributes of spans (`obi.blocked.<reason>_ns`); `running`: it is none.
    pub reason: String,
    /// Its time.
    #[serde(flatten)]
    pub time: Time,
}

/// Of a service.
#[derive(Debug, Serialize)]
pub struct ServiceTime {
    /// `service.name`.
    pub service: String,
    /// `service.namespace`.
    pub namespace: String,
    /// Its time.
    #[serde(flatten)]
    pub time: Time,
}

/// Of a route.
#[derive(Debug, Serialize)]
pub struct RouteTime {
    /// `service.name`.
    pub service: String,
    /// `http.route`.
    pub route: String,
    /// Its time.
    #[serde(flatten)]
    pub time: Time,
}

/// Of a span.
#[derive(Debug, Serialize)]
pub struct SpanTime {
    /// 32 hexadecimal digits.
    pub trace_id: String,
    /// 16 hexadecimal digits.
    pub span_id: String,
    /// `service.name`.
    pub service: String,
    /// `http.route`.
    pub route: String,
    /// Its time.
    #[serde(flatten)]
    pub time: Time,
    /// Where its profile is.
    pub profile: String,
    /// Where its trace is.
    pub trace: String,
}

/// Of a function.
#[derive(Debug)]
pub struct FunctionTime {
    /// Its name.
    pub function: String,
    /// The file it lies in.
    pub file: String,
    /// Whose code.
    pub runtime: Runtime,
    /// Of the following.
    pub unit: SampleUnit,
    /// In itself.
    pub own: f64,
    /// In itself and all that it calls.
    pub total: f64,
}

impl Serialize for FunctionTime {
    /// Names of values end as their unit has it: `self_seconds`.
    fn serialize<S: Serializer>(&self, out: S) -> Result<S::Ok, S::Error> {
        let Self { function, file, runtime, unit, own, total } = self;
        let mut fields = out.serialize_map(Some(5))?;
        fields.serialize_entry("function", function)?;
        fields.serialize_entry("file", file)?;
        fields.serialize_entry("runtime", runtime)?;
        fields.serialize_entry(&format!("self{}", unit.suffix()), own)?;
        fields.serialize_entry(&format!("total{}", unit.suffix()), total)?;
        fields.end()
    }
}

/// Path of a span's profile.
#[must_use]
pub fn profile_path(span_id: &[u8; 8]) -> String {
    format!("/api/v1/profiles?span={}", hex(span_id))
}

/// Path of the spans of a trace.
#[must_use]
pub fn trace_path(trace_id: &[u8; 16]) -> String {
    format!("/api/v1/spans?trace_id={}", hex(trace_id))
}

impl Summary {
    /// Adds a selection up.
    #[must_use]
    pub fn new(selection: &Selection) -> Self {
        let of = selection.shown_type();
        let time = |samples: &[&Sample]| Time {
            of,
            total: Total::of_values(of, samples.iter().map(|sample| sample.value)),
        };
        let all: Vec<&Sample> = selection.shown().collect();
        let linked: Vec<&Sample> = all.iter().copied().filter(|sample| sample.link.is_some()).collect();
        let services = most(group(&all, |sample| {
            let service = &sample.origin.service;
            Some((service.name.clone(), service.namespace.clone()))
        }));
        let reasons = most(group(&all, |sample| match said(sample.stack.frames.last()?)? {
            Said::Waiting(reason) => Some(reason.replace(' ', "_")),
            Said::Running => Some("running".to_owned()),
            Said::Other => None,
        }));
        let routes = most(group(&linked, |sample| {
            let link = sample.link.as_ref()?;
            Some((sample.origin.service.name.clone(), Arc::clone(&link.route)))
        }));
        let spans = most(group(&linked, |sample| {
            let link = sample.link.as_ref()?;
            Some((sample.origin.service.name.clone(), Link::clone(link)))
        }));
        let (frames, truncated) = frames(selection);
        Self {
            start_unix_nano: selection.start,
            end_unix_nano: selection.end,
            period_nanoseconds: of.period,
            lost: selection.lost,
            total: time(&all),
            warning: Total::of(selection).warning(),
            linked: time(&linked),
            truncated,
            frames,
            reasons: reasons
                .into_iter()
                .map(|(reason, samples)| ReasonTime { reason, time: time(&samples) })
                .collect(),
            services: services
                .into_iter()
                .map(|((service, namespace), samples)| ServiceTime {
                    service,
                    namespace,
                    time: time(&samples),
                })
                .collect(),
            routes: routes
                .into_iter()
                .map(|((service, route), samples)| RouteTime {
                    service,
                    route: route.to_string(),
                    time: time(&samples),
                })
                .collect(),
            spans: spans
                .into_iter()
                .map(|((service, link), samples)| SpanTime {
                    trace_id: hex(&link.trace_id),
                    span_id: hex(&link.span_id),
                    service,
                    route: link.route.to_string(),
                    time: time(&samples),
                    profile: profile_path(&link.span_id),
                    trace: trace_path(&link.trace_id),
                })
                .collect(),
            functions: functions(selection),
        }
    }
}

type Groups<'a, K> = BTreeMap<K, Vec<&'a Sample>>;

fn group<'a, K: Ord>(samples: &[&'a Sample], key: impl Fn(&Sample) -> Option<K>) -> Groups<'a, K> {
    let mut groups = Groups::new();
    for sample in samples {
        if let Some(key) = key(sample) {
            groups.entry(key).or_default().push(*sample);
        }
    }
    groups
}

/// Those with the largest values, the largest first; equal ones by their keys.
fn most<K>(groups: Groups<'_, K>) -> Vec<(K, Vec<&Sample>)> {
    let mut groups: Vec<_> = groups.into_iter().collect();
    let sum =
        |samples: &[&Sample]| samples.iter().fold(0_u64, |sum, sample| sum.saturating_add(sample.value));
    groups.sort_by_key(|(_, samples)| std::cmp::Reverse(sum(samples)));
    groups.truncate(TOP);
    groups
}

fn frames(selection: &Selection) -> (BTreeMap<&'static str, u64>, BTreeMap<String, u64>) {
    let (mut frames, mut truncated) = (BTreeMap::new(), BTreeMap::new());
    for sample in selection.shown() {
        for frame in &sample.stack.frames {
            if said(frame).is_some() {
                continue;
            }
            let word = match frame.symbol.fidelity {
                Fidelity::Lines => "lines",
                Fidelity::Function => "function",
                Fidelity::Address => "address",
                Fidelity::Marker => {
                    let name = frame.symbol.lines.first().map_or("", |line| &*line.function);
                    *truncated.entry(name.to_owned()).or_default() += 1;
                    continue;
                }
            };
            *frames.entry(word).or_default() += 1;
        }
    }
    (frames, truncated)
}

fn functions(selection: &Selection) -> Vec<FunctionTime> {
    /// Name, file, whose.
    type Key<'a> = (Arc<str>, &'a str, Runtime);
    let mut times = BTreeMap::<Key<'_>, (u64, u64)>::new();
    for sample in selection.shown() {
        // A function that calls itself is there once.
        let mut seen = BTreeSet::new();
        let mut is_leaf = true;
        for frame in own_frames(&sample.stack.frames) {
            let shown = shown(frame, &sample.origin.executable);
            // Callers that are not known are no function, unless nothing else is known of a sample.
            if frame.symbol.fidelity == Fidelity::Marker && !is_leaf {
                continue;
            }
            let file = frame.mapping.as_ref().map_or("", |mapping| &*mapping.path);
            let named = if shown.is_some() { &[] } else { frame.symbol.lines.as_slice() };
            for function in shown.into_iter().chain(named.iter().map(|line| Arc::clone(&line.function))) {
                let key = (function, file, frame.symbol.runtime);
                let time = times.entry(key.clone()).or_default();
                time.0 = time.0.saturating_add(if is_leaf { sample.value } else { 0 });
                is_leaf = false;
                if seen.insert(key) {
                    time.1 = time.1.saturating_add(sample.value);
                }
            }
        }
    }
    let unit = selection.shown_type().row().unit;
    let seconds = |value: u64| unit.shown(value as f64);
    let mut times: Vec<_> = times.into_iter().collect();
    times.sort_by_key(|(_, (own, total))| std::cmp::Reverse((*own, *total)));
    times.truncate(TOP);
    let function = |((function, file, runtime), (own, total)): (Key<'_>, (u64, u64))| FunctionTime {
        function: function.to_string(),
        file: file.to_owned(),
        runtime,
        unit,
        own: seconds(own),
        total: seconds(total),
    };
    times.into_iter().map(function).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string cannot fail");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::{Frame, Line, Origin, SampleKind, Stack, Symbol};

    const SECOND: u64 = 1_000_000_000;

    fn frame(names: &[&str], fidelity: Fidelity) -> Frame {
        let lines = names.iter().map(|name| Line { function: (*name).into(), ..Line::default() }).collect();
        let symbol = Arc::new(Symbol { lines, fidelity, runtime: Runtime::Native });
        Frame { address: 1, is_return: true, mapping: None, symbol }
    }

    fn sample(frames: Vec<Frame>, seconds: u64, span: u8) -> Sample {
        let route = "/a".into();
        let link = (span > 0).then(|| Arc::new(Link { trace_id: [span; 16], span_id: [span; 8], route }));
        Sample {
            kind: SampleKind::Cpu,
            value: seconds * SECOND,
            time: 1,
            origin: Arc::new(Origin::default()),
            stack: Arc::new(Stack { frames }),
            tid: 1,
            thread: "t".into(),
            cpu: 0,
            link,
        }
    }

    #[test]
    fn time_is_counted_once_whoever_calls_itself() {
        let named = |names: &[&str]| frame(names, Fidelity::Function);
        let samples = vec![
            sample(vec![named(&["walk"]), named(&["walk"]), named(&["main"])], 3, 1),
            sample(vec![named(&["inner", "walk"]), frame(&["[truncated: no rule]"], Fidelity::Marker)], 1, 2),
            sample(vec![frame(&[], Fidelity::Address), named(&["main"])], 1, 0),
        ];
        let types = vec![SampleType { kind: SampleKind::Cpu, period: SECOND }];
        let selection = Selection { start: 0, end: 2, types, samples, lost: 7 };
        let summary = Summary::new(&selection);
        let functions: Vec<_> = summary
            .functions
            .iter()
            .map(|function| (function.function.as_str(), function.own, function.total))
            .collect();
        // Code without a name is there, too: what functions took in themselves adds up to all time.
        let nameless = "[code without a file and without names]";
        assert_eq!(
            functions,
            [("walk", 3.0, 4.0), (nameless, 1.0, 1.0), ("inner", 1.0, 1.0), ("main", 0.0, 4.0)]
        );
        assert_eq!(functions.iter().map(|function| function.1).sum::<f64>(), summary.total.total.sum);
        assert!(summary.warning.is_some_and(|warning| warning.contains("few samples")));
        assert_eq!((summary.total.total.samples, summary.total.total.sum, summary.lost), (3, 5.0, 7));
        assert!((summary.total.total.error - 11_f64.sqrt()).abs() < 1e-9);
        assert_eq!((summary.linked.total.samples, summary.linked.total.sum), (2, 4.0));
        assert_eq!(summary.truncated, BTreeMap::from([("[truncated: no rule]".to_owned(), 1)]));
        assert_eq!(summary.frames, BTreeMap::from([("function", 5), ("address", 1)]));
        let spans: Vec<_> =
            summary.spans.iter().map(|span| (span.span_id.as_str(), span.time.total.samples)).collect();
        assert_eq!(spans, [("0101010101010101", 1), ("0202020202020202", 1)]);
        assert_eq!(summary.spans[0].profile, "/api/v1/profiles?span=0101010101010101");
    }
}
