//! What a sample costs in the kernel: stacks of a few, of 30 and of 120 frames, by tables and by frame pointers, on
//! every CPU.
//!
//! In: the kernel's own run-time statistics. Out: a line for each: the median of some windows, and the range around it.
//! Needs root.
#![allow(clippy::unwrap_used, reason = "a benchmark fails by panicking")]

#[path = "../tests/library/sampled/mod.rs"]
mod sampled;

use std::time::{Duration, Instant};

use obi::capture::program::profile::{ProfileMaps, Profiler};
use obi::capture::stack::StackSample;
use obi_ebpf::Flavour;

use self::sampled::{Busy, deep, install, install_pointers, load};

/// Frames of the program's own; by tables `main` and what calls it come on top.
const DEPTHS: [usize; 3] = [1, 27, 117];
/// Often enough for a mean in a second, rarely enough to leave the program its CPU.
const HERTZ: u32 = 999;
const WINDOWS: usize = 7;
const WINDOW: Duration = Duration::from_millis(500);
const TABLES: &str = "tables";

fn main() {
    for flavour in [Flavour::Modern, Flavour::Portable] {
        for depth in DEPTHS {
            for (name, flag) in
                [(TABLES, "-fomit-frame-pointer"), ("frame pointers", "-fno-omit-frame-pointer")]
            {
                let (mut windows, frames) = measure(flavour, depth, flag, name == TABLES);
                windows.sort_unstable();
                let (least, median, most) = (windows[0], windows[WINDOWS / 2], windows[WINDOWS - 1]);
                println!(
                    "{flavour:?} object, {frames:.0} frames by {name}: {median} ns a sample ({least}–{most})"
                );
            }
        }
    }
}

/// Nanoseconds of a sample in each window, and frames, with as many busy programs as there are CPUs.
fn measure(flavour: Flavour, depth: usize, flag: &str, with_tables: bool) -> (Vec<u64>, f64) {
    let n_cpus = std::thread::available_parallelism().unwrap().get();
    let (profiler, mut maps) = load(flavour, HERTZ);
    let busy: Vec<Busy> = (0..n_cpus).map(|_| Busy::compile(&deep(depth), &["-O2", flag])).collect();
    for (program, table) in busy.iter().zip((1..).step_by(100)) {
        match with_tables {
            true => install(&mut maps, program.pid(), table),
            false => install_pointers(&mut maps, program.pid()),
        }
    }
    let pids: Vec<u32> = busy.iter().map(Busy::pid).collect();
    let statistics = aya::sys::enable_stats(aya::sys::Stats::RunTime).unwrap();
    let mut frames = (0, 0);
    let windows = (0..WINDOWS).map(|_| window(&profiler, &mut maps, &pids, &mut frames)).collect();
    drop(statistics);
    (windows, frames.0 as f64 / f64::from(frames.1))
}

/// Adds frames and samples of our processes.
fn window(profiler: &Profiler, maps: &mut ProfileMaps, pids: &[u32], frames: &mut (usize, u32)) -> u64 {
    let spent = || {
        let programs = profiler.measure();
        let nanoseconds: u64 = programs.iter().map(|program| program.info.nanoseconds).sum();
        (nanoseconds, programs.iter().map(|program| program.info.runs).sum::<u64>())
    };
    let before = spent();
    // As the agent reads them.
    let end = Instant::now() + WINDOW;
    while Instant::now() < end {
        while let Some(record) = maps.stacks.next() {
            let sample = StackSample::decode(&record).unwrap();
            if pids.contains(&sample.event.header.tgid) {
                *frames = (frames.0 + sample.n_user(), frames.1 + 1);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let after = spent();
    (after.0 - before.0) / (after.1 - before.1).max(1)
}
