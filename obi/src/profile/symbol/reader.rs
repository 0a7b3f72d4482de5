//! What blazesym says of an address, on a thread that may die, hang or be given up.
//!
//! In: private copies of symbols and debug information ([`super::compose`]), addresses. Out: the functions there, as
//! they are in the tables. The files come from any user, and their debug information is a program of a kind: so
//! whatever goes wrong in reading it (a panic, a loop) costs one file its names, not the agent its life. Refuses to
//! know which file it was.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolized, Symbolizer};

/// Deeper than debug information nests calls.
const STACK_BYTES: usize = 16 * 1024 * 1024;
/// Calls inlined into each other that are reported.
const DEPTH: usize = 128;
/// Threads that did not answer and still run; while there are so many, nothing is read.
const LEFT_BEHIND: usize = 2;

/// One function at an address.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Called {
    /// As in the tables.
    pub name: String,
    /// Empty if not known.
    pub file: String,
    /// 0 if not known.
    pub line: u32,
    /// 0 if not known.
    pub column: u32,
}

/// Why a file has no names any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Failure {
    /// The reader panicked.
    Panicked,
    /// It took longer than it may.
    TooSlow,
    /// Too many were too slow and still are.
    GivenUp,
}

/// The thread that reads; another when it did not answer in time.
#[derive(Debug)]
pub struct Reader {
    patience: Duration,
    thread: Option<Thread>,
    /// Those that did not answer, while they run.
    left_behind: Vec<Weak<()>>,
}

#[derive(Debug)]
struct Thread {
    requests: SyncSender<Request>,
    /// Held by the thread until it ends.
    alive: Weak<()>,
}

#[derive(Debug)]
enum Request {
    Open { number: u64, file: File, has_debug: bool },
    Close { number: u64 },
    Name { number: u64, address: u64, answer: SyncSender<Answer> },
}

type Answer = Result<Vec<Called>, Failure>;

impl Reader {
    /// One that waits so long for an answer. No thread runs before it is needed.
    #[must_use]
    pub fn new(patience: Duration) -> Self {
        Self { patience, thread: None, left_behind: Vec::new() }
    }

    /// A thread reads, or would. None does while too many that were too slow still run.
    pub fn is_available(&mut self) -> bool {
        self.left_behind.retain(|thread| thread.strong_count() > 0);
        self.left_behind.len() < LEFT_BEHIND
    }

    /// Reads from this file under this number, which is never used for another.
    pub fn open(&mut self, number: u64, file: File, has_debug: bool) {
        self.send(Request::Open { number, file, has_debug });
    }

    /// Forgets a file and all that was read of it.
    pub fn close(&mut self, number: u64) {
        if self.thread.is_some() {
            self.send(Request::Close { number });
        }
    }

    /// The functions at an address, the innermost first; none if nothing is known of it.
    ///
    /// # Errors
    /// When the file did harm: it is forgotten then, and after [`Failure::TooSlow`] so are all others.
    pub fn name(&mut self, number: u64, address: u64) -> Result<Vec<Called>, Failure> {
        let (sender, answer) = sync_channel(1);
        self.send(Request::Name { number, address, answer: sender });
        match answer.recv_timeout(self.patience) {
            Ok(answer) => answer,
            Err(RecvTimeoutError::Timeout) => {
                // Its thread ends when it is done and finds no receiver.
                self.left_behind.extend(self.thread.take().map(|thread| thread.alive));
                Err(Failure::TooSlow)
            }
            Err(RecvTimeoutError::Disconnected) => {
                self.thread = None;
                Err(if self.is_available() { Failure::Panicked } else { Failure::GivenUp })
            }
        }
    }

    fn send(&mut self, request: Request) {
        if self.thread.is_none() && self.is_available() {
            let (sender, requests) = sync_channel(16);
            let token = Arc::new(());
            let alive = Arc::downgrade(&token);
            let builder = thread::Builder::new().name("obi-symbols".to_owned()).stack_size(STACK_BYTES);
            let run = move || {
                read(&requests);
                drop(token);
            };
            if builder.spawn(run).is_ok() {
                self.thread = Some(Thread { requests: sender, alive });
            }
        }
        // Without a thread the request is dropped, and the caller that waits for its answer gets an error.
        if let Some(thread) = &self.thread
            && thread.requests.send(request).is_err()
        {
            self.thread = None;
        }
    }
}

struct Open {
    symbolizer: Symbolizer,
    /// With debug information, if it has any.
    source: Source<'static>,
    /// With symbols alone, if it has debug information.
    symbols: Option<Source<'static>>,
    /// Its descriptor is the path that blazesym opens.
    _file: File,
}

fn read(requests: &Receiver<Request>) {
    let mut files: HashMap<u64, Open> = HashMap::new();
    while let Ok(request) = requests.recv() {
        match request {
            Request::Open { number, file, has_debug } => {
                files.insert(number, open(file, has_debug));
            }
            Request::Close { number } => {
                files.remove(&number);
            }
            Request::Name { number, address, answer } => {
                let found = catch_unwind(AssertUnwindSafe(|| {
                    files.get(&number).map(|file| called(file, address)).unwrap_or_default()
                }));
                if found.is_err() {
                    files.remove(&number);
                }
                if answer.send(found.map_err(|_| Failure::Panicked)).is_err() {
                    return;
                }
            }
        }
    }
}

fn open(file: File, has_debug: bool) -> Open {
    let mut elf = Elf::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    elf.debug_syms = false;
    let mut with_debug = elf.clone();
    with_debug.debug_syms = true;
    let symbolizer = Symbolizer::builder()
        .enable_auto_reload(false)
        .enable_code_info(has_debug)
        .enable_inlined_fns(has_debug)
        .enable_demangling(false)
        .set_debug_dirs(Some(<[&Path; 0]>::default()))
        .build();
    let (source, symbols) = if has_debug { (with_debug, Some(elf)) } else { (elf, None) };
    Open { symbolizer, source: Source::Elf(source), symbols: symbols.map(Source::Elf), _file: file }
}

fn called(file: &Open, address: u64) -> Vec<Called> {
    let find = |source| match file.symbolizer.symbolize_single(source, Input::VirtOffset(address)) {
        Ok(Symbolized::Sym(symbol)) => calls(&symbol),
        Ok(Symbolized::Unknown(_)) | Err(_) => Vec::new(),
    };
    let mut called = find(&file.source);
    let is_mangled = |called: &Called| called.name.starts_with("_Z") || called.name.starts_with("_R");
    // Debug information without much detail has names without the spaces that they are in, or is broken.
    if let Some(symbols) = &file.symbols
        && !called.last().is_some_and(is_mangled)
        && let Some(symbol) = find(symbols).pop()
    {
        match called.last_mut() {
            Some(outermost) if is_mangled(&symbol) || outermost.name.is_empty() => {
                outermost.name = symbol.name
            }
            Some(_) => {}
            None => called.push(symbol),
        }
    }
    called
}

fn calls(symbol: &Sym<'_>) -> Vec<Called> {
    let inlined = symbol.inlined.iter().rev().take(DEPTH);
    let mut calls: Vec<Called> = inlined.map(|call| one(&call.name, call.code_info.as_ref())).collect();
    calls.push(one(&symbol.name, symbol.code_info.as_deref()));
    calls
}

fn one(name: &str, place: Option<&CodeInfo<'_>>) -> Called {
    let Some(place) = place else { return Called { name: name.to_owned(), ..Called::default() } };
    let file = place.to_path().to_string_lossy().into_owned();
    Called {
        name: name.to_owned(),
        file,
        line: place.line.unwrap_or_default(),
        column: place.column.unwrap_or_default().into(),
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::os::unix::fs::OpenOptionsExt as _;

    use super::*;

    #[test]
    fn what_is_not_there_has_no_names() {
        let mut reader = Reader::new(Duration::from_secs(600));
        assert_eq!(reader.name(1, 0x1000), Ok(Vec::new()), "never opened");
        reader.open(2, File::open("/dev/null").unwrap(), true);
        assert_eq!(reader.name(2, 0x1000), Ok(Vec::new()), "empty");
        reader.close(2);
        assert_eq!(reader.name(2, 0x1000), Ok(Vec::new()), "closed");
    }

    /// A pipe without a writer: a thread that opens it waits.
    fn endless(folder: &Path, name: &str) -> File {
        let path = folder.join(name);
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        let nonblocking = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
        OpenOptions::new().read(true).custom_flags(nonblocking).open(path).unwrap()
    }

    #[test]
    fn who_does_not_answer_is_left_behind_until_it_has_ended() {
        let folder = tempfile::tempdir().unwrap();
        let mut reader = Reader::new(Duration::from_millis(20));
        let mut failures = Vec::new();
        for (number, name) in [(1, "one"), (2, "two")] {
            reader.open(number, endless(folder.path(), name), false);
            failures.extend(reader.name(number, 0x1000).err());
        }
        reader.open(3, File::open("/dev/null").unwrap(), false);
        failures.extend(reader.name(3, 0x1000).err());
        assert_eq!(failures, [Failure::TooSlow, Failure::TooSlow, Failure::GivenUp]);
        assert!(!reader.is_available());
        // Now the pipes have writers, and the threads end.
        let writers =
            ["one", "two"].map(|name| OpenOptions::new().write(true).open(folder.path().join(name)));
        assert!(writers.iter().all(Result::is_ok));
        while !reader.is_available() {
            thread::yield_now();
        }
        reader.patience = Duration::from_secs(600);
        reader.open(4, File::open("/dev/null").unwrap(), false);
        assert_eq!(reader.name(4, 0x1000), Ok(Vec::new()));
    }
}
