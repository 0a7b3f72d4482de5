//! What a sample costs in the kernel: stacks of a few, of 30 and of 120 frames, by tables and by frame pointers, on every
//! CPU.
//!
//! In: the kernel's own run-time statistics. Out: a line for each. Needs root.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/sampled/mod.rs"]
mod sampled;

use std::time::{Duration, Instant};

use obi_ebpf::Flavour;

use self::sampled::{Busy, deep, install, install_pointers, load};

/// Frames of the program's own; `main` and two of the C library's come on top.
const DEPTHS: [usize; 3] = [1, 27, 117];
/// Often enough for a mean in seconds, rarely enough to leave the program its CPU.
const HERTZ: u32 = 999;
const SECONDS: u64 = 3;

fn main() {
    for flavour in [Flavour::Modern, Flavour::Portable] {
        for depth in DEPTHS {
            for (name, flag) in
                [(TABLES, "-fomit-frame-pointer"), ("frame pointers", "-fno-omit-frame-pointer")]
            {
                let (nanoseconds, runs) = measure(flavour, depth, flag, name == TABLES);
                let frames = depth + 3;
                println!(
                    "{flavour:?} object, {frames} frames by {name}: {} ns a sample, {runs} samples",
                    nanoseconds / runs
                );
            }
        }
    }
}

const TABLES: &str = "tables";

/// Time in the program and its runs, with as many busy programs as there are CPUs.
fn measure(flavour: Flavour, depth: usize, flag: &str, with_tables: bool) -> (u64, u64) {
    let n_cpus = std::thread::available_parallelism().unwrap().get();
    let (profiler, mut maps) = load(flavour, HERTZ);
    let busy: Vec<Busy> = (0..n_cpus).map(|_| Busy::compile(&deep(depth), &["-O2", flag])).collect();
    for (program, table) in busy.iter().zip((1..).step_by(100)) {
        match with_tables {
            true => install(&mut maps, program.pid(), table),
            false => install_pointers(&mut maps, program.pid()),
        }
    }
    let spent = || {
        let programs = profiler.measure();
        let nanoseconds: u64 = programs.iter().map(|program| program.info.nanoseconds).sum();
        (nanoseconds, programs.iter().map(|program| program.info.runs).sum::<u64>())
    };
    let statistics = aya::sys::enable_stats(aya::sys::Stats::RunTime).unwrap();
    let before = spent();
    // As the agent reads them.
    let end = Instant::now() + Duration::from_secs(SECONDS);
    while Instant::now() < end {
        while maps.stacks.next().is_some() {}
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = spent();
    drop(statistics);
    (after.0 - before.0, after.1 - before.1)
}
