//! Every fuzz target without a fuzzer: targets stay compiled, with overflow checks, and hold for inputs that are made
//! of what their parsers look for.
//!
//! In: the files of every `fuzz_targets`, as they are, and random inputs by a seed that is printed. Out: a panic where
//! a target finds a fault. Refuses to search: `make fuzz` does, led by coverage and with sanitizers.

#![allow(unused_attributes, reason = "each target is a program of its own elsewhere, with `no_main`")]

// The targets' `use libfuzzer_sys::fuzz_target` finds the macro below.
extern crate self as libfuzzer_sys;

use std::collections::BTreeSet;
use std::path::Path;

use arbitrary::{Arbitrary, Unstructured};
use integration::seed::seeded;

/// A module of its own, so that it is found by that path alone.
mod shim {
    /// Instead of libFuzzer's: the target as a function of bytes.
    macro_rules! fuzz_target {
        (|$input:ident: &[u8]| $body:block) => {
            pub(crate) fn run(bytes: &[u8]) {
                let $input = bytes;
                $body
            }
        };
        (|$input:ident: $type:ty| $body:block) => {
            pub(crate) fn run(bytes: &[u8]) {
                let Ok($input) = crate::take::<$type>(bytes) else { return };
                $body
            }
        };
    }
    pub(crate) use fuzz_target;
}
pub(crate) use shim::fuzz_target;

/// Typed inputs are made of bytes as libFuzzer's macro makes them.
fn take<'a, T: Arbitrary<'a>>(bytes: &'a [u8]) -> arbitrary::Result<T> {
    T::arbitrary_take_rest(Unstructured::new(bytes))
}

/// Declares the targets' files as modules, and the list of them.
macro_rules! targets {
    ($($crate_name:ident in $folder:literal: $($name:ident)+;)+) => {
        $(#[path = $folder]
        mod $crate_name {
            $(pub(crate) mod $name;)+
        })+
        const TARGETS: &[Target] = &[$($(Target {
            folder: $folder,
            name: stringify!($name),
            run: $crate_name::$name::run,
        }),+),+];
    };
}
targets! {
    agent in "../fuzz/fuzz_targets": context database_messages elf event go_memory hpack http1 http2_frames java_memory
        javascript_memory jitdump kubernetes otlp_profile pclntab perf_map pprof python_memory receive route side_band
        spool sql symbol_elf unwind;
    objectives in "../../slo/fuzz/fuzz_targets": openslo;
    kernel_side in "../../obi-ebpf/fuzz/fuzz_targets": capture;
}

/// A target, and where its file is, seen from here.
struct Target {
    folder: &'static str,
    name: &'static str,
    run: fn(&[u8]),
}

/// Inputs for each target.
const INPUTS: usize = 2_000;
/// Pieces of an input at most.
const PIECES: usize = 24;

/// What parsers look for: with random bytes alone none gets behind its first check.
const TOKENS: &[&[u8]] = &[
    b"GET /item/17?a=b HTTP/1.1\r\nHost: x\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
    b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
    b"traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"\x00\x00\x04\x01\x05\x00\x00\x00\x01\x82\x84\x87\x88",
    b"\x3f\xe1\x1f\x40\x04name\x05value",
    b"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00",
    b".symtab\0.strtab\0.eh_frame\0.gopclntab\0.note.gnu.build-id\0",
    b"\xf1\xff\xff\xff\x00\x00\x01\x08",
    b"DTiJ\x01\x00\x00\x00\x28\x00\x00\x00",
    b"7f0000001000 20 function_name\n",
    b"obiR\x00\x00\x00\x08",
    b"{\"resourceSpans\":[{\"scopeSpans\":[{\"spans\":[{\"name\":\"a\",\"kind\":2}]}]}]}",
    b"{\"items\":[{\"metadata\":{\"name\":\"pod-1\",\"uid\":\"u\"},\"status\":{\"phase\":\"Running\"}}]}",
    b"SELECT \"a\" FROM b.c WHERE d = 'e' AND f IN (1, 2) -- g\n",
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
    b"Q\x00\x00\x00\x0dSELECT 1\x00",
    b"3.11.2 (main, Nov 30 2024, 21:22:50) [GCC 12.2.0]",
    b"/orders/{id}/items/:item/*",
    b"\x0a\x04\x0a\x02\x08\x01\x12\x03abc\x1a\x00",
    b"\x00",
    b"\xff\xff\xff\xff",
    b"\r\n",
    b"{",
    b"}",
    b"\"",
    b"/",
    b"%2f",
];

/// Pieces of what parsers look for, numbers that are lengths, and noise; now and then with a byte changed.
fn input(rng: &mut fastrand::Rng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.usize(..PIECES) {
        match rng.u8(..8) {
            0..4 => bytes.extend_from_slice(TOKENS[rng.usize(..TOKENS.len())]),
            4 => bytes.extend_from_slice(&rng.u16(..128).to_le_bytes()),
            5 => bytes.extend_from_slice(&rng.u32(..128).to_be_bytes()),
            6 => bytes.extend(std::iter::repeat_with(|| rng.u8(..)).take(16)),
            _ => bytes.resize(bytes.len() + 64, 0),
        }
    }
    if rng.bool()
        && let Some(at) = (!bytes.is_empty()).then(|| rng.usize(..bytes.len()))
    {
        bytes[at] = rng.u8(..);
    }
    bytes
}

#[test]
fn targets_hold_for_inputs_that_look_like_something() {
    let mut rng = seeded("fuzz targets");
    for Target { name, run, .. } in TARGETS {
        run(&[]);
        for _ in 0..INPUTS {
            let input = input(&mut rng);
            if let Err(fault) = std::panic::catch_unwind(|| run(&input)) {
                eprintln!("{name} fails for {}", input.escape_ascii());
                std::panic::resume_unwind(fault);
            }
        }
    }
}

/// None is left out here, nor in the list that `cargo fuzz` reads.
#[test]
fn every_target_is_run() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests");
    let folders: BTreeSet<&str> = TARGETS.iter().map(|target| target.folder).collect();
    for folder in folders {
        let path = here.join(folder);
        let files: BTreeSet<String> = std::fs::read_dir(&path)
            .unwrap()
            .map(|file| file.unwrap().path().file_stem().unwrap().to_str().unwrap().to_owned())
            .collect();
        let run =
            TARGETS.iter().filter(|target| target.folder == folder).map(|target| target.name.to_owned());
        assert_eq!(files, run.collect(), "{folder}");
        let manifest = std::fs::read_to_string(path.with_file_name("Cargo.toml")).unwrap();
        for name in files {
            assert!(manifest.contains(&format!("fuzz_targets/{name}.rs")), "{name} is not in {manifest}");
        }
    }
}
