//! A program that follows commands and prints where its code is, and the agent's part that follows it.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use aya::maps::{HashMap, Map, MapData};
use obi::capture::mapping::ExecutableFile;
use obi::capture::mapping::interpreter::{Interpreters, Maps};
use obi::capture::mapping::kernel::{Blocks, Chunks};
use obi::capture::mapping::resolver::{MappedAddress, Resolved, Resolver, Sampled};
use obi::capture::mapping::survey::Survey;
use obi::capture::mapping::tables::Tables;
use obi::capture::stack::StackSample;
use obi_ebpf::{SAMPLE_CPU, STACK_EXACT_BIT, STACK_NO_PROCESS, event_header, stack_event};
use rustix::time::{ClockId, clock_gettime};
use tempfile::TempDir;
use zerocopy::IntoBytes as _;

/// For something that happens in milliseconds on a quiet machine.
const PATIENCE: Duration = Duration::from_secs(120);
const SOURCE: &str = include_str!("program.c");
const LIBRARY: &str = include_str!("library.c");

/// Programs and libraries of a test.
pub(crate) struct Folder(TempDir);

impl Folder {
    pub(crate) fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        Self(folder)
    }

    fn path(&self, name: &str) -> String {
        self.0.path().join(name).to_str().unwrap().to_owned()
    }

    fn make(&self, name: &str, source: &str, options: &str) -> String {
        let (path, text) = (self.path(name), self.path(&format!("{name}.c")));
        fs::write(&text, source).unwrap();
        let made =
            Command::new("sh").args(["-c", &format!("gcc -O1 -o '{path}' '{text}' {options}")]).status();
        assert!(made.unwrap().success(), "{name} {options}");
        path
    }

    pub(crate) fn compile(&self, name: &str, options: &str) -> String {
        self.make(name, SOURCE, options)
    }

    pub(crate) fn library(&self, name: &str, options: &str) -> String {
        self.make(name, LIBRARY, &format!("-shared -fPIC {options}"))
    }

    pub(crate) fn copy(&self, path: &str, name: &str) -> String {
        let copy = self.path(name);
        fs::copy(path, &copy).unwrap();
        copy
    }

    pub(crate) fn folder(&self, name: &str) -> String {
        fs::create_dir(self.path(name)).unwrap();
        self.path(name)
    }
}

/// An address that a process has printed, and the time when it was right.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reported {
    pub(crate) tgid: u32,
    pub(crate) address: u64,
    pub(crate) time: u64,
}

/// A running program; ends with this value.
pub(crate) struct Program {
    child: Child,
    orders: Option<ChildStdin>,
    says: BufReader<ChildStdout>,
}

impl Program {
    pub(crate) fn start(path: &str) -> Self {
        Self::of(&mut Command::new(path))
    }

    pub(crate) fn of(command: &mut Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (orders, says) = (child.stdin.take(), BufReader::new(child.stdout.take().unwrap()));
        Self { child, orders, says }
    }

    pub(crate) fn say(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
    }

    /// Its next line: process, address, time.
    pub(crate) fn reported(&mut self) -> Reported {
        let mut line = String::new();
        self.says.read_line(&mut line).unwrap();
        let numbers: Vec<u64> = line.split_whitespace().map(|number| number.parse().unwrap()).collect();
        let [tgid, address, time] = numbers[..] else { panic!("`{line}`") };
        Reported { tgid: u32::try_from(tgid).unwrap(), address, time }
    }

    /// Ends it and takes note of its end.
    pub(crate) fn end(&mut self) {
        drop(self.orders.take());
        let _ = self.child.wait();
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        drop(self.orders.take());
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The part of the agent that follows mappings.
pub(crate) struct Agent {
    pub(crate) resolver: Resolver,
    /// Files that were let go.
    pub(crate) released: Vec<u64>,
}

impl Agent {
    pub(crate) fn start() -> Self {
        Self::start_with(|| ())
    }

    /// What comes after the survey runs with the capabilities that `reduce` leaves.
    pub(crate) fn start_with(reduce: impl FnOnce()) -> Self {
        let survey = Survey::open().unwrap();
        let tables = Tables::new(Chunks::new(map(32_768)), obi::capture::unwind::build, 64 << 20);
        let blocks = Blocks::new(map(4096));
        let interpreters = Interpreters::new(Maps { guests: map(64), jvms: map(64), v8s: map(64) });
        reduce();
        let resolver = Resolver::start(survey, tables, blocks, interpreters).unwrap();
        Self { resolver, released: Vec::new() }
    }

    pub(crate) fn resolve(&mut self, reported: Reported) -> Resolved {
        let released = &mut self.released;
        self.resolver.advance(&mut |files| {
            assert!(files.iter().all(|file| file.handle().is_some()), "there is time to read them");
            released.extend(files.iter().map(|file| file.id));
        });
        let Reported { tgid, address, time } = reported;
        self.resolver.resolve(Sampled { tgid, address: address + 1, is_return: true, serves: true, time })
    }

    /// Once its list is read, if it is.
    pub(crate) fn settled(&mut self, reported: Reported) -> Resolved {
        self.until(|agent| {
            Some(agent.resolve(reported)).filter(|resolved| !matches!(resolved, Resolved::Pending))
        })
    }

    pub(crate) fn place(&mut self, reported: Reported) -> MappedAddress {
        self.until(|agent| match agent.resolve(reported) {
            Resolved::Mapped(place) => Some(place),
            _ => None,
        })
    }

    /// The file there, once it is open, and known to serve requests.
    pub(crate) fn file(&mut self, reported: Reported) -> (MappedAddress, Arc<ExecutableFile>) {
        self.until(|agent| match agent.resolve(reported) {
            Resolved::Mapped(place) => {
                place.mapping.file().filter(|file| file.served() > 0).map(|file| (place, file))
            }
            _ => None,
        })
    }

    /// A sample of it is taken.
    pub(crate) fn sample(&mut self, reported: Reported) {
        let header = event_header { tgid: reported.tgid, time: reported.time, ..event_header::default() };
        let (kind, end) = (SAMPLE_CPU as u8, STACK_NO_PROCESS as u8);
        let event = stack_event { header, kind, n_user: 1, end, ..stack_event::default() };
        let address = reported.address | 1 << STACK_EXACT_BIT;
        let words: Vec<u64> = [event.as_bytes(), address.as_bytes()]
            .concat()
            .chunks(8)
            .map(|word| u64::from_ne_bytes(word.try_into().unwrap()))
            .collect();
        self.resolver.observe(&StackSample::decode(words.as_bytes()).unwrap());
    }

    /// The side-band has reported its end.
    pub(crate) fn await_end(&mut self, tgid: u32) {
        let state = || fs::read_to_string(format!("/proc/{tgid}/stat")).unwrap_or_default();
        self.until(|_| {
            let state = state();
            (state.is_empty() || state.contains(") Z")).then_some(())
        });
        self.resolver.advance(&mut |_| {});
    }

    pub(crate) fn until<T>(&mut self, mut what: impl FnMut(&mut Self) -> Option<T>) -> T {
        let began = Instant::now();
        loop {
            self.resolver.advance(&mut |files| self.released.extend(files.iter().map(|file| file.id)));
            if let Some(found) = what(self) {
                return found;
            }
            assert!(began.elapsed() < PATIENCE, "{:?}", self.resolver.counts());
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Until something has come true.
pub(crate) fn patiently(mut what: impl FnMut() -> bool) {
    let began = Instant::now();
    while !what() {
        assert!(began.elapsed() < PATIENCE);
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A map as the profiler has it, which no program uses.
fn map<K: aya::Pod, V: aya::Pod>(most: u32) -> HashMap<MapData, K, V> {
    let kind = aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_HASH as u32;
    let size = |bytes: usize| u32::try_from(bytes).unwrap();
    let on_demand = aya_obj::generated::BPF_F_NO_PREALLOC;
    let map =
        aya_obj::Map::new_from_params(kind, size(size_of::<K>()), size(size_of::<V>()), most, on_demand);
    HashMap::try_from(Map::HashMap(MapData::create(map, "test", None).unwrap())).unwrap()
}

pub(crate) fn running() -> Vec<u32> {
    let entries = fs::read_dir("/proc").unwrap();
    entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
}

pub(crate) fn monotonic() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}
