//! What foreign tools make of our files: Go's pprof, and the official checker of OTLP profiles.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use integration::otlp::profile_rules;
use integration::patience::patience;
use integration::process::run;
use integration::program;
use obi::export::otlp::profile;
use obi::export::pprof;
use obi::profile::{Fidelity, Selection};
use opentelemetry_proto::tonic::common::v1::AnyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::profiles::v1development::{Link, Profile, ProfilesData, ProfilesDictionary};
use prost::Message as _;

use crate::otlp::data;
use crate::selection::{START, content, random};

const PATIENCE: Duration = Duration::from_secs(300);
/// The official checker, at the commit that the ported rules were compared with.
const CHECKER: &str = "github.com/open-telemetry/sig-profiling/profcheck/cmd/profcheck@d2ab6d50";

/// Go's own pprof over a profile; its output.
fn go_pprof(arguments: &[&str], file: &Path) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-symbolize=none"]).args(arguments).arg(file);
    run("pprof", command, patience(PATIENCE)).unwrap().join("\n")
}

fn periods(selection: &Selection) -> u64 {
    selection.samples.iter().map(|sample| u64::from(sample.weight)).sum()
}

#[test]
fn go_reads_what_we_write() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("cpu.pb.gz");
    let selection = random(31, 80);
    std::fs::write(&file, pprof::encode(&selection)).unwrap();

    let raw = go_pprof(&["-raw"], &file);
    assert!(raw.contains("samples/count cpu/nanoseconds[dflt]"), "{raw}");
    assert!(raw.contains("Period: 10101010"), "{raw}");
    assert_eq!(raw.matches("timestamp_ns:[").count(), selection.samples.len());
    assert_eq!(
        raw.matches("span_id:[").count(),
        selection.samples.iter().filter(|s| s.link.is_some()).count()
    );

    // Samples of empty stacks count, too.
    let top = go_pprof(&["-top", "-sample_index=samples", "-nodecount=10000"], &file);
    let total = format!("of {} total", periods(&selection));
    assert!(top.contains(&total), "{total}: {top}");
    let functions = selection.samples.iter().flat_map(|sample| &sample.stack.frames);
    let functions = functions.filter(|frame| frame.symbol.fidelity != Fidelity::Address);
    for line in functions.flat_map(|frame| &frame.symbol.lines) {
        assert!(top.contains(&*line.function), "{} in {top}", line.function);
    }
}

/// What Go writes again has lost nothing but what pprof has no fields for, and is still read.
#[test]
fn what_go_writes_again_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let [first, second, merged] = ["a.pb.gz", "b.pb.gz", "merged.pb.gz"].map(|name| folder.path().join(name));
    let selections = [random(51, 60), random(52, 60)];
    std::fs::write(&first, pprof::encode(&selections[0])).unwrap();
    std::fs::write(&second, pprof::encode(&selections[1])).unwrap();
    let output = format!("-output={}", merged.display());
    go_pprof(&["-proto", &output, &first.to_string_lossy()], &second);
    let read = pprof::decode(&std::fs::read(&merged).unwrap()).unwrap();
    assert_eq!(periods(&read), selections.iter().map(periods).sum::<u64>());
    assert_eq!(read.lost, selections.iter().map(|selection| selection.lost).sum::<u64>());
    let spans = |selection: &Selection| {
        let linked = selection.samples.iter().filter_map(|sample| Some((sample.time, sample.link.clone()?)));
        let mut linked: Vec<_> = linked.map(|(time, link)| (time, link.trace_id, link.span_id)).collect();
        linked.sort_unstable();
        linked
    };
    let mut expected = [spans(&selections[0]), spans(&selections[1])].concat();
    expected.sort_unstable();
    assert_eq!(spans(&read), expected);
}

/// A profile of another program, read and written as OTLP.
#[test]
fn what_go_profiles_of_itself_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("main.go");
    std::fs::write(&source, include_str!("spin.go")).unwrap();
    let file = folder.path().join("cpu.pb.gz");
    let mut command = Command::new("go");
    command.arg("run").arg(&source).arg(&file);
    run("a program that profiles itself", command, patience(PATIENCE)).unwrap();
    let read = pprof::decode(&std::fs::read(&file).unwrap()).unwrap();
    assert_eq!(read.period, 10_000_000);
    let in_spin = |sample: &&obi::profile::Sample| {
        let lines = sample.stack.frames.iter().flat_map(|frame| &frame.symbol.lines);
        lines.into_iter().any(|line| &*line.function == "main.spin")
    };
    let n_spin = read.samples.iter().filter(in_spin).count();
    assert!(n_spin > 0, "{read:?}");
    let request = profile::encode(&read).remove(0);
    assert_eq!(profile_rules::violations(&data(&request.bytes)), Vec::<String>::new());
    assert_eq!(content(&profile::decode(&request.bytes).unwrap()), content(&read));
}

/// The official checker: `PROFCHECK`, or built where its module can be had.
fn checker() -> Option<PathBuf> {
    if let Some(path) = std::env::var_os("PROFCHECK") {
        return Some(path.into());
    }
    program::go_published(CHECKER, "profcheck")
        .inspect_err(|error| eprintln!("NOT RUN: the official checker, which cannot be had: {error:#}"))
        .ok()
}

/// The checker's complaint, if it has one.
fn official(checker: &Path, message: &ProfilesData) -> Option<String> {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), message.encode_to_vec()).unwrap();
    let output = Command::new(checker).arg("-check-dupes").arg(file.path()).output().unwrap();
    (!output.status.success()).then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[test]
fn the_official_checker_agrees() {
    let Some(checker) = checker() else { return };
    for seed in 0..20 {
        for request in profile::encode_within(&random(seed, 100), 20_000) {
            assert_eq!(official(&checker, &data(&request.bytes)), None, "seed {seed}");
        }
    }
    for (name, message) in broken() {
        assert!(official(&checker, &message).is_some(), "{name}");
    }
}

#[test]
fn broken_rules_are_found() {
    let whole = data(&profile::encode(&random(13, 100))[0].bytes);
    assert_eq!(profile_rules::strict(&whole), Vec::<String>::new());
    for (name, message) in broken() {
        assert!(!profile_rules::violations(&message).is_empty(), "{name}");
    }
    for (name, message) in imperfect() {
        assert_eq!(profile_rules::violations(&message), Vec::<String>::new(), "{name}");
        assert!(!profile_rules::strict(&message).is_empty(), "{name}");
    }
}

type Case = (&'static str, ProfilesData);

fn spoilt(name: &'static str, spoil: impl FnOnce(&mut ProfilesData)) -> Case {
    let mut message = data(&profile::encode(&random(13, 100))[0].bytes);
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
fn broken() -> Vec<Case> {
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
fn imperfect() -> Vec<Case> {
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
