//! A selection to export requests.
//!
//! In: a [`Selection`]. Out: [`Request`]s below a limit, each with all that it refers to; the same selection always
//! makes the same bytes. Refuses to know where they go.

use std::sync::Arc;

use foldhash::fast::RandomState;
use hashbrown::HashMap;
use opentelemetry_proto::tonic::common::v1::any_value::Value as Any;
use opentelemetry_proto::tonic::common::v1::{AnyValue, InstrumentationScope, KeyValue};
use opentelemetry_proto::tonic::profiles::v1development as otlp;
use opentelemetry_proto::tonic::resource::v1::Resource;
use prost::Message as _;
use uuid::{Uuid, uuid};

use super::dictionary::{Dictionary, Value, index};
use super::{CPU, LOST_SAMPLES, METHOD, REQUEST_BYTES, ROUTE, THREAD_ID, THREAD_NAME};
use crate::export::otlp::resource::{SCHEMA_URL, SCOPE_NAME, SCOPE_VERSION};
use crate::export::table::Interned;
use crate::profile::{Origin, Sample, SampleKind, SampleType, Selection};
use crate::span::AttributeValue;

/// A sample of more periods than this has a value instead of so many timestamps.
const REPEATED: u64 = 64;
/// Namespace of profile ids, made for them.
const PROFILE_IDS: Uuid = uuid!("0d2c7d6e-6a5f-4b52-9a3c-8f1f1c7c5c11");

/// An export request.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// `ExportProfilesServiceRequest`, which is `ProfilesData` as well.
    pub bytes: Vec<u8>,
    /// Profiles in it.
    pub n_profiles: u64,
}

/// Encodes a selection as requests that servers take by default. None when there is no sample.
#[must_use]
pub fn encode(selection: &Selection) -> Vec<Request> {
    encode_within(selection, REQUEST_BYTES)
}

/// The same with another limit in bytes. Only a request with a single sample can be larger.
#[must_use]
pub fn encode_within(selection: &Selection, limit: usize) -> Vec<Request> {
    let mut requests = Vec::new();
    let part = Part {
        start: selection.start,
        end: selection.end,
        samples: &selection.samples,
        lost: selection.lost,
        selection,
    };
    part.encode(limit, &mut requests);
    requests
}

/// Samples in a row.
#[derive(Clone, Copy)]
struct Part<'a> {
    start: u64,
    end: u64,
    samples: &'a [Sample],
    lost: u64,
    selection: &'a Selection,
}

impl Part<'_> {
    fn encode(self, limit: usize, out: &mut Vec<Request>) {
        if self.samples.is_empty() {
            return;
        }
        let (data, n_profiles) = self.data();
        if n_profiles == 0 {
            return;
        }
        let size = data.encoded_len();
        if size <= limit || self.samples.len() == 1 {
            out.push(Request { bytes: data.encode_to_vec(), n_profiles });
            return;
        }
        drop(data);
        // Tables are shared less in parts: they are made smaller than even division would.
        let n_parts = (size + size / 8) / limit + 1;
        let n_samples = self.samples.len().div_ceil(n_parts).min(self.samples.len() - 1);
        let mut rest = self;
        while rest.samples.len() > n_samples {
            let (first, second) = rest.split(n_samples);
            first.encode(limit, out);
            rest = second;
        }
        rest.encode(limit, out);
    }

    /// The first `n` samples and the others. Their times meet, but where both have samples of one moment.
    fn split(self, n: usize) -> (Self, Self) {
        let (before, after) = self.samples.split_at(n);
        let border = after[0].time;
        let last = before.iter().map(|sample| sample.time).max().unwrap_or(border);
        (
            Self { end: border.max(last.saturating_add(1)), samples: before, ..self },
            Self { start: border, samples: after, lost: 0, ..self },
        )
    }

    fn data(self) -> (otlp::ProfilesData, u64) {
        let mut builder = Builder::default();
        // A value of nothing says nothing.
        for sample in self.samples.iter().filter(|sample| sample.value > 0) {
            builder.push(sample, self.selection.type_of(sample.kind));
        }
        builder.finish(self)
    }

    /// The time that all samples lie in, whatever was promised.
    fn time(self) -> (u64, u64) {
        let times = self.samples.iter().map(|sample| sample.time);
        let start = times.clone().min().map_or(self.start, |first| first.min(self.start));
        let end = times.max().map_or(self.end, |last| last.saturating_add(1).max(self.end));
        (start, end)
    }
}

/// A request while it is made.
#[derive(Default)]
struct Builder<'a> {
    dictionary: Dictionary<'a>,
    groups: Vec<Group>,
    /// Groups by where their origin lies, and by what their resource is.
    origins: HashMap<*const Origin, usize, RandomState>,
    resources: HashMap<Vec<u8>, usize, RandomState>,
    sets: Interned<Vec<i32>>,
    threads: HashMap<Thread, (u32, i32), RandomState>,
    samples: HashMap<Identity, usize, RandomState>,
}

/// What decides about the attributes and the link of a sample.
#[derive(PartialEq, Eq, Hash)]
struct Thread {
    tid: u32,
    name: *const str,
    cpu: u32,
    link: *const crate::profile::Link,
}

/// What samples of one entry have in common.
#[derive(PartialEq, Eq, Hash)]
struct Identity {
    group: usize,
    list: usize,
    stack: u32,
    attributes: u32,
    link: i32,
}

/// Samples of one process.
struct Group {
    resource: Resource,
    /// `resource` in bytes.
    key: Vec<u8>,
    /// A list becomes a profile.
    lists: Vec<(List, Vec<otlp::Sample>)>,
}

/// Which samples of a process are in one profile.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct List {
    of: SampleType,
    form: Form,
}

/// How samples say how much they are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    /// By timestamps: one for each period.
    Timestamps,
    /// As many periods.
    Counts,
    /// By their value.
    Values,
}

impl<'a> Builder<'a> {
    fn push(&mut self, sample: &'a Sample, of: SampleType) {
        let group = self.group(&sample.origin);
        let stack = self.dictionary.stack(&sample.stack);
        let (attributes, link) = self.thread(sample);
        let sets = &self.sets;
        let entry = || otlp::Sample {
            stack_index: index(stack),
            attribute_indices: sets.entries()[attributes as usize].clone(),
            link_index: link,
            ..otlp::Sample::default()
        };
        let count = of.count(sample.value);
        let (form, value) = match (of.period, count) {
            (0, _) => (Form::Values, sample.value),
            // Waits are as long as they are; what is read of a moment is what it is.
            _ if of.kind == SampleKind::Wall || of.kind.is_of_moment() => (Form::Values, sample.value),
            (_, ..=REPEATED) => (Form::Timestamps, 0),
            _ => (Form::Counts, count),
        };
        let group_lists = &mut self.groups[group].lists;
        let list = place_of(group_lists, List { of, form });
        let samples = &mut group_lists[list].1;
        if form != Form::Timestamps {
            samples.push(otlp::Sample {
                values: vec![i64::try_from(value).unwrap_or(i64::MAX)],
                timestamps_unix_nano: vec![sample.time],
                ..entry()
            });
            return;
        }
        let identity = Identity { group, list, stack, attributes, link };
        let place = *self.samples.entry(identity).or_insert_with(|| {
            samples.push(entry());
            samples.len() - 1
        });
        samples[place].timestamps_unix_nano.extend((0..count).map(|_| sample.time));
    }

    fn group(&mut self, origin: &Arc<Origin>) -> usize {
        if let Some(group) = self.origins.get(&Arc::as_ptr(origin)) {
            return *group;
        }
        let resource = resource(origin);
        let key = resource.encode_to_vec();
        let groups = &mut self.groups;
        let group = *self.resources.entry(key).or_insert_with_key(|key| {
            groups.push(Group { resource, key: key.clone(), lists: Vec::new() });
            groups.len() - 1
        });
        self.origins.insert(Arc::as_ptr(origin), group);
        group
    }

    /// Attributes, as a set, and link of a sample.
    fn thread(&mut self, sample: &Sample) -> (u32, i32) {
        let Sample { tid, thread, cpu, link, .. } = sample;
        let link_place = link.as_ref().map_or(std::ptr::null(), Arc::as_ptr);
        let key = Thread { tid: *tid, name: Arc::as_ptr(thread), cpu: *cpu, link: link_place };
        if let Some(found) = self.threads.get(&key) {
            return *found;
        }
        let dictionary = &mut self.dictionary;
        let mut set = Vec::new();
        // What belongs to a process belongs to no thread.
        if !sample.kind.is_of_moment() {
            set.push(dictionary.attribute(THREAD_ID, Value::Int((*tid).into())));
            if !thread.is_empty() {
                set.push(dictionary.attribute(THREAD_NAME, Value::Text(thread.to_string())));
            }
            set.push(dictionary.attribute(CPU, Value::Int((*cpu).into())));
        }
        if let Some(link) = link.as_deref().filter(|link| !link.route.is_empty()) {
            let key = if link.route.starts_with('/') { ROUTE } else { METHOD };
            set.push(dictionary.attribute(key, Value::Text(link.route.to_string())));
        }
        let found = (self.sets.insert(set), dictionary.link(link.as_deref()));
        self.threads.insert(key, found);
        found
    }

    fn finish(self, part: Part<'_>) -> (otlp::ProfilesData, u64) {
        let Self { mut dictionary, groups, .. } = self;
        let (start, end) = part.time();
        let mut lost = part.lost;
        let mut n_profiles = 0;
        let mut resource_profiles = Vec::with_capacity(groups.len());
        for Group { resource, key, mut lists } in groups {
            let mut profiles = Vec::new();
            lists.sort_by_key(|(list, _)| *list);
            for (List { of, form }, samples) in lists {
                let lost = std::mem::take(&mut lost);
                let attribute_indices = if lost > 0 {
                    let lost = i64::try_from(lost).unwrap_or(i64::MAX);
                    vec![dictionary.attribute(LOST_SAMPLES, Value::Int(lost))]
                } else {
                    Vec::new()
                };
                let [low, high] = [start, end].map(u64::to_be_bytes);
                let number = of.kind as u8 * 3 + form as u8;
                let of_id = [&key[..], &low, &high, &[number]].concat();
                let (count, value) = (of.row().count, of.row().value);
                let sample_type = if form == Form::Values { value } else { count };
                profiles.push(otlp::Profile {
                    sample_type: Some(dictionary.value_type(sample_type)),
                    samples,
                    time_unix_nano: start,
                    duration_nano: end - start,
                    period_type: Some(dictionary.value_type(value)),
                    period: i64::try_from(of.period).unwrap_or(i64::MAX),
                    profile_id: Uuid::new_v5(&PROFILE_IDS, &of_id).as_bytes().to_vec(),
                    attribute_indices,
                    ..otlp::Profile::default()
                });
            }
            n_profiles += profiles.len() as u64;
            resource_profiles.push(otlp::ResourceProfiles {
                resource: Some(resource),
                scope_profiles: vec![otlp::ScopeProfiles {
                    scope: Some(InstrumentationScope {
                        name: SCOPE_NAME.to_owned(),
                        version: SCOPE_VERSION.to_owned(),
                        ..InstrumentationScope::default()
                    }),
                    profiles,
                    schema_url: SCHEMA_URL.to_owned(),
                }],
                schema_url: SCHEMA_URL.to_owned(),
            });
        }
        (otlp::ProfilesData { resource_profiles, dictionary: Some(dictionary.finish()) }, n_profiles)
    }
}

/// Where samples of this kind are listed.
fn place_of(lists: &mut Vec<(List, Vec<otlp::Sample>)>, wanted: List) -> usize {
    lists.iter().position(|(list, _)| *list == wanted).unwrap_or_else(|| {
        lists.push((wanted, Vec::new()));
        lists.len() - 1
    })
}

/// The resource of a process: that of its spans, with its number and its executable's name in any case.
fn resource(origin: &Origin) -> Resource {
    let mut attributes = Vec::new();
    origin.attributes(|key, value| {
        let value = match value {
            AttributeValue::Str(text) => Any::StringValue(text.to_owned()),
            AttributeValue::Text(text) => Any::StringValue(text.to_string()),
            AttributeValue::Int(number) => Any::IntValue(number),
            AttributeValue::Bool(yes) => Any::BoolValue(yes),
        };
        let value = Some(AnyValue { value: Some(value) });
        attributes.push(KeyValue { key: key.to_owned(), value, ..KeyValue::default() });
    });
    Resource { attributes, ..Resource::default() }
}
