//! What a sample costs in the kernel: stacks of 30 frames, by tables and by frame pointers, on every CPU.
//!
//! In: the kernel's own run-time statistics. Out: a line for each. Needs root.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/sampled/mod.rs"]
mod sampled;

use std::time::{Duration, Instant};

use obi_ebpf::Flavour;

use self::sampled::{Busy, deep, install, install_pointers, load};

/// Frames of the program's own; `main` and two of the C library's come on top.
const DEPTH: usize = 27;
/// Often enough for a mean in seconds, rarely enough to leave the program its CPU.
const HERTZ: u32 = 999;
const SECONDS: u64 = 5;

fn main() {
    let n_cpus = std::thread::available_parallelism().unwrap().get();
    for flavour in [Flavour::Modern, Flavour::Portable] {
        for (name, flag, with_tables) in
            [("tables", "-fomit-frame-pointer", true), ("frame pointers", "-fno-omit-frame-pointer", false)]
        {
            let (profiler, mut maps) = load(flavour, HERTZ);
            let busy: Vec<Busy> = (0..n_cpus).map(|_| Busy::compile(&deep(DEPTH), &["-O2", flag])).collect();
            for (program, table) in busy.iter().zip((1..).step_by(100)) {
                match with_tables {
                    true => install(&mut maps, program.pid(), table),
                    false => install_pointers(&mut maps, program.pid()),
                }
            }
            let spent = || {
                let programs = profiler.measure();
                let sum = |of: fn(&obi::capture::bpf::info::ProgramInfo) -> u64| -> u64 {
                    programs.iter().map(|program| of(&program.info)).sum()
                };
                (sum(|info| info.nanoseconds), sum(|info| info.runs))
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
            let (nanoseconds, runs) = (after.0 - before.0, after.1 - before.1);
            println!(
                "{flavour:?} object, 30 frames by {name}: {} ns a sample, {runs} samples",
                nanoseconds / runs
            );
        }
    }
}
