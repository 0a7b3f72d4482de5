//! Selections of samples to both profile formats: samples per second on one core.
//!
//! In: ten seconds of a busy machine: 2,000 samples of 400 stacks of 30 frames, of 20 processes. Run with
//! `cargo bench -p obi --bench profile_formats`.

#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

use std::sync::Arc;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use obi::export::{otlp::profile, pprof};
use obi::profile::{
    Fidelity, Frame, Line, Link, Mapping, Origin, Runtime, Sample, SampleKind, SampleType, Selection, Stack,
    Symbol,
};
use obi::span::Service;

const START: u64 = 1_700_000_000_000_000_000;
const SAMPLES: u64 = 2_000;
const STACKS: usize = 400;
const FRAMES: usize = 30;
const PROCESSES: u32 = 20;

fn main() {
    divan::main();
}

fn selection() -> Selection {
    let mut rng = fastrand::Rng::with_seed(1);
    let mappings: Vec<Arc<Mapping>> = (0..50_u64)
        .map(|number| {
            let start = number << 32;
            let path = format!("/usr/lib/lib{number}.so").into();
            let id: Arc<str> = format!("{number:040x}").into();
            Arc::new(Mapping {
                start,
                end: start + (1 << 24),
                path,
                gnu_build_id: Arc::clone(&id),
                htlhash: id,
                ..Mapping::default()
            })
        })
        .collect();
    let frames: Vec<Frame> = (0..3_000_u64)
        .map(|number| {
            let mapping = rng.choice(&mappings).unwrap();
            let line = Line {
                function: format!("service::module::function_{number}").into(),
                file: "/src/service/module.rs".into(),
                line: 7,
                ..Line::default()
            };
            let symbol = Symbol { lines: vec![line], fidelity: Fidelity::Lines, runtime: Runtime::Rust };
            let address = mapping.start + rng.u64(0..1 << 24);
            Frame { address, is_return: true, mapping: Some(Arc::clone(mapping)), symbol: Arc::new(symbol) }
        })
        .collect();
    let stacks: Vec<Arc<Stack>> = (0..STACKS)
        .map(|_| {
            Arc::new(Stack { frames: (0..FRAMES).map(|_| rng.choice(&frames).unwrap().clone()).collect() })
        })
        .collect();
    let origins: Vec<Arc<Origin>> = (0..PROCESSES)
        .map(|pid| {
            let service = Service { name: format!("service-{pid}"), ..Service::default() };
            Arc::new(Origin { pid, service: Arc::new(service), ..Origin::default() })
        })
        .collect();
    let link = Arc::new(Link { trace_id: [1; 16], span_id: [2; 8], route: "/item/{id}".into() });
    let thread: Arc<str> = "worker".into();
    let cpu = SampleType { kind: SampleKind::Cpu, period: 10_101_010 };
    let sample = |number: u64| Sample {
        kind: cpu.kind,
        value: cpu.period,
        time: START + number * 5_000_000,
        origin: Arc::clone(rng.choice(&origins).unwrap()),
        stack: Arc::clone(rng.choice(&stacks).unwrap()),
        tid: rng.u32(1..8),
        thread: Arc::clone(&thread),
        cpu: rng.u32(0..2),
        link: rng.bool().then(|| Arc::clone(&link)),
    };
    let samples = (0..SAMPLES).map(sample).collect();
    Selection { start: START, end: START + 10_000_000_000, types: vec![cpu], samples, lost: 0 }
}

fn run(bencher: Bencher<'_, '_>, encode: impl Fn(&Selection) -> usize + Sync) {
    let selection = selection();
    bencher.counter(ItemsCount::new(SAMPLES)).bench(|| encode(black_box(&selection)));
}

#[divan::bench]
fn otlp(bencher: Bencher<'_, '_>) {
    run(bencher, |selection| profile::encode(selection).len());
}

#[divan::bench]
fn pprof_everything(bencher: Bencher<'_, '_>) {
    run(bencher, |selection| pprof::encode(selection).len());
}

#[divan::bench]
fn pprof_merged(bencher: Bencher<'_, '_>) {
    run(bencher, |selection| pprof::merged(selection).len());
}

#[divan::bench]
fn otlp_decode(bencher: Bencher<'_, '_>) {
    let request = profile::encode(&selection()).remove(0).bytes;
    bencher.counter(ItemsCount::new(SAMPLES)).bench(|| profile::decode(black_box(&request)).unwrap());
}
