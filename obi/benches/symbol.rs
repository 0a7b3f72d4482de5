//! What naming costs: warm, from the cache (≥ 1,000,000 frames a second on one core), and cold, by kind of file.

use std::fs::File;
use std::path::Path;

use divan::counter::ItemsCount;
use divan::{Bencher, black_box};
use obi::capture::executable::elf::Elf;
use obi::profile::symbol::kernel::{Functions, Kernel};
use obi::profile::symbol::{self, Bounds, CodeAddress, Symbols};

fn main() {
    divan::main();
}

const SAMPLES: usize = 10_000;
/// Addresses in a program's code.
const PLACES: u64 = 20_000;

fn without_kernel() -> Symbols {
    Symbols::with(Bounds::default(), Kernel::of(Functions::default()))
}

/// A program, and addresses all over its code.
struct Program {
    file: File,
    path: &'static str,
    addresses: Vec<u64>,
}

impl Program {
    fn open(path: &'static str) -> Option<Self> {
        let file = File::open(path).ok()?;
        let length = file.metadata().ok()?.len();
        let source = obi::capture::tls::elf::OpenFile { file: file.try_clone().ok()?, length };
        let elf = Elf::read(&source).ok()?;
        let text = elf.section(".text")?;
        let step = (text.length / PLACES).max(1);
        let addresses = (0..PLACES.min(text.length)).map(|at| text.address + at * step).collect();
        Some(Self { file, path, addresses })
    }

    fn name(&self, symbols: &mut Symbols, address: u64) {
        let file = symbol::File { id: 1, handle: Some(&self.file), path: self.path, root: Path::new("/") };
        black_box(symbols.name(&CodeAddress::File { file, address }));
    }
}

/// This very program: Rust, with lines.
const OWN: &str = "/proc/self/exe";

#[divan::bench(sample_count = 20)]
fn warm(bencher: Bencher<'_, '_>) {
    let program = Program::open(OWN).expect("this program");
    let mut symbols = without_kernel();
    let hot = &program.addresses[..SAMPLES.min(program.addresses.len())];
    hot.iter().for_each(|address| program.name(&mut symbols, *address));
    bencher.counter(ItemsCount::new(hot.len())).bench_local(|| {
        hot.iter().for_each(|address| program.name(&mut symbols, *address));
    });
}

#[divan::bench(sample_count = 20)]
fn warm_kernel(bencher: Bencher<'_, '_>) {
    let mut symbols = Symbols::open(Bounds::default());
    let place = |at: u64| CodeAddress::Kernel(0xffff_ffff_8100_0000 + at % 4096 * 512);
    (0..4096).for_each(|at| {
        symbols.name(&place(at));
    });
    bencher.counter(ItemsCount::new(SAMPLES)).bench_local(|| {
        (0..SAMPLES as u64).for_each(|at| {
            black_box(symbols.name(&place(at)));
        });
    });
}

/// One address after another, none known before; the file is met with the first.
#[divan::bench(sample_count = 3, sample_size = 1, args = [OWN, "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3", "/usr/local/go/bin/go"])]
fn cold(bencher: Bencher<'_, '_>, path: &'static str) {
    let Some(program) = Program::open(path) else {
        eprintln!("{path}: not on this machine");
        return bencher.bench_local(|| {});
    };
    let some: Vec<u64> = program.addresses.iter().step_by(20).copied().collect();
    bencher.counter(ItemsCount::new(some.len())).with_inputs(without_kernel).bench_local_values(
        |mut symbols| {
            some.iter().for_each(|address| program.name(&mut symbols, *address));
            symbols
        },
    );
}

/// What the first sample of a file waits for.
#[divan::bench(sample_count = 3, sample_size = 1, args = [OWN, "/lib/x86_64-linux-gnu/libc.so.6", "/usr/bin/python3", "/usr/local/go/bin/go"])]
fn first(bencher: Bencher<'_, '_>, path: &'static str) {
    let Some(program) = Program::open(path) else {
        eprintln!("{path}: not on this machine");
        return bencher.bench_local(|| {});
    };
    let middle = program.addresses[program.addresses.len() / 2];
    bencher.with_inputs(without_kernel).bench_local_values(|mut symbols| {
        program.name(&mut symbols, middle);
        symbols
    });
}

/// `/proc/kallsyms`, as at the start.
#[divan::bench(sample_count = 5, sample_size = 1)]
fn kernel_reading() -> Kernel {
    Kernel::open()
}
