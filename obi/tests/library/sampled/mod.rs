//! Programs that are sampled: compiled, run, entered in the kernel side's maps, and their stacks with names.
//!
//! In: source text. Out: stacks. Used by tests and the benchmark of the walk. Needs root.
#![allow(
    clippy::unwrap_used,
    dead_code,
    reason = "a test fails by panicking; each user of this module uses a part of it"
)]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::FileExt as _;
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
    Flavour, MAPPING_ENTRIES, MAPPING_POINTERS, UNUSED_START, mapping_block, mapping_entry, mapping_key,
};
use object::{Object as _, ObjectSymbol as _};

/// For samples that come in milliseconds on a quiet machine.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// What this kernel can load, the one that the agent would take first: `Modern` needs loops (5.17).
pub(crate) fn flavours() -> Vec<Flavour> {
    let has_loops = KernelTypes::read(None).unwrap().function("bpf_loop").is_some();
    has_loops.then_some(Flavour::Modern).into_iter().chain([Flavour::Portable]).collect()
}

/// The sampler, so many times a second on every CPU.
pub(crate) fn load(flavour: Flavour, hertz: u32) -> (Profiler, ProfileMaps) {
    let settings = ProfilerSettings {
        self_tgid: std::process::id(),
        hertz,
        ring_bytes: 1 << 20,
        table_bytes: 16 << 20,
        mapping_blocks: 64,
        statistics: true,
        off_cpu: false,
        page_faults: false,
    };
    let types = KernelTypes::read(None).unwrap();
    Profiler::load_flavour(flavour, &settings, &SharedMaps::of_nobody().unwrap(), &types).unwrap()
}

/// What the kernel maps into every process.
const VDSO: &str = "[vdso]";

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
        let path = fields.get(5).filter(|path| path.starts_with('/') || **path == VDSO)?;
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

/// Writes what a process maps into the kernel side's maps, as the agent's own thread for it does.
pub(crate) fn install(maps: &mut ProfileMaps, pid: u32, first_table: u32) {
    let mut table = first_table;
    let mut entries = Vec::new();
    for Mapped { start, end, offset, path } in mapped(pid) {
        let (tables, bias) = if path == Path::new(VDSO) {
            let mut image = vec![0; usize::try_from(end - start).unwrap()];
            let memory = std::fs::File::open(format!("/proc/{pid}/mem")).unwrap();
            memory.read_exact_at(&mut image, start).unwrap();
            (unwind::build(&&image[..]).unwrap(), start)
        } else {
            let file = std::fs::File::open(&path).unwrap();
            let length = file.metadata().unwrap().len();
            let Ok(tables) = unwind::build(&OpenFile { file, length }) else { continue };
            (tables, start.wrapping_sub(virtual_address(&path, offset)))
        };
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
    tell(maps, pid, entries);
}

/// As [`install`], with no table for anything.
pub(crate) fn install_pointers(maps: &mut ProfileMaps, pid: u32) {
    let entry = |mapped: Mapped| {
        let Mapped { start, end, .. } = mapped;
        mapping_entry { start, end, origin: start, table: 0, flags: MAPPING_POINTERS }
    };
    tell(maps, pid, mapped(pid).into_iter().map(entry).collect());
}

fn tell(maps: &mut ProfileMaps, pid: u32, mut entries: Vec<mapping_entry>) {
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

/// A program that is busy, and prints when it is.
pub(crate) struct Busy {
    child: Child,
    path: PathBuf,
    // Holds the executable.
    _directory: tempfile::TempDir,
}

impl Busy {
    /// C, by gcc with these flags.
    pub(crate) fn compile(source: &str, flags: &[&str]) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let (path, text) = (directory.path().join("busy"), directory.path().join("busy.c"));
        std::fs::write(&text, source).unwrap();
        Self::start(Command::new("gcc").args(flags).arg(&text).arg("-o").arg(&path), directory)
    }

    /// Go, without C.
    pub(crate) fn build_go(source: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::write(directory.path().join("busy.go"), source).unwrap();
        let mut command = Command::new("go");
        command.args(["build", "-o", "busy", "busy.go"]).env("GOFLAGS", "-mod=mod").env("CGO_ENABLED", "0");
        Self::start(command.current_dir(directory.path()), directory)
    }

    /// Compiles, runs, waits until it is busy.
    fn start(compiler: &mut Command, directory: tempfile::TempDir) -> Self {
        let output = compiler.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let path = directory.path().join("busy");
        let mut child = Command::new(&path).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        Self { child, path, _directory: directory }
    }

    /// Its process.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    fn names(&self) -> Names {
        let pid = self.pid();
        let mut all = BTreeMap::new();
        for Mapped { start, offset, path, .. } in mapped(pid) {
            if path == Path::new(VDSO) {
                continue;
            }
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
        assert!(all.values().any(|(_, name)| name.contains("main")), "{}", self.path.display());
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
pub(crate) struct Stack {
    /// Functions, leaf first; `?` where no symbol is.
    pub(crate) names: Vec<String>,
    /// `enum stack_end`
    pub(crate) end: u32,
    /// Frames found for want of a table.
    pub(crate) by_pointer: usize,
    /// What the thread was serving.
    pub(crate) exchange: u64,
    /// The sample came to the kernel.
    pub(crate) in_kernel: bool,
}

/// The next stacks of a process, after those that were there before.
pub(crate) fn stacks(maps: &mut ProfileMaps, busy: &Busy, n: usize) -> Vec<Stack> {
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
            names: sample.native().map(name).collect(),
            end: sample.event.end.into(),
            by_pointer: sample.native().filter(|frame| frame.by_pointer).count(),
            exchange: sample.event.header.exchange,
            in_kernel: !sample.kernel().is_empty(),
        });
    }
    found
}

/// Functions that call each other `depth` deep and are busy at the bottom; frames of different sizes.
pub(crate) fn deep(depth: usize) -> String {
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
