//! Names in files: executables, libraries, the vdso.
//!
//! In: a file's open descriptor and an address in its own layout. Out: what is there, from Go's tables, from debug
//! information, from tables of symbols or from the stubs that call libraries, in this order; else where the function
//! begins. Keeps what it has read for the next address, for as many files as fit. Refuses to know processes and
//! samples.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::cache::Texts;
use super::compose::{CopyError, Part, copy};
use super::debug_file::{find, packed};
use super::demangle::demangle;
use super::plt;
use super::reader::{Called, Failure, Reader};
use super::start::function_start;
use crate::capture::executable::elf::Elf;
use crate::capture::executable::go;
use crate::capture::tls::elf::OpenFile;
use crate::profile::{Fidelity, Line, Runtime, Symbol};

/// Files that are kept open: up to three descriptors each; their tables are counted in bytes.
const FILES: usize = 512;
/// What reading debug information takes, in memory, for each of its bytes: lists of functions, rows of lines.
const READ_FACTOR: u64 = 3;

/// A file to look into.
#[derive(Debug, Clone, Copy)]
pub struct File<'a> {
    /// A number that no other file has in this run, nor the same after it was replaced.
    pub id: u64,
    /// Open for reading; `None` if it is not any more, which is no loss when it was known before.
    pub handle: Option<&'a fs::File>,
    /// As its processes see it: debug information may lie beside it.
    pub path: &'a str,
    /// The root of one of its processes: `/proc/PID/root`.
    pub root: &'a Path,
}

/// How much may be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Of one file, tables of symbols and debug information, unpacked.
    pub file_bytes: u64,
    /// Of all files that are kept for the next address. One file alone may exceed it.
    pub open_bytes: u64,
    /// For one address.
    pub patience: Duration,
}

/// Why files have fewer names than they could.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shortfall {
    /// Files that could not be read, or are malformed.
    pub unreadable: u64,
    /// Files without any names.
    pub nameless: u64,
    /// Files whose debug information is beyond the limit, or packed in an unknown way.
    pub partial: u64,
    /// Files given up because reading them panicked.
    pub panicked: u64,
    /// Files given up because reading them took too long.
    pub too_slow: u64,
}

/// All files that are known.
#[derive(Debug)]
pub struct Files {
    limits: Limits,
    reader: Reader,
    known: HashMap<u64, Known>,
    open_bytes: u64,
    /// Counts look-ups, to know which was the last.
    turn: u64,
    /// Look-ups before the last rest.
    rested: u64,
    next: u64,
    shortfall: Shortfall,
}

#[derive(Debug)]
struct Known {
    turn: u64,
    /// `None`: it cannot be read.
    program: Option<Program>,
}

#[derive(Debug)]
struct Program {
    source: Arc<OpenFile>,
    elf: Elf,
    go: Option<go::Program<Arc<OpenFile>>>,
    tables: Tables,
}

/// The private copy of its tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Tables {
    /// Not made, or given back.
    Closed,
    /// With the reader, under this number.
    Open { number: u64, bytes: u64, has_debug: bool },
    /// There are none, or they do harm.
    None,
}

impl Files {
    /// Knows no file yet.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            reader: Reader::new(limits.patience),
            known: HashMap::new(),
            open_bytes: 0,
            turn: 0,
            rested: 0,
            next: 0,
            shortfall: Shortfall::default(),
        }
    }

    /// What is at an address.
    pub fn name(&mut self, file: &File<'_>, address: u64, texts: &mut Texts) -> Symbol {
        self.meet(file);
        let Some(known) = self.known.get_mut(&file.id) else { return Symbol::default() };
        known.turn = self.turn;
        let Some(program) = &known.program else { return Symbol::default() };
        if let Some(go) = &program.go {
            let lines = go.lines(address);
            if !lines.is_empty() {
                return of_go(&lines, texts);
            }
        }
        let called = self.called(file, address);
        if called.last().is_some_and(|outermost| !outermost.name.is_empty()) {
            return of_tables(&called, texts);
        }
        let program = self.known.get(&file.id).and_then(|known| known.program.as_ref());
        let stub = program.and_then(|program| plt::name(&*program.source, &program.elf, address));
        if let Some(name) = stub {
            return of_tables(&[Called { name, ..Called::default() }], texts);
        }
        let start = program.and_then(|program| function_start(&*program.source, &program.elf, address));
        start.map(|start| nameless(file.path, start, texts)).unwrap_or_default()
    }

    /// Looks at its headers and keeps a descriptor of its own: for a file that is about to be closed.
    pub fn observe(&mut self, file: &File<'_>) {
        self.meet(file);
    }

    /// No process maps it any more.
    pub fn forget(&mut self, id: u64) {
        self.close(id, Tables::None);
        self.known.remove(&id);
    }

    /// Gives back what is beyond the limit and was not looked into since the last call: what one large file takes that
    /// has been alone. Returns whether there was anything.
    pub fn rest(&mut self) -> bool {
        let before = self.open_bytes;
        while self.open_bytes > self.limits.open_bytes {
            let open = self.known.iter().filter(|(_, known)| known.is_open() && known.turn <= self.rested);
            let Some(oldest) = open.min_by_key(|(_, known)| known.turn).map(|(id, _)| *id) else { break };
            self.close(oldest, Tables::Closed);
        }
        self.rested = self.turn;
        self.open_bytes < before
    }

    /// Why names are missing.
    #[must_use]
    pub fn shortfall(&self) -> Shortfall {
        self.shortfall
    }

    /// Memory for tables, bytes; an estimate, since a crate reads them.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.open_bytes
    }

    fn meet(&mut self, file: &File<'_>) {
        self.turn += 1;
        if self.known.contains_key(&file.id) {
            return;
        }
        if self.known.len() >= FILES
            && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.turn).map(|(id, _)| *id)
        {
            self.forget(oldest);
        }
        let program = open(file);
        self.shortfall.unreadable += u64::from(program.is_none());
        self.known.insert(file.id, Known { turn: self.turn, program });
    }

    fn called(&mut self, file: &File<'_>, address: u64) -> Vec<Called> {
        let Some(number) = self.tables(file) else { return Vec::new() };
        match self.reader.name(number, address) {
            Ok(called) => called,
            Err(failure) => {
                self.fail(file.id, failure);
                Vec::new()
            }
        }
    }

    /// The number of its tables, made now if they are not there.
    fn tables(&mut self, file: &File<'_>) -> Option<u64> {
        let program = self.known.get(&file.id)?.program.as_ref()?;
        match program.tables {
            Tables::Open { number, .. } => return Some(number),
            Tables::None => return None,
            Tables::Closed if !self.reader.is_available() => return None,
            Tables::Closed => {}
        }
        let copied = match tables(program, file, self.limits.file_bytes) {
            Ok(copied) => copied,
            Err(error) => {
                let is_nameless = matches!(error, CopyError::Nothing);
                self.shortfall.nameless += u64::from(is_nameless);
                self.shortfall.unreadable += u64::from(!is_nameless);
                self.set(file.id, Tables::None);
                return None;
            }
        };
        self.shortfall.partial += u64::from(copied.is_partial);
        let bytes = copied.symbol_bytes + copied.debug_bytes * READ_FACTOR;
        self.make_room(bytes);
        self.next += 1;
        let (number, has_debug) = (self.next, copied.debug_bytes > 0);
        self.reader.open(number, copied.file, has_debug);
        self.open_bytes += bytes;
        self.set(file.id, Tables::Open { number, bytes, has_debug });
        Some(number)
    }

    fn make_room(&mut self, bytes: u64) {
        while self.open_bytes > 0 && self.open_bytes + bytes > self.limits.open_bytes {
            let open = self.known.iter().filter(|(_, known)| known.is_open());
            let Some(oldest) = open.min_by_key(|(_, known)| known.turn).map(|(id, _)| *id) else { return };
            self.close(oldest, Tables::Closed);
        }
    }

    fn close(&mut self, id: u64, then: Tables) {
        let program = self.known.get(&id).and_then(|known| known.program.as_ref());
        if let Some(Tables::Open { number, bytes, .. }) = program.map(|program| program.tables) {
            self.reader.close(number);
            self.open_bytes -= bytes;
        }
        self.set(id, then);
    }

    fn fail(&mut self, id: u64, failure: Failure) {
        match failure {
            Failure::Panicked => self.shortfall.panicked += 1,
            Failure::TooSlow => self.shortfall.too_slow += 1,
            Failure::GivenUp => {}
        }
        // Who only came after others is tried again.
        self.close(id, if failure == Failure::GivenUp { Tables::Closed } else { Tables::None });
        if failure != Failure::Panicked {
            // The thread that had them is gone.
            let open = self.known.iter().filter(|(_, known)| known.is_open());
            for id in open.map(|(id, _)| *id).collect::<Vec<_>>() {
                self.close(id, Tables::Closed);
            }
        }
    }

    fn set(&mut self, id: u64, tables: Tables) {
        if let Some(program) = self.known.get_mut(&id).and_then(|known| known.program.as_mut()) {
            program.tables = tables;
        }
    }
}

impl Known {
    fn is_open(&self) -> bool {
        self.program.as_ref().is_some_and(|program| matches!(program.tables, Tables::Open { .. }))
    }
}

fn open(file: &File<'_>) -> Option<Program> {
    let handle = file.handle?.try_clone().ok()?;
    let length = handle.metadata().ok()?.len();
    let source = Arc::new(OpenFile { file: handle, length });
    let elf = Elf::read(&*source).ok()?;
    let go = go::Program::read(&source, &elf);
    Some(Program { source, elf, go, tables: Tables::Closed })
}

/// Copies what names its functions, from wherever that is.
fn tables(program: &Program, file: &File<'_>, limit: u64) -> Result<super::compose::Copied, CopyError> {
    let source = &*program.source;
    let mut parts = vec![Part { elf: &program.elf, source }];
    let is_stripped =
        ["symtab", "debug_info"].iter().any(|name| program.elf.section(&format!(".{name}")).is_none());
    let beside = is_stripped.then(|| find(source, &program.elf, file.path, file.root, limit)).flatten();
    if let Some(beside) = &beside {
        parts.push(Part { elf: &beside.elf, source: &beside.file });
    }
    let inside = packed(source, &program.elf, limit).and_then(|bytes| {
        let elf = Elf::read(&bytes.as_slice()).ok()?;
        Some((elf, bytes))
    });
    let inside = inside.as_ref().map(|(elf, bytes)| (elf, bytes.as_slice()));
    if let Some((elf, bytes)) = &inside {
        parts.push(Part { elf, source: bytes });
    }
    copy(&parts, limit)
}

/// A function without a name, distinguished from others of its file by where it begins.
fn nameless(path: &str, start: u64, texts: &mut Texts) -> Symbol {
    let file = path.strip_suffix(" (deleted)").unwrap_or(path);
    let file = file.rsplit('/').next().unwrap_or(file);
    let function = texts.get(&format!("{file}+{start:#x}"));
    let lines = vec![Line { function, ..Line::default() }];
    Symbol { lines, fidelity: Fidelity::Address, runtime: Runtime::Native }
}

fn of_go(lines: &[go::pclntab::GoLine], texts: &mut Texts) -> Symbol {
    let lines: Vec<Line> = { lines.iter() }
        .map(|line| {
            let short = without_types(&line.function);
            let system_name = if short.is_some() { line.function.as_str() } else { "" };
            Line {
                function: texts.get(short.as_deref().unwrap_or(&line.function)),
                system_name: texts.get(system_name),
                file: texts.get(&line.file),
                line: line.line,
                column: 0,
                start_line: line.start_line,
            }
        })
        .collect();
    let has_lines = lines.iter().any(|line| line.line > 0);
    let fidelity = if has_lines { Fidelity::Lines } else { Fidelity::Function };
    Symbol { lines, fidelity, runtime: Runtime::Go }
}

/// As Go's own traces and profiles show generic functions: `main.Map[go.shape.int]` is `main.Map[...]`.
fn without_types(name: &str) -> Option<String> {
    let (start, end) = (name.find('[')?, name.rfind(']')?);
    (start < end).then(|| format!("{}[...]{}", &name[..start], &name[end + 1..]))
}

fn of_tables(called: &[Called], texts: &mut Texts) -> Symbol {
    let mut is_rust = false;
    let lines: Vec<Line> = { called.iter() }
        .map(|called| {
            let name = demangle(&called.name);
            is_rust |= name.is_rust;
            let system_name = if name.readable.is_some() { called.name.as_str() } else { "" };
            Line {
                function: texts.get(name.readable.as_deref().unwrap_or(&called.name)),
                system_name: texts.get(system_name),
                file: texts.get(&called.file),
                line: called.line,
                column: called.column,
                start_line: 0,
            }
        })
        .collect();
    let has_lines = lines.iter().any(|line| line.line > 0);
    let fidelity = if has_lines { Fidelity::Lines } else { Fidelity::Function };
    Symbol { lines, fidelity, runtime: if is_rust { Runtime::Rust } else { Runtime::Native } }
}
