//! OTLP there and back, by the rules.

use std::sync::Arc;

use integration::otlp::profile_rules;
use obi::export::otlp::profile::{DecodeError, decode, encode, encode_within};
use obi::export::pprof;
use obi::profile::{Fidelity, Frame, Mapping, SampleType, Selection, Stack};
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{ProfilesData, Sample};
use proptest::prelude::*;
use prost::Message as _;

use super::selection::{CPU, START, content, counted, joined, random};

pub(crate) fn data(bytes: &[u8]) -> ProfilesData {
    ProfilesData::decode(bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn nothing_is_lost_and_every_rule_holds(seed: u64, n_samples in 1_usize..150) {
        let selection = random(seed, n_samples);
        let requests = encode(&selection);
        prop_assert_eq!(requests.len(), 1);
        let request = &requests[0];
        let message = data(&request.bytes);
        prop_assert_eq!(profile_rules::strict(&message), Vec::<String>::new());
        let scopes = message.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
        prop_assert_eq!(scopes.map(|scope| scope.profiles.len() as u64).sum::<u64>(), request.n_profiles);
        let read = decode(&request.bytes).unwrap();
        prop_assert_eq!(content(&read), content(&selection));
        // What came back makes the same profile again, and the same profile always has the same bytes.
        prop_assert_eq!(content(&decode(&encode(&read)[0].bytes).unwrap()), content(&selection));
        prop_assert_eq!(&encode(&random(seed, n_samples)), &requests);
    }

    #[test]
    fn parts_are_small_and_whole(seed: u64, n_samples in 1_usize..300, limit in 4_000_usize..20_000) {
        let selection = random(seed, n_samples);
        let requests = encode_within(&selection, limit);
        let mut parts = Vec::new();
        for request in &requests {
            let part = decode(&request.bytes).unwrap();
            prop_assert!(request.bytes.len() <= limit || part.samples.len() == 1, "{}", request.bytes.len());
            prop_assert_eq!(profile_rules::strict(&data(&request.bytes)), Vec::<String>::new());
            parts.push(part);
        }
        for pair in parts.windows(2) {
            prop_assert!(pair[0].end >= pair[1].start);
        }
        prop_assert_eq!(content(&joined(parts)), content(&selection));
    }

    #[test]
    fn any_bytes_are_a_selection_or_an_error(seed: u64, places in proptest::collection::vec(any::<(u16, u8)>(), 1..8)) {
        let mut bytes = encode(&random(seed, 5)).remove(0).bytes;
        for (place, value) in places {
            let place = usize::from(place) % bytes.len();
            bytes[place] = value;
        }
        if let Ok(selection) = decode(&bytes) {
            // Whatever was read can be written.
            for request in encode(&selection) {
                prop_assert_eq!(profile_rules::violations(&data(&request.bytes)), Vec::<String>::new());
            }
        }
    }
}

#[test]
fn a_range_without_addresses_is_no_range() {
    let check = |reported: (u64, u64), expected: (u64, u64)| {
        let mut selection = random(3, 20);
        let mapping = Arc::new(Mapping { start: reported.0, end: reported.1, ..Mapping::default() });
        for sample in &mut selection.samples {
            let frames = sample.stack.frames.iter();
            let frames = frames.map(|frame| Frame { mapping: Some(Arc::clone(&mapping)), ..frame.clone() });
            sample.stack = Arc::new(Stack { frames: frames.collect() });
        }
        let read = [
            decode(&encode(&selection)[0].bytes).unwrap(),
            pprof::decode(&pprof::encode(&selection)).unwrap(),
        ];
        for read in read {
            let frames = || read.samples.iter().flat_map(|sample| &sample.stack.frames);
            let mappings: Vec<&Arc<Mapping>> = frames().filter_map(|frame| frame.mapping.as_ref()).collect();
            assert!(!mappings.is_empty());
            assert!(mappings.iter().all(|mapping| (mapping.start, mapping.end) == expected), "{reported:x?}");
        }
    };
    check((0x1000, 0x1001), (0x1000, 0x1001));
    check((0, u64::MAX), (0, u64::MAX));
    check((0x5485_8f00_0000, 0x5387_fd00_0000), (0, 0));
    check((0x1000, 0x1000), (0, 0));
    check((0x1000, 0), (0, 0));
}

#[test]
fn what_receivers_see() {
    let mut selection = random(13, 100);
    selection.samples[0].value = CPU.value(3);
    selection.samples[1].value = CPU.value(500);
    let request = encode(&selection).remove(0);
    let message = data(&request.bytes);
    let dictionary = message.dictionary.as_ref().unwrap();
    let all: Vec<&Sample> = message
        .resource_profiles
        .iter()
        .flat_map(|resource| &resource.scope_profiles)
        .flat_map(|scope| &scope.profiles)
        .flat_map(|profile| &profile.samples)
        .collect();
    // By timestamps, or by the only value: whichever a receiver takes, the sum is right.
    let periods: i64 = all
        .iter()
        .map(|sample| sample.values.first().copied().unwrap_or(sample.timestamps_unix_nano.len() as i64))
        .sum();
    assert_eq!(periods.cast_unsigned(), counted(&selection.samples));
    assert!(all.iter().any(|sample| sample.values == [500]));
    let functions: Vec<&str> = dictionary
        .function_table
        .iter()
        .map(|function| &*dictionary.string_table[function.name_strindex as usize])
        .collect();
    let has_nameless = |fidelity: Fidelity| {
        selection
            .samples
            .iter()
            .flat_map(|sample| &sample.stack.frames)
            .any(|frame| frame.symbol.fidelity == fidelity)
    };
    assert!(has_nameless(Fidelity::Address) && has_nameless(Fidelity::Marker));
    assert!(functions.iter().any(|name| name.contains("+0x")), "{functions:?}");
    assert!(functions.contains(&"[truncated: depth]"), "{functions:?}");
    let keys: Vec<&str> = dictionary
        .attribute_table
        .iter()
        .map(|attribute| &*dictionary.string_table[attribute.key_strindex as usize])
        .collect();
    for key in [
        "thread.id",
        "thread.name",
        "cpu.logical_number",
        "http.route",
        "profile.frame.type",
        "obi.frame.fidelity",
        "process.executable.build_id.gnu",
        "process.executable.build_id.go",
        "process.executable.build_id.htlhash",
    ] {
        assert!(keys.contains(&key), "{key} in {keys:?}");
    }
}

/// What is measured each time it happens has values of its own, not a clock's periods.
#[test]
fn what_has_no_period_keeps_its_values() {
    let mut selection = random(17, 80);
    selection.types = vec![SampleType { period: 0, ..CPU }];
    for (number, sample) in (1..).zip(&mut selection.samples) {
        sample.value = number * 1_001;
    }
    let requests = encode(&selection);
    let message = data(&requests[0].bytes);
    assert_eq!(profile_rules::violations(&message), Vec::<String>::new());
    assert_eq!(content(&decode(&requests[0].bytes).unwrap()), content(&selection));
    assert_eq!(content(&pprof::decode(&pprof::encode(&selection)).unwrap()), content(&selection));
    let texts = &message.dictionary.as_ref().unwrap().string_table;
    let profiles = message.resource_profiles.iter().flat_map(|resource| &resource.scope_profiles);
    for profile in profiles.flat_map(|scope| &scope.profiles) {
        let of = profile.sample_type.unwrap();
        let name = [of.type_strindex, of.unit_strindex].map(|at| &*texts[at as usize]);
        assert_eq!((name, profile.period), (["cpu", "nanoseconds"], 0));
    }
}

/// Samples from before the clock was set to another period keep their time.
#[test]
fn values_hold_whatever_the_period() {
    let mut selection = random(17, 10);
    for (number, sample) in (0..).zip(&mut selection.samples) {
        sample.value = if number % 2 == 0 { 20_408_163 } else { CPU.period };
    }
    assert_eq!(content(&pprof::decode(&pprof::encode(&selection)).unwrap()), content(&selection));
    // Here only whole periods can be said: to the nearest.
    let read = decode(&encode(&selection)[0].bytes).unwrap();
    assert_eq!(counted(&read.samples), 5 * 2 + 5);
}

#[test]
fn periods_longer_than_any_clocks_are_refused() {
    let mut message = data(&encode(&random(17, 10))[0].bytes);
    for profile in message.resource_profiles.iter_mut().flat_map(|of| &mut of.scope_profiles) {
        profile.profiles.iter_mut().for_each(|profile| profile.period = i64::MAX);
    }
    assert_eq!(decode(&message.encode_to_vec()).unwrap_err(), DecodeError::LongPeriod(i64::MAX));
}

#[test]
fn large_selections_become_requests_that_servers_take() {
    let mut selection = random(11, 1_000);
    let names: Vec<Arc<str>> = (0..8_000).map(|n| format!("{n} {}", "x".repeat(1_000)).into()).collect();
    selection.samples = names
        .iter()
        .enumerate()
        .map(|(n, name)| {
            let mut sample = selection.samples[n % 1_000].clone();
            (sample.time, sample.thread) = (START + n as u64, Arc::clone(name));
            sample
        })
        .collect();
    let requests = encode(&selection);
    let sizes: Vec<usize> = requests.iter().map(|request| request.bytes.len()).collect();
    assert!(sizes.len() > 2 && sizes.iter().all(|size| *size < 3_670_017), "{sizes:?}");
    let parts: Vec<Selection> = requests.iter().map(|request| decode(&request.bytes).unwrap()).collect();
    let whole = joined(parts);
    assert_eq!((whole.start, whole.end, whole.lost), (selection.start, selection.end, selection.lost));
    assert_eq!(counted(&whole.samples), counted(&selection.samples));
}

#[test]
fn nothing_makes_no_request() {
    let mut selection = random(1, 1);
    selection.samples[0].value = 0;
    assert_eq!(encode(&selection), []);
    selection.samples.clear();
    assert_eq!(encode(&selection), []);
}

#[test]
fn resources_may_refer_to_texts() {
    let selection = random(5, 3);
    let mut message = data(&encode(&selection)[0].bytes);
    let texts = &mut message.dictionary.as_mut().unwrap().string_table;
    let resources = message.resource_profiles.iter_mut().filter_map(|resource| resource.resource.as_mut());
    for attribute in resources.flat_map(|resource| &mut resource.attributes) {
        let mut refer = |text: &mut String| {
            texts.push(std::mem::take(text));
            i32::try_from(texts.len() - 1).unwrap()
        };
        attribute.key_strindex = refer(&mut attribute.key);
        let value = attribute.value.as_mut().unwrap();
        if let Some(Value::StringValue(text)) = &mut value.value {
            value.value = Some(Value::StringValueStrindex(refer(text)));
        }
    }
    assert_eq!(content(&decode(&message.encode_to_vec()).unwrap()), content(&selection));
}

#[test]
fn what_is_no_cpu_profile_is_refused() {
    let check = |spoil: &dyn Fn(&mut ProfilesData), expected: &str| {
        let mut message = data(&encode(&random(2, 20))[0].bytes);
        spoil(&mut message);
        let error: DecodeError = decode(&message.encode_to_vec()).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    };
    check(&|message| message.resource_profiles.clear(), "no profile of CPU or off-CPU or");
    check(
        &|message| message.resource_profiles[0].scope_profiles[0].profiles[0].samples[0].stack_index = 999,
        "index 999 leads out of the stacks",
    );
    check(&|message| message.dictionary.as_mut().unwrap().string_table.truncate(1), "leads out of the texts");
    assert!(decode(&[0xff]).unwrap_err().to_string().starts_with("not a message of OTLP profiles"));
}

/// Many references to one long text must not make many copies of it.
#[test]
fn references_do_not_multiply() {
    let mut message = data(&encode(&random(9, 1))[0].bytes);
    let dictionary = message.dictionary.as_mut().unwrap();
    dictionary.string_table.push("x".repeat(1 << 20));
    let long = i32::try_from(dictionary.string_table.len() - 1).unwrap();
    let resource = message.resource_profiles[0].resource.as_mut().unwrap();
    for attribute in &mut resource.attributes {
        attribute.value.as_mut().unwrap().value = Some(Value::StringValueStrindex(long));
    }
    let resource = message.resource_profiles[0].clone();
    message.resource_profiles = vec![resource; 1_000];
    assert_eq!(decode(&message.encode_to_vec()).unwrap_err(), DecodeError::TooLarge);
}
