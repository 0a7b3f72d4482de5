//! Names of code that processes make while running.
//!
//! In: a process, by its folder in `/proc`; an address in no file. Out: the function there, as its perf map or jitdump
//! says. Both are opened when the process is first seen, and then read through the descriptor: its end or a deleted
//! file takes nothing away. Reads what was appended, once a turn and a bounded part of it. Refuses to ask a process for
//! anything.

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use super::code::Code;
use super::jitdump::JitDump;
use super::perf_map::PerfMap;
use crate::profile::Runtime;

const PROCESSES: usize = 256;
/// Of a file, each turn.
const TURN_BYTES: u64 = 32 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;
/// Of `/proc/PID/maps` and `status`.
const TEXT_BYTES: u64 = 4 * 1024 * 1024;
/// Between two looks for files that were not there, nanoseconds; doubled each time.
const PAUSE: u64 = 1_000_000_000;
const LONGEST_PAUSE: u64 = 64 * PAUSE;

/// A process to look into.
#[derive(Debug, Clone, Copy)]
pub struct Process<'a> {
    /// A number that no other process has in this run.
    pub id: u64,
    /// `/proc/PID`.
    pub folder: &'a Path,
}

/// A function at an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made<'a> {
    /// As its runtime calls it.
    pub name: &'a str,
    /// Empty if not known.
    pub file: &'a str,
    /// 0 if not known.
    pub line: u32,
    /// Whose.
    pub runtime: Runtime,
}

/// All processes that make code.
#[derive(Debug, Default)]
pub struct Processes {
    known: HashMap<u64, Known>,
    turn: u64,
    now: u64,
    /// Pieces of code that did not fit, of processes that are forgotten.
    left_out: u64,
}

#[derive(Debug)]
struct Known {
    used: u64,
    read: u64,
    code: Code,
    map: Option<Grows<PerfMap>>,
    dump: Option<Grows<JitDump>>,
    runtime: Runtime,
    next_look: u64,
    pause: u64,
}

/// A file that is appended to.
#[derive(Debug)]
struct Grows<R> {
    file: File,
    at: u64,
    reader: R,
}

trait Reads: Default {
    fn extend(&mut self, bytes: &[u8], code: &mut Code);
}

impl Reads for PerfMap {
    fn extend(&mut self, bytes: &[u8], code: &mut Code) {
        Self::extend(self, bytes, code);
    }
}

impl Reads for JitDump {
    fn extend(&mut self, bytes: &[u8], code: &mut Code) {
        Self::extend(self, bytes, code);
    }
}

impl Processes {
    /// It is now so late; files may be read again.
    pub fn advance(&mut self, now: u64) {
        self.turn += 1;
        self.now = now;
    }

    /// A process whose code will be asked for: opens its files while it lives. Returns a number that changes with its
    /// code.
    pub fn observe(&mut self, process: &Process<'_>) -> u64 {
        if !self.known.contains_key(&process.id) {
            if self.known.len() >= PROCESSES
                && let Some(oldest) = self.known.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id)
            {
                self.forget(oldest);
            }
            self.known.insert(process.id, Known::new(process.folder));
        }
        let Some(known) = self.known.get_mut(&process.id) else { return 0 };
        known.used = self.turn;
        if known.read != self.turn + 1 {
            known.read = self.turn + 1;
            known.look(process.folder, self.now);
            known.extend();
        }
        known.code.changes()
    }

    /// What is at an address.
    #[must_use]
    pub fn find(&self, process: &Process<'_>, address: u64) -> Option<Made<'_>> {
        let known = self.known.get(&process.id)?;
        let piece = known.code.find(address)?;
        Some(Made {
            name: &piece.name,
            file: &piece.file,
            line: known.code.line(address),
            runtime: piece.runtime(known.runtime),
        })
    }

    /// Whose samples are all gone.
    pub fn forget(&mut self, id: u64) {
        if let Some(known) = self.known.remove(&id) {
            self.left_out += known.code.left_out();
        }
    }

    /// Pieces of code that did not fit.
    #[must_use]
    pub fn left_out(&self) -> u64 {
        self.left_out + self.known.values().map(|known| known.code.left_out()).sum::<u64>()
    }

    /// Memory, bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.known.values().map(|known| known.code.bytes()).sum()
    }
}

impl Known {
    fn new(folder: &Path) -> Self {
        Self {
            used: 0,
            read: 0,
            code: Code::default(),
            map: None,
            dump: None,
            runtime: runtime(folder),
            next_look: 0,
            pause: PAUSE,
        }
    }

    /// For files that are not there yet: a runtime begins them with its first function.
    fn look(&mut self, folder: &Path, now: u64) {
        if (self.map.is_some() && self.dump.is_some()) || now < self.next_look {
            return;
        }
        self.next_look = now.saturating_add(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        let Some((pid, owner)) = identity(folder) else { return };
        let root = folder.join("root");
        if self.map.is_none() {
            self.map = grows(&root.join(format!("tmp/perf-{pid}.map")), owner);
        }
        if self.dump.is_none() {
            self.dump = dump_path(folder).and_then(|path| grows(&root.join(path), owner));
        }
    }

    fn extend(&mut self) {
        if let Some(map) = &mut self.map {
            map.extend(&mut self.code);
        }
        if let Some(dump) = &mut self.dump {
            dump.extend(&mut self.code);
        }
    }
}

impl<R: Reads> Grows<R> {
    fn extend(&mut self, code: &mut Code) {
        let Ok(length) = self.file.metadata().map(|about| about.len()) else { return };
        if length < self.at {
            // Begun anew.
            (self.at, self.reader) = (0, R::default());
        }
        let end = length.min(self.at.saturating_add(TURN_BYTES));
        let mut chunk = vec![0; CHUNK.min(usize::try_from(end - self.at).unwrap_or(CHUNK))];
        while self.at < end {
            let wanted = usize::try_from(end - self.at).unwrap_or(CHUNK).min(chunk.len());
            let Ok(length) = self.file.read_at(&mut chunk[..wanted], self.at) else { return };
            if length == 0 {
                return;
            }
            self.reader.extend(&chunk[..length], code);
            self.at += length as u64;
        }
    }
}

/// Its number in its own namespace, which it writes into names of files, and its owner.
fn identity(folder: &Path) -> Option<(u32, u32)> {
    let status = text(&folder.join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    let owner = status.lines().find_map(|line| line.strip_prefix("Uid:"))?;
    let pid = line.split_whitespace().next_back()?.parse().ok()?;
    Some((pid, owner.split_whitespace().next()?.parse().ok()?))
}

/// The path of `jit-PID.dump`, which its maker maps so that it can be found.
fn dump_path(folder: &Path) -> Option<PathBuf> {
    let maps = text(&folder.join("maps"))?;
    let path = maps.lines().filter_map(|line| line.find('/').map(|at| &line[at..])).find(|path| {
        let name = path.rsplit('/').next().unwrap_or_default();
        let number = name.strip_prefix("jit-").and_then(|rest| rest.strip_suffix(".dump"));
        number.is_some_and(|number| !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
    })?;
    Some(path.trim_start_matches('/').into())
}

/// Only a plain file of the process's own user: others may write into its `/tmp` as well.
fn grows<R: Reads>(path: &Path, owner: u32) -> Option<Grows<R>> {
    let flags = rustix::fs::OFlags::NONBLOCK | rustix::fs::OFlags::NOFOLLOW;
    let file = OpenOptions::new().read(true).custom_flags(flags.bits().cast_signed()).open(path).ok()?;
    let about = file.metadata().ok()?;
    let is_ours = about.is_file() && (about.uid() == owner || about.uid() == 0);
    is_ours.then(|| Grows { file, at: 0, reader: R::default() })
}

fn runtime(folder: &Path) -> Runtime {
    let Ok(path) = fs::read_link(folder.join("exe")) else { return Runtime::Native };
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let table = [
        ("node", Runtime::V8),
        ("deno", Runtime::V8),
        ("java", Runtime::Jvm),
        ("dotnet", Runtime::Dotnet),
        ("python", Runtime::Cpython),
    ];
    table.iter().find(|(start, _)| name.starts_with(start)).map_or(Runtime::Native, |(_, runtime)| *runtime)
}

fn text(path: &Path) -> Option<String> {
    let mut bytes = Vec::new();
    File::open(path).ok()?.take(TEXT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A process as `/proc` shows it, in a folder of ours.
    struct Fake {
        folder: tempfile::TempDir,
    }

    impl Fake {
        fn new() -> Self {
            let folder = tempfile::tempdir().unwrap();
            fs::create_dir_all(folder.path().join("root/tmp")).unwrap();
            let owner = folder.path().metadata().unwrap().uid();
            let status = format!("Name:\tx\nNSpid:\t4711\t17\nUid:\t{owner}\t{owner}\t{owner}\t{owner}\n");
            fs::write(folder.path().join("status"), status).unwrap();
            Self { folder }
        }

        fn append(&self, name: &str, bytes: &[u8]) {
            let path = self.folder.path().join("root/tmp").join(name);
            OpenOptions::new().create(true).append(true).open(path).unwrap().write_all(bytes).unwrap();
        }
    }

    #[test]
    fn a_map_is_followed_as_it_grows() {
        let fake = Fake::new();
        let process = Process { id: 9, folder: fake.folder.path() };
        let mut processes = Processes::default();
        let at = |processes: &mut Processes, now: u64, address: u64| {
            processes.advance(now);
            processes.observe(&process);
            processes.find(&process, address).map(|made| made.name.to_owned())
        };
        assert_eq!(at(&mut processes, 1, 0x1000), None, "there is no file yet");
        fake.append("perf-17.map", b"1000 10 py::first:/a.py\n10");
        assert_eq!(at(&mut processes, 2, 0x1000), None, "nobody looks again so soon");
        let later = 2 * PAUSE;
        assert_eq!(at(&mut processes, later, 0x1000).as_deref(), Some("py::first:/a.py"));
        fake.append("perf-17.map", b"20 10 second\n");
        assert_eq!(at(&mut processes, later + 1, 0x1020).as_deref(), Some("second"));
        let before = processes.observe(&process);
        fs::remove_file(fake.folder.path().join("root/tmp/perf-17.map")).unwrap();
        assert_eq!(
            at(&mut processes, later + 2, 0x1020).as_deref(),
            Some("second"),
            "deleted, and still known"
        );
        assert_eq!(processes.observe(&process), before);
        processes.forget(9);
        assert_eq!(processes.find(&process, 0x1020), None);
    }

    #[test]
    fn what_is_no_plain_file_is_left_alone() {
        let fake = Fake::new();
        let folder = fake.folder.path().join("root/tmp");
        fs::write(folder.join("elsewhere"), "1000 10 stolen\n").unwrap();
        std::os::unix::fs::symlink(folder.join("elsewhere"), folder.join("perf-17.map")).unwrap();
        let process = Process { id: 9, folder: fake.folder.path() };
        let mut processes = Processes::default();
        processes.advance(1);
        processes.observe(&process);
        assert_eq!(processes.find(&process, 0x1000), None);
    }

    #[test]
    fn few_processes_are_kept() {
        let fake = Fake::new();
        fake.append("perf-17.map", b"1000 10 here\n");
        let mut processes = Processes::default();
        for id in 0..3 * PROCESSES as u64 {
            processes.advance(id);
            processes.observe(&Process { id, folder: fake.folder.path() });
        }
        assert_eq!(processes.known.len(), PROCESSES);
    }
}
