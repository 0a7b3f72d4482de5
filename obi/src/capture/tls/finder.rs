//! Finds the files with TLS functions that processes use, and keeps their probes.
//!
//! In: processes to look at, ticks. Out: attached probes, each file once, and a [`View`] of what is probed and what is
//! not. Owned by one thread, which may wait for files and for the kernel; nobody waits for it. Everything is bounded.
//!
//! A file that nobody maps any more is let go, since a probe keeps the file, and the file system it is on, alive.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::hash::BuildHasher as _;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use foldhash::fast::RandomState;

use super::attach::{self, Attacher, Probes};
use super::blind::{self, Why};
use super::elf::{ElfError, OpenFile};
use super::file::{FileKey, Plan, probe_points};
use super::library;
use super::mapping::{Mapping, mappings};
use super::place::{Process, Root};
use super::point::{ProbePoint, Returns};
use super::recent_programs::{Program, RecentPrograms};
use super::scan_queue::{Look, ScanQueue};
use super::view::{ProbedFile, Refused, Uncovered, View};

#[derive(Debug)]
enum Known {
    /// No TLS functions by name, or no program at all.
    Plain,
    /// It has them.
    Probed(Probed),
    /// It has, and the kernel shows the breakpoints of another name of it.
    SameAs(FileKey),
    /// It has, and they could not be probed.
    Refused(String),
}

#[derive(Debug)]
struct Probed {
    probes: Probes,
    points: Vec<ProbePoint>,
}

#[derive(Debug)]
struct Entry {
    path: String,
    known: Known,
    /// The last round of looking at everybody in which a process mapped it.
    round: u64,
    /// It is in the loader's cache of our own root: kept although nobody maps it.
    standing: bool,
}

/// Files that are remembered; beyond, those without TLS functions are forgotten and read again when they are met.
const FILES: usize = 16_384;
/// Files that are probed.
const PROBED: usize = 1024;
const NAMESPACES: usize = 4096;
const UNCOVERED: usize = 256;
/// A process that has just begun maps its libraries a little later.
const LATER: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];
/// Processes looked at per step to see which files are in use: all of them in a minute, unless they are very many. Who
/// looks for a process that was missed hurries.
const ROUND_STEP: Duration = Duration::from_secs(1);
const PER_STEP: usize = 16;
const ROUND_STEPS: usize = 60;
/// Rounds without anybody who maps a file, until it is let go.
const ROUNDS: u64 = 2;

/// The files, and who is still to be looked at.
#[derive(Debug)]
pub struct Finder {
    attacher: Attacher,
    files: HashMap<FileKey, Entry>,
    /// What was mapped under this device, inode and path.
    met: HashMap<u64, FileKey>,
    hasher: RandomState,
    /// Mount namespaces whose usual places have been looked at.
    namespaces: HashSet<Vec<u8>>,
    looks: ScanQueue,
    recent_programs: RecentPrograms,
    familiar_changed: bool,
    uncovered: Vec<Uncovered>,
    round: u64,
    /// Processes of this round still to come.
    to_mark: Vec<u32>,
    /// Of them, in a step.
    per_step: usize,
    /// A process was missed: what is left of this round looks for files to probe as well, and so does the next round,
    /// since the process may have begun after this one.
    looks_at_all: bool,
    has_missed: bool,
    next_round_step: Instant,
    changed: bool,
    stopping: Arc<AtomicBool>,
}

impl Finder {
    /// Knows nothing yet.
    #[must_use]
    pub fn new(attacher: Attacher) -> Self {
        Self {
            attacher,
            files: HashMap::new(),
            met: HashMap::new(),
            hasher: RandomState::default(),
            namespaces: HashSet::new(),
            looks: ScanQueue::default(),
            recent_programs: RecentPrograms::default(),
            familiar_changed: false,
            uncovered: Vec::new(),
            round: 0,
            to_mark: Vec::new(),
            per_step: 1,
            looks_at_all: false,
            has_missed: false,
            next_round_step: Instant::now(),
            changed: true,
            stopping: Arc::default(),
        }
    }

    /// Setting it ends a look at a process with many files.
    #[must_use]
    pub fn stopping(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.stopping)
    }

    /// Whether probes go by links, each for many; else by performance events.
    #[must_use]
    pub fn is_multi(&self) -> bool {
        self.attacher.programs().is_multi()
    }

    /// Ends what was only for a trial, which takes a while.
    pub fn end_trial(&mut self) {
        self.attacher.end_trial();
    }

    /// Probes the libraries in the usual places of our own root, before anybody maps them.
    pub fn look_in_usual_places(&mut self) {
        match Root::own() {
            Ok(root) => self.look_below(&root, true),
            Err(error) => {
                tracing::warn!(%error, "failed to open the root directory: TLS libraries are found when used")
            }
        }
    }

    /// A process has begun, or another program in it: looks at it now, and again when it has mapped its libraries.
    pub fn begun(&mut self, tgid: u32, program: Option<Program>, now: Instant) {
        self.look(tgid);
        for after in LATER {
            self.look_later(tgid, program, now + after);
        }
    }

    /// A process of a program that was looked at lately lives on.
    pub fn settled(&mut self, tgid: u32, program: Program, now: Instant) {
        let met = self.look(tgid);
        self.remember(program, &met, now);
    }

    /// Looks at a process when its time has come.
    pub fn look_later(&mut self, tgid: u32, program: Option<Program>, due: Instant) {
        if !self.looks.add(Look { due, tgid, program }) {
            self.missed();
        }
    }

    /// A process could not be reported.
    pub fn missed(&mut self) {
        (self.looks_at_all, self.has_missed) = (true, true);
    }

    /// TLS connections of this process are not read: probes what it maps meanwhile, or finds out why that cannot be.
    pub fn uncovered(&mut self, tgid: u32, executable: &str, connections: u64) {
        let mapped = self.look(tgid);
        let covered = mapped.iter().any(|key| self.is_probed(*key));
        self.changed = true;
        let known =
            self.uncovered.iter_mut().find(|known| known.pid == tgid && known.executable == executable);
        if let Some(known) = known {
            known.connections += connections;
            return;
        }
        let refused = mapped.iter().find_map(|key| self.refused(*key));
        let why = match (covered, refused) {
            // The probes came after the connection's beginning.
            (true, _) => Why {
                library: String::new(),
                reason: "its probes came later than the connections".to_owned(),
            },
            (false, Some((path, reason))) => Why { library: path.to_owned(), reason: reason.to_owned() },
            (false, None) => blind::why(tgid),
        };
        if self.uncovered.len() >= UNCOVERED {
            self.uncovered.remove(0);
        }
        let Why { library, reason } = why;
        self.uncovered.push(Uncovered {
            pid: tgid,
            executable: executable.to_owned(),
            library,
            reason,
            connections,
        });
    }

    /// Looks at one process whose time has come, or goes on with the round when that is due. Returns when to call
    /// again.
    pub fn tick(&mut self, now: Instant) -> Instant {
        if let Some(look) = self.looks.take_due(now) {
            let met = self.look(look.tgid);
            if let Some(program) = look.program {
                self.remember(program, &met, now);
            }
        } else if now >= self.next_round_step {
            self.next_round_step = now + ROUND_STEP;
            self.go_round();
        }
        self.looks.next_due().map_or(self.next_round_step, |due| self.next_round_step.min(due))
    }

    /// What is probed and what is not, if that has changed since the last call.
    pub fn view(&mut self) -> Option<View> {
        std::mem::take(&mut self.changed).then(|| {
            let mut view = View {
                multi: self.is_multi(),
                return_probes: self.attacher.returns() == Returns::Allowed,
                ..View::default()
            };
            for (key, entry) in &self.files {
                let path = entry.path.clone();
                match &entry.known {
                    Known::Probed(probed) => {
                        view.probed.push(ProbedFile::new(path, key.inode, &probed.points))
                    }
                    Known::Refused(reason) => view.refused.push(Refused { path, reason: reason.clone() }),
                    Known::Plain | Known::SameAs(_) => {}
                }
            }
            view.probed.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            view.refused.sort_unstable_by(|a, b| a.path.cmp(&b.path));
            view.uncovered.clone_from(&self.uncovered);
            view
        })
    }

    /// Programs that had no TLS library lately, if that has changed since the last call.
    pub fn recent_programs(&mut self) -> Option<RecentPrograms> {
        std::mem::take(&mut self.familiar_changed).then(|| self.recent_programs.clone())
    }

    /// Ends all probes, many at a time.
    pub fn detach(self) {
        let probed = self.files.into_values().filter_map(|entry| match entry.known {
            Known::Probed(probed) => Some(probed.probes.into_attached()),
            _ => None,
        });
        attach::end(probed.flatten().collect());
    }

    // === inside ===

    /// Probes what a process maps. Returns the files.
    fn look(&mut self, tgid: u32) -> Vec<FileKey> {
        let Ok(process) = Process::open(tgid) else { return Vec::new() };
        self.look_around(&process);
        let text = process.maps().unwrap_or_default();
        let mut met = Vec::new();
        for mapping in &mappings(&text) {
            if self.stopping.load(Ordering::Relaxed) {
                break;
            }
            met.extend(self.meet(&process, mapping));
        }
        met
    }

    /// What a look at a process that has mapped its libraries shows of its program. Nothing if it has ended meanwhile.
    fn remember(&mut self, program: Program, met: &[FileKey], now: Instant) {
        let is_plain = |key: &FileKey| matches!(self.files.get(key), Some(Entry { known: Known::Plain, .. }));
        self.familiar_changed |= match met {
            [] => false,
            met if met.iter().all(is_plain) => self.recent_programs.note(program, now),
            _ => self.recent_programs.forget(program),
        };
    }

    /// The usual places of a mount namespace that is new to us, so that its next process finds them probed.
    fn look_around(&mut self, process: &Process) {
        let Ok(name) = process.mounts() else { return };
        if self.namespaces.contains(&name) {
            return;
        }
        if self.namespaces.len() >= NAMESPACES {
            self.namespaces.clear();
        }
        self.namespaces.insert(name);
        if let Ok(root) = process.root() {
            self.look_below(&root, false);
        }
    }

    fn look_below(&mut self, root: &Root, standing: bool) {
        let cache = root.read(library::CACHE).unwrap_or_default();
        for path in library::paths(&cache) {
            let Ok(file) = root.open(&path) else { continue };
            let key = self.consider(file, &path);
            if let Some(entry) = key.and_then(|key| self.files.get_mut(&key)) {
                entry.standing |= standing;
            }
        }
    }

    fn meet(&mut self, process: &Process, mapping: &Mapping) -> Option<FileKey> {
        let name = self.name(mapping);
        if let Some(key) = self.met.get(&name).filter(|key| self.files.contains_key(key)).copied() {
            self.touch(key);
            return Some(key);
        }
        let file = match process.mapped(mapping) {
            Ok(file) => file,
            Err(error) => {
                tracing::trace!(path = mapping.path, %error, "a mapped file was not looked at");
                return None;
            }
        };
        let key = self.consider(file, &mapping.path)?;
        if self.met.len() >= 2 * FILES {
            self.met.clear();
        }
        self.met.insert(name, key);
        Some(key)
    }

    fn name(&self, mapping: &Mapping) -> u64 {
        self.hasher.hash_one((mapping.identity, &mapping.path))
    }

    /// Looks at a file unless it is known; probes it when it has TLS functions.
    fn consider(&mut self, file: File, path: &str) -> Option<FileKey> {
        let metadata = file.metadata().ok()?;
        let (key, length) = (FileKey::of(&metadata), metadata.len());
        if self.files.contains_key(&key) {
            self.touch(key);
            return Some(key);
        }
        if self.files.len() >= FILES {
            self.files.retain(|_, entry| !matches!(entry.known, Known::Plain));
        }
        let file = OpenFile { file, length };
        let known = match probe_points(&file, self.attacher.returns()) {
            Ok(Plan { points, not_probed }) if points.is_empty() => {
                not_probed.map_or(Known::Plain, Known::Refused)
            }
            Ok(Plan { points, .. }) => self.probe(key, &file.file, path, points),
            Err(ElfError::Foreign | ElfError::Unreadable(_)) => Known::Plain,
            Err(error @ ElfError::Malformed(_)) => {
                tracing::debug!(path, %error, "not looked into for TLS functions");
                Known::Plain
            }
        };
        let round = self.round;
        self.changed |= !matches!(known, Known::Plain);
        self.files.insert(key, Entry { path: path.to_owned(), known, round, standing: false });
        Some(key)
    }

    fn probe(&self, key: FileKey, file: &File, path: &str, points: Vec<ProbePoint>) -> Known {
        if let Some(twin) = self.twin(key, file, &points) {
            return Known::SameAs(twin);
        }
        if self.probed().count() >= PROBED {
            return Known::Refused(format!("{PROBED} files are probed already"));
        }
        match self.attacher.attach(file.as_fd(), &points) {
            Ok(probes) => {
                tracing::debug!(path, n_points = points.len(), "TLS functions probed");
                Known::Probed(Probed { probes, points })
            }
            Err(error) => {
                tracing::warn!(path, %error, "TLS functions not probed");
                Known::Refused(error.to_string())
            }
        }
    }

    /// A probed file of the same size and with the same points, when the kernel shows that it is the same inode in
    /// truth.
    fn twin(&self, key: FileKey, file: &File, points: &[ProbePoint]) -> Option<FileKey> {
        let alike =
            |(other, probed): &(FileKey, &Probed)| other.length == key.length && probed.points == points;
        let (twin, _) = self.probed().find(alike)?;
        attach::is_probed(file, points).then_some(twin)
    }

    fn probed(&self) -> impl Iterator<Item = (FileKey, &Probed)> {
        self.files.iter().filter_map(|(key, entry)| match &entry.known {
            Known::Probed(probed) => Some((*key, probed)),
            _ => None,
        })
    }

    fn is_probed(&self, key: FileKey) -> bool {
        let reads = |points: &[ProbePoint]| points.iter().any(|point| point.program.moves_bytes());
        match self.files.get(&key).map(|entry| &entry.known) {
            Some(Known::Probed(probed)) => reads(&probed.points),
            Some(Known::SameAs(twin)) => *twin != key && self.is_probed(*twin),
            _ => false,
        }
    }

    fn refused(&self, key: FileKey) -> Option<(&str, &str)> {
        let entry = self.files.get(&key)?;
        match &entry.known {
            Known::Refused(reason) => Some((&entry.path, reason)),
            _ => None,
        }
    }

    fn touch(&mut self, key: FileKey) {
        let round = self.round;
        let Some(entry) = self.files.get_mut(&key) else { return };
        entry.round = round;
        if let Known::SameAs(twin) = entry.known
            && let Some(twin) = self.files.get_mut(&twin)
        {
            twin.round = round;
        }
    }

    /// Notes which files the process still maps.
    fn mark(&mut self, tgid: u32) {
        let Ok(process) = Process::open(tgid) else { return };
        for mapping in mappings(&process.maps().unwrap_or_default()) {
            if let Some(key) = self.met.get(&self.name(&mapping)).copied() {
                self.touch(key);
            }
        }
    }

    fn go_round(&mut self) {
        if self.to_mark.is_empty() {
            self.begin_round();
        }
        let per_step = if self.looks_at_all { PER_STEP } else { self.per_step };
        for _ in 0..per_step {
            let Some(tgid) = self.to_mark.pop() else { break };
            if self.looks_at_all { drop(self.look(tgid)) } else { self.mark(tgid) }
        }
    }

    fn begin_round(&mut self) {
        self.round += 1;
        self.looks_at_all = std::mem::take(&mut self.has_missed);
        self.let_go();
        self.to_mark = std::fs::read_dir("/proc")
            .map(|entries| {
                entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok()).collect()
            })
            .unwrap_or_default();
        self.per_step = self.to_mark.len().div_ceil(ROUND_STEPS).clamp(1, PER_STEP);
        self.uncovered.retain(|known| std::fs::exists(format!("/proc/{}", known.pid)).unwrap_or(true));
    }

    fn let_go(&mut self) {
        let round = self.round;
        let gone = |entry: &Entry| !entry.standing && entry.round + ROUNDS < round;
        for (_, entry) in self.files.extract_if(|_, entry| gone(entry)) {
            if let Known::Probed(probed) = entry.known {
                tracing::debug!(
                    path = entry.path,
                    "nobody uses it any more: TLS functions are probed no longer"
                );
                self.changed = true;
                probed.probes.detach();
            }
        }
    }
}
