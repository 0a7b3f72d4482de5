//! Names of code that processes make while running.
//!
//! In: a process, by its folder in `/proc`; an address in no file. Out: the function there, as its perf map or jitdump
//! says. Both are opened when the process is first seen, and then read through the descriptor: its end or a deleted
//! file takes nothing away. Reads what was appended, once a turn and a bounded part of it. Refuses to ask a process for
//! anything.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use super::code::Code;
use super::jitdump::JitDump;
use super::perf_map::PerfMap;
use crate::capture::tls::place::Root;
use crate::profile::Runtime;

const PROCESSES: usize = 256;
/// Of all processes together, bytes; those that were asked for longest ago are forgotten, and read again if need be.
const MOST_BYTES: usize = 4 * super::code::MOST_BYTES;
/// Of a file, each turn.
const TURN_BYTES: u64 = 32 * 1024 * 1024;
const CHUNK: usize = 64 * 1024;
/// Bytes by which a text is known again.
const TAIL: usize = 64;
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
#[derive(Debug)]
pub struct Processes {
    known: HashMap<u64, Known>,
    /// Of all code together, bytes.
    limit: usize,
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
    /// The last bytes before that: as long as they are there, it is the same text.
    tail: Vec<u8>,
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

impl Default for Processes {
    fn default() -> Self {
        Self { known: HashMap::new(), limit: MOST_BYTES, turn: 0, now: 0, left_out: 0 }
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
            if self.known.len() >= PROCESSES {
                self.forget_oldest(process.id);
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
        let changes = known.code.changes();
        while self.bytes() > self.limit && self.known.len() > 1 {
            self.forget_oldest(process.id);
        }
        changes
    }

    fn forget_oldest(&mut self, but: u64) {
        let others = self.known.iter().filter(|(id, _)| **id != but);
        if let Some(oldest) = others.min_by_key(|(_, known)| known.used).map(|(id, _)| *id) {
            self.forget(oldest);
        }
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
        let Ok(root) = Root::at(&folder.join("root")) else { return };
        if self.map.is_none() {
            self.map = grows(&root, Path::new(&format!("tmp/perf-{pid}.map")), owner);
        }
        if self.dump.is_none() {
            self.dump = dump_path(folder).and_then(|path| grows(&root, &path, owner));
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
        if length < self.at || (length > self.at && !self.is_same()) {
            // Begun anew, as `jcmd` does each time it is asked.
            (self.at, self.tail, self.reader) = (0, Vec::new(), R::default());
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
            self.tail.clear();
            self.tail.extend_from_slice(&chunk[length.saturating_sub(TAIL)..length]);
        }
    }

    fn is_same(&self) -> bool {
        let mut now = [0; TAIL];
        let now = &mut now[..self.tail.len()];
        self.file.read_exact_at(now, self.at - now.len() as u64).is_ok() && *now == *self.tail
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
fn grows<R: Reads>(root: &Root, path: &Path, owner: u32) -> Option<Grows<R>> {
    let file = root.open_itself(path).ok()?;
    let about = file.metadata().ok()?;
    let is_theirs = about.uid() == owner || about.uid() == 0;
    is_theirs.then(|| Grows { file, at: 0, tail: Vec::new(), reader: R::default() })
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
    use std::fs::OpenOptions;
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

    /// `jcmd PID Compiler.perfmap` writes the file again, longer than before.
    #[test]
    fn a_map_that_is_written_again_is_read_again() {
        let fake = Fake::new();
        fake.append("perf-17.map", b"1000 10 first\n2000 10 second\n");
        let process = Process { id: 9, folder: fake.folder.path() };
        let mut processes = Processes::default();
        processes.advance(1);
        processes.observe(&process);
        assert!(processes.find(&process, 0x2004).is_some());
        let again = "5000 10 new\n1000 10 moved\n7000 10 late and with a name that is longer than before\n";
        fs::write(fake.folder.path().join("root/tmp/perf-17.map"), again).unwrap();
        processes.advance(2);
        processes.observe(&process);
        for (address, name) in [(0x5004, "new"), (0x1004, "moved"), (0x2004, "second")] {
            assert_eq!(processes.find(&process, address).map(|made| made.name), Some(name));
        }
        fake.append("perf-17.map", b"8000 10 last\n");
        processes.advance(3);
        processes.observe(&process);
        assert_eq!(processes.find(&process, 0x8004).map(|made| made.name), Some("last"));
    }

    #[test]
    fn links_stay_below_the_root_of_the_process() {
        let fake = Fake::new();
        // Not below `/tmp`, which inside is a link to it.
        let outside = tempfile::tempdir_in("/var/tmp").unwrap();
        fs::write(outside.path().join("perf-17.map"), b"1000 10 outside\n").unwrap();
        let tmp = fake.folder.path().join("root/tmp");
        fs::remove_dir(&tmp).unwrap();
        std::os::unix::fs::symlink(outside.path(), &tmp).unwrap();
        let process = Process { id: 9, folder: fake.folder.path() };
        let mut processes = Processes::default();
        processes.advance(1);
        processes.observe(&process);
        assert!(processes.find(&process, 0x1004).is_none());
        // Where the same path leads inside.
        let inside = fake.folder.path().join("root").join(outside.path().strip_prefix("/").unwrap());
        fs::create_dir_all(&inside).unwrap();
        fs::write(inside.join("perf-17.map"), b"1000 10 inside\n").unwrap();
        processes.advance(1 + LONGEST_PAUSE);
        processes.observe(&process);
        assert_eq!(processes.find(&process, 0x1004).map(|made| made.name), Some("inside"));
    }

    #[test]
    fn all_code_together_is_bounded() {
        let fakes: Vec<Fake> = (0..5).map(|_| Fake::new()).collect();
        let mut processes = Processes { limit: 1_000, ..Processes::default() };
        for (id, fake) in (0_u64..).zip(&fakes) {
            for function in 0..4 {
                fake.append("perf-17.map", format!("{function}000 10 name_{id}_{function}\n").as_bytes());
            }
            let process = Process { id, folder: fake.folder.path() };
            processes.advance(id + 1);
            processes.observe(&process);
            assert!(processes.bytes() <= 1_000 && processes.find(&process, 0x1004).is_some(), "{id}");
        }
        // A process that was forgotten is read again.
        let first = Process { id: 0, folder: fakes[0].folder.path() };
        assert!(processes.find(&first, 0x1004).is_none());
        processes.advance(9);
        processes.observe(&first);
        assert_eq!(processes.find(&first, 0x1004).map(|made| made.name), Some("name_0_1"));
    }
}
