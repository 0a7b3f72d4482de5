//! OTLP profiles that each break one rule.
//!
//! In: nothing. Out: messages with what is wrong with them: [`broken`] ones, which OpenTelemetry's checker refuses, and
//! [`imperfect`] ones, which it takes. Refuses to know who judges.

use obi::export::otlp::profile;
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{Link, Profile, ProfilesData, ProfilesDictionary};
use prost::Message as _;

use super::selection::{START, random};

/// Name and message.
pub(crate) type Case = (&'static str, ProfilesData);

fn spoilt(name: &'static str, spoil: impl FnOnce(&mut ProfilesData)) -> Case {
    let mut message = ProfilesData::decode(&*profile::encode(&random(13, 100))[0].bytes).unwrap();
    spoil(&mut message);
    (name, message)
}

fn in_dictionary(name: &'static str, spoil: impl FnOnce(&mut ProfilesDictionary)) -> Case {
    spoilt(name, |message| spoil(message.dictionary.as_mut().unwrap()))
}

fn in_profile(name: &'static str, spoil: impl FnOnce(&mut Profile)) -> Case {
    spoilt(name, |message| spoil(&mut message.resource_profiles[0].scope_profiles[0].profiles[0]))
}

/// Messages that each break one rule of the official checker.
pub(crate) fn broken() -> Vec<Case> {
    vec![
        spoilt("no resource", |message| message.resource_profiles.clear()),
        spoilt("no scope", |message| message.resource_profiles[0].scope_profiles.clear()),
        spoilt("no profile", |message| message.resource_profiles[0].scope_profiles[0].profiles.clear()),
        in_profile("attribute of a profile", |profile| profile.attribute_indices = vec![9_999]),
        in_profile("sample type", |profile| profile.sample_type.as_mut().unwrap().type_strindex = 9_999),
        in_profile("period type", |profile| profile.period_type.as_mut().unwrap().unit_strindex = -1),
        in_profile("stack", |profile| profile.samples[0].stack_index = 9_999),
        in_profile("link", |profile| profile.samples[0].link_index = -5),
        in_profile("attribute of a sample", |profile| profile.samples[0].attribute_indices.push(9_999)),
        in_profile("attribute twice", |profile| {
            let attributes = &mut profile.samples[0].attribute_indices;
            attributes.push(attributes[0]);
        }),
        in_profile("before the beginning", |profile| profile.samples[0].timestamps_unix_nano[0] = START - 1),
        in_profile("at the end", |profile| {
            profile.samples[0].timestamps_unix_nano[0] = profile.time_unix_nano + profile.duration_nano;
        }),
        in_profile("nothing", |profile| profile.samples[0].timestamps_unix_nano.clear()),
        in_profile("two values", |profile| {
            let samples = profile.samples.iter_mut();
            samples.for_each(|sample| {
                sample.timestamps_unix_nano.clear();
                sample.values = vec![1, 2];
            });
        }),
        in_profile("more values than timestamps", |profile| {
            profile.samples.iter_mut().for_each(|sample| {
                sample.values = vec![1; sample.timestamps_unix_nano.len() + 1];
            });
        }),
        in_profile("another shape", |profile| {
            let sample = profile.samples.last_mut().unwrap();
            sample.values = vec![1; sample.timestamps_unix_nano.len()];
        }),
        in_dictionary("first text", |dictionary| dictionary.string_table[0] = "x".to_owned()),
        in_dictionary("first mapping", |dictionary| dictionary.mapping_table[0].file_offset = 1),
        in_dictionary("first location", |dictionary| dictionary.location_table[0].address = 1),
        in_dictionary("first function", |dictionary| dictionary.function_table[0].start_line = 1),
        in_dictionary("first link", |dictionary| {
            dictionary.link_table[0] = Link { trace_id: vec![0; 16], span_id: vec![0; 8] };
        }),
        in_dictionary("first attribute", |dictionary| {
            dictionary.attribute_table[0].value = Some(AnyValue { value: Some(Value::IntValue(1)) });
        }),
        in_dictionary("first stack", |dictionary| dictionary.stack_table[0].location_indices.push(0)),
        in_dictionary("no stacks", |dictionary| dictionary.stack_table.clear()),
        in_dictionary("no range", |dictionary| dictionary.mapping_table[1].memory_limit = 1),
        in_dictionary("file of a mapping", |dictionary| {
            dictionary.mapping_table[1].filename_strindex = 9_999
        }),
        in_dictionary("attribute of a mapping", |dictionary| {
            dictionary.mapping_table[1].attribute_indices.push(9_999);
        }),
        in_dictionary("mapping of a location", |dictionary| {
            dictionary.location_table[1].mapping_index = 9_999
        }),
        in_dictionary("function of a line", |dictionary| {
            dictionary.location_table[1].lines[0].function_index = 9_999;
        }),
        in_dictionary("line", |dictionary| dictionary.location_table[1].lines[0].line = -1),
        in_dictionary("column", |dictionary| dictionary.location_table[1].lines[0].column = -1),
        in_dictionary("name of a function", |dictionary| dictionary.function_table[1].name_strindex = 9_999),
        in_dictionary("start of a function", |dictionary| dictionary.function_table[1].start_line = -1),
        in_dictionary("trace id", |dictionary| {
            dictionary.link_table[1].trace_id.pop();
        }),
        in_dictionary("span id", |dictionary| dictionary.link_table[1].span_id.push(0)),
        in_dictionary("key of an attribute", |dictionary| dictionary.attribute_table[1].key_strindex = 9_999),
        in_dictionary("unit of an attribute", |dictionary| dictionary.attribute_table[1].unit_strindex = -1),
        in_dictionary("location of a stack", |dictionary| {
            dictionary.stack_table[1].location_indices.push(9_999);
        }),
    ]
}

/// Messages that the official checker takes, although something is wrong with them.
pub(crate) fn imperfect() -> Vec<Case> {
    vec![
        in_dictionary("text twice", |dictionary| {
            let text = dictionary.string_table[1].clone();
            dictionary.string_table.push(text);
        }),
        in_dictionary("text for nothing", |dictionary| dictionary.string_table.push("unused".to_owned())),
        in_dictionary("stack for nothing", |dictionary| {
            let mut stack = dictionary.stack_table[1].clone();
            stack.location_indices.push(1);
            dictionary.stack_table.push(stack);
        }),
        in_dictionary("function without a name", |dictionary| {
            let function = &mut dictionary.function_table[1];
            (function.name_strindex, function.system_name_strindex, function.filename_strindex) = (0, 0, 0);
        }),
        in_dictionary("address outside of its mapping", |dictionary| {
            let location = dictionary.location_table.iter_mut().find(|location| location.mapping_index > 0);
            location.unwrap().address = 1;
        }),
        in_profile("sample twice", |profile| {
            let sample = profile.samples[0].clone();
            profile.samples.push(sample);
        }),
        in_profile("no period", |profile| profile.period = 0),
        in_profile("no id", |profile| profile.profile_id.clear()),
        spoilt("attribute by reference", |message| {
            let resource = message.resource_profiles[0].resource.as_mut().unwrap();
            resource.attributes[0].value = Some(AnyValue { value: Some(Value::StringValueStrindex(1)) });
        }),
    ]
}
