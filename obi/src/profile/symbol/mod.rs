//! What code is called.
//!
//! In: places where code is: an address of the kernel, of a file's own layout, or of a process. Out: [`Symbol`]s: the
//! functions there, inlined ones first, with source lines where they are known, and how well. Bounded in memory,
//! whatever the files say, and in time for each address. Refuses to know samples and stacks, to look at a clock, and to
//! fetch anything from anywhere but this machine.
//!
//! ```text
//!                     ┌ kernel ──▶ /proc/kallsyms, modules and BPF programs with it
//! address ─▶ cache ─▶ ├ file ────▶ Go's tables (go) │ debug information, symbols (compose ─▶ reader: blazesym) │ stubs (plt)
//!                     └ process ─▶ perf map, jitdump
//! ```
//!
//! - [`cache`]: what was asked before, and texts that are the same;
//! - [`file`]: one file's sources of names, by its sections and Go's tables
//!   ([`executable`](crate::capture::executable));
//!   [`debug_file`] what lies beside it, [`compose`] the private copy that [`reader`] reads, [`plt`] stubs;
//! - [`process`]: code that is made at run time: [`perf_map`], [`jitdump`], both into [`code`];
//! - [`kernel`]: the kernel's; [`demangle`]: C++ and Rust;
//! - [`function`]: functions that are objects of a process and no places, read when first seen: [`python`], [`java`],
//!   [`javascript`].

pub mod cache;
pub mod code;
pub mod compose;
pub mod debug_file;
pub mod demangle;
pub mod file;
pub mod function;
pub mod java;
pub mod javascript;
pub mod jitdump;
pub mod kernel;
pub mod perf_map;
pub mod plt;
pub mod process;
pub mod python;
pub mod reader;
mod start;

use std::sync::Arc;
use std::time::Duration;

pub use file::{File, Limits, Shortfall};
pub use process::Process;

use crate::profile::{Fidelity, Line, Runtime, Symbol};
use cache::{Cache, Key, Texts};
use file::Files;
use kernel::Kernel;
use process::Processes;

/// Where code is. Of a caller it is the address before the one behind its call.
#[derive(Debug, Clone, Copy)]
pub enum CodeAddress<'a> {
    /// In the kernel.
    Kernel(u64),
    /// In a file.
    File {
        /// Which.
        file: File<'a>,
        /// In the layout that the file itself says.
        address: u64,
    },
    /// In memory of a process that belongs to no file.
    Process {
        /// Which.
        process: Process<'a>,
        /// As it sees it.
        address: u64,
    },
}

/// How much memory and time naming may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Of symbols by address.
    pub cache_bytes: usize,
    /// Of files' tables.
    pub files: Limits,
}

impl Default for Bounds {
    fn default() -> Self {
        let files = Limits {
            file_bytes: 64 * 1024 * 1024,
            open_bytes: 32 * 1024 * 1024,
            patience: Duration::from_secs(10),
        };
        Self { cache_bytes: 32 * 1024 * 1024, files }
    }
}

/// What naming has done and what it takes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Places asked for.
    pub asked: u64,
    /// Of those, not known from before.
    pub looked_up: u64,
    /// Of those, found nowhere.
    pub unnamed: u64,
    /// Why files have fewer names than they could.
    pub files: Shortfall,
    /// Pieces of code made at run time that did not fit.
    pub code_left_out: u64,
    /// Functions of the kernel that are known.
    pub kernel_functions: u64,
    /// The kernel does not show where its functions are: its frames have no names.
    pub kernel_is_hidden: bool,
    /// Of symbols by address.
    pub cache_bytes: u64,
    /// Of files' tables, an estimate.
    pub file_bytes: u64,
    /// Of code made at run time.
    pub code_bytes: u64,
    /// Of the kernel's functions.
    pub kernel_bytes: u64,
}

/// Names places. Belongs to one thread.
#[derive(Debug)]
pub struct Symbols {
    cache: Cache,
    texts: Texts,
    files: Files,
    processes: Processes,
    kernel: Kernel,
    kernel_readings: u64,
    unknown: Arc<Symbol>,
    unknown_kernel: Arc<Symbol>,
    asked: u64,
    looked_up: u64,
    unnamed: u64,
}

impl Symbols {
    /// Reads the kernel's functions, which needs `CAP_SYSLOG`, and keeps them open: all else is read when it is asked
    /// for.
    #[must_use]
    pub fn open(bounds: Bounds) -> Self {
        Self::with(bounds, Kernel::open())
    }

    /// With these functions of the kernel.
    #[must_use]
    pub fn with(bounds: Bounds, kernel: Kernel) -> Self {
        Self {
            cache: Cache::new(bounds.cache_bytes),
            texts: Texts::default(),
            files: Files::new(bounds.files),
            processes: Processes::default(),
            kernel,
            kernel_readings: 0,
            unknown: Arc::default(),
            unknown_kernel: Arc::new(Symbol { runtime: Runtime::Kernel, ..Symbol::default() }),
            asked: 0,
            looked_up: 0,
            unnamed: 0,
        }
    }

    /// It is now so late, nanoseconds of any clock that never goes back: what changes while the machine runs may be
    /// read again, and what a large file takes that was not looked into since the last time is given back. Before each
    /// selection, and when none is asked for. Returns whether anything was given back.
    pub fn advance(&mut self, now: u64) -> bool {
        self.processes.advance(now);
        self.kernel_readings += u64::from(self.kernel.advance(now));
        self.files.rest()
    }

    /// Opens what names a process's own code while it lives; afterwards its names stay known. For the first sample of a
    /// process in memory that belongs to no file.
    pub fn observe(&mut self, process: &Process<'_>) {
        self.processes.observe(process);
    }

    /// Keeps a file open: for one whose descriptor is about to be closed, and some of whose addresses may still be
    /// asked for.
    pub fn observe_file(&mut self, file: &File<'_>) {
        self.files.observe(file);
    }

    /// What is at a place.
    pub fn name(&mut self, place: &CodeAddress<'_>) -> Arc<Symbol> {
        self.asked += 1;
        let key = self.key(place);
        if let Some(known) = self.cache.get(key) {
            return known;
        }
        self.looked_up += 1;
        let symbol = self.look_up(place);
        self.unnamed += u64::from(symbol.fidelity == Fidelity::Address);
        self.cache.insert(key, &symbol);
        symbol
    }

    /// What is at a place, if that was asked before and is still known.
    pub fn known(&mut self, place: &CodeAddress<'_>) -> Option<Arc<Symbol>> {
        let key = self.key(place);
        self.cache.get(key)
    }

    /// A file that no process maps any more, and no sample that is kept lies in.
    pub fn forget_file(&mut self, id: u64) {
        self.files.forget(id);
    }

    /// A process that has ended, and no sample of it is kept.
    pub fn forget_process(&mut self, id: u64) {
        self.processes.forget(id);
    }

    /// What it has done and takes.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let functions = self.kernel.functions();
        Statistics {
            asked: self.asked,
            looked_up: self.looked_up,
            unnamed: self.unnamed,
            files: self.files.shortfall(),
            code_left_out: self.processes.left_out(),
            kernel_functions: functions.len() as u64,
            kernel_is_hidden: functions.is_hidden(),
            cache_bytes: self.cache.bytes() as u64,
            file_bytes: self.files.bytes(),
            code_bytes: self.processes.bytes() as u64,
            kernel_bytes: functions.bytes() as u64,
        }
    }

    /// Spaces of files, processes and the kernel differ in the lowest bits; what changes has its change in it.
    fn key(&mut self, place: &CodeAddress<'_>) -> Key {
        match place {
            CodeAddress::Kernel(address) => Key { space: self.kernel_readings << 2, address: *address },
            CodeAddress::File { file, address } => Key { space: file.id << 2 | 1, address: *address },
            CodeAddress::Process { process, address } => {
                let changes = self.processes.observe(process);
                let space = (process.id << 2 | 2) ^ changes.rotate_right(24);
                Key { space, address: *address }
            }
        }
    }

    fn look_up(&mut self, place: &CodeAddress<'_>) -> Arc<Symbol> {
        let symbol = match place {
            CodeAddress::Kernel(address) => return self.of_kernel(*address),
            CodeAddress::File { file, address } => self.files.name(file, *address, &mut self.texts),
            CodeAddress::Process { process, address } => self.made(process, *address),
        };
        if symbol == *self.unknown { Arc::clone(&self.unknown) } else { Arc::new(symbol) }
    }

    fn of_kernel(&mut self, address: u64) -> Arc<Symbol> {
        let Some((name, module)) = self.kernel.find(address) else { return Arc::clone(&self.unknown_kernel) };
        let line = Line { function: self.texts.get(name), file: self.texts.get(module), ..Line::default() };
        Arc::new(Symbol { lines: vec![line], fidelity: Fidelity::Function, runtime: Runtime::Kernel })
    }

    fn made(&mut self, process: &Process<'_>, address: u64) -> Symbol {
        let Some(made) = self.processes.find(process, address) else { return Symbol::default() };
        let line = Line {
            function: self.texts.get(made.name),
            file: self.texts.get(made.file),
            line: made.line,
            ..Line::default()
        };
        let fidelity = if made.line > 0 { Fidelity::Lines } else { Fidelity::Function };
        Symbol { lines: vec![line], fidelity, runtime: made.runtime }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str =
        "ffffffff81000000 T _stext\nffffffff81000100 t do_one\nffffffffc0000000 t of_module\t[nf_tables]\n";

    fn symbols() -> Symbols {
        let functions = kernel::Functions::read(KERNEL.as_bytes()).unwrap();
        Symbols::with(Bounds::default(), Kernel::of(functions))
    }

    #[test]
    fn the_kernel_has_names() {
        let mut symbols = symbols();
        let mut check = |address: u64, expected: Option<(&str, &str)>| {
            let symbol = symbols.name(&CodeAddress::Kernel(address));
            assert_eq!(symbol.lines.first().map(|line| (&*line.function, &*line.file)), expected);
            assert_eq!(symbol.runtime, Runtime::Kernel);
        };
        check(0xffff_ffff_8100_0110, Some(("do_one", "")));
        check(0xffff_ffff_c000_0001, Some(("of_module", "[nf_tables]")));
        check(0xffff_ffff_f000_0001, None);
        let statistics = symbols.statistics();
        assert_eq!((statistics.asked, statistics.looked_up, statistics.unnamed), (3, 3, 1));
    }

    #[test]
    fn what_was_asked_before_is_not_looked_up_again() {
        let mut symbols = symbols();
        let first = symbols.name(&CodeAddress::Kernel(0xffff_ffff_8100_0110));
        let second = symbols.name(&CodeAddress::Kernel(0xffff_ffff_8100_0110));
        assert!(Arc::ptr_eq(&first, &second));
        assert_eq!((symbols.statistics().asked, symbols.statistics().looked_up), (2, 1));
        // The same number in a file is another place.
        let handle = std::fs::File::open("/proc/self/exe").unwrap();
        let file = File { id: 0, handle: Some(&handle), path: "/x", root: std::path::Path::new("/") };
        assert!(symbols.name(&CodeAddress::File { file, address: 0xffff_ffff_8100_0110 }).lines.is_empty());
    }

    #[test]
    fn no_file_is_no_name() {
        let mut symbols = symbols();
        let check = |symbols: &mut Symbols, id: u64, handle: Option<&std::fs::File>| {
            let file = File { id, handle, path: "/x", root: std::path::Path::new("/") };
            let symbol = symbols.name(&CodeAddress::File { file, address: 0x1000 });
            assert_eq!((symbol.fidelity, symbol.lines.len()), (Fidelity::Address, 0));
        };
        check(&mut symbols, 1, None);
        check(&mut symbols, 2, Some(&std::fs::File::open("/dev/null").unwrap()));
        check(&mut symbols, 3, Some(&std::fs::File::open("/proc/self/maps").unwrap()));
        check(&mut symbols, 4, Some(&std::fs::File::open("/").unwrap()));
        assert_eq!(symbols.statistics().files.unreadable, 4);
    }
}
