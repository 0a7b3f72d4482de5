//! Compiling a program, and asking others for its names.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use obi::profile::symbol::kernel::{Functions, Kernel};
use obi::profile::symbol::{self, Bounds, CodeAddress, Symbols};
use obi::profile::{Line, Symbol};

/// A folder for one program.
pub(crate) struct Workshop {
    folder: tempfile::TempDir,
}

impl Workshop {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().expect("a temporary folder") }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::write(&path, text).expect("a source file");
        path
    }

    /// Runs a tool in the folder and returns what it printed.
    pub(crate) fn run<A: AsRef<OsStr>>(&self, tool: &str, arguments: impl IntoIterator<Item = A>) -> String {
        let mut command = Command::new(tool);
        command.args(arguments).current_dir(self.folder.path());
        let output = command.output().unwrap_or_else(|error| panic!("{tool}: {error}"));
        assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// `nm`: addresses of functions by their mangled name.
    pub(crate) fn functions(&self, program: &str) -> HashMap<String, u64> {
        self.listed(&["--defined-only", program])
    }

    /// The same of those that are there for the linker.
    pub(crate) fn exported(&self, program: &str) -> HashMap<String, u64> {
        self.listed(&["-D", "--defined-only", program])
    }

    fn listed(&self, arguments: &[&str]) -> HashMap<String, u64> {
        let text = self.run("nm", arguments);
        text.lines()
            .filter_map(|line| {
                let mut words = line.split(' ');
                let address = u64::from_str_radix(words.next()?, 16).ok()?;
                words.next().filter(|kind| "tTwW".contains(*kind))?;
                Some((words.next()?.to_owned(), address))
            })
            .collect()
    }
}

/// A word that no other program has.
pub(crate) fn word(prefix: &str) -> String {
    format!("{prefix}_{:012x}", fastrand::u64(..1 << 48))
}

/// Names places in one file.
pub(crate) struct Names {
    symbols: Symbols,
    id: u64,
    file: Arc<File>,
    path: String,
    root: PathBuf,
}

impl Names {
    pub(crate) fn of(path: &Path) -> Self {
        Self::with(path, Bounds::default())
    }

    pub(crate) fn with(path: &Path, bounds: Bounds) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            symbols: Symbols::with(bounds, Kernel::of(Functions::default())),
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            file: Arc::new(File::open(path).expect("the program")),
            path: path.to_str().expect("text").to_owned(),
            root: PathBuf::from("/"),
        }
    }

    /// Its debug files lie below this folder.
    pub(crate) fn below(mut self, root: &Path, path: &str) -> Self {
        (self.root, self.path) = (root.to_owned(), path.to_owned());
        self
    }

    pub(crate) fn at(&mut self, address: u64) -> Arc<Symbol> {
        let file = symbol::File { id: self.id, handle: Some(&self.file), path: &self.path, root: &self.root };
        self.symbols.name(&CodeAddress::File { file, address })
    }

    pub(crate) fn statistics(&self) -> symbol::Statistics {
        self.symbols.statistics()
    }
}

/// As in the tables of symbols.
pub(crate) fn mangled(line: &Line) -> &str {
    if line.system_name.is_empty() { &line.function } else { &line.system_name }
}

/// One function per address and depth: name, file without folders, line.
pub(crate) type Reported = Vec<(String, String, u32)>;

/// What `addr2line` says of addresses, the innermost function first.
pub(crate) fn addr2line(workshop: &Workshop, program: &str, addresses: &[u64]) -> Vec<Reported> {
    let list: String = addresses.iter().map(|address| format!("{address:#x}\n")).collect();
    let list = workshop.write("addresses", &list);
    let command = format!("addr2line -a -f -i -e {program} < {}", list.display());
    let text = workshop.run("sh", ["-c", &command]);
    let mut reported: Vec<Reported> = Vec::new();
    let mut lines = text.lines().peekable();
    while let Some(line) = lines.next() {
        assert!(line.starts_with("0x"), "{line}");
        let mut calls = Vec::new();
        while let Some(name) = lines.next_if(|line| !line.starts_with("0x")) {
            let place = lines.next().expect("a place");
            let place = place.split(" (").next().unwrap_or(place);
            let (file, line) = place.rsplit_once(':').expect("file and line");
            let file = file.rsplit('/').next().unwrap_or(file).to_owned();
            calls.push((name.to_owned(), file, line.parse().unwrap_or(0)));
        }
        reported.push(calls);
    }
    reported
}

/// What we say, in the same form.
pub(crate) fn reported(symbol: &Symbol) -> Reported {
    let one = |line: &Line| {
        let file = line.file.rsplit('/').next().unwrap_or_default().to_owned();
        (mangled(line).to_owned(), file, line.line)
    };
    symbol.lines.iter().map(one).collect()
}
