//! What foreign tools make of our files: Go's pprof, and the ported rules of OpenTelemetry's checker.
//!
//! The checker itself runs as `make check-profiles` (`obi/examples/official_checker.rs`).

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use integration::otlp::profile_rules;
use integration::patience::patience;
use integration::process::run;
use obi::export::otlp::profile;
use obi::export::pprof;
use obi::profile::{Fidelity, Frame, Mapping, Origin, SampleKind, SampleType, Selection, Stack};

use super::broken::{broken, imperfect};
use super::otlp::data;
use super::selection::{content, counted, random};

const PATIENCE: Duration = Duration::from_secs(300);

/// Go's own pprof over a profile; its output.
fn go_pprof(arguments: &[&str], file: &Path) -> String {
    let mut command = Command::new("go");
    command.args(["tool", "pprof", "-symbolize=none"]).args(arguments).arg(file);
    run("pprof", command, patience(PATIENCE)).unwrap().join("\n")
}

fn periods(selection: &Selection) -> u64 {
    counted(&selection.samples)
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
    assert!(!top.contains("obi.profile"), "what tools cannot use is printed: {top}");
    let said = format!("obi: {} samples are missing", selection.lost);
    assert_eq!(top.contains(&said), selection.lost > 0, "{said}: {top}");
    let total = format!("of {} total", periods(&selection));
    assert!(top.contains(&total), "{total}: {top}");
    let functions = selection.samples.iter().flat_map(|sample| &sample.stack.frames);
    let functions = functions.filter(|frame| frame.symbol.fidelity != Fidelity::Address);
    for line in functions.flat_map(|frame| &frame.symbol.lines) {
        assert!(top.contains(&*line.function), "{} in {top}", line.function);
    }
}

/// Go takes the first mapping's file for the program's.
#[test]
fn the_file_is_the_program() {
    let check = |mapped: &str, expected: &str| {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("cpu.pb.gz");
        let mut selection = random(31, 80);
        let origin = Origin { pid: 1, executable: "shop".into(), ..Origin::default() };
        let origin = Arc::new(origin);
        for sample in &mut selection.samples {
            sample.origin = Arc::clone(&origin);
        }
        if let Some(last) = selection.samples.last_mut() {
            let mapping = Mapping { start: 0x1000, end: 0x2000, path: mapped.into(), ..Mapping::default() };
            let symbol = Arc::clone(&last.stack.frames[0].symbol);
            let frame = Frame { address: 0x1234, is_return: false, mapping: Some(Arc::new(mapping)), symbol };
            last.stack = Arc::new(Stack { frames: vec![frame] });
        }
        let bytes = pprof::encode(&selection);
        assert_eq!(content(&pprof::decode(&bytes).unwrap()), content(&selection));
        std::fs::write(&file, bytes).unwrap();
        let top = go_pprof(&["-top"], &file);
        assert_eq!(top.lines().next(), Some(&*format!("File: {expected}")), "{top}");
    };
    check("/usr/bin/shop", "shop");
    // None of its own code was sampled: time was spent in libraries and the kernel.
    check("/usr/lib/libc.so.6", "shop");
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
    assert_eq!(read.types, [SampleType { kind: SampleKind::Cpu, period: 10_000_000 }]);
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
