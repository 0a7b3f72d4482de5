//! The sampler of stacks in this kernel: programs whose stacks are known are sampled, frame by frame.
//!
//! In: C compiled here, without frame pointers. Out: a failure that shows the stack. Needs root.
#![allow(
    clippy::unwrap_used,
    reason = "a test fails by panicking; helpers beside `#[test]` functions are not exempt"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use obi::capture::kernel_types::KernelTypes;
use obi::capture::program::SharedMaps;
use obi::capture::program::profile::{
    MappingBlock, MappingKey, ProfileMaps, Profiler, ProfilerSettings, UnwindChunk, UnwindKey,
};
use obi::capture::stack::StackSample;
use obi::capture::tls::elf::OpenFile;
use obi::capture::unwind;
use obi_ebpf::{
    Flavour, MAPPING_ENTRIES, STACK_COMPLETE, UNUSED_START, mapping_block, mapping_entry, mapping_key,
};
use object::{Object as _, ObjectSymbol as _};

const PATIENCE: Duration = Duration::from_secs(60);

fn load(flavour: Flavour) -> (Profiler, ProfileMaps) {
    let settings = ProfilerSettings {
        self_tgid: std::process::id(),
        hertz: 199,
        ring_bytes: 1 << 20,
        table_bytes: 16 << 20,
        mapping_blocks: 64,
        statistics: true,
    };
    let types = KernelTypes::read(None).unwrap();
    Profiler::load_flavour(flavour, &settings, &SharedMaps::of_nobody().unwrap(), &types).unwrap()
}

/// A file that a process maps to be executed.
struct Mapped {
    start: u64,
    end: u64,
    offset: u64,
    path: PathBuf,
}

fn mapped(pid: u32) -> Vec<Mapped> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap();
    let parse = |line: &str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let path = fields.get(5).filter(|path| path.starts_with('/'))?;
        let (start, end) = fields[0].split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let (start, end, offset) = (number(start)?, number(end)?, number(fields[2])?);
        fields[1].contains('x').then(|| Mapped { start, end, offset, path: path.into() })
    };
    text.lines().filter_map(parse).collect()
}

/// Address in the file's own layout of an offset in it.
fn virtual_address(path: &Path, offset: u64) -> u64 {
    let bytes = std::fs::read(path).unwrap();
    let file = object::File::parse(&*bytes).unwrap();
    let segment = object::ObjectSegment::address;
    let range = |part: &object::Segment<'_, '_>| object::ObjectSegment::file_range(part);
    file.segments()
        .find(|part| (range(part).0..range(part).0 + range(part).1).contains(&offset))
        .map(|part| segment(&part) + offset - range(&part).0)
        .unwrap()
}

/// Tells the kernel side what a process maps, as the agent's own thread for it does.
fn install(maps: &mut ProfileMaps, pid: u32, first_table: u32) {
    let mut table = first_table;
    let mut entries = Vec::new();
    for Mapped { start, end, offset, path } in mapped(pid) {
        let file = std::fs::File::open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        let Ok(tables) = unwind::build(&OpenFile { file, length }) else { continue };
        let bias = start.wrapping_sub(virtual_address(&path, offset));
        for built in tables {
            for chunk in built.chunks(table) {
                maps.chunks.insert(UnwindKey(chunk.key), UnwindChunk(chunk), 0).unwrap();
            }
            let (origin, last) = (bias.wrapping_add(built.first), bias.wrapping_add(built.last));
            let (start, end) = (origin.max(start), last.min(end));
            if start < end {
                entries.push(mapping_entry { start, end, origin, table, flags: 0 });
            }
            table += 1;
        }
    }
    entries.sort_by_key(|entry| entry.start);
    let key = mapping_key { tgid: pid, block: 0 };
    let unused = mapping_entry { start: UNUSED_START, ..mapping_entry::default() };
    let mut block = mapping_block { key, n_entries: 0, index: 0, entry: [unused; MAPPING_ENTRIES as usize] };
    for (to, from) in block.entry.iter_mut().zip(&entries) {
        *to = *from;
        block.n_entries += 1;
    }
    maps.mappings.insert(MappingKey(key), MappingBlock(block), 0).unwrap();
}

/// A program that is busy, and tells when it is.
struct Busy {
    child: Child,
    path: PathBuf,
    // Holds the executable.
    _directory: tempfile::TempDir,
}

impl Busy {
    fn compile(source: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path().join("busy"), directory.path().join("busy.c"));
        std::fs::write(&text, source).unwrap();
        let output = Command::new("gcc").args(flags).arg(&text).arg("-o").arg(&path).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let mut child = Command::new(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, path, _directory: directory }
    }

    fn pid(&self) -> u32 {
        self.child.id()
    }

    fn names(&self) -> Names {
        let pid = self.pid();
        let mut all = BTreeMap::new();
        for Mapped { start, offset, path, .. } in mapped(pid) {
            let bytes = std::fs::read(&path).unwrap();
            let file = object::File::parse(&*bytes).unwrap();
            let bias = start.wrapping_sub(virtual_address(&path, offset));
            for symbol in file.symbols().chain(file.dynamic_symbols()) {
                if symbol.kind() == object::SymbolKind::Text && symbol.size() > 0 {
                    let at = bias.wrapping_add(symbol.address());
                    all.insert(at, (at + symbol.size(), symbol.name().unwrap().to_owned()));
                }
            }
        }
        assert!(all.values().any(|(_, name)| name == "main"), "{}", self.path.display());
        Names(all)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

struct Names(BTreeMap<u64, (u64, String)>);

impl Names {
    fn of(&self, address: u64, is_exact: bool) -> &str {
        let address = if is_exact { address } else { address - 1 };
        let before = self.0.range(..=address).next_back();
        before.filter(|(_, (end, _))| address < *end).map_or("?", |(_, (_, name))| name)
    }
}

/// A stack of the program in its own code, leaf first, and how it ended.
#[derive(Debug)]
struct Stack {
    names: Vec<String>,
    end: u32,
    by_pointer: usize,
    exchange: u64,
}

/// The next stacks of a process, after those that were there before.
fn stacks(maps: &mut ProfileMaps, busy: &Busy, n: usize) -> Vec<Stack> {
    while maps.stacks.next().is_some() {}
    let names = busy.names();
    let started = Instant::now();
    let mut found = Vec::new();
    while found.len() < n {
        assert!(started.elapsed() < PATIENCE, "{} samples of {n}", found.len());
        let Some(record) = maps.stacks.next() else {
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let sample = StackSample::decode(&record).unwrap();
        if sample.event.header.tgid != busy.pid() {
            continue;
        }
        let name = |frame: obi::capture::stack::Address| names.of(frame.address, frame.is_exact).to_owned();
        found.push(Stack {
            names: sample.user().map(name).collect(),
            end: sample.event.end.into(),
            by_pointer: sample.user().filter(|frame| frame.by_pointer).count(),
            exchange: sample.event.header.exchange,
        });
    }
    found
}

/// Functions that call each other `depth` deep and are busy at the bottom; frames of different sizes.
fn deep(depth: usize) -> String {
    let mut source = "#include <stdio.h>\nvolatile unsigned long x;\n\
        __attribute__((noinline)) long level_0(long n) { for (;;) x += n; return x; }\n"
        .to_owned();
    for level in 1..depth {
        let (size, below) = (1 + level * 7 % 60, level - 1);
        writeln!(
            source,
            "__attribute__((noinline)) long level_{level}(long n) {{ volatile long room[{size}]; room[0] = n; \
             long r = level_{below}(n + {level}); return r + room[0]; }}"
        )
        .unwrap();
    }
    let top = depth - 1;
    write!(
        source,
        "int main(void) {{ puts(\"ready\"); fflush(stdout); return (int)level_{top}(1) + (int)x; }}"
    )
    .unwrap();
    source
}

#[test]
fn every_frame_is_found_without_frame_pointers() {
    for flavour in [Flavour::Modern, Flavour::Portable] {
        let (profiler, mut maps) = load(flavour);
        let mut tables = 1;
        for depth in [10, 100, 250, 400] {
            for flags in [&["-O2", "-fomit-frame-pointer"][..], &["-O2", "-fomit-frame-pointer", "-no-pie"]] {
                let busy = Busy::compile(&deep(depth), flags);
                install(&mut maps, busy.pid(), tables);
                tables += 100;
                for stack in stacks(&mut maps, &busy, 20) {
                    let expected: Vec<String> =
                        (0..depth).map(|level| format!("level_{level}")).chain(["main".to_owned()]).collect();
                    assert_eq!(stack.names[..=depth], expected, "{flavour:?} {stack:?}");
                    assert_eq!((stack.end, stack.by_pointer), (STACK_COMPLETE, 0), "{flavour:?} {stack:?}");
                    assert_eq!(stack.exchange, 0);
                }
                println!("{flavour:?}: {depth} frames with {flags:?}: {:?}", profiler.counts().unwrap());
            }
        }
        for program in profiler.measure() {
            println!("{program:?}");
        }
    }
}
