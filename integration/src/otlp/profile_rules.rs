//! What must hold of a message with profiles: the rules of the official conformance checker, those that it has not got
//! yet, and what receivers demand beyond.
//!
//! In: a message. Out: the places that break a rule, in words. Refuses to know what the samples mean.
//!
//! The official checker is `profcheck` of OpenTelemetry's profiling group; its rules are [`violations`]. [`strict`]
//! adds uniqueness of everything, references to everything, names of functions, build ids, addresses inside mappings,
//! and what Pyroscope and Parca refuse.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::Hash;

use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{
    Location, Mapping, Profile, ProfilesData, ProfilesDictionary, Sample, ValueType,
};

/// Collects what is wrong, with its place.
#[derive(Default)]
struct Report(Vec<String>);

impl Report {
    fn expect(&mut self, holds: bool, wrong: impl FnOnce() -> String) {
        if !holds {
            self.0.push(wrong());
        }
    }

    fn index(&mut self, index: i32, len: usize, place: impl FnOnce() -> String) {
        let inside = usize::try_from(index).is_ok_and(|index| index < len);
        self.expect(inside, || format!("{}: {index} is outside of a table of {len}", place()));
    }
}

/// What the official checker would refuse, with its check of sample shapes.
#[must_use]
pub fn violations(data: &ProfilesData) -> Vec<String> {
    let mut report = Report::default();
    let Some(dictionary) = &data.dictionary else { return vec!["there is no dictionary".to_owned()] };
    report.expect(!data.resource_profiles.is_empty(), || "there is no resource".to_owned());
    for (n, resource) in data.resource_profiles.iter().enumerate() {
        report.expect(!resource.scope_profiles.is_empty(), || format!("resource {n} has no scope"));
        for scope in &resource.scope_profiles {
            report.expect(!scope.profiles.is_empty(), || format!("a scope of resource {n} has no profile"));
            for profile in &scope.profiles {
                check_profile(profile, dictionary, &mut report);
            }
        }
    }
    check_dictionary(dictionary, &mut report);
    report.0
}

/// The same, and everything else that should hold of what we send.
#[must_use]
pub fn strict(data: &ProfilesData) -> Vec<String> {
    let mut report = Report(violations(data));
    // Further rules follow references, which must lead somewhere.
    if let (true, Some(dictionary)) = (report.0.is_empty(), &data.dictionary) {
        check_unique(dictionary, &mut report);
        check_referenced(data, dictionary, &mut report);
        check_content(dictionary, &mut report);
        for resource in &data.resource_profiles {
            let attributes = resource.resource.iter().flat_map(|resource| &resource.attributes);
            let mut attributes = attributes.peekable();
            report.expect(attributes.peek().is_some(), || "a resource has no attributes".to_owned());
            for attribute in attributes {
                let value = attribute.value.as_ref().and_then(|value| value.value.as_ref());
                let plain = !attribute.key.is_empty()
                    && attribute.key_strindex == 0
                    && value.is_some_and(|value| !matches!(value, Value::StringValueStrindex(_)));
                report.expect(plain, || format!("{attribute:?} of a resource is not plain text"));
            }
            for scope in &resource.scope_profiles {
                let named = scope.scope.as_ref().is_some_and(|scope| !scope.name.is_empty());
                report.expect(named, || "a scope has no name".to_owned());
                scope.profiles.iter().for_each(|profile| check_safe(profile, &mut report));
            }
        }
    }
    report.0
}

fn check_profile(profile: &Profile, dictionary: &ProfilesDictionary, report: &mut Report) {
    check_attributes(&profile.attribute_indices, dictionary, report, || "profile".to_owned());
    for value_type in [&profile.sample_type, &profile.period_type].into_iter().flatten() {
        let ValueType { type_strindex, unit_strindex } = value_type;
        for index in [type_strindex, unit_strindex] {
            report.index(*index, dictionary.string_table.len(), || "value type".to_owned());
        }
    }
    let time = profile.time_unix_nano..profile.time_unix_nano.saturating_add(profile.duration_nano);
    let mut shape = None;
    for (n, sample) in profile.samples.iter().enumerate() {
        report.index(sample.stack_index, dictionary.stack_table.len(), || format!("stack of sample {n}"));
        report.index(sample.link_index, dictionary.link_table.len(), || format!("link of sample {n}"));
        check_attributes(&sample.attribute_indices, dictionary, report, || format!("sample {n}"));
        for moment in &sample.timestamps_unix_nano {
            report.expect(time.contains(moment), || format!("sample {n}: {moment} is outside of {time:?}"));
        }
        check_shape(sample, &mut shape, n, report);
    }
}

/// Values, timestamps, or as many of both; all samples alike.
fn check_shape(sample: &Sample, expected: &mut Option<(bool, bool)>, n: usize, report: &mut Report) {
    let (n_values, n_times) = (sample.values.len(), sample.timestamps_unix_nano.len());
    let shape = (n_values > 0, n_times > 0);
    match shape {
        (false, false) => report.expect(false, || format!("sample {n} has neither values nor timestamps")),
        (true, false) => {
            report.expect(n_values == 1, || format!("sample {n} has {n_values} values, not one"))
        }
        (true, true) => {
            report.expect(n_values == n_times, || {
                format!("sample {n}: {n_values} values, {n_times} timestamps")
            });
        }
        (false, true) => {}
    }
    let expected = *expected.get_or_insert(shape);
    report.expect(shape == expected, || format!("sample {n} has another shape than the first"));
}

fn check_attributes(
    indices: &[i32],
    dictionary: &ProfilesDictionary,
    report: &mut Report,
    of: impl Fn() -> String,
) {
    let mut keys = HashSet::new();
    for index in indices {
        report.index(*index, dictionary.attribute_table.len(), || format!("attribute of {}", of()));
        let place = usize::try_from(*index).ok();
        if let Some(attribute) = place.and_then(|place| dictionary.attribute_table.get(place)) {
            let is_new = keys.insert(attribute.key_strindex);
            report.expect(is_new, || format!("{} has an attribute twice", of()));
        }
    }
}

fn check_dictionary(dictionary: &ProfilesDictionary, report: &mut Report) {
    let ProfilesDictionary {
        mapping_table,
        location_table,
        function_table,
        link_table,
        string_table,
        attribute_table,
        stack_table,
    } = dictionary;
    zero_first(mapping_table, "mapping", report);
    zero_first(location_table, "location", report);
    zero_first(function_table, "function", report);
    zero_first(link_table, "link", report);
    zero_first(string_table, "string", report);
    // A Collector writes the empty value as one that holds nothing.
    let is_empty = attribute_table.first().is_some_and(|first| {
        let held = first.value.as_ref().and_then(|value| value.value.as_ref());
        (first.key_strindex, first.unit_strindex) == (0, 0) && held.is_none()
    });
    report.expect(is_empty, || format!("the attribute table begins with {:?}", attribute_table.first()));
    zero_first(stack_table, "stack", report);
    let n_texts = string_table.len();
    for (n, Mapping { memory_start, memory_limit, filename_strindex, attribute_indices, .. }) in
        mapping_table.iter().enumerate()
    {
        let is_range = memory_start < memory_limit || (*memory_start, *memory_limit) == (0, 0);
        report.expect(is_range, || format!("mapping {n}: {memory_start:x}..{memory_limit:x} is no range"));
        report.index(*filename_strindex, n_texts, || format!("file of mapping {n}"));
        check_attributes(attribute_indices, dictionary, report, || format!("mapping {n}"));
    }
    for (n, location) in location_table.iter().enumerate() {
        report.index(location.mapping_index, mapping_table.len(), || format!("mapping of location {n}"));
        check_attributes(&location.attribute_indices, dictionary, report, || format!("location {n}"));
        for line in &location.lines {
            report.index(line.function_index, function_table.len(), || format!("function of location {n}"));
            let positive = line.line >= 0 && line.column >= 0;
            report.expect(positive, || format!("location {n}: a line or column below 0"));
        }
    }
    for (n, function) in function_table.iter().enumerate() {
        for index in [function.name_strindex, function.system_name_strindex, function.filename_strindex] {
            report.index(index, n_texts, || format!("text of function {n}"));
        }
        report.expect(function.start_line >= 0, || format!("function {n} starts below line 0"));
    }
    for (n, link) in link_table.iter().enumerate().skip(1) {
        let lengths = (link.trace_id.len(), link.span_id.len());
        report.expect(lengths == (16, 8), || format!("link {n} has ids of {lengths:?} bytes"));
    }
    for (n, attribute) in attribute_table.iter().enumerate() {
        for index in [attribute.key_strindex, attribute.unit_strindex] {
            report.index(index, n_texts, || format!("text of attribute {n}"));
        }
    }
    for (n, stack) in stack_table.iter().enumerate() {
        for index in &stack.location_indices {
            report.index(*index, location_table.len(), || format!("location of stack {n}"));
        }
    }
}

fn zero_first<T: Default + PartialEq + Debug>(table: &[T], name: &str, report: &mut Report) {
    let first = table.first();
    report.expect(first == Some(&T::default()), || format!("the {name} table begins with {first:?}"));
}

fn check_unique(dictionary: &ProfilesDictionary, report: &mut Report) {
    let mut count = |name: &str, n: usize, n_distinct: usize| {
        report
            .expect(n == n_distinct, || format!("{} entries of the {name} table are double", n - n_distinct));
    };
    fn distinct<T: Hash + Eq>(table: &[T]) -> usize {
        table.iter().collect::<HashSet<_>>().len()
    }
    let ProfilesDictionary { mapping_table, location_table, function_table, .. } = dictionary;
    let ProfilesDictionary { link_table, string_table, attribute_table, stack_table, .. } = dictionary;
    count("mapping", mapping_table.len(), distinct(mapping_table));
    let locations: Vec<String> = location_table.iter().map(|location| format!("{location:?}")).collect();
    count("location", locations.len(), distinct(&locations));
    count("function", function_table.len(), distinct(function_table));
    count("link", link_table.len(), distinct(link_table));
    count("string", string_table.len(), distinct(string_table));
    let attributes: Vec<String> = attribute_table.iter().map(|attribute| format!("{attribute:?}")).collect();
    count("attribute", attributes.len(), distinct(&attributes));
    count("stack", stack_table.len(), distinct(stack_table));
}

/// Every entry of every table is there for something.
fn check_referenced(data: &ProfilesData, dictionary: &ProfilesDictionary, report: &mut Report) {
    let (mut texts, mut attributes) = (HashSet::from([0]), HashSet::from([0]));
    let (mut mappings, mut functions) = (HashSet::from([0]), HashSet::from([0]));
    let (mut locations, mut stacks, mut links) = (HashSet::from([0]), HashSet::from([0]), HashSet::from([0]));
    let scopes = data.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    for profile in scopes.flat_map(|scope| &scope.profiles) {
        for value_type in [&profile.sample_type, &profile.period_type].into_iter().flatten() {
            texts.extend([value_type.type_strindex, value_type.unit_strindex]);
        }
        attributes.extend(&profile.attribute_indices);
        for sample in &profile.samples {
            stacks.insert(sample.stack_index);
            links.insert(sample.link_index);
            attributes.extend(&sample.attribute_indices);
        }
    }
    for mapping in &dictionary.mapping_table {
        texts.insert(mapping.filename_strindex);
        attributes.extend(&mapping.attribute_indices);
    }
    for location in &dictionary.location_table {
        mappings.insert(location.mapping_index);
        attributes.extend(&location.attribute_indices);
        functions.extend(location.lines.iter().map(|line| line.function_index));
    }
    for function in &dictionary.function_table {
        texts.extend([function.name_strindex, function.system_name_strindex, function.filename_strindex]);
    }
    for attribute in &dictionary.attribute_table {
        texts.extend([attribute.key_strindex, attribute.unit_strindex]);
    }
    locations.extend(dictionary.stack_table.iter().flat_map(|stack| &stack.location_indices));
    let mut count = |name: &str, n: usize, referenced: &HashSet<i32>| {
        report.expect(n == referenced.len(), || {
            format!("{n} entries in the {name} table, {} referred to", referenced.len())
        });
    };
    count("string", dictionary.string_table.len(), &texts);
    count("attribute", dictionary.attribute_table.len(), &attributes);
    count("mapping", dictionary.mapping_table.len(), &mappings);
    count("function", dictionary.function_table.len(), &functions);
    count("location", dictionary.location_table.len(), &locations);
    count("stack", dictionary.stack_table.len(), &stacks);
    count("link", dictionary.link_table.len(), &links);
}

fn check_content(dictionary: &ProfilesDictionary, report: &mut Report) {
    let at = |index: i32| usize::try_from(index).expect("checked before");
    for (n, function) in dictionary.function_table.iter().enumerate().skip(1) {
        let texts = [function.name_strindex, function.system_name_strindex, function.filename_strindex];
        let is_named = texts.into_iter().any(|index| index != 0);
        report.expect(is_named, || format!("function {n} has no name"));
    }
    for (n, mapping) in dictionary.mapping_table.iter().enumerate() {
        // What is no file has no build id.
        let is_file = dictionary.string_table[at(mapping.filename_strindex)].starts_with('/');
        let has_id = mapping.attribute_indices.iter().any(|index| {
            let key = dictionary.attribute_table[at(*index)].key_strindex;
            dictionary.string_table[at(key)].starts_with("process.executable.build_id.")
        });
        report.expect(has_id || !is_file, || format!("mapping {n} has no build id"));
    }
    for (n, Location { mapping_index, address, lines, .. }) in
        dictionary.location_table.iter().enumerate().skip(1)
    {
        let Mapping { memory_start, memory_limit, .. } = dictionary.mapping_table[at(*mapping_index)];
        let inside = *mapping_index == 0 || (memory_start..memory_limit).contains(address);
        report.expect(inside, || format!("location {n} lies outside of its mapping"));
        report.expect(!lines.is_empty(), || format!("location {n} has no line"));
    }
}

/// What Pyroscope and Parca take for CPU time.
fn check_safe(profile: &Profile, report: &mut Report) {
    report.expect(profile.sample_type.is_some(), || "a profile has no sample type".to_owned());
    report
        .expect(profile.period_type.is_some() && profile.period > 0, || "a profile has no period".to_owned());
    report.expect(!profile.samples.is_empty(), || "a profile has no samples".to_owned());
    let id = &profile.profile_id;
    report.expect(id.len() == 16 && id.iter().any(|byte| *byte != 0), || "a profile has no id".to_owned());
    let mut identities = HashSet::new();
    for sample in &profile.samples {
        // Pyroscope takes one value per sample.
        report.expect(sample.values.len() < 2, || "a sample has several values".to_owned());
        let mut attributes = sample.attribute_indices.clone();
        attributes.sort_unstable();
        let is_new = identities.insert((sample.stack_index, attributes, sample.link_index));
        report.expect(is_new || !sample.values.is_empty(), || "two samples of one identity".to_owned());
    }
}
